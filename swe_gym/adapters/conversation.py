"""The conversation of a client with its session: messages over a WebSocket, answered one after the other."""

import asyncio
import contextlib
import json
import logging
from collections import Counter
from typing import Literal

import gymnasium
from pydantic import Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..errors import UsageError, wrong_fields
from ..types import Frozen, JsonObject
from .session import ClientSession
from .threads import in_thread


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


logger = logging.getLogger(__name__)

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
