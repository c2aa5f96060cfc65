"""Harbor task folders to test with."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from swe_gym.envs.swe_env import SweEnv
from swe_gym.grading.in_place import run_solution
from swe_gym.spaces import Info
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

PATCH = """\
diff --git a/x.txt b/x.txt
--- a/x.txt
+++ b/x.txt
@@ -1 +1 @@
-old
+new
"""

SOLVE = f"#!/bin/bash\ncd /app\ngit apply <<'PATCH'\n{PATCH}PATCH\n"

START = {"x.txt": "old\n"}
"""Files of the workdir in tests without an image."""


def harbor_task(folder: Path, name: str = NAME, **files: str | bytes | None) -> Path:
    """Write a task folder. Keyword arguments replace or add files; None leaves one out."""
    contents = {
        "task.toml": TOML,
        "instruction.md": "Make x new.\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": SOLVE,
        **files,
    }
    for path, content in contents.items():
        if content is None:
            continue
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


def work(env: SweEnv, command: str) -> None:
    """Run a command in the workdir of an episode; "solve" is the task's solution."""
    if command == "solve":
        run_solution(env.task, env.sandbox)
    else:
        env.sandbox.exec(command)


def submit(env: SweEnv, command: str) -> tuple[float, bool, bool, Info]:
    """Run a command in the workdir of an episode, and submit; again in each further step of the task."""
    ended = False
    while not ended:
        work(env, command)
        _, reward, terminated, truncated, info = env.submit()
        ended = terminated or truncated
    return reward, terminated, truncated, info


TO_REWARD = "if {}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"


def judge(condition: str) -> dict[str, str | bytes]:
    """Return a `test.sh` that writes 1 if a condition holds, and 0 otherwise."""
    return {"tests/test.sh": script(TO_REWARD.format(condition))}


class Shape(NamedTuple):
    """A form of tasks, with what shows that it is honoured.

    Attributes:
        files: Files of the folder that replace or add to the usual ones. `{image}` in a Dockerfile is an image.
        right: Command that solves it in the workdir, which holds `START`; "solve" runs the task's solution.
        wrong: Command that does not.
        refused: Start of the error, if it is refused: the field.
        image: Whether it needs an image.
    """

    files: Mapping[str, str | bytes | None]
    right: str = "echo new > x.txt"
    wrong: str = "true"
    refused: str = ""
    image: bool = False


NEW = '[ "$(cat x.txt)" = new ]'
SEPARATE = TOML + "[verifier]\nenvironment_mode = 'separate'\n"
LAST_TOML = TOML.replace("[environment]", "{}\n[environment]")
"""The usual `task.toml` with room for fields of the whole task."""

