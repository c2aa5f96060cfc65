"""Environments scripted by their actions."""

import os
import threading
from collections import defaultdict
from typing import Any

import gymnasium as gym

from swe_gym.errors import SandboxLost, SandboxStartError
from swe_gym.spaces import Unicode

TIMEOUT = 60.0
"""Seconds until a waiting test fails."""


class TwoArguments(Exception):
    """An exception that cannot be copied by its `args` or pickled, as in some libraries."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.lock = threading.Lock()
        self.second = second


class Scripted(gym.Env[str, str]):
    """Echoes its actions. "end" ends the episode; "wait NAME" waits for a gate; "raise NAME" raises.

    `gates` are shared by all environments that get the same dict.
    """

    metadata = {"render_modes": []}

    def __init__(self, gates: dict[str, threading.Event] | None = None, name: str = "") -> None:
        self.gates = gates if gates is not None else defaultdict(threading.Event)
        self.name = name
        self.observation_space = self.action_space = Unicode(100)
        self.closed = 0
        self.resets: list[tuple[int | None, dict[str, Any] | None]] = []
        self.actions: list[str] = []
        self.broken_resets = 0
        self.pid = os.getpid()
        self.started = threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets.append((seed, options))
        if self.broken_resets:
            self.broken_resets -= 1
            raise SandboxStartError("no room at /srv/host/path", reason="capacity")
        return f"{self.name} reset {len(self.resets)}", {"resets": len(self.resets)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.started.set()
        verb, _, rest = action.partition(" ")
        if verb == "wait":
            assert self.gates[rest].wait(TIMEOUT)
        if verb == "raise":
            raise {
                "lost": SandboxLost("gone", reason="oom"),
                "mistake": KeyError("a mistake"),
                "two": TwoArguments("one", "two"),
                "exit": SystemExit(3),
            }[rest]
        return f"{self.name} {action}", 1.0, verb == "end", False, {"steps": len(self.actions)}

    def close(self) -> None:
        self.closed += 1
