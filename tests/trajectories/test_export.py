"""Export of trajectories to other formats, and back."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import MissingDependency, UsageError
from swe_gym.files import write_table
from swe_gym.trajectories.formats import EXPORTERS, export_trajectories, import_trajectories
from swe_gym.trajectories.formats.chat import conversation, to_preferences, to_sft
from swe_gym.trajectories.formats.r2e import to_r2e
from swe_gym.trajectories.formats.rows import to_predictions, to_rows
from swe_gym.trajectories.trajectory import PolicyInfo, Segment, Trajectory, Turn, Usage
from swe_gym.types import ToolSpec, Verdict

TOOL = ToolSpec(name="bash", description="runs it", parameters={"type": "object", "properties": {}})
SECRET = "tests/test_hidden.py::test_secret"


def trajectory(**fields: Any) -> Trajectory:
    turns = (
        Turn(
            action='I look.\n{"name": "bash", "arguments": {"command": "ls"}}',
            thought="I look.",
            tool="bash",
            arguments={"command": "ls"},
            observation="calc.py\n",
            seconds=0.5,
            policy_seconds=1.5,
            usage=Usage(prompt_tokens=10, completion_tokens=5, calls=1),
        ),
        Turn(
            action="hm \ud800",
            observation="No call.",
            parent=-1,
            usage=Usage(prompt_tokens=20, completion_tokens=5, calls=1),
        ),
        Turn(
            action='{"name": "submit", "arguments": {}}',
            tool="submit",
            observation="",
            reward=1.0,
            terminated=True,
            parent=0,
        ),
    )
    facts: dict[str, Any] = {
        "task_id": "a",
        "repo": "acme/calc",
        "env": {"max_turns": 50, "time_limit": 1800.0, "sandbox_options": {"image": "acme/calc:1"}},
        "policy": PolicyInfo(name="llm", model="acme-7b", sampling={"temperature": 1.0}),
        "tools": (TOOL,),
        "seed": 3,
        "observation": "Sums are wrong.",
        "turns": turns,
        "segments": (Segment(token_ids=(1, 2), loss_mask=(0, 1), logprobs=(0.0, -0.5), versions=(-1, 7)),),
        "outcome": "submitted",
        "reason": "submit",
        "failure": f"in {SECRET}",
        "reward_valid": True,
        "resolved": True,
        "reward": 1.0,
        "patch": "diff --git a/calc.py b/calc.py\n",
        "usage": Usage(prompt_tokens=30, completion_tokens=10, calls=2, cost=0.25),
        "seconds": {"grading": 2.0, "total": 9.0},
        "verdict": Verdict(resolved=True, fail_to_pass={SECRET: "passed"}, log=SECRET),
    }
    return Trajectory(**{**facts, **fields})


@pytest.mark.parametrize("form", sorted(EXPORTERS))
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_no_format_exports_hidden_tests(form: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"out{suffix}"
    attempts = [trajectory(attempt=0), trajectory(attempt=1, reward=0.0, resolved=False)]
    count = export_trajectories(attempts[:1] if form == "swebench" else attempts, form, path)
    text = path.read_text()
    assert count >= 1
    assert SECRET not in text
    assert "test_secret" not in text
    rows = json.loads(text) if suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    assert len(rows) == count


def test_our_own_format_survives_a_round_trip(tmp_path: Path) -> None:
    one = trajectory()
    export_trajectories([one], "swe-gym", tmp_path / "out.jsonl")
    assert list(Trajectory.read(tmp_path / "out.jsonl")) == [one.without_oracle()]
    assert list(import_trajectories(tmp_path / "out.jsonl")) == [one.without_oracle()]


def test_r2e_rows_have_the_fields_that_readers_need() -> None:
    (row,) = to_r2e([trajectory()])
    assert {"problem_statement", "docker_image", "exit_reason", "output_patch", "reward", "ds"} <= set(row)
    assert (row["exit_reason"], row["reward"], row["docker_image"]) == ("agent", 1.0, "acme/calc:1")
    first, second, third = row["trajectory_steps"]
    assert first["thought"] == "I look."
    assert first["action"].splitlines() == ["<function=bash>", "<parameter=command>ls</parameter>", "</function>"]
    assert (first["token_usage_total"], first["total_step_time"], first["total_time_traj"]) == (15, 2.0, 2.0)
    assert second["action"] == "hm \ud800"
    assert [step["done"] for step in (first, second, third)] == [False, False, True]


@pytest.mark.parametrize(
    ("reason", "exit_reason"),
    [
        ("turns", "max_step_limit"),
        ("context", "token_limit"),
        ("time", "traj_time_limit"),
        ("PolicyError (server)", "llm_query_error"),
        ("SandboxLost (oom)", "env_exception"),
    ],
)
def test_r2e_rows_use_its_exit_reasons(reason: str, exit_reason: str) -> None:
    (row,) = to_r2e([trajectory(reason=reason)])
    assert row["exit_reason"] == exit_reason


def test_an_r2e_row_can_be_imported_again(tmp_path: Path) -> None:
    one = trajectory()
    export_trajectories([one], "r2e", tmp_path / "out.jsonl")
    (back,) = import_trajectories(tmp_path / "out.jsonl")
    assert (back.task_id, back.repo, back.outcome, back.reason) == ("a", "acme/calc", "submitted", "submit")
    assert (back.reward, back.resolved, back.patch, back.policy.model) == (1.0, True, one.patch, "acme-7b")
    assert [(turn.tool, turn.arguments) for turn in back.turns] == [(turn.tool, turn.arguments) for turn in one.turns]
    assert [turn.usage.tokens for turn in back.turns] == [15, 25, 0]


def test_recorded_messages_are_exported_unchanged() -> None:
    one = trajectory()
    assert [message["role"] for message in conversation(one)] == ["user", "assistant"] * 3
    call = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    kept = ({"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]})
    (row,) = to_sft([trajectory(messages=kept)])
    assert row["messages"] == list(kept)
    assert row["tools"] == [TOOL.openai()]
    (plain,) = to_sft([one])
    assert "tools" not in plain
    assert plain["messages"][-1]["content"] == one.turns[-1].action


def test_pairs_match_the_best_with_the_worst_attempt() -> None:
    def attempt(number: int, reward: float, **fields: Any) -> Trajectory:
        return trajectory(attempt=number, reward=reward, **fields)

    attempts = [
        attempt(0, 0.0),
        attempt(1, 1.0),
        attempt(2, 0.5),
        attempt(3, 1.0, reward_valid=False),
        attempt(4, 0.0, turns=()),
        attempt(5, 1.0, task_id="b"),
    ]
    (pair,) = to_preferences(attempts)
    assert (pair["chosen_attempt"], pair["rejected_attempt"]) == (1, 0)
    assert pair["prompt"] == [{"role": "user", "content": "Sums are wrong."}]
    assert pair["chosen"][0]["role"] == pair["rejected"][0]["role"] == "assistant"
    assert list(to_preferences([attempt(0, 1.0), attempt(1, 1.0)])) == []


def test_the_harness_takes_one_prediction_per_task() -> None:
    (row,) = to_predictions([trajectory(), trajectory(parent="run/a/0:2")])
    assert row == {"instance_id": "a", "model_name_or_path": "acme-7b", "model_patch": trajectory().patch}
    with pytest.raises(UsageError, match="more than once"):
        list(to_predictions([trajectory(), trajectory(attempt=1)]))


def test_a_shortened_patch_is_not_exported_as_a_whole_one() -> None:
    cut = trajectory(patch_bytes=9_000_000)
    assert next(to_rows([cut]))["patch_bytes"] == 9_000_000
    assert next(to_r2e([cut]))["output_patch"] == ""
    assert next(to_predictions([cut]))["model_patch"] == ""


def test_parquet_columns_do_not_depend_on_the_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    empty = trajectory(turns=(), segments=(), seed=None)
    paths = [tmp_path / "full.parquet", tmp_path / "empty.parquet"]
    assert export_trajectories([trajectory()] * 450, "rows", paths[0]) == 450  # several groups
    assert export_trajectories([empty], "rows", paths[1]) == 1
    full, bare = (parquet.read_table(path) for path in paths)
    assert full.schema == bare.schema
    assert set(full.column_names) == set(next(to_rows([empty])))
    row = full.slice(449, 1).to_pylist()[0]
    assert row["segments"][0]["token_ids"] == [1, 2]
    assert row["turns"][0]["arguments"] == '{"command": "ls"}'
    assert row["turns"][1]["action"] == "hm ?"
    assert [turn["parent"] for turn in row["turns"]] == [None, -1, 0]
    assert row["segments"][0]["side_call"] is False
    with pytest.raises(UsageError, match="several types"):
        write_table([{"a": 1}, {"a": [1]}], tmp_path / "mixed.parquet")


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_a_failed_or_empty_export_keeps_the_old_file(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"out{suffix}"
    assert export_trajectories([trajectory()], "rows", path) == 1
    before = path.read_bytes()
    assert export_trajectories([], "rows", path) == 0
    with pytest.raises(UsageError, match="line 2: not a trajectory"):
        export_trajectories(Trajectory.read(_broken(tmp_path)), "rows", path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.glob("*out*")] == [path.name]
    assert [found.name for found in tmp_path.glob(".*")] == []


def _broken(folder: Path) -> Path:
    """Return a file of one trajectory and one invalid line."""
    path = folder / "broken.jsonl"
    path.write_text(json.dumps(trajectory().model_dump()) + "\n{}\n")
    return path


def test_an_unknown_format_or_suffix_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'sft'"):
        export_trajectories([], "stf", tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match=r"\.parquet, \.jsonl, \.json"):
        export_trajectories([trajectory()], "sft", tmp_path / "folder" / "out.csv")
    assert not list(tmp_path.iterdir())


def test_no_folder_is_made_for_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it was not installed
    with pytest.raises(MissingDependency, match="need pyarrow"):
        export_trajectories([trajectory()], "sft", tmp_path / "folder" / "out.parquet")
    assert not list(tmp_path.iterdir())
    assert export_trajectories([trajectory()], "swe-gym", tmp_path / "folder" / "out.jsonl") == 1
