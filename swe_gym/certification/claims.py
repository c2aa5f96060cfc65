"""Reads claims: attempts whose rewards others gave, from our runs, SWE-bench predictions and Harbor jobs.

Attempts that cannot be judged again are refused by name: no patch, invalid UTF-8, an id that occurs twice.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import UsageError
from ..files import scan_table
from ..trajectories import Trajectory, kind_of, parse_line
from ..trajectories.run_folder import RUN, open_trajectories
from ..types import Json, JsonObject, Verdict

MOST_BYTES = 64 << 20
"""Bytes of a patch, as `PatchLimits.max_total_bytes`."""

TOO_LARGE = f"its patch has {{}} bytes; at most {MOST_BYTES} are judged"

ID, PATCH, MODEL = "instance_id", "model_patch", "model_name_or_path"

PATCH_SUFFIXES = (".patch", ".diff")
"""Suffixes of a patch among the artifacts of a Harbor trial."""

MOST_NAMED = 3
"""Paths that an error names."""

Origin = Literal["run", "predictions", "harbor"]


class RefusedClaim(NamedTuple):
    """An attempt that cannot be judged again.

    Attributes:
        place: Name of the attempt: its task and number, or its place in a file.
        why: The reason.
        reward: Its reward; None if the file has none.
        task_id: The task; empty if the file names none.
        attempt: Number of the attempt at the task, from 0.
    """

    place: str
    why: str
    reward: float | None = None
    task_id: str = ""
    attempt: int = 0

    @property
    def rewarded(self) -> bool:
        """As `Claim.rewarded`."""
        return self.reward is None or self.reward > 0


@dataclass(frozen=True)
class Claim:
    """An attempt at a task, with the reward that it got elsewhere.

    Attributes:
        task_id: The task.
        patch: The work as a git diff.
        attempt: Number of the attempt at the task, from 0.
        reward: The reward; None if the file has none.
        model: Model or policy; empty if the file names none.
        place: Place in the file or folder.
        config_hash: Configuration of the run; empty outside our runs.
        env: Arguments of the environment; empty outside our runs.
        parent: Point from which its episode started, as in `Trajectory`.
        verdict: ORACLE CONTENT: the former verdict, from our runs.
    """

    task_id: str
    patch: str
    attempt: int = 0
    reward: float | None = None
    model: str = ""
    place: str = ""
    config_hash: str = ""
    env: JsonObject = field(default_factory=dict)
    parent: str = ""
    verdict: Verdict | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Task and attempt."""
        return f"{self.task_id}, attempt {self.attempt}"

    @property
    def rewarded(self) -> bool:
        """Whether the claim is worth a certificate: it has a reward, or its file has no rewards."""
        return self.reward is None or self.reward > 0

    @property
    def sha256(self) -> str:
        """SHA-256 of the patch."""
        return hashlib.sha256(self.patch.encode()).hexdigest()


class Claims(NamedTuple):
    """The attempts of a file or folder.

    Attributes:
        origin: Kind of the file or folder.
        claims: The attempts that can be judged again.
        refused: The others.
    """

    origin: Origin
    claims: list[Claim]
    refused: list[RefusedClaim]


