"""Is this a policy gradient at all? The sampler, its log-prob, its entropy, and the baseline.

`policy` is any object; each check uses what it has:

    sample() -> (actions, log_prob)   log_prob of exactly these actions, with a gradient, any shape
    logits() -> [..., A]              what actions are chosen from, -inf where masked
    select(logits) -> actions         how they are chosen: [...], or [..., k], or a mask [..., A]
    entropy() -> float                the entropy that the loss uses
    num_actions, picks                |A| and k, where there are no logits

The baseline is fed rewards without any pattern. No baseline that has not seen a reward can explain
it: an explained variance above zero is a leak. An average with momentum β that already holds the
current reward shows 1 − β²(1 + (1−β)/(1+β)), 0.0744 at β = 0.95, and −0.026 where it does not.
"""

from __future__ import annotations

import copy
import math
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradiometer.errors import UsageError
from gradiometer.maths import gram
from gradiometer.maths.vectors import vectors_for
from gradiometer.probes.auditcheck import About, Check, failed, num_arguments, passed, skipped
from gradiometer.probes.stillness import seed_everything

__all__ = [
    "actions_follow",
    "baseline_leak",
    "entropy_fits",
    "policy_checks",
    "score_is_zero_mean",
]

SCORE: About = ("score-not-zero-mean", "E[∇log π] = 0")
ACTIONS: About = ("actions-ignore-policy", "actions follow the policy")
ENTROPY: About = ("entropy-of-wrong-distribution", "entropy of what is sampled")
BASELINE: About = ("baseline-leak", "baseline before its reward")

LEVEL = 0.01  # of each of two independent tests, both of which must fail: one false alarm in 10,000
SURPRISE = 20.0
"""Nats in all samples together. A policy that is nearly certain never draws its rare actions: the
scores of the common ones are then all alike, and look like a bias. Below e^-20 that is no longer
chance."""
POWER_Z = 1.645  # the normal quantile of 0.95
SHARP = 30.0  # a logit that no temperature makes doubtful
DRAWS = 400
ROUNDING = 1e-3
DIFFERENT = 0.01  # of an entropy: more than rounding in half precision

