"""The answered calls of an episode as a tree: which call continues which, and why one does not.

A call continues an answer if its messages begin with those of the answer's call, followed by the answer. Messages are
compared by what a model reads of them: role, text, and names and arguments of tool calls. So markers of a cache, ids
and the order of keys do not matter.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ..types import JsonMapping, JsonObject
from .calls import NO_TOOLS, Answer, Call, Digests, mark, path_after, text_of, thought_of
from .parsing import arguments_of

Reason = Literal[
    "",
    "retry",
    "branch",
    "tools_changed",
    "dropped_answer",
    "compaction",
    "subagent",
    "edited_history",
    "new_conversation",
    "template_rewrites_history",
    "answer_rewritten",
]
"""Why a call does not continue the last answer of a segment; empty if it does.

- "retry": the same call was answered before, and another answer is sampled.
- "branch": it continues an earlier answer, which another call has continued.
- "tools_changed": it continues, with other tools.
- "dropped_answer": it repeats the messages of an earlier call and adds to them, without the answer of that call. Agents
  do so with an answer that they cannot use.
- "compaction": it starts over with an answer quoted in its messages, as after a summary.
- "subagent": it starts with a prompt that stands in a tool call of an earlier answer.
- "edited_history": it holds earlier answers, but what stands before them was changed or left out.
- "new_conversation": it holds no earlier answer.
- "template_rewrites_history": it continues, but the chat template renders the earlier messages in another way than
  before, for example without reasoning.
- "answer_rewritten": it continues, but the chat template writes the last answer otherwise than the model did, for
  example with other spaces in a tool call.
"""

QUOTE = 80
"""Characters from which a quoted text identifies its origin."""


@dataclasses.dataclass(eq=False, slots=True)
class AnsweredCall:
    """An answered call.

    Attributes:
        number: Number in the order of the answers, from 0.
        place: What it continues.
        key: Digest of the call.
        answer: The answer.
        reason: Why it starts a segment; empty if it does not.
        seconds: Seconds of sampling.
        ended: Time of the answer (`time.monotonic`).
        used: Whether the agent took the answer, as far as is known.
        taken: Whether that is certain: the agent took the whole answer, or a later call repeats it.
        children: Number of calls that continue it.
        depth: Number of answers up to this one, through compactions and edits.
    """

    number: int
    place: CallPlace
    key: bytes
    answer: Answer
    reason: Reason
    seconds: float
    ended: float
    used: bool = True
    taken: bool = False
    children: int = 0
    depth: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        goes_on = self.place.continues or self.reason in ("dropped_answer", "compaction", "edited_history")
        self.depth = 1 + (self.parent.depth if self.parent and goes_on else 0)

    @property
    def certainty(self) -> int:
        """How certain it is that the agent took the answer, from 0 to 2."""
        return self.used + self.taken

    @property
    def parent(self) -> AnsweredCall | None:
        """The answer that it continues or starts from."""
        return self.place.dropped or self.place.parent

    def comes_from(self, other: AnsweredCall) -> bool:
        """Return whether it continues or starts from an answer, directly or not."""
        node: AnsweredCall | None = self
        while node is not None and node is not other:
            node = node.parent
        return node is other

    @property
    def line(self) -> list[AnsweredCall]:
        """The answers of its conversation, from the first one to this one."""
        found: list[AnsweredCall] = []
        node: AnsweredCall | None = self
        while node is not None:
            found.append(node)
            node = node.place.before
        return found[::-1]

    @property
    def messages(self) -> list[JsonObject]:
        """The conversation, this answer included."""
        return [message for node in self.line for message in (*node.place.new, node.answer.message)]


@dataclasses.dataclass(frozen=True, slots=True)
class CallPlace:
    """Where a call belongs.

    Attributes:
        parent: The answer that it continues; if it does not, the answer that it comes from, if that is known.
        continues: Whether it continues `parent`.
        new: Its messages after those of `parent`; all of them if it does not continue it.
        reason: Why it starts a segment; empty if it does not.
        path: Digest of all its messages.
        tools: Digest of its tools.
        known: Index of a message in `new` -> the answer that it repeats.
        dropped: The answer that the agent left out, if it did.
        told: Number of messages in `new` that the call of `dropped` had.
    """

    parent: AnsweredCall | None
    continues: bool
    new: tuple[JsonObject, ...]
    reason: Reason
    path: bytes
    tools: bytes
    known: Mapping[int, AnsweredCall] = dataclasses.field(default_factory=dict)
    dropped: AnsweredCall | None = None
    told: int = 0

    @property
    def observation(self) -> str:
        """What the agent added to the conversation since the last answer."""
        return "\n\n".join(text_of(message) for message in self.new[self.told :])

    @property
    def before(self) -> AnsweredCall | None:
        """The answer that it continues, if it continues one."""
        return self.parent if self.continues else None


class _AnswerIndex:
    """Answers by digests; equal requests or texts share one."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, list[AnsweredCall]] = defaultdict(list)

    def add(self, key: bytes, node: AnsweredCall) -> None:
        self._nodes[key].append(node)

    def find(self, key: bytes, message: JsonMapping | None = None) -> AnsweredCall | None:
        """Return the answer that the agent most likely means.

        It is one with the thought of the agent's message, then one that it took, then one without a thought like the
        message, then one that is not continued, then the last.
        """
        thought = thought_of(message or {})

        def likeness(node: AnsweredCall) -> tuple[int, ...]:
            same = thought_of(node.answer.message) == thought
            return bool(thought) and same, node.certainty, same, not node.children, node.number

        return max(self._nodes.get(key, ()), key=likeness, default=None)


