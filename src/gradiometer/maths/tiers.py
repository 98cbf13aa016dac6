"""The weights of a tensor by their size: the largest 5 %, the smallest 5 % and the rest, and what a gradient does on each.

With m = max(1, ⌊0.05 n⌋) of n weights there are two ways to cut. The source's: top is |w| ≥ the m-th largest, bottom is
0 < |w| ≤ the m-th smallest that is not zero, middle what is in neither; weights that tie with a threshold are in, so a tier
may hold more than m, and in a tiny tensor one weight may be top and bottom. The sound one: exactly m each, the earlier of
tied weights first, and top wins. Weights that are exactly zero are never bottom: nothing about them is small by training.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "FRACTION",
    "TIERS",
    "TierSums",
    "Tiers",
    "source_tiers",
    "thresholds",
    "tier_masks",
    "tier_size",
    "tier_sums",
    "tier_sums_on_host",
]

Numbers = NDArray[np.float32] | NDArray[np.float64]

FRACTION = 0.05
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
    """Σ g² of N gradients over each tier of their weights, and how many weights the tiers hold; no sync."""

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
    """The sound tiers: exactly m largest, and the m smallest of those that are not zero, unless they are top already."""
    size = weight.detach().abs().reshape(-1)
    m = tier_size(len(size), fraction)
    top, bottom = torch.zeros_like(size, dtype=torch.bool), torch.zeros_like(size, dtype=torch.bool)
    top[size.sort(descending=True, stable=True).indices[:m]] = True
    bottom[torch.where(size > 0, size, torch.inf).sort(stable=True).indices[:m]] = True
    return Tiers(top.view_as(weight), (bottom & ~top & (size > 0)).view_as(weight))


def source_tiers(weight: Tensor, fraction: float = FRACTION) -> Tiers:
    """The source's tiers: everything at or beyond the m-th weight from either end."""
    size = weight.detach().abs()
    low, high = thresholds(size.reshape(1, -1), fraction)[0]
    return Tiers(size >= high, (size > 0) & (size <= low))


def thresholds(sizes: Tensor, fraction: float = FRACTION) -> Tensor:
    """(m-th smallest that is not zero, m-th largest) of each row |w|, [N, n] → [N, 2]; Inf where fewer are not zero."""
    m = tier_size(sizes.shape[1], fraction)
    return on_host(sizes, m) if sizes.device.type == "cpu" else on_device(sizes, m)


def on_device(sizes: Tensor, m: int) -> Tensor:
    """The two thresholds of each row without a sync."""
    nonzero = torch.where(sizes > 0, sizes, torch.inf)
    return torch.stack([nonzero.topk(m, largest=False).values[:, -1], sizes.topk(m).values[:, -1]], 1)


def on_host(sizes: Tensor, m: int) -> Tensor:
    """The same on a CPU, where there is no sync to avoid and numpy selects three to ten times as fast."""
    plain = (sizes if sizes.dtype in (torch.float32, torch.float64) else sizes.float()).numpy()
    nonzero = np.where(plain == 0, plain.dtype.type(np.inf), plain)
    place = plain.shape[1] - m
    low, high = np.partition(nonzero, m - 1)[:, m - 1], np.partition(plain, place)[:, place]
    return torch.from_numpy(np.stack([low, high], 1))


@torch.no_grad()
def tier_sums(grads: Tensor, weights: Tensor, cuts: Tensor, *, exact: bool = False) -> TierSums:
    """What each of N gradients has on the tiers of its weights as they are now; both [N, n] in single or double.

    `cuts` are their `thresholds` [N, 2], which may be somewhat older than the weights. With `exact` the sound tiers are cut
    anew and resolve ties; otherwise they count ties as the source does.
    """
    square, size = grads * grads, weights.abs()
    # Comparing in place leaves zeros and ones in a float tensor, and a product with those is four times as fast as a mask.
    top = size.clone().ge_(cuts[:, 1:])
    bottom = size.clone().le_(cuts[:, :1]).sub_(size.le_(0.0))
    source = torch.stack([top, bottom, torch.maximum(top, bottom).le_(0.0)])
    sums = _over(square, source)
    sound = _cut_anew(weights).to(square.dtype) if exact else source
    return TierSums(
        torch.cat([sums, square.sum(1, keepdim=True)], 1), _over(square, sound) if exact else sums, sound.sum(2).T
    )


def _cut_anew(weights: Tensor) -> Tensor:
    """The sound tiers of each row, boolean [3, N, n]."""
    cut = [tier_masks(row) for row in weights]
    return torch.stack([torch.stack([getattr(row, tier) for row in cut]) for tier in TIERS])


def _over(square: Tensor, masks: Tensor) -> Tensor:
    """Σ g² under each of the masks [3, N, n], [N, 3]."""
    return (masks * square).sum(2).T


def tier_sums_on_host(grad: Tensor, weight: Tensor, cut: Tensor) -> list[float]:
    """The same of one large tensor [n] on a CPU: top, bottom, middle and all of Σ g², and the sizes of the three.

    One unsigned comparison of the bits of |w| tells who lies strictly between the thresholds, and only the others, about a
    tenth, are looked at one by one. A difference of sums would lose a small middle, so the others' squares are set to zero.
    """
    plain, sizes, (low, high) = grad.numpy(), weight.numpy(), cut.numpy()
    square = plain * plain
    places = np.flatnonzero(_beyond(sizes, low, high))
    size, picked = np.abs(sizes[places]), square[places]
    top = (size >= high).astype(plain.dtype)
    bottom = ((size <= low) & (size > 0)).astype(plain.dtype)
    middle = np.maximum(top, bottom) == 0
    square[places] = picked * middle
    counts = float(top.sum()), float(bottom.sum()), float(len(sizes) - len(places) + np.count_nonzero(middle))
    sums = float(top @ picked), float(bottom @ picked), float(torch.from_numpy(square).sum())
    return [*sums, float(plain @ plain), *counts]


def _beyond(weight: Numbers, low: Any, high: Any) -> NDArray[np.bool_]:
    """Where |w| ≤ low or |w| ≥ high or |w| = 0: bits without their sign are in the order of the sizes."""
    kind = np.uint32 if weight.dtype == np.float32 else np.uint64
    first, last = (int(x.view(kind)) * 2 for x in (low, high))
    bits = weight.view(kind)
    bits = bits + bits  # without the sign
    bits -= kind(first + 1)
    beyond: NDArray[np.bool_] = bits >= kind(max(last - first - 1, 0))
    return beyond
