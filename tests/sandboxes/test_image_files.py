"""The files of local sandboxes from images are those that `docker export` shows, byte by byte."""

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.sandboxes.local import problem
from swe_gym.sandboxes.local.forkserver import launch
from swe_gym.sandboxes.local.image import launch_config
from swe_gym.testing.sandbox_contract.case import ok

ADDED = ("/proc", "/sys", "/dev", "/.dockerenv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab", "/etc")
"""What Docker and we add to an image, and the folder whose time that changes."""

LIST = """
import hashlib, json, os, stat
found = []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/dev")]
    for name in folders + files:
        path = os.path.join(folder, name)
        s = os.lstat(path)
        link = os.readlink(path) if stat.S_ISLNK(s.st_mode) else ""
        data = open(path, "rb").read() if stat.S_ISREG(s.st_mode) else b""
        mode = 0 if link else stat.S_IMODE(s.st_mode)
        shared = (s.st_dev, s.st_ino) if stat.S_ISREG(s.st_mode) and s.st_nlink > 1 else None
        content = hashlib.sha256(data).hexdigest()
        found.append([path, mode, s.st_uid, s.st_gid, int(s.st_mtime), link, content, shared])
print(json.dumps(found))
"""

CHANGE = """
import os, shutil
shutil.rmtree("/usr/share/doc")
os.makedirs("/usr/share/doc/new")
os.remove("/etc/debian_version")
shutil.move("/usr/share/perl5", "/usr/share/moved")
os.makedirs("/data")
open("/data/one", "w").write("one")
os.link("/data/one", "/data/two")
os.chmod("/data/one", 0o4711)
os.chown("/data/one", 1234, 567)
os.chmod("/data/one", 0o6711)
os.symlink("/nowhere", "/data/dangling")
os.mkfifo("/data/pipe")
open("/data/\udce4", "w").close()
with open("/data/sparse", "wb") as file:
    file.truncate(50_000_000)
    file.seek(25_000_000)
    file.write(b"in the middle")
open("/etc/passwd", "a").write("alice:x:1234:567::/data/alice:/bin/sh\\n")
for number in range(2000):
    open(f"/data/{number}", "w").write(str(number))
"""
Entry = tuple[object, ...]


@pytest.fixture(scope="module")
def changed_image(docker_image: str) -> Iterator[str]:
    """The test image with a second layer: deletions, replaced folders, links, setuid, holes, odd names."""
    import docker

    name = f"swe-gym/test-files-{os.getpid()}"
    with closing(docker.APIClient(version="auto")) as engine:
        container = engine.create_container(docker_image, ["python3", "-c", CHANGE], network_disabled=True)["Id"]
        engine.start(container)
        assert engine.wait(container, timeout=120)["StatusCode"] == 0, engine.logs(container)
        engine.commit(container, name, "changed", conf={"User": "alice"})
        engine.remove_container(container)
        yield f"{name}:changed"
        engine.remove_image(f"{name}:changed", force=True)


def exported(image: str) -> dict[str, Entry]:
    """Path -> what `docker export` says of it."""
    import docker

    found: dict[str, Entry] = {}
    with closing(docker.APIClient(version="auto")) as engine, tempfile.TemporaryFile() as file:
        container = engine.create_container(image, ["true"])["Id"]
        for chunk in engine.export(container):
            file.write(chunk)
        engine.remove_container(container)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            for member in archive:
                path = "/" + member.name.rstrip("/")
                if member.islnk():
                    found[path] = found["/" + member.linkname]
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                mode = 0 if member.issym() else stat.S_IMODE(member.mode)  # the engine adds the type
                facts = (mode, member.uid, member.gid, int(member.mtime), member.linkname)
                found[path] = (*facts, digest(content or io.BytesIO()))
    return found


def digest(content: IO[bytes]) -> str:
    return hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]  # it reads


def relevant(found: dict[str, Entry]) -> dict[str, Entry]:
    return {
        path: facts
        for path, facts in found.items()
        if path not in ADDED and not path.startswith(("/proc/", "/sys/", "/dev/"))
    }


