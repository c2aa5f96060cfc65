"""Task files: round trips, and errors of broken files."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_gym.errors import MissingDependency, TaskError, UsageError
from swe_gym.tasks import load_source
from swe_gym.tasks.base import TaskSource
from swe_gym.tasks.file import FileSource, write_tasks
from swe_gym.types import FolderWorkspace, GitWorkspace, Oracle, PythonEnv, SdistWorkspace, TarWorkspace, Task

FORMATS = ("tasks.jsonl", "tasks.json", "tasks.parquet")

ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
text = st.text(max_size=30)
texts = st.lists(text, max_size=3).map(tuple)
mapping = st.dictionaries(text, text, max_size=3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
seconds = st.floats(min_value=0.001, max_value=1e6)
workspaces = st.none() | st.one_of(
    st.builds(FolderWorkspace, path=text.map(lambda name: "/" + name)),
    st.builds(TarWorkspace, path=text.map(lambda name: "/" + name), strip=st.integers(0, 3)),
    st.builds(GitWorkspace, url=text.map(lambda name: "https://example.org/" + name), ref=text),
    st.builds(SdistWorkspace, name=text, version=text, filename=text, sha256=text),
)
tasks = st.builds(
    Task,
    task_id=ids,
    problem_statement=text,
    repo=text,
    workspace=workspaces,
    python=st.none() | st.builds(PythonEnv, version=text, requirements=texts, no_deps=st.booleans()),
    image=st.none() | text,
    workdir=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30).map(lambda name: "/" + name),
    env=mapping,
    eval_cmd=text,
    eval_timeout=seconds,
    difficulty=text,
    tags=texts,
    metadata=st.dictionaries(text, json_values, max_size=3),
    oracle=st.builds(Oracle, gold_patch=text, test_files=mapping, fail_to_pass=texts, timeout=seconds),
)


def small(task_id: str = "one", **fields: object) -> Task:
    return Task.model_validate({"task_id": task_id, "problem_statement": "Fix it.", **fields})


@given(st.lists(tasks, min_size=1, max_size=3, unique_by=lambda task: task.task_id))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tasks_survive_a_round_trip_in_every_format(tmp_path: Path, written: list[Task]) -> None:
    for name in FORMATS:
        write_tasks(written, tmp_path / name)
        source = FileSource(str(tmp_path / name))
        assert list(source.ids()) == [task.task_id for task in written]
        assert [source.get(task.task_id) for task in written] == written


def test_a_file_source_is_loaded_by_name(tmp_path: Path) -> None:
    write_tasks([small()], tmp_path / "tasks.jsonl")
    source = load_source("file", path=str(tmp_path / "tasks.jsonl"))
    assert isinstance(source, TaskSource)
    assert source.get("one") == small()


def test_an_unknown_id_names_the_nearest(tmp_path: Path) -> None:
    write_tasks([small("click-1"), small("attrs-2")], tmp_path / "tasks.jsonl")
    with pytest.raises(UsageError, match="Did you mean 'click-1'"):
        FileSource(str(tmp_path / "tasks.jsonl")).get("clik-1")


@pytest.mark.parametrize("name", FORMATS)
def test_writing_replaces_a_file_and_leaves_nothing_else(tmp_path: Path, name: str) -> None:
    write_tasks([small("old")], tmp_path / name)
    write_tasks([small("new")], tmp_path / name)
    assert list(FileSource(str(tmp_path / name)).ids()) == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_relative_workspaces_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [
        small("folder", workspace={"kind": "folder", "path": "repos/a"}),
        small("tar", workspace={"kind": "tar", "path": "b.tar.gz"}),
        small("git", workspace={"kind": "git", "url": "c"}),
        small("remote", workspace={"kind": "git", "url": "git@example.org:c.git"}),
        small("home", workspace={"kind": "folder", "path": "~/d"}),
    ]
    write_tasks(written, tmp_path / "tasks.json")
    monkeypatch.chdir("/")
    source = FileSource(str(tmp_path / "tasks.json"))
    assert source.get("folder").workspace == FolderWorkspace(path=str(tmp_path / "repos/a"))
    assert source.get("tar").workspace == TarWorkspace(path=str(tmp_path / "b.tar.gz"))
    assert source.get("git").workspace == GitWorkspace(url=str(tmp_path / "c"))
    assert source.get("remote") == written[3]
    assert source.get("home") == written[4]


def test_every_broken_row_is_named_with_its_field(tmp_path: Path) -> None:
    good = small().model_dump()
    rows = [
        json.dumps(good),
        json.dumps({**good, "task_id": "two words"}),
        "",
        "{not json",
        json.dumps({**good, "task_id": "three", "oracle": {"timeout": "soon", "gold_patch": "secret"}}),
        "[1]",
        json.dumps(good),
        json.dumps({**good, "task_id": "four", "colour": "red"}),
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows))
    with pytest.raises(TaskError) as caught:
        FileSource(str(tmp_path / "tasks.jsonl"))
    message = str(caught.value)
    assert str(tmp_path / "tasks.jsonl") in message
    assert "line 2, field 'task_id'" in message
    assert "line 4, not JSON" in message
    assert "line 5, field 'oracle.timeout'" in message
    assert "line 6, not an object" in message
    assert "line 7, field 'task_id': line 1 already has the id 'one'" in message
    assert "line 8, field 'colour'" in message
    assert "line 1," not in message
    assert "secret" not in message


def test_a_long_list_of_broken_rows_is_truncated(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([{"task_id": ""}] * 500))
    with pytest.raises(TaskError, match=r"and 980 more") as caught:
        FileSource(str(tmp_path / "tasks.json"))
    assert len(str(caught.value).splitlines()) == 22


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_rows_of_a_dataset_are_not_reported_as_broken_tasks(write_rows, name: str) -> None:
    path = write_rows(name, [{"instance_id": f"a__b-{n}", "repo": "a/b", "FAIL_TO_PASS": "[]"} for n in range(50)])
    with pytest.raises(TaskError, match=r"is not a task file: \w+ 1: no task_id\..*use its source") as caught:
        FileSource(str(path))
    assert "\n" not in str(caught.value)


def test_a_parquet_file_of_another_program_may_hold_lists_and_structs(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"task_id": "one", "problem_statement": "Fix it.", "tags": ["a"], "oracle": {"fail_to_pass": ["t.py::t"]}}
    parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / "tasks.parquet")
    assert FileSource(str(tmp_path / "tasks.parquet")).get("one") == small(tags=["a"], oracle=row["oracle"])


def test_a_broken_parquet_column_is_named(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"task_id": "one", "problem_statement": "Fix it.", "oracle": "{"}
    parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / "tasks.parquet")
    with pytest.raises(TaskError, match="row 1, field 'oracle': not JSON"):
        FileSource(str(tmp_path / "tasks.parquet"))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", b""), ("a.jsonl", b"\xff\n"), ("a.json", b"{}"), ("a.json", b"]"), ("a.parquet", b"PAR1")],
)
def test_a_file_without_tasks_is_rejected(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=name):
        FileSource(str(tmp_path / name))


def test_a_wrong_path_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file not found"):
        FileSource(str(tmp_path / "none.jsonl"))
    with pytest.raises(UsageError, match=r"must end in \.parquet, \.jsonl, \.json"):
        FileSource(str(tmp_path / "tasks.csv"))


def test_tasks_that_json_cannot_hold_are_not_written(tmp_path: Path) -> None:
    for metadata in ({"a": float("nan")}, {"a": (1, 2)}, {"a": {1: 2}}, {"a": object()}):
        with pytest.raises(UsageError, match="'one'"):
            write_tasks([small(metadata=metadata)], tmp_path / "tasks.jsonl")
    with pytest.raises(UsageError, match="two tasks have the id 'one'"):
        write_tasks([small(), small()], tmp_path / "tasks.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'swe-gym\[parquet\]'"):
        write_tasks([small()], tmp_path / "tasks.parquet")
    (tmp_path / "tasks.parquet").touch()
    with pytest.raises(MissingDependency):
        FileSource(str(tmp_path / "tasks.parquet"))
