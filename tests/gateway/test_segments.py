"""Each sampled token that the agent received stands in one segment, whatever the agent does with its conversations."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from gateway_parts import TOOLS, Feed, Scripted, asked, post, tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_gym.gateway.session import Session
from swe_gym.trajectories.trajectory import Turn

CHAT = "/v1/chat/completions"


def call(command: str, said: str) -> str:
    return (
        f'<think>hm</think>\n{said}\n<tool_call>\n{{"name":"bash","arguments":{{"command":"{command}"}}}}\n</tool_call>'
    )


class Agent:
    """An agent that keeps conversations as it got them."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def ask(self, messages: list[Any], **headers: str) -> list[Any]:
        """Return the conversation with the answer."""
        status, answer = asked(self.session, CHAT, {"messages": messages, "tools": TOOLS}, **headers)
        assert status == 200, answer
        return [*messages, answer["choices"][0]["message"]]

    def cut_off(self, messages: list[Any]) -> None:
        """Ask, and be gone before the answer."""
        self.session.handle(Feed(post(CHAT, {"messages": messages, "tools": TOOLS}), deaf=True))


def told(conversation: list[Any], text: str) -> list[Any]:
    calls = conversation[-1].get("tool_calls") or ()
    results = [{"role": "tool", "tool_call_id": one["id"], "content": text} for one in calls]
    return [*conversation, *(results or [{"role": "user", "content": text}])]


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def check(session: Session, generator: Scripted, used: set[int]) -> None:
    """Tokens of used answers have mask 1 once, no others have; a segment is what its last call read and said."""
    segments = session.report().segments
    ends = {tuple([*prompt, *made.token_ids]) for prompt, made in generator.sampled}
    assert all(segment.token_ids in ends for segment in segments)
    masked = [
        one
        for segment in segments
        for one, mask in zip(zip(segment.token_ids, segment.logprobs, strict=True), segment.loss_mask, strict=True)
        if mask
    ]
    sampled = [made for number, (_, made) in enumerate(generator.sampled) if number in used]
    assert sorted(masked) == sorted(one for made in sampled for one in zip(made.token_ids, made.logprobs, strict=True))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["extend", "again", "retry", "cut", "edit", "compact", "start", "branch"]),
        st.integers(0, 5),
        st.text(max_size=8),
    ),
    min_size=1,
    max_size=14,
)


def say(number: int) -> str:
    return call(f"ls #{number}", "x" * 90) if number % 3 else f"#{number} {'y' * 90}"


def next_messages(kind: str, old: list[Any], text: str) -> list[Any]:
    """What an agent may ask after a conversation."""
    if kind in ("again", "retry"):
        return old[:-1]
    if kind == "edit":
        return [{"role": "user", "content": f"edited {text}"}, *told(old, text)[1:]]
    if kind == "compact":
        return user(f"so far: {old[-1]['content']} {text}")
    if kind == "start":
        return user(text)
    answers = [index for index, message in enumerate(old) if message["role"] == "assistant"]
    return told(old[: answers[0] + 1] if kind == "branch" else old, text)


@pytest.mark.parametrize("forgets", [False, True])
@settings(max_examples=150)
@given(steps=STEPS)
def test_each_received_token_is_in_one_segment(forgets: bool, steps: list[tuple[str, int, str]]) -> None:
    sampler, generator = tokens(say, forgets=forgets)
    session = Session(sampler)
    agent = Agent(session)
    conversations = [agent.ask(user("issue"))]
    for kind, which, text in steps:
        messages = next_messages(kind, conversations[which % len(conversations)], text)
        if kind == "cut":
            agent.cut_off(messages)
        else:
            headers = {"x_stainless_retry_count": "1"} if kind == "retry" else {}
            conversations.append(agent.ask(messages, **headers))
    session.close()
    used = {int(re.search(r"#(\d+)", json.dumps(one[-1]))[1]) for one in conversations}  # type: ignore[index]
    check(session, generator, used)
    assert {turn.info["call"] for turn in session.turns if turn.info.get("used", True)} == used
    assert len(session.turns) == len(generator.sampled)


def test_a_plain_conversation_is_one_segment_with_versions_and_logprobs() -> None:
    sampler, generator = tokens(say, temperature=0.7)
    turns: list[Turn] = []
    session = Session(sampler, on_turn=turns.append)
    agent, conversation = Agent(session), user("issue")
    for number in range(4):
        conversation = told(agent.ask(conversation), f"result {number}")
    assert [turn.observation for turn in turns] == ["result 0", "result 1", "result 2"]  # the last one is not known yet
    session.close()
    (segment,) = session.report().segments
    prompt, made = generator.sampled[-1]
    assert segment.token_ids == (*prompt, *made.token_ids)
    assert segment.temperature == 0.7
    assert {version for version, mask in zip(segment.versions, segment.loss_mask, strict=True) if mask} == {0, 1, 2, 3}
    assert [turn.tool for turn in session.turns] == ["", "bash", "bash", ""]
    assert [turn.parent for turn in session.turns] == [None] * 4
    assert session.turns[1].action == say(1)
    assert session.turns[1].thought == f"hm\n{'x' * 90}"
    assert session.report().usage.completion_tokens == sum(segment.loss_mask)
    assert len(session.report().messages) == 8
    assert not session.reasons