LENGTH, WARM_UP = 4000, 200  # rewards that a baseline is fed
LEAST = 500  # after the warm-up; below, an explained variance says nothing
PATIENCE = 1.0  # seconds: a network for a baseline is fed as much as fits
LEAK = 1e-6  # of a change in the reward that shows in its own baseline: more than float32 rounding
HOW = (
    "pass baseline=, an object with value() and update(reward), one that is called with a reward"
    " and gives what is subtracted from it, or a function without arguments that makes such an"
    " object"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draws:
    products: NDArray[np.float64]
    """Of the scores, one for each call of sample(), [m, m]."""
    log_prob: float
    """Sum over all draws."""
    all_alike: bool
    """The same actions every time."""
    mean: Tensor
    """Of the scores as they are kept."""


def score_is_zero_mean(
    policy: Any, parameters: Sequence[nn.Parameter], *, samples: int, memory_limit: int
) -> Check:
    """One U-statistic over draws, with random signs; a failure is confirmed with fresh draws.

    ‖E x‖² is estimated by Σ_{i≠j}<x_i, x_j>/(m(m−1)), x_i = ∇ Σ log π(a) of the i-th draw.
    """
    sample = getattr(policy, "sample", None)
    if sample is None:
        return skipped(SCORE, "pass policy=, an object with sample() -> (actions, log_prob)")
    trained = [p for p in parameters if p.requires_grad]
    first = _draw(sample, trained, samples, memory_limit)
    if isinstance(first, str):
        return skipped(SCORE, first)
    numbers = _numbers(first.products)
    # A density may be above one: no such trouble there.
    if first.log_prob < 0 and -first.log_prob < SURPRISE:
        return skipped(
            SCORE,
            f"the policy is nearly certain ({-first.log_prob:.2g} nats in {samples} draws): raise"
            " samples=",
        )
    if first.all_alike:
        return _biased(
            numbers, f"sample() drew the same actions {samples} times, whatever the probabilities"
        )
    seen = f"a bias of {numbers['detectable_share']:.0%} of a score's norm would have shown"
    if numbers["p_value"] > LEVEL:
        zero = f"zero within the noise of {samples} draws (p = {numbers['p_value']:.2g})"
        return passed(SCORE, f"{zero}; {seen}", **numbers)
    second = _draw(sample, trained, samples, memory_limit)
    assert isinstance(second, _Draws)
    fresh = gram.sign_flip_p_value(second.products)
    agree = float((first.mean * second.mean).sum()) > 0
    numbers["p_value_again"] = fresh
    if fresh > LEVEL or not agree:
        doubt = (
            f"a first p of {numbers['p_value']:.2g} was not confirmed by fresh draws ({fresh:.2g})"
        )
        return passed(SCORE, f"zero: {doubt}; {seen}", **numbers)
    share = numbers["bias"] / numbers["score_norm"]
    return _biased(
        numbers,
        f"the mean of ∇log π over sampled actions is not zero but {share:.0%} of a score's norm",
    )


def _biased(numbers: dict[str, float], message: str) -> Check:
    return failed(
        SCORE,
        "critical",
        f"{message}: log_prob is not that of the sampler",
        "take log_prob from the very distribution that is sampled: same temperature, top-p and"
        " top-k, masks and squashing (tanh correction), same weights, dropout off",
        "count only tokens that were sampled: prompts, forced starts and tool outputs are masked,"
        " no division by length",
        basis="statistical",
        numbers=numbers,
        confirm="sample with temperature 1 and without top-p: if it is zero then, the log-prob "
        "ignores them",
    )


def _draw(
    sample: Any, parameters: Sequence[Tensor], number: int, memory_limit: int
) -> _Draws | str:
    vectors = vectors_for(
        parameters, [range(len(parameters))], expected=number + 1, memory_limit=memory_limit
    )
    names = [str(i) for i in range(number)]
    total, first, alike = 0.0, None, True
    for name in names:
        with torch.enable_grad():
            actions, log_prob = _sampled(sample)
            summed = log_prob.sum()
        if not summed.requires_grad:
            return (
                "the log_prob of policy.sample() has no gradient: compute it outside"
                " torch.no_grad()"
            )
        gradients = torch.autograd.grad(summed, list(parameters), allow_unused=True)
        vectors.add(name, gradients)
        total += float(summed.detach())
        first = actions if first is None else first
        alike = alike and _same(actions, first)
    products = vectors.products(names).sum(0).cpu().numpy()
    if not np.isfinite(products).all() or not math.isfinite(total):
        return "a log_prob of policy.sample() or its gradient is not finite"
    if not products.any():
        return "no trained parameter has a gradient from log_prob: does it belong to this model?"
    mean = torch.stack([vectors.row(name) for name in names]).mean(0)
    return _Draws(products=products, log_prob=total, all_alike=alike, mean=mean)


def _sampled(sample: Any) -> tuple[Any, Tensor]:
    found = sample()
    if not (isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[1], Tensor)):
        raise UsageError(
            "policy.sample() gives two things: the actions, and the tensor of their"
            " log-probabilities"
        )
    return found[0], found[1]


def _same(actions: Any, others: Any) -> bool:
    if isinstance(actions, Tensor) and isinstance(others, Tensor):
        return actions.shape == others.shape and torch.equal(actions, others)
    return bool(np.array_equal(actions, others))


def _numbers(products: NDArray[np.float64]) -> dict[str, float]:
    """The estimate, its p-value, and the smallest bias b that one test sees 95 times in 100.

    b² = critical + z √(2 tr Σ²/(m(m−1)) + 4 b'Σb/m), and b'Σb is taken as b² tr Σ²/tr Σ: a bias
    where the noise is.
    """
    m = len(products)
    pairs = m * (m - 1)
    apart = products - np.diag(np.diagonal(products))
    signs = np.where(np.random.default_rng(1).integers(0, 2, (gram.FLIPS, m)), 1.0, -1.0)
    null = np.einsum("ri,ri->r", signs @ apart, signs) / pairs
    critical = max(float(np.quantile(null, 1 - LEVEL)), 0.0)
    size = math.sqrt(float(np.trace(products)) / m)
    squared = float(np.square(apart).sum()) / pairs  # tr Σ², where there is no bias
    square = critical
    for _ in range(50):  # a contraction: each round moves the root by less than half of the last
        square = critical + POWER_Z * math.sqrt(
            2 * squared / pairs + 4 * square * squared / size**2 / m
        )
    detectable = math.sqrt(square)
    return {
        "bias": gram.signed_root(float(apart.sum()) / pairs),
        "score_norm": size,
        "p_value": gram.sign_flip_p_value(products),
        "detectable": detectable,
        "detectable_share": detectable / size,
        "samples": float(m),
    }


