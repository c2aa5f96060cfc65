"""`known_numbers`: what adapters report to frameworks, which average it."""

from swe_gym.adapters.episodes import OF_A_VERDICT, known_numbers
from swe_gym.envs.swe_env import SweEnv
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies import make_policies
from swe_gym.spaces import Info

NAMES = ("turn", *OF_A_VERDICT)
INFO: Info = {
    "reward_valid": True,
    "turn": 3,
    "resolved": False,
    "fail_to_pass_passed": 0,
    "fail_to_pass_total": 5,
    "pass_to_pass_passed": 12,
    "pass_to_pass_total": 12,
}


def test_an_unknown_count_is_left_out_with_its_total() -> None:
    assert known_numbers(INFO, NAMES) == {name: float(INFO[name]) for name in NAMES}
    unknown = known_numbers({**INFO, "fail_to_pass_passed": -1}, NAMES)
    assert unknown == {"turn": 3.0, "resolved": 0.0, "pass_to_pass_passed": 12.0, "pass_to_pass_total": 12.0}


def test_an_episode_without_a_grade_has_no_number_of_a_verdict() -> None:
    assert known_numbers({**INFO, "reward_valid": False}, NAMES) == {"turn": 3.0}
    assert known_numbers({"reward_valid": False, "resolved": False}, ["resolved"]) == {}


def test_a_loss_under_the_binary_reward_reports_the_counts_of_its_tests() -> None:
    env = SweEnv("toy", task_id="larder-overwrite-evicts")
    factory = make_policies("empty")
    info = play(env, factory(env)).info
    env.close()
    assert info["fail_to_pass_passed"] == 0
    found = known_numbers(info, NAMES)
    assert (found["turn"], found["resolved"], found["fail_to_pass_passed"], found["fail_to_pass_total"]) == (1, 0, 0, 5)
