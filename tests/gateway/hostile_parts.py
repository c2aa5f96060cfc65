"""A grammar of hostile requests and answers: valid ones of each protocol, with parts changed at random."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

INSIDE = "http://169.254.169.254/"
TEXTS = [
    "",
    "a",
    "\x00",
    "é",
    "😀",
    "\ud83d",
    "data:image/png;base64,AA",
    INSIDE,
    "<|im_end|>",
    "</think>",
    "{",
    "null",
]
KINDS = (
    "text input_text output_text refusal image_url input_image image tool_use tool_result thinking redacted_thinking "
    "tool_reference function custom function_call custom_tool_call function_call_output reasoning message file "
    "namespace mcp__probe video_url user assistant system developer tool none auto required any"
).split()
NUMBERS: list[Any] = [0, 1, -1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, True, False, None]
MARKUP = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "bash", "arguments": ',
    '{"command": "ls"}',
    "}",
    "[" * 70,
    "<think>",
]

SCHEMA = {"type": "object", "properties": {"command": {"type": "string", "enum": ["ls"]}}, "required": ["command"]}
FUNCTION = {"name": "bash", "description": "Runs.", "parameters": SCHEMA, "strict": False}
NAMESPACE = {"type": "namespace", "name": "mcp__probe", "tools": [{"type": "function", **FUNCTION}]}
ARGUMENTS = '{"command": "ls"}'
CALL = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": ARGUMENTS}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "files"}]}

BODIES: dict[str, Any] = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be", "name": "n"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "files"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "bash"}},
        "stop": ["x"],
        "max_tokens": 99,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "seed": 1,
    },
    "/v1/responses": {
        "model": "m",
        "instructions": "be",
        "input": [
            ITEM,
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "1", "name": "bash", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "1", "output": "files"},
            {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "ok"}]},
        ],
        "tools": [
            {"type": "function", **FUNCTION},
            {"type": "custom", "name": "patch"},
            {"type": "web_search"},
            NAMESPACE,
        ],
        "tool_choice": "auto",
        "max_output_tokens": 99,
    },
    "/v1/messages": {
        "model": "m",
        "max_tokens": 99,
        "system": [{"type": "text", "text": "be"}],
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "tool_use", "id": "1", "name": "bash", "input": {"command": "ls"}},
                ],
            },
            {"role": "user", "content": [RESULT, {"type": "text", "text": "go on"}]},
        ],
        "tools": [{"name": "bash", "description": "Runs.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "bash"},
        "thinking": {"type": "enabled"},
        "stop_sequences": ["x"],
    },
    "/v1beta/models/m:generateContent": {
        "systemInstruction": {"parts": [{"text": "be"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}]},
            {
                "role": "model",
                "parts": [{"text": "hm", "thought": True}, {"functionCall": {"name": "bash", "args": {}}}],
            },
            {"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": "files"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": SCHEMA}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["bash"]}},
        "generationConfig": {"temperature": 0.5, "stopSequences": ["x"], "maxOutputTokens": 99},
    },
}


class Hostile:
    """Draws requests and answers. The same seed draws the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def request(self) -> tuple[str, bytes]:
        """Return a path and a body."""
        draw = self.random
        path = draw.choice([*BODIES, "/v1/messages/count_tokens"])
        body = copy.deepcopy(BODIES.get(path) or BODIES["/v1/messages"])
        body["stream"] = draw.random() < 0.2
        for _ in range(draw.choice([0, 1, 1, 2, 3, 8])):
            self._change(body)
        text = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
        return path, self._broken(text) if draw.random() < 0.05 else text

    def answer(self) -> str:
        """Return what a model may write."""
        return "".join(self.random.choice([*MARKUP, *TEXTS[:5]]) for _ in range(self.random.randrange(1, 8))) or "-"

    def _change(self, body: Any) -> None:
        """Replace, remove, repeat or add a part."""
        holder, key = self.random.choice(list(_places(body)))
        kind = self.random.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == 2 and isinstance(holder, dict):
            holder[self.random.choice(["image_url", "content", "type", "required", "properties", "x"])] = self._value()
        else:
            holder[key] = self._value()

    def _value(self, level: int = 0) -> Any:
        draw = self.random
        choices: list[Any] = [
            lambda: draw.choice(NUMBERS),
            lambda: draw.choice(TEXTS),
            lambda: draw.choice(KINDS),
            lambda: _nested(draw.choice([3, 70, 700]), draw.random() < 0.5),
            lambda: "[" * draw.choice([3, 70, 3000, 20000]),
            lambda: draw.choice(TEXTS) * draw.choice([10, 10_000]),
            lambda: [{}] * draw.choice([3, 3000]),
            lambda: copy.deepcopy(draw.choice([CALL, IMAGE, ITEM, RESULT, FUNCTION, SCHEMA])),
        ]
        if level < 3:
            choices += [
                lambda: [self._value(level + 1) for _ in range(draw.randrange(3))],
                lambda: {draw.choice([*KINDS, *TEXTS]): self._value(level + 1) for _ in range(draw.randrange(3))},
            ]
        return draw.choice(choices)()

    def _broken(self, text: bytes) -> bytes:
        where = self.random.randrange(len(text) + 1)
        return self.random.choice([text[:where], text[:where] + b"\xff" + text[where:], text + b"}", b"", b"[]"])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a value with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _nested(levels: int, objects: bool) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"properties": value} if objects else [value]
    return value
