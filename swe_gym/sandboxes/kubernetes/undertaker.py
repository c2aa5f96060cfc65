"""A process that outlives the client's and deletes its pods.

The node ends the containers of a dead client, but Kubernetes keeps a bare pod that has ended until somebody deletes it.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .api import Api, ApiError, Object
from .manifest import RUN
from .options import ClusterOptions
from .pods import REQUEST_SECONDS, delete_pod, list_pods

log = logging.getLogger(__name__)

PAUSES = (0.0, 1.0, 4.0, 10.0, 15.0, 30.0)
"""Seconds between two rounds: a creation that the dead client sent may still be carried out for a minute."""

_PROGRAM = f"""
import os, sys, time
while os.getppid() == int(sys.argv[1]):
    time.sleep(1.0)
from {__name__} import main
main(sys.argv[2])
"""
"""It imports nothing of ours until its client is dead. A pipe would stay open in forks of the client."""


class Undertaker:
    """Deletes the pods of one run if this process dies. Close it once they are deleted.

    Args:
        options: The cluster.
        namespace: Namespace of the pods.
        run: Label value of the run.
    """

    def __init__(self, options: ClusterOptions, namespace: str, run: str) -> None:
        fields = options.model_dump(mode="json", include=set(ClusterOptions.model_fields))
        order = {"options": fields | {"namespace": namespace}, "run": run}
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(os.getpid()), json.dumps(order)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # out of reach of the terminal's signals
        )

    def close(self) -> None:
        """End the process; it deletes nothing."""
        self._process.kill()
        self._process.wait()


def main(order: str) -> None:
    """Delete the pods that an `Undertaker` was started for."""
    parsed = json.loads(order)
    options = ClusterOptions.model_validate(parsed["options"])
    api = Api(kubeconfig=options.kubeconfig, context=options.context, connections=options.delete_limit + 1)
    try:
        bury(api, options, parsed["run"])
    finally:
        api.close()


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
