"""One session of an environment in the words of OpenEnv's protocol, and its messages over a WebSocket.

`metadata` of an observation holds what the protocol has no field for: `terminated`, `truncated`, `reward_valid`,
`outcome` and the whole `info`. A step whose action has `metadata={"limit": "tokens"}` ends the episode at that limit.
"""

import asyncio
import contextlib
import json
import logging
from collections import Counter
from typing import Any, Literal, NamedTuple, SupportsFloat

import gymnasium
from gymnasium.spaces import Text
from pydantic import Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from .. import envs
from ..envs import SANDBOX_FAILED, WORLD_ERRORS, ToolEnv
from ..errors import SandboxError, UsageError, wrong_fields
from ..rollout import without_secrets
from ..spaces import Unicode
from ..trajectories import MAX_PATCH, shortened
from ..types import Frozen, JsonObject
from .aio import in_thread

logger = logging.getLogger(__name__)

MAX_MESSAGE = 16 << 20
"""Maximum bytes of a message. The longest action is 12 MB of JSON."""

MAX_FAILURE = 300
"""Maximum characters of a failure to reset."""

Env = gymnasium.Env[str, str]


class EnvReply(NamedTuple):
    """What `reset` and `step` return.

    Attributes:
        text: The observation.
        reward: The reward; None at a reset, and at the end of an episode that has no valid reward.
        done: Whether the episode is over.
        metadata: Everything else.
    """

    text: str
    reward: float | None
    done: bool
    metadata: JsonObject

    def data(self) -> JsonObject:
        """Return the data of OpenEnv's observation message, which has the metadata twice."""
        observation = {"text": self.text, "metadata": self.metadata}
        return {"observation": observation, "reward": self.reward, "done": self.done, "metadata": self.metadata}


def make_env(env_id: str, **arguments: Any) -> Env:
    """Make a registered environment of texts; nothing is started.

    Raises:
        UsageError: The id or an argument is unknown, or actions or observations are not texts.
    """
    env = envs.make_env(env_id, **arguments)
    if not isinstance(env.observation_space, Text) or not isinstance(env.action_space, Text):
        env.close()
        raise UsageError(f"{env_id!r} cannot be served: its observations and actions must be texts")
    return env


