"""Concentration of weights: numbers by hand, invariants, and what is missing where all weights are
0."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradiometer.errors import UsageError
from gradiometer.maths import weights
from gradiometer.maths.estimators import maxk, pomo
from gradiometer.maths.weights import Concentration, concentration, summary

RATIOS = ("ess_abs", "ess_positive", "ess_negative", "cancellation", "top_share")


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_numbers_by_hand() -> None:
    w = double(3, -1, 1, 0)
    assert weights.ess_signed(w).item() == pytest.approx(9 / 11)
    assert weights.ess_abs(w).item() == pytest.approx(25 / 11)
    assert weights.ess_positive(w).item() == pytest.approx(16 / 10)
    assert weights.ess_negative(w).item() == pytest.approx(1)
    assert weights.cancellation(w).item() == pytest.approx(3 / 5)
    assert weights.top_share(w).item() == pytest.approx(3 / 5)
    assert weights.abs_max(w).item() == 3
    assert not weights.ess_undefined(w)
    assert weights.ess_signed(double(1e-6, 1e-6)).item() == pytest.approx(
        4e-12 / 3e-12
    )  # the source's 1e-12 counts here


def test_the_signed_ess_of_centred_weights_is_zero_and_marked_however_they_are_spread() -> None:
    rewards = torch.stack([torch.arange(8.0), torch.tensor([1.0] + 7 * [0.0])])
    w = pomo(rewards)
    assert (weights.ess_signed(w) < 1e-10).all()
    assert weights.ess_undefined(w).tolist() == [True, True]
    even, single = weights.ess_abs(w).tolist()
    assert even == pytest.approx(16**2 / 42)
    assert single == pytest.approx(1.75**2 / 0.875)
    assert not weights.ess_undefined(maxk(rewards, 2)).any()


def test_the_mark_stands_at_a_millionth() -> None:
    assert weights.ess_undefined(double(1, -1 + 1e-6)).item()
    assert not weights.ess_undefined(double(1, -1 + 4e-6)).item()


def test_all_zero_weights_have_no_concentration() -> None:
    zero = torch.zeros(2, 5)
    for name in RATIOS:
        assert getattr(weights, name)(zero).isnan().all()
    assert weights.ess_undefined(zero).all()
    assert (weights.ess_signed(zero) == 0).all()  # as the source has it
    assert (weights.abs_max(zero) == 0).all()


def test_of_one_sign_the_other_part_is_missing() -> None:
    w = double(1, 2, 0)
    assert weights.ess_negative(w).isnan()
    assert weights.ess_positive(w).item() == weights.ess_abs(w).item() == pytest.approx(9 / 5)
    assert weights.ess_positive(-w).isnan()
    assert weights.ess_negative(-w).item() == pytest.approx(9 / 5)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1.0, 1e30, 1e200])
def test_scale_does_not_matter_even_where_squares_would_vanish_or_overflow(scale: float) -> None:
    w = scale * double(3, -1, 1, 0)
    found = [getattr(weights, name)(w).item() for name in RATIOS]
    assert found == pytest.approx([25 / 11, 1.6, 1, 0.6, 0.6])


def test_a_weight_that_is_not_finite_leaves_no_number_that_looks_measured() -> None:
    for value in (math.nan, math.inf):
        w = double(1, value, 2)
        assert weights.ess_abs(w).isnan()
        assert weights.top_share(w).isnan()


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=30))
def test_bounds(values: list[float]) -> None:
    w = double(*values)
    n = len(values)
    if not any(values):
        return
    slack = 1 + 1e-12
    assert 1 / slack <= weights.ess_abs(w).item() <= n * slack
    assert 1 / slack / n <= weights.top_share(w).item() <= slack
    assert 0 <= weights.cancellation(w).item() <= slack
    assert (
        weights.top_share(w).item() >= 1 / weights.ess_abs(w).item() / slack**2
    )  # for Σw² ≤ max|w| Σ|w|
    positive, negative = sum(v > 0 for v in values), sum(v < 0 for v in values)
    for part, count in ((weights.ess_positive(w), positive), (weights.ess_negative(w), negative)):
        assert (1 / slack <= part.item() <= count * slack) if count else part.isnan()


@given(st.integers(1, 40))
def test_the_ends_of_the_scale(n: int) -> None:
    even, single = torch.ones(n), torch.eye(n)[0]
    assert weights.ess_abs(even).item() == pytest.approx(n)
    assert weights.top_share(even).item() == pytest.approx(1 / n)
    assert weights.ess_abs(single).item() == weights.top_share(single).item() == 1


def test_a_record_holds_every_quantity_for_each_instance() -> None:
    w = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    found = concentration(w)
    for field in fields(Concentration):
        values = getattr(found, field.name)
        assert values.shape == (3, 4)
        assert torch.equal(values, getattr(weights, field.name)(w))


def test_a_summary_leaves_out_what_is_missing_and_counts_it() -> None:
    w = torch.stack(
        [double(3, -1, 1, 0), double(0, 0, 0, 0), double(1, 1, 1, 1), double(1, -1, 0, 0)]
    )
    found = summary(w)
    assert found["instances"] == 4
    assert found["ess_abs"] == pytest.approx((25 / 11 + 4 + 2) / 3)
    assert found["ess_abs_left_out"] == 1
    assert found["ess_negative"] == pytest.approx(1)
    assert found["ess_negative_left_out"] == 2
    assert found["ess_signed"] == pytest.approx((9 / 11 + 0 + 4 + 0) / 4)
    assert found["ess_signed_left_out"] == 0
    assert found["ess_undefined"] == 0.5
    assert found["abs_max"] == pytest.approx(5 / 4)
    assert all(type(value) is float for value in found.values())


def test_a_summary_of_nothing_is_not_a_number() -> None:
    found = summary(torch.zeros(3, 4))
    assert math.isnan(found["ess_abs"])
    assert found["ess_abs_left_out"] == found["instances"] == 3


def test_a_row_without_weights_is_said() -> None:
    with pytest.raises(UsageError, match=r"at least one rollout, found the shape \[3, 0\]"):
        weights.ess_abs(torch.zeros(3, 0))
