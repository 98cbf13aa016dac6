"""Policy-gradient estimators: from rewards of n rollouts to the weight of each rollout's ∇log π.

Rewards [..., n] in, weights [..., n] out: the leading axes are instances, the last one is the
rollouts of one instance. The gradient estimate of an instance is Σ_i w_i ∇log π(rollout i), divided
by n where the estimator's `reduction` is "mean". R_(1) ≤ … ≤ R_(n) are the rewards in order and
C(a, b) is the binomial coefficient. All is computed in float64, detached from any graph, and given
back in the type of the rewards (float32 for half precision and for whole numbers).

Tied rollouts get the same weight to the last bit, in whatever order they stand. The one exception
is `leader_reward`, whose definition gives the bonus to the first of tied leaders.

`ESTIMATORS` is the registry, `find` looks into it, and `bias_sources` says what is biased about an
estimator as it is set.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradiometer.errors import UnknownName, UsageError, check_known

__all__ = [
    "ALIASES",
    "BASELINES",
    "ESTIMATORS",
    "Estimator",
    "bias_sources",
    "dr_grpo",
    "find",
    "grpo",
    "leader_reward",
    "max_at_k",
    "maxk",
    "pass_at_k",
    "pomo",
    "ppo",
    "reinforce",
    "rloo",
]

BASELINES = ("none", "sample_loo", "sample_loo_scaled", "subloo", "hybrid", "hybrid_source")
MIN_GAP = 0.01  # what min_gap=True stands for: the max@K study's share of the range
ZSCORE_EPSILON = 1e-8
GRPO_EPSILON = 1e-6

OWN_REWARD = (
    "the baseline contains the rollout's own reward: (n−1)/n of the gradient of the mean reward"
)
LEADER_BONUS = (
    "the leader's bonus pushes beyond the gradient of the mean reward, towards no stated objective"
)
STD_DIVISION = (
    "divides by the std of the instance's rewards: instances whose rewards vary little weigh more"
)
PPO_CLIP = (
    "the clip of the loss drops terms once the policy has left the one that sampled (none while the"
    " ratio is 1)"
)
ZSCORE = (
    "zscore: divides by the std of the instance's own weights, so instances are rescaled by chance"
    " and by spread"
)
MIN_GAP_FLOOR = (
    "min_gap: leading rollouts weigh at least a share of the range of rewards, whatever they add to"
    " max@K"
)
HYBRID = "hybrid: the (1−λ) part aims at the mean reward, not at max@K"
NORMALIZE = "normalize: divides by the std of the batch's own advantages"
STARTS_MEAN = (
    "multi-start: rollouts are not i.i.d., the objective is the mean over the forced starts"
)
STARTS_MAX = (
    "multi-start: rollouts are not i.i.d., the objective is the best of K different starts, not of"
    " K free rollouts"
)

Reduction = Literal["sum", "mean"]
Objective = Literal["max@K", "mean reward"]
F = TypeVar("F", bound=Callable[..., Tensor])


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """One line of the registry; from rewards [..., n] and options to weights [..., n]."""

    name: str
    function: Callable[..., Tensor]
    required: tuple[str, ...]
    """Options without a default."""
    options: Mapping[str, Any]
    """The other options, with their defaults."""
    reduction: Reduction
    """How the max@K study sums over rollouts. With "sum" the weights hold the 1/n."""
    objective: Objective
    """Whose gradient it estimates."""
    bias: tuple[str, ...]
    """What is biased about it under any options; `bias_sources` adds what the options bring."""

    def __call__(self, rewards: Tensor, **options: Any) -> Tensor:
        self.check_options(options)
        missing = [name for name in self.required if name not in options]
        if missing:
            raise UsageError(f"the estimator {self.name} needs {missing[0]}=: give it.")
        return self.function(rewards, **options)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises for an option that this estimator does not have."""
        known = (*self.required, *self.options)
        for option in options:
            if option not in known:
                hint = f"It takes {', '.join(known)}." if known else "It takes none."
                raise UnknownName(f"option of the estimator {self.name}", option, known, hint=hint)


