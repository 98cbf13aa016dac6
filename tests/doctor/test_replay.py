"""recipe-mismatch: proved by the credit of an update, silent where the right recipe fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gradiometer as gm
from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.maths import targetrecipes
from gradiometer.maths.recipes import RECIPES, Rollout
from gradiometer.maths.targetrecipes import LogProbs, TargetBatch, TargetRecipe
from gradiometer.records import Finding, Row, Table
from gradiometer.store.writer import Writer

ID = "recipe-mismatch"


def judged(
    folder: Path, recipe: str, *, sign: float = 1.0, id: str = ID, correlation: float | None = None
) -> list[Finding] | Skipped:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(97, 2)).cumsum(0)
    ends = (rng.random((96, 2)) < 0.1).astype(np.float64)
    rollout = Rollout(
        rewards=rng.normal(0.2, 2.0, (96, 2)),
        ends=ends,
        cuts=np.zeros_like(ends),
        values=values[:-1],
        next_values=values[1:],
    )
    gamma = 0.99 if 0.99 in RECIPES[recipe].gammas else RECIPES[recipe].gammas[0]
    made = sign * RECIPES[recipe].advantages(rollout, gamma, 0.95).reshape(-1)
    content = {
        "rewards": rollout.rewards.tolist(),
        "ends": ends.tolist(),
        "cuts": rollout.cuts.tolist(),
        "values": values[:-1].tolist(),
        "next_values": values[1:].tolist(),
        "credit": made.tolist(),
        "rows": list(range(len(made))),
        "calls": [0] * len(made),
        "places": rng.permutation(len(made)).tolist(),
    }
    with Writer(folder) as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
        writer.put(Table(step=0, name="replay", content=content))
        for step in range(1, 41 if correlation is not None else 1):
            told = {"credit/corr_return": correlation or 0.0}
            writer.put(Row(step=step, wall_time=float(step), values=told))
    with gm.load(folder) as run:
        return next(each for each in rules() if each.id == id)(RunData(run))


@pytest.mark.parametrize("recipe", ["ends-not-masked", "rewards-one-late", "gamma-zero"])
def test_a_wrong_recipe_is_a_proved_finding_with_its_fix(tmp_path: Path, recipe: str) -> None:
    found = judged(tmp_path / "run", recipe)
    assert not isinstance(found, Skipped)
    (said,) = found
    assert (said.id, said.severity, said.basis) == ("recipe-mismatch", "critical", "proved")
    assert RECIPES[recipe].words in said.title
    assert said.fix
    assert said.confirm


def test_a_flipped_sign_is_told_with_the_sign(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", "gae", sign=-1.0)
    assert not isinstance(found, Skipped)
    assert "opposite sign" in found[0].title
    assert "sign" in found[0].fix[0]


@pytest.mark.parametrize(
    ("recipe", "sign", "opposes"), [("past-rewards", 1.0, False), ("gae", -1.0, True)]
)
def test_a_correlation_that_another_recipe_explains_is_no_wrong_sign(
    tmp_path: Path, recipe: str, sign: float, opposes: bool
) -> None:
    """Sums over the past fall where those over the future rise."""
    id = "update-opposes-reward"
    found = judged(tmp_path / "run", recipe, sign=sign, id=id, correlation=-0.99)
    assert isinstance(found, list)
    assert bool(found) == opposes


def test_the_right_recipe_is_left_in_peace(tmp_path: Path) -> None:
    assert judged(tmp_path / "run", "gae") == []


def test_every_wrong_recipe_has_a_fix() -> None:
    from gradiometer.doctor.rules.wiring_replay import FIXES

    assert set(FIXES) == {name for name, each in RECIPES.items() if not each.right}


def judged_targets(folder: Path, *, gamma: float, **settings: float) -> list[Finding] | Skipped:
    """A run whose targets are r + γ (1 − end) max Q'."""
    rng = np.random.default_rng(3)
    with Writer(folder, facts={"config": settings}) as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
        for step in range(3):
            rewards, ahead = rng.normal(size=64), rng.normal(4.0, 2.0, (64, 3))
            ends = (rng.random(64) < 0.1).astype(int)
            content = {
                "targets": (rewards + gamma * (1 - ends) * ahead.max(1)).tolist(),
                "rewards": rewards.tolist(),
                "ends": ends.tolist(),
                "target": [ahead.tolist()],
                "online": [],
                "critics": 1,
                "copies": 1,
                "has_target": True,
            }
            writer.put(Table(step=step, name="target-replay", content=content))
    with gm.load(folder) as run:
        return next(each for each in rules() if each.id == ID)(RunData(run))


def test_a_discount_that_is_not_that_of_the_settings_is_told(tmp_path: Path) -> None:
    assert judged_targets(tmp_path / "right", gamma=0.97, discount=0.97) == []
    found = judged_targets(tmp_path / "other", gamma=0.9, discount=0.99)
    assert not isinstance(found, Skipped)
    (said,) = found
    assert (said.severity, said.basis) == ("warn", "proved")
    assert said.title == "Targets have a discount of 0.9, the settings say 0.99"
    one = judged_targets(tmp_path / "one", gamma=1.0, discount=0.99)
    assert not isinstance(one, Skipped)
    assert [each.severity for each in one] == ["info"]
    zero = judged_targets(tmp_path / "zero", gamma=0.0)
    assert not isinstance(zero, Skipped)
    assert [each.severity for each in zero] == ["critical"]


