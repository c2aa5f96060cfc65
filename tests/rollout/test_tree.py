"""A policy that errs at times, and a search that goes back."""

import contextlib
import functools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from swe_gym.envs import SweEnv
from swe_gym.errors import PolicyError, SandboxStartError, TaskError, UsageError
from swe_gym.rollout import Plan, RolloutBudget, play, replay_trajectory, rollout
from swe_gym.rollout.attempt import Try, _Stream
from swe_gym.rollout.policies import PolicyReport, make_policies
from swe_gym.rollout.policies.base import AsksServer
from swe_gym.rollout.search import STRIDE, NodeValue, VisibleTests
from swe_gym.tasks.file import write_tasks
from swe_gym.testing.openai_server import ModelReply, OpenAIServer
from swe_gym.trajectories import PolicyInfo, Trajectory, Usage
from swe_gym.trajectories.run_folder import EpisodeKey
from swe_gym.types import FolderWorkspace, RewardScript, Task, TaskStep

pytestmark = pytest.mark.sample(every=2)


def act(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def shell(command: str) -> str:
    return act("bash", command=command)


LOOK, REPAIR, BREAK = shell("cat calc.py"), shell("sed -i 's/a - b/a + b/' calc.py"), shell("echo '(' >> calc.py")
SUBMIT = act("submit")


class Noisy:
    """Looks, repairs and submits; breaks the file instead of the repair, with some probability."""

    def __init__(self, env: gymnasium.Env[str, str], errs: float = 0.7, seed: int | None = None) -> None:  # noqa: ARG002
        self._errs, self._draw = errs, random.Random(seed)
        self._turn = 0

    def reset(self, info: Any) -> None:  # noqa: ARG002
        self._turn = 0

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:  # noqa: ARG002
        self._turn = len(turns)

    def act(self, observation: str) -> str:  # noqa: ARG002
        self._turn += 1
        wrong = self._draw.random() < self._errs
        return [LOOK, BREAK if wrong else REPAIR, SUBMIT][min(self._turn, 3) - 1]

    def report(self) -> PolicyReport:
        return PolicyReport(policy=PolicyInfo(name="noisy", model="dice"), usage=Usage(completion_tokens=10, calls=1))


class Late(Noisy):
    """Breaks the file in another way each time, until its sixth proposal."""

    def __init__(self, env: gymnasium.Env[str, str], seed: int = 0) -> None:
        super().__init__(env, errs=0.0, seed=seed)
        self._number = seed // STRIDE

    def act(self, observation: str) -> str:
        action = super().act(observation)
        return shell(f"echo '({self._number}' >> calc.py") if action == REPAIR and self._number < 6 else action


class Forgetful:
    """A policy that cannot continue an episode."""

    def reset(self, info: Any) -> None: ...

    def act(self, observation: str) -> str:  # noqa: ARG002
        return SUBMIT


def by_name(env: SweEnv, turns: Sequence[tuple[str, str]]) -> NodeValue:  # noqa: ARG001
    """A value function of the user's."""
    return NodeValue(float("a + b" in env.sandbox.read_file("calc.py").decode()))


Make = Callable[..., SweEnv]


@pytest.fixture
def visible(adder: Task, tmp_path: Path) -> Make:
    """Environments on the good task with a visible test that finds broken files only."""
    assert isinstance(adder.workspace, FolderWorkspace)
    tests = Path(adder.workspace.path) / "tests"
    tests.mkdir()
    (tests / "__init__.py").touch()
    body = "import unittest\nfrom calc import add\n\nclass OldTest(unittest.TestCase):\n"
    (tests / "test_old.py").write_text(f"{body}    def test_zero(self): self.assertEqual(add(2, 0), 2)\n")
    path = tmp_path / "visible.jsonl"
    write_tasks([adder.model_copy(update={"eval_cmd": "python -m unittest discover -s tests -t ."})], path)
    return lambda **arguments: SweEnv("file", {"path": str(path)}, **arguments)


def search(
    env: gymnasium.Env[str, str], budget: RolloutBudget | None = None, seed: int = 0, **options: Any
) -> Trajectory:
    policies = make_policies("tree", {"inner": f"{__name__}:Noisy", **options})
    try:
        return play(env, policies(env, seed=seed), seed=seed, budget=budget)
    finally:
        policies.close()
        env.close()


def calls_of(record: Trajectory) -> int:
    searched = record.policy.options["searched"]
    assert isinstance(searched, dict)
    return int(searched["tool_calls"])


@pytest.mark.slow
@pytest.mark.parametrize("order", ["best", "beam"])
def test_a_search_goes_back_where_the_tests_break(visible: Make, order: str) -> None:
    """The first repair of this seed breaks the file, so the policy alone fails."""
    record = search(visible(), search=order)
    assert (record.reward, record.reason, record.resolved) == (1.0, "submit", True)
    assert [turn.action for turn in record.turns] == [LOOK, REPAIR, SUBMIT]
    assert (record.policy.name, record.policy.model, record.policy.options["search"]) == ("tree", "dice", order)
    assert calls_of(record) > 2
    assert record.usage.completion_tokens > 30
    assert (record.parent, record.branch_turn) == ("", 0)
    assert order == "beam" or replay_trajectory(record) is None


def test_a_search_widens_while_it_finds_something(visible: Make) -> None:
    """A policy that errs until its sixth proposal, and one that has nothing else to say."""
    record = search(visible(), inner=f"{__name__}:Late", branches=2)
    assert (record.reward, [turn.action for turn in record.turns]) == (1.0, [LOOK, REPAIR, SUBMIT])
    assert calls_of(record) == 4
    stuck = search(visible(), branches=1, errs=1.0)
    assert (stuck.reward, stuck.resolved, stuck.reward_valid) == (0.0, False, True)


def test_a_spent_budget_submits_the_best_work(visible: Make) -> None:
    for options in ({"tool_calls": 1}, {"tokens": 10, "budget": RolloutBudget(cost=1.0)}):
        record = search(visible(), errs=0.0, **options)
        assert [turn.action for turn in record.turns] == [LOOK]
        assert (record.reason, record.reward, record.reward_valid) == ("tool_calls", 0.0, True)
        assert record.turns[-1].truncated


def test_the_last_turn_is_left_to_the_submission(visible: Make) -> None:
    record = search(visible(max_turns=3), errs=0.0, branches=1)
    assert (record.reward, len(record.turns)) == (1.0, 3)
    short = search(visible(max_turns=2), errs=0.0)
    assert ([turn.action for turn in short.turns], short.reward) == ([LOOK], 0.0)


@pytest.mark.slow
def test_a_value_of_the_users_and_a_models(visible: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    record = search(visible(max_turns=2), value=f"{__name__}:by_name")
    assert [turn.action for turn in record.turns] == [LOOK]
    patches: list[str] = []

    def reply(request: Any) -> ModelReply:
        patches.append(request["messages"][-1]["content"])
        return ModelReply(content=f"SCORE: {100 if '+    return a + b' in patches[-1] else 10}")

    with OpenAIServer(reply) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        judge = {"model": server.model, "base_url": server.base_url}
        record = search(visible(), value="judge", value_options=judge, branches=6)
    assert record.reward == 1.0
    assert patches
    assert record.usage.prompt_tokens > 0


def test_a_model_searches(visible: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees the whole conversation at each point, and its server is known to the run."""
    seen: list[list[str]] = []

    def reply(request: Any) -> ModelReply:
        said = [message for message in request["messages"] if message["role"] == "assistant"]
        seen.append([message["role"] for message in request["messages"]])
        return ModelReply(content=[LOOK, REPAIR, SUBMIT][len(said)])

    with OpenAIServer(reply) as server, contextlib.closing(visible()) as env:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        options = {"model": server.model, "base_url": server.base_url, "calls": "text"}
        with contextlib.closing(make_policies("tree", options)) as policies:
            assert isinstance(policies, AsksServer)
            assert (policies.price, policies.ask_server().url) == (None, server.base_url)
            record = play(env, policies(env, seed=3), seed=3)
    assert (record.reward, record.policy.model, len(record.turns)) == (1.0, server.model, 3)
    assert [len(roles) for roles in seen] == [2, 4, 6]
    assert record.usage.calls == 3
    assert [message["role"] for message in record.messages][-1] == "assistant"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"search": "bets"}, "best"),
        ({"tool_calls": 0}, "policy.tool_calls must be a whole number of at least 1"),
        ({"value": "test"}, "tests"),
        ({"value_options": {"model": "x"}}, "takes no options"),
        ({"value": "judge", "value_options": {"modle": "x"}}, "model"),
        ({"value": "judge"}, "value function 'judge' needs 'model' in policy.value_options"),
        ({"erss": 1}, "errs"),
        ({"inner": f"{__name__}:Forgetful"}, "cannot continue an episode"),
    ],
)
def test_what_cannot_search_is_refused(visible: Make, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        search(visible(), **options)


def test_a_task_without_visible_tests_needs_another_value(env_of_adder: Make) -> None:
    with pytest.raises(TaskError, match="adder has no visible tests to value its work by"):
        search(env_of_adder())


def test_tasks_that_cannot_be_searched_are_refused_before_the_start(adder: Task, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    steps = tuple(TaskStep(name=name, instruction="Do.", script=RewardScript(), timeout=9) for name in "ab")
    stepped = adder.model_copy(
        update={
            "task_id": "stepped",
            "eval_cmd": "true",
            "oracle": adder.oracle.model_copy(update={"evaluation": RewardScript(steps=steps)}),
        }
    )
    for task, said in ((adder, "adder has no visible tests"), (stepped, "stepped has several steps")):
        write_tasks([adder.model_copy(update={"task_id": "fine", "eval_cmd": "true"}), task], path)
        options = {"inner": f"{__name__}:Noisy"}
        plan = Plan(source="file", source_options={"path": str(path)}, policy="tree", policy_options=options)
        with pytest.raises(UsageError, match=f"'tree' cannot play 1 of the 2 tasks, for example: task {said}"):
            rollout(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Steady(Noisy):
    """Writes another file each time, then submits; fails as it is told at its second proposal and after it."""

    def __init__(self, env: gymnasium.Env[str, str], fails: str = "", until: int = 2, seed: int = 0) -> None:
        super().__init__(env, seed=seed)
        self._fails, self._until, self._number = fails, until, seed // STRIDE

    def act(self, observation: str) -> str:  # noqa: ARG002
        if 2 <= self._number <= self._until and self._fails == "server":
            raise PolicyError("the server is busy", reason="server", retryable=True)
        if 2 <= self._number <= self._until and self._fails == "large":
            return shell("truncate -s 300M large")
        self._turn += 1
        return [REPAIR, shell(f"echo {self._number} > notes"), SUBMIT][min(self._turn, 3) - 1]


def half(env: SweEnv, turns: Sequence[tuple[str, str]]) -> NodeValue:  # noqa: ARG001
    return NodeValue(0.5)


def test_a_budget_of_tool_calls_bounds_requests(visible: Make) -> None:
    """No value reaches the goal, so the search never has enough."""
    record = search(visible(), inner=f"{__name__}:Steady", value=f"{__name__}:half", tool_calls=4, branches=2)
    assert record.usage.calls == 8
    assert record.reward == 1.0


@pytest.mark.parametrize("fails", ["server", "large"])
def test_a_branch_that_fails_is_given_up(visible: Make, fails: str) -> None:
    options = {"inner": f"{__name__}:Steady", "value": f"{__name__}:half", "fails": fails, "tool_calls": 4}
    record = search(visible(), until=3, **options)
    assert (record.reward, record.reason) == (1.0, "submit")
    with pytest.raises(PolicyError, match="busy") if fails == "server" else contextlib.nullcontext():
        assert search(visible(), until=9, **options).reward == 1.0  # of the one point that there is


class NoRoom(gymnasium.Wrapper[str, str, str, str]):
    """Some sandboxes do not start, and some are lost in a step."""

    def __init__(self, env: SweEnv, fails: set[int], lost: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        super().__init__(env)
        self._fails, self._resets = fails, 0
        self._lost, self._steps = lost, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._resets += 1
        if self._resets in self._fails:
            raise SandboxStartError("no room", retryable=True)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        lost = self._steps in self._lost
        return observation, reward, terminated, truncated or lost, info | ({"outcome": "infra_failed"} if lost else {})


def test_a_sandbox_that_does_not_start_ends_no_search(visible: Make) -> None:
    options = {"inner": f"{__name__}:Steady", "value": f"{__name__}:half", "tool_calls": 2, "branches": 1}
    assert search(NoRoom(visible(), {2, 4}), **options).reward == 1.0  # a branch, and the submission
    with pytest.raises(SandboxStartError):
        search(NoRoom(visible(), {2, 3, 4}), **{**options, "tool_calls": 3})
    with pytest.raises(SandboxStartError):  # nothing was tried, so the start is not the work
        search(NoRoom(visible(), {2}), **{**options, "tool_calls": 1})
    record = search(NoRoom(visible(), set(), lost={1, 2}), **{**options, "tool_calls": 3})
    assert ([turn.action for turn in record.turns], record.reward) == ([REPAIR], 1.0)  # tried until it worked
    record = search(NoRoom(visible(), set(), lost={1}), **{**options, "tool_calls": 1})
    assert (record.outcome, len(record.turns)) == ("infra_failed", 1)


def test_a_run_sees_the_usage_of_a_search_on_a_node(visible: Make) -> None:
    """Its turns come at the end, but a budget of the run must see its requests."""
    with contextlib.closing(visible()) as env:
        plan = Plan(source="file", source_options=env.config["source_options"])

    class File:
        def add(self, turn: Any) -> None: ...

        def close(self) -> None: ...

    class Link:
        def emit(self, event: Any) -> None:
            driver.receive(event)

    def make(start: Any) -> Try:
        return Try(plan, "x", EpisodeKey("adder", 0, ""), 1, make_policies("empty"), start)

    driver, node = make(lambda _: File()), make(functools.partial(_Stream, Link()))
    node._file = node._start_file(node.so_far())
    node._add_usage(Usage(calls=2))
    assert (driver.used.calls, node.used.calls) == (2, 2)


def test_the_work_gains_nothing_by_weaker_tests(visible: Make) -> None:
    weaken = "echo 'import unittest\n@unittest.skip(1)\nclass OldTest(unittest.TestCase): pass' > tests/test_old.py"
    more = "printf 'from test_old import *\nclass N(OldTest): pass' > tests/test_new.py"
    value = VisibleTests()
    with contextlib.closing(visible()) as env:
        env.reset(seed=0)
        assert value(env, []).value == 1.0
        env.step(BREAK)
        for command in ("rm -r tests", weaken, more):
            env.step(shell(command))
            assert value(env, [("", "")]).value == 0.0
