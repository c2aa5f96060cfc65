"""Each sampled token that the agent received stands in one segment, whatever the agent does with its conversations."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
from gateway_parts import TOOLS, Feed, Scripted, asked, post, tokens
from hypothesis import example, given
from hypothesis import strategies as st

from swe_gym.gateway.parsing import arguments_of
from swe_gym.gateway.session import Session
from swe_gym.trajectories.trajectory import Turn

CHAT = "/v1/chat/completions"


def call(command: str, said: str) -> str:
    shown = f'{{"name": "bash", "arguments": {{"command": "{command}"}}}}'
    return f"<think>hm</think>\n{said}\n<tool_call>\n{shown}\n</tool_call>"


class Agent:
    """An agent that keeps conversations as it got them."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def ask(self, messages: list[Any]) -> list[Any]:
        """Return the conversation with the answer."""
        status, answer = asked(self.session, CHAT, {"messages": messages, "tools": TOOLS})
        assert status == 200, answer
        return [*messages, answer["choices"][0]["message"]]


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


class Step(NamedTuple):
    """What an agent does next.

    Attributes:
        kind: What it asks.
        which: The conversation from which it asks.
        text: What it adds.
        answer: Whether it gets the answer, is gone before, or gets it and the gateway does not learn that.
        retry: Whether an SDK says that it sends the request again.
        during: What it does while the answer is sent.
    """

    kind: str
    which: int = 0
    text: str = ""
    answer: str = "taken"
    retry: bool = False
    during: tuple["Step", ...] = ()


def steps_with(during: st.SearchStrategy[tuple[Step, ...]]) -> st.SearchStrategy[Step]:
    kinds = st.sampled_from(["extend", "again", "edit", "compact", "start", "branch", "delegate"])
    answers = st.sampled_from(["taken", "taken", "cut", "lost"])
    return st.builds(Step, kinds, st.integers(0, 5), st.text(max_size=8), answers, st.booleans(), during)


STEPS = st.lists(
    steps_with(st.just(()) | st.lists(steps_with(st.just(())), max_size=2).map(tuple)), min_size=1, max_size=14
)
EXTEND, CUT = Step("extend"), Step("extend", answer="cut")
CUT_OFF_AND_ANSWERED_AFTER_ANOTHER = [EXTEND, EXTEND, CUT._replace(which=1), EXTEND, EXTEND._replace(which=1)]


def say(number: int) -> str:
    return call(f"ls #{number}", "x" * 90) if number % 3 else f"#{number} {'y' * 90}"


def repeat(number: int) -> str:
    """Say the same again and again, with other thoughts."""
    return f"<think>#{number}</think>\n{'y' * 90 if number % 3 else 'x' * 90}"


def next_messages(kind: str, old: list[Any], text: str) -> list[Any]:
    """What an agent may ask after a conversation."""
    if kind == "start" or not old:
        return user(text)
    if kind == "again":
        return old[:-1]
    if kind == "edit":
        return [{"role": "user", "content": f"edited {text}"}, *told(old, text)[1:]]
    if kind == "delegate":
        made = [arguments_of(one) for said in old for one in said.get("tool_calls") or ()]
        return user("\n".join(map(str, made[-1].values())) if made else text)
    if kind == "compact":
        return user(f"so far: {old[-1]['content']} {text}")
    answers = [index for index, message in enumerate(old) if message["role"] == "assistant"]
    return told(old[: answers[0] + 1] if kind == "branch" else old, text)


