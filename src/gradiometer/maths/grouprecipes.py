"""Which recipe made the advantages of groups? GRPO and RLOO give each answer its reward against the
others of its prompt; what people write by mistake is fitted beside it.

The credit of an answer, the sum of −∂L/∂log π over its tokens, is its advantage A_i times a length,
up to one factor for each backward:

    c_i ≈ u_k A_i m_i,        m_i = 1 (a mean over each answer) or its number of tokens

There is no offset: whether rewards were centred is what is asked. u < 0 is a flipped sign. Two
wrong recipes have one, c_i ≈ u_k (A_i + b_k) m_i: right advantages that were moved, so that every
answer is made likelier, or less likely. As that explains all that A_i does, it has to explain more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from gradiometer.maths.recipes import EXPLAINS, FITS, GAP, MIN_SAMPLES, TIMES

__all__ = [
    "GROUP_RECIPES",
    "GroupBatch",
    "GroupFit",
    "GroupRecipe",
    "Lengths",
    "ReplayedGroups",
    "replay_groups",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Lengths: TypeAlias = Literal["answers", "tokens"]

KINDS: tuple[Lengths, ...] = ("tokens", "answers")
SMALL = 1e-4
"""Added to a spread, as trainers do."""
LEAST_BATCHES = 2
LEAST_MOVED = 4
"""Answers of a batch, from which on a second number is fitted to them."""
ON_PADDING, LEAST_OUTSIDE = 0.5, 16
"""Share of the masked tokens that have credit all the same, and how many there must be of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBatch:
    """Answers to prompts, several to each, and what one backward gave to some of them."""

    rewards: Mapping[str, Floats]
    """[N] by what the program calls them; the first is the likeliest."""
    groups: Ints
    """[N] which prompt."""
    rows: Ints
    """[M] which answers went backward."""
    credit: Floats
    """[M] −∂L/∂log π, summed over tokens."""
    tokens: Floats
    """[M] how many tokens had any."""
    beyond: int = 0
    """Tokens that the program's mask leaves out and that had credit, and all that it leaves out."""
    outside: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecipe:
    """A way to make advantages of the rewards of groups."""

    name: str
    words: str
    right: bool
    advantages: Callable[[Floats, Ints], Floats | None]
    """Of rewards and groups; None where it makes no sense for them."""
    is_moved: bool = False
    """Whether a number is added to all of them, any one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFit:
    """How much of the credit a recipe explains."""

    recipe: GroupRecipe
    r2: float
    flipped: bool
    lengths: Lengths
    """Whether each answer weighs the same, or each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedGroups:
    """The recipes by what they explain, the best first, and what follows from it."""

    fits: tuple[GroupFit, ...]
    samples: int
    checked: bool
    wrong: GroupFit | None
    right: GroupFit
    on_padding: float | None
    """Share of the tokens beyond the mask that had credit; None where no mask was seen."""

    by_lengths: Mapping[Lengths, float]
    """What the best right recipe explains where each answer, or each token, weighs the same."""

    def weighs_otherwise(self, expected: Lengths) -> bool:
        """Whether answers of different lengths clearly weigh otherwise than expected."""
        other = next(kind for kind in KINDS if kind != expected)
        ours, theirs = self.by_lengths[expected], self.by_lengths[other]
        clearly = theirs - ours >= GAP and 1.0 - ours >= TIMES * (1.0 - theirs)
        return self.checked and theirs >= EXPLAINS and clearly

    @property
    def is_on_padding(self) -> bool:
        """Whether the mask is not applied to the loss."""
        return self.on_padding is not None and self.on_padding >= ON_PADDING


def _means(x: Floats, groups: Ints) -> Floats:
    """Of each group, at each of its members."""
    sums, sizes = np.bincount(groups, x), np.bincount(groups)
    found: Floats = (sums / np.maximum(sizes, 1))[groups]
    return found


def _spreads(x: Floats, groups: Ints) -> Floats:
    sizes = np.bincount(groups)[groups]
    squares = _means(np.square(x - _means(x, groups)), groups) * sizes / np.maximum(sizes - 1, 1)
    found: Floats = np.sqrt(squares)
    return found


def _centred(r: Floats, groups: Ints) -> Floats:
    return r - _means(r, groups)


def _normalised(r: Floats, groups: Ints) -> Floats:
    return _centred(r, groups) / (_spreads(r, groups) + SMALL)