def test_links_of_an_image_never_lead_to_the_host(tmp_path: Path) -> None:
    """What is added to an image, such as /etc/hosts, is added before its root is ours."""
    if problem("namespace", "egress"):
        pytest.skip(f"no tier namespace with network on this machine: {problem('namespace', 'egress')}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp is hidden at that time
        host = Path(name)
        (host / "file").write_text("text")
        (host / "folder").mkdir(0o700)
        layer = tmp_path / "layer"
        (layer / "etc").mkdir(parents=True)
        (layer / "etc/hosts").symlink_to(host / "file")
        other = tmp_path / "other"
        other.mkdir()
        os.mkfifo(layer / "etc/hostname")
        (layer / "etc/resolv.conf").symlink_to("../run/missing/resolv.conf")
        for place in ("tmp", "dev", "proc", "sys", "code"):
            (layer / place).symlink_to(host / "folder" / place)
        spec = SandboxSpec(workdir="/code/inner", network="egress")
        deadline = time.monotonic() + 60.0
        stream, supervisor = launch(launch_config(spec, [layer, other, layer]), deadline)  # one layer comes twice
        stream.close()
        supervisor.end()
        assert (host / "file").read_text() == "text"
        assert os.listdir(host / "folder") == []
        assert stat.S_IMODE((host / "folder").stat().st_mode) == 0o700


STACK = """
mkdir base one two; cd one; mkdir u w m; mount -t overlay overlay -o lowerdir=../base,upperdir=u,workdir=w m
cd ../two; mkdir u w m; mount -t overlay overlay -o lowerdir=../one/m:../base,upperdir=u,workdir=w m
SWE_GYM_CACHE=$PWD/m/cache "$0" -c "$1"
"""
NEXT_BEST = """
from pathlib import Path
from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.sandboxes.local.image import choose_overlay
from swe_gym.types import FolderWorkspace

kind, why = choose_overlay()
print(kind in ("fuse", "copy"), "an overlay: OSError" in why)
folder = Path("many")
folder.mkdir()
for number in range(2100):  # more than a sandbox copies if it can do without
    (folder / str(number)).write_text(str(number))
spec = SandboxSpec(workspace=FolderWorkspace(path=str(folder.absolute())), options={"tier": "namespace"})
with open_sandbox(spec, "local") as sandbox:
    print(sandbox.exec("ls | wc -l").text)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts overlays on the machine")
def test_a_cache_that_cannot_be_a_layer_selects_the_next_best(tmp_path: Path) -> None:
    """An overlay over two others is one too many for the kernel."""
    if problem("namespace"):
        pytest.skip(f"no tier namespace on this machine: {problem('namespace')}")
    command = ["unshare", "--mount", "bash", "-ec", STACK, sys.executable, NEXT_BEST]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert result.stdout == "True True\n2100\n\n", result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps owners")
def test_files_are_those_of_docker_export(changed_image: str, import_image: Callable[[str], str]) -> None:
    spec = SandboxSpec(image=import_image(changed_image), workdir="/data", user="root")
    with open_sandbox(spec) as sandbox:
        listed = json.loads(ok(sandbox.exec(["python3", "-c", LIST], max_output=64 << 20, timeout=300)).text)
    ours = {path: tuple(facts) for path, *facts, _ in listed}
    theirs = exported(changed_image)
    ours, theirs = relevant(ours), relevant(theirs)
    assert sorted(ours) == sorted(theirs)
    assert {path: (facts, theirs[path]) for path, facts in ours.items() if facts != theirs[path]} == {}
    shared = {path: tuple(inode) for path, *_, inode in listed if inode}
    assert shared["/data/one"] == shared["/data/two"]


IDENTITY = "echo $(whoami) $HOME $(id -G); stat -c %a,%U $(readlink -f /proc/self/cwd)"
MASKED = "cat /proc/kcore /proc/keys /proc/timer_list | wc -c; ls -A /sys/firmware"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes to other users")
@pytest.mark.parametrize("user", [None, "4321:0"])
def test_users_homes_and_hidden_files_are_those_of_docker(
    user: str | None, changed_image: str, import_image: Callable[[str], str]
) -> None:
    spec = SandboxSpec(image=import_image(changed_image), workdir="/data", user=user)
    with open_sandbox(spec) as ours, open_sandbox(spec, "docker") as theirs:
        for command in (IDENTITY, MASKED):
            assert ours.exec(command).text == theirs.exec(command).text
        assert ours.exec(MASKED).text == "0\n"
