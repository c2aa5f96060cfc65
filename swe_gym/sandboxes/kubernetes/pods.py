"""What commands ask of a cluster: checks before a run, and the pods of this package, listed, deleted and swept."""

import contextlib
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ...errors import UsageError
from ...guard import Guard, keep_removing
from ..types import Finding
from .api import Api, ApiError, Object, pods_path
from .manifest import MANAGED_BY, MANAGER, NETWORK, RUN, ClusterOptions, KubernetesOptions
from .status import is_expired

NEEDED = (
    ("pods", "create get list watch delete"),
    ("pods/attach", "create get"),
)
"""Resources and verbs of the Role in `docs/sandboxes/kubernetes.md`."""

SECONDS = 10.0


def diagnose(options: KubernetesOptions) -> list[Finding]:
    """Check the cluster, the rights, the quotas and the network policy that the options select."""
    try:
        api = Api(kubeconfig=options.kubeconfig, context=options.context)
    except UsageError as error:
        return [Finding("configuration", False, str(error), "set KUBECONFIG, or options kubeconfig and context")]
    try:
        return list(_findings(api, options, options.namespace or api.namespace))
    except ApiError as error:
        return [
            Finding(
                "cluster",
                False,
                f"{api.host}: {error}",
                "check that it is up and that the credentials are valid: kubectl get pods",
            )
        ]
    finally:
        api.close()


def _findings(api: Api, options: KubernetesOptions, namespace: str) -> Iterator[Finding]:
    version = api.request("GET", "/version", timeout=SECONDS)
    yield Finding("cluster", True, f"{api.host}, Kubernetes {version.get('gitVersion', '(unknown version)')}")
    if not _exists(api, namespace):
        fix = f"kubectl create namespace {namespace}, or set the option 'namespace'"
        yield Finding("namespace", False, f"namespace {namespace} does not exist", fix)
        return
    for resource, verbs in NEEDED:
        missing = [verb for verb in verbs.split() if not _may(api, namespace, resource, verb)]
        detail = f"in namespace {namespace}: " + (f"missing {', '.join(missing)}" if missing else verbs)
        yield Finding(f"rights on {resource}", not missing, detail, "apply the Role of docs/sandboxes/kubernetes.md")
    yield from _quotas(api, namespace)
    if options.network == "policy":
        yield _policy(api, namespace)


def _exists(api: Api, namespace: str) -> bool:
    """Return whether a namespace exists; True if it may not be read."""
    try:
        api.request("GET", f"/api/v1/namespaces/{namespace}", timeout=SECONDS)
    except ApiError as error:
        if error.status not in (401, 403, 404):
            raise
        return error.status != 404
    return True


def _may(api: Api, namespace: str, resource: str, verb: str) -> bool:
    name, _, part = resource.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "resource": name, "subresource": part}
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    reply = api.request("POST", path, body=review, timeout=SECONDS)
    return bool(reply["status"].get("allowed"))


def _quotas(api: Api, namespace: str) -> Iterator[Finding]:
    """Check the quotas, if they may be read."""
    try:
        reply = api.request("GET", f"/api/v1/namespaces/{namespace}/resourcequotas", timeout=SECONDS)
    except ApiError as error:
        if error.status in (401, 403, 404):
            return
        raise
    for quota in reply.get("items") or ():
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        full = [f"{name} {used.get(name)} of {limit}" for name, limit in hard.items() if used.get(name) == limit]
        told = ", ".join(full) or ", ".join(f"{name} {used.get(name, 0)} of {limit}" for name, limit in hard.items())
        name = quota["metadata"]["name"]
        yield Finding(f"quota {name}", not full, told, "free it with `swe-gym clean`, or raise it")


