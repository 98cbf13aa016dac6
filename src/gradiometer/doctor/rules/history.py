"""History: where the norm goes, what comes back in it, whether it has a direction. No alarms.

A schedule of the learning rate, a policy that converges and the epochs of PPO all show here, and a
cosine near 0 is normal.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import Sign, Stays, blocks, declare, seen, worst
from gradiometer.doctor.outcome import flat_outcome, learning, stuck
from gradiometer.doctor.rule import Verdict, finding, needed, rule, too_short, unlogged
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import NORM, enough, level, number, power, shown, together
from gradiometer.maths import trends
from gradiometer.maths.means import mean_interval
from gradiometer.words import factor, fmt

__all__: list[str] = []

limits = thresholds.group("history")
EPOCHS = ("update_epochs", "n_epochs", "num_ppo_epochs", "ppo_epochs", "num_epochs")
MINIBATCHES = ("num_minibatches", "num_mini_batches", "n_minibatches")


def drifting(log: Series) -> Sign | None:
    """A trend of a decade or more over the run."""
    found = trends.drift(log.steps, log.values, min_effect=limits.min_drift)
    if found is None or found.p_value is None or not found.significant:
        return None
    return Sign(
        series=log,
        strength="strong",
        since=int(log.steps[0]),
        reading=f"Theil–Sen slope: ×{factor(power(found.change))} over the run, p ="
        f" {fmt(found.p_value)} on {found.num_blocks} blocks of steps",
        said={
            "way": "up" if found.change > 0 else "down",
            "size": factor(power(abs(found.change))),
        },
        rank=abs(found.change),
        p_value=found.p_value,
    )


def _behind(run: RunData, sign: Sign) -> Sign:
    """What may make a norm drift, as far as the log tells."""
    rising = sign.said["way"] == "up"
    grows = "Growing advantages, values or weights."
    cause = grows if rising else "Convergence, a collapsing entropy, or fewer advantages."
    if learning(run):
        then = "returns grow." if rising else "the policy converges."
        cause = f"The reward rises with it: {then}"
    rate = run.get("optimizer/<number>/lr", number="0") or run.get("learning_rate")
    if rate is not None:
        x, y = together(sign.series, rate)
        found = trends.correlation(x.values, y.values)
        if found is not None and abs(found.rho) > limits.goes_with:
            cause = (
                f"It goes with the learning rate (rank correlation {found.rho:.2f}): the schedule"
                " settles the policy."
            )
    return replace(sign, said={**sign.said, "cause": cause})


declare(
    "gradient-drift",
    """
    cause: {cause}
    fix: nothing while the reward rises: Adam follows the scale
    fix: if it does not rise: see the findings beside this one
    confirm: Train on with a constant learning rate: what is left of the drift is the policy's.
    see: mathematics: Trends
    """,
    family="history",
    metric=NORM,
    over=blocks(NORM, "history/min_points", log=True),
    sign=drifting,
    level="history/level",
    title="The gradient norm of {block} drifts {way} by a factor of {size} over the run",
    role="note",
    basis="statistical",
    beside=_behind,
)


PERIODS = blocks(NORM, "history/min_period_points", log=True)


@seen(
    "gradient-oscillation",
    """
    cause: Something repeats with it: the epochs over a rollout, updates of a target network,
      evaluations, a curriculum, or a data loader that starts anew.
    fix: look for what has this period; one pass over a rollout is harmless
    fix: fewer epochs if it is the epochs and KL grows
    confirm: Change the suspected interval: the period must change with it.
    see: Lomb–Scargle against an AR(1) background (Zechmeister and Kürster 2009)
    [to-and-fro]
    cause: The steps overshoot: each one passes the point it aims at, and the next one comes back.
    fix: lower the learning rate by 2 to 3
    fix: or lower the momentum (Adam's beta1)
    confirm: Halve the learning rate from a checkpoint: the cosine must rise towards 0.
    see: A. Jones, Debugging RL: oscillation is a learning rate too high
    """,
    title="The gradient norm of {block} oscillates every {period} steps, by a factor of {by}",
    role="note",
    basis="statistical",
)
def gradient_oscillation(run: RunData) -> Sign | Verdict:
    """The norm oscillates, not with the epochs, or each step points against the one before."""
    turns = run.get("grad/<block>/cos_prev", block="all")
    if turns is not None and enough(turns, limits.min_points):
        back = Stays(below=("history/to_and_fro",))(turns)
        if back is not None:
            title = "Each gradient points against the one before: cosine {level}"
            reading = f"{back.reading}; noise alone reads 0"
            return replace(
                back, reading=reading, title=title, words="to-and-fro", basis="heuristic"
            )
    return worst(PERIODS(run), lambda log: swinging(run, log), "history/level")


def swinging(run: RunData, log: Series) -> Sign | None:
    """A period in a log-norm that stands out of red noise, and is not that of the epochs."""
    newest = int(limits.period_points)
    found = trends.dominant_period(log.steps[-newest:], log.values[-newest:])
    if found is None or found.amplitude < limits.min_amplitude or _of_epochs(run, found.steps):
        return None
    swing = power(2 * found.amplitude)
    period, by = fmt(found.steps), f"{swing:.1f}" if swing < 1e6 else fmt(swing)
    return Sign(
        series=log,
        strength="strong",
        since=int(log.steps[0]),
        reading=f"period {period} steps, highest over lowest {by}, p = {fmt(found.p_value)}",
        said={"period": period, "by": by},
        rank=found.amplitude,
        p_value=found.p_value,
    )


def _of_epochs(run: RunData, period: float) -> bool:
    """Whether it is a pass over the minibatches, an update of several, or a fraction of these."""
    epochs, batches = (number(run.fact(*names)) or 0.0 for names in (EPOCHS, MINIBATCHES))
    lengths = [x / k for x in (epochs * batches, batches, epochs) for k in (1, 2, 3, 4)]
    near = (
        abs(period - length) <= limits.same_period * length for length in lengths if length >= 2
    )
    return any(near)


@rule(
    "direction-random",
    """
    cause: Noise is larger than signal in a single batch. That is normal in RL; with a reward that
      is flat too, the batch may be too small, or the reward may not depend on what the policy does.
    fix: larger batches, or more rollouts for each prompt
    fix: a better baseline: a critic, or leave-one-out
    confirm: gradiometer variance: its SNR at fixed weights says how many samples a direction needs.
    see: arXiv 1812.06162
    see: mathematics: Directions
    """,
    needs=("grad/<block>/cos_prev", "reward"),
)
def direction_random(run: RunData) -> Verdict:
    """Successive gradients have no more in common than noise has, and the reward is flat.

    A cosine near 0 is normal where a policy learns from noisy batches; only together with a flat
    reward, and where every cosine that was measured says so, is it worth a word.
    """
    block = "actor" if run.get("grad/<block>/cos_prev", block="actor") is not None else "all"
    previous = needed(run, "grad/<block>/cos_prev", limits.min_points, block=block)
    noise = run.get("grad/<block>/cos_noise", block=block)
    if noise is None or not len(noise.finite):
        return unlogged("grad/<block>/cos_noise")
    average = run.get("grad/<block>/cos_ema", block=block)
    measured = average is not None and enough(average, limits.min_points // 2)
    readings = []
    for series in [previous, average] if average is not None and measured else [previous]:
        half = series.last(0.5).finite
        # The band is that of one cosine; their mean lies in one that is √n times narrower.
        band = max(level(noise) / math.sqrt(max(len(half), 1)), limits.sketch_error)
        floor = limits.random * band
        if floor > limits.largest_floor:
            least = 2 * math.ceil((limits.random * level(noise) / limits.largest_floor) ** 2)
            return too_short(series, least) if stuck(run) else None
        mean = mean_interval(half.values)
        if mean is None or mean.high > floor or mean.low < -floor:
            return None
        reading = (
            f"mean {fmt(mean.mean)}, 95 % interval {fmt(mean.low)} to {fmt(mean.high)};"
            f" a mean over noise alone reads up to {fmt(floor)}"
        )
        readings.append(shown(series, reading))
    if not stuck(run):
        return None
    return finding(
        f"The gradient of {block} has no direction: successive gradients have no more in"
        " common than noise has",
        *readings,
        *flat_outcome(run),
        strength="strong",
        role="note",
        basis="statistical",
        since_step=int(previous.last(0.5).steps[0]),
        block=block,
    )
