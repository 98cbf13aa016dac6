"""Weights by size, the largest 5 %, the smallest 5 % and the rest, and a gradient on each.

With m = max(1, ⌊0.05 n⌋) of n weights there are two ways to cut. Prismatic's: top is |w| ≥ the
m-th largest, bottom is 0 < |w| ≤ the m-th smallest that is not zero, middle what is in neither;
weights that tie with a threshold are in, so a tier may hold more than m, and in a tiny tensor one
weight may be top and bottom. The sound one: exactly m each, the earlier of tied weights first, and
top wins. Weights that are exactly zero are never bottom: nothing about them is small by training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "FRACTION",
    "IN_CACHE",
    "TIERS",
    "TierSums",
    "Tiers",
    "source_tiers",
    "thresholds",
    "tier_masks",
    "tier_size",
    "tier_sums",
    "tier_sums_by_row",
]

FRACTION = 0.05
# Elements of a row that are cut at once: they and five rows made of them stay in a core's cache.
IN_CACHE = 2**15
LEFT = 0.25  # of all: a smaller middle has lost a digit or more as a difference
TIERS = ("top", "bottom", "middle")


class Tiers(NamedTuple):
    """Which weights are in the outer tiers; boolean, shaped like the tensor."""

    top: Tensor
    bottom: Tensor

    @property
    def middle(self) -> Tensor:
        """Those that are in neither."""
        return ~(self.top | self.bottom)


class TierSums(NamedTuple):
    """Σ g² of N gradients over each tier of their weights, and the sizes of the tiers; no sync."""

    source: Tensor
    """Top, bottom, middle, and all of it, [N, 4]."""
    sound: Tensor
    """Top, bottom, middle, [N, 3]."""
    counts: Tensor
    """Of the sound tiers, [N, 3]."""


def tier_size(numel: int, fraction: float = FRACTION) -> int:
    """m = max(1, ⌊fraction · n⌋)."""
    return max(1, int(numel * fraction))


def tier_masks(weight: Tensor, fraction: float = FRACTION) -> Tiers:
    """The sound tiers: the m largest, and the m smallest non-zero ones that are not among them."""
    size = weight.detach().abs().reshape(-1)
    m = tier_size(len(size), fraction)
    top, bottom = torch.zeros_like(size, dtype=torch.bool), torch.zeros_like(size, dtype=torch.bool)
    top[size.sort(descending=True, stable=True).indices[:m]] = True
    bottom[torch.where(size > 0, size, torch.inf).sort(stable=True).indices[:m]] = True
    return Tiers(top.view_as(weight), (bottom & ~top & (size > 0)).view_as(weight))


def source_tiers(weight: Tensor, fraction: float = FRACTION) -> Tiers:
    """Prismatic's tiers: everything at or beyond the m-th weight from either end."""
    size = weight.detach().abs()
    low, high = thresholds(size.reshape(1, -1), fraction)[0]
    return Tiers(size >= high, (size > 0) & (size <= low))


def thresholds(sizes: Tensor, fraction: float = FRACTION) -> Tensor:
    """(m-th smallest non-zero, m-th largest) of each row |w|, [N, n] → [N, 2]; Inf if fewer."""
    m = tier_size(sizes.shape[1], fraction)
    return on_host(sizes, m) if sizes.device.type == "cpu" else on_device(sizes, m)


def on_device(sizes: Tensor, m: int) -> Tensor:
    """The two thresholds of each row without a sync."""
    nonzero = torch.where(sizes > 0, sizes, torch.inf)
    return torch.stack(
        [nonzero.topk(m, largest=False).values[:, -1], sizes.topk(m).values[:, -1]], 1
    )


def on_host(sizes: Tensor, m: int) -> Tensor:
    """The same on a CPU, where no sync is to avoid and numpy selects three to ten times as fast."""
    plain = (sizes if sizes.dtype in (torch.float32, torch.float64) else sizes.float()).numpy()
    nonzero = np.where(plain == 0, plain.dtype.type(np.inf), plain)
    place = plain.shape[1] - m
    low, high = np.partition(nonzero, m - 1)[:, m - 1], np.partition(plain, place)[:, place]
    return torch.from_numpy(np.stack([low, high], 1))


