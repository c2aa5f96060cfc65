"""A stand-in for a service: an HTTP server on a free port, used as a context manager."""

import http.server
import threading
from typing import Self


class StandIn:
    """Serves with `handler`, whose attribute `service` is this object.

    Attributes:
        url: Address of the server.
    """

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        bound = type("Handler", (handler,), {"service": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), bound)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
