"""Dead is not stationary: what each loss term reaches, block by block, and what the numbers of a round say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradiometer.capture.blocks import Blocks
from gradiometer.capture.reading import Fetched
from gradiometer.capture.rounds import SeenTerms
from gradiometer.maths import gram

__all__ = ["TermChange", "TermStates", "guilty", "rewards_left_over"]

TermState = Literal["path", "zero", "none"]


@dataclass(frozen=True, slots=True)
class TermChange:
    """What is different from the last round whose loss was split."""

    changed: bool
    newly_stationary: tuple[str, ...]


class TermStates:
    """`path` (a gradient arrives), `zero` (there is a path, and exactly zero arrives) or `none`, by term and named block."""

    def __init__(self) -> None:
        self.current: dict[str, dict[str, TermState]] = {}
        self._stationary: set[str] = set()

    def update(self, seen: SeenTerms, fetched: Fetched, blocks: Blocks) -> TermChange:
        """Take in a round. Terms that were not in it stay as they were."""
        new = dict(self.current)
        for key, reached in seen.reached.items():
            kind, _, name = key.partition("/")
            if kind == "term":
                new[name] = _by_block(name, reached, seen, fetched, blocks)
        zero = [name for name, row in new.items() if row["all"] == "zero" and name not in self._stationary]
        self._stationary.update(zero)
        changed, self.current = new != self.current, new
        return TermChange(changed, tuple(zero))


def _by_block(
    name: str, reached: frozenset[int], seen: SeenTerms, fetched: Fetched, blocks: Blocks
) -> dict[str, TermState]:
    squares = fetched.arrays["gram/term"][:, at, at] if (at := _place(name, seen)) is not None else np.zeros(0)

    def state(members: tuple[int, ...]) -> TermState:
        with_path = [i for i in members if i in reached]
        if not with_path:
            return "none"
        return "path" if (squares[with_path] != 0).any() else "zero"  # a NaN is not zero

    named = zip(blocks.names, blocks.members[: blocks.num_named], strict=False)
    return {block: state(members) for block, members in named}


def _place(name: str, seen: SeenTerms) -> int | None:
    return seen.terms.index(name) if name in seen.terms else None


def guilty(seen: SeenTerms | None, fetched: Fetched) -> list[str]:
    """The terms that had a gradient which was not finite."""
    if seen is None or not seen.terms:
        return []
    squares = np.diagonal(fetched.arrays["gram/term"], axis1=1, axis2=2)
    return [name for name, column in zip(seen.terms, squares.T, strict=True) if not np.isfinite(column).all()]


def rewards_left_over(seen: SeenTerms, fetched: Fetched) -> float | None:
    """‖g − Σ_r g_r‖/‖g‖ of the terms that the advantages enter: what of them no reward accounts for.

    Zero but for rounding when they are linear in the advantages. None when there is nothing to compare, or only sketches.
    """
    if not seen.rewards or not seen.entered or seen.cosine_error is not None:
        return None
    products = fetched.arrays["gram/reward"].sum(0)
    num_rewards, num_terms = len(seen.rewards), len(seen.entered)
    whole, left = [0] * num_rewards + [1] * num_terms, [-1] * num_rewards + [1] * num_terms
    if not np.isfinite(products).all():
        return None
    size, rest = gram.norms(gram.combine(products, [whole, left]))
    return float(rest / size) if size > 0 else None
