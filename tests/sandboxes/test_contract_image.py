"""The contract in local sandboxes from a real image, which a Docker engine hands over."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from contract_parts import OF_THE_FILES, OF_THE_RUNNER, OF_THE_WALLS, parametrize_contract
from servers.registry import digest, layer
from test_contract_local import NAMESPACE
from test_local_dies_with_us import below, table

from swe_gym.guests.local.layers import lock
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.sandboxes.images import ImageStore, StoredImage, copies_folder
from swe_gym.sandboxes.images.sources import Blob, ImageName, ImageSource
from swe_gym.sandboxes.local import problem
from swe_gym.sandboxes.local.image import choose_overlay
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import Case
from swe_gym.testing.sandbox_contract.case import eventually, ok


def run(case: Case, image: str, overlay: str) -> None:
    if problem("namespace"):
        pytest.skip(f"no tier namespace on this machine: {problem('namespace')}")
    found, why = choose_overlay(overlay)
    if not found:
        pytest.skip(f"no overlay {overlay!r} on this machine: {why}")

    def make(**fields: Any) -> Sandbox:
        if "workspace" not in fields:  # a sandbox with a workspace has no image
            fields["options"] = {"overlay": overlay, **fields.get("options", {})}
        return open_sandbox(SandboxSpec.model_validate({"image": image, **fields}), "local")

    case.run(make)


@pytest.mark.sample(every=3)
@parametrize_contract("life", *OF_THE_WALLS, *OF_THE_FILES, thorough=OF_THE_RUNNER, deviations=NAMESPACE)
def test_image(case: Case, stored_image: str) -> None:
    run(case, stored_image, "kernel")


LONG_NAMES = "fuse-overlayfs takes names of up to 251 bytes"
FUSE = {
    "odd_names": LONG_NAMES,
    "tar_round_trip": LONG_NAMES,
    "tar_between_sandboxes": LONG_NAMES,
    "manifest_is_true": LONG_NAMES,
    "endless_links_and_names": "fuse-overlayfs takes paths of up to 4,096 bytes, also in relative steps",
}
COPY = {
    "disk_limit_of_many_files": "the files are on the disk of the cache, where only the size of each file is limited"
}

# Only cases of what makes the files. In the others these sandboxes are those of `test_image`.


@pytest.mark.sample(every=3)
@sandbox_contract.parametrize(FUSE, only=["files", "trees", "limits"])
def test_files_by_fuse(case: Case, stored_image: str) -> None:
    run(case, stored_image, "fuse")


@pytest.mark.slow
@sandbox_contract.parametrize(COPY, only=["disk_limit", "disk_limit_of_many_files"])
def test_files_by_copy(case: Case, stored_image: str) -> None:
    run(case, stored_image, "copy")


# --- without overlays of the kernel -----------------------------------------------------------------------------


class Derived(ImageSource):
    """An image of the store with one more layer."""

    def __init__(self, base: StoredImage, data: bytes) -> None:
        self.data = data
        layers = [*base.layers, digest(data)]
        self.config = json.dumps({"config": {}, "rootfs": {"diff_ids": layers}}).encode()
        self.blobs = tuple(Blob(diff_id=diff_id, size=0) for diff_id in layers)

    @contextlib.contextmanager
    def open(self, blob: Blob, folder: Path) -> Iterator[IO[bytes]]:  # noqa: ARG002  nothing is downloaded
        yield io.BufferedReader(io.BytesIO(self.data))


@pytest.fixture(scope="module")
def derived_image(stored_image: str) -> StoredImage:
    link = tarfile.TarInfo("two")
    link.type, link.linkname = tarfile.LNKTYPE, "one"
    most = ("usr/share", "usr/lib/python3", "usr/lib/python3.11", "usr/lib/git-core")  # of the files, which are copied
    data = layer(
        ("etc/.wh.debian_version", b""),
        *((f"{folder}/.wh..wh..opq", b"") for folder in most),
        ("usr/share/doc/new", b""),
        ("one", b"as it was"),
        (link, b""),
    )
    store, name = ImageStore(), ImageName.parse("localhost/derived:1")
    base = store.find(stored_image)
    assert base
    return store.add(name, Derived(base, data), deadline=time.monotonic() + 60)


LOOK_AND_CHANGE = """
ls -a /usr/share/doc /etc; stat -c '%a %h' /one /bin/* | sort | md5sum
echo changed > /one; chmod 600 /etc/passwd; rm -r /usr/share/doc; mkdir /usr/share/doc; ls -A /usr/share/doc
mv /one /tmp/one; ln /tmp/one /three; cat /three; rm -rf /srv; mkfifo /srv; stat -c '%n %F %U' /srv /tmp /dev/null
"""


@pytest.mark.parametrize("overlay", ["fuse", "copy"])
def test_without_overlays_of_the_kernel_files_are_the_same(overlay: str, derived_image: StoredImage) -> None:
    found, why = choose_overlay(overlay)
    if not found:
        pytest.skip(f"no overlay {overlay!r} on this machine: {why}")
    said = {}
    for kind in ("kernel", overlay):
        spec = SandboxSpec(image=derived_image.name, options={"overlay": kind})
        with open_sandbox(spec, "local") as sandbox:
            said[kind] = ok(sandbox.exec(LOOK_AND_CHANGE, merge=True)).text
            assert ("The kernel mounts no overlay" in sandbox.capabilities.notes[-1]) == (kind == overlay)
    assert said[overlay] == said["kernel"]
    assert "new" in said[overlay]
    assert (ImageStore().layers(derived_image)[-1] / "two").read_text() == "as it was"


OPEN = """
import sys
from swe_gym.sandboxes import SandboxSpec, open_sandbox
sandbox = open_sandbox(SandboxSpec(image=sys.argv[1], options={"overlay": sys.argv[2]}), "local")
print("open", flush=True)
sys.stdin.read()
"""


def copies_of(pids: Iterable[int]) -> list[Path]:
    """Return the copies that processes made. Other tests make some at the same time."""
    return [copy for pid in pids for copy in copies_folder().glob(f"{pid}-*")]


@pytest.mark.parametrize("overlay", ["fuse", "copy"])
def test_what_serves_a_sandbox_ends_with_a_killed_process(overlay: str, derived_image: StoredImage) -> None:
    found, why = choose_overlay(overlay)
    if not found:
        pytest.skip(f"no overlay {overlay!r} on this machine: {why}")
    command = [sys.executable, "-c", OPEN, derived_image.name, overlay]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"open\n"
        started = below(client.pid)
        client.kill()
    assert started
    eventually(lambda: not any((pid, start) in started for pid, (_, start) in table().items()), 60, "all have ended")
    eventually(lambda: copies_of(pid for pid, _ in started) == [], 60, "copies are removed")


def test_a_start_does_not_mind_a_copy_that_is_removed_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    (entry,) = os.scandir(tmp_path)
    (tmp_path / "gone").rmdir()
    assert lock(entry) is None


@pytest.mark.slow  # copies and removes a whole image
def test_pruning_removes_the_copy_of_a_sandbox_all_of_whose_processes_were_killed(derived_image: StoredImage) -> None:
    found, why = choose_overlay("copy")
    if not found:
        pytest.skip(f"no overlay 'copy' on this machine: {why}")
    command = [sys.executable, "-c", OPEN, derived_image.name, "copy"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"open\n"
        started = {pid for pid, _ in below(client.pid)}
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped, none can notice the end of another
            for pid in (client.pid, *started):
                os.kill(pid, number)
    eventually(lambda: started.isdisjoint(table()), 60, "all have ended")
    assert copies_of(started)
    ImageStore().prune()
    assert copies_of(started) == []
