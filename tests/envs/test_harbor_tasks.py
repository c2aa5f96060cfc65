"""Harbor's tasks, played: the sandbox in which the policy worked is judged, and the script's reward is the reward."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harbor_folders import LAST_TOML, NAME, PLAYED, SHAPES, TO_REWARD, TOML, harbor_task, script, submit

from swe_gym.curation.validation import validate
from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import SandboxStartError, TaskError, Unsupported
from swe_gym.gateway.agents import check_steps
from swe_gym.grading.in_place import clear_step, judging_seconds, steps_of
from swe_gym.rollout.policies.gold import GoldPolicy
from swe_gym.sandboxes.local import problem
from swe_gym.spaces import Info
from swe_gym.tasks import load_source

SOURCE = "harbor_folders:LocalHarborSource"
Play = Callable[..., tuple[float, Info]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., SweEnv]]:
    """Make an environment of one task folder."""
    if why := problem("namespace"):
        pytest.skip(f"no tier namespace on this machine: {why}")
    made: list[SweEnv] = []

    def make(arguments: dict[str, object] | None = None, **files: str | bytes | None) -> SweEnv:
        harbor_task(tmp_path, **files)
        made.append(SweEnv(SOURCE, {"path": str(tmp_path)}, tools=["bash", "submit"], **(arguments or {})))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.fixture
def play(make: Callable[..., SweEnv]) -> Play:
    """Run one command in a task and submit. Return the reward and the last info."""

    def play(command: str, **files: str | bytes | None) -> tuple[float, Info]:
        env = make(**files)
        env.reset()
        reward, terminated, truncated, info = submit(env, command)
        assert terminated is info["reward_valid"] is not truncated, env.stats["failure"]
        return reward, info

    return play


@pytest.mark.parametrize("name", [name for name in PLAYED if not SHAPES[name].image])
def test_right_work_earns_1_and_wrong_work_0(play: Play, name: str) -> None:
    shape = SHAPES[name]
    reward, info = play(shape.wrong, **shape.files)
    assert (reward, info["resolved"]) == (0.0, False)
    reward, info = play(shape.right, **shape.files)
    assert (reward, info["resolved"], info["reward_components"]) == (1.0, True, {"score": 1.0})


@pytest.mark.parametrize(
    ("name", "wrote", "reward"),
    [
        ("binary", "echo 0.25 > reward.txt", 0.25),
        ("fraction", "printf ' 1.0 ' > reward.txt", 1.0),
        ("shaped", "echo 1e-3 > reward.txt", 0.001),
        ("binary", "echo '{\"score\": 0.5}' > reward.json", 0.5),
        ("fraction", 'echo \'{"reward": true, "time": 300}\' > reward.json', 1.0),
        ("shaped", "echo 0 > reward.txt; echo '{\"reward\": 0.75}' > reward.json", 0.75),
    ],
)
def test_the_reward_is_the_number_that_the_script_wrote(
    make: Callable[..., SweEnv], wrote: str, reward: float, name: str
) -> None:
    env = make({"reward": name}, **{"tests/test.sh": script(f"cd /logs/verifier\n{wrote}")})
    env.reset()
    _, earned, _, _, info = env.submit()
    assert (earned, info["resolved"], info["reward_valid"]) == (reward, reward == 1.0, True)
    assert env.verdict is not None
    assert (env.verdict.score, env.verdict.judge) == (reward, "reward")


@pytest.mark.parametrize(
    ("wrote", "message"),
    [
        ("true", "wrote no reward"),
        ("echo 2 > reward.txt", "no reward between 0 and 1: the reward is 2"),
        ("echo -1 > reward.txt", "the reward is -1"),
        ("echo nan > reward.txt", "the reward is nan"),
        ("echo yes > reward.txt", "no reward between 0 and 1"),
        (": > reward.txt", "no reward between 0 and 1"),
        ('echo \'{"a": 1, "b": 1}\' > reward.json', "several values and none is named"),
        ('echo \'{"reward": "1"}\' > reward.json', "reward is not a finite number"),
        ("echo '{\"reward\": 1e999}' > reward.json", "reward is not a finite number"),
        ("echo '[1]' > reward.json", "not a JSON object"),
        ("echo '{}' > reward.json", "not a JSON object"),
        ("head -c 100000 /dev/zero > reward.json", "cannot be read"),
        ("printf '[%.0s' {1..60000} > reward.json", "no reward between 0 and 1"),
        ("mkdir reward.txt", "cannot be read"),
        ("sleep 60", "ran into their timeout of 1 s"),
    ],
)
def test_a_script_without_a_reward_gives_no_verdict(make: Callable[..., SweEnv], wrote: str, message: str) -> None:
    toml = TOML + "[verifier]\ntimeout_sec = 1\n"
    env = make(**{"tests/test.sh": script(f"cd /logs/verifier\n{wrote}"), "task.toml": toml})
    env.reset()
    _, reward, _, truncated, info = env.submit()
    assert (reward, truncated, info["outcome"], info["reward_valid"]) == (0.0, True, "infra_failed", False)
    assert message in env.stats["failure"]
    assert message not in info["failure"]


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("solve", [None, "echo new > x.txt"])
@pytest.mark.parametrize("work", ["chmod -x /app/run.sh", "echo 'sleep 60' > /app/run.sh"])
def test_work_that_stops_the_script_earns_0(make: Callable[..., SweEnv], work: str, solve: str | None) -> None:
    """The script writes a reward without the work, so the work is to blame."""
    toml = TOML + "[verifier]\ntimeout_sec = 2\n"
    folder = {
        "environment/run.sh": "true",
        "tests/test.sh": script(
            "chmod +x /tests/*\n[ -x /app/run.sh ] && . /app/run.sh && echo 0.5 > /logs/verifier/reward.txt"
        ),
        "solution/solve.sh": script(solve or "chmod +x /app/run.sh"),
    }
    env = make(**{"task.toml": toml, **folder})
    env.reset()
    env.sandbox.exec(f"chmod +x /app/run.sh; {work}")
    _, reward, _, _, info = env.submit()
    if solve is not None:  # the solution does not make the script run: the task is to blame
        assert not info["reward_valid"]
        assert "With its own solution there is no reward either" in env.stats["failure"]
        return
    assert (reward, info["reward_valid"], info["resolved"]) == (0.0, True, False)
    assert env.verdict is not None
    assert env.verdict.score == 0.0
    assert env.verdict.timed_out is ("sleep" in work)


@pytest.mark.parametrize(
    "work",
    [
        "echo 2 > score",
        "echo nan > score",
        "head -c 100000 /dev/zero > score",
        "touch /tests",
        "mkdir -p /tests/test.sh/in",
        "rm -rf /logs/verifier; touch /logs/verifier",
        "rm -f $(command -v rm)",
    ],
)
def test_work_cannot_drop_its_verdict(make: Callable[..., SweEnv], work: str) -> None:
    """Whatever keeps the script from writing a valid reward is the work's fault if the solution gets one."""
    env = make(
        **{
            "tests/test.sh": script("cat score > /logs/verifier/reward.txt"),
            "solution/solve.sh": script("echo 1 > score"),
        }
    )
    env.reset()
    env.sandbox.exec(work)
    _, reward, _, _, info = env.submit()
    assert (reward, info["reward_valid"], info["resolved"]) == (0.0, True, False), env.stats["failure"]


