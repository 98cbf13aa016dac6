"""How episodes end: cut off, never, at once, or ever later.

A time limit that good policies reach, and a task of fixed length, are excuses in control. They are
none for a language model, whose answer ends with a token: what is cut there was never scored.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import (
    Constant,
    FallsTo,
    Look,
    RisesPast,
    Sign,
    Stays,
    declare,
    seen,
)
from gradiometer.doctor.outcome import (
    at_maximum,
    held_out,
    learning,
    length_is_return,
    trained_for,
)
from gradiometer.doctor.rule import Skipped, Verdict, needed, unlogged
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import enough, reads, together
from gradiometer.doctor.trainers import field_of
from gradiometer.maths.trends import correlation
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("length")


def _excused(run: RunData, sign: Sign) -> bool:
    """In control: a task of fixed length, or a time limit that good policies reach."""
    if field_of(run) in ("language", "preference"):
        return False
    cut, reward = sign.series, trained_for(run)
    if bool((cut.finite.values >= 1.0).all()):
        return True
    return reward is not None and (
        at_maximum(run, reward) or length_is_return(run) or _earns(cut, reward)
    )


def _nothing_earned(run: RunData, sign: Sign) -> Sign:
    """Most is cut off and nothing was ever earned: what is cut off cannot be."""
    reward = trained_for(run)
    mostly = sign.strength != "present"
    if not mostly or reward is None or not enough(reward, limits.min_lengths):
        return sign
    idle = not reward.finite.values.any() and field_of(run) == "language"
    return replace(sign, strength="total") if idle else sign


def _earns(cut: Series, reward: Series) -> bool:
    """Whether more is earned where more is cut off."""
    rho = _rank_correlation(cut, reward)
    return rho is not None and rho >= limits.together


def _rank_correlation(a: Series, b: Series) -> float | None:
    a, b = together(a.finite, b.finite)
    found = correlation(a.values, b.values)
    return None if found is None else found.rho


declare(
    "truncation",
    """
    cause: What is cut off gets the reward of a failure however good its beginning was, and a value
      target as if the episode had ended there: the gradient teaches noise about those samples.
    fix: Allow longer episodes or completions, or leave those that were cut off out of the loss:
      {key}
    fix: Bootstrap the value at a time limit instead of treating it as an end (truncated, not
      terminated, in Gymnasium).
    confirm: Leave the cut-off samples out of the loss for a tenth of the run and compare the
      held-out score.
    see: F6
    see: arXiv 2503.14476 (DAPO, overlong filtering)
    see: arXiv 1712.00378 (time limits in RL)
    """,
    family="length",
    metric="truncated_fraction",
    sign=Stays(above=("length/cut_often", "length/cut_mostly", "length/cut_all"), first="present"),
    title="{percent} of the episodes are cut off at the largest length",
    settings={"key": ("length", "the largest length, and the mask of what was cut off")},
    unless=_excused,
    beside=_nothing_earned,
)


@seen(
    "never-ends",
    """
    cause: No answer ends: the policy does not know the token that ends one, or the sampler does not
      stop at it, so every answer is cut where the budget ends and is scored as it stands.
    fix: Check that the model was trained to end an answer and that the sampler stops there: {key}
    fix: Penalise what does not end, and read five samples to their last token
    confirm: Sample ten answers with ten times the budget: if none ends, it is the token.
    see: F6
    see: TRL PPO: missing_eos_penalty
    """,
    settings={"key": ("stop-token", "the end-of-sequence token of model and sampler")},
)
def never_ends(run: RunData) -> Sign | Verdict:
    """A language model never ends an answer on its own."""
    if field_of(run) != "language":
        return Skipped(why="only the answers of a language model end with a token")
    ended = run.get("eos_fraction") or run.get("eos_count")
    length = run.get("episode_length")
    if ended is not None:
        sign = Stays(below=("length/no_end",), first="total")(ended)
        title = "No answer ends by itself: {level} of them have an end-of-sequence token"
    elif length is not None and not run.has("truncated_fraction"):
        sign = Constant(within="length/same_length", least="length/min_lengths")(length)
        title = "Every answer has {level} tokens: none ends by itself"
        if sign is not None and float(sign.said["level"]) <= limits.one_token:
            return None
    else:
        return None if length is not None else unlogged("eos_fraction")
    return sign and replace(sign, title=title)


def _perhaps_by_design(run: RunData, sign: Sign) -> Sign:
    """A bandit has one step from the first episode on; so has an environment that is broken: it is
    told, and accuses nobody. In another tool's log nobody saw the first episodes."""
    watched = sign.series.name.startswith("env/")
    one_step = watched and float(sign.series.finite.values.max()) <= 1.0
    if not one_step:
        return sign
    return replace(sign, strength="strong", role=None if learning(run) else "note")


