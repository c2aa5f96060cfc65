"""Run Gymnasium's own tests of vector environments with `SweVectorEnv` in place of `AsyncVectorEnv`.

    git clone --depth 1 https://github.com/Farama-Foundation/Gymnasium
    python benchmarks/gymnasium_suite.py Gymnasium [options of pytest]
    SWE_GYM_EXECUTOR=process python benchmarks/gymnasium_suite.py Gymnasium  # in worker processes

The tests run in a temporary copy, against the installed Gymnasium. Tests that need Box2D,
MuJoCo, MoviePy or a display are omitted.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CONFTEST = '''
import os, sys, types
import gymnasium
from swe_gym.vector import SweVectorEnv


class Substitute(SweVectorEnv):
    """Accepts the process arguments of AsyncVectorEnv and ignores them."""

    def __init__(self, env_fns, shared_memory=True, copy=True, context=None, daemon=True, worker=None,
                 observation_mode="same", autoreset_mode="NextStep", max_concurrency=None):
        executor = os.environ.get("SWE_GYM_EXECUTOR", "threads")
        super().__init__(env_fns, observation_mode, autoreset_mode, executor=executor)

    def close(self, timeout=None, terminate=False):
        super().close(10.0 if timeout is None else timeout)


gymnasium.vector.AsyncVectorEnv = Substitute
gymnasium.vector.async_vector_env.AsyncVectorEnv = Substitute
specs = types.ModuleType("tests.envs.utils")
specs.all_testing_env_specs = [gymnasium.spec("CartPole-v1"), gymnasium.spec("FrozenLake-v1")]
specs.all_testing_initialised_envs = [spec.make(disable_env_checker=True).unwrapped
                                      for spec in specs.all_testing_env_specs]
specs.mujoco_testing_env_specs = specs.gym_testing_env_specs = []
sys.modules["tests.envs.utils"] = specs
'''

FILES = (
    "vector/test_vector_env.py",
    "vector/test_autoreset_mode.py",
    "vector/test_vector_env_info.py",
    "vector/test_observation_mode.py",
    "vector/test_async_vector_env.py",
    "vector/test_vector_wrapper.py",
    "envs/registration/test_make_vec.py",
    "wrappers/vector/test_record_episode_statistics.py",
    "wrappers/vector/test_dict_info_to_list.py",
)


def main() -> int:
    """Run the tests file by file. Return the number of files with a failure."""
    checkout = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(checkout / "tests", Path(folder, "tests"))
        Path(folder, "conftest.py").write_text(CONFTEST)
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-rf", *sys.argv[2:]]
        runs = [subprocess.run([*command, f"tests/{name}"], cwd=folder, check=False) for name in FILES]
    return sum(run.returncode != 0 for run in runs)


if __name__ == "__main__":
    sys.exit(main())
