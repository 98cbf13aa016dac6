"""The weights of a tensor by their size: the largest 5 %, the smallest 5 % and the rest, and what a gradient does on each.

With m = max(1, ⌊0.05 n⌋) of n weights there are two ways to cut. The source's: top is |w| ≥ the m-th largest, bottom is
0 < |w| ≤ the m-th smallest that is not zero, middle what is in neither; weights that tie with a threshold are in, so a tier
may hold more than m, and in a tiny tensor one weight may be top and bottom. The sound one: exactly m each, the earlier of
tied weights first, and top wins. Weights that are exactly zero are never bottom: nothing about them is small by training.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
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
]

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
    n = plain.shape[1]
    found = np.full((len(plain), 2), np.inf, plain.dtype)
    for row, zeros in enumerate(n - np.count_nonzero(plain, axis=1)):
        if zeros + m <= n:
            found[row, 0] = np.partition(plain[row], zeros + m - 1)[zeros + m - 1]
        found[row, 1] = np.partition(plain[row], n - m)[n - m]
    return torch.from_numpy(found)


@torch.no_grad()
def tier_sums(grads: Tensor, weights: Tensor, cuts: Tensor, *, exact: bool = False) -> TierSums:
    """What each of N gradients has on the tiers of its weights as they are now; both [N, n] in single or double.

    `cuts` are their `thresholds` [N, 2], which may be somewhat older than the weights. With `exact` the sound tiers are cut
    anew and resolve ties; otherwise they count ties as the source does.
    """
    square, size = grads * grads, weights.abs()
    if exact:
        cut = [tier_masks(row) for row in weights]
        masks = ([x.top for x in cut], [x.bottom for x in cut], [x.middle for x in cut])
        sound = [torch.stack(part).to(square.dtype) for part in masks]
    # Comparing in place leaves zeros and ones in a float tensor, and a product with those is four times as fast as a mask.
    top = size.clone().ge_(cuts[:, 1:])
    bottom = size.clone().le_(cuts[:, :1]).sub_(size.le_(0.0))
    source = [top, bottom, torch.maximum(top, bottom).mul_(-1.0).add_(1.0)]
    sums = _over(square, source)
    counted = sound if exact else source
    return TierSums(
        torch.cat([sums, square.sum(1, keepdim=True)], 1),
        _over(square, sound) if exact else sums,
        torch.stack([mask.sum(1) for mask in counted], 1),
    )


def _over(square: Tensor, masks: list[Tensor]) -> Tensor:
    """Σ g² under each mask, [N, masks]."""
    if len(square) == 1:
        return torch.stack([torch.dot(square[0], mask[0]) for mask in masks]).reshape(1, -1)
    return torch.stack([(square * mask).sum(1) for mask in masks], 1)
