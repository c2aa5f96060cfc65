"""Wrappers of one environment and of vector environments."""

import contextlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import SyncVectorEnv

from swe_gym import wrappers
from swe_gym.envs import SweEnv
from swe_gym.errors import UsageError
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.wrappers import vector

Make = Callable[..., gym.Env[str, str]]
MakeMany = Callable[..., gym.vector.VectorEnv[Any, Any, Any]]

LS = '{"name": "bash", "arguments": {"command": "ls"}}'
SUBMIT = '{"name": "submit", "arguments": {}}'
NAMES = [name for name in wrappers.__all__ if name != "Curriculum"]

ARGUMENTS: dict[str, dict[str, Any]] = {
    "Budget": {"tokens": 4000, "turns": 3},
    "ChatMessages": {"system": "Be brief."},
    "HashedText": {"size": 32},
    "RecordTrajectory": {},
    "ShapeReward": {"per_turn": -0.01, "per_invalid": -0.1},
    "StateSignature": {"ignore": ["in [0-9.]+s"]},
    "TaskCurriculum": {"order": "uniform", "task_ids": ["task-01", "task-02"]},
    "ToolMenu": {"menu": [{"name": "bash", "arguments": {"command": "{what}"}}, {"name": "submit", "once": True}],
                 "values": {"what": ["ls", "pwd"]}},
    "TruncateObservation": {"max_length": 120},
}  # fmt: skip


def actions_for(envs: Any, count: int) -> Any:
    choices = [0, 1, 2] if isinstance(envs.single_action_space, gym.spaces.Discrete) else [LS, "no call", SUBMIT]
    return np.array(choices[:count]) if isinstance(choices[0], int) else tuple(choices[:count])


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
@pytest.mark.parametrize("name", NAMES)
def test_wrapped_environments_are_environments(single: Make, name: str) -> None:
    env = getattr(wrappers, name)(single(task_id="task-01", max_turns=50), **ARGUMENTS[name])
    if name == "TaskCurriculum":
        env = wrappers.TaskCurriculum(single(max_turns=50), task_ids=["task-01"])
    check_env(env, skip_render_check=True, skip_close_check=True)


@pytest.mark.parametrize("name", NAMES)
def test_constructors_are_recorded(single: Make, name: str) -> None:
    kind = getattr(wrappers, name)
    env = kind(single(), **ARGUMENTS[name])
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert type(again) is kind
    assert again.observation_space == env.observation_space
    assert again.action_space == env.action_space
    own = set(inspect.signature(kind).parameters) - {"env"}
    assert set(env.spec.additional_wrappers[-1].kwargs) == own
    again.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vector_wrappers_equal_wrapped_environments(many: MakeMany, single: Make, name: str, mode: str) -> None:
    """The vector version equals Gymnasium's SyncVectorEnv over individually wrapped environments."""
    ours = getattr(vector, name)(many(autoreset_mode=mode), **ARGUMENTS[name])
    theirs = SyncVectorEnv(
        [lambda: getattr(wrappers, name)(single().unwrapped, **ARGUMENTS[name])] * 3, autoreset_mode=mode
    )
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.single_observation_space == theirs.single_observation_space
    assert data_equivalence(ours.reset(seed=4), theirs.reset(seed=4))
    for _ in range(8):
        actions = actions_for(ours, 3)
        assert data_equivalence(ours.step(actions), theirs.step(actions))
    assert set(ours._saved_kwargs) == set(inspect.signature(getattr(wrappers, name)).parameters) - {"env"}
    theirs.close()


def test_vector_wrappers_check_their_environment(many: MakeMany, single: Make) -> None:
    stock = SyncVectorEnv([lambda: single()])
    with pytest.raises(UsageError, match="is for SweVectorEnv"):
        vector.Budget(stock, turns=1)
    envs = many()
    envs.reset()
    with pytest.raises(UsageError, match="before the first reset"):
        vector.Budget(envs, turns=1)
    with pytest.raises(TypeError, match="unheard_of"):
        vector.Budget(many(), unheard_of=1)


