"""Archives of artifacts, which a policy may have written."""

import gzip
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from swe_gym.errors import FileError
from swe_gym.grading.in_place.artifacts import clean_archive


def archive_of(*members: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return packed.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode, made.uid = kind, link, mode, 1000
    made.size = 3 if kind == tarfile.REGTYPE else 0
    return made


def test_what_could_do_harm_is_left_out() -> None:
    data = archive_of(
        member("a/b", mode=0o4755),
        member("out", tarfile.SYMTYPE, "/etc/passwd"),
        member("up", tarfile.SYMTYPE, "../../x"),
        member("near", tarfile.SYMTYPE, "a/b"),
        member("folder", tarfile.DIRTYPE, mode=0o700),
        member("zero", tarfile.CHRTYPE),
        member("../escaped"),
    )
    with tarfile.open(fileobj=io.BytesIO(clean_archive(data))) as clean:
        found = {one.name: (one.mode, one.uid) for one in clean}
    assert found == {"a/b": (0o755, 0), "near": (0o755, 0), "folder": (0o755, 0)}


def test_what_could_be_huge_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 40)
    holes = subprocess.run(
        ["tar", "--create", "--sparse", "--directory", str(tmp_path), "holes"], capture_output=True, check=True
    ).stdout
    assert len(holes) < 1 << 20
    with pytest.raises(FileError, match="'holes' is a file with holes"):
        clean_archive(holes)
    with pytest.raises(FileError, match="not a tar archive"):
        clean_archive(gzip.compress(archive_of(member("a"))))
