"""Confirming experiments: change one thing, and see whether what the finding says follows.

A probe is a function that carries out an experiment and returns numbers:

    def probe(experiment: Experiment) -> Mapping[str, float] | float: ...

It is somebody's own (`--probe module:function`), or trains a lab again (gradiometer-labs). Which
experiment belongs to which finding stands in one table, `EXPERIMENTS`. A judge reads what the arms
of an experiment gave, one list of numbers by name for each seed. Differences are taken seed by seed
and have Student's interval over seeds; what must be the same to the last bit needs none. Nothing
here needs torch.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from gradiometer import metrics
from gradiometer.doctor.terms import role_of
from gradiometer.errors import UnknownName, UsageError
from gradiometer.maths.means import LEVEL, MIN_SAMPLES, StudentMean, student
from gradiometer.maths.trends import Array
from gradiometer.maths.variance import signal_share
from gradiometer.records import Finding
from gradiometer.words import some

__all__ = [
    "BATCHES",
    "CHECKSUM",
    "EXPERIMENTS",
    "PROJECTION",
    "REPLICATES",
    "WEIGHTS",
    "ArmResults",
    "Confirmation",
    "Experiment",
    "ExperimentPlan",
    "Judged",
    "Kind",
    "Outcome",
    "Probe",
    "confirmed",
    "load_probe",
    "seeds_of",
    "worth_confirming",
]

Kind = Literal["baseline", "zero-term", "freeze", "replicate", "resample", "line-search"]
Outcome = Literal["supported", "refuted", "inconclusive", "not-run"]
Numbers: TypeAlias = Mapping[str, float]

MOST_FINDINGS = 2
"""Findings that are confirmed: those the report tells whole."""
SEEDS = 5
"""Trainings of each kind that are compared: Student's quantile is 2.8 there, and 4.3 with three."""
REPLICATES = 12
"""Gradients at the same weights: enough for an interval, and all patterns of signs can be tried."""
LENGTHS = (0.1, 0.3, 1.0, 3.0)
"""Of a step, as multiples of what the optimizer takes."""
FROM_NOTHING = (0.0, 0.1, 0.3, 1.0)
"""The same where the question is whether a step of any length is better than none."""
OBJECTIVES = {"val/reward": 1, "reward": 1, "success_rate": 1, "val/loss": -1, "loss": -1}
"""What is to be achieved, the most telling first; -1 where less is better."""
TOTALS = ("loss", "total_loss")
"""They hold the term itself: they change with its coefficient even if no weight ever feels it."""
WEIGHTS = "weights/"
CHECKSUM = "weights/checksum"
PROJECTION = "projection/"
BATCHES = "batches"
"""How long a training was, where it says so."""
LOW_SNR = 0.1
"""Signal over noise, as powers: the bound of the rule noise-dominated."""
LOW_SHARE = LOW_SNR / (1.0 + LOW_SNR)
"""The same of the signal's power in the whole."""
UNTRAINED = 1e-5
"""Of the whole gradient: a router that only rounding reaches has 1e-9, a trained one 1e-2."""
FORM = "write --probe module:function, a function that takes an Experiment and returns numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What a probe is asked to do, and with which seed.

    For what it does not know how to do it raises NotImplementedError.

    baseline: the training as it is. zero-term: the coefficient of `term` at 0. freeze: nothing
    trains `block` (the critic: no value loss, `term`). replicate: the gradient on fresh samples, at
    the same weights whatever the seed, as `projection/<i>`: its elements, or any fixed linear
    projections of it. resample: the gradient of the log-probability of freshly sampled actions,
    likewise. line-search: every update `scale` times as long as it is, 0 for none at all, judged on
    data it has not seen.
    """

    kind: Kind
    term: str | None = None
    block: str | None = None
    scale: float = 1.0
    seed: int = 0


Probe: TypeAlias = Callable[[Experiment], Mapping[str, float] | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResults:
    """What each arm gave, a list over seeds. The first arm is the baseline, the last the change."""

    arms: Sequence[Sequence[Numbers]]
    scales: tuple[float, ...]
    term: str | None
    block: str | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, what it rests on in words, and its numbers."""

    outcome: Outcome
    said: str
    numbers: Numbers = field(default_factory=dict)


