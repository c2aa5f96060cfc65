"""Supervised fine-tuning (SFT) on episodes: demonstrations by a policy or an agent, or rejection sampling."""

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import torch

from ..actions import parse_action, render_call, shell_tool
from ..envs import SweEnv
from ..errors import UsageError
from ..gateway import AgentPlayer, Renderer, TokenSampler, tool_call
from ..gateway.agents import Agent, make_agent
from ..rollout import play
from ..rollout.policies import Player, Policy, make_policies
from ..rollout.tokens import ChatTemplate, Completion, TokenConversation, as_sampled, short_prompt
from ..tasks import ShuffledOrder
from ..trajectories import Trajectory, Turn
from ..trajectories.run_folder import open_trajectories
from ..types import JsonObject, ToolCall
from .batch import make_batch
from .collect import make_env, task_ids
from .config import EnvConfig, GenerationConfig, SFTConfig, TrainConfig
from .learner import Learner
from .log import Log


class PromptFormat(NamedTuple):
    """The system prompt, call format and tools of training.

    Attributes:
        system: System prompt.
        action_format: Format of tool calls.
        tools: Names of the tools.
    """

    system: str
    action_format: str
    tools: frozenset[str]

    @classmethod
    def of(cls, config: EnvConfig) -> Self:
        """Return the prompt format of a training environment."""
        env = make_env(config, config.train)
        try:
            assert isinstance(env.unwrapped, SweEnv)
            tools = env.unwrapped.tools
            names = frozenset(tool.name for tool in tools)
            return cls(config.system or short_prompt(tools), env.unwrapped.config["action_format"], names)
        finally:
            env.close()


def run_sft(config: TrainConfig, learner: Learner, template: ChatTemplate, end: int, log: Log) -> bool:
    """Fine-tune a model as `config.sft` says.

    Args:
        config: The configuration of the run.
        learner: The learner. Its optimizer starts over.
        template: The model's chat template.
        end: The token that ends an answer.
        log: Log of the run.

    Returns:
        Whether there was anything to learn.

    Raises:
        UsageError: No resolved episode was found, or the episodes do not fit the configuration.
    """
    sft = config.sft
    if sft.trajectories:
        episodes = resolved_episodes(sft.trajectories, sft.per_task)
    elif sft.episodes:
        ids = task_ids(config.env, config.env.train)
        draw = random.Random(f"warm start {config.run.seed}")  # apart from the draws of training
        order = ShuffledOrder(len(ids), draw.getrandbits(31))
        ids = [ids[order[place]] for place in range(sft.episodes)]
        agent = None
        if config.env.agent:
            agent = demonstrating_agent(config.env, config.generation, template, end)
        episodes = demonstrations(config.env, sft.policy, ids, agent)
    else:
        return False
    form = None if config.env.agent else PromptFormat.of(config.env)
    fitting = tokenize(episodes, template, end, form, config.generation.max_context)
    tasks = len({one.task_id for one in fitting})
    log.add("demonstrations", 0, episodes=len(fitting), tasks=tasks, too_long=len(episodes) - len(fitting))
    optim = config.optim.model_copy(update={"lr": sft.lr, "warmup_steps": 0, "schedule": "constant", "decay_steps": 0})
    learner.restart(optim)
    imitate(learner, fitting, sft, log, config.run.seed)
    learner.restart(config.optim)
    return True


def demonstrations(
    config: EnvConfig,
    policy: str,
    task_ids: Iterable[str],
    agent: Callable[[SweEnv, Policy, str], Player] | None = None,
) -> list[Trajectory]:
    """Run a policy in the training environment and return the episodes it resolved.

    Args:
        config: The environment.
        policy: Name of the policy.
        task_ids: Tasks to demonstrate.
        agent: Makes a player that does what the policy would do on a task. None: the policy plays.

    Raises:
        UsageError: It resolved none.
    """
    env = make_env(config, config.train)
    swe_env, factory = env.unwrapped, make_policies(policy)
    assert isinstance(swe_env, SweEnv)

    def demonstrate(task_id: str) -> Trajectory:
        actor = factory(env)
        if agent is not None and not isinstance(actor, Player):
            actor = agent(swe_env, actor, task_id)
        return play(env, actor, options={"task_id": task_id})

    try:
        played = [demonstrate(task_id) for task_id in task_ids]
    finally:
        env.close()
        factory.close()
    found = [trajectory for trajectory in played if trajectory.resolved]
    if played and not found:
        last = played[-1]
        text = f"sft.policy {policy!r} resolved none of {len(played)} tasks; the last stopped by {last.reason!r}"
        said = last.turns[-1].observation[-500:] if last.turns else ""
        raise UsageError(f"{text}. Check env.options.max_turns and generation.max_context. The last output: {said}")
    return found