ESTIMATORS: dict[str, Estimator] = {}
ALIASES = MappingProxyType(
    {
        "maxk_pomo": "maxk",
        "max@k": "maxk",
        "leader": "leader_reward",
        "pass@k": "pass_at_k",
        "dr.grpo": "dr_grpo",
    }
)


def find(name: str) -> Estimator:
    """The estimator of that name or alias; capitals do not matter, and hyphens are underscores."""
    plain = name.lower().replace("-", "_")
    plain = ALIASES.get(plain, plain)
    if plain not in ESTIMATORS:
        hint = f"The known ones are {', '.join(ESTIMATORS)}."
        raise UnknownName("estimator", name, [*ESTIMATORS, *ALIASES], hint=hint)
    return ESTIMATORS[plain]


def bias_sources(name: str, *, iid: bool = True, **options: Any) -> tuple[str, ...]:
    """What biases the estimator as set, for the gradient of its objective; nothing if unbiased.

    `iid=False` says that rollouts start at forced first actions (multi-start, POMO): independent,
    but not alike.
    """
    estimator = find(name)
    estimator.check_options(options)
    settings = {**estimator.options, **options}
    hybrid = settings.get("baseline") in ("hybrid", "hybrid_source") and settings["lam"] < 1
    stated = {
        HYBRID: hybrid,
        MIN_GAP_FLOOR: bool(settings.get("min_gap")),
        ZSCORE: bool(settings.get("zscore")),
        NORMALIZE: bool(settings.get("normalize")),
        STARTS_MAX if estimator.objective == "max@K" else STARTS_MEAN: not iid,
    }
    return estimator.bias + tuple(source for source, applies in stated.items() if applies)


def _registered(
    *, reduction: Reduction, objective: Objective, bias: tuple[str, ...] = ()
) -> Callable[[F], F]:
    def register(function: F) -> F:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        name = function.__name__
        options = {p.name: p.default for p in parameters if p.default is not p.empty}
        ESTIMATORS[name] = Estimator(
            name=name,
            function=function,
            required=tuple(p.name for p in parameters if p.default is p.empty),
            options=MappingProxyType(options),
            reduction=reduction,
            objective=objective,
            bias=bias,
        )
        return function

    return register


def max_at_k(rewards: Tensor, k: int) -> Tensor:
    """ρ(n, K) [...], the mean best reward over all subsets of K rollouts: unbiased for E max.

    ρ = Σ_j p_j R_(j),    p_j = C(j−1, K−1)/C(n, K): rank j is the best of a random subset
    """
    r = _rewards(rewards)
    p = _best_ranks(r, _size(k, r.shape[-1]))
    return _like((p * r.sort(-1).values).sum(-1), rewards)


