"""The contract of sandboxes as test cases, for the built-in backends and your own.

    from swe_gym.sandboxes import SandboxSpec, open_sandbox
    from swe_gym.testing import sandbox_contract

    def make(**fields):
        return open_sandbox(SandboxSpec(**fields), "my_package.my_module:MyBackend")

    @sandbox_contract.parametrize(deviations={"memory_limit": "the provider has one size only"})
    def test_contract(case):
        case.run(make)

A deviation is a promise that the backend is known to break, with the reason. It becomes a strict xfail, so a fixed
deviation fails until you remove it from the list.

The sandboxes need `bash`, `python3` (3.6 or newer) and the usual small programs. A backend without isolation is safe to
test: cases that could harm this machine check `Sandbox.capabilities` first, and fail. Without pytest, call
`case.run(make)` for each case of `CASES`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ...errors import MissingDependency, unknown_name
from ...guests import protocol
from . import bounds, commands, files, forwards, isolation, life, limits, terminals, trees
from .case import Case, Opener, case

if TYPE_CHECKING:
    import pytest

__all__ = ["CASES", "Case", "Opener", "case", "cases", "parametrize"]

_MODULES = (commands, files, trees, bounds, terminals, forwards, life, isolation, limits)

CASES: tuple[Case, ...] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Case)
)
"""All cases by topic, simple topics first."""

EXERCISED: Mapping[str, Case] = {
    protocol.HELLO.name: commands.hello,
    protocol.EXEC.name: commands.hello,
    protocol.END_PROCESSES.name: bounds.commands_are_ended_from_another_thread,
    protocol.READ_FILE.name: files.round_trip,
    protocol.WRITE_FILE.name: files.round_trip,
    protocol.PUT_TAR.name: trees.tar_round_trip,
    protocol.GET_TAR.name: trees.tar_round_trip,
    protocol.MANIFEST.name: trees.manifest_is_true,
    protocol.MARK.name: trees.snapshot_and_restore,
    protocol.SNAPSHOT.name: trees.snapshot_and_restore,
    protocol.RESTORE.name: trees.snapshot_and_restore,
    protocol.PTY_OPEN.name: terminals.terminal_dialogue,
    protocol.PTY_READ.name: terminals.terminal_dialogue,
    protocol.PTY_WRITE.name: terminals.terminal_dialogue,
    protocol.PTY_SIGNAL.name: terminals.interrupting,
    protocol.PTY_CLOSE.name: terminals.closing_a_terminal_kills,
    protocol.FORWARD_OPEN.name: forwards.forwarded_connections,
    protocol.FORWARD_WAIT.name: forwards.forwarded_connections,
    protocol.FORWARD_DATA.name: forwards.forwarded_connections,
    protocol.FORWARD_END.name: forwards.forwarded_connections,
    protocol.FORWARD_TAKEN.name: forwards.forwarded_megabytes,
    protocol.FORWARD_CLOSE.name: forwards.closing_a_forwarded_port,
}
"""Operation of the runner -> a case that uses it."""


def cases(only: Collection[str] = (), exclude: Collection[str] = ()) -> tuple[Case, ...]:
    """Return the cases with a tag or name in `only` (all if it is empty) and none in `exclude`.

    Raises:
        UsageError: A tag or name is unknown.
    """
    words = {case.name: {case.name, *case.tags} for case in CASES}
    known = set().union(*words.values())
    for word in (*only, *exclude):
        if word not in known:
            raise unknown_name("tag or case of the sandbox contract", word, known)
    return tuple(
        case
        for case in CASES
        if (not only or words[case.name].intersection(only)) and not words[case.name].intersection(exclude)
    )


def parametrize(
    deviations: Mapping[str, str] | None = None, *, only: Collection[str] = (), exclude: Collection[str] = ()
) -> pytest.MarkDecorator:
    """Parametrize a test over the cases, as its argument `case`.

    Args:
        deviations: Name of a case that the backend fails -> reason, for a strict xfail.
        only: Tags or names of the cases to run; empty runs all.
        exclude: Tags or names of cases to skip.

    Raises:
        UsageError: A tag or name is unknown.
        MissingDependency: pytest is not installed.
    """
    try:
        import pytest
    except ImportError as error:
        raise MissingDependency("sandbox_contract.parametrize needs pytest: pip install pytest") from error
    deviations = deviations or {}
    for name in deviations:
        if name not in {case.name for case in CASES}:
            raise unknown_name("case of the sandbox contract", name, [case.name for case in CASES])
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=case.name,
                marks=[pytest.mark.xfail(reason=deviations[case.name], strict=True)] if case.name in deviations else [],
            )
            for case in cases(only, exclude)
        ],
    )
