"""R2E-Gym's trajectory lines."""

from collections.abc import Iterable, Iterator

from ...actions import render_call
from ...errors import UsageError
from ...types import JsonObject, ToolCall
from ..trajectory import PolicyInfo, Trajectory, Turn, Usage
from .chat import end_episode, first_call, number

_EXITS = {
    "submit": "agent",
    "turns": "max_step_limit",
    "invalid": "max_step_limit",
    "tokens": "token_limit",
    "context": "token_limit",
    "cost": "token_limit",
    "time": "traj_time_limit",
}


def to_r2e(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield rows with the fields of R2E-Gym's `Trajectory` and `TrajectoryStep`.

    Calls are written in its XML with our tool names. `ds` holds only the task's id, repository and statement; R2E-Gym
    stores the whole dataset row there, including gold patch and hidden tests.
    """
    for one in trajectories:
        image = str((one.env.get("sandbox_options") or {}).get("image") or "")
        turns = one.env.get("max_turns") or len(one.turns)
        yield {
            "trajectory_steps": list(_steps(one)),
            "problem_statement": one.observation,
            "docker_image": image,
            "exp_name": one.experiment or None,
            "env_args": one.env,
            "agent_args": {"llm_name": one.policy.model or one.policy.name, "other_args": one.policy.sampling},
            "ds": {"instance_id": one.task_id, "repo": one.repo, "problem_statement": one.observation},
            "max_steps": turns,
            "max_steps_absolute": turns,
            "max_token_limit": 0,
            "max_llm_time": 0,
            "max_exec_time": 0,
            "max_total_time": round(one.env.get("time_limit") or 0),
            "exit_reason": _exit_reason(one),
            "output_patch": "" if one.patch_bytes else one.patch,
            "reward": one.reward if one.reward_valid else None,
            "reward_calc_time": one.seconds.get("grading"),
            "test_output": None,
            "custom_test_outputs": {},
            "regression_test_output": None,
            "verifier_prob": None,
            "reproduction_test_scores": [],
        }


def _exit_reason(one: Trajectory) -> str:
    if one.reason in _EXITS:
        return _EXITS[one.reason]
    return "llm_query_error" if one.reason.startswith("PolicyError") else "env_exception"


def _steps(one: Trajectory) -> Iterator[JsonObject]:
    total = 0.0
    for index, turn in enumerate(one.turns):
        total += turn.seconds + turn.policy_seconds
        yield {
            "step_idx": index,
            "thought": turn.thought,
            "action": _action(turn),
            "observation": turn.observation,
            "done": turn.terminated or turn.truncated,
            "info": {"total_time": turn.seconds},
            "token_usage_prompt": turn.usage.prompt_tokens,
            "token_usage_completion": turn.usage.completion_tokens,
            "token_usage_total": turn.usage.tokens,
            "llm_exec_time": turn.policy_seconds,
            "env_exec_time": turn.seconds,
            "total_step_time": turn.seconds + turn.policy_seconds,
            "total_time_traj": total,
            "step_count": index + 1,
        }


def _action(turn: Turn) -> str:
    """Return the call in R2E-Gym's format, or the policy's text if it has no call that the format can hold."""
    if not turn.tool:
        return turn.action.removeprefix(turn.thought).lstrip("\n") if turn.thought else turn.action
    try:
        return render_call(ToolCall(name=turn.tool, arguments=turn.arguments), "r2e")
    except UsageError:
        return turn.action


_OUTCOMES = {
    "agent": ("submitted", "submit"),
    "max_step_limit": ("agent_limit", "turns"),
    "agent_max_step_limit": ("agent_limit", "turns"),
    "abs_step_limit": ("agent_limit", "turns"),
    "token_limit": ("agent_limit", "tokens"),
    "traj_time_limit": ("agent_limit", "time"),
}
"""Exit reason -> outcome and reason. All others are infrastructure failures."""


def from_r2e(row: JsonObject, name: str) -> Trajectory:
    """Return the trajectory of a line of R2E-Gym, without its dataset row (gold patch, hidden tests) and test output.

    Raises:
        KeyError, TypeError, ValueError: The row does not have this format.
    """
    outcome, reason = _OUTCOMES.get(row["exit_reason"], ("infra_failed", str(row["exit_reason"])))
    reward = number(row.get("reward"))
    valid = reward is not None and outcome != "infra_failed"
    data = row.get("ds") or {}
    agent = row.get("agent_args") or {}
    steps = row["trajectory_steps"]
    turns = [_turn(step) for step in steps]
    usage = sum((turn.usage for turn in turns), Usage())
    worth = reward or 0.0 if valid else 0.0
    return Trajectory(
        task_id=_task_id(data) or str(row.get("docker_image") or name),
        repo=str(data.get("repo") or data.get("repo_name") or ""),
        experiment=str(row.get("exp_name") or ""),
        policy=PolicyInfo(name="r2e-gym", model=str(agent.get("llm_name") or "")),
        observation=row["problem_statement"],
        turns=end_episode(turns, reward=worth, submitted=outcome == "submitted"),
        outcome=outcome,
        reason=reason,
        reward_valid=valid,
        resolved=valid and reward == 1,
        reward=worth,
        patch=row.get("output_patch") or "",
        usage=usage,
        seconds={
            "tools": sum(turn.seconds for turn in turns),
            "policy": sum(turn.policy_seconds for turn in turns),
            "grading": number(row.get("reward_calc_time")) or 0.0,
        },
    )


def _task_id(data: JsonObject) -> str:
    """Return the id that `R2ESource` gives the task of a dataset row. It is empty if the row was not recorded."""
    if data.get("instance_id"):
        return str(data["instance_id"])
    repo, commit = data.get("repo_name"), data.get("commit_hash")
    return f"{repo}-{commit}" if repo and commit else ""


def _turn(step: JsonObject) -> Turn:
    thought, action = step.get("thought") or "", step["action"]
    call = first_call(action, ("r2e",))
    return Turn(
        action=f"{thought}\n\n{action}" if thought else action,
        thought=thought,
        tool=call.name if call else "",
        arguments=dict(call.arguments) if call else {},
        observation=step["observation"],
        seconds=number(step.get("env_exec_time")) or 0.0,
        policy_seconds=number(step.get("llm_exec_time")) or 0.0,
        usage=Usage(
            prompt_tokens=int(step.get("token_usage_prompt") or 0),
            completion_tokens=int(step.get("token_usage_completion") or 0),
            calls=1,
        ),
    )