def test_a_reward_that_the_policy_wrote_does_not_count(play: Play) -> None:
    cheat = "echo 1 | tee /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
    assert play(cheat)[0] == 0.0
    assert play(f"ln -s /app/mine /logs/verifier/reward.txt; {cheat}")[0] == 0.0


def test_the_policy_sees_neither_tests_nor_solution(make: Callable[..., SweEnv]) -> None:
    env = make(**{"task.toml": TOML + "[verifier.env]\nKEY = 'secret-key'\n"})
    env.reset()
    found = env.sandbox.exec("ls -A /tests /solution; env; grep -rs secret-key /logs /app /tmp", merge=True).text
    assert "test.sh" not in found
    assert "solve.sh" not in found
    assert "secret-key" not in found


def test_work_is_not_judged_before_its_end(make: Callable[..., SweEnv]) -> None:
    env = make()
    env.reset()
    with pytest.raises(Unsupported, match="would show it the hidden tests: submit instead"):
        env.grade()
    env.sandbox.exec("echo new > x.txt")
    assert env.patch().paths == ("x.txt",)
    assert not env.sandbox.exec("ls /tests").ok
    env.submit()
    assert env.grade().resolved
    assert env.judged_diff == ""


def test_the_task_limits_the_time_of_the_policy(make: Callable[..., SweEnv]) -> None:
    toml = TOML + "[agent]\ntimeout_sec = 1e-9\n"
    env = make(**{"task.toml": toml})
    env.reset()
    assert env.deadline <= time.monotonic()
    _, _, _, truncated, info = env.step("nonsense")
    assert (truncated, info["limit"], info["reward_valid"]) == (True, "time", True)


