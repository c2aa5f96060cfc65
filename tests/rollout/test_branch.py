"""Episodes that continue recorded ones: by the command line, by every kind of policy, and on another process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_gym.cli.common import BranchPoint, trusted_env
from swe_gym.envs import EpisodeCheckpoint, SweEnv
from swe_gym.errors import ReplayError, UsageError
from swe_gym.rollout import Plan, RolloutOptions, play, rollout
from swe_gym.rollout.policies import make_policies
from swe_gym.rollout.policies.base import check_resumes, message_of
from swe_gym.rollout.policies.baseline import ScriptedPolicy
from swe_gym.rollout.policies.llm import action_of
from swe_gym.tasks.file import write_tasks
from swe_gym.testing.openai_server import CHAT, ModelReply, OpenAIServer
from swe_gym.trajectories.run_folder import EpisodeKey, open_trajectories
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.types import Task, ToolCall
from swe_gym.vector.slot import SlotAnswer
from swe_gym.viewer import write_results
from swe_gym_command import main

Make = Callable[..., SweEnv]


def act(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


LOOK, REPAIR = act("bash", command="cat calc.py"), act("bash", command="sed -i 's/a - b/a + b/' calc.py")


@pytest.fixture
def record(env_of_adder: Make) -> Trajectory:
    """A look, a repair, and a submit."""
    return play(env_of_adder(), ScriptedPolicy([LOOK, REPAIR, act("submit")]))


def test_a_turn_of_a_record_is_a_point(record: Trajectory, env_of_adder: Make) -> None:
    point = EpisodeCheckpoint.of_record(record, 2, origin="run/adder/0:2")
    assert (point.turn, point.actions, point.files) == (2, (LOOK, REPAIR), b"")
    branch = play(env_of_adder(), ScriptedPolicy([act("submit")]), options={"checkpoint": point})
    assert (branch.reward, branch.parent, branch.branch_turn, len(branch.turns)) == (1.0, "run/adder/0:2", 2, 1)
    assert branch.observation == record.turns[1].observation
    half = EpisodeCheckpoint.of_record(record, 1)
    branch = play(env_of_adder(), ScriptedPolicy([act("submit")]), options={"checkpoint": half})
    assert (branch.reward, branch.parent) == (0.0, half.id)


def test_what_cannot_be_a_point_is_refused(record: Trajectory) -> None:
    for changes, turn, message in (
        ({}, 3, "had 3 turns, so choose a turn from 1 to 2"),
        ({}, 0, "choose a turn from 1 to 2"),
        ({"turns": record.turns[-1:]}, 1, "had 1 turns, and the first one ended it"),
        ({"env": {}}, 1, "has no environment"),
        ({"parent": "x"}, 1, "started from a checkpoint"),
    ):
        with pytest.raises(UsageError, match=message):
            EpisodeCheckpoint.of_record(record.model_copy(update=changes), turn)
    for change, message in (
        ({"tool": "submit", "info": {"tool_ok": True}}, "turn 1 ended a step of the task"),
        ({"seconds": -9.0}, "cannot be replayed: seconds"),
    ):
        first = record.turns[0].model_copy(update=change)
        with pytest.raises(UsageError, match=message):
            EpisodeCheckpoint.of_record(record.model_copy(update={"turns": (first, *record.turns[1:])}), 1)
    with pytest.raises(UsageError, match="invalid regular expression"):
        EpisodeCheckpoint.of_record(record, 1, ignore=["("])


def test_a_file_runs_no_code_and_opens_nothing(record: Trajectory) -> None:
    """Someone else may have written it. The user's own arguments win."""

    def changed(**env: Any) -> Trajectory:
        return record.model_copy(update={"env": {**record.env, **env}})

    for env, message in (
        ({"source": "subprocess:Popen"}, "names code, source 'subprocess:Popen'"),
        ({"reward": "os:system"}, "names code, reward"),
        ({"tools": ["bash", "os:system"]}, "names code, tools 'os:system'"),
        ({"sandbox_options": {"mounts": {"/x": "/etc"}}}, "add --sandbox-option mounts=..."),
        ({"sandbox_options": {"network": ["example.org"]}}, "add --sandbox-option network=..."),
        ({"sandbox_options": {"options": {"runtime": "x"}, "build": {}}}, "add --sandbox-option options=..."),
        ({"backend": None}, "has no backend"),
    ):
        with pytest.raises(UsageError, match=message):
            trusted_env(changed(**env), {})
    mine = {"network": "egress", "memory_mb": 99}
    kept = changed(sandbox_options={"network": "none", "memory_mb": 777, "pids": 64})
    assert trusted_env(kept, {"backend": None})["sandbox_options"] == kept.env["sandbox_options"]
    assert trusted_env(kept, {"sandbox_options": mine})["sandbox_options"] == {**mine, "pids": 64}
    docker = trusted_env(changed(sandbox_options={"network": "egress"}), {"backend": "docker", "reward": "my:reward"})
    assert (docker["sandbox_options"], docker["reward"]) == ({}, "my:reward")
    point = EpisodeCheckpoint.of_record(record, 1)
    assert BranchPoint(changed(record="r.jsonl"), point).env({})["record"] == "r.jsonl"
    with pytest.raises(UsageError, match=r"leave out env\.max_observation, which was"):
        BranchPoint(record, point).env({"max_observation": 40})