@_registered(reduction="sum", objective="max@K")
def maxk(
    rewards: Tensor,
    k: int,
    *,
    baseline: str = "none",
    lam: float = 0.5,
    min_gap: bool | float = False,
    zscore: bool = False,
) -> Tensor:
    """The gradient of E[max of K rollouts]. S: subsets of K rollouts with i; ρ_−i: without i.

    none               s_i = C(n, K)⁻¹ Σ_S max_S R              Σ s_i = K ρ(n, K)
    sample_loo         s_i − ρ_−i(n−1, K)                       unbiased; baseline n/K too large
    sample_loo_scaled  s_i − (K/n) ρ_−i(n−1, K)
    subloo             C(n, K)⁻¹ Σ_S (max_S R − max_{S∖i} R)    ≥ 0, and 0 below rank K
    hybrid             λ subloo_i + (1−λ)(R_i − R̄)/n            λ = lam
    hybrid_source      the same without the 1/n, so that λ mixes O(K/n) with O(1)

    By the gaps g_m = R_(m) − R_(m−1) of ordered rewards, with p_j of `max_at_k` and d_i = Σ_{m≤i}
    p_(m−1) g_m at rank i:

    s_i = (K/n) ρ + d_i − d̄,    ρ_−i(n−1, K) = n/(n−K) (ρ − s_i),    subloo_i = Σ_{m≤i} p_m g_m

    so s_i − (K/n) ρ_−i = n/(n−K) (d_i − d̄): what is shift-invariant is made of gaps alone, and a
    tie is a gap of 0. `min_gap`, a share of the range (True: 0.01), floors subloo_i at min_gap ·
    (R_(n) − R_(1)) · p_j, where j is the rank of i, for tied rollouts the highest of theirs.
    `zscore` gives (w − w̄)/(std + 1e-8) per instance. Both bias.
    """
    r = _rewards(rewards)
    n, k = r.shape[-1], _size(k, r.shape[-1])
    floor = _check_maxk(n, k, baseline, lam, min_gap, zscore)
    ordered, order = r.sort(-1)
    p, gaps = _best_ranks(r, k), ordered.diff(dim=-1)
    if baseline in ("none", "sample_loo"):
        rho = (p * ordered).sum(-1, keepdim=True)
        s = k / n * rho + _centred(_running(p[:-1] * gaps))
        w = s if baseline == "none" else s - n / (n - k) * (rho - s)
    elif baseline == "sample_loo_scaled":
        w = n / (n - k) * _centred(_running(p[:-1] * gaps))
    else:
        w = _running(p[1:] * gaps)
        if floor:
            range_ = ordered[..., -1:] - ordered[..., :1]
            w = torch.maximum(w, floor * range_ * _tied_high(p, ordered))
        if baseline != "subloo":
            w = lam * w + (1 - lam) * _centred(ordered) / (n if baseline == "hybrid" else 1)
    if zscore:
        w = _centred(w) / (_std(w) + ZSCORE_EPSILON)
    return _like(torch.empty_like(w).scatter_(-1, order, w), rewards)


@_registered(reduction="sum", objective="max@K")
def pass_at_k(rewards: Tensor, k: int) -> Tensor:
    """The gradient of pass@k, for rewards 0 and 1, of which c are 1: `maxk` without a baseline.

    w_i = k/n if right,    (k/n) ρ(n−1, c, k−1) if wrong,    ρ(n, c, k) = 1 − C(n−c, k)/C(n, k)
    """
    r = _rewards(rewards)
    n, k = r.shape[-1], _size(k, r.shape[-1])
    other = (r != 0) & (r != 1)
    if other.any():
        place, value = _first(other, r)
        raise UsageError(
            f"pass@k takes rewards of 0 and 1, found {value:g} at {place}: use maxk, or round them."
        )
    wrong = n - r.sum(-1, keepdim=True)
    others_fail = _subset_shares(n - 1, k - 1, r)[(wrong - 1).clamp(min=0).long()]
    return _like(k / n * torch.where(r == 1, 1.0, 1 - others_fail), rewards)


@_registered(reduction="mean", objective="mean reward", bias=(OWN_REWARD,))
def pomo(rewards: Tensor) -> Tensor:
    """R_i − R̄: the baseline is the mean of the instance's rollouts (Kwon et al. 2020)."""
    return _like(_centred(_rewards(rewards, "pomo")), rewards)


@_registered(reduction="mean", objective="mean reward", bias=(OWN_REWARD, LEADER_BONUS))
def leader_reward(rewards: Tensor, *, alpha: float = 1.0) -> Tensor:
    """R_i − R̄ + α 1{i is the leader}(R_max − R̄); the leader is the first of the best rollouts.

    Of tied leaders one gets the bonus, so Σ w_i = α (R_max − R̄) with ties as without.
    Reference: Wang et al. (2024), Leader Reward for POMO-Based Neural Combinatorial Optimization.
    """
    r = _rewards(rewards, "leader_reward")
    a, leader = _centred(r), r.argmax(-1, keepdim=True)
    return _like(a.scatter_add(-1, leader, alpha * a.gather(-1, leader)), rewards)


