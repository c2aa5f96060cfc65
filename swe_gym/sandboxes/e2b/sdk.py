"""E2B's SDK, which may be missing and differs between versions: access, creation of a sandbox, and errors."""

import contextlib
import inspect
import re
from collections.abc import Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from ...errors import MissingDependency
from ...threads import in_thread
from ...types import JsonMapping, JsonObject
from ..gates import add_jitter
from .options import ServiceAccess

if TYPE_CHECKING:
    import httpx


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


FIRST_PAUSE = 2.0
LONGEST_PAUSE = 60.0


class CallRefused(Exception):
    """An error reply to a call that the SDK does not have."""

    def __init__(self, status: int, text: str, retry_after: float | None) -> None:
        super().__init__(f"{status}: {text}")
        self.status_code = status
        self.retry_after = retry_after


def back_off(attempt: int) -> float:
    """Return seconds to wait: exponential with jitter."""
    return add_jitter(min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempt))


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error of the SDK; older versions have it only in the text."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status
    found = re.match(r"(\d{3})\b", str(error))
    return int(found[1]) if found else None


def message_of(reply: "httpx.Response") -> str:
    """Return the message of an error reply."""
    with contextlib.suppress(ValueError, AttributeError):
        return str(reply.json().get("message") or reply.text)
    return str(reply.text)[:1000]


def retry_after_of(value: str | None) -> float | None:
    """Parse a `Retry-After` in seconds; these services do not send dates."""
    return float(value) if value and value.isdecimal() else None


def is_a(error: Exception, *names: str) -> bool:
    """Return whether an error's class, or a base of it, has one of these names."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def is_final(error: Exception) -> bool:
    """Return whether an error of the data plane means that the sandbox or the relay has ended."""
    gone = is_a(error, "NotFoundException", "AuthenticationException", "SandboxNotRunningException")
    return gone or "was not found" in str(error)


def judge(error: Exception) -> tuple[str, bool, str]:
    """Interpret an error of the control plane: reason, whether a retry may succeed, and advice."""
    status, text = status_of(error), str(error).lower()
    if status in (401, 403) or is_a(error, "AuthenticationException"):
        return "setup", False, "the API key is invalid; check it, and that it belongs to this domain"
    if any(word in text for word in ("concurrent", "limitexceeded.sandboxinstance", "quota")):
        return "capacity", True, "the account's limit of concurrent sandboxes is reached"
    if status == 429 or is_a(error, "RateLimitException") or "requestlimitexceeded" in text:
        return "rate_limit", True, "its rate limit is exceeded"
    if status == 503 or is_a(error, "ServiceBusyException") or "imagepreheating" in text:
        return "capacity", True, "the service is at capacity"
    if status == 404 or (status == 400 and "template" in text):
        return "image", False, "the template does not exist; build it, or name another one"
    if status is not None and 400 <= status < 500:
        return "setup", False, "the request is invalid"
    unreached = is_a(
        error, "SandboxUnreachableException", "SandboxNotRunningException"
    )  # subclasses of timeouts in the SDK
    if is_a(error, "TimeoutException", "TimeoutError") and not unreached:
        return "timeout", True, "the service did not answer in time"
    return "unknown", True, "the service failed or is unreachable"


DAEMON_PORT = "49983"


def create_sandbox(access: ServiceAccess, wanted: JsonMapping, *, name: str, timeout: float) -> Any:
    """Create a sandbox and return the SDK's object.

    Args:
        access: Account and address of the service.
        wanted: Template, timeout, metadata and other arguments of the SDK.
        name: Idempotency key: repeated requests create one sandbox.
        timeout: Seconds before a call fails.

    Raises:
        Exception: An error of the SDK (they have no common base), or `CallRefused`.
    """
    create = load_sdk().Sandbox.create
    once = select_supported(create, idempotency_key=name)  # the SDK retries by itself
    try:
        return create(**wanted, **once, **access.arguments(), request_timeout=timeout)
    except Exception as error:
        if status_of(error) not in (404, 405):
            raise
    return _create_without_v2(access, wanted, timeout)  # either the template or the call is unknown


def _create_without_v2(access: ServiceAccess, wanted: JsonMapping, timeout: float) -> Any:
    """Create a sandbox by the first version of the call, which newer SDKs no longer use."""
    import httpx  # a dependency of the SDK

    sdk = load_sdk()
    body = {**wanted, "envVars": {}}
    body["templateID"] = body.pop("template")
    headers = {"X-API-Key": access.api_key.get_secret_value()}
    reply = httpx.post(f"{access.api_url}/sandboxes", json=body, headers=headers, timeout=timeout)
    if reply.status_code >= 300:
        raise CallRefused(reply.status_code, message_of(reply), retry_after_of(reply.headers.get("Retry-After")))
    made = reply.json()
    token = made.get("envdAccessToken")
    headers = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": DAEMON_PORT}
    if token:
        headers["X-Access-Token"] = token
    return sdk.Sandbox(
        sandbox_id=made["sandboxID"],
        sandbox_domain=made.get("domain"),
        envd_version=Version(made["envdVersion"]),
        envd_access_token=token,
        traffic_access_token=made.get("trafficAccessToken"),
        connection_config=sdk.ConnectionConfig(extra_sandbox_headers=headers, **access.arguments()),
    )
