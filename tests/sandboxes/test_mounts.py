"""Folders of this machine in sandboxes: `SandboxSpec.mounts`."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from swe_gym.errors import Unsupported
from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.testing.sandbox_contract.case import eventually

if TYPE_CHECKING:
    import docker

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


def removes(engine: "docker.APIClient", name: str) -> bool:
    """Whether the engine removes a volume: a container that is being removed still uses it."""
    import docker.errors

    try:
        engine.remove_volume(name)
    except docker.errors.APIError:
        return False
    return True


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
            eventually(partial(removes, engine, name), 60, "the volume is removed once its container is")
    finally:
        engine.close()
