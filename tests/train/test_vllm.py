"""The vLLM client against a server that speaks its protocol and fails on demand."""

import contextlib
import copy
import dataclasses
import itertools
import resource
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
httpx = pytest.importorskip("httpx")

from safetensors.torch import load_file  # noqa: E402  only where torch is there
from test_loop import config, numbers, says_by_seed  # noqa: E402

from swe_gym.errors import PolicyError, UsageError  # noqa: E402
from swe_gym.testing.loopback import Exchange, HttpAnswer  # noqa: E402
from swe_gym.testing.openai_server import ModelReply, OpenAIServer  # noqa: E402
from swe_gym.testing.sandbox_contract.case import eventually  # noqa: E402
from swe_gym.train.config import GenerationConfig  # noqa: E402
from swe_gym.train.generators import WeightsLost, make_generator  # noqa: E402
from swe_gym.train.generators.vllm import VllmGenerator  # noqa: E402
from swe_gym.train.generators.weight_sync import make_weight_sync, write_folder  # noqa: E402
from swe_gym.train.loop import Trainer, TrainingStopped  # noqa: E402
from swe_gym.train.model import PolicyModel, load_model, with_adapters  # noqa: E402

REPLY = ModelReply("", token_ids=[5, 6, 0], logprobs=[-0.1, -0.2, -0.3], finish_reason="stop")


class Server(OpenAIServer):
    """A server with the requests of weight sync."""

    def __init__(self, reply: Callable[[Any], ModelReply] = lambda _: REPLY) -> None:
        super().__init__(reply, model="m", api_key="k")
        self.weights = 0
        self.reloads = True
        self.tokens_in_tokens_out = False
        self.adapters: dict[str, Any] = {}
        self.takes_adapters = True
        self.hidden = "nothing"
        self.label = "default"
        self.names_weights = True
        self.holds = 0  # resets of the prefix cache that fail
        self.asleep = False

    def restart(self) -> None:
        """Forget what a new process would not know."""
        self.weights, self.label, self.asleep = 0, "default", False
        self.adapters.clear()

    def answer(self, exchange: Exchange) -> None:
        asked = exchange.asked
        self.answer_sleep(asked)
        if asked.path == "/collective_rpc":
            self.weights += self.reloads
            raise HttpAnswer(200)
        self.answer_adapters(asked)
        if asked.path == "/reset_prefix_cache":
            self.holds -= 1
            raise HttpAnswer(200, {"success": self.holds < 0})
        if asked.path == "/weight_checker":
            raise HttpAnswer(200, {"checksums": {"w": str(self.weights)}})
        if self.names_weights and asked.path == "/update_weight_version":
            self.label = asked.body["new_version"]
            raise HttpAnswer(200)
        if self.names_weights and asked.path == "/weight_info":
            raise HttpAnswer(200, {"weight_version": self.label})
        if asked.path == "/inference/v1/generate":
            if not self.tokens_in_tokens_out:
                raise self.refuse(404, "not here")
            if "token_ids" not in (asked.body or {}):
                raise self.refuse(422, "token_ids are missing")
            if asked.body["model"] not in ("m", *self.adapters):
                raise self.refuse(404, "no such model")
            reply = self.reply(asked.body)
            entries = [{"token_id": token, "logprob": logprob} for token, logprob in reply.tokens]
            choice = {
                "token_ids": list(reply.token_ids or ()),
                "finish_reason": "stop",
                "logprobs": {"content": entries},
            }
            choice["weight_versions"] = [{"version": self.label, "start": 0, "end": 3}] if self.names_weights else None
            details = {"prompt_tokens_details": {"cached_tokens": reply.cached_tokens}}
            raise HttpAnswer(200, {"choices": [choice], "usage": details})
        super().answer(exchange)

    def answer_sleep(self, asked: Any) -> None:
        if asked.path in ("/sleep", "/wake_up"):
            self.asleep = asked.path == "/sleep"
            raise HttpAnswer(200, {"status": "sleeping" if self.asleep else "awake"})
        if self.asleep and asked.path in ("/collective_rpc", "/v1/completions", "/v1/load_lora_adapter"):
            raise self.refuse(500, "asleep")

    def answer_adapters(self, asked: Any) -> None:
        if asked.path == "/v1/load_lora_adapter":
            if not self.takes_adapters:
                raise self.refuse(404, "not here")
            folder, name = Path(asked.body["lora_path"]), asked.body["lora_name"]
            assert name not in self.adapters
            assert (folder / "adapter_config.json").exists()
            self.adapters[name] = load_file(folder / "adapter_model.safetensors")
            raise HttpAnswer(200)
        if asked.path == "/v1/unload_lora_adapter":
            if self.adapters.pop(asked.body["lora_name"], None) is None:
                raise self.refuse(404, "no such adapter")
            raise HttpAnswer(200)
        if asked.path == "/v1/models" and self.adapters:
            raise HttpAnswer(200, {"data": [{"id": name} for name in ("m", *self.adapters) if self.hidden not in name]})


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture
def generator(server: Server, tiny_lm: Any, tokenizer: Any) -> Iterator[VllmGenerator]:
    made = make_generator(
        GenerationConfig(url=f"{server.url}/v1", options={"api_key": "k", "seeds": True, "checksums": True}),
        PolicyModel(tiny_lm),
        tokenizer,
    )
    yield made
    made.close()


