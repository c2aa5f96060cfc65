"""Demonstrations by an agent: the shell commands of a policy, written as the model would call the agent's shell."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..actions import parse_action, shell_tool
from ..envs import SweEnv
from ..errors import UsageError
from ..gateway import AgentPlayer, Renderer, TokenSampler, tool_call
from ..gateway.agents import Agent, make_agent
from ..rollout.policies import Policy
from ..rollout.tokens import ChatTemplate, Completion, as_sampled
from .config import EnvConfig, GenerationConfig

OVER = "Done."
"""The answer after the last command."""


class Script:
    """A generator that writes texts in order, then `OVER`.

    Args:
        texts: The texts; computed at the first call, when the environment has its task.
        template: Chat template, for its tokenizer.
        end: The token that ends an answer.
    """

    def __init__(self, texts: Iterable[str], template: ChatTemplate, end: int) -> None:
        self._texts, self._template, self._end = iter(texts), template, end

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        """See `Generator`."""
        return as_sampled(self._template.encode(next(self._texts, OVER)), self._end)


def demonstrating_agent(
    config: EnvConfig, generation: GenerationConfig, template: ChatTemplate, end: int
) -> Callable[[SweEnv, Policy, str], AgentPlayer]:
    """Return what makes a player of an environment, a policy and a task id: the agent does what the policy would do.

    Raises:
        UsageError: The agent has no shell, or the chat template's tool calls cannot be read.
    """
    agent = make_agent(config.agent, config.agent_options)
    if not agent.shell[0]:
        raise UsageError(f"the agent {config.agent!r} has no shell tool, which demonstrations need: use another agent")

    renderer = Renderer(template, generation.tool_call_style)

    def player(env: SweEnv, policy: Policy, task_id: str) -> AgentPlayer:
        script = Script(_texts(env, policy, task_id, agent, renderer), template, end)
        sampler = TokenSampler(script, renderer, max_tokens=1 << 30, max_context=generation.max_context)
        return AgentPlayer(config.agent, agent, sampler)

    return player


def _texts(env: SweEnv, policy: Policy, task_id: str, agent: Agent, renderer: Renderer) -> Iterator[str]:
    """Yield the text of each call of the agent's shell."""
    tool, argument = agent.shell
    policy.reset({"task_id": task_id})
    for command in (*_commands(env, policy), *filter(None, [agent.ending])):
        call = tool_call("demonstration", tool, json.dumps({argument: command, **agent.required}, ensure_ascii=False))
        yield renderer.write({"role": "assistant", "content": "", "tool_calls": [call]})


def _commands(env: SweEnv, policy: Policy) -> Iterator[str]:
    """Yield the shell commands of a policy until it submits.

    Raises:
        UsageError: It calls another tool.
    """
    shell = shell_tool(env.tools)
    while True:
        call = parse_action(policy.act(""), env.tools, format=env.config["action_format"]).call
        if shell is not None and call.name == shell[0].name:
            yield str(call.arguments[shell[1]])
        elif call.name in ("submit", "finish"):
            return
        else:
            raise UsageError(
                f"the demonstrating policy calls {call.name!r}, and an agent has only a shell: use sft.policy = "
                '"gold", or generated tasks of rung 1 or 2'
            )
