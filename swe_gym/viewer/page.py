"""Pages: their static files, and how to write one as a self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from ..files import replacing

_STYLE = re.compile(r'<link rel="stylesheet" href="(.*?)">\n?')
_SCRIPT = re.compile(r'<script src="(.*?)" defer></script>\n?')


def static_text(name: str) -> str:
    """Return the text of a static file."""
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def write_page(path: Path, page: str, blocks: Iterable[tuple[str, str]], *, beside: bool = False) -> int:
    """Write a page with its styles, scripts and data as one HTML file, whose policy allows nothing else.

    Args:
        path: The file. It is replaced at the end, so that an error leaves the old one.
        page: Name of the static HTML file.
        blocks: Element id and JSON text of each block of data, written one after the other.
        beside: Whether the page loads more data from scripts beside it.

    Returns:
        The size of the file in bytes.
    """
    text = static_text(page)
    style = "\n".join(map(static_text, _STYLE.findall(text)))
    scripts = [_inline(static_text(name)) for name in _SCRIPT.findall(text)]
    allowed = [*map(_hash, scripts), *(["'self'", "file:"] if beside else [])]
    policy = (
        f"default-src 'none'; script-src {' '.join(allowed)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    inline = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
    head, body_end, foot = (
        _SCRIPT.sub("", _STYLE.sub("", text)).replace("</head>", inline + "</head>").rpartition("</body>")
    )
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(head)
        for name, data in blocks:
            escaped = data.replace("<", "\\u003c")  # nothing in the data can end its element
            file.write(f'<script type="application/json" id="{html.escape(name)}">{escaped}</script>\n')
        file.writelines(f"<script>{script}</script>\n" for script in scripts)
        file.write(body_end + foot)
    return path.stat().st_size


def _inline(script: str) -> str:
    """Return a script that cannot end its element: `<` begins a tag or comment only inside a string or pattern."""
    return re.sub(r"<(?=!--|/?script)", r"\\x3C", script)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
