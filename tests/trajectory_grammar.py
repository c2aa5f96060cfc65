"""A grammar of trajectories: side conversations, context edits, parallel calls, odd texts, tokens or none."""

import json
from typing import Any

from hypothesis import strategies as st

from swe_gym.trajectories.trajectory import ModelServer, PolicyInfo, Segment, Trajectory, Turn, Usage
from swe_gym.types import ToolSpec, Verdict

ODD = [
    "",
    "\x00\x1b[31m\x7fELF\x02\xff",
    "\ud800 half",
    "é 𝄞 \u202e",
    "<think>\nhm\n</think>\n\nYes.",
    "<think>open",
    "a" * 5000,
]
texts = st.one_of(st.text(max_size=20), st.sampled_from(ODD))
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, values, max_size=3)
names = st.sampled_from(["bash", "submit", "edit\ud800"])
counts = st.integers(0, 3)
usages = st.builds(
    Usage,
    prompt_tokens=st.integers(-1, 1 << 60),
    cached_tokens=counts,
    completion_tokens=counts,
    calls=counts,
    uncounted=counts,
    retries=counts,
    cost=st.none() | numbers,
    answered_as=st.just(()) | st.just(("other",)),
)
calls = st.fixed_dictionaries({"name": names, "arguments": objects})
infos = st.one_of(
    st.just({}),
    objects,
    st.fixed_dictionaries({"more_calls": st.lists(calls, min_size=1, max_size=2), "used": st.booleans()}),
    st.just({"more_calls": "none", "atif": 1}),
)


@st.composite
def turns_of(draw: st.DrawFn) -> list[Turn]:
    """Turns with side conversations, branches, empty answers, parallel calls and reasoning."""
    made = []
    for number in range(draw(st.integers(0, 6))):
        tool = draw(st.just("") | names)
        made.append(
            Turn(
                action=draw(texts),
                thought=draw(texts) if tool else draw(st.just("") | texts),
                tool=tool,
                arguments=draw(objects) if tool else draw(st.just({}) | objects),
                observation=draw(texts),
                reward=draw(numbers),
                terminated=draw(st.booleans()),
                truncated=draw(st.booleans()),
                info=draw(infos),
                seconds=draw(numbers),
                parent=draw(st.none() | st.integers(-1, number)),
                usage=draw(usages | st.just(Usage())),
            )
        )
    return made


@st.composite
def segments_for(draw: st.DrawFn, turns: list[Turn]) -> tuple[list[Segment], list[Turn]]:
    """Segments whose answers are those of the turns, in several rows; sometimes of none of them."""
    ids = st.integers(0, 99)
    rows: list[list[Any]] = []
    matching, single = draw(st.integers(0, 3)) > 0, draw(st.booleans())
    for number, turn in enumerate(turns):
        answer = draw(st.lists(ids, min_size=1, max_size=4))
        told = draw(st.lists(ids, max_size=3))
        aside = matching and turn.parent is not None and not single
        if not rows or aside or draw(st.integers(0, 3)) == 0:  # another conversation, or a context edit
            rows.append([[], [], [], [], draw(st.sampled_from([1.0, 0.7])), draw(st.booleans())])
        row = rows[-1]
        row[0] += told
        row[1] += [0] * len(told)
        row[2] += [0.0] * len(told)
        row[3] += [-1] * len(told)
        if matching:
            usage = Usage(prompt_tokens=len(row[0]), completion_tokens=len(answer), calls=1)
            turns[number] = turn.model_copy(update={"usage": usage, **({"parent": None} if single else {})})
        row[0] += answer
        row[1] += [1] * len(answer)
        row[2] += [draw(numbers) for _ in answer]
        row[3] += [draw(st.integers(0, 3))] * len(answer)
    segments = [
        Segment(token_ids=a, loss_mask=b, logprobs=c, versions=d, temperature=e, side_call=f)
        for a, b, c, d, e, f in rows
    ]
    return segments, turns


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    turns = draw(turns_of())
    segments, turns = draw(segments_for(turns)) if draw(st.integers(0, 3)) else ([], turns)
    role = st.sampled_from(["system", "user", "assistant", "tool"])
    message = st.builds(lambda role, content: {"role": role, "content": content}, role, texts | st.none())
    return Trajectory(
        task_id=draw(st.text(min_size=1, max_size=9)),
        repo=draw(texts),
        attempt=draw(counts),
        tries=draw(counts),
        config_hash=draw(texts),
        experiment=draw(texts),
        policy=PolicyInfo(
            name=draw(texts), model=draw(texts), sampling=draw(objects), server=ModelServer(url=draw(texts))
        ),
        env_id=draw(texts),
        env=draw(objects),
        sandbox=draw(objects),
        tools=tuple(draw(st.lists(st.builds(ToolSpec, name=names, description=texts, parameters=objects), max_size=2))),
        seed=draw(st.none() | st.integers()),
        started=draw(st.sampled_from(["", "soon", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678+00:00"])),
        observation=draw(texts),
        turns=tuple(turns),
        segments=tuple(segments),
        messages=tuple(draw(st.lists(message, max_size=3))),
        outcome=draw(st.sampled_from(["submitted", "agent_limit", "infra_failed", "running"])),
        reason=draw(st.sampled_from(["submit", "turns", "SandboxLost (oom)"])),
        failure=draw(texts),
        reward_valid=draw(st.booleans()),
        resolved=draw(st.booleans()),
        reward=draw(numbers),
        info=draw(objects),
        patch=draw(texts),
        patch_bytes=draw(counts),
        usage=draw(usages),
        seconds=draw(st.dictionaries(st.sampled_from(["start", "total"]), numbers)),
        verdict=draw(st.none() | st.just(Verdict(resolved=True, log="hidden"))),
    )


def as_read(document: dict[str, Any]) -> dict[str, Any]:
    """The document as UTF-8 JSON, as other programs write it."""
    text = json.dumps(document, ensure_ascii=False).encode().decode()
    found: dict[str, Any] = json.loads(text)
    return found


def plain(one: Trajectory) -> str:
    """A text in which 1, 1.0 and True differ."""
    return json.dumps(one.model_dump())
