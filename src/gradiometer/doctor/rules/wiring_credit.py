"""Wiring that credit and the environment prove: what each sample was given, beside what was done.

The meter hooks the log-probabilities of a loss and hears the environment (capture/creditfacts.py).
Each fact is an event whose kind is the finding's id.
"""

from __future__ import annotations

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.outcome import stuck
from gradiometer.doctor.rule import Draft, finding, words
from gradiometer.doctor.rules.wiring import fact
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.signs import shown
from gradiometer.records import Event, Severity

__all__ = ["opposed_by_credit"]

limits = thresholds.group("wiring_credit")


def opposed_by_credit(run: RunData) -> Draft | None:
    """What was paid most is pushed down, from the first updates on."""
    series = run.get("credit/corr_return")
    if series is None or len(series.finite) < limits.min_updates:
        return None
    values = series.finite.values[: int(limits.first_updates)]
    middle = float(np.median(values))
    if middle > limits.opposed_by or float((values < 0).mean()) < limits.nearly_always:
        return None
    first = int(series.finite.steps[0])
    return finding(
        f"Updates push down what was paid most: credit and return correlate by {middle:.2f}",
        shown(
            series.finite,
            f"median {middle:.2f} over the first {len(values)} measured updates; above 0 in a"
            " training that follows its reward",
            first_step=first,
        ),
        severity="critical",
        basis="statistical",
        since_step=first,
        doubt="",
        loss="policy loss",
    )


fact(
    "ratio-always-one",
    """
    cause: The ratio of new to old probabilities is exactly 1 in every epoch: the old log-probs are
      taken from the policy as it is now. Nothing is ever clipped, and each further epoch on the
      same data is an unweighted policy gradient of another policy's actions.
    fix: Keep the log-probs of the moment when the actions were sampled, and use those in every
      epoch
    fix: Compute old log-probs once, under no_grad, before the loop over epochs
    confirm: Print ratio.min() and ratio.max() in the second epoch: they must differ from 1.
    see: arXiv 1707.06347
    """,
    about=("exp(new − old) is 1 for every sample although the rollout was learned from before."),
    title="The policy ratio is exactly 1 in every epoch",
)


SOFT = words(
    """
    cause: The loss of the temperature has the wrong sign. The temperature grows while the policy
      has more entropy than is wanted and falls while it has less, until the entropy is all that
      counts, or nothing.
    fix: Write it as -(log_alpha * (log_prob + target_entropy).detach()).mean(), with a target
      entropy of minus the number of actions
    confirm: Log the temperature and the entropy: the one falls while the other is above its target.
    see: F17
    """
)


def _of_temperature(event: Event) -> bool:
    return event.detail.get("how") == "temperature"


fact(
    "entropy-sign",
    """
    cause: The loss falls when the entropy of the policy falls: what was meant as a bonus is a
      penalty. Exploration is suppressed from the first step on.
    fix: Subtract the bonus from the loss: loss = policy_loss - coefficient * entropy
    fix: Look for a sign that was turned twice: an `entropy_loss` that is already negative, or a
      negative coefficient
    confirm: Set the coefficient to 10 times its size: the entropy must rise.
    see: F17
    """,
    about="dL/dH is positive in a loss that has log-probabilities of actions.",
    title=lambda event: (
        "The temperature moves away from the entropy that is wanted"
        if _of_temperature(event)
        else "The loss punishes entropy instead of rewarding it"
    ),
    words=lambda event: SOFT if _of_temperature(event) else None,
)


def _without_gradient(event: Event) -> bool:
    return event.detail.get("how") == "no-gradient"


def _of_unused(run: RunData, event: Event) -> Severity:
    """An optimizer of something that is not trained by design is no fault of a run that learns."""
    return "info" if _without_gradient(event) and not stuck(run) else "critical"


fact(
    "never-trained",
    """
    cause: Gradients are made and no step is ever taken with them: the weights stay what they were.
    fix: Call optimizer.step() after the backward; look for a condition around it that never holds
    fix: Delete an optimizer that is not meant to train anything
    confirm: Compare a parameter before and after ten updates.
    """,
    about="An optimizer was made, its parameters get gradients, and it never steps.",
    title=lambda event: (
        "An optimizer never steps, and no backward reaches what it holds"
        if _without_gradient(event)
        else "An optimizer never steps"
    ),
    severity=_of_unused,
)
