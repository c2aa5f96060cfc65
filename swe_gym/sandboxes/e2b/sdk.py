"""The options of the E2B backend, its credentials, and E2B's SDK, which may be missing and differs between versions."""

import contextlib
import inspect
import json
import math
import os
import re
from collections.abc import Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import Version
from pydantic import ConfigDict, Field, SecretStr

from ...errors import MissingDependency, UsageError
from ...threads import in_thread
from ...types import Frozen, JsonMapping, JsonObject
from ..gates import add_jitter
from ..types import SandboxSpec

if TYPE_CHECKING:
    import httpx

DEFAULT_TEMPLATE = "base"
DEFAULT_DOMAIN = "e2b.app"

AGS_DOMAIN = "tencentags.com"
AGS_REGION = "ap-guangzhou"
AGS_IMAGE_KEY = "x-custom-config"


class E2BOptions(Frozen):
    """Options of the E2B backend.

    Attributes:
        template: Template (on AGS, sandbox tool) to start. None uses `templates`, then the image's name, then "base".
        templates: Name of an image -> template built from it.
        image_key: Name of the metadata entry that selects the image of an instance of `template`, on services with such
            an entry. None is "x-custom-config" on AGS if `template` and an image are given, else no entry; an empty
            string disables it.
        image_config: More fields of that entry, such as `{"imageRegistryType": "enterprise"}`.
        metadata: Metadata of the sandbox, beside the spec's labels.
        api_key: API key; None reads `api_key_env`. Prefer the latter: arguments of `gym.make` are recorded.
        api_key_env: Environment variable that holds the key.
        domain: Domain of the service, such as "ap-guangzhou.tencentags.com". None uses E2B_DOMAIN, else "e2b.app".
        api_url: Address of the control plane, if it does not follow from the domain.
        sandbox_url: Address of the sandboxes, if it does not follow from the domain.
        activate: Python environment to put first on PATH. "auto" looks for one; an empty string keeps the template's
            PATH.
        workdir_in_home: Whether the workdir lies below the home folder, for users who may not write to the root folder.
        timeout: Seconds before the service ends a sandbox that is not renewed. This process renews it.
        request_timeout: Seconds before a call of the service fails.
        listen_seconds: Seconds before a stream is reopened; must be below the gateway's limit for a reply.
        isolation: Isolation of the service's sandboxes. Not verified; E2B's and AGS's are virtual machines.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # an input may be the key

    template: str | None = None
    templates: dict[str, str] = {}
    image_key: str | None = None
    image_config: JsonObject = {}
    metadata: dict[str, str] = {}
    api_key: SecretStr | None = None
    api_key_env: str = "E2B_API_KEY"
    domain: str | None = None
    api_url: str | None = None
    sandbox_url: str | None = None
    activate: str = "auto"
    workdir_in_home: bool = False
    timeout: float = Field(default=300.0, gt=0)
    request_timeout: float = Field(default=30.0, gt=0)
    listen_seconds: int = Field(default=30, gt=0)
    isolation: Literal["none", "process", "landlock", "namespace", "container", "vm"] = "vm"

    def choose_template(self, image: str | None) -> str:
        """Return the template for an image."""
        return self.templates.get(image or "") or self.template or image or DEFAULT_TEMPLATE

    def image_metadata(self, spec: SandboxSpec, domain: str) -> dict[str, str]:
        """Return the metadata entry that selects the image, if the service takes one."""
        key = self.image_key
        if key is None:
            key = AGS_IMAGE_KEY if self.template and is_ags(domain) else ""
        if not key or spec.image in (None, self.template):
            return {}
        resources = {}
        if spec.cpus:
            resources["cpu"] = f"{spec.cpus:g}"
        if spec.memory_mb:
            resources["memory"] = f"{spec.memory_mb}Mi"
        config: JsonObject = {"image": spec.image, **({"resources": resources} if resources else {})}
        return {key: json.dumps({**config, **self.image_config})}


class ServiceAccess(Frozen):
    """Credentials and addresses of a service. Resolved per sandbox, so one process may use two accounts."""

    api_key: SecretStr
    domain: str
    api_url: str
    sandbox_url: str | None

    def arguments(self) -> JsonObject:
        """Return arguments for the SDK's calls, complete so that it reads nothing from the environment."""
        given: JsonObject = {"api_key": self.api_key.get_secret_value(), "domain": self.domain, "debug": False}
        given["api_url"] = self.api_url
        if self.sandbox_url:
            given["sandbox_url"] = self.sandbox_url
        return given


def resolve_access(options: E2BOptions) -> ServiceAccess:
    """Complete the options from the environment.

    Raises:
        UsageError: The key is missing, or the environment would divert the SDK from the domain.
    """
    own = options.domain is not None  # addresses in the environment belong to the domain in the environment
    domain = options.domain or os.environ.get("E2B_DOMAIN") or DEFAULT_DOMAIN
    key = options.api_key.get_secret_value() if options.api_key else os.environ.get(options.api_key_env, "")
    if not key:
        raise UsageError(
            f"there is no API key for the sandboxes of {domain}. Set the environment variable {options.api_key_env}, "
            "or name another one with the backend option `api_key_env`"
        )
    api_url = options.api_url or (None if own else os.environ.get("E2B_API_URL")) or f"https://api.{domain}"
    sandbox_url = options.sandbox_url or os.environ.get("E2B_SANDBOX_URL")
    if own and sandbox_url and not options.sandbox_url:  # the SDK would send this domain's token there
        raise UsageError(
            f"E2B_SANDBOX_URL in the environment does not belong to domain {domain!r}. "
            "Unset it, or also set the backend option `sandbox_url`"
        )
    return ServiceAccess(api_key=SecretStr(key), domain=domain, api_url=api_url.rstrip("/"), sandbox_url=sandbox_url)


def is_ags(domain: str) -> bool:
    """Return whether a domain belongs to Tencent's Agent Sandbox."""
    return domain == AGS_DOMAIN or domain.endswith("." + AGS_DOMAIN)


def whole_seconds(seconds: float) -> int:
    """Round up to whole seconds, as the service and older SDKs require."""
    return math.ceil(seconds)


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
