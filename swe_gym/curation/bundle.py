"""Bundles: a folder with tasks and the sources of their code, which works on any machine.

tasks.jsonl      the tasks; workspaces are archives of `sources/`, with their SHA-256
sources/         one archive per folder, archive or git commit that the tasks start from
README.md        a dataset card, as the Hugging Face Hub reads it
SHA256SUMS       digests of all files; `sha256sum -c SHA256SUMS` checks them
"""

import gzip
import os
import re
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..cache import file_sha256
from ..commands import git_environment, run_command
from ..errors import TaskError, UsageError
from ..guard import TemporaryFolder
from ..sandboxes.contents import prepare_workspace
from ..tasks import write_tasks
from ..tasks.file import BUNDLE_TASKS
from ..types import FolderWorkspace, GitWorkspace, TarWorkspace, Task, Workspace

SUMS = "SHA256SUMS"
DATE = 1577836800
"""Time of every packed file: 2020-01-01 00:00:00 UTC. The same content gives the same bytes."""

LICENSE_FILES = re.compile(r"(licen[cs]e|copying|unlicense)([.-].*)?", re.IGNORECASE)
_LOCAL_REQUIREMENT = re.compile(r"^(\.|/|~|-e\b|--editable\b)|(^|@)\s*file:")

_CARD = """\
---
license: {license}
task_categories: [text-generation]
tags: [code, software-engineering, swe-gym]
configs:
- config_name: default
  data_files:
  - split: test
    path: {tasks}
---

# {name}

{count} software-engineering tasks for swe_gym. Each row holds an issue, the code to start from, the hidden tests and
the gold patch: keep it away from policies. With a copy of this folder:

```bash
swe-gym tasks list --source {name}
swe-gym validate {name}
```

| task | repository | source | license files |
|---|---|---|---|
{rows}
"""


class PackedSource(NamedTuple):
    """An archive of a bundle.

    Attributes:
        path: Path of the archive, relative to the bundle.
        sha256: SHA-256 of the archive in hex.
        licenses: Names of the license files at the top of the code.
        ignored: Files of a folder that its git repository ignores, such as `.env`. The archive lacks them.
    """

    path: str
    sha256: str
    licenses: tuple[str, ...]
    ignored: tuple[str, ...] = ()


class Bundle(NamedTuple):
    """A bundle that was written.

    Attributes:
        folder: Folder of the bundle.
        tasks: Tasks of the bundle. Paths are relative to the folder.
        sources: Archives, by task id. Tasks with an image, a release or files of their own have none.
        bytes: Size of all files together.
    """

    folder: Path
    tasks: tuple[Task, ...]
    sources: dict[str, PackedSource]
    bytes: int

    def unlicensed(self) -> list[str]:
        """Return the ids of the tasks whose packed code has no license file."""
        return [task_id for task_id, source in self.sources.items() if not source.licenses]


