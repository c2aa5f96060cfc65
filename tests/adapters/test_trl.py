"""TRL on real sandboxes, with a tiny model that samples; lost episodes; token truth."""

import itertools
import json
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

if "trl" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("trl", reason="TRL is tested in a separate environment")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the library's own dependencies
    import requests
    import torch
    import transformers
    import trl
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_client import VLLMClient

    from swe_gym.adapters.trl import BatchSampler, Rollouts, swe_reward, task_dataset

from swe_gym.errors import SandboxClosed, SweGymError, UsageError
from swe_gym.rollout.tokens import short_prompt
from swe_gym.tasks.micro import expert_calls
from swe_gym.testing.loopback import Exchange, HttpAnswer, LoopbackServer

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL and its dependencies emit warnings

TASK = "micro-1-0"
GOLD = json.dumps(expert_calls(TASK)[0].model_dump(include={"name", "arguments"}))
IDLE = json.dumps({"name": "bash", "arguments": {"command": "true"}})
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()

EPISODES = 24

Env = gymnasium.Env[Any, Any]


class Envs:
    """Makes environments; those with a number in `broken` cannot start a sandbox."""

    def __init__(self, *broken: int, **arguments: Any) -> None:
        self.broken = broken
        self.arguments = {"task_id": TASK, "tools": ["bash"], "max_turns": 1, **arguments}
        self.made: list[Env] = []

    def __call__(self) -> Env:
        fault = {"at": "start", "nth": "every", "error": "SandboxStartError"}
        fake = {"backend": "fake", "sandbox_options": {"options": {"faults": [fault]}}}
        arguments = {**self.arguments, **(fake if len(self.made) in self.broken else {})}
        self.made.append(gymnasium.make("SWE/Micro-v0", disable_env_checker=True, **arguments))
        return self.made[-1]

    def assert_closed(self) -> None:
        played = [env.unwrapped for env in self.made if env.unwrapped._episode is not None]  # type: ignore[attr-defined]
        assert played
        for env in played:
            with pytest.raises(SandboxClosed):
                env.sandbox.exec("true")  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """The prompt with two answers: one solves the task, one does nothing."""
    env: Any = Envs()()
    tools, (issue, _) = env.unwrapped.tools, env.reset()
    env.close()
    ask = [{"role": "system", "content": short_prompt(tools)}, {"role": "user", "content": issue}]
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    prompt = bare.apply_chat_template(ask, chat_template=CHATML, tokenize=False, add_generation_prompt=True)
    return [str(prompt), GOLD, IDLE]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str]) -> Any:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|im_end|>", "<|im_start|>"], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|im_end|>", clean_up_tokenization_spaces=False
    )


@pytest.fixture(scope="module")
def make_lm(texts: list[str], tokenizer: Any) -> Callable[[], Any]:
    """Makes a Llama of two layers that samples either answer to the prompt."""

    def make() -> Any:
        tokenizer.chat_template = CHATML
        prompt, *answers = ([*tokenizer.encode(text)] for text in texts)
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=2048,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        model = transformers.LlamaForCausalLM(config)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 160)
        rows = [
            (
                torch.tensor([[*prompt, *answer, tokenizer.eos_token_id]]),
                torch.tensor([[*[-100] * len(prompt), *answer, tokenizer.eos_token_id]]),
            )
            for answer in answers
        ]
        for _ in range(160):
            loss = sum(model(input_ids=ids, labels=labels).loss for ids, labels in rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
        return model

    return make


class Recorded(GRPOTrainer):
    """A trainer that records what its sampler returns and what it trains on."""

    def _generate_single_turn(self, prompt_ids: Any, *arguments: Any, **options: Any) -> Any:
        completions, logprobs = super()._generate_single_turn(prompt_ids, *arguments, **options)
        self.sampled = [*getattr(self, "sampled", []), *zip(prompt_ids, completions, strict=True)]
        return completions, logprobs


def config(folder: Path, **changes: Any) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=2,
        learning_rate=1e-4,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=48,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        gradient_checkpointing=False,
        **changes,
    )


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def logs(trainer: Any) -> list[dict[str, float]]:
    return [line for line in trainer.state.log_history if "reward" in line]


class Kept(Rollouts):
    """Keeps what it returns."""

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        columns = super().__call__(prompts, trainer)
        self.columns = [*getattr(self, "columns", []), columns]
        return columns


