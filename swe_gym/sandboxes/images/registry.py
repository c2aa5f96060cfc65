"""A client of container registries: OCI's distribution API, with the credentials of `docker login`.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md
https://distribution.github.io/distribution/spec/auth/token/
"""

import contextlib
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

from ...errors import MissingDependency, SandboxStartError, UsageError
from ...types import JsonObject
from .names import DOCKER_HUB, ImageName

try:
    import docker.auth
    import docker.errors
    import requests
except ImportError as error:
    raise MissingDependency(f"fetching images needs docker-py: pip install 'swe-gym[docker]' ({error})") from error

log = logging.getLogger(__name__)

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
SILENCE = 60.0
"""Seconds without a byte after which a connection counts as broken."""

PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between attempts, unless the registry says how long to wait."""

CHUNK = 1 << 16
"""Bytes that a broken connection loses at most."""

AUTH_KEYS = {DOCKER_HUB: "https://index.docker.io/v1/"}


class Registry:
    """The registry of one image. Every call ends by the deadline.

    Args:
        name: The image.
        deadline: Time (`time.monotonic`) by which calls end.
    """

    def __init__(self, name: ImageName, deadline: float) -> None:
        self.name = name
        self._deadline = deadline
        self._session = requests.Session()
        self._headers: dict[str, str] = {}

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def manifest(self, reference: str) -> tuple[bytes, JsonObject]:
        """Return a manifest or an index by tag or digest, as bytes and parsed.

        Raises:
            SandboxStartError: The image does not exist, is private, or the registry failed.
        """
        with self._get(f"manifests/{reference}", {"Accept": ", ".join(MANIFESTS)}) as reply:
            data: bytes = reply.content
        try:
            manifest: JsonObject = reply.json()
        except ValueError as error:
            raise self._error("setup", f"sent no JSON: {data[:200]!r}") from error
        return data, manifest

    def blob(self, digest: str) -> bytes:
        """Return a small blob, such as an image's configuration."""
        with self._get(f"blobs/{digest}", {}) as reply:
            data: bytes = reply.content
        return data

    def download(self, digest: str, size: int, path: Path) -> None:
        """Download a blob to a file; continue where an earlier download was cut off.

        Raises:
            SandboxStartError: The registry failed for good. What has arrived is kept for the next call.
        """
        for pause in (*PAUSES, None):
            have = path.stat().st_size if path.exists() else 0
            if have >= size:
                return
            try:
                self._append(digest, size, have, path)
            except (requests.RequestException, ConnectionError) as error:
                self._wait(pause, f"blob {digest}: {error}")
        if path.stat().st_size < size:
            raise self._error("setup", f"ended blob {digest} too early", retryable=True)

    def _append(self, digest: str, size: int, have: int, path: Path) -> None:
        with self._get(f"blobs/{digest}", {"Range": f"bytes={have}-"} if have else {}) as reply:
            if have and reply.status_code != 206:
                path.unlink()  # the registry cannot resume
            with path.open("ab") as file:
                for chunk in reply.iter_content(CHUNK):
                    file.write(chunk)
                    self._check_time()
                    if file.tell() > size:
                        raise self._error("image", f"sent more than the {size} bytes of blob {digest}")

    @contextlib.contextmanager
    def _get(self, path: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        """Send a request until it is answered. Rate limits and errors of the server are waited for."""
        for pause in (*PAUSES, None):
            try:
                reply = self._authorized(f"{self.name.url}/{path}", headers)
            except requests.RequestException as error:
                self._wait(pause, str(error))
                continue
            with contextlib.closing(reply):
                if reply.ok:
                    yield reply
                    return
                if reply.status_code != 429 and reply.status_code < 500:
                    raise self._refusal(reply)
                after = reply.headers.get("Retry-After", "")
                self._wait(float(after) if pause and after.isdecimal() else pause, f"status {reply.status_code}")

    def _authorized(self, url: str, headers: dict[str, str]) -> requests.Response:
        reply = self._send(url, {**headers, **self._headers})
        if reply.status_code == 401 and (asked := reply.headers.get("WWW-Authenticate", "")):
            reply.close()
            self._headers = self._authorization(asked)
            reply = self._send(url, {**headers, **self._headers})
        return reply

    def _send(self, url: str, headers: dict[str, str], **how: object) -> requests.Response:
        self._check_time()
        patience = min(SILENCE, self._deadline - time.monotonic())
        return self._session.get(url, headers=headers, stream=True, timeout=patience, **how)

    def _authorization(self, asked: str) -> dict[str, str]:
        """Answer a challenge: with the user's name and password, or with a token that they are exchanged for."""
        user = self._credentials()
        scheme, _, rest = asked.partition(" ")
        if scheme.lower() == "basic":
            return {"Authorization": requests.auth._basic_auth_str(*user)} if user else {}
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = fields.pop("realm", "")
        with contextlib.closing(self._send(realm, {}, params=fields, auth=user)) as reply:
            if not reply.ok:
                raise self._refusal(reply)
            said = reply.json()
        return {"Authorization": f"Bearer {said.get('token') or said.get('access_token', '')}"}

    def _credentials(self) -> tuple[str, str] | None:
        config = docker.auth.load_config()
        try:
            found = docker.auth.resolve_authconfig(config, AUTH_KEYS.get(self.name.registry, self.name.registry))
        except docker.errors.DockerException as error:
            text = (
                f"the login for {self.name.registry} cannot be read: {error}. Fix or remove credsStore and credHelpers "
            )
            raise UsageError(text + "in Docker's config.json (~/.docker, or DOCKER_CONFIG)") from error
        return (found["username"], found["password"]) if found and found.get("username") else None

    def _wait(self, pause: float | None, why: str) -> None:
        if pause is None or time.monotonic() + pause >= self._deadline:
            limited = why == "status 429"
            raise self._error("rate_limit" if limited else "timeout", f"did not answer: {why}", retryable=True)
        log.warning("registry %s: %s; retrying in %g s", self.name.registry, why, pause)
        time.sleep(pause)

    def _check_time(self) -> None:
        if time.monotonic() >= self._deadline:
            raise self._error("timeout", "was too slow; what has arrived is kept", retryable=True)

    def _refusal(self, reply: requests.Response) -> SandboxStartError:
        if reply.status_code in (401, 403):
            return self._error("image", f"refused it: log in with `docker login {self.name.registry}`")
        return self._error("image", "does not have it" if reply.status_code == 404 else f"said {reply.status_code}")

    def _error(self, reason: str, what: str, *, retryable: bool = False) -> SandboxStartError:
        text = f"image {str(self.name)!r} cannot be fetched: the registry {self.name.registry} {what}"
        return SandboxStartError(text, reason=reason, retryable=retryable)
