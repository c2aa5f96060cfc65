"""The program that outlives its client for a moment, to remove the containers that the client could not.

A container that runs ends by itself when its client is gone. One that was created and not yet started cannot; so one
small process for each client and engine waits for the client's end, and then looks.

    python -c PROGRAM CLIENT_PID LABEL [BASE_URL]
"""

import contextlib
import os
import sys
import time

import docker
import docker.utils
import requests.exceptions

GLANCE = 0.2
LINGER = 4.0
"""Seconds that it goes on looking: what was being created when the client died comes a moment later."""

PATIENCE = 60.0
"""Seconds that it waits for an engine that does not answer."""


def wait_for_the_end_of(client: int) -> None:
    """Return when the parent is another one than at the start."""
    while os.getppid() == client:
        time.sleep(GLANCE)


def remove_all(label: str, base_url: str | None) -> None:
    """Remove every container with this label, and those that get it within the next seconds."""
    settings = docker.utils.kwargs_from_env()
    if base_url:
        settings["base_url"] = base_url
    engine = docker.APIClient(version="auto", timeout=10, **settings)
    end = time.monotonic() + LINGER
    while time.monotonic() < end:
        for container in engine.containers(all=True, filters={"label": label}):
            with contextlib.suppress(docker.errors.APIError):  # it is going already
                engine.remove_container(container["Id"], force=True, v=True)
        time.sleep(GLANCE)


def main(client: int, label: str, base_url: str | None = None) -> None:
    """Wait, then remove; an engine that does not answer is asked again."""
    wait_for_the_end_of(client)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            return remove_all(label, base_url)
        except (docker.errors.DockerException, requests.exceptions.RequestException):
            time.sleep(GLANCE)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
