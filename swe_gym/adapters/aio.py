"""The door for frameworks that await: environments, episodes and samplers, each episode in threads of its own.

    async with AsyncEnv(gymnasium.make("SWE/Toy-v0")) as env:
        observation, info = await env.reset(options={"task_id": "toy-clock"})
        async with asyncio.timeout(60):
            observation, reward, terminated, truncated, info = await env.step(answer)

A cancelled call, also one past its `asyncio.timeout`, closes its sandbox and waits until the thread has ended.
`asyncio.to_thread` is not enough: it runs at most 32 calls at once, and cannot be cancelled.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, Self, TypeVar

import gymnasium

from ..errors import PolicyError
from ..rollout.tokens import Completion
from ..spaces import Info
from .episodes import Episode, EpisodeBatch, MakeEnv, MakePolicy, Slot

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result], cancel: Callable[[], object]) -> Result:
    """Run blocking work in a new thread.

    Args:
        work: The work.
        cancel: Makes the work end soon; called in another thread if this task is cancelled. The task ends only after
            the work has.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(settled: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(lambda: None if done.done() else settled())

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  the caller raises it
            reason = error
            settle(lambda: done.set_exception(reason))
        else:
            settle(lambda: done.set_result(result))

    threading.Thread(target=run, name="episode", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        threading.Thread(target=cancel, name="cancel", daemon=True).start()
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        with contextlib.suppress(BaseException):
            done.result()  # an error after the cancellation tells nothing new
        raise


class AsyncEnv:
    """An environment whose calls are awaited. One call at a time.

    Args:
        env: A `SweEnv`, wrapped or not. Leaving the `async with` block closes it.

    Attributes:
        env: The environment.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self.env = env

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Await `env.reset`. Raises the same errors."""
        return await in_thread(lambda: self.env.reset(seed=seed, options=options), self.env.close)

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Await `env.step`."""
        observation, reward, terminated, truncated, info = await in_thread(
            lambda: self.env.step(action), self.env.close
        )
        return observation, float(reward), terminated, truncated, info

    async def close(self) -> None:
        """Await `env.close`."""
        await in_thread(self.env.close, lambda: None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


async def play(slot: Slot, make_env: MakeEnv, make_policy: MakePolicy, *, wall_clock: float = math.inf) -> Episode:
    """Play one episode, as `play_episodes` does. A policy may sample through an `AwaitedGenerator`."""
    batch = EpisodeBatch([slot], make_env, make_policy, wall_clock=wall_clock)
    return (await in_thread(batch.play, batch.cancel))[0]


class Sample(Protocol):
    """A framework's sampler."""

    def __call__(
        self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None
    ) -> Awaitable[Completion]:
        """Sample an answer; the arguments are those of `Generator.generate`."""
        ...


class AwaitedGenerator:
    """A `Generator` over a sampler that is awaited: the episode's thread waits, the event loop samples.

    Make it in a coroutine of the loop that samples.

    Args:
        sample: Samples an answer.
        timeout: Seconds that one answer may take.
    """

    def __init__(self, sample: Sample, *, timeout: float = 600.0) -> None:
        self._sample = sample
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`.

        Raises:
            PolicyError: The sampler raised, or did not answer in time.
        """

        async def sampled() -> Completion:
            async with asyncio.timeout(self._timeout):
                return await self._sample(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)

        try:
            return asyncio.run_coroutine_threadsafe(sampled(), self._loop).result(self._timeout + 1)
        except TimeoutError as error:
            raise PolicyError(f"the sampler did not answer within {self._timeout:g} s", reason="timeout") from error
        except Exception as error:
            raise PolicyError(f"the sampler failed: {type(error).__name__}: {error}", reason="server") from error
