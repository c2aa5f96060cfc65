"""The data types of the package: frozen, and equal after a round trip through JSON."""

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

Json = Any
"""A value that was read from JSON or will be written as JSON."""

JsonObject = dict[str, Json]
"""An object that was read from JSON or will be written as JSON."""

JsonMapping = Mapping[str, Json]
"""A JSON object that is only read."""


class Frozen(BaseModel):
    """Base of all data: immutable, strict about unknown fields, bytes as base64 in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class Hidden(Frozen):
    """Base of data that only graders may see: its repr, its str and errors of its validation say nothing of it."""

    model_config = ConfigDict(hide_input_in_errors=True)

    def __repr_args__(self) -> tuple[()]:  # `rich` prints these
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"

    __str__ = __repr__


LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{LABEL}\.)+(?=[a-z]){LABEL}")
"""A host name with a domain. Its last label starts with a letter, so that no form of an address is one."""


def _plain(host: str) -> str:
    return host.strip().lower().removesuffix(".")


def check_host(host: str) -> str:
    """Return an entry of an allow-list of hosts in its usual form.

    Raises:
        ValueError: It is not a host name, or `*.` and one.
    """
    name = _plain(host)
    if not HOST_NAME.fullmatch(name.removeprefix("*.")):
        raise ValueError("not a host name such as pypi.org, or *.pypi.org for all names below it")
    return name


MOST_HOSTS = 1000


def check_network(network: object) -> object:
    """Return the network access of a sandbox, its hosts in their usual form.

    Raises:
        ValueError: It is neither "none" nor "egress" nor a list of hosts.
    """
    if isinstance(network, str) and network in ("none", "egress"):
        return network
    expected = 'expected none, egress or a list of hosts, such as ["pypi.org"]'
    if not isinstance(network, list | tuple | set | frozenset) or not network:
        raise ValueError(f"{expected}, not {repr(network)[:100]}")
    if len(network) > MOST_HOSTS:
        raise ValueError(f"{expected}: more than {MOST_HOSTS:,} hosts")
    for host in network:
        if not isinstance(host, str) or not HOST_NAME.fullmatch(_plain(host).removeprefix("*.")):
            raise ValueError(f"{expected}: {repr(host)[:100]} is not a host name")
    return tuple(map(_plain, network))


Hosts = Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_HOSTS)]
NetworkAccess = Annotated[Literal["none", "egress"] | Hosts, BeforeValidator(check_network)]
"""Network access of a sandbox: none, all, or hosts: names, or `*.` and a name, which stands for every name below it."""


# --- actions ------------------------------------------------------------------------------------------


class ToolSpec(Frozen):
    """A description of a tool for a policy, in the form of LLM APIs.

    Attributes:
        name: Name of the tool.
        description: One paragraph for the model.
        parameters: A JSON schema of type "object".
    """

    name: str
    description: str
    parameters: JsonObject

    def openai(self) -> JsonObject:
        """Return the tool in the form of the `tools` argument of OpenAI's chat completions."""
        return {"type": "function", "function": self.model_dump()}


class ToolCall(Frozen):
    """One call of a tool, parsed from an action and converted by the tool's schema."""

    name: str
    arguments: JsonObject = {}
    call_id: str | None = None


class Action(Frozen):
    """A parsed action: the tool call and the text around it.

    Attributes:
        call: Tool call to run.
        thought: Text of the action outside the call, stripped.
        format: Name of the format that matched.
        ignored_calls: Number of further calls in the text, which do not run.
    """

    call: ToolCall
    thought: str = ""
    format: str = ""
    ignored_calls: int = 0


class ToolResult(Frozen):
    """The result of a tool call.

    Attributes:
        text: Text for the policy. The environment limits its length.
        ok: Whether the request succeeded.
        submitted: Whether the episode ends and the work is graded.
        exit_code: Exit code of the command, if the tool ran one.
    """

    text: str
    ok: bool = True
    submitted: bool = False
    exit_code: int | None = None


# --- sandboxes ----------------------------------------------------------------------------------------