SHAPES = {
    "plain": Shape({}),
    "workdir": Shape(
        {"task.toml": TOML.replace("/app", "/srv/deep/work"), **judge('[ "$(cat /srv/deep/work/x.txt)" = new ]')}
    ),
    "users": Shape(
        {
            "task.toml": TOML + "[agent]\nuser = 'root'\n[verifier]\nuser = 'nobody'\n",
            **judge(NEW + ' && [ "$(id -un) $HOME $(stat -c %U x.txt)" = "nobody /nonexistent root" ]'),
        },
        image=True,
    ),
    "agent's user": Shape(
        {
            "task.toml": "[environment]\nnetwork_mode = 'no-network'\n[agent]\nuser = 'nobody'\n",
            "environment/Dockerfile": "FROM {image}\nWORKDIR /srv\nRUN echo old > x.txt && chown -R nobody /srv\n",
            "solution/solve.sh": script('echo "$(id -un) $HOME" > x.txt; touch /etc/more; ls /root && rm x.txt'),
            **judge(
                '[ "$(cat x.txt)" = "nobody /nonexistent" ] && [ "$(id -un) $(stat -c %U x.txt)" = "root nobody" ]'
                " && [ ! -e /etc/more ]"
            ),
        },
        "solve",
        "echo 'nobody /nonexistent' > /etc/more; echo nobody / > x.txt",
        image=True,
    ),
    "image's user": Shape(
        {
            "task.toml": "[environment]\nnetwork_mode = 'no-network'\n"
            "healthcheck = {command = '[ $(id -un) = worker ]'}\n"
            "[[verifier.collect]]\ncommand = 'id -un > collected'\n",
            "environment/Dockerfile": "FROM {image}\nWORKDIR /srv\nRUN useradd -m worker && chown worker /srv\n"
            "USER worker\n",
            "solution/solve.sh": script('echo "$(id -un) $HOME" > x.txt; touch /etc/more; ls /root && rm x.txt'),
            **judge(
                '[ "$(cat x.txt collected | tr "\\n" ,)$(id -un)" = "worker /home/worker,worker,worker" ]'
                " && [ ! -e /etc/more ]"
            ),
        },
        "solve",
        "echo worker > x.txt",
        image=True,
    ),
    "resources": Shape({"task.toml": TOML + "memory_mb = 512\nstorage_mb = 256\n"}, image=True),
    "timeouts": Shape(
        {
            "task.toml": TOML + "[agent]\ntimeout_sec = 600.0\n[verifier]\ntimeout_sec = 5.0\n",
            **judge("until [ -e /app/done ]; do sleep 0.1; done"),
            "solution/solve.sh": script("touch /app/done"),
        },
        "touch done",
    ),
    "variables": Shape(
        {
            "task.toml": TOML
            + "[environment.env]\nMODE = '${NO_SUCH_NAME:-new}'\n"
            + "[verifier.env]\nWANTED = '${NO_SUCH_NAME:-new}'\n"
            + "[solution.env]\nTARGET = 'x.txt'\n",
            "solution/solve.sh": script('echo "${MODE:?}" > "${TARGET:?}"'),
            **judge('[ "$(cat x.txt)" = "${WANTED:?}" ] && [ -z "$TARGET" ]'),
        },
        "solve",
    ),
    "healthcheck": Shape(
        {
            "task.toml": TOML
            + "healthcheck = {command = 'echo >> /tried; [ $(wc -l < /tried) = 3 ]', interval_sec = 0}",
            **judge(NEW + " && [ $(wc -l < /tried) = 3 ]"),
        }
    ),
    "artifacts and collect": Shape(
        {
            "task.toml": LAST_TOML.format("artifacts = ['/app/out', {source = '/app/x.txt', destination = 'x'}]")
            + "[[verifier.collect]]\ncommand = 'exit 3'\n"
            + "[[verifier.collect]]\ncommand = 'cat x.txt > /collected'\ntimeout_sec = 30.0\n",
            **judge('[ "$(cat /collected)" = new ]'),
        }
    ),
    "separate verifier": Shape(
        {
            "task.toml": LAST_TOML.format("artifacts = ['/srv/given', '/app/none', {source = '/srv/x.sh'}]")
            + "[agent]\nuser = 'root'\n[verifier]\nenvironment_mode = 'separate'\nuser = 'nobody'\n"
            + "[[verifier.collect]]\ncommand = 'cp x.txt /logs/artifacts/collected'\n",
            **judge(
                '[ "$(cat /srv/given/deep/x) $(/srv/x.sh) $(cat /logs/artifacts/collected)" = "new run new" ]'
                ' && [ "$(cat x.txt)" = old ] && [ ! -e /srv/given/key ] && [ "$(id -un)" = nobody ]'
            ),
        },
        "mkdir -p /srv/given/deep && echo new | tee x.txt > /srv/given/deep/x && ln -s /etc/passwd /srv/given/key"
        " && printf '#!/bin/sh\\necho run\\n' > /srv/x.sh && chmod +x /srv/x.sh",
        "mkdir -p /srv/given/deep && echo new | tee x.txt > /srv/given/deep/x && echo 1 > /logs/verifier/reward.txt",
        image=True,
    ),
    "verifier environment": Shape(
        {
            "task.toml": LAST_TOML.format("artifacts = [{source = '/app', exclude = ['old.*', 'cache']}]")
            + "[agent]\nnetwork_mode = 'no-network'\n[verifier.environment]\nmemory_mb = 512\n"
            + "network_mode = 'no-network'\n[verifier.environment.env]\nROLE = 'verifier'\n",
            "tests/Dockerfile": "FROM {image}\nENV BUILT=yes\nCOPY . /tests\nRUN echo made > /made\nWORKDIR /tests\n",
            "tests/wanted.txt": "new\n",
            **judge(
                'cmp -s wanted.txt /app/x.txt && [ "$BUILT $ROLE $PWD $(cat /made)" = "yes verifier /tests made" ]'
                " && [ ! -e /app/old.bin ] && [ ! -e /app/deep/cache ] && [ -e /app/deep/kept ]"
            ),
        },
        "echo new > x.txt; mkdir -p deep/cache; touch old.bin deep/cache/x deep/kept",
        image=True,
    ),
    "no network": Shape(judge(NEW + " && [ $(sed 1,2d /proc/net/dev | wc -l) = 1 ]")),
    "public network": Shape(
        {
            "task.toml": SEPARATE.replace("no-network", "public") + "[agent]\nnetwork_mode = 'no-network'\n",
            **judge('[ "$(cat /logs/artifacts/net)" = lo ] && [ "$(ls /sys/class/net)" != lo ]'),
        },
        "ls /sys/class/net > /logs/artifacts/net",
        image=True,
    ),
    "reward.txt": Shape({"tests/test.sh": script("printf ' 0%s ' $(grep -c new x.txt) > /logs/verifier/reward.txt")}),
    "reward.json": Shape(
        {
            "tests/test.sh": script(
                'echo "{\\"reward\\": $(grep -c new x.txt), \\"style\\": 0.5}" > /logs/verifier/reward.json'
            )
        }
    ),
    "patch.diff": Shape({"solution/solve.sh": None, "solution/patch.diff": PATCH}, "solve"),
    "binary files": Shape(
        {
            "tests/wanted.bin": b"\xff\x00\xfe",
            "environment/given.bin": b"\xff\x00\xfe",
            **judge("cmp -s /tests/wanted.bin out.bin"),
        },
        "cp given.bin out.bin",
    ),
    "Dockerfile with steps": Shape(
        {
            "task.toml": "[environment]\nnetwork_mode = 'no-network'\n",
            "environment/Dockerfile": "FROM {image}\nENV GREETING=hello\nWORKDIR /srv\nCOPY data.bin given/\n"
            "RUN echo old > x.txt && \\\n    cp given/data.bin /opt/data.bin\n",
            "environment/data.bin": b"\xff\x00",
            "tests/data.bin": b"\xff\x00",
            **judge('cmp -s /opt/data.bin /tests/data.bin && [ "$(cat /srv/x.txt)" = "hello /srv" ]'),
        },
        "echo $GREETING $PWD > x.txt",
        image=True,
    ),
    "outside of the workdir": Shape(judge("grep -q on /etc/service.conf"), "echo on > /etc/service.conf"),
    "an installed program": Shape(
        judge('[ "$(greet)" = hello ]'),
        "printf '#!/bin/sh\\necho hello\\n' > /usr/local/bin/greet && chmod +x /usr/local/bin/greet",
    ),
    "a running process": Shape(judge("kill -0 $(cat /run/server.pid)"), "sleep 600 & echo $! > /run/server.pid"),
    "a program with a shebang": Shape(
        {
            "tests/test.sh": "#!/usr/bin/env python3\n"
            "done = open('x.txt').read() == 'new\\n'\n"
            "print(float(done), file=open('/logs/verifier/reward.txt', 'w'))\n"
        }
    ),
    "a solved task whose script fails": Shape(
        {"tests/test.sh": script(f"{TO_REWARD.format('grep -q new x.txt')}\nexit 1")}
    ),
    "allow-list": Shape(
        {
            "task.toml": TOML.replace("no-network", "allowlist") + "allowed_hosts = ['a.invalid']\n",
            **judge(NEW + ' && [ -n "$https_proxy" ] && [ $(sed 1,2d /proc/net/dev | wc -l) = 1 ]'),
        }
    ),
    "addresses in an allow-list": Shape(
        {"task.toml": TOML.replace("no-network", "allowlist") + "allowed_hosts = ['10.0.0.0/8']\n"},
        refused="environment.allowed_hosts.0 = '10.0.0.0/8'",
    ),
    "MCP servers": Shape(
        {"task.toml": TOML + "[[environment.mcp_servers]]\nname = 'm'\ntransport = 'stdio'\ncommand = 'true'\n"},
        refused="environment.mcp_servers = ['m']",
    ),
    "several steps": Shape(
        {
            "task.toml": TOML
            + "[verifier.env]\nONE = '1'\n[[steps]]\nname = 'first'\nmin_reward = 1\n"
            + "[[steps]]\nname = 'second'\n[steps.verifier]\ntimeout_sec = 60.0\nenv = {TWO = '2'}\n",
            "instruction.md": None,
            "tests/test.sh": None,
            "tests/wanted": "new\n",
            "steps/first/instruction.md": "Make x new.\n",
            "steps/first/tests/test.sh": script(TO_REWARD.format("cmp -s /tests/wanted x.txt")),
            "steps/second/instruction.md": "Add more.\n",
            "steps/second/workdir/setup.sh": script("echo more > more.txt && [ ! -e /tests/wanted ]"),
            "steps/second/tests/test.sh": script(
                TO_REWARD.format('[ "$(tr -d \'\\n\' < x.txt) $ONE $TWO" = "newmore 1 2" ] && [ ! -e /tests/planted ]')
            ),
        },
        "if [ -e more.txt ]; then cat more.txt >> x.txt; touch /tests/planted; else echo new > x.txt; fi",
    ),
    "steps with verifiers of their own": Shape(
        {"task.toml": TOML + "[[steps]]\nname = 'first'\n[steps.verifier]\nenvironment_mode = 'separate'\n"},
        refused="steps.0.verifier.environment_mode = 'separate'",
    ),
    "services": Shape(
        {"environment/docker-compose.yaml": "services: {}\n"}, refused="environment/docker-compose.yaml: "
    ),
    "sidecar": Shape(
        {"task.toml": TOML + "[[verifier.collect]]\ncommand = 'dump'\nservice = 'db'\n"},
        refused="verifier.collect.0.service = 'db'",
    ),
    "Windows": Shape({"task.toml": TOML + "os = 'windows'\n"}, refused="environment.os = 'windows'"),
}
"""The forms of tasks in Harbor's schema."""

PLAYED = [name for name, shape in SHAPES.items() if not shape.refused]
