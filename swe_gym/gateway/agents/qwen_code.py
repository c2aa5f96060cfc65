"""Qwen Code."""

from ..kits import NodeKit
from .base import KEY, Agent, Assignment, Launch


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
