"""Statistics of gradients, each one pass over memory and none of them a sync.

The functions give 0-dim tensors that stay on the device. Half precision is accumulated in float32,
which the squares of fp16 would overflow. The fused `torch._foreach_*` kernels are private API of
torch; each has a loop of public calls behind it, which the tests compare.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

__all__ = [
    "dot",
    "extreme",
    "extremes",
    "filled",
    "fourths",
    "norm",
    "norms",
    "sample",
    "stride_of",
    "total",
    "values",
]

HALF = (torch.float16, torch.bfloat16)
HOST = ("cpu",)
"""Devices whose memory numpy reads without waiting for anybody."""

# On a CPU torch adds up a whole tensor in a few float32 numbers: the norm of 16.8M equal elements
# is 0.9 % too small, a dot product 2 %. Added up in rows, at the same speed, it is right to 1e-5.
LONG = 2**17
ROW = 4096
DOT_ROW = 2**18


def values(grad: Tensor) -> Tensor:
    """The elements of a gradient, dense and real; a sparse one gives its coalesced values."""
    grad = grad.detach()
    if grad.is_sparse:
        grad = grad.coalesce().values()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def filled(x: Tensor) -> Tensor:
    """Every element, dense and real: a sparse tensor is filled up, so that positions agree."""
    if x.is_sparse:
        x = x.to_dense()
    return torch.view_as_real(x) if x.is_complex() else x


def norms(tensors: list[Tensor]) -> list[Tensor]:
    """‖x‖₂ of each tensor."""
    if not tensors:
        return []
    fused = getattr(torch, "_foreach_norm", None)
    if fused is None or any(x.dtype != tensors[0].dtype for x in tensors):
        return [norm(x) for x in tensors]
    short = [x for x in tensors if not _is_long(x)]
    found = iter(fused(short, 2, dtype=_wide(tensors[0])) if short else ())
    return [norm(x) if _is_long(x) else next(found) for x in tensors]


def norm(x: Tensor) -> Tensor:
    """‖x‖₂."""
    length: Tensor
    if not _is_long(x):
        length = torch.linalg.vector_norm(x, dtype=_wide(x))
        return length
    flat, dtype = x.reshape(-1), _wide(x)
    end = len(flat) // ROW * ROW
    rows = torch.linalg.vector_norm(flat[:end].view(-1, ROW), dim=1, dtype=dtype)
    rest = torch.linalg.vector_norm(flat[end:], dtype=dtype)
    length = torch.linalg.vector_norm(torch.cat([rows, rest.reshape(1)]))
    return length


def _wide(x: Tensor) -> torch.dtype | None:
    return torch.float32 if x.dtype in HALF else None


def _is_long(x: Tensor) -> bool:
    return x.numel() >= LONG and x.device.type == "cpu"


def extremes(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Smallest and largest element of each tensor."""
    pairs = [extreme(x) for x in tensors]
    return [low for low, _ in pairs], [high for _, high in pairs]


def extreme(x: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest element; a NaN anywhere makes both NaN, an Inf stays an Inf.

    `aminmax` is one pass at the price of a norm; `vector_norm(inf)` and `isfinite().all()` cost 10
    to 20 times as much on a CPU (benchmarks/reductions.py).
    """
    if x.numel() == 0:
        return x.new_zeros(()), x.new_zeros(())
    low, high = torch.aminmax(x)
    return low, high


def fourths(x: Tensor) -> tuple[Tensor, Tensor]:
    """m = max|x| and Σ(x/m)⁴, which neither vanishes nor overflows.

    Three passes, 1.3 clips on a CPU; `vector_norm(x, 4)` calls pow for each element, 16 clips.
    """
    x = x.float() if x.dtype in HALF else x
    low, high = extreme(x)
    largest = torch.maximum(-low, high).clamp_min(torch.finfo(x.dtype).tiny)
    squares = (x.reshape(-1) / largest).square_()
    return largest, norm(squares).square()


def total(x: Tensor) -> Tensor:
    """Σx."""
    return x.sum(dtype=_wide(x))


def dot(x: Tensor, y: Tensor) -> Tensor:
    """<x, y> over all elements."""
    if x.dtype in HALF or x.dtype != y.dtype:
        x, y = x.float(), y.float()
    x, y = x.reshape(-1), y.reshape(-1)
    if len(x) <= DOT_ROW or x.device.type != "cpu":
        return torch.dot(x, y)
    ends = range(DOT_ROW, len(x) + DOT_ROW, DOT_ROW)
    rows = [torch.dot(x[end - DOT_ROW : end], y[end - DOT_ROW : end]) for end in ends]
    return torch.stack(rows).sum()


def sample(x: Tensor, size: int) -> Tensor:
    """At most `size` elements at a fixed stride, [n]: counting all costs more than the norms."""
    return x.reshape(-1)[:: stride_of(tuple(x.shape), size)]


@cache
def stride_of(shape: tuple[int, ...], size: int) -> int:
    """The smallest stride that leaves at most `size` elements and walks through every column.

    It shares no factor with the last dimension; a stride of 1024 in a matrix of 1024 columns would
    see one column only.
    """
    count, columns = math.prod(shape), shape[-1] if shape else 1
    stride = max(1, -(-count // size))
    while math.gcd(stride, columns) != 1:
        stride += 1
    return stride