class ExecResult(Frozen):
    """The result of a command.

    Attributes:
        exit_code: Exit code of the leader; None if a signal ended it.
        signal: Number of the signal that ended the leader, else None.
        timed_out: Whether the command timed out and its whole process tree was killed.
        stdout: Head and tail of the output, up to the requested number of bytes, with the gap marked.
        stderr: Head and tail of standard error; empty if the streams were merged.
        stdout_dropped: Bytes cut from the middle of `stdout`.
        stderr_dropped: Bytes cut from the middle of `stderr`.
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
        """Whether the leader exited with status 0."""
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
        """Return the end of the command in a few words: "exit code 1", "timed out", "killed by signal 9"."""
        if self.timed_out:
            return "timed out"
        return f"exit code {self.exit_code}" if self.signal is None else f"killed by signal {self.signal}"


class FileEntry(Frozen):
    """A file in a manifest.

    Attributes:
        mode: Permission bits, as in 0o644.
        size: Size in bytes.
        digest: SHA-256 of the content in hex, or of a symbolic link's target. Empty if the content was not hashed.
        link: Target of a symbolic link.
        ignored: Outermost file or folder that git ignores, or virtual environment, that contains the entry. Empty if
            there is none, or if the manifest did not look.
    """

    mode: int
    size: int
    digest: str
    link: str | None = None
    ignored: str = ""


class Capabilities(Frozen):
    """The probed capabilities of a running sandbox.

    Attributes:
        backend: Name of the backend.
        isolation: "namespace", "landlock", "process", "container" or "vm".
        transport: Way of commands into the sandbox: "runner" is the framed protocol.
        network: "none", "hosts", "egress", or "open" if the backend cannot close it.
        pty: Whether `open_pty` works.
        notes: Limits of this isolation, one sentence each.
    """

    backend: str
    isolation: str
    transport: str = "runner"
    network: Literal["none", "hosts", "egress", "open"] = "none"
    pty: bool = True
    notes: tuple[str, ...] = ()


# --- tasks --------------------------------------------------------------------------------------------


class FolderWorkspace(Frozen):
    """A folder on this machine. It is copied or overlaid, and never changed."""

    kind: Literal["folder"] = "folder"
    path: str


class TarWorkspace(Frozen):
    """A tar archive on this machine.

    Attributes:
        path: Path of the archive.
        strip: Number of leading path components to remove.
        sha256: SHA-256 of the archive in hex, checked before it is unpacked. Empty: not checked.
    """

    kind: Literal["tar"] = "tar"
    path: str
    strip: int = 1
    sha256: str = ""


class GitWorkspace(Frozen):
    """A commit of a git repository, by a local path or a URL and a reference."""

    kind: Literal["git"] = "git"
    url: str
    ref: str = "HEAD"


class SdistWorkspace(Frozen):
    """A source release on the Python package index.

    Attributes:
        name: Name of the project on the index.
        version: Version of the release.
        filename: File name, as in "toolz-1.0.0.tar.gz".
        sha256: SHA-256 of the file, checked after download.
    """

    kind: Literal["sdist"] = "sdist"
    name: str
    version: str
    filename: str
    sha256: str


class FilesWorkspace(Frozen):
    """Files as path -> text, for small repositories that a program makes."""

    kind: Literal["files"] = "files"
    files: dict[str, str]


class FileContent(Frozen):
    """A file to put into a sandbox.

    Attributes:
        data: Content.
        mode: Permission bits.
    """

    data: bytes = Field(repr=False)
    mode: int = 0o644


Workspace = Annotated[
    FolderWorkspace | TarWorkspace | GitWorkspace | SdistWorkspace | FilesWorkspace, Field(discriminator="kind")
]


class PythonEnv(Frozen):
    """The Python environment of a task on the local backend, which has no container image.

    Attributes:
        version: Version such as "3.9"; empty means the Python that runs swe_gym.
        requirements: Pinned requirement lines, installed in this order.
        no_deps: Whether to install exactly the requirements, without their dependencies.
    """

    version: str = ""
    requirements: tuple[str, ...] = ()
    no_deps: bool = True


START_TIMEOUT = 600.0
"""Seconds that the start of a sandbox may take by default."""


class ImageBuild(Frozen):
    """A Dockerfile on this machine, for backends that build images.

    Attributes:
        context: Folder with the Dockerfile and the files that it copies.
        timeout: Seconds that the build may take.
    """

    context: str
    timeout: float = Field(default=600.0, gt=0, allow_inf_nan=False)


class SandboxNeeds(Frozen):
    """Demands of a task on the policy's sandbox. The user's `sandbox_options` replace them, except `files`.

    Attributes:
        user: User that runs the commands; None is the backend's default.
        cpus: CPU cores.
        memory_mb: Memory in MiB.
        disk_mb: Disk in MiB.
        network: Network access: "none", "egress" or hosts, as in `SandboxSpec`; None is the default, "none".
        activate: Whether a Python environment of the image goes first on the PATH; None is the default, True.
        build: Build of the task's image, unless the backend has it.
        files: Files that are added at the start: path, absolute or relative to the workdir -> content. Only for tasks
            that a script judges; others have them in their workspace or image.
    """

    user: str | None = None
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)
    disk_mb: int | None = Field(default=None, gt=0)
    network: NetworkAccess | None = None
    activate: bool | None = None
    build: ImageBuild | None = None
    files: dict[str, FileContent] = {}

    def spec_fields(self) -> JsonObject:
        """Return the fields of a `SandboxSpec` that are set. A build has time beside the start."""
        fields = self.model_dump(exclude={"files"}, exclude_none=True)
        return fields | ({"start_timeout": START_TIMEOUT + self.build.timeout} if self.build else {})


class TestStatus(enum.StrEnum):
    """The status of a test. Only `PASSED` counts as passed.

    `NOT_RUN`: the test ran only changed, as a counter-test. Only in run folders of version 0.1.
    """

    __test__ = False  # keeps pytest from collecting it

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    MISSING = "missing"
    NOT_RUN = "not_run"


class ParserProgram(RootModel[str]):
    """A Python program that reads a test run's output and writes its results. Some dataset rows bring one."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    def __repr_args__(self) -> tuple[()]:
        return ()

    def __repr__(self) -> str:
        return "ParserProgram(hidden)"

    __str__ = __repr__


