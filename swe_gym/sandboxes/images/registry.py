"""A client of container registries: OCI's distribution API, with the credentials of `docker login`.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md
https://distribution.github.io/distribution/spec/auth/token/
"""

import contextlib
import hashlib
import logging
import re
import select
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from ...errors import MissingDependency, SandboxStartError, UsageError
from ...types import JsonObject
from .sources import DOCKER_HOSTS, DOCKER_HUB, ImageName, is_loopback

try:
    import docker.auth
    import docker.errors
    import requests
    import requests.adapters
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

AUTH_KEYS = dict.fromkeys(DOCKER_HOSTS, "https://index.docker.io/v1/")
TOKENS_OF_DOCKER_HUB = "auth.docker.io"
KNOCK_SECONDS, GREETING_SECONDS = 5.0, 0.25
TLS_ANSWERS = (b"\x15", b"\x16")
"""First byte of an alert and of a handshake."""


class ImageRegistry:
    """The registry of one image. Every call ends by the deadline.

    Args:
        name: The image.
        deadline: Time (`time.monotonic`) by which calls end.
    """

    def __init__(self, name: ImageName, deadline: float) -> None:
        self.name = name
        self._deadline = deadline
        self._session = requests.Session()
        self._session.auth = _as_it_is
        self._server = name.server
        self._certificate = ""
        if "://" not in name.server:
            self._certificate = _certificate(name.server)
            self._server = f"http{'s' if self._certificate else ''}://{name.server}"
            self._session.mount(self._server, _OnLoopback(self._certificate))
        self._host = urlsplit(self._server).netloc
        self._label = DOCKER_HUB if self._host in DOCKER_HOSTS else self._host
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
                reply = self._authorize(f"{self._server}/v2/{self.name.repository}/{path}", headers)
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

    def _authorize(self, url: str, headers: dict[str, str]) -> requests.Response:
        reply = self._send(url, {**headers, **self._headers})
        if reply.status_code == 401 and (asked := reply.headers.get("WWW-Authenticate", "")):
            reply.close()
            self._headers = self._authorization(asked)
            reply = self._send(url, {**headers, **self._headers})
        return reply

    def _send(self, url: str, headers: dict[str, str], **how: object) -> requests.Response:
        self._check_time()
        patience = min(SILENCE, self._deadline - time.monotonic())
        if self._certificate and url.startswith(f"{self._server}/"):
            how["verify"] = False  # the connection compares it
        return self._session.get(url, headers=headers, stream=True, timeout=patience, **how)

    def _authorization(self, asked: str) -> dict[str, str]:
        """Answer a challenge: with the user's name and password, or with a token that they are exchanged for."""
        scheme, _, rest = asked.partition(" ")
        if scheme.lower() == "basic":
            user = self._credentials(self._server)
            return {"Authorization": requests.auth._basic_auth_str(*user)} if user else {}
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = fields.pop("realm", "")
        user = self._credentials(realm)
        with contextlib.closing(self._send(realm, {}, params=fields, auth=user)) as reply:
            if not reply.ok:
                raise self._refusal(reply)
            said = reply.json()
        return {"Authorization": f"Bearer {said.get('token') or said.get('access_token', '')}"}

    def _credentials(self, url: str) -> tuple[str, str] | None:
        """Return the user's login for the server that is asked, if `url` may learn it."""
        config = docker.auth.load_config()
        try:
            found = docker.auth.resolve_authconfig(config, AUTH_KEYS.get(self._host, self._host))
        except docker.errors.DockerException as error:
            text = f"the login for {self._label} cannot be read: {error}. Fix or remove credsStore and credHelpers "
            raise UsageError(text + "in Docker's config.json (~/.docker, or DOCKER_CONFIG)") from error
        if not found or not found.get("username"):
            return None
        if why := self._distrust(url):
            log.warning("registry %s: %s did not get your login, because it is %s", self._label, url, why)
            return None
        return found["username"], found["password"]

    def _distrust(self, url: str) -> str:
        """Return why a URL must not learn the login of this registry, or an empty text."""
        asked, own = urlsplit(url), urlsplit(self._server)
        if asked.scheme != "https" and not is_loopback(url):
            return "not HTTPS"
        hub = self._host in DOCKER_HOSTS and asked.netloc == TOKENS_OF_DOCKER_HUB
        above = "." in asked.netloc and f"{own.hostname}".endswith(
            f".{asked.netloc}"
        )  # registry.gitlab.com, gitlab.com
        return "" if asked.netloc == self._host or hub or above else "another host"

    def _wait(self, pause: float | None, why: str) -> None:
        if pause is None or time.monotonic() + pause >= self._deadline:
            limited = why == "status 429"
            raise self._error("rate_limit" if limited else "timeout", f"did not answer: {why}", retryable=True)
        log.warning("registry %s: %s; retrying in %g s", self._label, why, pause)
        time.sleep(pause)

    def _check_time(self) -> None:
        if time.monotonic() >= self._deadline:
            raise self._error("timeout", "was too slow; what has arrived is kept", retryable=True)

    def _refusal(self, reply: requests.Response) -> SandboxStartError:
        if reply.status_code in (401, 403):
            return self._error("image", f"refused it: log in with `docker login {self._label}`")
        return self._error("image", "does not have it" if reply.status_code == 404 else f"said {reply.status_code}")

    def _error(self, reason: str, what: str, *, retryable: bool = False) -> SandboxStartError:
        text = f"image {str(self.name)!r} cannot be fetched: the registry {self._label} {what}"
        return SandboxStartError(text, reason=reason, retryable=retryable)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add no login to a request: without an `auth`, requests would send one of ~/.netrc unasked."""
    return request


class _OnLoopback(requests.adapters.HTTPAdapter):  # type: ignore[misc]  # requests counts as untyped
    """Connections to a registry of the loopback interface, which needs no authority for its certificate."""

    def __init__(self, certificate: str) -> None:
        self._certificate = certificate or None
        super().__init__()

    def init_poolmanager(self, *arguments: object, **options: object) -> None:
        """Make connections that accept only the certificate."""
        super().init_poolmanager(*arguments, assert_fingerprint=self._certificate, **options)


def _certificate(host: str) -> str:
    """Return the fingerprint of a loopback registry's certificate, or an empty text if it does not speak TLS."""
    address = urlsplit(f"//{host}")
    where = address.hostname or "", address.port or 443
    if not _speaks_tls(where):
        return ""
    found = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(where, timeout=KNOCK_SECONDS))
    return hashlib.sha256(found).hexdigest()


def _speaks_tls(where: tuple[str, int]) -> bool:
    """Return whether a greeting of TLS is answered in TLS. A server of HTTP gets the end of a line, to answer it."""
    greeting = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), greeting, server_hostname=where[0])
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    with contextlib.suppress(OSError), socket.create_connection(where, KNOCK_SECONDS) as connection:
        connection.sendall(greeting.read())
        if not select.select([connection], [], [], GREETING_SECONDS)[0]:
            connection.sendall(b"\r\n\r\n")
        return connection.recv(1) in TLS_ANSWERS
    return False
