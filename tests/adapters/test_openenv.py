"""OpenEnv: its server with our environment, and its client with our server."""

import contextlib
import json
import os
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

if "openenv" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("openenv", reason="OpenEnv is tested in a separate environment")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the library's own dependencies
    import uvicorn
    from openenv.core import GenericEnvClient
    from openenv.validation.graders.runtime.basic import (
        CheckStatus,
        ObservationSchemaGrader,
        RewardWellFormedGrader,
        StateContractGrader,
    )
    from openenv.validation.runtime.collector import collect_runtime_evidence
    from openenv.validation.runtime.contracts import RuntimePlan, RuntimeReset

    from swe_gym.adapters.openenv import SweAction, SweEnvironment, app
    from swe_gym.adapters.server import EnvServer, listen

from swe_gym.adapters.remote import RemoteEnv
from swe_gym.adapters.session import make_env
from swe_gym.errors import UsageError
from swe_gym.rollout.policies.gold import ExpertPolicy

pytestmark = pytest.mark.filterwarnings("ignore")  # OpenEnv and its dependencies emit warnings

MICRO: dict[str, Any] = {"difficulty": [1], "max_turns": 6}


@pytest.fixture(scope="module", params=["theirs", "ours"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server of `SWE/Micro-v0`: OpenEnv's own, or that of `swe-gym serve`."""
    if request.param == "ours":
        with EnvServer(lambda: make_env("SWE/Micro-v0", **MICRO), port=0) as running:
            yield running.url
        return
    where = listen("127.0.0.1", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWE_GYM_ENV", "SWE/Micro-v0")
        patch.setenv("SWE_GYM_ENV_ARGS", json.dumps(MICRO))
        theirs = app()
    server = uvicorn.Server(uvicorn.Config(theirs, log_level="error", ws="websockets-sansio"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [where]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{where.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)


def expert(task_id: str) -> list[str]:
    with contextlib.closing(make_env("SWE/Micro-v0", **MICRO)) as env:
        policy = ExpertPolicy(env)
        policy.reset({"task_id": task_id})
        actions = [policy.act("")]
        while "submit" not in actions[-1]:
            actions.append(policy.act(""))
    return actions


def test_its_client_plays_several_sessions_at_once(url: str) -> None:
    def play(number: int) -> tuple[str, list[Any]]:
        task_id = f"micro-1-{number}"
        with GenericEnvClient(url, message_timeout_s=120).sync() as client:
            first = client.reset(seed=number, task_id=task_id)
            results = [client.step({"text": action}) for action in expert(task_id)]
            assert client.state()["step_count"] == len(results)
            return first.observation["text"], results

    with ThreadPoolExecutor(4) as pool:
        for number, (issue, results) in enumerate(pool.map(play, range(4))):
            with contextlib.closing(make_env("SWE/Micro-v0", **MICRO)) as env:
                assert issue == env.reset(options={"task_id": f"micro-1-{number}"})[0]
            assert [result.reward for result in results] == [*[0.0] * (len(results) - 1), 1.0]
            assert [result.done for result in results] == [*[False] * (len(results) - 1), True]
            said = {"terminated": True, "truncated": False, "reward_valid": True, "outcome": "submitted"}
            assert {name: results[-1].metadata[name] for name in said} == said
            assert results[-1].metadata["info"]["resolved"]


def test_its_validator_finds_no_fault(url: str) -> None:
    actions = [{"text": text} for text in expert("micro-1-0")]
    reset = RuntimeReset(episode_id="one", seed=1, options={"task_id": "micro-1-0"})
    plan = RuntimePlan(plan_schema_version="1", reset=reset, actions=actions)
    evidence = collect_runtime_evidence(url, plan, episode_timeout_s=120)
    subject = SimpleNamespace(runtime_evidence=evidence, manifest=SimpleNamespace(reward=SimpleNamespace(range=(0, 1))))
    for grader in RewardWellFormedGrader(), ObservationSchemaGrader(), StateContractGrader():
        result = grader.run(subject)
        assert result.status == CheckStatus.PASS, result.evidence


def test_a_failed_infrastructure_is_no_reward() -> None:
    lose = json.dumps({"name": "bash", "arguments": {"command": "lose"}})
    for fault in {"at": "exec", "match": "lose", "error": "SandboxLost"}, {"at": "start", "error": "SandboxStartError"}:
        env = SweEnvironment("SWE/Toy-v0", backend="fake", sandbox_options={"options": {"faults": [fault]}})
        with contextlib.closing(env):
            result = env.reset()
            result = result if result.done else env.step(SweAction(text=lose))
        assert (result.reward, result.done) == (None, True)
        said = {"terminated": False, "truncated": True, "reward_valid": False, "outcome": "infra_failed"}
        assert {name: result.metadata[name] for name in said} == said


def test_the_remote_environment_plays_on_both_servers(url: str) -> None:
    with contextlib.closing(make_env("SWE/Micro-v0", **MICRO)) as local, contextlib.closing(RemoteEnv(url)) as env:
        assert env.tools == local.get_wrapper_attr("tools")
        assert env.reset(seed=4) == local.reset(seed=4)
        for action in ("what?", '{"name": "bash", "arguments": {"command": "ls -a"}}'):
            assert env.step(action) == local.step(action)
        assert env.end("tokens") == local.get_wrapper_attr("end")("tokens")


@pytest.mark.parametrize("variable", ["SWE_GYM_ENV_ARGS", "MAX_CONCURRENT_ENVS"])
def test_a_wrong_variable_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "max_turns=20")
    with pytest.raises(UsageError, match=variable):
        app()
