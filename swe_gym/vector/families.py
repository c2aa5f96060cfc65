"""`make_vec`, and its entry points for the ids of `swe_gym.envs.registration`.

Each environment class of `swe_gym.envs.families` has a function of the same name here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit

from ..envs import SweEnv, families, warn_of_time_limit
from ..errors import UsageError
from ..spaces import AnyEnv
from .vector_env import OWN, SweVectorEnv


def make_vec(env_id: str, num_envs: int = 1, **arguments: Any) -> SweVectorEnv:
    """Return many environments of one id: `gymnasium.make_vec` with the type that type checkers need.

    Args:
        env_id: An id of this package, such as "SWE/Toy-v0".
        num_envs: Number of environments.
        **arguments: Arguments of the environment, and those of `make_many`.

    Raises:
        UsageError: The id is of another package, or an argument is invalid.
        gymnasium.error.UnregisteredEnv: The id is unknown.
    """
    envs = gymnasium.make_vec(env_id, num_envs, **arguments)
    if isinstance(envs, SweVectorEnv):
        return envs
    envs.close()
    raise UsageError(f"{env_id!r} makes a {type(envs).__name__}, not a SweVectorEnv: use gymnasium.make_vec")


def __getattr__(name: str) -> Callable[..., SweVectorEnv]:
    env_class = getattr(families, name, None)
    if not (isinstance(env_class, type) and issubclass(env_class, SweEnv)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(make_many, env_class)


def make_many(
    env_class: type[SweEnv],
    num_envs: int,
    *,
    max_episode_steps: int | None = None,
    wrappers: Sequence[Callable[[AnyEnv], AnyEnv]] = (),
    vector_kwargs: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> SweVectorEnv:
    """Return a vector environment of `num_envs` equal environments.

    Args:
        env_class: Class of the environments.
        num_envs: Number of environments.
        max_episode_steps: Steps until an episode is truncated without a grade; `max_turns` grades it.
        wrappers: Wrappers of each environment, the innermost first.
        vector_kwargs: Arguments of `SweVectorEnv`.
        **arguments: Arguments of the class, and `autoreset_mode`, `warm`, `executor`, `processes` and
            `executor_options` of `SweVectorEnv`.
    """
    own: dict[str, Any] = {name: arguments.pop(name) for name in OWN if name in arguments}
    own |= vector_kwargs or {}

    warn_of_time_limit(max_episode_steps)

    def make_one() -> AnyEnv:
        env: AnyEnv = env_class(**arguments)
        env = env if max_episode_steps is None else TimeLimit(env, max_episode_steps)
        return functools.reduce(lambda inner, wrapper: wrapper(inner), wrappers, env)

    return SweVectorEnv([make_one] * num_envs, **own)
