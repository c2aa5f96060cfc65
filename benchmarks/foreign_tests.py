"""Counter-tests of a package in JavaScript, TypeScript or Go: how many of its tests they prove, and false alarms.

    python benchmarks/foreign_tests.py FOLDER 'go test -v .' --parser gotest --tests '*_test.go' --times 2

FOLDER holds the package, and its dependencies unless the command brings them. All tests that pass there count as tests
that must start passing, and work that adds one text file is judged. After a judgement, the changes that right work
survived are left out, as with a record of `swe-gym validate`.
"""

import argparse
import fnmatch
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swe_gym.grading import CounterOptions, grade
from swe_gym.grading.diff import file_diff
from swe_gym.grading.log_parsers import load_parser
from swe_gym.grading.patch import REGULAR, FileChange, Patch
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.types import FolderWorkspace, Oracle, Task, TestStatus

SCRIPT = "cd {workdir}\n: '>>>>> Start Test Output'\nCOMMAND\n: '>>>>> End Test Output'\n"
LIMIT = 600.0
WORK = FileChange(path="work.txt", old=None, new=b"1\n", old_mode=None, new_mode=REGULAR)


def main() -> None:
    """Judge the package several times, and print a line about each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("command", help="Runs the tests, from the folder.")
    parser.add_argument("--parser", required=True, help="Log parser of its output.")
    parser.add_argument("--tests", required=True, help="Pattern of the paths of its test files.")
    parser.add_argument("--times", type=int, default=1)
    args = parser.parse_args()
    workspace = FolderWorkspace(path=str(args.folder.resolve()))

    @contextmanager
    def fresh() -> Iterator[Sandbox]:
        with open_sandbox(SandboxSpec(workspace=workspace, options={"python_prefix": sys.prefix})) as sandbox:
            yield sandbox

    with fresh() as sandbox:
        log = sandbox.exec(args.command, timeout=LIMIT, merge=True, max_output=1 << 24)
    ends = load_parser(args.parser)(log.text)
    passing = sorted(test for test, end in ends.items() if end is TestStatus.PASSED)
    if not passing:
        sys.exit(f"no test passes ({log.describe()}): {log.text[-2000:]}")
    paths = [str(path.relative_to(args.folder)) for path in args.folder.rglob("*") if path.is_file()]
    tests = {path: (args.folder / path).read_text() for path in paths if fnmatch.fnmatch(path, args.tests)}
    task = Task(
        task_id="package",
        problem_statement="The package as it is.",
        workspace=workspace,
        oracle=Oracle(
            gold_patch=file_diff(WORK.path, None, WORK.new, None, REGULAR),
            test_files=tests,
            grader="log",
            log_parser=args.parser,
            eval_script=SCRIPT.replace("COMMAND", args.command),
            fail_to_pass=tuple(passing),
            timeout=LIMIT,
        ),
    )
    unfit: dict[str, tuple[str, ...]] = {}
    for _ in range(args.times):
        start = time.monotonic()
        with fresh() as sandbox:
            verdict = grade(task, Patch(changes=(WORK,)), sandbox, fresh, counter=CounterOptions(unfit=unfit))
        found = verdict.counter_tests
        proven = found.kinds.keys() - found.unfit.keys()
        several = sum(found.texts.get(test, 1) > 1 for test in proven)
        print(
            f"{args.folder.name}: resolved {verdict.resolved} {verdict.reason}, {len(passing)} tests, "
            f"{len(proven)} proven, {several} by texts that look alike, {len(found.alarms)} alarms, "
            f"{time.monotonic() - start:.0f} s"
        )
        for test, kinds in found.unfit.items():
            unfit[test] = tuple({*unfit.get(test, ()), *kinds.split("+")})


if __name__ == "__main__":
    main()
