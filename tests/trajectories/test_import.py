"""Import of trajectories of other systems: small samples, and real files if available."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import UsageError
from swe_gym.tasks.r2e import R2ESource
from swe_gym.trajectories.formats import export_trajectories, import_trajectories
from swe_gym.trajectories.formats.chat import to_sft
from swe_gym.trajectories.trajectory import Trajectory, Turn
from swe_gym.viewer.episode import as_page

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "trajectories"

real = pytest.mark.skipif(not REAL.is_dir(), reason="the real trajectories are not on this machine")

R2E: dict[str, Any] = {
    "trajectory_steps": [
        {
            "step_idx": 0,
            "thought": "look",
            "action": "<function=execute_bash>\n  <parameter=cmd>ls</parameter>\n</function>",
            "observation": "a.py",
            "done": False,
            "token_usage_prompt": 7,
            "token_usage_completion": 3,
            "llm_exec_time": 2.0,
            "env_exec_time": 0.5,
        },
        {"action": "<function=>\n</function>", "observation": "no call", "done": True, "env_exec_time": float("nan")},
    ],
    "problem_statement": "It is broken.",
    "docker_image": "acme/calc:1",
    "ds": {"patch": "the gold patch", "FAIL_TO_PASS": "the hidden tests"},
    "agent_args": {"llm_name": "acme-7b"},
    "exit_reason": "agent",
    "output_patch": "diff",
    "reward": 1,
    "test_output": "the hidden tests",
}

DEBUG_GYM: dict[str, Any] = {
    "problem": "p",
    "success": True,
    "config": {"llm_name": "o1", "random_seed": 42},
    "tools": [{"type": "function", "function": {"name": "view", "description": "shows", "parameters": {}}}],
    "agent_type": "DebugAgent",
    "log": [
        {"step_id": 0, "action": None, "obs": "start", "prompt_response_pairs": None},
        {
            "step_id": 1,
            "content": "I view.",
            "reasoning": None,
            "action": {"id": "1", "name": "view", "arguments": {"path": "a"}},
            "obs": "x",
        },
        {"step_id": 2, "content": "nothing", "action": None, "obs": "no call"},
    ],
}


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("compression", [lzma, gzip])
def test_a_compressed_line_of_r2e_gym(tmp_path: Path, compression: Any) -> None:
    path = tmp_path / f"run.jsonl.{'xz' if compression is lzma else 'gz'}"
    path.write_bytes(compression.compress(json.dumps(R2E).encode() + b"\n\n"))
    (one,) = import_trajectories(path)
    assert (one.task_id, one.outcome, one.resolved, one.reward, one.patch) == (
        "acme/calc:1",
        "submitted",
        True,
        1.0,
        "diff",
    )
    first, second = one.turns
    assert (first.tool, first.arguments, first.thought) == ("execute_bash", {"cmd": "ls"}, "look")
    assert (second.tool, second.terminated) == ("", True)
    assert (one.usage.prompt_tokens, one.seconds["policy"], one.seconds["tools"]) == (7, 2.0, 0.5)
    assert "hidden" not in "".join(one.to_lines())
    assert "gold" not in "".join(one.to_lines())


@pytest.mark.parametrize(
    ("change", "outcome", "valid"),
    [
        ({"exit_reason": "abs_step_limit"}, "agent_limit", True),
        ({"exit_reason": "llm_query_error"}, "infra_failed", False),
        ({"reward": None}, "submitted", False),
        ({"reward": float("nan")}, "submitted", False),
        ({"reward": 0}, "submitted", True),
    ],
)
def test_an_episode_that_r2e_gym_could_not_judge_has_no_reward(
    tmp_path: Path, change: dict[str, Any], outcome: str, valid: bool
) -> None:
    (one,) = import_trajectories(written(tmp_path / "run.jsonl", R2E | change))
    assert (one.outcome, one.reward_valid) == (outcome, valid)
    assert one.resolved is (change.get("reward", 1) == 1 and valid)


def test_an_episode_of_debug_gym(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(DEBUG_GYM))
    (one,) = import_trajectories(path)
    assert (one.task_id, one.resolved, one.seed, one.policy.model) == ("p", True, 42, "o1")
    assert [(turn.tool, turn.thought, turn.observation) for turn in one.turns] == [
        ("view", "I view.", "x"),
        ("", "nothing", "no call"),
    ]
    assert one.turns[-1].reward == 1.0
    assert one.tools[0].name == "view"


def test_a_conversation_survives_a_round_trip(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "view", "arguments": '{"path": "a"}'}}
    broken = {"id": "2", "type": "function", "function": {"name": "view", "arguments": '{"path'}}
    messages = [
        {"role": "system", "content": "You repair."},
        {"role": "user", "content": [{"type": "text", "text": "Repair it."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "1"},
        {"role": "assistant", "content": "again", "tool_calls": [broken]},
        {"role": "tool", "content": "no JSON", "tool_call_id": "2"},
        {"role": "assistant", "content": "I give up."},
    ]
    row = {"messages": messages, "tools": DEBUG_GYM["tools"], "task_id": "t", "resolved": False}
    (one,) = import_trajectories(written(tmp_path / "sft.jsonl", row))
    assert (one.task_id, one.observation, one.reward_valid, one.reward) == ("t", "Repair it.", True, 0.0)
    assert [(turn.tool, turn.arguments, turn.observation) for turn in one.turns] == [
        ("view", {"path": "a"}, "x"),
        ("", {}, "no JSON"),
        ("", {}, ""),
    ]
    (back,) = to_sft([one])
    assert back["messages"] == messages
    (unjudged,) = import_trajectories(written(tmp_path / "plain.jsonl", {"messages": messages}))
    assert (unjudged.task_id, unjudged.reward_valid, unjudged.outcome) == ("plain-1", False, "running")


def test_an_episode_of_r2e_gym_has_the_task_id_and_one_reward(tmp_path: Path) -> None:
    row = R2E | {"ds": {"repo_name": "calc", "commit_hash": "abc"}, "exit_reason": "max_step_limit"}
    (one,) = import_trajectories(written(tmp_path / "run.jsonl", row))
    assert one.task_id == R2ESource.instance_id("calc", "abc")
    assert (one.reward, sum(turn.reward for turn in one.turns)) == (1.0, 1.0)
    assert [(turn.terminated, turn.truncated) for turn in one.turns] == [(False, False), (False, True)]
    assert export_trajectories([one], "r2e", tmp_path / "out.jsonl") == 1
    (back,) = import_trajectories(tmp_path / "out.jsonl")
    assert [turn.arguments for turn in back.turns] == [turn.arguments for turn in one.turns]
    assert [turn.thought for turn in back.turns] == [turn.thought for turn in one.turns]
    assert (back.reward, back.task_id, back.usage) == (one.reward, one.task_id, one.usage)
    assert list(import_trajectories(tmp_path / "out.jsonl")) == [back]


def test_a_text_with_too_many_possible_calls_has_none(tmp_path: Path) -> None:
    step = {"action": "<function=" * 20_000, "observation": "no call"}
    (one,) = import_trajectories(written(tmp_path / "run.jsonl", R2E | {"trajectory_steps": [step]}))
    assert one.turns[0].tool == ""


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "view", "description": "shows", "input_schema": {"type": "object"}},
        {"name": "view", "arguments": {"path": {}}, "id": "view-1"},
        "view({'path': {'type': 'string'}})",
    ],
)
def test_tools_of_debug_gym_are_read_in_all_formats(tmp_path: Path, tool: Any) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(DEBUG_GYM | {"tools": [tool]}))
    (one,) = import_trajectories(path)
    assert one.tools[0].name == "view"


def test_episodes_of_other_versions_of_debug_gym(tmp_path: Path) -> None:
    answer = {
        "prompt": "p",
        "response": "I say.",
        "reasoning_response": "I think.",
        "token_usage": {"prompt": 7, "response": 3},
    }
    call = {"id": "1", "name": "eval", "arguments": {}}
    log = [
        {"action": None, "obs": "start", "problem_message": {"role": "user", "content": "It is broken."}},
        {"action": call, "obs": "x", "prompt_response_pairs": [answer]},
        {"action": {**call, "name": "empty_tool_response"}, "content": "well", "obs": "no call"},
        {"action": "```view a```", "obs": "y"},
    ]
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(DEBUG_GYM | {"log": log}))
    (one,) = import_trajectories(path)
    assert one.observation == "It is broken.\n\nstart"
    assert [(turn.tool, turn.thought) for turn in one.turns] == [
        ("eval", "I think.\n\nI say."),
        ("", "well"),
        ("", ""),
    ]
    assert one.turns[2].action == "```view a```"
    assert (one.usage.prompt_tokens, one.usage.completion_tokens, one.turns[0].usage.calls) == (7, 3, 1)


XML = "I look.\n\n<function=bash>\n<parameter=command>ls</parameter>\n</function>"
FENCE = "I look.\n```bash\nls\n```"


@pytest.mark.parametrize("said", [XML, FENCE])
def test_calls_are_found_in_the_text(tmp_path: Path, said: str) -> None:
    messages = [
        {"role": "user", "content": "Repair it."},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "a.py"},
        {"role": "assistant", "content": "Done."},
    ]
    row = {"messages": json.dumps(messages), "tools": json.dumps(DEBUG_GYM["tools"]), "resolved": True, "model": "m"}
    (one,) = import_trajectories(written(tmp_path / "run.jsonl", row))
    first, last = one.turns
    assert (first.tool, first.thought, first.arguments["command"].strip(), first.action) == (
        "bash",
        "I look.",
        "ls",
        said,
    )
    assert (last.tool, last.action, last.reward, last.terminated) == ("", "Done.", 1.0, True)
    assert (one.policy.model, one.tools[0].name, one.messages) == ("m", "view", tuple(messages))


def test_fences_are_calls_only_without_other_calls(tmp_path: Path) -> None:
    said = [XML, "So:\n```bash\npytest\n```"]
    messages = [{"role": "assistant", "content": text} for text in said]
    (one,) = import_trajectories(written(tmp_path / "run.jsonl", {"messages": messages}))
    assert [turn.tool for turn in one.turns] == ["bash", ""]


def test_all_calls_of_a_message_are_in_its_action(tmp_path: Path) -> None:
    calls = [{"function": {"name": "view", "arguments": {"path": path}}} for path in ("a.py", "b.py")]
    messages = [
        {"role": "assistant", "content": "Both.", "tool_calls": calls},
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": "b"},
    ]
    (one,) = import_trajectories(written(tmp_path / "run.jsonl", {"messages": messages}))
    (turn,) = one.turns
    assert (turn.tool, turn.arguments, turn.observation) == ("view", {"path": "a.py"}, "a\n\nb")
    assert turn.action.startswith("Both.")
    assert "b.py" in turn.action


def test_a_system_prompt_may_have_parts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "You "}, {"type": "text", "text": "repair."}]
    for content in ("You repair.", parts):
        messages = [{"role": "system", "content": content}, {"role": "assistant", "content": "Yes."}]
        (one,) = import_trajectories(written(tmp_path / "run.jsonl", {"messages": messages}))
        assert as_page(one)["system"] == ["You repair."]


def test_an_invalid_reward_survives_a_round_trip(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Repair it."}, {"role": "assistant", "content": "No."}]
    for reward in (None, float("nan")):
        (one,) = import_trajectories(written(tmp_path / "run.jsonl", {"messages": messages, "reward": reward}))
        export_trajectories([one], "sft", tmp_path / "out.jsonl")
        (back,) = import_trajectories(tmp_path / "out.jsonl")
        assert (one.reward_valid, back.reward_valid, back.resolved, back.reward) == (False, False, False, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(R2E) + "\n{", r"run\.jsonl, line 2: "),
        (json.dumps(R2E) + "\n[1]", r"line 2: not an object"),
        (json.dumps({"nothing": 1}), r"line 1: unknown format: it has none of the fields"),
        ("[" * 100_000, r"line 1: "),
        (json.dumps({"messages": "[" * 100_000}), r"line 1: neither JSON nor"),
        (json.dumps({"messages": [], "reward": "much" * 1000}), r"line 1: .{,300}$"),
        (json.dumps({"messages": [], "attempt": 1e999}), r"line 1: "),
        (json.dumps({**R2E, "trajectory_steps": [{"action": "x"}]}), r"line 1: missing field 'observation'"),
        (json.dumps({**R2E, "trajectory_steps": 7}), r"line 1: "),
        (json.dumps({**R2E, "output_patch": 7}), r"line 1: .*patch"),
        (json.dumps({**DEBUG_GYM, "log": []}), r"line 1: "),
        (json.dumps({**DEBUG_GYM, "success": "yes"}), r"line 1: success must be true or false"),
        (json.dumps({"messages": [{"content": "who?"}]}), r"line 1: missing field 'role'"),
        (json.dumps({"turns": [], "version": 99}), r"line 1: not a trajectory of version 1"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        list(import_trajectories(path))


def test_a_format_may_be_a_function_by_its_dotted_path(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", {"messages": [{"role": "assistant", "content": "Done."}]})
    named, detected, dotted = (
        list(import_trajectories(path, form))
        for form in ("messages", "auto", "swe_gym.trajectories.formats.chat:from_messages")
    )
    assert named == detected == dotted


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    for name, content, message in (
        ("a.csv", b"", "must end in"),
        ("a.jsonl.xz", b"no xz", "cannot read the file"),
        ("a.jsonl.gz", b"no gzip", "cannot read the file"),
        ("b.jsonl.gz", gzip.compress(b"{}")[:-9], "cannot read the file"),
        ("a.jsonl.bak", b"", "must end in"),
        ("a.json", b"\xff\xfe", "not JSON"),
        ("a.parquet", b"no parquet", "cannot read the file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=message):
            list(import_trajectories(tmp_path / name))
    for name in ("none.jsonl", "none.parquet"):
        with pytest.raises(UsageError, match="file not found"):
            list(import_trajectories(tmp_path / name))
    with pytest.raises(UsageError, match="Did you mean 'r2e'"):
        list(import_trajectories(tmp_path / "a.json", "r3e"))


@real
def test_the_real_line_of_r2e_gym() -> None:
    (one,) = import_trajectories(REAL / "r2egym_trajectory_ags_swebench_lite.jsonl.xz")
    assert (one.task_id, len(one.turns), one.outcome, one.resolved) == (
        "astropy__astropy-12907",
        38,
        "submitted",
        False,
    )
    assert sum(turn.tool == "" for turn in one.turns) == sum("<function=>" in turn.action for turn in one.turns) > 0


@real
def test_the_real_episodes_of_debug_gym() -> None:
    (failed,) = import_trajectories(REAL / "debug_gym_astropy-6938.json")
    (solved,) = import_trajectories(REAL / "debug_gym_tutorial_pandas_dataframe.json")
    assert (failed.task_id, len(failed.turns), failed.resolved) == ("astropy__astropy-6938", 50, False)
    assert (solved.task_id, len(solved.turns), solved.resolved) == ("pandas_dataframe", 10, True)
    assert {turn.tool for turn in failed.turns} == {"eval", "pdb", "rewrite", "view"}


@real
def test_the_real_conversations_of_debug_gym() -> None:
    pytest.importorskip("pyarrow")
    episodes = list(import_trajectories(REAL / "issta2026_debuggym_swesmith_r2egym_sft_test.parquet"))
    assert len(episodes) == 220
    assert sum(len(one.turns) for one in episodes) == 8067
    assert all(one.observation and one.messages for one in episodes)


def test_a_trajectory_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ours.jsonl"
    turn = Turn(action="a", observation="o")
    one = Trajectory(
        task_id="a", observation="o", turns=(turn,), outcome="submitted", reward_valid=True, resolved=True, reward=1.0
    )
    one.append(path)
    one.append(path)
    for form in ("auto", "swe-gym"):
        assert list(import_trajectories(path, form)) == [one, one]
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(UsageError, match="no folder in it has an agent"):
        list(import_trajectories(tmp_path / "folder.jsonl"))
