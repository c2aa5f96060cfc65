"""Wrappers that change what a policy observes, may call and earns at each step, and what is told of it."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsInt

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.utils import RecordConstructorArgs

from ..actions import parse_action, render_call
from ..envs import EpisodeCheckpoint, SweEnv, ToolEnv
from ..errors import ActionError, SandboxError, UsageError
from ..grading import Patch
from ..sandboxes import Snapshot
from ..spaces import AnyEnv, AnyWrapper, Array, Info, Obs, ResetResult, StepResult, Unicode
from ..tools import bound
from ..types import JsonMapping, ToolCall


class TruncateObservation(gymnasium.ObservationWrapper[str, str, str], RecordConstructorArgs):
    """Cuts the middle out of long observations; a line in its place counts what is missing.

    It works on any environment of texts. For a `SweEnv` alone, `max_observation` does the same.

    Args:
        env: An environment whose observations are texts.
        max_length: Maximum number of characters.

    Raises:
        UsageError: `max_length` is not positive, or the observations are not texts.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: gymnasium.Env[str, str], max_length: int) -> None:
        RecordConstructorArgs.__init__(self, max_length=max_length)
        gymnasium.ObservationWrapper.__init__(self, env)
        if not isinstance(env.observation_space, Text) or max_length < 1:
            raise UsageError(f"TruncateObservation needs texts and a positive max_length: {max_length=}")
        self.observation_space = Unicode(max_length)
        self._max_length = max_length

    def observation(self, observation: str) -> str:
        """Return the text, cut if it is too long."""
        return bound(observation, self._max_length)


MOST_SIGNED = 8 << 20
"""Bytes of written files that a signature reads."""


