"""The environments behind the registered ids: `SweEnv` with a fixed task source.

Spaces, episode end and everything else not described here are those of `SweEnv`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, TypedDict, Unpack

from ..sandboxes import default_backend
from ..tasks import CATALOG
from ..types import Json, JsonMapping, JsonObject
from .arguments import check_known
from .swe_env import SweEnv


class Settings(TypedDict, total=False):
    """Keyword arguments that every family accepts. `SweEnv` documents them and sets their defaults."""

    task_id: str | None
    backend: str
    sandbox_options: JsonObject | None
    tools: str | list[str]
    action_format: str
    reward: str
    alarm_reward: float
    counter: str
    judge_runs: int
    max_turns: int
    time_limit: float
    max_observation: int
    max_invalid: int | None
    record: str | None
    render_mode: str | None


def _drop_unset(**arguments: Json) -> JsonObject:
    """Return the arguments that are not None. `SweEnv` names the required one that is missing."""
    return {name: value for name, value in arguments.items() if value is not None}


def _own(kind: type[SweEnv], settings: Settings) -> Settings:
    """Return the settings of a class, which has a task source already.

    Raises:
        UnknownArgument: They name another one.
    """
    check_known(kind, SweEnv, [name for name in ("source", "source_options") if name in settings])
    return settings


class ToyEnv(SweEnv):
    """Small bundled repositories with one bug each.

    ## Description

    Hand-made projects of a few hundred lines, for first steps, tests and demonstrations. They use the standard
    library only and need no download, network or container. A solution takes a few lines; in some tasks, a debugger
    finds the bug much faster than reading.

    Spaces, rewards and episode end are those of [`SweEnv`](swe_env.md).

    ## Starting State

    A bundled repository with its bug, drawn with the seeded generator unless `task_id` is given.

    ## Arguments

    Those of `SweEnv` except `source` and `source_options`.

    ```python
    env = gymnasium.make("SWE/Toy-v0", task_id=None, backend="local", max_turns=50)
    ```

    ## Version History

    * v0: Initial version.
    """

    def __init__(self, **settings: Unpack[Settings]) -> None:
        super().__init__("toy", **_own(type(self), settings))


class TasksEnv(SweEnv):
    """The tasks of a file.

    ## Description

    A file of tasks in swe_gym's own format (`.jsonl`, `.json` or `.parquet`), written by `swe-gym tasks export`,
    `swe-gym tasks new` or a program of yours.

    Spaces, rewards and episode end are those of [`SweEnv`](swe_env.md).

    ## Starting State

    The repository of a task in the file, drawn with the seeded generator unless `task_id` is given.

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `path` | str | required | The task file |

    Also those of `SweEnv` except `source` and `source_options`.

    ```python
    env = gymnasium.make("SWE/Tasks-v0", path="tasks.jsonl")
    ```

    ## Version History

    * v0: Initial version.
    """

    def __init__(self, path: str | None = None, **settings: Unpack[Settings]) -> None:
        super().__init__("file", _drop_unset(path=path), **_own(type(self), settings))


class LocalEnv(SweEnv):
    """A folder and a test command of your own.

    ## Description

    One task, made of a folder and a command that succeeds once the work is done. The policy works on a copy; the
    folder itself is never written to. The command is not secret: the `eval` tool runs it. Files that match
    `test_paths` are restored before the command judges the work; without `test_paths`, a policy may change the tests.

    Spaces and episode end are those of [`SweEnv`](swe_env.md).

    ## Rewards

    1.0 at the end if the command exits with status 0, else 0.0; 0.0 at every other step. See `SweEnv` for
    infrastructure failures.

    ## Starting State

    A copy of the folder as it is at `reset`. The first `reset` runs the command on it once: if it succeeds already, an
    immediate `submit` earns 1.0, which a warning and `info["already_passes"]` say.

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `path` | str | required | The folder |
    | `test_cmd` | str | required | Shell command that judges the work; it runs in the folder |
    | `problem_statement` | str | `""` | The task for the policy; default: make the command succeed |
    | `test_paths` | list | `[]` | Glob patterns of files that are restored before the command runs |
    | `python` | str | `""` | Python version, such as "3.12"; empty: the Python that runs swe_gym |
    | `requirements` | list | `[]` | pip requirements, installed once |
    | `env` | dict | `{}` | Environment variables of all commands |
    | `timeout` | float | `300.0` | Time limit of the command in seconds |

    Also those of `SweEnv` except `source` and `source_options`.

    ```python
    env = gymnasium.make("SWE/Local-v0", path=".", test_cmd="python -m unittest", test_paths=["tests/*"])
    ```

    ## Version History

    * v0: Initial version.
    """

    def __init__(
        self,
        path: str | None = None,
        test_cmd: str | None = None,
        *,
        problem_statement: str = "",
        test_paths: Sequence[str] = (),
        python: str = "",
        requirements: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 300.0,
        **settings: Unpack[Settings],
    ) -> None:
        options = {
            **_drop_unset(path=path, test_cmd=test_cmd),
            "problem_statement": problem_statement,
            "test_paths": test_paths,
            "python": python,
            "requirements": requirements,
            "env": dict(env or {}),
            "timeout": timeout,
        }
        super().__init__("local", options, **_own(type(self), settings))


class MicroEnv(SweEnv):
    """Generated tasks, from one tool call up to repairs of small projects.

    ## Description

    A ladder for small models and for tests of trainers. Difficulty 1: write a word into a file. 2: answer a question
    from a file. 3: fix one character of a line that the issue shows. 4: fix a function that a failing test names.
    5: find the bug first. 6 to 8: fix a bug in one of the bundled repositories, with less and less help from the issue.
    Sandboxes, tests and rewards are real. Difficulties 1 to 5 have a million tasks each, 6 to 8 have 50 each: train on
    one range of numbers and evaluate on another.

    Spaces and episode end are those of [`SweEnv`](swe_env.md).

    ## Rewards

    1.0 at the end if the hidden tests pass, else 0.0; 0.0 at every other step. With `max_turns=1`, the single step
    ends the episode and the work is graded as it is. See `SweEnv` for infrastructure failures.

    ## Starting State

    A repository, drawn with the seeded generator unless `task_id` is given: of one to four files, or from difficulty 6
    on, a bundled one.

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `difficulty` | int or list | `1` | 1 to 8, or several |
    | `first` | int | `0` | First number of the range |
    | `count` | int or None | `None` | Count of numbers; None takes all that every difficulty has |

    Also those of `SweEnv` except `source` and `source_options`.

    ```python
    env = gymnasium.make("SWE/Micro-v0", difficulty=[1, 2], first=0, count=10_000, max_turns=1)
    ```

    ## Version History

    * v0: Initial version.
    """

    def __init__(
        self,
        difficulty: int | Sequence[int] = 1,
        *,
        first: int = 0,
        count: int | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        rungs = difficulty if isinstance(difficulty, int) else list(difficulty)
        options = {"difficulty": rungs, "first": first, "count": count}
        super().__init__("micro", options, **_own(type(self), settings))


# --- datasets ---------------------------------------------------------------------------------------------


class DatasetEnv(SweEnv):
    """The tasks of a public dataset, each in its own image.

    ## Description

    Each dataset has an id. They differ in the task source, which defines how a row becomes a task and how the work is
    judged. Rows come from a local file or from the Hugging Face Hub, the code from the row's image.

    Spaces and episode end are those of [`SweEnv`](swe_env.md).

    ## Rewards

    1.0 at the end if the work is resolved, else 0.0; 0.0 at every other step. Each dataset has its own rule: every
    listed test must pass or, in R2E-Gym, every test must end as expected.

    ## Starting State

    The repository of the row's image at the row's commit. Newer commits and the tests of the work are removed. The row
    is drawn with the seeded generator unless `task_id` is given.

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `path` | str | `None` | File or folder of rows; `None` uses the Hub |
    | `dataset` | str | the id's own | Another dataset on the Hub with such rows |
    | `revision` | str | `None` | Commit, tag or branch; only a commit is reproducible |
    | `split` | str | the id's own | A split of the dataset |
    | `image` | str | `None` | Image name template: "registry.example/{image}" |
    | `source_options` | dict | `{}` | More arguments of the task source |

    Also those of `SweEnv` except `source`. The default `backend` is "docker".

    ```python
    env = gymnasium.make("SWE/SWEBench-v0", path="verified.parquet", backend="docker")
    ```

    ## Version History

    * v0: Initial version.
    """

    source_name: ClassVar[str]

    def __init__(
        self,
        path: str | None = None,
        *,
        dataset: str | None = None,
        revision: str | None = None,
        split: str | None = None,
        image: str | None = None,
        source_options: JsonMapping | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        options = _drop_unset(path=path, dataset=dataset, revision=revision, split=split, image=image)
        settings.setdefault("backend", default_backend(images=True))
        super().__init__(self.source_name, {**options, **(source_options or {})}, **_own(type(self), settings))


for _source, _entry in CATALOG.items():
    if _entry.about:
        _members = {"__doc__": _entry.about, "__module__": __name__, "source_name": _source}
        globals()[f"{_entry.family}Env"] = type(f"{_entry.family}Env", (DatasetEnv,), _members)
