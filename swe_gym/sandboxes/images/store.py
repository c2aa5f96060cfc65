"""The store of images: each layer is fetched, verified and unpacked once, and shared by all sandboxes of this user.

It needs neither root nor a daemon, and is part of the cache: a folder for each layer, named after the digest of its
content, and a file for each image. Layers keep their owners if this user may map them, and root's keep devices too, so
each of these cases has a store of its own.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self

from ... import guests
from ...cache import build_once, cache_folder, find_entry, lock, remove_entry
from ...errors import SandboxStartError
from ...files import write_text
from ...types import Frozen, JsonObject
from .sources import Blob, Digest, ImageName, ImageSource, RegistrySource, decompress, reading

log = logging.getLogger(__name__)

FILES = {"newuidmap": "/etc/subuid", "newgidmap": "/etc/subgid"}
"""The setuid program that maps a range -> where the administrator grants it."""

USUAL = 65536
"""Users of an image, which a range must have."""

PROBE_SECONDS, HELD_SECONDS = 10.0, 60.0

Ranges = tuple[tuple[str, int, int], ...]


@functools.cache
def id_ranges() -> Ranges:
    """Return (program, first, count) for users and for groups; nothing if this user is root, or cannot map them."""
    found = tuple(range_of(name, Path(path)) for name, path in FILES.items()) if os.geteuid() else ()
    ranges = tuple(one for one in found if one is not None)
    return ranges if len(ranges) == len(FILES) and _works(ranges) else ()


def range_of(name: str, path: Path) -> tuple[str, int, int] | None:
    """Return the program of a name and the first range that a file grants this user, if there are both."""
    program = shutil.which(name)
    user = os.getuid()
    try:
        names = {str(user), pwd.getpwuid(user).pw_name}
    except KeyError:
        names = {str(user)}
    try:
        fields = [line.split(":") for line in path.read_text().splitlines()]
    except OSError:
        fields = []
    for owner, first, count in (one for one in fields if len(one) == 3):
        if program and owner in names and first.isdecimal() and count.isdecimal() and int(count) >= USUAL:
            return program, int(first), int(count)
    return None


def _works(ranges: Ranges) -> bool:
    """Return whether the programs work: not where setuid programs gain nothing, as in many containers."""
    try:
        done = subprocess.run(unpack_command("probe", Path("/"), ranges), capture_output=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def unpack_command(task: str, folder: Path, ranges: Ranges) -> list[str]:
    """Return the command that unpacks its standard input into a folder, or removes what that has."""
    package = os.path.dirname(os.path.dirname(guests.__file__))
    code = f"import sys; sys.path.append({package!r}); import guests.local.unpack as guest; guest.main()"
    python = getattr(sys, "_base_executable", None) or sys.executable
    return [python, "-I", "-S", "-c", code, task, str(folder), json.dumps(ranges)]


@contextlib.contextmanager
def hold_entry(entry: Path, seconds: float = HELD_SECONDS) -> Iterator[int]:
    """Hold a cache entry's folder. Yield the descriptor that holds it, for processes that write into the entry.

    A process that unpacks outlives a killed parent for a moment, so it holds the folder too: others wait for its end.

    Raises:
        TimeoutError: Another process held it for so many seconds.
    """
    folder = os.open(entry, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock(folder, time.monotonic() + seconds)
        yield folder
    finally:
        os.close(folder)


def remove_layers(entry: Path) -> None:
    """Remove a cache entry with layers, whose files may belong to the users of a range."""
    if not entry.exists():
        return
    with hold_entry(entry):
        if ranges := id_ranges():
            subprocess.run(unpack_command("remove", entry, ranges), capture_output=True, check=False)
        remove_entry(entry)


FETCHES = 3
"""Layers of one image that are fetched and unpacked at once."""

CHUNK = 1 << 20


class StoredImage(Frozen):
    """An image in the store.

    Attributes:
        name: Its name, complete: "docker.io/library/python:3.11".
        digest: Digest of its configuration, as `docker images --no-trunc` shows it.
        layers: Digests of its layers' contents, lowest first.
        env: Variables of its commands.
        user: User of its commands; empty is root.
        workdir: Folder of its commands; empty is "/".
        size: Bytes of its compressed layers.
    """

    name: str
    digest: str
    layers: tuple[Digest, ...]
    env: dict[str, str]
    user: str
    workdir: str = ""
    size: int

    @classmethod
    def read(cls, name: ImageName, source: ImageSource) -> Self:
        """Describe an image that a source has."""
        with reading(str(name)):
            return cls._read(name, source)

    @classmethod
    def _read(cls, name: ImageName, source: ImageSource) -> Self:
        document: JsonObject = json.loads(source.config)
        config = document.get("config") or {}
        pairs = (pair.partition("=") for pair in config.get("Env") or ())
        return cls(
            name=str(name),
            digest=f"sha256:{hashlib.sha256(source.config).hexdigest()}",
            layers=tuple(blob.diff_id for blob in source.blobs),
            env={key: value for key, _, value in pairs},
            user=config.get("User") or "",
            workdir=config.get("WorkingDir") or "",
            size=sum(blob.size for blob in source.blobs),
        )


class ImageStore:
    """The store of this user, in the cache.

    Attributes:
        folder: The folder of the layers.
    """

    def __init__(self) -> None:
        ranges = id_ranges()
        self._kind = "image-layers" + ("-root" if os.geteuid() == 0 else f"-{ranges[0][1]}" if ranges else "")
        self.folder = cache_folder() / self._kind
        self._names = cache_folder() / "images"
        self._downloads = cache_folder() / "image-downloads"
        self._copies = copies_folder()

    def find(self, name: str) -> StoredImage | None:
        """Return an image by its name, or None if the store lacks it or one of its layers.

        Raises:
            UsageError: It is not the name of an image.
        """
        try:
            image = StoredImage.model_validate_json(self._file(ImageName.parse(name)).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return image if self._is_whole(image) else None

    def images(self) -> list[StoredImage]:
        """Return all images, sorted by name."""
        found = [StoredImage.model_validate_json(file.read_text()) for file in self._names.glob("*.json")]
        return sorted(found, key=lambda image: image.name)

    def layers(self, image: StoredImage) -> list[Path]:
        """Return the folders of an image's layers, lowest first."""
        return [self._layer(diff_id) for diff_id in image.layers]

    def pull(self, name: str, *, deadline: float) -> StoredImage:
        """Return an image; fetch it from its registry if the store lacks it.

        Raises:
            UsageError: It is not the name of an image.
            MissingDependency: Fetching needs the extra "docker".
            SandboxStartError: The image does not exist, is private or damaged, or cannot be fetched by the deadline.
        """
        found = self.find(name)
        if found:
            return found
        parsed = ImageName.parse(name)
        log.info("fetching image %s", parsed)
        with contextlib.closing(RegistrySource(parsed, deadline)) as source:
            return self.add(parsed, source, deadline=deadline)

    def add(
        self,
        name: ImageName,
        source: ImageSource,
        *,
        deadline: float,
        on_layer: Callable[[Blob], None] = lambda _: None,
    ) -> StoredImage:
        """Add an image; layers that the store has are not read again.

        Args:
            name: The name that it gets.
            source: Where it comes from.
            deadline: Time (`time.monotonic`) by which it is there.
            on_layer: Called when a layer is there.

        Raises:
            SandboxStartError: A layer is damaged, cannot be fetched or unpacked, or the disk is full.
        """
        self._downloads.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)  # holds setuid files, which others must not run
        image = StoredImage.read(name, source)

        def fetch(blob: Blob) -> None:
            self._fetch(source, blob, deadline)
            on_layer(blob)

        with reading(str(name)):
            text = image.model_dump_json()
        with self._hold_lock(fcntl.LOCK_SH), ThreadPoolExecutor(FETCHES) as threads:
            for _ in threads.map(fetch, source.blobs):
                pass
            write_text(self._file(name), text)
        return image

    @contextlib.contextmanager
    def using(self, image: StoredImage) -> Iterator[list[Path]]:
        """Yield the folders of an image's layers, lowest first; meanwhile no process removes them.

        Raises:
            SandboxStartError: The image has just been removed.
        """
        with contextlib.ExitStack() as stack:
            with self._hold_lock(fcntl.LOCK_SH):
                if not self._is_whole(image):
                    text = f"image {image.name!r} was removed while a sandbox started"
                    raise SandboxStartError(text, reason="setup", retryable=True)
                path = self._names / f"{self._key(image.digest)}.use"
                if not path.exists():
                    write_text(path, image.model_dump_json())
                fcntl.flock(stack.enter_context(path.open()), fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._file(ImageName.parse(image.name)))  # `prune` removes what was not used for longest
            yield self.layers(image)

    def prune(self, names: Sequence[str] = (), *, max_bytes: int | None = None) -> list[str]:
        """Remove images that no sandbox uses, then all layers that no image has, and what killed processes left.

        Args:
            names: Images to remove.
            max_bytes: Disk space that the store may take; images that were not used for longest are removed.

        Returns:
            The names of the removed images.
        """
        removed = [str(name) for name in map(ImageName.parse, names) if self._remove(name)]
        self._remove_copies()
        files = sorted(self._names.glob("*.json"), key=lambda file: file.stat().st_mtime)
        while self._remove_unused_layers() and max_bytes is not None and files and self.disk_usage() > max_bytes:
            name = StoredImage.model_validate_json(files.pop(0).read_text()).name
            if self._remove(ImageName.parse(name)):
                removed.append(name)
        return removed

    def disk_usage(self) -> int:
        """Return the bytes that all layers take on the disk."""
        folders = os.walk(self.folder)
        return sum(
            512 * os.lstat(os.path.join(folder, name)).st_blocks for folder, _, names in folders for name in names
        )

    def _remove(self, name: ImageName) -> bool:
        """Remove an image's name, unless a sandbox uses it."""
        path = self._file(name)
        if not path.exists() or str(name) in [image.name for image in self._in_use().values()]:
            return False
        path.unlink()
        return True

    def _in_use(self) -> dict[Path, StoredImage]:
        """Return the images of all sandboxes, by the file that they hold. Names may belong to newer images by now."""
        found = {}
        for path in self._names.glob("*.use"):
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    found[path] = StoredImage.model_validate_json(file.read())
        return found

    def _remove_unused_layers(self) -> bool:
        """Remove layers that no image and no sandbox has, and parts of downloads. Return False during a fetch."""
        try:
            with self._hold_lock(fcntl.LOCK_EX | fcntl.LOCK_NB):
                in_use = self._in_use()
                images = (*self.images(), *in_use.values())
                used = {self._key(diff_id) for image in images for diff_id in image.layers}
                unused = [entry for entry in self.folder.glob("*/") if entry.name not in used]
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                trash = Path(tempfile.mkdtemp(prefix="removed-", dir=self.folder))
                for entry in unused:
                    with contextlib.suppress(TimeoutError, FileNotFoundError), hold_entry(entry, 1.0):
                        entry.rename(trash / entry.name)  # unless another process still removes it
                locks = (*self.folder.glob("*.lock"), *set(self._names.glob("*.use")).difference(in_use))
                for leftover in (*self._downloads.glob("*"), *self._names.glob("*.partial"), *locks):
                    leftover.unlink()
        except BlockingIOError:
            log.warning("images are being fetched; layers without an image stay until the next prune")
            return False
        remove_layers(trash)
        return True

    def _remove_copies(self) -> None:
        """Remove the copies of sandboxes all of whose processes were killed; others hold theirs."""
        if not self._copies.is_dir():
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trash = Path(tempfile.mkdtemp(prefix="removed-", dir=self.folder))
        with hold_entry(self._copies):  # a sandbox makes its folder and takes hold of it in one step
            for copy in self._copies.iterdir():
                with contextlib.suppress(TimeoutError, FileNotFoundError), hold_entry(copy, 0.0):
                    copy.rename(trash / copy.name)
        remove_layers(trash)

    @contextlib.contextmanager
    def _hold_lock(self, how: int) -> Iterator[None]:
        """Hold the store's lock: shared to add and to use images, exclusive, for a moment, to choose what to remove."""
        try:
            self._names.mkdir(parents=True, exist_ok=True)
            file = (self._names / "lock").open("a")
        except OSError as error:
            text = f"cannot use the cache: {error}. Set SWE_GYM_CACHE to a writable folder"
            raise SandboxStartError(text, reason="setup", retryable=True) from error
        with file:
            fcntl.flock(file, how)
            yield

    def _fetch(self, source: ImageSource, blob: Blob, deadline: float) -> None:
        def build(folder: Path) -> None:
            with source.open(blob, self._downloads) as stream:
                unpack(stream, blob.diff_id, folder, deadline)

        build_once(self._kind, self._key(blob.diff_id), build, deadline=deadline, remove=remove_layers)

    def _is_whole(self, image: StoredImage) -> bool:
        return all(find_entry(self._kind, self._key(diff_id)) for diff_id in image.layers)

    def _file(self, name: ImageName) -> Path:
        key = hashlib.sha256(str(name).encode()).hexdigest()[:32]
        return self._names / f"{key}.json"

    def _layer(self, diff_id: str) -> Path:
        return self.folder / self._key(diff_id) / "content"

    @staticmethod
    def _key(diff_id: str) -> str:
        return diff_id.removeprefix("sha256:")


