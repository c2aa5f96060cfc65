"""The log of a run, `log.jsonl`: one line of JSON per event."""

import contextlib
import json
import math
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..atomic import write_text
from ..lines import append_lines, json_lines, whole_lines
from ..types import Json, JsonObject
from .trackers import Tracker


class Log:
    """A writer of `log.jsonl` that also sends the numbers to trackers.

    Args:
        folder: The run folder.
        trackers: Experiment trackers.

    Attributes:
        path: The file.
        trackers: Experiment trackers.
    """

    def __init__(self, folder: Path, trackers: Iterable[Tracker] = ()) -> None:
        self.path = folder / "log.jsonl"
        self.trackers = list(trackers)

    def truncate(self, update: int) -> list[JsonObject]:
        """Remove and return the events after an update, so that a resumed run logs no update twice."""
        if not self.path.exists():
            return []
        lines = [(json.loads(line), line) for _, line in whole_lines(self.path)]
        write_text(self.path, b"".join(line for event, line in lines if event.get("update", 0) <= update).decode())
        return [event for event, _ in lines if event.get("update", 0) > update]

    def add(self, event: str, update: int, **metrics: Json) -> None:
        """Append an event. Numbers that are not finite become strings."""
        line = {"event": event, "update": update, "time": round(time.time(), 3), **_to_plain(metrics)}
        append_lines(self.path, json.dumps(line, allow_nan=False))
        if numbers := dict(_numbers(event, metrics)):
            for tracker in self.trackers:
                with _tolerate(tracker):
                    tracker.add(numbers, metrics.get("step", update))

    def has(self, event: str) -> bool:
        """Return whether there is a line of this event."""
        return self.path.exists() and any(line["event"] == event for line in read_log(self.path))

    def close(self, *, failed: bool = False) -> None:
        """Close the trackers.

        Args:
            failed: Whether an error ended the run.
        """
        for tracker in self.trackers:
            with _tolerate(tracker):
                tracker.close(failed=failed)


def read_log(path: Path) -> list[JsonObject]:
    """Return the events of a log, in order. An incomplete last line is ignored."""
    return [json.loads(line) for _, line in json_lines(path)]


@contextlib.contextmanager
def _tolerate(tracker: Tracker) -> Iterator[None]:
    """Turn an error of a tracker into a warning: `log.jsonl` is complete without it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  any error of a third-party service
        warnings.warn(f"{type(tracker).__name__} failed; training continues: {error}", stacklevel=3)


def _to_plain(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _to_plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def _numbers(prefix: str, metrics: JsonObject) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in metrics.items():
        if isinstance(value, dict):
            found += _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float):
            found.append((f"{prefix}/{name}", float(value)))
    return found
