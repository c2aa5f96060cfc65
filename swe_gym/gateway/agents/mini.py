"""mini-swe-agent: bash as its only tool."""

import json
from pathlib import Path

from ...types import JsonObject
from ..kits import Kit, PythonKit
from .base import KEY, Agent, Assignment, Launch


class Mini(Agent):
    """mini-swe-agent.

    Attributes:
        config: Fields of its configuration that differ from its `mini.yaml`, for example
            `{"model": {"model_kwargs": {"temperature": 0}}}`.
    """

    version = "2.4.6"
    protocol = "chat"
    ending = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    config: JsonObject = {}

    @property
    def kit(self) -> Kit:
        """See `Agent.kit`."""
        return PythonKit.of(Path(__file__).with_name("mini.txt"))

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        _, model, url, kit, home = assignment
        config = {**self.config, "run": {"task": assignment.issue}}
        argv = [f"{kit}/python3", "-I", "-m", "minisweagent.run.mini", "--yolo", "--exit-immediately"]
        argv += ["--model", f"openai/{model}", "--cost-limit", "0", "--output", f"{home}/trajectory.json"]
        argv += ["--config", "mini.yaml", "--config", f"{home}/config.yaml", *self.arguments]
        return Launch(
            argv,
            env={
                "OPENAI_API_BASE": f"{url}/v1",
                "OPENAI_BASE_URL": f"{url}/v1",
                "OPENAI_API_KEY": KEY,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is downloaded
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_GLOBAL_CONFIG_DIR": home,
                "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",
                "MSWEA_SILENT_STARTUP": "1",
                **self.env,
            },
            files={f"{home}/config.yaml": json.dumps(config)},
        )
