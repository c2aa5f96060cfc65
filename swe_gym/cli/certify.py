"""`swe-gym certify` and `swe-gym regrade`: judge attempts again, in fresh sandboxes."""

import datetime
import fnmatch
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.text import Text

from ..errors import TaskError, UsageError
from ..rollout import without_secrets
from ..tasks import TaskRecord, TaskSource, load_source
from ..types import JsonObject, Task
from .common import make_table, open_console, open_source, print_json, progress_bar, source_of
from .common import sandbox_options as parse_sandbox_options
from .export import Attempt
from .options import (
    BACKEND,
    RUNS,
    SOURCE,
    TIMES,
    AsJson,
    ExecutorName,
    Match,
    RayAddress,
    ResultRecord,
    SandboxOptions,
    SourceOptions,
    Workers,
    executor_options,
)
from .preflight import backend_for, check_machine, check_sandboxes

if TYPE_CHECKING:  # slow to import, and help needs none of it
    from ..certification import (
        Certificate,
        Claim,
        Claims,
        Deviation,
        JudgeSettings,
        Origin,
        Origins,
        RefusedClaim,
        Regraded,
    )

TaskOption = Annotated[str | None, SOURCE]
BackendOption = Annotated[str | None, BACKEND]

STYLES = {"proven": "green", "unproven": "yellow", "refuted": "bold red"}


class Chosen(NamedTuple):
    """Attempts that can be judged, with everything that judging needs.

    Attributes:
        origin: Kind of the file that claims the rewards.
        claims: The attempts.
        refused: Attempts that cannot be judged.
        unrewarded: Number of attempts that were left out because they have no reward.
        tasks: The tasks of the claims by id.
        source: Their source.
        opened: Name and arguments of the source.
        settings: Where to judge.
    """

    origin: "Origin"
    claims: "list[Claim]"
    refused: "list[RefusedClaim]"
    unrewarded: int
    tasks: dict[str, Task]
    source: TaskSource
    opened: tuple[str, JsonObject]
    settings: "JudgeSettings"


# --- regrade ------------------------------------------------------------------------------------------------


