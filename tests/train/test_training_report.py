"""The report of a fresh run with a tiny model and real sandboxes."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_loop import SCRIPTED, config, says_by_seed  # noqa: E402  only where torch is there

from swe_gym.errors import PolicyError  # noqa: E402
from swe_gym.train.loop import Trainer  # noqa: E402
from swe_gym.viewer.report import write_training_report  # noqa: E402
from swe_gym.viewer.training import TrainingRun, overhead, read_training, spent_by_update  # noqa: E402

RECORDED = Path(__file__).parent.parent / "viewer" / "training_runs"
"""Run folders that `scripted_run` wrote, for tests without torch."""

SECTIONS: dict[str, dict[str, Any]] = {
    "rloo": {},
    "gae": {"algorithm": {"advantage": "gae", "async_rollout": True}, "model": {"value_head": True}},
}


def fails_at_times(prompt: str, seed: int | None) -> str:
    """Return a right or wrong answer, or fail, by seed."""
    if seed is not None and seed % 7 == 0 and "Create the file" in prompt:
        raise PolicyError("the server hangs", reason="timeout", retryable=True)
    return says_by_seed(prompt, seed)


def scripted_run(start: str, output: Path, name: str) -> Path:
    """Run four updates, with an evaluation first and after every second."""
    values: dict[str, Any] = {
        "generation": {**SCRIPTED, "options": {"reply": "test_training_report:fails_at_times"}},
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
        "run": {"updates": 4, "evaluate_every": 2, "checkpoint_every": 2, "max_failed": 1.0},
        "algorithm": {"prompts_per_step": 4, "group_size": 2, "advantage": "rloo"},
        "evaluation": {"tasks": 4, "attempts": 2},
    }
    for section, changes in SECTIONS[name].items():
        values[section] = {**values.get(section, {}), **changes}
    Trainer(config(start, output, **values)).run()
    return output


def names_in(run: TrainingRun) -> set[str]:
    lines = [*run.updates, *run.evaluations, *run.saves]
    return {name for line in lines for name in line} | {name for line in run.updates for name in line["seconds"]}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_report_of_a_fresh_run(tiny_lm: Any, tokenizer: Any, tmp_path: Path, name: str) -> None:
    tiny_lm.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    folder = scripted_run(str(tmp_path / "start"), tmp_path / name, name)
    (run,), (recorded,) = read_training([folder]), read_training([RECORDED / name])
    assert (len(run.updates), len(run.evaluations), len(run.saves)) == (4, 3, 3)
    assert names_in(recorded) <= names_in(run), "record the runs of tests/viewer again"
    for (_, parts), line in zip(spent_by_update(run), run.updates, strict=True):
        assert min(parts.values()) >= 0
        saved = sum(one["seconds"] for one in run.saves if one["update"] == line["update"])
        assert sum(parts.values()) == pytest.approx(line["seconds"]["update"] + saved, rel=0.02, abs=0.02)
    assert 0 <= overhead(run) < 1
    assert write_training_report([folder], tmp_path / "out.html")[:2] == (1, 4)
