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
SMALL = 4096  # up to here a tensor is cut exactly each time, which costs no more than keeping thresholds


class Tiers(NamedTuple):
    """Which weights are in the outer tiers; boolean, shaped like the tensor."""

    top: Tensor
    bottom: Tensor

    @property
    def middle(self) -> Tensor:
        """Those that are in neither."""
        return ~(self.top | self.bottom)


class TierSums(NamedTuple):
    """Σ g² of one tensor's gradient over each tier, and how many weights the tiers hold; one-element tensors, no sync."""

    source: Tensor
    """Top, bottom, middle, and all of it, [4]."""
    sound: Tensor
    """Top, bottom, middle, [3]."""
    counts: Tensor
    """Of the sound tiers, [3]."""


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
    low, high = thresholds(size.reshape(-1), fraction)
    return Tiers(size >= high, (size > 0) & (size <= low))


def thresholds(size: Tensor, fraction: float = FRACTION) -> Tensor:
    """(m-th smallest that is not zero, m-th largest) of n sizes |w|, [2]; the first is Inf where fewer are not zero."""
    m = tier_size(len(size), fraction)
    return on_host(size, m) if size.device.type == "cpu" else on_device(size, m)


def on_device(size: Tensor, m: int) -> Tensor:
    """The two thresholds without a sync."""
    nonzero = torch.where(size > 0, size, torch.inf)
    return torch.stack([nonzero.topk(m, largest=False).values[-1], size.topk(m).values[-1]])


def on_host(size: Tensor, m: int) -> Tensor:
    """The same on a CPU, where there is no sync to avoid and numpy selects three to ten times as fast."""
    plain = (size if size.dtype in (torch.float32, torch.float64) else size.float()).numpy()
    n = len(plain)
    zeros = n - int(np.count_nonzero(plain))
    low = np.partition(plain, zeros + m - 1)[zeros + m - 1] if zeros + m <= n else np.inf
    return torch.tensor([low, np.partition(plain, n - m)[n - m]], dtype=torch.from_numpy(plain).dtype)


@torch.no_grad()
def tier_sums(grad: Tensor, weight: Tensor, cut: Tensor | None) -> TierSums:
    """What the gradient has on each tier of the weights as they are now.

    `cut` are `thresholds` that may be somewhat older than the weights. Without them the tensor is cut anew and exactly, and
    the sound tiers resolve ties; with them they count ties as the source does.
    """
    values, size = grad.detach().reshape(-1), weight.detach().reshape(-1).abs()
    if values.dtype not in (torch.float32, torch.float64):
        values, size = values.float(), size.float()
    square = values * values
    if cut is None:
        return _exact_sums(square, size)
    # Comparing in place leaves zeros and ones in a float tensor, and a product with those is four times as fast as a mask.
    top = size.clone().ge_(cut[1])
    bottom = size.clone().le_(cut[0]).sub_(size.le_(0.0))
    middle = torch.maximum(top, bottom).mul_(-1.0).add_(1.0)
    parts = [torch.dot(square, mask) for mask in (top, bottom, middle)]
    counts = torch.stack([mask.sum() for mask in (top, bottom, middle)])
    tiers = torch.stack(parts)
    return TierSums(torch.cat([tiers, square.sum().reshape(1)]), tiers, counts)


def _exact_sums(square: Tensor, size: Tensor) -> TierSums:
    source, sound = source_tiers(size), tier_masks(size)
    sums = [[(square * mask).sum() for mask in (cut.top, cut.bottom, cut.middle)] for cut in (source, sound)]
    counts = torch.stack([mask.sum() for mask in (sound.top, sound.bottom, sound.middle)])
    return TierSums(torch.stack([*sums[0], square.sum()]), torch.stack(sums[1]), counts.to(square.dtype))
