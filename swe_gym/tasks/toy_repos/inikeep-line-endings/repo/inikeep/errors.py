"""What can go wrong."""


class InikeepError(Exception):
    """Base of all errors of this package."""


class ParseError(InikeepError):
    """A line is neither blank nor a comment, a section or an option."""

    def __init__(self, number, text):
        super().__init__("line {}: cannot read {!r}".format(number, text))
        self.number = number
