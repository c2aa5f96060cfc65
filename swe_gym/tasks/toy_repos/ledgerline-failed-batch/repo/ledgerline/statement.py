"""Accounts on paper."""

from .money import ZERO


def statement(account):
    """The postings of an account with a running balance, as text."""
    lines = ["Account {}{}".format(account.name, " (closed)" if account.closed else "")]
    balance = ZERO
    for posting in account.postings:
        balance += posting.amount
        lines.append(
            "{:>4}  {:<10} {:<20} {:>10} {:>10}".format(
                posting.number, posting.other, posting.text, posting.amount, balance
            )
        )
    lines.append("{:>37} {:>21}".format("Balance", account.balance))
    return "\n".join(lines)
