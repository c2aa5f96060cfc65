"""Prefix forks: the length is steered to one half, nothing of a prefix is trained on, and a resumed run is the same."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from test_collect import GENERATION, SUBMIT, Bytes, Generator, bash

from swe_gym.envs import EpisodeCheckpoint
from swe_gym.errors import UsageError
from swe_gym.rollout import Failure
from swe_gym.rollout.tokens import ChatTemplate
from swe_gym.train.collect import Collector, PlayedBatch, TrainSlot
from swe_gym.train.config import CollectConfig, EnvConfig
from swe_gym.train.prefixes import Prefixes, find_failed, steer_length
from swe_gym.trajectories import PolicyInfo, Trajectory, Turn


def episode(task_id: str, turns: int, *, resolved: bool = True, parent: str = "", policy: str = "tokens") -> Trajectory:
    return Trajectory(
        task_id=task_id,
        env={"source": "micro"},
        policy=PolicyInfo(name=policy),
        observation="?",
        turns=tuple(
            Turn(action=str(number), observation="", terminated=number == turns) for number in range(1, turns + 1)
        ),
        outcome="submitted",
        reward_valid=True,
        resolved=resolved,
        reward=float(resolved),
        parent=parent,
    )


@pytest.mark.parametrize(
    ("length", "share", "longest", "wanted"),
    [(3, 0.5, 9, 3), (3, 1.0, 9, 1), (3, 0.0, 9, 6), (8, 0.0, 9, 9), (1, 1.0, 9, 1), (2, 0.625, 4, 1), (2, 0.25, 4, 3)],
)
def test_a_length_is_steered_to_one_half(length: int, share: float, longest: int, wanted: int) -> None:
    assert steer_length(length, share, longest) == wanted


def test_a_length_settles_where_half_of_the_group_succeeds() -> None:
    """A task whose pass rate rises with each given action, and a policy that learns."""
    for need, settled in ((1, 1), (6, 6), (14, 14), (99, 19)):
        length = 10
        for _ in range(12):
            length = steer_length(length, min(1.0, max(0.0, 0.5 + (length - need) / 8)), 19)
        assert abs(length - settled) <= 2


def test_the_shortest_success_from_the_start_is_kept() -> None:
    prefixes = Prefixes()
    prefixes.add([episode("a", 6), episode("a", 9), episode("b", 1), episode("c", 4, resolved=False)])
    prefixes.add([episode("d", 4, parent="point")])
    assert {name: (len(one.record.turns), one.length) for name, one in prefixes.found.items()} == {"a": (6, 3)}
    prefixes.steer("a", [False] * 8)
    assert (prefixes.found["a"].length, prefixes.point("a").actions) == (5, ("1", "2", "3", "4", "5"))
    prefixes.add([episode("a", 3)])
    assert (len(prefixes.found["a"].record.turns), prefixes.found["a"].length) == (3, 2)
    again = Prefixes(json.loads(json.dumps(prefixes.facts())), ["x"])
    assert (again.found, again.point("a").ignore) == (prefixes.found, ("x",))
    for _ in range(2):
        prefixes.forget("a", "why")
        prefixes.steer("a", [True])
        assert prefixes.found == {}
    with pytest.raises(UsageError, match="the gold policy applies the patch of a in one command"):
        prefixes.add_demonstrations([episode("a", 3, policy="gold")])
    agent = episode("a", 3).model_copy(update={"policy": PolicyInfo(name="llm", options={"agent": "mini"})})
    with pytest.raises(UsageError, match="no episode gives a prefix"):
        prefixes.add_demonstrations([agent, episode("a", 3).model_copy(update={"env": {}})])
    prefixes.add_demonstrations([agent, episode("b", 3)])
    assert prefixes.found.keys() == {"b"}


def test_a_success_whose_longest_prefix_cannot_be_played_again_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    whole = episode("a", 4)
    judged = whole.turns[2].model_copy(update={"tool": "submit", "info": {"tool_ok": True}})
    prefixes = Prefixes()
    prefixes.add([whole.model_copy(update={"turns": (*whole.turns[:2], judged, whole.turns[3])})])
    assert prefixes.found == {}
    assert "turn 3 ended a step of the task, which was judged" in caplog.text


def test_text_that_differs_is_checked_before_a_run() -> None:
    with pytest.raises(ValueError, match="is not a regular expression"):
        CollectConfig(prefixes=True, ignore=("(",))
    (usual,) = CollectConfig.model_validate_json(CollectConfig().model_dump_json()).ignore
    for line in ("== 2 passed in 0.12s ==", "Ran 3 tests in 0.001s"):
        assert re.sub(usual, "", line) != line


class Played:
    """Plays what a test says, in place of a collector."""

    task_ids = ("t0", "t1", "t2", "t3")

    def __init__(self, ends: Any, refused: str = "") -> None:
        self.ends, self.refused, self.slots = ends, refused, []

    def check_point(self, point: EpisodeCheckpoint) -> None:  # noqa: ARG002
        if self.refused:
            raise UsageError(self.refused)

    def play(self, slots: Any, temperature: float) -> PlayedBatch:  # noqa: ARG002
        self.slots += slots
        return PlayedBatch.of([(slot, self.ends(slot, place % 2)) for place, slot in enumerate(slots)], {})


def refill(played: Played, model_folder: str, tmp_path: Path) -> Any:
    """Play an update of two groups of two, each task with an earlier success. Return the trainer and the episodes."""
    from test_loop import config

    from swe_gym.train.loop import Trainer

    algorithm = {"prompts_per_step": 2, "group_size": 2, "zero_variance_groups": "refill", "advantage": "rloo"}
    trainer = Trainer(config(model_folder, tmp_path, algorithm=algorithm, collect={"prefixes": True}))
    trainer.log.close()
    trainer.state.prefixes.add(episode(task_id, 3) for task_id in played.task_ids)
    return trainer, trainer._play(played)


def test_groups_with_a_gradient_are_not_played_again(model_folder: str, tmp_path: Path) -> None:
    """A reward that is not binary has a gradient without a resolved episode."""
    pytest.importorskip("torch")

    def end(slot: TrainSlot, place: int) -> Trajectory:
        return episode(slot.task_id, 3, resolved=False).model_copy(update={"reward": place / 2})

    played = Played(end)
    _, found = refill(played, model_folder, tmp_path)
    assert (len(found.trajectories), {slot.point for slot in played.slots}) == (4, {None})


@pytest.mark.parametrize("why", ["at a limit", "context", "differs"])
def test_a_success_that_gives_no_episodes_is_forgotten(why: str, model_folder: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def end(slot: TrainSlot, _: int) -> Trajectory | Failure:
        if slot.point is None:
            return episode(slot.task_id, 3, resolved=False)
        full = {"turns": (), "reason": "context", "parent": "x", "resolved": False}
        return (
            episode(slot.task_id, 3).model_copy(update=full)
            if why == "context"
            else Failure("ReplayError", "reset", "turn 1 differs", retry=False)
        )

    trainer, found = refill(Played(end, why if why == "at a limit" else ""), model_folder, tmp_path)
    assert trainer.state.prefixes.found == {}
    assert (found.lost, len(found.lost_branches)) == ((), 8 if why == "differs" else 0)


def test_groups_without_a_resolved_episode_have_failed() -> None:
    played = [episode("a", 2, resolved=False), episode("b", 2, resolved=False), episode("b", 2)]
    assert find_failed(played, [7, 8, 8]) == {7: "a"}


def test_prefixes_learn_where_rloo_does_not() -> None:
    path = Path(__file__).parents[2] / "benchmarks/prefix_forks.py"
    spec = importlib.util.spec_from_file_location("prefix_forks", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for prefixes, learns in ((False, False), (True, True)):
        ends = [module.simulate(0.3, seed, prefixes=prefixes) for seed in (1, 2)]
        assert [end is not None for end in ends] == [learns] * 2


# --- episodes ----------------------------------------------------------------------------------------------------


def say(seed: int | None, number: int) -> str:  # noqa: ARG001
    """Two calls and a submit, by the seed, which is that of the episode and the number of the turn."""
    return [bash("mkdir ready"), bash("ls -d ready"), SUBMIT][(seed or 0) % 10]


class Ended(Bytes):
    """A tokenizer whose template ends answers as the generator does, so that conversations only grow."""

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> str:
        texts = [f"<{one['role']}>{one['content']}{'$' * (one['role'] == 'assistant')}\n" for one in messages]
        return "".join(texts) + "<assistant>"


def play(executor: str, *slots: TrainSlot) -> PlayedBatch:
    options = {"max_turns": 3, "time_limit": 60.0}
    config = EnvConfig(id="SWE/Micro-v0", options=options, workers=2, executor=executor)
    one = Collector(config, GENERATION, Generator(say), ChatTemplate(Ended()), {"first": 0, "count": 4})
    try:
        return one.play([slot._replace(task_id=one.task_ids[0]) for slot in slots], temperature=1.0)
    finally:
        one.close()


@pytest.mark.parametrize("executor", ["threads", "node_parts:local_executor"])
def test_the_tokens_of_a_prefix_are_those_of_its_success_with_mask_0(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "rollout"))
    (whole,) = play("threads", TrainSlot("", 0, 0)).trajectories
    prefixes = Prefixes()
    prefixes.add([whole.model_copy(update={"resolved": True})])
    prefixes.steer(whole.task_id, [False])
    point = prefixes.point(whole.task_id)
    assert point.turn == 2
    found = play(executor, TrainSlot("", -1, 100, point), TrainSlot("", -1, 0, point))
    assert (found.groups, found.lost) == ((-1, -1), ())
    (segment,) = whole.segments
    for branch in found.trajectories:
        assert (branch.parent, branch.branch_turn, branch.turns[0].action) == (point.id, 2, SUBMIT)
        (own,) = branch.segments
        assert own.token_ids == segment.token_ids
        first = len(own.token_ids) - len(SUBMIT) - 1
        assert (own.loss_mask, sum(segment.loss_mask)) == (
            (0,) * first + (1,) * (len(SUBMIT) + 1),
            sum(len(turn.action) + 1 for turn in whole.turns),
        )
        assert branch.usage.completion_tokens == len(SUBMIT) + 1


def test_a_prefix_that_differs_loses_its_episodes() -> None:
    (whole,) = play("threads", TrainSlot("", 0, 0)).trajectories
    wrong = whole.turns[0].model_copy(update={"observation": "another"})
    prefixes = Prefixes()
    prefixes.add([whole.model_copy(update={"resolved": True, "turns": (wrong, *whole.turns[1:])})])
    found = play("threads", TrainSlot("", -1, 0, prefixes.point(whole.task_id)))
    assert (found.trajectories, found.all_groups, found.lost) == ((), {-1}, ())
    assert found.lost_branches[0].startswith("ReplayError: the episode cannot continue after turn 1")


# --- a run -------------------------------------------------------------------------------------------------------


def needs_two_calls(prompt: str, seed: int | None) -> str:
    """A model that makes the first call in a quarter of the episodes, and then the right one in half of them."""
    turn, seed = prompt.count("<|im_start|>assistant") - 1, seed or 0
    if "Create the file" not in prompt:
        return "four"
    path, rest = prompt.split("Create the file `")[1].split("`", 1)
    word = rest.split(": ")[1].split()[0].removesuffix("<|im_end|>")
    right = bash(f"echo {word} > {path}") if "mkdir ready" in prompt and seed // 4 % 2 else bash("true")
    return [bash("mkdir ready" if seed % 4 == 0 else "true"), right, SUBMIT][turn]


def test_a_run_starts_failed_groups_again_and_resumes_bit_by_bit(model_folder: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from test_loop import SCRIPTED, config, numbers, weights

    from swe_gym.train.loop import Trainer

    generation = {**SCRIPTED, "options": {"reply": "test_prefixes:needs_two_calls"}, "max_context": 900}
    sections: dict[str, Any] = {
        "generation": generation,
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 900},
        "env": {"options": {"max_turns": 3, "difficulty": 1}, "train": {"first": 0, "count": 1}},
        "collect": {"prefixes": True},
        "algorithm": {"prompts_per_step": 1, "group_size": 4, "zero_variance_groups": "drop", "advantage": "rloo"},
    }
    whole = Trainer(config(model_folder, tmp_path / "whole", run={"updates": 3, "seed": 37}, **sections))
    whole.run()
    lines = numbers(tmp_path / "whole")
    assert {line["episodes"] for line in lines} == {4}
    assert [line.get("prefix_episodes") for line in lines] == [None, 4, 4]  # by this seed, only the first one succeeds
    assert [line["reward"] > 0 for line in lines] == [True, False, False]
    assert [(line["prefix_turns"], line["prefix_resolved"], line["trained"]) for line in lines[1:]] == [
        (1.0, 0.5, 4)
    ] * 2
    assert [sum("prefix" in row for row in line["played"]) for line in lines] == [0, 4, 4]

    Trainer(config(model_folder, tmp_path / "cut", run={"updates": 1, "seed": 37}, **sections)).run()
    sections["collect"]["ignore"] = ["no such text"]  # may be added on resume
    resumed = Trainer(config(model_folder, tmp_path / "cut", run={"updates": 3, "seed": 37}, **sections))
    resumed.run()
    assert torch.equal(weights(whole), weights(resumed))
    assert numbers(tmp_path / "cut") == lines


# --- branches, states --------------------------------------------------------------------------------------------


def test_tokens_before_a_branch_have_the_advantages_of_all_episodes_that_go_through_them() -> None:
    torch = pytest.importorskip("torch")
    from swe_gym.train.batch import make_batch
    from swe_gym.train.loop import share_with_roots
    from swe_gym.trajectories import Segment

    def answers(count: int, branch_turn: int = 0) -> Trajectory:
        mask = (0, 1) * count
        row = Segment(token_ids=mask, loss_mask=mask, logprobs=(0.0,) * len(mask), versions=tuple(v - 1 for v in mask))
        parts = {"segments": (row,), "branch_turn": branch_turn, "parent": "x" * bool(branch_turn)}
        return episode("a", count).model_copy(update=parts)

    slots = [TrainSlot("a", 0, 0, tree=5), TrainSlot("a", 0, 0, tree=6)]
    slots += [TrainSlot("a", 0, 0, tree=tree, grown=True) for tree in (5, 5, 6, 7)]
    ends = [answers(3), answers(2), answers(1, 2), answers(2, 1), answers(2), answers(1, 1)]
    played = PlayedBatch.of(zip(slots, ends, strict=True), {})
    advantages = torch.tensor([1.0, 2.0, 10.0, 100.0, 5.0, 7.0])
    found = share_with_roots(advantages, make_batch(ends), played)
    assert found.tolist() == [111.0, 11.0, 1.0, 2.0, 2.0, 10.0, 100.0, 100.0, 5.0, 5.0, 7.0]
    masked = [*ends[:2], ends[2].model_copy(update={"segments": ()}), *ends[3:]]
    assert share_with_roots(advantages, make_batch(masked), played).tolist()[:3] == [101.0, 1.0, 1.0]
    rest = played.keep([False] + [True] * 5)  # its root is not trained on
    assert share_with_roots(advantages[1:], make_batch(ends[1:]), rest).tolist() == found.tolist()[3:]


def test_metrics_tell_what_states_and_branches_give(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("torch")
    from swe_gym.train.config import make_config
    from swe_gym.train.loop import Trainer, count_shared_states, rollout_metrics

    def walk(*signatures: str) -> Trajectory:
        one = episode("a", len(signatures))
        named = zip(one.turns, signatures, strict=True)
        return one.model_copy(
            update={"turns": tuple(turn.model_copy(update={"info": {"signature": s}}) for turn, s in named)}
        )

    slots = [TrainSlot("a", 0, 0), TrainSlot("a", 0, 0, grown=True)]  # a branch from the start of the task
    met, alone = [walk("x", "y", ""), walk("x", "", "")], [walk("x", "y", ""), walk("z", "", "")]
    played = PlayedBatch.of(zip(slots, met, strict=True), {"all": 1.0})
    assert count_shared_states(played) == {"frac_signed": 0.75, "frac_shared_states": 0.5}
    lonely = count_shared_states(PlayedBatch.of(zip(slots, alone, strict=True), {}))
    assert lonely["frac_shared_states"] == 0
    trainer = Trainer.__new__(Trainer)
    trainer.config = make_config(
        {"model": {"path": "m"}, "env": {"held_out": {"first": 9}}, "algorithm": {"advantage": "rtmc"}}
    )
    trainer._warned = set()
    for metrics in (count_shared_states(played), lonely, lonely):
        trainer._warn_of_lonely_states(metrics)
    assert caplog.text.count("(75 % have a signature), so advantage 'rtmc' compares whole episodes") == 1
    assert count_shared_states(PlayedBatch.of([(slots[0], walk(""))], {})) == {}
    assert rollout_metrics(played)["branches"] == 1
    assert played.join(PlayedBatch.of([], {})).seconds == {"all": 1.0}


@pytest.mark.parametrize(
    ("advantage", "updates"),
    [("tree_grpo", 1), *(pytest.param(name, 2, marks=pytest.mark.thorough) for name in ("tree_grpo", "rtmc"))],
)
def test_a_run_compares_branches_or_states_and_resumes_bit_by_bit(
    advantage: str, updates: int, model_folder: str, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    from test_loop import SCRIPTED, config, numbers, weights

    from swe_gym.train.loop import EPISODES, Trainer

    branches = int(advantage == "tree_grpo")
    sections: dict[str, Any] = {
        "generation": {**SCRIPTED, "options": {"reply": "test_prefixes:needs_two_calls"}, "max_context": 900},
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 900},
        "env": {"options": {"max_turns": 3, "difficulty": 1}, "train": {"first": 0, "count": 1}},
        "collect": {"branches": branches},
        "algorithm": {"prompts_per_step": 1, "group_size": 2, "advantage": advantage},
    }
    whole = Trainer(config(model_folder, tmp_path / "whole", run={"updates": updates, "seed": 37}, **sections))
    whole.run()
    lines = numbers(tmp_path / "whole")
    assert [len(line["played"]) for line in lines] == [2 * (1 + branches)] * updates
    assert lines[0]["trained"] == 2 * (1 + branches)
    episodes = list(Trajectory.read(tmp_path / "whole" / EPISODES / "update-1.jsonl"))
    signed = {turn.info.get("signature", "")[:1] != "" for one in episodes for turn in one.turns[:-1]}
    assert signed == {not branches}
    assert [one.branch_turn > 0 for one in episodes] == [False, False, *([False, True] if branches else [])]  # by seed
    if updates == 1:
        return
    Trainer(config(model_folder, tmp_path / "cut", run={"updates": 1, "seed": 37}, **sections)).run()
    resumed = Trainer(config(model_folder, tmp_path / "cut", run={"updates": updates, "seed": 37}, **sections))
    resumed.run()
    assert torch.equal(weights(whole), weights(resumed))
    assert numbers(tmp_path / "cut") == lines
