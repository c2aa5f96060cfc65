"""`swe-gym eval`: from a model's name to results."""

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs_on_disk import run_info, trajectory

from swe_gym.cli.rollout_display import print_results
from swe_gym.gateway.agents.base import Agent, Assignment, Launch
from swe_gym.gateway.kits import Kit
from swe_gym.rollout.policies.server_check import known_prices
from swe_gym.testing.loopback import Exchange, HttpAnswer
from swe_gym.testing.openai_server import CHAT, MODELS, ModelReply, OpenAIServer
from swe_gym.trajectories.comparison import compare
from swe_gym.trajectories.run_folder import index_line, read_run
from swe_gym.trajectories.trajectory import Usage
from swe_gym.viewer.index import EpisodeRow, row_of
from swe_gym.viewer.results import summarize
from swe_gym.viewer.runs import Runs

REPAIR = r"""sed -i -e 's/if len(self._entries) >=/if key not in self._entries and len(self._entries) >=/' \
  -e '/self._entries\[key\] = Entry/a\        self._entries.move_to_end(key)' larder/cache.py"""
MODEL = ("--model", "scripted", "--workers", 2)


def engineer(request: dict[str, Any]) -> ModelReply:
    """Repairs one task, and submits the others unchanged."""
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    if request["tools"][0]["function"]["name"] == "ping":
        return ModelReply(tool_calls=[("ping", "{}")])
    return ModelReply(tool_calls=[[("bash", json.dumps({"command": REPAIR})), ("submit", "{}")][min(turn, 1)]])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    with OpenAIServer(engineer, context_length=32768) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


def test_answers_from_the_cache_are_told_and_not_billed(cli, server: OpenAIServer, tmp_path: Path) -> None:
    prices = ("policy.prices.input=1", "policy.prices.output=2")
    asked_for = ("eval", "toy", "--match", "larder*", *MODEL, "-k", 2, *prices)
    first = cli(*asked_for, "--cache", "answers", "--name", "first")
    assert (first.status, "the cache" in first.out) == (0, False)
    asked = len(server.requests)
    again = cli(*asked_for, "--cache", "answers", "--name", "again")
    assert len(server.requests) == asked + 4  # the list of models by check, run and policy, and the short request
    for said in (
        "cost          $0.00",
        "cache         4 of 4 answers came from the cache: not billed, and in no other number",
        "resolved      100.0% (2 of 2)",
        "4 of 4 answers from the cache",
    ):
        assert said in again.out
    results = json.loads((tmp_path / "runs" / "again" / "results.json").read_text())
    assert [results[key] for key in ("cached_answers", "requests", "prompt_tokens", "cost")] == [4, 0, 0, 0.0]
    more = cli(*asked_for, "--cache", "answers", "--name", "more", "-k", 3, "--json")
    (found,) = json.loads(more.out)["runs"]
    assert (found["cached_answers"], found["requests"]) == (4, 2)
    assert found["cost"] == pytest.approx((found["prompt_tokens"] + 2 * found["completion_tokens"]) / 1e6) != 0
    compared = cli("compare", "runs/first", "runs/again")
    assert "again: 4 answers came from the cache, which its tokens, cost and time leave out" in compared.out
    assert str(tmp_path) not in (tmp_path / "runs" / "again" / "run.json").read_text()