def _parser(value: object) -> object:
    return ParserProgram(value) if isinstance(value, str) and "\n" in value else value


LogParserSource = Annotated[str | ParserProgram, BeforeValidator(_parser)]
"""A log parser: a name in `swe_gym.grading.log_parsers`, or a program."""


class TestCommand(Hidden):
    """An evaluation by a command that calls pytest or unittest. The reporter signs the result of each test.

    Attributes:
        test_cmd: Shell command that runs the hidden tests. It calls `python -m pytest` or `python -m unittest` exactly
            once; the grader replaces that call by its reporter. `{workdir}` is the workspace.
    """

    __test__ = False  # keeps pytest from collecting it

    kind: Literal["tests"] = "tests"
    test_cmd: str = ""


class ExitCode(Hidden):
    """An evaluation by the exit code of a command.

    Attributes:
        test_cmd: Shell command that runs the hidden tests. `{workdir}` is the workspace.
    """

    kind: Literal["exit_code"] = "exit_code"
    test_cmd: str = ""


class LogScript(Hidden):
    """An evaluation by a dataset's own script, whose log a parser reads.

    Attributes:
        eval_script: Shell script that runs the hidden tests. `{workdir}` is the workspace.
        log_parser: Log parser of the script's output.
        fails_only: Whether the log names failed tests only. Tests that it does not name then count as passed.
    """

    kind: Literal["log"] = "log"
    eval_script: str = ""
    log_parser: LogParserSource = ""
    fails_only: bool = False


class ExpectedMap(Hidden):
    """An evaluation by a script whose tests must end exactly as a map says.

    Attributes:
        eval_script: Shell script that runs the hidden tests. `{workdir}` is the workspace.
        log_parser: Log parser of the script's output.
        expected: Required status of each test; failures may be required too.
    """

    kind: Literal["expected"] = "expected"
    eval_script: str = ""
    log_parser: LogParserSource = ""
    expected: dict[str, TestStatus] = {}


class Healthcheck(Frozen):
    """A command that is repeated after the start of a sandbox until it succeeds, as Docker does.

    Attributes:
        command: Command line. Exit status 0 is success.
        interval: Seconds between attempts.
        timeout: Seconds of one attempt.
        start_period: Seconds after the start in which failures do not count.
        start_interval: Seconds between attempts in that time.
        retries: Failures in a row that end it.
        user: User who runs it; None is the sandbox's.
    """

    command: str
    interval: float = Field(default=5.0, ge=0, le=3600)
    timeout: float = Field(default=30.0, ge=1, le=3600)
    start_period: float = Field(default=0.0, ge=0, le=3600)
    start_interval: float = Field(default=5.0, ge=0, le=3600)
    retries: int = Field(default=3, ge=1, le=1000)
    user: str | None = None


