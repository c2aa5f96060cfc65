"""The door for frameworks that await: environments, episodes and samplers, each episode in threads of its own.

    async with AsyncEnv(gymnasium.make("SWE/Toy-v0")) as env:
        observation, info = await env.reset(options={"task_id": "rota-month-end"})
        async with asyncio.timeout(60):
            observation, reward, terminated, truncated, info = await env.step(answer)

A cancelled call, also one past its `asyncio.timeout`, closes its sandbox and waits until the thread has ended.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from contextvars import ContextVar
from typing import Any

import gymnasium

from ..errors import PolicyError
from ..rollout.policies import Policy
from ..rollout.tokens import Completion
from ..spaces import Info
from .episodes import Episode, EpisodeBatch, MakeEnv, MakePolicy, Slot
from .threads import in_thread

Sample = Callable[..., Awaitable[Completion]]
"""A framework's sampler. Its arguments are those of `Generator.generate`."""

_awaited: ContextVar[set[Future[Any]]] = ContextVar("awaited")
"""The samples that an episode's thread waits for."""


class AsyncEnv(contextlib.AbstractAsyncContextManager["AsyncEnv"]):
    """An environment whose calls are awaited. One call at a time.

    Args:
        env: A `SweEnv`, wrapped or not. Leaving the `async with` block closes it.

    Attributes:
        env: The environment.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self.env = env

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        """Await `env.reset`. Raises the same errors."""
        return await in_thread(lambda: self.env.reset(seed=seed, options=options), self.env.close)

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Await `env.step`."""
        result = await in_thread(lambda: self.env.step(action), self.env.close)
        return result[0], float(result[1]), *result[2:]

    async def close(self) -> None:
        """Await `env.close`."""
        await in_thread(self.env.close, lambda: None)

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


async def play(slot: Slot, make_env: MakeEnv, make_policy: MakePolicy, *, wall_clock: float = math.inf) -> Episode:
    """Play one episode, as `play_episodes` does. A policy may sample through an `AwaitedGenerator`."""
    awaited: set[Future[Any]] = set()

    def make_policy_in_thread(env: gymnasium.Env[str, str], seed: int | None) -> Policy:
        _awaited.set(awaited)  # of this episode's thread only
        return make_policy(env, seed)

    def cancel() -> None:
        batch.cancel()
        for sample in list(awaited):
            sample.cancel()

    batch = EpisodeBatch([slot], make_env, make_policy_in_thread, wall_clock=wall_clock)
    try:
        return (await in_thread(batch.play, cancel))[0]
    finally:
        cancel()  # a sample that an abandoned try still waits for


class AwaitedGenerator:
    """A `Generator` over a sampler that is awaited: the episode's thread waits, the event loop samples.

    Make it in a coroutine of the loop that samples. If the `play` of an episode is cancelled, so is its sample.

    Args:
        sample: Samples an answer; its arguments are those of `generate`.
        timeout: Seconds that one answer may take.
    """

    def __init__(self, sample: Sample, *, timeout: float = 600.0) -> None:
        self._sample, self._timeout = sample, timeout
        self._loop = asyncio.get_running_loop()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`.

        Raises:
            PolicyError: The sampler raised or did not answer in time, or the episode or the event loop ended.
        """
        if self._loop.is_closed():
            raise PolicyError("the event loop of the sampler is closed", reason="closed")
        sampling = self._try_sample(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)
        sampled = asyncio.run_coroutine_threadsafe(sampling, self._loop)
        awaited = _awaited.get(set())
        awaited.add(sampled)
        deadline = time.monotonic() + self._timeout + 1
        while not (sampled.done() or self._loop.is_closed() or time.monotonic() > deadline):
            wait([sampled], timeout=1.0)
        awaited.discard(sampled)
        if sampled.cancel() or sampled.cancelled():
            raise PolicyError("the sampler was cancelled or does not answer", reason="closed")
        result = sampled.result()
        if isinstance(result, PolicyError):
            raise result
        return result

    async def _try_sample(self, prompt: Sequence[int], **settings: Any) -> Completion | PolicyError:
        """Sample. Return an error, not raise it: after a cancellation nobody is left to retrieve it."""
        try:
            async with asyncio.timeout(self._timeout) as timeout:
                return await self._sample(prompt, **settings)
        except Exception as error:  # noqa: BLE001  raised in the episode's thread
            late = timeout.expired()
            said = f"did not answer within {self._timeout:g} s" if late else f"failed: {type(error).__name__}: {error}"
            failure = PolicyError(f"the sampler {said}", reason="timeout" if late else "server")
            failure.__cause__ = error
            return failure
