"""Parameters that get a gradient and that nobody steps.

No optimizer of this process holds them, they are no copy (a target network) of what is trained, and
they do not move: those whom somebody moves by hand are taken back after a few steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradiometer.capture.blocks import Blocks
from gradiometer.capture.cleared import mark_of
from gradiometer.capture.distributed import is_sharded
from gradiometer.capture.leaks import leaf_tensors, leaves_of
from gradiometer.capture.living import living
from gradiometer.capture.logprobs import SeenGraph, trained_towards
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.roles import is_copy
from gradiometer.capture.rounds import Recorder, WatchedModel
from gradiometer.words import some

__all__ = [
    "HandMoved",
    "IdleOptimizers",
    "IdlePolicy",
    "UnreachedOptimizers",
    "UntrainedParameters",
    "UntrainedValues",
    "all_optimizers",
    "ascends",
    "held_by",
    "untrained",
    "whole_blocks",
]

ID = "not-in-optimizer"
FIRST_ROUNDS, AGAIN = 3, 6
"""Measured rounds that are looked at (what no optimizer holds is read with the first of several,
perhaps before its loss went backward), and after which what was found is looked at once more."""
MOST_MARKS = 8
NAMED = 5
EMPTY_STEPS = 3
"""Steps without a gradient, from the first on, that are no late start."""
MOST_BACKWARDS = 12
LAST_LOSS = 8
"""Errors of values until the second look."""
LAST_POLICY_LOSS = 40
"""The same of losses with log-probs: an optimizer may step once for many of them."""
MOVED = "moved-by-hand"
MANY_STEPS = 100
"""Steps of the others, in which one that waits for its turn has had it."""
MOST_LAYERS = 64


def held_by(optimizers: Iterable[Optimizer]) -> set[int]:
    """The parameters of the optimizers, by id."""
    groups = (group for each in optimizers for group in each.param_groups)
    return {id(p) for group in groups for p in group["params"]}


def ascends(parameters: Collection[int]) -> bool:
    """Whether an optimizer makes large what it should make small, of these parameters by id."""
    groups = [group for each in all_optimizers() for group in each.param_groups]
    turned = (group for group in groups if group.get("maximize") is True)
    return any(id(p) in parameters for group in turned for p in group["params"])


def untrained(
    parameters: Sequence[Tensor],
    names: Sequence[str],
    reached: Collection[int],
    held: Collection[int],
    copies: Collection[str] = (),
) -> list[int]:
    """Those of the reached ones that are in `held` by no id, and no copy of what is trained."""
    return [
        i
        for i in sorted(reached)
        if id(parameters[i]) not in held
        and parameters[i].requires_grad
        and names[i] not in copies
        and not any(map(is_copy, names[i].split(".")))
    ]


def whole_blocks(blocks: Blocks, parameters: Sequence[Tensor], places: Iterable[int]) -> list[str]:
    """The named blocks all of whose trained parameters are among these."""
    chosen, found = set(places), []
    for name, members in list(zip(blocks.names, blocks.members, strict=True))[1 : blocks.num_named]:
        inside = {i for i in members if parameters[i].requires_grad}
        if inside and inside <= chosen:
            found.append(name)
    return found


class UntrainedParameters:
    """Looks at the first measured rounds, and once more at what it found."""

    def __init__(self, log: ProofLog) -> None:
        self._log = log
        self._rounds = 0
        self._marks: dict[int, tuple[Tensor, Tensor]] = {}

    def look(self, watched: WatchedModel, captured: Collection[int]) -> None:
        """A measured round is over."""
        self._rounds += 1
        if self._rounds <= FIRST_ROUNDS and not self._marks:
            self._judge(watched, captured)
        elif self._rounds == AGAIN and self._marks:
            self._judge_again()

    def _judge(self, watched: WatchedModel, captured: Collection[int]) -> None:
        parameters, names, copies = watched.parameters, watched.names, watched.copies
        reached = set(captured) - watched.trained
        lost = untrained(parameters, names, reached, (), copies)
        if lost:  # all optimizers of the process: the meter may have been given one of them
            lost = untrained(parameters, names, lost, held_by(all_optimizers()), copies)
        if not lost:
            if captured:
                self._log.ok(ID)
            return
        whole = whole_blocks(watched.blocks, parameters, lost)
        self._marks = {i: (parameters[i], mark_of(parameters[i])) for i in lost[:MOST_MARKS]}
        listed = some([names[i] for i in lost], NAMED)
        self._log.found(
            ID,
            f"{len(lost)} parameters get a gradient and no optimizer of this process holds them:"
            f" {listed}",
            parameters=len(lost),
            of=len(captured),
            names=[names[i] for i in lost[:NAMED]],
            blocks=whole,
        )

    def _judge_again(self) -> None:
        """An optimizer was made since, or somebody moves them by hand."""
        held = held_by(all_optimizers())
        marks = [(p, then, mark_of(p)) for p, then in self._marks.values()]
        moved = any(id(p) in held or not torch.equal(then, now) for p, then, now in marks)
        self._marks = {}
        if moved:
            self._log.withdraw(ID)


class HandMoved:
    """Parameters that an optimizer holds, that never have a gradient, and that move all the same:
    the script steps them itself (TRPO, evolution strategies)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._rounds = 0
        self._marks: dict[int, tuple[Tensor, Tensor]] = {}

    def look(self, watched: WatchedModel, captured: Collection[int]) -> None:
        """A measured round is over; looked at after 1, 2, 4, 8, ... of them."""
        self._rounds += 1
        if self._rounds & (self._rounds - 1):
            return
        if self._rounds == 1:
            self._marks = _one_of_each_layer(watched, captured)
        self._marks = {i: held for i, held in self._marks.items() if i not in captured}
        pairs = [(i, then, mark_of(p)) for i, (p, then) in self._marks.items()]
        moved = {i for i, then, now in pairs if not torch.equal(then, now)}
        if not moved:
            return
        blocks = zip(watched.blocks.names, watched.blocks.members, strict=True)
        names = [name for name, members in blocks if name != "all" and moved & set(members)]
        self._recorder.event(
            MOVED,
            f"{some(names, NAMED)} moved without a gradient: the script steps it by hand",
            blocks=names,
        )
        self._marks = {}


