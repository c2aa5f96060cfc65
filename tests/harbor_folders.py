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
