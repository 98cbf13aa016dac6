"""The terms of the round in progress, their gradients by name, and what the run is told."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gradiometer.capture import hooks, terms
from gradiometer.capture.blocks import Blocks, Model, modules_of
from gradiometer.capture.distributed import Piece, ShardSketcher, local, num_ranks
from gradiometer.capture.gradients import SKETCH_SEED
from gradiometer.capture.hooks import BackwardCall, HookMark, Use
from gradiometer.capture.lossparts import SeenLosses
from gradiometer.capture.ranks import NEVER, RankGroup, digest_of
from gradiometer.capture.roles import Role, roles_by_terms
from gradiometer.capture.rounds import Recorder, Round, SeenTerms
from gradiometer.capture.schematic import Schematic
from gradiometer.capture.settings import Settings
from gradiometer.capture.shardedterms import Pass, Passes, ShardedGraph
from gradiometer.capture.statistics import Fetched, Numbers, Reading
from gradiometer.capture.terms import GraphPart, SavedState, Split
from gradiometer.maths import gram, stats
from gradiometer.maths.sketch import Sketcher
from gradiometer.maths.stats import HALF
from gradiometer.maths.vectors import ExactVectors, SketchedVectors, Vectors, key_at, vectors_for
from gradiometer.records import Table
from gradiometer.store.sinks import Fanout

__all__ = [
    "OwnTerms",
    "TermGradients",
    "TermNotices",
    "nonfinite_terms",
    "rewards_left_over",
    "shortfall",
]

FIRST_TERMS = 5  # the first measured steps always split the loss: a dead term should show at once

WIRE = 2**28
"""Bytes of term vectors that ranks add up on a term step; beyond it they are sketched."""
LEFTS = "terms/left/"
"""Arrays by call: squares of what the terms leave of the gradient, of the gradient, and theirs."""

Problem = tuple[str, str]
"""What cannot be measured, and why."""


class TermGradients:
    """Adds up what the calls of `meter.terms` in one round bring; nothing of it is left when the
    round is over.

    Vectors are named `term/<term>` and `reward/<reward>`. Kept in full while they fit
    `terms_memory`, sketched otherwise.
    """

    def __init__(self, settings: Settings, recorder: Recorder, num_optimizers: int) -> None:
        self._settings, self._recorder = settings, recorder
        self._terms_on = self._rewards_on = True
        self._said: set[str] = set()
        self._marks: deque[HookMark] = deque(maxlen=num_optimizers)
        """At the last step of each optimizer: no graph that can be walked is older."""
        self._dead: set[str] = set()
        self._largest = 0
        """The most vectors that one round needed."""
        self.by_hand = False
        """`meter.terms` was called: it names the terms, and the graph is not asked."""
        self._found: set[str] = set()
        """Parts that were ever found in graphs."""
        self._votes = True
        """Ranks that hold pieces vote on each backward; until one of them never will."""
        self._prove_whole = False
        """What is in `.grad` is not what backward made, so the whole is taken once more."""
        self.forget()

    def scan(
        self,
        model: Model,
        parameters: Sequence[Tensor],
        ranks: RankGroup,
        pieces: Mapping[int, Piece],
    ) -> None:
        """Another model, or the same one with other parameters."""
        self._model, self._modules = model, list(modules_of(model).values())
        self._parameters, self._ranks, self._pieces = parameters, ranks, pieces
        self._here = [local(p) for p in parameters]
        by_key = {key_at(i): piece for i, piece in pieces.items()}
        size = self._settings.sketch_size
        self._sketcher = (
            ShardSketcher(seed=SKETCH_SEED, k=size, pieces=by_key)
            if pieces
            else Sketcher(seed=SKETCH_SEED, k=size)
        )
        # RankGroup hold addends: the averaged gradient is not the sum of this rank's terms. Pieces
        # are those of one gradient.
        self._comparable = num_ranks() == 1 or bool(pieces)
        self.forget()

    def forget(self) -> None:
        """Release everything."""
        self._vectors: Vectors | None = None
        self._reached: dict[str, frozenset[int]] = {}
        self._losses: dict[str, Tensor] = {}
        self._entered: set[str] = set()
        self._calls = self._waiting = self._since_step = 0
        self._uses: list[Use] = []
        self._tolerance: float | None = None
        """Of terms that were found in the graph."""
        self._unvalued: set[str] = set()
        self._going: list[Tensor | None] | None = None
        """What of the whole the terms of the call in progress leave so far."""
        self._losses_seen = SeenLosses()
        self._left_out = False
        """The terms of this round do not tell all that is in its gradients."""
        self._asked: list[Split] = []
        """Of a sharded model: what waits for the backward that all ranks do."""
        self._lefts: list[Tensor] = []
        """[‖g − Σ‖², ‖g‖², ‖term‖² ...] of each call, where the whole was taken."""

    def begin(self) -> None:
        """Our own hooks are in place: from here on all are of others."""
        self._marks.clear()
        self._marks.append(HookMark.now())

    # What happens around the calls. Gradients are made anew without a step when a step is skipped
    # or a closure runs again.

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
        """The same, seen when an optimizer steps again: one loss, several cadences."""
        if self._since_step:
            self.forget()
            message = (
                "one loss trains optimizers of different cadences: terms are not kept until it is"
                " known which backward begins a round"
            )
            self._say_once("terms-mixed", message)

    def raised(self) -> None:
        """The body of the last call raised: its backward may have come half-way."""
        if self._waiting == self._calls:
            self.forget()
        elif self._waiting:
            self._leave_out_unused()

    def made_anew(self) -> None:
        """Gradients start from zero within the round: calls that went backward are gone."""
        if self._waiting != self._calls:
            self.forget()

    # Measuring.

    def due(self, num_measured: int) -> bool:
        """Whether a measured step splits its loss."""
        return self._terms_on and self._scheduled(num_measured)

    def votes(self, num_measured: int) -> bool:
        """Whether ranks that hold pieces vote on the backwards of that step: the same on all."""
        return self._ranks.sharded and self._votes and self._scheduled(num_measured)

    def _scheduled(self, num_measured: int) -> bool:
        always = num_measured < FIRST_TERMS or self._settings.tier == "deep"
        return always or num_measured % self._settings.terms_every == 0

    def ask(self, split: Split) -> None:
        """Terms of a sharded model are measured at the backward of their loss."""
        self._asked.append(split)

    def given_by_hand(self) -> None:
        """The user names the terms: what the graph gave is forgotten, for this round and all."""
        if not self.by_hand:
            self.by_hand = self._terms_on = True
            self.forget()

    def leave_out(self) -> None:
        """A backward of this round is not among its terms."""
        self._left_out = True

    def note_parts(self, found: Schematic, reached: Collection[int]) -> None:
        """What the graph of a loss of this round says it is made of."""
        self._losses_seen.note(found, reached)

    def note_dead(self, split: Split, step: int) -> None:
        """A term outside of any graph shows on every step, at no cost."""
        for name, term in split.terms.items():
            if not term.requires_grad:
                self._say_dead(name, step)

    def measure(
        self, split: Split, step: int, *, done: Collection[int] = (), whole: bool = False
    ) -> Problem | None:
        """Each term's own gradient, added to what the round has; or why that cannot be done.

        Of terms that were found in the graph: `done` are parameters whose optimizer has stepped,
        where they are no part of this round; `whole`: take the whole gradient too, for what will be
        in `.grad` is more than it.
        """
        self._prove_whole = self._prove_whole or whole
        if why := self._hindrance(split):
            return self._off(why)
        if not self._begin_call():
            return None
        saved = SavedState(self._modules)
        try:
            with hooks.own_pass():
                problem = self._measure(split, step, saved, done)
        finally:
            saved.restore()
        if self._terms_on:
            self._uses.append(hooks.observe_use(split.given))
        return problem

    def _measure(
        self, split: Split, step: int, saved: SavedState, done: Collection[int]
    ) -> Problem | None:
        try:
            self._add_terms(split, saved, done)
        except Exception as problem:
            if not split.automatic and not isinstance(problem, RuntimeError):
                raise
            return self._off(f"the graph cannot be walked twice ({_first_line(problem)})")
        for name, term in split.terms.items():
            if not self._reached[f"term/{name}"]:
                if split.automatic and term.requires_grad:  # it trains what is not watched
                    del self._reached[f"term/{name}"]
                    self._losses.pop(name, None)
                    continue
                self._say_dead(name, step)
        if not (split.advantages and self._rewards_on):
            return None
        try:
            self._add_rewards(split, step, saved)
        except Exception as problem:  # a function of the user's runs here, and may raise anything
            return self._rewards_off(problem)
        return None

    def _rewards_off(self, problem: Exception) -> Problem:
        self._rewards_on = False
        self._forget_rewards()
        return "rewards", f"the policy term cannot be split by reward ({_first_line(problem)})"

    def _hindrance(self, split: Split) -> str | None:
        """Why no backward but the user's own may run through this graph."""
        if terms.has_user_hooks(self._modules, self._parameters):
            return "you have backward hooks of your own, which a second backward would call twice"
        if split.strangers:
            names = ", ".join(sorted(split.strangers))
            return (
                f"the graph holds a backward of somebody's own ({names}), which may not bear to run"
                " more than once. meter.terms splits the loss all the same"
            )
        return None

    def _begin_call(self) -> bool:
        """One more loss of this round; False where its terms are left out."""
        self._calls += 1
        self._waiting += 1
        self._since_step += 1
        if not self._left_out and hooks.hooked_since(self._marks[0], self._modules):
            self._left_out = True
            message = (
                "hooks inside the graph (register_hook on an activation) would be called twice:"
                " such steps have no terms"
            )
            self._say_once("terms-hooked", message)
        if any(map(terms.awaits_first_backward, self._modules)):
            self._left_out = True
        return not self._left_out

    # Of a sharded model: by vote.

    def measure_together(
        self,
        call: BackwardCall,
        found: Split | None,
        step: int,
        vote: Callable[[float], tuple[bool, bool]],
        *,
        done: Collection[int] = (),
        whole: bool = False,
    ) -> Problem | None:
        """The same of a sharded model, where all ranks do it at this very backward, or none.

        `found` are the parts that its graph has; None where there are none, or where nothing is
        measured on this rank, which votes all the same.
        """
        self._prove_whole = self._prove_whole or whole
        split, problem, ready = found, None, list[Pass]()
        saved = graph = None
        try:
            graph = ShardedGraph(call, self._model, self._parameters)
            split = self._asked_for(graph) or found
            if split is not None and self._terms_on:
                saved = SavedState(self._modules)
                problem, ready = self._prepare(split, graph, step)
                saved.rewind()
        except Exception as trouble:
            ready, problem = [], self._off(f"its graph cannot be read ({_first_line(trouble)})")
        word = digest_of([(each.name, bool(each.reached)) for each in ready]) + 1 if ready else 0.0
        agreed, never = vote(word if self._terms_on else NEVER)
        self._votes = self._votes and not never
        if never and problem is None and self._terms_on:
            problem = self._off("a rank cannot split its loss, and it is split by all or by none")
        if not agreed or split is None or saved is None or graph is None:
            self._left_out = self._left_out or split is not None
            if saved is not None:
                saved.restore()
            return problem
        return self._run(Passes(graph, self._model, self._parameters, saved), ready, split, done)

    def _asked_for(self, graph: ShardedGraph) -> Split | None:
        """What `meter.terms` was asked for and this graph holds; of several the last waits for no
        other."""
        here = [each for each in self._asked if graph.holds(each.given)]
        self._asked = [each for each in self._asked if each not in here]
        if len(here) > 1:
            self._left_out = True
        return here[-1] if here else None

    def _prepare(
        self, split: Split, graph: ShardedGraph, step: int
    ) -> tuple[Problem | None, list[Pass]]:
        """What there is to do, all of it before the vote."""
        why = self._hindrance(split)
        if why is None and hooks.listens_after_accumulation(graph.leaves):
            why = (
                "somebody waits for gradients as they are accumulated, and would take those of a"
                " second backward for the training's"
            )
        if why is None and graph.compiled():
            why = (
                "compiled code in the graph frees what it saved in its first backward. Set"
                " torch._functorch.config.donated_buffer = False before compiling"
            )
        if why is not None:
            return self._off(why), []
        if not self._begin_call():
            return None, []
        problem, ready = None, list[Pass]()
        if split.whole is not None and not self._is_compared:
            ready.append(Pass("whole", split.whole, graph.reached(split.whole)))
        ready += [
            Pass(f"term/{name}", term, graph.reached(term))
            for name, term in split.terms.items()
            if term.requires_grad
        ]
        if split.advantages and self._rewards_on:
            try:
                found = terms.contributions(split)
            except Exception as trouble:
                problem = self._rewards_off(trouble)
            else:
                self._entered.update(found.terms)
                for name, dot in found.dots.items():
                    if dot is None:
                        self._say_dead_reward(name, step)
                    else:
                        ready.append(Pass(f"reward/{name}", dot, graph.reached(dot)))
        return problem, ready

    def _run(
        self, passes: Passes, ready: Sequence[Pass], split: Split, done: Collection[int]
    ) -> Problem | None:
        def take(each: Pass, found: list[Tensor | None]) -> None:
            self._take(each.name, found, split, done)

        try:
            self._begin_split(split, done)
            why = passes.run(ready, take)
            self._finish_split()
        finally:
            passes.saved.restore()
        if why is not None:
            return self._off(f"the graph cannot be walked twice ({why})")
        for name, term in split.terms.items():
            self._reached.setdefault(f"term/{name}", frozenset())
            self._add_loss(name, terms.value_of(term))
        self._uses.append(hooks.observe_use(split.given))
        return None

    def roles(self, names: Sequence[str], copies: Collection[str]) -> dict[str, Role]:
        """What each parameter is for, by what the terms of this round reach; none if that does not
        tell."""
        reached = {
            name.removeprefix("term/"): found
            for name, found in self._reached.items()
            if name.startswith("term/")
        }
        return roles_by_terms(reached, names, copies)

    def read_raw(self, reading: Reading, indices: Collection[int]) -> None:
        """The gradient that backward really made, against the sum of the terms so far."""
        names = self._named("term/")
        if names and self._comparable and isinstance(self._vectors, ExactVectors):
            made = [p.grad if i in indices else None for i, p in enumerate(self._parameters)]
            if self._pieces:
                made = [None if x is None else local(x) for x in made]
            for share in {self._share(i) for i in indices}:
                own = [x if self._share(i) == share else None for i, x in enumerate(made)]
                reading.add_array("gram/raw", share * self._vectors.against(names, own))

    def finish(self, current: Round) -> None:
        """Inner products go into the reading, what they are of into the round."""
        if not all(use.came for use in self._uses):
            self._leave_out_unused()
        self._losses_seen.finish(current)
        alone = self._tolerance is not None and self._is_alone()
        if current.reading is not None and self._calls and not self._left_out and not alone:
            for name, loss in self._losses.items():
                current.reading.add_scalar(f"term/{name}/loss", loss)
            own = OwnTerms(
                reached=dict(self._reached),
                entered=tuple(name for name in self._losses if name in self._entered),
                vectors=self._vectors,
                num_parameters=len(self._parameters),
                losses=tuple(self._losses),
                tolerance=self._tolerance,
                shares=tuple(self._pieces[i].share for i in range(len(self._pieces))),
            )
            for number, left in enumerate(self._lefts):
                current.reading.add_array(f"{LEFTS}{number}", left)
            if self._ranks.several:
                current.own_terms = own
            else:
                current.terms = own.seen()
            if not self._ranks.several or own.adds_products:
                for name, products in own.products(own.seen()).items():
                    current.reading.add_array(name, products)
        self.forget()

    def _is_alone(self) -> bool:
        """One part is the gradient itself: nothing is kept of it until there are others."""
        self._found.update(self._reached)
        return len(self._found) < 2

    def prove(self, current: Round, fetched: Fetched) -> None:
        """Terms that were found in the graph must add up to the gradient; else there are none."""
        seen = current.terms
        if seen is None or seen.tolerance is None:
            return
        error = shortfall(seen, fetched)
        if error is not None and error <= seen.tolerance:
            return
        current.terms = None
        if f"{LEFTS}0" in fetched.arrays:
            self._terms_on = False
            why = f"the parts of the loss miss {error:.2g} of its gradient: it is not split"
            self._say_once("terms-not-additive", why)
        self._prove_whole = True  # somebody changes gradients between backward and step

    def nonfinite(self, indices: Collection[int]) -> list[str]:
        """The terms that are not finite on these parameters. A sync, for the way out only."""
        names = self._named("term/")
        if (
            self._vectors is None
            or not names
            or self._left_out
            or self._pieces
            or not all(use.came for use in self._uses)
        ):
            return []
        squares = torch.diagonal(self._vectors.products(names), dim1=1, dim2=2)
        bad = (~torch.isfinite(squares))[sorted(indices)].any(0).tolist()
        return sorted(
            name.removeprefix("term/") for name, is_bad in zip(names, bad, strict=True) if is_bad
        )

    def _add_terms(self, split: Split, saved: SavedState, done: Collection[int]) -> None:
        self._begin_split(split, done)
        parts: dict[str, Tensor | GraphPart] = {}
        if split.whole is not None and not self._is_compared:
            parts["whole"] = split.whole
        parts |= {f"term/{name}": term for name, term in split.terms.items()}
        for name, part in parts.items():
            self._take(name, terms.gradients(part, self._parameters), split, done)
            saved.rewind()
        for name, term in split.terms.items():
            self._add_loss(name, terms.value_of(term))
        self._finish_split()

    def _begin_split(self, split: Split, done: Collection[int]) -> None:
        self._going, self._squares = None, list[Tensor]()
        if split.automatic:
            self._tolerance = max(self._tolerance or 0.0, split.tolerance or 0.0)
            self._forget_cleared(done)

    def _take(
        self, name: str, found: Sequence[Tensor | None], split: Split, done: Collection[int]
    ) -> None:
        """The gradient of a term, of a reward, or of the whole loss, which comes first."""
        if name == "whole":
            self._going, self._squares = list(found), [self._square(found)]
            return
        if self._going is not None and name.startswith("term/"):
            self._going = _less(self._going, found)
            self._squares.append(self._square(found))
        found = [None if i in done else x for i, x in enumerate(found)] if done else found
        self._add(name, found, split)

    def _finish_split(self) -> None:
        if self._going is not None:
            self._lefts.append(torch.stack([self._square(self._going), *self._squares]))
        self._going = None

    def _square(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Of what is here: the ranks' pieces add up to the square of the whole."""
        found = [
            stats.filled(x).double().square().sum() * self._share(i)
            for i, x in enumerate(gradients)
            if x is not None
        ]
        return (
            torch.stack([x.to(found[0].device) for x in found]).sum() if found else torch.zeros(())
        )

    def _share(self, i: int) -> float:
        return self._pieces[i].share if self._pieces else 1.0

    @property
    def _is_compared(self) -> bool:
        """Whether the sum will meet the gradient that backward makes, at no pass of its own."""
        exact = self._vectors is None or isinstance(self._vectors, ExactVectors)
        return self._comparable and exact and not self._prove_whole

    def _add_loss(self, name: str, value: Tensor | None) -> None:
        """A value that is not known at one call is not known of the round."""
        if value is None or name in self._unvalued:
            self._unvalued.add(name)
            self._losses.pop(name, None)
            return
        value, held = value.detach().reshape(()), self._losses.get(name)
        value = value.float() if value.dtype in HALF else value.clone()
        self._losses[name] = value if held is None else held + value.to(held.device)

    def _forget_cleared(self, done: Collection[int]) -> None:
        """What earlier losses of the round brought is gone where gradients were cleared since, but
        for those whose optimizer has stepped: they were read before."""
        if self._vectors is None:
            return
        held = frozenset[int]().union(*self._reached.values()).difference(done)
        gone = frozenset(i for i in held if self._parameters[i].grad is None)
        if gone:
            self._vectors.clear(gone)
            self._reached = {name: found - gone for name, found in self._reached.items()}

    def _add_rewards(self, split: Split, step: int, saved: SavedState) -> None:
        found = terms.contributions(split)
        self._entered.update(found.terms)
        for name, dot in found.dots.items():
            if dot is not None:
                self._add(f"reward/{name}", terms.gradients(dot, self._parameters), split)
                # What functions changed on their second run is in the graph of that run.
                if not split.functions:
                    saved.rewind()
            if not self._reached.get(f"reward/{name}"):
                self._say_dead_reward(name, step)

    def _say_dead_reward(self, name: str, step: int) -> None:
        if f"reward/{name}" not in self._dead:
            self._dead.add(f"reward/{name}")
            message = f"the advantages of {name!r} have no part in any gradient: no term hangs on"
            self._recorder.event("dead-reward", f"{message} them", step, reward=name)

    def _add(self, name: str, gradients: Sequence[Tensor | None], split: Split) -> None:
        reached = frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
        self._reached[name] = self._reached.get(name, frozenset()) | reached
        if not reached:
            return
        if self._vectors is None:
            self._largest = max(self._largest, len(split.terms) + len(split.advantages) + 1)
            self._vectors = self._new_vectors(self._settings.terms_memory)
        self._vectors.add(name, gradients)
        self._largest = max(self._largest, len(self._vectors.names()) + 1)

    def _new_vectors(self, memory: int) -> Vectors:
        if self._pieces:  # products travel, and no vectors; all ranks must choose alike
            numel = sum(math.prod(each.shape) for each in self._pieces.values())
            fits = 4 * self._largest * numel / self._ranks.world <= memory
            memory_limit = sys.maxsize if fits else 0
        else:
            memory_limit = min(memory, WIRE) if self._ranks.several else memory
        return vectors_for(
            self._here,
            expected=self._largest,
            memory_limit=memory_limit,
            sketcher=self._sketcher,
        )

    def _named(self, prefix: str) -> list[str]:
        """Those with a gradient, in the order they came."""
        return [name for name, found in self._reached.items() if name.startswith(prefix) and found]

    def _forget_rewards(self) -> None:
        """Rewards half measured leave the round; their vectors stay until its end."""
        self._reached = {
            name: found for name, found in self._reached.items() if name.startswith("term/")
        }
        self._entered.clear()

    def _say_dead(self, name: str, step: int) -> None:
        if f"term/{name}" not in self._dead:
            self._dead.add(f"term/{name}")
            message = f"the term {name!r} has no gradient path to any watched parameter"
            self._recorder.event("dead-term", message, step, term=name)

    def _leave_out_unused(self) -> None:
        self._left_out = True
        message = (
            "a loss of meter.terms never went backward, others of that step did: such steps have no"
            " terms"
        )
        self._say_once("terms-unused", message)

    def _say_once(self, kind: str, message: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._recorder.event(kind, message)

    def _off(self, why: str) -> Problem:
        self._terms_on = False
        seen = self._losses_seen  # what the loss is made of is known all the same
        self.forget()
        self._losses_seen = seen
        return "terms", why


def _less(left: Sequence[Tensor | None], part: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [a if b is None else -b if a is None else a - b for a, b in zip(left, part, strict=True)]


def _first_line(problem: Exception) -> str:
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTerms:
    """Vectors named `term/<term>` and `reward/<reward>`, and what they are of."""

    reached: Mapping[str, frozenset[int]]
    """Which parameters each has a path to, in the order they came; none for a dead one."""
    entered: tuple[str, ...]
    """The terms that the advantages enter."""
    vectors: Vectors | None
    """None when no term has a gradient."""
    num_parameters: int
    losses: tuple[str, ...] = ()
    """The terms whose values are known."""
    tolerance: float | None = None
    """How far they may be from the whole; None where they were given by hand."""
    shares: tuple[float, ...] = ()
    """How much of each parameter's piece counts; nothing where every rank has the whole."""

    @property
    def adds_products(self) -> bool:
        """Whether products are added up over the ranks, and no vectors: those of pieces in full."""
        return bool(self.shares) and not isinstance(self.vectors, SketchedVectors)

    def seen(self) -> SeenTerms:
        """What the products are of."""
        found = [name for name, indices in self.reached.items() if indices]
        return SeenTerms(
            terms=tuple(name.removeprefix("term/") for name in found if name.startswith("term/")),
            rewards=tuple(
                name.removeprefix("reward/") for name in found if name.startswith("reward/")
            ),
            entered=tuple(name for name in self.entered if self.reached[f"term/{name}"]),
            reached=dict(self.reached),
            cosine_error=None if self.vectors is None else self.vectors.cosine_error,
            tolerance=self.tolerance,
            apart=not self.shares,
        )

    def products(self, seen: SeenTerms) -> dict[str, Tensor]:
        """`gram/term` and `gram/reward`."""
        found: dict[str, Tensor] = {}
        if self.vectors is not None and seen.terms:
            found["gram/term"] = self.vectors.products([f"term/{name}" for name in seen.terms])
        if self.vectors is not None and seen.rewards:
            names = [f"reward/{name}" for name in seen.rewards] + [
                f"term/{name}" for name in seen.entered
            ]
            found["gram/reward"] = self.vectors.products(names)
        if self.adds_products:
            for products in found.values():
                products *= products.new_tensor(self.shares)[:, None, None]
        return found

    def arrays(self, fetched: Fetched) -> dict[str, Numbers]:
        """What travels beside the vectors: the losses, and which parameters each term reaches."""
        reached = np.zeros((len(self.reached), self.num_parameters))
        for row, indices in zip(reached, self.reached.values(), strict=True):
            row[list(indices)] = 1.0
        losses = np.array([fetched.scalars[key] for key in _losses(fetched)])
        return {"terms/reached": reached, "terms/losses": losses}

    def forms(self) -> list[object]:
        """Equal on all ranks where their terms can be added up."""
        return [list(self.reached), self.entered, type(self.vectors).__name__, self.losses]

    def together(
        self, arrays: Mapping[str, Numbers], fetched: Fetched, ranks: RankGroup
    ) -> tuple[SeenTerms, Fetched]:
        """The mean over the ranks, once they agreed on the terms; one message a vector."""
        reached = {
            name: frozenset(np.flatnonzero(row).tolist())
            for name, row in zip(self.reached, arrays["terms/reached"], strict=True)
        }
        own = replace(self, reached=reached)
        if own.vectors is not None and not own.adds_products:
            for name in (name for name, indices in reached.items() if indices):
                row = own.vectors.row(name)
                host = row.cpu()
                ranks.add_up_in_place(host)
                row.copy_(host if self.shares else host.div_(ranks.world))
        means = (arrays["terms/losses"] / ranks.world).tolist()
        losses = dict(zip(_losses(fetched), means, strict=True))
        seen, products = own.seen(), dict[str, Numbers]()
        if not own.adds_products:  # those are among the arrays
            products = {
                name: x.cpu().numpy().astype(np.float64, copy=False)
                for name, x in own.products(seen).items()
            }
        return seen, replace(
            fetched, scalars={**fetched.scalars, **losses}, arrays={**fetched.arrays, **products}
        )


def _losses(fetched: Fetched) -> list[str]:
    return [key for key in fetched.scalars if key.startswith("term/")]


TermState = Literal["path", "zero", "none"]
"""A gradient arrives; there is a path, and exactly zero arrives; there is no path."""


def _by_block(
    name: str, reached: frozenset[int], seen: SeenTerms, fetched: Fetched, blocks: Blocks
) -> dict[str, TermState]:
    squares = (
        fetched.arrays["gram/term"][:, at, at]
        if (at := _place(name, seen)) is not None
        else np.zeros(0)
    )

    def state(members: tuple[int, ...]) -> TermState:
        with_path = [i for i in members if i in reached]
        if not with_path:
            return "none"
        return "path" if (squares[with_path] != 0).any() else "zero"  # a NaN is not zero

    return {block: state(members) for block, members in blocks.named.items()}


def _place(name: str, seen: SeenTerms) -> int | None:
    return seen.terms.index(name) if name in seen.terms else None


def nonfinite_terms(seen: SeenTerms | None, fetched: Fetched) -> list[str]:
    """The terms that had a gradient which was not finite; of those that share it, none."""
    if seen is None or not seen.terms:
        return []
    squares = np.diagonal(fetched.arrays["gram/term"], axis1=1, axis2=2)
    found = [
        name
        for name, column in zip(seen.terms, squares.T, strict=True)
        if not np.isfinite(column).all()
    ]
    return found if seen.apart or len(found) == 1 else []


def rewards_left_over(seen: SeenTerms, fetched: Fetched) -> float | None:
    """‖g − Σ_r g_r‖/‖g‖ of the terms that the advantages enter: what of them no reward accounts
    for.

    Zero but for rounding when they are linear in the advantages. None when there is nothing to
    compare, or only sketches.
    """
    if not seen.rewards or not seen.entered or seen.cosine_error is not None:
        return None
    products = fetched.arrays["gram/reward"].sum(0)
    num_rewards, num_terms = len(seen.rewards), len(seen.entered)
    whole, left = [0] * num_rewards + [1] * num_terms, [-1] * num_rewards + [1] * num_terms
    if not np.isfinite(products).all():
        return None
    size, rest = gram.norms(gram.combine(products, [whole, left]))
    return float(rest / size) if size > 0 else None


def shortfall(seen: SeenTerms, fetched: Fetched) -> float | None:
    """What the sum of the terms misses of the gradient, beside the longer of both; None where they
    were not compared. Where NaN or Inf is in both there is nothing to compare."""
    if lefts := [x for name, x in fetched.arrays.items() if name.startswith(LEFTS)]:
        with np.errstate(invalid="ignore"):
            square = max(float(x[0] / x[1:].max()) for x in lefts)
        return 0.0 if np.isnan(square) else float(np.sqrt(square))
    if "gram/raw" not in fetched.arrays or not seen.terms:
        return None if seen.terms else 0.0
    pair = fetched.arrays["gram/raw"]
    if not np.isfinite(pair).all():
        return 0.0 if nonfinite_terms(seen, fetched) else None
    error, scale = gram.additivity(pair)
    if np.isnan(error):
        return 0.0 if not pair.any() else None
    products = fetched.arrays["gram/term"].sum(0)
    size = max(pair[-1, -1], scale * scale * float(np.trace(products)))
    return float(error * np.sqrt(pair[-1, -1] / size))


LEFT_OVER = 0.05  # of the policy gradient's norm; rounding in bfloat16 stays below 0.02


class TermNotices:
    """What is said of loss terms beside their numbers, each thing once."""

    def __init__(
        self,
        recorder: Recorder,
        put: Callable[[Table], None],
        settings: Settings,
        writer: Fanout | None,
    ) -> None:
        self._recorder, self._put, self._settings, self._writer = recorder, put, settings, writer
        self._states: dict[str, dict[str, TermState]] = {}
        """By term and named block."""
        self._stationary: set[str] = set()
        self._vectors: str | None = None
        self._said_left_over = False

    def note(self, step: int, seen: SeenTerms, fetched: Fetched, blocks: Blocks) -> None:
        """Take in a round whose loss was split. Terms that were not in it stay as they were."""
        states = dict(self._states)
        for key, reached in seen.reached.items():
            kind, _, name = key.partition("/")
            if kind == "term":
                states[name] = _by_block(name, reached, seen, fetched, blocks)
        if states != self._states:
            self._states = states
            self._put(Table(step=step, name="terms", content=states))
        for name, row in states.items():
            if row["all"] == "zero" and name not in self._stationary:
                self._stationary.add(name)
                message = f"the gradient of the term {name!r} is exactly zero on every watched"
                message += " parameter; its path is there"
                self._recorder.event("stationary-term", message, step, term=name, severity="info")
        left = rewards_left_over(seen, fetched)
        if left is not None and left > LEFT_OVER and not self._said_left_over:
            self._said_left_over = True
            message = (
                f"the rewards account for all of the policy gradient but {left:.2g} of its norm: "
                "the loss is not linear in the advantages (normalised inside it?), or has a part"
                " without them"
            )
            self._recorder.event("rewards-not-additive", message, step, error=left)
        self._note_vectors("exact" if seen.cosine_error is None else "sketch")

    def _note_vectors(self, kind: str) -> None:
        """How the terms' gradients are kept, once it is known: among the facts of the run."""
        if self._writer is not None and kind != self._vectors:
            self._vectors = kind
            facts = {**self._settings.plain(), "sketch_seed": SKETCH_SEED, "terms_vectors": kind}
            self._writer.set_facts({"meter": facts})
