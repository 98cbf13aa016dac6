"""Targets made by known recipes, and which recipe they are taken for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradiometer.maths.targetrecipes import (
    LogProbs,
    ReplayedTargets,
    TargetBatch,
    replay_targets,
)


def choosing(seed: int, **more: Any) -> TargetBatch:
    """A batch of a DQN without its targets."""
    rng = np.random.default_rng(seed)
    ends = (rng.random(64) < 0.1).astype(np.float64)
    return TargetBatch(
        targets=np.zeros(64),
        rewards=rng.normal(size=64),
        ends=ends,
        target=(rng.normal(5.0, 2.0, (64, 3)),),
        online=(rng.normal(5.0, 2.0, (64, 3)),),
        copies=1,
        has_target=True,
        taken=rng.integers(0, 3, 64),
        next_taken=np.where(ends > 0, -1, rng.integers(0, 3, 64)),
        **more,
    )


def evaluating(seed: int, *, soft: bool = True) -> TargetBatch:
    """A batch of SAC or TD3 without its targets."""
    rng = np.random.default_rng(seed)
    normal, slope = rng.normal(-1.0, 1.0, 64), rng.normal(-0.5, 1.0, 64)
    return TargetBatch(
        targets=np.zeros(64),
        rewards=rng.normal(size=64),
        ends=(rng.random(64) < 0.1).astype(np.float64),
        target=(rng.normal(5.0, 2.0, 64), rng.normal(5.0, 2.0, 64)),
        online=(),
        critics=2,
        copies=2,
        has_target=True,
        is_soft=soft,
        log_probs=(LogProbs(normal=normal, slopes=(slope,)),) if soft else (),
    )


def replayed(make: Any, ahead: Any, *, gamma: float = 0.97, **more: Any) -> ReplayedTargets:
    """Three batches whose targets are r + γ (1 − end) `ahead(batch)`."""
    batches = []
    for seed in range(3):
        batch: TargetBatch = make(seed, **more)
        made = batch.rewards + gamma * (1.0 - batch.ends) * ahead(batch)
        batches.append(replace(batch, targets=made))
    found = replay_targets(batches)
    assert found is not None
    return found


def best(batch: TargetBatch) -> Any:
    return batch.target[0].max(1)


def soft(batch: TargetBatch, alpha: float = 0.2) -> Any:
    (logs,) = batch.log_probs
    return np.minimum(*batch.target) - alpha * logs.whole[0]


RIGHT = {
    "the best of the target": (choosing, best),
    "double": (choosing, lambda b: b.target[0][np.arange(64), b.online[0].argmax(1)]),
    "sarsa": (choosing, lambda b: b.target[0][np.arange(64), np.maximum(b.next_taken, 0)]),
    "minimum and entropy": (evaluating, soft),
}
WRONG = {
    "online": (choosing, lambda b: b.online[0].max(1)),
    "target-worst": (choosing, lambda b: b.target[0].min(1)),
    "same-action": (choosing, lambda b: b.target[0][np.arange(64), b.taken]),
    "double-exchanged": (choosing, lambda b: b.online[0][np.arange(64), b.target[0].argmax(1)]),
    "twins-largest": (evaluating, lambda b: soft(b) + np.ptp(np.stack(b.target), axis=0)),
    "twins-one": (evaluating, lambda b: soft(b) - np.minimum(*b.target) + b.target[1]),
    "twins-mean": (evaluating, lambda b: soft(b) + np.ptp(np.stack(b.target), axis=0) / 2),
    "entropy-added": (evaluating, lambda b: soft(b, -0.2)),
    "entropy-missing": (evaluating, lambda b: soft(b, 0.0)),
    "tanh-missing": (evaluating, lambda b: soft(b) - 0.2 * b.log_probs[0].slopes[0]),
}


@pytest.mark.parametrize("recipe", RIGHT)
def test_right_targets_are_checked_with_their_discount(recipe: str) -> None:
    found = replayed(*RIGHT[recipe])
    assert (found.checked, found.wrong) == (True, None)
    assert found.right is not None
    assert found.right.gamma == pytest.approx(0.97)


@pytest.mark.parametrize("recipe", WRONG)
def test_a_wrong_recipe_is_named(recipe: str) -> None:
    found = replayed(*WRONG[recipe])
    assert found.wrong is not None
    assert (found.wrong.recipe.name, found.checked) == (recipe, False)
    assert found.fits[0] == found.wrong


@pytest.mark.parametrize(("by", "name"), [(1, "reward-one-late"), (-1, "reward-one-early")])
@pytest.mark.parametrize("make", [choosing, evaluating])
def test_rewards_of_the_step_before_or_after_are_named(make: Any, by: int, name: str) -> None:
    """Without a single end: nothing but the reward tells."""
    batches = []
    for seed in range(3):
        batch: TargetBatch = replace(make(seed), ends=np.zeros(64))
        before, after = np.roll(batch.rewards, 1), np.roll(batch.rewards, -1)
        ahead = best(batch) if make is choosing else soft(batch)
        made = (before if by > 0 else after) + 0.97 * ahead
        batches.append(replace(batch, targets=made, paid_before=before, paid_after=after))
    found = replay_targets(batches)
    assert found is not None
    assert found.wrong is not None
    assert (found.wrong.recipe.name, found.checked) == (name, False)


def test_ends_that_are_not_masked_are_named() -> None:
    batches = [choosing(seed) for seed in range(3)]
    made = [replace(b, targets=b.rewards + 0.97 * b.target[0].max(1)) for b in batches]
    found = replay_targets(made)
    assert found is not None
    assert found.wrong is not None
    assert found.wrong.recipe.name == "ends-not-masked"


def test_factors_that_cannot_be_are_named() -> None:
    cases = {"gamma-zero": 0.0, "gamma-above-one": 1.05}
    for name, gamma in cases.items():
        found = replayed(choosing, best, gamma=gamma)
        assert found.wrong is not None
        assert found.wrong.recipe.name == name
    for name, scale in {"reward-missing": 0.0, "reward-negated": -1.0}.items():
        batches = [choosing(seed) for seed in range(3)]
        made = [
            replace(b, targets=scale * b.rewards + 0.97 * (1 - b.ends) * b.target[0].max(1))
            for b in batches
        ]
        found_one = replay_targets(made)
        assert found_one is not None
        assert found_one.wrong is not None
        assert found_one.wrong.recipe.name == name


def test_what_programs_may_choose_is_left_in_peace() -> None:
    # no target network at all; a discount of 1; rewards shifted and scaled; costs
    found = replayed(
        lambda s: replace(choosing(s), target=(), has_target=False), lambda b: b.online[0].max(1)
    )
    assert found.checked
    assert replayed(choosing, best, gamma=1.0).checked
    for scale, shift, pick in ((0.1, 0.8, np.max), (-1.0, 0.0, np.min)):
        batches = [choosing(seed) for seed in range(3)]
        made = [
            replace(
                b,
                targets=scale * b.rewards + shift + 0.97 * (1 - b.ends) * pick(b.target[0], axis=1),
            )
            for b in batches
        ]
        other = replay_targets(made)
        assert other is not None
        assert other.wrong is None
    # one critic of its own, TD3 without an entropy, an actor that is not paid for its entropy
    assert replayed(evaluating, lambda b: np.minimum(*b.target), soft=False).checked
    plain = replayed(
        lambda s: replace(evaluating(s), is_soft=False), lambda b: np.minimum(*b.target)
    )
    assert (plain.checked, plain.wrong) == (True, None)


def test_nothing_is_said_where_nothing_fits_or_there_is_too_little() -> None:
    found = replayed(choosing, lambda b: 0.75 * b.target[0].max(1) + 0.25 * b.target[0].min(1))
    assert (found.checked, found.wrong) == (False, None)
    assert replay_targets([choosing(0)]) is None
    assert replay_targets([]) is None


def test_a_hair_beside_the_wrong_recipe_proves_nothing() -> None:
    rng = np.random.default_rng(9)
    found = replayed(choosing, lambda b: b.online[0].max(1) + rng.normal(0.0, 0.01, 64))
    assert (found.checked, found.wrong) == (False, None)
