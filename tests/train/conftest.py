"""A tiny model and tokenizer of real classes with random weights."""

from pathlib import Path
from typing import Any

import pytest
from chat_templates import CHATML


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level BPE with ChatML's special tokens."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|im_end|>", "<|im_start|>", "<|begin|>", "<|header|>", "<|endheader|>", "<think>", "</think>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(["the file holds the answer", '{"name": "bash", "arguments": {"command": "ls"}}'], trainer)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|im_end|>", clean_up_tokenization_spaces=False
    )
    made.chat_template = CHATML
    return made


@pytest.fixture
def tiny_lm(tokenizer: Any) -> Any:
    """A Llama of two layers with random weights, always the same."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture
def model_folder(tiny_lm: Any, tokenizer: Any, tmp_path: Path) -> str:
    """A folder with the tiny model and its tokenizer."""
    folder = tmp_path / "start"
    tiny_lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
