"""The terms of the round in progress: their gradients by name, until the round ends and their products are taken."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from gradiometer.capture import graphhooks, rewards, terms
from gradiometer.capture.blocks import Model, modules_of
from gradiometer.capture.distributed import num_ranks
from gradiometer.capture.graphhooks import HookMark, Use
from gradiometer.capture.microbatches import SKETCH_SEED
from gradiometer.capture.ranks import Ranks
from gradiometer.capture.reading import Reading
from gradiometer.capture.rounds import Owner, Round
from gradiometer.capture.settings import Settings
from gradiometer.capture.terms import Split, Untouched
from gradiometer.capture.termshare import OwnTerms
from gradiometer.maths.stats import HALF
from gradiometer.maths.vectors import ExactVectors, Vectors, vectors_for

__all__ = ["TermBook"]

FIRST_TERMS = 5  # the first measured steps always split the loss: a dead term should show at once

WIRE = 2**28
"""Bytes of term vectors that ranks add up on a term step; beyond it they are sketched."""
SHARDED = (
    "under fully_shard every term would be a backward with messages of its own on all ranks, and a rank whose instrument "
    "had failed would leave the others waiting. Measure them with DistributedDataParallel, or in one process"
)

Problem = tuple[str, str]
"""What cannot be measured, and why."""


class TermBook:
    """Adds up what the calls of `meter.terms` in one round bring; nothing of it is left when the round is over.

    Vectors are named `term/<term>` and `reward/<reward>`. Kept in full while they fit `terms_memory`, sketched otherwise.
    """

    def __init__(self, settings: Settings, owner: Owner, num_optimizers: int) -> None:
        self._settings, self._owner = settings, owner
        self._terms_on = self._rewards_on = True
        self._said: set[str] = set()
        self._marks: deque[HookMark] = deque(maxlen=num_optimizers)
        """At the last step of each optimizer: no graph that can still be walked is older than the first of these."""
        self._dead: set[str] = set()
        self._largest = 0
        """The most vectors that one round needed."""
        self.forget()

    def scan(self, model: Model, parameters: Sequence[Tensor], ranks: Ranks) -> None:
        """Another model, or the same one with other parameters."""
        self._modules, self._parameters, self._ranks = list(modules_of(model).values()), parameters, ranks
        # Ranks hold addends: the averaged gradient is not the sum of this rank's terms.
        self._comparable = num_ranks() == 1
        self.forget()

    def forget(self) -> None:
        """Release everything."""
        self._vectors: Vectors | None = None
        self._reached: dict[str, frozenset[int]] = {}
        self._losses: dict[str, Tensor] = {}
        self._entered: set[str] = set()
        self._calls = self._waiting = self._since_step = 0
        self._uses: list[Use] = []
        self._left_out = False
        """Something is in the gradients of this round, or not in them, that its terms do not tell."""

    def begin(self) -> None:
        """Our own hooks are in place: from here on all are of others."""
        self._marks.clear()
        self._marks.append(HookMark.now())

    # What happens around the calls. Gradients are made anew without a step when a step is skipped or a closure runs again.

    def backward_ended(self) -> None:
        """The calls so far are in the gradients now."""
        self._waiting = 0

    def stepped(self) -> None:
        """The calls so far are of the step that was done."""
        self._since_step = 0
        self._marks.append(HookMark.now())

    def overtaken(self) -> None:
        """The round ends and the last calls were of the next one: a sum of both is of neither."""
        if self._waiting:
            self.forget()

    def stepped_again(self) -> None:
        """The same, seen when an optimizer steps a second time: a loss over several that step at different cadences."""
        if self._since_step:
            self.forget()
            message = "one loss trains optimizers of different cadences: its terms are of no one round, and not kept"
            self._say_once("terms-mixed", message)

    def raised(self) -> None:
        """The body of the last call raised. Nothing, or an unknown part, of a call still waiting is in the gradients."""
        if self._waiting == self._calls:
            self.forget()
        elif self._waiting:
            self._leave_out_unused()

    def made_anew(self) -> None:
        """Gradients start from zero within the round: only calls that wait for their backward are of the new ones."""
        if self._waiting != self._calls:
            self.forget()

    # Measuring.

    def due(self, num_measured: int) -> bool:
        """Whether a measured step splits its loss."""
        always = num_measured < FIRST_TERMS or self._settings.tier == "deep"
        return self._terms_on and (always or num_measured % self._settings.terms_every == 0)

    def note_dead(self, split: Split, step: int) -> None:
        """A term outside of any graph shows on every step, at no cost."""
        for name, term in split.terms.items():
            if not term.requires_grad:
                self._say_dead(name, step)

    def measure(self, split: Split, step: int) -> Problem | None:
        """Each term's own gradient, added to what the round has; or why that cannot be done."""
        if self._ranks.sharded:
            return self._off(SHARDED)
        if terms.has_user_hooks(self._modules, self._parameters):
            return self._off("you have backward hooks of your own, which a second backward would call twice")
        self._calls, self._waiting, self._since_step = self._calls + 1, self._waiting + 1, self._since_step + 1
        if not self._left_out and graphhooks.hooked_since(self._marks[0], self._modules):
            self._left_out = True
            message = "hooks inside the graph (register_hook on an activation) would be called twice: such steps have no terms"
            self._say_once("terms-hooked", message)
        if self._left_out or any(map(terms.awaits_first_backward, self._modules)):
            self._left_out = True
            return None
        untouched = Untouched(self._modules)
        try:
            with graphhooks.own_pass():
                problem = self._measure(split, step, untouched)
        finally:
            untouched.restore()
        if self._terms_on:
            self._uses.append(graphhooks.observe_use(split.terms.values()))
        return problem

    def _measure(self, split: Split, step: int, untouched: Untouched) -> Problem | None:
        try:
            self._add_terms(split, untouched)
        except RuntimeError as problem:
            return self._off(f"the graph cannot be walked twice ({_first_line(problem)})")
        for name in split.terms:
            if not self._reached[f"term/{name}"]:
                self._say_dead(name, step)
        if not (split.advantages and self._rewards_on):
            return None
        try:
            self._add_rewards(split, step, untouched)
        except Exception as problem:  # a function of the user's runs here, and may raise anything
            self._rewards_on = False
            self._forget_rewards()
            return "rewards", f"the policy term cannot be split by reward ({_first_line(problem)})"
        return None

    def read_raw(self, reading: Reading, indices: Collection[int]) -> None:
        """The gradient that backward really made, against the sum of the terms so far."""
        names = self._named("term/")
        if names and self._comparable and isinstance(self._vectors, ExactVectors):
            made = [p.grad if i in indices else None for i, p in enumerate(self._parameters)]
            reading.add_array("gram/raw", self._vectors.against(names, made))

    def finish(self, current: Round) -> None:
        """Inner products into the round's reading, what they are of into the round; the vectors are released."""
        if not all(use.came for use in self._uses):
            self._leave_out_unused()
        if current.reading is not None and self._calls and not self._left_out:
            for name, loss in self._losses.items():
                current.reading.add_scalar(f"term/{name}/loss", loss)
            own = OwnTerms(
                reached=dict(self._reached),
                entered=tuple(name for name in self._losses if name in self._entered),
                vectors=self._vectors,
                num_parameters=len(self._parameters),
            )
            if self._ranks.several:
                current.own_terms = own
            else:
                current.terms = own.seen()
                for name, products in own.products(current.terms).items():
                    current.reading.add_array(name, products)
        self.forget()

    def nonfinite(self, indices: Collection[int]) -> list[str]:
        """The terms whose own gradient of one of these parameters was not finite. A sync, for the way out only."""
        names = self._named("term/")
        if self._vectors is None or not names or self._left_out or not all(use.came for use in self._uses):
            return []
        squares = torch.diagonal(self._vectors.products(names), dim1=1, dim2=2)
        bad = (~torch.isfinite(squares))[sorted(indices)].any(0).tolist()
        return sorted(name.removeprefix("term/") for name, is_bad in zip(names, bad, strict=True) if is_bad)

    def _add_terms(self, split: Split, untouched: Untouched) -> None:
        for name, term in split.terms.items():
            value, held = term.detach().reshape(()), self._losses.get(name)
            value = value.float() if value.dtype in HALF else value.clone()
            self._losses[name] = value if held is None else held + value.to(held.device)
            self._add(f"term/{name}", terms.gradients(term, self._parameters), split)
            untouched.rewind()

    def _add_rewards(self, split: Split, step: int, untouched: Untouched) -> None:
        found = rewards.contributions(split)
        self._entered.update(found.terms)
        for name, dot in found.dots.items():
            if dot is not None:
                self._add(f"reward/{name}", terms.gradients(dot, self._parameters), split)
                if not split.functions:  # what they have changed on their second run is in the graph of that run
                    untouched.rewind()
            if not self._reached.get(f"reward/{name}") and f"reward/{name}" not in self._dead:
                self._dead.add(f"reward/{name}")
                message = f"the advantages of {name!r} have no part in any gradient: no term hangs on them"
                self._owner.event("dead-reward", message, step, reward=name)

    def _add(self, name: str, gradients: Sequence[Tensor | None], split: Split) -> None:
        reached = frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
        self._reached[name] = self._reached.get(name, frozenset()) | reached
        if not reached:
            return
        if self._vectors is None:
            self._largest = max(self._largest, len(split.terms) + len(split.advantages) + 1)
            self._vectors = vectors_for(
                self._parameters,
                expected=self._largest,
                memory_limit=min(self._settings.terms_memory, WIRE if self._ranks.several else sys.maxsize),
                k=self._settings.sketch_size,
                seed=SKETCH_SEED,
            )
        self._vectors.add(name, gradients)
        self._largest = max(self._largest, len(self._vectors.names()) + 1)

    def _named(self, prefix: str) -> list[str]:
        """Those with a gradient, in the order they came."""
        return [name for name, found in self._reached.items() if name.startswith(prefix) and found]

    def _forget_rewards(self) -> None:
        """Rewards that were half measured: not in the round, though their vectors stay until its end."""
        self._reached = {name: found for name, found in self._reached.items() if name.startswith("term/")}
        self._entered.clear()

    def _say_dead(self, name: str, step: int) -> None:
        if f"term/{name}" not in self._dead:
            self._dead.add(f"term/{name}")
            message = f"the term {name!r} has no gradient path to any watched parameter"
            self._owner.event("dead-term", message, step, term=name)

    def _leave_out_unused(self) -> None:
        self._left_out = True
        message = "a loss of meter.terms never went backward, others of that step did: such steps have no terms"
        self._say_once("terms-unused", message)

    def _say_once(self, kind: str, message: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._owner.event(kind, message)

    def _off(self, why: str) -> Problem:
        self._terms_on = False
        self.forget()
        return "terms", why


def _first_line(problem: Exception) -> str:
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__
