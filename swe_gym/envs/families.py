"""The environments behind the registered ids: `SweEnv` with its task source chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack

from .swe_env import SweEnv


class Settings(TypedDict, total=False):
    """The keyword arguments that every family takes; `SweEnv` describes them and holds their defaults."""

    task_id: str | None
    backend: str
    sandbox_options: dict[str, Any] | None
    tools: str | list[str]
    action_format: str
    reward: str
    counter: str
    judge_runs: int
    max_turns: int
    time_limit: float
    max_observation: int
    max_invalid: int | None
    record: str | None
    render_mode: str | None


class ToyEnv(SweEnv):
    """Small bundled repositories with one bug each.

    ## Description

    Hand-made projects of a few hundred lines, pure standard library, that look like real ones. They need no
    download, no network and no container, and a right solution is a few lines. In some of them a debugger finds
    the bug far sooner than reading does. Made for first steps, tests and demonstrations.

    ## Action Space

    `Unicode(1000000)`: text with one tool call in it. See `SweEnv`.

    ## Observation Space

    `Unicode(16000)`: what the tool says; after `reset`, the issue text. See `SweEnv`.

    ## Rewards

    1.0 at the end where all required hidden tests pass, else 0.0; 0.0 at every other step. See `SweEnv` for other
    rewards and for infrastructure failures.

    ## Starting State

    One of the bundled repositories with its bug in it, drawn with the seeded generator unless `task_id` is given.

    ## Episode End

    1. Termination: `submit`.
    2. Truncation: a limit was reached (the work is graded), or the infrastructure failed (it is not).

    ## Arguments

    Those of `SweEnv` but `source` and `source_options`.

    ```python
    env = gymnasium.make("SWE/Toy-v0", task_id=None, backend="local", max_turns=50)
    ```

    ## Version History

    * v0: Initial version.
    """

    def __init__(self, **settings: Unpack[Settings]) -> None:
        super().__init__("toy", **settings)


class TasksEnv(SweEnv):
    """The tasks of a file.

    ## Description

    Any file of task rows in swe_gym's own form: `.jsonl`, `.json` or `.parquet`, written by `swe-gym tasks export`,
    by `swe-gym tasks new` or by a program of yours.

    ## Action Space

    `Unicode(1000000)`: text with one tool call in it. See `SweEnv`.

    ## Observation Space

    `Unicode(16000)`: what the tool says; after `reset`, the issue text. See `SweEnv`.

    ## Rewards

    1.0 at the end where all required hidden tests pass, else 0.0; 0.0 at every other step. See `SweEnv` for other
    rewards and for infrastructure failures.

    ## Starting State

    The repository of a task of the file, drawn with the seeded generator unless `task_id` is given.

    ## Episode End

    1. Termination: `submit`.
    2. Truncation: a limit was reached (the work is graded), or the infrastructure failed (it is not).

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `path` | str | required | The file |

    and those of `SweEnv` but `source` and `source_options`.

    ```python
    env = gymnasium.make("SWE/Tasks-v0", path="tasks.jsonl")
    ```

    ## Version History

    * v0: Initial version.
    """

    def __init__(self, path: str, **settings: Unpack[Settings]) -> None:
        super().__init__("file", {"path": path}, **settings)


class LocalEnv(SweEnv):
    """A folder and a test command of your own.

    ## Description

    One task made of what you have: a folder, and a command that succeeds when the work is done. The policy works on
    a copy; the folder itself is never written to. The command is no secret: the `eval` tool runs it. Files that
    `test_paths` names are set back before the command judges the work; without it, a policy may change the tests.

    ## Action Space

    `Unicode(1000000)`: text with one tool call in it. See `SweEnv`.

    ## Observation Space

    `Unicode(16000)`: what the tool says; after `reset`, the problem statement. See `SweEnv`.

    ## Rewards

    1.0 at the end where the command exits with status 0, else 0.0; 0.0 at every other step. See `SweEnv` for
    infrastructure failures.

    ## Starting State

    A copy of the folder as it is at `reset`.

    ## Episode End

    1. Termination: `submit`.
    2. Truncation: a limit was reached (the work is graded), or the infrastructure failed (it is not).

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `path` | str | required | The folder |
    | `test_cmd` | str | required | The shell command that judges the work, run in the folder |
    | `problem_statement` | str | `""` | What to do; by default, to make the command succeed |
    | `test_paths` | list | `[]` | Glob patterns of files that the policy's changes do not count in |
    | `python` | str | `""` | Version of Python, as in "3.12"; empty is the one that runs swe_gym |
    | `requirements` | list | `[]` | Requirement lines that are installed beside it, once |
    | `env` | dict | `{}` | Environment variables of every command |
    | `timeout` | float | `300.0` | Seconds that the command may take |

    and those of `SweEnv` but `source` and `source_options`.

    ```python
    env = gymnasium.make("SWE/Local-v0", path=".", test_cmd="python -m unittest", test_paths=["tests/*"])
    ```

    ## Version History

    * v0: Initial version.
    """

    def __init__(
        self,
        path: str,
        test_cmd: str,
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
            "path": path,
            "test_cmd": test_cmd,
            "problem_statement": problem_statement,
            "test_paths": test_paths,
            "python": python,
            "requirements": requirements,
            "env": dict(env or {}),
            "timeout": timeout,
        }
        super().__init__("local", options, **settings)


class MicroEnv(SweEnv):
    """Generated tasks, from one tool call up to small repairs.

    ## Description

    A ladder for small models and for tests of trainers. Difficulty 1 is to write a word into a file, 2 to answer a
    question that a file holds, 3 to repair one character of a line that the issue shows, 4 to repair a function that
    a failing test names, 5 to find the bug first. Sandboxes, tests and rewards are real. The tasks have no end:
    train on one range of numbers and evaluate on another.

    ## Action Space

    `Unicode(1000000)`: text with one tool call in it. See `SweEnv`.

    ## Observation Space

    `Unicode(16000)`: what the tool says; after `reset`, the issue text. See `SweEnv`.

    ## Rewards

    1.0 at the end where the hidden test passes, else 0.0; 0.0 at every other step. With `max_turns=1` the one step
    ends the episode, and the work is graded as it is. See `SweEnv` for infrastructure failures.

    ## Starting State

    A repository of one to four files, drawn with the seeded generator unless `task_id` is given.

    ## Episode End

    1. Termination: `submit`.
    2. Truncation: a limit was reached (the work is graded), or the infrastructure failed (it is not).

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `difficulty` | int or list | `1` | 1 to 5, or several |
    | `first` | int | `0` | The first number of the range |
    | `count` | int | `1000000` | How many numbers |

    and those of `SweEnv` but `source` and `source_options`.

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
        count: int = 1_000_000,
        **settings: Unpack[Settings],
    ) -> None:
        rungs = difficulty if isinstance(difficulty, int) else list(difficulty)
        super().__init__("micro", {"difficulty": rungs, "first": first, "count": count}, **settings)


