"""Which method of weight sync a machine allows, and which requests each sends."""

import base64
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import fake_cuda  # noqa: E402  only where torch is there

from swe_gym.errors import PolicyError, UsageError  # noqa: E402
from swe_gym.train.config import GenerationConfig  # noqa: E402
from swe_gym.train.generators import weight_sync  # noqa: E402
from swe_gym.train.generators.weight_sync import choose, describe_weights, make_weight_sync  # noqa: E402
from swe_gym.train.model import PolicyModel  # noqa: E402


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of eight GPUs with vLLM."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())


def chosen(device: str = "cuda:0", url: str = "", **options: Any) -> str:
    return choose(GenerationConfig(url=url, options=options), torch.device(device))


OTHERS = {"CUDA_VISIBLE_DEVICES": "1,2,3"}


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("situation", "method"),
    [
        ({"device": "cpu"}, "file"),
        ({}, "ipc"),  # the server uses the first GPU too
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "ipc"),
        ({"device": "cuda:1", "env": {"CUDA_VISIBLE_DEVICES": "1"}}, "ipc"),
        ({"device": "cuda:1"}, "nccl"),  # the server uses GPU 0
        ({"env": OTHERS, "args": ["--data-parallel-size", "3"]}, "nccl"),
        ({"args": ["--tensor-parallel-size", "2"]}, "file"),  # GPU 0 is shared, GPU 1 is not
        ({"args": ["-tp=2", "--dtype", "bfloat16", "-dp", "2"]}, "file"),
        ({"url": "http://elsewhere:8000"}, "file"),
    ],
)
def test_a_possible_method_is_used_if_configured(situation: dict[str, Any], method: str) -> None:
    assert chosen(**situation) == "file"
    assert chosen(**situation, weight_sync=method) == method


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("situation", "why"),
    [
        ({"weight_sync": "ipc", "device": "cpu"}, "the model is on 'cpu'"),
        ({"weight_sync": "nccl", "device": "cpu"}, "the model is on 'cpu'"),
        ({"weight_sync": "ipc", "env": OTHERS}, "the trainer is on GPU 0 and the server on 1"),
        ({"weight_sync": "ipc", "args": ["-tp", "2"]}, "the server on 0, 1"),
        ({"weight_sync": "ipc", "args": ["--tensor_parallel_size", "2"]}, "the server on 0, 1"),
        ({"weight_sync": "nccl"}, "share GPU 0"),
        ({"weight_sync": "carrier pigeon"}, "Known: file, ipc, nccl"),
    ],
)
def test_an_impossible_method_names_the_reason(situation: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        chosen(**situation)


@pytest.mark.usefixtures("node")
def test_nccl_needs_vllm_beside_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="pip install vllm"):
        chosen(env=OTHERS, weight_sync="nccl")


@pytest.mark.usefixtures("node")
def test_the_method_is_not_checked_for_a_running_server() -> None:
    assert chosen(url="http://127.0.0.1:8000", weight_sync="ipc") == "ipc"
    assert chosen(url="http://elsewhere:8000", weight_sync="nccl") == "nccl"


def test_weights_have_the_same_names_as_in_files(tiny_lm: Any, tokenizer: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    model = PolicyModel(tiny_lm, value_head=True)
    model.export(tmp_path, tokenizer)
    (file,) = tmp_path.glob("*.safetensors")
    weights = model.weights()
    with safetensors.safe_open(file, "pt") as saved:
        assert sorted(saved.keys()) == sorted(weights)
        assert all(torch.equal(saved.get_tensor(name), weight) for name, weight in weights.items())
    assert weights["model.norm.weight"].data_ptr() == tiny_lm.model.norm.weight.data_ptr()


def test_a_tied_output_embedding_is_exported_untied_on_request(tiny_lm: Any, tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = PolicyModel(tiny_lm)
    before = {name: weight.clone() for name, weight in tiny_lm.state_dict().items()}
    model.export(tmp_path, tokenizer, untied=True)
    written = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not written.config.tie_word_embeddings
    assert tiny_lm.config.tie_word_embeddings
    assert tiny_lm.get_output_embeddings().weight is tiny_lm.get_input_embeddings().weight
    assert all(torch.equal(weight, before[name]) for name, weight in written.state_dict().items())


def test_weight_files_are_removed_after_the_sync(tiny_lm: Any, tokenizer: Any, tmp_path: Path) -> None:
    asked = []

    def call(method: str, path: str, body: Any) -> None:
        folder = Path(body["kwargs"]["weights_path"])
        asked.append((method, path, body["method"], (folder / "model.safetensors").exists()))

    make_weight_sync(GenerationConfig(), PolicyModel(tiny_lm), tokenizer, tmp_path).send(3, call)
    assert asked == [("POST", "/collective_rpc", "reload_weights", True)]
    assert not list(tmp_path.iterdir())


def test_ipc_sends_groups_of_copies_that_live_until_they_are_read(
    tiny_lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fake_cuda.pretend(monkeypatch)
    monkeypatch.setattr(weight_sync, "GROUP_BYTES", 20_000)
    model = PolicyModel(tiny_lm)
    paths, arrived = [], {}

    def call(method: str, path: str, body: Any) -> None:
        assert method == "POST"
        paths.append(path)
        if path != "/update_weights":
            return
        update = body["update_info"]
        handles = pickle.loads(base64.b64decode(update["ipc_handles_pickled"]))
        for name, shape, dtype, handle in zip(
            update["names"], update["shapes"], update["dtype_names"], handles, strict=True
        ):
            arguments = list(handle[fake_cuda.GPU])
            arguments[6] = 0
            weight = memory.open(*arguments)
            assert (list(weight.shape), str(weight.dtype)) == (shape, f"torch.{dtype}")
            assert weight.data_ptr() != model.weights()[name].data_ptr()
            arrived[name] = weight.clone()

    sync = weight_sync.IpcSync(model)
    sync.send(1, call)
    sync.send(2, call)
    first = paths.index("/finish_weight_update") + 1
    assert paths[:2] == ["/init_weight_transfer_engine", "/start_weight_update"]
    assert paths[first] == "/start_weight_update"  # the engine is initialized once
    assert paths[2 : first - 1] == ["/update_weights"] * paths[:first].count("/update_weights")
    assert paths[:first].count("/update_weights") > 3
    assert list(arrived) == list(model.weights())
    assert all(torch.equal(arrived[name], weight) for name, weight in model.weights().items())
    assert memory.exports == 2 * len(arrived)


def test_an_nccl_error_is_a_policy_error() -> None:
    def fail() -> None:
        raise RuntimeError("NCCL error: unhandled system error")

    with pytest.raises(PolicyError, match="unhandled system error"):
        weight_sync._run_together(lambda: None, fail)


def test_a_refused_broadcast_does_not_wait(tiny_lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.pretend(monkeypatch)
    sync = weight_sync.NcclSync(PolicyModel(tiny_lm), "")
    released = threading.Event()

    class Stuck:
        def broadcast(self, *_: Any, **__: Any) -> None:
            released.wait(30)

    def call(_method: str, path: str, _body: Any) -> None:
        if path == "/update_weights":
            raise PolicyError("refused", reason="refused")

    sync._group = Stuck()
    with pytest.raises(PolicyError, match="refused"):
        sync.send(1, call)
    released.set()


def test_weights_are_described_in_the_format_of_vllm() -> None:
    found = describe_weights({"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(1)})
    assert found == {"names": ["a", "b"], "dtype_names": ["bfloat16", "float32"], "shapes": [[2, 3], [1]]}
