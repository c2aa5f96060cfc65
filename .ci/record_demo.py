"""Record a run of `swe-gym demo` as an animated SVG, for the docs.

    pip install pyte && python .ci/record_demo.py docs/images/demo.svg

The command runs in a pseudo-terminal, pyte interprets its output, and each row of the screen becomes one text per
content that it had. The animation plays once and stops at the last screen.
"""

import html
import itertools
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pyte

COMMAND = ["swe-gym", "demo"]
COLUMNS, ROWS = 84, 30
WIDTH, HEIGHT, LEFT, TOP = 8.4, 18, 16, 52  # of a character; of the margins, in pixels
PLAIN = "#d6deeb"
COLORS = {"green": "#7fd88f", "red": "#ff7b72", "brown": "#e3b341", "cyan": "#79c0ff", "blue": "#79c0ff"}
STYLE = """text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
.hide { visibility: hidden }
@keyframes show { from, to { visibility: visible } }
@keyframes wait { from, to { visibility: hidden } }
@media (prefers-reduced-motion: reduce) { text { animation: none !important } }"""
LONGEST = 1.0  # seconds that one screen stays; a busy machine pauses longer

Row = tuple[tuple[int, str, str, bool], ...]
"""Runs of a row: column, text, color, bold."""


class Screen(NamedTuple):
    """What the terminal showed from some second on."""

    second: float
    rows: tuple[Row, ...]


def record() -> list[Screen]:
    """Run the command, and return its screens."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    screens = [Screen(0.0, rows(screen))]
    reader, writer = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    with subprocess.Popen(COMMAND, stdin=writer, stdout=writer, stderr=writer, env=environment) as process:
        os.close(writer)
        last, now = time.monotonic(), 0.5  # half a second for reading the command
        for data in iter(lambda: read(reader), b""):
            stream.feed(data)
            now += min(time.monotonic() - last, LONGEST)
            last = time.monotonic()
            if rows(screen) != screens[-1].rows:
                screens.append(Screen(now, rows(screen)))
    if process.returncode:
        sys.exit(f"{' '.join(COMMAND)} failed with status {process.returncode}")
    return screens


def read(descriptor: int) -> bytes:
    """Read what the command wrote; nothing once it has ended."""
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux reports the end of a pseudo-terminal as an error
        return b""


def rows(screen: pyte.Screen) -> tuple[Row, ...]:
    """Return the rows of a screen as runs of equal style."""
    return tuple(runs(screen.buffer[number]) for number in range(ROWS))


def runs(row: dict[int, pyte.screens.Char]) -> Row:
    """Return the runs of a row."""
    found = []
    for (color, bold), columns in itertools.groupby(range(COLUMNS), lambda column: (row[column].fg, row[column].bold)):
        numbers = list(columns)
        text = "".join(row[number].data for number in numbers)
        words = re.finditer(r"\S+(?: \S+)*", text)  # without double blanks, which XML does not keep
        found += [(numbers[0] + match.start(), match[0], color, bold) for match in words]
    return tuple(found)


def draw(screens: list[Screen]) -> str:
    """Return the SVG."""
    used = 1 + max(number for number in range(ROWS) if screens[-1].rows[number])
    width, height = LEFT * 2 + COLUMNS * WIDTH, TOP + (used + 1) * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#16191f"/>',
        *(
            f'<circle cx="{20 + 20 * i}" cy="18" r="6" fill="{c}"/>'
            for i, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        text(-1, ((0, "$ " + " ".join(COMMAND), PLAIN, True),), ""),
    ]
    for number in range(used):
        changes = [(screen.second, screen.rows[number]) for screen in screens]
        changes = [change for i, change in enumerate(changes) if not i or change[1] != changes[i - 1][1]]
        for (start, row), (end, _) in itertools.pairwise(changes):
            parts.append(text(number, row, f' class="hide" style="animation:show {end - start:.2f}s {start:.2f}s"'))
        start, row = changes[-1]
        parts.append(text(number, row, f' style="animation:wait {start:.2f}s"' if start else ""))
    return "\n".join(part for part in [*parts, "</svg>"] if part) + "\n"


def text(number: int, row: Row, attributes: str) -> str:
    """Return a row as SVG text; nothing for an empty one. Lengths are fixed, whatever font the reader has."""
    spans = ""
    for column, words, color, bold in row:
        weight = ' font-weight="bold"' if bold else ""
        place = f'x="{LEFT + column * WIDTH:g}" textLength="{len(words) * WIDTH:g}" fill="{COLORS.get(color, PLAIN)}"'
        spans += f"<tspan {place}{weight}>{html.escape(words)}</tspan>"
    return f'<text y="{TOP + (number + 1) * HEIGHT:g}"{attributes}>{spans}</text>' if spans else ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(record()), encoding="utf-8")
