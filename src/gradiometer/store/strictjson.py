"""JSON that any parser reads: NaN and the infinities are strings."""

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

__all__ = ["from_json", "plain", "spoken", "to_json", "whole_text"]

SPOKEN = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON of anything: arrays and dataclasses as what they hold, strangers as `str`."""
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
        return whole_text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else spoken(value)
    if isinstance(value, np.generic):
        return plain(value.item()) if not isinstance(value, np.longdouble) else plain(float(value))
    return _plain_container(value)


def _plain_container(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {whole_text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Namespace | SimpleNamespace):
        return plain(vars(value))
    return whole_text(str(value))


def whole_text(text: str) -> str:
    """A text that can be written: JSON can spell half a character, and no file takes it."""
    text = str(text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def spoken(value: float) -> str:
    """The word for a NaN or an infinity."""
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
