"""A cache of a model's answers on disk, so that an evaluation that is run again pays only for what is new.

    DIR/ab/abcd....json    one answer: its key, the message, the tokens, and a digest of them

An entry belongs to one server, one model as the server names it, one whole request and one attempt. Requests are not
stored, only their digest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from ...errors import UsageError
from ...files import write_text
from ...trajectories import ModelServer, Usage
from ...types import Frozen, Json, JsonMapping, JsonObject
from .chat_client import ChatReply

logger = logging.getLogger(__name__)


class _CachedAnswer(Frozen):
    """The content of a file. The digest is that of the other fields."""

    version: Literal[1] = 1
    key: str
    message: JsonObject
    finish_reason: str
    usage: Usage
    digest: str = ""

    def sign(self) -> _CachedAnswer:
        """Return the entry with its digest."""
        return self.model_copy(update={"digest": _digest(self.model_dump(exclude={"digest"}))})


class AnswerCache:
    """Answers of models in a folder. Its methods may be called from any thread, and by several processes.

    Args:
        folder: The folder; created if it is missing.

    Attributes:
        folder: The folder.

    Raises:
        UsageError: The folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self._writing = threading.Lock()  # partial files are named by the process
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise UsageError(
                f"cannot keep answers in {self.folder}: {error.strerror}. Make it writable, or choose another folder: "
                "--cache DIR"
            ) from error

    def key(self, server: ModelServer, request: JsonMapping, attempt: int) -> str:
        """Return the key of an answer.

        Args:
            server: Address of the server, and the model as the server names it.
            request: The whole request.
            attempt: Seed of the attempt. Several attempts at a task are different samples.
        """
        return _digest([server.url, server.model, request, attempt])

    def get(self, key: str) -> ChatReply | None:
        """Return an answer; None if there is none, or its file is damaged or another's."""
        try:
            entry = _CachedAnswer.model_validate_json(self._path(key).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValidationError) as error:
            logger.warning("%s is not an answer, and is asked for again: %s", self._path(key), _first_line(error))
            return None
        if entry.key != key or entry != entry.sign():
            logger.warning("%s is damaged or of another request: the answer is asked for again", self._path(key))
            return None
        return ChatReply(entry.message, entry.finish_reason, entry.usage)

    def put(self, key: str, answer: ChatReply) -> None:
        """Keep an answer. A failure to write is logged: the answer is good without it."""
        usage = answer.usage.model_copy(update={"retries": 0})
        entry = _CachedAnswer(key=key, message=answer.message, finish_reason=answer.finish_reason, usage=usage).sign()
        path = self._path(key)
        try:
            with self._writing:
                path.parent.mkdir(exist_ok=True)
                write_text(path, json.dumps(entry.model_dump()) + "\n")
        except OSError as error:
            logger.warning("cannot keep an answer in %s: %s", path, error.strerror)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _digest(value: Json) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
