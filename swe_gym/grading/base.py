"""What a grader is."""

from typing import Protocol

from ..sandboxes.base import Sandbox
from ..types import Task, Verdict


class Grader(Protocol):
    """Judges one state of the work. The sandbox is fresh, holds the work, and ends with the verdict."""

    def __call__(self, task: Task, sandbox: Sandbox) -> Verdict:
        """Run the hidden tests in `sandbox` and say what they found.

        Raises:
            GradingError: No verdict is possible, and the work is not to blame.
            SandboxError: The sandbox failed.
        """
        ...
