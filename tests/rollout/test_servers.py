"""Where the answers of a run come from: recorded without secrets, and never mixed unless asked for."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from swe_gym.cli.common import open_console
from swe_gym.cli.rollout_display import print_results
from swe_gym.errors import UsageError
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.plan import Plan
from swe_gym.rollout.policies.llm import LLMPolicies
from swe_gym.tasks.file import write_tasks
from swe_gym.testing.loopback import HttpAnswer
from swe_gym.testing.openai_server import CHAT, MODELS, ModelReply, OpenAIServer
from swe_gym.trajectories.comparison import compare
from swe_gym.trajectories.run_folder import RunFolder, read_episodes, read_failed, read_run
from swe_gym.trajectories.trajectory import ModelServer, Trajectory
from swe_gym.types import Task
from swe_gym.viewer.index import RunIndex
from swe_gym.viewer.results import write_results

pytest.importorskip("openai")

OLD = Path(__file__).parent.parent / "trajectories" / "run_of_0_1"
"""A run folder as the first version wrote it: one graded episode, one killed try."""


def submit(request: dict[str, Any]) -> ModelReply:  # noqa: ARG001  whatever it is asked
    return ModelReply(tool_calls=[("submit", "{}")])


def plan_for(server: OpenAIServer, task: Task, folder: Path, attempts: int = 1) -> Plan:
    path = folder / "tasks.jsonl"
    write_tasks([task], path)
    asked = {"model": server.model, "base_url": server.base_url, "api_key": server.api_key}
    options = {"path": str(path)}
    return Plan(source="file", source_options=options, policy="llm", policy_options=asked, attempts=attempts)


def chats(server: OpenAIServer) -> int:
    return sum(one.path == CHAT for one in server.requests)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://user:secret@gpu7:8443/openai/v1/?key=secret#x", "https://gpu7:8443/openai/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("http://gpu7/sk-secret-key/v1", "http://gpu7/***/v1"),
    ],
)
def test_the_address_of_a_server_holds_no_secret(url: str, address: str) -> None:
    policies = LLMPolicies.model_validate({"model": "m", "base_url": url, "api_key": "sk-secret-key"})
    assert policies.server == address
    policies.close()


def test_a_run_says_which_server_and_checkpoint_answered(adder: Task, tmp_path: Path) -> None:
    with OpenAIServer(submit, root="/ckpt/step-100") as server:
        rollout(plan_for(server, adder, tmp_path), tmp_path / "run")
        known = ModelServer(url=server.base_url, model={"id": "scripted", "root": "/ckpt/step-100"})
    assert read_run(tmp_path / "run").servers == (known,)
    (one,) = Trajectory.read(tmp_path / "run" / "trajectories.jsonl")
    assert one.policy.server == known
    assert write_results(tmp_path / "run")["servers"] == [known.model_dump()]


def test_another_checkpoint_under_the_same_name_does_not_resume_a_run(adder: Task, tmp_path: Path) -> None:
    with OpenAIServer(submit, root="/ckpt/step-100") as server:
        rollout(plan_for(server, adder, tmp_path), tmp_path / "run")
        server.root = "/ckpt/step-200"
        before = chats(server)
        with pytest.raises(UsageError, match=r'model\.root: "/ckpt/step-100", now "/ckpt/step-200"'):
            rollout(plan_for(server, adder, tmp_path, 2), tmp_path / "run")
        assert chats(server) == before
        server.inject(MODELS, status=503)  # a server that does not tell is not another one
        rollout(plan_for(server, adder, tmp_path, 2), tmp_path / "run")
    assert [one.model["root"] for one in read_run(tmp_path / "run").servers] == ["/ckpt/step-100"]


def test_answers_under_another_name_of_the_model_are_told(
    adder: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["scripted", "cheaper", "scripted"]

    def say(request: dict[str, Any]) -> ModelReply:
        said = sum(message["role"] == "assistant" for message in request["messages"])
        tool = ("submit", "{}") if said == 2 else ("bash", '{"command": "true"}')
        call = {"id": "1", "type": "function", "function": dict(zip(("name", "arguments"), tool, strict=True))}
        raise HttpAnswer(200, {"model": names[said], "choices": [{"message": {"tool_calls": [call]}}]})

    with OpenAIServer(say) as server:
        rollout(plan_for(server, adder, tmp_path), tmp_path / "run")
    (one,) = Trajectory.read(tmp_path / "run" / "trajectories.jsonl")
    assert [turn.usage.answered_as for turn in one.turns] == [(), ("cheaper",), ()]
    assert one.usage.answered_as == ("cheaper",)
    found = write_results(tmp_path / "run")
    assert found["answered_as"] == {"cheaper": 1}
    print_results(open_console(), {**found, "folder": ""})
    assert "answered as   cheaper in 1 tries\n" in capsys.readouterr().out
    warnings = compare([tmp_path / "run", shutil.copytree(tmp_path / "run", tmp_path / "copy")]).warnings
    assert "run: asked for 'scripted', and was answered by 'cheaper' (1 tries)" in warnings


def test_servers_mix_only_if_asked_for(adder: Task, tmp_path: Path) -> None:
    with OpenAIServer(submit) as first, OpenAIServer(submit) as second:
        rollout(plan_for(first, adder, tmp_path), tmp_path / "run")
        with pytest.raises(UsageError, match=r"attempts of another server or model \(.*run\.any_server=true"):
            rollout(plan_for(second, adder, tmp_path, 2), tmp_path / "run")
        rollout(plan_for(second, adder, tmp_path, 2), tmp_path / "run", RolloutOptions(any_server=True))
        rollout(plan_for(first, adder, tmp_path, 3), tmp_path / "run")  # one of the two
        rollout(plan_for(second, adder, tmp_path), tmp_path / "other")
        urls = [first.base_url, second.base_url]
    assert [one.url for one in read_run(tmp_path / "run").servers] == urls
    asked = [one.policy.server.url for one in Trajectory.read(tmp_path / "run" / "trajectories.jsonl")]
    assert asked == [urls[0], urls[1], urls[0]]
    found = compare([tmp_path / "run", tmp_path / "other"])
    assert [run.servers for run in found.runs] == [tuple(urls), (urls[1],)]
    assert f"run: mixes answers of several servers or models: {', '.join(urls)}" in found.warnings


def test_a_run_of_the_first_version_opens_resumes_and_compares(tmp_path: Path) -> None:
    path = Path(shutil.copytree(OLD, tmp_path / "old"))
    old = read_run(path)
    assert (old.servers, len(read_episodes(path)), len(read_failed(path))) == ((), 1, 1)
    found = compare([path, shutil.copytree(OLD, tmp_path / "copy")])
    assert [run.servers for run in found.runs] == [(), ()]
    assert [run.invalid_calls for run in found.runs] == [None, None]  # it was not in the index
    assert not any("differs" in warning for warning in found.warnings)
    assert write_results(path)["graded"] == 1
    index = RunIndex(path)
    index.read_all()
    assert ([row.state for row in index.rows], index.problems) == (["unresolved", "failed"], [])
    new = ModelServer(url="http://gpu7:8000/v1")
    with RunFolder(path, old.model_copy(update={"servers": (new,)})) as folder:
        assert len(folder.finished) == 1
    servers = read_run(path).servers
    assert [str(one) for one in servers] == ["unknown", "http://gpu7:8000/v1"]
    with RunFolder(path, old.model_copy(update={"servers": (new,)})) as folder:
        assert folder.run.servers == servers
    other = ModelServer(url="http://gpu8:8000/v1")
    with pytest.raises(UsageError, match="another server"):
        RunFolder(path, old.model_copy(update={"servers": (other,)}))
    assert json.loads((path / "run.json").read_text())["config_hash"] == old.config_hash
