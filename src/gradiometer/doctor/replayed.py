"""What the run keeps of its rollouts, and which recipe explains the credit its updates gave.

A table `replay` holds one rollout each: `rewards`, `ends`, `cuts`, and where there is a critic
`values` and `next_values`, as rows of environments; `credit` with `rows`, `calls` and `places` says
what the samples of its first epoch were given (capture/rollouts.py). Parts of the first rollout
(`is_part`: of its first updates, or without its first step) count while there is no other. A table
`group-replay` holds one batch of answers, several to a prompt: `rewards` by name, `groups`, and
`rows`, `credit` and `tokens` of those that went backward (capture/groupcredit.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from gradiometer.doctor.rundata import RunData, once
from gradiometer.doctor.signs import mapping, number
from gradiometer.maths.grouprecipes import GroupBatch, Lengths, ReplayedGroups, replay_groups
from gradiometer.maths.recipes import (
    EXPLAINS,
    GAP,
    TIMES,
    Credit,
    ReplayedRecipes,
    Rollout,
    replay,
    replay_values,
)
from gradiometer.maths.targetrecipes import LogProbs, ReplayedTargets, TargetBatch, replay_targets

__all__ = [
    "GAMMA",
    "GROUPS",
    "TABLE",
    "TARGET_BATCHES",
    "LostTraces",
    "is_credited_alike",
    "lost_traces",
    "replayed",
    "replayed_groups",
    "replayed_targets",
    "replayed_values",
    "rollouts_of",
    "seen_setting",
    "set_discount",
    "set_lengths",
]

TABLE, GROUPS, TARGET_BATCHES = "replay", "group-replay", "target-replay"
SEEN = "settings-seen"
LEAST_DISCOUNT = 0.5
"""A smaller one in the settings is a fault to be found, not a fact to start from."""
GAMMA = ("gamma", "discount", "discount_factor")
LENGTHS: Mapping[str, Lengths] = {
    **dict.fromkeys(("grpo", "seq-mean-token-mean"), "answers"),
    **dict.fromkeys(("bnpo", "dapo", "dr_grpo", "token-mean", "seq-mean-token-sum"), "tokens"),
}
"""What settings of TRL (loss_type) and verl (loss_agg_mode) let weigh the same."""
LAMBDA = ("gae_lambda", "lam", "lmbda", "lambda")
MIN_ALIKE = 48
"""Samples that must all have been given the same."""

Kept = TypeVar("Kept")


@once
def replayed(run: RunData) -> ReplayedRecipes | None:
    """The recipes of a run by what they explain; None where it kept too little to tell."""
    return replay(rollouts_of(run), gamma=set_discount(run), lam=number(run.fact(*LAMBDA)))


def _kept(run: RunData, table: str, read: Callable[[Any], Kept | None]) -> list[Kept]:
    """What the tables of a name hold; what does not fit together is left out."""
    contents = [each.content for each in run.tables(table)]
    whole = [each for each in contents if not mapping(each).get("is_part")]
    found = (read(each) for each in whole or contents[-1:])
    return [each for each in found if each is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTraces:
    """Advantages that end with the next step, although the program sets a trace decay."""

    decay: float
    """As it is set."""
    r2: float
    """What advantages without a decay explain, and below those with it."""
    r2_set: float
    samples: int


def lost_traces(run: RunData) -> LostTraces | None:
    """Whether the update has a trace decay of 0, where the program names another one; None also
    where its rollouts cannot tell one from the other."""
    told = number(run.fact(*LAMBDA))
    decay = seen_setting(run, "gae_lambda") if told is None else told
    if decay is None or not LEAST_DISCOUNT <= decay <= 1.0:
        return None
    rollouts, gamma = rollouts_of(run), set_discount(run)
    free = replay(rollouts, gamma=gamma)
    bound = replay(rollouts, gamma=gamma, lam=decay)
    if free is None or bound is None or not free.checked or free.right.lam > 0.0:
        return None
    r2 = free.right.r2
    r2_set = 0.0 if bound.right.flipped else bound.right.r2
    clearly = r2 - r2_set >= GAP and 1.0 - r2_set >= TIMES * (1.0 - r2)
    if bound.wrong is not None or r2 < EXPLAINS or not clearly:
        return None
    return LostTraces(decay=decay, r2=r2, r2_set=r2_set, samples=free.samples)


def is_credited_alike(run: RunData) -> int | None:
    """How many samples were given the same, in updates where what was still to come differs; None
    where they were not."""
    pairs = rollouts_of(run)
    given = [float(x) for _, credit in pairs for x in credit.values]
    if len(given) < MIN_ALIKE or any(run.values is not None for run, _ in pairs):
        return None
    alike = np.ptp(given) <= 1e-4 * abs(float(np.mean(given)))
    return len(given) if alike and any(len(run.rewards) > 1 for run, _ in pairs) else None


def seen_setting(run: RunData, name: str) -> float | None:
    """What the program's own variables say (capture/seensettings.py)."""
    return number(mapping(run.table(SEEN)).get(name))


def set_discount(run: RunData) -> float | None:
    """The discount by the settings of the run, where it can be one."""
    gamma = number(run.fact(*GAMMA))
    return gamma if gamma is not None and LEAST_DISCOUNT <= gamma <= 1.0 else None


@once
def replayed_targets(run: RunData) -> ReplayedTargets | None:
    """The recipes of the targets of Q-learning; None where the run kept too little to tell."""
    return replay_targets(_kept(run, TARGET_BATCHES, _target_batch))


