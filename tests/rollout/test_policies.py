"""Policies by name, and policies without a model."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import UsageError
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies import POLICIES, make_policies
from swe_gym.tools import TOOLSETS

pytestmark = pytest.mark.sample(every=3)

Make = Callable[..., SweEnv]

ISSUE = """Sums are wrong: `add` subtracts.

```python
from calc import add
assert add(2, 3) == 5
```
"""


class Stubborn:
    """A policy of a user's own."""

    def __init__(self, env: Any, word: str, seed: int | None = None) -> None:
        self.said = f"{word} {seed} {env.config['max_turns']}"

    def reset(self, info: dict[str, Any]) -> None:
        pass

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        return self.said


class Open(Stubborn):
    """Takes any option."""

    def __init__(self, env: Any, **options: Any) -> None:
        super().__init__(env, " ".join(map(str, options.values())))


OWN = f"{__name__}:Stubborn"


# --- by name ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in ("llm", "tree")])
def test_every_name_makes_a_policy(env_of_adder: Make, name: str) -> None:
    factory = make_policies(name, {"actions": ["hm"]} if name == "scripted" else {})
    policy = factory(env_of_adder(), seed=1)
    assert callable(policy.act)
    assert callable(policy.reset)
    assert inspect.getdoc(policy)
    factory.close()


def test_a_custom_policy_gets_its_options_the_environment_and_the_seed(env_of_adder: Make) -> None:
    factory = make_policies(OWN, {"word": "no"})
    env = env_of_adder(max_turns=2, max_invalid=None)
    trajectory = play(env, factory(env, seed=7))
    assert [turn.action for turn in trajectory.turns] == ["no 7 2", "no 7 2"]


@pytest.mark.parametrize(("options", "said"), [({}, " None 50"), ({"any": 1, "more": 2}, "1 2 None 50")])
def test_a_custom_policy_may_take_any_option(env_of_adder: Make, options: dict[str, Any], said: str) -> None:
    assert make_policies(f"{__name__}:Open", options)(env_of_adder()).act("") == said


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("golden", {}, "unknown policy 'golden'. Did you mean 'gold'?"),
        ("random", {"turn": 3}, "unknown option of policy 'random': 'turn'. Did you mean 'turns'?"),
        ("scripted", {}, "policy 'scripted' needs the option 'actions'"),
        ("gold", {"env": None}, "unknown option of policy 'gold': 'env'"),
        (OWN, {}, "needs the option 'word'"),
    ],
)
def test_invalid_options_are_refused_before_anything_starts(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as failed:
        make_policies(name, options)
    assert message in str(failed.value)


# --- random -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", sorted(TOOLSETS))
def test_random_calls_are_valid_and_the_seed_decides(env_of_adder: Make, preset: str) -> None:
    env = env_of_adder(tools=preset)
    factory = make_policies("random", {"turns": 6})
    first, again, other = (play(env, factory(env, seed=seed)) for seed in (1, 1, 2))
    actions = [[turn.action for turn in trajectory.turns] for trajectory in (first, again, other)]
    assert actions[0] == actions[1] != actions[2]
    assert len(first.turns) == 7
    assert first.info["invalid_actions"] == 0
    assert (first.outcome, first.reward) == ("submitted", 0.0)


def test_a_random_policy_plays_several_episodes(env_of_adder: Make) -> None:
    env = env_of_adder()
    policy = make_policies("random", {"turns": 3})(env, seed=1)
    first, second = play(env, policy), play(env, policy)
    assert [turn.action for turn in first.turns] == [turn.action for turn in second.turns]


# --- the baseline -------------------------------------------------------------------------------------------


@pytest.fixture
def toy() -> Any:
    made: list[SweEnv] = []

    def make(task_id: str, **arguments: Any) -> SweEnv:
        made.append(SweEnv("toy", task_id=task_id, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


def test_the_baseline_explores_the_repository(toy: Make) -> None:
    env = toy("larder-overwrite-evicts")
    trajectory = play(env, make_policies("baseline")(env))
    assert [turn.tool for turn in trajectory.turns] == ["listdir", "eval", "bash", "grep", "view", "submit"]
    _, tests, example, search, view, _ = trajectory.turns
    assert "Ran 10 tests" in tests.observation
    assert "['b', 'c', 'd']" in example.observation  # what the issue complains about
    assert "larder/cache.py:10:class Cache:" in search.observation
    assert view.observation.startswith("larder/cache.py, lines 1-58 of 82:")
    assert (trajectory.reward, trajectory.outcome) == (0.0, "submitted")
    assert trajectory.info["invalid_actions"] == 0


def test_the_baseline_is_deterministic(toy: Make) -> None:
    env = toy("larder-overwrite-evicts")
    policy = make_policies("baseline")(env)
    first, second = play(env, policy), play(env, policy)
    assert [turn.action for turn in first.turns] == [turn.action for turn in second.turns]


@pytest.mark.parametrize("preset", sorted(TOOLSETS))
def test_the_baseline_works_with_every_preset(toy: Make, preset: str) -> None:
    env = toy("jot-recurring-steps", tools=preset, action_format="openai")
    trajectory = play(env, make_policies("baseline")(env))
    assert len(trajectory.turns) >= 4
    assert trajectory.info["invalid_actions"] == 0
    assert trajectory.outcome == "submitted"


def test_the_baseline_opens_what_a_traceback_names(env_of_adder: Make) -> None:
    env = env_of_adder()
    policy = make_policies("baseline")(env)
    env.reset()
    policy.reset({})
    policy.act(ISSUE)  # lists
    policy.act("calc.py")  # runs the tests, by the shell as the task names no command
    policy.act('File "/usr/lib/python3.11/unittest/case.py", line 58, in x\nFile "calc.py", line 2, in add\nTypeError')
    policy.act("")  # searches
    assert '"view"' in (opened := policy.act("other.py:7:def add"))
    assert "other.py" in opened
    assert '"path": "calc.py", "start": 1' in policy.act("")
    assert "submit" in policy.act("")
