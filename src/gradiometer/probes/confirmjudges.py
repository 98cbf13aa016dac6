"""What an experiment showed: supported, refuted or inconclusive, in words and numbers.

A judge reads what the arms of an experiment gave, one list of numbers by name for each seed. Differences are taken seed by
seed and have Student's interval over seeds; what must be the same to the last bit needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from gradiometer.probes.confirmstats import LEVEL, MIN_SAMPLES, Array, Estimate, signal_of, student

__all__ = [
    "BATCHES",
    "CHECKSUM",
    "PROJECTION",
    "WEIGHTS",
    "Judge",
    "Judged",
    "Numbers",
    "Outcome",
    "Seen",
    "better",
    "biased",
    "entropy_falls",
    "identical",
    "noisy",
    "opposed",
    "too_large",
    "untrained",
]

Outcome = Literal["supported", "refuted", "inconclusive", "not-run"]
Numbers: TypeAlias = Mapping[str, float]

OBJECTIVES = {"val/reward": 1, "reward": 1, "success_rate": 1, "val/loss": -1, "loss": -1}
"""What is to be achieved, the most telling first; -1 where less is better."""
TOTALS = ("loss", "total_loss")
"""They hold the term itself, so that they change with its coefficient even if no weight ever feels it."""
WEIGHTS = "weights/"
CHECKSUM = "weights/checksum"
PROJECTION = "projection/"
BATCHES = "batches"
"""How long a training was, where it says so."""
LOW_SNR = 0.1
"""Signal over noise, as powers: the bound of the rule noise-dominated."""
UNTRAINED = 1e-5
"""Of the whole gradient: what a router has left when only rounding reaches it (1e-9); a trained one has 1e-2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the arms gave: for each arm a list over seeds. The first arm is the baseline, the last one the change."""

    arms: Sequence[Sequence[Numbers]]
    scales: tuple[float, ...]
    term: str | None
    block: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict, what it rests on in words, and its numbers."""

    outcome: Outcome
    said: str
    numbers: Mapping[str, float] = field(default_factory=dict)


Judge: TypeAlias = Callable[[Seen], Judged]


def identical(seen: Seen) -> Judged:
    """Supported when the change changes nothing, to the last bit; refuted when a training that repeats itself differs."""
    first, again, changed = (arm[0] for arm in seen.arms)
    names = [name for name in _compared(first) if name in again and name in changed]
    if not names:
        given = ", ".join(sorted(first))
        return Judged(
            outcome="inconclusive",
            said=f"nothing to compare: a loss holds the term itself. Return weights or gradient norms too (found: {given})",
        )
    after = f" after {first[BATCHES]:.0f} batches" if BATCHES in first else ""
    what = f"the weights{after} are" if CHECKSUM in names else f"{_listed(names)} {'is' if len(names) == 1 else 'are'}"
    if all(_same(first[name], changed[name]) for name in names):
        return Judged(
            outcome="supported", said=f"{what} bit-identical: the change does nothing", numbers={"distance": 0.0}
        )
    distance = _distance(first, changed, names)
    numbers = {"distance": distance}
    if not all(_same(first[name], again[name]) for name in names):
        noise = _distance(first, again, names)
        said = f"{what} {distance:.2g} apart, but two runs of the same seed are {noise:.2g} apart: make the probe repeatable"
        return Judged(outcome="inconclusive", said=said, numbers={**numbers, "noise": noise})
    return Judged(outcome="refuted", said=f"{what} {distance:.2g} apart, so the change does something", numbers=numbers)


def better(seen: Seen) -> Judged:
    """Supported when what is to be achieved is achieved better with the change."""
    found = _objective(seen)
    if found is None:
        return _no_objective(seen)
    name, sign = found
    gain = _difference(seen.arms[-1], seen.arms[0], name, sign)
    numbers = _means(seen, name, ("as it is", "changed"))
    if gain is None:
        return Judged(outcome="inconclusive", said=f"{name} was not finite in most trainings", numbers=numbers)
    outcome: Outcome = "inconclusive" if gain.sign == 0 else "supported" if gain.sign > 0 else "refuted"
    how = {
        "supported": "better with the change",
        "refuted": "worse with the change",
        "inconclusive": "no clear difference",
    }
    ends = f"{numbers['as it is']:.4g} as it is, {numbers['changed']:.4g} changed"
    said = f"{name} {ends}; gain {gain} over {gain.count} seeds: {how[outcome]}"
    return Judged(outcome=outcome, said=said, numbers={**numbers, "gain": gain.mean})


