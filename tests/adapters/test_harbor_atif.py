"""Harbor's own model validates our ATIF documents, and its export of traces reads them."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

if "harbor" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("harbor", reason="Harbor is tested in a separate environment")

from harbor.models.trajectories import Trajectory as HarborTrajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
from trajectory_grammar import as_read, plain, trajectories

from swe_gym.trajectories.formats import export_trajectories
from swe_gym.trajectories.formats.atif_export import to_atif
from swe_gym.trajectories.formats.atif_import import from_atif
from swe_gym.trajectories.trajectory import Trajectory


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(trajectories())
def check_any_trajectory(seen: dict[str, int], one: Trajectory) -> None:
    (document,) = to_atif([one])
    theirs = HarborTrajectory.model_validate(as_read(document))
    metrics = [step.metrics for step in theirs.steps if step.metrics]
    seen["documents"] += 1
    seen["subagents"] += bool(theirs.subagent_trajectories)
    seen["tokens"] += any(one.completion_token_ids for one in metrics)
    back = from_atif(as_read(theirs.to_json_dict()), "other")
    assert plain(back) == plain(one.without_oracle())


def test_200_documents_are_valid_and_equal_after_harbor_wrote_them() -> None:
    seen = {"documents": 0, "subagents": 0, "tokens": 0}
    check_any_trajectory(seen)
    assert seen["documents"] == 200
    assert min(seen.values()) >= 10, seen  # Hypothesis also draws from constants of imported modules


def test_a_file_passes_harbors_validator(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.json"
    one = Trajectory(
        task_id="a", observation="o", turns=(), outcome="submitted", reward_valid=True, resolved=False, reward=0.0
    )
    assert export_trajectories([one], "atif", path) == 1
    validator = TrajectoryValidator()
    assert validator.validate(path), validator.errors
