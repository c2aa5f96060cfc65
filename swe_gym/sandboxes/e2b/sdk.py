"""Access to E2B's SDK, which may be missing and differs between versions. Users of AGS pin old ones."""

import inspect
import threading
from collections.abc import Callable
from typing import Any

from ...errors import MissingDependency
from ...types import JsonObject


def load_sdk() -> Any:
    """Import the SDK.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        import e2b
    except ImportError as error:
        raise MissingDependency(f"backend 'e2b' needs its SDK: pip install 'swe-gym[e2b]' ({error})") from error
    return e2b


def in_time(call: Callable[[], object], seconds: float) -> None:
    """Make a call that may ignore its own timeout, as calls of older SDKs do.

    Raises:
        TimeoutError: The call did not return within `seconds`; it continues in a thread.
    """
    errors: list[Exception] = []

    def work() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  handed to the caller
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError("the service did not answer in time")
    if errors:
        raise errors[0]


def supported(call: Callable[..., Any], **arguments: Any) -> JsonObject:
    """Return the arguments that this version of the SDK knows."""
    return {name: value for name, value in arguments.items() if name in inspect.signature(call).parameters}
