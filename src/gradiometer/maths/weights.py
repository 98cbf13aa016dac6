"""How weights are spread over rollouts: effective sample sizes, cancellation, largest share.

Weights [..., n] in, one number per instance [...] out, in float64. Where all weights of an instance
are 0 (its rewards were equal) a ratio of them is 0/0 and reads NaN: such an instance has no
concentration, rather than one of 0.

The effective sample size of the max@K study is signed, (Σw)²/Σw². Weights with a baseline sum to
about 0, so it reads about 0 however they are spread: `ess_undefined` marks that, and `ess_abs` is
what one wants.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gradiometer.errors import UsageError

__all__ = [
    "Concentration",
    "abs_max",
    "cancellation",
    "concentration",
    "ess_abs",
    "ess_negative",
    "ess_positive",
    "ess_signed",
    "ess_undefined",
    "summary",
    "top_share",
]

EPSILON = 1e-12  # the study's, beside Σw²: it makes the signed ESS of all-zero weights 0
CENTRED = 1e-6  # |Σw| below this share of Σ|w| is rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Concentration:
    """How the weights of each instance are spread, every field [...]."""

    ess_signed: Tensor
    ess_undefined: Tensor
    """Whether `ess_signed` says nothing, bool."""
    ess_abs: Tensor
    ess_positive: Tensor
    ess_negative: Tensor
    cancellation: Tensor
    top_share: Tensor
    abs_max: Tensor


def concentration(w: Tensor) -> Concentration:
    """All quantities of this module at once."""
    return Concentration(
        ess_signed=ess_signed(w),
        ess_undefined=ess_undefined(w),
        ess_abs=ess_abs(w),
        ess_positive=ess_positive(w),
        ess_negative=ess_negative(w),
        cancellation=cancellation(w),
        top_share=top_share(w),
        abs_max=abs_max(w),
    )


def summary(w: Tensor) -> dict[str, float]:
    """Means over instances, each over those that have the quantity; NaN where none has it.

    For every field `x` of `Concentration`: `x`, its mean, and `x_left_out`, how many instances were
    NaN; `instances` is how many there are. `ess_signed` and `abs_max` are the study's ess_mean and
    weights_abs_max_mean: plain means over all instances, undefined ones too. `ess_undefined` is the
    share of instances whose `ess_signed` says nothing.
    """
    spread = concentration(w)
    found: dict[str, float] = {"instances": float(spread.abs_max.numel())}
    for field in fields(spread):
        values: Tensor = getattr(spread, field.name).double()
        found[field.name] = values.nanmean().item()
        found[f"{field.name}_left_out"] = float(values.isnan().sum().item())
    return found


def ess_signed(w: Tensor) -> Tensor:
    """(Σw)²/(Σw² + 1e-12), the study's; cancellation lowers it as concentration does."""
    w = _weights(w)
    return w.sum(-1).square() / (w.square().sum(-1) + EPSILON)


def ess_undefined(w: Tensor) -> Tensor:
    """|Σw| ≤ 1e-6 Σ|w|, bool [...]: weights cancel or are all 0; `ess_signed` means nothing."""
    w = _weights(w)
    return w.sum(-1).abs() <= CENTRED * w.abs().sum(-1)


def ess_abs(w: Tensor) -> Tensor:
    """(Σ|w|)²/Σw², in [1, n]: 1 when one rollout has all the weight, n when all weigh alike."""
    return _ess(_weights(w).abs())


def ess_positive(w: Tensor) -> Tensor:
    """The effective number among rollouts of positive weight; NaN when there is none."""
    return _ess(_weights(w).clamp(min=0))


def ess_negative(w: Tensor) -> Tensor:
    """The effective number among rollouts of negative weight; NaN when there is none."""
    return _ess(_weights(w).clamp(max=0).neg())


def cancellation(w: Tensor) -> Tensor:
    """|Σw|/Σ|w|, in [0, 1]: 0 when weights of both signs cancel, 1 when all have one sign."""
    w = _weights(w)
    return w.sum(-1).abs() / w.abs().sum(-1)


def top_share(w: Tensor) -> Tensor:
    """max|w|/Σ|w|, in [1/n, 1]: the part of the weight that one rollout has."""
    w = _weights(w).abs()
    return w.amax(-1) / w.sum(-1)


def abs_max(w: Tensor) -> Tensor:
    """max|w|."""
    return _weights(w).abs().amax(-1)


def _ess(w: Tensor) -> Tensor:
    """(Σw)²/Σw² of weights ≥ 0, by the largest first: tiny squares underflow. 0/0 is NaN."""
    w = w / w.amax(-1, keepdim=True)
    return w.sum(-1).square() / w.square().sum(-1)


def _weights(w: Tensor) -> Tensor:
    if w.ndim == 0 or w.shape[-1] == 0:
        raise UsageError(
            f"weights are [..., n] with at least one rollout, found the shape {list(w.shape)}."
        )
    return w.detach().to(torch.float64)
