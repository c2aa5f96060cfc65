"""Make the bugs that difficulties 6 to 8 of `SWE/Micro-v0` play.

    python benchmarks/micro_mutants.py [--file swe_gym/tasks/toy_repos/mutants.jsonl] [--record FILE]

Each bundled task's repository, solved, is broken by the operators of `swe-gym tasks new --mutate`. A bug stays if a
test shows code that goes wrong, or an error, and if its task is valid: gold 1, empty 0, and a counter-test. The same
code of swe_gym and the same bundled tasks make the same file.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path

from swe_gym.curation import BuildOptions, validate
from swe_gym.curation.mutants import (
    BATCH,
    Bug,
    Project,
    TrialOrder,
    TrialResult,
    draw_bugs,
    hide_tests,
    make_task,
    open_commit,
    run_trials,
    why_unfit,
)
from swe_gym.curation.mutation import mutate
from swe_gym.envs import SandboxGroup
from swe_gym.errors import TaskError
from swe_gym.tasks import TaskRecord, load_source
from swe_gym.tasks.toy import read_solved
from swe_gym.tasks.toy_mutants import HELD_OUT_FROM, MUTANT_RUNGS, ToyMutant, find_edits
from swe_gym.types import Task

SEED = 0
EACH = 6
"""Bugs of a repository that are validated for each difficulty, unless there are fewer."""

TRIED = 240
"""Bugs of a repository that are tried."""

SIZE = 50
"""Tasks of each difficulty."""

HELD_OUT = ("larder-overwrite-evicts", "rota-month-end", "topmake-stale-cycle")
"""The bundled tasks whose repositories only the last numbers are of."""

LEVELS = dict(zip(MUTANT_RUNGS, ("easy", "medium", "hard"), strict=True))


def find_mutants(toy: str, each: int = EACH) -> Iterator[ToyMutant]:
    """Yield bugs in the solved repository of a bundled task, in the order in which they are drawn."""
    with tempfile.TemporaryDirectory() as parent:
        project = open_solved(toy, Path(parent))
        found: Counter[int] = Counter()
        places = set()
        bugs = islice(draw_bugs(project, SEED), TRIED)
        while (batch := list(islice(bugs, BATCH))) and any(found[rung] < each for rung in MUTANT_RUNGS):
            for bug, result in zip(batch, try_bugs(project, batch), strict=True):
                place = bug.mutation.path, bug.mutation.names, result.failing
                if result.error or not result.failing or place in places:
                    continue
                rungs = [rung for rung in choose_rungs(bug, found) if found[rung] < each]
                mutant = next(filter(None, (describe(project, toy, bug, result, rung) for rung in rungs)), None)
                if mutant is not None:
                    places.add(place)
                    found[mutant.difficulty] += 1
                    yield mutant


def open_solved(toy: str, parent: Path) -> Project:
    """Return the solved repository of a bundled task, with its hidden tests, as a project whose tests pass."""
    task = load_source("toy").get(toy)
    folder = parent / task.repo.removeprefix("toy/")
    for path, text in read_solved(toy).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
    who = ["-c", "user.name=swe_gym", "-c", "user.email=swe_gym@localhost", "-c", "core.autocrlf=false"]
    for arguments in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "Solved"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return open_commit(str(folder), task.oracle.evaluation.test_cmd, "HEAD", BuildOptions())


def try_bugs(project: Project, bugs: Sequence[Bug]) -> list[TrialResult]:
    """Run the tests of bugs in one sandbox."""
    order = TrialOrder(tuple(bug.trial for bug in bugs), project.seconds, project.clock, project.most)
    with SandboxGroup(project.base, "local", {}) as group:
        return run_trials(group, order)


def choose_rungs(bug: Bug, found: Mapping[int, int]) -> list[int]:
    """Return the difficulties that a bug may have, the first that lacks most."""
    named, shown, gone = MUTANT_RUNGS
    if bug.mutation.kind.startswith("missing") or "+" in bug.mutation.kind:
        return [gone]
    return sorted((named, shown), key=lambda rung: found[rung])


def describe(project: Project, toy: str, bug: Bug, result: TrialResult, rung: int) -> ToyMutant | None:
    """Return a bug with the issue of its difficulty; None if its tests cannot be hidden, or no issue can show it."""
    try:
        task = make_task(project, bug._replace(task=bug.task.model_copy(update={"difficulty": LEVELS[rung]})), result)
    except TaskError:
        return None
    issue, function = task.problem_statement, ".".join(bug.mutation.names)
    if issue.startswith("The bug is in"):
        return None
    if rung == MUTANT_RUNGS[0]:
        issue = issue.replace(f"`{function}` of {project.name}.", f"`{function}` in `{bug.mutation.path}`.")
    before = read_solved(toy)
    hidden = {path: data.decode() for path, data in hide_tests(project, result.failing).items()}
    broken = mutate(project.files[bug.mutation.path], bug.mutation).decode()
    return ToyMutant(
        difficulty=rung,
        toy=toy,
        path=bug.mutation.path,
        function=function,
        edits=find_edits(before[bug.mutation.path], broken),
        hidden={path: find_edits(before[path], text) for path, text in hidden.items()},
        fail_to_pass=result.failing,
        problem_statement=issue,
    )


class Drafts:
    """Bugs that are not validated, as a task source."""

    def __init__(self, mutants: Sequence[ToyMutant]) -> None:
        self.mutants = {f"draft-{number}": mutant for number, mutant in enumerate(mutants)}

    def ids(self) -> Sequence[str]:
        """Return the ids."""
        return list(self.mutants)

    def get(self, task_id: str) -> Task:
        """Return a task."""
        return self.mutants[task_id].task(task_id)


def keep_valid(mutants: Sequence[ToyMutant], record: str | None) -> list[ToyMutant]:
    """Return the bugs whose tasks are valid, with a counter-test."""
    drafts = Drafts(mutants)
    records = validate(drafts, times=1, workers=1, record=record)
    reasons = {one.task_id: why_bad(one) for one in records}
    print("refused:", Counter(filter(None, reasons.values())), file=sys.stderr)
    return [mutant for task_id, mutant in drafts.mutants.items() if not reasons[task_id]]


def why_bad(record: TaskRecord) -> str:
    """Return why a task is not used; empty if it is."""
    if record.status != "valid":
        return record.reason
    return why_unfit(record) or ("" if record.counter_tests else "no counter-test")


def order(mutants: Sequence[ToyMutant]) -> Iterator[ToyMutant]:
    """Yield the bugs in the order of their numbers: those of the repositories that are held out last."""
    for rung in MUTANT_RUNGS:
        for is_held_out, most in ((False, HELD_OUT_FROM), (True, SIZE - HELD_OUT_FROM)):
            every = [one for one in mutants if one.difficulty == rung and (one.toy in HELD_OUT) == is_held_out]
            by_toy = [[one for one in every if one.toy == toy] for toy in dict.fromkeys(one.toy for one in every)]
            chosen = [one for one in chain.from_iterable(zip_longest(*by_toy)) if one][:most]
            if len(chosen) < most:
                raise SystemExit(f"difficulty {rung}: {len(chosen)} bugs for {most} numbers ({is_held_out=})")
            random.Random(f"{SEED} {rung}").shuffle(chosen)
            yield from chosen


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=Path("swe_gym/tasks/toy_repos/mutants.jsonl"))
    parser.add_argument("--record", help="JSONL file of the validations")
    options = parser.parse_args()
    drafts: list[ToyMutant] = []
    for toy in load_source("toy").ids():
        drafts += find_mutants(toy)
        print(toy, dict(Counter(one.difficulty for one in drafts if one.toy == toy)), file=sys.stderr, flush=True)
    lines = [one.model_dump_json() for one in order(keep_valid(drafts, options.record))]
    options.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} bugs, {options.file.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