def ask(generator: VllmGenerator) -> Any:
    return generator.generate([1, 2, 3], max_tokens=8, temperature=0.7, seed=4)


def test_sampled_tokens_arrive_unchanged(server: Server, generator: VllmGenerator) -> None:
    found = ask(generator)
    assert (list(found.token_ids), list(found.logprobs), found.finish) == ([5, 6, 0], [-0.1, -0.2, -0.3], "stop")
    sent = server.requests[-1].body
    assert server.requests[-1].path == "/v1/completions"
    assert (sent["prompt"], sent["temperature"], sent["seed"], sent["max_tokens"]) == ([1, 2, 3], 0.7, 4, 8)


def test_the_token_endpoint_is_preferred(server: Server, tiny_lm: Any, tokenizer: Any) -> None:
    server.tokens_in_tokens_out = True
    generator = make_generator(
        GenerationConfig(url=server.url, options={"api_key": "k", "seeds": True, "checksums": True}),
        PolicyModel(tiny_lm),
        tokenizer,
    )
    server.reply = lambda _: dataclasses.replace(REPLY, cached_tokens=2)
    said = ask(generator)
    assert (list(said.token_ids), said.cached) == ([5, 6, 0], 2)
    assert server.requests[-1].path == "/inference/v1/generate"
    generator.close()


def test_weight_sync_updates_the_version(server: Server, generator: VllmGenerator) -> None:
    generator.sync_weights(7)
    assert ask(generator).version == 7
    (push,) = [request for request in server.requests if request.path == "/collective_rpc"]
    assert push.body["method"] == "reload_weights"
    order = [path for path in server.paths() if "weight" in path or "rpc" in path or "cache" in path]
    checked = ["POST /weight_checker", "POST /collective_rpc", "POST /reset_prefix_cache", "POST /weight_checker"]
    assert order == [*checked, "POST /update_weight_version"]


def test_a_prefix_cache_that_requests_hold_is_reset_again(server: Server, tiny_lm: Any, tokenizer: Any) -> None:
    options = {"api_key": "k", "start_timeout": 0.2}
    generator = make_generator(GenerationConfig(url=server.url, options=options), PolicyModel(tiny_lm), tokenizer)
    server.holds = 1
    generator.sync_weights(1)
    assert server.paths().count("POST /reset_prefix_cache") == 2
    server.holds = 1000
    with pytest.raises(PolicyError, match=r"did not reset its prefix cache within 0\.2 s: other requests hold it"):
        generator.sync_weights(2)
    generator.close()


def test_a_server_that_does_not_take_a_name_of_weights_is_told(
    server: Server, generator: VllmGenerator, caplog: pytest.LogCaptureFixture
) -> None:
    server.inject("/update_weight_version", status=403)
    with pytest.raises(PolicyError, match="refused /update_weight_version with status 403"):
        generator.sync_weights(1)
    server.names_weights = False
    for version in (2, 3):
        generator.sync_weights(version)
    assert [one.getMessage().count("cannot name weights") for one in caplog.records].count(1) == 1


