"""Random access to rows on disk, and errors of broken rows."""

import json
from pathlib import Path

import pytest

from swe_gym.errors import TaskError, UsageError
from swe_gym.tasks.dataset import BATCH, open_rows
from swe_gym.tasks.hub import is_of_split

FORMATS = ("rows.jsonl", "rows.json", "rows.parquet")


def many(count: int = 100) -> list[dict[str, object]]:
    return [{"instance_id": f"id-{n}", "text": f"Line one\nüñí {n}", "list": ["a", str(n)]} for n in range(count)]


@pytest.mark.parametrize("name", FORMATS)
def test_any_row_is_found_in_any_order(write_rows, name: str) -> None:
    (rows,) = open_rows(write_rows(name, many()))
    assert rows.keys(["instance_id"]) == [(f"id-{n}",) for n in range(100)]
    for number in (99, 0, 1, 2, BATCH, 50, 49, 99):
        assert rows.read(number) == many()[number]


def test_rows_of_several_row_groups_are_found(write_rows) -> None:
    (rows,) = open_rows(write_rows("rows.parquet", many(), row_group_size=7))
    rows.keys(["instance_id"])
    for number in (99, 6, 7, 8, 0, 98):
        assert rows.read(number) == many()[number]


def test_a_broken_row_group_affects_no_other(write_rows) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": str(number), "text": f"{number}" * 50} for number in range(3)]
    path = write_rows("rows.parquet", rows, row_group_size=1, use_dictionary=False)
    column = parquet.ParquetFile(path).metadata.row_group(1).column(1)
    data = bytearray(path.read_bytes())
    start, size = column.data_page_offset, column.total_compressed_size
    data[start : start + size] = b"\xff" * size
    path.write_bytes(data)
    (file,) = open_rows(path)
    assert file.keys(["id"]) == [("0",), ("1",), ("2",)]
    for number in (0, 1, 1, 2, 1, 0):
        if number == 1:
            with pytest.raises(TaskError, match="row 2: cannot read"):
                file.read(number)
        else:
            assert file.read(number) == rows[number]


def test_other_columns_of_parquet_are_not_read(write_rows) -> None:
    (rows,) = open_rows(write_rows("rows.parquet", many()), columns=["instance_id", "list", "absent"])
    assert rows.keys(["absent", "instance_id"])[3] == (None, "id-3")
    assert rows.read(3) == {"instance_id": "id-3", "list": ["a", "3"]}


def test_an_escaped_id_is_decoded(tmp_path: Path) -> None:
    lines = [
        {"instance_id": "a", "inner": '{"instance_id": "not me"}'},  # text that looks like JSON is text
        {"inner": {"instance_id": "nor me"}, "instance_id": "b"},
        {"instance_id": 'quoted "c"'},
        {"instance_id": 7},
        {"other": 1},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n\n" for line in lines))
    (rows,) = open_rows(file)
    assert rows.keys(["instance_id"]) == [("a",), ("b",), ('quoted "c"',), (7,), (None,)]
    assert rows.place(1) == f"{file}, line 3"
    assert rows.read(4) == {"other": 1}


def test_a_json_file_may_hold_a_list_one_object_or_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    for text in ('[{"a": 1}, {"a": 2}]', '[\n{"a": 1},\n{"a": 2}\n]', '{"a": 1}\n{"a": 2}\n'):
        file.write_text(text)
        (rows,) = open_rows(file)
        assert rows.keys(["a"]) == [(1,), (2,)]
        assert rows.read(1) == {"a": 2}
    for text in ('{"a": 1}', '{\n"a": 1\n}'):
        file.write_text(text)
        (rows,) = open_rows(file)
        assert rows.keys(["a"]) == [(1,)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.jsonl", '{"a": 1}\n{"a"\n', "rows.jsonl, line 2: not JSON"),
        ("rows.jsonl", '{"a": 1}\n[1]\n', "rows.jsonl, line 2: not an object"),
        ("rows.json", "[1]", "rows.json, row 1: not an object"),
        ("rows.json", "[{]", "rows.json: not JSON"),
        ("rows.parquet", "no parquet", "rows.parquet is not a parquet file"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match=message):
        [rows.keys(["b"]) for rows in open_rows(tmp_path / name)]


def test_a_folder_is_all_its_files_or_those_of_a_split(write_rows, tmp_path: Path) -> None:
    for name in ("data/test-00000-of-00002.parquet", "data/test-00001-of-00002.parquet", "data/train-0.parquet"):
        write_rows(name, [{"id": name}])
    (tmp_path / ".cache").mkdir()
    write_rows(".cache/test.jsonl", [{"id": "hidden"}])
    (tmp_path / "README.md").write_text("no rows")

    def ids(split: str | None = None) -> list[str]:
        return [key[0] for rows in open_rows(tmp_path, split=split) for key in rows.keys(["id"])]

    assert len(ids()) == 3
    assert ids("test") == ["data/test-00000-of-00002.parquet", "data/test-00001-of-00002.parquet"]
    with pytest.raises(UsageError, match="no rows of the split 'dev': data/test-00000"):
        ids("dev")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file or folder not found"):
        open_rows(tmp_path / "nowhere.jsonl")
    with pytest.raises(UsageError, match=r"no file ends in \.parquet"):
        open_rows(tmp_path)
    file = tmp_path / "rows.csv"
    file.write_text("a,b\n")
    with pytest.raises(UsageError, match="must end in"):
        open_rows(file)
    with pytest.raises(UsageError, match="remove split="):
        open_rows(file, split="test")


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("data/test-00000-of-00001.parquet", "test", True),
        ("SWE-bench_Lite-test.parquet", "test", True),
        ("Verified-test.20260216.parquet", "test", True),
        ("train/part1.jsonl", "train", True),
        ("data/dev_10pr_v1-00000.parquet", "dev_10pr_v1", True),
        ("data/dev_10pr_v1-00000.parquet", "dev", False),
        ("latest.jsonl", "test", False),
        ("testing.jsonl", "test", False),
    ],
)
def test_file_names_determine_their_split(name: str, split: str, expected: bool) -> None:
    assert is_of_split(name, split) == expected
