from __future__ import annotations

import json
import math
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradiometer.store.strictjson import from_json, to_json

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5).filter(lambda text: "N" not in text)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other and type(one) is type(other)


@given(VALUES)
def test_any_value_comes_back_from_strict_json(value: object) -> None:
    text = to_json(value)
    json.loads(text, parse_constant=refuse)
    assert same(from_json(text), value)


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, '"NaN"'), (math.inf, '"Infinity"'), (-math.inf, '"-Infinity"')]
)
def test_the_numbers_json_has_no_word_for_are_strings(value: float, text: str) -> None:
    assert to_json(value) == text
    assert to_json(np.float32(value)) == text
    assert to_json(np.array([value])) == f"[{text}]"


def test_numpy_scalars_and_arrays_are_numbers_and_lists() -> None:
    value = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": np.bool_(True),
        "d": np.arange(4).reshape(2, 2),
    }
    assert from_json(to_json(value)) == {"a": 0.5, "b": 3, "c": True, "d": [[0, 1], [2, 3]]}


def test_dataclasses_and_namespaces_are_objects_and_strangers_are_their_text() -> None:
    @dataclass
    class Config:
        lr: float
        out: Path

    value = {
        1: Config(lr=0.1, out=Path("runs")),
        "args": Namespace(seed=3),
        "set": {4},
        "type": complex(1, 2),
    }
    expected = {"1": {"lr": 0.1, "out": "runs"}, "args": {"seed": 3}, "set": [4], "type": "(1+2j)"}
    assert from_json(to_json(value)) == expected