class CallHistory:
    """The answered calls of an episode. Not thread-safe.

    Attributes:
        nodes: The answers.
        tools: Digest of tools -> the tools.
        closed: Whether all of it is final.
    """

    def __init__(self) -> None:
        self.closed = False
        self.nodes: list[AnsweredCall] = []
        self.tools: dict[bytes, Sequence[JsonObject]] = {}
        self._by_path, self._by_mark, self._by_call = _AnswerIndex(), _AnswerIndex(), _AnswerIndex()

    def place(self, call: Call, digests: Digests, key: bytes) -> CallPlace:
        """Find what a call continues. `add` or `fail` must follow. The agent took each answer that the call repeats.

        Args:
            call: The call.
            digests: Digests of its messages.
            key: Digest that only equal calls share.
        """
        marks, paths, tools = digests
        self.tools.setdefault(tools, call.tools)
        answers = [index for index, message in enumerate(call.messages) if message["role"] == "assistant"]
        dropped, told = self._find_dropped(paths)
        known: dict[int, AnsweredCall] = {}
        for index in reversed(answers):
            if parent := self._by_path.find(paths[index], call.messages[index]):
                if told <= index:
                    dropped, told = None, index + 1
                reason = self._branching(parent, tools, key, dropped)
                self.take(parent)
                parent.children += 1
                new = tuple(call.messages[index + 1 :])
                return CallPlace(parent, True, new, reason, paths[-1], tools, {}, dropped, told - index - 1)
            if node := self._by_mark.find(marks[index], call.messages[index]):
                self.take(node)
                known[index] = node
        origin, reason = (None, "dropped_answer") if dropped else self._origin(call, key, known)
        return CallPlace(origin, False, tuple(call.messages), reason, paths[-1], tools, known, dropped, told)

    def _find_dropped(self, paths: Sequence[bytes]) -> tuple[AnsweredCall | None, int]:
        """Return the last answer that messages leave out, and the number of messages of its call."""
        for told in range(len(paths) - 1, 0, -1):
            node = self._by_call.find(paths[told - 1])
            if node is not None and node.used and not node.children:
                return node, told
        return None, 0

    def _branching(self, parent: AnsweredCall, tools: bytes, key: bytes, dropped: AnsweredCall | None) -> Reason:
        if not parent.children:
            return "" if parent.place.tools == tools else "tools_changed"
        if self._find_asked(key):
            return "retry"
        return "dropped_answer" if dropped else "branch"

    def _find_asked(self, key: bytes) -> AnsweredCall | None:
        return next((node for node in self.nodes if node.key == key and node.used), None)

    def _origin(self, call: Call, key: bytes, known: dict[int, AnsweredCall]) -> tuple[AnsweredCall | None, Reason]:
        """Return the answer that a new conversation comes from, and the reason that it starts."""
        source = self._find_quoted(call)
        if not any(node.used for node in self.nodes):
            return None, ""
        if again := self._find_asked(key):
            return again.parent, "retry"
        last = known[max(known)] if known else None
        if source and not (last and last.comes_from(source)):
            return source, "compaction"
        if last:
            return last, "edited_history"
        texts = [text_of(message) for message in call.messages if message["role"] == "user"]
        source = next((node for node in reversed(self.nodes) if _asks(node, texts)), None)
        return source, "subagent" if source else "new_conversation"

    def _find_quoted(self, call: Call) -> AnsweredCall | None:
        """Return the answer that the messages quote. If only one has the text, the agent took that one."""
        texts = [text_of(message) for message in call.messages if message["role"] in ("system", "user")]
        found = [node for node in self.nodes if _is_quoted(node.answer.content.strip(), texts)]
        if len(found) == 1:
            self.take(found[0])
        most = max((node.certainty for node in found), default=0)
        return next((node for node in reversed(found) if node.certainty == most and not node.children), None)

    def add(self, node: AnsweredCall) -> None:
        """Add an answered call."""
        self.nodes.append(node)
        self._by_path.add(path_after(node.place.path, node.answer.message), node)
        self._by_mark.add(mark(node.answer.message), node)
        self._by_call.add(node.place.path, node)

    def fail(self, place: CallPlace) -> None:
        """Note that a call was not answered."""
        if place.before is not None:
            place.before.children -= 1

    def drop(self, node: AnsweredCall) -> None:
        """Note that the agent did not take an answer so far."""
        if node.used and not (node.taken or self.closed):
            node.used = False
            self.fail(node.place)

    def take(self, node: AnsweredCall) -> None:
        """Note that the agent took an answer, perhaps after all."""
        node.taken = True
        if not (node.used or self.closed):
            node.used = True
            if node.place.before is not None:
                node.place.before.children += 1

    def close(self) -> None:
        """Count answers that the agent is not known to have taken as unused."""
        for node in self.nodes:
            self.drop(node)
        self.closed = True


