"""`Policy`: the protocol between policies and the episode loop, and calls that every tool preset has.

The episode of a policy may run elsewhere: `HostedPolicy` asks the driver for each action.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import gymnasium

from ...actions import parse_action, render_call, shell_tool
from ...envs import SweEnv, ToolEnv
from ...errors import ActionError, PolicyError, UsageError
from ...spaces import Info
from ...tools import ENDING
from ...trajectories import ModelServer, PolicyInfo, Prices, Segment, Trajectory, Turn, Usage
from ...types import JsonObject, Task, ToolCall, ToolSpec
from ..pool import DriverLink
from ..progress import RolloutBudget


class Policy(Protocol):
    """A policy turns observations into actions.

    `play` calls `reset` once, then `act` with every observation, beginning with the one of `reset`. A policy that
    needs more than the text, for example the tools, takes it in its constructor.

    If the model does not answer, `act` raises `PolicyError` and the episode has no reward. A policy that reports its
    usage is a `ReportingPolicy` too.
    """

    def reset(self, info: Info) -> None:
        """Start an episode and forget the last one. `info` comes from the environment's `reset`."""
        ...

    def act(self, observation: str) -> str:
        """Return the next action."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """What a policy reports after an action.

    Attributes:
        policy: Name, model and settings of the policy.
        usage: Usage of the last `act`, retried requests included if the server reports them.
        messages: The conversation so far, the last answer included, as in OpenAI's chat API.
        segments: The tokens of the episode, if the policy keeps them.
        tools: Tools of the conversation, if they are not those of the environment.
    """

    policy: PolicyInfo = dataclasses.field(default_factory=PolicyInfo)
    usage: Usage = dataclasses.field(default_factory=Usage)
    messages: tuple[JsonObject, ...] = ()
    segments: tuple[Segment, ...] = ()
    tools: tuple[ToolSpec, ...] = ()


@runtime_checkable
class ReportingPolicy(Protocol):
    """A policy that reports its usage. The loop calls `report` after each `act`, even if it raised."""

    def report(self) -> PolicyReport:
        """Return the usage of the last action and the conversation so far."""
        ...


@runtime_checkable
class ResumingPolicy(Protocol):
    """A policy that can continue an episode which others played until then: only such a policy plays a branch."""

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:
        """Take over the turns before the branch, after `reset`. `act` gets the observation of the last one.

        Args:
            turns: What the policy of each turn saw, and its action on it. The first observation is the task.
            tokens: Token ids of the conversation up to the last action, as they were sampled; empty if unknown.
        """
        ...


def check_resumes(policy: object, name: str = "") -> ResumingPolicy:
    """Return a policy, or its class, that can continue an episode.

    Raises:
        UsageError: It cannot.
    """
    if isinstance(policy, ResumingPolicy):
        return policy
    raise UsageError(
        f"{name or type(policy).__name__} cannot continue an episode, as it has no method `resume` that takes the "
        "turns before: choose another policy, or start at the task"
    )


Phase = Literal["reset", "policy", "step", "over"]
"""What an episode waits for: its sandbox, its policy, or a step (grading included)."""


class EpisodeSettings(NamedTuple):
    """What the caller of an episode sets, whoever plays it.

    Attributes:
        budget: Budget of the policy, beyond the limits of the environment.
        on_start: Called with the record after `reset`.
        on_turn: Called with each complete turn.
        on_usage: Called by a search with the usage of each request: it has no turns before its end.
    """

    budget: RolloutBudget = RolloutBudget()
    on_start: Callable[[Trajectory], None] | None = None
    on_turn: Callable[[Turn], None] | None = None
    on_usage: Callable[[Usage], None] | None = None


class RunningEpisode(Protocol):
    """A running episode, and its record so far.

    Attributes:
        phase: What the episode waits for. May be read from any thread.
    """

    phase: Phase

    def play(self, *, seed: int | None = None, options: Info | None = None) -> Trajectory:
        """Run the episode to its end."""
        ...

    @property
    def trajectory(self) -> Trajectory:
        """The record so far. Raises UsageError before the environment was reset."""
        ...


@runtime_checkable
class Player(Protocol):
    """A policy that plays whole episodes itself, such as an agent with tools of its own."""

    def episode(self, env: gymnasium.Env[str, str], settings: EpisodeSettings) -> RunningEpisode:
        """Return the episode that it plays. Nothing starts."""
        ...


class PolicyFactory(Protocol):
    """Makes the policy of each episode, from any thread. Expensive parts are shared between policies.

    `make_policies` makes a factory by name.
    """

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> Policy | Player:
        """Make the policy of one episode.

        Args:
            env: The environment whose tools it uses.
            seed: Seed of its randomness: attempts at one task differ, and each can be repeated.
        """
        ...

    def close(self) -> None:
        """Release what is shared. Policies that wait for it raise `PolicyError` within a second."""
        ...


@runtime_checkable
class AsksServer(Protocol):
    """A factory of policies whose model is on a server."""

    @property
    def price(self) -> Prices | None:
        """Prices that the cost is counted with; None if they are unknown."""

    def ask_server(self) -> ModelServer:
        """Return the server, with what it tells about the model now."""
        ...


@runtime_checkable
class ChecksTasks(Protocol):
    """A factory whose policies cannot play every task."""

    def check_task(self, task: Task) -> None:
        """Raise `TaskError` if they cannot play a task."""
        ...


class ActionReply(NamedTuple):
    """The answer to an observation.

    Attributes:
        action: The action; empty if the policy raised `error`.
        report: Report of the policy without the conversation, which stays at the driver.
        error: The policy's error.
    """

    action: str
    report: PolicyReport
    error: PolicyError | None = None


def answer_for(policy: Policy | None, observation: str) -> ActionReply:
    """Ask a policy for an action, at the driver. Errors other than `PolicyError` are raised."""
    assert policy is not None
    action, error = "", None
    try:
        action = policy.act(observation)
    except PolicyError as raised:
        error = raised
    whole = policy.report() if isinstance(policy, ReportingPolicy) else PolicyReport()
    return ActionReply(action, PolicyReport(policy=whole.policy, usage=whole.usage), error)


class HostedPolicy:
    """The policy of an episode on a node. It asks the driver.

    Args:
        link: The connection of the episode.
    """

    def __init__(self, link: DriverLink) -> None:
        self._link = link
        self._report = PolicyReport()

    def reset(self, info: Info) -> None:
        """Make the policy at the driver."""
        self._link.ask(("reset", info))

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:
        """Give the earlier turns to the driver's policy."""
        self._link.ask(("resume", turns, tokens))

    def act(self, observation: str) -> str:
        """Return the action of the driver's policy.

        Raises:
            PolicyError: The policy raised it, or the episode was cancelled.
        """
        reply: ActionReply = self._link.ask(("act", observation))
        self._report = reply.report
        if reply.error is not None:
            raise reply.error
        return reply.action

    def report(self) -> PolicyReport:
        """Return the usage of the last action."""
        return self._report


