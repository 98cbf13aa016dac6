"""The loss terms of a round before their products are taken: this rank's own, or the mean over all ranks.

Each rank has the gradient of its own batch, and the averaged gradient is the mean of them: so are the terms. Products are
not linear, so the vectors themselves are added up, in full or as sketches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.ranks import Ranks
from gradiometer.capture.reading import Fetched
from gradiometer.capture.rounds import SeenTerms
from gradiometer.maths.vectors import Vectors

__all__ = ["OwnTerms", "together"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTerms:
    """Vectors named `term/<term>` and `reward/<reward>`, and what they are of."""

    reached: Mapping[str, frozenset[int]]
    """Which parameters each has a path to, in the order they came; none for a dead one."""
    entered: tuple[str, ...]
    """The terms that the advantages enter."""
    vectors: Vectors | None
    """None when no term has a gradient."""
    num_parameters: int

    def seen(self) -> SeenTerms:
        """What the products are of."""
        found = [name for name, indices in self.reached.items() if indices]
        return SeenTerms(
            terms=tuple(name.removeprefix("term/") for name in found if name.startswith("term/")),
            rewards=tuple(name.removeprefix("reward/") for name in found if name.startswith("reward/")),
            entered=tuple(name for name in self.entered if self.reached[f"term/{name}"]),
            reached=dict(self.reached),
            cosine_error=None if self.vectors is None else self.vectors.cosine_error,
        )

    def products(self, seen: SeenTerms) -> dict[str, Tensor]:
        """`gram/term` and `gram/reward`."""
        found: dict[str, Tensor] = {}
        if self.vectors is not None and seen.terms:
            found["gram/term"] = self.vectors.products([f"term/{name}" for name in seen.terms])
        if self.vectors is not None and seen.rewards:
            names = [f"reward/{name}" for name in seen.rewards] + [f"term/{name}" for name in seen.entered]
            found["gram/reward"] = self.vectors.products(names)
        return found

    def arrays(self, fetched: Fetched) -> dict[str, Numbers]:
        """What travels beside the vectors: the losses, and which parameters each term reaches."""
        reached = np.zeros((len(self.reached), self.num_parameters))
        for row, indices in zip(reached, self.reached.values(), strict=True):
            row[list(indices)] = 1.0
        losses = np.array([fetched.scalars[key] for key in _losses(fetched)])
        return {"terms/reached": reached, "terms/losses": losses}

    def forms(self) -> list[object]:
        """Equal on all ranks where their terms can be added up."""
        return [list(self.reached), self.entered, type(self.vectors).__name__]


def together(own: OwnTerms, arrays: Mapping[str, Numbers], fetched: Fetched, ranks: Ranks) -> tuple[SeenTerms, Fetched]:
    """The mean over the ranks, after a meeting that agreed on the terms. The vectors are one message each."""
    reached = {
        name: frozenset(np.flatnonzero(row).tolist())
        for name, row in zip(own.reached, arrays["terms/reached"], strict=True)
    }
    own = replace(own, reached=reached)
    if own.vectors is not None:
        for name in (name for name, indices in reached.items() if indices):
            row = own.vectors.row(name)
            host = row.cpu()
            ranks.add_up_in_place(host)
            row.copy_(host.div_(ranks.world))
    losses = dict(zip(_losses(fetched), (arrays["terms/losses"] / ranks.world).tolist(), strict=True))
    seen = own.seen()
    products = {name: x.cpu().numpy().astype(np.float64, copy=False) for name, x in own.products(seen).items()}
    return seen, replace(fetched, scalars={**fetched.scalars, **losses}, arrays={**fetched.arrays, **products})


def _losses(fetched: Fetched) -> list[str]:
    return [key for key in fetched.scalars if key.startswith("term/")]
