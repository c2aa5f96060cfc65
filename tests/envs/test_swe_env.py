"""`SweEnv` on the real local sandbox: episodes, limits, info, copies, closing."""

import copy
import pickle
import shlex
import threading
from collections.abc import Callable
from typing import Any

import pytest
from env_parts import FIX, SUBMIT, call
from gymnasium.error import ResetNeeded

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import Unsupported, UsageError
from swe_gym.grading.protect import hidden_files

Make = Callable[..., SweEnv]

INFO_TYPES = {
    "task_id": str,
    "turn": int,
    "outcome": str,
    "reward_valid": bool,
    "resolved": bool,
    "tool": str,
    "tool_ok": bool,
    "exit_code": int,
    "invalid_actions": int,
    "cheat_signs": int,
    "set_back": list,
    "limit": str,
    "failure": str,
    "reward_components": dict,
    "counter_tests": int,
    "alarms": int,
    "unproven": str,
    "already_passes": bool,
    "fail_to_pass_passed": int,
    "fail_to_pass_total": int,
    "pass_to_pass_passed": int,
    "pass_to_pass_total": int,
}


def assert_info_is_typed(info: dict[str, Any]) -> None:
    assert {name: type(value) for name, value in info.items()} == INFO_TYPES
    assert all(type(value) is float for value in info["reward_components"].values())


def test_an_alarm_earns_the_reward_that_is_set_for_it() -> None:
    env = SweEnv("toy", task_id="larder-overwrite-evicts", alarm_reward=-1.0)
    env.reset(seed=0)
    poison = "for f in $(find . -name '*.py' -not -path '*test*'); do printf '\\n%s\\n' \"$code\" >> $f; done"
    patch = "import unittest.case\nunittest.case.TestCase._callTestMethod = lambda self, method: None"
    env.step(call("bash", command=f"code={shlex.quote(patch)}; {poison}"))
    _, reward, _, _, info = env.step(SUBMIT)
    env.close()
    assert (reward, info["reward_components"], info["alarms"] > 0) == (-1.0, {"alarm": -1.0}, True)


def test_info_names_the_policys_files_that_were_set_back(local_env: Make) -> None:
    env = local_env()
    env.reset(seed=0)
    info = env.step(call("bash", command="echo > conftest.py; echo > json.py; echo > kept.py; ln -s /etc out"))[4]
    assert info["set_back"] == []
    info = env.step(SUBMIT)[4]
    assert info["set_back"] == env.stats["set_back"] == ["conftest.py", "json.py", "out"]


@pytest.mark.parametrize(("script", "named"), [("rm -f {}", False), ("echo > {}", True)])
def test_info_names_a_hidden_test_only_if_the_policy_wrote_it(script: str, named: bool) -> None:
    env = SweEnv("toy", task_id="larder-overwrite-evicts")
    env.reset(seed=0)
    hidden = min(hidden_files(env.task.oracle))
    env.step(call("bash", command=script.replace("{}", hidden)))
    info = env.step(SUBMIT)[4]
    env.close()
    assert env.verdict is not None
    assert hidden in env.verdict.dropped
    assert info["set_back"] == ([hidden] if named else [])


def test_a_correct_solution_earns_one(local_env: Make) -> None:
    env = local_env()
    observation, info = env.reset(seed=0)
    assert "python -m unittest" in observation
    assert info["task_id"] == "adder"
    observation, reward, terminated, truncated, info = env.step(FIX)
    assert (reward, terminated, truncated, info["tool"], info["exit_code"]) == (0.0, False, False, "bash", 0)
    _, reward, terminated, truncated, info = env.step(SUBMIT)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["outcome"], info["resolved"], info["reward_valid"], info["turn"]) == ("submitted", True, True, 2)
    assert sum(info["reward_components"].values()) == 1.0
    assert env.verdict is not None
    assert env.verdict.resolved
    assert "+    return a + b" in env.judged_diff


def test_unchanged_work_earns_zero(local_env: Make) -> None:
    env = local_env()
    env.reset()
    _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated, info["resolved"], info["reward_valid"]) == (0.0, True, False, True)


def test_info_keeps_its_types_whatever_happens(local_env: Make) -> None:
    env = local_env(max_turns=6)
    infos = [env.reset()[1]]
    for action in ("", "no call", call("bash", command="exit 3"), call("view", path="missing"), FIX, "over"):
        infos.append(env.step(action)[4])
    for info in infos:
        assert_info_is_typed(info)
    assert [info["invalid_actions"] for info in infos] == [0, 1, 2, 2, 3, 3, 4]
    assert infos[3]["exit_code"] == 3
    assert (infos[6]["outcome"], infos[6]["limit"]) == ("agent_limit", "turns")


def test_info_is_new_every_time(local_env: Make) -> None:
    env = local_env()
    _, first = env.reset()
    expected = copy.deepcopy(first)
    first["task_id"] = "spoiled"
    first["reward_components"]["spoiled"] = 1.0
    assert env.reset()[1] == expected


