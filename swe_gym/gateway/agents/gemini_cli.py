"""Gemini CLI, and Qwen Code, which is built on it."""

import json

from ..kits import NodeKit
from .base import KEY, Agent, Assignment, Launch


class GeminiCli(Agent):
    """Gemini CLI. Its kit needs an image with glibc."""

    version = "0.61.0"
    protocol = "google"
    shell = ("run_shell_command", "command")

    @property
    def kit(self) -> NodeKit:
        """See `Agent.kit`."""
        return NodeKit(package="@google/gemini-cli", version=self.version, script="bundle/gemini.js")

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        program = [f"{assignment.kit}/{path}" for path in self.kit.argv]
        settings = {
            "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
            "privacy": {"usageStatisticsEnabled": False},
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "telemetry": {"enabled": False},
        }
        return Launch(
            [*program, "--yolo", "--model", assignment.model, *self.arguments],
            env={
                "GEMINI_API_KEY": KEY,
                "GEMINI_CLI_HOME": assignment.home,
                "GEMINI_CLI_NO_RELAUNCH": "1",
                "GEMINI_CLI_TRUST_WORKSPACE": "true",
                "GOOGLE_GEMINI_BASE_URL": assignment.base_url,
                **self.env,
            },
            stdin=assignment.issue,
            files={f"{assignment.home}/.gemini/settings.json": json.dumps(settings)},
        )


class QwenCode(Agent):
    """Qwen Code. Its kit needs an image with glibc."""

    version = "0.24.4"
    protocol = "chat"
    shell = ("run_shell_command", "command")

    @property
    def kit(self) -> NodeKit:
        """See `Agent.kit`."""
        return NodeKit(package="@qwen-code/qwen-code", version=self.version, script="cli.js")

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        program = [f"{assignment.kit}/{path}" for path in self.kit.argv]
        options = ["--yolo", "--auth-type=openai", "--model", assignment.model]
        return Launch(
            [*program, *options, *self.arguments],
            env={
                "OPENAI_BASE_URL": f"{assignment.base_url}/v1",
                "OPENAI_API_KEY": KEY,
                "QWEN_HOME": assignment.home,
                "QWEN_CODE_NO_RELAUNCH": "1",
                "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
                **self.env,
            },
            stdin=assignment.issue,
        )
