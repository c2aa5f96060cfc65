"""The E2B backend through E2B's own SDK: requests, AGS, credentials, episodes."""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from bundled_tasks import TASKS, solution
from e2b_boxes import CREATE, Make, count_up, making, refusal
from servers.e2b_server import E2BServer

from swe_gym.curation.validation import validate
from swe_gym.errors import SandboxLost, Unsupported, UsageError
from swe_gym.grading.probe import forget
from swe_gym.sandboxes import BACKENDS, SandboxSpec
from swe_gym.sandboxes.e2b import E2BOptions, E2BSandbox
from swe_gym.sandboxes.e2b.sdk import resolve_access
from swe_gym.tasks import load_source
from swe_gym.types import PythonEnv

pytest.importorskip("e2b")

CANARY = "e2b_c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users and has capabilities")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[E2BServer]:
    with E2BServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def make(server: E2BServer) -> Iterator[Make]:
    with making(server) as make:
        yield make


# --- requests to the service ----------------------------------------------------------------------------


def test_the_creation_request(server: E2BServer, make: Make) -> None:
    with make(image="tester", labels={"run": "7"}, options={"metadata": {"team": "a"}, "timeout": 120}) as sandbox:
        assert sandbox.exec("echo hi").text == "hi\n"
    asked = server.requests[0].body
    assert asked["templateID"] == "tester"
    assert asked["timeout"] == 120
    assert asked["metadata"] == {"run": "7", "team": "a", "swe_gym": sandbox.id}
    assert asked["allow_internet_access"] is False
    assert server.running == []


def test_egress_is_requested(server: E2BServer, make: Make) -> None:
    with make(network="egress") as sandbox:
        assert sandbox.capabilities.network == "egress"
    assert server.requests[0].body["allow_internet_access"] is True
    assert server.requests[0].body["templateID"] == "base"


@pytest.mark.parametrize(
    ("options", "image", "template"),
    [
        ({}, None, "base"),
        ({}, "made-by-me", "made-by-me"),
        ({"template": "t"}, None, "t"),
        ({"template": "t"}, "org/image:tag", "t"),
        ({"template": "t", "templates": {"org/image:tag": "mapped"}}, "org/image:tag", "mapped"),
    ],
)
def test_the_template(options: dict[str, Any], image: str | None, template: str) -> None:
    assert E2BOptions(**options).choose_template(image) == template


def test_image_metadata_on_ags() -> None:
    options = E2BOptions(template="swe-tool", image_config={"imageRegistryType": "enterprise"})
    spec = SandboxSpec(image="ccr.ccs.tencentyun.com/a/b:c", cpus=2, memory_mb=4096)
    entry = options.image_metadata(spec, "ap-guangzhou.tencentags.com")
    assert {name: json.loads(text) for name, text in entry.items()} == {
        "x-custom-config": {
            "image": "ccr.ccs.tencentyun.com/a/b:c",
            "resources": {"cpu": "2", "memory": "4096Mi"},
            "imageRegistryType": "enterprise",
        }
    }
    assert options.image_metadata(spec, "e2b.app") == {}
    assert options.image_metadata(SandboxSpec(image="swe-tool"), "ap-guangzhou.tencentags.com") == {}
    other = E2BOptions(template="t", image_key="image")
    assert other.image_metadata(SandboxSpec(image="i"), "self.hosted") == {"image": '{"image": "i"}'}


def test_ags(tmp_path: Path, make: Make) -> None:
    with E2BServer(tmp_path / "ags", v2=False) as ags:
        options = {"domain": "ap-guangzhou.tencentags.com", "template": "swe-tool"}
        with make(ags, image="registry/image:tag", options=options) as sandbox:
            assert sandbox.exec("echo hi").text == "hi\n"
            assert sandbox.capabilities.network == "open"
        asked = next(request.body for request in ags.requests if request.path == "/sandboxes")
        assert asked["templateID"] == "swe-tool"
        assert json.loads(asked["metadata"]["x-custom-config"]) == {"image": "registry/image:tag"}
        assert ags.running == []


@pytest.mark.slow
def test_a_server_without_v2(tmp_path: Path, make: Make) -> None:
    with E2BServer(tmp_path / "old", v2=False, templates={"base"}) as old:
        with make(old) as sandbox:
            count_up(sandbox, 3)
        assert "POST /sandboxes" in old.paths()[:2]
        assert [one.body["secure"] for one in old.requests if one.path == "/sandboxes"] == [True]
        assert old.running == []
        assert refusal(make(old, image="nothing")).reason == "image"
        old.inject("/sandboxes", method="POST", status=429, headers={"Retry-After": "0"})
        make(old).start()