def test_unchanged_checksums_after_a_sync_are_an_error(server: Server, generator: VllmGenerator, tiny_lm: Any) -> None:
    generator.sync_weights(0)
    server.reloads = False
    with torch.no_grad():
        tiny_lm.model.norm.weight.mul_(1.5)
    for _ in range(2):  # again: the weights still did not arrive
        with pytest.raises(PolicyError, match="did not change"):
            generator.sync_weights(1)
    assert ask(generator).version == 0


def test_the_same_weights_may_be_synced_again(server: Server, generator: VllmGenerator) -> None:
    """This happens at the start, and after an update without a gradient."""
    generator.sync_weights(0)
    server.reloads = False
    generator.sync_weights(1)
    assert ask(generator).version == 1


@pytest.mark.parametrize(
    ("fault", "reason", "retryable"),
    [
        ({"status": 500}, "server", True),
        ({"status": 400}, "refused", False),
        ({"lose_reply": True}, "connection", True),
    ],
)
def test_a_failing_server_is_a_policy_error(
    server: Server, generator: VllmGenerator, fault: dict[str, Any], reason: str, retryable: bool
) -> None:
    server.inject("/v1/completions", **fault)
    with pytest.raises(PolicyError) as caught:
        ask(generator)
    assert (caught.value.reason, caught.value.retryable) == (reason, retryable)
    assert ask(generator).finish == "stop"


@pytest.mark.parametrize("logprobs", [[-0.1, None, -0.3], [-0.1, -9999.0, -0.3], [-0.1]])
def test_tokens_without_a_finite_logprob_are_refused(
    server: Server, generator: VllmGenerator, logprobs: list[float | None]
) -> None:
    choice = {"token_ids": [5, 6, 0], "finish_reason": "stop", "logprobs": {"token_logprobs": logprobs}}
    server.inject("/v1/completions", status=200, body={"choices": [choice]})
    with pytest.raises(PolicyError, match="log-probabilities") as caught:
        ask(generator)
    assert caught.value.reason == "bad_reply"


LIES: dict[str, Any] = {
    "too many tokens": {"token_ids": [5] * 9, "logprobs": {"token_logprobs": [-0.1] * 9}},
    "no tokens": {"token_ids": [], "logprobs": {"token_logprobs": []}},
    "a token that the model has not": {"token_ids": [5, 99_999], "logprobs": {"token_logprobs": [-0.1, -0.1]}},
    "a token that is not a number": {"token_ids": [5, "x"], "logprobs": {"token_logprobs": [-0.1, -0.1]}},
    "a probability above one": {"token_ids": [5], "logprobs": {"token_logprobs": [0.7]}},
    "NaN": {"token_ids": [5], "logprobs": {"token_logprobs": [float("nan")]}},
    "no token ids": {"token_ids": None, "logprobs": {"token_logprobs": [-0.1]}},
    "no logprobs": {"token_ids": [5], "logprobs": None},
    "an answer broken off": {"token_ids": [5], "logprobs": {"token_logprobs": [-0.1]}, "finish_reason": "abort"},
}


@pytest.mark.parametrize("lie", LIES)
def test_an_invalid_reply_loses_the_episode_not_the_run(server: Server, generator: VllmGenerator, lie: str) -> None:
    choice = {"finish_reason": "stop", **LIES[lie]}
    server.inject("/v1/completions", status=200, body={"choices": [choice]})
    with pytest.raises(PolicyError) as caught:
        ask(generator)
    assert (caught.value.reason, caught.value.retryable) == ("bad_reply", True)


@pytest.mark.parametrize("body", [{}, {"choices": []}, [], "<html>"])
def test_an_unexpected_reply_is_a_policy_error(server: Server, generator: VllmGenerator, body: Any) -> None:
    server.inject("/v1/completions", status=200, body=body)
    with pytest.raises(PolicyError) as caught:
        ask(generator)
    assert caught.value.reason == "bad_reply"


def test_no_request_is_sent_after_close(generator: VllmGenerator) -> None:
    generator.close()
    generator.close()
    with pytest.raises(PolicyError) as caught:
        ask(generator)
    assert caught.value.reason == "closed"


