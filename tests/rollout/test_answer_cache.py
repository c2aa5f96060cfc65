"""Answers of models on disk, and the policy `llm` with them."""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import UsageError
from swe_gym.rollout.episode import play
from swe_gym.rollout.plan import Plan
from swe_gym.rollout.policies import make_policies
from swe_gym.rollout.policies.base import PolicyFactory
from swe_gym.testing.openai_server import CHAT, ModelReply, OpenAIServer, in_turn
from swe_gym.trajectories.trajectory import ModelServer, Trajectory, Usage

pytest.importorskip("openai")

from swe_gym.rollout.policies.chat_client import AnswerCache, ChatReply

REPAIR = ("bash", json.dumps({"command": "sed -i 's/a - b/a + b/' calc.py && echo repaired"}))
SUBMIT = ("submit", "{}")
SCRIPT = (ModelReply("I repair.", [REPAIR], cached_tokens=5), ModelReply(tool_calls=[SUBMIT]))
PRICES = {"input": 1.0, "output": 2.0}

Llm = Callable[..., PolicyFactory]
Make = Callable[..., SweEnv]


def script(request: dict[str, Any]) -> ModelReply:
    return SCRIPT[sum(message["role"] == "assistant" for message in request["messages"])]


def asked(server: OpenAIServer) -> int:
    return sum(exchange.path == CHAT for exchange in server.requests)


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(script, root="/models/small-1") as server:
        yield server


@pytest.fixture
def llm(tmp_path: Path) -> Iterator[Llm]:
    """Policies with a cache; closed after the test."""
    made: list[PolicyFactory] = []

    def make(server: OpenAIServer, **options: Any) -> PolicyFactory:
        usual = {"model": server.model, "base_url": server.base_url, "api_key": server.api_key, "prices": PRICES}
        made.append(make_policies("llm", {**usual, "retries": 0, "cache": str(tmp_path / "answers"), **options}))
        return made[-1]

    yield make
    for factory in made:
        factory.close()


def played(env_of_adder: Make, factory: PolicyFactory, seed: int | None = 7) -> Trajectory:
    env = env_of_adder()
    return play(env, factory(env, seed=seed))


def test_the_same_attempt_is_not_asked_twice(env_of_adder: Make, server: OpenAIServer, llm: Llm) -> None:
    first = played(env_of_adder, llm(server))
    assert (first.reward, first.usage.calls, first.usage.cached_answers, asked(server)) == (1.0, 2, 0, 2)
    again = played(env_of_adder, llm(server))
    assert asked(server) == 2
    assert [turn.action for turn in again.turns] == [turn.action for turn in first.turns]
    assert again.messages == first.messages
    assert again.usage == Usage(cached_answers=2, cost=0.0)
    assert [turn.usage.cached_answers for turn in again.turns] == [1, 1]


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.5}, {"request": {"top_k": 3}}, {"system": "Be brief."}, {"seed": 1}, {"max_tokens": 999}],
)
def test_another_request_is_asked(env_of_adder: Make, server: OpenAIServer, llm: Llm, change: dict[str, Any]) -> None:
    played(env_of_adder, llm(server))
    assert played(env_of_adder, llm(server, **change)).usage.calls == 2


def test_another_attempt_server_or_checkpoint_is_asked(env_of_adder: Make, server: OpenAIServer, llm: Llm) -> None:
    played(env_of_adder, llm(server, temperature=1.0))
    assert played(env_of_adder, llm(server, temperature=1.0), seed=8).usage.calls == 2
    server.root = "/models/small-2"
    assert played(env_of_adder, llm(server, temperature=1.0)).usage.calls == 2
    with OpenAIServer(script, root="/models/small-1") as other:
        assert played(env_of_adder, llm(other, temperature=1.0)).usage.calls == 2


def test_an_attempt_without_a_seed_is_always_asked(env_of_adder: Make, server: OpenAIServer, llm: Llm) -> None:
    for _ in range(2):
        assert played(env_of_adder, llm(server), seed=None).usage.calls == 2


def test_failures_are_not_kept(env_of_adder: Make, server: OpenAIServer, llm: Llm, tmp_path: Path) -> None:
    server.inject(CHAT, status=500)
    env = env_of_adder()
    with pytest.raises(Exception, match="status 500"):
        play(env, llm(server)(env, seed=7))
    assert list((tmp_path / "answers").rglob("*.json")) == []


