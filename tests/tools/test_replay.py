"""Real calls of models in other systems are valid calls of the presets."""

import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_gym.actions import parse_action
from swe_gym.errors import ActionError
from swe_gym.tools import ToolContext, make_tools
from swe_gym.types import ToolSpec

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "data"


def recorded(name: str) -> Path:
    path = RECORDED / name
    if not path.exists():
        pytest.skip(f"the recorded trajectories ({name}) are not here")
    return path


def specs(preset: str) -> list[ToolSpec]:
    return [tool.spec for tool in make_tools(preset)]


def refused(preset: str, actions: list[Any]) -> Counter[str]:
    """Return the errors of the invalid actions."""
    tools, reasons = specs(preset), Counter[str]()
    for action in actions:
        try:
            parse_action(action, tools)
        except ActionError as error:
            reasons[str(error).split("\n")[0]] += 1
    return reasons


def calls_of(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return each tool call of a chat as a separate message."""
    for message in messages:
        for call in message.get("tool_calls") or []:
            yield {"role": "assistant", "content": message["content"], "tool_calls": [call]}


def test_r2e_gym_trajectory() -> None:
    path = recorded("trajectories/r2egym_trajectory_ags_swebench_lite.jsonl.xz")
    with lzma.open(path, "rt") as file:
        actions = [step["action"] for line in file for step in json.loads(line)["trajectory_steps"]]

    empty = [action for action in actions if action.startswith("<function=>")]

    assert len(actions) > 30
    assert sum(refused("r2e", actions).values()) == len(empty)  # the model's own slips: R2E-Gym refused them too


def test_rllm_trajectory() -> None:
    text = recorded("trajectories/rllm_swe_trajectory.txt").read_text()
    actions = re.findall(r"--- Model response ---\n(.*?)\n\n--- Action", text, re.DOTALL)

    assert len(actions) > 20
    assert not refused("r2e", actions)


def test_debug_gym_episodes() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(recorded("trajectories/issta2026_debuggym_swesmith_r2egym_sft_test.parquet"))
    actions = [call for row in table.to_pylist() for call in calls_of(row["messages"])]

    reasons = refused("debug_gym", actions)

    assert len(actions) > 8000
    assert sum(reasons.values()) <= 23  # the model's own slips: no arguments, several calls run together, a tool "find"
    assert not [reason for reason in reasons if "parameter '" in reason]  # none is unknown or of a wrong type


@pytest.mark.parametrize("name", ["debug_gym_tutorial_pandas_dataframe.json", "debug_gym_astropy-6938.json"])
def test_debug_gym_logs(name: str) -> None:
    log = json.loads(recorded(f"trajectories/{name}").read_text())["log"]
    actions = [{"name": step["action"]["name"], "arguments": step["action"]["arguments"]} for step in log[1:]]

    assert len(actions) >= 10
    assert not refused("debug_gym", actions)


def test_swe_agent_trajectories() -> None:
    folder = recorded("swesmith/test_logs/trajectories")
    chats = [json.loads(path.read_text())["history"] for path in sorted(folder.glob("*/*.traj"))]
    actions = [call for chat in chats for call in calls_of(chat)]

    assert len(actions) > 70
    assert not refused("swe_agent", actions)


def test_openhands_trajectories() -> None:
    with lzma.open(recorded("trajectories/nemo_gym/swe_agents_rollouts.jsonl.xz"), "rt") as file:
        items = [item for line in file for item in json.loads(line)["response"]["output"]]
    calls = [item for item in items if item["type"] == "function_call"]
    actions = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in calls]

    assert len(actions) > 150
    assert not refused("openhands", actions)


SESSIONS: dict[str, list[str]] = {
    "r2e": [
        "<function=execute_bash>\n  <parameter=cmd>grep -rn double . | head</parameter>\n</function>",
        "<function=file_editor>\n<parameter=command>\nview\n</parameter>\n<parameter=path>\n/testbed/calc.py\n"
        "</parameter>\n<parameter=view_range>\n[1, 4]\n</parameter>\n</function>",
        "<function=search>\n  <parameter=search_term>return</parameter>\n  <parameter=path>/testbed</parameter>\n"
        "</function>",
        "<function=file_editor>\n  <parameter=command>str_replace</parameter>\n  <parameter=path>/testbed/calc.py"
        "</parameter>\n  <parameter=old_str>return x + 2</parameter>\n  <parameter=new_str>return x * 2</parameter>\n"
        "</function>",
        "<function=finish>\n  <parameter=command>submit</parameter>\n  <parameter=result>Done.</parameter>\n"
        "</function>",
    ],
    "debug_gym": [
        '{"name": "view", "arguments": {"path": "calc.py", "start": null, "end": null, '
        '"include_line_numbers_and_breakpoints": true}}',
        '{"name": "grep", "arguments": {"pattern": "return", "path": null, "max_results": 20}}',
        '{"name": "rewrite", "arguments": {"path": "calc.py", "start": 2, "end": 2, "new_code": "    return x * 2"}}',
        '{"name": "eval", "arguments": {}}',
        '{"name": "submit", "arguments": {}}',
    ],
    "openhands": [
        '{"name": "think", "arguments": {"thought": "The sum should be a product."}}',
        '{"name": "str_replace_editor", "arguments": {"command": "view", "path": "/testbed", "security_risk": "LOW"}}',
        '{"name": "str_replace_editor", "arguments": {"path": "/testbed/calc.py", "command": "view", '
        '"view_range": "[1, 2]", "security_risk": "LOW"}}',
        '{"name": "str_replace_editor", "arguments": {"command": "str_replace", "path": "/testbed/calc.py", '
        '"old_str": "    return x + 2\\n", "new_str": "    return x * 2\\n", "security_risk": "LOW"}}',
        '{"name": "execute_bash", "arguments": {"command": "cat calc.py", "security_risk": "LOW"}}',
        '{"name": "finish", "arguments": {"message": "Done."}}',
    ],
}


@pytest.mark.parametrize("preset", SESSIONS)
def test_a_session_of_another_system_solves_the_task(context_for: Callable[..., ToolContext], preset: str) -> None:
    context = context_for({"calc.py": "def double(x):\n    return x + 2\n"}, eval_cmd="cat calc.py")
    tools = {tool.name: tool for tool in make_tools(preset)}

    for text in SESSIONS[preset]:
        call = parse_action(text, [tool.spec for tool in tools.values()]).call
        result = tools[call.name].run(context, **call.arguments)
        assert result.ok

    assert result.submitted
    assert context.sandbox.read_file("calc.py") == b"def double(x):\n    return x * 2\n"
