"""Listing, deleting and sweeping the pods of this package, of any client."""

import contextlib
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ...guard import Guard, keep_removing
from .api import Api, ApiError, Object, pods_path
from .manifest import MANAGED_BY, MANAGER, RUN
from .options import ClusterOptions
from .status import is_expired

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