def test_a_replay_takes_positive_time_and_other_seeds(record: Trajectory, env_of_adder: Make) -> None:
    point = EpisodeCheckpoint.of_record(record, 1).model_copy(update={"seconds": 60.0}).named()
    branch = play(env_of_adder(), ScriptedPolicy([act("submit")]), options={"checkpoint": point})
    assert branch.seconds["start"] > 0
    plan, key = Plan(source="micro"), EpisodeKey("adder", 0, "")
    assert plan.model_copy(update={"checkpoint": point}).episode_seed(key) != plan.episode_seed(key)


def test_policies_without_a_model_continue(record: Trajectory, env_of_adder: Make) -> None:
    env, point = env_of_adder(), EpisodeCheckpoint.of_record(record, 1)
    for policy in ("empty", "gold", "random", "baseline"):
        branch = play(env, make_policies(policy)(env), options={"checkpoint": point})
        assert (branch.reward_valid, branch.resolved) == (True, policy == "gold")


@pytest.mark.parametrize("turn", [1, 2])
def test_gold_continues_gold(env_of_adder: Make, turn: int) -> None:
    """It has written the patch, or applied it too."""
    env = env_of_adder()
    whole = play(env, make_policies("gold")(env))
    branch = play(env, make_policies("gold")(env), options={"checkpoint": EpisodeCheckpoint.of_record(whole, turn)})
    assert (branch.resolved, len(branch.turns)) == (True, len(whole.turns) - turn)


def test_an_expert_leaves_out_what_was_done() -> None:
    env = SweEnv("micro", {"first": 0, "count": 1})
    try:
        whole = play(env, make_policies("expert")(env), seed=0)
        point = EpisodeCheckpoint.of_record(whole, len(whole.turns) - 1)
        branch = play(env, make_policies("expert")(env), options={"checkpoint": point})
    finally:
        env.close()
    assert [turn.action for turn in branch.turns] == [whole.turns[-1].action]
    assert branch.resolved


# --- models ------------------------------------------------------------------------------------------------------


