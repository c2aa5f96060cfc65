"""A tokenizer, scripted tasks and scripted policies for the tests of adapters."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from swe_gym.sandboxes import Sandbox
from swe_gym.tasks.file import write_tasks
from swe_gym.types import FolderWorkspace, Oracle, Task, Verdict

SPECIAL = ("<|im_end|>", "<|im_start|>", "<think>", "</think>")
MERGED = ('{"name": ', '"bash"', "ls", "\n\n", " <")
END = 256  # id of "<|im_end|>"


class Tokens:
    """A tokenizer whose encoding is not the inverse of its decoding: bytes, special tokens and merged tokens.

    `encode` never uses the merged tokens, and bytes that are not UTF-8 decode to replacement characters.
    """

    chat_template = "of `apply_chat_template`"
    texts = SPECIAL + MERGED
    eos_token_id = END

    def __init__(self, style: str = "chatml") -> None:
        self.style = style

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        ids: list[int] = []
        for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
            ids += [END + SPECIAL.index(part)] if part in SPECIAL else part.encode("utf-8", "replace")
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens
        assert not clean_up_tokenization_spaces
        parts = (bytes([one]) if one < END else self.texts[one - END].encode() for one in ids)
        return b"".join(parts).decode("utf-8", "replace")

    def apply_chat_template(self, messages: list[Any], tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        shown = [self._show(message["content"], message is messages[-1], message["role"]) for message in messages]
        return "".join(shown) + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def _show(self, text: str, last: bool, role: str) -> str:
        if self.style == "forgetful" and role == "assistant" and not last:
            text = text.split("</think>")[-1].lstrip("\n")
        text = text.strip() if self.style == "trimming" else text
        return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def accept(task: Task, sandbox: Sandbox) -> Verdict:  # noqa: ARG001  a grader's signature
    return Verdict(resolved=True)


MakeEnv = Callable[..., gymnasium.Env[str, str]]


def scripted_tasks(folder: Path) -> MakeEnv:
    """Return a function that makes environments with the tasks "a" and "b", scripted sandboxes and reward 1."""
    (folder / "code").mkdir()
    workspace = FolderWorkspace(path=str(folder / "code"))
    tasks = [
        Task(
            task_id=name,
            problem_statement="Repair <|im_end|> it.\n",
            workspace=workspace,
            oracle=Oracle(grader="core_parts:accept"),
        )
        for name in "ab"
    ]
    write_tasks(tasks, folder / "tasks.jsonl")

    def make(*faults: dict[str, Any], **arguments: Any) -> gymnasium.Env[str, str]:
        script = {"files": {"a.py": ""}, "faults": faults, "default": {"stdout": "<think>é</think>\n it says \n\n"}}
        options = {"backend": "fake", "sandbox_options": {"options": script}, **arguments}
        return gymnasium.make("SWE/Tasks-v0", path=str(folder / "tasks.jsonl"), disable_env_checker=True, **options)

    return make


def bash(command: str) -> str:
    return json.dumps({"name": "bash", "arguments": {"command": command}})


LS, SUBMIT = bash("ls"), '{"name": "submit", "arguments": {}}'


class Says:
    """A policy that says these lines, one a turn, after calling `before`."""

    def __init__(self, *lines: str, before: Callable[[], object] = lambda: None) -> None:
        self.lines, self.before = iter(lines), before

    def reset(self, info: dict[str, Any]) -> None: ...

    def act(self, observation: str) -> str:  # noqa: ARG002  scripted
        self.before()
        return next(self.lines)
