"""Every example runs as a script and prints its result."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

SHOWN = {
    "custom_policy.py": "['bash', 'bash', 'submit'] submitted 1.0",
    "custom_task.py": "mean-of-nothing submitted 1.0",
    "custom_tool.py": "README.md has ",
    "hello.py": "reward 1.0: 5 of 5 failing tests now pass",
    "llm_policy.py": "submit, reward 1.0, 4 model calls",
}


def test_every_example_is_tested() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SHOWN)


@pytest.mark.sample(every=3)
@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_an_example_explains_itself(path: Path) -> None:
    for package in {
        "sb3_ppo": ["stable_baselines3"],
        "cleanrl_ppo": ["torch"],
        "rllib_ppo": ["ray"],
        "grpo": ["trl"],
    }.get(path.stem, []):
        pytest.importorskip(package)
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {path.name}")


@pytest.mark.sample(every=3)
@pytest.mark.parametrize("name", SHOWN)
def test_an_example_prints_its_result(name: str, tmp_path: Path) -> None:
    if name.startswith("llm"):
        pytest.importorskip("openai")
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert SHOWN[name] in done.stdout
    assert list(tmp_path.iterdir()) == []
