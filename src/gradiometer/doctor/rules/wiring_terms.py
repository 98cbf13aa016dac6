"""Loss terms: one that no weight feels, and one that nobody was told about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.roles import COEFFICIENTS, Role, role_of
from gradiometer.doctor.rule import Verdict
from gradiometer.doctor.rules.wiring import wired
from gradiometer.doctor.signs import level, since
from gradiometer.metrics import key
from gradiometer.records import Basis, Evidence, Finding, Severity
from gradiometer.store.readable import Floats, Ints
from gradiometer.words import fmt

__all__ = ["dead_term", "hidden_term"]

NORM, LOSS = "grad/<block>/term/<term>/norm", "grad/<block>/term/<term>/loss"
ADDITIVITY = "grad/all/term/additivity_error"

DEAD_AFTER = 20
"""Measured steps with an input and an exactly zero gradient after which a stationary term is dead: FORMULAS section 5."""
NOTED_AFTER = 5
"""Exact zeros before they are worth a line: the first five measured steps are always split, and at π = π_ref a KL is zero."""
NO_INPUT = 1e-6
"""A KL, or a term's own value, up to which there may be nothing to push: FORMULAS section 5."""

ROUNDING = {"float32": 5e-3, "float16": 1e-2, "bfloat16": 2.5e-2}
"""Additivity error that rounding may make. bfloat16: five times the 5e-3 of healthy models (docs/guide/meter.md). float32 has
5e-7 there, but a GPU may multiply in TF32 (5e-4): ten times that, and less than that of a gradient is not worth acting on."""
TYPICAL = 0.2
"""Of those bounds, the error healthy models have: every one of the newer half must be above it, and their median above the
bound, for a hidden term is in the loss of every step."""
MIN_ADDITIVITY = 3

SCALAR_LOSSES = {"task": "policy"}
"""RAGEN's gradient analysis calls the task's loss `policy`."""
FIXES: dict[Role | None, tuple[str, ...]] = {
    "entropy": (
        "Compute the entropy outside of torch.no_grad() from the logits that are trained: "
        "entropy = Categorical(logits=logits).entropy().mean()",
        "Look for .detach(), .item(), .numpy() or a stored rollout entropy between the logits and the bonus",
    ),
    "kl": (
        "Take the policy's log-probs with gradient and only the reference's under torch.no_grad(): "
        "d = ref_log_prob.detach() - log_prob",
    ),
    "policy": (
        "Recompute log_prob from the current weights inside the update: ratio = (log_prob - old_log_prob.detach()).exp(); "
        "detach only the old one and the advantages",
    ),
    "value": ("Compute the values from the current critic inside the update, not from the rollout's stored ones",),
}
ELSE = ("Look for torch.no_grad(), .detach(), .item() or numpy between the weights and this term",)
REFERENCES = ("TRL pull requests 5595 and 5596", "mlx-lm-lora issue 50", "NeMo-RL issue 3792")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Zeros:
    """The exact zeros at the end of a term's norms."""

    term: str
    norm: Series
    steps: Ints
    pushed: int
    """On how many of them the term had something to push."""
    structural: bool
    """Whether the meter knows that there is a path."""


@wired("dead-term")
def dead_term(chart: Chart) -> Verdict:
    """A term in the loss that no weight feels: its coefficient does nothing, whatever the loss shows.

    Proved at once where the autograd graph has no path. A path whose gradient is exactly zero is stationary, information only,
    until it has been so on 20 measured steps on which the term had something to push.
    """
    without_path = dict(_without_path(chart))
    found = [_no_path(chart, term, step) for term, step in without_path.items() if not _switched_off(chart, term)]
    found += list(_dead_rewards(chart))
    norms = list(_norms(chart))
    for zeros in _zeros(chart, norms):
        if zeros.term not in without_path and not _switched_off(chart, zeros.term):
            found += _stationary(zeros)
    if not found and not norms and not without_path and not chart.has(LOSS):
        return unlogged("dead-term", NORM)
    return found


def _without_path(chart: Chart) -> Iterator[tuple[str, int]]:
    """Terms that reach no parameter, with the step since when; not those that have had a gradient since."""
    begun: dict[str, int] = {}
    for table in chart.run.tables("terms") if "terms" in chart.run.table_names() else ():
        rows = table.content.items() if isinstance(table.content, dict) else ()
        for term, row in rows:
            if isinstance(row, dict) and row and set(row.values()) == {"none"}:
                begun.setdefault(str(term), table.step)
            else:
                begun.pop(str(term), None)
    for event in chart.events("dead-term"):
        if term := event.detail.get("term"):
            begun[str(term)] = min(event.step, begun.get(str(term), event.step))
    for term, step in begun.items():
        norm = chart.get(NORM, block="all", term=term)
        if norm is None or not norm.values[norm.steps > step].any():  # a NaN is a gradient too
            yield term, step


