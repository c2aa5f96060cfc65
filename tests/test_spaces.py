"""`Unicode`, alone and in Gymnasium's own vector environments, which garble a plain `Text`."""

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Sequence, Text, Tuple
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, unflatten
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.errors import UsageError
from swe_gym.spaces import Unicode

TEXTS = ["", "plain", "naïve ✓", "\x00\x1b[31m\r\n\t", "😀" * 30, "half \ud83d of a pair", "a" * 100]

any_text = st.text(st.characters(exclude_categories=()), max_size=100)


class Echo(gym.Env[Any, str]):
    """Returns scripted texts, inside a Dict on request."""

    def __init__(self, *, inside_dict: bool = False, max_length: int = 100) -> None:
        text = Unicode(max_length, examples=("hello", "world"))
        self.action_space = Unicode(1000, examples=("say ✓", ""))
        self.observation_space = Dict(text=text, count=Box(0, 100, (), np.int64)) if inside_dict else text
        self.count = 0

    def _observe(self, text: str) -> Any:
        inside_dict = isinstance(self.observation_space, Dict)
        return {"text": text, "count": np.array(self.count)} if inside_dict else text

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.count = 0
        return self._observe(f"start ✓ {self.np_random_seed}"), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(action), 0.0, False, False, {}


# --- the space ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_it_holds_any_text(text: str) -> None:
    assert text in Unicode(100)
    assert np.str_(text) in Unicode(100)


@pytest.mark.parametrize("thing", [b"bytes", None, 3, ["a"], "a" * 101])
def test_it_holds_nothing_else(thing: Any) -> None:
    assert thing not in Unicode(100)


def test_the_length_counts_code_points() -> None:
    assert "😀" * 5 in Unicode(5)
    assert "😀" * 6 not in Unicode(5)