def resolved_episodes(
    path: str | os.PathLike[str], per_task: int = 0, setting: str = "sft.trajectories"
) -> list[Trajectory]:
    """Return the resolved episodes of a run, for rejection sampling.

    Episodes that started from a checkpoint count only if they have tokens, whose mask leaves out what came before.

    Args:
        path: A run folder of `swe-gym rollout`, or a trajectory file.
        per_task: Maximum distinct episodes per task, fewest invalid calls and shortest first. 0 takes all.
        setting: Name of the setting that holds the path, for errors.

    Raises:
        UsageError: The run is missing, or none of its episodes is resolved.
    """
    played, branches, found = 0, 0, []
    for trajectory in open_trajectories(path):
        played += 1
        if trajectory.parent and not trajectory.segments:
            branches += 1
        elif trajectory.resolved and trajectory.reward_valid:
            found.append(trajectory)
    if not found:
        omitted = f" ({branches} started from a checkpoint and are left out)" if branches else ""
        raise UsageError(
            f"{setting}: none of the {played} episodes of {path}{omitted} is resolved: use easier tasks, more attempts "
            "or another model"
        )
    return _choose_best(found, per_task) if per_task else found


def _choose_best(trajectories: Iterable[Trajectory], per_task: int) -> list[Trajectory]:
    kept: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=_flaws):
        of_task = kept.setdefault(trajectory.task_id, [])
        if len(of_task) < per_task and _actions(trajectory) not in map(_actions, of_task):
            of_task.append(trajectory)
    return [trajectory for of_task in kept.values() for trajectory in of_task]


def _flaws(trajectory: Trajectory) -> tuple[int, int]:
    """Return the number of invalid calls, and the length of all actions."""
    return sum(not turn.tool for turn in trajectory.turns), sum(map(len, _actions(trajectory)))


def _actions(trajectory: Trajectory) -> list[str]:
    return [turn.action for turn in trajectory.turns]


def tokenize(
    trajectories: Iterable[Trajectory], template: ChatTemplate, end: int, form: PromptFormat | None, most: int
) -> list[Trajectory]:
    """Give episodes the token segments that SFT needs.

    Segments of the same tokenizer stay as they are, prompt included; others are made from the text.

    Args:
        trajectories: Episodes.
        template: Chat template of the model.
        end: The token that ends an answer.
        form: How training prompts the model; None if an agent does. Then episodes must have segments.
        most: Maximum tokens of a segment. Longer episodes are dropped.

    Raises:
        UsageError: An episode calls a tool that training does not have, lacks the tokens of an agent, or all are too
            long.
    """
    found = []
    for one in trajectories:
        ready = bool(one.segments) and _is_of(template, one)
        if form is None:
            if not ready:
                raise UsageError(
                    f"sft: an episode of {one.task_id} has no tokens of this model: collect it in training"
                )
            found.append(_at_temperature_one(one))
            continue
        _check_tools(one, form)
        found.append(_at_temperature_one(one) if ready else tokenize_text(one, template, end, form))
    fitting = [
        one for one in found if max((len(segment.token_ids) for segment in one.trained_segments), default=0) <= most
    ]
    if found and not fitting:
        raise UsageError(f"all {len(found)} SFT episodes are longer than generation.max_context ({most} tokens)")
    return fitting


def tokenize_text(trajectory: Trajectory, template: ChatTemplate, end: int, form: PromptFormat) -> Trajectory:
    """Give an episode segments as if the model had sampled its actions in training.

    The system prompt becomes that of training. A native tool call becomes text in the format of training.

    Args:
        trajectory: An episode of text.
        template: Chat template of the model.
        end: The token that ends an answer.
        form: How training prompts the model.
    """
    first = {"role": "system", "content": form.system}
    conversation = TokenConversation(template, [first, {"role": "user", "content": trajectory.observation}])
    for number, turn in enumerate(trajectory.turns):
        conversation.answer(as_sampled(template.encode(_as_text(turn, form.action_format)), end), 1.0)
        if number + 1 < len(trajectory.turns):
            conversation.tell({"role": "user", "content": turn.observation})
    return trajectory.model_copy(update={"segments": conversation.segments})


def _check_tools(trajectory: Trajectory, form: PromptFormat) -> None:
    for turn in trajectory.turns:
        if turn.tool and turn.tool not in form.tools:
            raise UsageError(
                f"sft: an episode of {trajectory.task_id} calls {turn.tool!r}, which is not a tool of training "
                f"({', '.join(sorted(form.tools))}): collect it with the same env.options.tools"
            )


def _at_temperature_one(trajectory: Trajectory) -> Trajectory:
    """Keep the tokens, not the temperature at which they were sampled."""
    segments = tuple(segment.model_copy(update={"temperature": 1.0}) for segment in trajectory.segments)
    return trajectory.model_copy(update={"segments": segments})


