"""The built-in agents by name, and `make_agent`."""

from pydantic import ValidationError

from ...errors import UsageError, unknown_name, wrong_fields
from ...registry import Registry
from ...types import JsonMapping
from .base import Agent, check_network, check_steps

__all__ = ["AGENTS", "Agent", "check_network", "check_steps", "make_agent"]

AGENTS = Registry[type[Agent]](
    "agent",
    {
        "mini": "swe_gym.gateway.agents.mini:Mini",
        "claude-code": "swe_gym.gateway.agents.claude_code:ClaudeCode",
        "codex": "swe_gym.gateway.agents.codex:Codex",
        "qwen-code": "swe_gym.gateway.agents.gemini_cli:QwenCode",
        "gemini-cli": "swe_gym.gateway.agents.gemini_cli:GeminiCli",
        "kimi-code": "swe_gym.gateway.agents.kimi_code:KimiCode",
        "kilo": "swe_gym.gateway.agents.opencode:Kilo",
        "pi": "swe_gym.gateway.agents.pi:Pi",
        "opencode": "swe_gym.gateway.agents.opencode:OpenCode",
        "openhands": "swe_gym.gateway.agents.openhands:OpenHands",
        "aider": "swe_gym.gateway.agents.aider:Aider",
        "command": "swe_gym.gateway.agents.command:Command",
    },
    group="swe_gym.agents",
)


def make_agent(name: str, options: JsonMapping | None = None) -> Agent:
    """Return an agent.

    Args:
        name: A built-in name, a dotted path "module:Class" or the name of an entry point.
        options: The agent's options.

    Raises:
        UsageError: The agent or an option is unknown, or an option is missing or invalid.
    """
    kind = AGENTS.load(name)
    given = dict(options or {})
    for option in given:
        if option not in kind.model_fields:
            raise unknown_name(f"option of agent {name!r}:", option, kind.model_fields)
    try:
        return kind(**given)
    except ValidationError as error:
        raise UsageError(f"options of agent {name!r}: {wrong_fields(error)}") from error