def assert_exact(columns: dict[str, Any], sampled: list[Any]) -> None:
    """Each sampled token stands in one row, behind the prompt that it was sampled for."""
    rows = [
        ([*prompt, *completion], [0] * len(prompt) + mask)
        for prompt, completion, mask in zip(
            columns["prompt_ids"], columns["completion_ids"], columns["env_mask"], strict=True
        )
    ]
    for prompt, ids in sampled:
        start, end = len(prompt), len(prompt) + len(ids)
        assert any(row[:end] == [*prompt, *ids] and all(mask[start:end]) for row, mask in rows)
    assert sum(sum(mask) for _, mask in rows) == sum(len(ids) for _, ids in sampled)


def assert_rewards(lines: list[dict[str, float]], rewards: list[list[float | None]]) -> None:
    """Lost episodes are no part of the mean, and the others have real rewards to learn from."""
    assert set(itertools.chain(*rewards)) == {None, 0.0, 1.0}
    for line, given in zip(lines, rewards, strict=True):
        counted = [reward for reward in given if reward is not None]
        assert line["reward"] == pytest.approx(sum(counted) / len(counted))
    assert any(line["grad_norm"] > 0 for line in lines)


def test_two_steps_with_rollout_func(make_lm: Any, tokenizer: Any, tmp_path: Path) -> None:
    envs = Envs(3)  # one of 16 episodes
    rollouts = Kept(envs)
    trainer = Recorded(
        model=make_lm(),
        processing_class=tokenizer,
        args=config(tmp_path),
        train_dataset=task_dataset(Envs(), count=1),
        reward_funcs=swe_reward,
        rollout_func=rollouts,
    )
    trainer.train()
    lines = logs(trainer)
    assert [line["infra_failed"] for line in lines] == [1.0, 0.0]
    assert_rewards(lines, [columns["swe_reward"] for columns in rollouts.columns])
    names = ("prompt_ids", "completion_ids", "env_mask")
    assert_exact({name: [row for part in rollouts.columns for row in part[name]] for name in names}, trainer.sampled)
    envs.assert_closed()


class Client(VLLMClient):
    """TRL's client; its constructor needs vLLM, and what it sends does not."""

    def __init__(self, url: str) -> None:
        self.session, self.base_url, self.model = requests.Session(), url, "tiny"


class Completions(LoopbackServer):
    """Answers with random tokens in the form of vLLM's server."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.sampled: list[Any] = []
        self._random = random.Random(0)
        self._thought = tokenizer.encode("<think>hm</think>")
        self._vocabulary, self._end = range(2, len(tokenizer)), tokenizer.eos_token_id

    def answer(self, exchange: Exchange) -> None:
        (prompt,) = exchange.asked.body["prompt"]
        ids = [*self._thought, *self._random.choices(self._vocabulary, k=self._random.randrange(1, 12)), self._end]
        ids = ids[: exchange.asked.body["max_tokens"]]
        with self._lock:
            self.sampled.append((prompt, ids))
        logprobs = {
            "tokens": [f"token_id:{one}" for one in ids],
            "token_logprobs": [-one / 1000 for one in ids],
            "top_logprobs": [None] * len(ids),
        }
        raise HttpAnswer(200, {"choices": [{"prompt_token_ids": prompt, "token_ids": ids, "logprobs": logprobs}]})


def make_trainer(tokenizer: Any, **changes: Any) -> Any:
    """What the adapter reads of a trainer. In server mode, TRL's own needs vLLM and a GPU."""
    return SimpleNamespace(
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        temperature=1.0,
        max_completion_length=32,
        state=SimpleNamespace(global_step=1),
        is_deepspeed_enabled=False,
        is_fsdp_enabled=False,
        args=SimpleNamespace(vllm_tensor_parallel_size=1),
        generation_config=SimpleNamespace(max_new_tokens=32),
        **changes,
    )


def make_server_trainer(tokenizer: Any, url: str) -> Any:
    vllm = SimpleNamespace(
        mode="server",
        vllm_client=Client(url),
        repetition_penalty=1.0,
        top_p=1.0,
        top_k=0,
        min_p=None,
        structured_outputs_regex=None,
        generation_kwargs={},
    )
    return make_trainer(tokenizer, use_vllm=True, vllm_generation=vllm)