def test_no_key_is_kept(env_of_adder: Make, llm: Llm, tmp_path: Path) -> None:
    def leak(request: dict[str, Any]) -> ModelReply:
        first = not any(message["role"] == "assistant" for message in request["messages"])
        return ModelReply("My key is sk-loopback-secret.", [REPAIR]) if first else ModelReply(tool_calls=[SUBMIT])

    with OpenAIServer(leak, api_key="sk-loopback-secret") as server:
        played(env_of_adder, llm(server, request={"api_key": "sk-inside-secret"}))
    kept = [path.read_text() for path in (tmp_path / "answers").rglob("*") if path.is_file()]
    assert len(kept) == 1  # the answer with the key is not
    for secret in ("sk-loopback-secret", "sk-inside-secret"):
        assert secret not in kept[0]


# --- the entries ------------------------------------------------------------------------------------------------

SERVER = ModelServer(url="http://localhost:8000/v1", model={"id": "small"})
ANSWER = ChatReply({"role": "assistant", "content": "Ünïcode \U0001f600"}, "stop", Usage(prompt_tokens=7, calls=1))


def entry(cache: AnswerCache) -> Path:
    (path,) = cache.folder.rglob("*.json")
    return path


def test_an_entry_is_found_by_its_whole_key(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "new" / "answers")
    key = cache.key(SERVER, {"messages": [], "temperature": 1}, 3)
    assert cache.get(key) is None
    cache.put(key, ANSWER)
    assert AnswerCache(cache.folder).get(key) == ANSWER
    for other in (
        cache.key(SERVER, {"temperature": 1, "messages": []}, 3),  # the order of fields says nothing
        key,
    ):
        assert cache.get(other) == ANSWER
    for other in (
        cache.key(SERVER, {"messages": [], "temperature": 1.5}, 3),
        cache.key(SERVER, {"messages": [{}], "temperature": 1}, 3),
        cache.key(SERVER, {"messages": [], "temperature": 1}, 4),
        cache.key(SERVER.model_copy(update={"url": "http://localhost:8001/v1"}), {"messages": [], "temperature": 1}, 3),
    ):
        assert cache.get(other) is None


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (r".*", ""),
        (r"(?s)(.{200}).*", r"\1"),
        (r".*", "{}"),
        (r".*", "[1]"),
        (r".*", "[" * 100_000),
        ("code", "c0de"),
        ('"prompt_tokens": 7', '"prompt_tokens": 8'),
        ('"version": 1', '"version": 2'),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_replaced(tmp_path: Path, part: str, other: str) -> None:
    cache = AnswerCache(tmp_path)
    key = cache.key(SERVER, {}, 1)
    cache.put(key, ANSWER)
    path = entry(cache)
    damaged = re.sub(part, other, path.read_text(), count=1)
    assert damaged != path.read_text()
    path.write_text(damaged)
    assert cache.get(key) is None
    cache.put(key, ANSWER)
    assert cache.get(key) == ANSWER


def test_a_foreign_entry_is_a_miss(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    key, other = cache.key(SERVER, {}, 1), cache.key(SERVER, {}, 2)
    cache.put(key, ANSWER)
    text = entry(cache).read_text()
    entry(cache).unlink()
    cache.put(other, ANSWER)
    entry(cache).write_text(text)  # under the name of the other
    assert cache.get(other) is None
    entry(cache).unlink()
    (tmp_path / other[:2] / f"{other}.json").mkdir(parents=True)
    assert cache.get(other) is None
    cache.put(other, ANSWER)  # says so in the log, and the episode goes on


def test_threads_write_the_same_entry(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    key = cache.key(SERVER, {}, 1)
    threads = [threading.Thread(target=cache.put, args=(key, ANSWER)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert cache.get(key) == ANSWER
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{key}.json"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(UsageError, match=r"cannot keep answers in .*choose another folder"):
            AnswerCache(folder)
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_cache_would_change_is_refused() -> None:
    for more, problem in (
        ({"agent": "mini"}, "asks for itself"),
        ({"budget": {"tokens": 1000}}, r"budget\.tokens"),
        ({"budget": {"cost": 1.0}}, r"budget\.cost"),
    ):
        plan = Plan.model_validate(
            {"source": "toy", "policy": "llm", "policy_options": {"model": "m", "cache": "x"}, **more}
        )
        with pytest.raises(UsageError, match=problem):
            plan.config()


def test_a_cache_does_not_change_the_configuration() -> None:
    plain = Plan(source="toy", policy="llm", policy_options={"model": "m"})
    assert plain.config() == plain.model_copy(update={"policy_options": {"model": "m", "cache": "/x"}}).config()


def test_in_turn_is_not_needed(env_of_adder: Make, llm: Llm) -> None:
    """A server that has no more replies is not asked for what is known."""
    with OpenAIServer(in_turn(*SCRIPT)) as server:
        played(env_of_adder, llm(server))
        assert played(env_of_adder, llm(server)).reward == 1.0
