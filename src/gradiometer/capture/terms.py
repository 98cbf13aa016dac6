"""What each loss term contributes: its gradient by itself, from the same forward, before the ordinary backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gradiometer.capture.reading import Fetched, Reading
from gradiometer.errors import UsageError
from gradiometer.maths import stats

__all__ = [
    "Reach",
    "buffers_kept",
    "check_terms",
    "guilty",
    "has_user_hooks",
    "measure_terms",
    "nonfinite_terms",
    "total",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Whether autograd finds a path from a term to the parameters: structure, not size."""

    term: str
    reached: frozenset[int]
    """Parameters with a path; empty is a dead term."""


def check_terms(terms: Mapping[str, Tensor]) -> None:
    """Refuse what cannot be a loss term. A tensor without a gradient path is not refused: it is what we look for."""
    if not terms:
        raise UsageError("meter.terms() needs at least one term, e.g. meter.terms(policy=pg_loss, value=0.5 * v_loss)")
    seen: dict[int, str] = {}
    for name, term in terms.items():
        if not isinstance(term, Tensor):
            raise UsageError(
                f"term {name!r} is a {type(term).__name__}, not a tensor; drop .item() or wrap it in a tensor"
            )
        if term.numel() != 1:
            raise UsageError(
                f"term {name!r} has shape {tuple(term.shape)}; reduce it to a scalar with .mean() or .sum()"
            )
        if "/" in name or "~" in name:
            raise UsageError(f"term name {name!r} holds a slash or a tilde; choose a plain word such as 'policy'")
        if id(term) in seen:
            raise UsageError(f"terms {seen[id(term)]!r} and {name!r} are the same tensor, which would count it twice")
        seen[id(term)] = name


def total(terms: Iterable[Tensor]) -> Tensor:
    """The sum in the order given, the same with and without the meter."""
    first, *others = terms
    loss = first
    for term in others:
        loss = loss + term
    return loss


def measure_terms(terms: Mapping[str, Tensor], parameters: Sequence[Tensor], reading: Reading) -> list[Reach]:
    """Each term's gradient norms into `reading`, and what each term reaches. The graph is kept for the real backward."""
    trained = [(index, p) for index, p in enumerate(parameters) if p.requires_grad]
    reaches: list[Reach] = []
    for name, term in terms.items():
        reading.add_scalar(f"term/{name}/loss", term)
        grads: Sequence[Tensor | None] = ()
        if term.requires_grad:
            inputs = [p for _, p in trained]
            grads = torch.autograd.grad(
                term, inputs, grad_outputs=torch.ones_like(term), retain_graph=True, allow_unused=True
            )
        found = [(index, grad) for (index, _), grad in zip(trained, grads, strict=False) if grad is not None]
        with torch.no_grad():
            reading.add(f"term/{name}", [i for i, _ in found], stats.norms([stats.values(grad) for _, grad in found]))
        reaches.append(Reach(term=name, reached=frozenset(index for index, _ in found)))
    return reaches


@contextmanager
def buffers_kept(model: Iterable[nn.Module]) -> Iterator[None]:
    """Running statistics as they were: a checkpointed forward runs again in every term's backward, and would count."""
    norms = [
        m for root in model for m in root.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.training
    ]
    kept = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers(recurse=False)]
    try:
        yield
    finally:
        for buffer, before in kept:
            # By way of .data: the kernel changes statistics without counting it as a change, and so must we.
            buffer.data.copy_(before)


def nonfinite_terms(reading: Reading | None, indices: Iterable[int]) -> list[str]:
    """The terms whose own gradient of one of these parameters was not finite. A sync, for the way out only."""
    wanted = set(indices)
    guilty: list[str] = []
    for quantity in sorted(reading.quantities()) if reading is not None else ():
        if quantity.startswith("term/"):
            for owners, norms in reading.of(quantity):  # type: ignore[union-attr]
                bad = (~torch.isfinite(norms)).tolist()
                if any(is_bad and i in wanted for i, is_bad in zip(owners, bad, strict=True)):
                    guilty.append(quantity.removeprefix("term/"))
    return guilty


def guilty(fetched: Fetched) -> list[str]:
    """The terms that had a gradient which was not finite."""
    return [
        quantity.removeprefix("term/")
        for quantity, norms in fetched.values.items()
        if quantity.startswith("term/") and not np.isfinite(norms[fetched.present[quantity]]).all()
    ]


def has_user_hooks(model: Iterable[nn.Module], parameters: Iterable[Tensor]) -> bool:
    """Whether the user listens to backward himself: a second backward would call him twice."""
    on_parameters = any(getattr(p, "_backward_hooks", None) for p in parameters)
    return on_parameters or any(
        getattr(part, "_backward_hooks", None) or getattr(part, "_backward_pre_hooks", None)
        for root in model
        for part in root.modules()
    )
