"""Do the experts learn different things? Three questions, answered in words.

`judge` reads the series of experts in a run or a log and gives each question a verdict over all
experts (corrected for how many there are), one for each expert, Prismatic's own reading, and what
is missing where there is no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradiometer.doctor.experts.answers import Answer, Answers, Number, Routing, SeriesSource
from gradiometer.doctor.experts.questions import (
    judge_divergence,
    judge_lasting,
    judge_waking,
    listed,
    measure,
)
from gradiometer.doctor.experts.routers import (
    LOAD,
    Share,
    Untrained,
    led_by_aux,
    starved,
    uneven,
    untrained,
)
from gradiometer.doctor.experts.series import (
    IN_A_LAYER,
    OF_ROUTERS,
    OVER_LAYERS,
    REFERENCE,
    ExpertRun,
    ExpertSeries,
    in_order,
    names_of,
)
from gradiometer.doctor.experts.weights import Standing, read_distances, standing_of
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.signs import level, number
from gradiometer.errors import UsageError
from gradiometer.maths.means import mean_interval
from gradiometer.metrics import key, parse
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run
from gradiometer.words import fmt

__all__ = ["Answer", "Answers", "Number", "judge", "read_experts"]

REFERENCES: dict[Routing, str] = {
    "merged": "compared with expert 0, the clean one of a merged-weight router",
    "top-k": (
        "compared with expert 0 as the reference: with top-k routing no expert is the clean one"
    ),
    "unknown": "compared with expert 0, taken for the clean one; how the router works is not known",
}


def judge(run: Run | Log, since: int | None = None) -> Answers:
    """Answer the three questions from step `since` on; a UsageError for a run without experts."""
    series = ExpertSeries(run, since)
    health = look_at_routers(run, series, since)
    distances = read_distances(run)
    standings = {
        e: standing_of((x for x in distances if x.expert == e), dead=e in health.dead)
        for e in series.experts
    }
    apart = measure(series, standings)
    waking, divergence, lasting = (
        judge_waking(series, standings),
        judge_divergence(series, apart),
        judge_lasting(series, apart),
    )
    return Answers(
        routing=series.routing,
        reference=REFERENCES[series.routing],
        experts=series.experts,
        layers=series.layers,
        points=int(series.steps.size),
        first_step=int(series.steps[0]),
        last_step=int(series.steps[-1]),
        waking=waking,
        divergence=divergence,
        lasting=lasting,
        health=health.lines,
        next=advise(
            routing=series.routing,
            answers=(waking, divergence, lasting),
            health=health,
            facts=run.facts,
        ),
        notes=tuple(_notes(series, standings)),
    )


def read_experts(run: Run | Log) -> ExpertRun | None:
    """What a run holds about experts, all of it read and judged; None when that is nothing."""
    found = ExpertRun(run, names_of(run.names()))
    if not any(map(found.has, (*OVER_LAYERS, *IN_A_LAYER))):
        return None
    found.fields((*OVER_LAYERS, *IN_A_LAYER, LOAD, *OF_ROUTERS))
    assert found.histograms is not None
    try:
        found.answers = judge(run)
    except UsageError:
        found.answers = None
    return found


def _notes(series: ExpertSeries, standings: Mapping[str, Standing]) -> list[str]:
    notes = []
    if standings[REFERENCE].dead:
        notes.append(
            "expert 0, which the others are compared with, gets no gradient in the newer half, so"
            " nothing can be compared with it now"
        )
    begin = {
        e: points.steps[0]
        for e in series.others
        if (points := series.pooled("middle_norm", e)).steps.size
    }
    late = [e for e, step in begin.items() if step > series.steps[0]]
    if late:
        first = min(begin[e] for e in late)
        notes.append(
            f"{listed(late)} first seen at step {first:.0f} or later, and compared from there on"
        )
    left_out = sum(series.pooled("norm", e).left_out for e in series.experts)
    if left_out:
        notes.append(f"{left_out} norms were NaN or infinite and are left out")
    return notes


def advise(
    *,
    routing: Routing,
    answers: tuple[Answer, Answer, Answer],
    health: RouterHealth,
    facts: Mapping[str, Any],
) -> tuple[str, ...]:
    """Sentences that begin with what to do."""
    waking, divergence, lasting = answers
    found = list(_router_advice(health))
    scale = f"{_raise_scale(facts)}, or adjust sparsity{_now(facts, 'sparsity')}"
    explained = divergence.verdict == "explained by routing" and lasting.verdict != "collapses"
    if explained and routing == "top-k":
        found.append(
            "Start the experts from different weights: they see different tokens and still learn"
            " the same."
            if lasting.tone == "bad"
            else "Find what reaches every expert whatever its tokens are (a bias, a loss on their"
            " weights): their weights differ and their gradients do not."
        )
    elif explained:
        found.append(
            "Merge per sample instead of once a batch, or route tokens to the top k: one merge"
            f" gives every expert the same gradient. {scale}, once that is done."
        )
    elif routing != "top-k" and (
        waking.verdict == "not waking up" or lasting.verdict in ("collapses", "fades")
    ):
        found.append(f"{scale}.")
    if lasting.verdict == "collapses":
        who = listed(_fallen(lasting))
        found.append(
            f"Find what draws {who} to expert 0 (averaging or merging of weights, a consensus or"
            " distillation loss): a balance loss evens the load and does not keep experts apart."
            if routing == "top-k"
            else f"Lower the weight decay on the experts that approach expert 0: {who}."
        )
    if not found and _waits(answers):
        found.append(
            "Train on, or measure more often (experts_every=), until the intervals decide."
        )
    return tuple(found)


def _router_advice(health: RouterHealth) -> list[str]:
    found = []
    if health.untrained:
        found.append(
            "Let the task reach the router: multiply the experts' output by the router's weights,"
            " do not detach them, and do not normalise a single chosen weight to 1."
        )
    if health.aux_leads and not health.untrained:
        found.append(
            "Lower the coefficient of the balance loss: it moves the router more than the task"
            " does."
        )
    if health.uneven or health.dead or health.starved:
        few = f" ({listed(health.starved)} hardly anything)" if health.starved else ""
        who = f" ({listed(health.dead)} got nothing)" if health.dead else few
        found.append(
            f"Raise the coefficient of the balance loss, or add noise to the router's logits{who}."
        )
    return found


def _raise_scale(facts: Mapping[str, Any]) -> str:
    scale = number(setting(facts, "perturbation_scale"))
    if scale is not None and scale >= 2.0:
        return f"Raise perturbation_scale above {scale:g}"
    return f"Raise perturbation_scale to 2.0 or higher{_now(facts, 'perturbation_scale')}"


def _now(facts: Mapping[str, Any], name: str) -> str:
    value = number(setting(facts, name))
    return f" (now {value:g})" if value is not None else ""


def setting(facts: Mapping[str, Any], name: str) -> Any:
    """A value of the run's configuration by its last name, however nested; None without it."""
    for path, value in facts.items():
        if path == name or str(path).rpartition(".")[2] == name:
            return value
    inner = (setting(value, name) for value in facts.values() if isinstance(value, Mapping))
    return next((value for value in inner if value is not None), None)


