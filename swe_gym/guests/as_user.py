"""Runs a command as a user of the image: its name or number, with or without ":group", then the command.

Until then it has root's rights, so nothing that the user can change is read: the command's environment comes in
variables whose names begin with `PREFIX`. Without arguments, it prints the path of its interpreter, or nothing if
another user than root can change that.
"""

import grp
import os
import pwd
import signal
import sys

PREFIX = b"of_user_"


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
    env = {name[len(PREFIX) :]: value for name, value in os.environb.items() if name.startswith(PREFIX)}
    env.setdefault(b"HOME", os.fsencode(home))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, env)
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


def tell_interpreter() -> None:
    """Print the interpreter's path if it, its library and the folders above are usable by all, and only root's."""
    path = os.path.realpath(sys.executable)
    shared = {0, *(user.pw_gid for user in pwd.getpwall() if user.pw_uid)}  # an unknown user has group 0
    shared.update(group.gr_gid for group in grp.getgrall() if group.gr_mem)
    for place in (path, os.path.realpath(os.path.dirname(os.__file__))):
        while True:
            status = os.stat(place)
            group_writes = status.st_mode & 0o020 and status.st_gid in shared
            if status.st_uid or group_writes or status.st_mode & 0o002 or not status.st_mode & 0o001:
                sys.exit("%s belongs to another user than root, or is not open to all users" % place)
            if place == "/":
                break
            place = os.path.dirname(place)
    sys.stdout.write(path)


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else tell_interpreter()
