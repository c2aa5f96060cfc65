"""A line of a report about a backend: whether something works, and how to fix it."""

from typing import NamedTuple


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        what: Name of the check.
        works: Whether it passed.
        detail: Description of the result.
        fix: Fix if it failed.
        needed: Whether no sandbox can start if it fails. Then `swe-gym doctor` exits with status 1.
        main: Whether `swe-gym doctor` shows it without `--verbose`.
        notes: More sentences, shown with `--verbose`.
    """

    what: str
    works: bool
    detail: str
    fix: str = ""
    needed: bool = True
    main: bool = False
    notes: tuple[str, ...] = ()
