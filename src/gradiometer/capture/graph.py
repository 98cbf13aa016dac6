"""Which layer feeds which, read off the graph of a loss before it goes backward.

A node that takes a parameter, directly or through views and casts, is an operation of its layer.
From there the graph is followed down: the first operations of other layers below it are the layers
that feed it. Nothing of the graph is kept but names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from gradiometer.capture.blocks import Blocks
from gradiometer.store.layers import LayerGraph

__all__ = ["LayerFinder", "layers_feeding"]

VIEWS = re.compile(
    r"(T|Transpose|Permute|View|UnsafeView|ReshapeAlias|Expand|Unsqueeze|Squeeze|ToCopy|Clone|Alias"
    r"|Slice|Select|Split|SplitWithSizes|Unbind|AsStrided|NumpyT|MoveAxis)Backward\d*"
)
"""Nodes that hand a parameter on as it is."""
MOST_NODES = 200_000
"""A larger graph is not walked: a second of Python."""
MOST_WALKS = 12
"""Backwards that are looked at; a delayed actor, or another optimizer, comes after the first."""
COMPILED = re.compile(r"CompiledFunction(Backward)?")
"""A compiled piece of the model is one node, and hides the order of its layers."""

Below = frozenset[str]
NONE: Below = frozenset()


def layers_feeding(roots: Iterable[Any], layer_of: Mapping[int, str]) -> dict[str, Below] | None:
    """Of each layer that these nodes lead to, the layers that feed it. None of a graph too large,
    nothing of a model that is compiled into one node.

    `layer_of` has the layer of each parameter by its id.
    """
    nodes = _children_first(roots)
    if nodes is None:
        return None
    carried: dict[Any, Below] = {}
    taken: dict[Any, Below] = {}
    below: dict[Any, Below] = {}
    found: dict[str, Below] = {}
    hidden = False
    for node in nodes:
        children = [child for child, _ in node.next_functions if child is not None]
        if not children:
            layer = layer_of.get(id(getattr(node, "variable", None)))
            carried[node] = frozenset([layer]) if layer is not None else NONE
            continue
        bare = _union(carried.get(child, NONE) for child in children)
        if bare and len(children) == 1 and VIEWS.fullmatch(type(node).__name__):
            carried[node] = bare
            continue
        taken[node] = bare
        below[node] = _union(taken.get(child) or below.get(child, NONE) for child in children)
        hidden = hidden or (len(bare) > 1 and bool(COMPILED.fullmatch(type(node).__name__)))
        for layer in bare:
            found[layer] = found.get(layer, NONE) | (below[node] - bare)
    return {} if hidden and not any(found.values()) else found


def _union(parts: Iterable[Below]) -> Below:
    """Of the sets; the very set where only one is not empty, for most nodes have one child."""
    whole = NONE
    for part in parts:
        whole = part if not whole else whole if not part or part is whole else whole | part
    return whole


def _children_first(roots: Iterable[Any]) -> list[Any] | None:
    """Every node below the roots, each after those it leads to; depth first, without recursion."""
    done: dict[Any, None] = {}
    begun: set[Any] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, ready = stack.pop()
        if ready:
            done[node] = None
        elif node not in begun:
            begun.add(node)
            if len(begun) > MOST_NODES:
                return None
            stack.append((node, True))
            stack += [(child, False) for child, _ in node.next_functions if child is not None]
    return list(done)


class LayerFinder:
    """Puts together what the first measured backwards show, and then looks no more."""

    def __init__(self) -> None:
        self.graph = LayerGraph(registered=())
        self._layer_of: dict[int, str] = {}
        self._trained: frozenset[str] = frozenset()
        self._walks = 0

    def scan(self, blocks: Blocks, parameters: Sequence[Tensor]) -> None:
        """The model was read, perhaps anew: what is known of layers that are still there stays."""
        layers = blocks.layers
        self._layer_of = {id(parameters[i]): name for name, part in layers.items() for i in part}
        self._trained = frozenset(
            name for name, part in layers.items() if any(parameters[i].requires_grad for i in part)
        )
        known = {
            name: below & layers.keys()
            for name, below in self.graph.fed_by.items()
            if name in layers
        }
        self.graph = LayerGraph(registered=tuple(layers), fed_by=known)
        self._walks = 0

    @property
    def wanted(self) -> bool:
        """Whether another backward may still show something."""
        return self._walks < MOST_WALKS and not self.graph.fed_by.keys() >= self._trained

    def look(self, tensors: Iterable[Tensor]) -> None:
        """The tensors are about to go backward."""
        self._walks += 1
        roots = [x.grad_fn for x in tensors if isinstance(x, Tensor) and x.grad_fn is not None]
        found = layers_feeding(roots, self._layer_of)
        if found:
            self.graph = self.graph.together(found)