def test_the_gold_policy_runs_the_solution(make: Callable[..., SweEnv]) -> None:
    solve = '#!/bin/bash\ncp /solution/new.txt "$TARGET"\n'
    env = make(
        **{
            "solution/solve.sh": solve,
            "solution/new.txt": "new\n",
            "task.toml": TOML + "[solution.env]\nTARGET = 'x.txt'\n",
        }
    )
    policy = GoldPolicy(env)
    observation, info = env.reset()
    policy.reset(info)
    ended, reward = False, 0.0
    while not ended:
        observation, reward, terminated, truncated, info = env.step(policy.act(observation))
        ended = terminated or truncated
    assert (reward, info["outcome"]) == (1.0, "submitted")


def test_validation_runs_the_solution(tmp_path: Path, make: Callable[..., SweEnv]) -> None:
    make()
    harbor_task(tmp_path, "unsolved", **{"solution/solve.sh": "true\n"})
    harbor_task(tmp_path, "already", **{"tests/test.sh": script("echo 1 > /logs/verifier/reward.txt")})
    (harbor_task(tmp_path, "nothing") / "solution/solve.sh").unlink()
    records = {one.task_id: one for one in validate(load_source(SOURCE, path=str(tmp_path)), times=1)}
    assert {name: one.status for name, one in records.items()} == {
        NAME: "valid",
        "unsolved": "invalid",
        "already": "invalid",
        "nothing": "invalid",
    }
    assert (records[NAME].gold, records[NAME].empty) == ((True,), (False,))
    assert "no gold patch or other solution" in records["nothing"].reason


def test_a_sandbox_without_a_root_folder_of_its_own_is_refused(make: Callable[..., SweEnv]) -> None:
    """Its files outside of the workdir are those of this machine."""
    for tier in ("landlock", "process"):
        if problem(tier):
            continue
        env = make({"sandbox_options": {"options": {"tier": tier}}})
        with pytest.raises(Unsupported, match="no root folder of its own"):
            env.reset()


def test_the_script_runs_as_the_verifiers_user(make: Callable[..., SweEnv]) -> None:
    as_root = script('[ "$(id -u)" = 0 ] && echo 1 > /logs/verifier/reward.txt')
    env = make(**{"task.toml": TOML + "[verifier]\nuser = 'root'\n", "tests/test.sh": as_root})
    env.reset()  # local sandboxes run as root, and have no other user without an image
    _, reward, _, _, info = env.submit()
    assert (reward, info["reward_valid"]) == (1.0, True), env.stats["failure"]
    with pytest.raises(TaskError, match=r"verifier\.user = '1234': "):
        make(**{"task.toml": TOML + "[verifier]\nuser = 1234\n"}).reset()


def test_files_that_cannot_be_added_are_an_error_of_the_task(make: Callable[..., SweEnv]) -> None:
    with pytest.raises(TaskError, match=rf"task {NAME}: its files cannot be added: .*x\.txt/below"):
        make(**{"environment/x.txt/below": "x.txt is a file"}).reset()


