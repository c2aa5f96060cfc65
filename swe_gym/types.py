"""The words of the package as data: frozen, and the same after a round trip through JSON."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    """Base of all data: immutable, strict about unknown fields, bytes as base64 in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


# --- what the policy does -----------------------------------------------------------------------------


class ToolSpec(Frozen):
    """What a policy is told about a tool: the form that every LLM API takes.

    Attributes:
        name: The name to call it by.
        description: One paragraph for the model.
        parameters: A JSON schema of type "object".
    """

    name: str
    description: str
    parameters: dict[str, Any]

    def openai(self) -> dict[str, Any]:
        """The tool in the shape of the OpenAI chat-completions `tools` argument."""
        return {"type": "function", "function": self.model_dump()}


class ToolCall(Frozen):
    """One use of one tool, as parsed from an action and converted by the tool's schema."""

    name: str
    arguments: dict[str, Any] = {}
    call_id: str | None = None


class Action(Frozen):
    """A policy's text, understood: the tool call and the text around it.

    Attributes:
        call: The tool call that will run.
        thought: All text of the action outside the call, stripped.
        format: The name of the format that matched.
        ignored_calls: How many further calls stood in the text and were not run.
    """

    call: ToolCall
    thought: str = ""
    format: str = ""
    ignored_calls: int = 0


class ToolResult(Frozen):
    """What a tool gives back.

    Attributes:
        text: For the policy. The environment bounds it.
        ok: False where the tool ran but what was asked did not succeed.
        submitted: True ends the episode and has the work graded.
        exit_code: Of the command, where the tool ran one.
    """

    text: str
    ok: bool = True
    submitted: bool = False
    exit_code: int | None = None


# --- what a sandbox gives back ------------------------------------------------------------------------


class ExecResult(Frozen):
    """The end of one command.

    Attributes:
        exit_code: Of the leader; None where a signal ended it.
        signal: The number of the signal that ended the leader, else None.
        timed_out: The command ran into its timeout and its whole tree was killed.
        stdout: Head and tail of the output, at most the asked number of bytes, gap marked.
        stderr: Likewise; empty where the streams were merged.
        stdout_dropped: Bytes cut out of the middle of `stdout`.
        stderr_dropped: Bytes cut out of the middle of `stderr`.
        duration: Seconds from start to end, by the sandbox's clock.
    """

    exit_code: int | None
    signal: int | None = None
    timed_out: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    duration: float = 0.0

    @property
    def ok(self) -> bool:
        """The leader ended by itself with status 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """Standard error as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr.decode("utf-8", "replace")

    def describe(self) -> str:
        """How the command ended, in a few words: "exit code 1", "timed out", "killed by signal 9"."""
        if self.timed_out:
            return "timed out"
        return f"exit code {self.exit_code}" if self.signal is None else f"killed by signal {self.signal}"


class FileEntry(Frozen):
    """One file of a tree, as a manifest lists it.

    Attributes:
        mode: Permission bits, as in 0o644.
        size: In bytes.
        digest: SHA-256 of the content in hex; of the target for a symbolic link. Empty if the content was not hashed.
        link: The target, where the entry is a symbolic link.
        ignored: The outermost file or folder that git ignores, or virtual environment, to which the entry belongs.
            Empty if it belongs to none, or if the manifest did not look.
    """

    mode: int
    size: int
    digest: str
    link: str | None = None
    ignored: str = ""


class Capabilities(Frozen):
    """What a live sandbox really offers, as probed, not as hoped for.

    Attributes:
        backend: The name of the backend.
        isolation: "namespace", "landlock", "process", "container" or "vm".
        transport: How commands reach it: "runner" is the framed protocol.
        network: "none", "egress", or "open" where the backend cannot close it.
        pty: Whether `open_pty` works.
        notes: What this isolation does not do, one sentence each.
    """

    backend: str
    isolation: str
    transport: str = "runner"
    network: Literal["none", "egress", "open"] = "none"
    pty: bool = True
    notes: tuple[str, ...] = ()


# --- what a task is -----------------------------------------------------------------------------------