def entropy_falls(seen: Seen) -> Judged:
    """Supported when the entropy is lower without its bonus: then the bonus is what held it up."""
    if any("entropy" not in numbers for arm in seen.arms for numbers in arm):
        return Judged(outcome="inconclusive", said="no entropy among the numbers: return it under that name")
    fall = _difference(seen.arms[-1], seen.arms[0], "entropy", -1)
    numbers = _means(seen, "entropy", ("as it is", "changed"))
    ends = f"entropy {numbers['as it is']:.4g} as it is, {numbers['changed']:.4g} without its bonus"
    if fall is None or fall.sign == 0:
        return Judged(outcome="inconclusive", said=f"{ends}: no clear difference", numbers=numbers)
    if fall.sign > 0:
        return Judged(outcome="supported", said=f"{ends}; it falls by {fall}: the bonus held it up", numbers=numbers)
    return Judged(outcome="refuted", said=f"{ends}: the bonus is not what holds it up", numbers=numbers)


def untrained(seen: Seen) -> Judged:
    """Supported when the router's gradient vanishes with the balance loss: then the task does not train it."""
    numbers, name, whole = seen.arms[-1][0], f"grad/{seen.block}/norm/raw", "grad/all/norm/raw"
    if not numbers.get(whole, 0.0) > 0.0:
        return Judged(outcome="inconclusive", said=f"no {whole} among the numbers: return it, and {name}")
    if name not in numbers:
        if name in seen.arms[0][0]:
            return Judged(outcome="supported", said=f"without {seen.term!r} the {seen.block} has no gradient at all")
        return Judged(outcome="inconclusive", said=f"no {name} among the numbers: return it, and 0 if there is none")
    share = numbers[name] / numbers[whole]
    said = f"without {seen.term!r} the gradient of the {seen.block} is {share:.2g} of the whole"
    outcome: Outcome = "supported" if share < UNTRAINED else "refuted"
    return Judged(outcome=outcome, said=said, numbers={"share": share})


def noisy(seen: Seen) -> Judged:
    """Supported when gradients on fresh samples have next to nothing in common."""
    vectors = _vectors(seen)
    if vectors is None:
        return _no_vectors()
    signal, bound = signal_of(vectors), LOW_SNR / (1.0 + LOW_SNR)
    low, high = signal.share.low, signal.share.high
    said = f"signal is {signal.share} of the gradient's power on {len(vectors)} fresh batches, SNR {max(signal.snr, 0):.2g}"
    numbers = {"share": signal.share.mean, "snr": signal.snr, "p_value": signal.p_value}
    if high is not None and high < bound:
        return Judged(outcome="supported", said=f"{said}: below {LOW_SNR}", numbers=numbers)
    if low is not None and low > bound:
        return Judged(outcome="refuted", said=f"{said}: above {LOW_SNR}", numbers=numbers)
    return Judged(outcome="inconclusive", said=f"{said}: on either side of {LOW_SNR}", numbers=numbers)


def biased(seen: Seen) -> Judged:
    """Supported when the scores of resampled actions have a mean, which those of the sampler's own log-probs have not."""
    vectors = _vectors(seen)
    if vectors is None:
        return _no_vectors()
    signal, bound = signal_of(vectors), LOW_SNR / (1.0 + LOW_SNR)
    said = f"the mean score is {signal.share} of the scores' power, p = {signal.p_value:.2g} that it is zero"
    numbers = {"share": signal.share.mean, "p_value": signal.p_value}
    if signal.p_value < LEVEL:
        return Judged(outcome="supported", said=said, numbers=numbers)
    small = signal.share.high is not None and signal.share.high < bound
    return Judged(outcome="refuted" if small else "inconclusive", said=said, numbers=numbers)


def too_large(seen: Seen) -> Judged:
    """Supported when a shorter step does better than the one taken; refuted when a tenth of it does worse."""
    found = _objective(seen)
    if found is None:
        return _no_objective(seen)
    name, sign = found
    by_scale = dict(zip(seen.scales, seen.arms, strict=True))
    numbers = _means(seen, name, tuple(f"{scale:g}x" for scale in seen.scales))
    said = f"{name} {_along(numbers)}"
    shorter = [scale for scale in seen.scales if 0.0 < scale < 1.0]
    if _broken(by_scale[1.0], name) and not all(_broken(by_scale[scale], name) for scale in shorter):
        return Judged(outcome="supported", said=f"{said}: not finite after the whole step", numbers=numbers)
    gains = {s: _difference(by_scale[s], by_scale[1.0], name, sign, tests=len(shorter)) for s in shorter}
    known = {scale: gain for scale, gain in gains.items() if gain is not None}
    best = max(known, key=lambda scale: known[scale].low or -np.inf, default=None)
    if best is not None and known[best].sign > 0:
        said = f"{said}; {best:g} of the step is better by {known[best]}"
        return Judged(outcome="supported", said=said, numbers=numbers)
    least = known.get(min(shorter)) if shorter else None
    if least is not None and least.sign < 0:
        said = f"{said}; {min(shorter):g} of the step is worse by {_negated(least)}: the whole one pays"
        return Judged(outcome="refuted", said=said, numbers=numbers)
    return Judged(outcome="inconclusive", said=f"{said}: no clear difference between the lengths", numbers=numbers)


