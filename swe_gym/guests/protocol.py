"""The frames that host and runner exchange over one byte stream, without any input or output of its own.

A frame is `SWE1`, the length of a JSON object, the length of a payload (both 32 bits, big-endian), the object in
UTF-8, the payload. A request carries "id" and "op"; its reply carries the same "id". A reply with "error" is a
failure: "error" holds [errno name or "BadRequest", message]. The runner may send frames without "id": events.

The runner needs the same code, so this file keeps to Python 3.6 and the standard library, and is sent as text
in front of it.
"""

import json
import struct

MYPY = False
if MYPY:  # the sandbox need not load `typing`: annotations here are strings
    from typing import Any

MAGIC = b"SWE1"
HEADER = struct.Struct(">4sII")
MAX_OBJECT = 64 << 20
MAX_PAYLOAD = 1 << 30


class ProtocolError(Exception):
    """The bytes are no frame. The stream cannot be used any further."""


def encode(message: "dict[str, Any]", payload: bytes = b"") -> bytes:
    """The bytes of one frame.

    Raises:
        ProtocolError: It would be too large to be taken.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_OBJECT or len(payload) > MAX_PAYLOAD:
        raise ProtocolError("too large for a frame: {} and {} bytes".format(len(body), len(payload)))
    return b"".join((HEADER.pack(MAGIC, len(body), len(payload)), body, payload))


class Decoder:
    """Turns received bytes, in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> "list[tuple[dict[str, Any], bytes]]":
        """Take bytes; return the list of (message, payload) that they complete.

        Raises:
            ProtocolError: The bytes are no frame, or announce one that is too large.
        """
        self._buffer += data
        frames = []  # type: list[tuple[dict[str, Any], bytes]]
        while True:
            frame = self._next()
            if frame is None:
                return frames
            frames.append(frame)

    def _next(self) -> "tuple[dict[str, Any], bytes] | None":
        if len(self._buffer) < HEADER.size:
            if not MAGIC.startswith(bytes(self._buffer[:4])):
                raise ProtocolError("not a frame: {!r}".format(bytes(self._buffer[:64])))
            return None
        magic, object_size, payload_size = HEADER.unpack_from(self._buffer)
        if magic != MAGIC or object_size > MAX_OBJECT or payload_size > MAX_PAYLOAD:
            raise ProtocolError("not a frame: {!r}".format(bytes(self._buffer[:64])))
        start, middle = HEADER.size, HEADER.size + object_size
        end = middle + payload_size
        if len(self._buffer) < end:
            return None
        try:
            message = json.loads(bytes(self._buffer[start:middle]).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ProtocolError("not JSON: {}".format(error))
        if not isinstance(message, dict):
            raise ProtocolError("not a JSON object: {!r}".format(message))
        payload = bytes(self._buffer[middle:end])
        del self._buffer[:end]
        return message, payload
