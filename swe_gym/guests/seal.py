"""Seals a sandbox: removes hidden files, and from git everything newer than the workspace's commit.

Its order comes on standard input as JSON: `workdir`, `hidden` (absolute paths) and `start_patch` (a git diff that the
workspace already holds and its commit does not). For a sandbox that grades, also `checkouts`: pairs of a commit and the
paths that the evaluation takes from it (none: the whole commit). They, and tags of the past, are kept.

git keeps what it knew in too many places to be asked to forget. So only files that are known to be harmless stay in
each `.git`, beside the objects that HEAD and the index need. History stays too, unless it would show what was removed:
then one commit without parents replaces it. It imports only modules that a copied Python has.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import IO, Any

KEPT = ("HEAD", "config", "description", "hooks", "index", "info", "objects", "shallow")
KEPT_INFO = ("attributes", "exclude", "sparse-checkout")
KEPT_PACKED = (".pack", ".idx", ".rev", ".bitmap")
LEFT_OUT_SETTINGS = ("remote", "branch", "url", "http", "credential", "submodule", "include", "includeif", "lfs")
COMMIT_FACTS = (
    ("GIT_AUTHOR_NAME", "%an"),
    ("GIT_AUTHOR_EMAIL", "%ae"),
    ("GIT_AUTHOR_DATE", "%aI"),
    ("GIT_COMMITTER_NAME", "%cn"),
    ("GIT_COMMITTER_EMAIL", "%ce"),
    ("GIT_COMMITTER_DATE", "%cI"),
)


TYPE_CHECKING = False
if TYPE_CHECKING:
    Checkouts = list[tuple[str, list[str]]]


class GitFailed(Exception):
    """A git command failed."""


class Repository:
    """A git repository: `folder` is its work tree and holds `.git`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.place = os.path.join(folder, ".git")

    def git(self, *arguments: str, **options: "Any") -> bytes:
        """Return what git prints. Options: `env` (added), `data` (input), `source` and `target` (files)."""
        environment = dict(os.environ, GIT_NO_REPLACE_OBJECTS="1", LC_ALL="C", **options.get("env", {}))
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            ("git", "-C", self.folder, *arguments),
            env=environment,
            stdout=options.get("target", subprocess.PIPE),
            stderr=subprocess.PIPE,
            **({"stdin": options["source"]} if "source" in options else {"input": options.get("data", b"")}),
        )
        if done.returncode:
            words = done.stderr.decode("utf-8", "replace").strip()
            raise GitFailed("git %s in %s: %s" % (arguments[0], self.folder, words))
        return done.stdout

    def line(self, *arguments: str) -> str:
        """Return the line that git prints, or an empty text if it fails."""
        try:
            return os.fsdecode(self.git(*arguments)).rstrip("\n")
        except GitFailed:
            return ""

    def is_whole(self) -> bool:
        """Return whether git takes the folder for the top of a work tree."""
        top = self.line("rev-parse", "--show-toplevel")
        return bool(top) and os.path.realpath(top) == os.path.realpath(self.folder)

    def seal(self, hidden: "list[str]", start_patch: str, checkouts: "Checkouts | None" = None) -> None:
        """Seal the repository. `hidden` are paths relative to the folder; `checkouts` is None for a policy."""
        self.own_its_folder()
        head = self.line("rev-parse", "-q", "--verify", "HEAD^{commit}")
        branch = self.line("symbolic-ref", "-q", "HEAD")
        tags = {}
        if head and self.stage(hidden, start_patch):
            head = self.commit_anew()
            self.remove("shallow")
        elif head and checkouts is not None:
            tags = self.tags_of_the_past()
        whole, parts = self.checked_out(head, checkouts or [])
        self.keep_objects([one for one in (head, *tags.values(), *whole) if one], parts)
        self.keep_files()
        self.leave_settings_out()
        self.write_references(head, branch, tags)

    def own_its_folder(self) -> None:
        """Make `.git` hold the whole repository, even if it is a worktree or a submodule of another."""
        private, common = (
            os.path.realpath(os.path.join(self.folder, self.line("rev-parse", option) or ".git"))
            for option in ("--git-dir", "--git-common-dir")
        )
        if os.path.isdir(self.place) and not os.path.islink(self.place):
            return
        copy = tempfile.mkdtemp(dir=self.folder, prefix=".git-")
        shutil.rmtree(copy)
        shutil.copytree(common, copy, symlinks=True)
        for name in ("HEAD", "index"):
            if os.path.exists(os.path.join(private, name)):
                shutil.copy2(os.path.join(private, name), os.path.join(copy, name))
        settings = ("config", "-f", os.path.join(copy, "config"))
        self.git(*settings, "core.bare", "false")
        self.line(*settings, "--unset-all", "core.worktree")
        os.unlink(self.place)
        os.rename(copy, self.place)
        remove(private)
        remove(common)

    def stage(self, hidden: "list[str]", start_patch: str) -> bool:
        """Set the index to the policy's base commit; return whether that changed it."""
        literal = [":(literal)" + path for path in hidden]
        tracked = bool(literal) and bool(self.git("ls-files", "--", *literal))
        if tracked:
            self.git("rm", "-r", "-f", "-q", "--cached", "--ignore-unmatch", "--", *literal)
        if start_patch:
            self.git("apply", "--cached", "--whitespace=nowarn", "-", data=start_patch.encode())
        return tracked or bool(start_patch)

    def commit_anew(self) -> str:
        """Commit the index without parents, with the same author and dates; return the hash."""
        facts = {name: self.line("log", "-1", "--format=" + form) for name, form in COMMIT_FACTS}
        tree = self.line("write-tree")
        message = self.git("log", "-1", "--format=%B")
        return os.fsdecode(self.git("commit-tree", tree, data=message, env=facts)).strip()

    def tags_of_the_past(self) -> "dict[str, str]":
        """Return the tags of HEAD and its ancestors: builds read versions from them."""
        lines = self.git("for-each-ref", "--merged=HEAD", "--format=%(refname) %(objectname)", "refs/tags")
        pairs = (os.fsdecode(line).split(" ") for line in lines.splitlines())
        return {name: found for name, found in pairs}

    def checked_out(self, head: str, checkouts: "Checkouts") -> "tuple[list[str], list[str]]":
        """Return commits to keep whole, and single objects: those that the evaluation takes from later commits."""
        whole, parts = [], []  # type: list[str], list[str]
        for name, paths in checkouts:
            commit = self.line("rev-parse", "-q", "--verify", name + "^{commit}")
            if not commit or (head and self.line("merge-base", head, commit) == commit):
                continue
            if paths:
                parts += [commit, self.line("rev-parse", commit + "^{tree}"), *self.objects_at(commit, paths)]
            else:
                whole.append(commit)
        return whole, parts

    def objects_at(self, commit: str, paths: "list[str]") -> "list[str]":
        """Return the objects at the paths of a commit, with the folders on the way; all of them for patterns."""
        literal = [] if any(mark in path for path in paths for mark in "*?[:") else ["--", *paths]
        entries = self.git("ls-tree", "-r", "-t", "-z", commit, *literal).split(b"\0")
        heads = [entry.split(b"\t")[0].split() for entry in entries if entry]
        return [os.fsdecode(found) for _, kind, found in heads if kind != b"commit"]

    def keep_objects(self, commits: "list[str]", parts: "list[str]") -> None:
        """Keep `parts`, and the objects that these commits and the index need, and no others."""
        with tempfile.TemporaryFile() as needed:
            wanted = "\n".join(commits + self.index_objects())
            if wanted:
                self.git("rev-list", "--objects", "--stdin", data=wanted.encode(), target=needed)
            needed.seek(0, os.SEEK_END)
            needed.write("".join(part + "\n" for part in parts).encode())
            if count_lines(needed) != self.count_objects():
                self.repack(needed)
        for name in names_in(os.path.join(self.place, "objects", "info")):
            self.remove("objects", "info", name)
        for name in names_in(os.path.join(self.place, "objects", "pack")):
            if not name.endswith(KEPT_PACKED):
                self.remove("objects", "pack", name)

    def index_objects(self) -> "list[str]":
        """Return the blobs of the index that the store has. An intent to add has no content there."""
        entries = self.git("ls-files", "-s", "-z").split(b"\0")
        names = sorted({entry.split()[1] for entry in entries if entry and not entry.startswith(b"160000")})
        found = self.git("cat-file", "--batch-check=%(objectname) %(objecttype)", data=b"\n".join(names) + b"\n")
        return [line.split()[0] for line in found.decode().splitlines() if line.endswith(" blob")] if names else []

    def count_objects(self) -> int:
        """Return how many objects the store has, or -1 if some are borrowed or stored twice."""
        if os.path.exists(os.path.join(self.place, "objects", "info", "alternates")):
            return -1
        lines = (line.split(": ") for line in os.fsdecode(self.git("count-objects", "-v")).splitlines())
        facts = {name: value for name, value in lines}
        return -1 if int(facts["prune-packable"]) else int(facts["count"]) + int(facts["in-pack"])

    def repack(self, needed: "IO[bytes]") -> None:
        """Replace all objects with one pack of these. Existing deltas are reused, none are searched for."""
        store = os.path.join(self.place, "objects")
        needed.seek(0)
        base = os.path.join(store, "pack", "pack")
        name = self.git("pack-objects", "-q", "--window=0", "--delta-base-offset", base, source=needed)
        new = "pack-%s." % os.fsdecode(name).strip()
        for path in os.listdir(store):
            if path not in ("pack", "info"):
                remove(os.path.join(store, path))
        for path in os.listdir(os.path.join(store, "pack")):
            if not path.startswith(new):
                remove(os.path.join(store, "pack", path))

    def keep_files(self) -> None:
        """Remove everything else: references, reflogs, stashes, worktrees, submodules, messages."""
        for name in os.listdir(self.place):
            if name not in KEPT:
                self.remove(name)
        for name in names_in(os.path.join(self.place, "info")):
            if name not in KEPT_INFO:
                self.remove("info", name)

    def leave_settings_out(self) -> None:
        """Remove the settings that name other places."""
        path = os.path.join(self.place, "config")
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
        kept = True
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            for line in lines:
                if line.lstrip().startswith("["):
                    section = line.lstrip()[1:].replace("]", " ").replace('"', " ").split(" ")[0].split(".")[0]
                    kept = section.strip().lower() not in LEFT_OUT_SETTINGS
                if kept:
                    file.write(line)

    def write_references(self, head: str, branch: str, tags: "dict[str, str]") -> None:
        """Write HEAD, tags and one branch; no branch if the image has none checked out."""
        if tags:
            with open(os.path.join(self.place, "packed-refs"), "w") as file:
                file.writelines("%s %s\n" % (tags[name], name) for name in sorted(tags))
        os.makedirs(os.path.join(self.place, "refs", "heads"))
        with open(os.path.join(self.place, "HEAD"), "w") as file:
            file.write("ref: %s\n" % branch if branch else head + "\n")
        if branch and head:
            path = os.path.join(self.place, *branch.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(head + "\n")

    def remove(self, *names: str) -> None:
        """Remove a path of `.git`."""
        remove(os.path.join(self.place, *names))


def count_lines(file: "IO[bytes]") -> int:
    """Return the number of lines of a file."""
    file.seek(0)
    return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def names_in(folder: str) -> "list[str]":
    """Return the names in a folder, or none if it is missing."""
    return os.listdir(folder) if os.path.isdir(folder) else []


def remove(path: str) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def hide(path: str) -> None:
    """Remove a hidden file or folder, and its compiled bytecode."""
    remove(path)
    folder, name = os.path.split(path)
    cache = os.path.join(folder, "__pycache__")
    for compiled in names_in(cache) if name.endswith(".py") else ():
        if compiled.startswith(name[:-2]) and compiled.endswith(".pyc"):
            remove(os.path.join(cache, compiled))


def find_repositories(workdir: str) -> "list[str]":
    """Return the folders that hold a `.git`, deepest first: a submodule's repository lies in that of its parent."""
    found = []
    for folder, folders, files in os.walk(workdir):
        if ".git" in folders or ".git" in files:
            found.append(folder)
        folders[:] = [name for name in folders if name != ".git"]
    return sorted(found, key=lambda folder: (-folder.count("/"), folder))


def seal(order: "dict[str, Any]") -> None:
    """Carry out an order."""
    workdir = order["workdir"]
    for path in order["hidden"]:
        hide(path)
    for folder in find_repositories(workdir):
        repository = Repository(folder)
        if shutil.which("git") is None:  # so no command can need it
            repository.remove()
        elif repository.is_whole():
            own = folder == workdir
            inside = [os.path.relpath(path, folder) for path in order["hidden"] if path.startswith(folder + "/")]
            checkouts = order.get("checkouts")
            repository.seal(inside, order["start_patch"] if own else "", checkouts if own or checkouts is None else [])
        elif folder == workdir:
            raise GitFailed("git cannot read the repository %s/.git" % folder)


if __name__ == "__main__":
    try:
        seal(json.load(sys.stdin))
    except (GitFailed, OSError) as error:
        sys.exit(str(error))
