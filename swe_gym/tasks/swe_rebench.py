"""SWE-rebench V1 and V2: rows with the columns of SWE-bench and an `install_config` that says how to test them.

V1 is Python in SWE-bench's layout. V2 covers twenty languages; the image holds the built repository in a folder of its
own name.
"""

import contextlib
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from ..errors import TaskError, wrong_fields
from ..files import decode_column
from ..types import Json, JsonMapping, Task
from .dataset import Columns, DatasetSource, Object, Text, facts, read_columns
from .swebench import (
    END,
    START,
    Spec,
    SWEBenchRow,
    evaluation_script,
    hidden_tests,
    image_of,
    instance_task,
    parser_name,
)


class RebenchRow(SWEBenchRow):
    """The columns of both versions."""

    repo: str = Field(pattern=r"^([A-Za-z0-9._-]+/)?[A-Za-z0-9._-]+$")
    install_config: Object
    language: Text = ""
    interface: Text = ""
    meta: Object = {}


def _commands(value: Json) -> Json:
    """Return a list of commands. A single command may be given as text."""
    commands = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # "[ -d x ] && make" is not a list
            commands = decode_column(value)
        commands = commands if isinstance(commands, list) else [value]
    if not isinstance(commands, list | None):
        raise ValueError(f"expected commands, got {type(commands).__name__}")
    return [command for command in commands or () if not isinstance(command, str) or command.strip()]


Commands = Annotated[tuple[str, ...], BeforeValidator(_commands)]


class Recipe(Columns):
    """The fields of `install_config` about tests."""

    test_cmd: Commands
    log_parser: Text = ""
    install: Commands = ()


class SWERebenchSource(DatasetSource):
    """The tasks of SWE-rebench.

    Args:
        path: File or folder of rows; None uses the Hub.
        hints: Append the comments on the issue that preceded the solution to the problem statement.
        interface: Append the names that the hidden tests call, if a row of V2 lists them.
        **options: Arguments of `DatasetSource`.
    """

    dataset = "nebius/SWE-rebench-V2"
    model = RebenchRow

    def __init__(
        self, path: str | None = None, *, hints: bool = False, interface: bool = True, **options: Json
    ) -> None:
        super().__init__(path, **options)
        self._hints = hints
        self._interface = interface

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        return task_from_row(row, hints=self._hints, interface=self._interface, place=place)


def task_from_row(row: JsonMapping, *, hints: bool = False, interface: bool = True, place: str = "the row") -> Task:
    """Return the task of a row of SWE-rebench. Rows with a language are of V2.

    Raises:
        TaskError: A column is missing or invalid.
    """
    columns = read_columns(RebenchRow, row, place)
    try:
        recipe = Recipe.model_validate(columns.install_config)
    except ValidationError as error:
        raise TaskError(f"{place}: install_config: {wrong_fields(error)}") from None
    if not recipe.test_cmd:
        raise TaskError(f"{place}: install_config: test_cmd: empty")
    if not columns.language:
        parser = recipe.log_parser or "parse_log_pytest"
        spec = Spec(
            versions=(),
            test_cmd=" && ".join(recipe.test_cmd),
            install=" && ".join(recipe.install),
            log_parser=parser,
            skips_removed=True,
        )
        script = evaluation_script(columns, spec)
        return instance_task(columns, image_of(columns, "swerebench"), script, parser_name(parser), hints=hints)
    if not recipe.log_parser:
        raise TaskError(f"{place}: install_config: log_parser: missing")
    folder = f"/{columns.repo.rpartition('/')[2]}"
    if interface and columns.interface:
        statement = f"{columns.problem_statement}\n\n## Interface\n\n{columns.interface}"
        columns = columns.model_copy(update={"problem_statement": statement})
    image = columns.image or columns.docker_image or columns.image_name  # names of V2 images follow no rule
    script = _script(columns, recipe, folder)
    task = instance_task(columns, image, script, parser_name(recipe.log_parser), hints=hints)
    return task.model_copy(
        update={
            "workdir": folder,
            "difficulty": columns.difficulty or _difficulty(columns.meta),
            "tags": (columns.language,),
            "metadata": facts(**task.metadata, language=columns.language),
        }
    )


def _script(columns: RebenchRow, recipe: Recipe, folder: str) -> str:
    """Return a script that adds the hidden tests and runs every test command, even after a failed one."""
    lines = [
        "#!/bin/bash",
        f"cd {folder}",
        f"git config --global --add safe.directory {folder}",
        *hidden_tests(columns),
        f": '{START}'",
        "status=0",
        *(f"{command} || status=$?" for command in recipe.test_cmd),
        "(exit $status)",
        f": '{END}'",
    ]
    return "\n".join(lines) + "\n"


def _difficulty(meta: JsonMapping) -> str:
    """Return the difficulty by the authors' model: "easy", "medium" or "hard"."""
    opinions = meta.get("llm_metadata")
    first = opinions[0] if isinstance(opinions, list) and opinions else opinions
    return str(first.get("difficulty") or "") if isinstance(first, dict) else ""
