"""The policy `llm` against a scripted server."""

import contextlib
import gc
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import PolicyError, UsageError
from swe_gym.logs import AddIds, log_as
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies import make_policies
from swe_gym.rollout.policies.base import PolicyFactory, ReportingPolicy
from swe_gym.testing.loopback import Exchange
from swe_gym.testing.openai_server import CHAT, ModelReply, OpenAIServer, context_length_exceeded, in_turn
from swe_gym.tools import TOOLSETS
from swe_gym.trajectories.trajectory import Usage

pytest.importorskip("openai")
from swe_gym.rollout.policies.chat_client import ChatClient

Make = Callable[..., SweEnv]
REPAIR = ("bash", json.dumps({"command": "sed -i 's/a - b/a + b/' calc.py && echo repaired"}))
LOOK = ("bash", json.dumps({"command": "cat calc.py"}))
SUBMIT = ("submit", "{}")


@pytest.fixture
def serve() -> Iterator[Callable[..., OpenAIServer]]:
    """Servers that give these replies, one after the other."""
    started: list[OpenAIServer] = []

    def start(*replies: ModelReply, **options: Any) -> OpenAIServer:
        started.append(OpenAIServer(in_turn(*replies), **options))
        return started[-1].__enter__()

    yield start
    for server in started:
        server.close()


@pytest.fixture
def llm() -> Iterator[Callable[..., PolicyFactory]]:
    """Policies that ask a server, with short deadlines; closed after the test."""
    made: list[PolicyFactory] = []

    def make(server: OpenAIServer, **options: Any) -> PolicyFactory:
        usual = {"model": server.model, "base_url": server.base_url, "api_key": server.api_key, "timeout": 10}
        made.append(make_policies("llm", {**usual, "deadline": 20, "retries": 2, **options}))
        return made[-1]

    yield make
    for factory in made:
        factory.close()


def sent(server: OpenAIServer, number: int = -1) -> dict[str, Any]:
    """The body of a request."""
    body = server.requests[number].body
    assert isinstance(body, dict)
    return body


def roles(server: OpenAIServer, number: int = -1) -> list[str]:
    return [message["role"] for message in sent(server, number)["messages"]]


# --- how calls reach the environment ------------------------------------------------------------------------


def test_native_calls_repair_a_task_and_the_history_is_exact(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(
        ModelReply("I look.", [LOOK]),
        ModelReply(tool_calls=[REPAIR], reasoning="Plus."),
        ModelReply(tool_calls=[SUBMIT]),
    )
    env = env_of_adder()
    policy = llm(server)(env)
    trajectory = play(env, policy)
    assert (trajectory.reward, [turn.tool for turn in trajectory.turns]) == (1.0, ["bash", "bash", "submit"])
    assert trajectory.turns[0].thought == "I look."
    assert trajectory.turns[1].thought == "Plus."
    assert json.loads(trajectory.turns[0].action)["tool_calls"][0]["id"] == "call-0"
    request = sent(server)
    assert [tool["function"]["name"] for tool in request["tools"]] == [spec.name for spec in env.tools]
    assert roles(server) == ["system", "user", "assistant", "tool", "assistant", "tool"]
    _, issue, first, shown, second, _ = request["messages"]
    assert issue["content"] == trajectory.observation
    assert first == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "call-0", "type": "function", "function": {"name": "bash", "arguments": LOOK[1]}}],
    }
    assert shown == {"role": "tool", "tool_call_id": "call-0", "content": trajectory.turns[0].observation}
    assert second["reasoning_content"] == "Plus."
    assert trajectory.messages[:-1] == tuple(request["messages"])


