"""What selectors get and return: attempts without their grading, and scores."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ..errors import UsageError
from ..files import is_test_path
from ..grading import split_diff
from ..trajectories import Trajectory
from ..types import Frozen, JsonObject, Task


class Candidate(Frozen):
    """An attempt as a selector sees it: nothing of its reward, its verdict and its info.

    Attributes:
        attempt: Number of the attempt at the task.
        patch: The work as a git diff.
        logprob: Mean log-probability of the sampled tokens; None if they were not recorded.
        tokens: Prompt and completion tokens of the attempt.
    """

    attempt: int
    patch: str
    logprob: float | None = None
    tokens: int = 0

    @classmethod
    def of(cls, trajectory: Trajectory) -> Candidate:
        """Return what selectors may see of a record."""
        sampled = [
            logprob
            for segment in trajectory.trained_segments
            for logprob, mask in zip(segment.logprobs, segment.loss_mask, strict=True)
            if mask
        ]
        return cls(
            attempt=trajectory.attempt,
            patch=trajectory.patch,
            logprob=sum(sampled) / len(sampled) if sampled else None,
            tokens=trajectory.usage.tokens,
        )

    @functools.cached_property
    def work(self) -> str:
        """The part of the patch that changes no test."""
        return "".join(part for names, part in split_diff(self.patch) if not all(map(is_test_path, names)))

    @functools.cached_property
    def tests(self) -> str:
        """The part of the patch that adds or changes tests."""
        return "".join(part for names, part in split_diff(self.patch) if all(map(is_test_path, names)))


class TaskAttempts(NamedTuple):
    """The attempts at a task.

    Attributes:
        task: The task. Its oracle prepares sandboxes; selectors use nothing else of it.
        candidates: The attempts, by number.
    """

    task: Task
    candidates: tuple[Candidate, ...]


class Scores(NamedTuple):
    """The scores of the attempts at a task.

    Attributes:
        among: Returns the scores of some attempts, given by their places, as if there were no others. A score is
            between 0 and 1, and higher is better.
        fixed: Whether the score of an attempt is the same whatever the others are.
        tokens: Tokens of models that were asked for the scores.
        failure: Why the task has no scores; empty if it has.
    """

    among: Callable[[Sequence[int]], Sequence[float]]
    fixed: bool = True
    tokens: int = 0
    failure: str = ""


def fixed_scores(scores: Sequence[float], tokens: int = 0) -> Scores:
    """Return scores that do not depend on the other attempts."""
    return Scores(lambda places: [scores[place] for place in places], tokens=tokens)


def no_scores(failure: str, tokens: int = 0) -> Scores:
    """Return what stands for the scores of a task that has none."""
    return Scores(lambda places: [0.0 for _ in places], tokens=tokens, failure=failure)


@dataclasses.dataclass(frozen=True)
class SelectionSettings:
    """Where tests run, and which models judge.

    Attributes:
        backend: Kind of sandbox.
        sandbox_options: Options as in `SweEnv`.
        workers: Sandboxes or requests at once.
        executor: Where sandboxes are used from: threads, process, ray or module:Class.
        executor_options: Options of the executor.
        models: Names of the models that judge. Several are asked one after another, and their mean counts.
        base_url: URL of their server; None: as for the policy llm.
    """

    backend: str = "local"
    sandbox_options: JsonObject = dataclasses.field(default_factory=dict)
    workers: int = 2
    executor: str = "threads"
    executor_options: JsonObject = dataclasses.field(default_factory=dict)
    models: tuple[str, ...] = ()
    base_url: str | None = None


def check_models(settings: SelectionSettings) -> None:
    """Check that a model can judge.

    Raises:
        UsageError: None is named.
    """
    if not settings.models:
        raise UsageError("a judge needs a model: add --model NAME, and --base-url URL for a server of your own")


def check_logprobs(tasks: Sequence[TaskAttempts]) -> None:
    """Check that tokens were recorded.

    Raises:
        UsageError: No attempt has recorded tokens.
    """
    if not any(one.logprob is not None for attempts in tasks for one in attempts.candidates):
        raise UsageError("the attempts have no recorded tokens, so there is no log-probability: use another selector")


ScoresOf = Callable[[str], Sequence[Scores]]
"""Returns the scores of another selector, by its name. They are computed once."""


class Selector(Protocol):
    """Scores the attempts at each task."""

    def __call__(
        self, tasks: Sequence[TaskAttempts], settings: SelectionSettings, others: ScoresOf
    ) -> Sequence[Scores]:
        """Return the scores of the attempts at each task, in order.

        Raises:
            UsageError: The selector cannot work with these attempts or settings.
        """
        ...
