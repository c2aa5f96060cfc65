"""Serves one request for files with the rights of the user that runs it, as the runner does with its own.

The arguments are the operation's name and the fields of the request, standard input is its payload. The output is a
line of JSON and the payload of the reply.
"""

import errno
import json
import os
import sys
import types

from .protocol import GET_TAR, MANIFEST, PUT_TAR, READ_FILE, WRITE_FILE
from .runner.files import get_tar, list_files, put_tar, read_file, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .protocol import Message

SERVED: "dict[str, Callable[[Any, bytes], Any]]" = {
    READ_FILE.name: read_file,
    WRITE_FILE.name: write_file,
    GET_TAR.name: get_tar,
    PUT_TAR.name: put_tar,
    MANIFEST.name: list_files,
}


def main(name: str, request: str) -> None:
    os.umask(0o022)
    try:
        reply, payload = carry_out(name, json.loads(request), sys.stdin.buffer.read())
    except OSError as error:
        reply, payload = (
            {"error": [errno.errorcode.get(error.errno or 0, "EIO"), "%s" % (error.strerror or error)]},
            b"",
        )
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n" + payload)


def carry_out(name: str, request: "Message", payload: bytes) -> "tuple[Message, bytes]":
    """Return the answer to a request, also of an operation in steps."""
    answer = SERVED[name](request, payload)
    while isinstance(answer, types.GeneratorType):
        try:
            next(answer)
        except StopIteration as stop:
            answer = stop.value
    return answer  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(*sys.argv[1:])