class ClientSession:
    """The environment of one client. `close` may be called from any thread; other calls one at a time.

    Args:
        env: An environment of texts. The session closes it.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._steps = 0
        self._episode_id: str | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task_id: str | None = None,
        options: JsonObject | None = None,
    ) -> EnvReply:
        """Start an episode. If the infrastructure fails, it is over at once, with outcome "infra_failed".

        Args:
            seed: Seed of the environment.
            episode_id: Name of the episode, which `state` returns.
            task_id: The task; short for `options={"task_id": ...}`.
            options: Options of the environment's `reset`.

        Raises:
            UsageError: A task or an option is unknown.
        """
        options = {**(options or {}), **({} if task_id is None else {"task_id": task_id})}
        self._steps, self._episode_id = 0, episode_id
        try:
            text, info = self._env.reset(seed=seed, options=options or None)
        except WORLD_ERRORS as error:
            logger.warning("reset failed: %s", error)
            return _describe_failed_reset(error)
        return _reply(text, None, False, False, info)

    def step(self, text: str, limit: str = "") -> EnvReply:
        """Take a step, or end the episode at a limit and grade the work as it is.

        Raises:
            ResetNeeded: No episode is running.
            UsageError: This environment cannot be ended.
        """
        self._steps += not limit
        if limit and not isinstance(self._env.unwrapped, ToolEnv):
            raise UsageError(f"{type(self._env.unwrapped).__name__} cannot end an episode at a limit of the caller")
        return _reply(*(self._env.get_wrapper_attr("end")(limit) if limit else self._env.step(text)))

    def state(self) -> JsonObject:
        """Return the episode so far, and what a client needs to stand for the environment."""
        env = self._env
        state: JsonObject = {
            "episode_id": self._episode_id,
            "step_count": self._steps,
            "env_id": env.spec.id if env.spec else "",
            "spaces": {"observation": _space(env.observation_space), "action": _space(env.action_space)},
        }
        if isinstance(env.unwrapped, ToolEnv):
            state |= _tool_state(env.unwrapped)
        return state

    def close(self) -> None:
        """End the episode and free all resources."""
        self._env.close()


def _reply(text: str, reward: SupportsFloat | None, terminated: bool, truncated: bool, info: JsonObject) -> EnvReply:
    """Return the reply to a step, or to a reset, which has no reward (None)."""
    done, valid = bool(terminated or truncated), bool(info.get("reward_valid", True))
    metadata = {
        "terminated": bool(terminated),
        "truncated": bool(truncated),
        "reward_valid": valid,
        "outcome": str(info.get("outcome", "")),
        "info": info,
    }
    return EnvReply(text, None if reward is None or (done and not valid) else float(reward), done, metadata)


def _describe_failed_reset(error: Exception) -> EnvReply:
    """Return the end of an episode without a sandbox. The text of a task error may quote hidden tests: it is logged."""
    text = str(error).partition("\n")[0][:MAX_FAILURE] if isinstance(error, SandboxError) else "see the server's log"
    info = {
        "outcome": "infra_failed",
        "reward_valid": False,
        "failure": f"{type(error).__name__}: {text}",
        "retryable": bool(getattr(error, "retryable", False)),
    }
    return _reply(SANDBOX_FAILED, None, False, True, info)


def _space(space: Any) -> JsonObject:
    return {"max_length": space.max_length, "examples": list(space.examples) if isinstance(space, Unicode) else [""]}


def _tool_state(env: ToolEnv) -> JsonObject:
    state = {"config": without_secrets(env.config), "tools": [spec.model_dump(mode="json") for spec in env.tools]}
    try:
        stats = {name: value for name, value in env.stats.items() if name != "failure"}  # it may quote hidden tests
        return {**state, "stats": stats, "judged_diff": shortened(env.judged_diff, MAX_PATCH)}
    except gymnasium.error.ResetNeeded:
        return {**state, "stats": {}, "judged_diff": ""}


class ResetData(Frozen):
    """Data of a reset message; see `Session.reset`."""

    seed: int | None = Field(default=None, ge=0, strict=True)
    episode_id: str | None = Field(default=None, max_length=255)
    task_id: str | None = None
    options: JsonObject | None = None


class ActionMetadata(Frozen):
    """Metadata of an action. A limit ends the episode."""

    limit: str = ""


class StepData(Frozen):
    """Data of a step message: the action."""

    text: str
    metadata: ActionMetadata = ActionMetadata()


class ResetMessage(Frozen):
    """A request to reset."""

    type: Literal["reset"]
    data: ResetData = ResetData()


class StepMessage(Frozen):
    """A request to step."""

    type: Literal["step"]
    data: StepData


class PlainMessage(Frozen):
    """A request without data."""

    type: Literal["state", "close"]


Message = ResetMessage | StepMessage | PlainMessage

MESSAGES: dict[str, type[Message]] = {
    "reset": ResetMessage,
    "step": StepMessage,
    "state": PlainMessage,
    "close": PlainMessage,
}
"""Type of a message -> its model."""


class MessageRefused(Exception):
    """A message or a session that gets an error.

    Attributes:
        code: One of OpenEnv's codes.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def parse_message(text: str | None) -> Message:
    """Parse a message.

    Raises:
        Refused: It is invalid.
    """
    try:
        message = json.loads(text or "")
    except (ValueError, RecursionError) as error:
        raise MessageRefused("INVALID_JSON", "the message is not JSON text") from error
    kind = message.get("type") if isinstance(message, dict) else None
    model = MESSAGES.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise MessageRefused(
            "UNKNOWN_TYPE", f"the message must be an object whose type is one of {', '.join(MESSAGES)}"
        )
    try:
        return model.model_validate(message)
    except ValidationError as error:
        raise MessageRefused("VALIDATION_ERROR", f"the message is invalid: {wrong_fields(error)}") from error


