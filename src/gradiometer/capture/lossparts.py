"""The losses of a training as its graphs have them: each backward of a step that splits its loss is
read (capture/schematic.py), and becomes a `Split` like one of `meter.terms`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradiometer.capture import schematic
from gradiometer.capture.blocks import Model
from gradiometer.capture.detached import detached_part
from gradiometer.capture.distributed import gathered, is_spread
from gradiometer.capture.frames import Names, names_around
from gradiometer.capture.hooks import BackwardCall
from gradiometer.capture.rounds import Round, SeenPart
from gradiometer.capture.schematic import Schematic
from gradiometer.capture.terms import Edge, GraphPart, Split

__all__ = ["LossParts", "SeenLosses", "is_plain"]

FULL, HALF_PRECISION = 1e-5, 1e-2
"""How far the parts may be from the whole gradient: rounding, and no more."""


class LossParts:
    """Reads what is about to go backward. Nothing of a graph or a frame is left when it has."""

    def __init__(self) -> None:
        self._numbering: dict[Any, str] = {}
        self._known: set[str] = set()
        self._first: int | None = None
        """The first round whose loss was read."""
        self._watched: frozenset[int] = frozenset()
        self._reduced_precision = False

    def scan(self, model: Model, parameters: Sequence[Tensor]) -> None:
        """The watched parameters, perhaps others than before."""
        self._model = model
        self._watched = frozenset(map(id, parameters))
        self._reduced_precision = any(p.device.type == "cuda" for p in parameters)

    def wanted(self, number: int) -> bool:
        """Whether parts are measured in the round of this number: one alone is the gradient itself,
        but in the first round others may follow."""
        if self._first is None:
            self._first = number
        return len(self._known) > 1 or number == self._first

    def read(self, call: BackwardCall) -> tuple[Schematic, Split] | None:
        """The parts of this loss; None where it is not one of the watched model, or cannot be
        read."""
        if not is_plain(call):
            return None
        surveyed = schematic.survey(call.tensors)
        if surveyed is None:
            return None
        copies = gathered(self._model)
        leaves = tuple(copies.get(id(x), x) for x in surveyed.leaves)
        if self._watched.isdisjoint(map(id, leaves)):
            return None
        names = names_around(sys._getframe(1))
        call = _unscaled(call, names)
        found = schematic.read(call, names, self._numbering)
        if (detached := detached_part(found, names)) is not None:
            found = replace(found, parts=(*found.parts, detached))
        measured = {part.name: part for part in found.parts if part.coefficient != 0.0}
        self._known.update(measured)
        rough = surveyed.is_half or (
            self._reduced_precision and torch.get_float32_matmul_precision() != "highest"
        )
        split = Split(
            terms=measured,
            functions={},
            advantages={},
            random=None,
            leaves=leaves,
            whole=_whole(call, found.loss),
            tolerance=HALF_PRECISION if rough else FULL,
            strangers=surveyed.strangers,
        )
        return found, split


class SeenLosses:
    """The parts of the losses of one round; parts of one name, in several backwards, are one."""

    def __init__(self) -> None:
        self._parts: dict[str, SeenPart] = {}
        self._values: dict[str, Tensor | None] = {}
        self._loss: Tensor | None = None
        self._calls = 0

    def note(self, found: Schematic, reached: Collection[int]) -> None:
        """One more loss; `reached` are the watched parameters below it."""
        self._calls += 1
        alone = sum(part.requires_grad for part in found.parts) == 1
        loss = found.loss.detach()
        self._loss = loss if self._loss is None else self._loss + loss.to(self._loss)
        for part in found.parts:
            below = frozenset(reached) if alone and part.requires_grad else frozenset[int]()
            seen = SeenPart(
                name=part.name,
                role=part.role,
                coefficient=part.coefficient,
                named_by=part.named_by,
                alive=part.requires_grad,
                backward=self._calls,
                reached=below,
            )
            before = self._parts.get(part.name)
            self._parts[part.name] = (
                seen if before is None else replace(seen, backward=before.backward)
            )
            held = self._values.get(part.name)
            if part.value is not None and (held is not None or before is None):
                value = part.value.detach()
                self._values[part.name] = value if held is None else held + value.to(held)
            else:
                self._values[part.name] = None

    def finish(self, current: Round) -> None:
        """Values go into the reading, what they are of into the round."""
        if current.reading is None or self._loss is None:
            return
        current.wiring = tuple(self._parts.values())
        current.reading.add_scalar("wiring/loss", self._loss)
        for name, value in self._values.items():
            if value is not None:
                current.reading.add_scalar(f"wiring/part/{name}", value)


def is_plain(call: BackwardCall) -> bool:
    """A backward of the user's own, of plain tensors, to all of their leaves."""
    if not call.tensors or call.inputs is not None or torch._C._current_graph_task_id() != -1:
        return False  # inside a backward: a checkpoint runs its piece of the graph
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(
        isinstance(x, Tensor) and x.requires_grad and x.is_floating_point() and not is_spread(x)
        for x in call.tensors
    )


def _unscaled(call: BackwardCall, names: Names) -> BackwardCall:
    """Without the loss scale of half precision, which is taken out of the gradients later."""
    scales = [x for each in names.scalers if isinstance(x := each._scale, Tensor)]
    places = {x.data_ptr(): x for x in scales}
    slopes: list[Tensor] = []
    for number, root in enumerate(call.tensors):
        node, slope = root.grad_fn, call.slope(number)
        held = node._saved_other if type(node).__name__ == "MulBackward0" else None
        scale = places.get(held.data_ptr()) if isinstance(held, Tensor) else None
        slopes.append(slope if scale is None else slope / scale.to(slope))
    return BackwardCall(tensors=call.tensors, given=tuple(slopes), inputs=call.inputs)


def _whole(call: BackwardCall, loss: Tensor) -> GraphPart:
    edges = [
        Edge(root.grad_fn, root.output_nr, call.slope(number))
        for number, root in enumerate(call.tensors)
        if root.grad_fn is not None
    ]
    return GraphPart(
        name="loss", role=None, edges=tuple(edges), value=loss, coefficient=1.0, named_by="root"
    )
