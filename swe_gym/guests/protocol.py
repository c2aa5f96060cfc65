"""Encoding and decoding of the frames that host and runner exchange over one byte stream.

A frame is `SWE1`, the length of a JSON object, the length of a payload (both 32 bits, big-endian), the object in
UTF-8, the payload. A request carries "id" and "op"; its reply carries the same "id". A reply with "error" is a
failure: "error" holds [errno name or "BadRequest", message]. The runner may send frames without "id": events. The host
may send requests without a reply, on forwarded connections.
"""

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]
    Frame = tuple[Message, bytes]

MAGIC = b"SWE1"
HEADER = struct.Struct(">4sII")
MAX_OBJECT = 64 << 20
MAX_PAYLOAD = 1 << 30

WINDOW = 1 << 18
"""Bytes of a forwarded connection that either end may send before the other end has passed them on."""

PIECE = 1 << 16
"""Bytes of a forwarded connection in a frame, at most."""


class ProtocolError(Exception):
    """The bytes are not a frame. The stream cannot be used any further."""


def encode(message: "Message", payload: bytes = b"") -> bytes:
    """Return the bytes of one frame.

    Raises:
        ProtocolError: The frame would be too large.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_OBJECT or len(payload) > MAX_PAYLOAD:
        raise ProtocolError("too large for a frame: {} and {} bytes".format(len(body), len(payload)))
    return b"".join((HEADER.pack(MAGIC, len(body), len(payload)), body, payload))


class Decoder:
    """Turns received bytes, in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> "list[Frame]":
        """Take bytes; return the frames (message, payload) that they complete.

        Raises:
            ProtocolError: The bytes are not a frame, or announce one that is too large.
        """
        self._buffer += data
        frames: list[Frame] = []
        while True:
            frame = self._next()
            if frame is None:
                return frames
            frames.append(frame)

    def _next(self) -> "Frame | None":
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
            raise ProtocolError("not JSON: {}".format(error)) from error
        if not isinstance(message, dict):
            raise ProtocolError("not a JSON object: {!r}".format(message))
        payload = bytes(self._buffer[middle:end])
        del self._buffer[:end]
        return message, payload
