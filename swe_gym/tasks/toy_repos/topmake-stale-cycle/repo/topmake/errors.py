"""What can go wrong."""


class TopmakeError(Exception):
    """Base of all errors of this package."""


class BuildfileError(TopmakeError):
    """A Buildfile cannot be read. The message begins with the line."""

    def __init__(self, line, message):
        super().__init__("line {}: {}".format(line, message))
        self.line = line


class UnknownTarget(TopmakeError):
    """Something is needed for which there is no rule.

    Attributes:
        needed_by: The targets that lead to it, the goal first.
    """

    def __init__(self, name, needed_by):
        message = "nobody knows how to make {!r}".format(name)
        super().__init__(message + (", needed by " + " -> ".join(needed_by) if needed_by else ""))
        self.name = name
        self.needed_by = needed_by


class CycleError(TopmakeError):
    """Targets need each other.

    Attributes:
        cycle: The targets around the cycle; the first is also the last.
    """

    def __init__(self, cycle):
        super().__init__(" -> ".join(cycle))
        self.cycle = cycle
