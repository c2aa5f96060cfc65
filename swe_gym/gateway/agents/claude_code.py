"""Claude Code."""

import json

from ..kits import NpmKit
from .base import KEY, Assignment, EquippedAgent, Launch


class ClaudeCode(EquippedAgent):
    """Claude Code. Its kit needs an image with glibc."""

    version = "2.1.197"
    protocol = "messages"
    shell = ("Bash", "command")
    opening = ("system", "user", "system")

    @property
    def kit(self) -> NpmKit:
        """See `Agent.kit`."""
        return NpmKit(package="@anthropic-ai/claude-code-linux-{arch}", version=self.version)

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        program = f"{assignment.kit}/{self.kit.path}/claude"
        argv = [program, "--print", "--dangerously-skip-permissions", "--model", assignment.model]
        files: dict[str, str | bytes] = {**self.put_skills(f"{assignment.home}/skills")}
        if self.servers:
            servers = {name: one.model_dump(mode="json", exclude_defaults=True) for name, one in self.servers.items()}
            servers = {name: {"type": "http" if "url" in one else "stdio", **one} for name, one in servers.items()}
            files[f"{assignment.home}/mcp.json"] = json.dumps({"mcpServers": servers})
            argv += [f"--mcp-config={assignment.home}/mcp.json", "--strict-mcp-config"]
        return Launch(
            [*argv, *self.arguments],
            env={
                "ANTHROPIC_BASE_URL": assignment.base_url,
                "ANTHROPIC_API_KEY": KEY,
                "ANTHROPIC_SMALL_FAST_MODEL": assignment.model,
                "CLAUDE_CONFIG_DIR": assignment.home,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "DISABLE_TELEMETRY": "1",
                "IS_SANDBOX": "1",  # else it refuses to work as root
                **self.env,
            },
            stdin=assignment.issue,
            files=files,
        )
