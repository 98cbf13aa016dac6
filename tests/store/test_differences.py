"""What runs differ in, and which are repetitions of one another."""

from __future__ import annotations

from typing import Any

import pytest

from gradiometer.errors import UnknownName
from gradiometer.store.comparison import differences, grouped, groupings, usual_grouping


def facts(**config: Any) -> dict[str, Any]:
    return {
        "config": config,
        "started": "2026-01-01",
        "script": "/x/train.py",
        "versions": {"torch": "2.0"},
    }


RUNS = {
    "ppo-1": facts(seed=1, run="a", optim={"lr": 0.1}),
    "ppo-2": facts(seed=2, run="b", optim={"lr": 0.1}),
    "ppo-3": facts(seed=1, run="c", optim={"lr": 0.2}),
    "ppo-4": facts(seed=2, run="d", optim={"lr": 0.2}),
}


def test_nested_settings_are_named_with_dots_and_equal_ones_are_only_counted() -> None:
    runs = {
        **RUNS,
        "ppo-4": {**RUNS["ppo-4"], "git": {"commit": "f00"}, "versions": {"torch": "2.1"}},
    }
    found = differences(runs)
    assert [(row.group, row.name) for row in found.differs] == [
        ("config", "seed"),
        ("config", "run"),
        ("config", "optim.lr"),
        ("versions", "torch"),
    ]
    assert found.differs[2].values == {
        "ppo-1": "0.1",
        "ppo-2": "0.1",
        "ppo-3": "0.2",
        "ppo-4": "0.2",
    }
    assert found.equal == {"git": 1}


def test_a_setting_that_one_run_does_not_have_differs_and_comes_after_those_in_dispute() -> None:
    found = differences({"a": facts(extra=1, lr=1), "b": facts(lr=2)})
    assert [(row.name, row.contested) for row in found.differs] == [("lr", True), ("extra", False)]
    assert found.differs[1].values == {"a": "1"}


def test_a_run_without_a_config_is_told_and_makes_no_setting_differ() -> None:
    found = differences(
        {"a": facts(lr=1), "b": facts(lr=1), "log": {"imported": {"format": "csv"}}}
    )
    assert found.differs == ()
    assert found.unknown == ("log",)
    assert found.equal == {"config": 1, "versions": 1}


def test_null_and_the_text_null_and_numbers_are_told_as_they_are() -> None:
    found = differences({"a": facts(x=None, y=[1, 2]), "b": facts(x=1, y=[1, 3])})
    assert {row.name: dict(row.values) for row in found.differs} == {
        "x": {"a": "null", "b": "1"},
        "y": {"a": "[1, 2]", "b": "[1, 3]"},
    }


def test_repetitions_differ_only_in_seed_and_in_where_they_are_kept() -> None:
    found = differences(RUNS)
    assert grouped(RUNS, "seed", found) == {
        "optim.lr = 0.1": ["ppo-1", "ppo-2"],
        "optim.lr = 0.2": ["ppo-3", "ppo-4"],
    }
    assert usual_grouping(RUNS, found) == "seed"


def test_repetitions_with_names_of_their_own_are_called_by_them() -> None:
    runs = {
        "slow/1": RUNS["ppo-1"],
        "slow/2": RUNS["ppo-2"],
        "fast-1": RUNS["ppo-3"],
        "fast-2": RUNS["ppo-4"],
    }
    assert grouped(runs, "seed", differences(runs)) == {
        "slow": ["slow/1", "slow/2"],
        "fast": ["fast-1", "fast-2"],
    }


def test_runs_of_two_scripts_and_runs_without_a_config_are_no_repetitions() -> None:
    runs = {
        "a": facts(lr=1, seed=1),
        "b": {**facts(lr=1, seed=2), "script": "other.py"},
        "c": {"seed": 1},
        "d": {"seed": 2},
    }
    found = differences(runs)
    assert grouped(runs, "seed", found) == {name: [name] for name in runs}
    assert usual_grouping(runs, found) == "none"


def test_by_name_and_by_a_setting() -> None:
    found = differences(RUNS)
    assert grouped(RUNS, "name", found) == {"ppo": list(RUNS)}
    assert list(grouped(RUNS, "optim.lr", found)) == ["optim.lr = 0.1", "optim.lr = 0.2"]
    assert grouped(RUNS, "config.seed", found) == {
        "seed = 1": ["ppo-1", "ppo-3"],
        "seed = 2": ["ppo-2", "ppo-4"],
    }


def test_offered_is_what_two_runs_share_and_an_unknown_grouping_says_what_there_is() -> None:
    found = differences(RUNS)
    assert groupings(RUNS, found) == ["none", "seed", "name", "config.seed", "optim.lr"]
    with pytest.raises(UnknownName, match=r"unknown grouping 'optim\.l'; did you mean 'optim\.lr'"):
        grouped(RUNS, "optim.l", found)