@_registered(reduction="mean", objective="mean reward")
def rloo(rewards: Tensor) -> Tensor:
    """R_i − mean of the others' rewards = n/(n−1) (R_i − R̄). Reference: Kool et al. (2019)."""
    r = _rewards(rewards, "rloo")
    n = r.shape[-1]
    return _like(n / (n - 1) * _centred(r), rewards)


@_registered(reduction="mean", objective="mean reward", bias=(OWN_REWARD, STD_DIVISION))
def grpo(rewards: Tensor) -> Tensor:
    """(R_i − R̄)/(std + 1e-6), std² = Σ (R_i − R̄)²/(n−1) (Shao et al. 2024, DeepSeekMath)."""
    r = _rewards(rewards, "grpo")
    return _like(_centred(r) / (_std(r) + GRPO_EPSILON), rewards)


@_registered(reduction="mean", objective="mean reward", bias=(OWN_REWARD,))
def dr_grpo(rewards: Tensor) -> Tensor:
    """R_i − R̄: GRPO without the division by std, which is `pomo` (Liu et al. 2025)."""
    return _like(_centred(_rewards(rewards, "dr_grpo")), rewards)


@_registered(reduction="mean", objective="mean reward")
def reinforce(rewards: Tensor, baseline: float | Tensor = 0.0) -> Tensor:
    """R_i − b, b a number, [..., 1] or [..., n]; unbiased if b was fixed before the rollouts."""
    return _like(_advantages(rewards, baseline), rewards)


@_registered(reduction="mean", objective="mean reward", bias=(PPO_CLIP,))
def ppo(rewards: Tensor, *, baseline: float | Tensor = 0.0, normalize: bool = False) -> Tensor:
    """R_i − V, the advantage that `losses.policy_loss` clips; V is given as to `reinforce`.

    At the policy that sampled, the ratio is 1, nothing is clipped, and ∇ of the surrogate is A ∇log
    π. `normalize` gives (A − Ā)/(std + 1e-8) over all instances and rollouts given, so the weights
    then depend on how a batch was cut.
    """
    a = _advantages(rewards, baseline)
    if normalize:
        flat = a.flatten()
        _at_least_two(flat, "ppo with normalize=True")
        a = (_centred(flat) / (_std(flat) + ZSCORE_EPSILON)).view_as(a)
    return _like(a, rewards)


def _advantages(rewards: Tensor, baseline: float | Tensor) -> Tensor:
    r = _rewards(rewards)
    b = torch.as_tensor(baseline, dtype=torch.float64, device=r.device).detach()
    if not b.isfinite().all():
        raise UsageError("the baseline is not finite: check what it was averaged from.")
    axes = zip(b.shape[::-1], r.shape[::-1], strict=False)
    if b.ndim > r.ndim or any(own not in (1, size) for own, size in axes):
        raise UsageError(
            f"a baseline is a number, [..., 1] or like the rewards {list(r.shape)}, found"
            f" {list(b.shape)}."
        )
    return r - b


def _subset_shares(n: int, k: int, like: Tensor) -> Tensor:
    """C(j, k)/C(n, k) for j = 0..n, from above by (j−k)/j: tiny ones underflow, none overflows."""
    j = torch.arange(n, 0, -1, dtype=torch.float64, device=like.device)
    return pad(((j - k).clamp(min=0) / j).cumprod(0), (1, 0), value=1.0).flip(0)


def _best_ranks(like: Tensor, k: int) -> Tensor:
    """p_j = C(j−1, K−1)/C(n, K) = (K/n) C(j−1, K−1)/C(n−1, K−1) for j = 1..n."""
    n = like.shape[-1]
    return k / n * _subset_shares(n - 1, k - 1, like)


def _running(steps: Tensor) -> Tensor:
    """Σ_{m≤i} of steps at ranks 2..n, [..., n−1] to [..., n]: 0 at the lowest rank."""
    return pad(steps.cumsum(-1), (1, 0))