def actions_follow(policy: Any) -> Check:
    """One action of each row is made all but certain: it must be chosen more often than chance."""
    logits_of, select = getattr(policy, "logits", None), getattr(policy, "select", None)
    if logits_of is None or select is None:
        return skipped(
            ACTIONS, "give the policy logits() -> [..., A] and select(logits) -> actions"
        )
    with torch.no_grad():
        logits = _logits(logits_of())
        hits, chance = _hits(logits, select)
    if not hits:
        return skipped(
            ACTIONS, "every row has a single action, or all are picked: there is nothing to choose"
        )
    rate, luck = sum(hits) / len(hits), sum(chance) / len(chance)
    spread = math.sqrt(sum(c * (1 - c) for c in chance)) / len(chance)
    numbers = {"chosen": rate, "by_chance": luck, "draws": float(len(hits))}
    if rate > luck + 5 * spread:
        return passed(
            ACTIONS,
            f"an action of logit +{SHARP:g} is chosen {rate:.0%} of the time (chance {luck:.0%})",
            **numbers,
        )
    return failed(
        ACTIONS,
        "critical",
        f"an action of logit +{SHARP:g} is chosen {rate:.0%} of the time, which is chance"
        f" ({luck:.0%}): the choice does not look at the logits",
        "choose from these logits: an index into a sorted copy, a stale tensor or a constant is"
        " used instead",
        basis="statistical",
        numbers=numbers,
        confirm="set one logit to +30 by hand and look at what is chosen",
    )


def _hits(logits: Tensor, select: Any) -> tuple[list[float], list[float]]:
    """Whether each row's favourite was chosen, and how likely that is by chance."""
    valid = torch.isfinite(logits)
    flat = valid.reshape(-1, valid.shape[-1])
    # A row that is masked whole draws, and is left out.
    likely = flat.double().masked_fill(~flat.any(-1, keepdim=True), 1.0)
    hits: list[float] = []
    chance: list[float] = []
    for _ in range(max(1, math.ceil(DRAWS / len(flat)))):
        favourite = torch.multinomial(likely, 1)
        sharp = torch.where(flat, 0.0, -math.inf).to(logits.dtype).scatter(-1, favourite, SHARP)
        chosen = _multi_hot(select(sharp.reshape(logits.shape)), logits).reshape(flat.shape)
        luck = (chosen.sum(-1) / flat.sum(-1)).tolist()
        hit = chosen.gather(-1, favourite).squeeze(-1).tolist()
        hits += [float(h) for h, c in zip(hit, luck, strict=True) if c < 1]
        chance += [c for c in luck if c < 1]
    return hits, chance


def _multi_hot(actions: Any, logits: Tensor) -> Tensor:
    """A mask of what was chosen, [..., A], from a mask, indices [...] or k indices [..., k]."""
    if not isinstance(actions, Tensor):
        raise UsageError("policy.select(logits) gives a tensor of actions")
    if actions.shape == logits.shape and (
        actions.dtype == torch.bool or bool(((actions == 0) | (actions == 1)).all())
    ):
        return actions.bool()
    indices = actions.unsqueeze(-1) if actions.ndim == logits.ndim - 1 else actions
    if indices.ndim != logits.ndim or indices.shape[:-1] != logits.shape[:-1]:
        raise UsageError(
            f"policy.select(logits) gave the shape {list(actions.shape)} for logits"
            f" {list(logits.shape)}: one action for each row, k of them, or a mask"
        )
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, indices.long(), True)


