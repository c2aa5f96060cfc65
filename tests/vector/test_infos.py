"""Batched infos: in Gymnasium's form and with stable types."""

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.vector.batches import InfoBatcher


def gymnasiums(infos: list[dict[str, Any]]) -> dict[str, Any]:
    envs = VectorEnv()
    envs.num_envs = len(infos)
    batched: dict[str, Any] = {}
    for row, info in enumerate(infos):
        batched = envs._add_info(batched, info, row)
    return batched


typed = st.fixed_dictionaries(
    {},
    optional={
        "flag": st.booleans(),
        "count": st.integers(-(2**40), 2**40),
        "share": st.floats(allow_nan=False),
        "name": st.text(max_size=3),
        "names": st.lists(st.text(max_size=2), max_size=2),
        "array": st.integers(0, 9).map(lambda number: np.full(3, number)),
        "half": st.floats(0, 1, width=32).map(np.float32),
        "parts": st.dictionaries(st.sampled_from("xyz"), st.floats(0, 1)),
    },
)


@given(st.lists(typed, min_size=1, max_size=5))
def test_infos_of_steady_types_are_batched_as_gymnasium_does(infos: list[dict[str, Any]]) -> None:
    assert data_equivalence(InfoBatcher().batch(infos), gymnasiums(infos))


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.dictionaries(st.sampled_from("xy"), st.integers(), max_size=2),
    st.integers(1, 3).map(np.zeros),
)


@given(st.lists(st.lists(st.dictionaries(st.sampled_from("ab"), anything), min_size=2, max_size=2), max_size=6))
def test_any_values_round_trip(steps: list[list[dict[str, Any]]]) -> None:
    batcher = InfoBatcher()
    kinds: dict[str, list[Any]] = {}
    for infos in steps:
        batched = batcher.batch(infos)
        for row, info in enumerate(infos):
            for key, value in info.items():
                assert batched[f"_{key}"][row]
                got = batched[key]
                kinds.setdefault(key, []).append(getattr(got, "dtype", "dict"))
                if isinstance(got, dict):
                    assert all(name in got for name in value)
                else:
                    assert np.array_equal(got[row], value)
    for seen in kinds.values():
        if object in seen:  # once objects, always objects
            assert set(seen[seen.index(object) :]) == {np.dtype(object)}


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (1, 0.5, np.float64),
        (True, 7, object),
        (1, None, object),
        (1, "x", object),
        (1, 2**70, object),
        (1, 2, np.int64),
    ],
)
def test_types_that_gymnasium_would_cut(first: Any, second: Any, dtype: Any) -> None:
    batch = InfoBatcher().batch([{"x": first}, {"x": second}, {}])
    assert batch["x"].dtype == dtype
    assert batch["x"].tolist()[:2] == [first, second]
    assert batch["_x"].tolist() == [True, True, False]
