"""The state of this process's pods: one thread keeps one watch open, and each sandbox waits on a view of its pod."""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from ..gates import add_jitter
from .api import Api, ApiError, Object, Watching, pods_path

log = logging.getLogger(__name__)

LONGEST_PAUSE = 5.0


def resource_version(item: Object) -> int:
    """The version of the cluster's state that a pod or a list shows. Those of pods can be compared: see KEP-5504."""
    return int(item["metadata"]["resourceVersion"])


class PodView:
    """The latest known state of one pod. Waiting for a change does not call the API."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pod: Object = {"metadata": {"name": name}}
        self.gone = False
        self._known = False
        self._absent_at = 0  # the version of the latest list that lacked the pod
        self._changed = threading.Condition()
        self._version = 0
        self._problem: ApiError | None = None

    def set_created(self, pod: Object) -> None:
        """Record the pod as created, unless the watch has already reported it."""
        with self._changed:
            if not self._known:
                self.update(pod)
                self.set_absent(self._absent_at)

    def update(self, pod: Object) -> None:
        """Record the pod's current state."""
        with self._changed:
            self._known = True
            self.pod = pod
            self.wake()

    def set_absent(self, version: int) -> None:
        """Record that the list of this resource version lacks the pod: it is gone, unless its own version is newer."""
        with self._changed:
            self._absent_at = version
            if self._known and resource_version(self.pod) <= version:
                self.remove()

    def remove(self) -> None:
        """Record that the pod no longer exists."""
        with self._changed:
            self.gone = True
            self.wake()

    def fail(self, problem: ApiError | None) -> None:
        """Make waiting threads raise `problem`, because the API refuses to report; None reverts that."""
        with self._changed:
            self._problem = problem
            self.wake()

    def wake(self) -> None:
        """Make waiting threads check their condition again."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool], until: float) -> bool:
        """Wait until `done()`, which is called at every change; False if `until` (of `time.monotonic`) comes first.

        Raises:
            ApiError: The API refuses to report pods.
        """
        while True:
            with self._changed:
                seen = self._version
            if done():
                return True
            with self._changed:
                if self._problem is not None:
                    raise self._problem
                while self._version == seen:
                    if not self._changed.wait(max(0.0, until - time.monotonic())):
                        return False


class PodWatch:
    """Updates the views. One thread calls `turn` repeatedly; any thread may use the rest."""

    def __init__(self, api: Api, namespace: str, labels: Mapping[str, str]) -> None:
        self._api = api
        self._namespace = namespace
        self._path = pods_path(namespace)
        self._selector = ",".join(f"{name}={value}" for name, value in labels.items())
        self._lock = threading.Lock()
        self._views: dict[str, PodView] = {}
        self._version: str | None = None
        self._open: Watching | None = None
        self._problem: ApiError | None = None
        self._stopped = threading.Event()
        self._failures = 0

    def view(self, name: str) -> PodView:
        """Add a view of a pod, before the pod is created."""
        view = PodView(name)
        view.fail(self._problem)
        with self._lock:
            self._views[name] = view
        return view

    def forget(self, name: str) -> None:
        """Remove the view of a pod."""
        with self._lock:
            self._views.pop(name, None)

    def stop(self) -> None:
        """End the running `turn`, and later ones at once."""
        self._stopped.set()
        with self._lock:
            watching = self._open
        if watching is not None:
            watching.close()

    def turn(self, seconds: int) -> None:
        """Follow events for `seconds`. Return earlier at `stop`, or after a failure and a pause."""
        try:
            if self._version is None:
                self._list()
            self._follow(seconds)
            self._failures = 0
        except ApiError as error:
            if self._stopped.is_set():
                return
            self._recover(error)

    def _recover(self, error: ApiError) -> None:
        expired = error.status == 410 and not self._failures  # routine: the server forgets old versions
        level = logging.DEBUG if expired else logging.WARNING
        log.log(level, "the watch on pods of namespace %s broke; reopening it: %s", self._namespace, error)
        if error.status == 410 or self._failures:
            self._version = None  # the next list contains what was missed
        if error.status in (401, 403):
            self._tell_problem(error)
        if not expired:
            self._stopped.wait(add_jitter(min(LONGEST_PAUSE, 0.2 * 2**self._failures)))
        self._failures = min(self._failures + 1, 10)

    def _list(self) -> None:
        # The first list may be stale: the watch reports the rest. After a failure, no event may be missed.
        any_age = {"resourceVersion": "0"} if not self._failures else {}
        reply = self._api.request("GET", self._path, query={"labelSelector": self._selector, **any_age})
        self._tell_problem(None)
        pods = {pod["metadata"]["name"]: pod for pod in reply.get("items") or ()}
        with self._lock:
            views = list(self._views.values())
        for view in views:
            if view.name in pods:
                view.update(pods[view.name])
            else:
                view.set_absent(resource_version(reply))
        self._version = reply["metadata"]["resourceVersion"]

    def _follow(self, seconds: int) -> None:
        query = {"labelSelector": self._selector, "resourceVersion": self._version or ""}
        watching = self._api.watch(self._path, query=query, seconds=seconds)
        with self._lock:
            self._open = watching
        try:
            if self._stopped.is_set():
                watching.close()
            self._tell_problem(None)
            for event in watching:
                self._take(event)
        finally:
            with self._lock:
                self._open = None

    def _take(self, event: Object) -> None:
        pod = event["object"]
        if event["type"] == "ERROR":
            raise ApiError(pod.get("code") or 500, pod.get("reason") or "", pod.get("message") or "the watch ended")
        self._version = pod["metadata"]["resourceVersion"]
        with self._lock:
            view = self._views.get(pod["metadata"].get("name", ""))
        if view is None or event["type"] == "BOOKMARK":
            return
        view.update(pod)
        if event["type"] == "DELETED":
            view.remove()

    def _tell_problem(self, problem: ApiError | None) -> None:
        if problem is self._problem:
            return
        self._problem = problem
        with self._lock:
            views = list(self._views.values())
        for view in views:
            view.fail(problem)