def _tied_high(p: Tensor, ordered: Tensor) -> Tensor:
    """p at the highest rank that has the same reward, [..., n]."""
    return p[torch.searchsorted(ordered, ordered, right=True) - 1]


def _centred(x: Tensor) -> Tensor:
    """x − x̄ over the last axis; by way of the first value, so that equal values give exactly 0."""
    shifted = x - x[..., :1]
    return shifted - shifted.mean(-1, keepdim=True)


def _std(x: Tensor) -> Tensor:
    """The unbiased standard deviation over the last axis, [..., 1]; exactly 0 for equal values."""
    return (_centred(x).square().sum(-1, keepdim=True) / (x.shape[-1] - 1)).sqrt()


def _like(x: Tensor, rewards: Tensor) -> Tensor:
    return x if rewards.dtype == torch.float64 else x.float()


def _rewards(rewards: Tensor, needs_two: str = "") -> Tensor:
    """The rewards in float64, [..., n], n ≥ 1, all finite; `needs_two` names who needs n ≥ 2."""
    if rewards.ndim == 0 or rewards.shape[-1] == 0:
        raise UsageError(
            "rewards are [..., n] with at least one rollout, found the shape"
            f" {list(rewards.shape)}."
        )
    r = rewards.detach().double()
    bad = ~r.isfinite()
    if bad.any():
        place, value = _first(bad, r)
        raise UsageError(
            f"the reward of {place} is {value}, and rewards must be finite: leave that instance"
            " out."
        )
    if needs_two:
        _at_least_two(r, needs_two)
    return r


def _first(mask: Tensor, r: Tensor) -> tuple[str, float]:
    """Where the mask is first set, in words, and the value there."""
    *instance, rollout = mask.nonzero()[0].tolist()
    where = f"instance {', '.join(map(str, instance))}, " if instance else ""
    return f"{where}rollout {rollout}", r[(*instance, rollout)].item()


def _at_least_two(x: Tensor, who: str) -> None:
    if x.shape[-1] < 2:
        raise UsageError(
            f"{who} compares rollouts and needs at least 2, found 1: sample more, or use reinforce."
        )


def _size(k: int, n: int) -> int:
    try:
        size = operator.index(k)
    except TypeError:
        raise UsageError(f"K is a whole number of rollouts, found {k!r}.") from None
    if not 1 <= size <= n:
        raise UsageError(f"K must be between 1 and the number of rollouts, {n}, found {size}.")
    return size


def _check_maxk(
    n: int, k: int, baseline: str, lam: float, min_gap: bool | float, zscore: bool
) -> float:
    """Raises where an option has no meaning; gives the floor as a share of the range, 0 if none."""
    check_known("baseline of max@K", baseline, BASELINES)
    if baseline.startswith("sample_loo") and n <= k:
        raise UsageError(
            f"the baseline {baseline} leaves one rollout out and needs n > K, found n={n} and"
            f" K={k}."
        )
    with_gaps = baseline in ("subloo", "hybrid", "hybrid_source")
    if with_gaps and k < 2:
        raise UsageError(
            f"the baseline {baseline} takes the best of the K−1 others and needs K ≥ 2, found"
            f" K={k}."
        )
    floor = MIN_GAP if min_gap is True else float(min_gap)
    if not 0 <= floor < math.inf:
        raise UsageError(
            f"min_gap is a share of the range of rewards, at least 0, found {min_gap}."
        )
    if floor and not with_gaps:
        raise UsageError(
            f"min_gap floors the gaps of subloo and hybrid, found the baseline {baseline}: leave it"
            " off."
        )
    if not 0 <= lam <= 1:
        raise UsageError(
            f"lam mixes subloo with the mean reward and must be in [0, 1], found {lam}."
        )
    if zscore and n < 2:
        raise UsageError(
            "zscore divides by a standard deviation and needs at least 2 rollouts, found 1."
        )
    return floor