@as_root
def test_the_workdir_belongs_to_the_user(make: Make) -> None:
    with tempfile.TemporaryDirectory(prefix="e2b-") as folder:
        os.chmod(folder, 0o755)
        with E2BServer(f"{folder}/server") as server:
            box = make(server, user="nobody", workdir=f"{folder}/work", options={"workdir_in_home": False})
            with box as sandbox:
                assert sandbox.exec("id -un; touch file && stat -c %U file").text == "nobody\nnobody\n"


def test_commands_inherit_the_template_s_environment(make: Make) -> None:
    with make() as sandbox:
        seen = dict(line.split("=", 1) for line in sandbox.exec("env").text.splitlines())
        home = sandbox.workdir.removesuffix("/testbed")
    assert seen["HOME"] == home
    assert not [name for name in seen if name.startswith("E2B")]
    assert seen["LANG"] == "C.UTF-8"


@as_root
def test_commands_cannot_trace_the_runner(make: Make) -> None:
    with make() as sandbox:
        status = sandbox.exec("grep -E 'CapBnd|CapEff' /proc/self/status").text
    sys_ptrace = 1 << 19
    assert [int(line.split()[1], 16) & sys_ptrace for line in status.splitlines()] == [0, 0]


def test_a_workdir_that_cannot_be_created(server: E2BServer, make: Make) -> None:
    error = refusal(make(workdir="/proc/nothing", options={"workdir_in_home": False}))
    assert (error.reason, error.retryable) == ("setup", False)
    assert "cannot make the workdir /proc/nothing" in error.detail
    assert server.running == []


def test_requirements_need_a_template() -> None:
    python = PythonEnv(requirements=("attrs==24.2.0",))
    with pytest.raises(Unsupported, match="installs no requirements"):
        E2BSandbox(SandboxSpec(python=python, options={"api_key": CANARY}))


def test_insufficient_isolation() -> None:
    spec = SandboxSpec(min_isolation="vm", options={"api_key": CANARY, "isolation": "container"})
    with pytest.raises(Unsupported, match="'container'"):
        E2BSandbox(spec)


# --- credentials ------------------------------------------------------------------------------------------


def test_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(UsageError, match="E2B_API_KEY"):
        E2BSandbox(SandboxSpec())
    with pytest.raises(UsageError, match="KEY_OF_SHANGHAI"):
        E2BSandbox(SandboxSpec(options={"api_key_env": "KEY_OF_SHANGHAI"}))


def test_a_region_is_a_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_DOMAIN", "ap-shanghai.tencentags.com")
    monkeypatch.setenv("E2B_API_URL", "https://api.of.shanghai")
    north, south = (
        resolve_access(E2BOptions(api_key="n")),
        resolve_access(E2BOptions(api_key="s", domain="ap-guangzhou.tencentags.com")),
    )
    assert (north.domain, north.api_url) == ("ap-shanghai.tencentags.com", "https://api.of.shanghai")
    assert (south.domain, south.api_url) == (
        "ap-guangzhou.tencentags.com",
        "https://api.ap-guangzhou.tencentags.com",
    )
    monkeypatch.setenv("E2B_SANDBOX_URL", "https://of.shanghai")
    assert resolve_access(E2BOptions(api_key="n")).sandbox_url == "https://of.shanghai"
    with pytest.raises(UsageError, match="E2B_SANDBOX_URL"):  # the SDK would send Guangzhou's token there
        resolve_access(E2BOptions(api_key="s", domain="ap-guangzhou.tencentags.com"))