def test_a_healthcheck_is_repeated_until_it_passes(make: Callable[..., SweEnv]) -> None:
    check = "healthcheck = {command = 'echo >> /tried; [ $(wc -l < /tried) = 4 ]', interval_sec = 0, retries = 4}\n"
    env = make(**{"task.toml": TOML + check})
    env.reset()
    assert env.sandbox.exec("wc -l < /tried").text == "4\n"


def test_failures_in_the_start_period_do_not_count(make: Callable[..., SweEnv]) -> None:
    check = "command = 'echo >> /tried; [ $(wc -l < /tried) = 3 ]', start_period_sec = 600, start_interval_sec = 0"
    env = make(**{"task.toml": f"{TOML}healthcheck = {{{check}, retries = 1}}\n"})
    env.reset()
    assert env.sandbox.exec("wc -l < /tried").text == "3\n"


def test_a_healthcheck_that_fails_too_often_ends_the_start(make: Callable[..., SweEnv]) -> None:
    check = "healthcheck = {command = 'echo why; exit 3', interval_sec = 0, retries = 2}\n"
    with pytest.raises(SandboxStartError, match=r"'echo why; exit 3' failed 2 times in a row: exit code 3"):
        make(**{"task.toml": TOML + check}).reset()


# --- steps --------------------------------------------------------------------------------------------------


def steps(toml: str = "", *, least: float = 0.0) -> dict[str, str | bytes | None]:
    """Return the files of a task with two steps; the reward of the first is 0.5 or 1."""
    return {
        "task.toml": LAST_TOML.format(toml)
        + f"[[steps]]\nname = 'first'\nmin_reward = {least}\n[[steps]]\nname = 'second'\n",
        "instruction.md": None,
        "solution/solve.sh": None,
        "tests/test.sh": script(
            "if [ $(wc -l < x.txt) = 2 ]; then echo 1; else echo 0.5; fi > /logs/verifier/reward.txt"
        ),
        "steps/first/instruction.md": "Add a line.\n",
        "steps/first/solution/solve.sh": script("echo new >> x.txt"),
        "steps/second/instruction.md": "Tell that it is done.\n",
        "steps/second/workdir/given.txt": "given\n",
        "steps/second/tests/test.sh": script(TO_REWARD.format("[ -e done ] && [ ! -e /tests/planted ]")),
        "steps/second/solution/solve.sh": script("[ -e given.txt ] && touch done"),
    }


SUBMIT = '{"name": "submit", "arguments": {}}'


@pytest.mark.parametrize(
    ("toml", "least", "commands", "reward"),
    [
        ("", 0.0, ["echo new >> x.txt", "touch done"], 1.0),
        ("", 0.0, ["echo new >> x.txt; touch done; ! [ -e given.txt ]", "touch /tests/planted"], 1.0),
        ("", 0.0, ["true", "touch done"], 0.75),
        ("", 0.6, ["true"], 0.5),
        ("", 0.5, ["true", "true"], 0.25),
        ("multi_step_reward_strategy = 'final'", 0.0, ["echo new >> x.txt", "true"], 0.0),
        ("multi_step_reward_strategy = 'final'", 0.6, ["true"], 0.5),
    ],
)
def test_steps_are_judged_one_after_another(
    make: Callable[..., SweEnv], toml: str, least: float, commands: list[str], reward: float
) -> None:
    env = make(**steps(toml, least=least))
    observation, _ = env.reset()
    assert observation.startswith("Add a line.")
    for number, command in enumerate(commands, start=1):
        assert env.sandbox.exec(command).ok
        observation, earned, terminated, truncated, info = env.step(SUBMIT)
        assert (terminated, truncated) == (number == len(commands), False), env.stats["failure"]
        assert terminated or (earned, "Tell that it is done." in observation) == (0.0, True)
    assert (earned, info["resolved"], info["reward_valid"]) == (reward, reward == 1.0, True)