@pytest.mark.parametrize("action_format", ["json", "hermes", "r2e", "graph_planner", "auto"])
def test_text_calls_are_described_and_parsed(env_of_adder: Make, serve: Any, llm: Any, action_format: str) -> None:
    from swe_gym.actions import describe_tools, render_call
    from swe_gym.types import ToolCall

    calls = [ToolCall(name=name, arguments=json.loads(arguments)) for name, arguments in (REPAIR, SUBMIT)]
    texts = [f"So.\n{render_call(call, action_format)}" for call in calls]
    server = serve(ModelReply(texts[0], reasoning='Or {"name": "submit"}?'), ModelReply(texts[1]))
    env = env_of_adder(action_format=action_format)
    trajectory = play(env, llm(server, calls="text")(env))
    assert trajectory.reward == 1.0
    assert "tools" not in sent(server)
    assert sent(server)["messages"][0]["content"].endswith(describe_tools(env.tools, action_format))
    assert roles(server) == ["system", "user", "assistant", "user"]
    assert "submit" in trajectory.turns[0].thought  # reasoning is thought, whatever stands in it


def test_the_kind_of_calls_follows_the_action_format(env_of_adder: Make, serve: Any, llm: Any) -> None:
    for action_format, native in (("auto", True), ("openai", True), ("hermes", False)):
        server = serve(
            ModelReply(tool_calls=[SUBMIT]) if native else ModelReply('<tool_call>{"name": "submit"}</tool_call>')
        )
        env = env_of_adder(action_format=action_format)
        assert play(env, llm(server)(env)).outcome == "submitted"
        assert ("tools" in sent(server)) == native
    with pytest.raises(UsageError, match="calls='text'"):
        llm(serve(), calls="native")(env_of_adder(action_format="r2e"))


@pytest.mark.parametrize(
    "reply",
    [
        ModelReply(tool_calls=[("bash", '{"command": "ls')]),
        ModelReply(tool_calls=[("bash", '"ls"')]),
        ModelReply(tool_calls=[("bash", "")]),
        ModelReply(tool_calls=[("bash", '{"command": "ls", "shell": true}')]),
        ModelReply(tool_calls=[("bahs", '{"command": "ls"}')]),
        ModelReply(tool_calls=[("", "{}")]),
        ModelReply("I would look at the code."),
        ModelReply("<tool_call>{"),
        ModelReply("half a thou", finish_reason="length"),
        ModelReply(""),
    ],
)
def test_an_invalid_call_is_answered_in_the_observation(
    env_of_adder: Make, serve: Any, llm: Any, reply: ModelReply
) -> None:
    server = serve(reply, ModelReply(tool_calls=[SUBMIT]))
    env = env_of_adder()
    trajectory = play(env, llm(server)(env))
    assert trajectory.outcome == "submitted"
    assert trajectory.info["invalid_actions"] == 1
    lesson = trajectory.turns[0].observation
    assert sent(server)["messages"][-1]["content"] == lesson
    for message in sent(server)["messages"]:  # a server that reads the calls in the history can do so
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


