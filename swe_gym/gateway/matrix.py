"""Which agents and chat templates work together, proven on the templates themselves, as a page."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import MissingDependency, UsageError
from ..rollout.tokens import ChatTemplate
from ..types import JsonObject
from .agents import AGENTS
from .calls import arrange_system_messages, tool_call
from .rendering import Renderer
from .template_proof import ARGUMENTS, PROBE, PROBE_NAME, QUESTION

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ENDINGS = ("<|call|>", "<|tool_response>", "<|observation|>", "<|end_of_msg|>", "[e~[")
"""Tokens that end an answer, of families that have another than the first tag after a text."""

_TAG = re.compile(r"<[|｜/]?[\w:▁｜|\-]+>|\[/?[A-Z_]+\]|\]<\][a-z]+\[>\[")
_THOUGHTS = ("<think>", "</think>", "[THINK]", "[/THINK]")
"""Tags that parsers look for, and that some templates do not name."""


class Proof(NamedTuple):
    """What is proven of a chat template.

    Attributes:
        template: Its name.
        family: Family of models; "unknown" if none has its marks.
        style: How its models write tool calls; empty if it is refused.
        why: Why it is refused; empty if it is not.
        later: Whether it renders system messages after the first message in place.
        parallel: Whether it renders several tool calls of one message.
        results: Whether a conversation that goes on with results of tools is one segment.
        users: Whether one that goes on with messages of the user is.
        served: What a server with this template needs for an agent, by the roles of the agent's first messages.
    """

    template: str
    family: str
    style: str = ""
    why: str = ""
    later: bool = False
    parallel: bool = False
    results: bool = False
    users: bool = False
    served: Mapping[tuple[str, ...], str] = {}


def find_templates(folder: Path | None = None) -> dict[str, Path]:
    """Return chat templates by name: those that TRL's package holds, and the files *.jinja of a folder.

    TRL itself is not imported. Templates that it changed for training are left out; the folder comes first.
    """
    try:
        files = importlib.metadata.files("trl") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(str(one.locate())) for one in files if one.match("trl/chat_templates/*.jinja")]
    named = {path.stem: path for path in found if not path.stem.endswith("_training")}
    named |= {path.stem: path for path in (folder.glob("*.jinja") if folder else ())}
    return dict(sorted(named.items()))


def make_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer of bytes and of the tags in a chat template, on which parsers rely.

    Raises:
        MissingDependency: `transformers` is not installed.
    """
    try:
        import transformers
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise MissingDependency("chat templates need transformers: pip install 'swe-gym[train]'") from error
    vocabulary = {one: index for index, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>", clean_up_tokenization_spaces=False
    )
    made.chat_template = source
    tags = dict.fromkeys([*_TAG.findall(source), *_THOUGHTS])
    made.add_tokens([AddedToken(one, special=False, normalized=False) for one in tags])
    ends = ["<eos>", *ENDINGS, first_tag(ChatTemplate(made).closing)]
    made.add_special_tokens({"additional_special_tokens": ends})
    return made


def first_tag(text: str) -> str:
    """Return the tag with which a text begins."""
    match = re.match(r"\s*(<[^<>]+>|\[e~\[)", text)
    return match[1] if match else "<|user|>"


# --- proofs -----------------------------------------------------------------------------------------------------


def prove(name: str, source: str, style: str = "") -> Proof:
    """Return what holds for a chat template, or why it is refused.

    Args:
        name: Its name.
        source: The template.
        style: How its models write tool calls; see `Renderer`. Empty: as their family does.

    Raises:
        MissingDependency: `transformers` is not installed.
    """
    try:
        template = ChatTemplate(make_tokenizer(source))
    except MissingDependency:
        raise
    except UsageError as error:
        return Proof(name, "unknown", why=str(error))
    try:
        renderer = Renderer(template, style)
    except UsageError as error:
        family, _, why = (
            str(error).removeprefix("tool calls with ").removeprefix("the chat template of ").partition(": ")
        )
        return Proof(name, family.removesuffix(" cannot render a tool"), why=why.partition(". Name the format")[0])
    call = tool_call("call00000", PROBE_NAME, '{"command": "ls"}')
    result = {"role": "tool", "tool_call_id": call["id"], "content": "A result."}
    return Proof(
        name,
        renderer.family if renderer.family != "unknown" or renderer.shape.native else "without tools",
        renderer.style,
        later=renderer.shape.later,
        parallel=renderer.shape.parallel,
        results=_grows(renderer, {"role": "assistant", "content": "", "tool_calls": [call]}, result),
        users=_grows(renderer, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "And now?"}),
        served={roles: _serve(template, roles) for roles in openings()},
    )


