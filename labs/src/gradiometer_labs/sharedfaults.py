"""What several labs break alike: ways to break a line, and faults of a piece they all have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from gradiometer_labs.faults import FaultsOf

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Line", "first_detached", "left_out", "negated", "times", "without_gradient"]

Line: TypeAlias = "Callable[..., Tensor]"
"""A piece that makes a tensor."""
P = ParamSpec("P")
T = TypeVar("T")


def negated(line: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The line with the other sign."""

    def broken(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        return -line(*args, **kwargs)

    return broken


def first_detached(line: Line) -> Line:
    """The line, whose first argument passes no gradient on."""

    def broken(first: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return line(first.detach(), *args, **kwargs)

    return broken


def without_gradient(line: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The line under torch.no_grad()."""
    import torch

    def broken(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        with torch.no_grad():
            return line(*args, **kwargs)

    return broken


def times(factor: float, line: Callable[P, T]) -> Callable[P, T]:
    """The line's result, times a factor."""

    def broken(*args: P.args, **kwargs: P.kwargs) -> T:
        result: Any = line(*args, **kwargs)
        scaled: T = factor * result
        return scaled

    return broken


def left_out(part: nn.Module, parameters: Iterable[Any]) -> list[Any]:
    """The parameters without those of a part of the model, as when it was forgotten."""
    forgotten = {id(each) for each in part.parameters()}
    return [each for each in parameters if id(each) not in forgotten]


def entropy_no_grad(entropy_of: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """As TRL once had it (pull requests 5595 and 5596)."""
    return without_gradient(entropy_of)


for _lab in ("cartpole", "sokoban", "sparsify"):
    FaultsOf(_lab)(
        piece="entropy_of",
        summary="the entropy is computed under torch.no_grad(): the loss contains the bonus,"
        " but it trains no weight",
        expected=("dead-term",),
        catalogue="F19",
    )(entropy_no_grad)
