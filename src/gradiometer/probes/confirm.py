"""Confirming experiments: change one thing, and see whether what the finding says follows.

A probe is a function that carries out an experiment and returns numbers:

    def probe(experiment: Experiment) -> Mapping[str, float] | float: ...

It is somebody's own (`--probe module:function`), or trains a lab again (`labs.confirm`). Which experiment belongs to which
finding stands in one table, `EXPERIMENTS`. Nothing here needs torch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from gradiometer import metrics
from gradiometer.doctor.roles import role_of
from gradiometer.errors import UsageError
from gradiometer.probes import confirmjudges as judges
from gradiometer.probes.confirmjudges import Judge, Numbers, Outcome, Seen
from gradiometer.records import Finding

__all__ = [
    "EXPERIMENTS",
    "Confirmation",
    "Experiment",
    "Kind",
    "Plan",
    "Probe",
    "confirmed",
    "seeds_of",
    "worth_confirming",
]

Kind = Literal["baseline", "zero-term", "freeze", "replicate", "resample", "line-search"]

MOST_FINDINGS = 2
"""Findings that are confirmed: those the report tells whole."""
SEEDS = 5
"""Trainings of each kind that are compared: Student's quantile is 2.8 there, and 4.3 with three."""
REPLICATES = 12
"""Gradients at the same weights: enough for an interval, and every pattern of signs can be tried."""
LENGTHS = (0.1, 0.3, 1.0, 3.0)
"""Of a step, as multiples of what the optimizer takes."""
FROM_NOTHING = (0.0, 0.1, 0.3, 1.0)
"""The same where the question is whether a step of any length is better than none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What a probe is asked to do, and with which seed; what it does not know how to do it raises NotImplementedError for.

    baseline: the training as it is. zero-term: the coefficient of `term` at 0. freeze: nothing trains `block` (the critic: no
    value loss, `term`). replicate: the gradient on fresh samples, at the same weights whatever the seed, as
    `projection/<i>`: its elements, or any fixed linear projections of it. resample: the gradient of the log-probability of
    freshly sampled actions, likewise. line-search: every update `scale` times as long as it is, 0 for none at all, judged on
    data it has not seen.
    """

    kind: Kind
    term: str | None = None
    block: str | None = None
    scale: float = 1.0
    seed: int = 0