def _as_text(turn: Turn, action_format: str) -> str:
    """Write an action as text; a native call becomes a call in the given format."""
    message = _message(turn.action)
    if message is None:
        return turn.action
    function = message["tool_calls"][0]["function"]
    call = {"name": function["name"], "arguments": function["arguments"]}
    valid = ToolCall(name=turn.tool, arguments=turn.arguments) if turn.tool else None
    written = render_call(valid, action_format) if valid else json.dumps(call)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    thought = f"<think>\n{reasoning}\n</think>" if reasoning else ""
    return "\n\n".join(filter(None, [thought, message.get("content"), written]))


def _message(action: str) -> JsonObject | None:
    """Parse an action that is a message with tool calls in OpenAI's format; None for other actions."""
    try:
        found = json.loads(action)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("role") == "assistant" and found.get("tool_calls") else None


def _is_of(template: ChatTemplate, trajectory: Trajectory) -> bool:
    """Return whether the sampled tokens decode to the actions, which those of another tokenizer do not."""
    sampled = [
        [token for token, mask in zip(segment.token_ids, segment.loss_mask, strict=True) if mask]
        for segment in trajectory.segments
    ]
    text = "".join(map(template.decode, sampled))
    return all(turn.action in text for turn in trajectory.turns if turn.info.get("used", True))


def imitate(learner: Learner, trajectories: Sequence[Trajectory], config: SFTConfig, log: Log, seed: int) -> None:
    """Train on tokenized episodes in shuffled batches of about `config.batch_tokens` tokens."""
    draw = torch.Generator().manual_seed(seed)
    lengths = [sum(len(segment.token_ids) for segment in trajectory.trained_segments) for trajectory in trajectories]
    step = 0
    for epoch in range(config.epochs):
        order = torch.randperm(len(trajectories), generator=draw).tolist()
        for group in _batches(order, lengths, config.batch_tokens):
            facts: JsonObject = learner.imitate(make_batch([trajectories[index] for index in group]))
            log.add("sft", 0, epoch=epoch, step=step, episodes=len(group), **facts)
            step += 1


def _batches(order: Sequence[int], lengths: Sequence[int], most: int) -> Iterable[list[int]]:
    """Cut the episodes into batches of at most `most` tokens, or of one episode."""
    batch: list[int] = []
    for index in order:
        if batch and sum(lengths[one] for one in batch) + lengths[index] > most:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


OVER = "Done."
"""The answer after the last command."""


class Script:
    """A generator that writes texts in order, then `OVER`.

    Args:
        texts: The texts; computed at the first call, when the environment has its task.
        template: Chat template, for its tokenizer.
        end: The token that ends an answer.
    """

    def __init__(self, texts: Iterable[str], template: ChatTemplate, end: int) -> None:
        self._texts, self._template, self._end = iter(texts), template, end

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        """See `Generator`."""
        return as_sampled(self._template.encode(next(self._texts, OVER)), self._end)


def demonstrating_agent(
    config: EnvConfig, generation: GenerationConfig, template: ChatTemplate, end: int
) -> Callable[[SweEnv, Policy, str], AgentPlayer]:
    """Return what makes a player of an environment, a policy and a task id: the agent does what the policy would do.

    Raises:
        UsageError: The agent has no shell, or the chat template's tool calls cannot be read.
    """
    agent = make_agent(config.agent, config.agent_options)
    if not agent.shell[0]:
        raise UsageError(f"the agent {config.agent!r} has no shell tool, which demonstrations need: use another agent")

    renderer = Renderer(template, generation.tool_call_style)

    def player(env: SweEnv, policy: Policy, task_id: str) -> AgentPlayer:
        script = Script(_texts(env, policy, task_id, agent, renderer), template, end)
        sampler = TokenSampler(script, renderer, max_tokens=1 << 30, max_context=generation.max_context)
        return AgentPlayer(config.agent, agent, sampler)

    return player


def _texts(env: SweEnv, policy: Policy, task_id: str, agent: Agent, renderer: Renderer) -> Iterator[str]:
    """Yield the text of each call of the agent's shell."""
    tool, argument = agent.shell
    policy.reset({"task_id": task_id})
    for command in (*_commands(env, policy), *filter(None, [agent.ending])):
        call = tool_call("demonstration", tool, json.dumps({argument: command, **agent.required}, ensure_ascii=False))
        yield renderer.write({"role": "assistant", "content": "", "tool_calls": [call]})


def _commands(env: SweEnv, policy: Policy) -> Iterator[str]:
    """Yield the shell commands of a policy until it submits.

    Raises:
        UsageError: It calls another tool.
    """
    shell = shell_tool(env.tools)
    while True:
        call = parse_action(policy.act(""), env.tools, format=env.config["action_format"]).call
        if shell is not None and call.name == shell[0].name:
            yield str(call.arguments[shell[1]])
        elif call.name in ("submit", "finish"):
            return
        else:
            raise UsageError(
                f"the demonstrating policy calls {call.name!r}, and an agent has only a shell: use sft.policy = "
                '"gold", or generated tasks of rung 1 or 2'
            )
