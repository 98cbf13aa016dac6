"""Gradients of the parts of a loss where parameters are sharded (FSDP2, DTensor).

autograd.grad finds no path through FSDP2's hooks, so a part goes backward as the training does,
into a `.grad` that is put aside meanwhile. Such a backward sends the training's own messages: if
one rank did it and another not, gradients of different things would be added up. Hence a vote
before, and nothing of ours that can fail between it and the last pass. The roots of the loss go
backward along with the part, with a slope of zero: then every hook of FSDP2 is called, and every
message sent, as in the training's own backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from gradiometer.capture import hooks
from gradiometer.capture.blocks import Model
from gradiometer.capture.distributed import gathered, is_sharded, local, reset_backward
from gradiometer.capture.hooks import BackwardCall
from gradiometer.capture.terms import GraphPart, SavedState

__all__ = ["Pass", "Passes", "ShardedGraph", "reaches_shards"]

Gradients = list[Tensor | None]


@dataclass(frozen=True, slots=True)
class Pass:
    """A backward of ours: of what, and which watched parameters are below it."""

    name: str
    part: Tensor | GraphPart
    reached: frozenset[int]


class ShardedGraph:
    """The graph below a backward call of the training's, and who is at its leaves."""

    def __init__(self, call: BackwardCall, model: Model, parameters: Sequence[Tensor]) -> None:
        self._call, self._copies = call, gathered(model)
        self._index = {id(p): i for i, p in enumerate(parameters)}
        roots = [x.grad_fn for x in call.tensors if x.grad_fn is not None]
        self._nodes = _below(roots)
        self.leaves = tuple(self._leaves(self._nodes))
        """Sharded parameters in the place of FSDP2's copies."""

    def holds(self, parts: Iterable[Tensor | GraphPart]) -> bool:
        """Whether these parts are of this graph."""
        return all(node in self._nodes for part in parts for node in _tops(part))

    def compiled(self) -> bool:
        """Whether compiled code is in it that frees what it saved in its first backward."""
        config: Any = getattr(torch._functorch, "config", None)  # loaded by whoever compiles
        frees = config is not None and getattr(config, "donated_buffer", False)
        return frees and any(type(x).__name__ == "CompiledFunctionBackward" for x in self._nodes)

    def reached(self, part: Tensor | GraphPart) -> frozenset[int]:
        """The watched parameters below a part."""
        found = (self._index.get(id(x)) for x in self._leaves(_below(_tops(part))))
        return frozenset(i for i in found if i is not None)

    def backward(self, part: Tensor | GraphPart) -> None:
        """As the training does, of this part alone."""
        places, slopes = _places(part)
        roots = list(self._call.tensors)
        nothing = [torch.zeros_like(self._call.slope(i)) for i in range(len(roots))]
        torch.autograd.backward([*roots, *places], [*nothing, *slopes], retain_graph=True)

    def _leaves(self, nodes: Iterable[Any]) -> list[Tensor]:
        held = (x.variable for x in nodes if type(x).__name__ == "AccumulateGrad")
        return [self._copies.get(id(x), x) for x in held]


@dataclass(slots=True)
class Passes:
    """Backwards that all ranks have agreed on."""

    graph: ShardedGraph
    model: Model
    parameters: Sequence[Tensor]
    saved: SavedState

    def run(self, passes: Sequence[Pass], take: Callable[[Pass, Gradients], None]) -> str | None:
        """Hand each pass's gradients to `take`, pieces of sharded ones; or why that cannot be done.

        What `take` raises is raised when the passes are over.
        """
        leaves = {id(x): x for x in (*self.graph.leaves, *self.parameters)}.values()
        aside = [(x, x.grad) for x in leaves]
        trouble: Exception | None = None
        try:
            with hooks.own_pass():
                for each in passes:
                    for x, _ in aside:
                        x.grad = None
                    self.graph.backward(each.part)
                    try:
                        if trouble is None:
                            take(each, self._found(each.reached))
                    except Exception as problem:
                        trouble = problem
                    self.saved.rewind()
        except Exception as problem:
            reset_backward(self.model)
            return str(problem).partition("\n")[0] or type(problem).__name__
        finally:
            for x, grad in aside:
                x.grad = grad
        if trouble is not None:
            raise trouble
        return None

    def _found(self, reached: frozenset[int]) -> Gradients:
        found: Gradients = [None] * len(self.parameters)
        for i in reached:
            grad = self.parameters[i].grad
            if grad is None:
                continue
            if placed(grad) != placed(self.parameters[i]):
                raise ValueError(
                    f"a gradient is placed as {placed(grad)}, its parameter as"
                    f" {placed(self.parameters[i])}"
                )
            found[i] = local(grad)
        return found


def placed(tensor: Tensor) -> object:
    """How it lies on the ranks; None of a tensor that every rank has."""
    return tuple(tensor.placements) if is_sharded(tensor) else None  # type: ignore[attr-defined]


def reaches_shards(call: BackwardCall, model: Model, parameters: Sequence[Tensor]) -> bool:
    """Whether a sharded parameter is below what goes backward: the same on every rank, whatever
    else differs there. Stops at the first."""
    sharded = {id(p) for p in parameters if is_sharded(p)} | gathered(model).keys()
    waiting = [x.grad_fn for x in call.tensors if x.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if type(node).__name__ == "AccumulateGrad" and id(node.variable) in sharded:
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def _tops(part: Tensor | GraphPart) -> list[Any]:
    if isinstance(part, GraphPart):
        return [edge.node for edge in part.edges]
    return [] if part.grad_fn is None else [part.grad_fn]


def _places(part: Tensor | GraphPart) -> tuple[list[Any], list[Tensor]]:
    if isinstance(part, GraphPart):
        places = [GradientEdge(edge.node, edge.number) for edge in part.edges]
        return places, [edge.slope for edge in part.edges]
    return [part], [torch.ones_like(part)]


def _below(roots: Sequence[Any]) -> Mapping[Any, None]:
    seen: dict[Any, None] = dict.fromkeys(roots)
    waiting = list(seen)
    while waiting:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in seen:
                seen[following] = None
                waiting.append(following)
    return seen
