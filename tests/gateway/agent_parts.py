"""What the tests of agents share: a task, and a model that knows its solution."""

import base64
import json
from pathlib import Path
from typing import Any

from swe_gym.gateway.agents import AGENTS
from swe_gym.rollout.policies.gold import _chunks
from swe_gym.tasks import load_source
from swe_gym.testing.openai_server import ModelReply

TASK = "larder-overwrite-evicts"
TINY = {"command": "python3 {kit}/tiny_agent.py {issue}", "folder": str(Path(__file__).parent)}
"""Options of the agent `command` that run the agent in `tiny_agent.py`."""

SHELLS = {kind.shell[0]: kind for kind in map(AGENTS.load, AGENTS)}
"""Tool for shell commands -> an agent that has it."""


def gold(task: str = TASK) -> list[str]:
    """Return commands that apply the gold patch. Gemini CLI refuses commands with backticks, so it is encoded."""
    diff = load_source("toy").get(task).oracle.gold_patch
    encoded = [base64.b64encode(chunk.encode()).decode() for chunk in _chunks(diff)]
    write = [f"echo {chunk} | base64 -d >> .gold" for chunk in encoded]
    return [*write, "GIT_DIR=/nonexistent git apply .gold && rm .gold"]


def saying(*commands: str) -> Any:
    """Return a model that writes these commands, each as a call of the agent's shell, and ends."""

    def say(request: dict[str, Any]) -> ModelReply:
        names = [tool["function"]["name"] for tool in request.get("tools") or ()]
        shell = next((name for name in names if name in SHELLS), "")
        number = sum(message["role"] == "assistant" for message in request["messages"])
        if not shell or number >= len(commands):
            return ModelReply("Done.")
        arguments = {SHELLS[shell].shell[1]: commands[number], **SHELLS[shell].required}
        return ModelReply("Next.", tool_calls=[(shell, json.dumps(arguments))])

    return say