def _one_of_each_layer(
    watched: WatchedModel, captured: Collection[int]
) -> dict[int, tuple[Tensor, Tensor]]:
    """A trained parameter without a gradient of each layer, and what it is known by."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for members in list(watched.blocks.layers.values()):
        idle = [i for i in members if i in watched.trained and i not in captured]
        p = watched.parameters[idle[0]] if idle else None
        # Of a parameter that is cut into pieces a rank may hold nothing, gradient or not.
        if p is not None and p.requires_grad and not is_sharded(p) and len(found) < MOST_LAYERS:
            found[idle[0]] = (p, mark_of(p))
    return found


class UnreachedOptimizers:
    """Whether the losses that go backward reach what is stepped at all: an optimizer may hold the
    parameters of another model, or the loss be cut off from all of them."""

    def __init__(self, log: ProofLog) -> None:
        self._log = log
        self._trained: list[Tensor] = []
        self._backwards = self._steps = self._lost = 0
        self._is_over = False

    def scan(self, watched: WatchedModel) -> None:
        """The parameters that optimizers step."""
        self._trained = [watched.parameters[i] for i in sorted(watched.trained)]

    def look(self, roots: Iterable[Any]) -> None:
        """A loss is about to go backward."""
        if self._is_over or not self._trained or self._backwards >= MOST_BACKWARDS:
            return
        self._backwards += 1
        leaves = leaves_of(roots)
        self._lost = max(self._lost, len(leaves))
        self._is_over = any(id(p) in leaves for p in self._trained)

    def stepping(self) -> None:
        """A step without any gradient; those that are set by hand are gradients too."""
        if self._is_over or not self._backwards:
            return
        self._steps += 1
        if any(p.grad is not None for p in self._trained):
            self._is_over = True
        elif self._steps >= EMPTY_STEPS:
            self._is_over = True
            self._log.found(
                ID,
                f"{self._steps} optimizer steps had no gradient at all: the loss reaches"
                f" {self._lost} tensors, and none that an optimizer holds",
                subject="loss",
                parameters=0,
                blocks=[],
                reaches=self._lost,
            )


class IdleOptimizers:
    """An optimizer that never stepped while the others did: its `step()` is missing where its
    parameters have gradients, and its loss, or what leads to it, where they have none."""

    def __init__(self, log: ProofLog, optimizers: Sequence[Optimizer]) -> None:
        self._log, self._optimizers = log, optimizers
        self._steps = [0] * len(optimizers)
        self._marks = [[(p, mark_of(p)) for p in _few(each)] for each in optimizers]

    def stepped(self, number: int) -> None:
        """It has stepped."""
        self._steps[number] += 1

    def finish(self) -> None:
        """The training is over."""
        if max(self._steps, default=0) < MANY_STEPS:
            return
        pairs = list(zip(self._optimizers, self._steps, strict=True))
        busy = held_by(one for one, steps in pairs if steps)
        for number, (one, steps) in enumerate(pairs):
            own = [p for group in one.param_groups for p in group["params"]]
            alone = [p for p in own if id(p) not in busy]
            if not steps and any(p.grad is not None for p in alone):
                self._tell(number, "though its parameters have gradients")
            elif (
                not steps
                and len(alone) == len(own)
                and any(p.requires_grad for p in own)
                and not self._has_moved(number)
            ):
                self._tell(number, "and no backward reached its parameters", how="no-gradient")

    def _has_moved(self, number: int) -> bool:
        """Whether somebody else moves its parameters: those of a target network follow another."""
        return any(not torch.equal(then, mark_of(p)) for p, then in self._marks[number])

    def _tell(self, number: int, why: str, **detail: Any) -> None:
        one = self._optimizers[number]
        held = sum(len(group["params"]) for group in one.param_groups)
        self._log.found(
            "never-trained",
            f"optimizer {number} ({type(one).__name__}, {held} tensors) never stepped, {why};"
            f" another made {max(self._steps)} steps",
            step=0,
            subject=f"optimizer {number}",
            **detail,
        )


def _few(optimizer: Optimizer) -> list[Tensor]:
    own = [p for group in optimizer.param_groups for p in group["params"]]
    plain = (p for p in own if not is_lazy(p) and p.layout == torch.strided)
    return [p for p in plain if not is_sharded(p)][:MOST_MARKS]


class UntrainedValues:
    """Whether somebody steps what an error of values reaches: one of two critics may be in no
    optimizer, and nobody watches it then. What a target network says is no value that is trained.
    The leaves of a sharded model are put together for a pass, and no optimizer holds them.
    """

    def __init__(
        self, log: ProofLog, *, sharded: bool = False, optimizers: Sequence[Optimizer] = ()
    ) -> None:
        self._log, self._sharded, self._optimizers = log, sharded, optimizers
        self._seen: dict[int, tuple[Tensor, Tensor]] | None = None
        self._losses = 0

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss is about to go backward in a measured step."""
        if self._sharded or self._losses > LAST_LOSS or not seen.errors:
            return
        self._losses += 1
        if self._losses == 1:
            self._seen = self._without_optimizer(seen)
        elif self._losses == LAST_LOSS and self._seen:
            self._judge(self._seen)
            self._seen = None

    def _without_optimizer(self, seen: SeenGraph) -> dict[int, tuple[Tensor, Tensor]]:
        told = (trained_towards(*each) for each in seen.errors[:MOST_MARKS])
        below = [leaf_tensors([each.below]) for each in told if each is not None]
        lost = _held_by_none(below, self._optimizers)
        # to search the process for others takes up to half a second, and hardly ever is there need
        lost = lost and _held_by_none(lost, all_optimizers())
        return {key: (p, mark_of(p)) for each in lost for key, p in each.items()}

    def _judge(self, lost: dict[int, tuple[Tensor, Tensor]]) -> None:
        if self._log.state(ID) == "found":
            return  # the meter watches them, and has told it
        held = held_by(all_optimizers())
        still = all(
            key not in held and torch.equal(then, mark_of(p)) for key, (p, then) in lost.items()
        )
        if still:
            self._log.found(
                ID,
                f"{len(lost)} parameters below the error of a value get a gradient, and no"
                " optimizer of this process holds them",
                subject="values",
                parameters=len(lost),
                blocks=[],
            )


