"""Supervised learning from episodes: demonstrations, or a model's own best."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import torch

from ..actions import render_call
from ..envs.swe_env import SweEnv
from ..errors import UsageError
from ..rollout.episode import play
from ..rollout.policies import make_policies
from ..rollout.tokens import ChatTemplate, Completion, Conversation, short_prompt
from ..trajectories.run_folder import open_trajectories
from ..trajectories.trajectory import Trajectory, Turn
from ..types import ToolCall
from .batch import make_batch
from .collect import make_env
from .config import EnvConfig, WarmStartConfig
from .learner import Learner
from .log import Log


def demonstrations(config: EnvConfig, policy: str, task_ids: Iterable[str]) -> list[Trajectory]:
    """Have a policy play tasks in the environment of training; the episodes that it resolved.

    Raises:
        UsageError: It resolved none.
    """
    env = make_env(config, config.train)
    factory = make_policies(policy)
    try:
        played = [play(env, factory(env), options={"task_id": task_id}) for task_id in task_ids]
    finally:
        env.close()
        factory.close()
    found = [trajectory for trajectory in played if trajectory.resolved]
    if played and not found:
        raise UsageError(
            f"policy {policy!r} resolved none of {len(played)} tasks: the last ended by {played[-1].reason!r}; "
            "does env.options.max_turns leave it enough turns?"
        )
    return found


def own_best(path: str | os.PathLike[str], per_task: int = 0) -> list[Trajectory]:
    """The resolved episodes of a run: rejection sampling, where a model's own are given.

    Args:
        path: A run folder of `swe-gym rollout`, or a file of trajectories.
        per_task: At most so many of each task, no two of which say the same: those with the fewest calls that could not
            be read, and of these the shortest. 0 takes all, so that tasks that are solved often weigh more.

    Raises:
        UsageError: There is no such run, or none of its episodes is resolved.
    """
    played, found = 0, []
    for trajectory in open_trajectories(path):
        played += 1
        if trajectory.resolved and trajectory.reward_valid:
            found.append(trajectory)
    if not found:
        raise UsageError(
            f"warm_start.trajectories: none of the {played} episodes of {path} is resolved, so there is nothing to "
            "learn from: play easier tasks, more attempts or another model"
        )
    return _best(found, per_task) if per_task else found


def _best(trajectories: Iterable[Trajectory], per_task: int) -> list[Trajectory]:
    kept: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=_flaws):
        of_task = kept.setdefault(trajectory.task_id, [])
        if len(of_task) < per_task and _actions(trajectory) not in map(_actions, of_task):
            of_task.append(trajectory)
    return [trajectory for of_task in kept.values() for trajectory in of_task]


def _flaws(trajectory: Trajectory) -> tuple[int, int]:
    """Calls that could not be read, and the length of all that was said."""
    return sum(not turn.tool for turn in trajectory.turns), sum(map(len, _actions(trajectory)))


def _actions(trajectory: Trajectory) -> list[str]:
    return [turn.action for turn in trajectory.turns]


class Form(NamedTuple):
    """What training asks a model for, whoever was asked for what when an episode was played.

    Attributes:
        system: What the model is told first.
        action_format: How calls are written.
        tools: The names of those that there are.
    """

    system: str
    action_format: str
    tools: frozenset[str]

    @classmethod
    def of(cls, config: EnvConfig) -> Self:
        """That of an environment of training."""
        env = make_env(config, config.train)
        try:
            assert isinstance(env.unwrapped, SweEnv)
            tools = env.unwrapped.tools
            names = frozenset(tool.name for tool in tools)
            return cls(config.system or short_prompt(tools), env.unwrapped.config["action_format"], names)
        finally:
            env.close()


def in_tokens(
    trajectories: Iterable[Trajectory], template: ChatTemplate, end: int, form: Form, most: int
) -> list[Trajectory]:
    """Episodes with the segments that supervised learning takes.

    Segments that are there stay, prompt and all, if they are of the same tokenizer; all else is made of the text.

    Args:
        trajectories: Episodes.
        template: Of the model that learns.
        end: The token that ends an answer.
        form: What training asks for.
        most: Tokens of a segment; episodes with longer ones are left out.

    Raises:
        UsageError: One calls a tool that training does not have, or all are too long.
    """
    found = []
    for one in trajectories:
        _check_tools(one, form)
        ready = bool(one.segments) and _is_of(template, one)
        found.append(_as_it_was_said(one) if ready else as_tokens(one, template, end, form))
    fitting = [one for one in found if max((len(segment.token_ids) for segment in one.segments), default=0) <= most]
    if found and not fitting:
        raise UsageError(
            f"all {len(found)} episodes of the warm start are longer than generation.max_context ({most} tokens)"
        )
    return fitting


def as_tokens(trajectory: Trajectory, template: ChatTemplate, end: int, form: Form) -> Trajectory:
    """The same with segments, as if the model had sampled the actions in training.

    Whatever the policy was told first, here it is what training tells: the model learns to do as well without that.
    A call that went through the protocol of a server is written as text, in the format of training.

    Args:
        trajectory: An episode of text.
        template: Of the model that learns.
        end: The token that ends an answer.
        form: What training asks for.
    """
    first = {"role": "system", "content": form.system}
    conversation = Conversation(template, [first, {"role": "user", "content": trajectory.observation}])
    for number, turn in enumerate(trajectory.turns):
        ids = [*template.encode(_said(turn, form.action_format)), end]
        conversation.answer(Completion(ids, [0.0] * len(ids), "stop", 0), 1.0)
        if number + 1 < len(trajectory.turns):
            conversation.tell({"role": "user", "content": turn.observation})
    return trajectory.model_copy(update={"segments": conversation.segments})


def _check_tools(trajectory: Trajectory, form: Form) -> None:
    for turn in trajectory.turns:
        if turn.tool and turn.tool not in form.tools:
            raise UsageError(
                f"warm_start: an episode of {trajectory.task_id} calls {turn.tool!r}, and the tools of training are "
                f"{', '.join(sorted(form.tools))}: play it with the same env.options.tools"
            )


def _as_it_was_said(trajectory: Trajectory) -> Trajectory:
    """With its own tokens, at temperature 1: how they were sampled is nothing to imitate."""
    segments = tuple(segment.model_copy(update={"temperature": 1.0}) for segment in trajectory.segments)
    return trajectory.model_copy(update={"segments": segments})


def _said(turn: Turn, action_format: str) -> str:
    """The action as a model says it that has no protocol but text."""
    message = _message(turn.action)
    if message is None:
        return turn.action
    function = message["tool_calls"][0]["function"]
    call = {"name": function["name"], "arguments": function["arguments"]}
    written = (
        render_call(ToolCall(name=turn.tool, arguments=turn.arguments), action_format)
        if turn.tool
        else json.dumps(call)
    )
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    thought = f"<think>\n{reasoning}\n</think>" if reasoning else ""
    return "\n\n".join(filter(None, [thought, message.get("content"), written]))


def _message(action: str) -> dict[str, Any] | None:
    """The message of OpenAI's protocol that an action is, if it is one with calls."""
    try:
        found = json.loads(action)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("role") == "assistant" and found.get("tool_calls") else None


