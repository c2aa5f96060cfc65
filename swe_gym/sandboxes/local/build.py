"""Dockerfiles built without an engine: their steps run in a local sandbox, and what they changed becomes a layer."""

import contextlib
import fnmatch
import hashlib
import io
import json
import logging
import posixpath
import re
import shlex
import stat
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from ...errors import FileError, SandboxStartError, Unsupported
from ...guests import bundle
from ...task_folder import read_steps
from ...types import ExecResult, ImageBuild, JsonObject
from ..base import Sandbox
from ..container import start_command
from ..gates import gate
from ..images import ImageName, ImageSource, ImageStore, StoredImage
from ..images.sources import Blob
from ..types import SandboxSpec
from ..user_sandbox import hand_over
from .tiers import find_pasta

log = logging.getLogger(__name__)

LAYER = "/.swe-gym-layer.tar"
LARGEST_LAYER = 1 << 30
LARGEST_LISTING = 256 << 20
SHOWN = 4000
"""Characters of a failed step's output in an error."""

NO_EFFECT = ("CMD", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME")
"""Steps without effect in a sandbox, which does not start the command of its image."""

QUOTED, LITERAL = re.compile(r"""\\\$|'[^']*'"""), "\0"
"""Pattern of text whose dollars are literal, and the character that replaces these until variables are expanded."""

REFERENCE = re.compile(r"\\?\$(?:\{(\w+)\}|(\w+))")


def check_buildable(spec: SandboxSpec, build: ImageBuild) -> None:
    """Raise `Unsupported` if a Dockerfile has a step that needs an engine; the message names it."""
    if why := _find_unbuildable(build):
        raise Unsupported(
            f"the local backend cannot build {build.context}/Dockerfile: {why}. Build it with Docker (`docker build -t "
            f"{spec.image} {build.context}`), then run `swe-gym images import {spec.image}`"
        )


def _find_unbuildable(build: ImageBuild) -> str:
    """Return the first step that needs an engine, and why; empty if there is none."""
    context = Path(build.context)
    if (context / ".dockerignore").exists():
        return ".dockerignore: remove it, and what it names"
    seen_from = 0
    for name, rest in read_steps((context / "Dockerfile").read_text(encoding="utf-8")):
        seen_from += name == "FROM"
        options = [word for word in rest.split() if word.startswith("--")] if name in ("COPY", "ADD") else []
        why = {
            "ONBUILD": "it runs in another build",
            "FROM": "stages need an engine" if seen_from > 1 else "" if _words_of(rest) else "it names no image",
            "ADD": "addresses need an engine" if re.search(r"\w://|git@", rest) else "",
        }.get(name, "")
        if not seen_from and name != "ARG":
            why = "only ARG may stand before FROM"
        if unknown := [word for word in options if not word.startswith("--chown=")]:
            why = f"{unknown[0]} needs an engine"
        if re.search(r"\$\{\w+[^\w}]", rest) and name != "RUN":
            why = "only $NAME and ${NAME} are known"
        if why:
            return f"{name} {rest}"[:200] + f": {why}"
    return "" if seen_from else "FROM: missing"


def _words_of(rest: str) -> list[str]:
    """Return the words of a step without options such as `--platform`."""
    return [word for word in rest.split() if not word.startswith("--")]


def build_image(spec: SandboxSpec, store: ImageStore, deadline: float, cancelled: threading.Event) -> StoredImage:
    """Return the image of a Dockerfile, built unless the store has it, one at a time on this machine.

    Args:
        spec: Description of a sandbox with image and build. The image's name stands for the content of the folder.
        store: Store that gets the image.
        deadline: Time of `time.monotonic` by which it must be built.
        cancelled: Event that ends the waiting for another build.

    Raises:
        Unsupported: A step needs an engine.
        SandboxStartError: A step failed (`reason="image"`), or the time is over (`"timeout"`).
    """
    assert spec.build is not None
    assert spec.image is not None
    with gate("local-build", 1, deadline, cancelled):
        if found := store.find(spec.image):
            return found
        log.info("building image %s from %s", spec.image, spec.build.context)
        with contextlib.closing(_Build(spec, store, min(deadline, time.monotonic() + spec.build.timeout))) as build:
            return build.run()


class _Built(ImageSource):
    """An image of the store with one more layer."""

    def __init__(self, base: StoredImage, layer: bytes, env: dict[str, str], user: str, workdir: str) -> None:
        self._layer = layer
        new = Blob(diff_id=f"sha256:{hashlib.sha256(layer).hexdigest()}", size=len(layer))
        self.blobs = (*(Blob(diff_id=one, size=0) for one in base.layers), new)
        config = {"Env": [f"{name}={value}" for name, value in env.items()], "User": user, "WorkingDir": workdir}
        layers = [blob.diff_id for blob in self.blobs]
        self.config = json.dumps({"config": config, "rootfs": {"type": "layers", "diff_ids": layers}}).encode()

    @contextlib.contextmanager
    def open(self, blob: Blob, folder: Path) -> Iterator[IO[bytes]]:  # noqa: ARG002  nothing is downloaded
        if blob != self.blobs[-1]:
            raise SandboxStartError("the base image was removed during the build", reason="setup", retryable=True)
        yield io.BufferedReader(io.BytesIO(self._layer))


class _Build:
    """One build: its sandbox, and what its steps have set so far."""

    def __init__(self, spec: SandboxSpec, store: ImageStore, deadline: float) -> None:
        assert spec.build is not None
        check_buildable(spec, spec.build)
        self._spec = spec
        self._store = store
        self._deadline = deadline
        self._context = Path(spec.build.context).resolve()
        self._variables: dict[str, str] = {}  # of ARG
        self._outer: dict[str, str] = {}  # of ARG before FROM
        self._env: dict[str, str] = {}
        self._user = ""
        self._workdir = "/"
        self._shell = ["/bin/sh", "-c"]
        self._sandbox: Sandbox | None = None

    def close(self) -> None:
        if self._sandbox:
            self._sandbox.close()

    def run(self) -> StoredImage:
        steps = iter(read_steps((self._context / "Dockerfile").read_text(encoding="utf-8")))
        for name, rest in steps:
            if name == "FROM":
                break
            self._take(name, rest)
        base = self._store.pull(self._expand(_words_of(rest)[0]), deadline=self._deadline)
        self._outer, self._variables = self._variables, {}
        self._env, self._user, self._workdir = dict(base.env), base.user, base.workdir or "/"
        self._sandbox = self._open(base)
        before = self._list()
        for name, rest in steps:
            self._take(name, rest)
        source = _Built(base, self._pack(before), self._env, self._user, self._workdir)
        image = self._store.add(ImageName.parse(str(self._spec.image)), source, deadline=self._deadline)
        log.info("built image %s", image.name)
        return image

    def _open(self, base: StoredImage) -> Sandbox:
        from .image import ImageSandbox  # which needs this module

        spec = SandboxSpec(
            image=base.name,
            workdir="/",
            user="root",
            activate=False,
            network="egress",
            disk_mb=self._spec.disk_mb,
            memory_mb=self._spec.memory_mb,
            options=self._spec.options,
            start_timeout=self._left(),
            ttl=self._left(),
        )
        try:
            find_pasta(spec)
        except Unsupported as error:
            log.warning("steps run without a network: %s", error)
            spec = spec.model_copy(update={"network": "none"})
        return ImageSandbox(spec).start()

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            text = f"{self._context}/Dockerfile was not built in time"
            raise SandboxStartError(text, reason="timeout", retryable=True)
        return left

    # --- steps --------------------------------------------------------------------------------------------

    def _take(self, name: str, rest: str) -> None:
        if name in NO_EFFECT:
            return
        step = getattr(self, f"_take_{name.lower()}", None)
        if step is None:
            raise self._failure(f"{name} {rest}", "unknown step")
        try:
            if not rest:
                raise ValueError("its arguments are missing")
            step(rest)
        except (ValueError, FileError) as error:
            raise self._failure(f"{name} {rest}", str(error)) from error

    def _failure(self, step: str, why: str) -> SandboxStartError:
        text = f"{self._context}/Dockerfile was not built: {step[:200]}: {why[-SHOWN:].strip()}"
        return SandboxStartError(text, reason="image")

    def _take_arg(self, rest: str) -> None:
        for word in _split(rest):
            name, given, value = word.partition("=")
            if given:
                self._variables[name] = self._expand(value)
            elif name in self._outer:
                self._variables.setdefault(name, self._outer[name])

    def _take_env(self, rest: str) -> None:
        words = _split(rest)
        pairs = [word.partition("=")[::2] for word in words] if "=" in words[0] else [rest.split(maxsplit=1)]
        self._env |= {name: self._expand(value) for name, value in pairs}

    def _take_shell(self, rest: str) -> None:
        self._shell = read_list(rest)
        if not self._shell:
            raise ValueError("it must be a list in JSON")

    def _take_user(self, rest: str) -> None:
        self._user = self._expand(rest)

    def _take_workdir(self, rest: str) -> None:
        self._workdir = posixpath.normpath(posixpath.join(self._workdir, self._expand(rest.strip("\"'"))))
        self._must(["mkdir", "-p", self._workdir])

    def _take_run(self, rest: str) -> None:
        argv, env = read_list(rest) or [*self._shell, rest], {**self._variables, **self._env}
        if self._user not in ("", "root", "0"):
            assert self._sandbox is not None
            argv = start_command(bundle("as_user"), arguments=[self._user, *argv])
            env = hand_over(self._sandbox, self._sandbox.environment(env))
        self._must(argv, env=env, cwd=self._workdir)

    def _take_copy(self, rest: str) -> None:
        self._copy(rest, unpack=False)

    def _take_add(self, rest: str) -> None:
        self._copy(rest, unpack=True)

    def _copy(self, rest: str, *, unpack: bool) -> None:
        *options, rest = re.split(r"\s+(?=[^-\s])", rest, maxsplit=1) if rest.startswith("--") else [rest]
        words = read_list(rest) or shlex.split(rest)
        *patterns, target = [self._expand(word) for word in words]
        if not patterns:
            raise ValueError("it needs a source and a target")
        sources = [path for pattern in patterns for path in self._match(pattern)]
        place = posixpath.join(self._workdir, target)
        folder = target.endswith("/") or len(sources) > 1 or target in (".", "..") or self._is_folder(place)
        for source in sources:
            self._put(source, place, folder=folder, unpack=unpack)
        for option in options:
            owner = self._expand(option.removeprefix("--chown="))
            if ":" not in owner:
                owner += f":{owner}" if owner.isdigit() else ":"  # the group of this number, or of the user
            self._must(["chown", "-R", owner, *self._targets(sources, place, folder=folder)])

    def _match(self, pattern: str) -> list[Path]:
        """Return the files of the context that a pattern names."""
        relative = posixpath.normpath(pattern.lstrip("/"))
        found = [self._context / relative] if (self._context / relative).exists() else []
        if not found and re.search(r"[*?\[]", relative):
            names = (path.relative_to(self._context).as_posix() for path in sorted(self._context.rglob("*")))
            matching = (name for name in names if name.count("/") == relative.count("/"))
            found = [self._context / name for name in matching if fnmatch.fnmatchcase(name, relative)]
        for path in found:
            if not path.resolve().is_relative_to(self._context):
                raise ValueError(f"{path} leads out of the folder")
        if not found:
            raise ValueError(f"file not found: {self._context / relative}")
        return found

    def _put(self, source: Path, place: str, *, folder: bool, unpack: bool) -> None:
        assert self._sandbox is not None
        if source.is_dir():
            self._sandbox.put_tar(place, pack_sources(source.iterdir()), timeout=self._left())
        elif unpack and tarfile.is_tarfile(source):
            self._sandbox.put_tar(place, decompress_tar(source), timeout=self._left())
        else:
            path = posixpath.join(place, source.name) if folder else place
            self._sandbox.write_file(path, source.read_bytes(), mode=source.stat().st_mode & 0o777)

    @staticmethod
    def _targets(sources: Sequence[Path], place: str, *, folder: bool) -> Iterator[str]:
        for source in sources:
            if source.is_dir():
                yield from (posixpath.join(place, entry.name) for entry in source.iterdir())
            else:
                yield posixpath.join(place, source.name) if folder else place

    def _is_folder(self, place: str) -> bool:
        assert self._sandbox is not None
        return self._sandbox.exec(["test", "-d", place], timeout=self._left()).ok

    def _expand(self, text: str) -> str:
        known = {**self._variables, **self._env}

        def value(match: re.Match[str]) -> str:
            return match[0][1:] if match[0].startswith("\\") else known.get(match[1] or match[2], "")

        return REFERENCE.sub(value, text).replace(LITERAL, "$")

    # --- the sandbox ----------------------------------------------------------------------------------------

    def _must(self, argv: list[str], **options: Any) -> ExecResult:
        assert self._sandbox is not None
        result = self._sandbox.exec(argv, timeout=self._left(), merge=True, **options)
        if not result.ok:
            raise ValueError(f"{result.describe()}: {result.text}")
        return result

    def _list(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = json.loads(self._ask({}))
        return found

    def _ask(self, order: JsonObject) -> bytes:
        assert self._sandbox is not None
        result = self._sandbox.exec(
            start_command(bundle("layer")),
            stdin=json.dumps(order).encode(),
            timeout=self._left(),
            max_output=LARGEST_LISTING,
        )
        if not result.ok:
            text = f"{self._context}/Dockerfile was not built: its files cannot be packed"
            raise SandboxStartError(text, reason="setup", detail=result.error_text[-SHOWN:])
        return result.stdout

    def _pack(self, before: dict[str, list[int]]) -> bytes:
        """Return what the steps changed, as a layer."""
        assert self._sandbox is not None
        if not self._sandbox.end_processes():
            raise SandboxStartError(
                f"{self._context}/Dockerfile was not built: its steps left processes that cannot be ended",
                reason="setup",
            )
        after = self._list()
        changed = [path for path, state in after.items() if before.get(path) != state]
        kept = {"/", *(path for path, (_, mode, _) in after.items() if stat.S_ISDIR(mode))}
        deleted = [path for path in before if path not in after and posixpath.dirname(path) in kept]
        self._ask({"target": LAYER, "changed": changed, "deleted": deleted})
        return self._sandbox.read_file(LAYER, max_bytes=LARGEST_LAYER, timeout=self._left())


def _split(rest: str) -> list[str]:
    """Return the words of ENV or ARG without quotes. Dollars that stand for themselves are `LITERAL`."""
    return shlex.split(QUOTED.sub(lambda match: match[0].lstrip("\\").replace("$", LITERAL), rest))


def read_list(text: str) -> list[str]:
    """Return the words of a step in JSON; none if it is in the shell's form, as `[[` may begin too."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(map(str, found)) if isinstance(found, list) else []


def decompress_tar(path: Path) -> bytes:
    """Return an archive without its compression, which a sandbox's Python may not know."""
    with tarfile.open(path) as archive:
        assert archive.fileobj is not None
        archive.fileobj.seek(0)
        data = archive.fileobj.read(LARGEST_LAYER + 1)
    if len(data) > LARGEST_LAYER:
        raise ValueError(f"{path}: more than {LARGEST_LAYER >> 20} MiB")
    return data


def pack_sources(paths: Iterator[Path]) -> bytes:
    """Return files and folders as a tar archive whose files belong to root."""

    def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(paths):
            archive.add(path, path.name, filter=as_root)
    return buffer.getvalue()