def test_what_does_not_fit_together_is_not_judged(tmp_path: Path) -> None:
    content = {"targets": [1.0], "rewards": [1.0, 2.0], "ends": [0], "target": [[1.0]]}
    more = {"online": [], "critics": 1, "has_target": True}
    with Writer(tmp_path / "run") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
        for step, odd in enumerate((content | more, content, {"targets": "no"}, [1])):
            writer.put(Table(step=step, name="target-replay", content=odd))
    with gm.load(tmp_path / "run") as run:
        found = next(each for each in rules() if each.id == ID)(RunData(run))
    assert isinstance(found, Skipped)


def test_every_wrong_recipe_of_targets_has_a_fix() -> None:
    from gradiometer.doctor.rules.wiring_replay import TARGET_FIXES

    x, whole = np.arange(64.0), np.arange(64)
    table = np.stack([x, x], 1)
    ends = (x % 8 == 0).astype(np.float64)
    common = {"targets": x, "rewards": x, "ends": ends, "has_target": True, "copies": 2}
    choosing = TargetBatch(**common, target=(table,), online=(table,), taken=whole)
    logs = (LogProbs(normal=x, slopes=(x,)),)
    soft = TargetBatch(**common, target=(x, x), online=(x, x), critics=2, log_probs=logs)
    ways = [way for batch in (choosing, soft) for way in targetrecipes._ways([batch])]
    named = [x for x in vars(targetrecipes).values() if isinstance(x, TargetRecipe)]
    recipes = [*named, *(way.recipe for way in ways)]
    assert set(TARGET_FIXES) == {each.name for each in recipes if not each.right}


def with_settings(folder: Path, made: str, **settings: float) -> list[Finding]:
    """A run whose advantages were made in this way, and what its program's variables say."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=(97, 2)).cumsum(0)
    ends = (rng.random((96, 2)) < 0.1).astype(np.float64)
    critic = made != "alike"
    rollout = Rollout(
        rewards=rng.normal(0.2, 2.0, (96, 2)) if critic else np.ones((96, 2)),
        ends=ends,
        cuts=np.zeros_like(ends),
        values=values[:-1] if critic else None,
        next_values=values[1:] if critic else None,
    )
    credit = np.ones(192)
    if critic:
        credit = RECIPES["gae"].advantages(rollout, 0.99, float(made)).reshape(-1)
    content = {
        "rewards": rollout.rewards.tolist(),
        "ends": ends.tolist(),
        "cuts": rollout.cuts.tolist(),
        "values": values[:-1].tolist() if critic else None,
        "next_values": values[1:].tolist() if critic else None,
        "credit": credit.tolist(),
        "rows": list(range(192)),
        "calls": [0] * 192,
        "places": rng.permutation(192).tolist(),
    }
    with Writer(folder) as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
        writer.put(Table(step=0, name="settings-seen", content=settings))
        writer.put(Table(step=0, name="replay", content=content))
    with gm.load(folder) as run:
        found = next(each for each in rules() if each.id == ID)(RunData(run))
    return [] if isinstance(found, Skipped) else list(found)


@pytest.mark.parametrize(
    ("made", "settings", "told"),
    [
        ("0.0", {"gae_lambda": 0.95}, "no trace decay"),
        ("0.95", {"gae_lambda": 0.95}, None),
        ("0.0", {"gae_lambda": 0.0}, None),
        ("0.0", {"gamma": 0.99}, None),
        ("1.0", {"gae_lambda": 0.95}, None),  # some programs have a switch for that
        ("alike", {"gamma": 0.0}, "The discount is 0"),
        ("alike", {"gamma": 0.99}, None),
    ],
)
def test_what_the_program_sets_is_compared_with_what_the_update_has(
    tmp_path: Path, made: str, settings: dict[str, float], told: str | None
) -> None:
    found = with_settings(tmp_path / "run", made, **settings)
    assert [told in each.title for each in found] == ([] if told is None else [True])
    assert all(each.basis == "proved" for each in found)


@pytest.mark.parametrize(
    ("towards", "told"), [("returns", None), ("advantages", "the advantages"), ("none", None)]
)
def test_what_values_are_trained_towards_is_compared_with_returns(
    tmp_path: Path, towards: str, told: str | None
) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(97, 2)).cumsum(0)
    ends = (rng.random((96, 2)) < 0.1).astype(np.float64)
    rollout = Rollout(
        rewards=rng.normal(0.2, 2.0, (96, 2)),
        ends=ends,
        cuts=np.zeros_like(ends),
        values=values[:-1],
        next_values=values[1:],
    )
    made = RECIPES["gae"].advantages(rollout, 0.99, 0.95)
    targets = {"returns": made + values[:-1], "advantages": made, "none": rng.normal(size=(96, 2))}
    content = {
        "rewards": rollout.rewards.tolist(),
        "ends": ends.tolist(),
        "cuts": rollout.cuts.tolist(),
        "values": values[:-1].tolist(),
        "next_values": values[1:].tolist(),
        "credit": made.reshape(-1).tolist(),
        "targets": targets[towards].reshape(-1).tolist(),
        "rows": list(range(192)),
        "calls": [0] * 192,
        "places": list(range(192)),
    }
    with Writer(tmp_path / "run") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
        writer.put(Table(step=0, name="replay", content=content))
    with gm.load(tmp_path / "run") as run:
        found = next(each for each in rules() if each.id == ID)(RunData(run))
    assert not isinstance(found, Skipped)
    assert [str(told) in each.title for each in found] == ([] if told is None else [True])
