"""Generated tasks: seeded, solvable and judged like all others."""

import hashlib
import importlib.util
import json
import posixpath
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from swe_gym.actions import render_call
from swe_gym.curation.mutation import find_mutations, mutate
from swe_gym.curation.validation import validate
from swe_gym.errors import UsageError
from swe_gym.tasks import toy_mutants
from swe_gym.tasks.base import split_lines
from swe_gym.tasks.micro import COUNT, RUNGS, MicroSource, count_tasks, expert_calls
from swe_gym.tasks.toy import ToySource, read_solved
from swe_gym.tasks.toy_mutants import HELD_OUT_FROM, MUTANT_RUNGS, edit_lines, find_edits, read_mutants
from swe_gym.types import FilesWorkspace, FolderWorkspace, Task

LADDER = range(1, RUNGS + 1)
MUTANTS = [mutant for rung in MUTANT_RUNGS for mutant in read_mutants(rung)]


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
    assert tasks == [MicroSource([rung, 1]).get(task.task_id) for task in tasks]
    assert len({task.problem_statement for task in tasks}) > 0.75 * len(tasks)
    assert all(Task.model_validate_json(task.model_dump_json()) == task for task in tasks[:5])
    assert {task.difficulty for task in tasks} == {str(rung)}


def test_unknown_arguments_fail_before_anything_starts() -> None:
    for arguments in ({"difficulty": 9}, {"difficulty": []}, {"first": -1}, {"first": COUNT}, {"count": 0}):
        with pytest.raises(UsageError):
            MicroSource(**arguments)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(UsageError, match="micro-1-0"):
        MicroSource(1, count=5).get("micro-1-5")
    with pytest.raises(UsageError, match="difficulty 7 has 50 tasks, whose numbers range from 0 to 49"):
        MicroSource([1, 7], first=40, count=11)
    for ask in (MicroSource(7).get, expert_calls):
        with pytest.raises(UsageError, match="'micro-7-50': difficulty 7 has 50 tasks"):
            ask("micro-7-50")


def test_without_a_count_each_difficulty_has_as_many_tasks() -> None:
    assert [len(MicroSource(rung).ids()) for rung in (1, *MUTANT_RUNGS)] == [COUNT, 50, 50, 50]
    assert MicroSource([5, 6], first=48).ids()[:] == ["micro-5-48", "micro-6-48", "micro-5-49", "micro-6-49"]
    assert [count_tasks(rung) for rung in (5, 6)] == [COUNT, 50]


def assert_valid(rungs: Any, count: int) -> None:
    """The first tasks are valid: gold has reward 1, empty 0. Those of bundled repositories have a counter-test."""
    source = MicroSource(rungs)
    ids = source.ids()[:count]
    records = validate(source, ids, times=1, workers=2)
    assert [(record.status, record.reason) for record in records] == [("valid", "")] * count
    assert all(record.counter_tests for record in records if int(record.task_id[6]) in MUTANT_RUNGS)
    assert not any(record.broken or record.wrong for record in records)


def test_gold_has_reward_one_and_empty_zero_in_bundled_repositories() -> None:
    assert_valid(MUTANT_RUNGS, len(MUTANT_RUNGS))


@pytest.mark.slow
def test_gold_has_reward_one_and_empty_zero_at_the_lower_difficulties() -> None:
    lower = range(1, MUTANT_RUNGS[0])
    assert_valid(lower, len(lower))


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_every_task_in_a_bundled_repository_is_valid() -> None:
    assert_valid(MUTANT_RUNGS, len(MUTANTS))


@pytest.mark.slow
@pytest.mark.parametrize("rung", LADDER)
def test_the_expert_solves_tasks_by_ordinary_calls(rung: int) -> None:
    first = 500 if rung < MUTANT_RUNGS[0] else HELD_OUT_FROM
    with gymnasium.make("SWE/Micro-v0", difficulty=rung, first=first, count=2) as env:
        for number in range(first, first + 2):
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


# --- bugs of bundled repositories -----------------------------------------------------------------------------------


def test_the_numbers_of_bugs_never_change() -> None:
    """Ids stand for lines of the file, so whoever makes it anew renames tasks."""
    text = Path(toy_mutants._FILE).read_bytes()
    assert hashlib.sha256(text).hexdigest() == "0d627864a177d266612ddd134eca24ff9eabb28ae88250e60e9e5ff91f59a700"
    assert len(text) < 150_000


