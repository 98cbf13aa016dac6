"""Wiring that the graph of a loss and its optimizers prove, without statistics.

The meter writes each fact down once, as an event whose kind is the finding's id, and keeps in the
table `proofs` which facts it could check (capture/proofs.py).
"""

from __future__ import annotations

from typing import Any

from gradiometer.doctor.proofs import BRACES, Way, fact
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Event

__all__: list[str] = []


# Accumulation over micro-batches is no such thing, nor are gradients that another loss leaves and
# that are cleared before their own step.
fact(
    "gradients-not-cleared",
    """
    cause: backward() adds to .grad. Nothing set it to zero since the last optimizer step, so each
      step uses the sum of all gradients so far: old data weighs as much as new, and the sum grows
      from step to step.
    fix: Call optimizer.zero_grad() once per step, before the backward or after the step
    fix: With several optimizers, clear each one's parameters; model.zero_grad() clears all of them
    confirm: Print the norm of .grad right before backward(): it must be 0, or .grad None.
    """,
    about="A step also uses the gradients of the step before: they were not cleared before the next"
    " backward added to them.",
    ways=Way(
        title="Gradients are not cleared between optimizer steps{place}: each step uses the sum of"
        " all before it"
    ),
    each=False,
)


def _shape(given: Any) -> str:
    """As Python writes it."""
    sizes = [str(size) for size in given] if isinstance(given, list) else []
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _broadcast(run: RunData, event: Event) -> Way:
    name, sides = event.detail.get("name"), event.detail.get("shapes")
    named = f" {name!r}" if isinstance(name, str) and name else ""
    shapes = " against ".join(map(_shape, sides if isinstance(sides, list) else []))
    result = _shape(event.detail.get("result"))
    title = f"The loss{named} broadcasts {shapes or 'its two sides'} to {result}"
    return Way(title=title.translate(BRACES) + "{place}")


# Tables on purpose (x[:, None] - x[None, :], contrastive logits) are no finding.
fact(
    "shapes-broadcast",
    """
    cause: torch expands (N, 1) against (N,) to (N, N) silently. Each prediction is pulled
      towards the mean of all targets, each log-prob is weighted with the mean of all advantages.
    fix: Give both sides the same shape: values.squeeze(-1) (or values.view(-1)) before the
      difference
    fix: Log-probs of a policy with several action components: dist.log_prob(actions).sum(-1)
    fix: Assert it once: assert values.shape == returns.shape
    confirm: Print the shape of the difference before .mean(): it must be (N,), not (N, N).
    """,
    about="N values and N targets broadcast to N × N numbers, which are averaged into the loss.",
    ways=_broadcast,
    each=False,
)


RELU = Way(title="Logits go through a ReLU{place}: those below zero have no gradient", words="relu")
TWICE = Way(title="Probabilities are taken for logits{place}: {message}")

# Normalising log-probabilities again changes nothing, and is no finding.
fact(
    "double-softmax",
    """
    cause: Probabilities are given where logits are expected, and normalised once more. They lie
      between 0 and 1, so the result can never be sure: of k actions the likeliest gets at most
      e/(e + k - 1), and gradients shrink.
    fix: Give the logits themselves: Categorical(logits=net(x)), cross_entropy(net(x), target)
    fix: Or say that they are probabilities: Categorical(probs=net(x).softmax(-1))
    confirm: Print the largest probability of the trained policy: with two actions it stays below
      0.74.
    [relu]
    cause: Logits may have any sign, and a ReLU sets those below zero to 0. The policy cannot
      make an action rarer than that, and a logit below zero has no gradient that would bring it
      back.
    fix: Take the activation after the last layer out; softmax or Categorical(logits=...) follow
      it directly.
    confirm: Print the logits of a batch; none is below zero, and many are exactly 0.
    """,
    about="A softmax goes into something that normalises again: Categorical(logits=...),"
    " cross_entropy, another softmax; or a sigmoid into a loss that takes logits; or logits go"
    " through a ReLU first.",
    ways=lambda run, event: RELU if str(event.detail.get("below")).startswith("Relu") else TWICE,
    each=False,
)


# An actor's loss that runs through a critic (SAC, TD3, DDPG) is no finding where the critic clears
# it, nor is a trunk that both terms share.
fact(
    "leak-between-terms",
    """
    cause: The advantages were made from values that still carry their gradient. The policy term
      then trains the critic too, to call good actions bad ones: that makes its own loss small.
    fix: Detach them: advantages = (returns - values).detach()
    fix: Or compute them under torch.no_grad(), from the values of the rollout
    confirm: Print torch.autograd.grad(policy_loss, critic.parameters(), allow_unused=True): every
      entry must be None.
    """,
    about="The policy term trains the critic: it reaches the head that the value term trains, and"
    " the head is stepped with that gradient.",
    ways=Way(
        title="The term {term!r} trains the critic: it reaches {parameter}, the head of {into!r}"
    ),
    each=False,
)
