"""Sandboxes in pods of Kubernetes. The runner is the first process, reached through one attached websocket.

A command does not call the API. Standard input is opened with `stdinOnce`, so the node closes it when this process
ends, even by SIGKILL; the runner then exits, and with it the container. The owner or the next sweep deletes the pod.
"""

import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from ...errors import SandboxClosed, SandboxError, SandboxLost, SandboxStartError
from ...types import Capabilities, JsonMapping
from ..channel import LONGEST_WAIT, ByteStream
from ..container import ContainerSandbox, boot_input
from ..runner_sandbox import runner_source
from ..types import Finding, SandboxSpec, demand_isolation, parse_options
from . import manifest, status
from .api import Api, ApiError, AttachedStream
from .cluster import KubernetesCluster, shared_cluster
from .manifest import KubernetesOptions
from .pods import KEPT_SECONDS, diagnose, sweep_pods
from .watch import PodView

__all__ = ["KubernetesOptions", "KubernetesSandbox"]

VM_CLASSES = ("kata", "gvisor", "runsc")
"""Substrings of the names of runtime classes that run each pod on a kernel of its own."""

CLOSE_SECONDS = 9.0
EXPLAIN_SECONDS = 3.0
"""Seconds to wait for the cluster to report why a sandbox ended; nodes report about once a second."""