def test_close_aborts_waiting_requests(server: Server, generator: VllmGenerator) -> None:
    server.inject("/v1/completions", hang=True)
    reasons: list[str] = []

    def wait() -> None:
        with pytest.raises(PolicyError) as caught:
            ask(generator)
        reasons.append(caught.value.reason)

    waiting = threading.Thread(target=wait, daemon=True)
    asked = len(server.requests)
    waiting.start()
    deadline = time.monotonic() + 20
    while len(server.requests) == asked and time.monotonic() < deadline:
        time.sleep(0.01)
    generator.close()
    waiting.join(60)
    assert reasons == ["closed"]


# --- a server that stops or is restarted --------------------------------------------------------------------


@pytest.fixture
def tokens_server(server: Server) -> Server:
    server.tokens_in_tokens_out = True
    return server


def test_a_restarted_server_has_lost_the_weights(tokens_server: Server, generator: VllmGenerator) -> None:
    generator.sync_weights(3)
    assert ask(generator).version == 3
    tokens_server.restart()
    with pytest.raises(WeightsLost, match="was restarted: it answered with other weights"):
        ask(generator)
    generator.sync_weights(3)
    assert ask(generator).version == 3
    assert tokens_server.weights == 1


@pytest.mark.parametrize("names", [True, False])
def test_a_lost_connection_is_a_restart_unless_the_server_names_its_weights(
    tokens_server: Server, generator: VllmGenerator, names: bool
) -> None:
    tokens_server.names_weights = names
    generator.sync_weights(3)
    for fault, lost in (({"lose_reply": True}, not names), ({"status": 500}, False), ({"status": 400}, False)):
        tokens_server.inject("/inference/v1/generate", **fault)
        with pytest.raises(PolicyError) as caught:
            ask(generator)
        assert isinstance(caught.value, WeightsLost) is lost, fault


@pytest.mark.parametrize("fault", [{"status": 429}, {"lose_reply": True}])
def test_a_server_that_is_busy_keeps_its_weights(
    tokens_server: Server, generator: VllmGenerator, fault: dict[str, Any]
) -> None:
    generator.sync_weights(3)
    tokens_server.inject("/inference/v1/generate", lose_reply=True)
    tokens_server.inject("/weight_info", **fault)
    with pytest.raises(PolicyError) as caught:
        ask(generator)
    assert not isinstance(caught.value, WeightsLost)
    assert ask(generator).version == 3


def test_a_weight_sync_waits_for_a_server_that_is_down(server: Server, generator: VllmGenerator) -> None:
    server.inject("/health", drop=True)
    generator.sync_weights(3)
    server.inject("/collective_rpc", drop=True)  # it stops in the middle
    server.names_weights = False
    generator.sync_weights(4)
    assert ask(generator).version == 4


def test_a_server_that_does_not_come_back_is_named(server: Server, tiny_lm: Any, tokenizer: Any) -> None:
    options = {"api_key": "k", "start_timeout": 0.1}
    generator = make_generator(GenerationConfig(url=server.url, options=options), PolicyModel(tiny_lm), tokenizer)
    server.inject("*", times=None, drop=True)
    with pytest.raises(PolicyError, match=r"has not answered for 0\.1 s .* run the same command again"):
        generator.sync_weights(1)
    generator.close()


def sleeper(server: Server, model: PolicyModel, tokenizer: Any) -> VllmGenerator:
    options = {"api_key": "k", "sleep": True, "start_timeout": 5}
    made = make_generator(GenerationConfig(url=server.url, options=options), model, tokenizer)
    assert isinstance(made, VllmGenerator)
    return made


@pytest.mark.parametrize("fault", ["none", "no request", "lost reply", "restart", "left asleep", "missed question"])
def test_a_server_sleeps_until_the_next_sync(server: Server, tiny_lm: Any, tokenizer: Any, fault: str) -> None:
    server.asleep = fault == "left asleep"  # by a run that was killed
    with contextlib.closing(sleeper(server, PolicyModel(tiny_lm), tokenizer)) as generator:
        generator.sync_weights(0)
        assert ask(generator).version == 0
        if fault in ("no request", "lost reply"):
            server.inject("/sleep", drop=fault == "no request", lose_reply=fault == "lost reply")
        generator.begin_learning()
        assert server.asleep
        if fault == "lost reply":
            server.inject("/wake_up", lose_reply=True)
        if fault == "restart":
            server.restart()
        if fault == "missed question":  # by a server that the trainer started
            running: Any = types.SimpleNamespace(alive=lambda: True, url=server.url, close=lambda: None)
            generator._server = running
            generator._config = generator._config.model_copy(update={"url": ""})
            server.inject("/health", status=503)
        generator.sync_weights(1)
        assert not server.asleep
        assert ask(generator).version == 1
    order = [path for path in server.paths() if path in ("POST /sleep", "POST /wake_up", "POST /collective_rpc")]
    assert [path for path, _ in itertools.groupby(order)][-3:] == [
        "POST /sleep",
        "POST /wake_up",
        "POST /collective_rpc",
    ]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_server_that_was_left_asleep_takes_adapters(server: Server, adapted: PolicyModel, tokenizer: Any) -> None:
    server.asleep = True
    sleeper(server, adapted, tokenizer).close()
    assert not server.asleep