def test_other_tools_start_a_segment() -> None:
    sampler, generator = tokens(say, append_only=True)
    session = Session(sampler)
    conversation = told(Agent(session).ask(user("issue")), "go on")
    asked(session, CHAT, {"messages": conversation})
    assert session.reasons == {"tools_changed": 1}
    assert b"command" not in bytes(one for one in generator.sampled[-1][0] if one < 256)
    session.close()
    assert [turn.observation for turn in session.turns] == ["go on", ""]


REASONS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "retry": lambda old: old[:-1],
    "branch": lambda old: told(old[:2], "something else"),
    "edited_history": lambda old: told([{"role": "user", "content": "no issue"}, *old[1:]], "result"),
    "compaction": lambda old: user(f"What was done so far: {old[-1]['content']}\nGo on."),
    "subagent": lambda _: [*user("List all files of the package, please.\n\nBe quick."), *user("A reminder.")],
    "new_conversation": lambda _: user("Is this a new topic?"),
}


@pytest.mark.parametrize("first", [[], [0]], ids=["first-call", "later-call"])
def test_an_answer_that_the_agent_drops_gets_what_was_added_instead(first: list[int]) -> None:
    sampler, generator = tokens(lambda number: f"answer {number}")
    session = Session(sampler)
    agent, conversation = Agent(session), user("issue")
    for number in first:
        conversation = told(agent.ask(conversation), f"result {number}")
    for number in range(2):
        agent.ask(conversation)
        conversation = [*conversation, *user(f"error {number}")]
    agent.ask(conversation)
    session.close()
    assert session.reasons == {"dropped_answer": 2}
    assert [turn.observation for turn in session.turns][-3:] == ["error 0", "error 1", ""]
    assert {turn.parent for turn in session.turns} == {None}
    report = session.report()
    assert sum(sum(one.loss_mask) for one in report.segments) == sum(len(one.token_ids) for _, one in generator.sampled)
    assert [message["content"] for message in report.messages][-3:] == ["error 0", "error 1", session.turns[-1].action]


@pytest.mark.parametrize(("reason", "parent"), [*zip(REASONS, [0, 0, 1, 1, 1, -1], strict=True)])
def test_a_segment_starts_for_a_reason_with_a_name(reason: str, parent: int) -> None:
    answers = ["ok", call("List all files of the package, please.", f"Summary: {'z' * 90}")]
    sampler, _ = tokens(lambda number: answers[number] if number < 2 else "done")
    session = Session(sampler)
    agent = Agent(session)
    agent.ask(REASONS[reason](agent.ask(told(agent.ask(user("issue")), "go on"))))
    assert session.reasons == {reason: 1}
    assert len(session.report().segments) == 2
    session.close()
    assert session.turns[-1].parent == parent
    assert session.turns[-1].info["segment"] == reason


SIDE_CALLS: list[tuple[bool, str, list[str], list[bool]]] = [
    # whether the main calls have tools, the side answer, what the next call of the main conversation says, side calls
    (True, "A title", ["go on"], [True, False]),
    (True, "s" * 90, [f"As was found: {'s' * 90}"], [False, False]),  # its answer is used
    (False, "A title", ["go on"], [False, False]),  # an agent that calls no tools works like this
]


@pytest.mark.parametrize(("has_tools", "answer", "then", "aside"), SIDE_CALLS)
def test_side_calls_are_recorded_and_not_trained_on(
    has_tools: bool, answer: str, then: list[str], aside: list[bool]
) -> None:
    sampler, generator = tokens(lambda number: [answer, "So.", "Done."][number], append_only=True)
    session = Session(sampler)
    tools = {"tools": TOOLS} if has_tools else {}
    asked(session, CHAT, {"messages": [{"role": "system", "content": "Write a title."}, *user("issue")]})
    conversation = user("issue")
    for text in then:
        _, said = asked(session, CHAT, {"messages": conversation, **tools})
        conversation = [*conversation, said["choices"][0]["message"], *user(text)]
    asked(session, CHAT, {"messages": conversation, **tools})
    session.close()
    segments = session.report().segments
    assert [segment.side_call for segment in segments] == aside
    assert sum(sum(segment.loss_mask) for segment in segments) == sum(
        len(one.token_ids) for _, one in generator.sampled
    )
    assert [turn.parent for turn in session.turns][:2] == [None, -1]


def test_a_template_that_forgets_thoughts_starts_segments_unless_it_must_not() -> None:
    for append_only in (False, True):
        sampler, _ = tokens(lambda number: call(f"ls {number}", "ok"), forgets=True, append_only=append_only)
        session = Session(sampler)
        agent, conversation = Agent(session), user("issue")
        for _ in range(3):
            conversation = told(agent.ask(conversation), "result")
        assert len(session.report().segments) == (1 if append_only else 3)
        assert session.reasons == ({} if append_only else {"template_rewrites_history": 2})


def test_messages_are_recognized_without_their_ids_and_spaces() -> None:
    sampler, _ = tokens(lambda number: call(f"ls {number}", "ok"))
    session = Session(sampler)
    agent = Agent(session)
    conversation = told(agent.ask(user("issue")), "result")
    (answer,) = [message for message in conversation if message["role"] == "assistant"]
    answer["tool_calls"][0]["id"] = conversation[-1]["tool_call_id"] = "other"
    answer["tool_calls"][0]["function"]["arguments"] = '{ "command" : "ls 0" }'
    answer["content"] = [{"type": "text", "text": "ok ", "cache_control": {"type": "ephemeral"}}]
    del answer["reasoning_content"]
    agent.ask(conversation)
    assert len(session.report().segments) == 1