def _is_of(template: ChatTemplate, trajectory: Trajectory) -> bool:
    """Whether the sampled tokens of an episode read as its actions, which those of another tokenizer do not."""
    sampled = [
        [token for token, mask in zip(segment.token_ids, segment.loss_mask, strict=True) if mask]
        for segment in trajectory.segments
    ]
    text, place = "".join(map(template.decode, sampled)), 0
    for action in _actions(trajectory):
        place = text.find(action, place)
        if place < 0:
            return False
        place += len(action)
    return True


def imitate(learner: Learner, trajectories: Sequence[Trajectory], config: WarmStartConfig, log: Log, seed: int) -> None:
    """Train on episodes of tokens, in batches of about `config.batch_tokens`, shuffled anew in each epoch."""
    draw = torch.Generator().manual_seed(seed)
    lengths = [sum(len(segment.token_ids) for segment in trajectory.segments) for trajectory in trajectories]
    step = 0
    for epoch in range(config.epochs):
        order = torch.randperm(len(trajectories), generator=draw).tolist()
        for group in _batches(order, lengths, config.batch_tokens):
            facts: dict[str, Any] = learner.imitate(make_batch([trajectories[index] for index in group]))
            log.add("warm_start", 0, epoch=epoch, step=step, episodes=len(group), **facts)
            step += 1


def _batches(order: Sequence[int], lengths: Sequence[int], most: int) -> Iterable[list[int]]:
    """Episodes in the given order, cut where the tokens are enough."""
    batch: list[int] = []
    for index in order:
        if batch and sum(lengths[one] for one in batch) + lengths[index] > most:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
