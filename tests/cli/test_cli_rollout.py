"""`swe-gym rollout`, `export`, `import`, `replay` and `bench rollout`."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from swe_gym.cli.rollout_config import make_config
from swe_gym.cli.rollout_display import progress_line
from swe_gym.rollout.progress import Progress
from swe_gym.spaces import Info
from swe_gym.trajectories.run_folder import read_index, read_run
from swe_gym.trajectories.trajectory import Trajectory, Usage

GOLD = ("--policy", "gold", "--workers", 2)


def test_a_rollout_reports_and_resumes(cli, tmp_path: Path) -> None:
    result = cli("rollout", "toy", *GOLD, "--match", "l*", "-k", 2, "--name", "first")
    assert (result.status, result.err) == (0, "")
    assert "0/4 done, 0 resolved (0%)" in result.out
    assert "4/4 done, 4 resolved (100%), 3.0 turns, 0 running" in result.out
    assert "4 of 4 resolved (100.0%)" in result.out
    assert "Run folder: runs/first" in result.out
    folder = tmp_path / "runs" / "first"
    assert len(read_index(folder)) == 4
    before = (folder / "trajectories.jsonl").read_bytes()
    again = cli("rollout", "toy", *GOLD, "--match", "l*", "-k", 3, "--name", "first")
    assert "6/6 done" in again.out
    assert (folder / "trajectories.jsonl").read_bytes().startswith(before)
    refused = cli("rollout", "toy", *GOLD, "--match", "l*", "--name", "first", "--max-turns", 9)
    assert refused.status == 2
    assert "env.max_turns: 50, now 9" in refused.err


class Interrupting:
    """Submits at once, while the person presses Ctrl-C."""

    def reset(self, info: Info) -> None: ...

    def act(self, observation: str) -> str:  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGINT)
        return '{"name": "submit", "arguments": {}}'


@pytest.mark.parametrize(("attempts", "status"), [(1, 0), (2, 130)])
def test_a_run_that_is_complete_is_not_interrupted(cli, attempts: int, status: int) -> None:
    policy = ("--policy", f"{__name__}:Interrupting", "--workers", 1)
    result = cli("rollout", "toy", *policy, "--match", "larder*", "-k", attempts)
    assert result.status == status
    assert f"1/{attempts} done" in result.out
    assert ("Run the same command to resume." in result.out) == (status == 130)


def test_a_rollout_with_nothing_left_says_so(cli) -> None:
    words = "Nothing to run: earlier calls graded all 1 episodes"
    assert words not in cli("rollout", "toy:1", *GOLD).out
    assert words in cli("rollout", "toy:1", *GOLD).out
    assert words in cli("eval", "toy:1", "policy.name=gold").out
    assert words not in cli("rollout", "toy:1", *GOLD, "-k", 2).out


def test_a_run_that_stopped_early_says_so_where_its_rates_are_read(cli, tmp_path: Path) -> None:
    early = ("toy:1", "--policy", "gold", "--workers", 1, "-k", 3, "run.early_stop=votes")
    left_out = "1 episode left out by run.early_stop=votes, so the rates are biased"
    assert left_out in cli("rollout", *early).out
    again = cli("rollout", *early).out
    assert "Nothing to run: 2 episodes are graded, and the other 1 cannot change" in again
    assert "finished 2/3, stopped early" in cli("runs", tmp_path / "runs").out
    shown = cli("eval", *early).out
    assert left_out in shown
    assert "left: run the same command" not in shown
    assert left_out not in cli("eval", "toy:1", *GOLD, "-k", 3).out


def test_filters_choose_tasks(cli, tmp_path: Path) -> None:
    def tasks(*arguments: object) -> tuple[str, ...]:
        name = "-".join(map(str, arguments)).replace("/", "").replace(":", "")
        result = cli("rollout", "toy", "--policy", "empty", "--name", name, *arguments)
        assert result.status == 0, result.err
        return read_run(tmp_path / "runs" / name).tasks

    every = tasks("--slice", ":3")
    assert tasks("--slice", "1:3") == every[1:3]
    assert tasks("--repo", "toy/larder") == ("larder-overwrite-evicts",)
    shuffled = tasks("--shuffle", 1, "--slice", ":3")
    assert shuffled == tasks("--slice", ":3", "--shuffle", 1) != every
    for arguments, message in (
        (("--slice", "9"), "START:STOP"),
        (("--slice", "99:"), "selects none"),
        (("--slice", "::0"), "START:STOP"),
        (("budget.cost=0",), "budget.cost: Input should be greater than 0"),
        (("run.wall_clock=-1",), "run.wall_clock: Input should be greater than 0"),
        (("--tag", "nothing"), "no task matches: relax the filters"),
        (("--match", "nothing"), "no task matches"),
        (("--policy", "glod"), "Did you mean 'gold'"),
        (("nonsense",), "invalid override 'nonsense'"),
        (("run.retry=0",), "Did you mean 'run.retries'"),
        (("--source-option", "x"), "not NAME=VALUE"),
        (("--policy", "gold", "--temperature", 1), "temperature"),
        (("--base-url", "http://localhost:1/v1"), "no connection to http://localhost:1/v1"),
        (("env.max_observations=500",), "Did you mean 'max_observation'"),
        (("tasks=larder",), "tasks is a section of fields, not a value: write for example tasks.match=l*"),
        (("tasks.limit=-1",), "tasks.limit: Input should be greater than or equal to 1"),
        (("--seed", 3), "no option --seed: write seed=VALUE"),
        (("--env-option", "judge_runs=1"), "no option --env-option: write env.NAME=VALUE"),
        (("--time-limit=90",), "no option --time-limit: write env.time_limit=VALUE"),
        (("--run-cost", 3), "no option --run-cost: write run.budget.cost=VALUE"),
        (("--wall-clock", 3), "no option --wall-clock: write run.wall_clock=VALUE"),
    ):
        refused = cli("rollout", "toy", *arguments)
        assert refused.status == 2
        assert message in refused.err


def test_a_task_file_and_every_option_of_the_environment(cli, task_file: Path, tmp_path: Path) -> None:
    result = cli(
        "rollout", task_file, "--policy", "empty", "--tools", "bash,submit", "--max-turns", 7,
        "env.action_format=r2e", "env.reward=shaped", "env.time_limit=90", "env.max_observation=500",
        "budget.tokens=1000", "budget.cost=0.5", "seed=4",
    )  # fmt: skip
    assert result.status == 0, result.err
    config = read_run(tmp_path / "runs" / "tasks-empty").config
    env = config["env"]
    assert (env["tools"], env["action_format"], env["reward"]) == (["bash", "submit"], "r2e", "shaped")
    assert (env["max_turns"], env["time_limit"], env["max_observation"]) == (7, 90.0, 500)
    assert (config["budget"]["tokens"], config["budget"]["cost"], config["seed"]) == (1000, 0.5, 4)


def test_a_field_that_takes_text_keeps_the_text_of_its_override() -> None:
    words = ["agent.name=command", "agent.command=true", "agent.env.DEBUG=1.10", 'agent.arguments=["1"]', "name=2024"]
    config = make_config("toy", [*words, "run.retries=0"], {"agent": {"folder": None}})
    wanted = {"name": "command", "command": "true", "env": {"DEBUG": "1.10"}, "arguments": ["1"]}
    assert (config.name, config.agent, config.run.retries) == ("2024", wanted, 0)
    assert make_config("toy", ["agent.name=mini", "agent.config.limit=3"], {}).agent["config"] == {"limit": 3}


def test_options_win_over_overrides_and_overrides_over_the_file(cli, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        """
        name = "from-file"
        attempts = 3
        [tasks]
        match = "l*"
        [policy]
        name = "gold"
        [env]
        max_turns = 11
        time_limit = 90
        [env.sandbox_options]
        memory_mb = 900
        [run]
        retries = 0
        [run.budget]
        seconds = 600
        """
    )
    result = cli(
        "rollout", "run.toml", "env.max_turns=12", "env.time_limit=91", "attempts=2", "-k", 1, "--max-turns", 13,
        "--sandbox-option", "pids=77", "--match", "larder*",
    )  # fmt: skip
    assert result.status == 0, result.err
    run = read_run(tmp_path / "runs" / "from-file")
    env = run.config["env"]
    assert (run.tasks, run.attempts, run.config["policy"]) == (("larder-overwrite-evicts",), 1, "gold")
    assert (env["max_turns"], env["time_limit"]) == (13, 91.0)
    assert env["sandbox_options"] == {"memory_mb": 900, "pids": 77}
    assert (run.settings["retries"], run.settings["budget"]["seconds"]) == (0, 600.0)
    shown = cli("rollout", "run.toml", "seed=5", "policy.name=empty", "--name", "other", "--check", "--json")
    assert "Everything is ready" in shown.err
    (config,) = json.loads(shown.out)["runs"]
    assert (config["seed"], config["policy"], config["run"]["retries"]) == (5, "empty", 0)
    (config,) = json.loads(cli("rollout", "tasks.limit=2", "--check", "--json").out)["runs"]
    assert config["tasks"]["limit"] == 2
    for text, message in (
        ("[runs]", "unknown field"),
        ("tasks = 3", "tasks is a section of fields, not a value"),
        ("x", "not valid TOML"),
    ):
        (tmp_path / "bad.toml").write_text(text)
        refused = cli("rollout", "bad.toml")
        assert (refused.status, message in refused.err) == (2, True), refused.err


def test_failed_tries_are_counted_by_name(cli) -> None:
    fault = '{"at": "start", "error": "SandboxStartError", "nth": "every", "message": "no room on node 7"}'
    options = f'{{"files": {{"a": ""}}, "faults": [{fault}]}}'
    fake = ("--backend", "fake", "--sandbox-option", f"options={options}")
    result = cli("rollout", "toy", *GOLD, "--slice", ":2", "run.retries=0", *fake)
    assert result.status == 1
    assert re.search(r"SandboxStartError .* 2 +failed tries: no room on node 7\n", result.out)
    assert result.out.count("first SandboxStartError: no room on node 7\n") == 1
    assert "0 of 0 resolved" in result.out
    assert "2 episodes left; run the same command to run the rest." in result.out
    stopped = cli("rollout", "toy", *GOLD, "-k", 9, "run.retries=0", "--name", "many", *fake)
    assert stopped.status == 2
    assert "tries failed, more than 25%" in stopped.err
    assert "in reset" in stopped.err


def test_trajectories_are_exported_replayed_and_imported(cli, tmp_path: Path) -> None:
    assert cli("rollout", "toy", *GOLD, "--match", "l*", "--name", "first").status == 0
    assert cli("export", "runs/first", "out/sft.jsonl", "--resolved").out == "2 rows in out/sft.jsonl\n"
    rows = [json.loads(line) for line in (tmp_path / "out" / "sft.jsonl").read_text().splitlines()]
    assert [row["resolved"] for row in rows] == [True, True]
    one = cli("export", "runs/first/trajectories.jsonl", "out/p.json", "--to", "swebench", "-m", "larder*")
    assert one.out == "1 row in out/p.json\n"
    none = cli("export", "runs/first", "out/none.jsonl", "--min-reward", 2)
    assert none.status == 2
    assert "runs/first: no trajectory matches the filters; out/none.jsonl was not written" in none.err
    single = cli("export", "runs/first", "out/none.jsonl", "--to", "preferences")
    assert "no task has attempts with different rewards; out/none.jsonl was not written" in single.err
    assert not (tmp_path / "out" / "none.jsonl").exists()
    replayed = cli("replay", "runs/first", "--match", "larder*")
    assert (replayed.status, replayed.out) == (0, "same     larder-overwrite-evicts, attempt 0: 3 turns\n")
    assert cli("import", "out/sft.jsonl", "out/back.jsonl").out == "2 trajectories in out/back.jsonl\n"
    assert [one.resolved for one in Trajectory.read(tmp_path / "out" / "back.jsonl")] == [True, True]
    broken = cli("import", "out/p.json", "out/more.jsonl")
    assert broken.status == 2
    assert "p.json, row 1" in broken.err
    assert not (tmp_path / "out" / "more.jsonl").exists()


def test_a_replay_names_the_first_difference(cli, tmp_path: Path) -> None:
    assert cli("rollout", "toy", *GOLD, "--match", "larder*", "--name", "first").status == 0
    (one,) = Trajectory.read(tmp_path / "runs" / "first" / "trajectories.jsonl")
    turn = one.turns[0].model_copy(update={"observation": "something else"})
    one.model_copy(update={"turns": (turn, *one.turns[1:])}).append(tmp_path / "changed.jsonl")
    result = cli("replay", "changed.jsonl")
    assert result.status == 1
    assert result.out.startswith("differs  larder-overwrite-evicts, attempt 0: turn 1: observation differs at byte 0\n")
    for arguments in (("changed.jsonl", "--attempt", 1), ("nowhere",)):
        assert cli("replay", *arguments).status == 2


@pytest.mark.parametrize("eta", [None, 61.0])
def test_progress_fits_in_a_line(eta: float | None) -> None:
    progress = Progress(
        experiment="run", total=40, done=10, resolved=4, done_before=2, running=8, sandboxes=7, given_up=1,
        waiting={"reset": 1, "policy": 5, "step": 2}, outcomes={"submit": 10}, failures={"SandboxLost (oom)": 2},
        turns=85, usage=Usage(calls=3, prompt_tokens=10, cost=1.5), seconds=60, tokens_per_second=1234.5,
        per_hour=480, eta=eta, stopping="interrupted",
    )  # fmt: skip
    line = progress_line(progress)
    assert line == (
        "10/40 done, 4 resolved (40%), 8.5 turns, 8 running (7 sandboxes), 480/h, "
        f"ETA {'unknown' if eta is None else '0:01:01'}, 2 failed tries, 1,234 tokens/s, $1.50, stopping: interrupted"
    )


def test_the_benchmark_counts_episodes_and_their_cost(cli) -> None:
    result = cli("bench", "rollout", "--workers", 4, "--episodes", 1, "--policy", "empty")
    assert result.status == 0
    table = result.out.splitlines()[-11:]
    assert [row.split() for row in table[:2]] == [["workers", "4"], ["episodes", "14"]]
    assert [row.split()[0] for row in table[-5:]] == ["start", "tools", "grading", "policy", "rest"]
    assert max(map(len, table)) < 40  # four numbers of workers fit into a terminal
    assert cli("bench", "rollout", "--workers", "many").status == 2


@pytest.mark.parametrize("command", [("rollout", "toy:1"), ("eval", "toy:1", "--model", "m")])
@pytest.mark.parametrize("name", ["../../x", "a/b", "..", "/tmp/x"])
def test_a_run_name_stays_in_the_folder_of_runs(cli, tmp_path: Path, command: tuple[str, ...], name: str) -> None:
    result = cli(*command, "--name", name)
    assert result.status == 2
    assert f"name: {name!r} is a path, not a name" in result.err
    assert not any(tmp_path.iterdir())