def _fallen(lasting: Answer) -> list[str]:
    return [expert for expert, verdict in lasting.experts.items() if verdict == "collapses"]


def _waits(answers: tuple[Answer, ...]) -> bool:
    return any(
        answer.verdict == "undecided" and "more steps" in " ".join(answer.missing)
        for answer in answers
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterHealth:
    """The lines to print, and what of it asks for advice: decided as the doctor's rules do."""

    lines: tuple[str, ...]
    uneven: bool = False
    dead: tuple[str, ...] = ()
    """Without tokens or gradients in the newer half, somewhere."""
    starved: tuple[str, ...] = ()
    """With hardly any."""
    untrained: bool = False
    aux_leads: bool = False


def look_at_routers(run: Run | Log, series: ExpertSeries, since: int | None) -> RouterHealth:
    """Newest half of what was measured: how a router is now, not how it began."""
    data = RunData(run, since=since)
    recent = _Recent(run, set(run.names()), since)
    found, _ = uneven(data)
    few, loads = starved(data), recent.loads()
    dead = tuple(e for e in series.experts if series.silent(e) or loads.get(e) == 0.0)
    hungry = tuple(e for e in in_order({share.expert for share in few}) if e not in dead)
    cut, led = untrained(data), bool(led_by_aux(data)[0])
    return RouterHealth(
        lines=(
            _balance_line(recent, is_uneven=bool(found)),
            _dead_line(recent, dead, [share for share in few if share.expert in hungry]),
            _gradient_line(recent, cut, aux_leads=led),
        ),
        uneven=bool(found),
        dead=dead,
        starved=hungry,
        untrained=cut is not None,
        aux_leads=led,
    )


class _Recent:
    """Router series by quantity: those of `all` where there are any, else of each router."""

    def __init__(self, run: SeriesSource, names: set[str], since: int | None) -> None:
        self._run, self._names, self._since = run, names, since

    def values(self, quantity: str) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        """Router → the newest half of a quantity, finite values only."""
        template = f"router/<router>/{quantity}"
        return {
            parts["router"]: found
            for name in sorted(self._names)
            if (parts := parse(template, name)) and (found := self._newest(name)).size
        }

    def loads(self) -> dict[str, float]:
        """Expert → its mean load: over all routers where that was kept, else the mean of theirs."""
        found: dict[str, dict[str, float]] = {}
        for name in sorted(self._names):
            if (parts := parse(LOAD, name)) and (values := self._newest(name)).size:
                found.setdefault(parts["expert"], {})[parts["router"]] = float(values.mean())
        return {
            e: routers.get("all", float(np.mean(list(routers.values()))))
            for e, routers in found.items()
        }

    def _newest(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        steps, values = self._run.series(name)
        values = values if self._since is None else values[steps >= self._since]
        values = np.asarray(values[values.size // 2 :], dtype=np.float64)
        return values[np.isfinite(values)]


def _level(
    values: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]], *, worst: str
) -> tuple[str, float] | None:
    """Which router, and its median: `all` where kept, else the lowest or highest of them."""
    if "all" in values:
        return "all", float(np.median(values["all"]))
    levels = {router: float(np.median(found)) for router, found in values.items()}
    if not levels:
        return None
    router = (
        min(levels, key=lambda r: levels[r])
        if worst == "low"
        else max(levels, key=lambda r: levels[r])
    )
    return router, levels[router]


def _balance_line(recent: _Recent, *, is_uneven: bool) -> str:
    values = recent.values("balance")
    found = _level(values, worst="low")
    loads = recent.loads()
    if found is None:
        return f"load: not measured ({key('router/<router>/balance', router='all')})"
    router, _ = found
    level = float(values[router].mean())
    interval = mean_interval(values[router])
    within = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
    text = f"load: balance {level:.2f}{within} of 1"
    if loads:
        busy, idle = max(loads, key=lambda e: loads[e]), min(loads, key=lambda e: loads[e])
        spread = f"expert {busy} has {_percent(loads[busy])}, expert {idle} {_percent(loads[idle])}"
        text += (
            f"; {spread}"
            if loads[busy] - loads[idle] > 0.005
            else f"; every expert has {_percent(loads[busy])}"
        )
    return text + (": uneven" if is_uneven else ": even")


def _percent(share: float) -> str:
    """Never 0 % of what is not nothing."""
    if share == 0.0:
        return "nothing"
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.2g}%"


def _dead_line(recent: _Recent, dead: tuple[str, ...], hungry: list[Share]) -> str:
    share = _level(recent.values("dead_share"), worst="high")
    if not recent.loads() and share is None and not dead and not hungry:
        return "dead experts: none by their gradients; loads were not measured"
    within = "" if share is None else f" (at a typical step {share[1]:.0%} get nothing)"
    text = f"dead experts: {listed(dead) if dead else 'none'}{within}"
    if hungry:
        worst = min(hungry, key=lambda share: share.num * level(share.series.last(0.5)))
        what = "load" if worst.kind == "load" else "gradient"
        names = listed(in_order({share.expert for share in hungry}))
        text += (
            f"; starved: {names} (expert {worst.expert} of {worst.place} has"
            f" {_percent(level(worst.series.last(0.5)))} of the {what}, an even share is"
            f" {1 / worst.num:.0%})"
        )
    return text


def _gradient_line(recent: _Recent, cut: Untrained | None, *, aux_leads: bool) -> str:
    task, aux, whole = (
        _level(recent.values(quantity), worst=worst)
        for quantity, worst in (("grad_task", "low"), ("grad_aux", "high"), ("grad", "low"))
    )
    main = task or whole
    not_trained = "the router is not trained by the task, however even its load"
    if cut is not None and cut.how == "cut":
        return f"router gradient: none, no loss has a path to its parameters: {not_trained}"
    if main is None:
        return f"router gradient: not measured ({key('router/<router>/grad_task', router='all')})"
    source = "task" if task else "task and auxiliary together"
    text = f"router gradient: {fmt(main[1])} loss/weight from {source}"
    text += f", {fmt(aux[1])} from the auxiliary loss" if task and aux else ""
    if cut is not None:
        text += f": {not_trained} (minimind issue 858)"
    elif aux_leads:
        text += ": the auxiliary loss leads the router"
    elif task is None:
        text += "; meter.terms would tell them apart"
    return text