def side_calls(nodes: Sequence[AnsweredCall]) -> set[AnsweredCall]:
    """Return the answers that have no part in the agent's work, such as a title for the conversation.

    A side call offers no tools, while other calls of the episode do. No other call continues it, starts from it or
    quotes its answer. It starts a conversation of its own, or the agent goes on with tools from the answer that it came
    from, as after a check for loops. It may tell the commands so far, and then looks like a subagent.
    """
    if all(node.place.tools == NO_TOOLS for node in nodes):
        return set()
    origins = {node.parent for node in nodes}
    gone_on = {node.place.before for node in nodes if node.place.tools != NO_TOOLS}
    own = [node for node in nodes if node.place.reason == "subagent" or node.parent is None or node.parent in gone_on]
    alone = [node for node in own if node.place.tools == NO_TOOLS and node not in origins]
    told = [text_of(message) for node in nodes for message in node.place.new] if alone else []
    return {node for node in alone if not _is_quoted(node.answer.content.strip(), told)}


def _is_quoted(quote: str, texts: Iterable[str]) -> bool:
    return len(quote) >= QUOTE and any(quote in text for text in texts)


def _asks(node: AnsweredCall, texts: Sequence[str]) -> bool:
    """Return whether a tool call holds a prompt of these texts: agents add reminders around it."""
    values = (value for call in node.answer.tool_calls for value in arguments_of(call).values())
    prompts = [value.strip() for value in values if isinstance(value, str)]
    return any(len(prompt) >= QUOTE // 4 and prompt in text for prompt in prompts for text in texts)
