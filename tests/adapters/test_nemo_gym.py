"""NeMo Gym: its own agent plays over real HTTP servers, in real sandboxes."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import typer

if "nemo_gym" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("nemo_gym", reason="NeMo Gym is tested in a separate environment")

import aiohttp
import fastapi
import uvicorn
from nemo_gym.config_types import BaseServerConfig, ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import (
    GlobalAIOHTTPAsyncClientConfig,
    ServerClient,
    get_global_aiohttp_client,
    set_global_aiohttp_client,
)
from omegaconf import OmegaConf
from responses_api_agents.gymnasium_agent.app import GymnasiumAgentConfig

from swe_gym.adapters.nemo_gym import SweAgent, SweResourcesConfig, SweResourcesServer, main
from swe_gym.adapters.session import make_env
from swe_gym.rollout.policies.gold import ExpertPolicy
from swe_gym.tasks import load_source
from swe_gym.tasks.exporters import nemo_row

pytestmark = pytest.mark.filterwarnings("ignore")  # its dependencies emit warnings

TASK = "micro-1-0"


@contextlib.asynccontextmanager
async def listening(app: fastapi.FastAPI, where: socket.socket) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[where]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for all servers: the agent's HTTP client is global to the process."""

    async def make_client() -> aiohttp.ClientSession:
        set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
        return get_global_aiohttp_client()

    with asyncio.Runner() as runner:
        client = runner.run(make_client())
        yield runner.get_loop()
        runner.run(client.close())


class LosingServer(SweResourcesServer):
    """Loses the sandbox of a row that says so."""

    async def step(self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str | None = None) -> Any:
        if metadata["verifier_metadata"].get("lose"):
            self.session_state[session_id].session.close()
        return await super().step(action, metadata, session_id)


def answer(item: dict[str, Any]) -> dict[str, Any]:
    fields = {"id": "r", "created_at": 0, "model": "m", "object": "response", "parallel_tool_calls": True}
    return {**fields, "tool_choice": "auto", "tools": [], "output": [item]}


def call(action: str, number: int) -> dict[str, Any]:
    """A function call of the Responses API, made of an action."""
    read = json.loads(action)
    arguments = json.dumps(read["arguments"])
    return {"type": "function_call", "call_id": f"c{number}", "name": read["name"], "arguments": arguments}


