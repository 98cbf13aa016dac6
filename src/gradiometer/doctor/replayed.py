"""What the run keeps of its rollouts, and which recipe explains the credit its updates gave.

A table `replay` holds one rollout each: `rewards`, `ends`, `cuts`, and where there is a critic
`values` and `next_values`, as rows of environments; `credit` with `rows`, `calls` and `places` says
what the samples of its first epoch were given (capture/rollouts.py). A table `group-replay` holds
one batch of answers, several to a prompt: `rewards` by name, `groups`, and `rows`, `credit` and
`tokens` of those that went backward (capture/groupcredit.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.signs import number
from gradiometer.maths.grouprecipes import GroupBatch, Lengths, ReplayedGroups, replay_groups
from gradiometer.maths.recipes import Credit, ReplayedRecipes, Rollout, replay

__all__ = ["GROUPS", "TABLE", "replayed", "replayed_groups", "rollouts_of", "set_lengths"]

TABLE, GROUPS = "replay", "group-replay"
LEAST_DISCOUNT = 0.5
"""A smaller one in the settings is a fault to be found, not a fact to start from."""
GAMMA = ("gamma", "discount", "discount_factor")
LENGTHS: Mapping[str, Lengths] = {
    **dict.fromkeys(("grpo", "seq-mean-token-mean"), "answers"),
    **dict.fromkeys(("bnpo", "dapo", "dr_grpo", "token-mean", "seq-mean-token-sum"), "tokens"),
}
"""What settings of TRL (loss_type) and verl (loss_agg_mode) let weigh the same."""
LAMBDA = ("gae_lambda", "lam", "lmbda", "lambda")

_KNOWN_GROUPS: WeakKeyDictionary[RunData, ReplayedGroups | None] = WeakKeyDictionary()
_KNOWN: WeakKeyDictionary[RunData, ReplayedRecipes | None] = WeakKeyDictionary()


def replayed(run: RunData) -> ReplayedRecipes | None:
    """The recipes of a run by what they explain; None where it kept too little to tell."""
    if run not in _KNOWN:
        gamma, lam = number(run.fact(*GAMMA)), number(run.fact(*LAMBDA))
        known = gamma is not None and LEAST_DISCOUNT <= gamma <= 1.0
        _KNOWN[run] = replay(rollouts_of(run), gamma=gamma if known else None, lam=lam)
    return _KNOWN[run]


def replayed_groups(run: RunData) -> ReplayedGroups | None:
    """The recipes of a group-relative run; None where it kept too little to tell."""
    if run not in _KNOWN_GROUPS:
        kept = run.source.tables(GROUPS) if GROUPS in run.source.table_names() else []
        found = (_batch(table.content) for table in kept)
        _KNOWN_GROUPS[run] = replay_groups([each for each in found if each is not None])
    return _KNOWN_GROUPS[run]


def set_lengths(run: RunData) -> Lengths | None:
    """Whether each answer or each token is to weigh the same, by the settings of the run."""
    return LENGTHS.get(str(run.fact("loss_type", "loss_agg_mode")))


def _batch(content: Any) -> GroupBatch | None:
    if not isinstance(content, Mapping) or not isinstance(content.get("rewards"), Mapping):
        return None
    try:
        batch = GroupBatch(
            rewards={str(k): np.array(x, np.float64) for k, x in content["rewards"].items()},
            groups=np.array(content["groups"], np.int64),
            rows=np.array(content["rows"], np.int64),
            credit=np.array(content["credit"], np.float64),
            tokens=np.array(content["tokens"], np.float64),
            beyond=int(content["beyond"]),
            outside=int(content["outside"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    arrays = (batch.groups, *batch.rewards.values())
    fits = len({each.shape for each in arrays}) == 1 and batch.groups.ndim == 1
    fits = fits and batch.rows.shape == batch.credit.shape == batch.tokens.shape
    if not fits or not batch.rewards or not batch.rows.size or batch.groups.min() < 0:
        return None
    inside = batch.rows.min() >= 0 and batch.rows.max() < len(batch.groups)
    return batch if inside and batch.groups.max() < len(batch.groups) else None


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
