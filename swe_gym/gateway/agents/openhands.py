"""OpenHands."""

from pathlib import Path

from ..kits import Kit, PythonKit
from .base import KEY, Agent, Assignment, Launch


class OpenHands(Agent):
    """OpenHands, in headless mode. It writes its caches to `~/.openhands`."""

    version = "1.16.0"
    protocol = "chat"
    shell = ("terminal", "command")
    required = {"security_risk": "LOW"}

    @property
    def kit(self) -> Kit:
        """See `Agent.kit`."""
        return PythonKit.of(Path(__file__).with_name("openhands.txt"), python="3.12")

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        issue, model, url, kit, home = assignment
        argv = [
            f"{kit}/python3",
            "-I",
            "-m",
            "openhands_cli.entrypoint",
            "--headless",
            "--json",
            "--override-with-envs",
        ]
        return Launch(
            [*argv, *self.arguments, f"--task={issue}"],
            env={
                "LLM_MODEL": f"openai/{model}",
                "LLM_BASE_URL": f"{url}/v1",
                "LLM_API_KEY": KEY,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is downloaded
                "OPENHANDS_PERSISTENCE_DIR": home,
                "OPENHANDS_SUPPRESS_BANNER": "1",
                **self.env,
            },
        )
