"""What is written down: transfers in the journal, postings on the accounts."""

from decimal import Decimal
from typing import NamedTuple


class Transfer(NamedTuple):
    """One line of the journal."""

    number: int
    source: str
    target: str
    amount: Decimal
    text: str


class Posting(NamedTuple):
    """One side of a transfer, on the account that it concerns; money that goes out is negative."""

    number: int
    other: str
    amount: Decimal
    text: str


def postings_of(transfer):
    """The postings of a transfer: for the source and for the target."""
    out = Posting(transfer.number, transfer.target, -transfer.amount, transfer.text)
    into = Posting(transfer.number, transfer.source, transfer.amount, transfer.text)
    return out, into
