"""Local sandboxes from container images: the file system of the image, and the isolation of tier "namespace"."""

import contextlib
import functools
import io
import os
import shutil
import stat
import sys
import tarfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from ...cache import build_once, cache_folder, digest
from ...errors import SandboxStartError, Unsupported
from ...types import Capabilities, Frozen
from ..channel import ByteStream
from ..container import ContainerSandbox
from ..contents.pythons import pack_portable_python
from ..images import ImageStore, StoredImage, copies_folder, id_ranges
from ..types import SandboxSpec, demand_isolation, parse_options
from .build import build_image, check_buildable
from .forkserver import Supervisor, launch, layers_of
from .tiers import IMAGE, OVERLAY_GAPS, check_cpus, find_pasta, group_config, process_limits, watched_memory

PROBE_SECONDS = 10.0
OVERLAYS = {"kernel": "an overlay", "fuse": "fuse-overlayfs", "copy": "a copy"}
"""What can show the layers of an image as one file system, best first -> its name in errors."""

PYTHONS = ("usr/bin/python3", "usr/local/bin/python3", "opt/miniconda3/bin/python")


class ImageOptions(Frozen):
    """Options of the local backend for tasks with an image.

    Attributes:
        overlay: What shows the image's layers as one file system: the kernel, fuse-overlayfs, or a copy of them for
            each sandbox; "auto" is the first of these that works on this machine.
        activate: Python environment to put on the PATH; "auto" looks for the image's, empty keeps the image's PATH.
    """

    overlay: Literal["auto", "kernel", "fuse", "copy"] = "auto"
    activate: str = "auto"


