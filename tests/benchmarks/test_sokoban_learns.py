from __future__ import annotations

import numpy as np
from benchmarks.sokoban_learns import judge, summary


def test_the_aim_is_met_only_if_every_training_reaches_it() -> None:
    assert summary([0.7, 0.6]).endswith("mean 65%, least 60%; aim 60% met")
    assert summary([0.9, 0.59]).endswith("aim 60% MISSED")


def test_a_reward_that_rises_is_learned_and_one_that_stands_is_not() -> None:
    steps, noise = np.arange(120), np.random.default_rng(0).normal(0, 1, 120)
    assert judge(steps, steps / 30 + noise).learns
    assert not judge(steps, noise).learns