def _other_cut(groups: Ints) -> Ints | None:
    """The groups one gets by reshaping the other way: neighbours where members of a group are far
    apart, and members of one place in each group where they are neighbours."""
    count = len(np.unique(groups))
    size = len(groups) // count
    if count < 2 or size < 2 or count * size != len(groups):
        return None
    order = np.arange(len(groups))
    are_neighbours = bool(np.all(np.diff(groups.reshape(count, size), axis=1) == 0))
    return order % size if are_neighbours else order // size


def _in_other_cut(
    made: Callable[[Floats, Ints], Floats],
) -> Callable[[Floats, Ints], Floats | None]:
    def cut(r: Floats, groups: Ints) -> Floats | None:
        others = _other_cut(groups)
        return None if others is None else made(r, others)

    return cut


def _other_spread(r: Floats, groups: Ints) -> Floats | None:
    others = _other_cut(groups)
    return None if others is None else _centred(r, groups) / (_spreads(r, others) + SMALL)


def _other_mean(r: Floats, groups: Ints) -> Floats | None:
    others = _other_cut(groups)
    return None if others is None else _centred(r, others) / (_spreads(r, groups) + SMALL)


def _laid_out(
    made: Callable[[Floats, Ints], Floats], *, by_answer: bool
) -> Callable[[Floats, Ints], Floats | None]:
    """Advantages that were reshaped to prompts × answers and transposed, or the other way."""

    def laid(r: Floats, groups: Ints) -> Floats | None:
        count = len(np.unique(groups))
        size = len(r) // count
        if count < 2 or size < 2 or count * size != len(r):
            return None
        found: Floats = made(r, groups).reshape((count, size) if by_answer else (size, count))
        return found.T.reshape(-1)

    return laid


def _rolled(
    made: Callable[[Floats, Ints], Floats], by: int
) -> Callable[[Floats, Ints], Floats | None]:
    return lambda r, groups: np.roll(made(r, groups), by)


def _recipe(
    name: str,
    words: str,
    made: Callable[[Floats, Ints], Floats | None],
    *,
    right: bool = False,
    is_moved: bool = False,
) -> GroupRecipe:
    return GroupRecipe(name=name, words=words, right=right, advantages=made, is_moved=is_moved)


def _of_others(
    ending: str, made: Callable[[Floats, Ints], Floats]
) -> tuple[GroupRecipe, GroupRecipe, GroupRecipe, GroupRecipe]:
    """Right advantages, given to other answers than their own."""
    laid = "of other answers: laid out {}, the answers {}"
    return (
        _recipe(
            f"laid-out-by-answer{ending}",
            laid.format("answer by answer", "prompt by prompt"),
            _laid_out(made, by_answer=True),
        ),
        _recipe(
            f"laid-out-by-prompt{ending}",
            laid.format("prompt by prompt", "answer by answer"),
            _laid_out(made, by_answer=False),
        ),
        _recipe(f"of-the-one-before{ending}", "of the answer before", _rolled(made, 1)),
        _recipe(f"of-the-one-after{ending}", "of the answer after", _rolled(made, -1)),
    )


GROUP_RECIPES: Mapping[str, GroupRecipe] = {
    each.name: each
    for each in (
        _recipe(
            "group-normalised",
            "rewards less the mean of their group, over its spread",
            _normalised,
            right=True,
        ),
        _recipe("group-centred", "rewards less the mean of their group", _centred, right=True),
        _recipe(
            "batch-centred",
            "rewards less the mean of the batch",
            lambda r, _: r - r.mean(),
            right=True,  # REINFORCE with a baseline, and REINFORCE++
        ),
        _recipe(
            "not-centred", "that are the rewards themselves, without a baseline", lambda r, _: r
        ),
        _recipe(
            "not-centred-scaled",
            "not centred: the rewards over the spread of their group",
            lambda r, groups: r / (_spreads(r, groups) + SMALL),
        ),
        _recipe(
            "groups-cut-wrongly",
            "normalised in groups that mix prompts",
            _in_other_cut(_normalised),
        ),
        _recipe(
            "groups-cut-wrongly-centred",
            "centred in groups that mix prompts",
            _in_other_cut(_centred),
        ),
        _recipe("wrong-spread", "over the spread of other groups than their own", _other_spread),
        _recipe("wrong-mean", "less the mean of other groups than their own", _other_mean),
        _recipe(
            "over-variance",
            "over the variance of their group, not its spread",
            lambda r, groups: _centred(r, groups) / (np.square(_spreads(r, groups)) + SMALL),
        ),
        *_of_others("", _normalised),
        *_of_others("-centred", _centred),
        _recipe("moved", "with a number added to all of them", _normalised, is_moved=True),
        _recipe("moved-centred", "with a number added to all of them", _centred, is_moved=True),
    )
}