def copies_folder() -> Path:
    """Return the folder with the copies of images for sandboxes that cannot mount them."""
    return cache_folder() / "image-copies"


def unpack(stream: IO[bytes], diff_id: str, folder: Path, deadline: float) -> None:
    """Unpack a layer into an empty folder, by a process that has the folder as its root.

    Raises:
        SandboxStartError: The layer is damaged, or was not unpacked by the deadline.
        MissingDependency: The package that decompresses it is missing.
    """
    found = hashlib.sha256()
    try:
        tar = decompress(stream)
        with _unpacker(folder, deadline) as pipe:
            while chunk := tar.read(CHUNK):
                found.update(chunk)
                with contextlib.suppress(BrokenPipeError):  # `_unpacker` says why it ended
                    pipe.write(chunk)
    except (EOFError, OSError, zlib.error, SandboxStartError) as error:
        if f"sha256:{found.hexdigest()}" == diff_id or getattr(error, "reason", "") == "timeout":
            raise
        raise _make_damaged_error(diff_id, error) from error
    if f"sha256:{found.hexdigest()}" != diff_id:
        raise _make_damaged_error(diff_id, "its content has another digest")


def _make_damaged_error(diff_id: str, why: object) -> SandboxStartError:
    return SandboxStartError(f"layer {diff_id} is damaged: {why}", reason="image", retryable=True)


@contextlib.contextmanager
def _unpacker(folder: Path, deadline: float) -> Iterator[IO[bytes]]:
    """Yield the standard input of a process that unpacks a tar stream into a folder; wait for its end."""
    with hold_entry(folder.parent) as holder:
        process = subprocess.Popen(
            unpack_command("unpack", folder, id_ranges()),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[holder],
        )
    assert process.stdin is not None
    clock = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
    clock.start()
    try:
        yield process.stdin
        _, said = process.communicate()
    except BaseException:
        process.kill()
        process.communicate()
        raise
    finally:
        clock.cancel()
    if process.returncode == 0:
        return
    if time.monotonic() >= deadline:
        raise SandboxStartError("the image was not unpacked in time", reason="timeout", retryable=True)
    detail = said.decode("utf-8", "replace").strip()
    full = "No space left" in detail or "Disk quota" in detail
    text = "the image cannot be unpacked: " + (detail.splitlines() or [f"status {process.returncode}"])[-1]
    raise SandboxStartError(text, reason="capacity" if full else "setup", detail=detail)
