"""History: where the gradient's norm goes, what comes back in it, and whether it has a direction. Information, no alarms.

A schedule of the learning rate, a policy that converges and the epochs of PPO all show here, and a cosine near 0 is normal.
"""

from __future__ import annotations

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.gradients import (
    NORM,
    flat_outcome,
    layered,
    log10,
    seen,
    stays,
    stuck,
    together,
    where,
)
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.signs import enough, learning, level, since
from gradiometer.maths import trends
from gradiometer.maths.means import mean_interval
from gradiometer.records import Finding
from gradiometer.words import fmt

__all__: list[str] = []

LEVEL = 0.01
"""Over all blocks together, by Bonferroni: a run is read a few dozen times."""
MIN_DRIFT = 1.0
"""Decades over the run: a norm is steady within a decade of its own history, and less changes nobody's mind."""
MIN_POINTS = 24
"""Three windows of four measurements are the last half of so many."""
MIN_PERIOD_POINTS = 32
"""What `dominant_period` needs."""
PERIOD_POINTS = 512
"""The newest that are searched: the cost grows with their square, and they show periods of up to 170 measurements."""
MIN_AMPLITUDE = 0.15
"""Decades from the middle to the crest: the crest is twice the trough."""
SAME_PERIOD = 0.05
"""Share by which a period may be off a known one: it is good to a quarter of a cycle over the window."""
TO_AND_FRO = -0.2
"""Median cosine with the step before, beyond any cos_noise that a network of some thousand weights has."""
RANDOM = 2.0
"""Times what noise alone reads: a gradient with less in common with the ones before has no direction that can be told."""
SKETCH_ERROR = 0.03
"""Of a cosine from sketches of 1024."""
EPOCHS = ("update_epochs", "n_epochs", "num_ppo_epochs", "ppo_epochs", "num_epochs")
MINIBATCHES = ("num_minibatches", "num_mini_batches", "n_minibatches")


@rule("gradient-drift", needs=(NORM,))
def gradient_drift(chart: Chart) -> Verdict:
    """The norm has a trend of a decade or more over the run, and what may be behind it."""
    norms = [log10(series) for series in chart.every(NORM) if not layered(series)]
    norms = [log for log in norms if enough(log, MIN_POINTS)]
    if not norms:
        return too_short("gradient-drift", chart.every(NORM), MIN_POINTS)
    drifts = [(log, trends.drift(log.steps, log.values, min_effect=MIN_DRIFT)) for log in norms]
    sure = [
        (log, d)
        for log, d in drifts
        if d is not None and d.p_value is not None and d.significant and d.p_value * len(norms) < LEVEL
    ]
    if not sure:
        return None
    log, drift = max(sure, key=lambda x: abs(x[1].change))
    way = "up" if drift.change > 0 else "down"
    return Finding(
        id="gradient-drift",
        title=f"The gradient norm of {where(log)} drifts {way} by {abs(drift.change):.1f} decades over the run",
        severity="info",
        basis="statistical",
        since_step=int(log.steps[0]),
        block=where(log),
        evidence=(
            seen(log, f"Theil–Sen slope {fmt(drift.slope)} decades per 1000 steps, p = {fmt(drift.p_value or 0.0)} on "
                 f"{drift.num_blocks} blocks; {len(sure)} of {len(norms)} blocks drift"),
        ),
        cause=_behind(chart, log, rising=drift.change > 0),
        fix=("nothing while the reward rises: Adam follows the scale", "if it does not rise: see the findings beside this one"),
        confirm="Train on with a constant learning rate: what is left of the drift is the policy's.",
        references=("docs/guide/meter.md",),
    )  # fmt: skip


def _behind(chart: Chart, log: Series, *, rising: bool) -> str:
    """What may make a norm drift, as far as the log tells."""
    rate = chart.get("optimizer/<number>/lr", number="0") or chart.get("learning_rate")
    if rate is not None:
        x, y = together(log, rate)
        found = trends.correlation(x.values, y.values)
        if found is not None and abs(found.rho) > 0.5:
            return (
                f"It goes with the learning rate (rank correlation {found.rho:.2f}): the schedule settles the policy."
            )
    if learning(chart):
        return "The reward rises with it: " + ("returns grow." if rising else "the policy converges.")
    return (
        "Growing advantages, values or weights."
        if rising
        else "Convergence, a collapsing entropy, or fewer advantages."
    )


