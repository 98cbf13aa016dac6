"""Which settings go with a better outcome: against brute force, and silent where n is small."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from gradiometer.doctor.contrasts import contrasts, told_contrasts


def sweep(
    num: int, effect: float, seed: int = 0
) -> tuple[dict[str, dict[str, str]], dict[str, float]]:
    """Runs over two settings, of which lr decides; the seed and the name tell nothing."""
    rng = np.random.default_rng(seed)
    names = [f"run-{place}" for place in range(num)]
    lr = {name: ("0.001", "0.1")[place % 2] for place, name in enumerate(names)}
    settings = {
        "optim.lr": lr,
        "batch": {name: str((64, 128, 256)[place // 2 % 3]) for place, name in enumerate(names)},
        "seed": {name: str(place) for place, name in enumerate(names)},
    }
    outcomes = {name: effect * (lr[name] == "0.001") + float(rng.normal()) for name in names}
    return settings, outcomes


@pytest.mark.slow
def test_the_setting_that_decides_is_named_with_its_medians_and_its_p() -> None:
    settings, outcomes = sweep(16, 10.0)
    (found,) = contrasts(settings, outcomes) or []
    assert (found.settings, found.num_tested, found.num_runs) == (("optim.lr",), 2, 16)
    told = told_contrasts(settings, outcomes, "reward")
    assert told.startswith("A better reward goes with optim.lr: 0.001 (median ")
    assert "n = 8) against 0.1" in told
    lower = told_contrasts(settings, outcomes, "loss", lower=True)
    assert "optim.lr: 0.1 (median" in lower


def test_p_of_two_values_is_that_of_every_way_to_part_the_runs() -> None:
    settings, outcomes = sweep(10, 1.5, seed=3)
    only = {"lr": settings["optim.lr"]}
    runs = list(outcomes)
    good = [place for place, run in enumerate(runs) if only["lr"][run] == "0.001"]
    ranks = np.argsort(np.argsort([outcomes[run] for run in runs]))
    sums = np.array([ranks[list(some)].sum() for some in combinations(range(10), 5)])
    far = abs(sums - sums.mean()) >= abs(ranks[good].sum() - sums.mean())
    found = contrasts(only, outcomes)
    assert found is not None
    assert (found[0].p if found else far.mean()) == pytest.approx(far.mean())


def test_a_run_without_a_finite_outcome_did_worst() -> None:
    settings, outcomes = sweep(12, 0.0)
    outcomes |= {run: math.nan for run, lr in settings["optim.lr"].items() if lr == "0.1"}
    (found,) = contrasts({"lr": settings["optim.lr"]}, outcomes) or []
    assert "0.1 (median none finite, n = 6)" in found.text


def test_settings_that_changed_together_are_not_told_apart() -> None:
    settings, outcomes = sweep(12, 10.0)
    twin = {run: "a" if value == "0.001" else "b" for run, value in settings["optim.lr"].items()}
    (found,) = contrasts({"lr": settings["optim.lr"], "clip": twin}, outcomes) or []
    assert (found.settings, found.num_tested) == (("lr", "clip"), 1)


@pytest.mark.parametrize("num", [2, 4, 5, 6])
def test_too_few_runs_say_nothing_however_far_apart(num: int) -> None:
    settings, outcomes = sweep(num, 1e6)
    assert told_contrasts({"lr": settings["optim.lr"]}, outcomes, "reward") == ""


@pytest.mark.slow
def test_chance_alone_is_named_no_more_often_than_it_may() -> None:
    found = [bool(contrasts(*sweep(14, 0.0, seed=seed))) for seed in range(300)]
    assert np.mean(found) < 0.08  # 0.05, and two standard errors
    assert "No setting correlates with" in told_contrasts(*sweep(14, 0.0), "reward")
