"""`swe-gym images` and the store of local sandboxes, from a registry on the loopback interface."""

import json
from pathlib import Path

import pytest
from servers.registry import Registry, layer

from swe_gym.tasks.file import write_tasks
from swe_gym.types import Task

pytest.importorskip("docker", reason="fetching needs docker-py")


def test_images_are_fetched_listed_and_pruned(cli, toy: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_GYM_CACHE", str(tmp_path / "cache"))
    tasks = tmp_path / "images.jsonl"
    with Registry() as registry:
        good, bad = registry.push("good:1", [layer(("x", b"text"))]), f"{registry.host}/bad:1"
        write_tasks(
            [
                toy.model_copy(update={"task_id": image[-5:-2], "image": image, "workspace": None})
                for image in (good, bad)
            ],
            tasks,
        )
        fetched = cli("images", "fetch", "--source", tasks)
        assert fetched.status == 1
        assert "does not have it" in fetched.out
        assert "1 fetched, 1 failed, 0 were present" in fetched.out
        assert "0 fetched, 0 failed, 1 were present" in cli("images", "fetch", good).out
    assert [image["name"] for image in json.loads(cli("images", "stored", "--json").out)] == [good]
    assert "1 images in" in cli("images", "stored").out
    assert f"1 removed {good}" in cli("images", "prune", "--keep-gb", "0").out
    assert json.loads(cli("images", "stored", "--json").out) == []


def test_an_archive_needs_one_name(cli, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    refused = cli("images", "import", "--archive", tmp_path / "a.tar")
    assert (refused.status, "--archive takes one image" in refused.err) == (2, True)
    refused = cli("images", "import", "a:1", "--archive", tmp_path / "a.tar")
    assert (refused.status, "not an image archive" in refused.err) == (2, True)