def regrade(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    match: Match = "*",
    attempt: Attempt = None,
    source: TaskOption = None,
    source_option: SourceOptions = None,
    backend: BackendOption = None,
    sandbox_option: SandboxOptions = None,
    workers: Workers = 2,
    executor: ExecutorName = None,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Judge the recorded patches of a run again, and compare the rewards.

    New verdicts are added to regraded.jsonl in the run folder; the old ones stay. The same command resumes. Tasks and
    backend are those of the run unless you pass others; the reward is that of the run. The exit status is 1 if a reward
    differs, or if an attempt could not be judged.
    """
    from ..certification import holds_certificates, read_claims
    from ..certification import regrade as regrade_claims
    from ..tasks import read_records
    from ..trajectories.run_folder import read_run

    if holds_certificates(path):
        raise UsageError(f"{path} holds certificates: `swe-gym certify {path} --check` judges their patches again")
    read_run(path)
    place = executor_options(executor, ray_address)
    where = Where(source, source_option, backend, sandbox_option, workers, place)
    claims = read_claims(path)
    chosen = _choose(claims, match, attempt, as_recorded([one.env for one in claims.claims], where))
    check_machine(path, backend=chosen.settings.backend, executor=chosen.settings.executor)
    record = chosen.claims[0].env.get("record") if chosen.claims else None
    records = {one.task_id: one for one in read_records(record)} if record else {}
    console = open_console()
    with progress_bar(console, "regrading", 0 if as_json else len(chosen.claims)) as progress:
        bar = progress.add_task("", total=len(chosen.claims))
        lines = regrade_claims(
            path,
            chosen.claims,
            chosen.tasks,
            chosen.settings,
            records=records,
            date=_today(),
            on_line=lambda _: progress.advance(bar),
        )
    if as_json:
        refused = [one._asdict() for one in chosen.refused]
        print_json({"regraded": [line.model_dump(mode="json") for line in lines], "refused": refused})
    else:
        _print_rewards(lines, chosen.refused)
    if chosen.refused or not all(line.same for line in lines):
        raise typer.Exit(1)


def _print_rewards(lines: "Sequence[Regraded]", refused: "Sequence[RefusedClaim]") -> None:
    console, table = open_console(), make_table("task", "attempt", "before", "now", "why")
    for line in lines:
        now = "none" if line.reward is None else f"{line.reward:g}"
        style = "" if line.same else "yellow" if line.reward is None else "bold red"
        table.add_row(line.task_id, str(line.attempt), f"{line.before:g}", Text(now, style), _first_line(line.why))
    console.print(table)
    _print_refused(refused)
    unjudged = sum(line.reward is None for line in lines)
    changed = sum(not line.same for line in lines) - unjudged
    counts = {"as before": sum(line.same for line in lines), "changed": changed, "without a verdict": unjudged}
    console.print(_counts({**counts, "refused": len(refused)}))


# --- certify ------------------------------------------------------------------------------------------------


def certify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="ATTEMPTS",
            help="Run folder, SWE-bench predictions (.jsonl, .json) or Harbor job; with --check, certificates.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Folder of certificates (default: ATTEMPTS-certificates).")
    ] = None,
    match: Match = "*",
    attempt: Attempt = None,
    source: TaskOption = None,
    source_option: SourceOptions = None,
    record: ResultRecord = None,
    times: Annotated[int | None, TIMES] = None,
    backend: BackendOption = None,
    sandbox_option: SandboxOptions = None,
    workers: Workers = 2,
    executor: ExecutorName = None,
    ray_address: RayAddress = None,
    check: Annotated[
        bool, typer.Option("--check", help="Judge the patches of certificates again, and compare.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Validate the tasks of rewarded attempts, judge the attempts again, and write a certificate for each.

    Attempts that cannot be judged are refused by name before anything starts. The same command resumes. The exit status
    is 1 if a reward is refuted, or if an attempt is refused or has no verdict; with --check, if a certificate is wrong.
    """
    where = Where(source, source_option, backend, sandbox_option, workers, executor_options(executor, ray_address))
    if check:
        if output is not None:
            raise UsageError("--check writes nothing: omit FOLDER")
        if times is not None:
            raise UsageError("--check repeats the runs that the certificates name: omit --times")
        _check(path, match, attempt, where, record, as_json=as_json)
        return
    from ..certification import Origins, holds_certificates, read_claims, read_known

    if holds_certificates(path):
        raise UsageError(f"{path} holds certificates: `swe-gym certify {path} --check` judges their patches again")
    times = times or RUNS
    folder = output or _folder_beside(path)
    claims = read_claims(path)
    chosen = _choose(
        claims, match, attempt, as_recorded([one.env for one in claims.claims], where, theirs=True), certified=True
    )
    check_machine(folder, what="the folder of certificates", fix="name another one")
    origins = Origins(chosen.origin, chosen.opened[0], without_secrets(chosen.opened[1]))
    known = read_known(folder, chosen.claims, chosen.tasks, chosen.settings, times)
    left = chosen._replace(claims=[claim for claim in chosen.claims if claim.name not in known])
    ends: dict[str, Certificate | str] = dict(known)
    record = record or folder / "validation.jsonl"
    for claim, end in _judge(left, origins, record, times, list(known.values()), quiet=as_json):
        ends[claim.name] = end
        if not isinstance(end, str):
            end.write(folder)
    found = [(claim, ends[claim.name]) for claim in chosen.claims]
    if as_json:
        print_json(_certified_json(found, chosen))
    else:
        names = {(one.task_id, one.attempt) for one in known.values()}
        _print_certified(found, chosen, folder, names)
    if chosen.refused or any(isinstance(end, str) or end.outcome == "refuted" for _, end in found):
        raise typer.Exit(1)


def _folder_beside(path: Path) -> Path:
    """Return the folder for the certificates of a file or folder."""
    path = path if path.name not in ("", "..") else path.resolve()
    return path.with_name(f"{path.name if path.is_dir() else path.stem}-certificates")


def _judge(
    chosen: Chosen,
    origins: "Origins",
    record: Path | None,
    times: int,
    known: "Sequence[Certificate]" = (),
    *,
    quiet: bool,
) -> "Iterator[tuple[Claim, Certificate | str]]":
    """Validate the tasks, judge the attempts, and yield each with its certificate, or why it has none."""
    from ..certification import certify as certify_claims
    from ..curation import validate

    settings, console = chosen.settings, open_console()
    if not chosen.claims:
        return
    ids = list(dict.fromkeys(claim.task_id for claim in chosen.claims))
    with progress_bar(console, "validating", 0 if quiet else len(ids)) as progress:
        bar = progress.add_task("", total=len(ids))
        records = validate(
            chosen.source,
            ids,
            backend=settings.backend,
            sandbox_options=settings.sandbox_options,
            times=times,
            workers=settings.workers,
            record=record,
            date=_today(),
            on_record=lambda _: progress.advance(bar),
            executor=settings.executor,
            executor_options=settings.executor_options,
        )
    by_id: dict[str, TaskRecord] = {one.task_id: one for one in records}
    with progress_bar(console, "judging", 0 if quiet else len(chosen.claims)) as progress:
        bar = progress.add_task("", total=len(chosen.claims))
        for claim, end in certify_claims(
            chosen.claims, chosen.tasks, by_id, settings, origins, times=times, date=_today(), known=known
        ):
            progress.advance(bar)
            yield claim, end


def _print_certified(
    found: "Sequence[tuple[Claim, Certificate | str]]", chosen: Chosen, folder: Path, known: Collection[tuple[str, int]]
) -> None:
    console = open_console()
    table = make_table("task", "attempt", "claimed", "re-graded", "outcome", "alarms", "why")
    counts = dict.fromkeys([*STYLES, "without a verdict"], 0)
    for claim, end in found:
        claimed = "unknown" if claim.reward is None else f"{claim.reward:g}"
        cells = [claim.task_id, str(claim.attempt), claimed]
        if isinstance(end, str):
            counts["without a verdict"] += 1
            table.add_row(*cells, "none", "", "", _first_line(end))
            continue
        counts[end.outcome] += 1
        outcome, alarms = Text(end.outcome, STYLES[end.outcome]), str(len(end.alarms) or "")
        table.add_row(*cells, f"{end.reward:g}", outcome, alarms, _first_line(end.why))
    if found:
        console.print(table)
    _print_refused(chosen.refused)
    more = {"refused": len(chosen.refused), "without a reward, left out": chosen.unrewarded}
    console.print(_counts({**counts, **more}))
    if counts["without a verdict"]:
        console.print("Run the same command to judge those without a verdict again.")
    certificates = [end for _, end in found if not isinstance(end, str)]
    if certificates:
        places = [{(one.task_id, one.attempt), (one.task_id, one.judged_as)} for one in certificates]
        earlier = sum(not place.isdisjoint(known) for place in places)
        now = f" ({len(certificates) - earlier} judged now, {earlier} by an earlier call)" if earlier else ""
        console.print(f"Certificates: {folder}{now}")


def _certified_json(found: "Sequence[tuple[Claim, Certificate | str]]", chosen: Chosen) -> JsonObject:
    return {
        "certificates": [end.model_dump(mode="json") for _, end in found if not isinstance(end, str)],
        "without_verdict": [{"place": claim.name, "why": end} for claim, end in found if isinstance(end, str)],
        "refused": [one._asdict() for one in chosen.refused],
        "unrewarded": chosen.unrewarded,
    }


# --- certify --check ----------------------------------------------------------------------------------------


def _check(path: Path, match: str, attempt: int | None, where: "Where", record: Path | None, *, as_json: bool) -> None:
    """Repeat the judgement of certificates, print what differs, and exit."""
    from ..certification import Certificate, Claims, Deviation, Origins

    certificates = Certificate.read_all(path)
    first = next(iter(certificates.values()))
    shared = {
        json.dumps([where.source or [one.source, one.source_options], where.backend or one.backend, one.times])
        for one in certificates.values()
    }
    if len(shared) > 1:
        raise UsageError(
            "the certificates have several task sources, backends or --times: pass --source and --backend, or check "
            "them one by one"
        )
    where = where.like(first.source, first.source_options, first.backend, {}, theirs=True)
    chosen = _choose(Claims(first.origin, [one.claim for one in certificates.values()], []), match, attempt, where)
    files = {one.claim.name: file for file, one in certificates.items()}
    found: dict[str, list[Deviation]] = {}
    unjudged = {one.place: one.why for one in chosen.refused}
    for claim, end in _judge(chosen, Origins(first.origin, *chosen.opened), record, first.times, quiet=as_json):
        if isinstance(end, str):
            unjudged[claim.name] = end
        else:
            certificate = certificates[files[claim.name]]
            found[claim.name] = certificate.deviations(end)
    ordered = {claim.name: found[claim.name] for claim in chosen.claims if claim.name in found}
    if as_json:
        rows = [{"attempt": name, "differences": [one._asdict() for one in all_]} for name, all_ in ordered.items()]
        print_json({"checked": rows, "without_verdict": [{"place": one, "why": why} for one, why in unjudged.items()]})
    else:
        _print_checked(ordered, unjudged)
    if unjudged or any(one.refutes for all_ in ordered.values() for one in all_):
        raise typer.Exit(1)


def _print_checked(found: "Mapping[str, Sequence[Deviation]]", unjudged: Mapping[str, str]) -> None:
    console = open_console()
    for name, deviations in found.items():
        wrong = [one for one in deviations if one.refutes]
        console.print(Text.assemble(("differs ", "bold red") if wrong else ("same    ", "green"), f" {name}"))
        for one in deviations:
            console.print(f"         {one}{'' if one.refutes else ' (another machine or run)'}")
    for name, why in unjudged.items():
        console.print(Text.assemble(("unknown ", "yellow"), f" {name}: {_first_line(why)}"))


# --- choosing attempts ----------------------------------------------------------------------------------------


class Where(NamedTuple):
    """Options that say where tasks come from and where patches are judged.

    Attributes:
        source: `--source`; None takes that of the attempts.
        pairs: `--source-option`.
        backend: `--backend`; None takes that of the attempts, or what the tasks need.
        sandbox_option: `--sandbox-option`.
        workers: `--workers`.
        executor: Fields of `executor_options`.
        known: Source, its arguments, backend and sandbox options of the attempts.
    """

    source: str | None
    pairs: list[str] | None
    backend: str | None
    sandbox_option: list[str] | None
    workers: int
    executor: JsonObject
    known: tuple[str, JsonObject, str, JsonObject] = ("", {}, "", {})

    def like(
        self, source: str, source_options: JsonObject, backend: str, sandbox_options: JsonObject, *, theirs: bool
    ) -> "Where":
        """Return the options with what the attempts know.

        Args:
            source: Task source.
            source_options: Its arguments.
            backend: Kind of sandbox.
            sandbox_options: Options of the sandboxes.
            theirs: Whether someone else may have written the attempts: code that they name is not run, and their
                sandbox options, which could weaken isolation, are ignored.

        Raises:
            UsageError: The attempts name code.
        """
        for name, given, option in ((source, self.source, "--source"), (backend, self.backend, "--backend")):
            if theirs and ":" in name and given is None:
                raise UsageError(f"the attempts name code, {name!r}: if you trust it, pass {option} {name}")
        return self._replace(known=(source, source_options, backend, {} if theirs else sandbox_options))

    def open_source(self) -> tuple[TaskSource, tuple[str, JsonObject]]:
        """Open the task source. Return it, and its name and arguments.

        Raises:
            UsageError: None is known, or it is not named but has arguments.
        """
        if self.source is not None:
            return open_source(self.source, self.pairs), source_of(self.source, self.pairs)
        if self.pairs:
            raise UsageError("--source-option needs --source: pass the source that it belongs to")
        name, options = self.known[:2]
        if not name:
            raise UsageError("the attempts do not name a task source: pass one, for example --source swebench-verified")
        return load_source(name, **options), (name, options)

    def settings(self, tasks: Sequence[Task]) -> "JudgeSettings":
        """Check that tasks can run, and return where.

        Raises:
            UsageError, SandboxStartError: They cannot.
        """
        from ..certification import JudgeSettings

        backend = self.backend or self.known[2] or backend_for(tasks)
        recorded = self.known[3] if backend == self.known[2] else {}
        options = {**recorded, **parse_sandbox_options(backend, self.sandbox_option)}
        executor = self.executor["executor"] or "threads"
        check_machine(None, backend=backend, executor=executor)
        check_sandboxes(backend, options, tasks, executor=executor)
        return JudgeSettings(backend, options, self.workers, executor, self.executor.get("executor_options", {}))


def _choose(claims: "Claims", match: str, attempt: int | None, where: Where, *, certified: bool = False) -> Chosen:
    """Return the attempts that can be judged, their tasks, and where to judge them. Nothing is started.

    Raises:
        UsageError: No attempt matches, or the tasks cannot run.
    """
    from ..certification import RefusedClaim, find_invalid, find_unsafe

    wanted = [one for one in claims.claims if _matches(one, match, attempt)]
    refused = [one for one in claims.refused if _matches(one, match, attempt)]
    if not wanted and not refused:
        raise UsageError(f"no attempt matches {match!r}" + ("" if attempt is None else f", attempt {attempt}"))
    left_out = 0
    if certified:
        left_out = sum(not one.rewarded for one in wanted) + sum(not one.rewarded for one in refused)
        wanted, refused = [one for one in wanted if one.rewarded], [one for one in refused if one.rewarded]
    source, opened = where.open_source()
    ids, tasks, kept = set(source.ids()), {}, []
    for claim in wanted:
        why = find_unsafe(claim.env) if certified else find_invalid(claim.env)
        if certified and claim.parent:
            why = f"its episode started from {claim.parent}: a part of the work is not its policy's"
        if claim.task_id not in ids:
            why = f"{opened[0]} has no task of this id"
        if not why and claim.task_id not in tasks:
            try:
                tasks[claim.task_id] = source.get(claim.task_id)
            except TaskError as error:
                why = str(error)
        if not why and tasks[claim.task_id].oracle.in_place:
            why = "its task is judged in the policy's sandbox: a patch does not hold its work"
        refused.append(
            RefusedClaim(claim.name, why, claim.reward, claim.task_id, claim.attempt)
        ) if why else kept.append(claim)
    tasks = {claim.task_id: tasks[claim.task_id] for claim in kept}
    settings = where.settings(list(tasks.values()))
    return Chosen(claims.origin, kept, refused, left_out, tasks, source, opened, settings)


def _matches(claim: "Claim | RefusedClaim", match: str, attempt: int | None) -> bool:
    return fnmatch.fnmatchcase(claim.task_id, match) and attempt in (None, claim.attempt)


def as_recorded(envs: Sequence[JsonObject], where: Where, *, theirs: bool = False) -> Where:
    """Return the options with the source and the backend that our runs recorded; see `Where.like`.

    Args:
        envs: Arguments of the environments of the attempts.
        where: The options.
        theirs: As in `Where.like`.

    Raises:
        UsageError: The attempts have several, and none is named; or they name code.
    """
    names = ("source", "source_options", "backend", "sandbox_options")
    found = {json.dumps([env.get(name) for name in names]) for env in envs if "source" in env}
    if len(found) > 1 and not (where.source and where.backend):
        raise UsageError("the attempts have several task sources or backends: pass both --source and --backend")
    return where if not found else where.like(*json.loads(found.pop()), theirs=theirs)


# --- printing -------------------------------------------------------------------------------------------------


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]


def _print_refused(refused: "Sequence[RefusedClaim]") -> None:
    for one in refused:
        open_console().print(Text.assemble(("refused ", "yellow"), f" {one.place}: {one.why}"))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number)
