"""What can go wrong."""


class TemplateError(Exception):
    """A template makes no sense. The message names the line."""

    def __init__(self, message, line):
        super().__init__("line {}: {}".format(line, message))
        self.line = line
