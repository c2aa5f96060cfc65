"""Conversations: for supervised fine-tuning, and in pairs for preference learning."""

import itertools
from collections.abc import Iterable, Iterator

from ...types import JsonObject
from ..trajectory import Trajectory

Message = JsonObject


def conversation(one: Trajectory) -> list[Message]:
    """Return the episode as messages of OpenAI's chat API. The last message is the policy's.

    If the policy recorded its messages, they are returned. Otherwise, observations become user messages and actions
    become assistant messages.
    """
    if one.messages:
        return [dict(message) for message in one.messages]
    messages = [{"role": "user", "content": one.observation}]
    for turn in one.turns:
        messages.append({"role": "assistant", "content": turn.action})
        messages.append({"role": "user", "content": turn.observation})
    return messages[:-1] if one.turns else messages


def to_sft(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield rows for SFT trainers of chat models: `messages`, and `tools` if calls went through the API.

    Filter the trajectories first: only resolved ones are good examples. `reward` and `resolved` are None if the reward
    is not valid.
    """
    for one in trajectories:
        messages = conversation(one)
        row: JsonObject = {"messages": messages}
        if any(message.get("tool_calls") for message in messages):
            row["tools"] = [tool.openai() for tool in one.tools]
        row |= {"task_id": one.task_id, "attempt": one.attempt}
        judged = {"reward": one.reward, "resolved": one.resolved}
        yield row | (judged if one.reward_valid else dict.fromkeys(judged))


def to_preferences(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield pairs of attempts at one task with different rewards: `prompt`, `chosen`, `rejected`.

    The best attempt is paired with the worst, the second best with the second worst, and so on while their rewards
    differ. Episodes without a valid reward are omitted. All trajectories are held in memory.
    """
    tasks: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        if one.reward_valid and one.turns:
            tasks.setdefault(one.task_id, []).append(one)
    for task_id, attempts in tasks.items():
        ranked = sorted(attempts, key=lambda one: (-one.reward, len(one.turns), one.attempt))
        for chosen, rejected in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
            if chosen.reward > rejected.reward:
                yield _pair(task_id, chosen, rejected)


def _pair(task_id: str, chosen: Trajectory, rejected: Trajectory) -> JsonObject:
    good, bad = conversation(chosen), conversation(rejected)
    same = itertools.takewhile(
        lambda pair: pair[0] == pair[1] and pair[0]["role"] != "assistant", zip(good, bad, strict=False)
    )
    shared = len(list(same))
    return {
        "prompt": good[:shared],
        "chosen": good[shared:],
        "rejected": bad[shared:],
        "task_id": task_id,
        "chosen_attempt": chosen.attempt,
        "rejected_attempt": rejected.attempt,
        "chosen_reward": chosen.reward,
        "rejected_reward": rejected.reward,
    }
