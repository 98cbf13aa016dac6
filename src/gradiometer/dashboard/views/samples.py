"""The tab Samples: texts that a training made, with reward and credit: what an update rewarded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gradiometer.charts.model import Chart, Empty, TableOf
from gradiometer.dashboard.request import ViewRequest
from gradiometer.dashboard.shape import Control, Option, View
from gradiometer.dashboard.views.series import called
from gradiometer.errors import UnknownName, UsageError
from gradiometer.store.samples import TextSample, read_samples, sample_steps
from gradiometer.words import counted

__all__ = ["samples"]

NO_SAMPLES = Empty(
    title="No texts in this run",
    cause="The meter received no prompts and completions.",
    fix="Log them in your training; each call stores at most 32, the highest, the lowest and"
    " some between. TRL's callback logs them with log_completions=True.",
    code="meter.log_samples(prompts, completions, rewards, credit=advantages)",
)
MOST_ROWS = 200
ALL = "all"


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value


ORDERS: dict[str, tuple[str, Callable[[TextSample], float]]] = {
    "credit-high": ("highest credit", lambda each: -_or(each.credit, -math.inf)),
    "credit-low": ("lowest credit", lambda each: _or(each.credit, math.inf)),
    "reward-high": ("highest reward", lambda each: -_or(each.reward, -math.inf)),
    "reward-low": ("lowest reward", lambda each: _or(each.reward, math.inf)),
    "step": ("as they came", lambda each: float(each.step)),
}


def samples(request: ViewRequest) -> View:
    """The samples of the run in focus, in the chosen order."""
    ids = [run.id for run in request.runs]
    steps = sample_steps(request.focus.log)
    if not steps:
        return View(view="samples", title="Samples", runs=ids, empty=NO_SAMPLES)
    at, order, word = _asked(request, steps)
    found = read_samples(request.focus.log, None if at == ALL else int(at))
    if order.startswith("credit") and all(each.credit is None for each in found):
        order = order.replace("credit", "reward")
    kept = [each for each in found if word in f"{each.prompt}\n{each.completion}".lower()]
    kept.sort(key=ORDERS[order][1])
    return View(
        view="samples",
        title="Samples",
        runs=ids,
        header=_header(request, kept, found),
        controls=_controls(steps, at, order, request.query.option("find")),
        charts=[_table(kept[:MOST_ROWS], order)],
    )


def _asked(request: ViewRequest, steps: Sequence[int]) -> tuple[str, str, str]:
    query = request.query
    at, order = query.option("step", str(steps[-1])), query.option("order", "credit-high")
    if order not in ORDERS:
        raise UnknownName("order", order, ORDERS, hint=f"(there are {', '.join(ORDERS)})")
    if at != ALL and not at.isdecimal():
        raise UsageError(f"step={at!r} is not a step; {ALL} is all of them")
    return at, order, query.option("find").lower()


def _header(
    request: ViewRequest, kept: Sequence[TextSample], found: Sequence[TextSample]
) -> list[str]:
    several = f" of {called(request, request.focus)}" if len(request.runs) > 1 else ""
    lines = [f"{counted(len(kept), 'sample')}{several}, of {len(found)} that were kept."]
    if len(kept) > MOST_ROWS:
        lines.append(f"The first {MOST_ROWS} are shown.")
    return lines


def _controls(steps: Sequence[int], at: str, order: str, find: str) -> list[Control]:
    choices = [Option(value=ALL, label="all steps")]
    choices += [Option(value=str(step), label=f"step {step:,}") for step in steps]
    orders = [Option(value=value, label=label) for value, (label, _) in ORDERS.items()]
    hint = "Words in the prompt or the completion"
    return [
        Control(kind="slider", name="step", label="Step", value=at, options=choices),
        Control(kind="choice", name="order", label="First", value=order, options=orders),
        Control(kind="text", name="find", label="Find", value=find, hint=hint),
    ]


def _table(kept: Sequence[TextSample], order: str) -> Chart:
    cells = [[each.step, each.reward, each.credit, each.prompt, each.completion] for each in kept]
    return Chart(
        id="samples",
        kind="table",
        title=f"Texts, {ORDERS[order][0]} first"
        if order != "step"
        else "Texts in the original order",
        subtitle="Credit: how strongly the update makes a text more likely (above 0) or less."
        " With TRL it is the advantage.",
        table=TableOf(columns=["step", "reward", "credit", "prompt", "completion"], cells=cells),
        wide=True,
    )
