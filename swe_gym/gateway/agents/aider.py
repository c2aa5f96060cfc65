"""aider: edits in its reply's text, without tools."""

from pathlib import Path

from ..kits import Kit, PythonKit
from .base import KEY, Agent, Assignment, Launch


class Aider(Agent):
    """aider. It finds files with git, which the image must have."""

    version = "0.86.2"
    protocol = "chat"
    shell = ("", "")

    @property
    def kit(self) -> Kit:
        """See `Agent.kit`."""
        return PythonKit.of(Path(__file__).with_name("aider.txt"), python="3.12")

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        issue, model, url, kit, home = assignment
        message = f"\n{issue}" if issue.startswith(("/", "!")) else issue  # else it is a command to aider
        argv = [f"{kit}/python3", "-I", "-m", "aider", "--model", f"openai/{model}", "--yes-always", "--no-pretty"]
        argv += ["--no-auto-commits", "--no-dirty-commits", "--no-gitignore", "--no-detect-urls"]
        argv += ["--no-analytics", "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings"]
        argv += [f"--{name}-history-file={home}/{name}" for name in ("input", "chat")]
        return Launch(
            [*argv, "--message-file", f"{home}/issue.md", *self.arguments],
            env={
                "OPENAI_API_BASE": f"{url}/v1",
                "OPENAI_API_KEY": KEY,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is downloaded
                **self.env,
            },
            files={f"{home}/issue.md": message},
        )