declare(
    "episodes-end-at-once",
    """
    cause: Nothing can be learned from episodes of a few steps: a termination that is met at the
      start (a limit, a contact, a wrong unit), a reset into a state that is already over, or a
      policy that found out that ending costs least. A bandit has one step by design: there, look at
      the other findings.
    fix: Print why the first ten episodes end, and the state they start in: {key}
    fix: Make sure that staying alive does not cost more than ending: the sum of the rewards of a
      good episode must lie above that of an early end
    confirm: Let random actions play: if their episodes are longer, the policy ends them on purpose.
    see: arXiv 1712.00378
    """,
    about="Episodes last a few steps, or get ever shorter, and the reward does not improve.",
    family="length",
    metric="episode_length",
    sign=Stays(below=("length/at_once", "length/one_step")),
    title="Episodes end after {level} steps",
    role="harmless",
    beside=_perhaps_by_design,
    fields=("control", "unknown"),
    also=(
        Look(
            metric="episode_length",
            sign=FallsTo(shares=("length/shrunk",)),
            title="Episodes shrank from {start} steps to {end}",
        ),
    ),
    settings={"key": ("reset", "the environment's termination and reset")},
)


@seen(
    "length-exploit",
    """
    cause: The reward pays for length itself, or the loss weighs long answers more, so the policy
      learned to go on.
    fix: Reward what an answer says and not how long it is: subtract the length's part, or score it
      per token.
    fix: Take the length bias out of the loss: loss_type='dr_grpo' in TRL,
      actor_rollout_ref.actor.loss_agg_mode='seq-mean-token-sum-norm' in verl.
    confirm: Cut the longest answers to the old length and score them again: the reward falls, the
      other does not.
    see: F5
    see: arXiv 2310.03716 (length correlations in RLHF)
    see: arXiv 2503.20783 (Dr. GRPO)
    """,
    title="Episodes grew from {start} to {end}",
    needs=("episode_length",),
)
def length_exploit(run: RunData) -> Sign | Verdict:
    """Answers grow by half and the reward with them, while the held-out score hardly gains; or they
    grow to a multiple and nothing is gained at all."""
    length, reward, held = needed(run, "episode_length"), run.get("reward"), held_out(run)
    if length_is_return(run):
        return None
    grown = RisesPast(times=("length/growth",))(length)
    if grown is None:
        return None
    carried = _carried(reward, held, length)
    if carried:
        title = "Episodes grew from {start} to {end} and the reward with them; the held-out score"
        title += " hardly gained"
        sign = replace(grown, title=title, more=carried)
        return replace(sign, severity="warn", basis="statistical")
    exploded = RisesPast(times=("length/explosion", "length/explosion_far"), first="present")(
        length
    )
    if exploded is None:
        return unlogged("val/reward") if held is None and field_of(run) != "language" else None
    if field_of(run) != "language":  # there a long episode may be what is asked for
        exploded = replace(exploded, strength="present")
    return exploded


def _carried(reward: Series | None, held: Series | None, length: Series) -> tuple[Evidence, ...]:
    """The reward that grew with the length, and the held-out score that did not."""
    if reward is None or held is None or not enough(held, limits.min_evaluations):
        return ()
    rho, gain, carried = _rank_correlation(reward, length), _gain(reward), _gain(held)
    if rho is None or rho < limits.together or gain <= 0.0:
        return ()
    if carried >= limits.carried_over * gain:
        return ()
    return (
        reads(reward, f"gained {fmt(gain)}; rank correlation with the length {fmt(rho)}"),
        reads(held, f"gained {fmt(carried)}, {carried / gain:.0%} of that"),
    )


def _gain(series: Series) -> float:
    """From the median of the first fifth, or two measurements, to that of the last."""
    values = series.finite.values
    ends = max(2, round(0.2 * len(values)))
    return float(np.median(values[-ends:]) - np.median(values[:ends]))
