"""Tables: columns, rows and how they are put together."""

from .borders import BORDERS
from .text import pad, truncate

ALIGNMENTS = ("auto", "left", "right", "center")


class Column:
    """How one column looks.

    Args:
        title: The text in the head.
        align: "left", "right", "center", or "auto": numbers right, all else left.
        format: A format string for the values, as in "{:.2f}".
        max_width: Longer cells are cut, with an ellipsis at the end.
    """

    def __init__(self, title, align="auto", format="{}", max_width=None):
        if align not in ALIGNMENTS:
            raise ValueError("align must be one of {}, not {!r}".format(", ".join(ALIGNMENTS), align))
        if max_width is not None and max_width < 1:
            raise ValueError("max_width must be at least 1")
        self.title = title
        self.align = align
        self.format = format
        self.max_width = max_width

    def cell(self, value):
        """The text of one value. None is shown as an empty cell."""
        text = "" if value is None else self.format.format(value)
        text = text.replace("\n", " ")
        return text if self.max_width is None else truncate(text, self.max_width)

    def alignment(self, value):
        """Where the text of `value` goes in its cell."""
        if self.align != "auto":
            return self.align
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return "right" if is_number else "left"


class Table:
    """Rows under named columns.

    Args:
        columns: Titles or `Column` objects.
        border: The name of a border.
    """

    def __init__(self, columns, border="light"):
        self.columns = [column if isinstance(column, Column) else Column(column) for column in columns]
        self.border = BORDERS[border]
        self.rows = []

    def add(self, *values):
        """Append a row. It must have as many values as there are columns."""
        if len(values) != len(self.columns):
            raise ValueError("the table has {} columns, the row {}".format(len(self.columns), len(values)))
        self.rows.append(values)

    def widths(self):
        """The inner width of each column, in cells."""
        result = []
        for index, column in enumerate(self.columns):
            cells = [column.title] + [column.cell(row[index]) for row in self.rows]
            result.append(max(len(cell) for cell in cells))
        return result

    def render(self):
        """The whole table as text, without a newline at the end."""
        widths = self.widths()
        head = [self._head_cell(index, width) for index, width in enumerate(widths)]
        body = [self._body_line(row, widths) for row in self.rows]
        lines = [
            self.border.rule(self.border.top, widths),
            self.border.line(head),
            self.border.rule(self.border.middle, widths),
            *body,
            self.border.rule(self.border.bottom, widths),
        ]
        return "\n".join(line for line in lines if line is not None)

    def _head_cell(self, index, width):
        """A title stands where its column stands: the first value decides."""
        column = self.columns[index]
        first = self.rows[0][index] if self.rows else None
        return pad(column.title, width, column.alignment(first))

    def _body_line(self, row, widths):
        cells = [
            pad(column.cell(value), width, column.alignment(value))
            for column, value, width in zip(self.columns, row, widths)
        ]
        return self.border.line(cells)