Probe: TypeAlias = Callable[[Experiment], Mapping[str, float] | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The experiment that belongs to a finding."""

    kind: Kind
    judge: Judge
    term: str | None = None
    """None: the term that the finding's evidence names."""
    block: str | None = None
    """None: the finding's own."""
    scales: tuple[float, ...] = LENGTHS
    """Of a line search."""
    done: str
    """What is done, in words; {term} and {block} are filled in."""

    def arms(self, finding: Finding) -> tuple[Experiment, ...]:
        """What each seed is tried with."""
        change = Experiment(
            kind=self.kind, term=self.term or _term_of(finding), block=self.block or finding.block, scale=1.0
        )
        if self.kind == "line-search":
            return tuple(replace(change, scale=scale) for scale in self.scales)
        if self.kind in ("replicate", "resample"):
            return (change,)
        baseline = Experiment(kind="baseline")
        # Twice the same: only where a training repeats itself does a difference mean something.
        return (baseline, baseline, change) if self.judge is judges.identical else (baseline, change)

    @property
    def num_seeds(self) -> int:
        """How often each is tried."""
        if self.kind in ("replicate", "resample"):
            return REPLICATES
        return 1 if self.judge in (judges.identical, judges.untrained) else SEEDS


_ZERO = "the coefficient of {term} at 0, against as it is"
_FROZEN = "{block} frozen, against as it is"
_SEARCH = "every update at 0.1, 0.3, 1 and 3 times its length, on data it has not seen"
_ANY = "every update at 0, 0.1, 0.3 and 1 times its length, on data it has not seen"
_FRESH = f"the gradient on fresh samples at the same weights, {REPLICATES} times"

EXPERIMENTS: dict[str, Plan] = {
    "dead-term": Plan(kind="zero-term", judge=judges.identical, done=_ZERO),
    "dead-block": Plan(kind="freeze", judge=judges.identical, done=_FROZEN),
    "not-in-optimizer": Plan(kind="freeze", judge=judges.identical, done=_FROZEN),
    "loss-not-reaching-module": Plan(kind="freeze", judge=judges.identical, done=_FROZEN),
    "critic-dominates": Plan(kind="freeze", judge=judges.better, term="value", block="critic", done=_FROZEN),
    "regulariser-dominates": Plan(kind="zero-term", judge=judges.better, done=_ZERO),
    "terms-conflict": Plan(kind="zero-term", judge=judges.better, done=_ZERO),
    "kl-strangled": Plan(kind="zero-term", judge=judges.better, term="kl", done=_ZERO),
    "entropy-never-falls": Plan(kind="zero-term", judge=judges.entropy_falls, term="entropy", done=_ZERO),
    "router-untrained": Plan(kind="zero-term", judge=judges.untrained, term="aux", block="router", done=_ZERO),
    "noise-dominated": Plan(kind="replicate", judge=judges.noisy, done=_FRESH),
    "direction-random": Plan(kind="replicate", judge=judges.noisy, done=_FRESH),
    "score-not-zero-mean": Plan(
        kind="resample", judge=judges.biased, done=f"the score of freshly sampled actions, {REPLICATES} times"
    ),
    "step-too-large": Plan(kind="line-search", judge=judges.too_large, done=_SEARCH),
    "update-opposes-reward": Plan(kind="line-search", judge=judges.opposed, scales=FROM_NOTHING, done=_ANY),
    "reward-declining": Plan(kind="line-search", judge=judges.too_large, done=_SEARCH),
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

    Without a probe each says that it is `missing` and how to make sure by hand. `progress` gets the finding's id, and how
    many of how many experiments are done.
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
    finding: Finding, plan: Plan, probe: Probe, seed: int, progress: Callable[[str, int, int], None] | None
) -> Confirmation:
    started, seeds, arms = time.perf_counter(), seeds_of(seed, plan.num_seeds), plan.arms(finding)
    change = arms[-1]
    found: list[list[Numbers]] = [[] for _ in arms]
    try:
        for number, each in enumerate(seeds):
            for count, place in enumerate(
                reversed(range(len(arms))), 1
            ):  # the change first: what cannot be done is told
                asked = replace(arms[place], seed=each)
                found[place].append(_numbers(probe(asked), asked))
                if progress is not None:
                    progress(finding.id, number * len(arms) + count, len(seeds) * len(arms))
    except NotImplementedError as problem:
        return _not_run(finding, f"the probe does not do {change.kind}" + (f": {problem}" if str(problem) else ""))
    result = plan.judge(Seen(arms=found, scales=tuple(arm.scale for arm in arms), term=change.term, block=change.block))
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
        raise UsageError(f"the probe returned no numbers for {experiment}: return a loss, or numbers by name")
    return {_name(name, experiment): _number(value, str(name), experiment) for name, value in found.items()}


def _name(name: Any, experiment: Experiment) -> str:
    if not isinstance(name, str):
        raise UsageError(
            f"the probe returned a number under {name!r} for {experiment}: names are text, such as 'reward'"
        )
    return name


def _number(value: Any, name: str, experiment: Experiment) -> float:
    if not isinstance(value, str | bytes | bool | complex) and value is not None:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
            pass
    shown = repr(value) if len(repr(value)) < 60 else type(value).__name__
    raise UsageError(f"the probe returned {name} = {shown} for {experiment}: return a number, or numbers by name")


def _term_of(finding: Finding) -> str | None:
    """The loss term that a finding is about: from the series its evidence points at, else quoted in its title."""
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
