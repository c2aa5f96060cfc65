"""Any command line as an agent."""

import shlex
from pathlib import Path

from pydantic import Field, field_validator

from .base import KEY, Agent, Assignment, Launch

ISSUE = "issue.md"


class Command(Agent):
    """A command of the image, or of a folder of this machine that is mounted as the kit.

    In its arguments `{issue}`, `{issue_file}`, `{model}`, `{base_url}`, `{kit}` and `{home}` are replaced. The usual
    variables name the gateway: OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY.

    Attributes:
        command: The command line, or its arguments. A line is split as a shell does, before anything is replaced.
        folder: Folder of this machine to mount as `{kit}`; empty mounts none. Its content must never change.
    """

    command: str | tuple[str, ...] = Field(min_length=1)
    folder: str = ""

    @field_validator("folder")
    @classmethod
    def _resolve_folder(cls, folder: str) -> str:
        path = Path(folder).expanduser().resolve()
        if folder and not path.is_dir():
            raise ValueError(f"{path} is not a folder")
        return str(path) if folder else ""

    def launch(self, assignment: Assignment) -> Launch:
        """See `Agent.launch`."""
        words = shlex.split(self.command) if isinstance(self.command, str) else self.command
        file = f"{assignment.home}/{ISSUE}"
        known = {**assignment._asdict(), "issue_file": file}
        argv = [_fill(word, known) for word in (*words, *self.arguments)]
        url = assignment.base_url
        env = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}
        return Launch(argv, env={**env, "ANTHROPIC_API_KEY": KEY, **self.env}, files={file: assignment.issue})


def _fill(word: str, known: dict[str, str]) -> str:
    """Replace the names in braces that are known; other braces stay."""
    for name, value in known.items():
        if word == f"{{{name}}}":
            return value
    for name in known.keys() - {"issue"}:
        word = word.replace(f"{{{name}}}", known[name])
    return word.replace("{issue}", known["issue"])
