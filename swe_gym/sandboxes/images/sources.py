"""Where images come from: names, registries, archives of `docker save`, OCI layouts, and a running Docker engine."""

import abc
import contextlib
import errno
import gzip
import hashlib
import ipaddress
import json
import os
import platform
import re
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeInt

from ...errors import MissingDependency, SandboxStartError, UsageError
from ...types import Frozen, JsonObject
from ..contents.pythons import ARCHITECTURES

DOCKER_HUB = "docker.io"
DOCKER_HOSTS = ("registry-1.docker.io", "index.docker.io")
"""Host of its API, and its old name."""
MIRRORS = "SWE_GYM_REGISTRY_MIRRORS"
"""Environment variable of mirrors: "docker.io=mirror.example.com,ghcr.io=http://10.0.0.1:5000"."""

_NAME = re.compile(
    r"(?:(?P<registry>localhost(?::\d+)?|[A-Za-z0-9-]+(?:(?:\.[A-Za-z0-9-]+)+(?::\d+)?|:\d+))/)?(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)


class ImageName(NamedTuple):
    """The parsed name of an image.

    Attributes:
        registry: Host, and port if there is one.
        repository: Path in the registry.
        tag: Tag; empty if there is only a digest.
        digest: Digest of the manifest, or an empty text.
    """

    registry: str
    repository: str
    tag: str
    digest: str

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse a name as Docker does.

        Raises:
            UsageError: It is not the name of an image.
        """
        found = _NAME.fullmatch(name)
        if not found:
            raise UsageError(f"{name!r} is not an image name, such as python:3.11 or ghcr.io/owner/image@sha256:...")
        registry, repository, tag, digest = (found[part] or "" for part in cls._fields)
        registry = DOCKER_HUB if registry in ("", *DOCKER_HOSTS) else registry
        if registry == DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry, repository, tag or ("" if digest else "latest"), digest)

    def __str__(self) -> str:
        tag = self.tag and f":{self.tag}"
        return f"{self.registry}/{self.repository}{tag}" + (self.digest and f"@{self.digest}")

    @property
    def server(self) -> str:
        """Address of the registry's API, or of its mirror if one is configured; without a scheme if that is not known.

        Registries of a loopback interface may use HTTP or HTTPS. All others use HTTPS, unless the mirror says http.
        """
        pairs = (pair.partition("=") for pair in os.environ.get(MIRRORS, "").split(",") if pair)
        mirrors = {name.strip(): mirror.strip().rstrip("/") for name, _, mirror in pairs}
        host = mirrors.get(self.registry) or (DOCKER_HOSTS[0] if self.registry == DOCKER_HUB else self.registry)
        return host if "://" in host or is_loopback(host) else f"https://{host}"


def is_loopback(address: str) -> bool:
    """Return whether a URL or a host, perhaps with a port, is on the loopback interface."""
    host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""A digest. It becomes the name of a file or folder, so no other text may pass for one."""


class Blob(Frozen):
    """A layer, as its source has it.

    Attributes:
        diff_id: Digest of the uncompressed layer, which identifies its content.
        digest: Digest of the blob; empty in an archive that names none.
        size: Bytes of the blob.
        place: Path in an archive.
    """

    diff_id: Digest
    digest: Digest | Literal[""] = ""
    size: NonNegativeInt
    place: str = ""


class ImageSource(abc.ABC):
    """One image in one place.

    Attributes:
        config: The image's configuration, as bytes: their digest is the image's id.
        blobs: Its layers, lowest first.
    """

    config: bytes
    blobs: tuple[Blob, ...]

    @abc.abstractmethod
    def open(self, blob: Blob, folder: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Open a layer for reading. A download is kept in `folder` until the layer has been unpacked."""


class RegistrySource(ImageSource):
    """An image in a registry.

    Args:
        name: The image.
        deadline: Time (`time.monotonic`) by which every call ends.

    Raises:
        SandboxStartError: The image does not exist, has no variant for this machine, or the registry failed.
    """

    def __init__(self, name: ImageName, deadline: float) -> None:
        from .registry import ImageRegistry  # needs an extra

        self._registry = ImageRegistry(name, deadline)
        with reading(str(name)):
            self._read(name)

    def _read(self, name: ImageName) -> None:
        data, manifest = self._registry.manifest(name.digest or name.tag)
        check_digest(data, name.digest, str(name))
        if "manifests" in manifest:
            wanted = _for_this_machine(manifest["manifests"], str(name))
            data, manifest = self._registry.manifest(wanted)
            check_digest(data, wanted, str(name))
        self.config = self._registry.blob(manifest["config"]["digest"])
        check_digest(self.config, manifest["config"]["digest"], str(name))
        self.blobs = _blobs(self.config, manifest)

    @contextlib.contextmanager
    def open(self, blob: Blob, folder: Path) -> Iterator[IO[bytes]]:
        """Download a layer, or the rest of it, and open it."""
        path = folder / blob.digest.replace(":", "-")
        try:
            self._registry.download(blob.digest, blob.size, path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                path.unlink(missing_ok=True)  # half a layer must not keep the disk full
            raise
        try:
            with path.open("rb") as file:
                yield file
        finally:
            path.unlink(missing_ok=True)  # unpacked, or damaged

    def close(self) -> None:
        """Close the connections."""
        self._registry.close()


class ArchiveSource(ImageSource):
    """An image in an archive: `docker save`'s, or an OCI layout as a tar file.

    Args:
        path: The archive.
        name: The image in it; None if it holds only one.

    Raises:
        UsageError: The file is not an image archive, or does not hold the image.
    """

    def __init__(self, path: Path, name: ImageName | None = None) -> None:
        try:
            self._archive = tarfile.open(path)  # noqa: SIM115  `close` closes it
        except (tarfile.TarError, OSError) as error:
            raise UsageError(f"{path}: not an image archive: {error}") from error
        self._path = path
        try:
            with reading(str(path)):
                self._read_image(name)
        except BaseException:
            self._archive.close()
            raise

    def _read_image(self, name: ImageName | None) -> None:
        self._members = {member.name.removeprefix("./"): member for member in self._archive}
        if "manifest.json" in self._members:
            self._read_docker(name)
        elif "index.json" in self._members:
            self._read_layout(name)
        else:
            raise UsageError(f"{self._path}: neither an archive of `docker save` nor an OCI layout")

    def _read_docker(self, name: ImageName | None) -> None:
        entries = json.loads(self._read("manifest.json"))
        found = [one for one in entries if name is None or str(name) in map(_canonical, one.get("RepoTags") or ())]
        if len(found) != 1:
            names = [tag for one in entries for tag in one.get("RepoTags") or ()]
            raise UsageError(f"{self._path} holds {len(entries)} images ({', '.join(names)}): name one of them")
        self.config = self._read(found[0]["Config"])
        diff_ids = json.loads(self.config)["rootfs"]["diff_ids"]
        places = found[0]["Layers"]
        self.blobs = tuple(
            Blob(diff_id=diff_id, size=self._members[place].size, place=place)
            for diff_id, place in zip(diff_ids, places, strict=True)
        )

    def _read_layout(self, name: ImageName | None) -> None:
        manifest: JsonObject = json.loads(self._read("index.json"))
        manifest["manifests"] = self._choose(manifest["manifests"], name)
        while "manifests" in manifest:
            digest = _for_this_machine(manifest["manifests"], str(name or self._path))
            manifest = json.loads(self._read(_place(digest)))
        self.config = self._read(_place(manifest["config"]["digest"]))
        self.blobs = _blobs(self.config, manifest)

    def _choose(self, manifests: list[JsonObject], name: ImageName | None) -> list[JsonObject]:
        """Return an OCI layout's variants of one image: of the named one, or of the only one."""
        for wanted in ({str(name), name.digest}, {name.tag}) if name else ():
            if found := [one for one in manifests if wanted.intersection(_names_in_layout(one)) - {""}]:
                manifests = found
                break
        images = sorted({_names_in_layout(one)[0] for one in manifests})
        if len(images) > 1:
            raise UsageError(f"{self._path} holds {len(images)} images ({', '.join(images)}): name one of them")
        return manifests

    def _read(self, place: str) -> bytes:
        if place not in self._members:
            raise UsageError(f"{self._path}: the archive lacks {place}")
        file = self._archive.extractfile(self._members[place])
        assert file is not None
        return file.read()

    @contextlib.contextmanager
    def open(self, blob: Blob, folder: Path) -> Iterator[IO[bytes]]:  # noqa: ARG002  nothing is downloaded
        """Open a layer; each call reads the archive on its own."""
        with tarfile.open(self._path) as archive:
            member = archive.getmember(self._members[blob.place or _place(blob.digest)].name)
            file = archive.extractfile(member)
            assert file is not None
            with file:
                yield file

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()


@contextlib.contextmanager
def engine_source(image: str, folder: Path, base_url: str | None = None) -> Iterator[ArchiveSource]:
    """Yield an image of a running Docker engine. Its archive is a file without a name on the disk of `folder`."""
    from ..docker.engine import connect, engine_errors  # needs an extra

    with (
        contextlib.closing(connect(base_url, 600.0)) as engine,
        tempfile.TemporaryFile(dir=folder) as file,
    ):
        with engine_errors(f"save image {image!r}"):
            for chunk in engine.get_image(image, chunk_size=1 << 20):
                file.write(chunk)
        file.flush()
        with contextlib.closing(ArchiveSource(Path(f"/proc/self/fd/{file.fileno()}"))) as source:
            yield source


@contextlib.contextmanager
def reading(image: str) -> Iterator[None]:
    """Raise `SandboxStartError` if a manifest or a configuration, which others wrote, is not what it should be."""
    try:
        yield
    except UsageError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        text = f"the manifest or configuration of image {image!r} is invalid: {error!r}"
        raise SandboxStartError(text, reason="image") from error


def check_digest(data: bytes, wanted: str, name: str) -> None:
    """Raise `SandboxStartError` unless the data has the digest, if there is one."""
    found = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if wanted and found != wanted:
        raise SandboxStartError(f"image {name!r} has digest {found}, not {wanted}: fetch it again", reason="image")


def _blobs(config: bytes, manifest: JsonObject) -> tuple[Blob, ...]:
    diff_ids = json.loads(config)["rootfs"]["diff_ids"]
    layers: list[JsonObject] = manifest["layers"]
    pairs = zip(diff_ids, layers, strict=True)
    return tuple(Blob(diff_id=diff_id, digest=layer["digest"], size=layer["size"]) for diff_id, layer in pairs)


def _for_this_machine(manifests: list[JsonObject], name: str) -> str:
    """Return the digest of the variant for this machine."""
    machine = platform.machine()
    ours = ARCHITECTURES.get(machine, machine)
    kinds = [(one.get("platform") or {}, one["digest"]) for one in manifests]
    for kind, digest in kinds:
        if kind.get("architecture", ours) == ours and kind.get("os", "linux") == "linux":
            return str(digest)
    there = ", ".join(sorted({str(kind.get("architecture")) for kind, _ in kinds}))
    raise SandboxStartError(f"image {name!r} is for {there}, and this machine is {ours}", reason="image")


def _names_in_layout(manifest: JsonObject) -> list[str]:
    """Return the names of an image of an OCI layout: some tools write the whole name, others only the tag.

    Without a name, an image has its digest, and a variant for some platform an empty text.
    """
    notes = manifest.get("annotations") or {}
    names = [notes[key] for key in ("io.containerd.image.name", "org.opencontainers.image.ref.name") if key in notes]
    for name in tuple(names):
        with contextlib.suppress(UsageError):  # the notes may say anything
            names.append(_canonical(name))
    return [*(names or [""] * ("platform" in manifest)), manifest["digest"]]


def _place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _canonical(name: str) -> str:
    return str(ImageName.parse(name))


def decompress(stream: IO[bytes]) -> IO[bytes]:
    """Return the tar stream of a layer, whatever compressed it. The stream must be able to `peek`.

    Raises:
        MissingDependency: It is compressed with Zstandard, and the package `zstandard` is missing.
    """
    head = stream.peek(4)[:4]  # type: ignore[attr-defined]  # both kinds of sources open buffered readers
    if head[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]  # it reads like a file
    if head != b"\x28\xb5\x2f\xfd":
        return stream
    try:
        import zstandard
    except ImportError as error:
        text = "a layer of the image is compressed with Zstandard: pip install zstandard"
        raise MissingDependency(f"{text} (the extra 'docker' includes it)") from error
    reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    return _Zstandard(reader, zstandard.ZstdError)  # type: ignore[return-value]  # it is only read


class _Zstandard:
    """A decoder whose errors are those of a file."""

    def __init__(self, reader: IO[bytes], error: type[Exception]) -> None:
        self._reader = reader
        self._error = error

    def read(self, size: int) -> bytes:
        try:
            return self._reader.read(size)
        except self._error as error:
            raise EOFError(str(error)) from error