def _logits(found: Any) -> Tensor:
    if not isinstance(found, Tensor) or found.ndim < 1:
        raise UsageError("policy.logits() gives a tensor [..., A]: what actions are chosen from")
    return found.detach()


def entropy_fits(policy: Any) -> Check:
    """entropy ≤ ln(d!/(d−k)!) of k out of d without replacement, in the mean over rows."""
    entropy_of = getattr(policy, "entropy", None)
    logits_of, number = getattr(policy, "logits", None), getattr(policy, "num_actions", None)
    if entropy_of is None or (logits_of is None and number is None):
        return skipped(
            ENTROPY,
            "give the policy entropy() and either logits() or num_actions (and picks, for k of"
            " them)",
        )
    picks = int(getattr(policy, "picks", 1))
    with torch.no_grad():
        entropy = _mean(entropy_of())
        logits = None if logits_of is None else _logits(logits_of())
    counts = [int(number or 1)]
    if logits is not None:
        counts = torch.isfinite(logits).sum(-1).reshape(-1).tolist()
    bound = sum(_log_arrangements(d, picks) for d in counts) / len(counts)
    numbers = {"entropy": entropy, "largest": bound, "picks": float(picks)}
    if not -ROUNDING <= entropy <= bound * (1 + ROUNDING) + ROUNDING:  # nor is it a NaN
        return _impossible(entropy, bound, counts, picks, numbers)
    own = None if logits is None or picks != 1 else _own_entropy(logits)
    if own is not None and abs(entropy - own) > DIFFERENT * max(own, ROUNDING / DIFFERENT):
        return failed(
            ENTROPY,
            "info",
            f"entropy() is {entropy:.4g}, that of softmax(logits()) {own:.4g}: a temperature or a"
            " mask is in one and not in the other",
            "compute the entropy from the distribution that is sampled, and reduce it by a mean"
            " over rows",
            numbers={**numbers, "of_logits": own},
        )
    return passed(ENTROPY, f"{entropy:.4g} nats, of at most {bound:.4g}", **numbers)


def _impossible(
    entropy: float, bound: float, counts: list[int], picks: int, numbers: dict[str, float]
) -> Check:
    d = max(counts)
    what = f"{picks} of {d} without replacement" if picks > 1 else f"a choice among {d}"
    looks = ""
    if bound < entropy < 30:
        looks = f": it is that of one choice among about {math.exp(entropy):,.0f}"
    return failed(
        ENTROPY,
        "warn",
        f"entropy() is {entropy:.4g} nats, and {what} has {'at most' if entropy > 0 else '0 to'}"
        f" {bound:.4g}{looks}",
        "take the softmax over the actions of one row, not over all rows, nodes or edges together;"
        " leave masked ones out",
        numbers=numbers,
        confirm=f"of uniform logits the entropy must read ln({d}!/{d - picks}!) ="
        f" {_log_arrangements(d, picks):.4g}",
    )


def _log_arrangements(d: int, k: int) -> float:
    """ln(d!/(d−k)!), all of them where there are fewer than k."""
    return math.lgamma(d + 1) - math.lgamma(max(d - k, 0) + 1)


def _own_entropy(logits: Tensor) -> float:
    rows = logits.double()[torch.isfinite(logits).any(-1)]
    logp = rows.log_softmax(-1)
    return float(-(logp.exp() * logp.masked_fill(~torch.isfinite(logp), 0.0)).sum(-1).mean())


def _mean(found: Any) -> float:
    return float(found.detach().double().mean() if isinstance(found, Tensor) else found)


def policy_checks(
    policy: Any, parameters: Sequence[nn.Parameter], *, samples: int, memory_limit: int
) -> Iterator[Check]:
    """All three."""
    yield score_is_zero_mean(policy, parameters, samples=samples, memory_limit=memory_limit)
    yield actions_follow(policy)
    yield entropy_fits(policy)