WORK = '{"name": "bash", "arguments": {"command": "seq 100000"}}'


def test_the_time_of_a_step_ends_that_step(make: Callable[..., SweEnv]) -> None:
    files = steps()
    files["task.toml"] = f"{files['task.toml']}".replace("min_reward = 0.0", "agent = {timeout_sec = 1e-9}")
    env = make({"max_observation": 1000}, **files)
    env.reset()
    env.sandbox.exec("echo new >> x.txt; touch done")
    observation, _, terminated, truncated, info = env.step(WORK)
    assert (terminated, truncated, info["limit"]) == (False, False, "")
    assert observation.startswith("1\n")
    assert observation.endswith("\nTell that it is done.\n")
    assert len(observation) <= 1000
    _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated, info["outcome"]) == (1.0, True, "submitted")


@pytest.mark.parametrize(
    ("arguments", "action", "limit"),
    [({"time_limit": 1e-9}, WORK, "time"), ({"time_limit": 1e-9}, SUBMIT, "time"), ({"max_turns": 1}, SUBMIT, "turns")],
)
def test_a_step_does_not_begin_beyond_the_limits_of_the_episode(
    make: Callable[..., SweEnv], arguments: dict[str, object], action: str, limit: str
) -> None:
    env = make(arguments, **steps())
    env.reset()
    _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["limit"]) == (0.25, False, True, limit)


def test_a_task_is_not_cut_by_its_own_setup_and_judging_nor_in_silence(make: Callable[..., SweEnv]) -> None:
    files = steps()
    files["task.toml"] = f"{files['task.toml']}".replace("[[steps]]", "[agent]\ntimeout_sec = 50.0\n[[steps]]", 1)
    env = make({"time_limit": 99.0}, **{**files, "steps/second/workdir/setup.sh": script("true")})
    task = env.source.get(NAME)
    assert judging_seconds(task) == 2 * (3600 + sum(step.oracle.timeout for step in steps_of(task))) + 2 * 50
    with pytest.warns(UserWarning, match="gives a policy 100 s, .* pass time_limit=100"):
        env.reset()
    env.reset()


def test_steps_share_the_time_limit_of_the_episode(make: Callable[..., SweEnv]) -> None:
    env = make({"time_limit": 1000.0}, **{**steps(), "steps/second/workdir/setup.sh": script("true")})
    env.reset()
    ended, deadline = time.monotonic(), env.deadline
    env.submit()
    assert deadline < env.deadline <= deadline + time.monotonic() - ended  # the judging only is not counted


def test_work_that_breaks_the_verifier_forgoes_the_later_steps(make: Callable[..., SweEnv]) -> None:
    files = steps()
    files["task.toml"] = f"{files['task.toml']}[[steps]]\nname = 'third'\n"
    third = {"steps/third/instruction.md": "Rest.\n", "steps/third/solution/solve.sh": script("true")}
    env = make(**files, **third)
    env.reset()
    env.sandbox.exec("echo new >> x.txt")
    env.submit()
    env.sandbox.exec("rm -rf /logs && touch /logs")
    _, reward, terminated, _, info = env.submit()
    assert (round(reward, 3), terminated, info["reward_valid"]) == (0.333, True, True), env.stats["failure"]


def test_steps_that_a_limit_cuts_off_count_as_0(make: Callable[..., SweEnv]) -> None:
    env = make({"max_turns": 1}, **steps())
    env.reset()
    env.sandbox.exec("echo new >> x.txt")
    _, reward, terminated, truncated, info = env.step('{"name": "bash", "arguments": {"command": "true"}}')
    assert (reward, terminated, truncated, info["limit"]) == (0.5, False, True, "turns")
    assert env.verdict is not None
    assert "step 'second' was not played" in env.verdict.notes


