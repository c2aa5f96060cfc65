"""Harbor's ATIF: our trajectories there and back, documents of Harbor's agents, and hostile ones."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from trajectory_grammar import as_read, plain, trajectories

from swe_gym.errors import UsageError
from swe_gym.trajectories.formats import export_trajectories, import_trajectories
from swe_gym.trajectories.formats.atif_export import to_atif
from swe_gym.trajectories.formats.atif_import import from_atif
from swe_gym.trajectories.trajectory import PolicyInfo, Segment, Trajectory, Turn, Usage

# --- our trajectories ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(trajectories())
def test_any_trajectory_survives_a_round_trip(one: Trajectory) -> None:
    (document,) = to_atif([one])
    assert plain(from_atif(as_read(document), "other")) == plain(one.without_oracle())


def episode(**fields: Any) -> Trajectory:
    """Two answers of a model with tokens, the second after a context edit, and a subagent between them."""
    turns = (
        Turn(
            action='<think>\nFirst.\n</think>\n\n{"name": "bash"}',
            thought="First.\nI look.",
            tool="bash",
            arguments={"command": "ls"},
            observation="a.py",
            info={"more_calls": [{"name": "view", "arguments": {"path": "a.py"}}]},
            usage=Usage(prompt_tokens=2, completion_tokens=2, cached_tokens=1, calls=1, cost=0.5),
        ),
        Turn(action="sub", observation="", parent=-1, usage=Usage(prompt_tokens=1, completion_tokens=1, calls=1)),
        Turn(action="Done.", observation="", parent=0, usage=Usage(prompt_tokens=3, completion_tokens=1, calls=1)),
    )
    rows = (
        ((1, 2, 3, 4), (0, 0, 1, 1), (0.0, 0.0, -0.5, -0.25), (-1, -1, 7, 7)),
        ((5, 6), (0, 1), (0.0, -1.0), (-1, 7)),
        ((1, 3, 9, 8), (0, 0, 0, 1), (0.0, 0.0, 0.0, -2.0), (-1, -1, -1, 8)),
    )
    segments = tuple(Segment(token_ids=a, loss_mask=b, logprobs=c, versions=d) for a, b, c, d in rows)
    facts: dict[str, Any] = {
        "task_id": "t",
        "attempt": 2,
        "policy": PolicyInfo(name="llm", model="m"),
        "observation": "Repair it.",
        "turns": turns,
        "segments": segments,
        "outcome": "submitted",
        "reward_valid": True,
        "resolved": True,
        "reward": 1.0,
    }
    return Trajectory(**{**facts, **fields})


def test_tokens_are_in_the_metrics_of_their_steps() -> None:
    (document,) = to_atif([episode()])
    user, first, last = document["steps"]
    assert (user["source"], user["message"]) == ("user", "Repair it.")
    assert (first["reasoning_content"], first["message"]) == ("First.", "I look.")
    assert [call["function_name"] for call in first["tool_calls"]] == ["bash", "view"]
    assert first["metrics"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "cached_tokens": 1,
        "cost_usd": 0.5,
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3, 4],
        "logprobs": [-0.5, -0.25],
        "extra": {"loss_mask": [1, 1], "versions": [7, 7], "temperature": 1.0},
    }
    assert last["metrics"]["prompt_token_ids"] == [1, 3, 9]
    assert first["observation"]["results"][0]["subagent_trajectory_ref"] == [{"trajectory_id": "t.2.1"}]
    (subagent,) = document["subagent_trajectories"]
    assert subagent["steps"][0]["metrics"]["completion_token_ids"] == [6]
    ours = document["extra"]["swe_gym"]
    assert (ours["reward"], ours["attempt"], "segments" in ours) == (1.0, 2, False)
    assert from_atif(as_read(document), "other") == episode()


def test_tokens_without_a_turn_are_kept_beside_the_steps() -> None:
    (document,) = to_atif([episode(turns=episode().turns[:1])])
    assert "completion_token_ids" not in document["steps"][1]["metrics"]
    assert len(document["extra"]["swe_gym"]["segments"]) == 3


def test_what_others_add_to_our_documents_is_kept() -> None:
    (document,) = to_atif([episode()])
    document["notes"] = "checked"
    document["steps"][1]["timestamp"] = "2026-01-01T00:00:00Z"
    document["steps"][2]["extra"]["judge"] = 1
    one = from_atif(as_read(document), "other")
    assert one.info["atif"] == {"notes": "checked"}
    assert one.turns[0].info["atif"] == {"timestamp": "2026-01-01T00:00:00Z"}
    assert one.turns[2].info["atif"] == {"extra": {"judge": 1}}


def test_files_hold_one_document_each(tmp_path: Path) -> None:
    attempts = [episode(attempt=0), episode(attempt=1)]
    for name, count in (("all.jsonl", 2), ("jobs", 2), ("one.json", 1)):
        assert export_trajectories(attempts[:count], "atif", tmp_path / name) == count
    found = [tmp_path / "jobs" / f"t.{attempt}" / "agent" / "trajectory.json" for attempt in (0, 1)]
    assert [one for file in found for one in import_trajectories(file)] == attempts
    assert list(import_trajectories(tmp_path / "jobs")) == attempts
    assert list(import_trajectories(tmp_path / "all.jsonl")) == attempts
    assert list(import_trajectories(tmp_path / "one.json")) == attempts[:1]
    assert export_trajectories([], "atif", tmp_path / "one.json") == 0
    for name, message in (("jobs", "not empty"), ("x.csv", "must end in"), ("new", "two ")):
        with pytest.raises(UsageError, match=message):
            export_trajectories([*attempts[:1], *attempts[:1]], "atif", tmp_path / name)
    assert export_trajectories(attempts, "atif", tmp_path / "both.json") == 2
    assert list(import_trajectories(tmp_path / "both.json")) == attempts


# --- documents of others ------------------------------------------------------------------------------------

CODEX: dict[str, Any] = {
    "schema_version": "ATIF-v1.5",
    "session_id": "s1",
    "agent": {"name": "codex", "version": "0.9", "model_name": "m", "extra": {"originator": "cli"}},
    "steps": [
        {"step_id": 1, "timestamp": "2026-01-01T00:00:00Z", "source": "system", "message": "You repair."},
        {"step_id": 2, "timestamp": "2026-01-01T00:00:01Z", "source": "user", "message": "Repair it."},
        {
            "step_id": 3,
            "timestamp": "2026-01-01T00:00:02Z",
            "source": "agent",
            "model_name": "m-mini",
            "reasoning_effort": "high",
            "message": "Both.",
            "reasoning_content": "Two files.",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "shell", "arguments": {"command": "cat a"}},
                {"tool_call_id": "c2", "function_name": "shell", "arguments": {"command": "cat b"}, "extra": {"s": 1}},
            ],
            "observation": {
                "results": [
                    {"source_call_id": "c2", "content": "b"},
                    {"source_call_id": "c1", "content": [{"type": "text", "text": "a"}]},
                ]
            },
            "metrics": {"prompt_tokens": 9, "completion_tokens": 3, "cached_tokens": 4, "cost_usd": 0.1},
            "extra": {"status": "completed"},
        },
        {"step_id": 4, "source": "user", "message": "Go on."},
        {"step_id": 5, "source": "agent", "message": "Done."},
    ],
    "final_metrics": {"total_prompt_tokens": 9, "total_completion_tokens": 3, "extra": {"reasoning_output_tokens": 2}},
}


@pytest.mark.parametrize("minor", range(9))
def test_a_document_of_an_agent_loses_nothing(tmp_path: Path, minor: int) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps({**CODEX, "schema_version": f"ATIF-v1.{minor}"}))
    (one,) = import_trajectories(path)
    assert (one.task_id, one.observation, one.policy.name, one.policy.model) == (
        "trajectory-1",
        "Repair it.",
        "codex",
        "m",
    )
    assert (one.reward_valid, one.outcome, one.started) == (False, "running", "2026-01-01T00:00:00Z")
    first, last = one.turns
    assert (first.tool, first.arguments, first.thought) == ("shell", {"command": "cat a"}, "Two files.\nBoth.")
    assert first.info["more_calls"] == [{"name": "shell", "arguments": {"command": "cat b"}}]
    assert (first.observation, last.action) == ("b\n\na\n\nGo on.", "Done.")
    assert first.usage == Usage(prompt_tokens=9, completion_tokens=3, cached_tokens=4, calls=1, cost=0.1)
    assert [message["role"] for message in one.messages] == [
        "system", "user", "assistant", "tool", "tool", "user", "assistant"
    ]  # fmt: skip
    kept = first.info["atif"]
    assert (kept["model_name"], kept["reasoning_effort"], kept["extra"]) == ("m-mini", "high", {"status": "completed"})
    assert kept["timestamp"] == "2026-01-01T00:00:02Z"
    assert kept["tool_calls"] == [{"tool_call_id": "c1"}, {"tool_call_id": "c2", "extra": {"s": 1}}]
    assert [result["source_call_id"] for result in kept["results"]] == ["c2", "c1"]
    assert one.info["atif"]["session_id"] == "s1"
    assert one.info["atif"]["agent"] == {"extra": {"originator": "cli"}}
    assert one.info["atif"]["final_metrics"]["extra"] == {"reasoning_output_tokens": 2}
    (document,) = to_atif([one])
    assert from_atif(as_read(document), "other") == one


def answer(number: int, message: str = "ok", **fields: Any) -> dict[str, Any]:
    return {"step_id": number, "source": "agent", "message": message, **fields}


def user(number: int, message: str = "go", **fields: Any) -> dict[str, Any]:
    return {"step_id": number, "source": "user", "message": message, **fields}


def document_of(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    agent = {"name": "terminus-2", "version": "2"}
    return {"schema_version": "ATIF-v1.7", "agent": agent, "steps": list(steps), **fields}


def refers(**ref: Any) -> dict[str, Any]:
    return {"observation": {"results": [{"content": "summary", "subagent_trajectory_ref": [ref]}]}}


def tokens(prompt: list[int], ids: list[int], **more: Any) -> dict[str, Any]:
    return {"metrics": {"prompt_token_ids": prompt, "completion_token_ids": ids, **more}}


def test_prompts_that_continue_extend_a_segment() -> None:
    steps = [
        user(1),
        answer(2, **tokens([1, 2], [3], logprobs=[-0.1])),
        answer(3, **tokens([1, 2, 3, 4], [5], logprobs=[-0.2])),
        answer(4, **tokens([1, 9], [6], logprobs=[-0.3])),
        answer(5, **tokens([1], [7])),  # no log-probabilities: no segment, but the ids stay
    ]
    one = from_atif(document_of(*steps), "t")
    assert [segment.token_ids for segment in one.segments] == [(1, 2, 3, 4, 5), (1, 9, 6)]
    assert one.segments[0].loss_mask == (0, 0, 1, 0, 1)
    assert one.segments[0].logprobs == (0.0, 0.0, -0.1, 0.0, -0.2)
    assert one.turns[3].info["atif"]["metrics"] == {"prompt_token_ids": [1], "completion_token_ids": [7]}
    assert one.turns[0].usage.prompt_tokens == 2


def test_a_summarized_trajectory_is_read_with_its_files(tmp_path: Path) -> None:
    """Terminus 2 writes summaries as files of subagents, and a continuation that repeats the context."""
    main = document_of(
        user(1, "Repair it."),
        answer(2, "one"),
        {"step_id": 3, "source": "system", "message": "Summarized.", **refers(trajectory_path="summary.json")},
        continued_trajectory_ref="cont.json",
    )
    summary = document_of(user(1, "old", is_copied_context=True), user(2, "Sum up."), answer(3, "sum"), notes="n")
    cont = document_of(user(1, "context", is_copied_context=True), answer(2, "old", is_copied_context=True),
                       user(3, "Hand over."), answer(4, "two"))  # fmt: skip
    for name, content in (("trajectory", main), ("summary", summary), ("cont", cont)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (one,) = import_trajectories(tmp_path / "trajectory.json")
    assert [turn.action for turn in one.turns] == ["one", "sum", "two"]
    assert [turn.parent for turn in one.turns] == [None, -1, 0]
    assert one.turns[0].observation == "Summarized.\n\nsummary\n\nHand over."
    assert one.turns[1].info["atif"]["subagent"]["notes"] == "n"
    assert [step["message"] for step in one.turns[1].info["atif"]["subagent"]["opening"]] == ["old", "Sum up."]
    assert [message["content"] for message in one.messages] == ["context", "old", "Hand over.", "two"]
    with pytest.raises(ValueError, match="continued_trajectory_ref: its file was not read"):
        from_atif(document_of(answer(1), continued_trajectory_ref="cont.json"), "t")


IMAGE = [{"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (document_of(answer(1), schema_version="ATIF-v2.0"), "unknown version 'ATIF-v2.0'"),
        (document_of(answer(1), surprise=1), "surprise: "),
        (document_of(answer(1), answer(1)), r"steps\.1\.step_id: 1 instead of 2"),
        (document_of(), "steps: "),
        (document_of(answer(1, metrics={"prompt_tokens": float("nan")})), r"metrics\.prompt_tokens"),
        (document_of(answer(1, metrics={"cost_usd": float("inf")})), r"metrics\.cost_usd"),
        (document_of(answer(1, metrics={"prompt_tokens": 10**300})), r"metrics\.prompt_tokens"),
        (document_of(answer(1, metrics={"prompt_tokens": "7"})), r"metrics\.prompt_tokens"),
        (document_of(answer(1, **tokens([1], [1 << 40], logprobs=[0]))), r"completion_token_ids\.0"),
        (document_of(answer(1, **tokens([1], [2, 3], logprobs=[0]))), "2 completion_token_ids and 1 logprobs"),
        (document_of(answer(1, **tokens([1], [2], logprobs=[float("nan")]))), "logprobs"),
        (document_of(answer(1, **tokens([1], [2], logprobs=[0], extra={"loss_mask": 7}))), "loss_mask: not a list"),
        (document_of(answer(1, **tokens([1], [2], logprobs=[0], extra={"temperature": "x"}))), "temperature"),
        (document_of(answer(1, IMAGE)), r"steps\.0\.message.*not image parts"),
        (document_of(answer(1, observation={"results": [{"content": IMAGE}]})), "observation.*not image parts"),
        (document_of(answer(1, timestamp="soon")), r"steps\.0\.timestamp"),
        (document_of(user(1, reasoning_content="x")), "reasoning_content: only steps of the agent"),
        (document_of(answer(1, llm_call_count=0, metrics={})), "llm_call_count"),
        (document_of(answer(1, observation={"results": [{"source_call_id": "c"}]})), "names no call"),
        (
            document_of(answer(1, tool_calls=[{"tool_call_id": "c", "function_name": "f", "arguments": "x"}])),
            "arguments",
        ),
        (document_of(answer(1, tool_calls=[{"tool_call_id": "c", "function_name": "f", "arguments": {}}] * 2)), "same"),
        (document_of(answer(1, **refers(session_id="s"))), "a session_id names no trajectory"),
        (document_of(answer(1, **refers(trajectory_id="x"))), "names no trajectory of this document"),
        (document_of(answer(1, **refers(trajectory_id="x")), trajectory_id="x"), "leads in a circle"),
        (document_of(answer(1), subagent_trajectories=[document_of(answer(1))]), "trajectory_id of its own"),
        (document_of(answer(1), continuation=document_of(answer(1))), "continuation: not a field"),
        (document_of(answer(1, **refers(trajectory_path="../a.json"))), "not a file beside"),
        (document_of(answer(1, **refers(trajectory_path="/etc/passwd"))), "not a file beside"),
        (document_of(answer(1, **refers(trajectory_path="s3://b/a.json"))), "not a file beside"),
        (document_of(answer(1, **refers(trajectory_path="gone.json"))), "the file is missing"),
        (document_of(answer(1, **refers(trajectory_path="link.json"))), "a link"),
        (document_of(answer(1, **refers(trajectory_path="folder/x.json"))), "a link"),
        (document_of(answer(1, **refers(trajectory_path="pipe.json"))), "not a file"),
        (document_of(answer(1, **refers(trajectory_path="trajectory.json"))), "in a circle"),
        (document_of(answer(1), continued_trajectory_ref="trajectory.json"), "in a circle"),
        (document_of(answer(1), continued_trajectory_ref="text.json"), "continued_trajectory_ref 'text.json': "),
        (document_of(answer(1, **refers(trajectory_path="bomb0.json"))), "more than 1000 files"),
        (document_of(answer(1), extra={"swe_gym": {"verdict": {}}}), "swe_gym.verdict: a document may not set"),
        (document_of(answer(1), extra={"swe_gym": 7}), "extra.swe_gym is not an object"),
        (document_of(answer(1), extra={"swe_gym": '{"reward": NaN}'}), "reward: not a finite number"),
        (document_of(answer(1, extra={"swe_gym": {"reward": float("inf")}})), "reward: not a finite number"),
        (document_of(answer(1, extra={"swe_gym": {"turn": 5}})), "not 0 to 0"),
        (document_of(answer(1, extra={"swe_gym": {"surprise": 5}})), "surprise"),
    ],
)
def test_hostile_documents_are_refused_by_name(tmp_path: Path, document: dict[str, Any], message: str) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(document))
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "link.json").symlink_to(path)
    (tmp_path / "folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    for number in range(12):  # each file refers twice to the next one
        names = [f"bomb{number + 1}.json", f"./bomb{number + 1}.json"]
        steps = [answer(index, **refers(trajectory_path=name)) for index, name in enumerate(names, 1)]
        (tmp_path / f"bomb{number}.json").write_text(json.dumps(document_of(*(steps if number < 11 else [answer(1)]))))
    with pytest.raises(UsageError, match=message):
        list(import_trajectories(path))


def test_a_folder_of_trials_is_read_without_links(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no folder in it has an agent/trajectory\.json"):
        list(import_trajectories(tmp_path))
    for trial in ("a__x", "b__y"):
        (tmp_path / trial / "agent").mkdir(parents=True)
        (tmp_path / trial / "agent/trajectory.json").write_text(json.dumps(CODEX))
    assert [one.task_id for one in import_trajectories(tmp_path)] == ["a__x-1", "b__y-1"]
    (tmp_path / "c__z").symlink_to(tmp_path / "a__x")
    with pytest.raises(UsageError, match=r"c__z/agent/trajectory\.json: a link, or in one"):
        list(import_trajectories(tmp_path))


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_json_of_many_levels_is_read_and_written_or_refused(tmp_path: Path) -> None:
    one = from_atif(document_of(answer(1, extra=nested(500))), "t")
    assert next(to_atif([one]))["steps"][1]["extra"]["swe_gym"]["info"] == one.turns[0].info
    deep = one.model_copy(update={"info": nested(5000)})
    with pytest.raises(UsageError, match=r"t\.0: nested too deeply for ATIF"):
        list(to_atif([deep]))
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(document_of(answer(1), extra={"swe_gym": "[" * 100_000})))
    with pytest.raises(UsageError, match="row 1: nested too deeply"):
        list(import_trajectories(path))


def test_documents_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.json"
    whole: dict[str, Any] = document_of(answer(1), trajectory_id="a")
    for _ in range(40):
        whole = document_of(answer(1), trajectory_id="a", subagent_trajectories=[copy.copy(whole)])
    path.write_text(json.dumps(whole))
    with pytest.raises(UsageError, match="more than 32 documents within each other"):
        list(import_trajectories(path))
