"""What may be used: tokens, money and time, of one episode or of a whole run."""

from __future__ import annotations

from pydantic import Field

from ..trajectories.trajectory import Usage
from ..types import Frozen


class Budget(Frozen):
    """Limits of what a policy uses. None is no limit.

    An episode that has used up its budget ends before the policy is asked again, and its work is graded as it is. A
    run that has used up its budget starts no more episodes; those that run are played to their end.

    Attributes:
        tokens: Read and written, as the servers count them.
        cost: US dollars, where the prices are known.
        seconds: Wall-clock time, from the start of the sandbox or of the run.
    """

    tokens: int | None = Field(default=None, ge=1)
    cost: float | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0)

    def used_up(self, usage: Usage, seconds: float) -> str:
        """The first limit that is reached: "tokens", "cost" or "time"; empty where none is."""
        for name, used, limit in (
            ("tokens", usage.tokens, self.tokens),
            ("cost", usage.cost, self.cost),
            ("time", seconds, self.seconds),
        ):
            if limit is not None and used >= limit:
                return name
        return ""
