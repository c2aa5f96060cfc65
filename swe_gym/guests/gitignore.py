"""Rules of `.gitignore` files: which files of a tree git would ignore.

The rules come with the tree and are not trusted, so the limits below bound the time that matching takes.
"""

import re

LONGEST_RULES = 1 << 16  # bytes of a .gitignore that are read
MOST_RULES = 1000  # rules of a .gitignore that are read
MOST_STARS = 3  # a rule with more wildcards ignores nothing: the time to match grows with their number
LONGEST_PATH = 1000  # characters; a longer path is not ignored

TOKEN = re.compile(
    r"(?P<folders>(?:^|(?<=/))\*\*/)|(?P<below>(?<=/)\*\*$)|(?P<stars>\*+)|(?P<one>\?)"
    r"|\[(?P<negated>[!^]?)(?P<set>\]?[^\]/]*)\]|\\?(?P<literal>.)",
    re.DOTALL,
)
EXPRESSIONS = {"folders": "(?:.*/)?", "below": ".+", "stars": "[^/]*", "one": "[^/]"}


class Rules:
    """The rules of one `.gitignore`, and of those in the folders above it.

    Args:
        folder: Folder of the file, relative to the tree's root; empty for the root.
        text: Content of the file.
        above: Rules of the next `.gitignore` above it.
    """

    def __init__(self, folder: str, text: str, above: "Rules | None" = None) -> None:
        self.skipped = len(folder) + 1 if folder else 0
        self.above = above
        parsed = [rule for rule in map(parse, text.split("\n")[:MOST_RULES]) if rule]
        self.rules = [(ignores, of_path, re.compile(pattern)) for ignores, of_path, pattern in parsed]
        # Most files match no rule, which one look at all rules together shows.
        self.names = re.compile("|".join(pattern for _, of_path, pattern in parsed if not of_path) or "(?!)")
        self.paths = re.compile("|".join(pattern for _, of_path, pattern in parsed if of_path) or "(?!)")

    def ignore(self, path: str, is_folder: bool) -> bool:
        """Return whether git ignores a path that lies in no ignored folder. The deepest `.gitignore` decides."""
        if len(path) > LONGEST_PATH:
            return False
        name = path.rpartition("/")[2]
        rules: Rules | None = self
        while rules is not None:
            decided = rules.decide(path[rules.skipped :] + "/" * is_folder, name + "/" * is_folder)
            if decided is not None:
                return decided
            rules = rules.above
        return False

    def decide(self, path: str, name: str) -> "bool | None":
        """Return what the last rule that matches says, or None if none matches."""
        if not (self.names.fullmatch(name) or self.paths.fullmatch(path)):
            return None
        return next(
            ignores for ignores, of_path, rule in reversed(self.rules) if rule.fullmatch(path if of_path else name)
        )


def parse(line: str) -> "tuple[bool, bool, str] | None":
    """Return (whether it ignores, whether it compares whole paths, regular expression) of a rule, or None.

    The text that is matched ends in a slash if it names a folder.
    """
    line = line.rstrip("\r")
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    if line.startswith("#"):
        return None
    ignores = not line.startswith("!")
    glob = line if ignores else line[1:]
    only_folders = glob.endswith("/")
    glob = glob.rstrip("/")
    if not glob or len(re.findall(r"\*+", glob)) > MOST_STARS:
        return None
    pattern = TOKEN.sub(translate, glob.lstrip("/")) + ("/" if only_folders else "/?")
    try:
        re.compile(pattern)
    except re.error:  # a set such as [z-a]
        return None
    return ignores, "/" in glob, "(?s:%s)" % pattern


def translate(match: "re.Match[str]") -> str:
    """Return the regular expression of a token of a glob."""
    if match.lastgroup in EXPRESSIONS:
        return EXPRESSIONS[match.lastgroup or ""]
    if match.group("literal"):
        return re.escape(match.group("literal"))
    members = re.sub(r"([\[\]\\&~|^])", r"\\\1", match.group("set"))
    return "[%s%s]" % ("^/" if match.group("negated") else "", members)
