"""MCP servers and skills: what is refused before anything starts, and what an agent's configuration holds."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import UsageError
from swe_gym.gateway.agents import check_network, make_agent
from swe_gym.gateway.agents.base import Assignment, Launch
from swe_gym.gateway.calls import Answer
from swe_gym.gateway.protocols import responses
from swe_gym.gateway.reading import make_tool_call
from swe_gym.trajectories import Usage

AT = Assignment("the issue", "m", "http://127.0.0.1:9", "/kit", "/home")


def servers(folder: Path, **found: Any) -> dict[str, str]:
    """Write a file of servers, and return the option that names it."""
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": found}))
    return {"mcp": str(folder / "mcp.json")}


def skill(folder: Path, name: str = "tea") -> Path:
    path = folder / "skills" / name
    path.mkdir(parents=True)
    (path / "SKILL.md").write_text("---\nname: tea\ndescription: Tea.\n---\n")
    return path


def launch(name: str, **options: Any) -> Launch:
    return make_agent(name, options).launch(AT)


def test_configurations_are_those_of_the_agents(tmp_path: Path) -> None:
    given = servers(tmp_path, probe={"command": "run", "args": ["a"], "env": {"A": '"1"'}})
    (skill(tmp_path) / "blob").write_bytes(b"\xff\0")
    given["skills"] = str(tmp_path / "skills")
    claude = launch("claude-code", **given)
    server = {"type": "stdio", "command": "run", "args": ["a"], "env": {"A": '"1"'}}
    assert json.loads(claude.files["/home/mcp.json"]) == {"mcpServers": {"probe": server}}
    assert "--mcp-config=/home/mcp.json" in claude.argv
    assert claude.files["/home/skills/tea/blob"] == b"\xff\0"
    opencode = launch("opencode", **given)
    (config,) = [json.loads(text) for path, text in opencode.files.items() if path.endswith("opencode.json")]
    local = {"type": "local", "command": ["run", "a"], "environment": {"A": '"1"'}, "enabled": True}
    assert config["mcp"] == {"probe": local}
    assert "/home/config/opencode/skills/tea/SKILL.md" in opencode.files


def test_codex_reads_its_servers_in_a_file_of_its_own(tmp_path: Path) -> None:
    secret = {"TEA": 's\u20acc\U0001f511"\\\n\x7f'}
    local = {"command": "run", "args": ["a b"], "env": secret}
    given = servers(tmp_path, local=local, far={"url": "http://a.b"})
    codex = launch("codex", **given)
    found = tomllib.loads(codex.files["/home/config.toml"])["mcp_servers"]
    assert found["local"] == local
    assert found["far"] == {"url": "http://a.b", "http_headers": {}}
    assert "TEA" not in "".join(codex.argv)
    with pytest.raises(UsageError, match=r"mcpServers\.far: this agent takes no server of type 'sse'"):
        make_agent("codex", servers(tmp_path, far={"url": "http://a.b", "type": "sse"}))


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (
            {"command": "run", "env": {"A": "${AWS_SECRET_ACCESS_KEY}"}},
            "AWS_SECRET_ACCESS_KEY may not be .* agent.variables=",
        ),
        ({"command": "run", "env": {"A": "x${HOME}"}}, "may only be a whole value"),
        ({"command": "${SHELL}"}, "may only be a whole value"),
        ({"command": "run", "args": ["--key=${KEY}"]}, "may only be a whole value"),
        ({"url": "http://a.example", "headers": {"Authorization": "${TOKEN}"}}, "TOKEN may not be read"),
        ({"command": "run", "cwd": "/"}, "cwd"),
        ({"command": "run", "url": "http://a.example"}, "either a command or a url"),
        ({}, "either a command or a url"),
        ({"command": "run", "type": "sse"}, "does not fit"),
        (3, "mcpServers.probe"),
    ],
)
def test_servers_that_are_refused(server: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        make_agent("claude-code", servers(tmp_path, probe=server))


@pytest.mark.parametrize("text", ["no JSON", "[" * 100_000])
def test_a_file_that_is_not_json_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(text)
    with pytest.raises(UsageError, match=r"mcp\.json is not JSON"):
        make_agent("claude-code", {"mcp": str(tmp_path / "mcp.json")})


def test_a_variable_enters_by_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "k1")
    given = servers(tmp_path, probe={"command": "run", "env": {"K": "${SEARCH_KEY}", "D": "${HOME:-none}"}})
    found = launch("claude-code", **given, variables=["SEARCH_KEY"])
    assert json.loads(found.files["/home/mcp.json"])["mcpServers"]["probe"]["env"] == {"K": "k1", "D": "none"}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"servers": {}}', '{"mcpServers": {}}', '{"mcpServers": {"../a": {"command": "x"}}}']
)
def test_files_that_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(text)
    with pytest.raises(UsageError, match=r"mcp\.json"):
        make_agent("claude-code", {"mcp": str(tmp_path / "mcp.json")})


def test_a_url_needs_a_network(tmp_path: Path) -> None:
    agent = make_agent("opencode", servers(tmp_path, probe={"url": "http://a.example/mcp"}))
    with pytest.raises(UsageError, match="'probe' of the agent 'opencode' has a url"):
        check_network("opencode", agent, {})
    check_network("opencode", agent, {"network": "egress"})


def _link_out(path: Path) -> None:
    (path / "secret").symlink_to("/etc/passwd")


def _link_folder(path: Path) -> None:
    (path.parent / "linked").symlink_to(path)


def _no_skill(path: Path) -> None:
    (path / "SKILL.md").unlink()


def _hidden(path: Path) -> None:
    (path.parent / ".git").mkdir()


def _large(path: Path) -> None:
    with (path / "large").open("wb") as file:
        file.truncate(17 << 20)


def _linked_skill_file(path: Path) -> None:
    (path / "SKILL.md").unlink()
    (path / "SKILL.md").symlink_to("../../mcp.json")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_link_out, "is a link"),
        (_link_folder, "is a link"),
        (_linked_skill_file, "is a link"),
        (_no_skill, "is not a skill"),
        (_hidden, "is not a skill"),
        (_large, "16 MiB"),
    ],
)
def test_skills_that_are_refused(spoil: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").touch()
    spoil(skill(tmp_path))
    with pytest.raises(UsageError, match=said):
        make_agent("claude-code", {"skills": str(tmp_path / "skills")})


@pytest.mark.parametrize("name", ["mini", "aider", "openhands"])
def test_an_agent_that_knows_neither_refuses(name: str, tmp_path: Path) -> None:
    for option in ("mcp", "skills"):
        with pytest.raises(UsageError, match=f"option of agent '{name}': '{option}'"):
            make_agent(name, {option: str(tmp_path)})


def test_tools_of_a_namespace_have_its_name_before_theirs_for_the_model() -> None:
    """Codex groups the tools of each MCP server."""
    tool = {"type": "function", "name": "token", "description": "Token.", "parameters": {"type": "object"}}
    past = {"type": "function_call", "call_id": "1", "name": "token", "namespace": "mcp__probe", "arguments": "{}"}
    groups = [{"type": "namespace", "name": name, "tools": [tool]} for name in ("mcp__probe", "multi_agent")]
    call = responses.read({"model": "m", "input": [past], "tools": groups})
    assert [one["function"]["name"] for one in call.tools] == ["mcp__probe__token"]
    assert call.messages[0]["tool_calls"][0]["function"]["name"] == "mcp__probe__token"
    message = {"role": "assistant", "content": "", "tool_calls": [make_tool_call("2", "mcp__probe__token", "{}", "")]}
    (item,) = responses.write(call, Answer(message=message, text="", finish="tool_calls", usage=Usage()))["output"]
    assert (item["namespace"], item["name"], item["type"]) == ("mcp__probe", "token", "function_call")
