"""What reaches what: each term's gradient on each block, and what the optimizers hold of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture import terms as splitting
from gradiometer.capture.blocks import Blocks
from gradiometer.capture.randomness import RandomState
from gradiometer.errors import UsageError
from gradiometer.maths.vectors import vectors_for
from gradiometer.probes.auditcheck import num_arguments, tolerance

__all__ = ["Cell", "Reach", "Subject", "evaluated", "take"]

Terms = Callable[..., Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A term on a block: `path` (a gradient arrives), `zero` (a path, and exactly zero arrives) or `none`."""

    state: Literal["path", "zero", "none"]
    norm: float | None
    """None where there is no path: missing is not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is audited."""

    named: Mapping[str, nn.Parameter]
    blocks: Blocks
    optimizers: Sequence[Optimizer]
    memory_limit: int

    @property
    def names(self) -> list[str]:
        """Of the parameters, in order."""
        return list(self.named)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """In order."""
        return list(self.named.values())

    def members(self) -> dict[str, tuple[int, ...]]:
        """Every block's parameters by place."""
        return dict(zip(self.blocks.names, self.blocks.members, strict=True))

    def named_blocks(self) -> list[str]:
        """Without `all` and without the layers."""
        return list(self.blocks.names[1 : self.blocks.num_named])

    def holders(self) -> dict[int, int]:
        """How many optimizers hold a parameter, by its id."""
        count: dict[int, int] = {}
        for optimizer in self.optimizers:
            for one in {id(p) for group in optimizer.param_groups for p in group["params"]}:
                count[one] = count.get(one, 0) + 1
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The gradients of the terms at these weights, as products."""

    terms: tuple[str, ...]
    losses: Mapping[str, float]
    paths: Mapping[str, frozenset[int]]
    """By term, the parameters with a gradient path."""
    outside: Mapping[str, tuple[nn.Parameter, ...]]
    """By term, parameters that are not the model's: the temperature of SAC, say."""
    products: NDArray[np.float64]
    """[parameters, terms, terms], the last rows and columns those of the whole loss where there is one."""
    tolerance: float

    def place(self, term: str) -> int:
        """Where the term stands in the products."""
        return self.terms.index(term)

    def squares(self, term: str) -> NDArray[np.float64]:
        """‖g‖² of each parameter, [parameters]."""
        at = self.place(term)
        return np.asarray(self.products[:, at, at])

    def cell(self, term: str, members: Sequence[int]) -> Cell:
        """A term on some parameters."""
        there = [i for i in members if i in self.paths[term]]
        if not there:
            return Cell(state="none", norm=None)
        square = self.squares(term)[there]
        return Cell(state="path" if (square != 0).any() else "zero", norm=float(np.sqrt(square.sum())))


def evaluated(function: Callable[..., Any], batch: Mapping[str, Tensor] | None, random: RandomState, what: str) -> Any:
    """Call it with the batch if it wants one, with the random numbers of the first time."""
    wanted = num_arguments(function)
    if wanted > 1 or (wanted == 1 and batch is None):
        raise UsageError(f"{what} takes {wanted} arguments: give batch= for one that takes a batch, or take none")
    random.restore()
    with torch.enable_grad():
        return function(batch) if wanted else function()


def checked(found: Any) -> dict[str, Tensor]:
    """What terms() gave, if it can be a loss."""
    if not isinstance(found, Mapping) or not found:
        kind = "an empty mapping" if isinstance(found, Mapping) else type(found).__name__
        raise UsageError(
            f"terms() gives a mapping of names to loss tensors, {{'policy': ..., 'value': ...}}; found {kind}"
        )
    return dict(splitting.resolve(found).terms)


def take(subject: Subject, found: Mapping[str, Tensor], *more: tuple[str, Tensor]) -> Reach:
    """One backward a term, from the forward that is there; `.grad` is not written."""
    parameters = subject.parameters
    every = {**found, **dict(more)}
    vectors = vectors_for(parameters, expected=len(every), memory_limit=subject.memory_limit)
    paths: dict[str, frozenset[int]] = {}
    for name, term in every.items():
        gradients = splitting.gradients(term, parameters)
        paths[name] = frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
        vectors.add(name, gradients)
    return Reach(
        terms=tuple(every),
        losses={name: float(term.detach()) for name, term in every.items()},
        paths=paths,
        outside={name: _outside(term, parameters) for name, term in every.items()},
        products=vectors.products(list(every)).cpu().numpy(),
        tolerance=tolerance(every.values(), parameters),
    )


def _outside(term: Tensor, parameters: Iterable[Tensor]) -> tuple[nn.Parameter, ...]:
    ours = {id(p) for p in parameters}
    return tuple(leaf for leaf in splitting.leaves([term]) if isinstance(leaf, nn.Parameter) and id(leaf) not in ours)
