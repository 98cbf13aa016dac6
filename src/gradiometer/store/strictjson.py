"""JSON that any parser reads: NaN and the infinities are the strings "NaN", "Infinity" and "-Infinity"."""

from __future__ import annotations

import dataclasses
import json
import math
from argparse import Namespace
from collections.abc import Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["from_json", "plain", "to_json"]

SPOKEN = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON of anything: numpy, dataclasses and namespaces as what they hold, strangers as their `str`."""
    return json.dumps(plain(value), allow_nan=False, indent=indent)


def from_json(text: str) -> Any:
    """The value behind `to_json`'s text; the three spoken numbers are floats again."""
    value = json.loads(text)
    return _heard(value) if 'NaN"' in text or 'Infinity"' in text else value


def plain(value: Any) -> Any:
    """The same value in what JSON knows: dict, list, str, int, finite float, bool, None."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _spoken(value)
    if isinstance(value, np.generic):
        return plain(value.item()) if not isinstance(value, np.longdouble) else plain(float(value))
    return _plain_container(value)


def _plain_container(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Namespace | SimpleNamespace):
        return plain(vars(value))
    return str(value)


def _spoken(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _heard(value: Any) -> Any:
    if isinstance(value, str):
        return SPOKEN.get(value, value)
    if isinstance(value, list):
        return [_heard(item) for item in value]
    if isinstance(value, dict):
        return {key: _heard(item) for key, item in value.items()}
    return value