class IdlePolicy:
    """Whether what the log-probabilities of a loss reach is stepped by anybody. The optimizer of an
    earlier phase of a script (pretraining) may hold it still, and steps no more: then the search
    for what no optimizer holds finds nothing."""

    def __init__(
        self, log: ProofLog, *, sharded: bool = False, optimizers: Sequence[Optimizer] = ()
    ) -> None:
        self._log, self._optimizers = log, optimizers
        self._marks: list[tuple[Tensor, Tensor]] = []
        self._held = self._losses = 0
        self._is_over = sharded

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss is about to go backward in a measured step."""
        if self._is_over or not seen.log_probs:
            return
        self._losses += 1
        if self._losses in (1, LAST_POLICY_LOSS):
            reached = leaf_tensors([each.node for each in seen.log_probs])
            watched = held_by(self._optimizers)
            self._is_over = not reached or not watched.isdisjoint(reached)
            if self._losses == 1:
                self._held = len(reached)
                self._marks = [(p, mark_of(p)) for p in list(reached.values())[:MOST_MARKS]]
            elif not self._is_over:
                self._judge(reached)

    def _judge(self, reached: Collection[int]) -> None:
        self._is_over = True
        holders = (one for one in all_optimizers() if not held_by([one]).isdisjoint(reached))
        if any(not one.state for one in holders):
            return  # it has not stepped, and its turn may come
        if all(torch.equal(then, mark_of(p)) for p, then in self._marks):
            self._log.found(
                ID,
                f"{self._held} parameters below the log-probs of {self._losses} losses get a"
                " gradient and never moved: no optimizer that steps holds them",
                subject="policy",
                parameters=self._held,
                blocks=[],
            )


def _held_by_none(
    below: Sequence[dict[int, Tensor]], optimizers: Iterable[Optimizer]
) -> list[dict[int, Tensor]]:
    """Those sets of leaves of which no optimizer holds any."""
    held = held_by(optimizers)
    return [each for each in below if each and held.isdisjoint(each)]


def all_optimizers() -> list[Optimizer]:
    """Those of this process."""
    return [each for each in living(Optimizer)[Optimizer] if hasattr(each, "param_groups")]