def _policy(api: Api, namespace: str) -> Finding:
    """Check that a NetworkPolicy closes the egress of sandboxes. Its enforcement cannot be checked."""
    fix = "apply the NetworkPolicy of docs/sandboxes/kubernetes.md; your network plugin must enforce policies"
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    try:
        reply = api.request("GET", path, timeout=SECONDS)
    except ApiError as error:
        return Finding("network policy", False, f"cannot be read: {error.message}", fix)
    for policy in reply.get("items") or ():
        spec = policy["spec"]
        labels = (spec.get("podSelector") or {}).get("matchLabels") or {}
        closes = "Egress" in (spec.get("policyTypes") or ()) and not spec.get("egress")
        if closes and labels in ({}, {NETWORK: "none"}):
            return Finding("network policy", True, f"{policy['metadata']['name']} closes egress")
    return Finding("network policy", False, f"no policy in namespace {namespace} closes the egress of sandboxes", fix)


log = logging.getLogger(__name__)

REQUEST_SECONDS = 30.0
KEPT_SECONDS = 60.0
"""Seconds that an ended pod is kept for its owner to inspect before any sweep deletes it."""

PAUSES = (0.0, 1.0, 4.0, 10.0, 15.0, 30.0)
"""Seconds before each deletion of a dead client's pods: a creation that it sent may be carried out for a minute."""

DELETE_NOW = {"gracePeriodSeconds": "0", "propagationPolicy": "Background"}


def list_pods(api: Api, namespace: str, labels: dict[str, str]) -> Iterator[Object]:
    """Yield all pods with these labels, page by page.

    Raises:
        ApiError: The API refused or did not reply.
    """
    query = {"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items()), "limit": "500"}
    while True:
        reply = api.request("GET", pods_path(namespace), query=query)
        yield from reply.get("items") or ()
        more = reply["metadata"].get("continue")
        if not more:
            return
        query["continue"] = more


def sweep_pods(api: Api, namespace: str, *, older_than: float) -> list[str]:
    """Delete abandoned pods of this package (see `status.expired`) and return their names.

    Raises:
        ApiError: The API refused or did not reply.
    """
    swept = []
    for pod in list_pods(api, namespace, {MANAGED_BY: MANAGER}):
        if is_expired(pod, now=api.now(), older_than=older_than):
            metadata = pod["metadata"]
            delete_pod(api, namespace, metadata["name"], uid=metadata["uid"], timeout=REQUEST_SECONDS)
            swept.append(metadata["name"])
    if swept:
        log.info("deleted %d abandoned pods of namespace %s: %s", len(swept), namespace, " ".join(swept))
    return swept


def delete_pod(api: Api, namespace: str, name: str, *, uid: str, timeout: float) -> bool:
    """Delete this pod, but not another one of the same name. Return whether it was gone already.

    Raises:
        ApiError: The API refused or did not reply.
    """
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    try:
        api.request("DELETE", pods_path(namespace, name), query=DELETE_NOW, body=options, timeout=timeout)
    except ApiError as error:
        if error.status in (404, 409):
            return True
        raise
    return False


def start_guard(options: ClusterOptions, namespace: str, run: str) -> Guard:
    """Start a process that deletes the pods of one run if this process dies. Close it once they are deleted.

    The node ends the containers of a dead client, but Kubernetes keeps a bare pod that has ended until it is deleted.

    Args:
        options: The cluster.
        namespace: Namespace of the pods.
        run: Label value of the run.
    """
    fields = options.model_dump(mode="json", include=set(ClusterOptions.model_fields))
    return Guard(f"{__name__}:delete_run", json.dumps(fields | {"namespace": namespace}), run)


def delete_run(fields: str, run: str) -> None:
    """Delete the pods of a run whose process has died, several at once."""
    options = ClusterOptions.model_validate_json(fields)
    connections = options.delete_limit + 1
    with (
        contextlib.closing(Api(kubeconfig=options.kubeconfig, context=options.context, connections=connections)) as api,
        ThreadPoolExecutor(options.delete_limit) as threads,
    ):
        namespace = options.namespace or api.namespace

        def delete(pod: Object) -> None:
            metadata = pod["metadata"]
            delete_pod(api, namespace, metadata["name"], uid=metadata["uid"], timeout=REQUEST_SECONDS)

        keep_removing(lambda: list(threads.map(delete, list_pods(api, namespace, {RUN: run}))), PAUSES, ApiError)