def text(said: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": said, "annotations": []}]
    return {"id": "x", "type": "message", "role": "assistant", "status": "completed", "content": content}


def model(reply: Callable[[dict[str, Any], int], dict[str, Any]]) -> fastapi.FastAPI:
    """A stand-in for a model server: `reply` gets a request and the number of its earlier answers."""
    app = fastapi.FastAPI()

    @app.post("/v1/responses")
    async def responses(body: dict[str, Any]) -> dict[str, Any]:
        said = [
            item for item in body["input"] if item.get("type") == "function_call" or item.get("role") == "assistant"
        ]
        return answer(reply(body, len(said)))

    return app


class Gym:
    """A resources server, a model and an agent, each on its port."""

    def __init__(self, reply: Callable[[dict[str, Any], int], dict[str, Any]], **config: Any) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(3)]
        names = ["swe_gym", "policy_model", "swe_agent"]
        ports = [one.getsockname()[1] for one in self._sockets]
        servers = {n: {"kind": {n: {"host": "127.0.0.1", "port": p}}} for n, p in zip(names, ports, strict=True)}
        client = ServerClient(
            head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=OmegaConf.create(servers)
        )
        common = {"host": "127.0.0.1", "port": 1, "entrypoint": ""}
        args = {"difficulty": [1], **config.pop("env_args", {})}
        self.resources = LosingServer(
            config=SweResourcesConfig(name="swe_gym", env_id="SWE/Micro-v0", env_args=args, **common, **config),
            server_client=client,
        )
        agent = SweAgent(
            config=GymnasiumAgentConfig(
                name="swe_agent",
                resources_server=ResourcesServerRef(type="resources_servers", name="swe_gym"),
                model_server=ModelServerRef(type="responses_api_models", name="policy_model"),
                max_steps=6,
                **common,
            ),
            server_client=client,
        )
        self._apps = [self.resources.setup_webserver(), model(reply), agent.setup_webserver()]
        self.url = f"http://127.0.0.1:{ports[2]}/run"

    def run(self, loop: asyncio.AbstractEventLoop, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Play the rows at once, as NeMo Gym's collection does."""

        async def play(session: aiohttp.ClientSession, row: dict[str, Any]) -> dict[str, Any]:
            async with session.post(self.url, json=row) as reply:
                assert reply.status == 200, await reply.text()
                return await reply.json()

        async def play_all() -> list[dict[str, Any]]:
            async with contextlib.AsyncExitStack() as stack:
                for app, where in zip(self._apps, self._sockets, strict=True):
                    await stack.enter_async_context(listening(app, where))
                session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
                played = await asyncio.gather(*(play(session, row) for row in rows))
                async with asyncio.timeout(20):
                    while self.resources.session_state:  # every session is closed
                        await asyncio.sleep(0.05)
                return played

        return loop.run_until_complete(play_all())


def row(task_id: str = TASK) -> dict[str, Any]:
    with contextlib.closing(make_env("SWE/Micro-v0")) as env:
        return nemo_row(load_source("micro").get(task_id), env.get_wrapper_attr("tools"), system="Repair it.")


def expert(task_id: str) -> list[str]:
    with contextlib.closing(make_env("SWE/Micro-v0")) as env:
        policy = ExpertPolicy(env)
        policy.reset({"task_id": task_id})
        actions = []
        while not actions or "submit" not in actions[-1]:
            actions.append(policy.act(""))
        return actions


@pytest.mark.parametrize("say", [call, lambda action, _: text(f"I do it.\n{action}")], ids=["calls", "texts"])
def test_its_agent_solves_tasks_several_at_once(
    loop: asyncio.AbstractEventLoop, say: Callable[[str, int], dict[str, Any]]
) -> None:
    actions = expert(TASK)
    seen: list[dict[str, Any]] = []

    def reply(body: dict[str, Any], number: int) -> dict[str, Any]:
        seen.append(body)
        return say(actions[number], number)

    rollouts = Gym(reply).run(loop, [row()] * 4)
    assert [(one["reward"], one["terminated"], one["mask_sample"]) for one in rollouts] == [(1.0, True, False)] * 4
    assert rollouts[0]["info"]["info"]["resolved"]
    assert {tool["name"] for tool in seen[0]["tools"]} >= {"bash", "submit"}
    assert [item["role"] for item in seen[0]["input"]] == ["system", "user"]
    kinds = [item.get("type") for item in rollouts[0]["response"]["output"]]
    assert ("function_call_output" in kinds) == (say is call)


def test_a_lost_episode_among_64_is_masked_and_costs_no_step(loop: asyncio.AbstractEventLoop) -> None:
    rows = [row() for _ in range(64)]
    rows[7]["verifier_metadata"]["lose"] = True
    look = '{"name": "bash", "arguments": {"command": "ls"}}'
    rollouts = Gym(lambda _, number: call(look, number), env_args={"max_turns": 1}).run(loop, rows)
    assert [one["mask_sample"] for one in rollouts] == [index == 7 for index in range(64)]
    assert rollouts[7]["info"]["outcome"] == "infra_failed"


def test_a_failed_start_and_an_agent_that_stops_early_are_masked_and_closed(loop: asyncio.AbstractEventLoop) -> None:
    start = {"at": "start", "nth": "every", "error": "SandboxStartError"}
    fake = {"backend": "fake", "sandbox_options": {"options": {"faults": [start]}}}
    assert Gym(lambda *_: text("hi"), env_args=fake).run(loop, [row()])[0]["mask_sample"]
    early = Gym(lambda *_: text("What?"), idle=2.0).run(loop, [row()])[0]
    assert (early["mask_sample"], early["truncated"], early["info"]["outcome"]) == (True, True, "running")


def test_a_step_that_is_longer_than_the_idle_time_is_not_idle(loop: asyncio.AbstractEventLoop) -> None:
    actions = ['{"name": "bash", "arguments": {"command": "sleep 3"}}', '{"name": "submit", "arguments": {}}']
    rollout = Gym(lambda _, number: call(actions[number], number), idle=1.0).run(loop, [row()])[0]
    assert (rollout["terminated"], rollout["info"]["outcome"], rollout["mask_sample"]) == (True, "submitted", False)


def test_invalid_calls_are_answered_by_the_environment(loop: asyncio.AbstractEventLoop) -> None:
    seen: list[Any] = []

    def reply(body: dict[str, Any], number: int) -> dict[str, Any]:
        seen.append(body["input"])
        broken = {"type": "function_call", "call_id": f"c{number}", "name": "bash", "arguments": "{not json"}
        return broken if number == 0 else call('{"name": "submit", "arguments": {}}', number)

    rollout = Gym(reply).run(loop, [row()])[0]
    assert (rollout["reward"], rollout["mask_sample"]) == (0.0, False)
    assert seen[1][-1]["type"] == "function_call_output"
    assert rollout["info"]["info"]["invalid_actions"] == 1


def test_a_mistake_on_the_command_line_is_a_sentence() -> None:
    with pytest.raises(typer.BadParameter, match="unknown preset of tools 'nope'"):
        main("SWE/Toy-v0", ["tools=nope"])
