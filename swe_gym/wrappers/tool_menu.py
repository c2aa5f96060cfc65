"""`ToolMenu`: a few tool calls, chosen by number, for algorithms that cannot write text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsInt

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.utils import RecordConstructorArgs

from ..actions import parse_action, render_call
from ..envs import SweEnv
from ..errors import ActionError, UsageError
from ..spaces import Array, Info, Obs, ResetResult, StepResult
from ..types import JsonMapping, ToolCall


class ToolMenu(gymnasium.Wrapper[Obs, Any, Obs, str], RecordConstructorArgs):
    """Actions are numbers; each stands for one tool call.

    A template is a call whose strings may hold `{name}`; it becomes one action for each value of that name. This menu
    has four actions:

    ```python
    menu = [
        {"name": "view", "arguments": {"path": "{file}"}},
        {"name": "eval", "arguments": {}},
        {"name": "submit", "arguments": {}, "once": True},
    ]
    env = ToolMenu(env, menu, {"file": ["calc.py", "test_calc.py"]})
    ```

    `action_masks()` (bool, for MaskablePPO) and `info["action_mask"]` (int8, for `Discrete.sample`) mask the actions
    with "once" that were taken in this episode. The mask is advice: a masked action runs like any other.

    Args:
        env: A `SweEnv`, wrapped or not.
        menu: Templates. By default the tools' own harmless examples, and `submit`.
        values: Values of the names in templates.

    Raises:
        UsageError: A call of the menu is invalid in the environment, or the menu is empty.

    Attributes:
        calls: Action texts by number.

    Change logs:
        * v0: Initial version.
    """

    def __init__(
        self,
        env: gymnasium.Env[Obs, str],
        menu: Sequence[JsonMapping] | None = None,
        values: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(self, menu=menu, values=values)
        gymnasium.Wrapper.__init__(self, env)
        if not isinstance(env.unwrapped, SweEnv):
            raise UsageError(f"ToolMenu needs a SweEnv, not {type(env.unwrapped).__name__}")
        entries = _examples(env.unwrapped) if menu is None else list(_expand(env.unwrapped, menu, values or {}))
        if not entries:
            raise UsageError("a ToolMenu needs at least one call")
        self.calls = tuple(text for text, _ in entries)
        self._once = np.array([once for _, once in entries])
        self._taken = np.zeros(len(entries), dtype=np.bool_)
        self.action_space = Discrete(len(entries))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[Obs]:
        """Start an episode with the whole menu."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._taken[:] = False
        return observation, self._add_to_info(info)

    def step(self, action: SupportsInt) -> StepResult[Obs]:
        """Run the call with this number."""
        observation, reward, terminated, truncated, info = self.env.step(self.calls[int(action)])
        self._taken[int(action)] = True
        return observation, float(reward), terminated, truncated, self._add_to_info(info)

    def action_masks(self) -> Array:
        """Return the mask of valid actions: bool, shape (number of calls,)."""
        return ~(self._once & self._taken)

    def _add_to_info(self, info: Info) -> Info:
        return {**info, "action_mask": self.action_masks().astype(np.int8)}


def _examples(env: SweEnv) -> list[tuple[str, bool]]:
    texts = env.action_space.examples if hasattr(env.action_space, "examples") else ()
    submit = render_call(ToolCall(name="submit"), env.config["action_format"])
    return [(text, False) for text in texts if text != submit] + [(submit, True)]


def _expand(
    env: SweEnv, menu: Sequence[JsonMapping], values: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, bool]]:
    """Yield every call of the templates as text, and whether it is to be taken once."""
    for template in menu:
        wrong = set(template) - {"name", "arguments", "once"}
        if wrong or "name" not in template:
            raise UsageError(f"invalid template of a ToolMenu: {dict(template)}: its keys are name, arguments and once")
        arguments = dict(template.get("arguments", {}))
        used = [name for name in values if any(f"{{{name}}}" in str(value) for value in arguments.values())]
        for chosen in itertools.product(*(values[name] for name in used)):
            filled = {key: _fill(value, dict(zip(used, chosen, strict=True))) for key, value in arguments.items()}
            yield _check_call(env, ToolCall(name=template["name"], arguments=filled)), bool(template.get("once", False))


def _fill(value: object, chosen: Mapping[str, str]) -> object:
    if not isinstance(value, str):
        return value
    for name, text in chosen.items():
        value = value.replace(f"{{{name}}}", text)
    return value


def _check_call(env: SweEnv, call: ToolCall) -> str:
    """Return the call in the environment's action format."""
    text = render_call(call, env.config["action_format"])
    try:
        parse_action(text, env.tools, format=env.config["action_format"])
    except ActionError as error:
        raise UsageError(f"invalid call in the menu: {call.name}({call.arguments}): {error}") from error
    return text