def read_claims(path: Path) -> Claims:
    """Read the attempts of a run folder, a trajectory file, a file of predictions or the folder of a Harbor job.

    Raises:
        UsageError: The path is none of these, or a file is broken.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist: pass a run folder, a file of predictions or a Harbor job")
    if path.is_dir():
        origin: Origin = "run" if (path / RUN).exists() else "harbor"
    else:
        origin = "run" if _holds_records(path) else "predictions"
    read = {"run": _read_run, "predictions": _read_predictions, "harbor": _read_job}[origin]
    claims: list[Claim] = []
    refused: list[RefusedClaim] = []
    names: set[str] = set()
    for found in read(path):
        if isinstance(found, Claim) and (why := _find_fault(found, names)):
            found = RefusedClaim(f"{found.task_id} ({found.place})", why, found.reward, found.task_id, found.attempt)
        if isinstance(found, Claim):
            names.add(found.name)
            claims.append(found)
        else:
            refused.append(found)
    if not claims and not refused:
        raise UsageError(f"{path} holds no attempt")
    return Claims(origin, claims, refused)


def _holds_records(path: Path) -> bool:
    """Return whether a file holds trajectories."""
    if path.suffix != ".jsonl":
        return False
    with path.open("rb") as file:
        return kind_of(parse_line(file.readline())) in ("header", "whole")


def _find_fault(claim: Claim, names: Collection[str]) -> str:
    """Return why an attempt cannot be judged beside those of some names; empty if it can."""
    patch = claim.patch
    if claim.name in names:
        return "the file has another attempt of this number: pass one run at a time"
    try:
        size = len(patch.encode())
    except UnicodeEncodeError as error:
        return f"its patch is not text: character {error.start} is {patch[error.start]!a}, which UTF-8 cannot hold"
    return TOO_LARGE.format(size) if size > MOST_BYTES else ""


# --- our runs -----------------------------------------------------------------------------------------------


def _read_run(path: Path) -> Iterator[Claim | RefusedClaim]:
    for one in open_trajectories(path):
        place = f"{one.task_id}, attempt {one.attempt}"
        if one.reward_valid:
            why = _find_missing(one)
            yield RefusedClaim(place, why, one.reward, one.task_id, one.attempt) if why else _claim_of(one)


def _find_missing(one: Trajectory) -> str:
    """Return what an episode lacks to be judged again; empty if nothing."""
    if one.patch_bytes:
        return f"only the beginning of its patch was recorded; the whole has {one.patch_bytes} bytes"
    if one.verdict is None:
        return f"it has no verdict to compare with: it ended by {one.reason or one.outcome}"
    if one.verdict.score is not None or one.verdict.judge == "reward":
        return "its task is judged in the policy's sandbox: a patch does not hold its work"
    return ""


def _claim_of(one: Trajectory) -> Claim:
    return Claim(
        task_id=one.task_id,
        patch=one.patch,
        attempt=one.attempt,
        reward=one.reward,
        model=one.policy.model or one.policy.name,
        place=f"attempt {one.attempt}",
        config_hash=one.config_hash,
        env=one.env,
        parent=one.parent,
        verdict=one.verdict,
    )


# --- predictions --------------------------------------------------------------------------------------------


def _read_predictions(path: Path) -> Iterator[Claim | RefusedClaim]:
    """Yield the predictions of a file: JSON lines, a list, or an object from instance id to prediction."""
    rows = list(_scan_predictions(path))
    counts = Counter(str(row[ID]) for _, row in rows if isinstance(row, dict) and ID in row)
    for place, row in rows:
        if not isinstance(row, dict):
            yield RefusedClaim(place, str(row) if isinstance(row, ValueError) else "not an object")
        elif repeated := _find_repeated(row):
            yield RefusedClaim(place, f"{repeated} occurs twice in it: keep one")
        elif not isinstance(row.get(ID), str) or not row[ID].strip():
            why = f"no {ID}" if ID not in row else f"{ID} is {'empty' if isinstance(row[ID], str) else 'not text'}"
            yield RefusedClaim(place, why)
        elif counts[row[ID]] > 1:
            why = f"its id occurs {counts[row[ID]]} times in the file: keep one"
            yield RefusedClaim(f"{row[ID]} ({place})", why, task_id=row[ID])
        else:
            yield _read_prediction(row, place)


def _read_prediction(row: JsonObject, place: str) -> Claim | RefusedClaim:
    patch, model = row.get(PATCH), row.get(MODEL)
    name = f"{row[ID]} ({place})"
    if patch is not None and not isinstance(patch, str):
        return RefusedClaim(name, f"{PATCH} is not text", task_id=row[ID])
    if not (patch or "").strip():
        return RefusedClaim(name, "its patch is empty" if PATCH in row else f"no {PATCH}", task_id=row[ID])
    return Claim(task_id=row[ID], patch=patch or "", model=model if isinstance(model, str) else "", place=place)


def _scan_predictions(path: Path) -> Iterator[tuple[str, object]]:
    """Yield place and content of each prediction; an error in place of one that cannot be read.

    Raises:
        UsageError: The whole file cannot be read.
    """
    rows = list(scan_table(path, _Fields))
    if len(rows) == 1 and isinstance(rows[0][1], ValueError):
        raise UsageError(f"{path} cannot be read: {rows[0][1]}")
    if len(rows) > 1 or not rows or not isinstance(rows[0][1], dict) or ID in rows[0][1]:
        yield from rows
        return
    for name, row in getattr(rows[0][1], "pairs", rows[0][1].items()):
        if not isinstance(row, dict):
            yield f"key {name}", ValueError("not an object")
        elif repeated := _find_repeated(row):
            yield f"key {name}", ValueError(f"{repeated} occurs twice in it: keep one")
        elif row.get(ID, name) != name:
            yield f"key {name}", ValueError(f"its {ID} is {row[ID]!r}")
        else:
            yield f"key {name}", {ID: name, **row}


class _Fields(JsonObject):
    """An object of JSON, with all of its pairs: a dictionary loses an id or a patch that occurs twice."""

    def __init__(self, pairs: list[tuple[str, Json]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _find_repeated(row: JsonObject) -> str:
    """Return a name that occurs twice in an object; empty if none does."""
    counts = Counter(name for name, _ in getattr(row, "pairs", ()))
    return next((name for name, count in counts.items() if count > 1), "")


# --- Harbor's jobs ------------------------------------------------------------------------------------------


def _read_job(path: Path) -> Iterator[Claim | RefusedClaim]:
    """Yield the trials of a job, or the trial if the folder is one."""
    trials = [path] if _is_trial(path) else sorted(filter(_may_be_trial, path.iterdir()))
    if not trials:
        inside = _find_inside(path)
        hint = f". Pass one of: {', '.join(map(str, inside[:MOST_NAMED]))}" if inside else ""
        raise UsageError(
            f"{path} is neither a run folder nor a Harbor job: it has no {RUN}, and no folder in it has a result.json "
            f"of a trial{hint}"
        )
    seen: Counter[str] = Counter()
    for trial in trials:
        found = _read_trial(trial, seen)
        seen[found.task_id] += 1
        yield found


def _find_inside(folder: Path) -> list[Path]:
    """Return what a folder holds that can be read: runs, Harbor jobs, and predictions."""
    runs = {file.parent for file in folder.glob(f"*/{RUN}")}
    jobs = {file.parent.parent for file in folder.glob("*/*/result.json") if _is_trial(file.parent)}
    return sorted({*runs, *jobs, *folder.glob("*preds.json*")})


def _is_trial(folder: Path) -> bool:
    return "trial_name" in read_object(folder / "result.json")


def _may_be_trial(folder: Path) -> bool:
    """Return whether a folder in a job is a trial, or was one before its result.json was damaged."""
    return _is_trial(folder) or ((folder / "result.json").is_file() and not read_object(folder / "result.json"))


def read_object(path: Path) -> JsonObject:
    """Return the JSON object of a file; empty if the file is missing or broken."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_trial(trial: Path, seen: Counter[str]) -> Claim | RefusedClaim:
    result = read_object(trial / "result.json")
    if not result:
        return RefusedClaim(trial.name, "result.json is not a JSON object")
    task_id, reward = str(result.get("task_name", "")).rpartition("/")[2], _reward_of(trial, result)
    if result.get("step_results"):
        why = "its task has several steps, each with a verdict of its own"
        return RefusedClaim(trial.name, why, reward, task_id, seen[task_id])
    if not task_id:
        return RefusedClaim(trial.name, "result.json has no task_name", reward)
    patch = _read_patch(trial)
    if isinstance(patch, ValueError):
        return RefusedClaim(trial.name, str(patch), reward, task_id, seen[task_id])
    return Claim(task_id, patch, seen[task_id], reward, _model_of(result), trial.name)


