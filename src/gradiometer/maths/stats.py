"""Statistics of a list of tensors, each one pass over memory and none of them a sync.

Every function takes a list of dense tensors of one device and gives 0-dim tensors that stay on that device. The fused
`torch._foreach_*` kernels are private API of torch; each has a loop of public calls behind it, which the tests compare.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dense", "extremes", "norms", "store", "subtract_"]

HALF = (torch.float16, torch.bfloat16)


def dense(grad: Tensor) -> Tensor:
    """The elements of a gradient as one dense real tensor; a sparse one gives its coalesced values, the rest being 0."""
    grad = grad.detach()
    if grad.is_sparse:
        grad = grad.coalesce().values()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def norms(tensors: list[Tensor]) -> list[Tensor]:
    """‖x‖₂ of each tensor. Half precision is accumulated and returned in float32, which fp16 squares would overflow."""
    if not tensors:
        return []
    dtype = torch.float32 if tensors[0].dtype in HALF else None
    fused = getattr(torch, "_foreach_norm", None)
    if fused is not None and all(x.dtype == tensors[0].dtype for x in tensors):
        return list(fused(tensors, 2, dtype=dtype))
    return [torch.linalg.vector_norm(x, dtype=torch.float32 if x.dtype in HALF else None) for x in tensors]


def extremes(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Smallest and largest element of each tensor; a NaN anywhere makes both NaN, an Inf stays an Inf.

    `aminmax` is one pass at the price of a norm; `vector_norm(inf)` and `isfinite().all()` cost 10 to 20 times as much
    on a CPU (benchmarks/reductions.py).
    """
    pairs = [torch.aminmax(x) if x.numel() else (x.new_zeros(()), x.new_zeros(())) for x in tensors]
    return [low for low, _ in pairs], [high for _, high in pairs]


def store(scratch: list[Tensor], tensors: list[Tensor]) -> None:
    """scratch ← tensors, element by element."""
    if not tensors:
        return
    fused = getattr(torch, "_foreach_copy_", None)
    if fused is not None:
        fused(scratch, tensors)
        return
    for kept, x in zip(scratch, tensors, strict=True):
        kept.copy_(x)


def subtract_(scratch: list[Tensor], tensors: list[Tensor]) -> None:
    """scratch ← scratch − tensors."""
    if not tensors:
        return
    fused = getattr(torch, "_foreach_sub_", None)
    if fused is not None:
        fused(scratch, tensors)
        return
    for kept, x in zip(scratch, tensors, strict=True):
        kept.sub_(x)
