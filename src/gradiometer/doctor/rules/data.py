"""What goes into the policy: observations of a size it can use, and transitions whose parts belong together."""

from __future__ import annotations

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.goals import at_maximum
from gradiometer.doctor.lacking import too_short
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import enough, learning, level, outcome, persists, since
from gradiometer.maths.means import mean_interval
from gradiometer.records import Evidence, Finding
from gradiometer.words import fmt

__all__ = ["misaligned_data", "observation_scale"]

MAX_OBSERVATION = 10.0
"""RLExplorer's bound. A tanh layer of unit weights is saturated from 3 on, and Adam's first steps assume inputs near 1."""
MIN_SPREAD = 1e-3
"""RLExplorer's bound: in float32 a network of unit weights hardly tells inputs that differ by less."""
MIN_POINTS = 9
"""Three windows of three: below it no state can be told from a moment."""
AGREEING = 0.8
"""Share of the measurements with the same lag. Where nothing correlates the best lag is anywhere, and no two agree for long."""
NO_CORRELATION = 0.2
"""The whole 95 % interval of the correlation lies within this of zero: a right target correlates above 0.9."""


@rule("observation-scale")
def observation_scale(chart: Chart) -> Verdict:
    """Observations far outside [−10, 10], or hardly varying. A policy that learns from them anyway needs no advice."""
    largest = chart.get("observation/<statistic>", statistic="max_abs")
    spread = chart.get("observation/<statistic>", statistic="std")
    given = [series for series in (spread, largest) if series is not None]
    if not given:
        why = "no observation/std or observation/max_abs in this log: log them with meter.log(observation=observations)"
        return Skipped(rule="observation-scale", why=why, metric="observation/<statistic>")
    if not any(enough(series, MIN_POINTS) for series in given):
        return too_short("observation-scale", given, MIN_POINTS)
    if _learns(chart):
        return None
    if spread is not None and persists(spread, lambda x: x < MIN_SPREAD):
        return _constant(spread, told=learning(chart) is not None)
    if largest is not None and persists(largest, lambda x: x > MAX_OBSERVATION):
        return _large(largest, told=learning(chart) is not None)
    return None


def _learns(chart: Chart) -> bool:
    reward = outcome(chart)
    return bool(learning(chart)) or (reward is not None and at_maximum(chart, reward))


def _constant(spread: Series, *, told: bool) -> Finding:
    size = level(spread.last(0.5))
    return Finding(
        id="observation-scale",
        title=f"Observations hardly vary: their standard deviation is {fmt(size)}",
        severity="warn" if told or size == 0.0 else "info",
        basis="heuristic",
        since_step=since(spread, lambda x: x < MIN_SPREAD),
        evidence=(_reads(spread, f"median {fmt(size)} over the last half, below {MIN_SPREAD}"),),
        cause="The policy sees nearly the same input whatever happens, so it can only learn one answer for all states. A "
        "wrapper returns a constant, the buffer is never filled, or normalisation divides by far too much.",
        fix=(
            "Print two observations of one episode at the place where they enter the policy; they must differ.",
            "Check the observation wrapper and that running statistics are updated (VecNormalize(training=True) in SB3).",
        ),
        confirm="Feed the policy random observations of unit variance for one batch: its outputs must now differ.",
        references=("RLExplorer's observation check",),
    )


def _large(largest: Series, *, told: bool) -> Finding:
    size = level(largest.last(0.5))
    return Finding(
        id="observation-scale",
        title=f"Observations reach {fmt(size)}, far outside [−10, 10]"
        + (", and the reward does not rise" if told else ""),
        severity="warn" if told else "info",
        basis="heuristic",
        since_step=since(largest, lambda x: x > MAX_OBSERVATION),
        evidence=(_reads(largest, f"median {fmt(size)} over the last half, above {fmt(MAX_OBSERVATION)}"),),
        cause="Large inputs saturate tanh units and make the first layer's gradient as many times larger than the others', "
        "so one learning rate cannot fit both.",
        fix=(
            "Normalise observations with running statistics: VecNormalize(env, norm_obs=True) in SB3, "
            "gymnasium.wrappers.NormalizeObservation in CleanRL.",
            "Or scale known ranges by hand: pixels / 255, positions / arena size.",
        ),
        confirm="Train for a tenth of the run with observations divided by their standard deviation and compare the reward.",
        references=("arXiv 2006.05990, observation normalisation", "RLExplorer's observation check"),
    )


