"""The adapter for OpenEnv: any registered environment of texts as an `Environment` with concurrent sessions.

    app = create_app("SWE/Toy-v0", max_concurrent_envs=8, backend="docker")  # uvicorn module:app

OpenEnv's hub starts such an application, and its clients send no token. Trainers use `swe-gym serve`, which speaks the
same protocol without OpenEnv.
"""

import json
import os
from functools import partial
from typing import Any

from ..errors import MissingDependency, UsageError
from ..types import JsonObject
from .session import ClientSession, EnvReply, make_env

try:
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
except ImportError as error:
    raise MissingDependency(f"this adapter needs OpenEnv: pip install 'swe-gym[openenv]' ({error})") from error


class SweAction(Action):
    """An action.

    Attributes:
        text: The policy's text, which holds one tool call.
        metadata: `{"limit": NAME}` ends the episode at a limit of the caller; the work is graded as it is.
    """

    text: str


class SweObservation(Observation):
    """An observation.

    Attributes:
        text: The problem statement, or the output of a tool.
        done: Whether the episode is over.
        reward: The reward. None if the infrastructure failed: such an episode has no reward, not even 0.
        metadata: `terminated`, `truncated`, `reward_valid`, `outcome`, and the whole `info` of the step.
    """

    text: str


class SweEnvironment(Environment):
    """An environment of one session, with its own sandbox from `reset` to `close`.

    Args:
        env_id: Id of a registered environment whose observations and actions are texts.
        **arguments: Its arguments.

    Raises:
        UsageError: The id or an argument is invalid.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env_id: str, **arguments: Any) -> None:
        super().__init__()
        self._session = ClientSession(make_env(env_id, **arguments))

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task_id: str | None = None,
        options: JsonObject | None = None,
    ) -> SweObservation:
        """Start an episode. If the sandbox fails to start, it is over at once and has no reward.

        Args:
            seed: Seed of the environment.
            episode_id: Name of the episode.
            task_id: The task; without it, the environment draws one.
            options: Further options of the environment's `reset`.

        Raises:
            UsageError: The task or an option is unknown.
        """
        return _observation(self._session.reset(seed, episode_id, task_id, options))

    def step(self, action: SweAction, timeout_s: float | None = None, **_: Any) -> SweObservation:  # noqa: ARG002
        """Take a step. The environment's own limits bound its time."""
        return _observation(self._session.step(action.text, str(action.metadata.get("limit", ""))))

    @property
    def state(self) -> State:
        """The episode so far, and the spaces, tools and configuration of the environment."""
        return State(**self._session.state())

    def close(self) -> None:
        """End the episode and free the sandbox."""
        self._session.close()


def create_app(env_id: str, *, max_concurrent_envs: int = 8, **arguments: Any) -> Any:
    """Return OpenEnv's FastAPI application of an environment.

    Args:
        env_id: Id of a registered environment.
        max_concurrent_envs: Maximum number of sessions.
        **arguments: Arguments of the environment.

    Raises:
        UsageError: The id or an argument is invalid.
    """
    make_env(env_id, **arguments).close()
    make = partial(SweEnvironment, env_id, **arguments)
    return create_fastapi_app(make, SweAction, SweObservation, max_concurrent_envs=max_concurrent_envs, env_name=env_id)


def app() -> Any:
    """Return the application for `uvicorn --factory swe_gym.adapters.openenv:app`.

    The variable SWE_GYM_ENV names the environment ("SWE/Toy-v0"), SWE_GYM_ENV_ARGS holds its arguments as JSON, and
    MAX_CONCURRENT_ENVS the maximum number of sessions (8).

    Raises:
        UsageError: The id, an argument or a variable is invalid.
    """
    try:
        given = dict(json.loads(os.environ.get("SWE_GYM_ENV_ARGS", "{}")))
        sessions = int(os.environ.get("MAX_CONCURRENT_ENVS", "8"))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"SWE_GYM_ENV_ARGS must be a JSON object, and MAX_CONCURRENT_ENVS a whole number: {error}"
        ) from None
    return create_app(os.environ.get("SWE_GYM_ENV", "SWE/Toy-v0"), max_concurrent_envs=sessions, **given)


def _observation(reply: EnvReply) -> SweObservation:
    return SweObservation(text=reply.text, done=reply.done, reward=reply.reward, metadata=reply.metadata)
