"""Sandbox tools of Tencent's Agent Sandbox (AGS), one per image, made through Tencent's own SDK.

A tool is to AGS what a template is to E2B. Its instances run `envd`, the daemon of E2B's protocol, on port 49983: the
image holds it, or an image volume with the program is mounted. See `CreateSandboxTool` of Tencent's API (version
2025-09-20) for the fields.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from ...cache import digest
from ...errors import MissingDependency, SandboxStartError, UsageError
from ...types import Frozen, JsonObject

PORT = 49983
MOUNTED = "/mnt/envd"
NAME_LENGTH = 50
PAGE = 100
POLL_SECONDS = 2.0


class ToolSettings(Frozen):
    """Settings that the tools share.

    Attributes:
        region: Region of the account.
        endpoint: Address of the API, for a test or a private cloud; empty is Tencent's.
        registry_type: "enterprise" (TCR), "personal" (CCR) or "custom".
        role_arn: Role that may pull the images; empty if the account needs none.
        envd_image: Image that holds the program `/usr/bin/envd`, which is mounted. Empty: each image holds `envd`.
        network: "PUBLIC", "VPC" or "SANDBOX", which has no network.
        cpus: CPUs of an instance.
        memory_mb: Memory of an instance in MiB.
    """

    region: str = "ap-guangzhou"
    endpoint: str = ""
    registry_type: str = "enterprise"
    role_arn: str = ""
    envd_image: str = ""
    network: str = "SANDBOX"
    cpus: float = Field(default=2.0, ge=0.1)
    memory_mb: int = Field(default=4096, ge=128)


def tool_name(image: str, settings: ToolSettings) -> str:
    """Return the name of an image's tool: readable, and different for different images or settings."""
    key = digest(image, settings.model_dump(exclude={"region", "endpoint"}))[:10]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", image.rpartition("/")[2]).strip("-")
    return f"{readable[: NAME_LENGTH - len(key) - 1]}-{key}"


class Tools:
    """The sandbox tools of an account.

    Args:
        settings: Their settings.
        timeout: Seconds that a request may take.

    Raises:
        MissingDependency: Tencent's SDK is not installed.
        UsageError: TENCENTCLOUD_SECRET_ID or TENCENTCLOUD_SECRET_KEY is not set.
    """

    def __init__(self, settings: ToolSettings, *, timeout: int = 30) -> None:
        self._settings = settings
        self._client, self._error = _connect(settings.region, settings.endpoint, timeout)

    def make(self, image: str, *, timeout: float, stop: threading.Event) -> str:
        """Return the name of an image's tool once it is active. It is made unless it exists.

        Raises:
            SandboxStartError: The service refused the tool, the tool failed or was not active in time, or `stop` was
                set.
        """
        deadline = time.monotonic() + timeout
        name = tool_name(image, self._settings)
        if name not in self.states():
            self._call("CreateSandboxTool", self._request(name, image))
        while (state := self.states().get(name, "missing")) != "ACTIVE":
            if state in ("FAILED", "DELETING"):
                raise SandboxStartError(f"AGS tool {name} of {image}: {state}. Remove it in the console, and try again")
            if time.monotonic() > deadline:
                raise SandboxStartError(f"AGS tool {name} of {image} is still {state} after {timeout:.0f} s")
            if stop.wait(POLL_SECONDS):
                raise SandboxStartError("interrupted")
        return name

    def states(self) -> dict[str, str]:
        """Return the state of each tool of the account, by name."""
        return dict(self._pages())

    def _pages(self) -> Iterator[tuple[str, str]]:
        offset = 0
        while True:
            page = self._call("DescribeSandboxToolList", {"Offset": offset, "Limit": PAGE})
            tools = page.get("SandboxToolSet") or []
            yield from ((tool["ToolName"], tool["Status"]) for tool in tools)
            offset += len(tools)
            if not tools or offset >= page["TotalCount"]:
                return

    def _request(self, name: str, image: str) -> JsonObject:
        settings = self._settings
        program = MOUNTED if settings.envd_image else "envd"
        request: JsonObject = {
            "ToolName": name,
            "ToolType": "custom",
            "Description": image[:200],
            "ClientToken": name,
            "NetworkConfiguration": {"NetworkMode": settings.network},
            "CustomConfiguration": {
                "Image": image,
                "ImageRegistryType": settings.registry_type,
                "Command": [program],
                "Args": ["-port", str(PORT)],
                "Ports": [{"Name": "envd", "Port": PORT, "Protocol": "TCP"}],
                "Resources": {"CPU": f"{settings.cpus:g}", "Memory": f"{settings.memory_mb}Mi"},
                "Probe": {
                    "HttpGet": {"Path": "/health", "Port": PORT, "Scheme": "HTTP"},
                    "ReadyTimeoutMs": 60_000,
                    "ProbeTimeoutMs": 2_000,
                    "ProbePeriodMs": 2_000,
                    "SuccessThreshold": 1,
                    "FailureThreshold": 30,
                },
            },
        }
        if settings.role_arn:
            request["RoleArn"] = settings.role_arn
        if settings.envd_image:
            source = {"Reference": settings.envd_image, "ImageRegistryType": settings.registry_type}
            volume = {"Image": {**source, "SubPath": "/usr/bin/envd"}}
            request["StorageMounts"] = [
                {"Name": "envd", "MountPath": MOUNTED, "ReadOnly": True, "StorageSource": volume}
            ]
        return request

    def _call(self, action: str, request: JsonObject) -> JsonObject:
        try:
            reply: JsonObject = self._client.call_json(action, request)["Response"]
        except self._error as error:
            raise SandboxStartError(f"AGS refused {action}: {error.code}: {error.message}") from error
        return reply


def _connect(region: str, endpoint: str, timeout: int) -> tuple[Any, Any]:
    """Return a client of Tencent's SDK, and the SDK's error."""
    try:
        from tencentcloud.ags.v20250920.ags_client import AgsClient
        from tencentcloud.common.credential import EnvironmentVariableCredential
        from tencentcloud.common.exception.tencent_cloud_sdk_exception import TencentCloudSDKException
        from tencentcloud.common.profile.client_profile import ClientProfile
        from tencentcloud.common.profile.http_profile import HttpProfile
    except ImportError as error:
        raise MissingDependency("AGS tools need Tencent's SDK: pip install 'swe-gym[ags]'") from error
    credential = EnvironmentVariableCredential().get_credential()
    if credential is None:
        raise UsageError("AGS needs TENCENTCLOUD_SECRET_ID and TENCENTCLOUD_SECRET_KEY in the environment")
    scheme, _, host = endpoint.rpartition("://")
    http = HttpProfile(protocol=scheme or "https", endpoint=host or None, reqTimeout=timeout)
    return AgsClient(credential, region, ClientProfile(httpProfile=http)), TencentCloudSDKException
