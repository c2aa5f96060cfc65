"""The adapter for NeMo Gym: a resources server over any registered environment of texts, and an agent that masks.

    python -m swe_gym.adapters.nemo_gym SWE/Toy-v0 max_turns=20 --port 8090

Inside NeMo Gym, `app.py` of a resources server calls `SweResourcesServer.run_webserver()`, that of an agent
`SweAgent.run_webserver()`. `nemo_row` makes the rows of a data set.
"""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from gymnasium.error import ResetNeeded

from ..errors import MissingDependency, SweGymError
from ..toml import parse_pairs
from ..types import JsonObject
from .aio import in_thread
from .session import ClientSession, EnvReply, make_env

try:
    import uvicorn
    from fastapi import Body, Request
    from nemo_gym.base_resources_server import BaseResourcesServerConfig
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.openai_utils import NeMoGymResponse
    from nemo_gym.server_utils import ServerClient
    from omegaconf import OmegaConf
    from resources_servers.gymnasium import GymnasiumServer, extract_text
    from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentRunRequest, GymnasiumRunResponse
except ImportError as error:
    raise MissingDependency(f"this adapter needs NeMo Gym: pip install 'swe-gym[nemo-gym]' ({error})") from error

StepResult = tuple[str | None, float, bool, bool, JsonObject]


class SweResourcesConfig(BaseResourcesServerConfig):
    """The configuration of the resources server.

    Attributes:
        env_id: Id of a registered environment.
        env_args: Its arguments.
        idle: Seconds after a step in which the next must come: an agent that stops early closes no session.
    """

    env_id: str = "SWE/Toy-v0"
    env_args: dict[str, Any] = {}
    idle: float = 1800.0


@dataclasses.dataclass
class _Rollout:
    session: ClientSession
    timer: asyncio.TimerHandle  # closes it


class SweResourcesServer(GymnasiumServer):
    """A resources server: one session and one sandbox for each rollout.

    A function call of the response is the action, else its text. `info["mask_sample"]` is True if the episode ended
    without a valid reward.
    """

    config: SweResourcesConfig

    async def reset(self, metadata: JsonObject, session_id: str | None = None) -> tuple[str | None, JsonObject]:
        """Start an episode of the task `verifier_metadata.task_id` of the row."""
        await self.close_session(session_id)
        session = ClientSession(make_env(self.config.env_id, **self.config.env_args))
        self.session_state[session_id] = _Rollout(session, self._close_later(session_id))
        task_id = (metadata.get("verifier_metadata") or {}).get("task_id")
        reply = await self._call(session_id, lambda session: session.reset(task_id=task_id))
        return reply.text, reply.metadata

    async def step(self, action: NeMoGymResponse, metadata: JsonObject, session_id: str | None = None) -> StepResult:  # noqa: ARG002
        """Take a step. An episode whose sandbox did not start, or whose session is closed, is truncated and masked."""
        calls = [item for item in action.output if item.type == "function_call"]
        text = _message(extract_text(action), calls) if calls else extract_text(action)
        try:
            reply = await self._call(session_id, lambda session: session.step(text))
        except ResetNeeded:
            return None, 0.0, False, True, {"outcome": "infra_failed", "reward_valid": False, "mask_sample": True}
        info = {**reply.metadata, "mask_sample": reply.done and reply.reward is None}
        if calls:
            outputs = [reply.text, *["Only the first call was run."] * (len(calls) - 1)]
            info["tool_outputs"] = [
                {"call_id": call.call_id, "output": output} for call, output in zip(calls, outputs, strict=True)
            ]
        said = None if calls else reply.text
        return said, float(reply.reward or 0.0), info["terminated"], info["truncated"], info

    async def close_session(self, session_id: str | None) -> None:
        """Free the sandbox of a rollout."""
        if rollout := self.session_state.pop(session_id, None):
            rollout.timer.cancel()
            await in_thread(rollout.session.close, lambda: None)

    async def _call(self, session_id: str | None, call: Callable[[ClientSession], EnvReply]) -> EnvReply:
        """Call a session. It idles from the end of the call on.

        Raises:
            ResetNeeded: The session is closed.
        """
        rollout = self.session_state.get(session_id)
        if rollout is None:
            raise ResetNeeded("the session is closed")
        rollout.timer.cancel()
        try:
            return await in_thread(lambda: call(rollout.session), rollout.session.close)
        finally:
            if self.session_state.get(session_id) is rollout:  # not closed meanwhile
                rollout.timer = self._close_later(session_id)

    def _close_later(self, session_id: str | None) -> asyncio.TimerHandle:
        """Close a session once it has idled."""
        loop = asyncio.get_running_loop()
        return loop.call_later(self.config.idle, lambda: loop.create_task(self.close_session(session_id)))


class SweRunResponse(GymnasiumRunResponse):
    """A rollout. `mask_sample` is True if its reward does not count, as with NeMo Gym's own SWE agents."""

    mask_sample: bool = False


class SweAgent(GymnasiumAgent):
    """NeMo Gym's agent for such servers. It masks rollouts without a valid reward, also those cut by `max_steps`."""

    async def run(self, request: Request, body: GymnasiumAgentRunRequest = Body()) -> SweRunResponse:  # noqa: B008
        """Play a rollout."""
        played = (await super().run(request, body)).model_dump()
        return SweRunResponse(**{**played, "mask_sample": not played["info"].get("reward_valid", False)})


def _message(text: str, calls: list[Any]) -> str:
    """Return function calls as a chat message, which the environment parses, invalid arguments included."""
    tools = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    return json.dumps({"role": "assistant", "content": text, "tool_calls": tools})


def main(
    env_id: Annotated[str, typer.Argument(metavar="ID")] = "SWE/Toy-v0",
    options: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE")] = None,
    host: str = "127.0.0.1",
    port: int = 8090,
) -> None:
    """Serve an environment as a resources server of NeMo Gym, outside of its repository."""
    try:
        arguments = parse_pairs("argument", options)
        make_env(env_id, **arguments).close()
    except SweGymError as error:
        raise typer.BadParameter(str(error)) from None
    address: JsonObject = {"host": host, "port": port}
    client = ServerClient(head_server_config=BaseServerConfig(**address), global_config_dict=OmegaConf.create({}))
    config = SweResourcesConfig(name="swe_gym", entrypoint="", env_id=env_id, env_args=arguments, **address)
    uvicorn.run(SweResourcesServer(config=config, server_client=client).setup_webserver(), **address)


if __name__ == "__main__":
    typer.run(main)