@pytest.mark.slow
def test_the_cache_has_a_default_folder(
    cli, server: OpenAIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWE_GYM_CACHE", str(tmp_path / "home"))
    asked_for = ("eval", "toy", "--match", "larder*", *MODEL)
    for number, more in enumerate((["--cache"], ["--cache", "run.retries=0"], ["--cache", "--max-turns", 9])):
        assert cli(*asked_for, "--name", f"run-{number}", *more).status == 0
    assert len(list((tmp_path / "home" / "answers").rglob("*.json"))) == 2
    assert server.api_key not in "".join(path.read_text() for path in (tmp_path / "home").rglob("*.json"))


def test_a_cache_that_cannot_work_is_refused_before_a_run(cli, server: OpenAIServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for more, problem in (
        (["--cache", "file"], "cannot keep answers in "),
        (["--cache", "budget.tokens=9"], "answers from the cache use no tokens, so budget.tokens would end"),
        (["--cache", "--agent", "mini"], "the agent 'mini' asks for itself"),
    ):
        refused = cli("eval", "toy:1", *MODEL, *more)
        assert (refused.status, problem in refused.err) == (2, True), refused.err
    assert not (tmp_path / "runs").exists()
    assert not [one for one in server.requests if one.path == CHAT]


def test_an_evaluation_ends_with_results_and_resumes(cli, server: OpenAIServer, tmp_path: Path) -> None:
    asked_for = ("eval", "toy", "--match", "l*", *MODEL, 'policy.request={api_key="sk-inside"}')
    result = cli(*asked_for, "-k", 2)
    assert (result.status, result.err) == (0, ""), result.err
    for said in (
        "tasks   2 from toy, backend local",
        f"model   scripted at {server.base_url}, context 32,768 tokens, calls tools, unknown price",
        "4/4 done",
        "resolved      50.0% (2 of 4), 9.5% to 90.5% (95 % Wilson interval, attempts clustered by task)",
        "pass@k        pass@1 50.0%, pass@2 50.0%",
        "cost          unknown price: set policy.prices.input and policy.prices.output",
        "not resolved  2 submit, no change",
        "toy/larder      2         2         100%",
        "swe-gym compare runs/toy-scripted ANOTHER_RUN",
    ):
        assert said in result.out
    assert "$" not in result.out
    folder = tmp_path / "runs" / "toy-scripted"
    rows = [json.loads(line) for line in (folder / "predictions-1.jsonl").read_text().splitlines()]
    assert {row["instance_id"]: bool(row["model_patch"]) for row in rows} == {
        "ledgerline-failed-batch": False,
        "larder-overwrite-evicts": True,
    }
    asked = len(server.requests)
    (folder / "predictions-2.jsonl").touch()  # of a third attempt, when there was one
    again = cli(*asked_for, "-k", 2, "policy.prices.input=1", "policy.prices.output=2", "--json")
    assert len(server.requests) == asked + 3  # the list of models by the check and by the run, and the short request
    assert not (folder / "predictions-2.jsonl").exists()
    (found,) = json.loads(again.out)["runs"]
    assert found["cost"] == pytest.approx((found["prompt_tokens"] + 2 * found["completion_tokens"]) / 1e6)
    assert json.loads((folder / "results.json").read_text()) == {k: v for k, v in found.items() if k != "folder"}
    assert "tasks   2 from toy" in again.err
    assert not [path for path in folder.rglob("*.json*") if b"sk-inside" in path.read_bytes()]
    _agree(found, tmp_path / "runs")

    fewer = cli(*asked_for, "-k", 1)
    assert "2 of 2 graded (2 tasks x 1); 2 more of earlier commands are in the folder and not counted" in fewer.out
    _agree(json.loads((folder / "results.json").read_text()), tmp_path / "runs")
    other = cli(*asked_for, "--max-turns", 9, "--check")
    assert (other.status, "another configuration (env.max_turns: 50, now 9)" in other.err) == (2, True)


def _agree(found: dict[str, Any], runs: Path) -> None:
    """Check that the comparison of runs and their page say what an evaluation says."""
    copy = Path(shutil.copytree(runs / "toy-scripted", runs.parent / "copy", dirs_exist_ok=True))
    compared = compare([runs / "toy-scripted", copy]).runs[0].model_dump()
    shutil.copytree(copy, runs / "copy")
    page = Runs(runs).news()["runs"][1]
    for numbers in (compared, page):
        assert found["interval"] == [numbers["low"], numbers["high"]]
        assert found["pass_at_k"] == {str(k): value for k, value in numbers["pass_at_k"].items()}
        names = {"resolved_rate": "resolved", "episodes": "planned", "episode_seconds": "seconds"}
        for name in ("graded", "omitted", "turns", "cost", "prompt_tokens", "completion_tokens", *names):
            assert found[name] == numbers[names.get(name, name)], name
    shutil.rmtree(runs / "copy")


class AnyModel(OpenAIServer):
    """Serves whatever is asked for, and lists the last one."""

    def answer(self, exchange: Exchange) -> None:
        """See `LoopbackServer.answer`."""
        self.model = (exchange.asked.body or {}).get("model", self.model)
        super().answer(exchange)


def test_several_models_are_evaluated_one_after_another(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with AnyModel(engineer) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        models = ("--model", "acme/large", "--model", "small", "--base-url", server.base_url)
        result = cli("eval", "toy", "-m", "larder*", *models)
    assert result.status == 0, result.err
    assert "the server does not list 'small', but answers for it" in result.out
    assert re.search(r"^acme/large +100\.0% +20\.7% to 100\.0% +unknown price$", result.out, re.MULTILINE)
    assert "swe-gym compare runs/toy-large runs/toy-small" in result.out
    assert {path.parent.name for path in tmp_path.glob("runs/*/results.json")} == {"toy-large", "toy-small"}


def test_slices_and_failures(cli, server: OpenAIServer, tmp_path: Path) -> None:
    result = cli("eval", "toy:1", "--model", "scripted", "--model", "scripted", *MODEL[2:])
    assert "two models would share the run folder runs/toy-scripted" in result.err
    assert cli("eval", "toy[2:4]", *MODEL, "--check").out.endswith("without --check.\n")
    server.inject(MODELS, status=403)  # a key that may only chat
    assert "Everything is ready" in cli("eval", "toy[2:4]", *MODEL, "--check").out
    assert not (tmp_path / "runs").exists()
    server.inject(CHAT, skip=1, times=None, status=400, body={"error": {"message": f"no quota: {server.api_key}"}})
    failed = cli("eval", "toy[2:4]", *MODEL)
    assert failed.status == 1
    assert "no episode was graded" in failed.out
    assert "episodes      0 of 2 graded (2 tasks x 1), 2 left: run the same command" in failed.out
    assert "failed tries  2 PolicyError (refused)" in failed.out
    assert "no quota: ***" in failed.out
    assert server.api_key not in failed.out + failed.err + (tmp_path / "runs/toy-scripted/failed.jsonl").read_text()
    secret = server.base_url.replace("//", "//user:password@")
    refused = cli("eval", "toy:1", *MODEL, "--base-url", secret)
    assert f"Error: {server.base_url} refused the API key" in refused.err
    assert len(read_run(tmp_path / "runs" / "toy-scripted").tasks) == 2


def test_other_policies_are_evaluated_without_a_server(cli, tmp_path: Path) -> None:
    result = cli("eval", "toy:1", "policy.name=gold")
    assert "100.0% (1 of 1), 20.7% to 100.0% (95 % Wilson interval)" in result.out
    assert (tmp_path / "runs" / "toy-gold" / "predictions.jsonl").exists()
    results = json.loads((tmp_path / "runs" / "toy-gold" / "results.json").read_text())
    for command in ("eval", "rollout"):  # both play the same run, and print the same results
        again = cli(command, "toy:1", "--policy", "gold", "--json")
        (found,) = json.loads(again.out)["runs"]
        assert (found.pop("folder"), found) == ("runs/toy-gold", results)
        assert "Nothing to run" in again.err


def test_public_prices_are_known_by_host_and_model() -> None:
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=500_000, completion_tokens=100_000)
    prices = known_prices("gpt-4.1-2025-04-14", "https://api.openai.com/v1")
    assert prices is not None
    assert (prices.cost(usage), prices.date) == (pytest.approx(2.05), "2026-03-31")
    assert known_prices("gpt-4.1", "http://localhost:8000/v1") is None
    assert known_prices("gpt-4.1-turbo", "https://api.openai.com/v1") is None


def test_time_counts_once_where_episodes_overlap() -> None:
    def row(start: str, seconds: float) -> EpisodeRow:
        started = f"2026-01-01T{start}+00:00"
        return EpisodeRow("", "resolved", "t", "r", 0, 1, "submit", 1.0, 1, Usage(), 0, {"total": seconds}, started)

    rows = [row("10:00:00", 60), row("10:00:30", 60), row("10:00:40", 5), row("12:00:00", 10)]
    assert summarize(run_info(tasks=("t",)), rows)["seconds"] == 100


def test_an_agent_is_evaluated(cli, server: OpenAIServer, tmp_path: Path) -> None:  # noqa: ARG001
    agent = Path(__file__).parents[1] / "gateway"
    options = ("agent.command=python3 {kit}/tiny_agent.py {issue}", f"agent.folder={agent}")
    asked_for = ("eval", "toy", "--match", "larder*", *MODEL, "--agent", "command", *options)
    result = cli(*asked_for)
    assert (result.status, result.err) == (0, ""), result.err
    assert "agent   command" in result.out
    assert "run           command with scripted on toy" in result.out
    found = json.loads((tmp_path / "runs" / "toy-command-scripted" / "results.json").read_text())
    assert (found["agent"], found["resolved"], found["graded"]) == ("command", 1, 1)
    assert "Did you mean 'mini'" in cli("eval", "toy", *MODEL, "--agent", "minx").err


@pytest.mark.parametrize("command", ["eval", "rollout"])
def test_an_agent_that_does_not_start_is_refused_before_the_run(cli, server: OpenAIServer, command: str) -> None:  # noqa: ARG001
    agent = f"agent.folder={Path(__file__).parents[1] / 'gateway'}"
    script = "agent.command=python3 -c 'import argparse; argparse.ArgumentParser().parse_args()' --max-turn 9"
    result = cli(command, "toy", "--match", "larder*", *MODEL, "--agent", "command", script, agent)
    assert result.status == 2
    assert "the agent 'command' ended with exit code 2 before it asked its model" in result.err
    assert "unrecognized arguments: --max-turn 9" in result.err
    assert not Path("runs").exists()


class FileKit(Kit):
    """A kit of one file."""

    def build(self, folder: Path, deadline: float) -> None:  # noqa: ARG002
        (folder / "file").touch()


class Small(Agent):
    """An agent with a kit that needs no registry."""

    @property
    def kit(self) -> FileKit:
        return FileKit()

    def launch(self, at: Assignment) -> Launch:
        return Launch(["cat", f"{at.kit}/file"])


def test_only_a_build_of_a_kit_is_announced(cli) -> None:
    small = f"{__name__}:Small"
    assert cli("agents", small).err == f"building the kit of {small}: this can take several minutes\n"
    assert cli("agents", small).err == ""


def test_agents_are_listed(cli) -> None:
    rows = json.loads(cli("agents", "--json").out)
    assert {(row["name"], row["protocol"], row["built"]) for row in rows} >= {("claude-code", "messages", False)}
    assert "not built" in cli("agents").out


class Talkative(Agent):
    """An agent that sends a system message after its first message."""

    opening = ("system", "user", "system")

    def launch(self, at: Assignment) -> Launch:  # noqa: ARG002
        raise AssertionError("it is refused before it starts")


def test_messages_that_the_server_refuses_are_told_before_the_run(cli, server: OpenAIServer) -> None:
    def strict(request: dict[str, Any]) -> ModelReply:
        if any(message["role"] == "system" for message in request["messages"][1:]):
            raise HttpAnswer(400, {"error": {"message": "System message must be at the beginning."}})
        return engineer(request)

    server.reply = strict
    talkative = f"{__name__}:Talkative"
    result = cli("eval", "toy", "--match", "larder*", *MODEL, "--agent", talkative)
    assert result.status == 2
    assert "System message must be at the beginning. Send them as the user's: policy.later_system=user" in result.err
    assert not Path("runs").exists()


def test_resolved_work_that_no_counter_test_proves_is_counted() -> None:
    why = {"unproven": "the task names no test that must start passing"}
    records = [trajectory(resolved=True, info=why), trajectory(attempt=1, resolved=True)]
    rows = [row_of("x", "resolved", index_line(record, 0, 0)) for record in records]
    found = {**summarize(run_info(tasks=("a-1",), attempts=2), rows), "predictions": [], "agent": "", "model": "m"}
    found |= {"source": "toy", "servers": [], "tasks": 1, "attempts": 2, "episodes": 2, "settled": 0}
    console = Console(file=io.StringIO(), width=100)
    print_results(console, found)
    assert "not proven    1 resolved episode: no counter-test" in console.file.getvalue()
