"""Someone has a file of predictions, a job or a run, and wants to know which rewards hold."""

import contextlib
import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from swe_gym.certification import Certificate, Claim
from swe_gym.tasks import load_source
from swe_gym.tasks.file import write_tasks
from swe_gym.types import Task
from swe_gym_command import main

pytestmark = pytest.mark.sample(every=3)

TASK = "larder-overwrite-evicts"
LOOSE = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{1}\n"


@pytest.fixture
def gold(toy: Task) -> str:
    return toy.oracle.gold_patch


def prediction(patch: Any, task: str = TASK) -> dict[str, Any]:
    """A row as mini-swe-agent writes it."""
    return {"model_name_or_path": "openai/gpt-9", "instance_id": task, "model_patch": patch}


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def certify(cli: Any, path: Path, *options: object, source: str = "toy") -> Any:
    return cli("certify", path, "certificates", "--source", source, "--times", 1, *options)


@pytest.fixture(scope="module")
def work_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions, their certificate and a run: judged once."""
    folder = tmp_path_factory.mktemp("certified")
    write_lines(folder / "all_preds.jsonl", prediction(load_source("toy").get(TASK).oracle.gold_patch))
    for command in (
        ["certify", "all_preds.jsonl", "certificates", "--source", "toy", "--times", "1"],
        ["rollout", "toy", "-m", TASK, "-p", "gold", "--name", "first"],
    ):
        with contextlib.chdir(folder), pytest.raises(SystemExit) as end:
            main(command)
        assert end.value.code in (0, None)
    return folder


@pytest.fixture(autouse=True)
def _validated(work_folder: Path, tmp_path: Path) -> None:
    """The task is validated already, for what is certified into the folder `certificates`."""
    (tmp_path / "certificates").mkdir()
    shutil.copy(work_folder / "certificates/validation.jsonl", tmp_path / "certificates")


@pytest.fixture
def certificate(work_folder: Path, tmp_path: Path) -> Path:
    """A copy of the certificate, beside its predictions."""
    shutil.copy(work_folder / "all_preds.jsonl", tmp_path)
    shutil.copytree(work_folder / "certificates", tmp_path / "certificates", dirs_exist_ok=True)
    return tmp_path / f"certificates/{TASK}.0.json"


@pytest.fixture
def run(work_folder: Path, tmp_path: Path) -> Path:
    """A copy of the run `first`."""
    return shutil.copytree(work_folder / "runs/first", tmp_path / "runs/first")


@pytest.mark.parametrize("shape", ["dict", "list", "lines"])
def test_each_shape_of_predictions_is_certified(cli: Any, gold: str, tmp_path: Path, shape: str) -> None:
    row, path = prediction(gold), tmp_path / ("all_preds.jsonl" if shape == "lines" else "preds.json")
    path.write_text(json.dumps({"dict": {TASK: row}, "list": [row], "lines": row}[shape]))
    result = certify(cli, path)
    assert (result.status, result.err) == (0, "")
    line = result.out.splitlines()[1].split()
    assert line[:5] == [TASK, "0", "unknown", "1", "proven"]
    assert sum(int(number) for number in re.findall(r"(\d) tests? with \d texts?", result.out)) == 5
    assert result.out.splitlines()[-2:] == ["1 proven", "Certificates: certificates"]
    written = Certificate.read(tmp_path / f"certificates/{TASK}.0.json")
    assert (written.model, written.patch, written.compute_digest()) == ("openai/gpt-9", gold, written.digest)


ODD: list[tuple[Any, str]] = [
    (prediction("", "empty__1"), "empty__1 (line 1): its patch is empty"),
    (prediction(None, "none__1"), "none__1 (line 1): its patch is empty"),
    ({"instance_id": "bare__1"}, "bare__1 (line 1): no model_patch"),
    ({"model_patch": "x"}, "line 1: no instance_id"),
    (prediction("x", " "), "line 1: instance_id is empty"),
    (prediction("x", 7), "line 1: instance_id is not text"),  # type: ignore[arg-type]  # as a file may have it
    (prediction(["x"], "odd__1"), "odd__1 (line 1): model_patch is not text"),
    (prediction("x", "django__django-1"), "django__django-1, attempt 0: toy has no task of this id"),
    (prediction("x\udcff", "odd__1"), "odd__1 (line 1): its patch is not text: character 1 is '\\udcff'"),
    ("text", "line 1: not an object"),
]


@pytest.mark.parametrize(("row", "said"), ODD)
def test_what_cannot_be_judged_is_refused_by_name(cli: Any, tmp_path: Path, row: Any, said: str) -> None:
    result = certify(cli, write_lines(tmp_path / "all_preds.jsonl", row, prediction("", "another__1")))
    assert (result.status, result.err) == (1, "")
    assert f"refused  {said}" in result.out
    assert result.out.splitlines()[-1] == "2 refused"


def test_what_cannot_be_judged_keeps_nothing_else_from_being_judged(cli: Any, gold: str, tmp_path: Path) -> None:
    rows = [row for row, _ in ODD]
    result = certify(cli, write_lines(tmp_path / "all_preds.jsonl", *rows, prediction(gold)))
    assert (result.status, result.out.splitlines()[-2]) == (1, f"1 proven, {len(rows)} refused")


def test_match_chooses_refused_attempts_too(cli: Any, gold: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "all_preds.jsonl", prediction(gold), prediction("", "empty__1"))
    result = certify(cli, path, "--match", "empty*")
    assert (result.status, result.out) == (1, "refused  empty__1 (line 2): its patch is empty\n1 refused\n")
    result = certify(cli, path, "--match", TASK)
    assert (result.status, result.out.splitlines()[-2]) == (0, "1 proven")
    result = certify(cli, path, "--match", "empty*", "--attempt", 1)
    assert (result.status, result.out) == (2, "")


def test_ids_that_occur_twice_are_refused_in_both_shapes(cli: Any, gold: str, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "all_preds.jsonl", prediction(gold), prediction("other"))
    result = certify(cli, lines)
    assert result.out.count(f"{TASK} (line ") == result.out.count("its id occurs 2 times in the file: keep one") == 2
    row = json.dumps(prediction(gold))
    (tmp_path / "preds.json").write_text(f'{{"{TASK}": {row}, "{TASK}": {row}}}')
    result = certify(cli, tmp_path / "preds.json")
    assert result.out.count("its id occurs 2 times in the file: keep one") == 2
    assert (result.status, result.out.splitlines()[-1]) == (1, "2 refused")


def test_a_patch_that_occurs_twice_in_a_prediction_is_refused(cli: Any, gold: str, tmp_path: Path) -> None:
    row = json.dumps(prediction(gold))
    row = f'{row[:-1]}, "model_patch": "other"}}'
    (tmp_path / "all_preds.jsonl").write_text(f"{row}\n")
    (tmp_path / "preds.json").write_text(f'{{"{TASK}": {row}}}')
    for name, place in (("all_preds.jsonl", "line 1"), ("preds.json", f"key {TASK}")):
        result = certify(cli, tmp_path / name)
        assert result.out == f"refused  {place}: model_patch occurs twice in it: keep one\n1 refused\n"
    with gzip.open(tmp_path / "preds.json.gz", "wt") as file:
        file.write(json.dumps({TASK: prediction("")}))
    assert f"refused  {TASK} (key {TASK}): its patch is empty" in certify(cli, tmp_path / "preds.json.gz").out


def test_a_key_that_is_not_the_id_of_its_prediction_is_refused(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "preds.json").write_text(json.dumps({TASK: prediction(""), "other": prediction("x"), "none": None}))
    result = certify(cli, tmp_path / "preds.json")
    assert f"refused  key other: its instance_id is '{TASK}'\nrefused  key none: not an object\n" in result.out


def test_a_file_that_is_not_text_names_its_line(cli: Any, gold: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "all_preds.jsonl", prediction(gold))
    path.write_bytes(path.read_bytes() + b'{"instance_id": "\xff"}\n')
    result = certify(cli, path)
    assert "refused  line 2: not JSON: 'utf-8' codec can't decode byte 0xff" in result.out
    path.with_suffix(".json").write_bytes(b'[{"instance_id": "\xff"}]')
    result = certify(cli, path.with_suffix(".json"))
    assert (result.status, result.out) == (2, "")
    assert "cannot be read: not JSON" in result.err


@pytest.mark.parametrize(
    ("change", "outcome", "why"),
    [
        (lambda gold: gold.rstrip("\n"), "proven", "resolved"),
        (lambda gold: gold.replace("\n", "\r\n"), "proven", "resolved"),
        (lambda gold: gold + LOOSE.format("tests/test_cache.py.orig", "x"), "proven", "resolved"),
        (lambda gold: gold + LOOSE.format("tests/conftest.py", "x"), "proven", "resolved"),
        (
            lambda _: LOOSE.format("tests/conftest.py", "x"),
            "refuted",
            "5 of 5 tests that had to start passing did not pass",
        ),
        (lambda _: "I could not do it.", "refuted", "the patch does not apply (exit code 128)"),
        (lambda gold: gold.replace("\n-  ", "\n-  x"), "refuted", "the patch does not apply (exit code 1)"),
        (lambda _: LOOSE.format("../../outside.py", "x"), "refuted", "the patch does not apply"),
    ],
    ids=["stripped", "CRLF", "leftovers", "conftest", "only tests", "prose", "stale", "outside"],
)
def test_each_patch_gets_its_outcome(cli: Any, gold: str, tmp_path: Path, change: Any, outcome: str, why: str) -> None:
    result = certify(cli, write_lines(tmp_path / "all_preds.jsonl", prediction(change(gold))))
    written = Certificate.read(tmp_path / f"certificates/{TASK}.0.json")
    assert (result.status, written.outcome) == (int(outcome == "refuted"), outcome), result.out
    assert why in written.why
    assert written.patch == change(gold)
    assert ("tests/conftest.py" in written.dropped) == ("tests/conftest.py" in change(gold))


def test_files_with_crlf_keep_their_line_ends(cli: Any, adder: Task, tmp_path: Path) -> None:
    """The diff of a file with CRLF has LF in its headers and CRLF in its lines."""
    folder = Path(adder.workspace.path)  # type: ignore[union-attr]  # a folder
    (folder / "calc.py").write_bytes(b"def add(a, b):\r\n    return a - b\r\n")
    gold = (
        "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\r\n-    return a - b\r\n+    return a + b\r\n"
    )
    task = adder.model_copy(update={"oracle": adder.oracle.model_copy(update={"gold_patch": gold})})
    write_tasks([task], tmp_path / "tasks.jsonl")
    result = certify(cli, write_lines(tmp_path / "all_preds.jsonl", prediction(gold, "adder")), source="tasks.jsonl")
    assert (result.status, result.out.splitlines()[-2]) == (0, "1 proven")


@pytest.mark.slow
def test_a_huge_patch_is_refuted_by_its_size(cli: Any, tmp_path: Path) -> None:
    huge = LOOSE.format("data.txt", "x" * (50 << 20))
    result = certify(cli, write_lines(tmp_path / "all_preds.jsonl", prediction(huge)))
    assert (result.status, result.out.splitlines()[-2]) == (1, "1 refuted")
    assert f"data.txt has {(50 << 20) + 1} bytes; at most 16777216 are graded" in result.out
    over = LOOSE.format("data.txt", "x" * (64 << 20))
    result = certify(cli, write_lines(tmp_path / "more.jsonl", prediction(over)))
    assert f"its patch has {len(over)} bytes; at most 67108864 are judged" in result.out


def test_the_same_command_resumes_and_another_patch_is_refused(
    cli: Any, gold: str, certificate: Path, tmp_path: Path
) -> None:
    path, file = tmp_path / "all_preds.jsonl", certificate
    before = file.read_bytes()
    result = certify(cli, path)
    assert (result.status, result.out[-40:]) == (0, "es (0 judged now, 1 by an earlier call)\n")
    assert file.read_bytes() == before
    result = certify(cli, write_lines(path, prediction(gold + "\n")))
    assert result.status == 2
    assert f"{TASK}.0.json was written with another patch_sha256: name another folder" in result.err
    assert file.read_bytes() == before
    file.write_text(json.dumps(json.loads(before) | {"reward": 0.5}))
    result = certify(cli, write_lines(path, prediction(gold)))
    assert result.status == 2
    assert f"{TASK}.0.json: it was changed after it was written" in result.err
    file.write_text(json.dumps(json.loads(before) | {"version": 2}))
    result = certify(cli, path)
    assert result.status == 2
    assert "not a certificate of version 1: version: Input should be 1. Name another folder, or remove" in result.err


def test_a_certificate_of_an_attempt_that_the_file_lacks_proves_nothing(
    cli: Any, certificate: Path, tmp_path: Path
) -> None:
    patch = LOOSE.format("x", "nothing")
    claim = Claim(TASK, patch, 999)
    forged = {"attempt": 999, "patch": patch, "patch_sha256": claim.sha256}
    Certificate.read(certificate).model_copy(update=forged).sealed().write(certificate.parent)
    certificate.unlink()
    result = certify(cli, write_lines(tmp_path / "all_preds.jsonl", prediction(patch)))
    assert (result.status, result.out.splitlines()[-2:]) == (1, ["1 refuted", "Certificates: certificates"])


@pytest.mark.parametrize(
    ("options", "field"), [(("--times", 2), "times"), (("--sandbox-option", "memory_mb=512"), "sandbox_options")]
)
def test_another_setting_is_refused_by_name(
    cli: Any, certificate: Path, tmp_path: Path, options: tuple[object, ...], field: str
) -> None:
    result = certify(cli, tmp_path / "all_preds.jsonl", *options)
    assert result.status == 2
    assert f"{certificate.name} was written with another {field}: name another folder" in result.err


def test_an_infrastructure_failure_is_neither_a_reward_nor_a_refusal(cli: Any, gold: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "all_preds.jsonl", prediction(gold))
    fault = 'options={"files": {"a": ""}, "faults": [{"at": "start", "error": "SandboxStartError", "nth": "every"}]}'
    result = certify(cli, path, "--backend", "fake", "--sandbox-option", fault)
    assert result.status == 1
    assert "its task could not be validated: SandboxStartError" in result.out
    assert "1 without a verdict\nRun the same command to judge those without a verdict again." in result.out
    assert not list((tmp_path / "certificates").glob("*.json"))
    assert certify(cli, path).status == 0


# --- certify --check -----------------------------------------------------------------------------------------


def test_a_check_finds_the_same(cli: Any, certificate: Path) -> None:
    result = cli("certify", certificate, "--check")
    assert (result.status, result.out) == (0, f"same     {TASK}, attempt 0\n")


@pytest.mark.parametrize("command", ["certify", "regrade"])
@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_certificates_are_checked_by_their_own_option(
    cli: Any, certificate: Path, command: str, folder: bool, tmp_path: Path
) -> None:
    path = certificate.parent if folder else certificate
    result = cli(command, path)
    assert (result.status, result.out) == (2, "")
    assert f"holds certificates: `swe-gym certify {path} --check` judges their" in " ".join(result.err.split())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["all_preds.jsonl", "certificates"]


@pytest.mark.parametrize("option", [["certificates"], ["--times", 2]], ids=str)
def test_a_check_refuses_what_it_would_ignore(cli: Any, certificate: Path, option: list[object]) -> None:
    result = cli("certify", certificate, *option, "--check")
    assert (result.status, result.out) == (2, "")
    assert f"omit {'FOLDER' if len(option) == 1 else '--times'}" in result.err


TAMPERED: dict[str, Any] = {
    "outcome": "unproven",
    "reward": 0.5,
    "task_sha256": "0" * 64,
    "patch_sha256": "0" * 64,
    "image": "python:3.12",
    "alarms": ["tests.x"],
    "dropped": ["tests/x.py"],
}


def tamper(data: dict[str, Any], field: str) -> dict[str, Any]:
    if field == "tests":
        next(test for test in data["tests"].values() if test["starts"])["texts"] = 20
    elif field == "record":
        data["record"]["status"] = "invalid"
    else:
        data[field] = TAMPERED[field]
    return data


@pytest.mark.parametrize("field", [*TAMPERED, "tests", "record"])
def test_each_tampered_field_is_named(certificate: Path, field: str) -> None:
    true = Certificate.read(certificate)
    changed = Certificate.model_validate(tamper(json.loads(certificate.read_bytes()), field))
    for one, reseals in ((changed, False), (changed.sealed(), True)):
        found = {deviation.field.split(".")[0] for deviation in one.deviations(true) if deviation.refutes}
        assert found == ({field} if reseals else {field, "digest"})


@pytest.mark.parametrize("resealed", [False, True], ids=["", "resealed"])
def test_a_tampered_certificate_is_found(cli: Any, certificate: Path, resealed: bool) -> None:
    """A digest finds a careless change. Whoever computes it again is found out by the judge."""
    data = json.loads(certificate.read_bytes())
    fields = [field for field in (*TAMPERED, "tests", "record") if field != "patch_sha256"]
    for field in fields:
        tamper(data, field)
    changed = Certificate.model_validate(data)
    certificate.write_text((changed.sealed() if resealed else changed).model_dump_json())
    result = cli("certify", certificate, "--check")
    assert result.status == 1
    lines = result.out.splitlines()
    assert lines[0] == f"differs  {TASK}, attempt 0"
    assert [field for field in fields if not any(line.startswith(f"         {field}") for line in lines)] == []
    assert any("changed after it was written" in line for line in lines) != resealed


def test_the_patch_of_another_certificate_is_found_by_the_judge(cli: Any, certificate: Path) -> None:
    """Whoever swaps the patch, and computes both digests again, has what the judge found about other work."""
    swapped = LOOSE.format("x", "nothing")
    forged = {"patch": swapped, "patch_sha256": Claim(TASK, swapped).sha256}
    Certificate.read(certificate).model_copy(update=forged).sealed().write(certificate.parent)
    result = cli("certify", certificate, "--check")
    assert result.status == 1
    assert "outcome: proven, here refuted" in result.out


@pytest.mark.slow
def test_the_versions_of_another_machine_refute_nothing(certificate: Path) -> None:
    true = Certificate.read(certificate)
    versions = true.versions.model_copy(update={"swe_gym": "99.0"})
    found = true.model_copy(update={"versions": versions}).sealed().deviations(true)
    assert [(one.field, one.refutes) for one in found] == [("versions.swe_gym", False)]


@pytest.mark.parametrize("line", ['"outcome": "refuted",', '"record": {"status": "valid", "status": "invalid"},'])
def test_a_field_that_occurs_twice_is_refused(cli: Any, certificate: Path, line: str) -> None:
    """One program reads the first, another the last, and a digest holds one of them."""
    certificate.write_text(certificate.read_text().replace("{", "{" + line, 1))
    result = cli("certify", certificate, "--check")
    assert (result.status, result.out) == (2, "")
    assert "is not a certificate of version 1: " in result.err


def test_what_the_file_claims_is_held_by_the_digest_alone(cli: Any, certificate: Path) -> None:
    data = json.loads(certificate.read_bytes()) | {"model": "mine"}
    certificate.write_text(json.dumps(data))
    assert "digest: " in cli("certify", certificate, "--check").out


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"source": "evil:Source"},
            "the attempts name code, 'evil:Source': if you trust it, pass --source evil:Source",
        ),
        ({"backend": "evil:Box"}, "the attempts name code, 'evil:Box'"),
        ({"env": {"reward": "evil:reward"}}, "the reward 'evil:reward' is not built in"),
        ({"env": {"judge_runs": 10**9}}, "judge_runs is not from 2 to 100"),
        ({"env": {"counter": "none"}}, "counter is neither few nor all"),
        ({"env": {"alarm_reward": 1}}, "alarm_reward is not a number of at most 0"),
        ({"times": 10**9}, "times: Input should be less than or equal to 100"),
        ({"task_id": "../../x"}, "toy has no task of this id"),
        ({"version": 2}, "is not a certificate of version 1"),
    ],
)
def test_the_certificate_of_a_stranger_runs_no_code(
    cli: Any, certificate: Path, fields: dict[str, Any], said: str
) -> None:
    certificate.write_text(json.dumps(json.loads(certificate.read_bytes()) | fields))
    result = cli("certify", certificate, "--check")
    assert result.status in (1, 2)
    assert said in " ".join((result.out + result.err).split())


@pytest.mark.slow
def test_two_certificates_of_one_attempt_are_refused(cli: Any, certificate: Path) -> None:
    (certificate.parent / "again.json").write_bytes(certificate.read_bytes())
    result = cli("certify", certificate.parent, "--check")
    assert result.status == 2
    assert f"certifies {TASK}, attempt 0, and so does another file in the folder" in result.err


@pytest.mark.slow
def test_sandbox_options_of_a_stranger_do_not_count(cli: Any, certificate: Path) -> None:
    options = {"options": {"tier": "process"}}
    certificate.write_text(json.dumps(json.loads(certificate.read_bytes()) | {"sandbox_options": options}))
    found = json.loads(cli("certify", certificate, "--check", "--json").out)["checked"][0]["differences"]
    assert {one["field"]: one["refutes"] for one in found} == {"digest": True, "sandbox_options.options": False}


# --- runs and jobs --------------------------------------------------------------------------------------------


def test_a_run_is_regraded_beside_its_verdicts(cli: Any, run: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    result = cli("regrade", "runs/first")
    assert (result.status, result.out.splitlines()[-1]) == (0, "1 as before")
    lines = (run / "regraded.jsonl").read_text()
    assert cli("regrade", "runs/first").status == 0
    assert (run / "regraded.jsonl").read_text() == lines
    assert {name: (run / name).read_bytes() for name in before} == before
    assert cli("certify", "runs/first", "--times", 1).status == 0
    assert Certificate.read(tmp_path / f"runs/first-certificates/{TASK}.0.json").claimed == 1.0
    assert cli("rollout", "toy", "-m", TASK, "-p", "gold", "--name", "first").status == 0  # it is a run folder still


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"judge_runs": "many"}, "judge_runs is not from 2 to 100"),
        ({"judge_runs": True}, "judge_runs is not from 2 to 100"),
        ({"counter": ["few"]}, "counter is neither few nor all"),
        ({"alarm_reward": "-1"}, "alarm_reward is not a number of at most 0"),
        ({"reward": "sparse"}, "unknown reward 'sparse'"),
        ({"reward": 3}, "the reward 3 is not a name"),
    ],
    ids=str,
)
def test_a_run_with_invalid_arguments_is_refused_before_anything_starts(
    cli: Any, run: Path, env: dict[str, Any], said: str
) -> None:
    file = run / "trajectories.jsonl"
    header, *rest = file.read_text().splitlines()
    changed = json.loads(header)
    changed["env"].update(env)
    file.write_text("\n".join([json.dumps(changed), *rest, ""]))
    result = cli("regrade", "runs/first")
    assert (result.status, result.out.splitlines()[-1]) == (1, "1 refused")
    assert f"refused  {TASK}, attempt 0: {said}" in result.out
    assert not (run / "regraded.jsonl").exists()


@pytest.mark.usefixtures("run")
def test_a_reward_that_differs_says_why(cli: Any, toy: Task, tmp_path: Path) -> None:
    oracle = toy.oracle.model_copy(update={"fail_to_pass": (*toy.oracle.fail_to_pass, "tests.test_cache.Gone.test_x")})
    write_tasks([toy.model_copy(update={"oracle": oracle})], tmp_path / "tasks.jsonl")
    result = cli("regrade", "runs/first", "--source", "tasks.jsonl")
    assert result.status == 1
    assert result.out.splitlines()[1].split()[:4] == [TASK, "0", "1", "0"]
    assert "required now: tests.test_cache.Gone.test_x" in result.out


def test_attempts_without_reward_are_left_out(cli: Any, tmp_path: Path) -> None:
    cli("rollout", "toy", "-m", TASK, "-p", "baseline", "--name", "first", "--max-turns", 2)
    result = cli("certify", "runs/first")
    assert (result.status, result.out) == (0, "1 without a reward, left out\n")
    assert not (tmp_path / "runs/first-certificates").exists()


def write_trial(job: Path, name: str, reward: float | None, patches: dict[str, bytes], task: str = TASK) -> None:
    """A trial as Harbor 0.25 writes it."""
    trial = job / name
    (trial / "artifacts/logs/artifacts").mkdir(parents=True)
    (trial / "verifier").mkdir()
    for file, data in patches.items():
        (trial / "artifacts" / file).write_bytes(data)
    verified = None if reward is None else {"rewards": {"reward": reward}}
    agent = {"name": "mini-swe-agent", "version": "2", "model_info": {"name": "gpt-9", "provider": "openai"}}
    result = {"task_name": f"swe-gym/{task}", "trial_name": name, "verifier_result": verified, "agent_info": agent}
    (trial / "result.json").write_text(json.dumps(result))


def test_a_harbor_job_is_certified(cli: Any, gold: str, tmp_path: Path) -> None:
    job, patch = tmp_path / "jobs/2026-11-24", gold.encode()
    job.mkdir(parents=True)
    (job / "result.json").write_text('{"id": "x", "n_total_trials": 6}')
    write_trial(job, "a__1", 1.0, {"logs/artifacts/work.patch": patch})
    write_trial(job, "b__1", 1.0, {})
    write_trial(job, "c__1", 0.0, {})
    write_trial(job, "d__1", None, {})
    write_trial(job, "e__1", 1.0, {"a.diff": patch, "b.diff": patch})
    write_trial(job, "f__1", 1.0, {"a.diff": b"\xff"})
    write_trial(job, "g__1", 1.0, {})
    (job / "h__1").mkdir()
    (job / "h__1/result.json").write_text('{"task_na')
    (job / "g__1/artifacts/link.diff").symlink_to("/etc/hostname")
    result = certify(cli, job)
    assert result.out.splitlines()[1].split()[:5] == [TASK, "0", "1", "1", "proven"]
    for line in (
        "b__1: no patch is among its artifacts",
        "e__1: several patches are among its artifacts: artifacts/a.diff, artifacts/b.diff",
        "f__1: artifacts/a.diff is not text: byte 0 is not UTF-8",
        "g__1: no patch is among its artifacts",
        "h__1: result.json is not a JSON object",
        "1 proven, 5 refused, 2 without a reward, left out",
    ):
        assert line in result.out
    assert Certificate.read(tmp_path / f"certificates/{TASK}.0.json").model == "gpt-9"


def test_the_folder_of_certificates_has_the_whole_name_of_a_run(
    cli: Any, work_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(work_folder / "runs/first", tmp_path / "runs/gpt-4.1")
    assert cli("certify", "runs/gpt-4.1", "--times", 1, "--record", "certificates/validation.jsonl").status == 0
    assert (tmp_path / f"runs/gpt-4.1-certificates/{TASK}.0.json").exists()
    monkeypatch.chdir(tmp_path / "runs/gpt-4.1")
    before = sorted((tmp_path / "runs/gpt-4.1").iterdir())
    assert cli("certify", ".", "--times", 1).status == 0
    assert sorted((tmp_path / "runs/gpt-4.1").iterdir()) == before


@pytest.mark.slow
def test_a_folder_of_runs_jobs_and_predictions_names_them(cli: Any, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    (folder / "first").mkdir(parents=True)
    (folder / "first/run.json").write_text("{}")
    (folder / "preds.json").write_text("{}")
    write_trial(folder / "job", "a__1", 1.0, {})
    result = certify(cli, Path("all"))
    assert result.status == 2
    assert "Pass one of: all/first, all/job, all/preds.json" in result.err


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", "nowhere does not exist"),
        ("empty", "empty is neither a run folder nor a Harbor job"),
        ("empty.jsonl", "empty.jsonl holds no attempt"),
        ("notes.txt", "the file name must end in"),
    ],
)
def test_what_holds_no_attempt_is_named(cli: Any, tmp_path: Path, path: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty.jsonl", "notes.txt"):
        (tmp_path / name).write_text("")
    result = certify(cli, Path(path))
    assert result.status == 2
    assert said in result.err


@pytest.mark.parametrize("command", [("certify",), ("certify", "--check"), ("regrade",)], ids=" ".join)
def test_an_argument_of_no_source_is_refused(cli: Any, certificate: Path, run: Path, command: tuple[str, ...]) -> None:
    path = certificate if "--check" in command else run
    result = cli(command[0], path, *command[1:], "--source-option", "path=tasks.jsonl")
    assert result.status == 2
    assert "--source-option needs --source" in result.err


def test_predictions_need_a_source(cli: Any, gold: str, tmp_path: Path) -> None:
    result = cli("certify", write_lines(tmp_path / "all_preds.jsonl", prediction(gold)))
    assert result.status == 2
    assert "pass one, for example --source swebench-verified" in result.err