def test_a_server_of_ones_own_is_not_left_asleep(server: Server, tiny_lm: Any, tokenizer: Any) -> None:
    generator = sleeper(server, PolicyModel(tiny_lm), tokenizer)
    generator.begin_learning()
    generator.close()
    generator.close()
    assert not server.asleep


@pytest.mark.parametrize("freed", [0, 1])
def test_a_server_that_frees_nothing_stops_the_run(
    server: Server, tiny_lm: Any, tokenizer: Any, freed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(sleeper(server, PolicyModel(tiny_lm), tokenizer)) as generator:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (freed * server.asleep, 9))
        wrong = pytest.raises(PolicyError, match=r"freed no memory of the trainer's GPU: .* --enable-sleep-mode")
        with contextlib.nullcontext() if freed else wrong:
            generator.begin_learning()


def test_a_server_that_does_not_sleep_or_wake_stops_the_run(server: Server, tiny_lm: Any, tokenizer: Any) -> None:
    with contextlib.closing(sleeper(server, PolicyModel(tiny_lm), tokenizer)) as generator:
        server.inject("/sleep", status=404)
        with pytest.raises(PolicyError, match=r"refused /sleep with status 404.* VLLM_SERVER_DEV_MODE=1"):
            generator.begin_learning()
        server.inject("/wake_up", status=200, body={"status": "sleeping"})
        with pytest.raises(PolicyError, match="did not wake up"):
            generator.sync_weights(1)


def test_what_cannot_sleep_is_refused_by_name(tiny_lm: Any, tokenizer: Any) -> None:
    for url, message in (("", "the model is not on a GPU"), ("http://a:1 http://b:1", "is for one server")):
        with pytest.raises(UsageError, match=message):
            make_generator(GenerationConfig(url=url, options={"sleep": True}), PolicyModel(tiny_lm), tokenizer)


def test_a_server_sleeps_in_sft_and_in_each_update(model_folder: str, tokenizer: Any, tmp_path: Path) -> None:
    with Server(answer_by_script(tokenizer, lambda: None)) as server:
        server.tokens_in_tokens_out = True
        sections = {**RESTARTED, "sft": {"episodes": 1}, "generation": served(server, sleep=True)}
        Trainer(config(model_folder, tmp_path / "run", **sections)).run()
    kinds = {"POST /sleep": "sleep", "POST /wake_up": "wake", "POST /inference/v1/generate": "sample"}
    order = [kinds[path] for path in server.paths() if path in kinds]
    assert [kind for kind, _ in itertools.groupby(order)] == ["sample", "wake", *["sleep", "wake", "sample"] * 3]


RESTARTED: dict[str, Any] = {
    "run": {"updates": 2},
    "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
    "algorithm": {"prompts_per_step": 2, "group_size": 2},
}


def served(server: Server, **options: Any) -> dict[str, Any]:
    """Return the settings of generation by a running server."""
    limits = {"max_tokens": 100, "max_context": 500, "max_logprob_diff": 100.0}
    return {"backend": "vllm", "url": server.url, "options": {"api_key": "k", **options}, **limits}