class CollectHook(Hidden):
    """A command that runs in the policy's sandbox once the work has ended. Its failure has no consequence.

    Attributes:
        command: Command line.
        timeout: Seconds that it may take.
        user: User that runs it, by name or number; see `RewardScript.user`.
    """

    command: str
    timeout: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    user: str | None = None


class Artifact(Hidden):
    """A file or folder that is copied from the policy's sandbox to the verifier's. It may be missing.

    Attributes:
        path: Absolute path, in both sandboxes.
        exclude: Patterns of `tar --exclude` for files of a folder that are left out.
    """

    path: str = Field(pattern=r"^/[^\x00]*$")
    exclude: tuple[str, ...] = ()


class VerifierSandbox(Hidden):
    """A sandbox of its own for the script that judges the work. It sees nothing of the policy's but the artifacts.

    Attributes:
        image: Container image.
        workdir: Folder in which the script runs.
        env: Variables of its commands.
        needs: Demands on it.
        artifacts: Files and folders of the policy's sandbox that it gets.
    """

    image: str
    workdir: str
    env: dict[str, str] = {}
    needs: SandboxNeeds = SandboxNeeds()
    artifacts: tuple[Artifact, ...] = ()


class RewardScript(Hidden):
    """An evaluation by a script that writes a reward, in the sandbox in which the policy worked or in another one.

    Attributes:
        script: Path of the script. It runs in the workdir, after the policy's work has ended.
        files: Hidden files, which are added before the script runs: absolute path -> content.
        collect: Commands that run in the policy's sandbox before that.
        verifier: Sandbox in which the script runs; None is the policy's.
        rewards: Folder in which the script writes `reward.txt` or `reward.json`.
        named: Whether only the value "reward" of `reward.json` is the reward, and not an only value of another name.
        env: Variables of the script.
        user: User that runs the script, by name or number; None is the user of the sandbox's commands. Any other needs
            a sandbox whose commands run as root.
        policy_user: User with whose rights the policy works, as `user`.
        healthcheck: Check that must pass before the work begins; None if there is none.
        solve: Path of a script that solves the task; empty if there is none.
        solution: Files of the solution: absolute path -> content.
        solution_env: Variables of the script that solves the task.
        steps: Steps of the task, played one after another in one sandbox, each with a script of its own. Of the other
            fields, only `healthcheck` counts then.
        final: Whether the reward of such a task is that of the last step played, not the mean.
    """

    kind: Literal["reward"] = "reward"
    script: str = "/tests/test.sh"
    files: dict[str, FileContent] = {}
    collect: tuple[CollectHook, ...] = ()
    verifier: VerifierSandbox | None = None
    rewards: str = "/logs/verifier"
    named: bool = False
    env: dict[str, str] = {}
    user: str | None = None
    policy_user: str | None = None
    healthcheck: Healthcheck | None = None
    solve: str = ""
    solution: dict[str, FileContent] = {}
    solution_env: dict[str, str] = {}
    steps: "tuple[TaskStep, ...]" = ()
    final: bool = False


class TaskStep(Hidden):
    """A step of a task.

    Attributes:
        name: Name.
        instruction: What the policy has to do.
        time_limit: Seconds of the policy; None is the environment's.
        files: Files that are added to the workdir before it: relative path -> content.
        setup: Command that runs after that; empty if there is none.
        healthcheck: Check that must pass then; None if there is none.
        script: Its evaluation.
        timeout: Seconds of the script.
        min_reward: The task ends after this step unless it earns as much; None sets no condition.
    """

    name: str
    instruction: str
    time_limit: float | None = None
    files: dict[str, FileContent] = {}
    setup: str = ""
    healthcheck: Healthcheck | None = None
    script: RewardScript
    timeout: float
    min_reward: float | None = None


Evaluation = Annotated[TestCommand | ExitCode | LogScript | ExpectedMap | RewardScript, Field(discriminator="kind")]
"""How the hidden tests of a task run and how their results are read."""

