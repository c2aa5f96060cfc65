"""A small process that outlives its client by seconds and removes the containers that the client could not.

A running container exits by itself when its client dies. A container that was created but not started cannot, so each
client has one guard per engine.

    python -c PROGRAM CLIENT_PID LABEL [BASE_URL]
"""

import contextlib
import os
import sys
import time

import docker
import docker.utils
import requests.exceptions

POLL_SECONDS = 0.2
LINGER = 4.0
"""Seconds of removing: a container that was being created when the client died appears a moment later."""

PATIENCE = 60.0
"""Seconds to wait for an engine that does not answer."""


def wait_for_end_of(client: int) -> None:
    """Return once the parent is no longer the client."""
    while os.getppid() == client:
        time.sleep(POLL_SECONDS)


def remove_all(label: str, base_url: str | None) -> None:
    """Remove every container with this label for the next `LINGER` seconds."""
    settings = docker.utils.kwargs_from_env()
    if base_url:
        settings["base_url"] = base_url
    engine = docker.APIClient(version="auto", timeout=10, **settings)
    end = time.monotonic() + LINGER
    while time.monotonic() < end:
        for container in engine.containers(all=True, filters={"label": label}):
            with contextlib.suppress(docker.errors.APIError):  # being removed already
                engine.remove_container(container["Id"], force=True, v=True)
        time.sleep(POLL_SECONDS)


def main(client: int, label: str, base_url: str | None = None) -> None:
    """Wait for the client's end, then remove its containers; retry if the engine does not answer."""
    wait_for_end_of(client)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            return remove_all(label, base_url)
        except (docker.errors.DockerException, requests.exceptions.RequestException):
            time.sleep(POLL_SECONDS)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