Judge: TypeAlias = Callable[[ArmResults], Judged]


def identical(found: ArmResults) -> Judged:
    """Supported when the change changes nothing to the last bit, in a training that repeats."""
    first, again, changed = (arm[0] for arm in found.arms)
    names = [name for name in _compared(first) if name in again and name in changed]
    if not names:
        return Judged(
            "inconclusive",
            "nothing to compare: a loss holds the term itself. Return weights or gradient norms too"
            f" (found: {', '.join(sorted(first))})",
        )
    after = f" after {first[BATCHES]:.0f} batches" if BATCHES in first else ""
    is_are = "is" if len(names) == 1 else "are"
    what = f"the weights{after} are" if CHECKSUM in names else f"{some(names, 4)} {is_are}"
    if all(_same(first[name], changed[name]) for name in names):
        said = f"{what} bit-identical: the change does nothing"
        return Judged("supported", said, {"distance": 0.0})
    distance = _distance(first, changed, names)
    said = f"{what} {distance:.2g} apart"
    if all(_same(first[name], again[name]) for name in names):
        return Judged("refuted", f"{said}, so the change does something", {"distance": distance})
    noise = _distance(first, again, names)
    return Judged(
        "inconclusive",
        f"{said}, but two runs of the same seed are {noise:.2g} apart: make the probe repeatable",
        {"distance": distance, "noise": noise},
    )


def better(found: ArmResults) -> Judged:
    """Supported when what is to be achieved is achieved better with the change."""
    objective = _objective(found)
    if objective is None:
        return _no_objective(found)
    name, sign = objective
    gain = _difference(found.arms[-1], found.arms[0], name, sign)
    numbers = _before_and_after(found, name)
    if gain is None:
        return Judged("inconclusive", f"{name} was not finite in most trainings", numbers)
    outcome, how = _OF_SIGN[gain.sign]
    ends = f"{numbers['as it is']:.4g} as it is, {numbers['changed']:.4g} changed"
    said = f"{name} {ends}; gain {gain} over {gain.count} seeds: {how}"
    return Judged(outcome, said, {**numbers, "gain": gain.mean})


_OF_SIGN: dict[int, tuple[Outcome, str]] = {
    1: ("supported", "better with the change"),
    -1: ("refuted", "worse with the change"),
    0: ("inconclusive", "no clear difference"),
}


def entropy_falls(found: ArmResults) -> Judged:
    """Supported when the entropy is lower without its bonus: then the bonus is what held it up."""
    if any("entropy" not in numbers for arm in found.arms for numbers in arm):
        return Judged("inconclusive", "no entropy among the numbers: return it under that name")
    fall = _difference(found.arms[-1], found.arms[0], "entropy", -1)
    numbers = _before_and_after(found, "entropy")
    ends = f"entropy {numbers['as it is']:.4g} as it is, {numbers['changed']:.4g} without its bonus"
    if fall is None or fall.sign == 0:
        return Judged("inconclusive", f"{ends}: no clear difference", numbers)
    if fall.sign > 0:
        return Judged("supported", f"{ends}; it falls by {fall}: the bonus held it up", numbers)
    return Judged("refuted", f"{ends}: the bonus is not what holds it up", numbers)


def untrained(found: ArmResults) -> Judged:
    """Supported when the router's gradient vanishes with the balance loss: no task trains it."""
    numbers, name, whole = found.arms[-1][0], f"grad/{found.block}/norm/raw", "grad/all/norm/raw"
    if not numbers.get(whole, 0.0) > 0.0:
        return Judged("inconclusive", f"no {whole} among the numbers: return it, and {name}")
    if name not in numbers:
        if name in found.arms[0][0]:
            said = f"without {found.term!r} the {found.block} has no gradient at all"
            return Judged("supported", said)
        said = f"no {name} among the numbers: return it, and 0 if there is none"
        return Judged("inconclusive", said)
    share = numbers[name] / numbers[whole]
    said = f"without {found.term!r} the gradient of the {found.block} is {share:.2g} of the whole"
    return Judged("supported" if share < UNTRAINED else "refuted", said, {"share": share})


