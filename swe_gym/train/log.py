"""What is written down of a run: a line of JSON per event, and nothing else that cannot be made from it."""

from __future__ import annotations

import contextlib
import json
import math
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..atomic import write_text
from ..lines import append_line, json_lines, whole_lines
from .trackers import Tracker


class Log:
    """`log.jsonl` of a run folder; its numbers go to trackers too, where there are any.

    A line is written whole and at once. After a crash, what was written later than the checkpoint that a run goes on
    from is cut off, so no update stands there twice.

    Args:
        folder: The run folder.
        trackers: Services that get the numbers.
    """

    def __init__(self, folder: Path, trackers: Iterable[Tracker] = ()) -> None:
        self.path = folder / "log.jsonl"
        self._trackers = tuple(trackers)

    def go_back_to(self, update: int) -> None:
        """Forget what was logged after an update."""
        if not self.path.exists():
            return
        kept = (line for _, line in whole_lines(self.path) if json.loads(line).get("update", 0) <= update)
        write_text(self.path, b"".join(kept).decode())

    def add(self, event: str, update: int, **facts: Any) -> None:
        """One line: what happened, at which update, and numbers. What is not finite is written as text."""
        line = {"event": event, "update": update, "time": round(time.time(), 3), **_plain(facts)}
        append_line(self.path, json.dumps(line, allow_nan=False))
        if numbers := dict(_numbers(event, facts)):
            for tracker in self._trackers:
                with _harmless(tracker):
                    tracker.add(numbers, facts.get("step", update))

    def close(self) -> None:
        """Have trackers hand over what they buffer."""
        for tracker in self._trackers:
            with _harmless(tracker):
                tracker.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The events of a log, in order; a line that was never finished is left out."""
    return [json.loads(line) for _, line in json_lines(path)]


@contextlib.contextmanager
def _harmless(tracker: Tracker) -> Iterator[None]:
    """`log.jsonl` has it all, so nobody who draws curves may end a run."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever a service raises
        warnings.warn(f"{type(tracker).__name__} failed, and training goes on: {error}", stacklevel=3)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def _numbers(prefix: str, facts: dict[str, Any]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            found += _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float):
            found.append((f"{prefix}/{name}", float(value)))
    return found
