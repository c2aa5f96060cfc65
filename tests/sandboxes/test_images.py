"""The store of images: names, registries and their faults, archives, and layers unpacked exactly."""

import base64
import fcntl
import functools
import importlib
import json
import os
import pwd
import shutil
import ssl
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from servers.registry import MANIFEST, Registry, digest, layer

from swe_gym.errors import MissingDependency, SandboxStartError, UsageError
from swe_gym.sandboxes.images import ImageStore, StoredImage, copies_folder
from swe_gym.sandboxes.images.sources import MIRRORS, ArchiveSource, ImageName, RegistrySource
from swe_gym.sandboxes.images.store import range_of

pytest.importorskip("docker", reason="fetching needs docker-py")
zstandard = pytest.importorskip("zstandard")
registry_client = importlib.import_module("swe_gym.sandboxes.images.registry")  # needs docker-py

ROOT = os.geteuid() == 0
MINUTE = 60.0


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    monkeypatch.setenv("SWE_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return ImageStore()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        yield server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of nobody in particular, and its key."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("certificate")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=anybody -keyout key.pem -out cert.pem"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def pull(name: str, seconds: float = MINUTE) -> StoredImage:
    return ImageStore().pull(name, deadline=time.monotonic() + seconds)


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def top(image: StoredImage) -> Path:
    return ImageStore().layers(image)[-1]


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "complete"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.11-slim", "docker.io/library/python:3.11-slim"),
        ("swebench/sweb.eval.x86_64.a__b-1", "docker.io/swebench/sweb.eval.x86_64.a__b-1:latest"),
        ("index.docker.io/a/b:c", "docker.io/a/b:c"),
        ("localhost/a", "localhost/a:latest"),
        ("localhost:5000/a/b/c:d", "localhost:5000/a/b/c:d"),
        ("ghcr.io/a/b@sha256:" + "0" * 64, "ghcr.io/a/b@sha256:" + "0" * 64),
    ],
)
def test_names_are_completed_as_docker_does(name: str, complete: str) -> None:
    assert str(ImageName.parse(name)) == complete


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("python", "registry-1.docker.io"),
        ("registry-1.docker.io/library/python", "registry-1.docker.io"),
        ("cr.mydocker.io/a", "cr.mydocker.io"),
    ],
)
def test_only_docker_hub_has_other_hosts(name: str, host: str) -> None:
    assert ImageName.parse(name).server == f"https://{host}"


@pytest.mark.parametrize(
    ("mirror", "server"),
    [
        ("mirror.example.com/", "https://mirror.example.com"),
        ("http://10.0.0.1:5000", "http://10.0.0.1:5000"),
        ("127.0.0.2:5000", "127.0.0.2:5000"),
        ("[::1]:5000", "[::1]:5000"),
        ("127.0.0.1.example.com", "https://127.0.0.1.example.com"),
    ],
)
def test_only_on_loopback_the_scheme_is_open(mirror: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRRORS, f"ghcr.io={mirror}")
    assert ImageName.parse("ghcr.io/a/b").server == server


@pytest.mark.parametrize("name", ["", "UPPER", "a b", "a:", "a@sha256:12", "../a", "a//b", "a:b:c", "http://a/b"])
def test_other_texts_are_no_names(name: str) -> None:
    with pytest.raises(UsageError, match="not an image name"):
        ImageName.parse(name)