def noisy(found: ArmResults) -> Judged:
    """Supported when gradients on fresh samples have next to nothing in common."""
    vectors = _vectors(found)
    if vectors is None:
        return _NO_VECTORS
    signal = signal_share(vectors)
    low, high = signal.share.low, signal.share.high
    said = (
        f"signal is {signal.share} of the gradient's power on {len(vectors)} fresh batches, SNR"
        f" {max(signal.snr, 0):.2g}"
    )
    numbers = {"share": signal.share.mean, "snr": signal.snr, "p_value": signal.p_value}
    if high is not None and high < LOW_SHARE:
        return Judged("supported", f"{said}: below {LOW_SNR}", numbers)
    if low is not None and low > LOW_SHARE:
        return Judged("refuted", f"{said}: above {LOW_SNR}", numbers)
    return Judged("inconclusive", f"{said}: on either side of {LOW_SNR}", numbers)


def biased(found: ArmResults) -> Judged:
    """Supported when scores of resampled actions have a mean: those of the sampler have none."""
    vectors = _vectors(found)
    if vectors is None:
        return _NO_VECTORS
    signal = signal_share(vectors)
    said = (
        f"the mean score is {signal.share} of the scores' power, p = {signal.p_value:.2g} that it"
        " is zero"
    )
    numbers = {"share": signal.share.mean, "p_value": signal.p_value}
    if signal.p_value < LEVEL:
        return Judged("supported", said, numbers)
    small = signal.share.high is not None and signal.share.high < LOW_SHARE
    return Judged("refuted" if small else "inconclusive", said, numbers)


def too_large(found: ArmResults) -> Judged:
    """Supported when a shorter step does better; refuted when a tenth of it does worse."""
    objective = _objective(found)
    if objective is None:
        return _no_objective(found)
    name, sign = objective
    arms, numbers, said = _along(found, name)
    shorter = [scale for scale in found.scales if 0.0 < scale < 1.0]
    if _broken(arms[1.0], name) and not all(_broken(arms[scale], name) for scale in shorter):
        return Judged("supported", f"{said}: not finite after the whole step", numbers)
    gains: dict[float, StudentMean] = {}
    for scale in shorter:
        gain = _difference(arms[scale], arms[1.0], name, sign, tests=len(shorter))
        if gain is not None:
            gains[scale] = gain
    best = max(gains, key=lambda scale: gains[scale].low or -np.inf, default=None)
    if best is not None and gains[best].sign > 0:
        return Judged(
            "supported", f"{said}; {best:g} of the step is better by {gains[best]}", numbers
        )
    least = gains.get(min(shorter, default=0.0))
    if least is not None and least.sign < 0:
        loss = f"{min(shorter):g} of the step is worse by {_negated(least)}"
        return Judged("refuted", f"{said}; {loss}: the whole one pays", numbers)
    return Judged("inconclusive", f"{said}: no clear difference between the lengths", numbers)


def opposed(found: ArmResults) -> Judged:
    """Supported when even a short step does worse than none; refuted when any does better."""
    objective = _objective(found)
    if objective is None:
        return _no_objective(found)
    name, sign = objective
    arms, numbers, said = _along(found, name)
    steps = [scale for scale in found.scales if scale > 0.0]
    gains = {s: _difference(arms[s], arms[0.0], name, sign, tests=len(steps)) for s in steps}
    signs = {scale: 0 if gain is None else gain.sign for scale, gain in gains.items()}
    up = next((scale for scale in steps if signs[scale] > 0), None)
    if up is not None:
        return Judged("refuted", f"{said}; {up:g} of the step gains {gains[up]}", numbers)
    down = next((scale for scale in steps if scale < 1.0 and signs[scale] < 0), None)
    if down is not None:
        loss = f"already {down:g} of the step loses, by {gains[down]}"
        return Judged("supported", f"{said}; {loss}", numbers)
    return Judged("inconclusive", f"{said}: no clear difference from no step", numbers)


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
    return float(np.linalg.norm(x - y)) / (float(np.linalg.norm(x)) or 1.0)


