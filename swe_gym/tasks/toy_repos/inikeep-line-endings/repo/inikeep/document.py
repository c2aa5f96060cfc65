"""Whole files."""

from .errors import InikeepError
from .files import save
from .lines import read_line


class Document:
    """The lines of a file, and ways to look something up and to change it."""

    def __init__(self, lines=()):
        self._lines = list(lines)

    @classmethod
    def parse(cls, text):
        """The document of a text.

        Raises:
            ParseError: A line makes no sense.
        """
        return cls(read_line(line, number) for number, line in enumerate(text.splitlines(), start=1))

    def text(self):
        """The document as text."""
        return "".join(line.text + "\n" for line in self._lines)

    def save(self, path):
        """Write the document to a file."""
        save(path, self.text())

    def sections(self):
        """The names of the sections, in the order of the file."""
        return list(dict.fromkeys(line.name for line in self._lines if line.kind == "section"))

    def options(self, section):
        """The names and values of a section as a dict."""
        return {self._lines[index].name: self._lines[index].value for index in self._options(section)}

    def get(self, section, option, default=None):
        """The value of an option, or `default` if it is not there."""
        return self.options(section).get(option.lower(), default)

    def set(self, section, option, value):
        """Change the value of an option, or add it."""
        if "\n" in value or "\r" in value:
            raise InikeepError("a value is one line, not {!r}".format(value))
        found = [index for index in self._options(section) if self._lines[index].name == option.lower()]
        if found:
            self._lines[found[-1]] = self._lines[found[-1]].with_value(value)
            return
        if section.lower() not in self.sections():
            self._add_section(section)
        self._insert(self._end_of(section), "{} = {}".format(option, value))

    def remove(self, section, option):
        """Remove an option. Returns whether it was there."""
        found = [index for index in self._options(section) if self._lines[index].name == option.lower()]
        for index in reversed(found):
            del self._lines[index]
        return bool(found)

    def _options(self, section):
        """Where the options of a section stand."""
        current = None
        for index, line in enumerate(self._lines):
            if line.kind == "section":
                current = line.name
            elif line.kind == "option" and current == section.lower():
                yield index

    def _end_of(self, section):
        """Where a new option of a section goes: below its last option, or below its head."""
        heads = [
            index for index, line in enumerate(self._lines) if line.kind == "section" and line.name == section.lower()
        ]
        return max([heads[-1], *self._options(section)]) + 1

    def _add_section(self, section):
        if self._lines:
            self._insert(len(self._lines), "")
        self._insert(len(self._lines), "[{}]".format(section))

    def _insert(self, index, text):
        """Add a line in front of the one at `index`."""
        self._lines.insert(index, read_line(text))