class StateSignature(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Names the state of an episode after each step, so that equal states are found: within it, and among episodes.

    `info["signature"]` (str, 32 hexadecimal digits) is a digest of the files that were written since the task's start
    and of the set of different observations so far. Files alone would not tell who has read the bug from who has not.
    `info["same_as"]` (int) is the first turn of the episode with the same signature, or -1: a step that changed
    nothing and showed nothing new is a loop. At the end of an episode they are "" and -1.

    Signatures of one task compare between episodes on one backend. Git's own files, environments and caches, which are
    never part of the work, and times of files do not count. So states that differ only in these, in running programs,
    or in what a tool remembers, share a signature. Equal states may get two: a file counts as written even if its
    content is as before, a folder in which a cache was made counts as changed, and an observation with a time in it is
    new each time, unless `ignore` has a pattern for it.

    At each step, everything that was written since the start is read: about 3 ms of CPU time for small changes on the
    local backend. If that is more than 8 MB or cannot be read, there is no signature: "" and -1.

    Apply it directly to the environment.

    Args:
        env: A `SweEnv`, wrapped or not, whose observations are texts.
        ignore: Regular expressions of text to leave out of observations, for example "in [0-9.]+s", the times that
            pytest and unittest print.

    Raises:
        UsageError: The environment is not a `SweEnv` of texts, or a pattern is not a regular expression.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: gymnasium.Env[str, str], ignore: Sequence[str] = ()) -> None:
        RecordConstructorArgs.__init__(self, ignore=list(ignore))
        gymnasium.Wrapper.__init__(self, env)
        if not isinstance(env.unwrapped, SweEnv) or not isinstance(env.observation_space, Text):
            raise UsageError(f"StateSignature needs a SweEnv of texts, not {type(env.unwrapped).__name__}")
        try:
            self._ignored = [re.compile(pattern) for pattern in ignore]
        except re.error as error:
            raise UsageError(
                f"StateSignature: ignore: {error.pattern!r} is not a regular expression: {error}"
            ) from error
        self._swe_env = env.unwrapped
        self._shown: set[str] = set()
        self._turns: dict[str, int] = {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[str]:
        """Start an episode. One that starts from a checkpoint has seen what came before."""
        observation, info = self.env.reset(seed=seed, options=options)
        point = EpisodeCheckpoint.among(options)
        before = (point.observation, *point.observations) if point else (observation,)
        self._shown, self._turns = set(map(self._digest_shown, before)), {}
        return observation, self._sign(info)

    def step(self, action: str) -> StepResult[str]:
        """Take a step, and name the state after it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            info = {**info, "signature": "", "same_as": -1}
        else:
            self._shown.add(self._digest_shown(observation))
            info = self._sign(info)
        return observation, float(reward), terminated, truncated, info

    def end(self, limit: str) -> StepResult[str]:
        """End the episode as `SweEnv.end` does."""
        observation, reward, terminated, truncated, info = self.env.get_wrapper_attr("end")(limit)
        return observation, reward, terminated, truncated, {**info, "signature": "", "same_as": -1}

    def _digest_shown(self, text: str) -> str:
        for pattern in self._ignored:
            text = pattern.sub("", text)
        return _digest(text)

    def _sign(self, info: Info) -> Info:
        try:
            files = describe_files(self._swe_env.sandbox.snapshot(max_bytes=MOST_SIGNED))
        except SandboxError:  # too much, or the sandbox was lost, which the next step tells
            return {**info, "signature": "", "same_as": -1}
        signature = _digest(json.dumps([files, sorted(self._shown)]))[:32]
        first = self._turns.setdefault(signature, info["turn"])
        return {**info, "signature": signature, "same_as": first if first != info["turn"] else -1}


def describe_files(snapshot: Snapshot) -> list[list[Any]]:
    """Return path, kind, mode and content of everything that was written, as JSON data. Contents are digests."""
    found: list[list[Any]] = []
    start = 0
    for path, (kind, mode, _, _, _, own) in snapshot.entries.items():
        end = start + own if kind == "file" else start  # contents follow each other
        content = hashlib.sha256(snapshot.data[start:end]).hexdigest() if kind == "file" else own
        if kind == "folder":
            content = sorted(name for name in own if not _is_cache(name))
        if not any(map(_is_cache, path.split("/"))):
            found.append([path, kind, mode, content])
        start = end
    return sorted(found)


def _is_cache(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in Patch.excluded)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


Messages = tuple[dict[str, str], ...]


class ChatMessages(gymnasium.Wrapper[Any, str, str, str], RecordConstructorArgs):
    """Observations are the conversation so far, as the messages of a chat API.

    Each is a tuple of `{"role": ..., "content": ...}`: the system prompt if there is one, the issue text from "user",
    then every action from "assistant" followed by its observation.

    Args:
        env: An environment of texts, such as `SweEnv`.
        system: System prompt; None for none.
        role: Role of observations, such as "user" or "tool".

    Raises:
        UsageError: The environment's observations or actions are not texts.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: gymnasium.Env[str, str], system: str | None = None, role: str = "user") -> None:
        RecordConstructorArgs.__init__(self, system=system, role=role)
        gymnasium.Wrapper.__init__(self, env)
        spaces = env.observation_space, env.action_space
        if not all(isinstance(space, Text) for space in spaces):
            raise UsageError(f"ChatMessages needs texts as observations and actions, not {spaces[0]} and {spaces[1]}")
        self._longest = max(len(system or ""), *(space.max_length for space in spaces if isinstance(space, Text)))
        message = Dict({"content": Unicode(self._longest), "role": Unicode(32)})
        self.observation_space = gymnasium.spaces.Sequence(message)
        self._role = role
        self._system = [("system", system)] if system is not None else []
        self._said: list[tuple[str, str]] = []

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[Messages]:
        """Start a conversation, or continue that before `options["checkpoint"]`."""
        observation, info = self.env.reset(seed=seed, options=options)
        point, space = EpisodeCheckpoint.among(options), self.env.observation_space
        turns = [("", observation)]
        if point is not None and isinstance(space, Text):
            turns = point.turns_with(observation, space.max_length)
        self._said = [*self._system, ("user", turns[0][1])]
        for turn in turns[1:]:
            self._say(*turn)
        return self._messages(), info

    def step(self, action: str) -> StepResult[Messages]:
        """Take a step and extend the conversation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._say(action, observation)
        return self._messages(), float(reward), terminated, truncated, info

    def _say(self, action: str, observation: str) -> None:
        self._said += [("assistant", action[: self._longest]), (self._role, observation)]

    def _messages(self) -> Messages:
        return tuple({"content": content, "role": role} for role, content in self._said)


Vector = npt.NDArray[np.float32]

_WORD = re.compile(r"\w+|[^\w\s]")


class HashedText(gymnasium.ObservationWrapper[Vector, Any, str], RecordConstructorArgs):
    """Observations are float32 vectors of length 1 (or 0, for an empty text) in [-1, 1].

    Every word and every pair of adjacent words adds 1 or -1 to one of `size` numbers; its CRC-32 decides the place and
    the sign. Logarithms and the unit length limit the weight of long texts. A text gives the same vector on every
    machine.

    Args:
        env: An environment whose observations are texts.
        size: Length of the vector.

    Raises:
        UsageError: `size` is not positive, or the observations are not texts.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: gymnasium.Env[str, Any], size: int = 512) -> None:
        RecordConstructorArgs.__init__(self, size=size)
        gymnasium.ObservationWrapper.__init__(self, env)
        if not isinstance(env.observation_space, Text) or size < 1:
            raise UsageError(f"HashedText needs texts and a positive size: {env.observation_space}, {size=}")
        self.observation_space = Box(-1.0, 1.0, (size,), np.float32)
        self._size = size

    def observation(self, observation: str) -> Vector:
        """Return the text as a vector."""
        words = _WORD.findall(observation.lower())
        pairs = [f"{one} {other}" for one, other in itertools.pairwise(words)]
        hashes = np.array(
            [zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in (*words, *pairs)], dtype=np.int64
        )
        counts = np.zeros(self._size)
        np.add.at(counts, hashes % self._size, np.where(hashes >> 31, 1.0, -1.0))
        counts = np.sign(counts) * np.log1p(np.abs(counts))
        length = np.linalg.norm(counts)
        vector: Vector = (counts / length if length else counts).astype(np.float32)
        return vector


