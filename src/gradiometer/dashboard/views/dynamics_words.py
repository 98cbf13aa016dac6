"""What the tab Dynamics says in words: divergence and its sound companion, the three questions, why there is nothing."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gradiometer.dashboard.consultant import REST_PER_SECOND
from gradiometer.dashboard.desk import Open
from gradiometer.dashboard.shape import Answer, Empty
from gradiometer.dashboard.views.dynamics_runs import Experts, in_order
from gradiometer.doctor.experts.answers import Answers
from gradiometer.doctor.experts.judge import judge
from gradiometer.doctor.experts.readings import listed
from gradiometer.errors import UsageError
from gradiometer.plots.divergence import verdict
from gradiometer.plots.dynamics import CONVERGED, MEANINGFUL, NAMED
from gradiometer.plots.expertdata import COSINE, DIVERGENCE, LOG_RATIO, LOG_RATIO_ROUTED, MISSING_EVENT, NORM, norm_of
from gradiometer.store.importers import Log
from gradiometer.words import fmt

__all__ = ["Bench", "Judgement", "answers_of", "header_of", "no_experts"]

GOOD = ("waking up", "genuine", "lasts")
UNSURE = ("undecided",)
MOST_KEPT = 128
MISSING_SAID = 2
"""So many of a run's own remarks on missing gradients are repeated."""
CODE = """\
with gm.watch(model, optimizer, run="runs/moe", experts={"moe": ([first, second], router)}) as meter:
    meter.watch_experts(10)  # every tenth step, by itself
    for batch in data:
        loss_of(model, batch).backward()
        meter.log_gradient_dynamics()  # or whenever you say: after backward(), before step() and zero_grad()
        optimizer.step()
        optimizer.zero_grad()
"""
FIX = (
    "Experts beside a router in a module are found by gm.watch itself; others are named with experts=, every one of them: "
    "who is not named is not in the charts. They must be looked at after backward() and before optimizer.step() and "
    "zero_grad(), or there is no gradient to see. The dynamics.db of another tool needs none of this: "
    "`gradiometer serve dynamics.db` shows it as it is."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The three questions of a run, answered, or why they cannot be."""

    answers: Answers | None = None
    problem: str = ""
    fresh: bool = True
    """Made of all that is measured by now."""


@dataclass(slots=True)
class _Kept:
    pulse: Any
    judgement: Judgement
    until: float
    """When it may be made anew, on the monotonic clock."""


@dataclass(slots=True)
class Bench:
    """Judgements by run. With many experts one takes seconds: while a run goes on, it rests in between as the doctor does."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    kept: dict[str, _Kept] = field(default_factory=dict)

    def judge(self, found: Experts) -> Judgement:
        """The answers on a run, at most some seconds old."""
        where, pulse = str(found.run.log.path), _pulse(found)
        with self.guard:  # whoever asks meanwhile would only compute the same
            known = self.kept.pop(where, None)
            if known is None or (known.pulse != pulse and time.monotonic() >= known.until):
                began = time.monotonic()
                judgement, ended = _judge(found), time.monotonic()
                known = _Kept(pulse=pulse, judgement=judgement, until=ended + REST_PER_SECOND * (ended - began))
            self.kept[where] = known
            while len(self.kept) > MOST_KEPT:
                self.kept.pop(next(iter(self.kept)))
        if known.pulse == pulse:
            return known.judgement
        return Judgement(answers=known.judgement.answers, problem=known.judgement.problem, fresh=False)


def _pulse(found: Experts) -> Any:
    """Another one when experts were measured again, or the run began anew."""
    log, steps = found.run.log, found.steps
    ends = (int(steps[0]), int(steps[-1])) if len(steps) else ()
    return log.facts.get("started"), len(log.events("resumed")), len(found.run.names), len(steps), ends


def _judge(found: Experts) -> Judgement:
    try:
        return Judgement(answers=judge(found.run.log))
    except UsageError as problem:
        return Judgement(problem=str(problem))


def answers_of(run: Open, judgement: Judgement) -> list[Answer]:
    """The three questions of source 002 as the page shows them."""
    if judgement.answers is None:
        return []
    return [
        Answer(
            run=run.id, question=answer.question, verdict=answer.verdict, tone=_tone(answer.verdict),
            source_reading=answer.source_reading, sound_reading=answer.sound_reading, missing=list(answer.missing),
        )
        for answer in judgement.answers.answers
    ]  # fmt: skip


def _tone(word: str) -> Literal["good", "bad", "unsure"]:
    return "good" if word in GOOD else "unsure" if word in UNSURE else "bad"


def header_of(found: Experts, judgement: Judgement | None) -> list[str]:
    """Divergence as the source has it, what is left of it after routing, what is wrong, and what to try."""
    lines = [*_divergence(found), *_absent(found), *_said(found.run)]
    if judgement is None:
        return lines
    if judgement.problem:
        lines.append(f"The three questions cannot be answered: {judgement.problem}.")
    if judgement.answers is not None:
        old = "" if judgement.fresh else f" (as of step {judgement.answers.last_step})"
        lines += [f"Compared{old}: {judgement.answers.reference.removeprefix('compared ')}."]
        lines += [f"{note[:1].upper()}{note[1:]}." for note in judgement.answers.notes]
        lines += [f"Try next: {advice}" for advice in judgement.answers.next]
    return lines


def _divergence(found: Experts) -> Iterator[str]:
    """The source's score at the latest measurement and its reading; then whether routing explains it."""
    recent = found.read(DIVERGENCE, LOG_RATIO, LOG_RATIO_ROUTED, COSINE)
    if recent is None:
        yield "Divergence score: not measured."
        return
    field = recent.field(DIVERGENCE)
    rows = [(row, np.flatnonzero(there)) for row, there in zip(field.rows, field.there, strict=True)]
    latest = {row: float(field.row(row)[0][places[-1]]) for row, places in rows if len(places)}
    if latest:
        step = max(int(field.steps[places[-1]]) for _, places in rows if len(places))
        yield f"Divergence score at step {step}: {_score(latest)}: {_reading(list(latest.values()))}."
    else:
        yield "Divergence score: not measured."
    yield f"Sound companion: {plain(verdict(recent))}"


def _score(latest: dict[str, float]) -> str:
    known = {expert: value for expert, value in latest.items() if np.isfinite(value)}
    if len(latest) <= NAMED or not known:
        return ", ".join(f"{fmt(value)} (expert {expert})" for expert, value in list(latest.items())[:NAMED])
    least, most = (pick(known, key=lambda expert: known[expert]) for pick in (min, max))
    middle = fmt(float(np.median(list(known.values()))))
    return (
        f"{middle} in the median of {len(known)} experts, from {fmt(known[least])} (expert {least}) "
        f"to {fmt(known[most])} (expert {most})"
    )


def _reading(values: Sequence[float]) -> str:
    """As source 002 reads it."""
    rule = f"above {MEANINGFUL} is meaningful, below {CONVERGED} converging"
    known = [value for value in values if np.isfinite(value)]
    if not known:
        return f"no finite number ({rule})"
    if min(known) > MEANINGFUL:
        return f"meaningful ({rule})"
    if max(known) < CONVERGED:
        return f"converging ({rule})"
    return f"meaningful in some experts ({rule})" if max(known) > MEANINGFUL else f"in between ({rule})"


def plain(text: str) -> str:
    """The figures' words without their mathematics markup."""
    return re.sub(r"\$(.+?)\\times10\^\{(-?\d+)\}\$", r"\1e\2", text)


def _absent(found: Experts) -> Iterator[str]:
    """Experts that a router knows, or that are counted past, and whose gradients nobody recorded."""
    measured = {
        e for template in (NORM, *map(norm_of, ("top", "bottom", "middle"))) for e in found.names.get(template, ())
    }
    numbers = [int(expert) for expert in measured if expert.isdecimal()]
    expected = {str(number) for number in range(max(numbers, default=-1) + 1)} | set(found.experts)
    if missing := in_order(expected - measured):
        yield (
            f"No gradient norms of {listed(missing)}: the router never asked them, or they were not among those logged. "
            "In a loop of your own go through every expert."
        )


def _said(run: Open) -> Iterator[str]:
    """What the run itself remarked when experts had no gradient."""
    for event in [] if isinstance(run.log, Log) else run.log.events(MISSING_EVENT)[:MISSING_SAID]:
        yield f"Step {event.step}: {event.message}."


def no_experts(run: Open) -> Empty:
    """Nothing to draw: why, as far as the run says it, and how there would be something."""
    return Empty(title=f"No expert gradients in {run.label}", cause=_cause(run), fix=FIX, code=CODE)


def _cause(run: Open) -> str:
    log = run.log
    if isinstance(log, Log):
        kind = log.facts.get("imported", {}).get("format", "another tool")
        return (
            f"This is a log of {kind} with {len(run.names)} series, and none is an expert's gradient "
            "(grad/expert/0/top_norm, or expert_0_top_norm as source 002 has it)."
        )
    said = list(_said(run))
    if said:
        return f"The run says why. {' '.join(said)}"
    if "experts_every" in (meter := log.facts.get("meter", {})) and meter["experts_every"] is None:
        return "The meter was told never to look at experts (experts_every=None)."
    return "The meter found no experts beside a router in this model, or was told to leave them out (experts=False)."
