"""Rollouts: episodes, budgets, failures, stragglers, invalid plans."""

import collections
import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from pydantic import ValidationError

from swe_gym.errors import PolicyError, UsageError
from swe_gym.gateway.calls import tool_call
from swe_gym.rollout.attempt import Try, lost_by_policy
from swe_gym.rollout.engine import RolloutOptions, RolloutResult, RolloutStopped, rollout
from swe_gym.rollout.episode import play
from swe_gym.rollout.plan import Plan, hash_config
from swe_gym.rollout.policies import make_policies
from swe_gym.rollout.policies.base import Policy, PolicyReport
from swe_gym.rollout.policies.baseline import EmptyPolicy
from swe_gym.rollout.policies.llm import action_of
from swe_gym.rollout.progress import PatchVotes, Progress, RolloutBudget
from swe_gym.sandboxes import SandboxSpec, WarmPool
from swe_gym.tasks.file import write_tasks
from swe_gym.trajectories.run_folder import FAILED, EpisodeKey, RunFolder, RunInfo, read_index, read_live, read_run
from swe_gym.trajectories.trajectory import PolicyInfo, Trajectory, Turn, Usage
from swe_gym.types import Oracle, PythonEnv, Task
from swe_gym.wrappers import ShapeReward

LOOK = '{"name": "bash", "arguments": {"command": "true"}}'


@pytest.fixture
def task_file(adder: Task, tmp_path: Path) -> str:
    """Three good tasks."""
    path = tmp_path / "tasks.jsonl"
    write_tasks([adder.model_copy(update={"task_id": name, "repo": "acme/calc"}) for name in ("a", "b", "c")], path)
    return str(path)


@pytest.fixture
def plan(task_file: str) -> Plan:
    return Plan(source="file", source_options={"path": task_file}, policy="gold")


class Factory:
    """Makes policies by a function, and says whether it was closed."""

    def __init__(self, make: Callable[[gymnasium.Env[str, str], int | None], Policy]) -> None:
        self._make = make
        self.closed = threading.Event()

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> Policy:
        return self._make(env, seed)

    def close(self) -> None:
        self.closed.set()


class Acting:
    """A policy that is a function of the number of the turn."""

    def __init__(self, act: Callable[[int], str], usage: Usage | None = None) -> None:
        self._act = act
        self._usage = usage or Usage()
        self._turn = 0

    def reset(self, info: dict[str, Any]) -> None: ...

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        self._turn += 1
        return self._act(self._turn)

    def report(self) -> PolicyReport:
        messages = ({"role": "user", "content": "hi"},)
        return PolicyReport(policy=PolicyInfo(name="acting", model="m"), usage=self._usage, messages=messages)


def raising(error: Exception) -> Callable[[int], str]:
    def act(turn: int) -> str:  # noqa: ARG001  whatever the turn
        raise error

    return act


def judged(result: RolloutResult) -> list[Trajectory]:
    return sorted(result.trajectories(), key=lambda one: (one.task_id, one.attempt))


def failed(folder: Path) -> list[Trajectory]:
    return list(Trajectory.read(folder / FAILED))


def fast(**fields: Any) -> RolloutOptions:
    return RolloutOptions(**{"retries": 0, **fields})


# --- a run that goes well -------------------------------------------------------------------------------------


def test_every_attempt_at_every_task_is_played_once(plan: Plan, tmp_path: Path) -> None:
    seen: list[Progress] = []
    plan = plan.model_copy(update={"attempts": 2})
    result = rollout(plan, tmp_path / "runs" / "first", RolloutOptions(workers=3), on_progress=seen.append)
    played = judged(result)
    assert [(one.task_id, one.attempt) for one in played] == [(t, k) for t in "abc" for k in (0, 1)]
    assert all(one.resolved and one.reward == 1.0 and one.tries == 1 for one in played)
    assert (seen[-1].done, seen[-1].resolved, seen[-1].running) == (6, 6, 0)
    assert (seen[-1].stopping, seen[-1].eta) == ("", 0.0)
    assert (result.progress.outcomes, result.progress.mean_turns) == ({"submit": 6}, 3.0)
    assert result.progress.stopping == ""
    assert len({one.seed for one in played}) == 6
    run = read_run(result.folder)
    assert (run.experiment, run.attempts, run.tasks) == ("first", 2, ("a", "b", "c"))
    one = played[0]
    assert (one.experiment, one.config_hash, one.policy.name, one.repo) == (
        "first",
        run.config_hash,
        "gold",
        "acme/calc",
    )
    assert list(read_live(result.folder)) == []