def test_no_two_tasks_share_a_bug_and_held_out_ones_no_repository() -> None:
    bugs = {(mutant.toy, mutant.path, mutant.broken) for mutant in MUTANTS}
    assert len(bugs) == len(MUTANTS) == 150
    parts: list[set[str]] = [set(), set()]
    for rung in MUTANT_RUNGS:
        for number, mutant in enumerate(read_mutants(rung)):
            parts[number >= HELD_OUT_FROM].add(mutant.toy)
    assert (len(parts[0]), len(parts[1]), parts[0] & parts[1]) == (11, 3, set())


@pytest.mark.parametrize("mutant", MUTANTS[::25], ids=lambda mutant: mutant.toy)
def test_a_bug_is_the_bundled_task_with_another_issue_and_other_hidden_tests(mutant: Any) -> None:
    task, toy = mutant.task("micro-6-0"), ToySource().get(mutant.toy)
    assert isinstance(task.workspace, FilesWorkspace)
    solved = read_solved(mutant.toy)
    changed = {path for path, text in task.workspace.files.items() if text != solved[path]}
    assert changed == {mutant.path, *mutant.hidden}
    for name in ("repo", "python", "env", "eval_cmd", "eval_timeout"):
        assert getattr(task, name) == getattr(toy, name)
    for name in ("evaluation", "timeout", "test_paths"):
        assert getattr(task.oracle, name) == getattr(toy.oracle, name)
    assert sorted((*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)) == sorted(
        (*toy.oracle.fail_to_pass, *toy.oracle.pass_to_pass)
    )
    for test in task.oracle.fail_to_pass:
        path, name = f"{'/'.join(test.split('.')[:-2])}.py", f"def {test.rpartition('.')[2]}("
        assert name not in task.workspace.files[path]
        assert name in task.oracle.test_files[path]


def test_an_issue_names_the_file_at_difficulty_six_only() -> None:
    for mutant in MUTANTS:
        said, function = mutant.problem_statement, mutant.function.rpartition(".")[2]
        named = posixpath.basename(mutant.path) in said
        assert named == (mutant.difficulty == 6) == (f"`{mutant.function}` in `{mutant.path}`" in said)
        if mutant.difficulty == 8:
            assert not re.search(rf"(?<!\w){re.escape(function)}(?!\w)", said)
        assert not any(test.rpartition(".")[2] in said for test in mutant.fail_to_pass)


def test_bundled_repositories_are_solved_as_git_applies_their_patches(tmp_path: Path) -> None:
    for name in ToySource().ids():
        toy = ToySource().get(name)
        assert isinstance(toy.workspace, FolderWorkspace)
        solved, folder = read_solved(name), tmp_path / name
        for path in sorted(file for file in Path(toy.workspace.path).rglob("*") if file.suffix != ".pyc"):
            target = folder / path.relative_to(toy.workspace.path)
            if path.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        subprocess.run(["git", "apply"], input=toy.oracle.gold_patch.encode(), cwd=folder, check=True)
        files = [path for path in folder.rglob("*") if path.is_file()]
        texts = {path.relative_to(folder).as_posix(): path.read_bytes().decode() for path in files}
        assert solved == {**texts, **toy.oracle.test_files}


def test_the_calls_of_the_expert_make_the_solved_file() -> None:
    for mutant in MUTANTS:
        lines = split_lines(mutant.broken.replace("\r\n", "\n"))
        for call in mutant.expert:
            if call.name == "rewrite":
                start, end, text = (call.arguments[name] for name in ("start", "end", "new_code"))
                lines[start - 1 : end] = [text]
        assert "".join(lines) == read_solved(mutant.toy)[mutant.path].replace("\r\n", "\n")


def test_edits_make_one_text_of_another() -> None:
    before, after = "a\r\nb\x0cb\nc\nd\n", "b\x0cb\nC\nc\nd\ne\n"
    assert edit_lines(before, find_edits(before, after)) == after


def test_bugs_are_those_of_the_operators() -> None:
    toy = "larder-overwrite-evicts"
    files = {path: text.encode() for path, text in read_solved(toy).items() if path.startswith("larder/")}
    made = {mutate(files[one.path], one).decode() for one in find_mutations(files)}
    found = Counter(mutant.broken in made for mutant in MUTANTS if mutant.toy == toy and mutant.difficulty < 8)
    assert found[True] > 3
    assert not found[False]


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_the_command_makes_the_same_bugs_again() -> None:
    path = Path(__file__).parents[2] / "benchmarks/micro_mutants.py"
    spec = importlib.util.spec_from_file_location("micro_mutants", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = list(module.find_mutants("larder-overwrite-evicts"))
    known = [mutant for mutant in MUTANTS if mutant.toy == "larder-overwrite-evicts"]
    assert len(known) > 6
    assert all(mutant in made for mutant in known)
