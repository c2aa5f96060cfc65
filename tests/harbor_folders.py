"""Harbor task folders to test with."""

from pathlib import Path

from swe_gym.tasks.harbor import HarborSource
from swe_gym.types import FilesWorkspace, Task

NAME = "fix-x"

TOML = """\
schema_version = "1.4"
[environment]
docker_image = "mine/task:1"
workdir = "/app"
network_mode = "no-network"
"""

TEST = """\
#!/bin/bash
if [ "$(cat x.txt)" = new ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""

SOLVE = """\
#!/bin/bash
cd /app
git apply <<'PATCH'
diff --git a/x.txt b/x.txt
--- a/x.txt
+++ b/x.txt
@@ -1 +1 @@
-old
+new
PATCH
"""

START = {"x.txt": "old\n"}
"""Files of the workdir in tests without an image."""


def harbor_task(folder: Path, name: str = NAME, **files: str | bytes) -> Path:
    """Write a task folder. Keyword arguments replace or add files."""
    contents = {
        "task.toml": TOML,
        "instruction.md": "Make x new.\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": SOLVE,
        **files,
    }
    for path, content in contents.items():
        file = folder / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


class LocalHarborSource(HarborSource):
    """Harbor's tasks without their images: the workdir holds `START`."""

    def build(self, task_id: str, item: Path) -> Task:
        task = super().build(task_id, item)
        return task.model_copy(update={"image": None, "workspace": FilesWorkspace(files=START)})


def script(reward: str) -> str:
    """Return a `test.sh` of some commands."""
    return f"#!/bin/bash\n{reward}\n"


TO_REWARD = "if {}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"

SHAPES: dict[str, tuple[dict[str, str | bytes], str]] = {
    "plain": ({}, "echo new > x.txt"),
    "outside of the workdir": (
        {"tests/test.sh": script(TO_REWARD.format("grep -q on /etc/service.conf"))},
        "echo on > /etc/service.conf",
    ),
    "an installed program": (
        {"tests/test.sh": script(TO_REWARD.format('[ "$(greet)" = hello ]'))},
        "printf '#!/bin/sh\\necho hello\\n' > /usr/local/bin/greet && chmod +x /usr/local/bin/greet",
    ),
    "a running process": (
        {"tests/test.sh": script(TO_REWARD.format("kill -0 $(cat /run/server.pid)"))},
        "sleep 600 & echo $! > /run/server.pid",
    ),
    "variables of the verifier": (
        {
            "task.toml": TOML + "[verifier.env]\nWANTED = 'new'\n",
            "tests/test.sh": script(TO_REWARD.format('[ "$(cat x.txt)" = "${WANTED:?}" ]')),
        },
        "echo new > x.txt",
    ),
    "variables of the environment": (
        {
            "task.toml": TOML + "[environment.env]\nMODE = '${NO_SUCH_NAME:-new}'\n",
            "tests/test.sh": script(TO_REWARD.format('[ "$(cat x.txt)" = new ]')),
        },
        'echo "$MODE" > x.txt',
    ),
    "another workdir": (
        {
            "task.toml": TOML.replace("/app", "/srv/deep/work"),
            "tests/test.sh": script(TO_REWARD.format('[ "$(cat /srv/deep/work/x.txt)" = new ]')),
        },
        "echo new > x.txt",
    ),
    "binary files": (
        {
            "tests/wanted.bin": b"\xff\x00\xfe",
            "environment/given.bin": b"\xff\x00\xfe",
            "tests/test.sh": script(TO_REWARD.format("cmp -s /tests/wanted.bin out.bin")),
        },
        "cp given.bin out.bin",
    ),
    "a program with a shebang": (
        {
            "tests/test.sh": "#!/usr/bin/env python3\n"
            "done = open('x.txt').read() == 'new\\n'\n"
            "print(float(done), file=open('/logs/verifier/reward.txt', 'w'))\n"
        },
        "echo new > x.txt",
    ),
    "reward.json": (
        {
            "tests/test.sh": script(
                'echo "{\\"reward\\": $(grep -c new x.txt), \\"style\\": 0.5}" > /logs/verifier/reward.json'
            )
        },
        "echo new > x.txt",
    ),
    "a solved task whose script fails": (
        {"tests/test.sh": script(f"{TO_REWARD.format('grep -q new x.txt')}\nexit 1")},
        "echo new > x.txt",
    ),
}
"""Name -> files of a task that can be played, and a command that solves it in the workdir with `START`."""