def _sound(read: Callable[[Any], Kept | None]) -> Callable[[Any], Kept | None]:
    """None where a table is not what it should be."""

    def read_or_none(content: Any) -> Kept | None:
        try:
            return read(content) if isinstance(content, Mapping) else None
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            return None

    return read_or_none


def _if_there(content: Any, name: str, dtype: type) -> Any:
    return None if content.get(name) is None else np.array(content[name], dtype)


@_sound
def _target_batch(content: Any) -> TargetBatch | None:
    batch = TargetBatch(
        targets=np.array(content["targets"], np.float64),
        rewards=np.array(content["rewards"], np.float64),
        ends=np.array(content["ends"], np.float64),
        target=tuple(np.array(each, np.float64) for each in content["target"]),
        online=tuple(np.array(each, np.float64) for each in content["online"]),
        critics=int(content["critics"]),
        has_target=bool(content["has_target"]),
        copies=int(content.get("copies", 0)),
        is_soft=bool(content.get("is_soft", False)),
        log_probs=tuple(_log_probs(each) for each in content.get("log_probs", ())),
        taken=_if_there(content, "taken", np.int64),
        next_taken=_if_there(content, "next_taken", np.int64),
        paid_before=_if_there(content, "paid_before", np.float64),
        paid_after=_if_there(content, "paid_after", np.float64),
    )
    return batch if _fits(batch) else None


def _log_probs(content: Any) -> LogProbs:
    slopes = tuple(np.array(each, np.float64) for each in content["slopes"])
    return LogProbs(normal=np.array(content["normal"], np.float64), slopes=slopes)


def _fits(batch: TargetBatch) -> bool:
    """Whether all has the same rows and every number is one."""
    logs = [x for each in batch.log_probs for x in (each.normal, *each.slopes)]
    choices = [x for x in (batch.taken, batch.next_taken) if x is not None]
    answers = (*batch.target, *batch.online)
    paid = [x for x in (batch.paid_before, batch.paid_after) if x is not None]
    arrays = [batch.targets, batch.rewards, batch.ends, *logs, *choices, *paid]
    flat = all(each.ndim == 1 for each in arrays) and batch.targets.size > 0
    rows = {len(each) for each in (*arrays, *answers) if each.ndim}
    widths = {each.shape[1:] for each in answers}
    numbers = all(bool(np.isfinite(each).all()) for each in (*arrays, *answers))
    return flat and len(rows) == 1 and len(widths) <= 1 and numbers


@once
def replayed_groups(run: RunData) -> ReplayedGroups | None:
    """The recipes of a group-relative run; None where it kept too little to tell."""
    return replay_groups(_kept(run, GROUPS, _batch))


def set_lengths(run: RunData) -> Lengths | None:
    """Whether each answer or each token is to weigh the same, by the settings of the run."""
    return LENGTHS.get(str(run.fact("loss_type", "loss_agg_mode")))


@_sound
def _batch(content: Any) -> GroupBatch | None:
    batch = GroupBatch(
        rewards={str(k): np.array(x, np.float64) for k, x in content["rewards"].items()},
        groups=np.array(content["groups"], np.int64),
        rows=np.array(content["rows"], np.int64),
        credit=np.array(content["credit"], np.float64),
        tokens=np.array(content["tokens"], np.float64),
        beyond=int(content["beyond"]),
        outside=int(content["outside"]),
    )
    arrays = (batch.groups, *batch.rewards.values())
    fits = len({each.shape for each in arrays}) == 1 and batch.groups.ndim == 1
    fits = fits and batch.rows.shape == batch.credit.shape == batch.tokens.shape
    if not fits or not batch.rewards or not batch.rows.size or batch.groups.min() < 0:
        return None
    inside = batch.rows.min() >= 0 and batch.rows.max() < len(batch.groups)
    return batch if inside and batch.groups.max() < len(batch.groups) else None


def rollouts_of(run: RunData) -> list[tuple[Rollout, Credit]]:
    """What the run kept; what does not fit together is left out."""
    return _kept(run, TABLE, _rollout)


def replayed_values(run: RunData) -> ReplayedRecipes | None:
    """What values are trained towards, where that is no return; None where it is, or nobody can
    tell."""
    if not run.tables(TABLE):
        return None
    return replay_values(_kept(run, TABLE, _with_targets), gamma=set_discount(run))


@_sound
def _with_targets(content: Any) -> tuple[Rollout, Credit] | None:
    known, targets = _rollout(content), content.get("targets")
    if known is None or not isinstance(targets, list) or len(targets) != len(known[1]):
        return None
    return known[0], replace(known[1], values=np.array(targets, np.float64))


@_sound
def _rollout(content: Any) -> tuple[Rollout, Credit] | None:
    rewards, ends, cuts = (np.array(content[x], np.float64) for x in ("rewards", "ends", "cuts"))
    values, following = (_if_there(content, x, np.float64) for x in ("values", "next_values"))
    credit = Credit(
        values=np.array(content["credit"], np.float64),
        **{name: np.array(content[name], np.int64) for name in ("rows", "calls", "places")},
    )
    arrays = (rewards, ends, cuts, values, following)
    shapes = {each.shape for each in arrays if each is not None}
    lengths = {len(each) for each in (credit.values, credit.rows, credit.calls, credit.places)}
    fits = len(shapes) == 1 and rewards.ndim == 2 and len(lengths) == 1 and len(credit) > 0
    if not fits or credit.rows.min() < 0 or credit.rows.max() >= rewards.size:
        return None
    rollout = Rollout(rewards=rewards, ends=ends, cuts=cuts, values=values, next_values=following)
    return rollout, credit
