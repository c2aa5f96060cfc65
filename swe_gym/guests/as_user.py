"""Runs a command as a user of the image: its name or number, with or without ":group", then the command."""

import grp
import os
import pwd
import sys


def main(who: str, *argv: str) -> None:
    name, _, group = who.partition(":")
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        if not name.isdigit():
            sys.exit("the image has no user %r" % name)
        user, home, groups = int(name), "/", [0]
    else:
        user, home = entry.pw_uid, entry.pw_dir
        groups = [entry.pw_gid, *(one.gr_gid for one in grp.getgrall() if entry.pw_name in one.gr_mem)]
    become(user, [find_group(group)] if group else groups)
    os.environ["HOME"] = home
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write("%s: %s\n" % (argv[0], error.strerror))
        sys.exit(127 if isinstance(error, (FileNotFoundError, NotADirectoryError)) else 126)


def find_group(name: str) -> int:
    try:
        return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        sys.exit("the image has no group %r" % name)


def become(user: int, groups: "list[int]") -> None:
    """Change to a user that the system may not know, as container engines do."""
    os.setgroups(groups)
    os.setgid(groups[0])
    os.setuid(user)


if __name__ == "__main__":
    main(*sys.argv[1:])
