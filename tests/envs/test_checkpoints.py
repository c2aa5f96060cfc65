"""Checkpoints: an episode goes on from a point of another, and nothing that a stranger wrote into one gets far."""

import base64
import json
import pickle
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.error import ResetNeeded

from swe_gym.envs import EpisodeCheckpoint, SweEnv
from swe_gym.envs.checkpoint import start_of_task
from swe_gym.errors import FileError, ReplayError, SandboxError, UsageError
from swe_gym.rollout import play as play_episode
from swe_gym.rollout.episode import replay_trajectory
from swe_gym.rollout.policies.baseline import ScriptedPolicy
from swe_gym.sandboxes import Snapshot
from swe_gym.sandboxes.local import LocalSandbox
from swe_gym.trajectories.formats.chat import to_sft
from swe_gym.types import FolderWorkspace, SandboxNeeds
from swe_gym.wrappers import (
    Budget,
    ChatMessages,
    RecordTrajectory,
    ShapeReward,
    TaskCurriculum,
    ToolMenu,
    TruncateObservation,
)


def act(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.fixture
def make() -> Iterator[Any]:
    envs: list[Any] = []

    def make_one(**options: Any) -> SweEnv:
        envs.append(gym.make("SWE/Toy-v0", disable_env_checker=True, **options))
        env = envs[-1].unwrapped
        assert isinstance(env, SweEnv)
        return env

    yield make_one
    for env in envs:
        env.close()


WORK = (
    act("bash", command="mkdir -p made/empty; echo 1 > made/file; rm README.md; echo out > ~/out"),
    act("edit", command="create", path="new.py", file_text="x = 1\n"),
    "no call at all \ud800",
)


def play(env: SweEnv, *actions: str) -> str:
    observation = ""
    for action in actions:
        observation = env.step(action)[0]
    return observation


def test_an_episode_continues_from_a_point_of_another(make: Any, tmp_path: Path) -> None:
    parent, child = make(), make(max_turns=6)
    first, _ = parent.reset(seed=3)
    last = play(parent, *WORK)
    point = parent.checkpoint()
    point.write(tmp_path / "point.json")
    assert pickle.loads(pickle.dumps(point)) == EpisodeCheckpoint.read(tmp_path / "point.json") == point
    assert (point.turn, point.observation, point.actions, point.parent) == (3, first, WORK, "")
    assert len(point.files) < 3000

    observation, info = child.reset(options={"checkpoint": json.loads((tmp_path / "point.json").read_text())})
    assert observation.startswith(f"{last.rstrip()}\n\n[The episode continues after turn 3 in a new sandbox.")
    assert (info["turn"], info["invalid_actions"], info["task_id"]) == (3, 1, point.task_id)
    assert child.sandbox.manifest() == parent.sandbox.manifest()
    assert child.step(act("bash", command="cat ~/out; ls made"))[0].startswith("out\nempty\nfile\n")
    assert "was undone" in child.step(act("edit", command="undo", path="new.py"))[0]
    later = child.checkpoint()
    assert (later.parent, later.turn, later.actions[:3]) == (point.id, 5, WORK)
    assert "new.py" in parent.sandbox.manifest()
    assert "new.py" not in child.sandbox.manifest()
    *_, terminated, truncated, info = child.step(act("listdir"))
    assert (terminated, truncated, info["limit"], info["turn"]) == (False, True, "turns", 6)
    assert child.patch().paths == ("README.md", "made/file")  # from the start of the task


def test_the_record_of_a_branch_names_its_point(point: EpisodeCheckpoint, make: Any) -> None:
    recorder = RecordTrajectory(make())
    recorder.reset(options={"checkpoint": point})
    recorder.step(act("submit"))
    record = recorder.trajectory
    assert (record.parent, record.branch_turn, len(record.turns)) == (point.id, 1, 1)
    with pytest.raises(UsageError, match="its episode started from a checkpoint"):
        replay_trajectory(record)
    assert list(to_sft([record])) == []  # the task is not in it


def test_a_wrapped_branch_goes_on_where_its_point_was(make: Any) -> None:
    """Wrappers of a branch know of the episode before it what those of the first episode know."""

    def wrap(env: Any) -> Any:
        env = Budget(TruncateObservation(env, 200), turns=20, tokens=9000, seconds=900)
        return TaskCurriculum(ChatMessages(ShapeReward(env, per_invalid=-0.5)))

    parent, child = wrap(make()), wrap(make())
    parent.reset(seed=3)
    for action in WORK:
        messages, *_, told = parent.step(action)
    messages_of_child, info = child.reset(options={"checkpoint": parent.unwrapped.checkpoint()})
    assert messages_of_child[:-1] == messages[:-1]
    assert messages_of_child in child.observation_space
    assert (info["turns_left"], info["task_id"]) == (told["turns_left"], told["task_id"])
    assert told["tokens_left"] - 60 < info["tokens_left"] < told["tokens_left"]
    assert child.step(WORK[0])[1] == 0.0
    parent.reset()
    assert child.reset()[1]["turns_left"] == 20


def test_a_menu_of_a_branch_has_what_was_left(make: Any) -> None:
    menu = [{"name": "listdir", "arguments": {}, "once": True}, {"name": "submit"}]
    parent, child = ToolMenu(make(), menu), ToolMenu(make(), menu)
    parent.reset(seed=3)
    parent.step(0)
    child.reset(options={"checkpoint": parent.unwrapped.checkpoint()})
    assert child.action_masks().tolist() == [False, True]


def test_a_policy_without_history_plays_no_branch(point: EpisodeCheckpoint, make: Any) -> None:
    class Talker:
        def reset(self, info: Any) -> None: ...

        def act(self, observation: str) -> str:  # noqa: ARG002
            return act("submit")

    with pytest.raises(UsageError, match="Talker cannot continue an episode"):
        play_episode(make(), Talker(), options={"checkpoint": point})
    assert play_episode(make(), ScriptedPolicy([act("submit")]), options={"checkpoint": point}).parent == point.id


def test_actions_are_played_again_with_programs_and_without_a_note(make: Any) -> None:
    """A replay restores what no file holds, and counts the time that the episode took, not its own."""
    parent, child = make(), make(max_turns=4)
    parent.reset(seed=3)
    background = act("bash", command="(sleep 60 & echo $! > pid); echo 1 > one")
    last = play(parent, *WORK[:2], background)
    point = parent.checkpoint()
    for checkpoint, options in (
        (tamper(point, seconds=700.0), {"restore": "replay"}),
        (tamper(point, seconds=700.0, files=b"", start={}), {}),
    ):
        observation, info = child.reset(options={"checkpoint": checkpoint, **options})
        assert (observation, info["turn"]) == (last, 3)
        assert child.stats["seconds"]["tools"] == 0
        assert 1000 < child.deadline - time.monotonic() <= 1100
        assert child.stats["parent"] == checkpoint["id"]
        observation, *_, info = child.step(act("bash", command="kill -0 $(cat pid) && cat one"))
        assert (observation.split("\n")[0], info["limit"]) == ("1", "turns")
    with pytest.raises(UsageError, match="has no files"):
        child.reset(options={"checkpoint": tamper(point, files=b""), "restore": "files"})
    with pytest.raises(UsageError, match="way to restore a checkpoint: 'copy'"):
        child.reset(options={"checkpoint": point, "restore": "copy"})


def test_a_replay_stops_at_the_first_byte_that_differs(make: Any) -> None:
    env = make()
    env.reset(seed=3)
    play(env, act("bash", command="echo same; date +%N"), act("listdir"))
    point = env.checkpoint()
    with pytest.raises(ReplayError, match=r"turn 1: observation differs at byte [5-9]\b(.|\n)*recorded: 'same"):
        env.reset(options={"checkpoint": point, "restore": "replay"})
    with pytest.raises(ResetNeeded):
        env.step(act("listdir"))
    env.reset(options={"checkpoint": tamper(point, ignore=(r"\d{3,}",)), "restore": "replay"})
    with pytest.raises(ReplayError, match="reset: observation differs at byte 0"):
        env.reset(options={"checkpoint": tamper(point, observation="another task"), "restore": "replay"})
    ends = tamper(point, actions=(act("submit"), act("listdir")), observations=("The work was submitted.", ""))
    with pytest.raises(ReplayError, match=r"turn 1 ended the episode \(submitted\), unlike before"):
        env.reset(options={"checkpoint": ends, "restore": "replay"})


def test_a_sandbox_that_fails_in_a_replay_may_be_tried_again(make: Any) -> None:
    options = {"files": {"a": ""}, "faults": [{"at": "exec", "error": "SandboxLost"}]}
    env = make(backend="fake", sandbox_options={"options": options})
    first, _ = env.reset(seed=3)
    point = EpisodeCheckpoint(
        task_id=env.task.task_id, turn=1, observation=first, actions=(act("bash", command="ls"),), observations=("a",)
    ).named()
    with pytest.raises(SandboxError, match="failed when turn 1 was played again: SandboxLost") as error:
        env.reset(options={"checkpoint": point})
    assert error.value.retryable


@pytest.mark.slow
def test_parent_and_child_share_nothing(make: Any) -> None:
    """Each makes more than 200 random edits, in and out of the workspace, and kills: the other one stays as it is."""
    path = Path(__file__).parents[2] / "benchmarks/forks.py"
    code = dict(re.findall(r'^(EDIT|DESCRIBE) = r"""\n(.*?)^"""', path.read_text(), re.MULTILINE | re.DOTALL))
    edits = "for i in $(seq {0} {1}); do python3 -c {2} $i; done; sleep 60 & kill -9 $!"
    parent, child = make(), make()
    parent.reset(seed=3)
    parent.sandbox.exec(edits.format(1, 2, shlex.quote(code["EDIT"])))
    child.reset(options={"checkpoint": parent.checkpoint()})

    def describe(env: SweEnv) -> str:
        return env.sandbox.exec(["python3", "-c", code["DESCRIBE"]]).text

    assert describe(parent) == describe(child)
    for writer, other in ((parent, child), (child, parent)):
        before, own = describe(other), describe(writer)
        writer.sandbox.exec(edits.format(10, 27, shlex.quote(code["EDIT"])))
        assert (describe(other), describe(writer) != own) == (before, True)


class Unmarked(LocalSandbox):
    """A sandbox whose folders cannot be read at the start."""

    def mark_start(self, *, timeout: float = 120.0) -> None:
        raise FileError(f"/proc is not there, after {timeout:g} s")


def test_a_start_that_cannot_be_marked_costs_only_checkpoints() -> None:
    with gym.make("SWE/Toy-v0", backend=f"{__name__}:Unmarked") as env:
        env.reset(seed=3)
        with pytest.raises(FileError, match="the start of the sandbox was not marked"):
            env.get_wrapper_attr("checkpoint")()
        assert env.step(act("submit"))[4]["reward_valid"]


def test_a_full_disk_is_not_the_callers_mistake(point: EpisodeCheckpoint, make: Any) -> None:
    env = make(sandbox_options={"disk_mb": 40})
    large = Snapshot({"testbed/x": ["file", 0o644, 0, 0, 1, 60 << 20]}, bytes(60 << 20)).pack()
    with pytest.raises(FileError, match="No space left"):
        env.reset(options={"checkpoint": tamper(point, files=large)})


def test_another_version_of_the_task_has_another_start(make: Any) -> None:
    env = make()
    env.reset(seed=3)
    task = env.task
    hidden = task.oracle.model_copy(update={"test_files": {"t.py": ""}})
    changed = [{"problem_statement": "?"}, {"needs": SandboxNeeds(network="egress")}, {"oracle": hidden}]
    starts = [start_of_task(task.model_copy(update=one), "local", None)["task"] for one in ({}, *changed)]
    assert len(set(starts)) == 4
    moved = task.model_copy(update={"workspace": FolderWorkspace(path="/elsewhere"), "tags": ("x",)})
    assert start_of_task(moved, "local", None)["task"] == starts[0]


def test_one_point_gives_equal_episodes(make: Any) -> None:
    parent = make()
    parent.reset(seed=1)
    play(parent, *WORK)
    point = parent.checkpoint()
    assert parent.checkpoint().files == point.files
    results = []
    for _ in range(2):
        child = make()
        results.append(
            (child.reset(options={"checkpoint": point}), child.step(act("bash", command="ls -la; git status")))
        )
    assert results[0] == results[1]
    parent.reset(seed=1)
    assert parent.checkpoint().turn == 0


MOVE = """
mv tests way; mkdir -p tests/deep; mv way tests/deep/moved; mv README.md tests/deep
for name in */; do mv "$name" "x-$name"; mkdir "$name"; mv "x-$name" "$name/inner"; done
git add -A; git commit -qm moved; git status --short
"""


def test_folders_of_the_repository_may_be_moved(make: Any) -> None:
    parent, child, grandchild = make(), make(), make()
    parent.reset(seed=3)
    play(parent, act("bash", command=MOVE))
    child.reset(options={"checkpoint": parent.checkpoint()})
    moved = parent.sandbox.manifest()
    assert child.sandbox.manifest() == moved
    assert [name for name in moved if name.startswith("tests/inner/deep/moved/")]
    play(child, act("bash", command="mv tests/inner/deep .; rm -r tests"))
    grandchild.reset(options={"checkpoint": child.checkpoint()})
    assert grandchild.sandbox.manifest() == child.sandbox.manifest()
    assert parent.sandbox.manifest() == moved


def test_breakpoints_are_kept_and_the_session_is_not(make: Any) -> None:
    parent, child = make(), make()
    parent.reset(options={"task_id": "ledger-lost-entry"} if "ledger-lost-entry" in parent.source.ids() else None)
    parent.sandbox.write_file("prog.py", b"a = 1\nb = 2\nc = 3\n")
    parent.step(act("pdb", command="b prog.py:2", entrypoint="python prog.py"))
    child.reset(options={"checkpoint": parent.checkpoint()})
    assert "prog.py:2" in (said := child.step(act("pdb", command="c"))[0]), said
    assert "-> b = 2" in said or "b = 2" in said


def tamper(point: EpisodeCheckpoint, **changes: Any) -> dict[str, Any]:
    """Return the JSON of a point with other fields, and the `id` that belongs to them."""
    changed = point.model_copy(update=changes).named()
    return json.loads(json.dumps(changed.model_dump(mode="json")))


def packed(path: str, kind: str = "file", more: Any = 1, data: bytes = b"x") -> bytes:
    return Snapshot({path: [kind, 0o644, 0, 0, 1, more]}, data).pack()


@pytest.fixture(scope="module")
def point() -> Iterator[EpisodeCheckpoint]:
    with gym.make("SWE/Toy-v0", disable_env_checker=True) as env:
        env.reset(seed=3)
        env.step(act("bash", command="touch x"))
        assert isinstance(env.unwrapped, SweEnv)
        yield env.unwrapped.checkpoint()


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a parent": ({"files": packed("../../escaped")}, "leads out of the folder"),
    "an absolute path": ({"files": packed("/etc/escaped")}, "leads out of the folder"),
    "a device": ({"files": packed("testbed/x", "device", None, b"")}, "is not an entry"),
    "no snapshot": ({"files": b"garbage"}, "not a snapshot"),
    "a missing part": ({"files": packed("testbed/x", more=100)}, "have 100 bytes, and 1 came"),
    "a bomb": ({"files": packed("testbed/x", more=400 << 20, data=bytes(400 << 20))}, "more than"),
    "another task's start": ({"start": {"backend": "local", "image": "", "task": "?"}}, "its task is '\\?'"),
    "another version of the task": (
        {"start": {"isolation": "namespace", "origin": "0" * 40}},
        r"its (isolation|origin) is",
    ),
    "another backend": ({"start": {"backend": "docker"}}, "its backend is 'docker', and here it is 'local'"),
    "turns that it does not have": ({"actions": ("x",) * 9}, "actions and observations must be as many"),
    "a state that no tool has": ({"tools": {"edit": {"x.py": [[1, 2]]}}}, "invalid state of the tool 'edit'"),
    "the last second": ({"seconds": 9e4}, "at second 90000, and the time limit is 1800 s"),
    "the last turn": ({"turn": 50}, "at turn 50, and max_turns is 50: raise max_turns"),
    "an unknown task": ({"task_id": "nothing"}, "nothing"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_changed_checkpoint_is_refused_by_name(what: str, point: EpisodeCheckpoint, make: Any) -> None:
    changes, message = HOSTILE[what]
    if "start" in changes:
        changes = {"start": {**point.start, **changes["start"]}}
    env = make()
    with pytest.raises(UsageError, match=message):
        env.reset(options={"checkpoint": tamper(point, **changes)})
    with pytest.raises(ResetNeeded):
        env.step(act("listdir"))


def test_a_late_point_ends_with_its_first_step_if_it_is_allowed(point: EpisodeCheckpoint, make: Any) -> None:
    env = make()
    env.reset(options={"checkpoint": tamper(point, seconds=9e4), "late": True})
    *_, truncated, info = env.step(act("listdir"))
    assert (truncated, info["limit"]) == (True, "time")


def test_what_is_no_checkpoint_is_refused(point: EpisodeCheckpoint, make: Any, tmp_path: Path) -> None:
    env = make()
    data = json.loads(json.dumps(point.model_dump(mode="json")))
    flipped = base64.urlsafe_b64encode(point.files[:-1]).decode()
    for value, message in (
        ("point.json", "not a checkpoint: str"),
        ({**data, "files": flipped}, "it was changed"),
        ({**data, "version": 2}, "version"),
        ({**data, "more": 1}, "more"),
        ({}, "not a checkpoint of version 1"),
    ):
        with pytest.raises(UsageError, match=message):
            env.reset(options={"checkpoint": value})
    with pytest.raises(UsageError, match="leave the option task_id out"):
        env.reset(options={"checkpoint": point, "task_id": "other"})
    (tmp_path / "half").write_bytes(json.dumps(data).encode()[:-9])
    for name, message in (("nothing", "No such file"), ("half", "cannot be used")):
        with pytest.raises(UsageError, match=message):
            EpisodeCheckpoint.read(tmp_path / name)


def test_a_huge_file_is_refused_and_the_episode_continues(make: Any) -> None:
    env = make()
    env.reset(seed=3)
    env.step(act("bash", command="truncate -s 300M huge"))
    with pytest.raises(FileError, match="/huge has 314572800 bytes"):
        env.checkpoint()
    env.step(act("bash", command="rm huge"))
    assert env.checkpoint().turn == 2


def test_a_checkpoint_holds_nothing_of_the_oracle(point: EpisodeCheckpoint, make: Any) -> None:
    env = make()
    env.reset(options={"checkpoint": point})
    hidden = [text for text in env.task.oracle.test_files.values() if len(text) > 100]
    assert hidden
    whole = json.dumps(point.model_dump(mode="json")) + repr(point.snapshot())
    assert not [text for text in hidden if text[:100] in whole or text in whole]
