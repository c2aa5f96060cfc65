"""Checks of a cluster, before a run and for `swe-gym doctor`."""

from collections.abc import Iterator

from ...errors import UsageError
from ..finding import Finding
from .api import Api, ApiError, Object
from .manifest import NETWORK
from .options import KubernetesOptions

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