def answer_by_script(tokenizer: Any, count: Callable[[], None]) -> Callable[[Any], ModelReply]:
    """Return a model of the server that answers as `says_by_seed`; `count` is called before each answer."""
    lock = threading.Lock()

    def reply(request: Any) -> ModelReply:
        with lock:
            count()
        ids = tokenizer.encode(says_by_seed(tokenizer.decode(request["token_ids"]), None), add_special_tokens=False)
        ids = [*ids, tokenizer.eos_token_id][:100]
        return ModelReply("", token_ids=ids, logprobs=[-1.0] * len(ids), cached_tokens=16)

    return reply


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_a_restarted_server_costs_a_run_no_episode(
    model_folder: str, tokenizer: Any, tmp_path: Path, ahead: bool
) -> None:
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1
        if asked in (2, 5):  # the first answer of all is the check of the weight sync
            server.restart()

    with Server(answer_by_script(tokenizer, count)) as server:
        server.tokens_in_tokens_out = True
        sections = {**RESTARTED, "algorithm": {**RESTARTED["algorithm"], "async_rollout": ahead}}
        Trainer(config(model_folder, tmp_path / "run", generation=served(server), **sections)).run()
    lines = numbers(tmp_path / "run")
    assert [(line["update"], line["episodes"], line["lost"]) for line in lines] == [(1, 4, 0), (2, 4, 0)]
    sent = server.paths().count("POST /collective_rpc") - 3  # once for each restart, unless the next sync came first
    assert 0 < sent <= 2
    assert all(0 < line["frac_cached"] < 1 for line in lines)


def test_a_server_that_is_gone_stops_the_run_which_resumes(model_folder: str, tokenizer: Any, tmp_path: Path) -> None:
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1
        if asked == 7:  # in the second update
            server.inject("*", times=None, drop=True)

    with Server(answer_by_script(tokenizer, count)) as server:
        server.tokens_in_tokens_out = True
        wanted = config(model_folder, tmp_path / "run", generation=served(server, start_timeout=0.1), **RESTARTED)
        server.inject("/inference/v1/generate", skip=7, times=1, lose_reply=True)
        with pytest.raises(TrainingStopped, match=r"lost weights 1 .*has not answered .*run the same command again"):
            Trainer(wanted).run()
        assert [line["update"] for line in numbers(tmp_path / "run")] == [1]
        server.mend()
        Trainer(wanted).run()
    assert [(line["update"], line["lost"]) for line in numbers(tmp_path / "run")] == [(1, 0), (2, 0)]


def test_an_unknown_option_is_named(tiny_lm: Any, tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="weight_sync_folder"):
        make_generator(GenerationConfig(options={"pull": 1}), PolicyModel(tiny_lm), tokenizer)


RUN = """
[run]
output = "{output}"
updates = 1
evaluate_every = 0
[model]
path = "{model}"
[generation]
backend = "vllm"
url = "{url}"
max_tokens = 64
max_context = 400
[generation.options]
weight_sync_folder = "{folder}"
api_key = "k"
[env]
workers = 1
[env.train]
count = 1
[algorithm]
prompts_per_step = 1
group_size = 2
"""


