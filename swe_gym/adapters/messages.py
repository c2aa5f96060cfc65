"""Messages of OpenEnv's protocol that a client may send. Unknown fields are errors."""

import json
from typing import Literal

from pydantic import Field, ValidationError

from ..errors import wrong_fields
from ..types import Frozen, JsonObject


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
