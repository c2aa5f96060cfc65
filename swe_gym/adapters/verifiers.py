"""The adapter for verifiers, and for prime-rl, which trains on its environments.

Verifiers finds an environment by the name of a package. Make one, `my_swe/__init__.py`:

    from swe_gym.adapters.verifiers import InProcessEnv, SweHarness, SweTaskset

    __all__ = ["InProcessEnv", "SweHarness", "SweTaskset"]

Then `vf-eval my_swe --env.taskset.env-id SWE/Toy-v0` evaluates a model on it. The episodes run in threads of verifiers'
own process, each in a sandbox of swe_gym; all model calls go through verifiers, which records them in the trace.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium

from ..envs import SweEnv, make_env
from ..errors import MissingDependency, PolicyError, UsageError
from ..rollout.policies import make_policies
from ..types import JsonObject
from .aio import in_thread
from .episodes import METRICS, EpisodeBatch, Slot, known_numbers

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise MissingDependency(f"this adapter needs verifiers: pip install 'swe-gym[verifiers]' ({error})") from error

KEY = "swe_gym"
"""Key of `trace.info` with the reward and the last info of the episode."""


class SweTasksetConfig(vf.TasksetConfig):
    """Configuration of the tasks.

    Attributes:
        env_id: A registered environment.
        options: Arguments of `gymnasium.make`.
    """

    env_id: str = "SWE/Toy-v0"
    options: dict[str, Any] = {}


class SweData(vf.TaskData):
    """Data of a task: nothing of its oracle."""

    env_id: str
    options: JsonObject

    def make_env(self) -> gymnasium.Env[str, str]:
        """Make the environment."""
        return make_env(self.env_id, **self.options)


class SweTask(vf.Task[SweData, vf.State, vf.TaskConfig]):
    """A task, scored by its environment."""

    @property
    def key(self) -> str:
        """A key that does not depend on the order of the tasks."""
        return f"{self.data.env_id}/{self.data.id}"

    @vf.reward  # type: ignore[untyped-decorator]  # verifiers counts as untyped
    async def reward(self, trace: Any) -> float:
        """Return the reward of the environment."""
        if KEY not in trace.info:
            raise PolicyError("the episode was cancelled before it was graded: it has no reward", reason="timeout")
        return float(trace.info[KEY]["reward"])

    @vf.metric  # type: ignore[untyped-decorator]  # verifiers counts as untyped
    async def episode(self, trace: Any) -> dict[str, float]:
        """Return counts of the episode, without unknown ones."""
        return known_numbers(trace.info[KEY], METRICS) if KEY in trace.info else {}


class SweTaskset(vf.Taskset[SweTask, SweTasksetConfig]):
    """All tasks of a registered environment."""

    def load(self) -> Iterator[SweTask]:
        """Yield the tasks. Each is built when it is reached."""
        given = {"env_id": self.config.env_id, "options": self.config.options}
        with contextlib.closing(SweData(**given).make_env()) as env:
            if not isinstance(env.unwrapped, SweEnv):
                raise UsageError(f"{self.config.env_id} is not an environment of swe_gym")
            source = env.unwrapped.source
        for name in source.ids():
            data = SweData(id=name, name=name, prompt=source.get(name).problem_statement, **given)
            yield SweTask(data, self.config.task)


class SweHarnessConfig(vf.HarnessConfig):
    """Configuration of the harness.

    Attributes:
        llm: Options of the policy "llm", for example `{"calls": "text"}`. The model, its server and the sampling
            settings are those of verifiers.
    """

    llm: dict[str, Any] = {}


class SweHarness(vf.Harness[SweHarnessConfig]):
    """Plays the episode in a thread of this process. An infrastructure failure is a `HarnessError`, not a reward."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False  # in verifiers' runtime: commands run in swe_gym's sandbox
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,  # noqa: ARG002  not needed
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],  # noqa: ARG002  the environment has its own tools
        data: SweData,
    ) -> Any:
        """Play the episode. A cancelled call closes the sandbox first."""
        own = {"model": ctx.model, "base_url": endpoint, "api_key": secret, "system": data.system_prompt}
        policies = make_policies("llm", {**self.config.llm, **own})

        def cancel() -> None:
            batch.cancel()
            policies.close()

        batch = EpisodeBatch(
            [Slot(str(data.id))],
            data.make_env,
            lambda env, seed: _Graded(policies(env, seed=seed), trace),
            retries=0,  # verifiers retries whole rollouts: a second try must not enter the same trace
        )
        try:
            (episode,) = await in_thread(batch.play, cancel)
        finally:
            policies.close()
        if episode.reward is None:
            return vf.ProgramResult(exit_code=1, stdout="", stderr=f"no reward: {episode.failure}")
        trace.info[KEY] = {**episode.trajectory.info, "reward": episode.reward}
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class _Graded:
    """A policy whose work is graded as it is if verifiers ends the conversation, for example at `max_turns`."""

    def __init__(self, policy: Any, trace: Any) -> None:
        self._policy, self._trace = policy, trace
        self.reset, self.report = policy.reset, policy.report

    def act(self, observation: str) -> str:
        try:
            return str(self._policy.act(observation))
        except PolicyError as error:
            if self._trace.stop_condition is None:
                raise
            raise PolicyError(str(error), reason="context") from error


class InProcessConfig(vf.SingleAgentEnvConfig):
    """The configuration of `SingleAgentEnv`, with a runtime that starts nothing."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class InProcessEnv(vf.SingleAgentEnv, vf.Env[InProcessConfig]):
    """verifiers' environment of one agent, without a container of its own: the sandbox is swe_gym's."""