class ImageSandbox(ContainerSandbox):
    """A sandbox from an image, without a container engine."""

    name = "local"
    _new_layers: ClassVar[bool] = True

    _builds = True

    def __init__(self, spec: SandboxSpec) -> None:
        self.options = parse_options(ImageOptions, spec.options, self.name)
        super().__init__(spec, self.options.activate)
        check_cpus(spec)
        if spec.user not in (None, "root", "0") and os.geteuid() and not id_ranges():
            raise Unsupported(
                f"the local backend cannot run commands as user {spec.user!r}: omit `user`, or ask your administrator "
                "for newuidmap (Debian: uidmap) and 65,536 users for you in /etc/subuid and /etc/subgid"
            )
        demand_isolation(spec, "namespace", self.name, "Use a container backend with a stronger runtime.")
        find_pasta(spec)
        if spec.build and ImageStore().find(str(spec.image)) is None:
            check_buildable(spec, spec.build)
        self._overlay = "kernel"
        self._image: StoredImage | None = None
        self._supervisor: Supervisor | None = None
        self._in_use = contextlib.ExitStack()

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        found = IMAGE.capabilities("namespace", self.spec.access)
        return found.model_copy(update={"notes": (*found.notes, *OVERLAY_GAPS[self._overlay])})

    @property
    def image_digest(self) -> str:
        """See `Sandbox.image_digest`."""
        return self._image.digest if self._image else ""

    def _connect(self, deadline: float) -> ByteStream:
        self._overlay, why = choose_overlay(self.options.overlay)
        if not self._overlay:
            raise Unsupported(
                f"the local backend cannot run the image {self.spec.image} on this machine: {why}. `swe-gym doctor` "
                "shows how to allow it; or use a container backend"
            )
        if self._overlay == "copy" != self.options.overlay:
            text = (
                f"Each sandbox copies the files of its image, which takes seconds: {why}. `swe-gym doctor` has a fix."
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        assert self.spec.image is not None
        store = ImageStore()
        self._image = self._bring_image(store, deadline)
        layers = self._in_use.enter_context(store.using(self._image))
        if not has_python(layers):
            layers = [python_layer(deadline), *layers]
        config = self._config(self._image, layers)
        self._layers = layers_of(config)
        try:
            stream, self._supervisor = launch(config, deadline)
        except SandboxStartError as error:
            error.detail = f"{error.detail} (image {self._image.name})"
            raise
        return stream

    def _bring_image(self, store: ImageStore, deadline: float) -> StoredImage:
        image = str(self.spec.image)
        if self.spec.build and store.find(image) is None:
            return build_image(self.spec, store, deadline, self._cancelled)
        return store.pull(image, deadline=deadline)

    def _config(self, image: StoredImage, layers: Sequence[Path]) -> dict[str, object]:
        return launch_config(self.spec, layers, self.spec.user or image.user or "root", self._overlay)

    def _read_environment(self) -> dict[str, str]:
        assert self._image is not None
        env = dict(self._image.env)
        if not env.get("HOME"):  # the user's, as container engines set it
            env["HOME"] = super()._read_environment()["HOME"]
        return env

    def _bring_mounts(self, deadline: float) -> None:
        """Do nothing: the launcher mounts them."""

    def _disconnect(self) -> None:
        if self._supervisor:
            self._supervisor.end(patience=1.0 if self._loss is None else 0.0)  # a lost sandbox does not answer
        if self.closed:
            self._cancelled.set()
        self._in_use.close()

    def _limits(self) -> dict[str, int]:
        return process_limits(self.spec, "namespace")

    def _watched_memory(self) -> int:
        return watched_memory(self.spec, "namespace")


def has_python(layers: Sequence[Path]) -> bool:
    """Return whether an image has a Python in one of the usual places; `layers` are lowest first."""
    for place in PYTHONS:
        for layer in reversed(layers):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR((layer / place).lstat().st_mode):
                    break  # a whiteout: it was deleted
                return True
    return False


def python_layer(deadline: float) -> Path:
    """Return a layer with a copy of this machine's Python, for programs that seal and grade."""

    def build(folder: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(pack_portable_python())) as packed:
            packed.extractall(folder, filter="tar")

    return build_once("portable-python", digest(sys.version, sys.base_prefix), build, deadline=deadline)


def launch_config(
    spec: SandboxSpec, layers: Sequence[Path], user: str = "root", overlay: str = "kernel"
) -> dict[str, object]:
    """Return what the launcher of local sandboxes needs; `layers` are an image's, lowest first."""
    copies = copies_folder()
    if overlay == "copy":
        copies.mkdir(parents=True, exist_ok=True)
    return {
        "tier": "namespace",
        "image": True,
        "ranges": id_ranges(),
        "overlay": overlay,
        "fuse": shutil.which("fuse-overlayfs") if overlay == "fuse" else "",
        "copies": str(copies),
        "layers": list(dict.fromkeys(map(str, reversed(layers)))),  # an overlay refuses a layer that comes twice
        "user": user,
        "workdir": spec.workdir,
        "workspace": "",
        "copied": False,
        "python": "",
        "mounts": dict(spec.mounts),
        "read_only": [],
        "disk_mb": spec.disk_mb,
        **group_config(spec),
        "pids": spec.pids,
        "pasta": find_pasta(spec),
    }


def choose_overlay(wanted: str = "auto") -> tuple[str, str]:
    """Return what can show an image's layers as one file system, and why nothing better can.

    Returns:
        "kernel", "fuse", "copy", or an empty text if nothing works on this machine or what is `wanted` does not; and
        the reasons, or an empty text.

    Raises:
        SandboxStartError: The start failed in a way that may work next time.
    """
    reasons: list[str] = []
    for kind in OVERLAYS if wanted == "auto" else (wanted,):
        why = overlay_problem(kind, cache_folder())
        if not why:
            return kind, "; ".join(reasons)
        reasons.append(f"{OVERLAYS[kind]}: {why}")
    return "", "; ".join(reasons)


@functools.cache
def overlay_problem(kind: str, folder: Path) -> str:
    """Return why an overlay over layers in a folder does not work, or an empty text. It starts a sandbox."""
    if kind == "fuse" and not shutil.which("fuse-overlayfs"):
        return "not installed (Debian: apt-get install fuse-overlayfs)"
    layer = folder / "image-probe"  # empty
    layer.mkdir(parents=True, exist_ok=True)
    try:
        stream, supervisor = launch(
            launch_config(SandboxSpec(), [layer], overlay=kind), time.monotonic() + PROBE_SECONDS
        )
    except SandboxStartError as error:
        if error.retryable:
            raise
        return (error.detail or str(error)).splitlines()[-1]
    stream.close()
    supervisor.end()
    return ""
