"""pi."""

import json
from pathlib import Path

from ..kits import NodeKit
from .base import KEY, Agent, Assignment, Launch


class Pi(Agent):
    """pi. Its kit needs an image with glibc."""

    version = "0.87.1"
    protocol = "chat"

    @property
    def kit(self) -> NodeKit:
        """See `Agent.kit`."""
        return NodeKit.of(Path(__file__).with_name("pi.json"), "@earendil-works/pi-coding-agent", script="dist/cli.js")

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        home, model = assignment.home, assignment.model
        program = [f"{assignment.kit}/{path}" for path in self.kit.argv]
        gateway = {
            "baseUrl": f"{assignment.base_url}/v1",
            "api": "openai-completions",
            "apiKey": KEY,
            "compat": {"supportsDeveloperRole": False},
            "models": [{"id": model}],
        }
        return Launch(
            [
                *program,
                "--print",
                "--offline",
                "--no-session",
                "--provider",
                "gateway",
                "--model",
                model,
                *self.arguments,
            ],
            env={"PI_CODING_AGENT_DIR": home, "PI_OFFLINE": "1", "PI_TELEMETRY": "0", **self.env},
            stdin=assignment.issue,
            files={f"{home}/models.json": json.dumps({"providers": {"gateway": gateway}})},
        )
