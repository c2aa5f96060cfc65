"""The options of the Kubernetes backend."""

from typing import Literal

from pydantic import Field

from ...types import Frozen, JsonObject
from ..container import KEPT_CAPABILITIES


class ClusterOptions(Frozen):
    """The cluster, and limits on its use. Sandboxes with equal values share connections.

    The limits count over all processes of this user on this machine, the rate per process.

    Attributes:
        kubeconfig: Path of a kubeconfig; None uses `kubectl`'s, else the pod that this process runs in.
        context: Context of the kubeconfig; None is the current one.
        namespace: Namespace of the pods; None is the context's.
        capacity_timeout: Seconds that a pod may wait for room on a node or in a quota. Also the timeout for an API
            server that has never answered.
        create_rate: Maximum number of pods created per second.
        create_limit: Maximum number of concurrent creations.
        connect_limit: Maximum number of connections that are opened concurrently.
        delete_limit: Maximum number of concurrent deletions.
        backoff: Seconds before a creation is retried: the first pause and the longest.
    """

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    capacity_timeout: float = Field(default=60.0, ge=0)
    create_rate: float = Field(default=20.0, gt=0)
    create_limit: int = Field(default=16, gt=0)
    connect_limit: int = Field(default=16, gt=0)
    delete_limit: int = Field(default=16, gt=0)
    backoff: tuple[float, float] = (5.0, 60.0)


class KubernetesOptions(ClusterOptions):
    """Options of the Kubernetes backend, beside those of `ClusterOptions`.

    Attributes:
        default_image: Image of tasks that have a workspace and no image; None is `python:VERSION`.
        image_pull_policy: `imagePullPolicy` of the pod.
        image_pull_secrets: Names of `imagePullSecrets`.
        python_image: Image whose Python is copied into sandboxes whose image has none; only the runner uses it.
        running: Maximum number of commands that run at the same time, over all processes of this user on this machine;
            None is unlimited. A command that waits keeps its whole timeout, and fails with a retryable error if the
            wait exceeds it.
        waiting: Maximum number of grading sandboxes that start while a policy works and wait for its end, counted in
            the same way. Grading then starts at once, but a pod that waits holds its `requests` and counts towards
            quotas.
        activate: Python environment to put first on PATH. "auto" looks for one; an empty string keeps the image's PATH.
        network: How `network="none"` is enforced. "unplug" takes the interfaces down before the first command can run;
            "policy" relies on your NetworkPolicy for the label `swe-gym/network: none`; "open" leaves the network open
            and reports it in `capabilities`.
        capabilities: Linux capabilities of commands; all others are dropped.
        requests: `resources.requests` of the pod. By default equal to `cpus` and `memory_mb`, and minimal if those are
            not set.
        node_selector: `nodeSelector` of the pod.
        tolerations: `tolerations` of the pod.
        runtime_class: `runtimeClassName` of the pod; gVisor and Kata are runtime classes.
        priority_class: `priorityClassName` of the pod.
        service_account: `serviceAccountName` of the pod. Its token is not mounted.
        queue_name: Local queue of Kueue that admits the pods.
        labels: More labels of the pods.
        annotations: More annotations of the pods.
        owner: Label that names the owner of the pods; None is this user and machine.
        owner_reference: An entry of `metadata.ownerReferences`. The pods are deleted together with that object.
    """

    default_image: str | None = None
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    python_image: str | None = None
    running: int | None = Field(default=None, gt=0)
    waiting: int = Field(default=0, ge=0)
    activate: str = "auto"
    network: Literal["unplug", "policy", "open"] = "unplug"
    capabilities: tuple[str, ...] = KEPT_CAPABILITIES
    requests: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[JsonObject, ...] = ()
    runtime_class: str | None = None
    priority_class: str | None = None
    service_account: str | None = None
    queue_name: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner: str | None = None
    owner_reference: JsonObject | None = None
