"""Preference training (DPO and its family): pairs that are told apart by unlearning both.

The loss asks for a margin, and a margin grows as well by making both answers unlikely. What tells:
the log-probability of the chosen answers, and whether held-out pairs are still told apart better.
"""

from __future__ import annotations

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import Sign, seen
from gradiometer.doctor.rule import Verdict, needed
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import both_ends, ends, level, stays, trend
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("preference")


@seen(
    "preference-over-optimised",
    """
    cause: The margin between chosen and rejected answers grows past what the pairs can teach: both
      become less likely, and what takes their place was in no pair.
    fix: Hold the chosen answers up and the policy near its reference: {key}
    fix: Stop where the held-out accuracy was best; one epoch is usual, at a learning rate of 5e-7
    confirm: Sample from the last checkpoint and from an earlier one: the later repeats itself or
      leaves the format of the chosen answers.
    see: arXiv 2305.18290 (DPO)
    see: arXiv 2402.13228 (DPO-Positive: chosen answers that become less likely)
    see: arXiv 2404.19733 (an NLL term on the chosen answers)
    """,
    title="The margin grows from {start} to {end} while {what}",
    needs=("preference/margin",),
    settings={"key": ("preference", "beta, and an NLL term on the chosen answers")},
)
def preference_over_optimised(run: RunData) -> Sign | Verdict:
    """The margin grows while the accuracy on held-out pairs does not, or while the chosen answers
    become less likely."""
    margin = needed(run, "preference/margin", limits.min_points)
    if trend(margin).direction != "rises":
        return None
    worse, unlearned = _held_out_worse(run), _unlearned(run)
    apart = _over_separated(run, margin)
    found = [each for each in (worse, unlearned, apart) if each is not None]
    if worse is None and (unlearned is None or apart is None):
        return None
    start, end = map(fmt, ends(margin))
    what = "held-out pairs are told apart no better" if worse else "chosen answers are unlearned"
    return Sign(
        series=margin,
        strength="strong",
        since=None if worse is None else worse.first_step,
        reading=both_ends(margin).reading,
        said={"start": start, "end": end, "what": what},
        more=tuple(found),
        # both sides are in the sign: the accuracy on the pairs that are trained on rises all along
        severity="warn",
        basis="statistical" if worse else "heuristic",
    )


def _held_out_worse(run: RunData) -> Evidence | None:
    """The held-out accuracy or loss, where it turned for the worse."""
    accuracy, loss = run.get("val/preference/accuracy"), run.get("val/loss")
    if accuracy is not None and trend(accuracy).direction == "falls":
        return both_ends(accuracy)
    if loss is not None and trend(loss).direction == "rises":
        return both_ends(loss)
    return None


def _unlearned(run: RunData) -> Evidence | None:
    """The chosen answers, where they became less likely by a fifth of what they were, or lie below
    the reference."""
    chosen, reward = run.get("preference/chosen_log_prob"), run.get("preference/chosen_reward")
    if chosen is not None and trend(chosen).direction == "falls":
        start, end = ends(chosen)
        if start - end >= limits.unlearned * abs(start):
            return both_ends(chosen)
    if reward is not None and stays(reward, lambda x: x <= limits.below_reference):
        return both_ends(reward)
    return None


def _over_separated(run: RunData, margin: Series) -> Evidence | None:
    """The accuracy, where nearly every pair is told apart, and by a wide margin."""
    accuracy = run.get("preference/accuracy")
    if accuracy is None or not stays(accuracy, lambda x: x >= limits.all_apart):
        return None
    return both_ends(accuracy) if level(margin.last(0.2)) >= limits.wide else None
