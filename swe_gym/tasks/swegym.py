"""SWE-Gym: rows with the columns of SWE-bench, without image and test command; this module adds both."""

from ..types import JsonMapping, Task
from .dataset import read_columns
from .swebench import SWEBenchRow, SWEBenchSource, instance_task, known_specs, make_evaluation


class SWEGymSource(SWEBenchSource):
    """The tasks of SWE-Gym and SWE-Gym Lite.

    Args:
        path: File or folder of rows; None uses the Hub.
        hints: Append the comments on the issue that preceded the solution to the problem statement.
        **options: Arguments of `DatasetSource`.
    """

    dataset = "SWE-Gym/SWE-Gym"
    split = "train"

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        return task_from_row(row, hints=self._hints, place=place)


def task_from_row(row: JsonMapping, *, hints: bool = False, place: str = "the row") -> Task:
    """Return the task of a row of SWE-Gym.

    Raises:
        TaskError: A column is missing or invalid, or no test command is known for the row's version.
    """
    columns = read_columns(SWEBenchRow, row, place)
    script, parser = make_evaluation(columns, known_specs("swegym_specs.toml"), place)
    image = columns.image or f"xingyaoww/sweb.eval.x86_64.{columns.instance_id.lower().replace('__', '_s_')}:latest"
    return instance_task(columns, image, script, parser, hints=hints)