def test_a_conversation(single: Make) -> None:
    env = wrappers.ChatMessages(single(), system="Be brief.", role="tool")
    messages, _ = env.reset(seed=1)
    assert [message["role"] for message in messages] == ["system", "user"]
    messages, *_ = env.step(LS)
    assert messages[2:] == (
        {"role": "assistant", "content": LS},
        {"role": "tool", "content": "a.py\n[exit code 0]"},
    )
    assert messages in env.observation_space
    assert len(env.reset()[0]) == 2
    assert env.step("x" * 2_000_000)[0] in env.observation_space
    with pytest.raises(UsageError, match="texts"):
        wrappers.ChatMessages(gym.make("CartPole-v1"))


def count_words(text: str) -> int:
    return len(text.split())


def test_a_budget_of_tokens_ends_with_a_verdict(single: Make) -> None:
    env = wrappers.Budget(single(), tokens=1000, count_tokens=count_words)
    observation, info = env.reset(seed=1)
    left = info["tokens_left"]
    assert left == 1000 - count_words(observation)
    _, _, _, truncated, info = env.step(LS)
    assert not truncated
    assert info["tokens_left"] == left - count_words(LS + "a.py\n[exit code 0]")
    observation, _, terminated, truncated, info = env.step("word " * 1000)
    assert "No tool call" in observation or observation
    assert (terminated, truncated) == (False, True)
    assert (info["limit"], info["outcome"], info["reward_valid"]) == ("tokens", "agent_limit", True)
    assert info["tokens_left"] == 0
    assert env.reset()[1]["tokens_left"] > 0


@pytest.mark.parametrize(("budget", "steps"), [({"turns": 2}, 2), ({"seconds": 1e-6}, 1), ({"tokens": 1}, 1)])
def test_budgets_end_episodes(single: Make, budget: dict[str, Any], steps: int) -> None:
    env = wrappers.Budget(single(), **budget)
    env.reset(seed=1)
    for step in range(steps):
        *_, truncated, info = env.step(LS)
        assert truncated == (step == steps - 1)
    assert info["limit"] == next(iter(budget))


def test_the_last_step_of_a_budget_keeps_its_reward(single: Make) -> None:
    env = wrappers.Budget(wrappers.ShapeReward(single(), per_turn=-0.25), turns=2)
    env.reset(seed=1)
    assert [env.step(LS)[1] for _ in range(2)] == [-0.25, 1.0 - 0.25]


def test_a_submission_in_the_last_turn_counts(single: Make) -> None:
    env = wrappers.Budget(single(), turns=1)
    env.reset(seed=1)
    _, _, terminated, truncated, info = env.step(SUBMIT)
    assert (terminated, truncated, info["outcome"]) == (True, False, "submitted")