# --- datasets ---------------------------------------------------------------------------------------------


class DatasetEnv(SweEnv):
    """The tasks of a public dataset, each in its own image.

    ## Description

    Each dataset has an id; what differs between them is the task source, and with it how a row becomes a task and how
    the work is judged. Rows come from a file of yours or from the Hugging Face Hub, the code from the row's image.

    ## Action Space

    `Unicode(1000000)`: text with one tool call in it. See `SweEnv`.

    ## Observation Space

    `Unicode(16000)`: what the tool says; after `reset`, the issue text. See `SweEnv`.

    ## Rewards

    1.0 at the end where the work is judged resolved, else 0.0; 0.0 at every other step. A task is resolved by its
    dataset's own rule: every listed test passes or, in R2E-Gym, every test ends as it should.

    ## Starting State

    The repository of the row's image at the row's commit, with nothing in it that is newer or that tests the work. The
    row is drawn with the seeded generator unless `task_id` is given.

    ## Episode End

    1. Termination: `submit`.
    2. Truncation: a limit was reached (the work is graded), or the infrastructure failed (it is not).

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `path` | str | `None` | A file or folder of rows; none is the Hub |
    | `dataset` | str | the id's own | Another dataset on the Hub that has such rows |
    | `revision` | str | `None` | A commit, tag or branch of it; only a commit means the same for ever |
    | `split` | str | the id's own | One of its splits |
    | `image` | str | `None` | Where images come from: "registry.example/{image}" |
    | `source_options` | dict | `{}` | Further arguments of the task source |

    and those of `SweEnv` but `source`; `backend` is "docker" where none is given.

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
        source_options: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        named = {"path": path, "dataset": dataset, "revision": revision, "split": split, "image": image}
        options = {name: value for name, value in named.items() if value is not None}
        settings.setdefault("backend", "docker")
        super().__init__(self.source_name, {**options, **(source_options or {})}, **settings)


class R2EEnv(DatasetEnv):
    """R2E-Gym: commits of Python repositories. Every test must end as it did after the commit."""

    source_name = "r2e"


class SWEBenchEnv(DatasetEnv):
    """SWE-bench in any edition: issues of GitHub and the tests of the pull requests that closed them."""

    source_name = "swebench"


class SWESmithEnv(DatasetEnv):
    """SWE-smith: bugs put into working repositories."""

    source_name = "swesmith"


class SWEGymEnv(DatasetEnv):
    """SWE-Gym: issues of eleven Python repositories that SWE-bench has not."""

    source_name = "swegym"


class SWERebenchEnv(DatasetEnv):
    """SWE-rebench, V1 and V2: issues of thousands of repositories, in V2 of twenty languages."""

    source_name = "swe_rebench"


class SWEBenchLiveEnv(DatasetEnv):
    """SWE-bench-Live: issues younger than the models that are measured with them."""

    source_name = "swe_bench_live"


class SWEBenchProEnv(DatasetEnv):
    """SWE-bench Pro: long tasks, judged by their rows' own scripts."""

    source_name = "swe_bench_pro"


class MultiSWEBenchEnv(DatasetEnv):
    """Multi-SWE-bench and Multi-SWE-RL: pull requests of seven languages."""

    source_name = "multi_swe_bench"


class GraphPlannerEnv(DatasetEnv):
    """Graph Planner's JSON lines and parquet files; `path` is needed."""

    source_name = "graph_planner"


class DebugGymEnv(DatasetEnv):
    """debug-gym's rows; `path` is needed."""

    source_name = "debug_gym"


class HarborEnv(DatasetEnv):
    """Harbor's task folders; `path` is needed."""

    source_name = "harbor"