class Unread(str):
    """A text whose characters must not be read."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("the text was read")

    def __getitem__(self, index: object) -> NoReturn:
        raise AssertionError("the text was read")


def test_contains_does_not_read_characters() -> None:
    assert Unread("é" * 1_000_000) in Unicode(1_000_000)
    assert Unread("é" * 1_000_001) not in Unicode(1_000_000)


def test_its_repr_is_short() -> None:
    assert repr(Unicode(100_000)) == "Unicode(100000)"


def test_it_pickles_cheaply() -> None:
    space = Unicode(100_000, examples=("a", "b"), seed=1)
    assert len(pickle.dumps(space)) < 2000
    again = pickle.loads(pickle.dumps(space))
    assert again == space
    assert again.examples == ("a", "b")
    assert [again.sample() for _ in range(20)] == [space.sample() for _ in range(20)]


def test_samples_are_examples_and_follow_the_seed() -> None:
    space = Unicode(10, examples=("ls", "cat", "pwd"))
    space.seed(7)
    first = [space.sample() for _ in range(50)]
    space.seed(7)
    assert [space.sample() for _ in range(50)] == first
    assert set(first) == {"ls", "cat", "pwd"}
    assert Unicode(10).sample() == ""


@pytest.mark.parametrize("examples", [(), ("too long",), (3,)])
def test_examples_must_be_in_the_space(examples: Any) -> None:
    with pytest.raises(UsageError, match="examples"):
        Unicode(5, examples=examples)


def test_masks_are_refused() -> None:
    with pytest.raises(UsageError, match="mask"):
        Unicode(5).sample(mask=(3, None))


def test_equality_is_by_length() -> None:
    assert Unicode(5) == Unicode(5, examples=("x",))
    assert Unicode(5) != Unicode(6)
    assert Unicode(5) != Text(5)
    assert Text(5) != Unicode(5)


@given(st.lists(any_text))
def test_batches_survive_json(texts: list[str]) -> None:
    space = Unicode(100)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(texts)))) == texts


def test_it_does_not_flatten_to_an_array() -> None:
    space = Unicode(5)
    assert not space.is_np_flattenable
    with pytest.raises(ValueError, match="cannot be flattened"):
        flatdim(space)
    assert flatten_space(space) == space
    assert unflatten(space, flatten(space, "é")) == "é"
    inside = Dict(text=space, count=Box(0, 1, (2,)))
    assert flatten(inside, {"text": "é", "count": np.zeros(2, np.float32)})["text"] == "é"


def test_importing_it_is_light() -> None:
    code = "import gymnasium, swe_gym, sys; old = {*sys.modules}; import swe_gym.spaces; print(*{*sys.modules} - old)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert all(name.startswith("swe_gym") for name in output.stdout.split())


# --- batches and shared memory --------------------------------------------------------------------------


def test_batches_are_tuples_of_texts() -> None:
    space = Unicode(5, examples=("a", "b"))
    batch = batch_space(space, 3)
    assert batch.sample() in batch
    empty = create_empty_array(space, 3)
    assert empty == ("", "", "")
    assert concatenate(space, ["x", "y", "z"], empty) == ("x", "y", "z")
    assert batch_differing_spaces([Unicode(5), Unicode(6)]) == Tuple([Unicode(5), Unicode(6)])


@given(st.lists(any_text, min_size=1, max_size=4))
def test_shared_memory_returns_what_was_written(texts: list[str]) -> None:
    space = Unicode(100)
    memory = create_shared_memory(space, len(texts))
    shared = read_from_shared_memory(space, memory, len(texts))
    assert tuple(shared) == ("",) * len(texts)
    for index, text in enumerate(texts):
        write_to_shared_memory(space, index, "x" * 100, memory)
        write_to_shared_memory(space, index, text, memory)
    assert tuple(shared) == tuple(texts)


def test_shared_texts_follow_the_memory_and_copies_do_not() -> None:
    space = Unicode(10)
    memory = create_shared_memory(space, 2)
    shared = read_from_shared_memory(space, memory, 2)
    write_to_shared_memory(space, 0, "old", memory)
    copies = [copy.deepcopy(shared), copy.copy(shared), pickle.loads(pickle.dumps(shared)), tuple(shared), [*shared]]
    write_to_shared_memory(space, 0, "new", memory)
    assert [list(one) for one in copies] == [["old", ""]] * 5
    assert all(type(one) is tuple for one in copies[:4])
    assert shared in batch_space(space, 2)
    assert shared == ("new", "")
    assert shared == read_from_shared_memory(space, memory, 2)
    assert shared != ("old", "")
    assert (shared[0], shared[-1], shared[:1], len(shared)) == ("new", "", ("new",), 2)
    assert "new" in shared
    assert "old" not in shared
    assert (shared.index(""), shared.count("new"), [*reversed(shared)]) == (1, 1, ["", "new"])
    assert (repr(shared), hash(shared), shared + shared) == ("('new', '')", hash(("new", "")), ("new", "") * 2)


@pytest.mark.parametrize("value", ["a" * 11, 3, None])
def test_a_value_outside_the_space_is_not_shared(value: Any) -> None:
    space = Unicode(10)
    with pytest.raises(UsageError, match=r"observation of Unicode\(10\)"):
        write_to_shared_memory(space, 0, value, create_shared_memory(space, 1))


def test_a_sequence_of_texts_is_refused_loudly() -> None:
    with pytest.raises(TypeError, match="shared_memory"):
        create_shared_memory(Sequence(Unicode(10)), 1)


# --- Gymnasium's vector environments --------------------------------------------------------------------

KINDS: dict[str, Callable[..., VectorEnv[Any, Any, Any]]] = {
    "sync": SyncVectorEnv,
    "async-fork": partial(AsyncVectorEnv, context="fork"),
    "async-spawn": partial(AsyncVectorEnv, context="spawn"),
    "async-fork-view": partial(AsyncVectorEnv, context="fork", copy=False),
    "async-pipes": partial(AsyncVectorEnv, context="fork", shared_memory=False),
}

fork_is_fine_here = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def texts_of(observation: Any, inside_dict: bool) -> tuple[str, ...]:
    return tuple(observation["text"] if inside_dict else observation)


@pytest.mark.sample(every=4)
@fork_is_fine_here
@pytest.mark.parametrize("inside_dict", [False, True], ids=["text", "dict"])
@pytest.mark.parametrize("kind", KINDS)
def test_vector_environments_return_the_text(kind: str, inside_dict: bool) -> None:
    envs = KINDS[kind]([partial(Echo, inside_dict=inside_dict)] * 2)
    try:
        observation, _ = envs.reset(seed=5)
        assert texts_of(observation, inside_dict) == ("start ✓ 5", "start ✓ 6")
        kept = []
        for pair in zip(TEXTS, reversed(TEXTS), strict=True):
            observation, *_ = envs.step(pair)
            assert texts_of(observation, inside_dict) == pair
            assert observation in envs.observation_space
            kept.append((observation, pair))
        if not kind.endswith("view"):
            assert all(texts_of(observation, inside_dict) == pair for observation, pair in kept)
        if inside_dict:
            assert [*observation["count"]] == [len(TEXTS)] * 2
        observation, *_ = envs.step(envs.action_space.sample())
        assert set(texts_of(observation, inside_dict)) <= {"say ✓", ""}
    finally:
        envs.close()


@fork_is_fine_here
@pytest.mark.parametrize("kind", ["sync", "async-fork"])
def test_the_observation_mode_for_spaces_that_differ_works(kind: str) -> None:
    envs = KINDS[kind]([Echo, Echo], observation_mode="different")
    assert envs.observation_space == Tuple([Unicode(100), Unicode(100)])
    envs.reset(seed=1)
    assert tuple(envs.step(("a", "é"))[0]) == ("a", "é")
    envs.close()


def test_lengths_that_differ_are_refused() -> None:
    makers = [partial(Echo, max_length=length) for length in (50, 100)]
    with pytest.raises((RuntimeError, AssertionError), match="spaces"):  # the latter in Gymnasium 1.0
        SyncVectorEnv(makers, observation_mode="different")


@fork_is_fine_here
@pytest.mark.filterwarnings("ignore::UserWarning")  # how Gymnasium reports an error of a worker
def test_an_observation_that_is_too_long_is_an_error() -> None:
    envs = AsyncVectorEnv([partial(Echo, max_length=20)] * 2, context="fork")
    try:
        envs.reset(seed=1)
        with pytest.raises(UsageError, match="21 characters"):
            envs.step(("ok", "a" * 21))
    finally:
        envs.close(terminate=True)


def test_gymnasiums_checker_is_content() -> None:
    check_env(Echo(), skip_render_check=True)
    check_env(Echo(inside_dict=True), skip_render_check=True)
