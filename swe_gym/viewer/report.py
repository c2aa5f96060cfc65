"""A run as one file of HTML that needs nothing else: to read without a server, and to give to somebody."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
import re
from pathlib import Path
from typing import IO, NamedTuple

from ..atomic import replacing
from .episode import as_page
from .index import RunIndex
from .server import PAGE, STATIC, static_text
from .stats import summary

MOST_EPISODES = 1000
"""Episodes that are put into a file where nobody says otherwise; the table has all of them."""


class Report(NamedTuple):
    """What was written.

    Attributes:
        episodes: Rows of the table.
        readable: Those that can be opened.
        size: Of the file, in bytes.
    """

    episodes: int
    readable: int
    size: int


def write_report(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    with_verdicts: bool = False,
    most_episodes: int = MOST_EPISODES,
) -> Report:
    """Write a run as one file of HTML.

    Episodes are packed one by one, and a browser unpacks the one that is read.

    Args:
        source: A run folder, or a file of trajectories.
        path: The file; it is replaced.
        with_verdicts: Also what graders found, test by test, and failures in full. That is content of the tasks'
            oracles: whoever has the file knows the names of hidden tests and the end of their output.
        most_episodes: The first so many can be opened.

    Raises:
        UsageError: There is no such run, or an episode of it cannot be read.
    """
    index = RunIndex(source)
    index.read_all()
    news = {**index.news(), "live": [], "active": False, "progress": {}, "with_verdicts": with_verdicts}
    readable = index.rows[:most_episodes]
    target = Path(path)
    with replacing(target) as partial, partial.open("w", encoding="utf-8") as file:
        head, foot = _page()
        file.write(head)
        _add(file, "news", json.dumps(news))
        _add(file, "stats", json.dumps(summary(index.rows)))
        for row in readable:
            trajectory = index.trajectory(row.id)
            shown = as_page(trajectory if with_verdicts else trajectory.without_oracle())
            packed = gzip.compress(json.dumps(shown).encode(), compresslevel=6, mtime=0)
            _add(file, f"episode-{row.id}", base64.b64encode(packed).decode())
        file.write(foot)
    return Report(len(index.rows), len(readable), target.stat().st_size)


def _add(file: IO[str], name: str, data: str) -> None:
    """A block of data. No `<` is left in it, so nothing of it can end the block."""
    escaped = data.replace("<", "\\u003c")
    file.write(f'<script type="application/json" id="{html.escape(name)}">{escaped}</script>\n')


def _page() -> tuple[str, str]:
    """What stands before the data, and what stands behind it: style and scripts in the page, and no others allowed."""
    style = static_text("style.css")
    scripts = [static_text(name) for name in STATIC if name.endswith(".js")]
    allowed = " ".join(_hash(script) for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = re.sub(r"<script src=.*?</script>\n?", "", static_text(PAGE))
    page = page.replace(
        '<link rel="stylesheet" href="style.css">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>',
    )
    head, body_end, foot = page.rpartition("</body>")
    return head, "".join(f"<script>{script}</script>\n" for script in scripts) + body_end + foot


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