@rule("gradient-oscillation")
def gradient_oscillation(chart: Chart) -> Verdict:
    """The norm comes and goes with a period that is not that of the epochs, or steps point against the steps before."""
    norms = [log10(series) for series in chart.every(NORM) if not layered(series)]
    norms = [log for log in norms if enough(log, MIN_PERIOD_POINTS)]
    turns = chart.get("grad/<block>/cos_prev", block="all")
    back = turns is not None and enough(turns, MIN_POINTS) and stays(turns, lambda x: x < TO_AND_FRO)
    if turns is not None and back:
        return _to_and_fro(turns)
    if not norms:
        return too_short("gradient-oscillation", chart.every(NORM), MIN_PERIOD_POINTS, metric=NORM)
    periods = [(log, trends.dominant_period(log.steps[-PERIOD_POINTS:], log.values[-PERIOD_POINTS:])) for log in norms]
    sure = [(log, p) for log, p in periods if p is not None and p.p_value * len(norms) < LEVEL]
    sure = [(log, p) for log, p in sure if p.amplitude >= MIN_AMPLITUDE and not _of_epochs(chart, p.steps)]
    if not sure:
        return None
    log, period = max(sure, key=lambda x: x[1].amplitude)
    return Finding(
        id="gradient-oscillation",
        title=f"The gradient norm of {where(log)} comes and goes every {fmt(period.steps)} steps, by a factor of "
        f"{10 ** (2 * period.amplitude):.1f}",
        severity="info",
        basis="statistical",
        since_step=int(log.steps[0]),
        block=where(log),
        evidence=(seen(log, f"period {fmt(period.steps)} steps, amplitude {fmt(period.amplitude)} decades, "
                       f"p = {fmt(period.p_value)}; {len(sure)} of {len(norms)} blocks"),),
        cause="Something repeats with it: the epochs over a rollout, updates of a target network, evaluations, a curriculum, "
        "or a data loader that starts anew.",
        fix=("look for what has this period; one pass over a rollout is harmless",
             "fewer epochs if it is the epochs and KL grows"),
        confirm="Change the suspected interval: the period must change with it.",
        references=("Lomb–Scargle against an AR(1) background (Zechmeister and Kürster 2009)",),
    )  # fmt: skip


def _to_and_fro(turns: Series) -> Finding:
    now = level(turns.last(0.5))
    return Finding(
        id="gradient-oscillation",
        title=f"Each gradient points against the one before: cosine {now:.2f}",
        severity="info",
        basis="heuristic",
        since_step=since(turns, lambda x: x < TO_AND_FRO),
        block=where(turns),
        evidence=(seen(turns, f"median {fmt(now)} over the last half; noise alone reads 0"),),
        cause="The steps overshoot: each one passes the point it aims at, and the next one comes back.",
        fix=("lower the learning rate by 2 to 3", "or lower the momentum (Adam's beta1)"),
        confirm="Halve the learning rate from a checkpoint: the cosine must rise towards 0.",
        references=("A. Jones, Debugging RL: oscillation is a learning rate too high",),
    )


def _of_epochs(chart: Chart, period: float) -> bool:
    """Whether it is a pass over the minibatches, an update of several passes, or a fraction of these."""
    told = [chart.fact(*names) for names in (EPOCHS, MINIBATCHES)]
    epochs, batches = (x if isinstance(x, int) and not isinstance(x, bool) and x > 0 else 0 for x in told)
    known = [length / k for length in (epochs * batches, batches, epochs) for k in (1, 2, 3, 4) if length / k >= 2]
    return any(abs(period - length) <= SAME_PERIOD * length for length in known)


@rule("direction-random", needs=("grad/<block>/cos_prev", "reward"))
def direction_random(chart: Chart) -> Verdict:
    """Gradients have no more in common with those before than noise has, and the reward is flat.

    A cosine near 0 is normal where a policy learns from noisy batches; only together with a flat reward, and where every
    cosine that was measured says so, is it worth a word.
    """
    block = "actor" if chart.get("grad/<block>/cos_prev", block="actor") is not None else "all"
    previous, noise = (chart.get(f"grad/<block>/{name}", block=block) for name in ("cos_prev", "cos_noise"))
    if previous is None or not enough(previous, MIN_POINTS):
        return too_short("direction-random", chart.every("grad/<block>/cos_prev"), MIN_POINTS)
    if noise is None or not len(noise.finite):
        return unlogged("direction-random", "grad/<block>/cos_noise")
    if not stuck(chart):
        return None
    floor = RANDOM * max(level(noise), SKETCH_ERROR)
    average = chart.get("grad/<block>/cos_ema", block=block)
    cosines = [previous] + ([average] if average is not None and enough(average, MIN_POINTS // 2) else [])
    intervals = [mean_interval(series.last(0.5).values) for series in cosines]
    if any(interval is None or interval.high > floor or interval.low < -floor for interval in intervals):
        return None
    readings = [
        seen(series, f"mean {fmt(interval.mean)}, 95 % interval {fmt(interval.low)} to {fmt(interval.high)}; noise alone "
             f"reads up to {fmt(floor)}")
        for series, interval in zip(cosines, intervals, strict=True) if interval is not None
    ]  # fmt: skip
    return Finding(
        id="direction-random",
        title=f"The gradient of {block} has no direction: it has no more in common with the ones before than noise",
        severity="info",
        basis="statistical",
        since_step=int(previous.last(0.5).steps[0]),
        block=block,
        evidence=(*readings, *flat_outcome(chart)),
        cause="Noise is larger than signal in a single batch. That is normal in RL; with a reward that is flat too, the batch "
        "may be too small, or the reward may not depend on what the policy does.",
        fix=("larger batches, or more rollouts for each prompt", "a better baseline: a critic, or leave-one-out"),
        confirm="gradiometer variance: its SNR at fixed weights says how many samples a direction needs.",
        references=("arXiv 1812.06162", "docs/guide/meter.md: direction"),
    )
