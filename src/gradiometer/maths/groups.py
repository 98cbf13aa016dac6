"""Groups of rollouts: how much rewards vary, which groups a filter keeps, and buckets of them.

A group is what shares a start: the rollouts of one prompt, one level, one instance. Its score is
the standard deviation of its rewards. Where all rewards are equal a group-relative advantage is
zero, so the score says how much a group can teach. Indices are positions in the scores that were
given, [G]; ties keep the order of the groups.

Reference: RAGEN's rollout filter and gradient analysis (its guide_gradient_analysis), whose names
these are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradiometer.errors import UsageError, check_known

__all__ = [
    "BUCKET_MODES",
    "METRICS",
    "PROB_MODES",
    "STRATEGIES",
    "TYPES",
    "Bucket",
    "GroupScores",
    "RolloutFilter",
    "reward_std",
    "split",
]

STRATEGIES = ("top_p", "top_k", "top_k_abs", "min_p")
TYPES = ("largest", "smallest")
PROB_MODES = ("linear", "softmax")
METRICS = ("reward_variance", "reward", "reward_sum")
BUCKET_MODES = ("quantile", "quantile_source", "fixed_rv", "pass_rate")

ZERO = 1e-10  # a score this small is no variance; also the slack of min_p
LINEAR_SLACK = 0.01  # how far below its share linear top_p may stop
FIXED_EDGES = (1.0, 2.0, 3.0, 4.0, 5.0)
PASS_EDGES = (0.25, 0.5, 0.75)

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupScores:
    """The groups of a batch in order of first appearance; `index` [N]: the group of each sample."""

    ids: tuple[Hashable, ...]
    scores: Floats
    means: Floats
    sizes: Indices
    index: Indices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucket:
    """Groups of similar score: their indices, ascending by score."""

    name: str
    groups: Indices


def reward_std(rewards: ArrayLike, groups: Sequence[Hashable] | ArrayLike) -> GroupScores:
    """The unbiased standard deviation of the rewards [N] of each group; `groups` [N] are their ids.

    s_g = sqrt(Σ (R_i − R̄_g)²/(n_g − 1)). Named reward_variance by RAGEN; equal rewards give
    exactly 0.
    """
    values, labels = _vector(rewards, "reward", "sample"), _labels(groups)
    if len(values) != len(labels):
        raise UsageError(
            f"every sample needs a reward and a group, found {len(values)} rewards, {len(labels)}"
            " groups."
        )
    if not labels:
        raise UsageError("there are no samples to group: the batch is empty.")
    numbers: dict[Hashable, int] = {}
    index = np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.intp)
    ids, sizes = tuple(numbers), np.bincount(index)
    alone = [label for label, size in zip(ids, sizes, strict=True) if size == 1]
    if alone:
        raise UsageError(
            f"group {alone[0]!r} has one sample ({len(alone)} of {len(ids)} groups have), and one"
            " reward has no standard deviation: sample at least 2 rollouts a group, or leave such"
            " groups out."
        )
    # Taken from the group's first reward, so that equal rewards have deviations of exactly 0.
    first = values[np.unique(index, return_index=True)[1]]
    shifted = values - first[index]
    shifts = np.bincount(index, shifted) / sizes
    squares = np.bincount(index, np.square(shifted - shifts[index]))
    return GroupScores(
        ids=ids,
        scores=np.sqrt(squares / (sizes - 1)),
        means=first + shifts,
        sizes=sizes.astype(np.intp),
        index=index,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """Which groups are kept; as it stands, all of them. `value` means, by `strategy`:

    top_p      the share of the whole that the best groups must reach; 1 or more keeps all
               softmax: the shortest prefix, best first, whose Σ softmax(±s) ≥ value
               linear: the shortest prefix with Σ s ≥ value · Σ s − 0.01, but nothing if a score
               ≤ 0 comes before that
    top_k      a share of the groups, in (0, 1], rounded down, at least one
    top_k_abs  a number of groups
    min_p      largest: s ≥ value · max s − 1e-10;    smallest: s ≤ min s/(value + 1e-10) + 1e-10

    `type` "smallest" turns the order round. Linear top_p then still sums the scores themselves,
    smallest first: value 0.9 keeps nearly all groups, and one group of score 0, which comes first,
    ends the walk and keeps none; that is RAGEN's definition, and include_zero=False is what
    one wants with it. Linear keeps none either where value · Σ s ≤ 0.01, as when all scores are 0.
    Of signed scores (a mean reward) neither a share nor a multiple means anything, so linear top_p
    and min_p refuse them.
    """

    strategy: str = "top_p"
    value: float = 1.0
    type: str = "largest"
    top_p_prob_mode: str = "linear"
    metric: str = "reward_variance"
    include_zero: bool = True

    def __post_init__(self) -> None:
        check_known("rollout filter strategy", self.strategy, STRATEGIES)
        check_known("rollout filter type", self.type, TYPES)
        check_known("top_p probability mode", self.top_p_prob_mode, PROB_MODES)
        check_known("rollout filter metric", self.metric, METRICS)
        value = self.value
        allowed, rule = {
            "top_p": (0 < value < math.inf, "above 0; 1 or more keeps all groups"),
            "top_k": (0 < value <= 1, "a share in (0, 1]; for a number of groups use top_k_abs"),
            "top_k_abs": (value >= 1 and value % 1 == 0, "a whole number of groups, at least 1"),
            "min_p": (0 <= value <= 1, "in [0, 1], a part of the best score"),
        }[self.strategy]
        if not allowed:
            raise UsageError(
                f"the value of a {self.strategy} filter must be {rule}, found {value}."
            )

    def scores_of(self, groups: GroupScores) -> Floats:
        """What `metric` ranks groups by [G]: std, mean (reward) or sum (reward_sum) of rewards."""
        if self.metric == "reward_variance":
            return groups.scores
        return groups.means if self.metric == "reward" else groups.means * groups.sizes

    def select(self, scores: ArrayLike) -> Indices:
        """The groups that are kept, best first; none is a possible answer."""
        s = _vector(scores, "score", "group")
        order = np.argsort(-s if self.type == "largest" else s, kind="stable")
        if not self.include_zero:
            order = order[np.abs(s[order]) > ZERO]
        keep_all = self.strategy == "top_p" and self.value >= 1
        if keep_all or len(order) == 0:
            return order
        ranked = s[order]
        if self.strategy == "top_k":
            return order[: max(int(self.value * len(s)), 1)]
        if self.strategy == "top_k_abs":
            return order[: int(self.value)]
        if self.strategy == "top_p" and self.top_p_prob_mode == "softmax":
            return order[: self._softmax_prefix(ranked)]
        if ranked.min() < 0:
            raise UsageError(
                f"{self.strategy} compares scores by their ratio, and a score is negative"
                f" ({ranked.min():g}): use top_k, top_k_abs or top_p with top_p_prob_mode=softmax,"
                " or the metric reward_variance."
            )
        linear = self.strategy == "top_p"
        return order[: self._linear_prefix(ranked) if linear else self._min_p_prefix(ranked)]

    def _softmax_prefix(self, ranked: Floats) -> int:
        """The length of the shortest prefix with Σ p ≥ value, p = softmax(±s)."""
        weights = np.exp(-np.abs(ranked - ranked[0]))  # exp(±s − max): the first is the best
        return int(np.searchsorted(np.cumsum(weights / weights.sum()), self.value)) + 1

    def _linear_prefix(self, ranked: Floats) -> int:
        """Length of the shortest prefix of positive scores with Σ s ≥ value · Σ s − 0.01, or 0."""
        positive = int(np.argmin(np.append(ranked, 0.0) > 0))
        sums = np.cumsum(np.append(0.0, ranked[:positive]))
        reached = np.flatnonzero(sums >= self.value * ranked.sum() - LINEAR_SLACK)
        return int(reached[0]) if len(reached) else 0

    def _min_p_prefix(self, ranked: Floats) -> int:
        """How many scores are within a factor of the best."""
        if self.type == "largest":
            return int(np.sum(ranked >= self.value * ranked[0] - ZERO))
        return int(np.sum(ranked <= ranked[0] / (self.value + ZERO) + ZERO))


def split(
    scores: ArrayLike,
    *,
    mode: str = "quantile",
    num_buckets: int = 6,
    means: ArrayLike | None = None,
) -> tuple[Bucket, ...]:
    """Every group in one bucket, bucket_1 with the lowest reward std; `all` is the caller's.

    quantile         B = min(num_buckets, G) of ⌊G/B⌋ groups, one more in the last G mod B
    quantile_source  the same, but the last bucket takes the whole remainder
    fixed_rv         [0,1), [1,2), [2,3), [3,4), [4,5), [5,∞)
    pass_rate        for rewards 0 and 1, by `means` [G]: 0, (0,¼], (¼,½], (½,¾], (¾,1), 1

    Quantiles cut through ties. The last two have fixed names and leave out empty buckets: bucket_3
    of fixed_rv is always [2,3). They do not use `num_buckets`. With rewards 0 and 1 the std is at
    most 0.71 and the same for a rate and its complement; pass_rate tells groups that are too hard
    from groups that are too easy.
    """
    check_known("bucket mode", mode, BUCKET_MODES)
    s = _vector(scores, "score", "group")
    if num_buckets < 1:
        raise UsageError(f"there must be at least 1 bucket, found num_buckets={num_buckets}.")
    if len(s) == 0:
        raise UsageError(
            "there are no groups to split: the batch is empty or its filter kept none."
        )
    order = np.argsort(s, kind="stable")
    if mode in ("quantile", "quantile_source"):
        stops = np.cumsum(_sizes(len(s), min(num_buckets, len(s)), spread=mode == "quantile"))
        parts = np.split(order, stops[:-1])
    else:
        numbers = (_fixed_intervals(s) if mode == "fixed_rv" else _pass_intervals(s, means))[order]
        parts = [order[numbers == number] for number in range(6)]
    return tuple(
        Bucket(name=f"bucket_{i}", groups=part) for i, part in enumerate(parts, 1) if len(part)
    )


def _sizes(num_groups: int, num_buckets: int, *, spread: bool) -> list[int]:
    size, rest = divmod(num_groups, num_buckets)
    if spread:
        return [size] * (num_buckets - rest) + [size + 1] * rest
    return [size] * (num_buckets - 1) + [size + rest]


def _fixed_intervals(s: Floats) -> Indices:
    if s.min() < 0:
        raise UsageError(
            f"fixed_rv buckets take standard deviations, and group {int(s.argmin())} has"
            f" {s.min():g}."
        )
    return np.searchsorted(FIXED_EDGES, s, side="right")


def _pass_intervals(s: Floats, means: ArrayLike | None) -> Indices:
    if means is None:
        raise UsageError("pass_rate buckets need the mean reward of each group: give means=.")
    rates = _vector(means, "mean reward", "group")
    if len(rates) != len(s):
        raise UsageError(
            f"every group needs a score and a mean reward, found {len(s)} scores, {len(rates)}"
            " means."
        )
    other = np.flatnonzero(~_binary(s, rates))
    if len(other):
        g = int(other[0])
        raise UsageError(
            f"pass_rate buckets need rewards of 0 and 1, and those of group {g} (mean {rates[g]:g},"
            f" std {s[g]:g}) cannot be: use the mode quantile or fixed_rv, or give rewards of 0"
            " and 1."
        )
    inner = 1 + np.searchsorted(PASS_EDGES, rates, side="left")
    return np.select([rates == 0, rates == 1], [0, 5], inner).astype(np.intp)


def _binary(s: Floats, rates: Floats) -> NDArray[np.bool_]:
    """Whether n rewards of 0 and 1 can have these moments: s² = p(1−p)·n/(n−1), p·n whole."""
    squares, variance = np.square(s), rates * (1 - rates)
    mixed = (variance > 0) & (squares > variance)
    sizes = np.divide(squares, squares - variance, out=np.ones_like(s), where=mixed)
    n = np.maximum(np.rint(sizes), 2)
    whole = np.abs(rates * n - np.rint(rates * n)) < 1e-3
    # Loose enough for moments from float32.
    exact = np.abs(squares - variance * n / (n - 1)) <= 1e-5 * squares
    constant = ((rates == 0) | (rates == 1)) & (s <= ZERO)
    binary: NDArray[np.bool_] = constant | (mixed & whole & exact)
    return binary


def _labels(groups: Any) -> list[Hashable]:
    labels = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    if not isinstance(labels, list) or any(isinstance(label, list) for label in labels):
        raise UsageError("the groups must be a flat sequence of ids, one for each sample.")
    return labels


def _vector(numbers: ArrayLike, what: str, of: str) -> Floats:
    """A float64 vector of finite numbers, or an error that names the first that is not."""
    vector = np.asarray(numbers, np.float64)
    if vector.ndim != 1:
        raise UsageError(
            f"there must be one {what} for each {of}, found an array of shape {vector.shape}."
        )
    bad = np.flatnonzero(~np.isfinite(vector))
    if len(bad):
        raise UsageError(
            f"the {what} of {of} {int(bad[0])} is {vector[bad[0]]} ({len(bad)} of {len(vector)} are"
            f" not finite): mend it where it is made, or leave the {of} out."
        )
    return vector