def _no_path(chart: Chart, term: str, step: int) -> Finding:
    loss = chart.get(LOSS, block="all", term=term)
    empty = loss is not None and len(loss) > 0 and not loss.values.any()
    value = "" if loss is None or not len(loss.finite) else f", while its loss reads {fmt(level(loss))}"
    evidence = [Evidence(series="terms", reading=f"no autograd path from {term!r} to any parameter", first_step=step)]
    if loss is not None and len(loss):
        ends = int(loss.steps[0]), int(loss.steps[-1])
        reading = f"{fmt(level(loss))} on {len(loss)} measured steps: in the loss, and in no gradient"
        evidence.append(Evidence(series=loss.name, reading=reading, first_step=ends[0], last_step=ends[1]))
    return Finding(
        id="dead-term",
        title=f"The loss term {term!r} has no gradient: no path leads from it to any weight{value}",
        severity="warn" if empty else "critical",
        basis="proved",
        since_step=step,
        evidence=tuple(evidence),
        cause="The term was computed from values that are cut off from the weights"
        + (", or was never filled in: it is exactly zero." if empty else ". Its coefficient has no effect at all."),
        fix=FIXES.get(role_of(term), ELSE),
        confirm=f"Print {term}.requires_grad before backward(): it must be True. Then multiply its coefficient by ten: today "
        "that changes no weight.",
        references=REFERENCES,
    )


def _dead_rewards(chart: Chart) -> Iterator[Finding]:
    for event in chart.events("dead-reward"):
        yield Finding(
            id="dead-term",
            title=f"The reward {event.detail.get('reward', '?')!r} has no part in any gradient",
            severity="warn",
            basis="proved",
            since_step=event.step,
            evidence=(Evidence(series="events", reading=event.message, first_step=event.step),),
            cause="Its advantages were given to meter.terms, but no term of the loss hangs on them.",
            fix=("Add these advantages to those that the policy term uses, or leave them out of meter.terms",),
            confirm="Scale this reward by ten: today the policy gradient does not change.",
        )


def _norms(chart: Chart) -> Iterator[tuple[str, Series, Series | None, bool]]:
    """(term, its gradient norms, its losses, whether we split it ourselves): ours, else those of a gradient analysis."""
    ours = {series.parts["term"]: series for series in chart.every(NORM) if series.parts["block"] == "all"}
    for term, series in ours.items():
        yield term, series, chart.get(LOSS, block="all", term=term), True
    analysed = {series.parts["term"]: series for series in chart.every("actor/grad_norm/<term>")}
    bucketed = [s for s in chart.every("grad_norm/<bucket>/<term>") if s.parts["bucket"] == "all"]
    analysed = {series.parts["term"]: series for series in bucketed} | analysed
    for term, series in analysed.items():
        if term != "total" and term not in ours:
            name = SCALAR_LOSSES.get(term, term)
            loss = chart.get("actor/loss/<name>", name=name)
            yield term, series, loss or chart.get("grad_norm/<bucket>/loss/<name>", bucket="all", name=name), False


def _zeros(chart: Chart, norms: list[tuple[str, Series, Series | None, bool]]) -> Iterator[_Zeros]:
    for term, norm, loss, structural in norms:
        there = np.flatnonzero(norm.values != 0)
        steps = norm.steps[there[-1] + 1 if len(there) else 0 :]
        if len(steps):
            pushed = int(_pushes(chart, term, loss, steps).sum())
            yield _Zeros(term=term, norm=norm, steps=steps, pushed=pushed, structural=structural)


