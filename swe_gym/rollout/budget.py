"""Budgets of tokens, money and time, for one episode or a whole run."""

from pydantic import Field

from ..errors import UsageError
from ..trajectories import Prices, Usage
from ..types import Frozen


class RolloutBudget(Frozen):
    """Limits on what a policy uses. None means no limit.

    An episode that exhausts its budget ends before the next action and is graded. A run that exhausts its budget
    starts no more episodes; running episodes finish.

    Attributes:
        tokens: Prompt and completion tokens, as the server counts them.
        cost: US dollars. A run without a price is refused.
        seconds: Wall-clock time since the start of the sandbox or the run.
    """

    tokens: int | None = Field(default=None, ge=1)
    cost: float | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0)

    def used_up(self, usage: Usage, seconds: float) -> str:
        """Return the first limit that is reached: "tokens", "cost" or "time"; empty if none is.

        Limits of tokens and cost are reached once the server did not tell the tokens of an answer.
        """
        for name, used, limit in (
            ("tokens", usage.tokens, self.tokens),
            ("cost", usage.cost, self.cost),
            ("time", seconds, self.seconds),
        ):
            if limit is None:
                continue
            if (usage.uncounted and name != "time") or (used is not None and used >= limit):
                return name
        return ""


def check_price(price: Prices | None, what: str, *budgets: RolloutBudget) -> None:
    """Check that a cost which a budget limits can be counted.

    Args:
        price: The prices; None if they are unknown.
        what: What has them, for the message.
        budgets: The budgets.

    Raises:
        UsageError: A budget limits the cost, and there is no price.
    """
    if price is None and any(budget.cost is not None for budget in budgets):
        raise UsageError(
            f"the budget limits the cost, but the price of {what} is unknown: set policy.prices.input "
            "and policy.prices.output, in dollars per million tokens"
        )
