"""`swe-gym images ags` against a stand-in for Tencent's API, through Tencent's SDK."""

import json
from pathlib import Path

import pytest
from servers.ags_server import AgsServer

from swe_gym.tasks.file import write_tasks
from swe_gym.types import Task

pytest.importorskip("tencentcloud", reason="the extra ags is not installed")


@pytest.fixture
def images(adder: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task file with three images, one of them twice. The poll and the account's key are set."""
    monkeypatch.setenv("TENCENTCLOUD_SECRET_ID", "an-id")
    monkeypatch.setenv("TENCENTCLOUD_SECRET_KEY", "a-key")
    names = ["r.io/a/one:1", "r.io/a/two@sha256:" + "0" * 64, "r.io/b/one:1", "r.io/a/one:1"]
    fields = [
        {"task_id": str(number), "image": name, "workspace": None, "workdir": "/testbed"}
        for number, name in enumerate(names)
    ]
    write_tasks([adder.model_copy(update=field) for field in fields], tmp_path / "tasks.jsonl")
    return str(tmp_path / "tasks.jsonl")


def test_each_image_gets_a_tool_of_its_own_once(cli, images: str, tmp_path: Path) -> None:
    with AgsServer() as server:
        words = ["images", "ags", tmp_path / "tools.json", "--source", images, f"endpoint={server.url}"]
        words += ["envd_image=r.io/envd:1", "memory_mb=2048", "role_arn=qcs::cam::uin/1:roleName/pull"]
        for _ in range(2):  # the second run makes no tool
            result = cli(*words)
            assert result.status == 0, result.out + result.err
        names = json.loads((tmp_path / "tools.json").read_text())
        assert list(names) == ["r.io/a/one:1", "r.io/a/two@sha256:" + "0" * 64, "r.io/b/one:1"]
        assert len(set(names.values())) == len(server.tools) == server.calls.count("CreateSandboxTool") == 3
        assert all(len(name) <= 50 for name in server.tools)
        tool = server.tools[names["r.io/a/one:1"]]
        assert tool["CustomConfiguration"]["Resources"] == {"CPU": "2", "Memory": "2048Mi"}
        assert tool["CustomConfiguration"]["Command"] == ["/mnt/envd"]
        assert tool["RoleArn"] == "qcs::cam::uin/1:roleName/pull"
        assert tool["StorageMounts"][0]["StorageSource"]["Image"]["Reference"] == "r.io/envd:1"


@pytest.mark.slow
def test_a_failed_tool_is_named_and_the_others_are_made(cli, images: str, tmp_path: Path) -> None:
    with AgsServer(failing="r.io/b/one:1") as server:
        result = cli("images", "ags", tmp_path / "tools.json", "--source", images, f"endpoint={server.url}")
    assert result.status == 1
    assert "of r.io/b/one:1: FAILED" in (result.out + result.err)
    assert len(json.loads((tmp_path / "tools.json").read_text())) == 2


def test_a_refused_request_and_a_missing_key_are_explained(
    cli, images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AgsServer() as server:
        words = ["images", "ags", tmp_path / "tools.json", "--source", images, f"endpoint={server.url}"]
        result = cli(*words, "registry_type=wrong")
        assert result.status == 1
        assert "InvalidParameter: unknown ImageRegistryType" in (result.out + result.err)
        monkeypatch.delenv("TENCENTCLOUD_SECRET_KEY")
        result = cli(*words)
        assert result.status == 2
        assert "TENCENTCLOUD_SECRET_KEY" in (result.out + result.err)
