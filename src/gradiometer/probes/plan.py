"""Which rows of a batch belong to which group, and which group to which bucket: decided before the first forward."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.errors import UsageError
from gradiometer.maths import groups as grouping
from gradiometer.maths import losses
from gradiometer.maths.groups import RolloutFilter

__all__ = ["ALL", "Part", "Plan", "Weights", "check_batch", "make_plan", "permuted_inside", "weights_of", "whole"]

ALL = "all"
ALIKE = 0.8  # of the longest row's width: below, padding costs more than another forward
WORTHWHILE = 256  # tokens of a forward
MIN_CROSS_FIT = 4  # rollouts of a group: two for its reward std, two for its gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An independent unit: one group, with the rows whose gradient is taken."""

    id: Hashable
    reward_std: float
    rows: NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts, and the buckets as positions among them; `all` is every part and comes first."""

    parts: tuple[Part, ...]
    buckets: Mapping[str, tuple[int, ...]]
    num_groups: int
    """Before the filter."""

    def rows(self, bucket: str) -> NDArray[np.intp]:
        """The rows of the batch in that bucket."""
        return np.concatenate([self.parts[i].rows for i in self.buckets[bucket]])

    def micro_batches(
        self, size: int | None, widths: NDArray[np.intp] | None = None
    ) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Rows that go through the model together, each time of one part; of similar width, where widths are known."""
        for number, part in enumerate(self.parts):
            limit = len(part.rows) if size is None else size
            if widths is None:
                for start in range(0, len(part.rows), limit):
                    yield number, part.rows[start : start + limit]
            else:
                for rows in _alike(part.rows, widths[part.rows], limit):
                    yield number, rows


def _alike(rows: NDArray[np.intp], widths: NDArray[np.intp], limit: int) -> Iterator[NDArray[np.intp]]:
    """Longest first, cut where a row is much shorter than the first, if what is there is worth a forward."""
    order = np.argsort(-widths, kind="stable")
    start = 0
    for place in range(1, len(order) + 1):
        longest = widths[order[start]]
        full = place - start >= limit
        ends = place == len(order)
        shorter = not ends and widths[order[place]] < ALIKE * longest and (place - start) * longest >= WORTHWHILE
        if full or ends or shorter:
            yield rows[order[start:place]]
            start = place


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Σ token · loss / Σ row is the aggregated loss of any set of rows."""

    token: Tensor
    """[N, T], or [N] for losses per sample."""
    row: NDArray[np.float64]
    """[N]"""
    tokens: NDArray[np.float64] | None
    """[N]: how many tokens count at all; None where losses are per sample."""


def make_plan(
    rewards: Any,
    groups: Any,
    *,
    rollout_filter: RolloutFilter | None,
    bucket_mode: str,
    num_buckets: int,
    cross_fit: bool,
) -> Plan:
    """Score the groups, filter them, sort them into buckets."""
    reward, ids = _array(rewards), _labels(groups)
    if len(reward) != len(ids):
        raise UsageError(f"there are {len(reward)} rewards and {len(ids)} group ids: give one of each for every row")
    scored, probed = _halves(ids) if cross_fit else (np.arange(len(ids)), np.arange(len(ids)))
    scores = grouping.reward_std(reward[scored], [ids[i] for i in scored])
    chosen = rollout_filter or RolloutFilter()
    kept = np.sort(chosen.select(chosen.scores_of(scores)))
    if len(kept) == 0:
        raise UsageError(_nothing_kept(chosen, scores.scores))
    split = grouping.split(scores.scores[kept], mode=bucket_mode, num_buckets=num_buckets, means=scores.means[kept])
    rows_of: dict[Hashable, list[int]] = {}
    for row in probed:
        rows_of.setdefault(ids[row], []).append(int(row))
    order = [int(i) for bucket in split for i in kept[bucket.groups]]
    parts = tuple(
        Part(id=scores.ids[i], reward_std=float(scores.scores[i]), rows=np.array(rows_of[scores.ids[i]])) for i in order
    )
    buckets: dict[str, tuple[int, ...]] = {ALL: tuple(range(len(parts)))}
    first = 0
    for bucket in split:
        buckets[bucket.name] = tuple(range(first, first + len(bucket.groups)))
        first += len(bucket.groups)
    return Plan(parts=parts, buckets=buckets, num_groups=len(scores.ids))


def weights_of(mask: Tensor | None, num_rows: int, aggregation: str, horizon: float | None = None) -> Weights:
    """Weights of tokens and rows; a mask with nothing in it is an error, for a mean over nothing is no number."""
    if mask is None:
        if aggregation not in losses.AGGREGATIONS:
            losses.aggregate(torch.zeros(1, 1), torch.ones(1, 1), aggregation)  # says which there are
        return Weights(token=torch.ones(num_rows), row=np.ones(num_rows), tokens=None)
    if len(mask) != num_rows:
        raise UsageError(f"the mask has {len(mask)} rows and the batch {num_rows}: give one row for each sample")
    if not bool((torch.isfinite(mask) & (mask >= 0)).all()):
        raise UsageError("the mask holds a negative number or a NaN: it says how much each token counts, from 0 up")
    token = losses.token_weights(mask, aggregation, horizon=horizon)
    row = losses.sequence_weights(mask, aggregation).double().cpu().numpy()
    if not row.any():
        raise UsageError(f"the mask {list(mask.shape)} is zero everywhere: check which tokens it marks as trained")
    return Weights(token=token, row=row, tokens=(mask != 0).sum(-1).double().cpu().numpy())


def check_batch(batch: Mapping[str, Tensor], num_rows: int) -> None:
    """Every entry is a tensor with one row for each sample."""
    if not batch:
        raise UsageError("the batch is empty: give a mapping from names to tensors with one row for each sample")
    for name, entry in batch.items():
        if not isinstance(entry, Tensor):
            raise UsageError(f"batch[{name!r}] is a {type(entry).__name__}: give tensors, one row for each sample")
        if entry.ndim == 0 or len(entry) != num_rows:
            raise UsageError(f"batch[{name!r}] has shape {list(entry.shape)}, but there are {num_rows} rewards")


def permuted_inside(groups: Any, seed: int) -> Tensor:
    """A permutation that moves rows inside their group only, [N]: row i gets the reward of row order[i]."""
    ids, rng = _labels(groups), np.random.default_rng(seed)
    order, members = np.arange(len(ids)), dict[Hashable, list[int]]()
    for row, name in enumerate(ids):
        members.setdefault(name, []).append(row)
    for rows in members.values():
        order[rows] = rng.permutation(rows)
    return torch.from_numpy(order)


def _halves(ids: Sequence[Hashable]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Every other rollout of each group: one half scores the group, the other gives its gradient."""
    seen: dict[Hashable, int] = {}
    first: list[bool] = []
    for name in ids:
        seen[name] = seen.get(name, 0) + 1
        first.append(seen[name] % 2 == 1)
    small = [name for name, count in seen.items() if count < MIN_CROSS_FIT]
    if small:
        raise UsageError(
            f"cross_fit=True halves each group, and group {small[0]!r} has {seen[small[0]]} rollouts: "
            f"use groups of {MIN_CROSS_FIT} or more, or cross_fit=False"
        )
    mask = np.array(first)
    return np.flatnonzero(mask), np.flatnonzero(~mask)


