"""Generated tasks: seeded, solvable and judged like all others."""

import json

import gymnasium
import pytest

from swe_gym.actions import render_call
from swe_gym.curation.validation import validate
from swe_gym.errors import UsageError
from swe_gym.tasks.micro import COUNT, RUNGS, MicroSource, expert_calls
from swe_gym.types import Task

LADDER = range(1, RUNGS + 1)


def test_ids_are_computed_on_demand() -> None:
    ids = MicroSource([1, 3], first=10, count=COUNT - 10).ids()
    assert len(ids) == 2 * (COUNT - 10)
    assert ids[:3] == ["micro-1-10", "micro-3-10", "micro-1-11"]
    assert ids[-1] == f"micro-3-{COUNT - 1}"
    assert "micro-3-10" in ids
    assert all(other not in ids for other in ("micro-2-10", "micro-1-9", "micro-1-010", "micro-1-x", "", 3))


@pytest.mark.parametrize("rung", LADDER)
def test_a_task_never_changes_and_others_differ(rung: int) -> None:
    source = MicroSource(rung)
    tasks = [source.get(task_id) for task_id in source.ids()[:200]]
    assert tasks == [MicroSource(LADDER).get(task.task_id) for task in tasks]
    assert len({task.problem_statement for task in tasks}) > 150
    assert all(Task.model_validate_json(task.model_dump_json()) == task for task in tasks[:5])
    assert {task.difficulty for task in tasks} == {str(rung)}


def test_unknown_arguments_fail_before_anything_starts() -> None:
    for arguments in ({"difficulty": 6}, {"difficulty": []}, {"first": -1}, {"first": COUNT}, {"count": 0}):
        with pytest.raises(UsageError):
            MicroSource(**arguments)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(UsageError, match="micro-1-0"):
        MicroSource(1, count=5).get("micro-1-5")


@pytest.mark.slow
def test_gold_has_reward_one_and_empty_zero_at_every_difficulty() -> None:
    source = MicroSource(LADDER)
    records = validate(source, source.ids()[:RUNGS], times=1, workers=2)
    assert [(record.status, record.reason) for record in records] == [("valid", "")] * RUNGS


@pytest.mark.slow
@pytest.mark.parametrize("rung", LADDER)
def test_the_expert_solves_tasks_by_ordinary_calls(rung: int) -> None:
    with gymnasium.make("SWE/Micro-v0", difficulty=rung, first=500, count=2) as env:
        for number in range(500, 502):
            task_id = f"micro-{rung}-{number}"
            env.reset(options={"task_id": task_id})
            for call in expert_calls(task_id):
                *_, info = env.step(render_call(call, "auto"))
                assert info["tool_ok"]
            *_, info = env.step('{"name": "submit", "arguments": {}}')
            assert info["resolved"]


def test_with_one_turn_an_episode_is_one_call() -> None:
    with gymnasium.make("SWE/Micro-v0", difficulty=[1, 2, 3], max_turns=1) as env:
        for rung in (1, 2, 3):
            _, info = env.reset(options={"task_id": f"micro-{rung}-7"})
            (call,) = expert_calls(info["task_id"])
            _, reward, terminated, truncated, info = env.step(
                json.dumps({"name": call.name, "arguments": call.arguments})
            )
            assert (reward, terminated, truncated, info["reward_valid"]) == (1.0, False, True, True)
