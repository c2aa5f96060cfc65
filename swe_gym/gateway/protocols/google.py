"""Google's generateContent."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from ...trajectories import Usage
from ...types import Json, JsonObject
from ..calls import Answer, Call, Refusal, event
from ..parsing import arguments_of
from ..reading import (
    field,
    find_unread,
    function_tool,
    image_part,
    join_parts,
    make_tool_call,
    merge_messages,
    objects,
    refuse_fields,
    refuse_modalities,
    settings_of,
    token_limit,
)

PING = b"\n"
"""Empty line that keeps a stream alive: Google's SDK fails on a comment."""

READ = frozenset("model stream contents systemInstruction tools toolConfig generationConfig".split())
"""Fields that have an effect. `model` and `stream` stand in the path."""

SETTINGS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "seed": "seed",
    "stop": "stopSequences",
}
"""Setting in chat completions -> its name."""

CONFIGURED = frozenset(("maxOutputTokens", "candidateCount", "thinkingConfig")) | set(SETTINGS.values())
"""Fields of `generationConfig` that have an effect."""

DECLARED = frozenset(("name", "description", "parameters", "parametersJsonSchema"))
"""Fields of a function's declaration that have an effect."""

CALLING = "toolConfig.functionCallingConfig"
CHOICES = {"MODE_UNSPECIFIED": None, "AUTO": None, "VALIDATED": None, "ANY": "required", "NONE": "none"}
"""Mode of calling functions -> `tool_choice` of chat completions."""

STATUSES = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
TEXTS = ("output", "result", "error")
"""Fields of a function's response. The text of one that stands alone is the result."""


FREE = frozenset("args response parameters parametersJsonSchema responseSchema responseJsonSchema labels".split())
"""Fields whose values have keys of the agent's own."""

NAMED = frozenset(("properties", "patternProperties", "defs", "$defs"))
VALUES = frozenset("default example examples enum const required propertyOrdering".split())
COUNTS = frozenset("minItems maxItems minLength maxLength minProperties maxProperties".split())
"""Keywords of a schema that hold schemas by name, or values, or integers, which Google writes as strings."""


def read(body: JsonObject) -> Call:
    """Read a request, with fields in camel case or snake case: Google takes both, and LiteLLM sends both.

    Raises:
        Refusal: It is invalid, or asks for something that is not supported.
    """
    body = _in_camel_case(body)
    refuse_fields(body, ("cachedContent",), "nothing is stored; send the whole contents")
    config = field(body, "generationConfig", dict, {})
    refuse_fields(config, ("responseLogprobs", "logprobs"), "answers hold text and tool calls only")
    refuse_modalities(config, "responseModalities")
    if field(config, "candidateCount", int, 1) != 1:
        raise Refusal(400, "generationConfig.candidateCount: only 1 is supported")
    given = objects(body, "contents")
    if not given:
        raise Refusal(400, "contents: at least one content is required")
    calling = field(field(body, "toolConfig", dict, {}), "functionCallingConfig", dict, {})
    tools = [tool for index, one in enumerate(objects(body, "tools")) for tool in _tools(one, f"tools[{index}]")]
    offered, choice = _choose(tools, calling)
    thinking = field(config, "thinkingConfig", dict, {})
    messages = [one for index, content in enumerate(given) for one in _messages(content, f"contents[{index}]")]
    return Call(
        model=field(body, "model", str, ""),
        messages=_name_results(merge_messages([*_system(body), *messages])),
        tools=offered,
        max_tokens=token_limit(config, "maxOutputTokens"),
        stream=field(body, "stream", bool, False),
        settings=settings_of({**config, "tool_choice": choice}, {**SETTINGS, "tool_choice": "tool_choice"}),
        ignored={
            *(body.keys() - READ),
            *find_unread("generationConfig", config, CONFIGURED),
            *find_unread("generationConfig.thinkingConfig", thinking, ("includeThoughts",)),
            *find_unread("toolConfig", body.get("toolConfig"), ("functionCallingConfig",)),
            *find_unread(CALLING, calling, ("mode", "allowedFunctionNames")),
            *find_unread("tools.functionDeclarations", _declared(body), DECLARED),
            *([f"{CALLING}.mode=VALIDATED"] if calling.get("mode") == "VALIDATED" else ()),
        },
        flags={"thoughts": thinking.get("includeThoughts") is True},
    )


