"""Bundles: what they hold, that they work elsewhere, and their way over the Hub."""

import os
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from servers.hub import TOKEN, Hub, Reply

from swe_gym.curation.bundle import Bundle, check_bundle, pack_bundle
from swe_gym.curation.validation import validate
from swe_gym.errors import TaskError, UsageError
from swe_gym.tasks.file import FileSource, write_tasks
from swe_gym.tasks.record import digest
from swe_gym.types import FilesWorkspace, FolderWorkspace, GitWorkspace, ImageBuild, PythonEnv, SandboxNeeds, Task


@pytest.fixture
def tasks(adder: Task, tmp_path: Path) -> list[Task]:
    """A task on a folder, the same code as a git commit, and one whose files stand in its row."""
    task = adder
    assert isinstance(task.workspace, FolderWorkspace)
    code = Path(task.workspace.path)
    (code / "LICENSE").write_text("MIT")
    (code / "run.sh").write_text("true\n")
    (code / "run.sh").chmod(0o755)
    (code / "link").symlink_to("calc.py")
    repository = tmp_path / "repository"
    shutil.copytree(code, repository, symlinks=True)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *command], cwd=repository, check=True)
    others = {"commit": GitWorkspace(url=str(repository)), "files": FilesWorkspace(files={"a": "b"})}
    rows = [task.model_copy(update={"task_id": name, "workspace": place}) for name, place in others.items()]
    return [task, *rows]


@pytest.fixture
def bundle(tasks: list[Task], tmp_path: Path) -> Bundle:
    return pack_bundle(tasks, tmp_path / "made" / "bundle", license="mit")


def test_a_bundle_works_after_it_moved_and_its_sources_are_gone(bundle: Bundle, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    shutil.copytree(bundle.folder, place)
    digests = [digest(task) for task in map(FileSource(str(bundle.folder)).get, FileSource(str(place)).ids())]
    shutil.rmtree(bundle.folder)
    for source in tmp_path.glob("*/calc.py"):
        shutil.rmtree(source.parent)
    source = FileSource(str(place))
    assert [digest(source.get(task_id)) for task_id in source.ids()] == digests
    records = {record.task_id: record.status for record in validate(source, times=1)}
    first, *_ = source.ids()
    assert records[first] == records["commit"] == "valid"


def test_equal_code_is_stored_once_and_packing_is_reproducible(bundle: Bundle, tasks: list[Task]) -> None:
    (archive,) = {source.path for source in bundle.sources.values()}
    assert len(bundle.sources) == 2
    again = pack_bundle(tasks, bundle.folder.with_name("again"), license="mit")
    assert (again.folder / archive).read_bytes() == (bundle.folder / archive).read_bytes()


def test_a_card_names_license_and_sources(bundle: Bundle) -> None:
    card = (bundle.folder / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n")
    assert "| LICENSE |" in card
    assert bundle.unlicensed() == []
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=bundle.folder, check=True)


def test_changed_files_are_noticed(bundle: Bundle) -> None:
    assert len(check_bundle(bundle.folder)) == 4
    (archive,) = (bundle.folder / "sources").iterdir()
    archive.write_bytes(archive.read_bytes() + b"\0")
    with pytest.raises(TaskError, match=rf"do not match SHA256SUMS: sources/{archive.name}"):
        check_bundle(bundle.folder)
    record = next(iter(validate(FileSource(str(bundle.folder)), times=1)))
    assert record.status != "valid"
    assert "has SHA-256" in record.reason


def test_files_that_git_ignores_are_left_out(tasks: list[Task], tmp_path: Path) -> None:
    code = tmp_path / "adder"
    for name, text in {".gitignore": ".env\nbuild/\n", ".env": "KEY=secret", "build/out": "", "new.py": ""}.items():
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=code, check=True)
    made = pack_bundle(tasks[:1], tmp_path / "bundle")
    (source,) = made.sources.values()
    assert set(source.ignored) == {".env", "build/out"}
    with tarfile.open(made.folder / source.path) as archive:
        names = {member.name for member in archive if member.isfile()}
    assert {"code/.gitignore", "code/new.py", "code/calc.py"} < names
    assert not names & {"code/.env", "code/build/out"}