@rule("misaligned-data")
def misaligned_data(chart: Chart) -> Verdict:
    """Rewards that belong to another step than the action beside them; value targets that ignore how episodes end."""
    lag, ends = chart.get("reward_lag"), chart.get("terminal_correlation")
    if lag is None and ends is None:
        why = "no reward_lag in this log: log the shift at which rewards correlate most with actions as reward_lag"
        return Skipped(rule="misaligned-data", why=why, metric="reward_lag")
    series = lag if lag is not None else ends
    assert series is not None
    if not enough(series, MIN_POINTS):
        return too_short("misaligned-data", series, MIN_POINTS)
    if lag is not None:
        return _shifted(lag, ends, learns=_learns(chart))
    return _unrelated(series) if not _learns(chart) else None


def _shifted(lag: Series, ends: Series | None, *, learns: bool) -> Finding | None:
    values = np.rint(lag.finite.last(0.5).values)
    shifts, counts = np.unique(values, return_counts=True)
    shift, share = float(shifts[counts.argmax()]), float(counts.max()) / len(values)
    if shift == 0.0 or share < AGREEING or not persists(lag, lambda x: bool(np.rint(x) == shift)):
        return None
    evidence = [_reads(lag, f"{shift:+.0f} in {share:.0%} of the last half's measurements; 0 when aligned")]
    if ends is not None and len(ends.finite):
        evidence.append(_reads(ends, f"median {fmt(level(ends.last(0.5)))}; near 1 when targets see how episodes end"))
    steps = "step" if abs(shift) == 1 else "steps"
    return Finding(
        id="misaligned-data",
        title=f"Rewards and the actions that earned them are stored {abs(shift):.0f} {steps} apart",
        severity="info" if learns else "warn",
        basis="heuristic",
        since_step=since(lag, lambda x: bool(np.rint(x) == shift)),
        evidence=tuple(evidence),
        cause="A transition is stored from parts of different steps, so each action is praised for what another one did. "
        "Usual places: a buffer that writes the reward before its index moves on, an auto-reset that returns the next "
        "episode's observation, a frame skip that keeps the wrong reward.",
        fix=(
            "Store (observation, action, reward, done) of one env.step call together, before the observation is replaced.",
            "With auto-resetting vector environments take the last observation from info['final_observation'].",
        ),
        confirm="Train on an environment whose reward is its observed bit (Jones's probe environments 3 and 5): a right "
        "buffer solves it in a few hundred steps.",
        references=("A. Jones, Debugging Reinforcement Learning Systems", "RLMutation (mutations M, R, Ra)"),
    )


def _unrelated(ends: Series) -> Finding | None:
    mean = mean_interval(ends.last(0.5).values)
    if mean is None or mean.low < -NO_CORRELATION or mean.high > NO_CORRELATION:
        return None
    reading = f"mean {fmt(mean.mean)}, 95 % interval {fmt(mean.low)} to {fmt(mean.high)} over the last half; near 1 when right"
    return Finding(
        id="misaligned-data",
        title=f"Last states' value targets do not follow their rewards (correlation {fmt(mean.mean)}): data may be misaligned",
        severity="info",
        basis="statistical",
        since_step=since(ends, lambda x: abs(x) < 0.5),
        evidence=(_reads(ends, reading),),
        cause="The target of a last state is its reward and nothing else. Either the done mask is missing or rewards lie a "
        "step off; reward_lag would tell which.",
        fix=("Log reward_lag, the shift at which rewards correlate most with actions.",),
        confirm="Compare the stored reward of each last transition with what env.step returned.",
        references=("A. Jones, Debugging Reinforcement Learning Systems",),
    )


def _reads(series: Series, reading: str) -> Evidence:
    half = series.finite.last(0.5)
    return Evidence(series=series.name, reading=reading, first_step=int(half.steps[0]), last_step=int(half.steps[-1]))
