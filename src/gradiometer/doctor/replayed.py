"""What the run keeps of its rollouts, and which recipe explains the credit its updates gave.

A table `replay` holds one rollout each: `rewards`, `ends`, `cuts`, and where there is a critic
`values` and `next_values`, as rows of environments; `credit` with `rows`, `calls` and `places` says
what the samples of its first epoch were given (capture/rollouts.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.signs import number
from gradiometer.maths.recipes import Credit, ReplayedRecipes, Rollout, replay

__all__ = ["TABLE", "replayed", "rollouts_of"]

TABLE = "replay"
LEAST_DISCOUNT = 0.5
"""A smaller one in the settings is a fault to be found, not a fact to start from."""
GAMMA = ("gamma", "discount", "discount_factor")
LAMBDA = ("gae_lambda", "lam", "lmbda", "lambda")

_KNOWN: WeakKeyDictionary[RunData, ReplayedRecipes | None] = WeakKeyDictionary()


def replayed(run: RunData) -> ReplayedRecipes | None:
    """The recipes of a run by what they explain; None where it kept too little to tell."""
    if run not in _KNOWN:
        gamma, lam = number(run.fact(*GAMMA)), number(run.fact(*LAMBDA))
        known = gamma is not None and LEAST_DISCOUNT <= gamma <= 1.0
        _KNOWN[run] = replay(rollouts_of(run), gamma=gamma if known else None, lam=lam)
    return _KNOWN[run]


def rollouts_of(run: RunData) -> list[tuple[Rollout, Credit]]:
    """What the run kept; what does not fit together is left out."""
    if TABLE not in run.source.table_names():
        return []
    found = (_rollout(table.content) for table in run.source.tables(TABLE))
    return [each for each in found if each is not None]


def _rollout(content: Any) -> tuple[Rollout, Credit] | None:
    if not isinstance(content, Mapping):
        return None
    try:
        rewards, ends, cuts = (
            np.array(content[name], np.float64) for name in ("rewards", "ends", "cuts")
        )
        values, following = (
            None if content.get(name) is None else np.array(content[name], np.float64)
            for name in ("values", "next_values")
        )
        credit = Credit(
            values=np.array(content["credit"], np.float64),
            **{name: np.array(content[name], np.int64) for name in ("rows", "calls", "places")},
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    arrays = (rewards, ends, cuts, values, following)
    shapes = {each.shape for each in arrays if each is not None}
    lengths = {len(each) for each in (credit.values, credit.rows, credit.calls, credit.places)}
    fits = len(shapes) == 1 and rewards.ndim == 2 and len(lengths) == 1 and len(credit) > 0
    if not fits or credit.rows.min() < 0 or credit.rows.max() >= rewards.size:
        return None
    rollout = Rollout(rewards=rewards, ends=ends, cuts=cuts, values=values, next_values=following)
    return rollout, credit
