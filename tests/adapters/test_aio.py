"""The awaited door: episodes at once, cancellation at every place, samplers that fail; nothing is left behind."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from core_parts import END, LS, SUBMIT, MakeEnv, Says, Tokens, bash, scripted_tasks

from swe_gym.adapters.aio import AsyncEnv, AwaitedGenerator, RowAgent, in_thread, play
from swe_gym.adapters.episodes import Episode, Slot
from swe_gym.errors import PolicyError, SandboxClosed
from swe_gym.rollout.policies.base import Policy
from swe_gym.rollout.tokens import ChatTemplate, Completion, TokenPolicy
from swe_gym.sandboxes import Sandbox
from swe_gym.tasks import load_source
from swe_gym.testing.sandbox_contract.case import new_marker, processes_here

SETTINGS: dict[str, Any] = {"max_tokens": 9, "temperature": 1.0, "seed": None}


def check_threads() -> None:
    """Check that the threads of episodes have ended; the last one may be about to."""
    for thread in threading.enumerate():
        if thread.name in ("episode", "cancel", "sandbox-group"):
            thread.join(60)
            assert not thread.is_alive(), thread.name


@pytest.fixture(autouse=True)
def _nothing_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test leaves a thread, or an error that nobody retrieved."""
    yield
    check_threads()
    gc.collect()
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


@pytest.fixture
def make_env(tmp_path: Path) -> MakeEnv:
    return scripted_tasks(tmp_path)


def token_policy(generator: AwaitedGenerator) -> Callable[..., Policy]:
    return lambda env, seed: TokenPolicy(env, generator, ChatTemplate(Tokens()), seed=seed, append_only=True)


def said(text: str) -> Completion:
    ids = [*text.encode(), END]
    return Completion(ids, [-1.0] * len(ids), "stop", version=3)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a thread does, at most a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def cancel(task: "asyncio.Task[Any]", *, twice: bool = False) -> None:
    """Cancel a task, and wait until it has ended."""
    task.cancel()
    if twice:
        await asyncio.sleep(0.05)
        task.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await task
    check_threads()


def running(env: gymnasium.Env[str, str]) -> Sandbox:
    """Return the sandbox of an environment, also one that is still starting."""
    (sandbox,) = env.unwrapped._group._sandboxes  # type: ignore[attr-defined]
    assert isinstance(sandbox, Sandbox)
    return sandbox


def test_64_episodes_play_at_once(make_env: MakeEnv) -> None:
    async def main() -> list[Episode]:
        everyone = asyncio.Barrier(64)

        async def sample(prompt: Sequence[int], **_: Any) -> Completion:
            if b"it says" in bytes(one for one in prompt if one < END):
                return said(SUBMIT)
            await everyone.wait()
            return said(LS)

        policy = token_policy(AwaitedGenerator(sample, timeout=60))
        return await asyncio.gather(*(play(Slot("a", seed), make_env, policy) for seed in range(64)))

    episodes = asyncio.run(main())
    assert [(one.trajectory.seed, one.reward, len(one.rows)) for one in episodes] == [(n, 1.0, 1) for n in range(64)]


def test_an_awaited_environment_is_the_environment(make_env: MakeEnv) -> None:
    async def main() -> list[Any]:
        async with AsyncEnv(make_env()) as env:
            first = await env.reset(seed=1, options={"task_id": "b"})
            return [first, *[await env.step(action) for action in (LS, "?", SUBMIT)]]

    env = make_env()
    assert asyncio.run(main()) == [env.reset(seed=1, options={"task_id": "b"}), *map(env.step, (LS, "?", SUBMIT))]


@pytest.mark.parametrize("twice", [False, True])
def test_a_cancelled_reset_closes_its_sandbox(make_env: MakeEnv, twice: bool) -> None:
    env = make_env({"at": "start", "stall": True})

    async def main() -> Any:
        task = asyncio.create_task(AsyncEnv(env).reset())
        await until(lambda: env.unwrapped._group is not None and env.unwrapped._group._sandboxes)  # type: ignore[attr-defined]
        sandbox: Any = running(env)
        await until(sandbox.stalled.is_set)
        await cancel(task, twice=twice)
        return sandbox

    assert asyncio.run(main()).calls[-1].at == "close"


def test_a_reset_cancelled_before_it_has_a_sandbox_leaves_none(make_env: MakeEnv) -> None:
    opening, go = threading.Event(), threading.Event()

    class Slow(gymnasium.Wrapper[str, str, str, str]):
        """Does something else before it starts the sandbox."""

        def reset(self, **arguments: Any) -> Any:
            opening.set()
            go.wait(60)
            return self.env.reset(**arguments)

        def close(self) -> None:
            super().close()
            go.set()  # the first `close` comes too early

    env = Slow(make_env())

    async def main() -> None:
        task = asyncio.create_task(AsyncEnv(env).reset())
        await until(opening.is_set)
        await cancel(task)

    asyncio.run(main())
    with pytest.raises(SandboxClosed):
        env.unwrapped.sandbox.exec("true")  # type: ignore[attr-defined]


def test_a_timeout_ends_a_running_command() -> None:
    marker = new_marker()

    async def main() -> Sandbox:
        env = gymnasium.make("SWE/Micro-v0", task_id="micro-1-0", disable_env_checker=True)
        async with AsyncEnv(env) as awaited:
            await awaited.reset()
            sandbox = running(env)
            step = asyncio.create_task(awaited.step(bash(f"sleep {marker}")))
            await until(lambda: bool(processes_here(marker)))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await step
            check_threads()
            return sandbox

    sandbox = asyncio.run(main())
    assert not processes_here(marker)
    with pytest.raises(SandboxClosed):
        sandbox.exec("true")


