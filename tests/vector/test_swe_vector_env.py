"""`SweVectorEnv` played in step: equal to Gymnasium's own, and whole whatever happens in a slot."""

import contextlib
import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from vector_parts import Scripted

import swe_gym
from swe_gym.errors import UsageError
from swe_gym.vector import ResultsNotReady, SweVectorEnv
from swe_gym.wrappers import HashedText, ToolMenu

Make = Callable[..., SweVectorEnv]


class Late(gym.Wrapper[Any, Any, Any, Any]):
    """Answers after a random time."""

    def step(self, action: Any) -> Any:
        time.sleep(random.random() / 500)  # the latency under test, not a wait for something
        return self.env.step(action)


def cartpole() -> gym.Env[Any, Any]:
    return Late(gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1", max_episode_steps=15)))


def fake() -> gym.Env[Any, Any]:
    files = {"files": {"a.py": "x = 1\n"}}
    return Late(gym.make("SWE/Toy-v0", backend="fake", sandbox_options={"options": files}, max_turns=4))


def without_clock(info: dict[str, Any]) -> dict[str, Any]:
    """Infos without the one field of RecordEpisodeStatistics that is a time."""
    if isinstance(info, dict):
        return {key: without_clock(value) for key, value in info.items() if key not in ("t", "_t")}
    return info


PROCESSES = {"executor": "process", "processes": 2}


@pytest.mark.parametrize(
    ("make_one", "mode", "where"),
    [
        (cartpole, AutoresetMode.NEXT_STEP, {}),
        (cartpole, AutoresetMode.SAME_STEP, PROCESSES),
        (fake, AutoresetMode.NEXT_STEP, PROCESSES),
        (fake, AutoresetMode.SAME_STEP, {}),
    ],
)
def test_steps_equal_those_of_sync(
    make_one: Callable[[], gym.Env[Any, Any]], mode: AutoresetMode, where: dict[str, Any]
) -> None:
    ours = SweVectorEnv([make_one] * 5, autoreset_mode=mode, **where)
    theirs = SyncVectorEnv([make_one] * 5, autoreset_mode=mode)
    with ours:
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        assert data_equivalence(ours.reset(seed=5), theirs.reset(seed=5))
        theirs.action_space.seed(1)
        for _ in range(18):  # all episodes end at least once
            actions = theirs.action_space.sample()
            mine, other = ours.step(actions), theirs.step(actions)
            assert mine[0] in ours.observation_space
            assert data_equivalence(mine[:4], other[:4])
            assert data_equivalence(without_clock(mine[4]), without_clock(other[4]))
    theirs.close()


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_gymnasiums_vector_environments_return_correct_observations(
    kind: type[VectorEnv[Any, Any, Any]], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("é\n")
    makers = [lambda: gym.make("SWE/Local-v0", path=str(tmp_path), test_cmd="false")] * 2
    with SweVectorEnv(makers) as ours:
        theirs = kind(makers)
        actions = ['{"name": "bash", "arguments": {"command": "cat a.txt"}}', "no call"]
        assert ours.reset(seed=1)[0] == theirs.reset(seed=1)[0]
        observations = theirs.step(actions)[0]
        assert ours.step(actions)[0] == observations
        assert observations[0].startswith("é")
        theirs.close()


def test_make_vec_returns_a_swe_vector_env() -> None:
    before = dict(VectorEnv.metadata), dict(swe_gym.SweEnv.metadata)
    with pytest.warns(UserWarning, match="max_episode_steps=2 truncates an episode without grading"):
        envs = gym.make_vec("SWE/Toy-v0", num_envs=2, max_turns=3, autoreset_mode="SameStep", max_episode_steps=2)
    assert isinstance(envs, swe_gym.SweVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert before == (VectorEnv.metadata, swe_gym.SweEnv.metadata)
    with pytest.warns(UserWarning, match="max_episode_steps=2"):
        again = gym.make_vec(gym.envs.registration.EnvSpec.from_json(envs.spec.to_json()))
    assert again.num_envs == 2
    with envs, again:
        assert envs.reset(seed=1)[0] == again.reset(seed=1)[0]
        envs.step(["listdir", "listdir"])
        _, _, terminations, truncations, infos = envs.step(["listdir", "listdir"])
        assert truncations.all()
        assert not terminations.any()
        assert infos["final_info"]["turn"].tolist() == [2, 2]
        assert infos["turn"].tolist() == [0, 0]


def test_make_vec_takes_wrappers_and_vector_arguments_as_for_any_environment() -> None:
    wrappers, chosen = [ToolMenu, partial(HashedText, size=8)], {"autoreset_mode": "SameStep"}
    envs = gym.make_vec("SWE/Toy-v0", num_envs=2, wrappers=wrappers, vector_kwargs=chosen, max_turns=3)
    with envs, gym.make_vec(envs.spec) as again:
        for one in (envs, again):
            assert isinstance(one, swe_gym.SweVectorEnv)
            assert one.autoreset_mode is AutoresetMode.SAME_STEP
            assert one.single_observation_space.shape == (8,)
            assert isinstance(one.single_action_space, gym.spaces.Discrete)
            assert one.get_attr("config")[0]["max_turns"] == 3
    for mode in ("sync", "vector_entry_point"):
        made = gym.make_vec("SWE/Toy-v0", vectorization_mode=mode, wrappers=wrappers, vector_kwargs=chosen)
        with contextlib.closing(made) as one:
            assert isinstance(one, SyncVectorEnv) == (mode == "sync")
            assert one.single_observation_space.shape == (8,)
    assert gym.spec("SWE/Toy-v0").kwargs == {}


def test_arguments_that_only_processes_need_are_ignored_with_a_word() -> None:
    with pytest.warns(
        UserWarning, match="SweVectorEnv runs its environments in threads and ignores shared_memory, copy"
    ):
        SweVectorEnv([fake], shared_memory=True, copy=False).close()
    with pytest.raises(UsageError, match=r"'autoreset'\. Did you mean 'autoreset_mode'"):
        SweVectorEnv([fake], autoreset="SameStep")


def test_environments_render_one_at_a_time() -> None:
    meeting = threading.Barrier(2)

    class Alone(gym.Wrapper[Any, Any, Any, Any]):
        def render(self) -> Any:
            try:
                meeting.wait(0.1)
            except threading.BrokenBarrierError:
                return "alone"

    with SweVectorEnv([lambda: Alone(cartpole())] * 4) as envs:
        assert envs.render() == ("alone",) * 4


def test_make_vec_knows_every_family_and_task_id() -> None:
    swe_gym.register_tasks("toy", prefix="VectorTest")
    for env_id in [name for name in gym.registry if name.startswith(("SWE/", "VectorTest/"))]:
        assert callable(gym.envs.registration.load_env_creator(gym.spec(env_id).vector_entry_point))
    with pytest.raises(AttributeError):
        gym.envs.registration.load_env_creator("swe_gym.vector.families:Settings")


def test_invalid_actions_do_nothing(make_scripted: Make) -> None:
    envs = make_scripted()
    envs.reset()
    for actions, error in [
        (("x", "y"), ValueError),
        (("x", "y", "z", "more"), ValueError),
        (("x", "y", 3), UsageError),
        ("xyz", TypeError),
        (3, TypeError),
    ]:
        with pytest.raises(error):
            envs.step(actions)
    assert envs.step(("1", "2", "3"))[0] == ("a 1", "b 2", "c 3")
    assert [env.actions for env in envs.envs] == [["1"], ["2"], ["3"]]


def test_a_timeout_loses_no_result(make_scripted: Make, gates: dict[str, threading.Event]) -> None:
    envs = make_scripted()
    envs.reset()
    envs.step_async(("first", "wait gate", "first"))
    for error in (TimeoutError, multiprocessing.TimeoutError, ResultsNotReady):
        with pytest.raises(error, match="1 of 3 results"):
            envs.step_wait(timeout=0.01)
    with pytest.raises(AlreadyPendingCallError, match=r"step_wait\(\) first"):
        envs.step(("no", "no", "no"))
    gates["gate"].set()
    assert envs.step_wait()[0] == ("a first", "b wait gate", "c first")
    assert envs.step(("second",) * 3)[0] == ("a second", "b second", "c second")
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()


def test_an_infrastructure_failure_is_a_row(make_scripted: Make) -> None:
    envs = make_scripted()
    envs.reset()
    observations, rewards, terminations, truncations, infos = envs.step(("x", "raise lost", "z"))
    assert observations == ("a x", "b reset 1", "c z")
    assert rewards.tolist() == [1, 0, 1]
    assert terminations.tolist() == [False] * 3
    assert truncations.tolist() == [False, True, False]
    assert infos["failure"].tolist() == [None, "SandboxLost (oom)", None]
    assert infos["_reward_valid"].tolist() == [False, True, False]
    assert not infos["reward_valid"][1]
    assert infos["outcome"][1] == "infra_failed"
    assert str(envs.errors[1]) == "gone"
    assert envs.step(("x", "y", "z"))[0] == ("a x", "b reset 2", "c z")


@pytest.mark.parametrize(("what", "shown"), [("mistake", KeyError), ("two", Exception), ("exit", RuntimeError)])
def test_an_error_is_raised_once_and_other_slots_continue(make_scripted: Make, what: str, shown: type) -> None:
    envs = make_scripted()
    envs.reset()
    with pytest.raises(shown) as caught:
        envs.step(("x", f"raise {what}", "z"))
    assert "slot 1" in caught.value.__notes__[0]
    observations, _, _, truncations, _ = envs.step_wait()
    assert observations == ("a x", "b reset 1", "c z")
    assert truncations.tolist() == [False, True, False]
    assert envs.step(("1", "2", "3"))[0] == ("a 1", "b reset 2", "c 3")


def test_a_failed_reset_is_retried_at_the_next_step(make_scripted: Make) -> None:
    envs = make_scripted()
    envs.envs[1].broken_resets = 2
    observations, infos = envs.reset()
    assert observations == ("a reset 1", "", "c reset 1")
    assert infos["failure"][1] == "SandboxStartError (capacity)"
    observations, _, _, truncations, _ = envs.step(("x", "y", "z"))
    assert observations == ("a x", "", "c z")
    assert truncations.tolist() == [False, True, False]
    observations, _, _, truncations, _ = envs.step(("x", "y", "z"))
    assert observations == ("a x", "b reset 3", "c z")
    assert not truncations.any()


def test_a_failed_reset_in_same_step_mode(make_scripted: Make) -> None:
    envs = make_scripted(2, autoreset_mode="SameStep")
    envs.reset()
    envs.envs[0].broken_resets = 2
    observations, _, terminations, _, infos = envs.step(("end", "x"))
    assert observations == ("", "b x")
    assert terminations.tolist() == [True, False]
    assert infos["final_obs"].tolist() == ["a end", None]
    assert infos["final_info"]["steps"].tolist() == [1, 0]
    assert infos["failure"][0] == "SandboxStartError (capacity)"
    *_, truncations, infos = envs.step(("y", "y"))
    assert truncations.tolist() == [True, False]
    assert infos["final_info"]["failure"][0] == "SandboxStartError (capacity)"
    assert envs.step(("z", "z"))[0] == ("a reset 4", "b z")


def test_without_autoreset_the_caller_resets(make_scripted: Make) -> None:
    envs = make_scripted(autoreset_mode="Disabled")
    envs.reset()
    envs.step(("x", "end", "z"))
    with pytest.raises(ResetNeeded, match=r"slots \[1\]"):
        envs.step(("never",) * 3)
    options = {"reset_mask": np.array([False, True, False]), "task_ids": [None, "t", None], "other": 1}
    observations, infos = envs.reset(seed=7, options=options)
    assert observations == ("a x", "b reset 2", "c z")
    assert infos["_resets"].tolist() == [False, True, False]
    assert set(options) == {"reset_mask", "task_ids", "other"}
    assert envs.envs[1].resets[-1] == (8, {"other": 1, "task_id": "t"})
    assert envs.step(("1", "2", "3"))[0] == ("a 1", "b 2", "c 3")
    assert "never" not in envs.envs[0].actions


def test_without_autoreset_a_failed_reset_is_a_row(make_scripted: Make) -> None:
    envs = make_scripted(2, autoreset_mode="Disabled")
    envs.envs[0].broken_resets = 1
    envs.reset()
    assert envs.step(("x", "y"))[3].tolist() == [True, False]
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.step(("x", "y"))[0] == ("a x", "b y")


def test_tasks_and_seeds_are_per_slot(make_scripted: Make) -> None:
    envs = make_scripted()
    envs.reset(seed=[3, None, 5], options={"task_ids": ["p", None, "q"]})
    assert [env.resets for env in envs.envs] == [[(3, {"task_id": "p"})], [(None, None)], [(5, {"task_id": "q"})]]
    for wrong in ({"seed": [1, 2]}, {"options": {"task_ids": ["p"]}}, {"options": {"task_ids": "pqr"}}):
        with pytest.raises(UsageError, match="one for each of 3"):
            envs.reset(**wrong)
    with pytest.raises(ResetNeeded, match="left out of the first reset"):
        make_scripted().reset(options={"reset_mask": np.array([True, True, False])})


def test_calls_and_attributes(make_scripted: Make) -> None:
    envs = make_scripted()
    assert envs.get_attr("name") == ("a", "b", "c")
    envs.set_attr("name", ["x", "y", "z"])
    assert envs.call("get_wrapper_attr", "name") == ("x", "y", "z")
    with pytest.raises(UsageError, match="expected 3 values"):
        envs.set_attr("name", ["x"])
    with pytest.raises(AttributeError):
        envs.get_attr("unheard_of")
    assert envs.reset()[0][0] == "x reset 1"


def test_gymnasiums_wrappers_work_over_it(make_scripted: Make) -> None:
    envs = DictInfoToList(RecordEpisodeStatistics(make_scripted()))
    envs.reset()
    envs.step(("x", "x", "x"))
    *_, infos = envs.step(("end", "x", "x"))
    assert infos[0]["episode"]["r"] == 2
    assert infos[0]["episode"]["l"] == 2
    assert "episode" not in infos[1]


def test_a_failing_constructor_closes_the_other_environments() -> None:
    made: list[Scripted] = []

    def make() -> Scripted:
        if len(made) == 2:
            raise RuntimeError("the third one")
        made.append(Scripted())
        return made[-1]

    with pytest.raises(RuntimeError, match="the third one"):
        SweVectorEnv([make] * 4)
    assert [env.closed for env in made] == [1, 1]
    with pytest.raises(RuntimeError, match="action space of slot 0"):
        SweVectorEnv([make_closed, cartpole])
    with pytest.raises(UsageError, match="at least one"):
        SweVectorEnv([])
    with pytest.raises(UsageError, match="NextStep"):
        SweVectorEnv([make_closed], autoreset_mode="next_step")


def make_closed() -> gym.Env[Any, Any]:
    return Scripted()


def test_a_closed_vector_environment_raises(make_scripted: Make) -> None:
    envs = make_scripted()
    envs.reset()
    envs.close()
    envs.close()
    assert [env.closed for env in envs.envs] == [1, 1, 1]
    for use in (envs.reset, lambda: envs.step("abc"), lambda: envs.send(["x"], [0]), lambda: envs.call("name")):
        with pytest.raises(ClosedEnvironmentError):
            use()


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("where", [{}, PROCESSES], ids=["threads", "processes"])
def test_a_running_episode_is_forked_into_other_slots(where: dict[str, Any]) -> None:
    options = {"options": {"files": {"a.py": "x = 1\n"}}}
    make = partial(gym.make, "SWE/Toy-v0", backend="fake", sandbox_options=options)
    create, view = (
        '{"name": "edit", "arguments": {"command": "create", "path": "new", "file_text": "made"}}',
        '{"name": "view", "arguments": {"path": "new"}}',
    )
    with SweVectorEnv([make] * 4, **where) as envs:
        with pytest.raises(ResetNeeded, match="no episode yet"):
            envs.fork(0, into=[1])
        envs.reset(seed=0)
        first, *_ = envs.step([create] * 2 + [view] * 2)
        observations, infos = envs.fork(1, into=[2, 3])
        assert list(observations[:2]) == list(first[:2])
        assert all(text.startswith(first[1].rstrip()) for text in observations[2:])
        assert list(infos["_turn"]) == [False, False, True, True]
        assert list(infos["turn"][2:]) == [1, 1]
        assert infos["task_id"][2] == infos["task_id"][3]
        again, *_ = envs.step([view] * 4)
        assert ["made" in text for text in again] == [True] * 4
        for wrong in ([1], [4], [2, 2], []):
            with pytest.raises(UsageError, match=r"`into` must hold at least one slot from 0 to 3.*slot=1, into="):
                envs.fork(1, into=wrong)
        envs.step(['{"name": "submit", "arguments": {}}'] * 4)
        with pytest.raises(ResetNeeded, match="slot 0 has no running episode"):
            envs.fork(0, into=[1])
