"""Agents that play episodes of a `SweEnv`: in its sandbox, with their own tools, asking a model through the gateway."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator

import gymnasium

from ..envs import SweEnv
from ..errors import PolicyError, SandboxError, SandboxLost, UsageError
from ..rollout import RecordedEpisode
from ..rollout.policies import EpisodeSettings, LLMPolicies, PolicyFactory
from ..sandboxes import Connection, Sandbox
from ..spaces import Info, StepResult
from ..trajectories import ModelServer, PolicyInfo, Prices, Trajectory, Turn, why_ended
from ..types import ExecResult, JsonMapping, JsonObject, ToolCall
from .agents import make_agent
from .agents.base import Agent, Assignment, Launch, check_network, check_steps
from .kits import PLACE, build_kit
from .model_server import ServerSampler
from .sampler import Sampler
from .session import Limits, Session

logger = logging.getLogger(__name__)

HOME = "/tmp/.swe-gym-agent"
"""Folder of the agent's own files in the sandbox."""

START = 'mkdir -p "$0" && exec "$@"'

PATIENCE = 20.0
"""Seconds that an agent has to end after it was told that a limit is reached."""

GRACE = 2.0
STOP_SECONDS = 20.0
POLL = 0.5
MAX_OUTPUT = 64 << 10
SHOWN = 4000
"""Characters of the agent's output in the last turn and in errors."""


def mounts_of(agent: Agent) -> dict[str, str]:
    """Return the `mounts` that an agent needs; build its kit if it has one.

    Raises:
        SandboxStartError: The kit cannot be built.
    """
    folder = getattr(agent, "folder", "") if agent.kit is None else str(build_kit(agent.kit))
    return {PLACE: folder} if folder else {}


class AgentPlayer:
    """Plays an episode with an agent.

    Args:
        name: Name of the agent in records.
        agent: The agent.
        sampler: Answers its calls.
        limits: Limits beyond those of the environment and the budget.
        seed: Sampling seed; the number of the call is added.
    """

    def __init__(
        self, name: str, agent: Agent, sampler: Sampler, *, limits: Limits | None = None, seed: int | None = None
    ) -> None:
        self.name, self.agent, self.sampler, self.seed = name, agent, sampler, seed
        self.limits = limits or Limits()

    @property
    def info(self) -> PolicyInfo:
        """Description for records."""
        asked = self.sampler.info
        own = self.agent.model_dump(mode="json", exclude_defaults=True)
        options = {**asked.options, "agent": self.name, "version": self.agent.version, "agent_options": own}
        return asked.model_copy(update={"name": self.name, "options": options})

    def episode(self, env: gymnasium.Env[str, str], settings: EpisodeSettings) -> AgentEpisode:
        """See `Player.episode`."""
        return AgentEpisode(env, self, settings)