def _read_patch(trial: Path) -> str | ValueError:
    """Return the patch among the artifacts of a trial, or why there is none."""
    patches = _find_patches(trial)
    if not patches:
        return ValueError(_NO_PATCH)
    if len(patches) > 1:
        names = ", ".join(str(patch.relative_to(trial)) for patch in patches)
        return ValueError(f"several patches are among its artifacts: {names}")
    if (size := patches[0].stat().st_size) > MOST_BYTES:
        return ValueError(TOO_LARGE.format(size))
    try:
        patch = patches[0].read_bytes().decode()
    except UnicodeDecodeError as error:
        return ValueError(f"{patches[0].relative_to(trial)} is not text: byte {error.start} is not UTF-8")
    return patch if patch.strip() else ValueError("its patch is empty")


_NO_PATCH = (
    "no patch is among its artifacts: let the agent or the task write one (git diff > /logs/artifacts/work.patch)"
)


def _find_patches(trial: Path) -> Sequence[Path]:
    """Return the patches among the artifacts of a trial. Links, which may lead anywhere, do not count."""
    files = (path for path in (trial / "artifacts").rglob("*") if path.is_file() and not path.is_symlink())
    inside = (path for path in files if path.resolve().is_relative_to(trial.resolve()))
    return sorted(path for path in inside if path.suffix in PATCH_SUFFIXES or path.name == "patch")


def _reward_of(trial: Path, result: JsonObject) -> float | None:
    """Return a trial's reward: "reward" of the verifier's, or its only one; 0 if the verifier gave none."""
    verifier = result.get("verifier_result")
    rewards = verifier.get("rewards") if isinstance(verifier, dict) else None
    rewards = rewards or read_object(trial / "verifier/reward.json")
    if not isinstance(rewards, dict) or not rewards:
        return 0.0
    reward = rewards.get("reward", next(iter(rewards.values())) if len(rewards) == 1 else None)
    known = isinstance(reward, int | float) and math.isfinite(reward)
    return float(reward) if known and reward is not None else None


def _model_of(result: JsonObject) -> str:
    agent = result.get("agent_info")
    agent = agent if isinstance(agent, dict) else {}
    model = agent.get("model_info")
    return str((model if isinstance(model, dict) else agent).get("name", ""))