@pytest.mark.parametrize(
    "message",
    [
        {"content": "\ud83d"},
        {"content": None, "refusal": "No."},
        {"tool_calls": [None]},
        {"tool_calls": [{"id": "a"}]},
        {"tool_calls": [{"type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]},
        {"content": "\udfff", "tool_calls": [{"id": None, "function": {"name": None, "arguments": {"\ud83d": 1}}}]},
    ],
)
def test_odd_messages_do_not_end_the_episode(env_of_adder: Make, serve: Any, llm: Any, message: dict[str, Any]) -> None:
    server = serve(ModelReply(tool_calls=[SUBMIT]))
    server.inject(CHAT, status=200, body={"choices": [{"message": message}]})
    env = env_of_adder()
    trajectory = play(env, llm(server)(env))
    assert (trajectory.outcome, len(trajectory.turns)) == ("submitted", 2)
    assert sent(server)["messages"][-1]["content"] == trajectory.turns[0].observation


def test_only_the_first_of_several_calls_runs_and_each_gets_its_answer(
    env_of_adder: Make, serve: Any, llm: Any
) -> None:
    server = serve(ModelReply(tool_calls=[REPAIR, SUBMIT]), ModelReply(tool_calls=[SUBMIT]))
    env = env_of_adder()
    trajectory = play(env, llm(server)(env))
    assert [turn.tool for turn in trajectory.turns] == ["bash", "submit"]
    answers = sent(server)["messages"][-2:]
    assert [answer["tool_call_id"] for answer in answers] == ["call-0", "call-1"]
    assert answers[0]["content"].startswith("repaired")
    assert "not run" in answers[1]["content"]


@pytest.mark.parametrize("preset", [*sorted(TOOLSETS), "list"])
def test_every_preset_has_a_prompt_that_names_its_tools(env_of_adder: Make, serve: Any, llm: Any, preset: str) -> None:
    server = serve(ModelReply("no"))
    env = env_of_adder(tools=["bash", "submit"] if preset == "list" else preset, max_turns=1)
    play(env, llm(server)(env))
    system = sent(server)["messages"][0]["content"]
    names = [] if preset == "list" else [spec.name for spec in env.tools]
    assert [name for name in names if f"`{name}`" not in system] == []


# --- what a request holds -------------------------------------------------------------------------------------


def test_sampling_and_further_fields_are_sent(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(ModelReply(tool_calls=[LOOK]), ModelReply(tool_calls=[SUBMIT]))
    options = {"temperature": 0.5, "max_tokens": 99, "seed": 3, "stop": ["END"], "request": {"top_k": 20}}
    env = env_of_adder()
    policy = llm(server, **options, system="Be brief.")(env, seed=2)
    play(env, policy)
    first, second = sent(server, 0), sent(server, 1)
    assert (first["temperature"], first["max_tokens"], first["stop"], first["top_k"]) == (0.5, 99, ["END"], 20)
    assert first["messages"][0]["content"] == "Be brief."
    assert (first["seed"], second["seed"]) == (5, 6)
    report = policy.report()
    assert report.policy.sampling == {"temperature": 0.5, "max_tokens": 99, "stop": ["END"]}
    assert "sk-" not in repr(report.policy)


def test_unset_options_are_not_sent(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(ModelReply(tool_calls=[SUBMIT]))
    env = env_of_adder()
    play(env, llm(server)(env))
    assert sorted(sent(server)) == ["messages", "model", "tools"]


def test_usage_and_cost_are_counted(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(ModelReply("I look.", [LOOK]), ModelReply(tool_calls=[SUBMIT]))
    env = env_of_adder()
    policy = llm(server, prices={"input": 2.0, "output": 10.0})(env)
    assert isinstance(policy, ReportingPolicy)
    trajectory = play(env, policy)
    usage = trajectory.usage
    assert usage.calls == 2
    assert usage.prompt_tokens > 1000
    assert usage.completion_tokens == sum(len(name) + len(text) for name, text in (LOOK, SUBMIT)) + len("I look.")
    assert usage.cost == pytest.approx((usage.prompt_tokens * 2 + usage.completion_tokens * 10) / 1e6)
    assert trajectory.turns[0].usage + trajectory.turns[1].usage == usage
    assert trajectory.turns[0].policy_seconds > 0
    unknown = play(env, llm(serve(ModelReply(tool_calls=[SUBMIT])))(env))
    assert unknown.usage.cost is unknown.turns[0].usage.cost is None


def test_cached_tokens_have_their_own_price() -> None:
    from swe_gym.rollout.policies.llm import Prices

    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=100_000)
    assert Prices(input=1.0, output=10.0).cost(usage) == pytest.approx(2.0)
    assert Prices(input=1.0, cached=0.1, output=10.0).cost(usage) == pytest.approx(1.64)


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        (
            {"prompt_tokens": 9, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(prompt_tokens=9, cached_tokens=4),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 0, "cache_read_input_tokens": 4},
            Usage(prompt_tokens=9, cached_tokens=4),
        ),
        (
            {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 1},
            Usage(prompt_tokens=8, cached_tokens=4, completion_tokens=2),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 0, "cache_read_input_tokens": 99},
            Usage(prompt_tokens=9, cached_tokens=9),
        ),
        *(
            (counts, Usage(prompt_tokens=(counts or {}).get("prompt_tokens", 0), uncounted=1))
            for counts in (
                None,
                {},
                {"prompt_tokens": 0, "completion_tokens": 0},
                {"prompt_tokens": 9},
                {"prompt_tokens": 9, "completion_tokens": "many"},
                {"prompt_tokens": 9, "completion_tokens": -9},
            )
        ),
    ],
)
def test_servers_tell_tokens_in_two_ways_or_not_at_all(
    env_of_adder: Make, serve: Any, llm: Any, counts: dict[str, Any] | None, usage: Usage
) -> None:
    server = serve()
    submit = {"id": "1", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    body = {"choices": [{"message": {"content": None, "tool_calls": [submit]}}], "usage": counts}
    server.inject(CHAT, status=200, body=body)
    told = play(env := env_of_adder(), llm(server)(env)).usage
    assert told == usage.model_copy(update={"calls": 1})


def test_the_key_comes_from_an_argument_or_a_variable(
    env_of_adder: Make, serve: Any, llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(ModelReply(tool_calls=[SUBMIT]))
    monkeypatch.setenv("MY_KEY", server.api_key)
    env = env_of_adder()
    assert play(env, llm(server, api_key=None, api_key_variable="MY_KEY")(env)).outcome == "submitted"
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="set OPENAI_API_KEY"):
        make_policies("llm", {"model": "m"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'model'"),
        ({"model": "m", "base_ulr": "x"}, "Did you mean 'base_url'?"),
        ({"model": "m", "base_url": "localhost:8000"}, "'localhost:8000': write a URL such as http://"),
        ({"model": "m", "temperature": -1}, "temperature"),
        ({"model": "m", "calls": "xml"}, "calls"),
        ({"model": "m", "context": 1000, "max_tokens": 1000}, "leaves no room"),
        ({"model": "m", "prices": {"in": 1}}, "prices.in"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as failed:
        make_policies("llm", options)
    assert message in str(failed.value)


# --- a server that fails ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 429, "headers": {"Retry-After": "0.1"}},
        {"status": 500},
        {"status": 503, "times": 2},
        {"lose_reply": True},
        {"cut_after": 20},
    ],
    ids=lambda fault: next(iter(fault)) + str(fault.get("status", "")),
)
def test_a_transient_fault_is_retried(env_of_adder: Make, serve: Any, llm: Any, fault: dict[str, Any]) -> None:
    server = serve(*[ModelReply(tool_calls=[SUBMIT])] * 3)
    server.inject(CHAT, **fault)
    env = env_of_adder()
    trajectory = play(env, llm(server)(env))
    assert (trajectory.outcome, len(trajectory.turns)) == ("submitted", 1)
    assert len(server.requests) == 1 + fault.get("times", 1)


def test_retries_are_counted_and_logged_with_their_episode(
    env_of_adder: Make, serve: Any, llm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(ModelReply(tool_calls=[LOOK]), ModelReply(tool_calls=[SUBMIT]))
    server.inject(CHAT, status=503, times=2, headers={"Retry-After": "0.01"})
    caplog.handler.addFilter(AddIds())
    with caplog.at_level("INFO", "swe_gym"), log_as(episode="adder/0/1"):
        trajectory = play(env := env_of_adder(), llm(server)(env))
    assert (trajectory.usage.calls, trajectory.usage.retries) == (2, 2)
    assert [turn.usage.retries for turn in trajectory.turns] == [2, 0]
    told = [record for record in caplog.records if "; retry " in record.message]
    assert [record.message.partition("; ")[2] for record in told] == ["retry 1 of 2 in 0.0 s", "retry 2 of 2 in 0.0 s"]
    assert all("answered with status 503" in record.message for record in told)
    assert {(record.levelname, record.__dict__["episode"]) for record in told} == {("INFO", "adder/0/1")}


def test_retries_before_a_failure_are_counted_too(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve()
    server.inject(CHAT, status=500, times=None, headers={"Retry-After": "0.01"})
    policy = llm(server, retries=3)(env := env_of_adder())
    with pytest.raises(PolicyError) as failed:
        play(env, policy)
    assert (failed.value.retries, policy.report().usage) == (3, Usage(retries=3))


def test_a_retry_that_the_deadline_prevents_is_not_counted(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve()
    server.inject(CHAT, status=503, times=None, headers={"Retry-After": "60"})
    policy = llm(server, deadline=0.5)(env := env_of_adder())
    with pytest.raises(PolicyError) as failed:
        play(env, policy)
    assert (failed.value.retries, len(server.requests)) == (0, 1)


@pytest.mark.parametrize(
    "headers", [{"x-should-retry": "false"}, {"Retry-After": "3600"}, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}]
)
def test_a_request_is_not_repeated_if_the_server_says_so(
    env_of_adder: Make, serve: Any, llm: Any, headers: dict[str, str]
) -> None:
    server = serve()
    server.inject(CHAT, status=429, headers=headers)
    with pytest.raises(PolicyError, match="429"):
        play(env := env_of_adder(), llm(server, retries=3)(env))
    assert len(server.requests) == 1


def test_retry_after_is_honoured(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(ModelReply(tool_calls=[SUBMIT]))
    server.inject(CHAT, status=429, headers={"Retry-After": "1.5"})  # else it is half a second at most
    env = env_of_adder()
    trajectory = play(env, llm(server)(env))
    assert trajectory.turns[0].policy_seconds >= 1.5


@pytest.mark.parametrize(
    ("fault", "reason", "retryable"),
    [
        ({"status": 429, "headers": {"Retry-After": "0.05"}}, "rate_limit", True),
        ({"status": 500, "headers": {"Retry-After": "0.05"}}, "server", True),
        ({"status": 401}, "refused", False),
        ({"status": 404}, "refused", False),
        ({"status": 400}, "refused", False),
        ({"hang": True}, "timeout", True),
        ({"lose_reply": True}, "connection", True),
        ({"cut_after": 10}, "connection", True),
        ({"status": 200, "body": {"hello": 1}}, "bad_reply", False),
        ({"status": 200, "body": b"<html>"}, "bad_reply", False),
        ({"status": 200, "body": {"choices": []}}, "bad_reply", False),
        ({"status": 200, "body": {"choices": [{"message": None}]}}, "bad_reply", False),
        ({"status": 200, "body": {"choices": [{"message": {"content": 3}}]}}, "bad_reply", False),
        ({"status": 200, "body": {"choices": [{"message": {"tool_calls": {"a": 1}}}]}}, "bad_reply", False),
        ({"status": 200, "body": b"[" * 100_000}, "bad_reply", False),
    ],
)
def test_a_permanent_fault_ends_the_episode_with_its_reason(
    env_of_adder: Make, serve: Any, llm: Any, fault: dict[str, Any], reason: str, retryable: bool
) -> None:
    server = serve(*[ModelReply(tool_calls=[SUBMIT])] * 3)
    server.inject(CHAT, times=None, **fault)
    env = env_of_adder()
    with pytest.raises(PolicyError) as failed:
        play(env, llm(server, timeout=0.3, retries=1)(env))
    assert (failed.value.reason, failed.value.retryable) == (reason, retryable)
    assert str(failed.value)


def test_a_missing_server_is_a_connection_error(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve()
    server.close()
    env = env_of_adder()
    with pytest.raises(PolicyError, match="no connection to") as failed:
        play(env, llm(server, retries=0)(env))
    assert failed.value.reason == "connection"


def test_the_deadline_holds_over_all_tries(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve()
    server.inject(CHAT, times=None, hang=True)
    env = env_of_adder()
    started = time.monotonic()
    with pytest.raises(PolicyError) as failed:
        play(env, llm(server, timeout=0.4, deadline=1.0, retries=50)(env))
    assert failed.value.reason == "timeout"
    assert time.monotonic() - started < 25


class Endless(OpenAIServer):
    """Answers blanks for as long as anyone reads them."""

    def answer(self, exchange: Exchange) -> None:
        compressed, blanks = self.model == "compressed", b" " * (8 << 20)
        pack = zlib.compressobj(wbits=31)
        headers = {"Content-Encoding": "gzip"} if compressed else {}
        with contextlib.suppress(OSError), exchange.stream("application/json", **headers) as write:
            while not self.closing.is_set():
                write(pack.compress(blanks) + pack.flush(zlib.Z_SYNC_FLUSH) if compressed else blanks)


@pytest.mark.parametrize("model", ["plain", "compressed"])
def test_an_answer_without_an_end_is_refused_and_not_asked_for_again(env_of_adder: Make, llm: Any, model: str) -> None:
    with Endless(in_turn(), model=model) as server, pytest.raises(PolicyError) as failed:
        llm(server, deadline=60.0)(env_of_adder()).act("Issue.")
    assert (failed.value.reason, failed.value.retries) == ("bad_reply", 0)
    assert "has more than 67108864 bytes" in str(failed.value)


class Dripping(OpenAIServer):
    """Answers a blank now and then, and nothing else."""

    def answer(self, exchange: Exchange) -> None:
        with exchange.stream("application/json") as write:
            while not self.closing.wait(0.05):
                write(b" ")


def test_the_deadline_holds_if_the_server_is_never_silent(env_of_adder: Make, llm: Any) -> None:
    with Dripping(in_turn()) as server, pytest.raises(PolicyError) as failed:
        llm(server, timeout=0.3, deadline=1.0)(env_of_adder()).act("Issue.")
    assert failed.value.reason == "timeout"


def test_the_policy_works_after_a_failure(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(ModelReply(tool_calls=[SUBMIT]))
    server.inject(CHAT, status=500)
    env = env_of_adder()
    policy = llm(server, retries=0)(env)
    with pytest.raises(PolicyError):
        play(env, policy)
    assert policy.report().usage == Usage()
    assert play(env, policy).outcome == "submitted"


def test_close_unblocks_waiting_policies(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve()
    server.inject(CHAT, times=None, hang=True)
    factory = llm(server)
    reasons: list[str] = []

    def wait() -> None:
        try:
            factory(env_of_adder()).act("Issue.")
        except PolicyError as error:
            reasons.append(error.reason)

    waiting = [threading.Thread(target=wait) for _ in range(8)]
    for thread in waiting:
        thread.start()
    while len(server.requests) < 8:
        assert any(thread.is_alive() for thread in waiting)
        time.sleep(0.01)
    factory.close()
    for thread in waiting:
        thread.join(60)
    assert reasons == ["closed"] * 8
    factory.close()
    with pytest.raises(PolicyError, match="was closed"):
        factory(env_of_adder()).act("Issue.")


def test_a_client_that_is_closed_while_it_connects_leaves_nothing_open(serve: Any) -> None:
    server = serve()
    server.inject(CHAT, times=None, hang=True)
    for _ in range(10):
        client = ChatClient(server.base_url, "key", timeout=10, deadline=10, retries=0)
        with ThreadPoolExecutor(3) as threads:
            calls = [threads.submit(client.complete, {"model": "scripted", "messages": []}) for _ in range(3)]
            client.close()
        assert {type(call.exception()) for call in calls} == {PolicyError}
        del client, calls
    gc.collect()  # a socket or a task that was left warns here, and warnings are errors


def test_many_episodes_share_a_client(env_of_adder: Make, llm: Any) -> None:
    with OpenAIServer(
        lambda request: ModelReply(tool_calls=[SUBMIT if len(request["messages"]) > 2 else LOOK])
    ) as server:
        factory = llm(server)
        outcomes: list[str] = []
        envs = [env_of_adder() for _ in range(12)]
        threads = [
            threading.Thread(target=lambda env=env: outcomes.append(play(env, factory(env)).outcome)) for env in envs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert outcomes == ["submitted"] * 12
        assert len(server.requests) == 24


# --- a conversation that grows too long -------------------------------------------------------------------------


def flood(number: int) -> tuple[str, str]:
    """A call whose observation is long."""
    return (
        "bash",
        json.dumps({"command": f"echo turn-{number}; head -c 3000 /dev/zero | tr '\\0' x; echo end-{number}"}),
    )


def test_the_oldest_observations_are_dropped_first(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(
        *[ModelReply(tool_calls=[flood(n)]) for n in range(8)], ModelReply(tool_calls=[SUBMIT]), context_length=14_000
    )
    env = env_of_adder(tools=["bash", "submit"])
    policy = llm(server, context=14_000, max_tokens=200)(env)
    assert play(env, policy).outcome == "submitted"
    assert len(server.requests) <= 10  # the first estimates may be wrong once
    shown = [message["content"] for message in sent(server)["messages"] if message["role"] == "tool"]
    assert len(shown) == 8
    left_out = ["left out" in text for text in shown]
    assert left_out == sorted(left_out, reverse=True)
    assert 0 < sum(left_out) < 8
    assert "end-7" in shown[-1]
    assert sum(a["messages"][: len(b["messages"])] != b["messages"] for a, b in _pairs(server)) < 4  # caches live on


def _pairs(server: OpenAIServer) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each request and the one before it."""
    return [(sent(server, n), sent(server, n - 1)) for n in range(1, len(server.requests))]


def test_the_context_limit_is_learned_from_an_error(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(
        *[ModelReply(tool_calls=[flood(n)]) for n in range(8)], ModelReply(tool_calls=[SUBMIT]), context_length=14_000
    )
    env = env_of_adder()
    policy = llm(server, max_tokens=200)(env)
    assert play(env, policy).outcome == "submitted"
    assert 9 < len(server.requests) < 14
    assert policy.report().policy.options["context"] == 14_000


def test_turns_are_dropped_if_observations_are_not_enough(env_of_adder: Make, serve: Any, llm: Any) -> None:
    replies = [ModelReply("word " * 400, [LOOK]) for _ in range(8)]
    server = serve(*replies, ModelReply(tool_calls=[SUBMIT]), context_length=10_000)
    env = env_of_adder()
    assert play(env, llm(server, max_tokens=200)(env)).outcome == "submitted"
    messages = sent(server)["messages"]
    assert messages[1]["content"].startswith("Sums are wrong.")
    assert "turns after this message are not shown" in messages[1]["content"]
    assert [message["role"] for message in messages[2:4]] == ["assistant", "tool"]


def test_a_single_long_observation_loses_its_middle(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(ModelReply(tool_calls=[flood(1)]), ModelReply(tool_calls=[SUBMIT]), context_length=4_000)
    env = env_of_adder(tools=["bash", "submit"])
    assert play(env, llm(server, max_tokens=100)(env)).outcome == "submitted"
    shown = sent(server)["messages"][-1]["content"]
    assert shown.startswith("turn-1")
    assert "end-1" in shown
    assert "characters were left out here" in shown


def test_a_task_that_does_not_fit_ends_with_context(env_of_adder: Make, serve: Any, llm: Any) -> None:
    server = serve(context_length=300)
    env = env_of_adder()
    policy = llm(server)(env)
    env.reset()
    policy.reset({})
    with pytest.raises(PolicyError, match="maximum context length is 300") as failed:
        policy.act("Issue.")
    assert (failed.value.reason, failed.value.retryable) == ("context", False)


@pytest.mark.parametrize(
    ("status", "text", "limit"),
    [
        (400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens", 8192),
        (400, "The input (9000 tokens) is longer than the model's context length (8192 tokens).", 8192),
        (400, "the request exceeds the available context size (8192 tokens), try increasing it", 8192),
        (400, "litellm.ContextWindowExceededError: too long", None),
        (413, "prompt is too long: 9000 tokens > 8192 maximum", None),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 8192", None),
    ],
)
def test_context_errors_of_many_servers_are_recognized(
    env_of_adder: Make, serve: Any, llm: Any, status: int, text: str, limit: int | None
) -> None:
    server = serve()
    body = {**context_length_exceeded(1, 2), "error": {"message": text}}
    server.inject(CHAT, times=None, status=status, body=body)
    policy = llm(server)(env_of_adder())
    with pytest.raises(PolicyError) as failed:
        policy.act("Issue.")
    assert failed.value.reason == "context"
    assert policy.report().policy.options["context"] == limit
