"""The adapter for TRL: the tools of an environment as the `environment_factory` of `GRPOTrainer`.

    trainer = GRPOTrainer(
        model, environment_factory=environment_class(make_env), train_dataset=Dataset.from_dict({"task_id": ids}), ...
    )

TRL samples, parses tool calls and runs them, one episode after the other. The tokenizer needs a chat template that TRL
knows and that supports tools. `trl.Rollouts` has neither limit.
"""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Literal

from ..actions import render_call
from ..envs import SANDBOX_FAILED, WORLD_ERRORS
from ..spaces import Info
from ..types import JsonMapping, ToolCall, ToolSpec
from .episodes import MakeEnv

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}

OVER = "The episode is over."
"""Result of a tool call after the end of the episode."""


class _Environment:
    """An environment as TRL drives it; a subclass has the tools as methods."""

    _make_env: MakeEnv

    def __init__(self) -> None:
        self._env: Any = self._make_env()
        self._reward: float | None = None
        self._over = True

    def reset(self, task_id: str | None = None, **_: Any) -> str:
        """Start an episode; the columns of the dataset's row are the arguments.

        Returns:
            The problem statement, which TRL appends to the prompt.

        Raises:
            UsageError: The task is unknown, or the configuration is invalid.
        """
        self._reward, self._over = None, True
        try:
            observation, _info = self._env.reset(options={"task_id": task_id} if task_id else None)
        except WORLD_ERRORS:
            self._env.close()
            return SANDBOX_FAILED
        self._reward, self._over = 0.0, False
        return str(observation)

    def get_reward(self) -> float | None:
        """End the episode if it has not ended, and return its reward; None if the infrastructure failed."""
        if not self._over:
            _, reward, _, _, info = self._env.get_wrapper_attr("end")("no_call")
            self._add(reward, info)
        return self._reward

    def _call(self, name: str, arguments: JsonMapping) -> str:
        if self._over:
            return OVER
        call = ToolCall(name=name, arguments={key: value for key, value in arguments.items() if value is not None})
        action = render_call(call, self._env.unwrapped.config["action_format"])
        observation, reward, _, _, info = self._env.step(action)
        self._add(reward, info)
        return str(observation)

    def _add(self, reward: float, info: Info) -> None:
        self._over = info["outcome"] != "running"
        lost = self._over and not info["reward_valid"]
        self._reward = None if lost else (self._reward or 0.0) + float(reward)


def environment_class(make_env: MakeEnv) -> type[_Environment]:
    """Return a class for `GRPOTrainer(environment_factory=...)`.

    Each tool is a method with type hints and a docstring, from which TRL makes the schema. `get_reward` ends an episode
    that the model left unfinished, and grades it. Each episode's sandboxes are closed once it has ended.

    Args:
        make_env: Makes an environment. TRL keeps one for each episode of a batch.
    """
    with contextlib.closing(make_env()) as env:
        unwrapped: Any = env.unwrapped
        methods = {spec.name: _method(spec) for spec in unwrapped.tools}
    return type("SweEnvironment", (_Environment,), {**methods, "_make_env": staticmethod(make_env)})


def _method(spec: ToolSpec) -> Callable[..., str]:
    """Return a tool as a typed method."""

    def call(self: _Environment, /, **arguments: Any) -> str:
        return self._call(spec.name, arguments)

    required = spec.parameters.get("required", [])
    properties: JsonMapping = spec.parameters.get("properties", {})
    hints = {name: _hint(schema, name in required) for name, schema in properties.items()}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, kind, annotation=hint, default=inspect.Parameter.empty if name in required else None)
        for name, hint in hints.items()
    ]
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    described = [f"    {name}: {_line(schema.get('description', name))}" for name, schema in properties.items()]
    call.__name__ = call.__qualname__ = spec.name
    call.__signature__ = inspect.Signature([first, *parameters], return_annotation=str)  # type: ignore[attr-defined]
    call.__annotations__ = {**hints, "return": str}
    call.__doc__ = "\n".join([_line(spec.description), *(["", "Args:", *described] if described else [])])
    return call


def _hint(schema: JsonMapping, required: bool) -> Any:
    """Return the type of a parameter; an optional one may be None."""
    hint: Any = Literal[tuple(schema["enum"])] if "enum" in schema else TYPES.get(schema.get("type", ""), str)
    return hint if required else hint | None


def _line(text: str) -> str:
    return " ".join(text.split())
