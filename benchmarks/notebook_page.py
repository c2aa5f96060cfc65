"""Write the page of a notebook: its cells and their outputs as Markdown.

python benchmarks/notebook_page.py docs/first_episode.ipynb docs/first_episode.md
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path


def page(notebook: Path) -> str:
    """Return a notebook as Markdown, with a link to it below its title."""
    first, *rest = cells(notebook)
    return "\n\n".join((first, f"This page is also a [notebook]({notebook.name}).", *rest)) + "\n"


def cells(notebook: Path) -> Iterator[str]:
    """Yield the text, the code and the outputs of a notebook."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]).strip()
        yield source if cell["cell_type"] == "markdown" else block("python", source)
        for output in cell.get("outputs", ()):
            yield block("text", "".join(output["text"]).rstrip())


def block(language: str, text: str) -> str:
    """Return a code block. Its fence is longer than those in the text."""
    fence = "````" if "```" in text else "```"
    return f"{fence}{language}\n{text}\n{fence}"


def main() -> None:
    """Write a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    arguments.output.write_text(page(arguments.notebook), encoding="utf-8")


if __name__ == "__main__":
    main()
