"""Wiring that credit and the environment prove: what each sample was given, beside what was done.

The meter hooks the log-probabilities of a loss and hears the environment (capture/creditfacts.py).
Each fact is an event whose kind is the finding's id.
"""

from __future__ import annotations

from gradiometer.doctor.outcome import stuck
from gradiometer.doctor.proofs import Way, fact
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Event

__all__: list[str] = []


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
    about="exp(new − old) is 1 for every sample although the rollout was learned from before.",
    ways=Way(title="The policy ratio is exactly 1 in every epoch"),
)


PUNISHED = Way(title="The loss punishes entropy instead of rewarding it")
TEMPERATURE = Way(
    title="The temperature moves away from the entropy that is wanted", words="temperature"
)


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
    [temperature]
    cause: The loss of the temperature has the wrong sign. The temperature grows while the
      policy has more entropy than is wanted and falls while it has less, until the entropy is
      all that counts, or nothing.
    fix: Write it as -(log_alpha * (log_prob + target_entropy).detach()).mean(), with a target
      entropy of minus the number of actions
    confirm: Log the temperature and the entropy: the one falls while the other is above its
      target.
    see: F17
    """,
    about="dL/dH is positive in a loss that has log-probabilities of actions.",
    ways={"": PUNISHED, "temperature": TEMPERATURE},
)


def _never_stepped(run: RunData, event: Event) -> Way:
    """An optimizer of something that is not trained by design is no fault of a run that learns."""
    if event.detail.get("how") != "no-gradient":
        return Way(title="An optimizer never steps")
    title = "An optimizer never steps, and no backward reaches what it holds"
    return Way(title=title, severity="critical" if stuck(run) else "info")


fact(
    "never-trained",
    """
    cause: Gradients are made and no step is ever taken with them: the weights stay what they were.
    fix: Call optimizer.step() after the backward; look for a condition around it that never holds
    fix: Delete an optimizer that is not meant to train anything
    confirm: Compare a parameter before and after ten updates.
    """,
    about="An optimizer was made, its parameters get gradients, and it never steps.",
    ways=_never_stepped,
)