def test_a_mirror_replaces_a_registry(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.push("library/tiny:1", [layer(("file", b"x"))])
    monkeypatch.setenv(MIRRORS, f"ghcr.io=nowhere.invalid,docker.io={registry.url}")
    assert pull("tiny:1").name == "docker.io/library/tiny:1"


# --- layers -----------------------------------------------------------------------------------------------------


def test_a_layer_keeps_files_modes_links_and_times(registry: Registry) -> None:
    data = layer(
        (member("folder", tarfile.DIRTYPE, mode=0o550, mtime=1_500_000_000), b""),
        (member("folder/tool", mode=0o4755, mtime=1_400_000_000.25), b"#!"),
        (member("folder/link", tarfile.SYMTYPE, linkname="../nowhere"), b""),
        (member("hard", tarfile.LNKTYPE, linkname="folder/tool"), b""),
        (member("pipe", tarfile.FIFOTYPE, mode=0o600), b""),
        (member("sp\udce4m"), b"not UTF-8"),
        (member("xattr", pax_headers={"SCHILY.xattr.user.note": "kept", "SCHILY.xattr.user.overlay.opaque": "y"}), b""),
    )
    root = top(pull(registry.push("a:1", [data])))
    assert stat.S_IMODE((root / "folder").stat().st_mode) == 0o550
    assert (root / "folder").stat().st_mtime == 1_500_000_000
    tool = (root / "folder/tool").stat()
    assert (stat.S_IMODE(tool.st_mode), tool.st_mtime, tool.st_nlink) == (0o4755, 1_400_000_000.25, 2)
    assert (root / "hard").samefile(root / "folder/tool")
    assert os.readlink(root / "folder/link") == "../nowhere"
    assert (root / "pipe").is_fifo()
    assert os.getxattr(root / "xattr", "user.note") == b"kept"
    assert "user.overlay.opaque" not in os.listxattr(root / "xattr")
    assert b"sp\xe4m" in os.listdir(os.fsencode(root))


@pytest.mark.skipif(not ROOT, reason="only root keeps owners and devices")
def test_root_keeps_owners_and_devices(registry: Registry) -> None:
    data = layer(
        (member("owned", uid=1234, gid=5678, mode=0o4700), b"x"),
        (member("null", tarfile.CHRTYPE, devmajor=1, devminor=3), b""),
    )
    root = top(pull(registry.push("a:1", [data])))
    status = (root / "owned").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 5678, 0o4700)
    assert (root / "null").stat().st_rdev == os.makedev(1, 3)
    assert stat.S_IMODE(ImageStore().folder.stat().st_mode) == 0o700


MAP = """
import os, sys
from pathlib import Path
from swe_gym.guests.local import linux
from swe_gym.sandboxes.images.store import FILES, range_of
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
linux.prctl(linux.PR_SET_DUMPABLE, 1)  # the change of user took it away
ranges = [range_of(name, Path(path)) for name, path in FILES.items()]
linux.enter_user_namespace(linux.CLONE_NEWNS, ranges)
maps = [[int(number) for number in Path(f"/proc/self/{name}").read_text().split()] for name in linux.MAPS]
print(maps == [[0, int(sys.argv[1]), 1, 1, first, count] for _, first, count in ranges], linux.has_one_user())
os.setgroups([7])
os.setgid(8)
os.setuid(9)
print(os.getuid(), os.getgid(), os.getgroups())
"""


@pytest.mark.skipif(not ROOT, reason="only root becomes another user")
def test_the_ranges_of_an_ordinary_user_are_mapped() -> None:
    file = Path("/etc/subuid")
    granted = {line.split(":")[0] for line in file.read_text().splitlines()} if file.exists() else set()
    found = [user.pw_uid for user in pwd.getpwall() if user.pw_name in granted and user.pw_uid == user.pw_gid != 0]
    if not (found and shutil.which("newuidmap")):
        pytest.skip("no user with ranges: apt-get install uidmap, and useradd a user, who gets entries in /etc/subuid")
    result = subprocess.run(
        [sys.executable, "-c", MAP, str(found[0])], capture_output=True, text=True, check=False, timeout=MINUTE
    )
    assert result.stdout == "True False\n9 8 [7]\n", result.stderr