def pack_bundle(tasks: Sequence[Task], folder: Path, *, license: str = "unknown", timeout: float = 600.0) -> Bundle:
    """Write tasks and the code that they start from into a new folder, which can be copied to another machine.

    Folders, archives and git commits become archives of the bundle; equal ones are stored once. Files that the git
    repository of a folder ignores are left out: they may hold secrets. Releases stay on the package index and images
    in their registry.

    Args:
        tasks: Tasks to pack.
        folder: Folder to make. It must be missing or empty.
        license: License of the tasks, as an identifier of the Hub ("mit", "apache-2.0"), for the dataset card.
        timeout: Seconds that reading one source may take.

    Raises:
        UsageError: The folder holds files, or a task needs a Python package of this machine.
        TaskError: A source cannot be read.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder: choose another one, or remove it first")
    for task in tasks:
        _refuse_local_requirements(task)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(f".{folder.name}.", folder.parent) as scratch:
        new = scratch.path / "bundle"
        bundle = _write(tasks, new, folder, license, timeout)
        new.replace(folder)
    return bundle


def _refuse_local_requirements(task: Task) -> None:
    for line in task.python.requirements if task.python else ():
        if _LOCAL_REQUIREMENT.search(line):
            raise UsageError(f"task {task.task_id!r} requires {line!r}, which other machines lack: name a release")


def _write(tasks: Sequence[Task], new: Path, folder: Path, license: str, timeout: float) -> Bundle:
    (new / "sources").mkdir(parents=True)
    packed, sources = [], {}
    for task in tasks:
        if isinstance(task.workspace, FolderWorkspace | TarWorkspace | GitWorkspace):
            tree = prepare_workspace(task.workspace, timeout=timeout)
            source = sources[task.task_id] = _archive(tree, new, _list_ignored(task.workspace, timeout))
            task = task.model_copy(update={"workspace": TarWorkspace(path=source.path, sha256=source.sha256)})
        packed.append(task)
    write_tasks(packed, new / BUNDLE_TASKS)
    (new / "README.md").write_text(_card(packed, sources, folder.name, license), encoding="utf-8")
    files = [path for path in sorted(new.rglob("*")) if path.is_file()]
    sums = "".join(f"{file_sha256(path)}  {path.relative_to(new)}\n" for path in files)
    (new / SUMS).write_text(sums)
    return Bundle(folder, tuple(packed), sources, sum(path.stat().st_size for path in files))


def _list_ignored(workspace: Workspace, timeout: float) -> tuple[str, ...]:
    """Return the files of a folder that are neither tracked by its git repository nor to be.

    Raises:
        TaskError: Git cannot list them.
    """
    folder = Path(workspace.path).absolute() if isinstance(workspace, FolderWorkspace) else None
    if folder is None or not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return ()
    command = ["git", "ls-files", "-z", "--others", "--ignored", "--exclude-standard"]
    failure = f"cannot list the files of {folder} that git ignores"
    deadline = time.monotonic() + timeout
    found = run_command(command, deadline=deadline, cwd=folder, env=git_environment(), failure=failure)
    return tuple(filter(None, os.fsdecode(found.stdout).split("\0")))


def _archive(tree: Path, bundle: Path, ignored: tuple[str, ...]) -> PackedSource:
    """Archive a tree without `ignored` files so that equal trees give equal bytes, and are stored once."""
    partial = bundle / "sources" / ".partial"
    with (
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name in (str(path.relative_to(tree)) for path in _files(tree)):
            if name not in ignored:
                tar.add(tree / name, f"code/{name}", recursive=False, filter=_anonymize)
    sha256 = file_sha256(partial)
    place = f"sources/{sha256[:16]}.tar.gz"
    partial.replace(bundle / place)
    licenses = sorted(path.name for path in tree.iterdir() if LICENSE_FILES.fullmatch(path.name))
    return PackedSource(place, sha256, tuple(licenses), ignored)


def _files(tree: Path) -> Iterator[Path]:
    """Yield folders, files and links of a prepared workspace in a fixed order, without its `.git`."""
    for folder, folders, files in os.walk(tree):
        if Path(folder) == tree:
            folders.remove(".git")
        yield from (Path(folder, name) for name in sorted([*folders, *files]))
        folders[:] = sorted(name for name in folders if not os.path.islink(os.path.join(folder, name)))


def _anonymize(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = DATE
    return member


def _card(tasks: Sequence[Task], sources: dict[str, PackedSource], name: str, license: str) -> str:
    rows = "\n".join(_card_row(task, sources.get(task.task_id)) for task in tasks)
    return _CARD.format(name=name, count=len(tasks), license=license, rows=rows, tasks=BUNDLE_TASKS)


def _card_row(task: Task, source: PackedSource | None) -> str:
    place = source.path if source else task.image or (task.workspace.kind if task.workspace else "")
    licenses = ", ".join(source.licenses) or "none found" if source else ""
    return "| " + " | ".join(text.replace("|", "\\|") for text in (task.task_id, task.repo, place, licenses)) + " |"


def check_bundle(folder: Path) -> list[Path]:
    """Return the files of a bundle after comparing each with its digest in `SHA256SUMS`.

    Raises:
        UsageError: The folder is not a bundle.
        TaskError: A file is missing, changed or not listed.
    """
    sums = folder / SUMS
    if not sums.is_file() or not (folder / BUNDLE_TASKS).is_file():
        raise UsageError(f"{folder} is not a bundle: {SUMS} or {BUNDLE_TASKS} is missing. Make one: swe-gym tasks pack")
    listed = {name: sha256 for sha256, _, name in (line.partition("  ") for line in sums.read_text().splitlines())}
    present = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file() and path != sums}
    differing = [name for name in listed.keys() & present.keys() if file_sha256(present[name]) != listed[name]]
    if wrong := sorted({*(listed.keys() ^ present.keys()), *differing}):
        raise TaskError(f"{folder}: files do not match {SUMS}: {', '.join(wrong[:10])}. Pack the tasks again")
    return [*present.values(), sums]