def _objective(found: ArmResults) -> tuple[str, int] | None:
    """The most telling of the objectives that every training gave."""
    for name, sign in OBJECTIVES.items():
        if all(name in numbers for arm in found.arms for numbers in arm):
            return name, sign
    return None


def _no_objective(found: ArmResults) -> Judged:
    given = ", ".join(sorted(found.arms[0][0])[:8])
    said = f"none of {', '.join(OBJECTIVES)} is in all results: return one of them (found: {given})"
    return Judged("inconclusive", said)


def _difference(
    changed: Sequence[Numbers], baseline: Sequence[Numbers], name: str, sign: int, *, tests: int = 1
) -> StudentMean | None:
    """How much more is achieved, over the seeds where both are finite; None with too few seeds."""
    pairs = [(a[name], b[name]) for a, b in zip(changed, baseline, strict=True)]
    gains = [sign * (a - b) for a, b in pairs if np.isfinite(a) and np.isfinite(b)]
    return student(gains, tests=tests) if len(gains) >= MIN_SAMPLES else None


def _negated(found: StudentMean) -> StudentMean:
    low = None if found.high is None else -found.high
    high = None if found.low is None else -found.low
    return StudentMean(mean=-found.mean, low=low, high=high, count=found.count)


def _mean(arm: Sequence[Numbers], name: str) -> float:
    return float(np.mean([numbers[name] for numbers in arm]))


def _before_and_after(found: ArmResults, name: str) -> dict[str, float]:
    return {"as it is": _mean(found.arms[0], name), "changed": _mean(found.arms[-1], name)}


def _along(
    found: ArmResults, name: str
) -> tuple[dict[float, Sequence[Numbers]], dict[str, float], str]:
    """The arms of a line search by length, their means by label, and these in words."""
    arms = dict(zip(found.scales, found.arms, strict=True))
    numbers = {f"{scale:g}x": _mean(arm, name) for scale, arm in arms.items()}
    listed = ", ".join(f"{value:.4g} at {label}" for label, value in numbers.items())
    return arms, numbers, f"{name} {listed}"


def _broken(arm: Sequence[Numbers], name: str) -> bool:
    return not any(np.isfinite(numbers[name]) for numbers in arm)


def _vectors(found: ArmResults) -> list[Array] | None:
    """The projections that all gradients have; None when there are none or they are not finite."""
    arm = found.arms[-1]
    common = set(arm[0]).intersection(*arm)
    names = sorted(name for name in common if name.startswith(PROJECTION))
    vectors = [np.array([numbers[name] for name in names]) for numbers in arm]
    return vectors if names and all(np.isfinite(vector).all() for vector in vectors) else None