class KubernetesSandbox(ContainerSandbox):
    """A sandbox in a pod."""

    name = "kubernetes"
    _new_layers: ClassVar[bool] = True

    def __init__(self, spec: SandboxSpec) -> None:
        self.options = parse_options(KubernetesOptions, spec.options, self.name)
        super().__init__(spec, self.options.activate, self.options.running)
        self.waiting = self.options.waiting
        manifest.check(spec, self.options)
        advice = "Set the backend option `runtime_class` to one of gVisor or Kata."
        demand_isolation(spec, self._isolation(), self.name, advice)
        self._cluster: KubernetesCluster | None = None
        self._view: PodView | None = None
        self._stream: AttachedStream | None = None
        self._settled = threading.Event()  # no thread is connecting
        self._settled.set()
        self._connecting = 0

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        notes = [
            "The node limits the number of processes (podPidsLimit), not `pids`.",
            "Disk is limited per file. A pod that uses more in total is evicted, up to two minutes later.",
            *self._runner_notes(),
        ]
        if self._isolation() == "container":
            notes.append("The pod shares the node's kernel: a kernel exploit escapes.")
        stays_open = self.spec.closed and not self._closes_network()
        return Capabilities(
            backend=self.name,
            isolation=self._isolation(),
            network="open" if stays_open else self.spec.access,
            notes=tuple(notes),
        )

    def _closes_network(self) -> bool:
        return self.options.network != "open"

    def _isolation(self) -> str:
        runtime_class = (self.options.runtime_class or "").lower()
        return "vm" if any(name in runtime_class for name in VM_CLASSES) else "container"

    # --- the backend ----------------------------------------------------------------------------------------

    @classmethod
    def check(cls, specs: Sequence[SandboxSpec]) -> list[Finding]:
        """See `Sandbox.check`: the cluster answers, and allows what sandboxes need."""
        findings = cls.diagnose(specs[0].options)
        return [found for found in findings if not found.works] or findings[:1]

    @classmethod
    def diagnose(cls, options: JsonMapping) -> list[Finding]:
        """See `Sandbox.diagnose`."""
        return diagnose(parse_options(KubernetesOptions, options, cls.name))

    @classmethod
    def sweep(cls, options: JsonMapping) -> list[str]:
        """Delete pods of the namespace that have ended, never started, or outlived their lease."""
        return sweep(parse_options(KubernetesOptions, options, cls.name))

    # --- life -----------------------------------------------------------------------------------------------

    def _connect(self, deadline: float) -> ByteStream:
        with self._lock:
            if self._cancelled.is_set():
                raise SandboxClosed("closed before it started")
            self._settled.clear()
            self._connecting = threading.get_ident()
        try:
            return self._make_pod(min(deadline, time.monotonic() + LONGEST_WAIT))
        finally:
            self._connecting = 0
            self._settled.set()

    def _make_pod(self, deadline: float) -> ByteStream:
        image = self.spec.image or self.options.default_image or self._default_image()
        shared = self._cluster = shared_cluster(self.options)
        name = manifest.pod_name(self.id)
        pod = manifest.pod(self.spec, self.options, name=name, image=image, run=shared.run, sandbox=self.id)
        view = self._view = shared.view(name)
        view.set_created(shared.create(pod, deadline, self._cancelled))
        shared.wait_ready(view, deadline, self._cancelled)
        stream = self._stream = shared.attach(view, deadline, self._cancelled)
        try:
            stream.write(boot_input(runner_source()), deadline - time.monotonic())
        except OSError as error:  # TimeoutError included
            text = f"pod {name} did not accept the runner"
            raise SandboxStartError(text, reason="setup", retryable=True, detail=self._last_words()) from error
        if self._cancelled.is_set():
            raise SandboxClosed("closed while it started")
        return stream

    def _disconnect(self) -> None:
        with self._lock:
            self._cancelled.set()
        if self._view is not None:
            self._view.wake()
        if self._connecting == threading.get_ident():
            return  # a signal handler interrupted this thread's `start`, which disconnects again
        deadline = time.monotonic() + CLOSE_SECONDS
        if not self._settled.wait(CLOSE_SECONDS):
            return  # `start` disconnects again
        with self._lock:
            shared, self._cluster = self._cluster, None
        if shared is not None:
            self._release(shared, deadline)

    def _release(self, shared: KubernetesCluster, deadline: float) -> None:
        """Delete the pod and leave the cluster."""
        try:
            if self._stream is not None:
                self._stream.close()
            if self._view is not None:
                shared.delete(self._view, self._stream, deadline)
        finally:
            shared.leave()

    # --- what the runner says -----------------------------------------------------------------------------------

    def _explain_loss(self, loss: SandboxLost) -> SandboxLost:
        """See `ContainerSandbox._explain_loss`; the pod's status tells why it ended."""
        view = self._view
        if view is None or self.closed or loss.reason not in ("killed", "unresponsive"):
            return loss  # the runner has told why
        patience = EXPLAIN_SECONDS if loss.reason == "killed" else 0.0
        try:
            view.wait(lambda: view.gone or status.loss(view.pod) is not None, time.monotonic() + patience)
        except ApiError:
            return loss
        found = status.loss(view.pod) or (("killed", "the pod was deleted") if view.gone else None)
        if found is None:
            return loss
        reason, text = found
        return SandboxLost(f"the sandbox is gone: {text}", reason=reason, detail=self._last_words())

    def _last_words(self) -> str:
        return self._stream.last_words() if self._stream else ""

    def _read_environment(self) -> dict[str, str]:
        """Return the image's environment without the cluster's variables."""
        found = super()._read_environment()
        return {name: value for name, value in found.items() if not name.startswith("KUBERNETES_")}


def sweep(options: KubernetesOptions, *, older_than: float = KEPT_SECONDS) -> list[str]:
    """Delete abandoned pods of any client of this package: ended, never started, or past their lease.

    Args:
        options: Options of the backend; they select the cluster and the namespace.
        older_than: Seconds that an ended pod is kept for its owner to inspect.

    Returns:
        The names of the deleted pods.

    Raises:
        UsageError: No cluster is configured.
        SandboxError: The cluster refuses or does not answer.
    """
    api = Api(kubeconfig=options.kubeconfig, context=options.context)
    try:
        return sweep_pods(api, options.namespace or api.namespace, older_than=older_than)
    except ApiError as error:
        text = "the cluster refused the sweep: it needs the verbs list and delete on pods"
        raise SandboxError(text, retryable=error.transient, detail=str(error)) from error
    finally:
        api.close()