def test_only_the_run_folder_holds_the_verdict(plan: Plan, tmp_path: Path) -> None:
    one = judged(rollout(plan, tmp_path / "run"))[0]
    assert one.verdict is not None
    assert one.verdict.fail_to_pass == {"tests.test_add.AddTest.test_add": "passed"}
    shown = one.without_oracle().model_copy(update={"tools": (), "turns": (), "patch": ""})  # this policy knows it
    assert "test_add" not in "".join(shown.to_lines())


def test_a_run_resumes(plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rollout(plan.model_copy(update={"tasks": ("a",)}), folder)
    before = (folder / "trajectories.jsonl").read_bytes()
    result = rollout(plan.model_copy(update={"attempts": 2}), folder)
    assert (folder / "trajectories.jsonl").read_bytes().startswith(before)
    assert (result.progress.done, result.progress.done_before) == (6, 1)
    again = rollout(plan.model_copy(update={"attempts": 2}), folder)
    assert again.progress.done_before == 6
    assert len({entry.key for entry in read_index(folder)}) == len(read_index(folder)) == 6


def test_another_configuration_needs_another_folder(plan: Plan, tmp_path: Path) -> None:
    rollout(plan, tmp_path / "run")
    other = plan.model_copy(update={"env": {"max_turns": 7}})
    with pytest.raises(UsageError, match=r"env\.max_turns: 50, now 7"):
        rollout(other, tmp_path / "run")


def test_keys_and_urls_are_never_written_and_may_change(plan: Plan, tmp_path: Path) -> None:
    make = Factory(lambda env, seed: EmptyPolicy(env))  # noqa: ARG005  not random
    folder = tmp_path / "run"
    for secret in ("swordfish", "marlin"):
        options = {"api_key": secret, "base_url": f"http://{secret}", "timeout": len(secret), "max_tokens": 9}
        options["request"] = {"top_k": 5, "extra_headers": {"Authorization": secret}}
        rollout(plan.model_copy(update={"policy_options": options}), folder, policies=make)
    text = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert "swordfish" not in text
    assert "marlin" not in text
    assert read_run(folder).config["policy_options"] == {"max_tokens": 9, "request": {"top_k": 5}}


# --- budgets --------------------------------------------------------------------------------------------------


def test_an_episode_that_spends_its_budget_is_graded(plan: Plan, tmp_path: Path) -> None:
    usage = Usage(prompt_tokens=90, completion_tokens=10, calls=1, cost=0.5)
    make = Factory(lambda env, seed: Acting(lambda turn: LOOK, usage))  # noqa: ARG005
    budgets = {
        "tokens": RolloutBudget(tokens=250),
        "cost": RolloutBudget(cost=1.0),
        "time": RolloutBudget(seconds=1e-9),
    }
    turns = {"tokens": 3, "cost": 2, "time": 1}
    for reason, budget in budgets.items():
        result = rollout(plan.model_copy(update={"budget": budget, "tasks": ("a",)}), tmp_path / reason, policies=make)
        (one,) = judged(result)
        assert (one.outcome, one.reason, one.reward_valid, len(one.turns)) == (
            "agent_limit",
            reason,
            True,
            turns[reason],
        )
        assert one.turns[-1].truncated
        assert one.turns[-1].usage == usage
        assert one.usage.tokens == 100 * len(one.turns)
        assert one.policy == PolicyInfo(name="acting", model="m")
        assert one.messages == ({"role": "user", "content": "hi"},)


def test_a_policy_whose_context_is_full_is_graded_too(plan: Plan, tmp_path: Path) -> None:
    def act(turn: int) -> str:
        if turn > 2:
            raise PolicyError("too long", reason="context")
        return LOOK

    for last in (0, 2):
        make = Factory(lambda env, seed, last=last: Acting(act if last else raising(PolicyError("", reason="context"))))  # type: ignore[misc]  # noqa: ARG005
        result = rollout(plan.model_copy(update={"tasks": ("a",)}), tmp_path / str(last), policies=make)
        (one,) = judged(result)
        assert (one.reason, one.reward_valid, len(one.turns)) == ("context", True, last)
        assert [turn.truncated for turn in one.turns] == [False, True][:last]


@pytest.mark.parametrize("budget", [RolloutBudget(tokens=300), RolloutBudget()], ids=["budget", "context"])
def test_rewards_of_wrappers_stay_if_the_loop_ends_the_episode(plan: Plan, budget: RolloutBudget) -> None:
    def act(turn: int) -> str:
        if turn > 3:
            raise PolicyError("too long", reason="context")
        return LOOK

    with contextlib.closing(ShapeReward(plan.make_env(), per_turn=-0.25)) as env:
        one = play(env, Acting(act, Usage(completion_tokens=100)), options={"task_id": "a"}, budget=budget)
    assert (one.outcome, [turn.reward for turn in one.turns], one.reward) == ("agent_limit", [-0.25] * 3, -0.75)


def test_a_run_that_spends_its_budget_starts_no_more_episodes(plan: Plan, tmp_path: Path) -> None:
    usage = Usage(completion_tokens=100)
    submit = '{"name": "submit", "arguments": {}}'
    make = Factory(lambda env, seed: Acting(lambda turn: submit, usage))  # noqa: ARG005
    how = RolloutOptions(workers=1, budget=RolloutBudget(tokens=150))
    many = plan.model_copy(update={"attempts": 20})
    result = rollout(many, tmp_path / "run", how, policies=make)
    assert "budget is used up: tokens" in result.progress.stopping
    assert result.progress.done == 2
    spent = rollout(many, tmp_path / "run", how, policies=make)  # what was spent before counts
    assert spent.progress.done == 2


def test_the_turns_of_a_killed_try_count_in_the_runs_budget(plan: Plan, tmp_path: Path) -> None:
    paid = Usage(completion_tokens=100, calls=1, cost=0.5)
    config = plan.config()
    known = hash_config(config)
    run = RunInfo(experiment="run", config=config, config_hash=known, tasks=("a",), attempts=1)
    with RunFolder(tmp_path / "run", run) as folder:
        start = Trajectory(
            task_id="a", config_hash=known, observation="", turns=(), outcome="running", reward_valid=False,
            resolved=False, reward=0.0,
        )  # fmt: skip
        with contextlib.closing(folder.start(start)) as live:
            for _ in range(3):
                live.add(Turn(action="", observation="", usage=paid))
    spent = rollout(plan, tmp_path / "run", fast(budget=RolloutBudget(cost=1.0)))
    assert (spent.progress.done, spent.progress.usage.cost) == (0, 1.5)
    assert "budget is used up: cost" in spent.progress.stopping


def test_the_turns_of_running_episodes_count_in_the_runs_budget(plan: Plan, tmp_path: Path) -> None:
    spent, seen = threading.Event(), []

    def act(turn: int) -> str:
        if turn > 1:
            assert spent.wait(60)
        return LOOK if turn < 3 else '{"name": "submit", "arguments": {}}'

    def follow(progress: Progress) -> None:
        seen.append(progress.usage.tokens)
        if progress.stopping:
            spent.set()

    make = Factory(lambda env, seed: Acting(act, Usage(completion_tokens=100)))  # noqa: ARG005
    how = RolloutOptions(workers=1, budget=RolloutBudget(tokens=100))
    result = rollout(plan, tmp_path / "run", how, policies=make, on_progress=follow)
    assert (result.progress.done, seen[-1]) == (1, 300)
    assert "budget is used up: tokens" in result.progress.stopping


def test_failures_after_the_budget_is_used_up_are_no_error(plan: Plan, tmp_path: Path) -> None:
    usage = Usage(completion_tokens=100)
    make = Factory(lambda env, seed: Acting(raising(ValueError("no")), usage))  # noqa: ARG005
    many = plan.model_copy(update={"attempts": 7})
    result = rollout(many, tmp_path / "run", fast(workers=21, budget=RolloutBudget(tokens=150)), policies=make)
    assert "budget is used up" in result.progress.stopping
    assert (result.progress.failed_tries, result.progress.done) == (21, 0)


# --- failures -------------------------------------------------------------------------------------------------


def test_an_episode_is_retried_if_the_policys_server_fails(plan: Plan, tmp_path: Path) -> None:
    lock, calls = threading.Lock(), []

    def make(env: gymnasium.Env[str, str], seed: int | None) -> Policy:
        with lock:
            calls.append(seed)
            if len(calls) == 1:
                return Acting(raising(ConnectionError("no route")))
        return EmptyPolicy(env)

    result = rollout(plan.model_copy(update={"tasks": ("a",)}), tmp_path / "run", policies=Factory(make))
    (one,) = judged(result)
    assert (one.tries, one.reward_valid) == (2, True)
    assert result.progress.failures == {"ConnectionError": 1}
    assert calls[0] == calls[1]
    (bad,) = failed(result.folder)
    assert (bad.outcome, bad.reason, bad.failure, bad.reward_valid) == (
        "infra_failed",
        "ConnectionError",
        "no route",
        False,
    )


def test_an_episode_that_fails_every_try_is_retried_by_the_next_run(plan: Plan, tmp_path: Path) -> None:
    flaky = Factory(lambda env, seed: Acting(raising(PolicyError("busy", reason="server", retryable=True))))  # noqa: ARG005
    one_task = plan.model_copy(update={"tasks": ("a",)})
    result = rollout(one_task, tmp_path / "run", RolloutOptions(retries=1), policies=flaky)
    assert (result.progress.done, result.progress.given_up) == (0, 1)
    assert result.progress.failures == {"PolicyError (server)": 2}
    assert [one.tries for one in failed(result.folder)] == [1, 2]
    healed = rollout(one_task, tmp_path / "run", policies=Factory(lambda env, seed: EmptyPolicy(env)))  # noqa: ARG005
    assert (healed.progress.done, healed.progress.done_before) == (1, 0)


def test_a_permanent_failure_is_not_retried(plan: Plan, tmp_path: Path) -> None:
    refused = Factory(lambda env, seed: Acting(raising(PolicyError("no", reason="refused"))))  # noqa: ARG005
    result = rollout(plan.model_copy(update={"tasks": ("a",)}), tmp_path / "run", policies=refused)
    assert result.progress.failures == {"PolicyError (refused)": 1}


def fake(plan: Plan, *faults: dict[str, Any], tasks: tuple[str, ...] = ("a",)) -> Plan:
    options = {"options": {"files": {"calc.py": ""}, "faults": list(faults)}}
    return plan.model_copy(update={"tasks": tasks, "env": {"backend": "fake", "sandbox_options": options}})


def bash(command: str) -> str:
    return json.dumps({"name": "bash", "arguments": {"command": command}})


def playing(*tries: list[str]) -> Factory:
    """Policies that run these commands, one row for each try."""
    rows = iter(tries)

    def make(env: gymnasium.Env[str, str], seed: int | None) -> Policy:  # noqa: ARG001  whatever the task
        row = next(rows)
        return Acting(lambda turn: bash(row[turn - 1]))

    return Factory(make)


LOST = {"at": "exec", "match": "die", "error": "SandboxLost", "reason": "killed"}
OOM = {"at": "exec", "match": "swell", "error": "SandboxLost", "reason": "oom"}
EXPIRED = {"at": "exec", "match": "wait", "error": "SandboxLost", "reason": "expired"}


def test_a_sandbox_that_fails_in_a_step_gives_no_reward(plan: Plan, tmp_path: Path) -> None:
    make = Factory(lambda env, seed: Acting(lambda turn: bash("die")))  # noqa: ARG005
    result = rollout(fake(plan, LOST, tasks=("a", "b", "c")), tmp_path / "run", fast(), policies=make)
    assert result.progress.done == 0
    assert result.progress.failures == {"SandboxLost (killed)": 3}
    assert all(one.reward == 0.0 and not one.reward_valid for one in failed(result.folder))


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(
    "tries",
    [
        pytest.param([["look", "die"]] * 2, id="same actions"),
        pytest.param([["look", "die"], ["swell"], ["look", "die"]], id="the first and the third"),
    ],
)
def test_a_policy_that_loses_its_sandbox_twice_gets_reward_0(
    plan: Plan, tmp_path: Path, tries: list[list[str]]
) -> None:
    result = rollout(fake(plan, LOST, OOM), tmp_path / "run", fast(retries=2), policies=playing(*tries))
    (one,) = judged(result)
    assert (one.outcome, one.reason, one.reward_valid, one.reward, one.resolved) == (
        "agent_limit",
        "sandbox_lost",
        True,
        0.0,
        False,
    )
    assert (one.tries, one.info["limit"], one.turns[-1].info) == (len(tries), "sandbox_lost", one.info)
    assert (result.progress.outcomes, len(failed(result.folder))) == ({"sandbox_lost": 1}, len(tries) - 1)


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(
    "tries",
    [
        pytest.param([["look", "die"], ["other", "die"]], id="other actions"),
        pytest.param([["wait"]] * 2, id="its time was over"),
    ],
)
def test_losses_that_the_actions_do_not_explain_give_no_reward(
    plan: Plan, tmp_path: Path, tries: list[list[str]]
) -> None:
    result = rollout(fake(plan, LOST, OOM, EXPIRED), tmp_path / "run", fast(retries=1), policies=playing(*tries))
    assert (result.progress.done, len(failed(result.folder))) == (0, 2)


def lost(*actions: str) -> Trajectory:
    turns = tuple(Turn(action=action, observation="") for action in actions)
    return Trajectory(
        task_id="a",
        observation="",
        turns=turns,
        outcome="infra_failed",
        reason="SandboxLost (killed)",
        reward_valid=False,
        resolved=False,
        reward=0.0,
    )


def test_actions_that_got_further_in_another_try_are_not_blamed() -> None:
    assert lost_by_policy(lost("look", "die"), [lost("look", "die")])
    assert not lost_by_policy(lost("look", "die"), [lost("look", "die", "more")])
    assert not lost_by_policy(lost("look", "die", "more"), [lost("look", "die")])
    assert lost_by_policy(lost("look", "die"), [lost("look"), lost("look", "die")])
    assert not lost_by_policy(lost(), [lost()])


def test_native_calls_are_the_same_actions_whatever_their_ids() -> None:
    call = {"role": "assistant", "tool_calls": [tool_call("a", "bash", '{"command": "die", "id": "x"}')]}
    again = {"role": "assistant", "tool_calls": [tool_call("b", "bash", '{"command": "die", "id": "x"}')]}
    other = {"role": "assistant", "tool_calls": [tool_call("b", "bash", '{"command": "die", "id": "y"}')]}
    assert lost_by_policy(lost(action_of(call)), [lost(action_of(again))])
    assert not lost_by_policy(lost(action_of(call)), [lost(action_of(other))])


def test_a_sandbox_lost_before_the_first_step_gives_no_reward(plan: Plan, tmp_path: Path) -> None:
    lost = {"at": "start", "error": "SandboxStartError", "reason": "capacity", "retryable": True}
    result = rollout(fake(plan, lost), tmp_path / "run", fast(retries=1), policies=playing(["look"], ["look"]))
    assert result.progress.done == 0
    assert result.progress.failures == {"SandboxStartError (capacity)": 2}


def test_too_many_failures_stop_the_run_and_name_the_call(plan: Plan, tmp_path: Path) -> None:
    dead = Factory(lambda env, seed: Acting(raising(PolicyError("no route to host", reason="connection"))))  # noqa: ARG005
    many = plan.model_copy(update={"attempts": 50})
    with pytest.raises(RolloutStopped, match=r"(?s)x PolicyError \(connection\) in policy.*no route to host.*resume"):
        rollout(many, tmp_path / "run", fast(workers=2), policies=dead)
    assert 20 <= len(failed(tmp_path / "run")) < 150


def test_a_broken_task_is_counted_and_stops_nothing(plan: Plan, adder: Task, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    broken = adder.model_copy(update={"task_id": "broken", "python": PythonEnv(version="2.9")})
    write_tasks([broken, adder], path)
    result = rollout(plan.model_copy(update={"source_options": {"path": str(path)}}), tmp_path / "run")
    assert (result.progress.done, result.progress.given_up) == (1, 1)
    assert result.progress.failures == {"MissingInterpreter": 1}


def test_an_error_in_a_reward_is_raised_and_leaves_a_consistent_folder(plan: Plan, tmp_path: Path) -> None:
    broken = plan.model_copy(update={"env": {"reward": "engine_parts:broken_reward"}, "attempts": 5})
    with pytest.raises(ZeroDivisionError):
        rollout(broken, tmp_path / "run")
    assert list(read_live(tmp_path / "run")) == []
    assert "ZeroDivisionError" in {one.reason for one in failed(tmp_path / "run")}
    with pytest.raises(UsageError, match="shell"):
        rollout(plan.model_copy(update={"env": {"tools": ["view", "submit"]}}), tmp_path / "other")


def test_sandboxes_that_start_ahead_are_used_or_closed(plan: Plan, tmp_path: Path) -> None:
    many = plan.model_copy(update={"attempts": 2})
    result = rollout(many, tmp_path / "run", RolloutOptions(workers=1, warm=2))
    assert result.progress.resolved == 6
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("warm-pool")]


# --- stragglers -----------------------------------------------------------------------------------------------


@pytest.fixture
def never() -> Iterator[Callable[[int], str]]:
    """An action that comes when the test is over."""
    end = threading.Event()

    def act(turn: int) -> str:  # noqa: ARG001
        end.wait(60)
        return LOOK

    yield act
    end.set()


@pytest.mark.slow
def test_a_policy_that_never_answers_blocks_only_its_own_episode(
    plan: Plan, adder: Task, tmp_path: Path, never: Callable[[int], str]
) -> None:
    stuck = plan.episode_seed(EpisodeKey("b", 0, "any"))
    make = Factory(lambda env, seed: Acting(never) if seed == stuck else EmptyPolicy(env))
    judged_by_a_fake = adder.model_copy(update={"oracle": Oracle(test_cmd="true", grader="exit_code")})
    write_tasks([judged_by_a_fake.model_copy(update={"task_id": name}) for name in "abc"], tmp_path / "tasks.jsonl")
    quick = fake(plan, tasks=("a", "b", "c"))  # the others end long before the clock
    slow = quick.model_copy(update={"env": {**quick.env, "time_limit": 4.0}})
    result = rollout(slow, tmp_path / "run", RolloutOptions(workers=1, wall_clock=5.0, grace=0.3), policies=make)
    assert [one.task_id for one in judged(result)] == ["a", "c"]
    assert (result.progress.failures, result.progress.given_up) == ({"wall_clock": 1}, 1)
    (one,) = failed(result.folder)
    assert (one.task_id, one.reason, one.outcome) == ("b", "wall_clock", "running")


class Unwritable(Acting):
    """Keeps something in its conversation that is no JSON."""

    def report(self) -> PolicyReport:
        return PolicyReport(messages=({"role": "user", "content": object()},))


def test_an_abandoned_try_that_cannot_be_written_ends_the_run(
    plan: Plan, tmp_path: Path, never: Callable[[int], str]
) -> None:
    make = Factory(lambda env, seed: Unwritable(lambda turn: LOOK if turn == 1 else never(turn)))  # noqa: ARG005
    quick = fake(plan)
    slow = quick.model_copy(update={"env": {**quick.env, "time_limit": 1.0}})
    with pytest.raises(TypeError, match="JSON"):
        rollout(slow, tmp_path / "run", RolloutOptions(wall_clock=1.1, grace=0.3), policies=make)


def test_stragglers_are_cancelled(plan: Plan, tmp_path: Path, never: Callable[[int], str]) -> None:
    stuck = plan.episode_seed(EpisodeKey("b", 0, "any"))
    make = Factory(lambda env, seed: Acting(never) if seed == stuck else EmptyPolicy(env))
    result = rollout(plan, tmp_path / "run", RolloutOptions(cancel_last=0.4, grace=0.2), policies=make)
    assert [one.task_id for one in judged(result)] == ["a", "c"]
    assert result.progress.failures == {"straggler": 1}
    assert not make.closed.is_set()


def test_no_attempt_starts_that_cannot_change_the_votes(plan: Plan, tmp_path: Path) -> None:
    early = RolloutOptions(workers=1, early_stop="votes")
    plan = plan.model_copy(update={"tasks": ("a", "b"), "attempts": 3})
    result = rollout(plan, tmp_path / "run", early)
    assert [(one.task_id, one.attempt) for one in result.trajectories()] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert (result.progress.done, result.progress.total, result.progress.settled) == (4, 4, 2)
    again = rollout(plan, tmp_path / "run", early)
    assert (again.progress.done_before, again.progress.total, again.progress.settled) == (4, 4, 2)
    more = rollout(plan.model_copy(update={"attempts": 4}), tmp_path / "run", early)
    assert (more.progress.done, more.progress.total) == (6, 6)


def test_an_attempt_that_fails_is_not_tried_again_if_it_cannot_change_the_votes(plan: Plan, tmp_path: Path) -> None:
    plan = plan.model_copy(update={"tasks": ("a",), "attempts": 3})
    late, settled = plan.episode_seed(EpisodeKey("a", 2, "any")), threading.Event()

    def fail(turn: int) -> str:  # noqa: ARG001
        assert settled.wait(30)
        raise PolicyError("busy", reason="server", retryable=True)

    gold = make_policies("gold")
    make = Factory(lambda env, seed: Acting(fail) if seed == late else gold(env, seed=seed))
    early = RolloutOptions(workers=3, early_stop="votes")
    result = rollout(
        plan, tmp_path / "run", early, policies=make, on_progress=lambda now: now.done == 2 and settled.set()
    )
    end = result.progress
    assert (end.failed_tries, end.done, end.total, end.settled, end.given_up) == (1, 2, 2, 1, 0)


def test_a_sandbox_that_was_started_ahead_is_closed_if_its_attempt_is_dropped(plan: Plan) -> None:
    with WarmPool(ready=1) as warm:
        key = EpisodeKey("a", 0, "any")
        one = Try(plan, "run", key, 1, Factory(lambda env, seed: EmptyPolicy(env)), lambda _: None, warm=warm)  # type: ignore[arg-type]  # noqa: ARG005
        one.prepare()
        assert warm.want(SandboxSpec()) == 0
        one.close()
        assert warm.want(SandboxSpec()) == 1  # there is room again


def test_votes_are_settled_once_no_patch_can_draw_level() -> None:
    def patch(text: str) -> str:
        return f"diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-1\n+{text}\n" if text else ""

    for count in range(1, 5):
        for texts in itertools.product(("", "2", "3"), repeat=count):
            for seen in range(count + 1):
                votes = PatchVotes(count)
                for attempt, text in enumerate(texts[:seen]):
                    votes.add(
                        Trajectory.model_construct(task_id="a", attempt=attempt, patch=patch(text), patch_bytes=0)
                    )
                leads = [
                    _leaders([*texts[:seen], *rest])
                    for rest in itertools.product(("", "2", "3", "4"), repeat=count - seen)
                ]
                sure = all(len(one) == 1 and one == leads[0] for one in leads)
                assert votes.is_settled("a") == sure, (texts, seen)


def _leaders(texts: list[str]) -> set[str]:
    found = collections.Counter(filter(None, texts))
    return {text for text, votes in found.items() if votes == max(found.values())}


def test_a_patch_that_was_recorded_in_part_equals_no_other() -> None:
    votes = PatchVotes(3)
    for attempt in range(2):
        votes.add(Trajectory.model_construct(task_id="a", attempt=attempt, patch="diff", patch_bytes=9))
    assert not votes.is_settled("a")


def test_a_try_cancelled_before_its_sandbox_starts_ends(plan: Plan, tmp_path: Path) -> None:
    info = RunInfo(experiment="run", config={}, config_hash="abc", tasks=("a",), attempts=1)
    with RunFolder(tmp_path / "run", info) as folder:
        make = Factory(lambda env, seed: Acting(lambda turn: LOOK))  # noqa: ARG005
        one = Try(plan, info.experiment, EpisodeKey("a", 0, "abc"), 1, make, folder.start)
        one.cancelled = "interrupted"
        one.run()
        record, failure = one.record, one.failure
    assert failure is not None
    assert (failure.name, failure.retry, failure.counts) == ("interrupted", False, False)
    assert (record.outcome, record.reason, record.turns) == ("running", "interrupted", ())


# --- what makes no sense ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ("a", "nobody")}, "'nobody'"),
        ({"tasks": ("a", "a")}, "a task twice"),
        ({"policy": "glod"}, "gold"),
        ({"env": {"tools": "nobody"}}, "nobody"),
        ({"env": {"task_id": "a"}}, "task_id"),
    ],
)
def test_an_invalid_plan_is_refused_before_anything_is_created(
    plan: Plan, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        rollout(plan.model_copy(update=change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_wall_clock_must_exceed_the_time_limit(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="before their time limit"):
        rollout(plan, tmp_path / "run", RolloutOptions(wall_clock=100))
    with pytest.raises(ValidationError):
        RolloutOptions(workers=0)


def test_an_error_in_on_progress_ends_the_run(plan: Plan, tmp_path: Path) -> None:
    def watch(progress: Progress) -> None:
        if progress.running:
            raise RuntimeError("the watcher")

    with pytest.raises(RuntimeError, match="the watcher"):
        rollout(plan.model_copy(update={"attempts": 20}), tmp_path / "run", on_progress=watch)
    assert list(read_live(tmp_path / "run")) == []
    result = rollout(plan, tmp_path / "run")
    assert result.progress.done == 3
