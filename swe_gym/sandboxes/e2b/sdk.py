"""Access to E2B's SDK, which may be missing and differs between versions. Users of AGS pin old ones."""

import inspect
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

from ...errors import MissingDependency
from ...threads import in_thread
from ...types import JsonObject


def load_sdk() -> Any:
    """Import the SDK.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        import e2b
    except ImportError as error:
        text = f"sandboxes with E2B's protocol need its SDK: pip install 'swe-gym[e2b]' ({error})"
        raise MissingDependency(text) from error
    return e2b


def in_time(call: Callable[[], object], seconds: float) -> None:
    """Make a call that may ignore its own timeout, as calls of older SDKs do.

    Raises:
        TimeoutError: The call did not return within `seconds`; it continues in a thread.
    """
    done = in_thread(call, "e2b-call")
    if not wait([done], seconds).done:
        raise TimeoutError("the service did not answer in time")
    done.result()


def select_supported(call: Callable[..., Any], **arguments: object) -> JsonObject:
    """Return the arguments that this version of the SDK knows."""
    return {name: value for name, value in arguments.items() if name in inspect.signature(call).parameters}
