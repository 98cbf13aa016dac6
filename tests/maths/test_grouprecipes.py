"""Credit that was made by a known recipe is explained by that one, and by no other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradiometer.maths.grouprecipes import (
    GROUP_RECIPES,
    Floats,
    GroupBatch,
    Ints,
    replay_groups,
)

SIZE, PROMPTS = 6, 5
NEIGHBOURS = np.repeat(np.arange(PROMPTS), SIZE)
APART = np.tile(np.arange(PROMPTS), SIZE)


def batch(
    recipe: str, seed: int, groups: Ints, *, factor: float = 0.01, noise: float = 0.0
) -> GroupBatch:
    rng = np.random.default_rng(seed)
    rewards = rng.normal(1.0, 1.0, len(groups)) + groups * 0.7
    rows = rng.permutation(len(groups))[:20]
    tokens = rng.integers(2, 9, len(rows)).astype(np.float64)
    made = GROUP_RECIPES[recipe].advantages(rewards, groups)
    assert made is not None
    made = made + 2.0 * GROUP_RECIPES[recipe].is_moved
    credit: Floats = factor * made[rows] * tokens
    credit = credit + noise * credit.std() * rng.normal(size=len(rows))
    return GroupBatch(
        rewards={"rewards": rewards}, groups=groups, rows=rows, credit=credit, tokens=tokens
    )


@pytest.mark.parametrize("groups", [NEIGHBOURS, APART], ids=["neighbours", "apart"])
@pytest.mark.parametrize("recipe", GROUP_RECIPES)
def test_the_recipe_that_was_used_is_found(recipe: str, groups: Ints) -> None:
    found = replay_groups([batch(recipe, seed, groups, noise=0.02) for seed in range(6)])
    assert found is not None
    assert found.fits[0].recipe.name == recipe
    assert found.fits[0].r2 > 0.99
    assert found.fits[0].lengths == "tokens"
    assert (found.wrong is None) == GROUP_RECIPES[recipe].right == found.checked


def test_a_flipped_sign_is_a_wrong_recipe() -> None:
    batches = [batch("group-normalised", seed, NEIGHBOURS, factor=-1.0) for seed in range(4)]
    found = replay_groups(batches)
    assert found is not None
    assert found.wrong is not None
    assert found.wrong.flipped
    assert not found.checked


def test_what_nothing_explains_and_what_is_too_little_says_nothing() -> None:
    noisy = replay_groups([batch("group-centred", s, NEIGHBOURS, noise=3.0) for s in range(6)])
    assert noisy is not None
    assert noisy.wrong is None
    assert not noisy.checked
    assert replay_groups([batch("not-centred", 0, NEIGHBOURS)] * 2) is None


def test_answers_of_different_lengths_that_weigh_otherwise_than_set_are_seen() -> None:
    found = replay_groups([batch("group-centred", seed, NEIGHBOURS) for seed in range(4)])
    assert found is not None
    assert found.weighs_otherwise("answers")
    assert not found.weighs_otherwise("tokens")


def test_advantages_without_the_mean_of_their_batch_are_not_moved() -> None:
    """Several trainers whiten them once more, over what one step trains on."""
    whitened = []
    for seed in range(8):
        one = batch("group-centred", seed, NEIGHBOURS, factor=1.0)
        made = GROUP_RECIPES["group-centred"].advantages(one.rewards["rewards"], NEIGHBOURS)
        assert made is not None
        own = made[one.rows]
        whitened.append(replace(one, credit=0.01 * (own - own.mean()) * one.tokens))
    found = replay_groups(whitened)
    assert found is not None
    assert found.wrong is None


def test_right_advantages_are_not_called_moved() -> None:
    found = replay_groups([batch("group-normalised", seed, NEIGHBOURS) for seed in range(6)])
    assert found is not None
    assert found.fits[0].recipe.name == "group-normalised"
    assert found.checked