def test_what_other_machines_lack_is_refused(tasks: list[Task], tmp_path: Path) -> None:
    local = tasks[0].model_copy(update={"python": PythonEnv(requirements=("pytest==8.0", "mine @ file:///home/me"))})
    with pytest.raises(UsageError, match="requires 'mine @ file:///home/me'"):
        pack_bundle([local], tmp_path / "bundle")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UsageError, match="not an empty folder"):
        pack_bundle(tasks, tmp_path / "full")
    missing = tasks[0].model_copy(update={"workspace": FolderWorkspace(path="/nowhere")})
    with pytest.raises(TaskError, match="/nowhere"):
        pack_bundle([missing], tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    with pytest.raises(UsageError, match="swe-gym tasks pack"):
        check_bundle(tmp_path)


def swe_gym(hub: Hub, home: Path, *words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", "from swe_gym_command import main; main()", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **variables, **quiet}, timeout=120
    )


class Silent(Hub):
    """A Hub that answers no upload."""

    def post(self, path: str, body: bytes) -> Reply:
        self.end.wait(60)
        return super().post(path, body)

    end = threading.Event()


@pytest.mark.slow
def test_an_upload_ends_at_its_deadline(bundle: Bundle, tmp_path: Path) -> None:
    with Silent({}) as hub:
        pushed = swe_gym(hub, tmp_path, "tasks", "push", str(bundle.folder), "owner/name", "--timeout", "1")
        hub.end.set()
    assert pushed.returncode == 2
    assert "did not end within 1 s: push again, with more time (--timeout)" in " ".join(pushed.stderr.split())


@pytest.mark.slow
def test_a_bundle_is_pushed_and_used_from_the_hub(bundle: Bundle, tmp_path: Path) -> None:
    with Hub({"old": b"", "sources/old.tar.gz": b""}) as hub:
        refused = swe_gym(hub, tmp_path / "home", "tasks", "push", str(bundle.folder), "owner/name", token="hf_wrong")
        assert refused.returncode == 2
        assert "check HF_TOKEN" in refused.stderr
        pushed = swe_gym(hub, tmp_path / "home", "tasks", "push", str(bundle.folder), "owner/name")
        assert pushed.returncode == 0, pushed.stderr
        assert "--source hf://owner/name" in pushed.stdout
        assert hub.private
        assert set(hub.files) == {
            "old",
            *(str(path.relative_to(bundle.folder)) for path in check_bundle(bundle.folder)),
        }
        shown = swe_gym(hub, tmp_path / "other", "tasks", "list", "--source", "hf://owner/name@main")
        assert shown.returncode == 0, shown.stderr
        assert "commit" in shown.stdout
        hub.files["tasks.jsonl"] = hub.files["tasks.jsonl"].replace(b'"sources/', b'"../../')
        refused = swe_gym(hub, tmp_path / "third", "tasks", "list", "--source", "hf://owner/name@main")
        assert "is outside the bundle" in refused.stderr


@pytest.mark.sample(every=3)
@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (SandboxNeeds(network="egress"), "it opens a network"),
        (SandboxNeeds(network=("pypi.org",)), "it opens a network"),
        (SandboxNeeds(build=ImageBuild(context="/etc")), "a build reads this machine"),
    ],
)
def test_a_bundle_from_the_hub_opens_no_network_and_builds_nothing(
    adder: Task, tmp_path: Path, needs: SandboxNeeds, message: str
) -> None:
    write_tasks([adder.model_copy(update={"workspace": None, "image": "i", "needs": needs})], tmp_path / "tasks.jsonl")
    with Hub({"tasks.jsonl": (tmp_path / "tasks.jsonl").read_bytes()}) as hub:
        refused = swe_gym(hub, tmp_path / "home", "tasks", "list", "--source", "hf://owner/name@main")
    assert message in " ".join(refused.stderr.split())
    assert FileSource(str(tmp_path / "tasks.jsonl")).ids() == (adder.task_id,)