class ShapeReward(AnyWrapper, RecordConstructorArgs):
    """Scales the environment's reward and adds a small one at each step.

    `info["reward_components"]["shaping"]` holds what was added. After an infrastructure failure nothing is added: such
    an episode has no reward.

    Args:
        env: A `SweEnv`, wrapped or not.
        per_turn: Reward of every step, such as -0.01.
        per_invalid: Reward of an invalid action, such as -0.05.
        scale: Factor of the environment's own reward.

    Raises:
        UsageError: A number is not finite, or the environment is not a `SweEnv`.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: AnyEnv, *, per_turn: float = 0.0, per_invalid: float = 0.0, scale: float = 1.0) -> None:
        RecordConstructorArgs.__init__(self, per_turn=per_turn, per_invalid=per_invalid, scale=scale)
        gymnasium.Wrapper.__init__(self, env)
        if not isinstance(env.unwrapped, ToolEnv):
            raise UsageError(f"ShapeReward needs a SweEnv, not {type(env.unwrapped).__name__}")
        if not all(map(math.isfinite, (per_turn, per_invalid, scale))):
            raise UsageError(f"rewards must be finite numbers: {per_turn=}, {per_invalid=}, {scale=}")
        self._per_turn, self._per_invalid, self._scale = per_turn, per_invalid, scale
        self._invalid = 0
        self._added = 0.0  # in the last step

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[Any]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._invalid, self._added = info["invalid_actions"], 0.0  # a branch has those of its checkpoint
        return observation, self._add_to_info(info)

    def step(self, action: object) -> StepResult[Any]:
        """Take a step and add to its reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        invalid, self._invalid = info["invalid_actions"] - self._invalid, info["invalid_actions"]
        lost = info["outcome"] == "infra_failed"
        self._added = 0.0 if lost else self._per_turn + invalid * self._per_invalid
        reward = self._scale * float(reward) + self._added
        return observation, reward, terminated, truncated, self._add_to_info(info)

    def end(self, limit: str) -> StepResult[Any]:
        """End the episode as `SweEnv.end` does: the reward is scaled, and none is added to that of the last step."""
        observation, reward, terminated, truncated, info = self.env.get_wrapper_attr("end")(limit)
        return observation, self._scale * reward, terminated, truncated, self._add_to_info(info)

    def _add_to_info(self, info: Info) -> Info:
        components = {name: self._scale * value for name, value in info["reward_components"].items()}
        return {**info, "reward_components": {**components, "shaping": self._added}}


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
        """Start an episode with the whole menu, or with what was left of it at `options["checkpoint"]`."""
        observation, info = self.env.reset(seed=seed, options=options)
        point = EpisodeCheckpoint.among(options)
        self._taken[:] = [point is not None and call in point.actions for call in self.calls]
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
