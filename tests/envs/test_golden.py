"""What a policy reads is held to the byte: prompts, problem statements, observations and info.

A change here changes what models were trained on, so it needs a new version of the environment's id. After such a
change, write the file again with `SWE_GYM_WRITE_GOLDEN=1 pytest tests/envs/test_golden.py` and read the difference.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from env_parts import call

from swe_gym.actions import describe_tools
from swe_gym.actions.scan import FORMATS
from swe_gym.tools import TOOLSETS, make_tools

GOLDEN = Path(__file__).parent / "golden"
TASK = "calcline-power-precedence"
FILE = "calcline/parser.py"
SECONDS = re.compile(r"(?<=in )\d+\.\d+s")

SHARED = [call("view", path=FILE), "no call at all", '{"name": "bash"', call("nothing", a=1)]
"""Refused or understood by every preset, in its own words."""

ACTIONS = {
    "default": [
        call("bash", command="ls; echo problem >&2; exit 3"),
        call("bash", command="seq 100000"),
        call("bash", command="cat", timeout=-1),
        call("bash"),
        call("view", path="calcline", start=2),
        call("view", path=FILE, start=10, end=20),
        call("view", path="missing.py"),
        call("grep", pattern="def ", path="calcline", max_results=5),
        call("grep", pattern="("),
        call("grep", pattern="nothing here"),
        call("listdir", path="."),
        call("listdir", path="README.md"),
        call("edit", command="str_replace", path=FILE, old_str="class Parser", new_str="class Lexer"),
        call("edit", command="str_replace", path=FILE, old_str="class Parser", new_str="class Parser"),
        call("rewrite", path="new.py", new_code="import calcline\n\nx = 1\nprint(x)\n"),
        call("rewrite", path=FILE, new_code="pass\n", start=9, end=5),
        call("pdb", command="b new.py:4", entrypoint="python new.py"),
        call("pdb", command="c"),
        call("pdb", command="p x"),
        call("pdb", command="q"),
        call("eval"),
        call("submit"),
    ],
    "r2e": [
        call("execute_bash", cmd="ls; exit 2"),
        call("search", search_term="def ", path="calcline"),
        call("file_editor", command="view", path=f"/testbed/{FILE}"),
        call("file_editor", command="create", path="/testbed/new.py", file_text="x = 1\n"),
        call("file_editor", command="str_replace", path="/testbed/new.py", old_str="x = 1", new_str="x = 2"),
        call("file_editor", command="insert", path="/testbed/new.py", insert_line=1, new_str="y = 3"),
        call("file_editor", command="undo_edit", path="/testbed/new.py"),
        call("file_editor", command="view", path="/testbed/missing.py"),
        call("finish", command="submit"),
    ],
    "debug_gym": [
        call("bash", command="ls"),
        call("view", path=FILE),
        call("grep", pattern="def ", path="calcline"),
        call("rewrite", path="new.py", new_code="x = 1\nprint(x)\n"),
        call("edit", path="new.py", new_code="x = 2", start=1),
        call("pdb", command="b new.py:2", entrypoint="python new.py"),
        call("pdb", command="c"),
        call("submit"),
    ],
    "openhands": [
        call("execute_bash", command="ls; exit 2"),
        call("str_replace_editor", command="view", path="/testbed"),
        call("str_replace_editor", command="view", path=f"/testbed/{FILE}", view_range=[1, 5]),
        call("str_replace_editor", command="create", path="/testbed/new.py", file_text="x = 1\n"),
        call("str_replace_editor", command="str_replace", path="/testbed/new.py", old_str="x = 1", new_str="x = 2"),
        call("str_replace_editor", command="str_replace", path="/testbed/new.py", old_str="absent", new_str=""),
        call("str_replace_editor", command="undo_edit", path="/testbed/new.py"),
        call("think", thought="hm"),
        call("finish"),
    ],
}


def played(env: gym.Env[str, str], task: str, actions: list[str]) -> Iterator[dict[str, Any]]:
    observation, info = env.reset(seed=0, options={"task_id": task})
    yield {"observation": observation, "info": info}
    for action in actions:
        observation, *rest, info = env.step(action)
        yield {"action": action, "observation": observation, "ended": rest, "info": info}


def hold(name: str, records: list[dict[str, Any]]) -> None:
    """Compare with the golden file, one record a line."""
    lines = [SECONDS.sub("0.000s", json.dumps(record, ensure_ascii=False)) for record in records]
    path = GOLDEN / f"{name}.jsonl"
    if os.environ.get("SWE_GYM_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("preset", sorted(TOOLSETS))
def test_prompts_about_tools(preset: str) -> None:
    specs = [tool.spec for tool in make_tools(preset)]
    formats = ["auto", *FORMATS] if preset != "debug_gym" else ["auto"]

    hold(
        f"tools-{preset}",
        [
            {"tools": [spec.model_dump() for spec in specs]},
            *({"format": f, "prompt": describe_tools(specs, f)} for f in formats),
        ],
    )


@pytest.mark.parametrize("preset", sorted(ACTIONS))
def test_observations_of_tools(preset: str, make_env: Callable[..., gym.Env[str, str]]) -> None:
    env = make_env("SWE/Toy-v0", tools=preset, max_invalid=50)

    hold(f"episode-{preset}", list(played(env, TASK, SHARED + ACTIONS[preset])))


@pytest.mark.parametrize("family", ["Toy", "Micro"])
def test_problem_statements(family: str, make_env: Callable[..., gym.Env[str, str]]) -> None:
    arguments = {} if family == "Toy" else {"difficulty": [1, 2, 3, 4, 5], "count": 4}
    source = make_env(f"SWE/{family}-v0", **arguments).unwrapped.source

    hold(
        f"statements-{family.lower()}",
        [{"task": task, "text": source.get(task).problem_statement} for task in source.ids()],
    )
