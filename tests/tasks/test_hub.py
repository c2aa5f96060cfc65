"""Datasets of the Hub, from its cache and from a local mirror, without a network."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from servers.hub import COMMIT, Hub

pytest.importorskip("huggingface_hub", reason="the extra hf is not installed")

README = """\
---
license: mit
configs:
- config_name: default
  data_files:
  - split: test
    path: data/test-*
  - split: dev
    path: [data/dev-*]
- config_name: other
  data_files:
  - split: test
    path: other/*.jsonl
---
# A dataset
"""


def row(task_id: str) -> dict[str, Any]:
    return {
        "instance_id": task_id,
        "repo": "a/b",
        "base_commit": "abc",
        "patch": "gold",
        "test_patch": "tests",
        "problem_statement": "It is wrong.",
        "FAIL_TO_PASS": ["one"],
        "PASS_TO_PASS": [],
        "image": "x:1",
        "eval_script": "true",
        "log_parser": "parse_log_pytest",
    }


@pytest.fixture
def home(tmp_path: Path, write_rows) -> Path:
    """A cache of `huggingface_hub` with one dataset."""
    snapshot = f"home/hub/datasets--owner--name/snapshots/{COMMIT}"
    write_rows(f"{snapshot}/data/test-00000-of-00001.parquet", [row("one"), row("two")])
    write_rows(f"{snapshot}/data/dev-00000-of-00001.parquet", [row("three")])
    write_rows(f"{snapshot}/other/part.jsonl", [row("four")])
    (tmp_path / snapshot / "README.md").write_text(README)
    refs = tmp_path / "home/hub/datasets--owner--name/refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    return tmp_path / "home"


LOAD = """\
from swe_gym.errors import SweGymError
from swe_gym.tasks import load_source

def load(**options):
    try:
        source = load_source("swebench", **options)
        print(*source.ids(), source.get(source.ids()[0]).image, end="\\0")
    except SweGymError as error:
        print(type(error).__name__, error, end="\\0")

"""


def load(home: Path, *options: str, **variables: str) -> str:
    """Return what a process without a network says about a dataset."""
    (said,) = load_each(home, [options], **variables)
    return said


def load_each(home: Path, requests: Iterable[Sequence[str]], **variables: str) -> list[str]:
    """Return what one process without a network says about each of several datasets."""
    code = LOAD + "".join(f"load({', '.join(options)})\n" for options in requests)
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", **variables}
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.split("\0")[:-1]


def test_cached_datasets_need_no_network(home: Path) -> None:
    expected = {
        ("dataset='owner/name'",): "one two x:1",
        ("dataset='owner/name'", "split='dev'"): "three x:1",
        ("dataset='owner/name'", "config='other'"): "four x:1",
        ("dataset='owner/name'", f"revision='{COMMIT}'"): "one two x:1",
        ("dataset='owner/name'", "revision='main'", "image='r/{image}'"): "one two r/x:1",
    }
    assert load_each(home, expected) == list(expected.values())


def test_missing_parts_of_a_dataset_are_named(home: Path) -> None:
    expected = {
        ("dataset='owner/name'", "split='train'"): "UsageError the dataset has no split 'train'. Known: test, dev",
        ("dataset='owner/name'", "config='more'"): "UsageError the dataset has no configuration 'more'. Known: default",
        ("dataset='not a name'",): "UsageError 'not a name' is not a valid dataset id",
    }
    for said, start in zip(load_each(home, expected), expected.values(), strict=True):
        assert said.startswith(start)


def test_an_unreachable_dataset_names_the_variables_that_help(home: Path) -> None:
    said = load(home, "dataset='owner/absent'")
    assert said.startswith("TaskError cannot download dataset 'owner/absent'")
    for variable in ("HF_ENDPOINT", "HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN", "path="):
        assert variable in said


def test_without_a_readme_file_names_determine_the_split(home: Path) -> None:
    (home / f"hub/datasets--owner--name/snapshots/{COMMIT}/README.md").write_text("# No head\n")
    assert load(home, "dataset='owner/name'", "split='dev'") == "three x:1"


def test_rows_of_the_hub_are_named_by_file(home: Path) -> None:
    broken = home / f"hub/datasets--owner--name/snapshots/{COMMIT}/other/part.jsonl"
    broken.write_text(json.dumps({**row("four"), "patch": None}))
    assert "other/part.jsonl, line 1: patch: " in load(home, "dataset='owner/name'", "config='other'")


# --- a mirror -------------------------------------------------------------------------------------------------


@pytest.fixture
def mirror(home: Path) -> Iterator[str]:
    """A server with the files in the cache."""
    snapshot = home / f"hub/datasets--owner--name/snapshots/{COMMIT}"
    files = {str(file.relative_to(snapshot)): file.read_bytes() for file in snapshot.rglob("*") if file.is_file()}
    with Hub(files) as hub:
        yield hub.url


def test_a_mirror_is_asked_once_for_the_needed_files(mirror: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    online = {"HF_ENDPOINT": mirror, "HF_HUB_OFFLINE": "0"}
    assert load(new, "dataset='owner/name'", "split='dev'", **online) == "three x:1"
    fetched = {path.name for path in new.rglob("snapshots/*/**/*") if not path.is_dir()}
    assert fetched == {"README.md", "dev-00000-of-00001.parquet"}
    assert load(new, "dataset='owner/name'", "split='dev'") == "three x:1"  # offline now
    assert load(new, "dataset='owner/name'", **online) == "one two x:1"


@pytest.mark.slow
def test_a_dataset_that_the_hub_lacks_is_a_usage_error(mirror: str, tmp_path: Path) -> None:
    online = {"HF_ENDPOINT": mirror, "HF_HUB_OFFLINE": "0"}
    said = load(tmp_path / "new", "dataset='owner/absent'", **online)
    assert said.startswith("UsageError dataset 'owner/absent' does not exist, or needs HF_TOKEN")
    said = load(tmp_path / "new", "dataset='owner/name'", "revision='absent'", **online)
    assert said.startswith("UsageError dataset 'owner/name' has no revision 'absent'")