_NO_VECTORS = Judged(
    "inconclusive",
    f"no finite {PROJECTION}<i> among the numbers: return elements or fixed projections of the"
    " gradient",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    """The experiment that belongs to a finding."""

    kind: Kind
    judge: Judge
    done: str
    """What is done, in words; {term} and {block} are filled in."""
    term: str | None = None
    """None: the term that the finding's evidence names."""
    block: str | None = None
    """None: the finding's own."""
    scales: tuple[float, ...] = LENGTHS
    """Of a line search."""

    def arms(self, finding: Finding) -> tuple[Experiment, ...]:
        """What each seed is tried with."""
        change = Experiment(
            kind=self.kind, term=self.term or _term_of(finding), block=self.block or finding.block
        )
        if self.kind == "line-search":
            return tuple(replace(change, scale=scale) for scale in self.scales)
        if self.kind in ("replicate", "resample"):
            return (change,)
        baseline = Experiment(kind="baseline")
        # Twice the same: only where a training repeats itself does a difference mean something.
        return (baseline, baseline, change) if self.judge is identical else (baseline, change)

    @property
    def num_seeds(self) -> int:
        """How often each is tried."""
        if self.kind in ("replicate", "resample"):
            return REPLICATES
        return 1 if self.judge in (identical, untrained) else SEEDS


def _zeroed(judge: Judge, term: str | None = None, block: str | None = None) -> ExperimentPlan:
    done = "the coefficient of {term} at 0, against as it is"
    return ExperimentPlan(kind="zero-term", judge=judge, term=term, block=block, done=done)


def _frozen(judge: Judge, term: str | None = None, block: str | None = None) -> ExperimentPlan:
    done = "{block} frozen, against as it is"
    return ExperimentPlan(kind="freeze", judge=judge, term=term, block=block, done=done)


_FRESH = ExperimentPlan(
    kind="replicate",
    judge=noisy,
    done=f"the gradient on fresh samples at the same weights, {REPLICATES} times",
)
_SEARCH = ExperimentPlan(
    kind="line-search",
    judge=too_large,
    done="every update at 0.1, 0.3, 1 and 3 times its length, on data it has not seen",
)

EXPERIMENTS: dict[str, ExperimentPlan] = {
    "dead-term": _zeroed(identical),
    "dead-block": _frozen(identical),
    "not-in-optimizer": _frozen(identical),
    "loss-not-reaching-module": _frozen(identical),
    "critic-dominates": _frozen(better, "value", "critic"),
    "regulariser-dominates": _zeroed(better),
    "terms-conflict": _zeroed(better),
    "kl-strangled": _zeroed(better, "kl"),
    "entropy-never-falls": _zeroed(entropy_falls, "entropy"),
    "router-untrained": _zeroed(untrained, "aux", "router"),
    "noise-dominated": _FRESH,
    "direction-random": _FRESH,
    "score-not-zero-mean": ExperimentPlan(
        kind="resample",
        judge=biased,
        done=f"the score of freshly sampled actions, {REPLICATES} times",
    ),
    "step-too-large": _SEARCH,
    "update-opposes-reward": ExperimentPlan(
        kind="line-search",
        judge=opposed,
        scales=FROM_NOTHING,
        done="every update at 0, 0.1, 0.3 and 1 times its length, on data it has not seen",
    ),
    "reward-declining": _SEARCH,
}
"""From the id of a finding to what would confirm it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What came of the experiment that belongs to a finding."""

    finding: str
    outcome: Outcome
    done: str
    """What was changed; for `not-run` the finding's own words on how to make sure."""
    seen: str
    """What was seen, with numbers; for `not-run` why nothing was."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    seconds: float = 0.0


def worth_confirming(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The first findings that ask for action."""
    return tuple(finding for finding in findings if finding.severity != "info")[:MOST_FINDINGS]


def confirmed(
    findings: Iterable[Finding],
    probe: Probe | None,
    *,
    seed: int = 0,
    missing: str = "no probe",
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[Confirmation]:
    """For each finding its experiment and what it showed, one after the other.

    Without a probe each says that it is `missing` and how to make sure by hand. `progress` gets the
    finding's id, and how many of how many experiments are done.
    """
    for finding in findings:
        plan = EXPERIMENTS.get(finding.id)
        if plan is None:
            yield _not_run(finding, "no experiment is known that could be run here")
        elif probe is None:
            yield _not_run(finding, missing)
        else:
            yield _carried_out(finding, plan, probe, seed, progress)


def seeds_of(seed: int, count: int) -> tuple[int, ...]:
    """The run's own seed, and others made of it: seed + 1 may be another run's."""
    others = np.random.SeedSequence(seed).generate_state(count)
    return (seed, *(int(other) for other in others[1:]))


def _carried_out(
    finding: Finding,
    plan: ExperimentPlan,
    probe: Probe,
    seed: int,
    progress: Callable[[str, int, int], None] | None,
) -> Confirmation:
    started, seeds, arms = time.perf_counter(), seeds_of(seed, plan.num_seeds), plan.arms(finding)
    change = arms[-1]
    found: list[list[Numbers]] = [[] for _ in arms]
    try:
        for number, each in enumerate(seeds):
            # The change first: what cannot be done is told.
            for count, place in enumerate(reversed(range(len(arms))), 1):
                asked = replace(arms[place], seed=each)
                found[place].append(_numbers(probe(asked), asked))
                if progress is not None:
                    progress(finding.id, number * len(arms) + count, len(seeds) * len(arms))
    except NotImplementedError as problem:
        why = f": {problem}" if str(problem) else ""
        return _not_run(finding, f"the probe does not do {change.kind}{why}")
    scales = tuple(arm.scale for arm in arms)
    result = plan.judge(ArmResults(arms=found, scales=scales, term=change.term, block=change.block))
    return Confirmation(
        finding=finding.id,
        outcome=result.outcome,
        done=plan.done.format(term=repr(change.term), block=repr(change.block)),
        seen=result.said,
        numbers=result.numbers,
        seeds=seeds,
        seconds=time.perf_counter() - started,
    )


def _not_run(finding: Finding, why: str) -> Confirmation:
    return Confirmation(finding=finding.id, outcome="not-run", done=finding.confirm, seen=why)


def _numbers(found: Any, experiment: Experiment) -> Numbers:
    """What a probe returned as numbers by name; a number alone is its loss."""
    if not isinstance(found, Mapping):
        found = {"loss": found}
    if not found:
        raise UsageError(
            f"the probe returned no numbers for {experiment}: return a loss, or numbers by name"
        )
    for name in found:
        if not isinstance(name, str):
            raise UsageError(
                f"the probe returned a number under {name!r} for {experiment}: names are text, such"
                " as 'reward'"
            )
    return {name: _number(value, name, experiment) for name, value in found.items()}


def _number(value: Any, name: str, experiment: Experiment) -> float:
    if not isinstance(value, str | bytes | bool | complex) and value is not None:
        # RuntimeError: a tensor of several numbers.
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            return float(value)
    shown = repr(value) if len(repr(value)) < 60 else type(value).__name__
    raise UsageError(
        f"the probe returned {name} = {shown} for {experiment}: return a number, or numbers by name"
    )


def _term_of(finding: Finding) -> str | None:
    """The loss term that a finding is about: from its evidence, else quoted in its title."""
    for evidence in finding.evidence:
        for quantity in ("norm", "loss", "share"):
            parts = metrics.parse(f"grad/<block>/term/<term>/{quantity}", evidence.series)
            if parts is not None and "~" not in parts["term"]:
                return parts["term"]
        pair = re.search(r"/term/([^/]+)~([^/]+)/cos$", evidence.series)
        if pair is not None:
            return next((name for name in pair.groups() if role_of(name) != "policy"), pair[2])
    quoted = re.search(r"'([^']+)'", finding.title)
    return None if quoted is None else quoted[1]


def load_probe(name: str) -> Probe:
    """The function `module:function`, from this folder or installed; it raises UsageErrors only."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise UsageError(f"--probe {name}: {FORM}")
    module = _imported(module_name)
    function = getattr(module, function_name, None)
    if function is None:
        public = {each: value for each, value in vars(module).items() if not each.startswith("_")}
        known = [each for each, value in public.items() if callable(value)]
        raise UnknownName(f"function of {module_name}", function_name, known)
    if not callable(function):
        raise UsageError(
            f"--probe {name} is a {type(function).__name__}, which cannot be called: {FORM}"
        )

    def probe(experiment: Experiment) -> Any:
        try:
            return function(experiment)
        except (NotImplementedError, UsageError):
            raise
        except (Exception, SystemExit) as problem:
            told = f"--probe {name} failed on {experiment}: {_told(problem)}"
            raise UsageError(told) from problem

    return probe


def _imported(name: str) -> Any:
    if name.endswith(".py") or "/" in name:
        raise UsageError(
            f"--probe {name}: name the module, not its file: {Path(name).stem}:function"
        )
    with _from_here():
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit) as problem:
            told = f"--probe: {name} cannot be imported: {_told(problem)}"
            missing = problem.name if isinstance(problem, ModuleNotFoundError) else None
            if missing is not None and f"{name}.".startswith(f"{missing}."):
                told = f"--probe: no module {name!r} in {Path.cwd()} or among what is installed"
            raise UsageError(told) from problem


@contextmanager
def _from_here() -> Iterator[None]:
    """As `python -m` does: what lies in this folder can be imported."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _told(problem: BaseException) -> str:
    """What happened and where, without the frames that are ours."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    lines = str(problem).strip().splitlines()
    return f"{type(problem).__name__}{f': {lines[0]}' if lines else ''}{where}"
