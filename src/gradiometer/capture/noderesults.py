"""The result of an operation, from what its node in the graph has kept for its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["result_of"]

REDUCTIONS = ("none", "mean", "sum")


def result_of(node: Any) -> Tensor | None:
    """What the operation gave; None where its node does not tell.

    A tensor that was changed in place since, or that hooks of the user's unpack, may raise: then it
    is not known.
    """
    make = RESULTS.get(type(node).__name__)
    try:
        found = None if make is None else make(node)
    except (RuntimeError, AttributeError, TypeError):
        return None
    return found if isinstance(found, Tensor) else None


def _kept(node: Any) -> Any:
    return node._saved_result


def _reduced(function: Callable[..., Tensor], **names: str) -> Callable[[Any], Tensor]:
    """A loss of torch's, with its options by the names they are saved under."""

    def made(node: Any) -> Tensor:
        options = {name: getattr(node, saved) for name, saved in names.items()}
        reduction = REDUCTIONS[node._saved_reduction]
        return function(node._saved_self, node._saved_target, reduction=reduction, **options)

    return made


def _power(node: Any) -> Any:
    return torch.pow(node._saved_self, node._saved_exponent)


def _product(node: Any) -> Any:
    return node._saved_self * node._saved_other


def _quotient(node: Any) -> Any:
    return node._saved_self / node._saved_other


RESULTS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            "ExpBackward0",
            "TanhBackward0",
            "SigmoidBackward0",
            "SqrtBackward0",
            "ReluBackward0",
            "SoftmaxBackward0",
            "LogSoftmaxBackward0",
            "LogsumexpBackward0",
            "LinalgVectorNormBackward0",
        ),
        _kept,
    ),
    "PowBackward0": _power,
    "MulBackward0": _product,
    "DivBackward0": _quotient,
    "MinimumBackward0": lambda node: torch.minimum(node._saved_self, node._saved_other),
    "MaximumBackward0": lambda node: torch.maximum(node._saved_self, node._saved_other),
    "ClampBackward1": lambda node: torch.clamp(node._saved_self, node._saved_min, node._saved_max),
    "LogBackward0": lambda node: torch.log(node._saved_self),
    "AbsBackward0": lambda node: torch.abs(node._saved_self),
    "SoftplusBackward0": lambda node: F.softplus(
        node._saved_self, node._saved_beta, node._saved_threshold
    ),
    "MseLossBackward0": _reduced(F.mse_loss),
    "SmoothL1LossBackward0": _reduced(F.smooth_l1_loss, beta="_saved_beta"),
    "HuberLossBackward0": _reduced(F.huber_loss, delta="_saved_delta"),
    "NllLossBackward0": _reduced(
        F.nll_loss, weight="_saved_weight", ignore_index="_saved_ignore_index"
    ),
    "BinaryCrossEntropyWithLogitsBackward0": _reduced(
        F.binary_cross_entropy_with_logits,
        weight="_saved_weight",
        pos_weight="_saved_pos_weight",
    ),
}