@pytest.mark.parametrize(
    ("limits", "actions", "limit"),
    [
        ({"max_turns": 2}, [FIX, FIX], "turns"),
        ({"time_limit": 0.001}, [FIX], "time"),
        ({"max_invalid": 2}, [FIX, "nonsense", "nonsense"], "invalid"),
    ],
)
def test_a_limit_grades_the_work_so_far(
    local_env: Make, limits: dict[str, Any], actions: list[str], limit: str
) -> None:
    env = local_env(**limits)
    env.reset()
    results = [env.step(action) for action in actions]
    assert not any(terminated or truncated for _, _, terminated, truncated, _ in results[:-1])
    _, reward, terminated, truncated, info = results[-1]
    assert (terminated, truncated, info["outcome"], info["limit"]) == (False, True, "agent_limit", limit)
    assert info["reward_valid"]
    assert reward == float(info["resolved"])
    if limit != "time":  # so short a time kills the command that would have solved it
        assert reward == 1.0


def test_a_caller_may_end_an_episode_at_its_own_limit(local_env: Make) -> None:
    env = local_env()
    env.reset()
    env.step(FIX)
    observation, reward, terminated, truncated, info = env.end("tokens")
    assert (observation, reward, terminated, truncated) == ("", 1.0, False, True)
    assert (info["outcome"], info["limit"], info["reward_valid"]) == ("agent_limit", "tokens", True)
    with pytest.raises(ResetNeeded):
        env.end("tokens")
    env.reset()
    with pytest.raises(UsageError, match="name of the limit"):
        env.end("")


def test_valid_actions_reset_the_count_of_invalid_ones(local_env: Make) -> None:
    env = local_env(max_invalid=2)
    env.reset()
    for _ in range(3):
        assert not env.step("nonsense")[3]
        assert not env.step(call("bash", command="true"))[3]


def test_max_invalid_none_means_no_limit(local_env: Make) -> None:
    env = local_env(max_invalid=None)
    env.reset()
    assert not any(env.step("nonsense")[3] for _ in range(30))


def test_observations_are_bounded_and_in_the_space(local_env: Make) -> None:
    env = local_env(max_observation=500, problem_statement="long " * 1000)
    assert len(env.reset()[0]) <= 500
    observation = env.step(call("bash", command="seq 100000"))[0]
    assert len(observation) <= 500
    assert observation in env.observation_space
    assert "cut" in observation
    assert len(env.step(call("nothing" * 1000))[0]) <= 500


def test_an_action_longer_than_the_space_is_invalid(local_env: Make) -> None:
    env = local_env()
    env.reset()
    observation, _, _, _, info = env.step("x" * 1_000_001)
    assert "1000000" in observation
    assert info["invalid_actions"] == 1


def test_an_action_is_text(local_env: Make) -> None:
    env = local_env()
    env.reset()
    for wrong, message in ((3, "text, not int"), ({"role": "assistant"}, r"text, not dict: .* json\.dumps")):
        with pytest.raises(UsageError, match=message):
            env.step(wrong)  # type: ignore[arg-type]  # that is the point


def test_a_step_needs_a_running_episode(local_env: Make) -> None:
    env = local_env()
    with pytest.raises(ResetNeeded):
        env.step(SUBMIT)
    env.reset()
    env.step(SUBMIT)
    with pytest.raises(ResetNeeded, match="over"):
        env.step(SUBMIT)
    env.reset()
    env.close()
    with pytest.raises(ResetNeeded):
        env.step(SUBMIT)


def test_the_end_of_an_episode_closes_its_sandbox(local_env: Make) -> None:
    env = local_env()
    env.reset()
    first = env.sandbox
    env.reset()
    assert first.closed
    second = env.sandbox
    env.step(SUBMIT)
    assert second.closed


def test_grade_and_patch_leave_the_episode_as_it_is(local_env: Make) -> None:
    env = local_env()
    env.reset()
    assert not env.grade().resolved
    env.step(FIX)
    assert env.grade().resolved
    assert env.patch().paths == ("calc.py",)
    assert env.judged_diff == ""
    _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated, info["turn"]) == (1.0, True, 2)
    assert env.grade() == env.verdict
    assert env.patch().paths == ("calc.py",)


def test_grading_needs_an_episode(local_env: Make) -> None:
    env = local_env()
    for ask in (env.grade, env.patch, env.render, lambda: env.task, lambda: env.stats):
        with pytest.raises(ResetNeeded):
            ask()


def test_stats_hold_what_varies_between_runs(local_env: Make) -> None:
    env = local_env()
    env.reset()
    env.step(SUBMIT)
    stats = env.stats
    assert set(stats["seconds"]) == {"start", "tools", "grading"}
    assert stats["seconds"]["grading"] > 0
    assert stats["sandbox"]["backend"] == "local"
    assert stats["failure"] == ""


