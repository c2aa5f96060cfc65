"""Any client's pods of ours: listing them, deleting one, sweeping those that nobody uses any more."""

from collections.abc import Iterator

from .api import Api, ApiError, Object, pods_path
from .manifest import MANAGED_BY, MANAGER
from .status import expired

REQUEST_SECONDS = 30.0
KEPT_SECONDS = 60.0
"""How long a pod that has ended is kept for its owner to look at, before anybody's sweep takes it."""

DELETE_NOW = {"gracePeriodSeconds": "0", "propagationPolicy": "Background"}


def list_pods(api: Api, namespace: str, labels: dict[str, str]) -> Iterator[Object]:
    """All pods with these labels, page by page.

    Raises:
        ApiError: The API refused, or gave no reply.
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
    """Delete the pods of ours that nobody uses any more; see `status.expired`. Returns their names.

    Raises:
        ApiError: The API refused, or gave no reply.
    """
    swept = []
    for pod in list_pods(api, namespace, {MANAGED_BY: MANAGER}):
        if expired(pod, now=api.now(), older_than=older_than):
            metadata = pod["metadata"]
            delete_pod(api, namespace, metadata["name"], uid=metadata["uid"], timeout=REQUEST_SECONDS)
            swept.append(metadata["name"])
    return swept


def delete_pod(api: Api, namespace: str, name: str, *, uid: str, timeout: float) -> bool:
    """Delete this pod, and not another one of the same name. Returns whether it was gone already.

    Raises:
        ApiError: The API refused, or gave no reply.
    """
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    try:
        api.request("DELETE", pods_path(namespace, name), query=DELETE_NOW, body=options, timeout=timeout)
    except ApiError as error:
        if error.status in (404, 409):
            return True
        raise
    return False