def test_cancelling_an_episode_ends_its_sample_and_its_sandbox(make_env: MakeEnv) -> None:
    made: list[Any] = []

    def make() -> gymnasium.Env[str, str]:
        made.append(make_env())
        return made[-1]

    async def main() -> Any:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def sample(prompt: Sequence[int], **_: Any) -> Completion:  # noqa: ARG001  never answers
            asked.set()
            try:
                return await asyncio.Future()
            finally:
                ended.set()

        task = asyncio.create_task(play(Slot("a"), make, token_policy(AwaitedGenerator(sample))))
        await until(asked.is_set)
        sandbox = running(made[-1])
        await cancel(task)
        await asyncio.wait_for(ended.wait(), 60)
        return sandbox

    assert asyncio.run(main()).calls[-1].at == "close"


def test_cancelling_while_a_retry_waits(make_env: MakeEnv) -> None:
    lost = {"at": "exec", "match": "lose", "error": "SandboxLost"}
    tries: list[Says] = []

    def make_policy(env: gymnasium.Env[str, str], seed: int | None) -> Policy:  # noqa: ARG001  the same for all
        tries.append(Says(bash("lose")))
        return tries[-1]

    async def main() -> None:
        task = asyncio.create_task(play(Slot("a"), lambda: make_env(lost), make_policy))
        await until(lambda: bool(tries) and not list(tries[0].lines))
        await cancel(task)

    asyncio.run(main())
    assert len(tries) == 1


async def silent(prompt: Sequence[int], **_: Any) -> Completion:  # noqa: ARG001  never answers
    return await asyncio.Future()


async def stubborn(prompt: Sequence[int], **_: Any) -> Completion:  # noqa: ARG001  answers once it is cancelled
    try:
        return await asyncio.Future()
    except asyncio.CancelledError:
        return said(SUBMIT)


async def broken(prompt: Sequence[int], **_: Any) -> Completion:  # noqa: ARG001  fails
    raise OSError("no route")


FAULTS = [
    (silent, 0.2, "PolicyError (timeout)"),
    (stubborn, 0.2, ""),  # late, but an answer
    (broken, 60.0, "PolicyError (server)"),
]


@pytest.mark.parametrize(("sample", "timeout", "failure"), FAULTS)
def test_a_sampler_that_fails_is_no_reward(make_env: MakeEnv, sample: Any, timeout: float, failure: str) -> None:
    async def main() -> Episode:
        return await play(Slot("a"), make_env, token_policy(AwaitedGenerator(sample, timeout=timeout)))

    episode = asyncio.run(main())
    assert (episode.failure, episode.reward) == (failure, None if failure else 1.0)


def test_mistakes_are_raised(make_env: MakeEnv) -> None:
    async def main(task_id: str, make_policy: Callable[..., Policy]) -> Episode:
        return await play(Slot(task_id), make_env, make_policy)

    with pytest.raises(ValueError, match="unknown task 'c'"):
        asyncio.run(main("c", lambda env, seed: Says(SUBMIT)))  # noqa: ARG005  the same for all
    with pytest.raises(ZeroDivisionError):
        asyncio.run(main("a", lambda env, seed: Says(str(1 // 0))))  # noqa: ARG005  the same for all


def test_work_may_raise_what_asyncio_uses_itself() -> None:
    def cancelled() -> None:
        raise asyncio.CancelledError

    def stopped() -> None:
        raise StopIteration

    for work, error in ((cancelled, asyncio.CancelledError), (stopped, RuntimeError)):
        with pytest.raises(error):
            asyncio.run(in_thread(work, lambda: pytest.fail("nothing was cancelled")))


def test_a_loop_that_is_closed_ends_the_samples_of_its_threads() -> None:
    loop = asyncio.new_event_loop()

    async def make() -> AwaitedGenerator:
        return AwaitedGenerator(silent)

    generator = loop.run_until_complete(make())
    loop.close()
    with pytest.raises(PolicyError, match="closed"):
        generator.generate([1], **SETTINGS)


def test_leaving_the_loop_cancels_its_episodes(make_env: MakeEnv) -> None:
    left: list[asyncio.Task[Episode]] = []

    async def main() -> None:
        asked = asyncio.Event()

        async def sample(prompt: Sequence[int], **settings: Any) -> Completion:
            asked.set()
            return await silent(prompt, **settings)

        left.append(asyncio.create_task(play(Slot("a"), make_env, token_policy(AwaitedGenerator(sample)))))
        await until(asked.is_set)

    asyncio.run(main())
    assert left[0].cancelled()


def test_an_answer_to_a_row_that_takes_too_long_is_a_failure() -> None:
    async def never(prompt: Sequence[int], **_: Any) -> Completion:
        await asyncio.Event().wait()
        raise AssertionError(prompt)

    agent = RowAgent.make({"env_args": {"tools": ["bash"]}, "answer_timeout": 0.2})
    row = {"source": "micro", "task_id": next(iter(load_source("micro").ids()))}
    episode = asyncio.run(agent.play(row, never, Tokens(), max_context=9000))
    assert episode.failure == "PolicyError (timeout)"
