"""SFT before the first update, on demonstrations or on resolved episodes of a run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_loop import config  # noqa: E402  only where torch is there

from swe_gym.errors import UsageError  # noqa: E402
from swe_gym.rollout.engine import rollout  # noqa: E402
from swe_gym.rollout.plan import Plan  # noqa: E402
from swe_gym.rollout.tokens import ChatTemplate  # noqa: E402
from swe_gym.train.batch import make_batch  # noqa: E402
from swe_gym.train.config import EnvConfig  # noqa: E402
from swe_gym.train.log import read_log  # noqa: E402
from swe_gym.train.loop import Trainer  # noqa: E402
from swe_gym.train.sft import PromptFormat, resolved_episodes, tokenize, tokenize_text  # noqa: E402
from swe_gym.trajectories.trajectory import Segment, Trajectory, Turn  # noqa: E402

FORM = PromptFormat("Be brief.", "auto", frozenset({"bash", "submit"}))
LS = '{"name": "bash", "arguments": {"command": "ls"}}'
SUBMIT = '{"name": "submit", "arguments": {}}'


def episode(*actions: str, task: str = "t", resolved: bool = True, **changes: Any) -> Trajectory:
    """Make an episode in which calls that contain `ls` or `submit` are valid, and no others."""
    turns = [
        Turn(
            action=action,
            tool=next(
                (tool for word, tool in (("ls", "bash"), ("submit", "submit")) if re.search(rf"\b{word}\b", action)), ""
            ),
            arguments={"command": "ls"} if re.search(r"\bls\b", action) else {},
            observation=f"observation {number}",
        )
        for number, action in enumerate(actions)
    ]
    record = Trajectory(
        task_id=task,
        observation="the issue",
        turns=tuple(turns),
        outcome="submitted",
        reward_valid=True,
        resolved=resolved,
        reward=float(resolved),
    )
    return record.model_copy(update=changes)


def write(path: Path, *episodes: Trajectory) -> Path:
    for one in episodes:
        one.append(path)
    return path


def learned(trajectory: Trajectory, template: ChatTemplate) -> list[str]:
    """Return the text of the tokens with mask 1, by segment."""
    return [
        template.decode([token for token, mask in zip(one.token_ids, one.loss_mask, strict=True) if mask])
        for one in trajectory.segments
    ]


# --- which episodes -----------------------------------------------------------------------------------------


def test_only_resolved_episodes_are_used(tmp_path: Path) -> None:
    lost = episode(LS, reward_valid=False)
    path = write(tmp_path / "some.jsonl", episode(LS, resolved=False), lost, episode(SUBMIT), episode(LS, SUBMIT))
    assert [len(one.turns) for one in resolved_episodes(path)] == [1, 2]


def test_per_task_prefers_valid_calls_and_short_episodes(tmp_path: Path) -> None:
    clean = episode(LS, LS, SUBMIT)
    path = write(
        tmp_path / "some.jsonl",
        episode("what?", SUBMIT),  # shorter, with an invalid call
        clean,
        clean.model_copy(update={"attempt": 1}),  # the same actions
        episode(LS, LS, LS, SUBMIT),
        episode(SUBMIT, task="u"),
    )
    assert [one.task_id for one in resolved_episodes(path, 1)] == ["u", "t"]
    assert resolved_episodes(path, 1)[1] == clean
    assert sorted(len(one.turns) for one in resolved_episodes(path, 2) if one.task_id == "t") == [3, 4]
    assert len(resolved_episodes(path, 9)) == 4
    assert len(resolved_episodes(path)) == 5


def test_a_run_without_resolved_episodes_is_an_error(tmp_path: Path) -> None:
    branch = episode(LS).model_copy(update={"parent": "run/t/0:1"})
    path = write(tmp_path / "some.jsonl", episode(LS, resolved=False), branch)
    with pytest.raises(UsageError, match=r"some\.jsonl \(1 started from a checkpoint and are left out\) is resolved"):
        resolved_episodes(path)
    with pytest.raises(UsageError, match="neither a run folder nor a trajectory file"):
        resolved_episodes(tmp_path / "nothing")


# --- their tokens -------------------------------------------------------------------------------------------


def test_text_gets_the_tokens_that_training_would_sample(tokenizer: Any) -> None:
    template = ChatTemplate(tokenizer)
    played = episode("I look.\n" + LS, SUBMIT, messages=({"role": "system", "content": "a long prompt"},))
    made = tokenize_text(played, template, tokenizer.eos_token_id, FORM)
    assert learned(made, template) == [f"I look.\n{LS}<|im_end|>{SUBMIT}<|im_end|>"]
    (segment,) = made.segments
    text = template.decode(segment.token_ids)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nthe issue<|im_end|>")
    assert "<|im_start|>user\nobservation 0<|im_end|>" in text
    assert "a long prompt" not in text
    assert "observation 1" not in text  # the last observation is not part of the prompt


def native(name: str, arguments: str, **more: Any) -> str:
    call = {"id": "call-7", "type": "function", "function": {"name": name, "arguments": arguments}}
    return json.dumps({"role": "assistant", "content": None, **more, "tool_calls": [call]})


def test_a_native_tool_call_becomes_text(tokenizer: Any) -> None:
    template = ChatTemplate(tokenizer)
    played = episode(
        native("bash", '{"command": "ls"}', content="I look.", reasoning_content="Hm."), native("sing", "{"), SUBMIT
    )
    made = tokenize_text(played, template, tokenizer.eos_token_id, FORM)
    first, second, third, rest = learned(made, template)[0].split("<|im_end|>")
    assert first == f"<think>\nHm.\n</think>\n\nI look.\n\n{LS}"
    assert json.loads(second) == {"name": "sing", "arguments": "{"}
    assert (third, rest) == (SUBMIT, "")
    in_r2e = tokenize_text(played, template, tokenizer.eos_token_id, FORM._replace(action_format="r2e"))
    assert "<function=bash>\n<parameter=command>ls</parameter>\n</function>" in learned(in_r2e, template)[0]


def test_segments_of_another_tokenizer_are_replaced(tokenizer: Any) -> None:
    template, end = ChatTemplate(tokenizer), tokenizer.eos_token_id
    own = tokenize_text(episode(LS, SUBMIT), template, end, FORM._replace(system="Another prompt."))
    foreign = Segment(token_ids=(5, 6, 7), loss_mask=(0, 1, 1), logprobs=(0.0, -1.0, -1.0), versions=(-1, 0, 0))
    other = own.model_copy(update={"segments": (foreign,)})
    kept, made = tokenize([own, other], template, end, FORM, 1000)
    assert kept.segments == own.segments
    assert learned(made, template) == learned(own, template)
    assert "Be brief." in template.decode(made.segments[0].token_ids)


def test_an_agents_episode_may_branch_and_hold_unused_answers_and_side_calls(tokenizer: Any) -> None:
    template, end = ChatTemplate(tokenizer), tokenizer.eos_token_id
    own = tokenize_text(episode(LS, SUBMIT), template, end, FORM)
    unused = Turn(action="nobody took it", observation="", info={"used": False})
    branched = own.model_copy(update={"turns": (*own.turns[::-1], unused)})
    (kept,) = tokenize([branched], template, end, None, 1000)
    assert kept.segments == own.segments
    aside = own.segments[0].model_copy(update={"side_call": True})
    titled = own.model_copy(update={"segments": (aside, *own.segments)})
    assert make_batch([titled]).tokens == make_batch([own]).tokens
    with pytest.raises(UsageError, match="has no tokens of this model"):
        tokenize(
            [branched.model_copy(update={"turns": (unused.model_copy(update={"info": {}}),)})], template, end, None, 9
        )


def test_unknown_tools_are_refused_and_long_episodes_dropped(tokenizer: Any) -> None:
    template, end = ChatTemplate(tokenizer), tokenizer.eos_token_id
    with pytest.raises(UsageError, match=r"calls 'bash', which is not a tool of training \(submit\)"):
        tokenize([episode(LS)], template, end, FORM._replace(tools=frozenset({"submit"})), 1000)
    short, long = episode(SUBMIT), episode(*[LS] * 30)
    assert len(tokenize([short, long], template, end, FORM, 500)) == 1
    with pytest.raises(UsageError, match=r"all 1 SFT episodes .* longer than generation.max_context \(500 tokens\)"):
        tokenize([long], template, end, FORM, 500)


def test_the_prompt_format_is_that_of_the_training_environment() -> None:
    form = PromptFormat.of(EnvConfig(options={"tools": ["bash"], "action_format": "r2e"}))
    assert form.tools == {"bash"}
    assert form.action_format == "r2e"
    assert "bash(command" in form.system
    assert PromptFormat.of(EnvConfig(system="Do it.")).system == "Do it."


# --- a complete SFT -------------------------------------------------------------------------------------


def test_sft_on_a_run_folder(tiny_lm: Any, tokenizer: Any, tmp_path: Path) -> None:
    tiny_lm.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    plan = Plan(
        source="micro",
        source_options={"difficulty": 1, "count": 3},
        attempts=2,
        env={"action_format": "openai", "max_turns": 2},  # native tool calls
        policy="expert",
    )
    rollout(plan, tmp_path / "best")
    sft = {"trajectories": str(tmp_path / "best"), "per_task": 1, "epochs": 5, "lr": 1e-2, "batch_tokens": 600}
    run = config(str(tmp_path / "start"), tmp_path / "run", run={"updates": 0}, sft=sft)
    Trainer(run).run()
    lines = read_log(tmp_path / "run" / "log.jsonl")
    (taken,) = [line for line in lines if line["event"] == "demonstrations"]
    assert (taken["episodes"], taken["tasks"], taken["too_long"]) == (3, 3, 0)
    losses = [line["loss"] for line in lines if line["event"] == "sft"]
    assert losses[-1] < losses[0] - 1