class Wild:
    """An agent that does anything with its conversations and connections, and knows which answers it got.

    Attributes:
        taken: Numbers of the answers that arrived.
        proven: Numbers of the answers that arrived, unknown to the gateway, and that a later request repeats.
        received: Numbers of all answers that arrived.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.conversations: list[list[Any]] = []
        self.taken: set[int] = set()
        self.proven: set[int] = set()
        self.received: set[int] = set()
        self._lost: list[Any] = []
        self._asking: list[list[Any]] = []

    def do(self, steps: Iterable[Step]) -> None:
        for step in steps:
            old = self.conversations[step.which % len(self.conversations)] if self.conversations else []
            self._ask(next_messages(step.kind, old, step.text), step)

    def _ask(self, messages: list[Any], step: Step) -> None:
        self.proven |= {number_of(one) for one in messages if one in self._lost}
        retry = step.retry or messages in self._asking  # another request that is equal waits for a second
        feed = Feed(
            post(CHAT, {"messages": messages, "tools": TOOLS}, x_stainless_retry_count=str(int(retry))),
            deaf=step.answer == "cut",
            lost=step.answer == "lost",
            during=lambda: self.do(step.during),
        )
        self._asking.append(messages)
        self.session.handle(feed)
        self._asking.pop()
        if step.answer != "cut":
            head, _, body = feed.received.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), body
            self._got(messages, json.loads(body)["choices"][0]["message"], known=step.answer == "taken")

    def _got(self, messages: list[Any], message: Any, *, known: bool) -> None:
        self.conversations.append([*messages, message])
        self.received.add(number_of(message))
        if known:
            self.taken.add(number_of(message))
        else:
            self._lost.append(message)


def number_of(message: Any) -> int:
    return int(re.search(r"#(\d+)", json.dumps(message))[1])  # type: ignore[index]


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("say", [say, repeat])
@given(steps=STEPS)
@example(steps=CUT_OFF_AND_ANSWERED_AFTER_ANOTHER)
@example(steps=[EXTEND, CUT, EXTEND._replace(kind="start"), EXTEND])
@example(steps=[Step("extend", answer="lost"), Step("start"), Step("extend", 1)])
@example(steps=[Step("extend", answer="cut", during=(Step("start"),))])
@example(steps=[Step("extend", answer="cut", during=(Step("extend", retry=True),))])
@example(steps=[EXTEND, EXTEND, Step("extend", text="0", answer="cut", during=(EXTEND, Step("compact", 1)))])
def test_each_received_token_is_in_one_segment(say: Callable[[int], str], forgets: bool, steps: list[Step]) -> None:
    sampler, generator = tokens(say, forgets=forgets)
    turns: list[Turn] = []
    session = Session(sampler, on_turn=turns.append)
    agent = Wild(session)
    agent.do([Step("start", text="issue"), *steps])
    session.close()
    used = {turn.info["call"] for turn in turns if turn.info.get("used", True)}
    check(session, generator, used)
    assert used >= agent.taken
    spoken = [say(number).split("</think>")[-1] for number in range(len(generator.sampled))]
    assert {spoken[number] for number in used} >= {spoken[number] for number in agent.proven}  # equal ones are as good
    assert used <= {number for number, text in enumerate(spoken) if text in {spoken[one] for one in agent.received}}
    assert sorted(turn.info["call"] for turn in turns) == list(range(len(generator.sampled)))


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


def test_a_summary_that_is_edited_later_is_no_second_compaction() -> None:
    """Qwen Code adds a reminder to the message with the summary, after the first call that had it."""
    answers = ["ok", f"Summary: {'z' * 90}"]
    sampler, generator = tokens(lambda number: answers[number] if number < 2 else call(f"ls {number}", "Next."))
    session = Session(sampler)
    agent = Agent(session)
    summary = agent.ask(told(agent.ask(user("issue")), "Write a summary."))[-1]["content"]
    first, *rest = told(agent.ask(user(f"{summary}\nGo on.")), "result")
    agent.ask([*user(f"A reminder.\n{first['content']}"), *rest])
    session.close()
    assert session.reasons == {"compaction": 1, "edited_history": 1}
    assert [turn.parent for turn in session.turns] == [None, None, 1, 2]
    assert [message["content"] for message in session.report().messages][:1] == [f"A reminder.\n{summary}\nGo on."]
    check(session, generator, {0, 1, 2, 3})


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


@pytest.mark.parametrize("has_tools", [True, False])
def test_a_title_that_is_told_the_commands_so_far_is_no_subagent(has_tools: bool) -> None:
    command = "grep -rn 'def put' larder | head"
    sampler, _ = tokens(lambda number: [call(command, "So."), "Done.", "A title"][number], append_only=True)
    session = Session(sampler)
    agent = Agent(session)
    agent.ask(told(agent.ask(user("issue")), "result"))
    title = [
        {"role": "system", "content": "Write a title."},
        *user(f"issue\n\nWork so far:\n- bash: {command}\n(no output)"),
    ]
    asked(session, CHAT, {"messages": title, **({"tools": TOOLS} if has_tools else {})})
    session.close()
    assert [segment.side_call for segment in session.report().segments] == [False, not has_tools]


@pytest.mark.parametrize("whole", [True, False], ids=["whole-history", "last-messages"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_check_for_loops_is_a_side_call_if_the_agent_goes_on(whole: bool, goes_on: bool) -> None:
    """Gemini CLI asks so after 30 turns. A summary is asked for in the same way, and replaces the history."""
    said = [call("ls", "So."), call("pwd", "So."), '{"unproductive_state_confidence": 0.1}', "Done."]
    sampler, _ = tokens(said.__getitem__, append_only=True)
    session = Session(sampler)
    agent = Agent(session)
    conversation = told(agent.ask(told(agent.ask(user("issue")), "result")), "result")
    check = [*(conversation if whole else [*user("The request: issue"), *conversation[1:]]), *user("Is it stuck?")]
    asked(session, CHAT, {"messages": check})
    agent.ask(conversation if goes_on else user("Summary: all is well."))
    session.close()
    assert [segment.side_call for segment in session.report().segments].count(True) == goes_on


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


def test_the_space_of_results_counts() -> None:
    """Some templates keep it: answers to two results that differ by it are not the same conversation."""
    sampler, generator = tokens(lambda number: call("ls", "ok"))  # noqa: ARG005  equal answers
    agent = Agent(Session(sampler))
    answered = agent.ask(user("issue"))
    first, _ = agent.ask(told(answered, "\r")), agent.ask(told(answered, ""))
    agent.ask(told(first, "go on"))
    prompts = [bytes(one for one in prompt if one < 256) for prompt, _ in generator.sampled]
    assert prompts[3].startswith(prompts[1])