def _pushes(chart: Chart, term: str, loss: Series | None, steps: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """On which steps the term's own input was not zero: KL > 1e-6, advantages ≠ 0, else its value."""
    role = role_of(term)
    if role == "kl" and (kl := chart.get("kl_ref")) is not None:
        return np.abs(_at(kl, steps)) > NO_INPUT
    if role == "policy":
        for statistic in ("std", "max_abs"):
            if (advantages := chart.get("advantages/<statistic>", statistic=statistic)) is not None:
                return np.abs(_at(advantages, steps)) > 0
    return np.abs(_at(loss, steps)) > NO_INPUT if loss is not None else np.zeros(len(steps), dtype=bool)


def _at(series: Series, steps: Ints) -> Floats:
    """The value that held at each step: the newest up to it, or the first where none is; NaN without any."""
    if not len(series):
        return np.full(len(steps), np.nan)
    return series.values[np.maximum(np.searchsorted(series.steps, steps, side="right") - 1, 0)]


def _stationary(zeros: _Zeros) -> list[Finding]:
    """Dead after 20 zeros that had something to push; before that a note, and of an analysed entropy a warning."""
    severity: Severity = "info"
    basis: Basis = "heuristic"
    if zeros.pushed >= DEAD_AFTER:
        severity, basis = "critical", "proved"
    elif zeros.pushed >= NOTED_AFTER and role_of(zeros.term) == "entropy" and not zeros.structural:
        severity = (
            "warn"  # no policy stands at even odds, or at none, for five steps: without a graph to ask, that is a sign
        )
    elif len(zeros.steps) < NOTED_AFTER:
        return []
    first, last = int(zeros.steps[0]), int(zeros.steps[-1])
    count = f"{len(zeros.steps)} measured steps, on {zeros.pushed} of which it had something to push"
    state = "has been" if severity != "info" else "is stationary: it has been"
    return [
        Finding(
            id="dead-term",
            title=f"The gradient of the loss term {zeros.term!r} {state} exactly zero on {len(zeros.steps)} measured steps",
            severity=severity,
            basis=basis,
            since_step=first,
            evidence=(
                Evidence(series=zeros.norm.name, reading=f"exactly 0 on {count}", first_step=first, last_step=last),
            ),
            cause="Nothing of it reaches a weight although its value is not zero: it is cut off, or every part that depends "
            "on the weights cancels or is clamped."
            if severity != "info"
            else "At π = π_ref, or with advantages of zero, a gradient of exactly zero is right; it should pass.",
            fix=FIXES.get(role_of(zeros.term), ELSE),
            confirm=f"Print torch.autograd.grad({zeros.term}, parameters, allow_unused=True): every entry is None or zero.",
            references=REFERENCES,
        )
    ]


def _switched_off(chart: Chart, term: str) -> bool:
    """Whether the run says that the term's coefficient is zero: then it is meant to do nothing."""
    role = role_of(term)
    coefficient = None if role is None else chart.fact(*COEFFICIENTS.get(role, ()))
    return isinstance(coefficient, int | float) and not isinstance(coefficient, bool) and coefficient == 0


@wired("hidden-term")
def hidden_term(chart: Chart) -> Verdict:
    """The gradient that backward made is not the sum of the terms it was said to have, by more than rounding.

    A difference thousands of times above rounding on every step needs no statistics. One below it cannot be seen.
    """
    series = chart.get(ADDITIVITY)
    if series is None or len(series.finite) < MIN_ADDITIVITY:
        return too_short("hidden-term", series, MIN_ADDITIVITY) if series else unlogged("hidden-term", ADDITIVITY)
    dtype = _dtype(chart)
    bound = ROUNDING.get(dtype, max(ROUNDING.values()))
    finite = series.finite
    newer = finite.values[-max(MIN_ADDITIVITY, len(finite) // 2) :]
    if float(np.median(newer)) <= bound or float(newer.min()) <= TYPICAL * bound:
        return None
    first = since(finite, lambda x: x > TYPICAL * bound)
    error = float(np.median(newer))
    words = f"of {dtype}" if dtype in ROUNDING else "of any precision"
    return Finding(
        id="hidden-term",
        title=f"A part of {error:.{0 if error >= 0.1 else 1}%} of the gradient comes from no term that was named",
        severity="warn",
        basis="proved",
        since_step=first,
        evidence=(
            Evidence(
                series=series.name,
                reading=f"median {fmt(error)} of the newest {len(newer)}; rounding {words} stays below {fmt(bound)}",
                first_step=first,
                last_step=int(finite.steps[-1]),
            ),
        ),
        cause="The loss that went backward holds a term meter.terms was not given (an auxiliary loss a model adds by itself, "
        "gradients left over from an earlier backward), or a hook changes gradients on their way.",
        fix=(
            "Give every part of the loss to meter.terms, also what a model adds by itself (transformers: router_aux_loss_coef)",
            "Call zero_grad() for every parameter before each backward, also for those of no optimizer: model.zero_grad()",
        ),
        confirm=f"Switch off what is suspected (its coefficient to 0): {key(ADDITIVITY)} must fall to rounding.",
        references=("Megatron-LM issue 5694: an inherited auxiliary loss made the gradient 3.4 times as long",),
    )


def _dtype(chart: Chart) -> str:
    """What the run calculates in, as far as it says; empty when it does not."""
    for flag, name in (("bf16", "bfloat16"), ("fp16", "float16")):
        if chart.fact(flag) is True:
            return name
    said = str(chart.fact("torch_dtype", "dtype", "precision", "mixed_precision", "amp_dtype") or "").lower()
    for name, spellings in (
        ("bfloat16", ("bfloat16", "bf16")),
        ("float16", ("float16", "fp16", "half", "16-mixed")),
        ("float32", ("float32", "fp32", "32-true", "32")),
    ):
        if any(spelling in said for spelling in spellings):
            return name
    return ""