def test_a_range_is_read_by_name_or_number(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    ours = next((user.pw_name for user in pwd.getpwall() if user.pw_uid == os.getuid()), str(os.getuid()))
    program = shutil.which("true")
    for text, first in {
        "other:1:65536\n": None,
        f"{ours}:1:10\n{ours}:200000:65536\n": 200000,
        f"{os.getuid()}:5:70000:\nbroken\n{os.getuid()}:7:70000\n": 7,
    }.items():
        file.write_text(text)
        found = range_of("true", file)
        assert (found and found[:2]) == (first and (program, first))
    assert range_of("true", tmp_path / "missing") is range_of("there-is-no-such-program", file) is None


def test_deletions_become_whiteouts_and_opaque_folders(registry: Registry) -> None:
    upper = layer((".wh.gone", b""), ("folder/.wh..wh..opq", b""), ("folder/new", b""))
    root = top(pull(registry.push("a:1", [layer(("gone", b""), ("folder/old", b"")), upper])))
    assert (root / "gone").lstat().st_rdev == 0
    assert stat.S_ISCHR((root / "gone").lstat().st_mode)
    assert os.getxattr(root / "folder", f"{'trusted' if ROOT else 'user'}.overlay.opaque") == b"y"
    assert os.listdir(root / "folder") == ["new"]


def test_names_and_links_never_lead_out_of_a_layer(registry: Registry, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    data = layer(
        (member("../../../../up"), b"x"),
        (member("/absolute"), b"x"),
        (member("up-link", tarfile.SYMTYPE, linkname="../../../.."), b""),
        (member("up-link/escaped"), b"x"),
    )
    root = top(pull(registry.push("a:1", [data])))
    assert sorted(os.listdir(root)) == ["absolute", "escaped", "up", "up-link"]
    hostile = layer((member("way", tarfile.SYMTYPE, linkname=str(outside)), b""), ("way/file", b"x"))
    with pytest.raises(SandboxStartError, match="cannot be unpacked: FileExistsError"):
        pull(registry.push("b:1", [hostile]))
    assert os.listdir(outside) == []


def test_a_later_member_replaces_an_earlier_one(registry: Registry) -> None:
    data = layer(
        ("a/b", b"x"),
        (member("a", tarfile.SYMTYPE, linkname="c"), b""),
        (member("f", tarfile.DIRTYPE, mode=0o755), b""),
        ("f", b"file"),
        ("d", b"file"),
        (member("d", tarfile.DIRTYPE, mode=0o700), b""),
        (member("e/e", tarfile.DIRTYPE), b""),
        (member("e", tarfile.SYMTYPE, linkname="/nowhere"), b""),
    )
    root = top(pull(registry.push("a:1", [data])))
    assert (root / "a").is_symlink()
    assert (root / "f").read_bytes() == b"file"
    assert (root / "d").is_dir()


def test_layers_are_shared_and_fetched_once(registry: Registry) -> None:
    shared = layer(("base", b"base"))
    first = pull(registry.push("a:1", [shared, layer(("one", b""))], Env=["A=b=c"], User="me"))
    second = pull(registry.push("b:1", [shared, layer(("two", b""))]))
    blobs = [path for path in registry.paths() if "/blobs/" in path]
    assert len(blobs) == len(set(blobs)) == 5  # three layers, two configurations
    assert (first.env, first.user) == ({"A": "b=c"}, "me")
    assert ImageStore().layers(first)[0] == ImageStore().layers(second)[0]
    seen = len(registry.requests)
    assert pull(first.name) == first
    assert len(registry.requests) == seen


def test_the_variant_for_this_machine_is_chosen(registry: Registry) -> None:
    assert pull(registry.push("a:1", [layer(("x", b""))], platforms=("s390x", "amd64", "arm64"))).layers
    with pytest.raises(SandboxStartError, match="is for s390x, and this machine is"):
        pull(registry.push("b:1", [layer(("x", b""))], platforms=("s390x",)))


# --- registries and their faults --------------------------------------------------------------------------------


def test_a_token_costs_the_login_of_docker(registry: Registry, tmp_path: Path) -> None:
    registry.login = ("me", "secret")
    name = registry.push("a:1", [layer(("x", b""))])
    with pytest.raises(SandboxStartError, match="refused it: log in with `docker login 127"):
        pull(name)
    auth = base64.b64encode(b"me:secret").decode()
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    assert pull(name).layers
    registry.login = None  # a token for everyone, as Docker Hub has
    assert pull(registry.push("b:1", [layer(("y", b""))])).layers


def log_in(folder: Path, *hosts: str) -> None:
    """What `docker login` writes; the password of each host is its name."""
    auths = {host: {"auth": base64.b64encode(f"me:{host}".encode()).decode()} for host in hosts}
    (folder / "docker").mkdir(exist_ok=True)
    (folder / "docker/config.json").write_text(json.dumps({"auths": auths}))


def passwords(registry: Registry) -> set[str]:
    """The passwords that a registry got to know."""
    given = [request.headers.get("authorization", "") for request in registry.requests]
    basic = [base64.b64decode(one.removeprefix("Basic ")).decode() for one in given if one.startswith("Basic ")]
    return {one.partition(":")[2] for one in basic}


def test_a_mirror_gets_its_own_login_and_not_that_of_its_origin(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.login = ("me", registry.host)
    registry.push("library/tiny:1", [layer(("file", b"x"))])
    monkeypatch.setenv(MIRRORS, f"docker.io={registry.url}")
    log_in(tmp_path, "https://index.docker.io/v1/")
    with pytest.raises(SandboxStartError, match=f"docker login {registry.host}"):
        pull("tiny:1")
    assert passwords(registry) == set()
    log_in(tmp_path, "https://index.docker.io/v1/", registry.host)
    assert pull("tiny:1").layers
    assert passwords(registry) == {registry.host}


def test_a_token_service_on_another_host_gets_no_login(registry: Registry, tmp_path: Path) -> None:
    name = registry.push("a:1", [layer(("x", b""))])
    registry.login = None
    with Registry(login=None) as other:
        challenge = {"WWW-Authenticate": f'Bearer realm="{other.url}/token",service="test"'}
        registry.inject("/v2/*", times=1, status=401, headers=challenge)
        log_in(tmp_path, registry.host, other.host)
        assert pull(name).layers
        assert other.paths() == ["GET /token"]
        assert passwords(other) == set()


def test_a_password_is_never_sent_in_clear_but_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry_of = functools.partial(registry_client.ImageRegistry, deadline=0.0)
    monkeypatch.setenv(MIRRORS, "docker.io=http://mirror.example.com,quay.io=https://mirror.example.com")
    log_in(tmp_path, "mirror.example.com", "https://index.docker.io/v1/", "registry.gitlab.com")
    clear, tls, lab = (registry_of(ImageName.parse(name)) for name in ("a", "quay.io/a/b", "registry.gitlab.com/a/b"))
    assert clear._credentials("http://mirror.example.com/token") is None
    assert tls._credentials("http://mirror.example.com/token") is None
    assert tls._credentials("https://mirror.example.com/token") == ("me", "mirror.example.com")
    assert lab._credentials("https://gitlab.com/jwt/auth") == ("me", "registry.gitlab.com")
    for url in (
        "https://com/x",
        "https://lab.com/x",
        "https://evilgitlab.com/x",
        "https://registry.gitlab.com.evil.io/x",
    ):
        assert lab._credentials(url) is None
    monkeypatch.delenv(MIRRORS)
    hub = registry_of(ImageName.parse("a"))
    assert hub._credentials("https://auth.docker.io/token") == ("me", "https://index.docker.io/v1/")
    assert hub._credentials("http://auth.docker.io/token") is None


def test_a_login_of_netrc_is_not_used(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password of-netrc\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert pull(registry.push("a:1", [layer(("x", b""))])).layers
    assert passwords(registry) == set()


def test_a_registry_on_loopback_may_speak_tls(registry: Registry, certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    registry._http.socket = context.wrap_socket(registry._http.socket, server_side=True)
    assert pull(registry.push("a:1", [layer(("x", b""))])).layers


def test_a_missing_image_is_an_error_at_once(registry: Registry) -> None:
    with pytest.raises(SandboxStartError, match="does not have it") as caught:
        pull(f"{registry.host}/nothing:1")
    assert (caught.value.reason, caught.value.retryable) == ("image", False)


def test_a_download_that_is_cut_off_continues(registry: Registry) -> None:
    name = registry.push("a:1", [layer(("x", os.urandom(300_000)))])
    blob = max(registry.blobs, key=lambda one: len(registry.blobs[one]))
    registry.inject(f"*/blobs/{blob}", cut_after=200_000)
    assert top(pull(name)).joinpath("x").stat().st_size == 300_000
    ranges = [one.headers.get("range") for one in registry.requests if one.path.endswith(blob)]
    assert ranges[0] is None
    assert ranges[1].startswith("bytes=")


def test_a_full_disk_keeps_no_part_of_a_download(registry: Registry, store: ImageStore) -> None:
    name = registry.push("a:1", [layer(("x", os.urandom(300_000)))])
    blob = max(registry.blobs, key=lambda one: len(registry.blobs[one]))
    downloads = store.folder.with_name("image-downloads")
    downloads.mkdir(parents=True)
    (downloads / blob.replace(":", "-")).symlink_to("/dev/full")
    with pytest.raises(SandboxStartError, match="No space left on device") as caught:
        pull(name)
    assert (caught.value.reason, os.listdir(downloads)) == ("capacity", [])
    assert pull(name).layers


def test_a_rate_limit_is_waited_for(registry: Registry) -> None:
    registry.inject("*/manifests/1", status=429, headers={"Retry-After": "0"})
    assert pull(registry.push("a:1", [layer(("x", b""))])).layers


def test_a_rate_limit_beyond_the_deadline_is_a_typed_error(registry: Registry) -> None:
    registry.inject("*/manifests/1", status=429, headers={"Retry-After": "3600"})
    with pytest.raises(SandboxStartError) as caught:
        pull(registry.push("a:1", [layer(("x", b""))]))
    assert (caught.value.reason, caught.value.retryable) == ("rate_limit", True)


def test_a_silent_registry_ends_by_the_deadline(registry: Registry) -> None:
    registry.inject("*/manifests/1", hang=True)
    with pytest.raises(SandboxStartError) as caught:
        pull(registry.push("a:1", [layer(("x", b""))]), seconds=0.5)
    assert (caught.value.reason, caught.value.retryable) == ("timeout", True)


@pytest.mark.parametrize("broken", ["layer", "blob", "no size", "no layers", "Env"])
def test_invalid_manifests_and_configurations_are_refused(registry: Registry, broken: str, tmp_path: Path) -> None:
    """The digests in them become names of files, so a wrong one could name any."""
    victim = tmp_path / "victim"
    victim.write_text("text")
    name = registry.push("a:1", [layer(("x", b"text"))], Env=[1] if broken == "Env" else [])
    kind, data = registry.manifests["a/1"]
    manifest = json.loads(data)
    if broken == "layer":
        config = registry.blobs[manifest["config"]["digest"]]
        right = json.loads(config)["rootfs"]["diff_ids"][0]
        manifest["config"]["digest"] = registry.keep(config.replace(right.encode(), b"../victim"))
    elif broken == "blob":
        manifest["layers"][0] = {"digest": str(victim), "size": 4}
    elif broken == "no size":
        del manifest["layers"][0]["size"]
    elif broken == "no layers":
        del manifest["layers"]
    registry.manifests["a/1"] = kind, json.dumps(manifest).encode()
    with pytest.raises(SandboxStartError, match=r"the manifest or configuration of image .* is invalid") as caught:
        pull(name)
    assert caught.value.reason == "image"
    assert victim.read_text() == "text"


def test_a_blob_longer_than_its_manifest_says_is_cut_off(registry: Registry) -> None:
    name = registry.push("a:1", [layer(("x", b"text"))])
    blob = list(registry.blobs)[1]
    registry.blobs[blob] += b"x" * 100_000
    with pytest.raises(SandboxStartError, match="sent more than the"):
        pull(name)


def test_a_missing_credential_helper_is_named(registry: Registry, tmp_path: Path) -> None:
    registry.login = None
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text(json.dumps({"credsStore": "nowhere"}))
    name = registry.push("a:1", [layer(("x", b"text"))])
    with (
        pytest.warns(UserWarning, match="nowhere"),
        pytest.raises(UsageError, match=r"nowhere.* Fix or remove credsStore"),
    ):
        pull(name)


@pytest.mark.parametrize("broken", ["content", "not gzip", "not tar", "config"])
def test_damaged_data_is_refused_and_nothing_is_kept(registry: Registry, broken: str, store: ImageStore) -> None:
    data = layer(("x", b"text"))
    name = registry.push("a:1", [data])
    right = dict(registry.blobs)
    config, blob = registry.blobs
    wrong = {
        "content": right[config if broken == "config" else blob][:-9] + b"\0" * 9,
        "not gzip": b"x" * len(right[blob]),
        "not tar": b"\x1f\x8b" + b"x" * (len(right[blob]) - 2),
        "config": right[config].replace(b"layers", b"lawyer"),
    }[broken]
    registry.blobs[config if broken == "config" else blob] = wrong
    with pytest.raises(SandboxStartError) as caught:
        pull(name)
    assert caught.value.reason == "image"
    assert store.images() == []
    registry.blobs = right
    assert top(pull(name)).joinpath("x").read_bytes() == b"text"


def zstandard_image(registry: Registry) -> str:
    """An image whose layer is compressed with Zstandard."""
    data = layer(("x", b"text"))
    name = registry.push("z:1", [data])
    _, manifest = registry.manifests["z/1"]
    old = json.loads(manifest)["layers"][0]["digest"]
    new = zstandard.ZstdCompressor().compress(data)
    changed = manifest.replace(old.encode(), registry.keep(new).encode())
    size = f'"size": {len(registry.blobs[old])}'.encode()
    registry.manifests["z/1"] = MANIFEST, changed.replace(size, f'"size": {len(new)}'.encode())
    return name


def test_a_layer_may_be_compressed_with_zstandard(registry: Registry) -> None:
    assert top(pull(zstandard_image(registry))).joinpath("x").read_text() == "text"


def test_a_missing_decoder_is_named_and_no_damage(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependency, match="pip install zstandard"):
        pull(zstandard_image(registry))


def test_damaged_zstandard_is_a_damaged_layer(registry: Registry) -> None:
    name = zstandard_image(registry)
    blob = next(one for one in registry.blobs if registry.blobs[one][:4] == b"\x28\xb5\x2f\xfd")
    registry.blobs[blob] = registry.blobs[blob][:-4] + b"\xff\xff\xff\xff"
    with pytest.raises(SandboxStartError, match="is damaged"):
        pull(name)


def test_processes_share_one_fetch(registry: Registry) -> None:
    name = registry.push("a:1", [layer((f"{number}", os.urandom(2000))) for number in range(4)])
    code = (
        "import sys, time; from swe_gym.sandboxes.images import ImageStore; "
        "ImageStore().pull(sys.argv[1], deadline=time.monotonic() + 60)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, name]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    layers = [one.path for one in registry.requests if "/blobs/" in one.path and "range" not in one.headers]
    config = next(iter(registry.blobs))
    assert len([path for path in layers if not path.endswith(config)]) == 4


# --- archives and removal ----------------------------------------------------------------------------------------


def test_an_archive_of_docker_save_is_imported(tmp_path: Path, store: ImageStore) -> None:
    data = layer(("x", b"text"))
    config = json.dumps({"config": {}, "rootfs": {"diff_ids": [digest(data)]}}).encode()
    entry = [{"Config": "c.json", "RepoTags": ["mine:1"], "Layers": ["0/layer.tar"]}]
    archive = tmp_path / "saved.tar"
    archive.write_bytes(layer(("0/layer.tar", data), ("c.json", config), ("manifest.json", json.dumps(entry).encode())))
    with closing(ArchiveSource(archive, ImageName.parse("mine:1"))) as source:
        image = store.add(ImageName.parse("mine:1"), source, deadline=time.monotonic() + MINUTE)
    assert store.find("mine:1") == image
    assert top(image).joinpath("x").read_bytes() == b"text"
    with pytest.raises(UsageError, match=r"holds 1 images \(mine:1\): name one of them"):
        ArchiveSource(archive, ImageName.parse("other:1"))
    with pytest.raises(UsageError, match="not an image archive"):
        ArchiveSource(Path(__file__))


def test_a_layout_of_several_images_needs_a_name(tmp_path: Path, store: ImageStore) -> None:
    files: dict[str, bytes] = {}
    manifests = []
    for name, notes in {
        "a": {"org.opencontainers.image.ref.name": "1.0"},
        "b": {"io.containerd.image.name": "docker.io/library/b:1", "org.opencontainers.image.ref.name": "1"},
        "c": {"org.opencontainers.image.ref.name": "example.com/c:1"},
    }.items():
        data = layer((name, b"text"))
        config = json.dumps({"config": {}, "rootfs": {"diff_ids": [digest(data)]}}).encode()
        layers = [{"digest": digest(data), "size": len(data)}]
        manifest = json.dumps({"config": {"digest": digest(config)}, "layers": layers}).encode()
        files |= {"blobs/" + digest(blob).replace(":", "/"): blob for blob in (data, config, manifest)}
        manifests.append({"digest": digest(manifest), "annotations": notes})
    archive = tmp_path / "layout.tar"
    archive.write_bytes(layer(*files.items(), ("index.json", json.dumps({"manifests": manifests}).encode())))
    for name, file in {"a:1.0": "a", "b:1": "b", "example.com/c:1": "c", f"any@{manifests[0]['digest']}": "a"}.items():
        with closing(ArchiveSource(archive, ImageName.parse(name))) as source:
            image = store.add(ImageName.parse(name), source, deadline=time.monotonic() + MINUTE)
        assert os.listdir(top(image)) == [file]
    for unclear in (None, ImageName.parse("d:2")):
        with pytest.raises(
            UsageError, match=r"holds 3 images \(1\.0, docker.io/library/b:1, example.com/c:1\): name one"
        ):
            ArchiveSource(archive, unclear)


def test_pruning_spares_images_in_use_and_shared_layers(registry: Registry, store: ImageStore) -> None:
    shared = layer((member("locked", tarfile.DIRTYPE, mode=0o500), b""), ("locked/file", b"x"))
    first = pull(registry.push("a:1", [shared, layer(("one", b""))]))
    second = pull(registry.push("b:1", [shared, layer(("two", b""))]))
    with store.using(first):
        assert store.prune([first.name, second.name]) == [second.name]
    assert all(folder.is_dir() for folder in store.layers(first))
    assert not store.layers(second)[-1].exists()
    assert store.prune(max_bytes=0) == [first.name]
    assert list(store.folder.iterdir()) == []
    assert [path.name for path in store.folder.with_name("images").iterdir()] == ["lock"]


def test_pruning_removes_what_nobody_holds(registry: Registry, store: ImageStore) -> None:
    image = pull(registry.push("a:1", [layer(("one", b""))]))
    copies = copies_folder()
    for name in ("left", "used"):
        (copies / name / "locked").mkdir(parents=True)
        (copies / name / "locked").chmod(0o500)
    (store.folder.with_name("images") / ".name.json.1.partial").write_text("{")
    held = os.open(copies / "used", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert store.prune() == []
    assert os.listdir(copies) == ["used"]
    os.close(held)
    store.prune()
    assert os.listdir(copies) == []
    assert list(store.folder.with_name("images").glob("*.partial")) == []
    assert store.find(image.name) == image


def test_an_image_with_half_a_layer_is_fetched_again(registry: Registry, store: ImageStore) -> None:
    image = pull(registry.push("a:1", [layer(("one", b"1"), ("two", b"2"))]))
    (top(image) / "two").unlink()
    (top(image).with_name("complete")).unlink()  # as if a killed process had only begun to repair the store
    assert store.find(image.name) is None
    with pytest.raises(SandboxStartError, match="was removed"), store.using(image):
        pass
    assert sorted(os.listdir(top(pull(image.name)))) == ["one", "two"]


def test_pruning_spares_layers_of_an_image_that_is_being_fetched(registry: Registry, store: ImageStore) -> None:
    name = ImageName.parse(registry.push("a:1", [layer(("one", b"")), layer(("two", b""))]))
    deadline = time.monotonic() + MINUTE
    with closing(RegistrySource(name, deadline)) as source:
        image = store.add(name, source, deadline=deadline, on_layer=lambda _: store.prune(max_bytes=0).clear())
    assert store.find(str(name)) == image


def test_pruning_spares_images_in_use_whose_name_has_moved(registry: Registry, store: ImageStore) -> None:
    first = pull(registry.push("a:1", [layer(("one", b""))]))
    with store.using(first) as folders:
        registry.push("a:1", [layer(("two", b""))])
        name = ImageName.parse(first.name)
        deadline = time.monotonic() + MINUTE
        with closing(RegistrySource(name, deadline)) as source:
            store.add(name, source, deadline=deadline)
        store.prune(max_bytes=0)
        assert os.listdir(folders[0]) == ["one"]
    store.prune([first.name])
    assert list(store.folder.glob("*/")) == []
    with pytest.raises(SandboxStartError, match="was removed"), store.using(first):
        pass