def opposed(seen: Seen) -> Judged:
    """Supported when even a short step does worse than none; refuted when one of any length does better."""
    found = _objective(seen)
    if found is None:
        return _no_objective(seen)
    name, sign = found
    by_scale = dict(zip(seen.scales, seen.arms, strict=True))
    steps = [scale for scale in seen.scales if scale > 0.0]
    numbers = _means(seen, name, tuple(f"{scale:g}x" for scale in seen.scales))
    said = f"{name} {_along(numbers)}"
    gains = {s: _difference(by_scale[s], by_scale[0.0], name, sign, tests=len(steps)) for s in steps}
    up = next((scale for scale, gain in gains.items() if gain is not None and gain.sign > 0), None)
    if up is not None:
        return Judged(outcome="refuted", said=f"{said}; {up:g} of the step gains {gains[up]}", numbers=numbers)
    down = next((s for s, gain in gains.items() if s < 1.0 and gain is not None and gain.sign < 0), None)
    if down is not None:
        said = f"{said}; already {down:g} of the step loses, by {gains[down]}"
        return Judged(outcome="supported", said=said, numbers=numbers)
    return Judged(outcome="inconclusive", said=f"{said}: no clear difference from no step", numbers=numbers)


def _compared(numbers: Numbers) -> list[str]:
    """The weights where they are given, else all but what holds the term itself."""
    weights = [name for name in numbers if name.startswith(WEIGHTS)]
    return weights or [name for name in numbers if name not in (*TOTALS, BATCHES)]


def _same(a: float, b: float) -> bool:
    return a == b or (np.isnan(a) and np.isnan(b))


def _distance(a: Numbers, b: Numbers, names: Sequence[str]) -> float:
    """‖a − b‖ / ‖a‖ over the numbers that can be subtracted."""
    kept = [name for name in names if name != CHECKSUM]
    x, y = (np.array([numbers[name] for name in kept]) for numbers in (a, b))
    size = float(np.linalg.norm(x))
    return float(np.linalg.norm(x - y)) / size if size > 0 else float(np.linalg.norm(x - y))


def _objective(seen: Seen) -> tuple[str, int] | None:
    """The most telling of the objectives that every training gave."""
    for name, sign in OBJECTIVES.items():
        if all(name in numbers for arm in seen.arms for numbers in arm):
            return name, sign
    return None


def _difference(
    changed: Sequence[Numbers], baseline: Sequence[Numbers], name: str, sign: int, *, tests: int = 1
) -> Estimate | None:
    """How much more is achieved, seed by seed, where both are finite; None when that leaves too few seeds."""
    pairs = [(a[name], b[name]) for a, b in zip(changed, baseline, strict=True)]
    gains = [sign * (a - b) for a, b in pairs if np.isfinite(a) and np.isfinite(b)]
    return student(gains, tests=tests) if len(gains) >= MIN_SAMPLES else None


def _means(seen: Seen, name: str, labels: tuple[str, ...]) -> dict[str, float]:
    arms = seen.arms if len(labels) == len(seen.arms) else (seen.arms[0], seen.arms[-1])
    return {label: float(np.mean([n[name] for n in arm])) for label, arm in zip(labels, arms, strict=True)}


def _broken(arm: Sequence[Numbers], name: str) -> bool:
    return not any(np.isfinite(numbers[name]) for numbers in arm)


def _vectors(seen: Seen) -> list[Array] | None:
    """The projections of each gradient, the same ones of all of them; None when there are none or they are not finite."""
    arm = seen.arms[-1]
    names = sorted(name for name in arm[0] if name.startswith(PROJECTION) and all(name in other for other in arm))
    vectors = [np.array([numbers[name] for name in names]) for numbers in arm]
    return vectors if names and all(np.isfinite(vector).all() for vector in vectors) else None


def _no_vectors() -> Judged:
    said = f"no finite {PROJECTION}<i> among the numbers: return elements or fixed projections of the gradient"
    return Judged(outcome="inconclusive", said=said)


def _no_objective(seen: Seen) -> Judged:
    given = ", ".join(sorted(seen.arms[0][0])[:8])
    said = f"none of {', '.join(OBJECTIVES)} is in all results: return one of them (found: {given})"
    return Judged(outcome="inconclusive", said=said)


def _along(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.4g} at {label}" for label, value in numbers.items())


def _negated(found: Estimate) -> Estimate:
    low = None if found.high is None else -found.high
    high = None if found.low is None else -found.low
    return Estimate(mean=-found.mean, low=low, high=high, count=found.count)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