def swe_env(env: gymnasium.Env[str, str]) -> SweEnv:
    """Return the `SweEnv` below all wrappers, for policies that read its task.

    Raises:
        UsageError: It is another environment.
    """
    if not isinstance(env.unwrapped, SweEnv):
        raise UsageError(f"this policy reads the task: it needs a SweEnv, not a {type(env.unwrapped).__name__}")
    return env.unwrapped


def tool_env(env: gymnasium.Env[str, str]) -> ToolEnv:
    """Return the environment below all wrappers, whose sandboxes may be on a server.

    Raises:
        UsageError: It is neither a `SweEnv` nor a `RemoteEnv`.
    """
    if not isinstance(env.unwrapped, ToolEnv):
        raise UsageError(f"the environment must be a SweEnv, not a {type(env.unwrapped).__name__}")
    return env.unwrapped


def render(env: ToolEnv, call: ToolCall) -> str:
    """Return the call as an action, in the format of the environment."""
    return render_call(call, env.config["action_format"])


def submit_call(env: ToolEnv) -> ToolCall:
    """Return the call that submits.

    Raises:
        UsageError: No tool submits.
    """
    for call in ending(env):
        return call
    raise UsageError("no tool ends the episode: add 'submit' to tools")


def ending(env: ToolEnv) -> list[ToolCall]:
    """Return the call that submits in a list, empty if no tool submits."""
    return [ToolCall(name=spec.name) for spec in env.tools if spec.name in ENDING][:1]


def shell_call(env: ToolEnv, command: str) -> ToolCall:
    """Return the call that runs a shell command.

    Raises:
        UsageError: No tool is a shell.
    """
    shell = shell_tool(env.tools)
    if shell is None:
        raise UsageError("this policy needs a shell tool, and the environment has none")
    spec, parameter = shell
    return ToolCall(name=spec.name, arguments={parameter: command})


def message_of(action: str, env: ToolEnv, *, native: bool, call_id: str) -> JsonObject:
    """Return an action as a message of the model: the reverse of `llm.action_of`, also for actions in other formats.

    Args:
        action: The action. One without a valid call, or that cannot be written in the format, is a text.
        env: The environment whose tools it uses.
        native: Whether the model calls tools through the server's API.
        call_id: Id of the call if the action has none.
    """
    message = _as_message(action)
    if native and message is not None:
        return message
    try:
        parsed = parse_action(action, env.tools, format=env.config["action_format"])
        call = parsed.call if native else parsed.call.model_copy(update={"call_id": None})
        if native:
            call = call.model_copy(update={"call_id": call.call_id or call_id})
            made: JsonObject = json.loads(render_call(call, "openai"))
            return {**made, "content": parsed.thought or None}
        if message is not None:
            text = render_call(call, env.config["action_format"])
            return {"role": "assistant", "content": "\n\n".join(filter(None, [parsed.thought, text]))}
    except (ActionError, UsageError):
        pass
    return {"role": "assistant", "content": action}


def _as_message(action: str) -> JsonObject | None:
    """Return the message with tool calls that an action is; None if it is another text."""
    try:
        found = json.loads(action)
    except (ValueError, RecursionError):
        return None
    calls = found.get("tool_calls") if isinstance(found, dict) else None
    return {**found, "role": "assistant"} if calls and isinstance(calls, list) else None
