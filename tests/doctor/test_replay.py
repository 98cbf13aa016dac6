"""recipe-mismatch: proved by the credit of an update, silent where the right recipe fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gradiometer as gm
from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.maths.recipes import RECIPES, Rollout
from gradiometer.records import Finding, Row, Table
from gradiometer.store.writer import Writer

ID = "recipe-mismatch"


def judged(folder: Path, recipe: str, *, sign: float = 1.0) -> list[Finding] | Skipped:
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
    with gm.load(folder) as run:
        return next(each for each in rules() if each.id == ID)(RunData(run))


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


def test_the_right_recipe_is_left_in_peace(tmp_path: Path) -> None:
    assert judged(tmp_path / "run", "gae") == []


def test_every_wrong_recipe_has_a_fix() -> None:
    from gradiometer.doctor.rules.wiring_replay import FIXES

    assert set(FIXES) == {name for name, each in RECIPES.items() if not each.right}
