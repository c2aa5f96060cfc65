"""Fetches that are killed at twenty moments, each followed by a fetch that succeeds, and what is left of them."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.registry import Registry, layer

from swe_gym.sandboxes.images import ImageStore, StoredImage
from swe_gym.testing.sandbox_contract.case import eventually

pytest.importorskip("docker", reason="fetching needs docker-py")

FETCHER = """
import contextlib, json, os, signal, sys, threading, time
from swe_gym.sandboxes.images import ImageStore, id_ranges
from swe_gym.sandboxes.images.sources import ImageName
from swe_gym.sandboxes.images.sources import RegistrySource

first = threading.Lock()

def stop():
    if first.acquire(blocking=False):
        print("here", flush=True)
    threading.Event().wait()

class Stopping(RegistrySource):
    '''Stops after so many bytes of layers were read to be unpacked.'''

    left = None

    @contextlib.contextmanager
    def open(self, blob, folder):
        with super().open(blob, folder) as file:
            yield file if self.left is None else self.limited(file)

    def limited(self, file):
        source, read = self, file.read
        class Limited:
            peek = file.peek
            def read(self, size):
                if source.left <= 0:
                    stop()
                source.left -= (size := min(size, source.left))
                return read(size)
        return Limited()

def fetch(cache, name, unpacked, layers):
    os.environ["SWE_GYM_CACHE"] = cache
    deadline = time.monotonic() + 60
    name = ImageName.parse(name)
    source = Stopping(name, deadline)
    source.left = unpacked
    there = []
    def on_layer(blob):
        there.append(blob)
        if len(there) == layers:
            stop()
    ImageStore().add(name, source, deadline=deadline, on_layer=on_layer)

id_ranges()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    order = json.loads(line)
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        fetch(**order)
        os._exit(1)
"""
"""Forks a process for each fetch, which saves imports; it stops at a moment and says so."""

BYTES, READS, LAYERS = 10, 7, 3
MOMENTS = [
    *((f"after {part}0 % of the bytes", {"sent": part / BYTES}) for part in range(BYTES)),
    *((f"{part} of {READS} parts unpacked", {"unpacked": part / READS}) for part in range(READS)),
    *((f"{count} of {LAYERS} layers there", {"layers": count}) for count in range(1, LAYERS + 1)),
]

CHANCE = random.Random(5)
FILES = [
    {f"{number}/{folder}/{file}": CHANCE.randbytes(3000 * file) for folder in "ab" for file in range(8)}
    for number in range(LAYERS)
]
"""The files of each layer."""


class Fetcher:
    """Starts fetches, and kills them at a moment."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin
        assert process.stdout
        self._orders, self._said = process.stdin, process.stdout

    def kill(self, registry: Registry, name: str, *, sent: float | None = None, **moment: float) -> None:
        """Start a fetch; kill it when the registry has sent a share of all bytes, or when it says that it is there."""
        if sent is not None:
            registry.quota = int(sent * total(registry))
        if "unpacked" in moment:
            moment["unpacked"] = int(moment["unpacked"] * total(registry))
        order = {"cache": os.environ["SWE_GYM_CACHE"], "name": name, "unpacked": None, "layers": None, **moment}
        print(json.dumps(order), file=self._orders, flush=True)
        pid = int(self._said.readline())
        end = os.pidfd_open(pid)
        if sent is None:
            assert self._said.readline() == "here\n"
        else:
            assert registry.silent.wait(60)
        os.kill(pid, signal.SIGKILL)
        select.select([end], [], [], 60)
        os.close(end)
        registry.quota = None


def total(registry: Registry) -> int:
    """All bytes that a fetch receives."""
    return sum(map(len, registry.blobs.values())) + sum(len(data) for _, data in registry.manifests.values())


@pytest.fixture(scope="module")
def fetcher() -> Iterator[Fetcher]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FETCHER], **pipes) as process:  # type: ignore[call-overload]
        yield Fetcher(process)
        process.stdin.close()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("SWE_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with Registry() as server:
        yield server


def push(registry: Registry) -> str:
    return registry.push("a:1", [layer(*files.items()) for files in FILES], platforms=("amd64", "arm64"))


def pull(name: str) -> StoredImage:
    return ImageStore().pull(name, deadline=time.monotonic() + 60)


def unpacked(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def left(cache: Path, image: StoredImage | None = None) -> list[str]:
    """Everything in the cache that belongs neither to an image nor to the cache's own folders and lock."""
    store = ImageStore()
    known = {store.folder, cache / "images", cache / "images/lock", cache / "image-downloads", cache / "image-copies"}
    layers = [folder.parent for folder in store.layers(image)] if image else []
    paths = [path for path in cache.rglob("*") if path not in known and not path.match("images/*.json")]
    return [str(path) for path in paths if not any(path.is_relative_to(one) for one in layers)]


@pytest.mark.slow
@pytest.mark.parametrize("moment", [moment for _, moment in MOMENTS], ids=[name for name, _ in MOMENTS])
def test_a_killed_fetch_is_repeated_from_any_moment(
    registry: Registry, fetcher: Fetcher, moment: dict[str, float], tmp_path: Path
) -> None:
    name = push(registry)
    fetcher.kill(registry, name, **moment)
    store = ImageStore()
    assert (store.find(name), store.images()) == (None, [])
    image = pull(name)
    assert store.find(name) == image
    assert [unpacked(folder) for folder in store.layers(image)] == FILES
    store.prune()
    assert left(tmp_path / "cache", image) == []


@pytest.mark.parametrize("moment", [{"sent": 0.5}, {"unpacked": 0.5}, {"layers": 2}], ids=str)
def test_pruning_removes_what_a_killed_fetch_left(
    registry: Registry, fetcher: Fetcher, moment: dict[str, float], tmp_path: Path
) -> None:
    name = push(registry)
    fetcher.kill(registry, name, **moment)
    cache = tmp_path / "cache"
    assert left(cache)
    # A child of the killed process may hold its lock for a moment.
    eventually(lambda: ImageStore().prune() == [] and left(cache) == [], 60, "nothing is left")
