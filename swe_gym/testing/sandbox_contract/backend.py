"""Cases of the class methods, which speak for a whole backend."""

from ...errors import UsageError
from ...sandboxes import Finding, Sandbox
from .case import case, ok


def problems(findings: list[Finding]) -> list[Finding]:
    """Return the findings that keep sandboxes from starting, or that have no fix."""
    return [found for found in findings if not found.works and (found.needed or not found.fix)]


@case("backend")
def the_class_makes_what_is_open(sandbox: Sandbox) -> None:
    """`for_spec` makes a sandbox of the same backend, which is not started."""
    another = type(sandbox).for_spec(sandbox.spec)
    assert another.name == sandbox.name
    assert another.id != sandbox.id
    another.close()


@case("backend")
def check_passes_if_a_sandbox_starts(sandbox: Sandbox) -> None:
    """`check` finds nothing wrong with the description of a sandbox that runs, and leaves that one alone."""
    assert problems(type(sandbox).check([sandbox.spec, sandbox.spec])) == []
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("backend", budget=500.0)
def diagnosis_of_a_backend_that_works(sandbox: Sandbox) -> None:
    """`diagnose` finds all that sandboxes need, and has a fix for what else does not work."""
    assert problems(type(sandbox).diagnose(sandbox.spec.options)) == []


@case("backend")
def sweep_leaves_open_sandboxes(sandbox: Sandbox) -> None:
    """`sweep` returns names or None, and does not touch a sandbox whose client lives."""
    swept = type(sandbox).sweep(sandbox.spec.options)
    assert swept is None or all(isinstance(name, str) and sandbox.id not in name for name in swept), swept
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("backend")
def class_methods_check_options(sandbox: Sandbox) -> None:
    """`diagnose` and `sweep` refuse an unknown option with a `UsageError`, or do nothing at all."""
    for method, nothing in ((type(sandbox).diagnose, []), (type(sandbox).sweep, None)):
        try:
            found = method({**sandbox.spec.options, "no_such_option": 1})
        except UsageError:
            continue
        assert found == nothing, f"{method.__name__} ignored an unknown option: {found}"
