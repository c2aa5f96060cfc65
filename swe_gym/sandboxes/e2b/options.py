"""The options of the E2B backend, and its credentials."""

import json
import math
import os
from typing import Literal

from pydantic import ConfigDict, Field, SecretStr

from ...errors import UsageError
from ...types import Frozen, JsonObject
from ..types import SandboxSpec

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
