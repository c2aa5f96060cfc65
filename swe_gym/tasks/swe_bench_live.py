"""SWE-bench-Live: rows with the columns of SWE-bench and lists of commands that build, test and print results."""

from ..errors import TaskError
from ..types import JsonMapping, Task
from .dataset import Text, Texts, facts, read_columns
from .swebench import END, START, SWEBenchRow, SWEBenchSource, hidden_tests, image_of, instance_task, parser_name

OWN_PARSER = """\
{code}

if __name__ == "__main__":
    import json, sys
    log = ""
    for stream in sys.argv[1:3]:
        with open(stream, encoding="utf-8") as lines:
            log += lines.read()
    words = {{"pass": "PASSED", "skip": "SKIPPED"}}
    tests = []
    for name, end in parser(log).items():
        status = next((status for word, status in words.items() if word in str(end).lower()), "FAILED")
        tests.append({{"name": name, "status": status}})
    with open(sys.argv[3], "w") as results:
        json.dump({{"tests": tests}}, results)
"""
"""A row's own parser as a program. Its arguments are the files of standard output, standard error and results."""


class LiveRow(SWEBenchRow):
    """The columns of SWE-bench-Live."""

    test_cmds: Texts = ()
    rebuild_cmds: Texts = ()
    print_cmds: Texts = ()
    parser: Text = ""
    language: Text = ""


class SWEBenchLiveSource(SWEBenchSource):
    """The tasks of SWE-bench-Live, and of its MultiLang edition.

    Args:
        path: File or folder of rows; None uses the Hub.
        hints: Append the comments on the issue that preceded the solution to the problem statement.
        **options: Arguments of `DatasetSource`.
    """

    dataset = "SWE-bench-Live/SWE-bench-Live"
    split = "verified"
    model = LiveRow

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        return task_from_row(row, hints=self._hints, place=place)


def task_from_row(row: JsonMapping, *, hints: bool = False, place: str = "the row") -> Task:
    """Return the task of a row of SWE-bench-Live.

    Raises:
        TaskError: A column is missing or invalid. Unfinished rows of the dataset's pipeline have no tests or commands.
    """
    columns = read_columns(LiveRow, row, place)
    if not columns.test_cmds:
        raise TaskError(f"{place}: test_cmds: empty, so the task cannot be tested")
    parser = columns.log_parser or columns.parser
    if "\n" in parser:
        parser = OWN_PARSER.format(code=parser)
    image = image_of(columns, "starryzhang")
    task = instance_task(columns, image, _script(columns), parser_name(parser or "pytest"), hints=hints)
    return task.model_copy(update={"metadata": facts(**task.metadata, language=columns.language)})


def _script(columns: LiveRow) -> str:
    lines = [
        "#!/bin/bash",
        "cd /testbed",
        "git config --global --add safe.directory /testbed",
        *hidden_tests(columns),
        *columns.rebuild_cmds,
        f": '{START}'",
        *columns.test_cmds,
        *columns.print_cmds,
        f": '{END}'",
    ]
    return "\n".join(lines) + "\n"