def test_a_vllm_server_samples_what_is_trained_on(tokenizer: Any) -> None:
    tokenizer.chat_template = QWEN3  # drops the thoughts of earlier turns
    envs = Envs(max_turns=3)
    with Completions(tokenizer) as server:
        columns = Rollouts(envs, workers=8)([TASK] * EPISODES, make_server_trainer(tokenizer, server.url))
    assert columns["swe_reward"] == [0.0] * EPISODES
    assert len(server.sampled) == 3 * EPISODES
    assert_exact(columns, server.sampled)
    rows = zip(columns["completion_ids"], columns["env_mask"], columns["logprobs"], strict=True)
    for ids, mask, logprobs in rows:
        assert logprobs == [-one / 1000 if kept else 0.0 for one, kept in zip(ids, mask, strict=True)]
    envs.assert_closed()


def test_lost_episodes_have_rows_and_persistent_losses_stop_training(tokenizer: Any) -> None:
    tokenizer.chat_template = CHATML
    rollouts, trainer = Rollouts(Envs(*range(9))), make_server_trainer(tokenizer, "http://127.0.0.1:1")
    for _ in range(2):
        columns = rollouts([TASK] * 2, trainer)
        assert columns["swe_reward"] == [None, None]
        assert columns["env_mask"] == [[0], [0]]
        assert [len(ids) for name in ("prompt_ids", "completion_ids", "logprobs") for ids in columns[name]] == [1] * 6
    with pytest.raises(SweGymError, match=r"3 calls in a row were lost, the last by SandboxStartError"):
        rollouts([TASK] * 2, trainer)


def fails(*_: Any) -> Any:
    raise MemoryError


def answers_once(*_: Any) -> Any:
    return [[1]], None


def is_interrupted(*_: Any) -> Any:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("sample", "error"), [(fails, MemoryError), (answers_once, SweGymError), (is_interrupted, KeyboardInterrupt)]
)
def test_a_trainer_that_fails_ends_the_episodes(tokenizer: Any, sample: Any, error: type[BaseException]) -> None:
    tokenizer.chat_template = CHATML
    envs = Envs()
    with pytest.raises(error):
        Rollouts(envs)([TASK] * 2, make_trainer(tokenizer, use_vllm=False, _generate_single_turn=sample))
    envs.assert_closed()
    assert "episode" not in {thread.name for thread in threading.enumerate()}


def test_an_interrupt_while_a_batch_is_gathered_fails_its_requests(tokenizer: Any) -> None:
    interrupted = threading.Event()

    class Prompt(list[int]):
        """Presses Ctrl-C once the request before it was taken."""

        def __iter__(self) -> Iterator[int]:
            while not sampler._requests.empty():
                interrupted.wait(0.01)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]  # it runs
            interrupted.wait(60)
            return super().__iter__()

    class Episodes:
        """Two episodes that ask for one answer each."""

        def play(self) -> list[Any]:
            asked = {"max_tokens": 9, "temperature": 1.0, "seed": None}
            with ThreadPoolExecutor(2) as threads:
                first = threads.submit(sampler.generate, [1], **asked)
                second = threads.submit(sampler.generate, Prompt([2]), **asked)
                wait([first, second], timeout=60)
                failures.extend(one.exception(timeout=0) for one in (first, second))
            return []

        cancel = interrupted.set

    failures: list[Any] = []
    sampler = BatchSampler(make_trainer(tokenizer, use_vllm=False, _generate_single_turn=lambda *_: signal.pause()))
    with pytest.raises(KeyboardInterrupt):
        sampler.play(Episodes())  # type: ignore[arg-type]  # a stand-in
    assert [str(failure) for failure in failures] == ["the trainer stopped sampling"] * 2


def test_configurations_that_cannot_work_are_refused(tokenizer: Any) -> None:
    trainer = make_trainer(tokenizer, use_vllm=False)
    with pytest.raises(UsageError, match="task_dataset"):
        Rollouts(Envs())([[{"role": "user", "content": TASK}]], trainer)  # type: ignore[list-item]
    trainer.is_fsdp_enabled = True
    with pytest.raises(UsageError, match="vllm_mode='server'"):
        Rollouts(Envs())([TASK], trainer)


def test_only_a_local_environment_lists_its_tasks() -> None:
    with pytest.raises(UsageError, match="cannot read the tasks of a CartPoleEnv"):
        task_dataset(lambda: gymnasium.make("CartPole-v1"))