def replay_groups(batches: Sequence[GroupBatch]) -> ReplayedGroups | None:
    """Fit every recipe to what was credited; None where there is too little to tell."""
    count = sum(int(np.count_nonzero(each.credit)) for each in batches)
    if count < MIN_SAMPLES or len(batches) < LEAST_BATCHES:
        return None
    found = (_fit(recipe, batches) for recipe in GROUP_RECIPES.values())
    fits = sorted((fit for fit in found if fit is not None), key=_less_likely)
    right = max(
        (fit for fit in fits if fit.recipe.right), key=lambda fit: -1.0 if fit.flipped else fit.r2
    )
    upright = 0.0 if right.flipped else right.r2
    best = fits[0]
    clearly = best.r2 - upright >= GAP and 1.0 - upright >= TIMES * (1.0 - best.r2)
    proved = (best.flipped or not best.recipe.right) and best.r2 >= EXPLAINS and clearly
    outside, beyond = (
        sum(getattr(each, name) for each in batches) for name in ("outside", "beyond")
    )
    return ReplayedGroups(
        fits=tuple(fits),
        samples=count,
        checked=upright >= FITS and not proved,
        wrong=best if proved else None,
        right=right,
        on_padding=beyond / outside if outside >= LEAST_OUTSIDE else None,
        by_lengths={kind: _explained(right.recipe, batches, (kind,)) for kind in KINDS},
    )


def _less_likely(fit: GroupFit) -> float:
    """What has a number more to fit must explain clearly more."""
    return GAP * fit.recipe.is_moved - fit.r2


def _explained(
    recipe: GroupRecipe, batches: Sequence[GroupBatch], kinds: Sequence[Lengths]
) -> float:
    fit = _fit(recipe, batches, kinds)
    return 0.0 if fit is None or fit.flipped else fit.r2


def _fit(
    recipe: GroupRecipe, batches: Sequence[GroupBatch], kinds: Sequence[Lengths] = KINDS
) -> GroupFit | None:
    """With the rewards and lengths that fit best."""
    names = list(batches[0].rewards)
    names = [name for name in names if all(name in each.rewards for each in batches)]
    fits = [
        fit
        for name in names
        for lengths in kinds
        if (fit := _fit_one(recipe, batches, name, lengths)) is not None
    ]
    return max(fits, key=lambda fit: fit.r2, default=None)


def _fit_one(
    recipe: GroupRecipe, batches: Sequence[GroupBatch], name: str, lengths: Lengths
) -> GroupFit | None:
    total = rising = falling = 0.0
    moved: set[bool] = set()
    for each in batches:
        made = recipe.advantages(each.rewards[name], each.groups)
        if made is None:
            return None
        # of an answer without any credit the number of tokens is not known
        weights = np.where(each.credit == 0.0, 1.0, each.tokens) if lengths == "tokens" else 1.0
        x = made[each.rows] * weights
        total += float(each.credit @ each.credit)
        if recipe.is_moved:
            gain, along, by = _gain_moved(
                x, np.where(each.credit == 0.0, 0.0, weights), each.credit
            )
            moved.add(by > 0.0)
        else:
            gain, along = _gain(x, each.credit)
        rising, falling = rising + gain * (along > 0), falling + gain * (along < 0)
    if len(moved) > 1:
        return None  # a mean over each batch was subtracted again: here it is above, there below 0
    r2 = max(rising, falling) / total if total > 0.0 else 0.0
    return GroupFit(recipe=recipe, r2=r2, flipped=falling > rising, lengths=lengths)


def _gain(x: Floats, y: Floats) -> tuple[float, float]:
    """What a multiple of x explains of the squares of y, and the sign of that multiple."""
    along, size = float(x @ y), float(x @ x)
    return (along * along / size if size > 0.0 else 0.0), along


def _gain_moved(x: Floats, ones: Floats, y: Floats) -> tuple[float, float, float]:
    """With a multiple of `ones` beside it, and how much of that comes to one of x."""
    if len(y) <= LEAST_MOVED or not ones.any() or not x.any():
        return 0.0, 0.0, 0.0
    both = np.stack([x, ones], axis=1)
    found, *_ = np.linalg.lstsq(both, y, rcond=None)
    return float((both @ found) @ y), float(found[0]), float(found[1] * found[0])
