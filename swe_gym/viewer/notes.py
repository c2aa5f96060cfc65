"""Notes and labels of a reader, kept beside the run: one JSON line per change, of which the last counts."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field, ValidationError

from ..errors import UsageError, wrong_fields
from ..lines import append_lines, json_lines
from ..types import Frozen

NOTES = "notes.jsonl"


class Note(Frozen):
    """A note on a turn, or on an attempt as a whole.

    Attributes:
        task_id: Task id.
        attempt: Number of the attempt.
        turn: Number of the turn from 1; 0 for the whole attempt.
        labels: Labels.
        text: Text.
    """

    task_id: str = Field(max_length=500)
    attempt: int = Field(ge=0)
    turn: int = Field(default=0, ge=0)
    labels: tuple[str, ...] = Field(default=(), max_length=20)
    text: str = Field(default="", max_length=20_000)


def notes_path(source: Path) -> Path:
    """Return the file of the notes on a run folder, or on a trajectory file."""
    return source / NOTES if source.is_dir() else source.with_name(f"{source.name}.{NOTES}")


def read_notes(path: Path) -> list[Note]:
    """Return the notes of a file, which may be missing. Invalid lines are skipped."""
    notes: dict[tuple[str, int, int], Note] = {}
    for _, line in json_lines(path) if path.exists() else ():
        try:
            note = Note.model_validate_json(line)
        except ValidationError:
            continue
        notes[note.task_id, note.attempt, note.turn] = note
    return [note for note in notes.values() if note.labels or note.text]


def write_note(path: Path, content: bytes) -> None:
    """Add or replace a note. One without labels and text removes it.

    Args:
        path: File of the notes.
        content: The note as JSON.

    Raises:
        UsageError: The note is invalid, or the file cannot be written.
    """
    try:
        note = Note.model_validate_json(content)
    except ValidationError as error:
        raise UsageError(f"invalid note: {wrong_fields(error)}") from error
    try:
        append_lines(path, json.dumps(note.model_dump()))
    except OSError as error:
        raise UsageError(
            f"cannot save the note in {path} ({error.strerror}): make the folder writable, or copy the run"
        ) from error
