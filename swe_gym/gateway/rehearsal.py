"""Starts an agent before a run: a wrong argument is told before the first episode, not by each of them."""

import contextlib
import threading
import time

from ..envs import SweEnv
from ..errors import SandboxError, UsageError
from ..sandboxes import Connection
from ..types import JsonMapping
from .agents import make_agent
from .agents.base import Assignment
from .kits import PLACE
from .play import HOME, SHOWN, STOP_SECONDS, how_it_ended, mounts_of, start_agent

SECONDS = 60.0
"""Seconds in which an agent must end if it cannot start. A slower one is taken to work."""


def rehearse(env: SweEnv, name: str, options: JsonMapping, task_id: str) -> None:
    """Start an agent on a task until it connects to its model.

    Args:
        env: A new environment. The caller closes it.
        name: Name of the agent.
        options: Options of the agent.
        task_id: The task.

    Raises:
        UsageError: It ended before.
        SandboxError: The sandbox did not start, or was lost.
    """
    agent = make_agent(name, options)
    env.use_mounts(mounts_of(agent))
    issue, _ = env.reset(options={"task_id": task_id})
    sandbox, connected = env.sandbox, threading.Event()

    def serve(connection: Connection) -> None:
        connected.set()
        connection.close()
        with contextlib.suppress(SandboxError):  # the agent's own command reports it
            sandbox.end_processes(commands=True, timeout=STOP_SECONDS)

    forward = sandbox.forward(0, serve)
    try:
        url = f"http://127.0.0.1:{forward.port}"
        launch = agent.launch(Assignment(issue, "model", url, PLACE, HOME))
        result = start_agent(sandbox, launch, time.monotonic() + SECONDS)
    finally:
        forward.close()
    if not connected.is_set() and not result.timed_out:
        text = f"the agent {name!r} {how_it_ended(result)} before it asked its model. Correct its options"
        said = result.text[-SHOWN:].strip()
        raise UsageError(f"{text}: agent.NAME=VALUE. Its output:\n{said}" if said else f"{text}: agent.NAME=VALUE")
