"""Codex."""

import json
import platform

from ..kits import NpmKit
from .base import KEY, Assignment, EquippedAgent, Launch, McpServer


class Codex(EquippedAgent):
    """Codex. Its programs are linked statically and run in any image."""

    version = "0.169.0"
    protocol = "responses"
    shell = ("exec_command", "cmd")
    transports = ("stdio", "http")
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
            files={
                f"{assignment.home}/config.toml": self._describe_servers(),
                **self.put_skills(f"{assignment.home}/skills"),
            },
        )

    def _describe_servers(self) -> str:
        """Return the MCP servers as a configuration file. Arguments of a command are seen by every process."""
        return "".join(f"mcp_servers.{name} = {_as_toml(server)}\n" for name, server in self.servers.items())


def _as_toml(server: McpServer) -> str:
    """Return the settings of a server as an inline table."""
    if server.url:
        fields = {"url": _quote(server.url), "http_headers": _table(server.headers)}
    else:
        args = f"[{', '.join(map(_quote, server.args))}]"
        fields = {"command": _quote(server.command), "args": args, "env": _table(server.env)}
    return f"{{{', '.join(f'{name}={value}' for name, value in fields.items())}}}"


def _table(values: dict[str, str]) -> str:
    return f"{{{', '.join(f'{_quote(name)}={_quote(value)}' for name, value in values.items())}}}"


def _quote(text: str) -> str:
    """Return a string of TOML: one of JSON, without surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