class FolderWorkspace(Frozen):
    """A folder on this machine. It is copied or overlaid, never written to."""

    kind: Literal["folder"] = "folder"
    path: str


class TarWorkspace(Frozen):
    """A tar archive on this machine; `strip` leading path components are removed."""

    kind: Literal["tar"] = "tar"
    path: str
    strip: int = 1


class GitWorkspace(Frozen):
    """A commit of a git repository: a local path or a URL, and a reference."""

    kind: Literal["git"] = "git"
    url: str
    ref: str = "HEAD"


class SdistWorkspace(Frozen):
    """A source release on the Python package index.

    Attributes:
        name: The project's name on the index.
        version: The release.
        filename: The file, as in "toolz-1.0.0.tar.gz".
        sha256: Of the file; checked after download.
    """

    kind: Literal["sdist"] = "sdist"
    name: str
    version: str
    filename: str
    sha256: str


class FilesWorkspace(Frozen):
    """The files themselves, path -> text: for small repositories that a program makes."""

    kind: Literal["files"] = "files"
    files: dict[str, str]


Workspace = Annotated[
    FolderWorkspace | TarWorkspace | GitWorkspace | SdistWorkspace | FilesWorkspace, Field(discriminator="kind")
]


class PythonEnv(Frozen):
    """The Python that a task needs where no container image brings it (the local backend).

    Attributes:
        version: "3.9" and the like; empty means the Python that runs swe_gym.
        requirements: Pinned requirement lines, installed in this order.
        no_deps: Install exactly the requirements and nothing that they ask for.
    """

    version: str = ""
    requirements: tuple[str, ...] = ()
    no_deps: bool = True