def _grows(renderer: Renderer, said: JsonObject, told: JsonObject) -> bool:
    """Return whether the next prompt begins with this one and the answer; the model thinks if the prompt lets it."""
    _, prompt = renderer.render_answer([QUESTION], {**said, "reasoning_content": "Hm."})
    message = {**said, "reasoning_content": "Hm."} if prompt else said
    history: list[JsonObject] = [QUESTION]
    texts: set[str] = set()
    for number in range(3):
        own, result = _with_id(message, number), _with_id(told, number)
        text, prompt = renderer.render_answer(history, own)
        history += [own, result]
        texts.add(re.sub(r":\d+<", ":0<", text))  # ids of Kimi's calls have a number
        if not prompt or len(texts) > 1 or not renderer.render(history, [PROBE]).startswith(prompt + text):
            return False
    return True


def _with_id(message: JsonObject, number: int) -> JsonObject:
    """Return a message whose tool call, or whose result, has an id of its own."""
    one = f"call{number:05}"
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**call, "id": one} for call in calls]}
    return {**message, "tool_call_id": one} if message["role"] == "tool" else message


def openings() -> dict[tuple[str, ...], list[str]]:
    """Return the agents by the roles of their first messages."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in AGENTS.names():
        found.setdefault(AGENTS.load(name).opening, []).append(name)
    return found


def _serve(template: ChatTemplate, roles: Sequence[str]) -> str:
    """Return what a server needs to take an agent's first messages, a tool call and its result, or that it fails."""
    texts = [{"role": role, "content": f"{role} {number}."} for number, role in enumerate(roles)]
    call = tool_call("call00000", PROBE_NAME, "{}")
    call["function"]["arguments"] = dict(ARGUMENTS)  # as servers give them to templates
    said = {"role": "assistant", "content": "So.", "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": call["id"], "content": "A result."}
    wanted = [PROBE_NAME, *(one["content"] for one in texts), "A result."]
    for later, words in (("system", "y"), ("user", "`user`")):
        try:
            text = template.render([*arrange_system_messages(texts, later), said, told], [PROBE])
        except Exception:  # noqa: BLE001  the template refuses it in its own words
            continue
        if all(one in text for one in wanted):
            return words
    return "n"


# --- the page ---------------------------------------------------------------------------------------------------

_HEAD = """\
## Chat templates that work

A column of agents says whether a server with this template takes their first messages, a tool call and its result:
`y`: yes. `user`: with `policy.later_system=user`. `n`: no, the template shows no tools or refuses messages. The server
also needs the tool parser of the model.

The other columns are about token sampling, which training uses:

- **Format**: how the model's tool calls are read: `generation.tool_call_style`.
- **Later system**: whether system messages after the first message stay in place.
- **Calls**: whether an answer may have several tool calls.
- **Results**, **Users**: whether a conversation that goes on with results of tools, or with messages of the user, is
  one segment. The model thinks in each answer if the prompt lets it.
"""

_REFUSED = """
## Chat templates that are refused

Token sampling refuses these before the first call. `generation.tool_call_style` may help: `hermes` if a template shows
no tools to the model, parsers of vLLM (`vllm:TOOL+REASONING`) if the format is unknown.

| Template | Family | Why |
|---|---|---|
"""


def render_matrix(proofs: Sequence[Proof]) -> str:
    """Return the tables of the docs about agents and models, as Markdown."""
    groups = openings()
    columns = [f"{', '.join(names)} ({', '.join(roles)})" for roles, names in groups.items()]
    head = ["Family", "Template", *columns, "Format", "Later system", "Calls", "Results", "Users"]
    lines = [_HEAD, f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    ordered = sorted(proofs, key=lambda one: (one.family.lower(), one.template.lower()))
    lines += [render_row(one) for one in ordered if not one.why]
    refused = [render_row(one) for one in ordered if one.why]
    return "\n".join([*lines, _REFUSED.rstrip("\n"), *refused, ""])


def render_row(proof: Proof) -> str:
    """Return a proof as a row of the page."""
    cells = [f"`{proof.template}`", proof.family, _shorten(proof.why)] if proof.why else list(_cells(proof))
    return f"| {' | '.join(cells)} |"


def _cells(proof: Proof) -> Iterator[str]:
    yield from (proof.family, f"`{proof.template}`", *(proof.served[roles] for roles in openings()))
    yield from (f"`{proof.style}`", "in place" if proof.later else "the user's")
    yield "several" if proof.parallel else "one"
    yield from ("one segment" if one else "new segments" for one in (proof.results, proof.users))


def _shorten(text: str) -> str:
    """Return a text for a cell of a table."""
    text = " ".join(text.split())
    text = text if len(text) <= 140 else f"{text[:140].rstrip()}..."
    return re.sub(r"([|<>\[\]`*_])", r"\\\1", text)
