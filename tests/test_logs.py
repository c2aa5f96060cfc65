"""Log records name the episode and the sandbox, whichever thread writes them."""

import logging
import re
import threading
from pathlib import Path

import pytest

from swe_gym.logs import AddIds, log_as, logging_to
from swe_gym_command import main


def test_ids_belong_to_the_thread_that_set_them(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("swe_gym.test")
    caplog.handler.addFilter(AddIds())
    with log_as(episode="a/0/1", sandbox="s1"):
        logger.warning("here")
        thread = threading.Thread(target=logger.warning, args=("there",))
        thread.start()
        thread.join()
        logger.warning("given", extra={"sandbox": "s2"})
    logger.warning("after")
    found = [
        (one.message, vars(one)["episode"], vars(one)["sandbox"]) for one in caplog.records if one.name == logger.name
    ]
    assert found == [("here", "a/0/1", "s1"), ("there", "-", "-"), ("given", "a/0/1", "s2"), ("after", "-", "-")]


def test_a_log_file_is_left_as_it_was_found(tmp_path: Path) -> None:
    logger = logging.getLogger("swe_gym")
    before = (logger.level, list(logger.handlers))
    with logging_to(tmp_path / "x.log", "info"):
        logging.getLogger("swe_gym.test").info("kept")
        logging.getLogger("swe_gym.test").debug("dropped")
    assert (logger.level, logger.handlers) == before
    assert (tmp_path / "x.log").read_text().endswith(" swe_gym.test episode=- sandbox=- kept\n")


def test_a_rollout_logs_its_failures_with_both_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fault = '{"files": {"a": ""}, "faults": [{"at": "exec", "error": "SandboxLost", "nth": 3}]}'
    logged = ["--log-file", "run.log", "--log-level", "debug"]
    options = ["--policy", "baseline", "--limit", "1", "--backend", "fake", "--sandbox-option", f"options={fault}"]
    with pytest.raises(SystemExit):
        main([*logged, "rollout", "toy", "run.retries=0", *options])
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert any(re.search(r"episode=[\w-]+/0/1 sandbox=- started$", line) for line in lines), lines
    assert any(re.search(r"WARNING .*episode=[\w-]+/0/1 sandbox=\w{12} SandboxLost", line) for line in lines), lines
