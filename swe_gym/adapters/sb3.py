"""The adapter for Stable-Baselines3: a `VecEnv` over `SweVectorEnv`.

    envs = SweVectorEnv([make_env] * 8, autoreset_mode="SameStep")
    model = PPO("MlpPolicy", VecMonitor(SB3VecEnv(envs)))

Stable-Baselines3 supports neither text nor tool calls: wrap the environments in `ToolMenu` and `HashedText`.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector import AutoresetMode

from ..errors import MissingDependency, SweGymError, UsageError
from ..vector import SweVectorEnv

try:
    from stable_baselines3.common.env_util import is_wrapped
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise MissingDependency(f"this adapter needs Stable-Baselines3: pip install 'swe-gym[sb3]' ({error})") from error

Array = np.ndarray[Any, np.dtype[Any]]
Info = dict[str, Any]
Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]

ATTEMPTS = 3
"""Attempts to reset a slot before its failure is an error."""


class SB3VecEnv(VecEnv):
    """A Stable-Baselines3 vector environment.

    A slot resets in the step that ends its episode: `step_wait` returns the first observation of the next episode, and
    `infos[i]["terminal_observation"]` the last of the old. `infos[i]["TimeLimit.truncated"]` is True if an external
    limit (`max_episode_steps`) or an infrastructure failure cut the episode, so that its last state is bootstrapped. A
    budget of the environment is not a truncation: the work was graded. A failed reset is retried.

    Args:
        envs: The environments, with `autoreset_mode="SameStep"`. `close` closes them.

    Raises:
        UsageError: The autoreset mode is another one, or observations or actions are texts.
        SweGymError: `reset` or `step_wait` failed to reset a slot `ATTEMPTS` times in a row.
    """

    def __init__(self, envs: SweVectorEnv) -> None:
        if envs.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise UsageError("Stable-Baselines3 resets within a step: use SweVectorEnv(..., autoreset_mode='SameStep')")
        for space, wrapper in ((envs.single_observation_space, "HashedText"), (envs.single_action_space, "ToolMenu")):
            if isinstance(space, Text):
                raise UsageError(
                    f"Stable-Baselines3 does not support text: wrap each environment in swe_gym.wrappers.{wrapper}"
                )
        self.envs = envs
        self._seeds: list[int | None] = [None] * envs.num_envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Set the seeds of the next reset: `seed`, `seed + 1` and so on."""
        self._seeds = [None if seed is None else seed + index for index in range(self.num_envs)]
        return list(self._seeds)

    def reset(self) -> Array:
        """Reset all slots."""
        observations, infos = self.envs.reset(seed=self._seeds)
        self._seeds = [None] * self.num_envs
        self.reset_infos = [_row(infos, index) for index in range(self.num_envs)]
        return np.asarray(self._retry_failed(observations))

    def step_async(self, actions: Array) -> None:
        """Start a step in all slots."""
        self.envs.step_async(actions)

    def step_wait(self) -> tuple[Array, Array, Array, list[Info]]:
        """Wait for all slots.

        Returns:
            Observations, rewards and dones, each of shape (slots, ...), and an info per slot.
        """
        observations, rewards, terminations, truncations, infos = self.envs.step_wait()
        dones = terminations | truncations
        rows = []
        for index in range(self.num_envs):
            info = _row(infos, index)
            if dones[index]:
                first = {name: value for name, value in info.items() if not name.startswith("final_")}
                info = {
                    **_row(infos["final_info"], index),
                    "terminal_observation": np.asarray(infos["final_obs"][index]),
                }
                self.reset_infos[index] = first
            judged = bool(info.get("reward_valid", False))
            info["TimeLimit.truncated"] = bool(truncations[index] and not terminations[index] and not judged)
            rows.append(info)
        if dones.any():
            observations = self._retry_failed(observations)
        return np.asarray(observations), np.asarray(rewards, dtype=np.float32), np.asarray(dones), rows

    def _retry_failed(self, observations: Any) -> Any:
        """Reset slots again whose reset failed, and return the observations."""
        for _ in range(ATTEMPTS - 1):
            failed = np.array([info.get("outcome") == "infra_failed" for info in self.reset_infos])
            if not failed.any():
                return observations
            observations, infos = self.envs.reset(options={"reset_mask": failed})
            for index in np.flatnonzero(failed).tolist():
                self.reset_infos[index] = _row(infos, index)
        failures = [str(info["failure"]) for info in self.reset_infos if info.get("outcome") == "infra_failed"]
        if failures:
            raise SweGymError(
                f"resets failed {ATTEMPTS} times in a row: fix the cause, then resume training. "
                f"Failures: {'; '.join(failures)}"
            )
        return observations

    def close(self) -> None:
        """Close every environment."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return the attribute of each given slot."""
        values = self.envs.get_attr(attr_name)
        return [values[index] for index in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the given slots."""
        values = list(self.envs.get_attr(attr_name))
        for index in self._get_indices(indices):
            values[index] = value
        self.envs.set_attr(attr_name, values)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call a method of each given slot and return the results."""
        if indices is None:
            return list(self.envs.call(method_name, *method_args, **method_kwargs))
        methods = [self.envs.envs[index].get_wrapper_attr(method_name) for index in self._get_indices(indices)]
        return [method(*method_args, **method_kwargs) for method in methods]

    def env_is_wrapped(self, wrapper_class: type[Wrapper], indices: Any = None) -> list[bool]:
        """Return whether each given slot has the wrapper."""
        return [is_wrapped(self.envs.envs[index], wrapper_class) for index in self._get_indices(indices)]


def _row(infos: Info, index: int) -> Info:
    """Return one slot's part of batched infos."""
    row = {}
    for name, value in infos.items():
        if name.startswith("_") or not infos.get(f"_{name}", np.ones(index + 1, dtype=bool))[index]:
            continue
        row[name] = _row(value, index) if isinstance(value, dict) else value[index]
    return row