def test_work_that_keeps_a_step_from_its_start_or_its_reward_earns_0_for_it(make: Callable[..., SweEnv]) -> None:
    env = make(**{**steps(), "steps/second/workdir/setup.sh": script("[ ! -e spoilt ]")})
    env.reset()
    env.sandbox.exec("echo new >> x.txt; touch spoilt")
    _, reward, terminated, _, _ = env.submit()
    assert (reward, terminated) == (0.5, True)
    env.reset()
    env.sandbox.exec("echo new >> x.txt")
    assert env.submit()[2:4] == (False, False)
    env.sandbox.exec("rm -rf /logs && touch /logs")
    _, reward, terminated, _, info = env.submit()
    assert (reward, terminated, info["reward_valid"]) == (0.5, True, True), env.stats["failure"]


def test_work_in_the_place_of_a_steps_files_earns_0_for_the_step(make: Callable[..., SweEnv]) -> None:
    env = make(**steps())
    env.reset()
    env.sandbox.exec("echo new >> x.txt; mkdir -p given.txt/in")
    _, reward, terminated, _, info = env.submit()
    assert (reward, terminated, info["reward_valid"]) == (0.5, True, True), env.stats["failure"]


def test_a_steps_files_are_not_written_through_links(make: Callable[..., SweEnv]) -> None:
    env = make(**{**steps(), "steps/second/workdir/sub/mine.txt": "mine\n"})
    env.reset()
    env.sandbox.exec("mkdir /else; echo kept > /else/file; ln -s /else/file given.txt; ln -s /else sub")
    env.submit()
    assert env.sandbox.exec("cat /else/file; ls /else; cat given.txt sub/mine.txt").text == "kept\nfile\ngiven\nmine\n"


def test_tests_of_a_step_are_hidden_from_another_user(make: Callable[..., SweEnv]) -> None:
    env = make(**steps())
    env.reset()
    (first, _), mode = steps_of(env.task), "stat -c %a /tests"
    clear_step(first, env.sandbox)
    assert env.sandbox.exec(mode).text == "755\n"
    assert first.oracle.in_place is not None
    hidden = first.oracle.in_place.model_copy(update={"policy_user": "1234"})
    clear_step(first.model_copy(update={"oracle": first.oracle.model_copy(update={"evaluation": hidden})}), env.sandbox)
    assert env.sandbox.exec(mode).text == "700\n"


def test_min_reward_compares_the_value_reward_only(make: Callable[..., SweEnv]) -> None:
    wrote = script("echo '{\"score\": 1}' > /logs/verifier/reward.json")
    env = make(**{**steps(), "tests/test.sh": wrote})
    env.reset()
    info = env.submit()[-1]
    assert not info["reward_valid"]
    assert 'no value is named "reward", which min_reward compares: score' in env.stats["failure"]


def test_agents_in_sandboxes_play_no_steps(make: Callable[..., SweEnv]) -> None:
    env = make(**steps())
    with pytest.raises(TaskError, match="several steps, which agents in sandboxes cannot play"):
        check_steps(env.source.get(NAME))


def test_a_setup_that_fails_after_the_solution_too_is_no_reward(make: Callable[..., SweEnv]) -> None:
    env = make(**{**steps(), "steps/second/workdir/setup.sh": script("exit 3")})
    env.reset()
    _, reward, _, truncated, info = env.submit()
    assert (reward, truncated, info["outcome"]) == (0.0, True, "infra_failed")
    assert "With its own solutions, the task does not get as far" in env.stats["failure"]


def test_a_setup_that_always_fails_is_no_reward(make: Callable[..., SweEnv]) -> None:
    env = make(**{**steps(), "steps/first/workdir/setup.sh": script("exit 3")})
    with pytest.raises(SandboxStartError, match="step 'first': its setup failed"):
        env.reset()


def test_solutions_of_steps_are_validated_and_played(make: Callable[..., SweEnv]) -> None:
    env = make(**steps())
    (record,) = validate(env.source, times=1)
    assert (record.status, record.gold, record.empty) == ("valid", (True,), (False,)), record.reason
    policy = GoldPolicy(env)
    observation, info = env.reset()
    policy.reset(info)
    ended = False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        ended = terminated or truncated
    assert (reward, terminated) == (1.0, True), env.stats["failure"]
