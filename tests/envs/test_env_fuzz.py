"""`step` takes any text: it never raises, and the episode goes on."""

import json
from collections.abc import Iterator

import hypothesis
import pytest
from env_parts import call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_gym.envs.families import LocalEnv
from swe_gym.envs.swe_env import SweEnv

TEXT = st.text(st.characters() | st.characters(categories=["Cs", "Cc"]), max_size=200)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
NAMES = st.sampled_from(["view", "grep", "listdir", "edit", "rewrite", "bash", "pdb", "eval", "nothing", "", "BASH"])
KEYS = st.sampled_from(["path", "pattern", "command", "start", "end", "old_str", "new_str", "file_text", "depth", "x"])
VALUES = JSON | st.sampled_from(["calc.py", ".", "..", "/", "/proc/self/mem", "\0", "\ud800", "str_replace", "b 1"])
CALLS = st.builds(lambda name, arguments: call(name, **arguments), NAMES, st.dictionaries(KEYS, VALUES, max_size=5))
FRAGMENTS = st.sampled_from(
    [
        *('{"name":', "<tool_call>", "</tool_call>", "<function=bash>", "<parameter=command>", "</function>"),
        *("```bash\n", "```", "[[[[", '{"a":' * 50, "<param name=", "<think>", "</think>", "\x00", "\x1b[2J"),
        *("\\ud800", "null", "\n"),
    ]
)
MESSY = st.lists(FRAGMENTS | TEXT | CALLS, max_size=6).map("".join)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SweEnv]:
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    # one shell command of the fuzzer's may do anything, so the tools have little time
    with LocalEnv(str(folder), "false", max_turns=10**9, max_invalid=None, time_limit=10**6) as env:
        env.reset()
        yield env


@settings(max_examples=max(300, hypothesis.settings().max_examples), suppress_health_check=list(HealthCheck))
@given(action=TEXT | MESSY | CALLS)
def test_no_text_raises_or_ends_the_episode(env: SweEnv, action: str) -> None:
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation in env.observation_space
    observation.encode()
    assert (reward, terminated, truncated, info["outcome"]) == (0.0, False, False, "running")
    json.dumps(info, allow_nan=False)


def malformed() -> list[str]:
    """Malformed calls as models have written them."""
    return [
        "",
        "\n\n",
        "I will now look at the file.",
        '{"name": "bash"}',
        '{"name": "bash", "arguments": "ls"}',
        '{"name": "bash", "arguments": {"command": ["ls"]}}',
        "{'name': 'bash', 'arguments': {'command': 'ls'}}",
        '<tool_call>{"name": "bash", "arguments": {"command": "ls"}',
        "<function=bash><parameter=cmd>ls</parameter>",
        "<function=execute_bash>\n</function>",
        "```bash\n```",
        '{"name": "view", "arguments": {"path": null}}',
        '{"name": "rewrite", "arguments": {"path": "calc.py", "start": 10, "end": 2, "new_code": ""}}',
        '{"name": "view", "arguments": {"path": "' + "a/" * 5000 + '"}}',
        "[" * 100_000,
        '{"name": "bash", "arguments": {"command": "echo \\u0000"}}',
    ]


@pytest.mark.parametrize("action", malformed(), ids=range(len(malformed())))
def test_common_mistakes_of_models_are_explained(env: SweEnv, action: str) -> None:
    observation, _, terminated, truncated, _ = env.step(action)
    assert observation
    assert not terminated
    assert not truncated
