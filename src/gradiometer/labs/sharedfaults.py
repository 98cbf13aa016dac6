"""Faults that several labs share: where labs give the same piece the same name, one changed line serves them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gradiometer.labs.faults import fault

if TYPE_CHECKING:
    from torch import Tensor

__all__: list[str] = []


@fault(
    "entropy_no_grad",
    labs=("cartpole", "sokoban"),
    piece="entropy_of",
    summary="the entropy is computed under torch.no_grad(): the loss shows the bonus, no weight ever feels it",
    expected=("dead-term",),
    catalogue="F19",
)
def entropy_no_grad(entropy_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """As TRL once had it (pull requests 5595 and 5596)."""
    import torch

    def broken(logits: Tensor) -> Tensor:
        with torch.no_grad():
            return entropy_of(logits)

    return broken