def schemas() -> JsonObject:
    """Return the schemas of `/schema`."""
    observation = {
        "text": {"type": "string"},
        "done": {"type": "boolean"},
        "reward": {"type": ["number", "null"]},
        "metadata": {"type": "object"},
    }
    return {
        "action": StepData.model_json_schema(),
        "observation": {"type": "object", "properties": observation, "required": list(observation)},
        "state": {"type": "object"},
    }


MAX_WAITING = 8
"""Messages of a client that may wait for earlier ones."""

End = tuple[MessageRefused | None, int]
"""Why a connection is closed, if that is an error, and the code to close it with."""


class ClientConversation:
    """A client's conversation with a session.

    Args:
        websocket: The accepted connection.
        session: The session. The caller closes it.
        counts: Counters of the server. The conversation adds to them.
        idle: Seconds without a message after which the conversation ends.
    """

    def __init__(self, websocket: WebSocket, session: ClientSession, counts: Counter[str], idle: float) -> None:
        self._websocket, self._session = websocket, session
        self._counts, self._idle = counts, idle

    async def run(self) -> End:
        """Answer messages until the client leaves, which ends a running call. Return why and how to close."""
        inbox: asyncio.Queue[str | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read(inbox))
        worker = asyncio.create_task(self._answer_all(inbox))
        try:
            await asyncio.wait({reader, worker}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, worker):
                task.cancel()
            await asyncio.wait({reader, worker})
        if worker.cancelled():
            return MessageRefused("SESSION_ERROR", "too many messages wait for an answer"), 1008
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client left before an answer was sent
            return worker.result()
        return None, 1000

    async def _answer_all(self, inbox: asyncio.Queue[str | None]) -> End:
        while True:
            try:
                async with asyncio.timeout(self._idle):
                    text = await inbox.get()
            except TimeoutError:
                return MessageRefused("SESSION_ERROR", f"no message for {self._idle:g} s: the session is closed"), 1001
            try:
                message = parse_message(text)
                if message.type == "close":
                    return None, 1000
                kind, data = await self._answer(message)
            except MessageRefused as error:
                self._counts["errors"] += 1
                kind, data = "error", {"message": str(error), "code": error.code}
            await self._websocket.send_text(json.dumps({"type": kind, "data": data}, default=str))

    async def _answer(self, message: Message) -> tuple[str, JsonObject]:
        """Return type and data of the answer.

        Raises:
            Refused: The call raised an error.
        """
        session = self._session
        try:
            if isinstance(message, PlainMessage):
                return "state", await in_thread(session.state, session.close)
            if isinstance(message, ResetMessage):
                given = dict(message.data)
                reply = await in_thread(lambda: session.reset(**given), session.close)
                self._counts["episodes"] += not reply.done
            else:
                action = message.data
                reply = await in_thread(lambda: session.step(action.text, action.metadata.limit), session.close)
                self._counts["steps"] += 1
            self._counts["infra_failures"] += reply.metadata["outcome"] == "infra_failed"
            return "observation", reply.data()
        except (UsageError, gymnasium.error.ResetNeeded) as error:
            raise MessageRefused("EXECUTION_ERROR", str(error)) from error
        except Exception as error:
            logger.exception("the environment raised an error")
            raise MessageRefused(
                "EXECUTION_ERROR", f"the environment raised {type(error).__name__}: see the log"
            ) from error

    async def _read(self, inbox: asyncio.Queue[str | None]) -> None:
        """Queue messages until the client leaves or sends too many."""
        while inbox.qsize() < MAX_WAITING:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            inbox.put_nowait(message.get("text"))


async def close(websocket: WebSocket, reason: MessageRefused | None, code: int) -> None:
    """Close a connection, perhaps with an error; the client may be gone."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        if reason is not None:
            await websocket.send_json({"type": "error", "data": {"message": str(reason), "code": reason.code}})
        await websocket.close(code)
