"""Artifacts: the files that a verifier with a sandbox of its own gets from the policy's, as Harbor hands them over."""

import io
import posixpath
import shlex
import tarfile
import uuid
from typing import NamedTuple

from ...errors import FileError, MissingFile, NotAFile
from ...sandboxes import Sandbox
from ...types import Artifact, Task
from .script import SETUP_TIMEOUT, no_reward, run_tool

MOST_BYTES = 256 << 20
"""Bytes of all artifacts of an attempt."""

TRANSFER_TIMEOUT = 300.0


class Taken(NamedTuple):
    """A file or folder, taken out of the policy's sandbox.

    Attributes:
        path: Its path.
        data: Content of the file, or the folder as a tar archive.
        mode: Permission bits of the file; None for a folder.
    """

    path: str
    data: bytes
    mode: int | None


def take_artifacts(task: Task, sandbox: Sandbox) -> list[Taken]:
    """Read the artifacts of a task out of the policy's sandbox. Missing ones are left out.

    Raises:
        NoReward: They are too large.
        SandboxError: The sandbox was lost.
    """
    script = task.oracle.in_place
    taken: list[Taken] = []
    left = MOST_BYTES
    for artifact in script.verifier.artifacts if script and script.verifier else ():
        try:
            one = _take(artifact, sandbox, left)
        except MissingFile:
            continue
        except FileError as error:
            raise no_reward(task, f"the artifact {artifact.path} cannot be read", str(error)) from error
        left -= len(one.data)
        taken.append(one)
    return taken


def _take(artifact: Artifact, sandbox: Sandbox, most: int) -> Taken:
    try:
        data = sandbox.read_file(artifact.path, max_bytes=most, timeout=TRANSFER_TIMEOUT)
    except NotAFile:
        packed = _pack(artifact, sandbox, most)
        return Taken(artifact.path, clean_archive(packed), None)
    folder, name = posixpath.split(artifact.path)
    entry = sandbox.manifest(folder, only=[name]).get(name)
    return Taken(artifact.path, data, entry.mode & 0o755 if entry and entry.link is None else 0o644)


def _pack(artifact: Artifact, sandbox: Sandbox, most: int) -> bytes:
    """Return a folder as a tar archive. As in Harbor, one that cannot be packed counts as missing."""
    if not artifact.exclude:
        return sandbox.get_tar(artifact.path, max_bytes=most, timeout=TRANSFER_TIMEOUT)
    place = f"/tmp/{uuid.uuid4().hex}.tar"  # a name that nobody can guess
    left_out = [f"--exclude={pattern}" for pattern in artifact.exclude]
    command = ["tar", "cf", place, *left_out, "-C", artifact.path, "."]
    made = run_tool(sandbox, command, timeout=TRANSFER_TIMEOUT)
    try:
        if not made.ok:
            raise MissingFile(f"{artifact.path}: {made.text.strip()[-500:] or made.describe()}")
        return sandbox.read_file(place, max_bytes=most, timeout=TRANSFER_TIMEOUT)
    finally:
        run_tool(sandbox, ["rm", "-f", "--", place])


def clean_archive(data: bytes) -> bytes:
    """Return an archive without devices, links that lead out of it, and set-user-id bits. Its files belong to root.

    The policy may have written it: it is not decompressed, and files with holes are refused, as both could be huge.

    Raises:
        FileError: It is no plain tar archive.
    """
    kept = io.BytesIO()
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive,
            tarfile.open(fileobj=kept, mode="w") as clean,
        ):
            for member in archive:
                if member.issparse():
                    raise ValueError(f"{member.name!r} is a file with holes")
                try:
                    harmless = tarfile.data_filter(member, "/artifact")
                except tarfile.FilterError:
                    continue
                mode = (
                    0o755 if harmless.mode is None else harmless.mode
                )  # the filter leaves folders and links without one
                plain = harmless.replace(mode=mode, uid=0, gid=0, uname="", gname="", deep=False)
                clean.addfile(plain, archive.extractfile(member) if member.isreg() else None)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise FileError(f"not a tar archive: {error}") from error
    return kept.getvalue()


def put_artifacts(task: Task, taken: list[Taken], sandbox: Sandbox) -> None:
    """Write the artifacts into the verifier's sandbox, at the same paths. Folders there are emptied first.

    Raises:
        NoReward: One cannot be written.
        SandboxError: The sandbox was lost.
    """
    for one in taken:
        folder = one.path if one.mode is None else posixpath.dirname(one.path)
        place = shlex.quote(folder)
        command = f"mkdir -p {place} && chmod 777 {place}"
        if one.mode is None:
            command += f" && find {place} -mindepth 1 -maxdepth 1 -exec rm -rf -- {{}} +"
        made = sandbox.exec(command, cwd="/", timeout=SETUP_TIMEOUT, merge=True)
        try:
            if not made.ok:
                raise FileError(made.text.strip()[-500:] or made.describe())
            if one.mode is None:
                sandbox.put_tar(one.path, one.data, timeout=TRANSFER_TIMEOUT)
            else:
                sandbox.write_file(one.path, one.data, mode=one.mode, timeout=TRANSFER_TIMEOUT)
        except FileError as error:
            raise no_reward(task, f"the artifact {one.path} cannot be handed over", str(error)) from error
