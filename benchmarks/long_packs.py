"""Measure memory and time of a training step over the tokens of one pack, on a CPU.

    python benchmarks/long_packs.py [--rows 8 | --row 1024] [--checkpointing]

Each size runs in a process of its own. A model of two layers with random weights computes log-probabilities and their
gradient. The part without tokens is the peak of a pack of 64 tokens. `attention` is the same pack with a stand-in that
returns its values: the rest must be linear.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

from common import show

SIZES = (64, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
BAR_MEMORY, BAR_TIME = 1.3, 1.2


def measure(tokens: int, options: argparse.Namespace) -> dict[str, float]:
    """Return peak bytes, and seconds with and without attention, of one pack."""
    import torch
    import transformers

    from swe_gym.train import model as modeling
    from swe_gym.train.batch import segments_batch
    from swe_gym.train.model import PolicyModel, checkpoint_layers
    from swe_gym.trajectories import Segment

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=65536, attn_implementation="sdpa",
    )  # fmt: skip
    lm = transformers.LlamaForCausalLM(config)
    if options.checkpointing:
        checkpoint_layers(lm)
    model = PolicyModel(lm).train()
    length = min(tokens, options.row or max(1, tokens // options.rows))
    row = Segment(
        token_ids=tuple(index % 1000 for index in range(length)), loss_mask=(0,) + (1,) * (length - 1),
        logprobs=(0.0,) * length, versions=(-1,) + (0,) * (length - 1),
    )  # fmt: skip
    (pack,) = segments_batch([[row]] * (tokens // length)).packs(tokens)
    model(pack).logprobs.sum().backward()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for alone in (False, True):
        if alone:
            modeling.attend_rows = lambda query, key, value, *_, **__: (  # type: ignore[assignment]
                value.repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(1, 2) + 0 * query.transpose(1, 2)
            )
        started = time.process_time()
        model(pack).logprobs.sum().backward()
        seconds.append(time.process_time() - started)
    return {"peak": peak, "seconds": seconds[0], "rest": seconds[1]}


def main() -> int:
    """Measure, and fail if 64k tokens need more than a bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8, help="rows of a pack")
    parser.add_argument("--row", type=int, default=0, help="tokens of a row, instead of a number of rows")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--tokens", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tokens:
        print(json.dumps(measure(options.tokens, options)))
        return 0
    found = {}
    for tokens in SIZES:
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--tokens", str(tokens)], stdout=subprocess.PIPE, check=True
        )
        found[tokens] = json.loads(done.stdout.splitlines()[-1])
    base = found[SIZES[0]]["peak"]
    rows = [
        (
            f"{tokens:,}",
            f"{one['peak'] / 1e6:.0f} MB",
            f"{(one['peak'] - base) / tokens / 1e3:.1f} kB",
            f"{1e6 * one['seconds'] / tokens:.0f} us",
            f"{1e6 * one['rest'] / tokens:.0f} us",
        )
        for tokens, one in found.items()
        if tokens > SIZES[0]
    ]
    show("A pack on a CPU", ("tokens", "peak", "per token", "CPU time a token", "without attention"), rows)
    half, whole = found[32768], found[65536]
    memory = (whole["peak"] - base) / (2 * (half["peak"] - base))
    rest = (whole["rest"] / 65536) / (half["rest"] / 32768)
    print(f"64k tokens against twice 32k: memory {memory:.2f} (bar {BAR_MEMORY}), time {rest:.2f} (bar {BAR_TIME})")
    return int(memory > BAR_MEMORY or rest > BAR_TIME)


if __name__ == "__main__":
    raise SystemExit(main())
