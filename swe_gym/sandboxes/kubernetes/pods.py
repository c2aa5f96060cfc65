"""Listing, deleting and sweeping the pods of this package, of any client."""

import logging
from collections.abc import Iterator

from .api import Api, ApiError, Object, pods_path
from .manifest import MANAGED_BY, MANAGER
from .status import expired

log = logging.getLogger(__name__)

REQUEST_SECONDS = 30.0
KEPT_SECONDS = 60.0
"""Seconds that an ended pod is kept for its owner to inspect before any sweep deletes it."""

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
        if expired(pod, now=api.now(), older_than=older_than):
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