def test_a_terminated_run_leaves_no_weights(server: Server, model_folder: str, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    server.inject("/v1/completions", times=None, hang=True)
    config = RUN.format(output=tmp_path / "run", model=model_folder, url=server.url, folder=folder)
    (tmp_path / "run.toml").write_text(config)
    command = [sys.executable, "-m", "swe_gym", "train", str(tmp_path / "run.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        eventually(
            lambda: "POST /v1/completions" in server.paths() or process.poll() is not None, 120, "it asks for tokens"
        )
        assert list(folder.iterdir()), process.communicate(timeout=60) if process.poll() is not None else ""
        process.terminate()
    eventually(lambda: not list(folder.iterdir()), 60, "the weights are gone")


@pytest.fixture
def adapted(tiny_lm: Any) -> PolicyModel:
    pytest.importorskip("peft")
    return PolicyModel(with_adapters(tiny_lm, 4))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
def test_adapters_are_sent_as_adapters_under_a_new_name(server: Server, adapted: PolicyModel, tokenizer: Any) -> None:
    server.tokens_in_tokens_out = True
    generator = make_generator(
        GenerationConfig(url=server.url, options={"api_key": "k", "checksums": True}), adapted, tokenizer
    )
    sent = []
    for version in (1, 2, 2):
        with torch.no_grad():
            for name, weight in adapted.lm.named_parameters():
                if "lora_B" in name:
                    weight.add_(1.0)
        generator.sync_weights(version)
        ask(generator)
        ((name, tensors),) = server.adapters.items()
        assert server.requests[-1].body["model"] == name
        sent.append((name, float(sum(value.sum() for key, value in tensors.items() if "lora_B" in key))))
    generator.close()
    assert len({name for name, _ in sent}) == 3
    assert [total / sent[0][1] for _, total in sent] == pytest.approx([1, 2, 3])
    assert "POST /collective_rpc" not in server.paths()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_runs_on_one_server_have_adapters_of_their_own_and_leave_none(
    server: Server, adapted: PolicyModel, tokenizer: Any
) -> None:
    config = GenerationConfig(url=server.url, options={"api_key": "k"})
    first, second = (make_generator(config, adapted, tokenizer) for _ in range(2))
    assert len(server.adapters) == 2
    server.adapters.pop(next(iter(server.adapters)))  # as if it had been restarted
    with pytest.raises(WeightsLost):
        ask(first)
    for generator in (first, second):
        generator.sync_weights(1)
    first.close()
    assert len(server.adapters) == 1
    second.close()
    assert not server.adapters


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(
    ("takes", "hidden", "why"),
    [
        (False, "nothing", "status 404.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-loras 1"),
        (True, "swe-gym", r"lists only \['m'\]"),
    ],
)
def test_a_server_that_takes_no_adapters_is_refused_before_sft(
    server: Server, adapted: PolicyModel, tokenizer: Any, takes: bool, hidden: str, why: str
) -> None:
    server.takes_adapters, server.hidden = takes, hidden
    with pytest.raises(PolicyError, match=why):
        make_generator(GenerationConfig(url=server.url, options={"api_key": "k"}), adapted, tokenizer)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_for_a_server_with_several_processes_are_refused(adapted: PolicyModel, tokenizer: Any) -> None:
    config = GenerationConfig(url="http://127.0.0.1:9", options={"data_parallel_size": 2})
    with pytest.raises(UsageError, match="Start a server for each rank"):
        make_generator(config, adapted, tokenizer)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_no_room_for_weights_names_the_folder_to_set(
    adapted: PolicyModel, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sync = make_weight_sync(GenerationConfig(), adapted, tokenizer, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, limits[1]))
    try:
        for send in (lambda: sync.send(0, lambda *_: {}), lambda: write_folder(adapted, tokenizer, tmp_path / "0")):
            with pytest.raises(UsageError, match=r"weight_sync_folder.*--shm-size"):
                send()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_exports_with_adapters_are_those_of_peft_and_copy_no_base_weights(
    adapted: PolicyModel, tokenizer: Any, tmp_path: Path
) -> None:
    with torch.no_grad():
        for name, weight in adapted.lm.named_parameters():
            if "lora_B" in name:
                weight.add_(0.1)
    expected = copy.deepcopy(adapted.lm).merge_and_unload().state_dict()
    adapted.export(tmp_path, tokenizer)
    written = load_model(str(tmp_path)).lm.state_dict()
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], weight) for name, weight in expected.items())
    with torch.profiler.profile(profile_memory=True) as profiler:
        write_folder(adapted, tokenizer, tmp_path / "base")
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    embedding = adapted.lm.get_input_embeddings().weight  # untied for a CPU
    assert sum(max(0, event.nbytes()) for event in events) <= 2 * embedding.nbytes


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_started_server_gets_the_base_and_room_for_the_adapters(
    adapted: PolicyModel, tokenizer: Any, tmp_path: Path
) -> None:
    before = {name: weight.clone() for name, weight in adapted.lm.get_base_model().state_dict().items()}
    with torch.no_grad():
        for name, weight in adapted.lm.named_parameters():
            if "lora_B" in name:
                weight.add_(1.0)
    write_folder(adapted, tokenizer, tmp_path)
    served = load_model(str(tmp_path)).lm.state_dict()
    for name, weight in before.items():
        plain = name.replace(".base_layer", "")
        if "lora_" not in name:
            assert torch.equal(served[plain], weight), name
    sync = make_weight_sync(GenerationConfig(), adapted, tokenizer, tmp_path)
    assert list(sync.args) == ["--enable-lora", "--max-loras", "1", "--max-lora-rank", "8"]
    with pytest.raises(UsageError, match="whole weights"):
        make_weight_sync(GenerationConfig(url="u", options={"weight_sync": "ipc"}), adapted, tokenizer, tmp_path)