class AgentEpisode(RecordedEpisode):
    """A running episode of an agent, and its record so far. Its turns are the answers of the model.

    An agent that ends, whatever its exit code, has its work graded; so has one that reached a limit. If the model
    fails, or the agent ends before the model answered once, there is no reward.

    The phase "reset" lasts until the agent first connects.
    """

    def __init__(self, env: gymnasium.Env[str, str], player: AgentPlayer, settings: EpisodeSettings) -> None:
        if not isinstance(env.unwrapped, SweEnv):
            raise UsageError(f"an agent plays in a SweEnv of this process, not in a {type(env.unwrapped).__name__}")
        super().__init__(env, settings)
        self._env: SweEnv = env.unwrapped
        self._player = player
        check_network(player.name, player.agent, self._env.config["sandbox_options"])
        self._session = self._make_session()
        self._ran = 0.0
        self._end: Info = {}

    def _make_session(self) -> Session:
        own, calls = self._player.limits, self._env.config["max_turns"]
        limits = {
            **own.model_dump(),
            **{name: value for name, value in self._settings.budget.model_dump().items() if value},
        }
        limits["calls"] = min(calls, own.calls or calls)
        return Session(
            self._player.sampler,
            limits=Limits.model_validate(limits),
            on_turn=self._add_turn,
            seed=self._player.seed,
        )

    def play(self, *, seed: int | None = None, options: Info | None = None) -> Trajectory:
        """Run the episode to its end. Raises the same errors as `swe_gym.rollout.play`."""
        if task_id := (options or {}).get("task_id") or self._env.config["task_id"]:
            check_steps(self._env.source.get(task_id))  # before a sandbox starts
        self._env.use_mounts(mounts_of(self._player.agent))
        return super().play(seed=seed, options=options)

    def _play_turns(self, observation: str, info: Info) -> None:  # noqa: ARG002  the agent gets the issue only
        check_steps(self._env.task)
        self._session = self._make_session()  # its clock starts now
        try:
            result = self._run_agent(observation, self._env.deadline)
        except SandboxLost as error:
            self._take_end(self._env.fail(error), {})
        else:
            self._judge(result)

    def _run_agent(self, issue: str, deadline: float) -> ExecResult:
        """Run the agent to its end, and complete all turns."""
        sandbox, session, player = self._env.sandbox, self._session, self._player
        forward = sandbox.forward(0, self._serve, max_connections=player.limits.connections)
        url = f"http://127.0.0.1:{forward.port}"
        launch = player.agent.launch(Assignment(issue, player.sampler.model, url, PLACE, HOME))
        started = time.monotonic()
        try:
            with _stopping(session, sandbox):
                return start_agent(sandbox, launch, deadline)
        finally:
            self._ran = time.monotonic() - started
            forward.close()
            session.close()

    def _serve(self, connection: Connection) -> None:
        self.phase = "policy"
        self._session.handle(connection)

    def _judge(self, result: ExecResult) -> None:
        """Grade the work, unless the model or the agent failed.

        Raises:
            PolicyError: It did.
        """
        session, name = self._session, self._player.name
        said = result.text[-SHOWN:]
        how = how_it_ended(result)
        if session.failure is not None:
            raise session.failure
        if not session.turns:
            text = f"the agent {name!r} {how} before its model answered once"
            raise PolicyError(f"{text}:\n{said}" if said.strip() else text, reason="agent", retryable=True)
        logger.info("the agent %s", how)
        self.phase = "step"
        limit = {"calls": "turns"}.get(session.limit, session.limit) or ("time" if result.timed_out else "")
        end = self._env.end(limit) if limit else self._env.submit()
        code = -1 if result.exit_code is None else result.exit_code
        self._take_end(end, {"exit_code": code}, f"[The agent {how}.]\n{said}")

    def _take_end(self, end: StepResult[str], added: JsonObject, said: str = "") -> None:
        """Keep the result of the last step. `said` is shown as the last observation."""
        _, reward, terminated, truncated, info = end
        info = {**info, **added}
        self._end = {"reward": reward, "terminated": terminated, "truncated": truncated, "info": info, "said": said}

    def _add_turn(self, turn: Turn) -> None:
        first = {"name": turn.tool, "arguments": turn.arguments}
        self._env.count_turn([ToolCall(**call) for call in (first, *turn.info.get("more_calls", ()))])
        if self._settings.on_turn is not None:
            self._settings.on_turn(turn)

    @property
    def trajectory(self) -> Trajectory:
        """See `RecordedEpisode.trajectory`."""
        report, turns = self._session.report(), list(self._session.turns)
        if self._end and turns:
            turns[-1] = self._end_turn(turns[-1])
        policy = sum(turn.policy_seconds for turn in turns)
        record = self._recorder.trajectory
        info = self._end.get("info", record.info)
        return record.model_copy(
            update={
                "policy": self._player.info,
                "tools": report.tools,
                "turns": tuple(turns),
                "segments": report.segments,
                "messages": report.messages,
                "outcome": info["outcome"],
                "reason": why_ended(info),
                "reward_valid": info["reward_valid"],
                "resolved": info["resolved"],
                "reward": self._end.get("reward", 0.0),
                "info": info,
                "usage": report.usage,
                "seconds": self._seconds(record, policy=policy, tools=max(0.0, self._ran - policy)),
            }
        )

    def _end_turn(self, turn: Turn) -> Turn:
        """Return the last turn with the result of the end."""
        end = self._end
        observation = "\n\n".join(filter(None, [turn.observation, end["said"]]))
        changed = {name: end[name] for name in ("reward", "terminated", "truncated")}
        return turn.model_copy(
            update={**changed, "observation": observation, "info": {**turn.info, **end["info"]}},
        )


