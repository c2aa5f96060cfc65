"""Creating a sandbox by the SDK's call, or by the older one for services without it."""

from typing import Any

from packaging.version import Version

from ...types import JsonMapping
from .options import ServiceAccess
from .refusals import CallRefused, message_of, retry_after_of, status_of
from .sdk import load_sdk, select_supported

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
