"""Codex."""

import platform

from ..kits import NpmKit
from .base import KEY, Agent, Assignment, Launch


class Codex(Agent):
    """Codex. Its programs are linked statically and run in any image."""

    version = "0.169.0"
    protocol = "responses"
    shell = ("exec_command", "cmd")
    opening = ("system", "system", "user", "user")

    @property
    def kit(self) -> NpmKit:
        """See `Agent.kit`."""
        return NpmKit(package="@openai/codex", version=self.version + "-linux-{arch}")

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        program = f"{assignment.kit}/{self.kit.path}/vendor/{platform.machine()}-unknown-linux-musl/bin/codex"
        provider = (
            f'{{name="gateway", base_url="{assignment.base_url}/v1", env_key="OPENAI_API_KEY", wire_api="responses"}}'
        )
        settings = [
            'model_provider="gateway"',
            f"model_providers.gateway={provider}",
            "check_for_update_on_startup=false",
        ]
        argv = [program, "exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
        argv += ["--model", assignment.model, *(word for one in settings for word in ("--config", one))]
        return Launch(
            [*argv, *self.arguments, "-"],
            env={"OPENAI_API_KEY": KEY, "CODEX_HOME": assignment.home, **self.env},
            stdin=assignment.issue,
        )
