"""System prompts: a general part, and one for each tool preset."""

from importlib import resources


def system_prompt(preset: str) -> str:
    """Return the system prompt for a tool preset; without a preset, the general part only."""
    folder = resources.files(__name__)
    parts = [folder / "general.md", folder / f"{preset}.md"]
    return "\n\n".join(part.read_text(encoding="utf-8").strip() for part in parts if part.is_file())
