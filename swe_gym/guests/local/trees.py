"""Fast copies of a prepared workspace, which may have thousands of small files."""

import os


def copy_tree(source: str, target: str) -> None:
    """Copy a folder of files, folders and links, with their modes and times, into another folder, which may exist."""
    os.makedirs(target, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            path = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), path)
            elif entry.is_dir():
                copy_tree(entry.path, path)
            else:
                copy_file(entry.path, path)
    copy_status(os.stat(source), target)


def copy_file(source: str, target: str) -> None:
    """Copy one file within the kernel."""
    ours = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    theirs = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while os.sendfile(theirs, ours, None, 1 << 30):
            pass
        copy_status(os.fstat(ours), theirs)
    finally:
        os.close(ours)
        os.close(theirs)


def copy_status(status: os.stat_result, target: "str | int") -> None:
    """Set the mode and times of a file, given by path or descriptor, to another file's."""
    os.chmod(target, status.st_mode & 0o7777)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
