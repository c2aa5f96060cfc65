"""The evaluation on held-out tasks: which tasks, and the metrics."""

import math
import random
from collections.abc import Sequence

from ..errors import UsageError
from ..trajectories import mean_interval, pass_curve
from .collect import PlayedBatch, TrainSlot, task_ids
from .config import EvaluationConfig, TrainConfig


def check_tasks(config: TrainConfig) -> None:
    """Check that training and evaluation have tasks and share none.

    Raises:
        UsageError: They share a task, or tasks cannot be found.
    """
    trained = task_ids(config.env, config.env.train)
    if config.run.evaluate_every:
        evaluated = draw_held_out_tasks(task_ids(config.env, config.env.held_out), config.evaluation.tasks)
        if common := [task_id for task_id in evaluated if task_id in trained]:
            raise UsageError(
                f"env.train and env.held_out share tasks, for example {common[0]!r}: choose ranges that do not "
                "overlap, or set run.evaluate_every = 0"
            )


def draw_held_out_tasks(ids: Sequence[str], count: int) -> list[str]:
    """Draw tasks without replacement, the same ones in each evaluation of each run; all of them if there are fewer."""
    return random.Random("held out").sample(ids, min(count, len(ids)))


def evaluation_slots(ids: Sequence[str], evaluation: EvaluationConfig) -> list[TrainSlot]:
    """Return the episodes of an evaluation, with the same seeds in each evaluation of each run."""
    draw = random.Random("seeds")
    return [
        TrainSlot(task_id, group, draw.getrandbits(31))
        for group, task_id in enumerate(draw_held_out_tasks(ids, evaluation.tasks))
        for _ in range(evaluation.attempts)
    ]


def summarize(played: PlayedBatch, ks: Sequence[int] = (1,)) -> dict[str, object]:
    """Return the metrics of an evaluation: mean reward and pass@k with 95 % intervals, and the outcome of each task."""
    by_task: dict[str, list[bool]] = {}
    earned: dict[str, list[float]] = {}
    for trajectory in played.trajectories:
        by_task.setdefault(trajectory.task_id, []).append(trajectory.resolved)
        earned.setdefault(trajectory.task_id, []).append(trajectory.reward)
    rewards = [trajectory.reward for trajectory in played.trajectories]
    resolved = sum(trajectory.resolved for trajectory in played.trajectories)
    low, high = mean_interval(list(by_task.values()))
    reward_low, reward_high = mean_interval(list(earned.values()))
    metrics: dict[str, object] = {
        "episodes": len(rewards),
        "lost": len(played.lost),
        "reward": sum(rewards) / len(rewards) if rewards else math.nan,
        "reward_low": reward_low,
        "reward_high": reward_high,
        "resolved": resolved / len(rewards) if rewards else math.nan,
        "resolved_low": low,
        "resolved_high": high,
        "tasks": {task_id: [sum(found), len(found)] for task_id, found in sorted(by_task.items())},
    }
    curve = {point.k: point.value for point in pass_curve(by_task)}
    return metrics | {f"pass@{k}": curve.get(k, math.nan) for k in ks}
