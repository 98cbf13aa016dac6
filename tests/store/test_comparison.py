"""Quantities under whatever name, and each run in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradiometer.errors import UnknownName, UsageError
from gradiometer.store import comparison
from gradiometer.store.comparison import Source, better, by_default, chosen, quantities, read
from gradiometer.store.logs import Log

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def log() -> Callable[..., Log]:
    def made(values: list[float], name: str = "x") -> Log:
        rows = [(10 * place, {name: value}) for place, value in enumerate(values)]
        return Log("there", name="there", run_id="0", rows=rows)

    return made


def test_other_libraries_names_are_compared_under_ours_with_the_sign_put_right() -> None:
    book = quantities(["train/entropy_loss", "rollout/ep_rew_mean", "grad_norm", "mine"])
    assert book == {
        "entropy": Source(series="train/entropy_loss", sign=-1),
        "reward": Source(series="rollout/ep_rew_mean"),
        "grad/all/norm/raw": Source(series="grad_norm"),
        "mine": Source(series="mine"),
    }


def test_our_own_name_goes_before_an_alias_which_keeps_its_name() -> None:
    for names in (["entropy", "train/entropy_loss"], ["train/entropy_loss", "entropy"]):
        assert quantities(names) == {
            "entropy": Source(series="entropy"),
            "train/entropy_loss": Source(series="train/entropy_loss"),
        }
    assert quantities(["critic/grad_norm", "actor/grad_norm"]) == {
        "grad/all/norm/raw": Source(series="actor/grad_norm"),
        "critic/grad_norm": Source(series="critic/grad_norm"),
    }


def test_the_usual_ones_first_else_what_most_runs_share() -> None:
    books = [quantities(["reward", "entropy", "a"]), quantities(["grad/all/norm/raw", "a"])]
    assert by_default(books) == ["reward", "grad/all/norm/raw", "entropy"]
    assert by_default([quantities(["b", "c"]), quantities(["c", "a"])]) == ["c", "a", "b"]


def test_chosen_are_those_that_are_named_and_those_that_match() -> None:
    books = [quantities(["reward", "rollout/ep_len_mean", "a/x", "a/y"])]
    assert chosen(books, match="^a/", names=[]) == ["a/x", "a/y"]
    assert chosen(books, match="^a/", names=["reward", "a/y"]) == ["reward", "a/y", "a/x"]
    assert chosen(books, match="ep_len", names=[]) == ["episode_length"]
    assert chosen(books, match="", names=["rollout/ep_len_mean"]) == ["episode_length"]


def test_what_cannot_be_chosen_is_an_error_that_says_why() -> None:
    books = [quantities(["reward"])]
    with pytest.raises(UnknownName, match="unknown metric 'rewrd'; did you mean 'reward'"):
        chosen(books, match="", names=["rewrd"])
    with pytest.raises(UsageError, match=r"match '\(' is not a regular expression \(missing \)"):
        chosen(books, match="(", names=[])
    with pytest.raises(
        UsageError, match="no series of these runs matches 'zzz'; there are 1, such as reward"
    ):
        chosen(books, match="zzz", names=[])


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("reward", "max"),
        ("val/success_rate", "max"),
        ("value_loss", "min"),
        ("policy_loss", ""),
        ("entropy", ""),
    ],
)
def test_more_is_better_of_rewards_less_of_losses_and_neither_of_the_rest(
    name: str, which: str
) -> None:
    assert better(name) == which


def test_a_series_in_numbers(log: Callable[..., Log]) -> None:
    values = [float(place) for place in range(20)]
    values[5], values[7], values[19] = 100.0, -100.0, math.nan
    found = read(log(values, "reward"), Source(series="reward"))
    assert found is not None
    assert (found.low, found.low_step, found.high, found.high_step) == (-100.0, 70, 100.0, 50)
    assert math.isnan(found.last)
    assert found.last_step == 190
    assert found.tail == 18.0  # of the last two the finite one
    assert found.best("reward") == (100.0, 50)
    assert found.best("entropy") is None


def test_a_turned_sign_turns_everything(log: Callable[..., Log]) -> None:
    found = read(log([1.0, 5.0, 2.0]), Source(series="x", sign=-1))
    assert found is not None
    assert found.values.tolist() == [-1.0, -5.0, -2.0]
    assert (found.last, found.tail, found.low, found.low_step, found.high, found.high_step) == (
        -2,
        -2,
        -5,
        10,
        -1,
        0,
    )


def test_a_series_without_a_finite_value_has_no_best(log: Callable[..., Log]) -> None:
    found = read(log([math.nan, math.inf]), Source(series="x"))
    assert found is not None
    assert (found.low_step, found.high_step, found.best("reward")) == (None, None, None)
    assert read(log([1.0]), Source(series="x"), 50) is None


@pytest.mark.parametrize("sign", [1, -1])
def test_a_very_long_series_is_averaged_but_its_numbers_are_exact(
    log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch, sign: int
) -> None:
    monkeypatch.setattr(comparison, "EXACT", 100)
    monkeypatch.setattr(comparison, "AT_MOST", 500)
    values = np.random.default_rng(0).normal(size=3_000)
    values[1_234], values[2_345] = 50.0, -60.0
    there = log(values.tolist())
    found = read(there, Source(series="x", sign=sign))
    assert found is not None
    assert not found.exact
    assert len(found.steps) <= 101
    low, high = (-60.0, 23_450), (50.0, 12_340)
    assert (found.low, found.low_step) == (low if sign > 0 else (-high[0], high[1]))
    assert (found.high, found.high_step) == (high if sign > 0 else (-low[0], low[1]))
    assert found.last == sign * values[-1]
    assert found.tail == pytest.approx(sign * values[-300:].mean(), abs=0.05)


def test_a_series_a_little_long_is_read_whole(
    log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "EXACT", 100)
    values = np.random.default_rng(0).normal(size=3_000)
    found = read(log(values.tolist()), Source(series="x"))
    assert found is not None
    assert found.exact
    assert found.values.tolist() == values.tolist()
