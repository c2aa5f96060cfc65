"""A step takes few calls, and reaches the sandbox in few of them."""

import sys
from collections.abc import Iterator, Sequence

import gymnasium
from core import count_frames

from swe_gym.envs.swe_env import SweEnv
from swe_gym.sandboxes.fake import FakeSandbox

STACKS: list[list[str]] = []


def callers_up_to_step() -> Iterator[str]:
    frame = sys._getframe(2)  # the caller of `_argv`
    while frame.f_back and frame.f_code is not SweEnv.step.__code__:
        yield frame.f_code.co_qualname
        frame = frame.f_back
    yield frame.f_code.co_qualname


class Spy(FakeSandbox):
    """Records who calls `exec`."""

    def _argv(self, command: str | Sequence[str]) -> list[str]:  # `exec` calls it itself
        STACKS.append(list(callers_up_to_step()))
        return super()._argv(command)


def test_a_step_reaches_the_sandbox_in_five_frames() -> None:
    env = gymnasium.make("SWE/Toy-v0", backend=f"{__name__}:Spy")
    env.reset(seed=1)
    STACKS.clear()
    env.unwrapped.step('{"name": "bash", "arguments": {"command": "ls"}}')
    env.close()
    first = STACKS[0]
    assert first[0] == "Sandbox.exec"
    assert first[-1] == "SweEnv.step"
    assert len(first) <= 5, first


def test_a_step_takes_at_most_120_frames() -> None:
    action = '{"name": "bash", "arguments": {"command": "true"}}'
    with gymnasium.make("SWE/Toy-v0") as env:
        env.reset(seed=0)
        env.step(action)  # imports
        assert count_frames(lambda: env.step(action)).total() <= 120
