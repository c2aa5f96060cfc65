"""Honest tasks whose hidden tests need a plugin of pytest: a small repository, and one table of plugins."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from swe_gym.grading.diff import file_diff
from swe_gym.types import FolderWorkspace, Oracle, PythonEnv, Task

BEFORE = 'def greet(name):\n    return "hello"\n'
AFTER = 'def greet(name):\n    return "hello " + name\n'
KEPT = '\n\ndef test_kept():\n    assert greet("").startswith("hello")\n'


class PluginCase(NamedTuple):
    """A plugin and a hidden test that uses it.

    Attributes:
        name: The plugin with its version, as a test id.
        requirements: Requirement lines for Python 3.11; pip adds what they ask for.
        test: The text of the hidden tests, with one test `test_name` that only `AFTER` passes.
        config: Lines of pytest's section in `setup.cfg`.
        always: Whether not only a thorough run plays it.
    """

    name: str
    requirements: tuple[str, ...]
    test: str
    config: str = ""
    always: bool = False


ASYNCIO = """\
import asyncio

import pytest

from greeter import greet


@pytest.mark.asyncio
async def test_name():
    await asyncio.sleep(0)
    assert greet("Ada") == "hello Ada"
"""
ASYNCIO_FIXTURE = """\
import asyncio

import pytest_asyncio

from greeter import greet


@pytest_asyncio.fixture
async def name():
    await asyncio.sleep(0)
    yield "Ada"


async def test_name(name):
    assert greet(name) == "hello Ada"
"""
AUTO = "asyncio_mode = auto"
TRIO = """\
import pytest
import trio

from greeter import greet


@pytest.mark.trio
async def test_name(nursery):
    nursery.start_soon(trio.sleep, 0)
    assert greet("Ada") == "hello Ada"
"""
AIOHTTP = """\
from aiohttp import web

from greeter import greet


async def answer(request):
    return web.Response(text=greet(request.query["name"]))


async def test_name(aiohttp_client):
    app = web.Application()
    app.router.add_get("/", answer)
    client = await aiohttp_client(app)
    reply = await client.get("/", params={"name": "Ada"})
    assert await reply.text() == "hello Ada"
"""
ANYIO = """\
import anyio
import pytest

from greeter import greet


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_name():
    await anyio.sleep(0)
    assert greet("Ada") == "hello Ada"
"""
TORNASYNC = """\
import tornado.gen

from greeter import greet


async def test_name(io_loop):
    await tornado.gen.sleep(0)
    assert greet("Ada") == "hello Ada"
"""
# Text of any character took three times the CPU time in twins.
HYPOTHESIS = """\
from string import ascii_letters

from hypothesis import given, settings, strategies

from greeter import greet


@settings(max_examples=10, deadline=None)
@given(strategies.text(ascii_letters))
def test_name(name):
    assert greet(name) == "hello " + name
"""
TIMEOUT = """\
import pytest

from greeter import greet


@pytest.mark.timeout(20)
def test_name():
    assert greet("Ada") == "hello Ada"
"""
RERUNS = """\
import pytest

from greeter import greet

attempts = []


@pytest.mark.flaky(reruns=2)
def test_name():
    attempts.append(greet("Ada"))
    assert attempts == ["hello Ada"] * 2
"""
FLAKY = """\
from flaky import flaky

from greeter import greet

attempts = []


@flaky(max_runs=3)
def test_name():
    attempts.append(greet("Ada"))
    assert attempts == ["hello Ada"] * 2
"""
FREEZEGUN = """\
import datetime

import freezegun

from greeter import greet


@freezegun.freeze_time("2001-02-03")
def test_name():
    assert greet(str(datetime.date.today())) == "hello 2001-02-03"
"""
BENCHMARK = """\
from greeter import greet


def test_name(benchmark):
    assert benchmark(greet, "Ada") == "hello Ada"
"""
TWISTED = """\
import pytest_twisted
from twisted.internet import defer

from greeter import greet


@pytest_twisted.ensureDeferred
async def test_name():
    assert await defer.succeed(greet("Ada")) == "hello Ada"
"""

CASES = (
    PluginCase("asyncio-0.18", ("pytest==7.1.3", "pytest-asyncio==0.18.3"), ASYNCIO),
    PluginCase("asyncio-0.21", ("pytest==7.4.4", "pytest-asyncio==0.21.2"), ASYNCIO_FIXTURE, AUTO),
    PluginCase("asyncio-0.23", ("pytest==8.2.2", "pytest-asyncio==0.23.8"), ASYNCIO),
    PluginCase("asyncio-1.0", ("pytest==8.3.5", "pytest-asyncio==1.0.0"), ASYNCIO_FIXTURE, AUTO),
    PluginCase("asyncio-1.1", ("pytest==8.4.1", "pytest-asyncio==1.1.0"), ASYNCIO),
    PluginCase("asyncio-1.2", ("pytest==8.4.2", "pytest-asyncio==1.2.0"), ASYNCIO),
    PluginCase("asyncio-1.3", ("pytest==9.0.1", "pytest-asyncio==1.3.0"), ASYNCIO_FIXTURE, AUTO, always=True),
    PluginCase("trio", ("pytest==8.3.5", "pytest-trio==0.8.0", "trio==0.30.0"), TRIO),
    PluginCase("aiohttp", ("pytest==8.3.5", "pytest-aiohttp==1.1.0", "aiohttp==3.12.15"), AIOHTTP, AUTO),
    PluginCase("anyio", ("pytest==8.3.5", "anyio==4.9.0"), ANYIO),
    PluginCase("tornasync", ("pytest==7.4.4", "pytest-tornasync==0.6.0.post2", "tornado==6.5.1"), TORNASYNC),
    PluginCase("hypothesis", ("pytest==8.3.5", "hypothesis==6.135.0"), HYPOTHESIS),
    PluginCase("timeout", ("pytest==8.3.5", "pytest-timeout==2.4.0"), TIMEOUT, "timeout = 30"),
    PluginCase("rerunfailures", ("pytest==8.3.5", "pytest-rerunfailures==15.1"), RERUNS),
    PluginCase("flaky", ("pytest==8.3.5", "flaky==3.8.1"), FLAKY),
    PluginCase("freezegun", ("pytest==8.3.5", "freezegun==1.5.2"), FREEZEGUN),
    PluginCase("benchmark", ("pytest==8.3.5", "pytest-benchmark==5.1.0"), BENCHMARK),
    PluginCase("twisted", ("pytest==8.3.5", "pytest-twisted==1.14.3", "twisted==24.11.0"), TWISTED, always=True),
)


def task_of(case: PluginCase, folder: Path) -> Task:
    """The task of a case, with its repository in `folder`."""
    config = f"[tool:pytest]\n{case.config}\n"
    files: Mapping[str, str] = {"greeter.py": BEFORE, "setup.cfg": config}
    for name, text in files.items():
        (folder / name).write_text(text)
    return Task(
        task_id=case.name,
        problem_statement="greet leaves out the name.",
        workspace=FolderWorkspace(path=str(folder)),
        python=PythonEnv(version="3.11", requirements=case.requirements, no_deps=False),
        env={"PYTHONPATH": "{workdir}"},
        oracle=Oracle(
            gold_patch=file_diff("greeter.py", BEFORE.encode(), AFTER.encode(), 0o100644, 0o100644),
            test_files={"tests/test_greeter.py": case.test + KEPT},
            test_cmd="python -m pytest tests",
            fail_to_pass=("tests/test_greeter.py::test_name",),
            pass_to_pass=("tests/test_greeter.py::test_kept",),
            timeout=120,
        ),
    )