Fed = Callable[[float], tuple[float, float | None]]
"""A reward in; the baseline used for it, and where it can be told the baseline after it, out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    rewards: NDArray[np.float64]
    used: NDArray[np.float64]
    after: NDArray[np.float64]
    """NaN where the baseline does not tell."""


def baseline_leak(baseline: Any, seed: int) -> Check:
    """Feed it, then feed two copies a different last reward."""
    if baseline is None:
        return skipped(BASELINE, HOW)
    make = _maker(baseline)
    if make is None:
        return skipped(BASELINE, f"a function of the reward would keep what we feed it: {HOW}")
    stream = _fed(_feeder(make()), seed)
    if len(stream.rewards) < LEAST:
        return skipped(
            BASELINE,
            f"the baseline took {len(stream.rewards)} rewards in {PATIENCE:g} s: {LEAST} are"
            " needed",
        )
    weight = _own_weight(make, stream.rewards[: 2 * WARM_UP], seed)
    numbers = {"explained_variance": _explained(stream.rewards, stream.used), "own_weight": weight}
    if np.isfinite(stream.after).all():
        numbers["explained_variance_after"] = _explained(stream.rewards, stream.after)
    ev = numbers["explained_variance"]
    if abs(weight) > LEAK:
        return failed(
            BASELINE,
            "warn",
            f"the baseline contains {weight:.3g} of the reward it is subtracted from: rewards"
            f" without any pattern read as {ev:.1%} explained",
            "take the value first, update afterwards: advantage = reward - baseline.value();"
            " baseline.update(reward)",
            numbers=numbers,
            confirm="feed it random rewards: their explained variance must not be above 0",
        )
    after = numbers.get("explained_variance_after")
    later = after is not None and after > ev
    then = f"; taken after the update it would read {after:.1%}" if later else ""
    return passed(
        BASELINE,
        f"the reward is not in its own baseline: {ev:.1%} of pure noise explained{then}",
        **numbers,
    )


def _maker(baseline: Any) -> Callable[[], Any] | None:
    """Makes baselines to feed instead of the training's own; None for a function with state."""
    if isinstance(baseline, types.FunctionType | type):
        return baseline if num_arguments(baseline) == 0 else None
    try:
        copy.deepcopy(baseline)
    except Exception as problem:
        raise UsageError(
            f"baseline= cannot be copied ({problem}): pass a function that makes a new one"
        ) from problem
    return lambda: copy.deepcopy(baseline)


def _feeder(made: Any) -> Fed:
    value, update = getattr(made, "value", None), getattr(made, "update", None)
    if value is not None and update is not None:

        def ordered(reward: float) -> tuple[float, float | None]:
            before = _as_float(value() if callable(value) else made.value)
            update(_reward(reward))
            return before, _as_float(value() if callable(value) else made.value)

        return ordered
    if not callable(made):
        raise UsageError(
            f"baseline= is a {type(made).__name__}: {HOW.removeprefix('pass baseline=, ')}"
        )
    return lambda reward: (_as_float(made(_reward(reward))), None)


def _reward(reward: float) -> Tensor:
    return torch.tensor([reward])  # has .mean() and .item(), and adds up like a number


def _as_float(found: Any) -> float:
    return 0.0 if found is None else _mean(found)  # None: nothing is subtracted yet


def _fed(feed: Fed, seed: int) -> _Stream:
    seed_everything(seed)
    rewards = np.random.default_rng(seed).standard_normal(WARM_UP + LENGTH)
    used, after, end = [], [], time.perf_counter() + PATIENCE
    for reward in rewards:
        before, then = feed(float(reward))
        used.append(before)
        after.append(np.nan if then is None else then)
        if time.perf_counter() > end:
            break
    kept = slice(WARM_UP, len(used))
    return _Stream(rewards=rewards[kept], used=np.array(used)[kept], after=np.array(after)[kept])


def _own_weight(make: Callable[[], Any], history: NDArray[np.float64], seed: int) -> float:
    """d baseline/d reward at one moment: two copies with one past, last rewards 1 apart."""

    def last(reward: float) -> float:
        seed_everything(seed)
        feed = _feeder(make())
        for past in history:
            feed(float(past))
        return feed(reward)[0]

    return last(1.0) - last(0.0)


def _explained(rewards: NDArray[np.float64], baseline: NDArray[np.float64]) -> float:
    """1 − Var(r − b)/Var(r)."""
    return float(1 - np.var(rewards - baseline) / np.var(rewards))
