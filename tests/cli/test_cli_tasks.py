from pathlib import Path

import pytest

from swe_gym.tasks import load_source
from swe_gym.tasks.file import FileSource
from swe_gym.types import Task


def test_tasks_are_listed_one_a_line(cli) -> None:
    result = cli("tasks", "list")
    assert (result.status, result.err) == (0, "")
    header, *lines = result.out.splitlines()
    assert header.split() == ["task", "level", "repository", "tags", "the", "issue"]
    assert [line.split()[0] for line in lines] == load_source("toy").ids()
    assert "Overwriting a key in a full cache throws out somebody else's entry" in result.out


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--match", "l*"], ["larder-overwrite-evicts", "ledgerline-failed-batch"]),
        (["--match", "l*", "--difficulty", "easy"], ["larder-overwrite-evicts"]),
        (["--tag", "debugger", "--tag", "merge"], ["threeway-lines-return"]),
    ],
)
def test_tasks_are_selected(cli, options: list[str], ids: list[str]) -> None:
    lines = cli("tasks", "list", *options).out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ids


def test_a_task_is_shown_without_its_oracle_unless_that_is_asked_for(cli, toy: Task) -> None:
    plain = cli("tasks", "show", toy.task_id).out
    assert plain.startswith(toy.task_id)
    assert toy.problem_statement in plain
    assert "To make pass: 5, to keep passing: 12." in plain
    for secret in (*toy.oracle.fail_to_pass, "move_to_end"):
        assert secret not in plain
    full = cli("tasks", "show", toy.task_id, "--oracle").out
    assert toy.oracle.gold_patch in full
    for test in (*toy.oracle.fail_to_pass, *toy.oracle.pass_to_pass):
        assert f"    {test}\n" in full


def test_what_others_wrote_is_printed_as_they_wrote_it(cli, toy: Task, tmp_path: Path) -> None:
    from swe_gym.tasks.file import write_tasks

    text = "# [bold]Odd[/bold] :smile: \\[x] `[/]`"
    odd = toy.model_copy(update={"problem_statement": text, "repo": "[red]a[/]", "tags": ("[b]",)})
    write_tasks([odd], tmp_path / "odd.json")
    for command in (["list"], ["show", toy.task_id]):
        out = cli("tasks", *command, "--source", "odd.json").out
        assert text.lstrip("# ") in out
        assert "[red]a[/]" in out


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_exported_tasks_are_a_source(cli, tmp_path: Path, suffix: str) -> None:
    result = cli("tasks", "export", f"new/folder/some{suffix}", "--match", "l*")
    assert (result.status, result.out) == (0, f"2 tasks in new/folder/some{suffix}\n")
    path = tmp_path / f"new/folder/some{suffix}"
    assert list(FileSource(str(path)).ids()) == ["larder-overwrite-evicts", "ledgerline-failed-batch"]
    assert "larder-overwrite-evicts" in cli("tasks", "list", "-s", path).out


@pytest.mark.network
def test_a_real_task_is_made_validated_and_added(cli, tmp_path: Path, task_file: Path) -> None:
    issue = tmp_path / "issue.md"
    issue.write_text("Matching a file fails.\n")
    command = ["tasks", "new", "--from-pypi", "pathspec", "0.12.0", "0.12.1", "--runs", "1"]
    result = cli(*command, "-o", task_file, "--statement", issue)
    assert (result.status, result.err) == (0, "")
    assert "pypi__pathspec-0.12.1 is valid, and stands in" in result.out
    tasks = FileSource(str(task_file))
    assert list(tasks.ids()) == ["larder-overwrite-evicts", "useless-gold", "pypi__pathspec-0.12.1"]
    assert tasks.get("pypi__pathspec-0.12.1").problem_statement == "Matching a file fails.\n"


def test_a_broken_task_file_is_found_before_a_task_is_built(cli, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("nonsense\n")
    result = cli("tasks", "new", "--from-pypi", "no-such-package-at-all", "1", "2")
    assert result.status == 2
    assert "tasks.jsonl has broken rows" in result.err
