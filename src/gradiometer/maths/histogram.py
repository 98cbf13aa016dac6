"""A histogram of |x| over sixteen decades that counts every element, zeros and non-finite ones too.

The leading bits of a float are its logarithm in steps of 2⁻⁷: they are counted as integers, and the
counts are added up between the edges. On a CPU that is about ten times as fast as `torch.bucketize`
and five times as fast as `torch.histc` of a logarithm.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["EDGES", "LABELS", "log_histogram"]

LOWEST_DECADE, HIGHEST_DECADE, PER_DECADE = -12, 4, 2
HALF_DECADES = range(LOWEST_DECADE * PER_DECADE, HIGHEST_DECADE * PER_DECADE + 1)

# Rounded to bfloat16 (by 0.4 % at most), so that every edge is a number of leading bits with
# nothing behind them.
EDGES: tuple[float, ...] = tuple(
    torch.tensor([10.0 ** (i / PER_DECADE) for i in HALF_DECADES]).to(torch.bfloat16).tolist()
)
LABELS: tuple[str, ...] = (
    "zero",
    f"(0, {EDGES[0]:.1e})",
    *(f"[{low:.1e}, {high:.1e})" for low, high in itertools.pairwise(EDGES)),
    f"[{EDGES[-1]:.1e}, inf)",
    "NaN",
    "Inf",
)

# Elements taken at once: fewer pay more often for the table of codes, more leave the cache.
CHUNK = 2**18


class Layout(NamedTuple):
    """A float in memory: the integer of its size, its bits without the sign, bits a code drops."""

    integer: torch.dtype
    magnitude: int
    dropped: int


# a code keeps the exponent and the 7 bits of mantissa that bfloat16 has
LAYOUTS = {
    torch.float32: Layout(torch.int32, 2**31 - 1, 23 - 7),
    torch.float64: Layout(torch.int64, 2**63 - 1, 52 - 7),
}


@torch.no_grad()
def log_histogram(x: Tensor) -> Tensor:
    """Counts of |x|: zeros, below EDGES[0], bins [lo, hi), above, NaN, Inf; int64 [len(LABELS)].

    Their sum is the number of elements. Half precision is read as float32, which changes no value.
    """
    dtype = x.dtype if x.dtype in LAYOUTS else torch.float32
    layout = LAYOUTS[dtype]
    num_codes = (layout.magnitude >> layout.dropped) + 1
    counts = torch.zeros(num_codes, dtype=torch.int64, device=x.device)
    nonzero = torch.zeros((), dtype=torch.int64, device=x.device)
    flat = x.reshape(-1)
    for first in range(0, x.numel(), CHUNK):
        chunk = flat[first : first + CHUNK].to(dtype)
        # × 1 makes a signalling NaN quiet, and the code of a quiet one is never that of Inf
        bits = chunk.mul(1.0).view(layout.integer).bitwise_and_(layout.magnitude)
        nonzero += torch.count_nonzero(bits)
        counts += counted(bits.bitwise_right_shift_(layout.dropped), num_codes)
    return between_edges(counts, nonzero, dtype)


def between_edges(counts: Tensor, nonzero: Tensor, dtype: torch.dtype) -> Tensor:
    """The counts of codes, added up between the edges."""
    less = counts.cumsum(0).index_select(0, last_codes(dtype, counts.device))
    total = less[-1:]
    zeros = total - nonzero
    finite, up_to_inf = less[:-2], less[-2:-1]
    return torch.cat(
        [zeros, finite.diff(prepend=zeros), total - up_to_inf, up_to_inf - finite[-1:]]
    )


@functools.cache
def last_codes(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The last code below each edge, the last finite one, that of Inf and the last, a NaN."""
    integer, magnitude, dropped = LAYOUTS[dtype]
    edges = torch.tensor([*EDGES, torch.inf], dtype=dtype).view(integer) >> dropped
    infinite, last = int(edges[-1]), magnitude >> dropped
    return torch.cat([edges - 1, torch.tensor([infinite, last])]).to(device, torch.int64)


def counted(codes: Tensor, num_codes: int) -> Tensor:
    """How often each code occurs."""
    if codes.device.type == "cpu":
        return torch.bincount(codes, minlength=num_codes)
    return scattered(codes, num_codes)


def scattered(codes: Tensor, num_codes: int) -> Tensor:
    """`bincount` for an accelerator, where torch's own waits for the largest code."""
    zeros = torch.zeros(num_codes, dtype=torch.int64, device=codes.device)
    return zeros.scatter_add_(0, codes.long(), torch.ones_like(codes, dtype=torch.int64))
