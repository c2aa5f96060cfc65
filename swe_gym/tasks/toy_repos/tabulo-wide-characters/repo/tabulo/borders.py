"""The lines around and between cells."""

from typing import NamedTuple


class Border(NamedTuple):
    """The characters of a frame: three for each horizontal rule, one to fill it, one between columns."""

    top: str
    middle: str
    bottom: str
    fill: str
    side: str

    def rule(self, corners, widths):
        """A horizontal line over columns of the given widths, or None where this frame draws none."""
        if not corners:
            return None
        left, cross, right = corners
        return left + cross.join(self.fill * (width + 2) for width in widths) + right

    def line(self, cells):
        """A line of cells that are already padded."""
        if not self.side:
            return "  ".join(cells).rstrip()
        return "{0} {1} {0}".format(self.side, " {} ".format(self.side).join(cells))


BORDERS = {
    "light": Border("┌┬┐", "├┼┤", "└┴┘", "─", "│"),
    "double": Border("╔╦╗", "╠╬╣", "╚╩╝", "═", "║"),
    "ascii": Border("+++", "+++", "+++", "-", "|"),
    "none": Border("", "", "", "", ""),
}
