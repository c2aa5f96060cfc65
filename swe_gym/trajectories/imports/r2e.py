"""R2E-Gym's trajectory lines."""

from ...types import JsonObject
from ..trajectory import PolicyInfo, Trajectory, Turn, Usage
from .chat import end_episode, first_call, number

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
