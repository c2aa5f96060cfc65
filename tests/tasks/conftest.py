"""Real rows, if available, and small generated rows of the same shape."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[3] / "shared" / "data"

Write = Callable[..., Path]


@pytest.fixture
def real() -> Callable[[str], Path]:
    """Return the path of real rows, or skip the test if they are missing."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"no real rows here: {name}")
        return path

    return find


@pytest.fixture
def write_rows(tmp_path: Path) -> Write:
    """Write rows to a file in the format of its suffix."""

    def write(name: str, rows: Iterable[dict[str, Any]], **options: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, **options)
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row, **options) + "\n" for row in rows))
        else:
            path.write_text(json.dumps(list(rows), **options))
        return path

    return write