def test_the_backend_ags_has_the_domain_of_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = BACKENDS.load("ags")

    def domain(**options: str) -> str:
        box = kind(SandboxSpec(options=options))
        assert (box.capabilities.backend, box.capabilities.network) == ("ags", "open")
        return box._instance.domain

    for name in ("AGS_REGION", "E2B_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("E2B_API_KEY", "key")
    assert domain() == "ap-guangzhou.tencentags.com"
    monkeypatch.setenv("AGS_REGION", "ap-shanghai")
    assert domain() == "ap-shanghai.tencentags.com"
    assert domain(domain="ap-beijing.tencentags.com") == "ap-beijing.tencentags.com"
    monkeypatch.setenv("E2B_DOMAIN", "of.me.tencentags.com")
    assert domain() == "of.me.tencentags.com"


def test_two_accounts_in_one_process(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("E2B_API_KEY", "E2B_ACCESS_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("E2B_DOMAIN", "nowhere.invalid")
    monkeypatch.setenv("E2B_API_URL", "http://nowhere.invalid")
    monkeypatch.setenv("E2B_SANDBOX_URL", "http://nowhere.invalid")
    monkeypatch.setenv("E2B_DEBUG", "true")
    keys = {"north": "e2b_" + "a" * 40, "south": "e2b_" + "b" * 40}
    before = dict(os.environ)
    with (
        E2BServer(tmp_path / "n", api_key=keys["north"]) as north,
        E2BServer(tmp_path / "s", api_key=keys["south"], v2=False) as south,
    ):
        regions = {"north.invalid": north, "ap-south.tencentags.com": south}
        boxes = [make(server, options={"domain": name}).start() for name, server in [*regions.items()] * 2]
        for number, box in enumerate(boxes):
            box.write_file("who", str(number).encode())
        assert [box.exec("cat who").text for box in boxes] == ["0", "1", "2", "3"]
        assert (len(north.running), len(south.running)) == (2, 2)
        seen = [box.exec("env; tr '\\0' '\\n' < /proc/$PPID/environ; cat /proc/$PPID/cmdline").text for box in boxes]
        for box in boxes:
            box.close()
        for server in (north, south):
            assert {request.key for request in server.requests} - {None} == {server.api_key}
            seen += [f"{request.headers} {request.raw!r}" for request in server.requests]
    assert dict(os.environ) == before
    assert [text for text in seen if CANARY in text] == []


def test_the_key_never_leaks(tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    with E2BServer(tmp_path / "c", api_key=CANARY) as server:
        sandbox = make(server).start()
        told += [repr(sandbox), repr(sandbox.spec), str(sandbox.spec.model_dump()), sandbox.spec.model_dump_json()]
        told += [repr(sandbox.options), sandbox.options.model_dump_json()]
        told += [repr(vars(sandbox)), repr(vars(sandbox._instance)), str(sandbox.capabilities)]
        told.append(sandbox.exec("env; cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep E2B").text)
        told += [json.dumps(request.body) for request in server.requests]
        server.inject(CREATE, method="POST", status=500, times=None, message=f"the key {CANARY} is not to my taste")
        told.append(described(refusal(make(server))))
        with pytest.raises(UsageError) as wrong:
            E2BSandbox(SandboxSpec(options={"api_key": [CANARY], "timeout": "long"}))
        told.append(described(wrong.value))
        server.inject("/process.Process/*", status=401, times=None, message=f"the key {CANARY} is not to my taste")
        with pytest.raises(SandboxLost) as lost:
            sandbox.exec("true", timeout=1)
        told.append(described(lost.value))
    told += [record.getMessage() for record in caplog.records]
    assert len(told) > 10
    assert [text for text in told if CANARY in text] == []


def described(error: BaseException) -> str:
    """Everything that a traceback would show."""
    texts = []
    link: BaseException | None = error
    while link is not None:
        texts.append(f"{link!r} {link} {vars(link)}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n".join(texts)


# --- episodes ---------------------------------------------------------------------------------------------


def test_an_episode_of_a_bundled_task(server: E2BServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a record: without one, the judge opens two sandboxes more before it first rewards work on a task."""
    (record,) = validate(load_source("toy"), [TASKS[0]], times=1)
    (tmp_path / "record.jsonl").write_text(f"{record.model_dump_json()}\n")
    known = str(tmp_path / "record.jsonl")
    forget(load_source("toy").get(TASKS[0]))  # the record alone tells
    monkeypatch.setenv("KEY_OF_THE_TEST", server.api_key)
    options = server.sandbox_options(activate=sys.prefix, api_key_env="KEY_OF_THE_TEST")
    del options["options"]["api_key"]  # arguments of `gym.make` are recorded
    with gymnasium.make("SWE/Toy-v0", task_id=TASKS[0], backend="e2b", sandbox_options=options, record=known) as env:
        env.reset(seed=0)
        for action in solution(TASKS[0]):
            _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["reward_valid"]) == (1.0, True, False, True)
    assert server.created == 2  # one for the episode, one for the judge
    assert server.running == []


def test_a_bundled_task_is_valid(server: E2BServer) -> None:
    options = server.sandbox_options(activate=sys.prefix)
    (record,) = validate(load_source("toy"), [TASKS[1]], backend="e2b", sandbox_options=options, times=1, workers=1)
    assert (record.status, record.gold, record.empty) == ("valid", (True,), (False,)), record.reason
    assert server.running == []


def test_an_unknown_option_lists_the_known(server: E2BServer) -> None:
    options = server.sandbox_options(tempalte="t")
    with pytest.raises(UsageError, match=r"'tempalte'.*Did you mean 'template'.*Known: .*api_key_env.*timeout"):
        gymnasium.make("SWE/Toy-v0", backend="e2b", sandbox_options=options)