def start_agent(sandbox: Sandbox, launch: Launch, deadline: float) -> ExecResult:
    """Start an agent and wait until it ends. Raises the errors of `Sandbox.exec`."""
    for path, content in launch.files.items():
        sandbox.write_file(path, content.encode() if isinstance(content, str) else content)
    return sandbox.exec(
        ["/bin/sh", "-c", START, HOME, *launch.argv],
        timeout=max(1.0, deadline - time.monotonic()),
        grace=GRACE,
        env=launch.env,
        stdin=launch.stdin.encode(),
        max_output=MAX_OUTPUT,
        merge=True,
    )


def how_it_ended(result: ExecResult) -> str:
    """Return how an agent ended, in words."""
    if result.exit_code is not None:
        return f"ended with exit code {result.exit_code}"
    return "did not end in time" if result.timed_out else f"was ended by signal {result.signal}"


@contextlib.contextmanager
def _stopping(session: Session, sandbox: Sandbox) -> Iterator[None]:
    """Stop the agent of the block once its model has failed, or a while after it was told of a limit."""
    over = threading.Event()

    def watch() -> None:
        stop = math.inf
        while not over.wait(POLL):
            if session.limit:
                stop = min(stop, time.monotonic() + PATIENCE)
            if session.failure is not None or time.monotonic() > stop:
                with contextlib.suppress(SandboxError):  # the agent's own command reports it
                    sandbox.end_processes(commands=True, timeout=STOP_SECONDS)

    thread = threading.Thread(target=watch, name="agent limits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(STOP_SECONDS)


class AgentPlayers:
    """The factory of players whose agent asks a model on a server.

    Args:
        name: Name of the agent.
        options: Options of the agent.
        policies: The policy `llm`, which has the server, the model, sampling settings and prices.

    Raises:
        UsageError: The agent or an option is invalid, or the policy is another one.
        SandboxStartError: The kit cannot be built.
    """

    def __init__(self, name: str, options: JsonMapping, policies: PolicyFactory) -> None:
        if not isinstance(policies, LLMPolicies):
            raise UsageError("an agent asks a model: use the policy 'llm' with it, and set its model")
        self._name, self._agent = name, make_agent(name, options)
        self.mounts = mounts_of(self._agent)
        self._policies, self._sampler = policies, ServerSampler(policies)

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> AgentPlayer:  # noqa: ARG002
        """Return the player of one episode."""
        own = self._policies.seed
        seed = None if own is None or seed is None else (own + seed) % (1 << 31)
        return AgentPlayer(self._name, self._agent, self._sampler, seed=seed)

    @property
    def price(self) -> Prices | None:
        """Prices that the cost is counted with."""
        return self._policies.price

    def ask_server(self) -> ModelServer:
        """Return the model's server."""
        return self._policies.ask_server()

    def close(self) -> None:
        """Close the connection: running agents lose their model, and their episodes end without a reward."""
        self._sampler.close()
        self._policies.close()


START_SECONDS = 60.0
"""Seconds in which an agent must end if it cannot start. A slower one is taken to work."""


def rehearse(env: SweEnv, name: str, options: JsonMapping, task_id: str) -> None:
    """Start an agent on a task until it connects to its model.

    Args:
        env: A new environment. The caller closes it.
        name: Name of the agent.
        options: Options of the agent.
        task_id: The task.

    Raises:
        UsageError: It ended before.
        SandboxError: The sandbox did not start, or was lost.
    """
    agent = make_agent(name, options)
    env.use_mounts(mounts_of(agent))
    issue, _ = env.reset(options={"task_id": task_id})
    sandbox, connected = env.sandbox, threading.Event()

    def serve(connection: Connection) -> None:
        connected.set()
        connection.close()
        with contextlib.suppress(SandboxError):  # the agent's own command reports it
            sandbox.end_processes(commands=True, timeout=STOP_SECONDS)

    forward = sandbox.forward(0, serve)
    try:
        url = f"http://127.0.0.1:{forward.port}"
        launch = agent.launch(Assignment(issue, "model", url, PLACE, HOME))
        result = start_agent(sandbox, launch, time.monotonic() + START_SECONDS)
    finally:
        forward.close()
    if not connected.is_set() and not result.timed_out:
        text = f"the agent {name!r} {how_it_ended(result)} before it asked its model. Correct its options"
        said = result.text[-SHOWN:].strip()
        raise UsageError(f"{text}: agent.NAME=VALUE. Its output:\n{said}" if said else f"{text}: agent.NAME=VALUE")
