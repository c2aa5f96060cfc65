"""What a program sees differs between backends only as the documentation says."""

import pytest
from same_everywhere import REFERENCE, differences, explained, look


def test_a_local_sandbox_differs_from_a_container_as_documented(stored_image: str) -> None:
    found = differences({backend: look(backend, stored_image) for backend in ("local", REFERENCE)})
    assert {where: values for where, values in found.items() if where not in explained()} == {}


@pytest.mark.usefixtures("kubernetes")
def test_a_pod_differs_from_a_container_as_documented(docker_image: str) -> None:
    found = differences({backend: look(backend, docker_image) for backend in ("kubernetes", REFERENCE)})
    assert {where: values for where, values in found.items() if where not in explained()} == {}


def test_a_missing_explanation_is_found() -> None:
    seen = {REFERENCE: {"oom_score_adj": "0", "umask": "0o22"}, "local": {"oom_score_adj": "1000", "umask": "0o77"}}
    found = differences(seen)
    assert set(found) - explained() == {("local", "umask")}