_KINDS: dict[str, type[Hidden]] = {
    "tests": TestCommand,
    "exit_code": ExitCode,
    "log": LogScript,
    "expected": ExpectedMap,
    "reward": RewardScript,
}
_EVALUATION = ("grader", "test_cmd", "eval_script", "log_parser", "fails_only", "expected")
_FILE_ORDER = (
    *("gold_patch", "test_patch", "test_files", "test_paths", "test_cmd", "grader", "fail_to_pass", "pass_to_pass"),
    *("timeout", "hidden_paths", "start_patch", "setup_cmd", "eval_script", "log_parser", "fails_only", "expected"),
)
"""Fields of an oracle in files, in order. Digests of tasks depend on it."""


class Oracle(Hidden):
    """Everything about a task that only graders may see. Its repr and str say nothing.

    Files keep the evaluation flat: `grader`, `test_cmd`, `eval_script`, `log_parser`, `fails_only` and `expected` stand
    beside the other fields. The constructor and `model_copy` accept that form too.

    Attributes:
        gold_patch: Git diff that solves the task.
        test_patch: Git diff that adds the hidden tests.
        test_files: Hidden tests as whole files, path -> text, beside or instead of `test_patch`.
        test_paths: Glob patterns (fnmatch, relative to the workspace) of files that belong to the tests. Grading
            restores them.
        evaluation: How the hidden tests run.
        own_grader: Entry point or dotted path of a grader of your own; empty uses the evaluation's.
        fail_to_pass: Ids of tests that a right solution makes pass.
        pass_to_pass: Ids of tests that must still pass.
        timeout: Time limit of the hidden tests in seconds.
        hidden_paths: Files and folders of the image, absolute or relative to the workspace, that a policy must not
            see. They are removed from an episode's sandbox and kept in the sandboxes that grade.
        start_patch: Git diff from the contents of the image or workspace to the state that the task starts from, such
            as the bug of a SWE-smith row. It goes into every sandbox of the task and into its commit.
        setup_cmd: Shell commands that prepare the grading sandbox before the work goes in.
    """

    gold_patch: str = ""
    test_patch: str = ""
    test_files: dict[str, str] = {}
    test_paths: tuple[str, ...] = ()
    evaluation: Evaluation = TestCommand()
    own_grader: str = ""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    timeout: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    hidden_paths: tuple[str, ...] = ()
    start_patch: str = ""
    setup_cmd: str = ""

    @model_validator(mode="before")
    @classmethod
    def _lift(cls, data: object) -> object:
        """Read the flat form. A script beside an evaluation by a command is an error: its preparation would not run.

        Other fields that do not belong to the kind of evaluation are ignored. With a grader of your own, the fields
        tell the kind, as they must in a file.
        """
        if not isinstance(data, dict) or (data.keys().isdisjoint(_EVALUATION) and not data.get("own_grader")):
            return data
        fields = {name: value for name, value in data.items() if name not in _EVALUATION}
        known = fields.pop("evaluation", {})
        if not isinstance(known, dict | Hidden):
            raise ValueError("evaluation must be an object")  # pydantic lets a TypeError pass
        known = dict(known)
        given = {name: data[name] for name in data.keys() & set(_EVALUATION)}
        grader = given.pop("grader", "") or fields.get("own_grader", "")
        if not isinstance(grader, str):
            raise ValueError("grader must be a string")
        flat = {**known, **given}
        by_script = "log" if flat.get("eval_script") or flat.get("log_parser") else "tests"
        kind = "tests" if flat.get("test_cmd") else "expected" if flat.get("expected") else by_script
        if not grader:
            kind = known.get("kind") or kind
        elif grader in _KINDS:
            kind = grader
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ValueError("evaluation: kind is unknown")
        if given.get("eval_script") and kind in ("tests", "exit_code"):
            raise ValueError(f"eval_script: the grader {grader or kind!r} runs test_cmd, not a script")
        if grader:
            fields["own_grader"] = "" if grader in _KINDS else grader
        ours = {*_KINDS[kind].model_fields, *(flat.keys() - set(_EVALUATION))}  # pydantic refuses unknown names
        flat = {name: flat[name] for name in flat if name in ours}
        return {**fields, "evaluation": {**flat, "kind": kind}}

    @model_serializer
    def _flatten(self) -> JsonObject:
        """Write the flat form. A reward script, which has fields of its own, is written whole."""
        flat = {name: getattr(self, name) for name in _FILE_ORDER}
        return flat | ({"evaluation": self.evaluation} if isinstance(self.evaluation, RewardScript) else {})

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:  # noqa: ARG002  immutable
        """Return a copy with some fields replaced. The result is validated."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**fields, **(update or {})})

    @property
    def grader(self) -> str:
        """Name of the grader."""
        return self.own_grader or self.evaluation.kind

    @property
    def test_cmd(self) -> str:
        """Test command; empty if a script runs the tests."""
        return self.evaluation.test_cmd if isinstance(self.evaluation, TestCommand | ExitCode) else ""

    @property
    def eval_script(self) -> str:
        """Evaluation script; empty if a command runs the tests."""
        return self.evaluation.eval_script if isinstance(self.evaluation, LogScript | ExpectedMap) else ""

    @property
    def log_parser(self) -> str:
        """Name or source of the log parser; empty if no log is read."""
        parser = self.evaluation.log_parser if isinstance(self.evaluation, LogScript | ExpectedMap) else ""
        return parser.root if isinstance(parser, ParserProgram) else parser

    @property
    def in_place(self) -> RewardScript | None:
        """The script that judges what is in the policy's sandbox; None if a patch is judged in fresh ones."""
        return self.evaluation if isinstance(self.evaluation, RewardScript) and not self.own_grader else None

    @property
    def has_solution(self) -> bool:
        """Whether the task comes with a solution."""
        script = self.in_place
        if script is not None and script.steps:
            return all(step.script.solve for step in script.steps)
        return bool(script.solve if script else self.gold_patch)

    @property
    def fails_only(self) -> bool:
        """Whether the log names failed tests only."""
        return isinstance(self.evaluation, LogScript) and self.evaluation.fails_only

    @property
    def expected(self) -> dict[str, TestStatus]:
        """Required status of each test; empty unless the evaluation is an `ExpectedMap`."""
        return self.evaluation.expected if isinstance(self.evaluation, ExpectedMap) else {}