class TestStatus(enum.StrEnum):
    """The end of one test. Only `PASSED` counts as passed.

    `NOT_RUN`: the test ran only in a changed form, as a counter-test, because the work was found unresolved first.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    MISSING = "missing"
    NOT_RUN = "not_run"


class Oracle(Frozen):
    """What only graders may see. Its repr and str say nothing.

    Attributes:
        gold_patch: A git diff that solves the task.
        test_patch: A git diff that puts the hidden tests in.
        test_files: Hidden tests as whole files, path -> text, beside or instead of `test_patch`.
        test_paths: Glob patterns (fnmatch, relative to the workspace) of files that belong to the tests:
            what a policy did to them is set back before grading.
        test_cmd: The shell command that runs the hidden tests. It must call `python -m pytest` or
            `python -m unittest`, which the grader replaces by its own reporter; `{workdir}` is the workspace.
        grader: Name of the grader: "tests" reads per-test results, "exit_code" the command's status, "log" the log
            of `eval_script`, "expected" compares that log with `expected`.
        fail_to_pass: Ids of tests that a right solution makes pass.
        pass_to_pass: Ids of tests that must still pass.
        timeout: Seconds that the hidden tests may take.
        hidden_paths: Files and folders of the image, absolute or relative to the workspace, that a policy must not
            see: they are removed from an episode's sandbox and are there in the sandbox that judges.
        start_patch: A git diff that makes the state that the task starts from out of what the image or workspace
            holds, such as the bug of a SWE-smith row. It goes into every sandbox of the task, and into its commit.
        setup_cmd: Shell commands that make the judging sandbox ready, before the work goes in.
        eval_script: A whole shell script that runs the hidden tests, as some datasets bring one.
        log_parser: Name of the parser that reads the log of `eval_script`.
        fails_only: The log names failed tests only, so a test that it does not name has passed.
        expected: How each test must end, id -> status: failures may be expected too.
    """

    gold_patch: str = ""
    test_patch: str = ""
    test_files: dict[str, str] = {}
    test_paths: tuple[str, ...] = ()
    test_cmd: str = ""
    grader: str = "tests"
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    timeout: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    hidden_paths: tuple[str, ...] = ()
    start_patch: str = ""
    setup_cmd: str = ""
    eval_script: str = ""
    log_parser: str = ""
    fails_only: bool = False
    expected: dict[str, TestStatus] = {}

    def __repr__(self) -> str:
        return "Oracle(hidden)"

    __str__ = __repr__


class Task(Frozen):
    """One problem, frozen: what the policy reads, where the code comes from, how it is judged.

    Attributes:
        task_id: Unique in its source, stable, made of letters, digits, ".", "_" and "-".
        problem_statement: The issue text; the first observation.
        repo: Whose code it is, as in "pallets/flask".
        workspace: Where the code comes from on the local backend.
        python: The Python environment on the local backend.
        image: The container image, for backends that run one.
        workdir: Where the code lies in the sandbox. Always absolute.
        env: Environment variables of every command; `{workdir}` in a value is replaced.
        eval_cmd: The visible entry point, which the `eval` tool runs.
        eval_timeout: Seconds that it may take.
        difficulty: A word such as "easy".
        tags: Words to filter by.
        metadata: Whatever else the source knows and the policy may know too.
        oracle: For graders only.
    """

    task_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    problem_statement: str
    repo: str = ""
    workspace: Workspace | None = None
    python: PythonEnv | None = None
    image: str | None = None
    workdir: str = Field(default="/testbed", pattern=r"^/[^\x00]*$")
    env: dict[str, str] = {}
    eval_cmd: str = ""
    eval_timeout: float = 120.0
    difficulty: str = ""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    oracle: Oracle = Field(default=Oracle(), repr=False)


# --- what a grader finds ------------------------------------------------------------------------------


class CounterTests(Frozen):
    """What the counter-tests of one grading showed. Kept from the policy: it names tests.

    Attributes:
        kinds: Test that must start passing -> what its counter-test changes, such as "literal".
        kept: The same for tests that must keep passing, of which each grading draws a few if few must start to.
        uncovered: Test that must start passing and has no counter-test -> why.
        alarms: Counter-test that passed, although it fails with the gold patch -> what it changes.
        unfit: Counter-test that passes with the gold patch too, and so proves nothing -> what it changes.
        runs: Runs of the tests on the work.
    """

    kinds: dict[str, str] = {}
    kept: dict[str, str] = {}
    uncovered: dict[str, str] = {}
    alarms: dict[str, str] = {}
    unfit: dict[str, str] = {}
    runs: int = 0


class Verdict(Frozen):
    """What a grader found out about one state of the work.

    Attributes:
        resolved: Every required test passed and nothing contradicts it.
        fail_to_pass: Status of each test that had to start passing.
        pass_to_pass: Status of each test that had to keep passing.
        exit_code: Exit code of the test command in the last run; None if it was killed. Not 0 in a run with
            counter-tests, because they fail.
        timed_out: The hidden tests ran into their timeout.
        partial: The work was found unresolved before every required test was seen as it is, because the reward asks for
            no more. Which tests were seen is chance: their statuses are for the owner alone.
        reason: Why it is not resolved, in one sentence; empty where it is.
        judge: What the results were read from: "reporter" (signed, test by test), "log" (a parser's reading of what was
            printed), "own_parser" (the dataset's parser, run in the sandbox), "exit_code"; empty where nothing ran.
        notes: What was done to make published lists and results meet, and what differs, a sentence each. Kept from the
            policy: they name tests.
        dropped: Paths that the policy changed and grading set back: tests and runner configuration.
        duration: Seconds that the tests took.
        log: End of the test command's output. Kept from the policy: it may show the tests.
        counter_tests: What the counter-tests showed.
    """

    resolved: bool
    fail_to_pass: dict[str, TestStatus] = Field(default={}, repr=False)
    pass_to_pass: dict[str, TestStatus] = Field(default={}, repr=False)
    exit_code: int | None = None
    timed_out: bool = False
    partial: bool = False
    reason: str = ""
    judge: Literal["", "reporter", "log", "own_parser", "exit_code"] = ""
    notes: tuple[str, ...] = Field(default=(), repr=False)
    dropped: tuple[str, ...] = Field(default=(), repr=False)
    duration: float = 0.0
    log: str = Field(default="", repr=False)
    counter_tests: CounterTests = Field(default=CounterTests(), repr=False)


class Reward(Frozen):
    """A reward and where it comes from: `value == sum(components.values())`.

    Attributes:
        value: What `step` returns, in [0, 1] for the rewards that ship.
        components: The named parts.
    """

    value: float
    components: dict[str, float]
