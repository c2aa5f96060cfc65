"""The door for frameworks that await: environments, episodes and samplers, each episode in threads of its own.

    async with AsyncEnv(gymnasium.make("SWE/Toy-v0")) as env:
        observation, info = await env.reset(options={"task_id": "rota-month-end"})
        async with asyncio.timeout(60):
            observation, reward, terminated, truncated, info = await env.step(answer)

A cancelled call, also one past its `asyncio.timeout`, closes its sandbox and waits until the thread has ended.
`asyncio.to_thread` is not enough: it runs at most 32 calls at once, and cannot be cancelled. `RowAgent` plays the rows
that `swe-gym tasks export --to NAME` writes.
"""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from contextvars import ContextVar
from functools import partial
from typing import Any, Self, TypeVar

import gymnasium
from pydantic import Field, ValidationError

from .. import threads
from ..envs import SweEnv, make_env
from ..errors import PolicyError, UsageError, wrong_fields
from ..rollout.policies import Policy
from ..rollout.tokens import ChatTemplate, Completion, TokenPolicy
from ..spaces import Info
from ..types import Frozen, JsonMapping, JsonObject
from .episodes import TICK, Episode, EpisodeBatch, MakeEnv, MakePolicy, Slot

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result], cancel: Callable[[], object]) -> Result:
    """Run blocking work in a new thread.

    Args:
        work: The work.
        cancel: Makes the work end soon and frees what it holds. If this task is cancelled, another thread calls it,
            several times and once after the work has ended. The task ends only then.
    """
    outcome = _start(work, "episode")
    try:
        await asyncio.wait([asyncio.wrap_future(outcome)])
    except asyncio.CancelledError:
        stopped = asyncio.wrap_future(_start(partial(_stop, outcome, cancel), "cancel"))
        while not stopped.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([stopped])
        raise
    return outcome.result()()


def _start(work: Callable[[], Result], name: str) -> Future[Callable[[], Result]]:
    """Start a thread. Its outcome is called for the result or the error: asyncio futures refuse `StopIteration`."""

    def run() -> Callable[[], Result]:
        result: Future[Result] = Future()
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001  the caller raises it
            result.set_exception(error)
        return result.result

    return threads.in_thread(run, name)


def _stop(outcome: Future[Any], cancel: Callable[[], object]) -> None:
    """Cancel work until it has ended: the first call may come before there is anything to cancel."""
    over = False
    while not over:
        over = outcome.done()
        with contextlib.suppress(Exception):  # the task raises its cancellation
            cancel()
        wait([outcome], timeout=TICK)


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


class RowAgent(Frozen):
    """How the episode of a row is played.

    Attributes:
        env_args: Arguments of `SweEnv`, such as `backend`, `tools` and `max_turns`.
        env_id: Registered environment id to make instead of the row's task source.
        system: System prompt. Empty: a short list of the tools.
        max_tokens: Maximum tokens of one answer.
        append_only: Keep each episode in one segment, even if the chat template would rewrite history. None: the
            adapter decides.
        wall_clock: Seconds after which an episode is cancelled and left out.
        answer_timeout: Seconds that one answer may take.
    """

    env_args: JsonObject = {}
    env_id: str | None = None
    system: str = ""
    max_tokens: int = Field(default=4096, ge=1)
    append_only: bool | None = None
    wall_clock: float = Field(default=math.inf, gt=0)
    answer_timeout: float = Field(default=1800.0, gt=0)

    @classmethod
    def make(cls, settings: JsonMapping) -> Self:
        """Return an agent with these settings. Raises UsageError if one is unknown or invalid."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise UsageError(f"settings of the agent: {wrong_fields(error)}") from error

    def make_env(self, row: JsonMapping) -> Any:
        """Make the environment of a row; nothing is started before its `reset`.

        Raises:
            UsageError: An argument is invalid, or the row names no task source.
        """
        if self.env_id:
            return make_env(self.env_id, **self.env_args)
        if "source" not in row:
            raise UsageError("the row names no task source: write it with `swe-gym tasks export`, or set env_id")
        return SweEnv(row["source"], json.loads(row.get("source_options") or "{}"), **self.env_args)

    async def play(
        self,
        row: JsonMapping,
        sample: Sample,
        tokenizer: Any,
        *,
        max_context: int,
        temperature: float = 1.0,
        append_only: bool = False,
    ) -> Episode:
        """Play the episode of a row. Arguments and errors are those of `TokenPolicy` and `play`."""
        generator = AwaitedGenerator(sample, timeout=self.answer_timeout)
        template = ChatTemplate(tokenizer)

        def make_policy(env: Any, _seed: int | None) -> Policy:
            return TokenPolicy(
                env,
                generator,
                template,
                system=self.system,
                temperature=temperature,
                max_tokens=self.max_tokens,
                max_context=max_context,
                append_only=append_only if self.append_only is None else self.append_only,
            )

        slot = Slot(find_task_id(row))
        return await play(slot, partial(self.make_env, row), make_policy, wall_clock=self.wall_clock)


def find_task_id(row: JsonMapping) -> str:
    """Return the task of a row: its column `task_id`, or that of `extra_info`.

    Raises:
        UsageError: It names none.
    """
    task_id = row.get("task_id") or (row.get("extra_info") or {}).get("task_id")
    if not task_id:
        raise UsageError("the row names no task: it needs a column task_id, or extra_info with one")
    return str(task_id)


def completion_of(output: Any, max_tokens: int, end: int | None, version: int) -> Completion:
    """Return the answer of one of verl's servers.

    Args:
        output: verl's `TokenOutput`. It does not say whether the model or the limit ended the answer.
        max_tokens: The limit.
        end: Id of the token that ends an answer.
        version: Version of the weights.

    Raises:
        PolicyError: The server aborted the answer.
    """
    ids: Sequence[int] = list(output.token_ids)
    if not ids or output.stop_reason in ("abort", "aborted"):
        raise PolicyError("the server aborted the answer", reason="server")
    cut = len(ids) >= max_tokens and ids[-1] != end
    return Completion(ids, output.log_probs or [0.0] * len(ids), "length" if cut else "stop", version)