def _in_camel_case(value: Json) -> Json:
    """Return a value with the keys of its objects in camel case."""
    if isinstance(value, list):
        return [_in_camel_case(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: one if name in FREE else _in_camel_case(one) for name, one in _camel(value).items()}


def _camel(value: JsonObject) -> JsonObject:
    """Return an object with its keys in camel case."""
    found: JsonObject = {}
    for name, one in value.items():
        camel = _SNAKE.sub(lambda found: found[1].upper(), name)
        if camel in found:
            raise Refusal(400, f"{camel[:60]}: given twice, in camel case and in snake case")
        found[camel] = one
    return found


_SNAKE = re.compile("(?<=[a-z0-9])_([a-z])")


def _choose(tools: list[JsonObject], calling: JsonObject) -> tuple[list[JsonObject], Json]:
    """Return the tools that the model may call, and `tool_choice` of chat completions."""
    mode, names = field(calling, "mode", str, "AUTO"), field(calling, "allowedFunctionNames", list, [])
    if mode not in CHOICES:
        raise Refusal(400, f"{CALLING}.mode: expected {', '.join(CHOICES)}, not {mode[:60]!r}")
    if not names:
        return tools, CHOICES[mode]
    if mode not in ("ANY", "VALIDATED"):
        raise Refusal(400, f"{CALLING}.allowedFunctionNames: only allowed with the mode ANY or VALIDATED, not {mode}")
    allowed = [tool for tool in tools if tool["function"]["name"] in names]
    if not allowed:
        raise Refusal(400, f"{CALLING}.allowedFunctionNames: no declared function is named {str(names[0])[:60]!r}")
    if mode == "ANY" and len(allowed) == 1:
        return tools, {"type": "function", "function": {"name": allowed[0]["function"]["name"]}}
    return allowed, CHOICES[mode]


def _system(body: JsonObject) -> list[JsonObject]:
    parts = objects(field(body, "systemInstruction", dict, {}), "parts")
    content = join_parts([_part(part, "systemInstruction") for part in parts])
    return [{"role": "system", "content": content}] if content else []


def _tools(tools: JsonObject, where: str) -> list[JsonObject]:
    for name in tools.keys() - {"functionDeclarations"}:
        raise Refusal(400, f"{where}: the tool {name[:60]!r} runs on Google's servers only")
    return [_tool(tool, where) for tool in objects(tools, "functionDeclarations")]


def _declared(body: JsonObject) -> list[Json]:
    return [one for tools in objects(body, "tools") for one in objects(tools, "functionDeclarations")]


def _tool(tool: JsonObject, where: str) -> JsonObject:
    schema = field(tool, "parametersJsonSchema", dict) or _plain(field(tool, "parameters", dict))
    return function_tool({**tool, "schema": schema, "strict": None}, "schema", where)


def _plain(schema: Json) -> Json:
    """Return a schema of Google's as JSON Schema: keywords in camel case, types in lower case."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _keyword(name, value) for name, value in _camel(schema).items()}


def _keyword(name: str, value: Json) -> Json:
    """Return the value of a keyword of a schema."""
    if name in VALUES:
        return value
    if name in NAMED and isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if name == "type" and isinstance(value, str):
        return value.lower()
    if name in COUNTS and isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    return _plain(value)


def _messages(content: JsonObject, where: str) -> list[JsonObject]:
    """Return a content as messages of OpenAI's chat API: results of functions become messages of their own, first."""
    role, parts = field(content, "role", str, "user"), objects(content, "parts")
    if role == "model":
        return [_assistant(parts, where)]
    if role not in ("user", "function"):
        raise Refusal(400, f"{where}.role: unknown role {role[:60]!r}")
    found = [_result(part["functionResponse"], where) for part in parts if "functionResponse" in part]
    rest = [_part(part, where) for part in parts if "functionResponse" not in part]
    return [*found, {"role": "user", "content": join_parts(rest)}] if rest or not found else found


def _assistant(parts: Sequence[JsonObject], where: str) -> JsonObject:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[JsonObject] = []
    for part in parts:
        if "functionCall" in part:
            calls.append(_call(field(part, "functionCall", dict, {}), where))
        elif "text" in part:
            (thoughts if part.get("thought") is True else texts).append(field(part, "text", str, ""))
        elif part.keys() - {"thought", "thoughtSignature"}:
            raise Refusal(400, f"{where}: a part with {_names(part)} is not supported")
    message: JsonObject = {"role": "assistant", "content": "".join(texts) or None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _call(call: JsonObject, where: str) -> JsonObject:
    arguments = json.dumps(field(call, "args", dict, {}), ensure_ascii=False)
    return make_tool_call(field(call, "id", str, ""), field(call, "name", str, ""), arguments, where)


def _result(answer: Json, where: str) -> JsonObject:
    if not isinstance(answer, dict):
        raise Refusal(400, f"{where}: functionResponse: expected an object")
    response = field(answer, "response", dict, {})
    text = next((response[name] for name in TEXTS if list(response) == [name]), None)
    content = text if isinstance(text, str) else json.dumps(response, ensure_ascii=False)
    more = [_part(part, where) for part in objects(answer, "parts")]
    joined = join_parts([{"type": "text", "text": content}, *more])
    named = {"tool_call_id": field(answer, "id", str, ""), "name": field(answer, "name", str, "")}
    return {"role": "tool", **named, "content": joined}


def _part(part: JsonObject, where: str) -> JsonObject:
    """Return a part as one of OpenAI's chat API."""
    if "text" in part:
        return {"type": "text", "text": field(part, "text", str, "")}
    data = field(part, "inlineData", dict, {})
    if str(data.get("mimeType")).startswith("image/"):
        return image_part(data["mimeType"], data.get("data"))
    raise Refusal(400, f"{where}: a part with {_names(part)} is not supported")


def _names(part: JsonObject) -> str:
    return ", ".join(sorted(part))[:60] or "nothing"


def _name_results(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return messages whose calls and results have ids. Google's need none: a result belongs to the next call."""
    found: list[JsonObject] = []
    waiting: list[tuple[str, str]] = []  # name and id of each call without a result
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            name, known = message.pop("name"), message["tool_call_id"]
            fits = [one for one in waiting if one[1] == known] if known else [one for one in waiting if one[0] == name]
            if not fits and not known:
                raise Refusal(400, f"contents: a response of {name[:60]!r} follows no call of it")
            waiting = [one for one in waiting if one not in fits[:1]]
            message = {**message, "tool_call_id": known or fits[0][1]}
        for index, call in enumerate(message.get("tool_calls") or ()):
            call["id"] = call["id"] or f"call{number:04}{index:02}"
            waiting.append((call["function"]["name"], call["id"]))
        found.append(message)
    return found


# --- answers -------------------------------------------------------------------------------------------------


def write(call: Call, answer: Answer) -> JsonObject:
    """Return the answer as the body of a response."""
    return _response(call, answer, _parts(call, answer), last=True)


def _parts(call: Call, answer: Answer) -> list[JsonObject]:
    parts: list[JsonObject] = []
    if answer.reasoning and call.flags.get("thoughts"):
        parts.append({"text": answer.reasoning, "thought": True})
    if answer.content or not answer.tool_calls:
        parts.append({"text": answer.content})
    for one in answer.tool_calls:
        function = {"id": one["id"], "name": one["function"]["name"], "args": arguments_of(one)}
        parts.append({"functionCall": function})
    return parts


def _response(call: Call, answer: Answer, parts: Sequence[JsonObject], *, last: bool) -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if last:
        candidate["finishReason"] = "MAX_TOKENS" if answer.finish == "length" else "STOP"
    head = {"candidates": [candidate], "modelVersion": call.model, "responseId": answer.id}
    return {**head, "usageMetadata": _usage(answer.usage)} if last else head


def _usage(usage: Usage) -> JsonObject:
    return {
        "promptTokenCount": usage.prompt_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "candidatesTokenCount": usage.completion_tokens,
        "totalTokenCount": usage.tokens,
    }


def events(call: Call, answer: Answer) -> Iterator[bytes]:
    """Yield the answer as events."""
    parts = _parts(call, answer)
    for number, part in enumerate(parts, 1):
        yield event(_response(call, answer, [part], last=number == len(parts)))


def error(refusal: Refusal) -> JsonObject:
    """Return the body of an error."""
    status = STATUSES.get(refusal.status, "INTERNAL" if refusal.status >= 500 else "FAILED_PRECONDITION")
    return {"error": {"code": refusal.status, "message": refusal.message, "status": status}}


def error_event(refusal: Refusal) -> bytes:
    """Return an error inside a stream, where Google's SDK reads it without the name of a field."""
    return json.dumps(error(refusal)).encode()


def models(names: Sequence[str]) -> JsonObject:
    """Return the list of models."""
    return {"models": [model(name) for name in names]}


def model(name: str) -> JsonObject:
    """Return one model."""
    return {"name": f"models/{name}", "supportedGenerationMethods": ["generateContent", "countTokens"]}
