"""Local sandboxes from container images: the file system of the image, and the isolation of tier "namespace"."""

import contextlib
import io
import os
import stat
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ...cache import build_once, cache_folder, digest
from ...errors import SandboxStartError, Unsupported
from ...types import Capabilities, Frozen
from ..base import SandboxSpec, demand_isolation, parse_options
from ..channel import ByteStream
from ..container import ContainerSandbox
from ..images import ImageStore, StoredImage
from ..lent_python import archive
from . import problem
from .forkserver import Supervisor, launch
from .tiers import IMAGE, process_limits

PROBE_SECONDS = 10.0
PYTHONS = ("usr/bin/python3", "usr/local/bin/python3", "opt/miniconda3/bin/python")


class ImageOptions(Frozen):
    """Options of the local backend for tasks with an image.

    Attributes:
        activate: Python environment to put on the PATH; "auto" looks for the image's, empty keeps the image's PATH.
    """

    activate: str = "auto"


class ImageSandbox(ContainerSandbox):
    """A sandbox from an image, without a container engine."""

    name = "local"

    def __init__(self, spec: SandboxSpec) -> None:
        self.options = parse_options(ImageOptions, spec.options, self.name)
        super().__init__(spec, self.options.activate)
        if spec.cpus is not None:
            raise Unsupported("the local backend cannot limit CPUs: omit `cpus`, or use a container backend")
        if spec.user not in (None, "root", "0") and os.geteuid():
            raise Unsupported(
                f"without root, the local backend cannot run commands as user {spec.user!r}: omit `user`, or use a "
                "container backend"
            )
        demand_isolation(spec, "namespace", self.name, "Use a container backend with a stronger runtime.")
        self._image: StoredImage | None = None
        self._supervisor: Supervisor | None = None
        self._in_use = contextlib.ExitStack()

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        return IMAGE.capabilities("namespace", self.spec.network)

    @property
    def image_digest(self) -> str:
        """See `Sandbox.image_digest`."""
        return self._image.digest if self._image else ""

    def _connect(self, deadline: float) -> ByteStream:
        if why := problem("namespace"):
            raise Unsupported(
                f"the local backend cannot run the image {self.spec.image} on this machine, which allows no user "
                f"namespaces or overlays: {why}. `swe-gym doctor` shows how to allow them; or use a container backend"
            )
        assert self.spec.image is not None
        store = ImageStore()
        self._image = store.pull(self.spec.image, deadline=deadline)
        layers = self._in_use.enter_context(store.using(self._image))
        if not has_python(layers):
            layers = [lent_layer(deadline), *layers]
        try:
            stream, self._supervisor = launch(self._config(self._image, layers), deadline)
        except SandboxStartError as error:
            error.detail = f"{error.detail} (image {self._image.name})"
            raise
        return stream

    def _config(self, image: StoredImage, layers: Sequence[Path]) -> dict[str, object]:
        return launch_config(self.spec, layers, self.spec.user or image.user or "root")

    def _read_environment(self, deadline: float) -> dict[str, str]:
        assert self._image is not None
        env = dict(self._image.env)
        if not env.get("HOME"):  # the user's, as container engines set it
            env["HOME"] = super()._read_environment(deadline)["HOME"]
        return env

    def _bring_mounts(self, deadline: float) -> None:
        """Do nothing: the launcher mounts them."""

    def _disconnect(self) -> None:
        if self._supervisor:
            self._supervisor.end(patience=1.0 if self._loss is None else 0.0)  # a lost sandbox does not answer
        self._in_use.close()

    def _limits(self) -> dict[str, int]:
        return process_limits(self.spec, "namespace")


def has_python(layers: Sequence[Path]) -> bool:
    """Return whether an image has a Python in one of the usual places; `layers` are lowest first."""
    for place in PYTHONS:
        for layer in reversed(layers):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR((layer / place).lstat().st_mode):
                    break  # a whiteout: it was deleted
                return True
    return False


def lent_layer(deadline: float) -> Path:
    """Return a layer with a copy of this machine's Python, for programs that seal and grade."""

    def build(folder: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(archive())) as packed:
            packed.extractall(folder, filter="tar")

    return build_once("lent-python", digest(sys.version, sys.base_prefix), build, deadline=deadline)


def launch_config(spec: SandboxSpec, layers: Sequence[Path], user: str = "root") -> dict[str, object]:
    """Return what the launcher of local sandboxes needs; `layers` are an image's, lowest first."""
    return {
        "tier": "namespace",
        "image": True,
        "layers": list(dict.fromkeys(map(str, reversed(layers)))),  # an overlay refuses a layer that comes twice
        "user": user,
        "workdir": spec.workdir,
        "workspace": "",
        "copied": False,
        "python": "",
        "mounts": dict(spec.mounts),
        "read_only": [],
        "disk_mb": spec.disk_mb,
        "pids": spec.pids,
        "network": spec.network != "none",
    }


def image_problem() -> str:
    """Return why this machine cannot run images, or an empty text. It starts a sandbox over an empty layer."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        try:
            stream, supervisor = launch(launch_config(SandboxSpec(), [Path(folder)]), time.monotonic() + PROBE_SECONDS)
        except SandboxStartError as error:
            return (error.detail or str(error)).splitlines()[-1]
        stream.close()
        supervisor.end()
    return ""
