"""R2E-Gym's trajectory lines."""

from collections.abc import Iterable, Iterator

from ...actions import render_call
from ...errors import UsageError
from ...types import JsonObject, ToolCall
from ..trajectory import Trajectory, Turn

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