@pytest.mark.parametrize("wrong", [{}, {"turns": 0}, {"tokens": -1}])
def test_invalid_budgets_are_errors(single: Make, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Budget needs"):
        wrappers.Budget(single(), **wrong)


def test_wrappers_check_their_environment(single: Make) -> None:
    with pytest.raises(UsageError, match="put it around the environment"):
        wrappers.Budget(wrappers.HashedText(single()), turns=1)
    for name in ("Budget", "ShapeReward", "RecordTrajectory", "ToolMenu", "TaskCurriculum", "HashedText"):
        with pytest.raises(UsageError):
            getattr(wrappers, name)(gym.make("CartPole-v1"), **ARGUMENTS[name])


def bash(command: str) -> str:
    return json.dumps({"name": "bash", "arguments": {"command": command}})


def test_states_are_named_and_loops_found() -> None:
    """Files alone do not tell who has read: both episodes have the same files at turns 1 and 2."""
    script = [
        bash("cat larder/cache.py; echo in 0.031s"),
        bash("ls"),
        bash("ls"),
        bash("echo 1 >> new.py"),
        bash("rm new.py"),
        bash("ls"),
    ]
    others = [
        bash("ls"),
        bash("cat larder/cache.py; echo in 0.029s"),
        bash("python -c 'import larder'"),
        bash("echo 2 >> new.py"),
    ]
    found: list[list[tuple[str, int]]] = []
    point = None
    for actions in (script, others):
        with contextlib.closing(SweEnv("toy", task_id="larder-overwrite-evicts")) as plain:
            env = wrappers.StateSignature(plain, ["in [0-9.]+s"])
            infos = [env.reset(seed=1)[1]]
            for action in actions:
                infos.append(env.step(action)[-1])
                if action == script[1] and point is None:
                    point = plain.checkpoint()
            found.append([(info["signature"], info["same_as"]) for info in infos])
            assert env.step(SUBMIT)[-1]["signature"] == ""
    one, other = ([signature for signature, _ in row] for row in found)
    assert one[0] == other[0]
    assert one[1] != other[1]  # what they have read
    assert one[2] == other[2]  # in another order
    assert [loop for _, loop in found[0]] == [-1, -1, -1, 2, -1, -1, 5]
    assert one[4] != other[4]  # another content
    assert len({*one, *other}) == 8
    with contextlib.closing(SweEnv("toy")) as plain:
        with pytest.raises(UsageError, match="'\\(' is not a regular expression"):
            wrappers.StateSignature(plain, ["("])
        env = wrappers.StateSignature(plain, ["in [0-9.]+s"])
        assert env.reset(options={"checkpoint": point})[1]["signature"] == one[2]
        script = [
            json.dumps({"name": "bash", "arguments": {"command": f"truncate -s {size} large"}}) for size in ("9M", "9")
        ]
        infos = [env.step(action)[-1] for action in script] + [env.end("tokens")[-1]]
    assert [bool(info["signature"]) for info in infos] == [False, True, False]  # too large, small, over
    assert infos[-1]["limit"] == "tokens"


def test_a_counter_can_be_named(single: Make) -> None:
    env = wrappers.Budget(single(), tokens=10_000, count_tokens="builtins:len")
    observation, info = env.reset(seed=1)
    assert info["tokens_left"] == 10_000 - len(observation)


def test_long_observations_are_cut(single: Make) -> None:
    env = wrappers.TruncateObservation(single(), 250)
    observation, _ = env.reset(seed=1)
    assert len(observation) <= 250
    assert "cut ...]" in observation
    with pytest.raises(UsageError):
        wrappers.TruncateObservation(single(), 0)


def test_shaping_adds_up_and_never_rewards_a_failure(single: Make) -> None:
    env = wrappers.ShapeReward(single(), per_turn=-0.25, per_invalid=-0.5, scale=2.0)
    env.reset(seed=1)
    assert env.step(LS)[1] == -0.25
    _, reward, _, _, info = env.step("no call")
    assert reward == -0.75
    assert info["reward_components"] == {"shaping": -0.75}
    _, reward, terminated, _, info = env.step(SUBMIT)
    assert terminated
    assert reward == pytest.approx(sum(info["reward_components"].values()))
    faults = {"faults": [{"at": "exec", "nth": 1, "error": "SandboxLost"}]}
    env = wrappers.ShapeReward(single(sandbox_options={"options": faults}), per_turn=-0.25)
    env.reset(seed=1)
    _, reward, _, truncated, info = env.step(LS)
    assert (reward, truncated, info["reward_valid"]) == (0.0, True, False)
    with pytest.raises(UsageError, match="finite"):
        wrappers.ShapeReward(single(), scale=float("nan"))


def test_a_menu(single: Make) -> None:
    env = wrappers.ToolMenu(single(), **ARGUMENTS["ToolMenu"])
    assert [json.loads(call).get("arguments") for call in env.calls] == [{"command": "ls"}, {"command": "pwd"}, {}]
    _, info = env.reset(seed=1)
    assert info["action_mask"].tolist() == [1, 1, 1]
    observation, *_, info = env.step(np.int64(0))
    assert observation == "a.py\n[exit code 0]"
    assert info["action_mask"].tolist() == [1, 1, 1]
    *_, info = env.step(2)
    assert info["outcome"] == "submitted"
    assert env.action_masks().tolist() == [True, True, False]
    assert env.action_space.sample(mask=info["action_mask"]) in (0, 1)
    env.reset()
    assert env.action_masks().all()


def test_the_menu_of_a_tool_set(single: Make) -> None:
    env = wrappers.ToolMenu(single())
    assert len(env.calls) == env.action_space.n > 4
    assert json.loads(env.calls[-1])["name"] == "submit"
    env.reset(seed=1)
    for action in range(5):
        assert env.step(action)[4]["invalid_actions"] == 0


@pytest.mark.parametrize(
    "menu",
    [
        [],
        [{"name": "unheard_of"}],
        [{"name": "bash", "arguments": {"unheard_of": 1}}],
        [{"arguments": {}}],
        [{"name": "submit", "twice": True}],
    ],
)
def test_invalid_menus_are_errors(single: Make, menu: Any) -> None:
    with pytest.raises(UsageError):
        wrappers.ToolMenu(single(), menu)


def test_vector_menus_have_masks(many: MakeMany) -> None:
    with vector.ToolMenu(many(), **ARGUMENTS["ToolMenu"]) as envs:
        _, infos = envs.reset(seed=1)
        assert infos["action_mask"].shape == (3, 3)
        assert envs.action_masks().all()
        envs.step(np.array([0, 1, 2]))
        assert envs.action_masks().tolist() == [[True] * 3, [True] * 3, [True, True, False]]
    assert envs.closed


def test_features_have_unit_length_and_distinguish_texts(single: Make) -> None:
    env = wrappers.HashedText(single(), 64)
    first, _ = env.reset(seed=1)
    assert first in env.observation_space
    assert np.linalg.norm(first) == pytest.approx(1)
    other, *_ = env.step(LS)
    assert other @ first < 0.9
    assert not env.observation("").any()
    assert env.observation("naïve \ud800 🙂").any()
    assert np.allclose(env.observation("a b"), env.observation("A  b"))
    with pytest.raises(UsageError):
        wrappers.HashedText(env)


def test_round_robin_plays_every_task_once(single: Make) -> None:
    env = wrappers.TaskCurriculum(single(), "round_robin")
    ids = list(env.unwrapped.source.ids())
    assert [env.reset()[1]["task_id"] for _ in range(2 * len(ids))] == ids + ids
    assert env.reset(options={"task_id": ids[3]})[1]["task_id"] == ids[3]
    assert env.reset()[1]["task_id"] == ids[0]


def test_shuffled_plays_every_task_once_in_random_order(single: Make) -> None:
    env = wrappers.TaskCurriculum(single(), "shuffled")
    ids = sorted(env.unwrapped.source.ids())
    seeds = [7] + [None] * (2 * len(ids) - 1)
    played = [env.reset(seed=seed)[1]["task_id"] for seed in seeds]
    first, second = played[: len(ids)], played[len(ids) :]
    assert sorted(first) == sorted(second) == ids
    assert first != second
    assert [env.reset(seed=seed)[1]["task_id"] for seed in seeds] == played


def test_the_seed_determines_the_tasks(single: Make) -> None:
    env = wrappers.TaskCurriculum(single(), "uniform")
    first = [env.reset(seed=seed)[1]["task_id"] for seed in (7, None, None)]
    assert [env.reset(seed=seed)[1]["task_id"] for seed in (7, None, None)] == first


def test_tasks_that_are_sometimes_solved_are_preferred() -> None:
    curriculum = wrappers.Curriculum(["always", "sometimes", "never"], "pass_rate")
    for episode in range(100):
        curriculum.played("always", resolved=True)
        curriculum.played("sometimes", resolved=episode % 2 == 0)
        curriculum.played("never", resolved=False)
        curriculum.played("unheard_of", resolved=True)
    assert curriculum.pass_rates() == {"always": 1.0, "sometimes": 0.5, "never": 0.0}
    rng = np.random.default_rng(0)
    drawn = [curriculum.next(rng) for _ in range(1000)]
    assert 850 < drawn.count("sometimes") < 970
    assert min(drawn.count("always"), drawn.count("never")) > 10
    for wrong in (([], "uniform"), (["a"], "unheard_of")):
        with pytest.raises(UsageError):
            wrappers.Curriculum(*wrong)


def test_vector_environments_share_a_curriculum(many: MakeMany) -> None:
    envs = vector.TaskCurriculum(many(4), "round_robin")
    ids = list(envs.unwrapped.envs[0].unwrapped.source.ids())
    _, infos = envs.reset(seed=1)
    assert sorted(infos["task_id"]) == sorted(ids[:4])
    infos = envs.step((SUBMIT,) * 4)[4]
    assert infos["outcome"].tolist() == ["submitted"] * 4
    assert sorted(envs.curriculum.pass_rates()) == sorted(ids[:4])
    assert sorted(envs.step((SUBMIT,) * 4)[4]["task_id"]) == sorted(ids[4:8])


def test_a_vector_environment_draws_without_replacement(many: MakeMany) -> None:
    envs = vector.TaskCurriculum(many(12), "shuffled")
    ids = sorted(envs.unwrapped.envs[0].unwrapped.source.ids())
    drawn = list(envs.reset(seed=0)[1]["task_id"])
    assert sorted(drawn) == ids
    assert list(envs.reset(seed=1)[1]["task_id"]) != drawn
    assert list(envs.reset(seed=0)[1]["task_id"]) == drawn
    envs.step((SUBMIT,) * 12)
    assert sorted(envs.step((SUBMIT,) * 12)[4]["task_id"]) == ids  # the second pass


def test_a_curriculum_starts_warm_sandboxes(many: MakeMany) -> None:
    envs = vector.TaskCurriculum(many(2, warm=2), "round_robin")
    ids = list(envs.unwrapped.envs[0].unwrapped.source.ids())
    played = list(envs.reset(seed=1)[1]["task_id"])
    for _ in range(3):
        envs.step((SUBMIT,) * 2)
        played += list(envs.step((SUBMIT,) * 2)[4]["task_id"])
    assert sorted(played) == sorted(ids[:8])


def test_vector_environments_write_one_file(many: MakeMany, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    envs = vector.RecordTrajectory(many(), path=str(path))
    envs.reset(seed=1)
    envs.step((LS, SUBMIT, SUBMIT))
    envs.step((SUBMIT, LS, LS))
    envs.close()
    outcomes = sorted(trajectory.outcome for trajectory in Trajectory.read(path))
    assert outcomes == ["running", "running", "submitted", "submitted", "submitted"]


def test_every_wrapper_sees_an_end(single: Make, tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    env = recorded = wrappers.RecordTrajectory(wrappers.Budget(single(), turns=5), str(file))
    env = shaped = wrappers.ShapeReward(env, per_turn=-0.25, scale=2.0)
    env = curriculum = wrappers.TaskCurriculum(shaped, task_ids=["task-01"])
    for turns in (1, 0):
        env.reset(seed=1)
        rewards = [env.step(LS)[1] for _ in range(turns)]
        _, reward, terminated, truncated, info = env.get_wrapper_attr("end")("no_call")
        assert (rewards, reward, terminated, truncated) == ([-0.25] * turns, 2.0, False, True)
        assert (info["limit"], info["turns_left"]) == ("no_call", 5 - turns)
        assert info["reward_components"] == {"resolved": 2.0, "shaping": -0.25 * turns}
        *_, record = Trajectory.read(file)
        assert (record.reward, record.reason, record.reward_valid, len(record.turns)) == (1.0, "no_call", True, turns)
        assert all((turn.truncated, turn.reward, turn.info) == (True, 1.0, record.info) for turn in record.turns)
    assert recorded.trajectory == record
    assert curriculum.curriculum.pass_rates() == {"task-01": 1.0}


def test_wrapped_vector_environments_fork(many: MakeMany) -> None:
    envs = vector.TaskCurriculum(vector.Budget(many(), turns=5), "shuffled")
    envs.reset(seed=1)
    envs.step([LS] * 3)
    _, infos = envs.fork(0, into=[1])
    assert (infos["task_id"][1], infos["turns_left"][1]) == (
        envs.unwrapped.call("get_wrapper_attr", "task")[0].task_id,
        4,
    )
    envs.step([LS] * 3)
    point, *_ = envs.unwrapped.call("checkpoint")
    assert set(envs.reset(seed=2, options={"checkpoint": point})[1]["task_id"]) == {point.task_id}


def test_after_a_fork_that_is_refused_the_next_step_works(many: MakeMany) -> None:
    envs = many()
    envs.reset(seed=1)
    envs.step([LS] * 3)
    envs.unwrapped.envs[1].unwrapped._config["max_turns"] = 1  # as in a slot with other arguments
    with pytest.raises(UsageError, match="raise max_turns"):
        envs.unwrapped.fork(0, into=[1])
    envs.step([LS] * 3)