def whole(name: str, number: Any, least: int) -> None:
    """One error for what should be a count."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise UsageError(f"{name} is a whole number of {least} or more; found {number!r}")


def _nothing_kept(chosen: RolloutFilter, scores: NDArray[np.float64]) -> str:
    what = f"{chosen.strategy} {chosen.value:g}"
    if not (scores > grouping.ZERO).any():
        return (
            f"the rollout filter ({what}) keeps none of {len(scores)} groups: inside each, all rewards are equal. No "
            "group-relative gradient can come of this batch; change the task's difficulty or sample more rollouts"
        )
    return (
        f"the rollout filter ({what}) keeps none of {len(scores)} groups, whose reward std is at most {scores.max():.3g}: "
        f"linear top_p stops {grouping.LINEAR_SLACK} below its share, which is more than these scores; scale the rewards, or "
        "use top_p_prob_mode=softmax or another strategy"
    )


def _array(numbers: Any) -> NDArray[np.float64]:
    if isinstance(numbers, Tensor):
        numbers = numbers.detach().double().cpu().numpy()
    array = np.asarray(numbers, dtype=np.float64)
    if array.ndim != 1:
        raise UsageError(f"rewards are one number for each sample, [N]; found the shape {list(array.shape)}")
    return array


def _labels(groups: Any) -> list[Hashable]:
    if isinstance(groups, Tensor | np.ndarray):
        return list(groups.tolist())
    try:
        ids = [each.item() if isinstance(each, Tensor) and each.ndim == 0 else each for each in groups]
        hash(tuple(ids))
    except TypeError as problem:
        raise UsageError(f"groups are ids, one for each row: numbers or strings; found {groups!r:.80}") from problem
    return ids
