"""Lists all files of a sandbox, and packs those that changed as a layer of an image."""

import json
import os
import sys
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WHITEOUT = ".wh."


def listing() -> "dict[str, list[int]]":
    """Return each file and folder: path -> what changes with its content, its attributes or itself. No mounts."""
    found = {}
    for folder, folders, files in os.walk("/", onerror=stop):
        folders[:] = [name for name in folders if not os.path.ismount(os.path.join(folder, name))]
        for name in folders + files:
            path = os.path.join(folder, name)
            entry = os.lstat(path)
            found[path] = [entry.st_ctime_ns, entry.st_mode, 0 if name in folders else entry.st_size]
    return found


def stop(error: OSError) -> None:
    raise error


def pack(order: "dict[str, Any]") -> None:
    """Write the files at `changed` and a mark for each path in `deleted` to the archive `target`."""
    with tarfile.open(order["target"], "w", format=tarfile.PAX_FORMAT) as archive:
        for path in order["changed"]:
            archive.add(path, path.lstrip("/"), recursive=False)  # without sockets
        for path in order["deleted"]:
            folder, name = os.path.split(path.lstrip("/"))
            archive.addfile(tarfile.TarInfo(os.path.join(folder, WHITEOUT + name)))


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    if asked:
        pack(asked)
    else:
        json.dump(listing(), sys.stdout)
