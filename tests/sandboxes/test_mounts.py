"""Folders of this machine in sandboxes: `SandboxSpec.mounts`."""

import os
from pathlib import Path

import pytest

from swe_gym.errors import Unsupported
from swe_gym.sandboxes import SandboxSpec, open_sandbox

PLACE = "/opt/some/kit"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "run").write_text("#!/bin/sh\necho from the folder\n")
    (tmp_path / "deep" / "run").chmod(0o755)
    return tmp_path


def test_a_mount_is_seen_and_cannot_be_changed(folder: Path) -> None:
    with open_sandbox(SandboxSpec(mounts={PLACE: str(folder)})) as sandbox:
        assert sandbox.exec(f"{PLACE}/deep/run").text == "from the folder\n"
        assert "Read-only" in sandbox.exec(f"rm -r {PLACE}/deep; touch {PLACE}/new", merge=True).text
    assert sorted(os.listdir(folder)) == ["deep"]


def test_tiers_that_cannot_mount_refuse(folder: Path) -> None:
    with pytest.raises(Unsupported, match="cannot mount"):
        open_sandbox(SandboxSpec(mounts={PLACE: str(folder)}, options={"tier": "process"}))


def test_docker_fills_a_volume_once(folder: Path, docker_image: str) -> None:
    from swe_gym.sandboxes.docker.engine import connect
    from swe_gym.sandboxes.docker.owners import VOLUME_LABEL

    engine = connect(None, 10.0)
    try:
        for _ in range(2):
            with open_sandbox(SandboxSpec(image=docker_image, mounts={PLACE: str(folder)}), "docker") as sandbox:
                assert sandbox.exec(f"{PLACE}/deep/run").text == "from the folder\n"
                assert "Read-only" in sandbox.exec(f"touch {PLACE}/new", merge=True).text
            (folder / "deep" / "run").unlink(missing_ok=True)  # the volume has a copy
        names = [one["Name"] for one in engine.volumes({"label": f"{VOLUME_LABEL}={folder}"})["Volumes"]]
        assert len(names) == 2
        for name in names:
            engine.remove_volume(name)
    finally:
        engine.close()
