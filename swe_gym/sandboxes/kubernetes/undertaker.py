"""What happens to the pods of a dead client.

The node ends the containers of a dead client, but Kubernetes keeps a bare pod that has ended until somebody deletes it.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ..undertaker import Undertaker
from .api import Api, ApiError, Object
from .manifest import RUN
from .options import ClusterOptions
from .pods import REQUEST_SECONDS, delete_pod, list_pods

log = logging.getLogger(__name__)

PAUSES = (0.0, 1.0, 4.0, 10.0, 15.0, 30.0)
"""Seconds between two rounds: a creation that the dead client sent may still be carried out for a minute."""


def start_undertaker(options: ClusterOptions, namespace: str, run: str) -> Undertaker:
    """Start a process that deletes the pods of one run if this process dies. Close it once they are deleted.

    Args:
        options: The cluster.
        namespace: Namespace of the pods.
        run: Label value of the run.
    """
    fields = options.model_dump(mode="json", include=set(ClusterOptions.model_fields))
    return Undertaker(f"{__name__}:main", json.dumps(fields | {"namespace": namespace}), run)


def main(fields: str, run: str) -> None:
    """Delete the pods of a run, whose process has died."""
    options = ClusterOptions.model_validate_json(fields)
    connections = options.delete_limit + 1
    with contextlib.closing(
        Api(kubeconfig=options.kubeconfig, context=options.context, connections=connections)
    ) as api:
        bury(api, options, run)


def bury(api: Api, options: ClusterOptions, run: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Delete all pods of a run, several at once, and look again until none can appear any more."""
    namespace = options.namespace or api.namespace

    def delete(pod: Object) -> None:
        metadata = pod["metadata"]
        try:
            delete_pod(api, namespace, metadata["name"], uid=metadata["uid"], timeout=REQUEST_SECONDS)
        except ApiError as error:
            log.warning("deleting pod %s failed: %s", metadata["name"], error)

    with ThreadPoolExecutor(options.delete_limit) as threads:
        for pause in PAUSES:
            sleep(pause)
            try:
                pods = list(list_pods(api, namespace, {RUN: run}))
            except ApiError as error:
                log.warning("listing the pods of run %s failed: %s", run, error)
                continue
            list(threads.map(delete, pods))
