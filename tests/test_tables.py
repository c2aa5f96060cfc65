"""Table files, atomic writing and growing files of lines."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import UsageError
from swe_gym.files import (
    append_lines,
    decode_column,
    json_lines,
    replacing,
    scan_table,
    to_plain,
    whole_lines,
    write_table,
    write_text,
)

ROWS: list[dict[str, Any]] = [{"id": number, "text": "naïve 字\u2028 " + "x" * number} for number in range(450)]


def rows(path: Path) -> list[Any]:
    return [row for _, row in scan_table(path)]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_rows_survive_a_round_trip(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    assert write_table(iter(ROWS), path) == 450  # several groups
    assert rows(path) == ROWS
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert write_table([], path) == 0
    assert rows(path) == []


def test_the_partial_file_of_a_killed_process_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with replacing(path) as partial:
        partial.touch()
    partial.write_text('{"old": 1}\n{"ha')  # in a container, process ids come back
    assert write_table([{"new": 1}], path) == 1
    assert rows(path) == [{"new": 1}]


def test_half_a_surrogate_pair_survives_json(tmp_path: Path) -> None:
    for name in ("rows.jsonl", "rows.json"):
        write_table([{"text": "\ud83d"}], tmp_path / name)
        assert rows(tmp_path / name) == [{"text": "\ud83d"}]


def test_positions_count_empty_lines_and_errors_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n\n{"a"\n' + b"[" * 100_000 + b'\n{"a": 2}\n'))
    found = list(scan_table(path))
    assert [place for place, _ in found] == ["line 1", "line 3", "line 4", "line 5"]
    assert [found[0][1], found[3][1]] == [{"a": 1}, {"a": 2}]
    assert str(found[1][1]).startswith("not JSON")
    assert str(found[2][1]) == "nested too deeply"


def test_a_truncated_file_ends_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n')[:-9])
    place, row = list(scan_table(path))[-1]
    assert isinstance(row, ValueError)
    assert place.startswith("line ")


def test_columns_of_several_types_are_rejected(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(UsageError, match=r"several types .*write \.jsonl"):
        write_table([{"a": 1}, {"a": [1]}], tmp_path / "rows.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old\n")

    def fail(partial: Path) -> None:
        partial.write_text("new")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), replacing(path) as partial:
        fail(partial)
    assert path.read_text() == "old\n"
    assert [found.name for found in tmp_path.iterdir()] == ["file.txt"]


def test_a_half_line_is_ignored_and_then_removed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    append_lines(path, '{"a": 1}')
    path.write_text(path.read_text() + '{"a": 2')
    for read in (whole_lines, json_lines):
        assert [line for _, line in read(path)] == [b'{"a": 1}\n']
    append_lines(path, '{"a": 3}')
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_a_complete_line_without_a_newline_counts_only_as_json_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}')
    assert list(whole_lines(path)) == [(0, b'{"a": 1}\n')]
    assert list(json_lines(path)) == [(1, b'{"a": 1}\n'), (2, b'{"a": 2}')]
    append_lines(path, '{"a": 3}')
    assert len(list(whole_lines(path))) == 3
    assert list(whole_lines(tmp_path / "missing.jsonl")) == []


def test_values_are_plain_and_decoded() -> None:
    assert to_plain({"a": (1, float("nan"))}) == {"a": [1, None]}
    assert [decode_column(text) for text in ('["a"]', "['a']", ["a"], "")] == [["a"], ["a"], ["a"], None]
    for value in ("[a", "[" * 100_000):
        with pytest.raises(ValueError, match="neither JSON nor a Python literal"):
            decode_column(value)
    with pytest.raises(ValueError, match="surrogate"):
        to_plain(["\ud83d"])
