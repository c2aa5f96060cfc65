"""How long conversations are shortened."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from swe_gym.rollout.policies.history import ChatHistory

DEEP = '{"command": ' + "[" * 100 + "]" * 100 + "}"
ARGUMENTS = st.sampled_from(['{"command": "ls"}', "{}", '{"command": "l', '"ls"', "[]", "", DEEP, "[" * 3000])
CALLS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), ARGUMENTS).map(
        lambda call: {"id": call[0], "type": "function", "function": {"name": "bash", "arguments": call[1]}}
    ),
    max_size=3,
)
TURNS = st.lists(st.tuples(st.text(max_size=400), CALLS, st.integers(0, 3000)), min_size=1, max_size=8)


def conversation(turns: Any) -> ChatHistory:
    history = ChatHistory("Be good.")
    history.observed("The issue.")
    for text, calls, length in turns:
        message = {"role": "assistant", "content": text}
        history.answered({**message, "tool_calls": calls} if calls else message)
        history.observed(f"<{length}>" + "x" * length)
    return history


def check(messages: list[dict[str, Any]]) -> None:
    """A server takes it: every call has its answer, every answer its call, and arguments are flat JSON objects."""
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    assert messages[0]["content"] == "Be good."
    assert messages[1]["content"].startswith("The issue.")
    open_calls: list[str] = []
    for message in messages[2:]:
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_calls.pop(0)
            continue
        assert open_calls == []
        open_calls = [call["id"] for call in message.get("tool_calls", ())]
        assert all(
            isinstance(json.loads(call["function"]["arguments"]), dict) and call["function"]["arguments"] != DEEP
            for call in message.get("tool_calls", ())
        )
    assert open_calls == []


@given(TURNS, st.integers(0, 20_000))
def test_a_shortened_conversation_is_valid(turns: Any, size: int) -> None:
    history = conversation(turns)
    check(history.messages)
    before = history.size
    shorter = history.shrink(size)
    check(history.messages)
    assert shorter == (history.size < before)
    if before <= size:
        assert not shorter
    kept = [message for message in history.messages if message["role"] == "assistant"]
    assert kept  # the last turn stays
    if history.size > size:
        assert len(kept) == 1
    assert not history.shrink(history.size)


@given(TURNS)
def test_shortening_ends(turns: Any) -> None:
    history = conversation(turns)
    while history.shrink(0):
        pass
    answers = [json.dumps(one, ensure_ascii=False) for one in history.messages if one["role"] == "assistant"]
    assert len(answers) == 1
    assert history.size < len(answers[0]) + 2000  # what the model said stays


def test_a_repeated_observation_replaces_the_first() -> None:
    history = conversation([("I look.", [], 10)])
    before = history.messages
    history.observed("<10>" + "x" * 10)
    assert history.messages == before
