"""Interpreting the service's errors. The SDK's classes differ between versions; statuses and messages do not."""

import contextlib
import re
from typing import TYPE_CHECKING

from ..gates import add_jitter

if TYPE_CHECKING:
    import httpx

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
