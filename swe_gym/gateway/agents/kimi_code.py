"""Kimi Code."""

from pathlib import Path

from ..kits import NodeKit
from .base import KEY, Agent, Assignment, Launch


class KimiCode(Agent):
    """Kimi Code. Its kit needs an image with glibc."""

    version = "2.1.0"
    protocol = "chat"
    shell = ("Bash", "command")
    opening = ("system", "user", "user", "user")

    @property
    def kit(self) -> NodeKit:
        """See `Agent.kit`."""
        lock = Path(__file__).with_name("kimi_code.json")
        return NodeKit.of(lock, "@moonshot-ai/kimi-code", script="dist/main.mjs")

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        program = [f"{assignment.kit}/{path}" for path in self.kit.argv]
        return Launch(
            [*program, *self.arguments, f"--prompt={assignment.issue}"],
            env={
                "KIMI_CODE_HOME": assignment.home,
                "KIMI_CODE_NO_AUTO_UPDATE": "1",
                "KIMI_DISABLE_TELEMETRY": "1",
                "KIMI_MODEL_API_KEY": KEY,
                "KIMI_MODEL_BASE_URL": f"{assignment.base_url}/v1",
                "KIMI_MODEL_NAME": assignment.model,
                "KIMI_MODEL_PROVIDER_TYPE": "openai",
                **self.env,
            },
        )
