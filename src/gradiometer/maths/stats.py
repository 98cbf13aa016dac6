"""Statistics of gradients, each one pass over memory and none of them a sync.

The functions give 0-dim tensors that stay on the device. Half precision is accumulated in float32, which the squares of
fp16 would overflow. The fused `torch._foreach_*` kernels are private API of torch; each has a loop of public calls
behind it, which the tests compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["dot", "extreme", "extremes", "filled", "norm", "norms", "sample", "stride_of", "total", "values"]

HALF = (torch.float16, torch.bfloat16)


def values(grad: Tensor) -> Tensor:
    """The elements of a gradient as one dense real tensor; a sparse one gives its coalesced values, the rest being 0."""
    grad = grad.detach()
    if grad.is_sparse:
        grad = grad.coalesce().values()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def filled(x: Tensor) -> Tensor:
    """Every element, real and dense: a sparse tensor is filled up with its zeros, so that positions mean the same."""
    if x.is_sparse:
        x = x.to_dense()
    return torch.view_as_real(x) if x.is_complex() else x


def norms(tensors: list[Tensor]) -> list[Tensor]:
    """‖x‖₂ of each tensor."""
    if not tensors:
        return []
    dtype = torch.float32 if tensors[0].dtype in HALF else None
    fused = getattr(torch, "_foreach_norm", None)
    if fused is not None and all(x.dtype == tensors[0].dtype for x in tensors):
        return list(fused(tensors, 2, dtype=dtype))
    return [norm(x) for x in tensors]


def norm(x: Tensor) -> Tensor:
    """‖x‖₂."""
    length: Tensor = torch.linalg.vector_norm(x, dtype=torch.float32 if x.dtype in HALF else None)
    return length


def extremes(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Smallest and largest element of each tensor."""
    pairs = [extreme(x) for x in tensors]
    return [low for low, _ in pairs], [high for _, high in pairs]


def extreme(x: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest element; a NaN anywhere makes both NaN, an Inf stays an Inf.

    `aminmax` is one pass at the price of a norm; `vector_norm(inf)` and `isfinite().all()` cost 10 to 20 times as much
    on a CPU (benchmarks/reductions.py).
    """
    if x.numel() == 0:
        return x.new_zeros(()), x.new_zeros(())
    low, high = torch.aminmax(x)
    return low, high


def total(x: Tensor) -> Tensor:
    """Σx."""
    return x.sum(dtype=torch.float32 if x.dtype in HALF else None)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """<x, y> over all elements."""
    if x.dtype in HALF or x.dtype != y.dtype:
        x, y = x.float(), y.float()
    return torch.dot(x.reshape(-1), y.reshape(-1))


def sample(x: Tensor, size: int) -> Tensor:
    """At most `size` elements at a fixed stride, [n]: counts over all of them would cost more than the norms."""
    return x.reshape(-1)[:: stride_of(tuple(x.shape), size)]


def stride_of(shape: Sequence[int], size: int) -> int:
    """The smallest stride that leaves at most `size` elements and walks through every column.

    It shares no factor with the last dimension; a stride of 1024 in a matrix of 1024 columns would see one column only.
    """
    count, columns = math.prod(shape), shape[-1] if shape else 1
    stride = max(1, -(-count // size))
    while math.gcd(stride, columns) != 1:
        stride += 1
    return stride
