"""Runs a command as a user of the image: its name or number, then the command."""

import grp
import os
import pwd
import sys


def main(name: str, *argv: str) -> None:
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        if not name.isdigit():
            sys.exit("the image has no user %r" % name)
        become(int(name), 0, [])
        os.environ["HOME"] = "/"
    else:
        groups = [group.gr_gid for group in grp.getgrall() if entry.pw_name in group.gr_mem]
        become(entry.pw_uid, entry.pw_gid, groups)
        os.environ["HOME"] = entry.pw_dir
    os.execvp(argv[0], argv)


def become(user: int, group: int, groups: "list[int]") -> None:
    """Change to a user that the system may not know, as container engines do."""
    os.setgroups([group, *groups])
    os.setgid(group)
    os.setuid(user)


if __name__ == "__main__":
    main(*sys.argv[1:])
