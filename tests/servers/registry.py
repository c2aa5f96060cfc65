"""A container registry on the loopback interface, with tokens and resumable downloads, that fails on command."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from typing import Any

from swe_gym.testing.loopback import Drop, Exchange, HttpAnswer, LoopbackServer

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer(*members: tuple[tarfile.TarInfo, bytes] | tuple[str, bytes]) -> bytes:
    """A layer as a tar archive, of members or of regular files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            if isinstance(member, str):
                member = tarfile.TarInfo(member)
            if member.type == tarfile.REGTYPE:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class Registry(LoopbackServer):
    """Serves the images that `push` adds.

    Attributes:
        login: Name and password that a token costs; None gives tokens to anyone, and an empty text asks for none.
        quota: Bytes of manifests and blobs that it still sends before it falls silent; None is no limit.
        silent: Set when it has fallen silent.
    """

    def __init__(self, login: tuple[str, str] | str | None = "") -> None:
        super().__init__()
        self.login = login
        self.quota: int | None = None
        self.silent = threading.Event()
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def push(self, name: str, layers: list[bytes], *, platforms: tuple[str, ...] = (), **config: Any) -> str:
        """Add an image with gzipped layers, or one for each platform; return its complete name."""
        blobs = [gzip.compress(data, mtime=0) for data in layers]
        document = {"config": config, "rootfs": {"type": "layers", "diff_ids": [digest(data) for data in layers]}}
        manifest = {
            "schemaVersion": 2,
            "config": {"digest": self.keep(json.dumps(document).encode())},
            "layers": [{"digest": self.keep(blob), "size": len(blob)} for blob in blobs],
        }
        kind, data = MANIFEST, json.dumps(manifest).encode()
        repository, _, tag = name.partition(":")
        self.manifests[f"{repository}/{digest(data)}"] = kind, data
        if platforms:
            entries = [{"digest": digest(data), "platform": {"os": "linux", "architecture": one}} for one in platforms]
            kind, data = INDEX, json.dumps({"manifests": entries}).encode()
        self.manifests[f"{repository}/{tag}"] = kind, data
        return f"{self.host}/{name}"

    def keep(self, data: bytes) -> str:
        """Add a blob; return its digest."""
        self.blobs[digest(data)] = data
        return digest(data)

    def answer(self, exchange: Exchange) -> None:
        asked = exchange.asked
        if asked.path == "/token":
            self._give_token(asked.headers.get("authorization", ""))
        if self.login != "" and asked.key != "a token":
            challenge = f'Bearer realm="{self.url}/token",service="test",scope="repository:pull"'
            raise HttpAnswer(401, {}, {"WWW-Authenticate": challenge})
        name, kind, reference = asked.path.removeprefix("/v2/").rsplit("/", 2)
        if kind == "manifests" and f"{name}/{reference}" in self.manifests:
            media, data = self.manifests[f"{name}/{reference}"]
            self._give(exchange, data, media)
        if kind == "blobs" and reference in self.blobs:
            self._give(exchange, self.blobs[reference])
        raise self.refuse(404, "not found")

    def _give(self, exchange: Exchange, data: bytes, media: str = "application/octet-stream") -> None:
        start = int(exchange.asked.headers.get("range", "bytes=0-")[6:-1])
        data = data[start:]
        with self._lock:
            left = self.quota
            self.quota = None if left is None else max(0, left - len(data))
        if left is None or left >= len(data):
            raise HttpAnswer(206 if start else 200, data, {"Content-Type": media})
        with exchange.stream(media) as write:
            if left:
                write(data[:left])
            self.silent.set()
            self.closing.wait()
            raise Drop

    def _give_token(self, given: str) -> None:
        if self.login and given != "Basic " + base64.b64encode(":".join(self.login).encode()).decode():
            raise self.refuse(401, "wrong password")
        raise HttpAnswer(200, {"token": "a token"})
