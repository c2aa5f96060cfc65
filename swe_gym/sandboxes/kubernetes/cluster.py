"""One process's use of one namespace: creating, awaiting, attaching to and deleting pods."""

import atexit
import contextlib
import itertools
import logging
import os
import threading
import time
import uuid
from typing import Literal

from ...cache import digest
from ...errors import SandboxClosed, SandboxStartError
from ...guard import Guard
from ..gates import NEVER, Rate, add_jitter, gate, sleep
from .api import Api, ApiError, AttachedStream, Object, open_stream, pods_path
from .manifest import CLAIM, RUN, ClusterOptions
from .pods import KEPT_SECONDS, REQUEST_SECONDS, delete_pod, list_pods, start_guard, sweep_pods
from .status import CONTAINER, READY, Waiting, judge, judge_refusal
from .watch import PodView, PodWatch

log = logging.getLogger(__name__)

WINDOW_SECONDS, SHORT_SECONDS = 30, 5
"""Seconds of one watch; a silently dead connection is noticed 5 s after it.

Housekeeping runs between two watches, so the window is short if there is something to delete or sweep."""

SWEEP_SECONDS = 600.0
UNSURE_SECONDS = 60.0
"""Seconds in which a request without a reply may still be carried out."""

EXIT_SECONDS = 10.0
DELETE_SECONDS = 5.0