def test_close_is_idempotent_and_works_before_reset(local_env: Make) -> None:
    env = local_env()
    env.close()
    env.close()
    env.reset()
    sandbox = env.sandbox
    env.close()
    env.close()
    assert sandbox.closed
    assert env.reset()[1]["outcome"] == "running"


def test_close_from_another_thread_ends_a_running_step(local_env: Make) -> None:
    env = local_env()
    env.reset()
    results: list[Any] = []
    # the command says that it runs by making a file, which the main thread waits for in the sandbox
    command = "touch /tmp/running; sleep 60"
    thread = threading.Thread(target=lambda: results.append(env.step(call("bash", command=command))))
    thread.start()
    env.sandbox.exec("until test -e /tmp/running; do sleep 0.01; done", timeout=20)
    env.close()
    thread.join(timeout=5)
    assert not thread.is_alive()
    _, reward, terminated, truncated, info = results[0]
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["outcome"], info["reward_valid"]) == ("infra_failed", False)
    assert info["failure"].startswith("SandboxClosed")


def test_an_environment_is_a_context_manager(local_env: Make) -> None:
    with local_env() as env:
        env.reset()
        sandbox = env.unwrapped.sandbox
    assert sandbox.closed


@pytest.mark.parametrize("duplicate", [lambda env: pickle.loads(pickle.dumps(env)), copy.deepcopy])
def test_a_copy_is_unopened_and_plays_the_same(local_env: Make, duplicate: Callable[[SweEnv], SweEnv]) -> None:
    env = local_env()
    env.reset(seed=3)
    env.step(FIX)
    with duplicate(env) as other:
        with pytest.raises(ResetNeeded):
            other.step(SUBMIT)
        assert other.config == env.config
        assert other.reset(seed=5) == env.reset(seed=5)
        for action in (call("bash", command="ls"), FIX, SUBMIT):
            assert other.step(action) == env.step(action)


def test_config_is_plain_and_makes_the_same_environment(local_env: Make) -> None:
    env = local_env(max_turns=7, tools=["bash", "submit"])
    twin = SweEnv(**env.config)
    assert twin.config == env.config
    env.config["sandbox_options"]["cpus"] = 9
    assert env.config == twin.config
    assert [spec.name for spec in twin.tools] == ["bash", "submit"]


def test_last_action_is_the_parsed_action(local_env: Make) -> None:
    env = local_env()
    env.reset()
    env.step("I look around.\n" + call("bash", command="ls"))
    assert env.last_action is not None
    assert env.last_action.thought == "I look around."
    assert env.last_action.call.arguments == {"command": "ls"}
    env.step("hm")
    assert env.last_action is None


def test_ignored_calls_are_noted(local_env: Make) -> None:
    env = local_env()
    env.reset()
    observation = env.step(call("bash", command="echo one") + "\n" + call("bash", command="echo two"))[0]
    assert observation.startswith("one\n")
    assert "Only the first call was run" in observation
    assert "Only" not in env.step(call("bash", command="echo one"))[0]


def test_sandbox_options_reach_the_sandbox_and_add_to_the_tasks_environment(local_env: Make) -> None:
    env = local_env(env={"FROM_TASK": "1"}, sandbox_options={"env": {"FROM_USER": "2"}, "labels": {"run": "x"}})
    env.reset()
    assert env.sandbox.spec.labels == {"run": "x"}
    observation = env.step(call("bash", command="echo $FROM_TASK$FROM_USER"))[0]
    assert observation.startswith("12\n")


def test_a_file_error_that_a_tool_does_not_handle_is_an_observation(local_env: Make) -> None:
    env = local_env(tools=["submit", "env_parts:Careless"])
    env.reset()
    observation, _, terminated, truncated, info = env.step(call("careless", path="nowhere.py"))
    assert "No such file" in observation
    assert (terminated, truncated, info["outcome"], info["tool_ok"]) == (False, False, "running", False)
    assert "def add" in env.step(call("careless", path="calc.py"))[0]


def test_a_tool_that_returns_text_raises_an_error_with_its_name(local_env: Make) -> None:
    env = local_env(tools=["submit", "env_parts:OnlyText"])
    env.reset()
    with pytest.raises(UsageError, match="the tool 'only_text' must return a ToolResult, not str"):
        env.step(call("only_text", path="calc.py"))
    assert env.step(SUBMIT)[4]["reward_valid"]


@pytest.mark.parametrize(
    ("function", "message"),
    [("not_a_number", "must be a finite number"), ("only_a_number", "must return a Reward, not float")],
)
def test_an_error_in_a_reward_function_is_raised_and_ends_the_episode(
    local_env: Make, function: str, message: str
) -> None:
    env = local_env(reward=f"env_parts:{function}")
    env.reset()
    with pytest.raises(UsageError, match=message):
        env.step(SUBMIT)
    assert env.sandbox.closed
    with pytest.raises(ResetNeeded):
        env.step(SUBMIT)


def test_an_unsupported_cpu_limit_is_an_error(local_env: Make) -> None:
    with pytest.raises(Unsupported, match="CPU"):
        local_env(sandbox_options={"cpus": 2})
