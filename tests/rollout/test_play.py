"""The episode loop, policies without a model, and records."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import UsageError
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies.baseline import EmptyPolicy, ScriptedPolicy
from swe_gym.rollout.policies.gold import GoldPolicy
from swe_gym.tasks.file import write_tasks
from swe_gym.tools import TOOLSETS
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.types import Task
from swe_gym.wrappers.record_trajectory import RecordTrajectory

SUBMIT = json.dumps({"name": "submit", "arguments": {}})
SHELL = json.dumps({"name": "bash", "arguments": {"command": "echo done"}})
Make = Callable[..., SweEnv]


@pytest.fixture
def make_env(adder: Task, tmp_path: Path) -> Iterator[Make]:
    """Environments on the one good task, closed after the test."""
    path = tmp_path / "tasks.jsonl"
    write_tasks([adder], path)
    made: list[SweEnv] = []

    def make(**arguments: Any) -> SweEnv:
        made.append(SweEnv("file", {"path": str(path)}, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.mark.parametrize("preset", sorted(TOOLSETS))
def test_gold_is_one_and_empty_is_zero_with_every_preset(make_env: Make, preset: str) -> None:
    env = make_env(tools=preset)
    gold = play(env, GoldPolicy(env))
    assert (gold.reward, gold.resolved, gold.reward_valid, gold.outcome) == (1.0, True, True, "submitted")
    empty = play(env, EmptyPolicy(env))
    assert (empty.reward, empty.resolved, empty.reward_valid, empty.outcome) == (0.0, False, True, "submitted")
    assert empty.patch == ""


@pytest.mark.parametrize("action_format", ["json", "hermes", "r2e", "graph_planner", "openai"])
def test_gold_is_one_in_every_format(make_env: Make, action_format: str) -> None:
    env = make_env(action_format=action_format)
    assert play(env, GoldPolicy(env)).reward == 1.0


def test_a_large_gold_patch_comes_in_pieces(make_env: Make) -> None:
    env = make_env()
    policy = GoldPolicy(env)
    lines = "".join(f"+line {number} {'x' * 80}\n" for number in range(3000))
    head = "diff --git a/big.txt b/big.txt\nnew file mode 100644\n--- /dev/null\n+++ b/big.txt\n@@ -0,0 +1,3000 @@\n"
    env.reset()
    large = env.task.model_copy(
        update={"oracle": env.task.oracle.model_copy(update={"gold_patch": env.task.oracle.gold_patch + head + lines})}
    )

    class Large:
        def ids(self) -> list[str]:
            return [large.task_id]

        def get(self, task_id: str) -> Task:  # noqa: ARG002  there is one
            return large

    env._source = Large()
    trajectory = play(env, policy)
    assert trajectory.reward == 1.0
    assert len(trajectory.turns) > 5
    assert trajectory.patch.count("\n+line ") == 3000


def test_the_trajectory_is_the_episode(make_env: Make) -> None:
    env = make_env(max_turns=3)
    trajectory = play(env, ScriptedPolicy(["I think so.\n" + SHELL, "hm", SUBMIT]), seed=4)
    assert trajectory.seed == 4
    assert (trajectory.task_id, trajectory.env_id, trajectory.env) == ("adder", "", env.config)
    assert "Sums are wrong." in trajectory.observation
    first, second, third = trajectory.turns
    assert (first.thought, first.tool, first.arguments) == ("I think so.", "bash", {"command": "echo done"})
    assert first.observation.startswith("done\n")
    assert first.seconds > 0
    assert (second.action, second.tool, second.info["invalid_actions"]) == ("hm", "", 1)
    assert (third.terminated, third.info) == (True, trajectory.info)
    assert trajectory.sandbox["backend"] == "local"
    assert set(trajectory.seconds) == {"start", "tools", "grading", "policy", "total"}
    assert (trajectory.reason, trajectory.tools) == ("submit", tuple(env.tools))


def test_a_trajectory_survives_its_file(make_env: Make, tmp_path: Path) -> None:
    env = make_env()
    path = tmp_path / "new" / "runs.jsonl"
    awkward = json.dumps({"name": "bash", "arguments": {"command": "echo \ud800 \x00 \u2028 é"}})
    written = [play(env, ScriptedPolicy([awkward, "\udfff", SUBMIT])), play(env, EmptyPolicy(env))]
    for trajectory in written:
        trajectory.append(path)
    assert list(Trajectory.read(path)) == written
    assert path.read_bytes().isascii()
    assert len(path.read_text().splitlines()) == sum(len(one.turns) + 2 for one in written)


def test_threads_may_append_to_one_file(make_env: Make, tmp_path: Path) -> None:
    env = make_env()
    trajectory = play(env, EmptyPolicy(env))
    large = trajectory.model_copy(update={"observation": "x" * 200_000})
    path = tmp_path / "runs.jsonl"
    threads = [threading.Thread(target=lambda: [large.append(path) for _ in range(5)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one == large for one in Trajectory.read(path)] == [True] * 40


def test_an_invalid_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"version": 99}\n')
    with pytest.raises(UsageError, match=r"runs\.jsonl, line 1: not a trajectory of version 1"):
        list(Trajectory.read(path))


def test_nothing_of_the_oracle_is_in_a_trajectory(make_env: Make) -> None:
    env = make_env()
    played = play(env, EmptyPolicy(env)).model_copy(update={"tools": ()})  # their examples name tests/ too
    line = "".join(played.to_lines())
    for secret in ("test_add", "tests/", "a + b", "gold_patch", "AddTest"):
        assert secret not in line


def test_an_infrastructure_failure_is_recorded_as_one() -> None:
    options = {"options": {"files": {"a.py": ""}, "faults": [{"at": "exec", "error": "SandboxLost"}]}}
    with gym.make("SWE/Toy-v0", backend="fake", sandbox_options=options) as env:
        trajectory = play(env, ScriptedPolicy([SHELL]))
    assert (trajectory.outcome, trajectory.reward_valid, trajectory.reward) == ("infra_failed", False, 0.0)
    assert trajectory.info["failure"].startswith("SandboxLost")


def test_the_wrapper_writes_what_play_returns(make_env: Make, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    recorder = RecordTrajectory(make_env(), str(path))
    returned = play(recorder, EmptyPolicy(recorder))
    written = list(Trajectory.read(path))
    assert [one.model_copy(update={"turns": (), "seconds": {}}) for one in written] == [
        returned.model_copy(update={"turns": (), "seconds": {}})
    ]
    assert len(written[0].turns) == 1


def test_the_wrapper_writes_unfinished_episodes_as_running(make_env: Make, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    recorder = RecordTrajectory(make_env(), str(path))
    recorder.reset()
    recorder.step(SHELL)
    recorder.reset()
    recorder.close()
    recorder.close()
    assert [(one.outcome, len(one.turns)) for one in Trajectory.read(path)] == [("running", 1), ("running", 0)]


def test_the_wrapper_is_remade_from_its_spec(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.jsonl")
    with RecordTrajectory(gym.make("SWE/Toy-v0"), path) as recorder:
        assert recorder.spec is not None
        remade = gym.make(gym.envs.registration.EnvSpec.from_json(recorder.spec.to_json()))
    assert isinstance(remade, RecordTrajectory)


def test_records_and_policies_are_for_swe_env(make_env: Make) -> None:
    other = gym.make("CartPole-v1")
    for use in (RecordTrajectory, GoldPolicy, EmptyPolicy):
        with pytest.raises(UsageError, match="SweEnv"):
            use(other)
    with pytest.raises(UsageError, match="no episode"):
        _ = RecordTrajectory(make_env()).trajectory


def test_policies_name_missing_tools(make_env: Make) -> None:
    with pytest.raises(UsageError, match="no tool ends the episode"):
        EmptyPolicy(make_env(tools=["bash"]))
    env = make_env(tools=["view", "submit"])
    with pytest.raises(UsageError, match="shell"):
        play(env, GoldPolicy(env))
    with pytest.raises(UsageError, match="must not be empty"):
        ScriptedPolicy([])
    with pytest.raises(UsageError, match="not one string"):
        ScriptedPolicy("submit")


def test_a_script_restarts_each_episode_and_repeats_its_last_action() -> None:
    policy = ScriptedPolicy(["a", "b"])
    for _ in range(2):
        policy.reset({})
        assert [policy.act("") for _ in range(3)] == ["a", "b", "b"]