class KubernetesCluster:
    """State shared by all sandboxes of a process with equal `ClusterOptions`."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        limits = options.create_limit + options.connect_limit + options.delete_limit
        self.api = Api(kubeconfig=options.kubeconfig, context=options.context, connections=limits + 4)
        self.namespace = options.namespace or self.api.namespace
        self.run = uuid.uuid4().hex
        self._gate = f"kubernetes-{digest(self.api.host)}"
        self._rate = Rate(options.create_rate)
        self._lock = threading.Lock()
        self._users = 0
        self._watch: PodWatch | None = None
        self._guard: Guard | None = None
        self._streams: set[AttachedStream] = set()
        self._doomed: dict[tuple[str, str], float] = {}
        self._next_sweep = 0.0
        self._pid = os.getpid()
        atexit.register(self._delete_all)

    # --- users ----------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Add a sandbox; the first one starts the watching thread."""
        with self._lock:
            self._users += 1
            if self._watch is None:
                self._watch = PodWatch(self.api, self.namespace, {RUN: self.run})
                self._guard = self._guard or start_guard(self.options, self.namespace, self.run)
                threading.Thread(target=self._run, args=[self._watch], name="swe-gym pods", daemon=True).start()

    def leave(self) -> None:
        """Remove a sandbox; the last one stops the thread once all doomed pods are gone."""
        with self._lock:
            self._users -= 1
            watch = self._watch
            if not self._rest():
                return
        if watch is not None:
            watch.stop()

    def _rest(self) -> bool:
        """Stop watching if there is nothing left to watch. Needs the lock. Returns whether it stopped."""
        if self._users or self._doomed:
            return False
        self._watch = None
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        return True

    def _run(self, watch: PodWatch) -> None:
        while self._is_wanted(watch):
            with self._lock:
                soon = bool(self._doomed) or not self._next_sweep
            try:
                watch.turn(SHORT_SECONDS if soon else WINDOW_SECONDS)
                self._keep_house()
            except ApiError as error:
                log.warning("housekeeping in namespace %s failed: %s", self.namespace, error)
                NEVER.wait(1.0)
            except Exception:  # without this thread, no sandbox can start any more
                log.exception("the watching thread of namespace %s failed; retrying", self.namespace)
                NEVER.wait(1.0)

    def _is_wanted(self, watch: PodWatch) -> bool:
        with self._lock:
            return self._watch is watch and not self._rest()

    def _keep_house(self) -> None:
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.keep_alive()
        self._delete_all_doomed()
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + SWEEP_SECONDS
            sweep_pods(self.api, self.namespace, older_than=KEPT_SECONDS)

    # --- creation ---------------------------------------------------------------------------------------------

    def view(self, name: str) -> PodView:
        """Add a view of a pod, before it is created."""
        assert self._watch is not None, "enter() first"
        return self._watch.view(name)

    def create(self, pod: Object, deadline: float, cancelled: threading.Event) -> Object:
        """Create a pod and return it. A retry after a lost reply does not create a second one.

        Raises:
            SandboxStartError: The API refused, or did not create it in time.
            SandboxClosed: `cancelled` was set.
        """
        name, started = pod["metadata"]["name"], time.monotonic()
        unsure = False  # whether an unanswered request created the pod, or may still create it
        try:
            for attempt in itertools.count():
                self._rate.wait(deadline, cancelled)
                try:
                    with gate(f"{self._gate}-create", self.options.create_limit, deadline, cancelled):
                        before, unsure = unsure, True
                        return self._post(pod, min(REQUEST_SECONDS, deadline - time.monotonic()))
                except ApiError as error:
                    unsure = before or error.status == 0 or error.status >= 500
                    judged = judge_refusal(error)
                    if isinstance(judged, SandboxStartError):
                        raise judged from error
                    patient = self.api.answered and not judged.for_capacity
                    until = deadline if patient else min(deadline, started + self.options.capacity_timeout)
                    pause = self._pause(attempt, error)
                    if time.monotonic() + pause > until:
                        raise self._give_up(name, attempt + 1, judged, error) from error
                    log.warning("pod %s was not created; retrying in %.1f s: %s (%s)", name, pause, judged.why, error)
                sleep(pause, cancelled)
        except BaseException:
            if unsure:
                self._doom(pod)
            raise
        raise AssertionError("unreachable")  # pragma: no cover

    def _give_up(self, name: str, attempts: int, judged: Waiting, error: ApiError) -> SandboxStartError:
        text = f"pod {name} could not be created in {attempts} attempts: {judged.why}"
        if not self.api.answered:
            text = f"no Kubernetes API answers at {self.api.host}. Check that it is up and that the context is right"
        return SandboxStartError(text, reason=judged.reason, retryable=True, detail=str(error))

    def _post(self, pod: Object, timeout: float) -> Object:
        """Create the pod, or find that an earlier request did."""
        try:
            return self.api.request("POST", pods_path(self.namespace), body=pod, timeout=timeout)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        try:
            found = self.api.request("GET", pods_path(self.namespace, name), timeout=timeout)
        except ApiError as error:
            if error.status == 404:
                raise ApiError(409, "Conflict", f"pod {name} was deleted during its creation") from error
            raise
        if found["metadata"].get("labels", {}).get(CLAIM) != labels[CLAIM]:
            raise SandboxStartError(
                f"a pod with the name {name} exists and is not ours", reason="unknown", retryable=True
            )
        return found

    def _pause(self, attempt: int, error: ApiError) -> float:
        """Return seconds until the next attempt: the server's Retry-After, else exponential with jitter."""
        if error.retry_after is not None:
            return add_jitter(error.retry_after, 1.0, 1.2)
        if error.status == 0 and attempt == 0:
            return add_jitter(0.5, 0.0)  # most likely only the reply was lost
        first, most = self.options.backoff
        return add_jitter(min(most, first * 2.0**attempt), 0.7)

    # --- readiness --------------------------------------------------------------------------------------------

    def wait_ready(self, view: PodView, deadline: float, cancelled: threading.Event) -> None:
        """Wait until the pod's container runs.

        Raises:
            SandboxStartError: It never will, or not in time.
            SandboxClosed: `cancelled` was set.
        """
        waits_since: float | None = None
        while True:
            seen = view.pod
            judged = _judge(view, cancelled)
            if judged == READY:
                return
            until = deadline
            if judged.for_capacity:
                waits_since = waits_since or time.monotonic()
                until = min(deadline, waits_since + self.options.capacity_timeout)
            else:
                waits_since = None
            slow = judged.reason != "timeout"  # an image, a queue or room on a node
            log.log(logging.INFO if slow else logging.DEBUG, "pod %s waits: %s", view.name, judged.why)
            if not self._wait_changed(view, seen, until, cancelled):
                text = f"pod {view.name} did not start in time: {judged.why}"
                raise SandboxStartError(text, reason=judged.reason, retryable=True, detail=self._events(view))

    def _wait_changed(self, view: PodView, seen: Object, until: float, cancelled: threading.Event) -> bool:
        try:
            return view.wait(lambda: view.pod is not seen or view.gone or cancelled.is_set(), until)
        except ApiError as error:
            text = "the cluster refuses to report pods: the verbs get, list and watch on pods are needed"
            raise SandboxStartError(text, reason="setup", detail=str(error)) from error

    def _events(self, view: PodView) -> str:
        """Return warnings of the cluster about a pod that does not start, if they may be read."""
        query = {"fieldSelector": f"involvedObject.name={view.name},type=Warning", "limit": "5"}
        try:
            reply = self.api.request("GET", f"/api/v1/namespaces/{self.namespace}/events", query=query, timeout=5.0)
        except ApiError as error:
            log.debug("the events of pod %s cannot be read: %s", view.name, error)
            return ""
        return "\n".join(f"{event.get('reason')}: {event.get('message')}" for event in reply.get("items") or ())

    # --- attaching --------------------------------------------------------------------------------------------

    def attach(self, view: PodView, deadline: float, cancelled: threading.Event) -> AttachedStream:
        """Attach to the standard streams of a pod's first process.

        Raises:
            SandboxStartError: Attaching is not allowed, or failed until the deadline.
            SandboxClosed: `cancelled` was set.
        """
        query = {"container": CONTAINER, "stdin": "true", "stdout": "true", "stderr": "true"}
        path = pods_path(self.namespace, view.name, "attach")
        for attempt in itertools.count():
            try:
                with gate(f"{self._gate}-connect", self.options.connect_limit, deadline, cancelled):
                    timeout = min(REQUEST_SECONDS, deadline - time.monotonic())
                    stream = AttachedStream(open_stream(self.api.connect(path, query=query, timeout=timeout)))
                break
            except ApiError as error:
                _judge(view, cancelled)  # tells more if the pod has ended meanwhile
                pause = add_jitter(min(5.0, 0.2 * 2**attempt), 0.7)
                if not error.transient or time.monotonic() + pause > deadline:
                    text = f"cannot attach to pod {view.name}" + (
                        ": the verbs get and create on pods/attach are needed" if error.status == 403 else ""
                    )
                    raise SandboxStartError(
                        text, reason="setup", retryable=error.transient, detail=str(error)
                    ) from error
                log.warning("attaching to pod %s failed; retrying in %.1f s: %s", view.name, pause, error)
            sleep(pause, cancelled)
        with self._lock:
            self._streams.add(stream)
        log.debug("attached to pod %s", view.name)
        return stream

    # --- deletion ---------------------------------------------------------------------------------------------

    def delete(self, view: PodView, stream: AttachedStream | None, deadline: float) -> None:
        """Delete a pod, if it was created, and wait until it is gone.

        If it is not gone by the deadline, the watching thread deletes it later.
        """
        with self._lock:
            if stream is not None:
                self._streams.discard(stream)
            watch = self._watch
        if "uid" in view.pod["metadata"] and not view.gone and not self._delete(view, deadline):
            log.warning("pod %s is not deleted yet; the watching thread deletes it later", view.name)
            self._doom(view.pod)
        if watch is not None:
            watch.forget(view.name)

    def _delete(self, view: PodView, deadline: float) -> bool:
        """Delete a pod and return whether it is gone by the deadline."""
        uid = view.pod["metadata"]["uid"]
        pause = 0.2
        while time.monotonic() + pause < deadline:
            try:
                with gate(f"{self._gate}-delete", self.options.delete_limit, deadline):
                    timeout = max(0.5, min(DELETE_SECONDS, deadline - time.monotonic()))
                    if delete_pod(self.api, self.namespace, view.name, uid=uid, timeout=timeout):
                        return True
                # If the watch does not report the deletion, a second request does.
                if view.wait(lambda: view.gone, min(deadline, time.monotonic() + 1.0)):
                    return True
            except SandboxStartError:  # the gate stayed closed
                return False
            except ApiError as error:
                log.debug("deleting pod %s failed: %s", view.name, error)
                if not error.transient:
                    return False
                time.sleep(pause)
                pause *= 2
        return False

    def _doom(self, pod: Object) -> None:
        """Have the watching thread delete a pod that exists or may still be created."""
        metadata = pod["metadata"]
        with self._lock:
            self._doomed.setdefault((metadata["name"], metadata["labels"][CLAIM]), time.monotonic())

    def _delete_all_doomed(self) -> None:
        with self._lock:
            doomed = list(self._doomed.items())
        for (name, claim), since in doomed:
            if self._delete_doomed(name, claim, since):
                with self._lock:
                    self._doomed.pop((name, claim), None)

    def _delete_doomed(self, name: str, claim: str, since: float) -> bool:
        """Delete a doomed pod if it exists; return whether it needs no further attempt."""
        try:
            metadata = self.api.request("GET", pods_path(self.namespace, name), timeout=REQUEST_SECONDS)["metadata"]
            if metadata.get("labels", {}).get(CLAIM) == claim:
                delete_pod(self.api, self.namespace, name, uid=metadata["uid"], timeout=REQUEST_SECONDS)
                return False
        except ApiError as error:
            if error.status != 404:
                log.warning("deleting pod %s failed: %s", name, error)
                return not error.transient
        return time.monotonic() > since + UNSURE_SECONDS

    def _delete_all(self) -> None:
        """Delete all pods of this run at the end of the process."""
        with self._lock:
            left = self._users or self._doomed
        if not left or os.getpid() != self._pid:  # a fork must not delete its parent's sandboxes
            return
        deadline = time.monotonic() + EXIT_SECONDS
        with contextlib.suppress(ApiError):  # the guard deletes what is left
            for pod in list_pods(self.api, self.namespace, {RUN: self.run}):
                if time.monotonic() < deadline:
                    metadata = pod["metadata"]
                    delete_pod(self.api, self.namespace, metadata["name"], uid=metadata["uid"], timeout=2.0)


def _judge(view: PodView, cancelled: threading.Event) -> Literal["ready"] | Waiting:
    """Return the state of a starting pod; raise if it failed or the start was cancelled."""
    if cancelled.is_set():
        raise SandboxClosed("closed while it started")
    if view.gone:
        raise SandboxStartError(f"pod {view.name} was deleted while it started", retryable=True)
    judged = judge(view.pod)
    if isinstance(judged, SandboxStartError):
        raise judged
    return judged


_LOCK = threading.Lock()
_CLUSTERS: dict[tuple[object, ...], KubernetesCluster] = {}
"""Clusters in use, by this process's id: a fork must not share connections with its parent."""


def shared_cluster(options: ClusterOptions) -> KubernetesCluster:
    """Return this process's `KubernetesCluster` for the options, with `enter` called."""
    key = (os.getpid(), *(getattr(options, name) for name in ClusterOptions.model_fields))
    with _LOCK:
        cluster = _CLUSTERS.get(key)
        if cluster is None:
            cluster = _CLUSTERS[key] = KubernetesCluster(options)
        cluster.enter()
        return cluster