def test_a_message_is_read_back_from_its_action(env_of_adder: Make) -> None:
    env = env_of_adder()
    call = {"id": "x1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    native = {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [call]}
    said = {"role": "assistant", "content": f"So.\n\n{act('bash', command='ls')}"}
    assert message_of(action_of(native), env, native=True, call_id="c") == native
    assert message_of(action_of(said), env, native=False, call_id="c") == said
    made = {"role": "assistant", "content": "So.", "tool_calls": [{**call, "id": "c"}]}
    assert message_of(said["content"], env, native=True, call_id="c") == made
    written = message_of(action_of({**native, "reasoning_content": None}), env, native=False, call_id="c")
    assert written["content"].startswith("So.")
    assert '"name": "bash"' in written["content"]
    for text in ("I think.", '{"tool_calls": 3}', '{"tool_calls": [3]}', "[" * 9999, ""):
        for way in (True, False):
            message = message_of(text, env, native=way, call_id="c")
            assert message["role"] == "assistant"
            assert way or message == {"role": "assistant", "content": text}


def answer(request: dict[str, Any]) -> ModelReply:
    said = sum(message["role"] == "assistant" for message in request["messages"])
    commands = [json.dumps(json.loads(one)["arguments"]) for one in (LOOK, REPAIR)]
    return ModelReply(content="So.", tool_calls=[("bash", commands[said]) if said < 2 else ("submit", "{}")])


def conversations(server: OpenAIServer) -> list[str]:
    return [json.dumps(one.body["messages"]) for one in server.requests if one.path == CHAT]


def test_a_model_continues_its_own_conversation(
    adder: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first request of the branch is that of the record at this turn, byte for byte."""
    write_tasks([adder], tmp_path / "tasks.jsonl")
    pytest.importorskip("openai")
    monkeypatch.chdir(tmp_path)

    def run_command(*words: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        return int(end.value.code or 0)

    def run(*words: str) -> int:
        return run_command("rollout", *words)

    with OpenAIServer(answer) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        model = ("--model", server.model, "--base-url", server.base_url, "-w", "1")
        assert run("tasks.jsonl", "--name", "first", *model, "env.max_turns=9") == 0
        asked = conversations(server)
        turn = ("--from", "runs/first/adder/0:2")
        assert run(*turn, *model, "-k", "2", "policy.seed=7") == 0
        again = conversations(server)[len(asked) :]
    assert again[-2:] == [asked[-1], asked[-1]]
    (whole,) = open_trajectories("runs/first")
    branches = list(open_trajectories(f"runs/first-adder-0-2-{server.model}"))
    for branch in branches:
        assert (branch.parent, branch.branch_turn, branch.resolved) == ("first/adder/0:2", 2, True)
        assert branch.messages == whole.messages
        assert branch.usage.calls == len(branch.turns) == 1
        assert branch.env["max_turns"] == 9
    found = write_results(f"runs/first-adder-0-2-{server.model}")
    assert (found["source"], found["predictions"]) == ("file from first/adder/0:2", [])
    assert run_command("certify", f"runs/first-adder-0-2-{server.model}") == 1
    assert "its episode started from first/adder/0:2" in capsys.readouterr().out
    capsys.readouterr()
    for words, message in (
        (("toy", *turn), "--from continues an episode of one task"),
        (("--from", "runs/first/adder/0"), "names no turn: write RUN/TASK/ATTEMPT:TURN"),
        (("--from", "runs/first/adder/0:9"), "it had 3 turns, so choose a turn from 1 to 2"),
        (("--from", "runs/first/other/0:1"), "runs/first holds no episode of task 'other', attempt 0"),
        (("--from", "runs/none/adder/0:1"), "no run folder or trajectory file is in this path"),
        ((*turn, "--agent", "mini", "--base-url", "http://localhost:1"), "the agent 'mini' cannot continue"),
        ((*turn, "-p", f"{__name__}:Forgetful"), f"the policy '{__name__}:Forgetful' cannot continue an episode"),
        ((*turn, "env.max_turns=2", "--check"), "the checkpoint is at turn 2, and max_turns is 2"),
        (("tasks.jsonl", "--ignore", "x"), "--ignore is for --from"),
    ):
        assert run(*words) == 2
        assert message in capsys.readouterr().err


class Forgetful:
    """A policy of the user's own, without `resume`."""

    def reset(self, info: Any) -> None: ...

    def act(self, observation: str) -> str:  # noqa: ARG002
        return act("submit")


def test_a_replay_that_differs_stops_the_run(record: Trajectory, tmp_path: Path) -> None:
    point = EpisodeCheckpoint.of_record(record, 1)
    wrong = point.model_copy(update={"observations": ("def add(a, b):\n    return 3\n",)}).named()
    env = {name: value for name, value in record.env.items() if name not in ("source", "source_options", "task_id")}
    del env["render_mode"]
    plan = Plan(
        source="file",
        source_options=record.env["source_options"],
        tasks=("adder",),
        env=env,
        policy="empty",
        checkpoint=wrong,
    )
    result = rollout(plan, tmp_path / "run", RolloutOptions(workers=1, retries=0, max_failure_rate=1))
    assert (result.progress.done, result.progress.total) == (0, 1)
    (failed,) = Trajectory.read(tmp_path / "run/failed.jsonl")
    assert failed.reason == "ReplayError"
    assert "turn 1: observation differs at byte" in failed.failure
    assert not SlotAnswer(
        None, {}, error=ReplayError("turn 1")
    ).is_mistake  # other slots of a vector environment play on
    with pytest.raises(UsageError, match="the plan's tasks must be this one"):
        rollout(plan.model_copy(update={"tasks": ("other",)}), tmp_path / "other")
    with pytest.raises(UsageError, match="ToolCall cannot continue"):
        check_resumes(ToolCall(name="x"))


class Hosted:
    """A factory of policies that stay in this process."""

    def __init__(self) -> None:
        self.turns: list[Any] = []

    def __call__(self, env: Any, *, seed: int | None = None) -> ScriptedPolicy:  # noqa: ARG002
        turns = self.turns

        class Told(ScriptedPolicy):
            def resume(self, earlier: Any, tokens: Any = ()) -> None:
                turns.append((earlier, tokens))

        return Told([LOOK, act("submit")])

    def close(self) -> None: ...


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("hosted", [False, True])
def test_a_branch_plays_in_another_process(hosted: bool, record: Trajectory, tmp_path: Path) -> None:
    plan = Plan(
        source="file",
        source_options=record.env["source_options"],
        tasks=("adder",),
        env={"max_turns": 4},
        policy="empty",
        checkpoint=EpisodeCheckpoint.of_record(record, 2),
    )
    policies = Hosted() if hosted else None
    result = rollout(plan, tmp_path / "run", RolloutOptions(executor="process", workers=1), policies=policies)
    (branch,) = result.trajectories()
    assert (branch.branch_turn, branch.resolved, branch.info["turn"]) == (2, True, 4 if hosted else 3)
    if policies is not None:
        seen = [record.observation, record.turns[0].observation]
        assert policies.turns == [(list(zip(seen, [LOOK, REPAIR], strict=True)), ())]