class Task(Frozen):
    """One problem: the text for the policy, the source of the code, and the oracle that judges the work.

    Attributes:
        task_id: Stable id, unique in its source, of letters, digits, ".", "_" and "-".
        problem_statement: Issue text; the first observation.
        repo: Repository, as in "pallets/flask".
        workspace: Source of the code on the local backend.
        python: Python environment on the local backend.
        image: Container image, for backends that run one.
        workdir: Absolute path of the code in the sandbox.
        env: Environment variables of every command; `{workdir}` in a value is replaced.
        eval_cmd: Command of the `eval` tool, which the policy sees.
        eval_timeout: Time limit of `eval_cmd` in seconds.
        difficulty: A word such as "easy".
        tags: Words to filter by.
        metadata: Further facts that the policy may know.
        needs: Demands on the sandbox.
        time_limit: Seconds that the policy has, if fewer than the environment's `time_limit`; None sets no limit.
        oracle: Everything that only graders may see.
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
    metadata: JsonObject = {}
    needs: SandboxNeeds = SandboxNeeds()
    time_limit: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    oracle: Oracle = Field(default=Oracle(), repr=False)

    def in_image(self, image: str) -> Self:
        """Return the task with an image that holds its code and its Python environment. Its verifier's is built too."""
        needs = self.needs.model_copy(update={"build": None})
        oracle, script = self.oracle, self.oracle.in_place
        if script and script.verifier:
            built = script.verifier.model_copy(
                update={"needs": script.verifier.needs.model_copy(update={"build": None})}
            )
            oracle = oracle.model_copy(update={"evaluation": script.model_copy(update={"verifier": built})})
        return self.model_copy(
            update={"image": image, "workspace": None, "python": None, "needs": needs, "oracle": oracle}
        )

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        """Refuse files that no sandbox would get."""
        if self.needs.files and not self.oracle.in_place:
            raise ValueError("needs.files is for tasks that a script judges: put the files into the workspace or image")
        return self

    @model_serializer(mode="wrap")
    def _brief(self, write: SerializerFunctionWrapHandler) -> JsonObject:
        """Leave out what most tasks do not set, so that their digests stay what they were."""
        fields: JsonObject = write(self)
        unset = {"needs": self.needs == SandboxNeeds(), "time_limit": self.time_limit is None}
        return {name: value for name, value in fields.items() if not unset.get(name)}


# --- grading ------------------------------------------------------------------------------------------


def find_shared(reasons: Iterable[str]) -> str:
    """Return the reason if all are the same; otherwise an empty text."""
    first, *others = {*reasons} or {""}
    return "" if others else first


