"""Gold is resolved with the plugins that projects use."""

from pathlib import Path

import pytest
from plugin_cases import CASES, PluginCase, task_of

from swe_gym.curation.validation import judge_diff
from swe_gym.envs.group import SandboxGroup

pytestmark = pytest.mark.slow

PLAYED = [pytest.param(case, id=case.name, marks=() if case.always else pytest.mark.thorough) for case in CASES]


@pytest.mark.network
@pytest.mark.parametrize("case", PLAYED)
def test_gold_is_resolved_and_empty_is_not(case: PluginCase, tmp_path: Path) -> None:
    task = task_of(case, tmp_path)
    with SandboxGroup(task, "local", {}) as group:
        gold, _ = judge_diff(group, task.oracle.gold_patch)
        empty, _ = judge_diff(group, "")
    assert gold.resolved, (gold.reason, gold.log)
    assert not empty.resolved
    assert dict(empty.pass_to_pass) == dict(gold.pass_to_pass), (empty.reason, empty.log)
