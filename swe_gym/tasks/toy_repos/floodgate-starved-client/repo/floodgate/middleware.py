"""A limiter in front of a request handler."""

import functools
import math
from typing import Any, Dict, NamedTuple


class Request(NamedTuple):
    """What a handler gets."""

    client: str
    path: str


class Response(NamedTuple):
    """What a handler gives back."""

    status: int
    body: Any = ""
    headers: Dict[str, str] = {}


def limited(limiter, key=lambda request: request.client):
    """Decorator: answer 429 to clients that have to wait, and tell them for how many whole seconds.

    Args:
        limiter: The limiter to ask.
        key: Makes the key from the request; by default it is the client.
    """

    def decorate(handler):
        @functools.wraps(handler)
        def wrapper(request):
            name = key(request)
            if limiter.allow(name):
                return handler(request)
            seconds = math.ceil(limiter.retry_after(name))
            return Response(429, "too many requests", {"Retry-After": str(seconds)})

        return wrapper

    return decorate
