"""opencode, and Kilo Code, which is built on it."""

import json
from typing import ClassVar

from ...types import JsonObject
from ..kits import NpmKit
from .base import KEY, Assignment, EquippedAgent, Launch, McpServer


class OpenCode(EquippedAgent):
    """opencode. Its kit needs an image with glibc."""

    version = "1.18.33"
    protocol = "chat"
    program: ClassVar[str] = "bin/opencode"
    prefix: ClassVar[str] = "OPENCODE"
    """Start of the names of its variables; in lower case, the name of its folder."""

    quiet: ClassVar[dict[str, str]] = {}
    """Further variables, which stop what needs a network."""

    @property
    def kit(self) -> NpmKit:
        """See `Agent.kit`."""
        return NpmKit(package="opencode-linux-{arch}", version=self.version)

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        home, file = assignment.home, f"{assignment.home}/opencode.json"
        model = f"gateway/{assignment.model}"
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{assignment.base_url}/v1", "apiKey": KEY},
            "models": {assignment.model: {}},
        }
        config = {
            "provider": {"gateway": provider},
            "model": model,
            "small_model": model,
            "autoupdate": False,
            "share": "disabled",
            "snapshot": False,  # would copy the repository before every step, for an undo that nobody asks for
            "permission": {"*": "allow"},
            "mcp": {name: _describe(one) for name, one in self.servers.items()},
        }
        return Launch(
            [f"{assignment.kit}/{self.kit.path}/{self.program}", "run", "--model", model, *self.arguments],
            env={
                f"{self.prefix}_CONFIG": file,
                f"{self.prefix}_DISABLE_AUTOUPDATE": "1",
                f"{self.prefix}_DISABLE_MODELS_FETCH": "1",
                f"{self.prefix}_DISABLE_LSP_DOWNLOAD": "1",
                **self.quiet,
                **{f"XDG_{name}_HOME": f"{home}/{name.lower()}" for name in ("CONFIG", "DATA", "CACHE", "STATE")},
                **self.env,
            },
            stdin=assignment.issue,
            files={file: json.dumps(config), **self.put_skills(f"{home}/config/{self.prefix.lower()}/skills")},
        )


def _describe(server: McpServer) -> JsonObject:
    """Return a server in the form of opencode's configuration."""
    if server.url:
        return {"type": "remote", "url": server.url, "headers": server.headers, "enabled": True}
    command = [server.command, *server.args]
    return {"type": "local", "command": command, "environment": server.env, "enabled": True}


class Kilo(OpenCode):
    """Kilo Code, which is built on opencode. Its kit needs an image with glibc."""

    version = "7.7.9"
    program = "bin/kilo"
    prefix = "KILO"
    quiet = {"KILO_DISABLE_CODEBASE_INDEXING": "1", "KILO_DISABLE_SESSION_INGEST": "1", "KILO_TELEMETRY_LEVEL": "off"}

    @property
    def kit(self) -> NpmKit:
        """See `Agent.kit`."""
        return NpmKit(package="@kilocode/cli-linux-{arch}", version=self.version)