class CounterTests(Frozen):
    """The counter-tests of one grading. Hidden from the policy, because they name tests.

    Attributes:
        kinds: Test that must start passing -> change of its counter-test, such as "literal".
        kept: Test that must keep passing and got a counter-test -> its change.
        uncovered: Test that must start passing and has no counter-test -> why.
        alarms: Counter-test that passed, although it fails with the gold patch -> its change.
        unfit: Counter-test that passes with the gold patch too, and so proves nothing -> its change.
        texts: Test -> number of its texts among which only a guess finds the original.
        unforkable: Tests that forks of the test process cannot play. A second run proves them.
        passing: Test that must start passing -> lines of its assertions that pass without work, as far as known.
        returned: Test that must start passing -> line of an assertion that fails without work -> `repr` of the value
            that it expects, and of the one that comes, as far as known.
        runs: Runs of the tests on the work.
    """

    kinds: dict[str, str] = {}
    kept: dict[str, str] = {}
    uncovered: dict[str, str] = {}
    alarms: dict[str, str] = {}
    unfit: dict[str, str] = {}
    texts: dict[str, int] = {}
    unforkable: tuple[str, ...] = ()
    passing: dict[str, tuple[int, ...]] = {}
    returned: dict[str, dict[int, tuple[str, str]]] = {}
    runs: int = 0


class Verdict(Frozen):
    """A grader's verdict on one state of the work.

    Attributes:
        resolved: Whether every required test passed and nothing contradicts it.
        fail_to_pass: Status of each test that had to start passing.
        pass_to_pass: Status of each test that had to keep passing.
        exit_code: Exit code of the test command in its first run; None if it was killed.
        timed_out: Whether the hidden tests timed out.
        partial: Whether grading stopped before every required test ran unchanged. Only in run folders of version 0.1.
        reason: Why the work is not resolved, in one sentence; empty if it is.
        judge: Source of the results: "reporter" (signed, test by test), "log" (read by a parser), "own_parser" (read by
            the dataset's parser, run in the sandbox), "exit_code", "reward" (written by the task's script in the
            policy's sandbox); empty if nothing ran.
        notes: Inexact matches of published lists and results, one sentence each. Hidden from the policy, because they
            name tests.
        dropped: Paths that the policy changed and grading set back: tests and runner configuration.
        duration: Seconds that the tests took.
        log: End of the test command's output. Hidden from the policy, because it may show the tests.
        counter_tests: Results of the counter-tests.
        score: Reward that the task's own script gave, in [0, 1]; None for tasks that are resolved or not.
    """

    resolved: bool
    fail_to_pass: dict[str, TestStatus] = Field(default={}, repr=False)
    pass_to_pass: dict[str, TestStatus] = Field(default={}, repr=False)
    exit_code: int | None = None
    timed_out: bool = False
    partial: bool = False
    reason: str = ""
    judge: Literal["", "reporter", "log", "own_parser", "exit_code", "reward"] = ""
    notes: tuple[str, ...] = Field(default=(), repr=False)
    dropped: tuple[str, ...] = Field(default=(), repr=False)
    duration: float = 0.0
    log: str = Field(default="", repr=False)
    counter_tests: CounterTests = Field(default=CounterTests(), repr=False)
    score: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)

    @property
    def unproven(self) -> str:
        """Why no counter-test proves that the work is resolved, without names of tests.

        Empty if counter-tests prove it, or if the work is not resolved.
        """
        if not self.resolved and not self.score:
            return ""
        if self.judge == "reward":
            return "the task's own script judged it, in the sandbox in which the policy worked"
        found = self.counter_tests
        starting = self.fail_to_pass.keys() or {*found.kinds, *found.uncovered}
        bare = starting - (found.kinds.keys() - found.unfit.keys())
        if bare:
            why = find_shared(found.uncovered.get(test, "") for test in bare)
            text = f"{len(bare)} of {len(starting)} tests that must start passing have no counter-test"
            return f"{text}: {why}" if why else text
        return "" if starting else "the task names no test that must start passing"


class Reward(Frozen):
    """A reward and its parts: `value == sum(components.values())`.

    Attributes:
        value: Reward of `step`, in [0, 1] for the rewards that ship.
        components: Named parts.
    """

    value: float
    components: dict[str, float]
