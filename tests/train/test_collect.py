"""Episodes of an update: what counts, what is retried, what is lost. Needs neither torch nor a tokenizer."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import PolicyError, UsageError
from swe_gym.rollout.tokens import ChatTemplate, Completion
from swe_gym.tasks.file import write_tasks
from swe_gym.train.collect import Collector, PlayedBatch, TrainSlot
from swe_gym.train.config import EnvConfig, GenerationConfig
from swe_gym.types import FolderWorkspace, Task

GENERATION = GenerationConfig(backend="hf", max_tokens=2000, max_context=200_000)
SUBMIT = json.dumps({"name": "submit", "arguments": {}})


class Bytes:
    """A tokenizer whose tokens are bytes."""

    chat_template = "one line per message"

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> str:
        return "".join(f"<{one['role']}>{one['content']}\n" for one in messages) + "<assistant>"

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return bytes(ids).decode(errors="replace")


class Generator:
    """Answers by a function of the seed and the number of the call."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.calls: list[int] = []
        self._lock = threading.Lock()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        with self._lock:
            self.calls.append(seed or 0)
            number = len(self.calls)
        ids = list(f"{self._answer(seed, number)}$".encode())  # "$" ends an answer
        return Completion(ids, [-1.0] * len(ids), "stop", 0)


def submit(seed: int | None, number: int) -> str:  # noqa: ARG001  always the same
    return SUBMIT


def divide(seed: int | None, number: int) -> str:  # noqa: ARG001  a mistake
    return str(1 / 0)


def collector(answer: Any, executor: str = "threads", **options: Any) -> Collector:
    limits = {"max_turns": 3, "time_limit": 60.0}
    config = EnvConfig(id="SWE/Micro-v0", options={**limits, **options}, workers=2, executor=executor)
    return Collector(config, GENERATION, Generator(answer), ChatTemplate(Bytes()), {"first": 0, "count": 4})


def played(answer: Any, *seeds: int, **options: Any) -> PlayedBatch:
    one = collector(answer, **options)
    try:
        slots = [TrainSlot(one.task_ids[index % 4], index // 2, seed) for index, seed in enumerate(seeds)]
        return one.play(slots, temperature=1.0)
    finally:
        one.close()


def bash(command: str) -> str:
    return json.dumps({"name": "bash", "arguments": {"command": command}})


def test_episodes_come_in_the_order_of_their_slots() -> None:
    found = played(submit, 3, 5, 7)
    assert [one.seed for one in found.trajectories] == [3, 5, 7]
    assert {one.verdict for one in found.trajectories} == {None}
    assert (found.groups, found.lost) == ((0, 0, 1), ())
    parts = sum(seconds for name, seconds in found.seconds.items() if name != "all")
    assert parts == pytest.approx(2 * found.seconds["all"], rel=0.05)


@pytest.mark.slow
def test_episodes_on_nodes_are_those_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "rollout"))
    here, there = (
        played(submit, 3, 5, 7, executor=executor).trajectories for executor in ("threads", "node_parts:local_executor")
    )
    assert [(one.seed, one.reward, one.segments) for one in there] == [
        (one.seed, one.reward, one.segments) for one in here
    ]
    with pytest.raises(ZeroDivisionError):
        played(divide, 3, executor="node_parts:local_executor")


def test_a_lost_episode_is_tried_once_more_and_then_named() -> None:
    def answer(seed: int | None, number: int) -> str:  # noqa: ARG001
        if seed is None or seed >= 500:
            raise PolicyError("the server hangs", reason="timeout", retryable=True)
        return SUBMIT

    found = played(answer, 3, 500)
    assert [one.seed for one in found.trajectories] == [3]
    assert found.lost == ("PolicyError: the server hangs",)
    assert found.seconds["lost"] > 0


@pytest.fixture
def losing(tmp_path: Path) -> EnvConfig:
    """A task in a scripted sandbox that is lost by the command "die"."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("")
    workspace = FolderWorkspace(path=str(tmp_path / "code"))
    write_tasks([Task(task_id="a", problem_statement="?", workspace=workspace)], tmp_path / "tasks.jsonl")
    fault = {"at": "exec", "match": "die", "error": "SandboxLost"}
    options = {
        "path": str(tmp_path / "tasks.jsonl"),
        "backend": "fake",
        "sandbox_options": {"options": {"files": {"a.py": ""}, "faults": [fault]}},
    }
    return EnvConfig(id="SWE/Tasks-v0", options=options, workers=1)


@pytest.mark.parametrize(("second", "counts"), [("die", True), ("die now", False)])
def test_a_sandbox_lost_twice_by_the_same_actions_is_reward_0(losing: EnvConfig, second: str, counts: bool) -> None:
    generator = Generator(lambda seed, number: bash("die" if number == 1 else second))  # noqa: ARG005
    one = Collector(losing, GENERATION, generator, ChatTemplate(Bytes()), {})
    found = one.play([TrainSlot("a", 0, 3)], temperature=1.0)
    one.close()
    assert len(generator.calls) == 2
    assert (len(found.trajectories), len(found.lost)) == ((1, 0) if counts else (0, 1))
    if counts:
        (record,) = found.trajectories
        assert (record.reason, record.reward, record.reward_valid) == ("sandbox_lost", 0.0, True)
        assert record.segments


def test_a_mistake_of_the_sampler_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        played(divide, 3, 5)


def test_closing_from_another_thread_ends_the_episodes() -> None:
    asked, release = threading.Event(), threading.Event()

    def answer(seed: int | None, number: int) -> str:  # noqa: ARG001
        asked.set()
        release.wait(60)
        return SUBMIT

    one = collector(answer)
    found: list[PlayedBatch] = []
    thread = threading.Thread(
        target=lambda: found.append(one.play([TrainSlot(one.task_ids[0], 0, 1)] * 3, temperature=1.0))
    )
    thread.start()
    assert asked.wait(60)
    one.close()
    thread.join(60)
    release.set()
    assert (found[0].trajectories, len(found[0].lost)) == ((), 3)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be made"):
        collector(submit, max_turn=1)