@torch.no_grad()
def tier_sums(grads: Tensor, weights: Tensor, cuts: Tensor, *, exact: bool = False) -> TierSums:
    """What each of N gradients has on the tiers of its weights now; both float32 or 64, [N, n].

    `cuts` are their `thresholds` [N, 2], which may be somewhat older than the weights. With `exact`
    the sound tiers are cut anew and resolve ties; otherwise they count ties as Prismatic does.
    """
    square, size = grads * grads, weights.abs()
    # Comparing in place leaves zeros and ones in a float tensor, and a product with those is four
    # times as fast as a mask.
    top = size.clone().ge_(cuts[:, 1:])
    bottom = size.clone().le_(cuts[:, :1]).sub_(size.le_(0.0))
    source = torch.stack([top, bottom, torch.maximum(top, bottom).le_(0.0)])
    sums = _over(square, source)
    sound = _cut_anew(weights).to(square.dtype) if exact else source
    return TierSums(
        torch.cat([sums, square.sum(1, keepdim=True)], 1),
        _over(square, sound) if exact else sums,
        sound.sum(2).T,
    )


def _cut_anew(weights: Tensor) -> Tensor:
    """The sound tiers of each row, boolean [3, N, n]."""
    cut = [tier_masks(row) for row in weights]
    return torch.stack([torch.stack([getattr(row, tier) for row in cut]) for tier in TIERS])


def _over(square: Tensor, masks: Tensor) -> Tensor:
    """Σ g² under each of the masks [3, N, n], [N, 3]."""
    return (masks * square).sum(2).T


@torch.no_grad()
def tier_sums_by_row(
    grads: Sequence[Tensor],
    weights: Sequence[Tensor],
    cuts: Tensor,
    *,
    scratch: Tensor | None = None,
) -> Tensor:
    """The same of N large rows [n] on a CPU, [N, 7]: top, bottom, middle, all, and three sizes.

    So few columns of one row are cut at a time that they, and the `scratch` [5, columns] that is
    used again for each, stay in the cache; memory that is new to it takes a third of the time more.
    The middle is what the outer tiers leave of all; where they leave little, that would be lost in
    rounding, and it is summed itself.
    """
    room = torch.empty(5, IN_CACHE, dtype=cuts.dtype) if scratch is None else scratch
    length, width = len(weights[0]), room.shape[1]
    total = cuts.new_zeros(len(grads), 7)
    for first in range(0, length, width):
        piece, made = slice(first, first + width), room[:, : length - first]
        parts = [(grad[piece], weight[piece]) for grad, weight in zip(grads, weights, strict=True)]
        total += _by_row(parts, cuts, made)
    return total


def _by_row(parts: Sequence[tuple[Tensor, Tensor]], cuts: Tensor, made: Tensor) -> Tensor:
    """The seven of each part of a gradient and its weights, [N, 7]; `made` [5, n] is used up."""
    (square, size, top, bottom, rest), masks = made.unbind(), made[2:4]
    limits = [cut.unbind() for cut in cuts.unbind()]
    outer, every, sizes = list[Tensor](), list[Tensor](), list[Tensor]()

    def cut(row: int) -> Tensor:
        (grad, weight), (low, high) = parts[row], limits[row]
        if grad.dtype != made.dtype:  # a row at a time: all of them take memory
            grad, weight = grad.to(made.dtype), weight.to(made.dtype)
        torch.mul(grad, grad, out=square)
        torch.abs(weight, out=size)
        torch.ge(size, high, out=top)
        torch.le(size, low, out=bottom).sub_(size.le_(0.0))
        return grad

    for row in range(len(parts)):
        grad = cut(row)
        outer.append(torch.mv(masks, square))
        every.append(torch.dot(grad, grad))
        sizes.append(masks.sum(1))
    tiers, counts, whole = torch.stack(outer, 1), torch.stack(sizes, 1), torch.stack(every)
    middle, count = whole - tiers.sum(0), made.shape[1] - counts.sum(0)
    # Not where all weights tie, and both tiers hold them; a comparison with a NaN is false.
    sound = (cuts[:, 0] < cuts[:, 1]) & (middle >= LEFT * whole)
    for row in (~sound).nonzero()[:, 0].tolist():
        cut(row)
        torch.maximum(top, bottom, out=rest).le_(0.0)
        middle[row], count[row] = torch.dot(rest, square), rest.sum()
    return torch.stack([*tiers, middle, whole, *counts, count], 1)
