"""One file per document, as Harbor reads them."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

from ...errors import UsageError
from ...files import write_text
from ...tables import write_table
from ...types import JsonObject

UNSAFE = re.compile(r"[^A-Za-z0-9_.-]|\A\.")
"""Characters of an id that the name of a file does not have."""


def write_documents(documents: Iterator[JsonObject], path: Path) -> int:
    """Write each document to `ID/agent/trajectory.json` in a folder, or one to a `.json` file, or a list of several.

    Returns:
        The number of documents.

    Raises:
        UsageError: The name has another suffix, two documents would share a folder, or the folder is not empty.
    """
    if path.suffix == ".json":
        found = list(itertools.islice(documents, 2))
        if len(found) != 1:
            return write_table(itertools.chain(found, documents), path) if found else 0
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _text(found[0]))
        return 1
    if path.suffix or path.is_file():
        raise UsageError(f"{path}: the name must end in .jsonl or .json, or be that of a folder")
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"{path}: the folder is not empty: name a new one")
    written: set[str] = set()
    for document in documents:
        name = UNSAFE.sub("_", document["trajectory_id"])
        if name in written:
            raise UsageError(f"{path / name}: two episodes have this name: write a .jsonl file instead")
        written.add(name)
        file = path / name / "agent" / "trajectory.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, _text(document))
    return len(written)


def _text(document: JsonObject) -> str:
    return json.dumps(document, indent=2) + "\n"
