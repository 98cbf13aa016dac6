"""Tiers of a tensor against a sort in plain Python, and the sums over them against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradiometer.maths.tiers import (
    on_device,
    source_tiers,
    thresholds,
    tier_masks,
    tier_size,
    tier_sums,
    tier_sums_by_row,
)


def oracle_sound(weights: list[float]) -> tuple[set[int], set[int]]:
    """Exactly m each by a stable sort; zeros are never bottom; top wins."""
    m = max(1, int(len(weights) * 0.05))
    largest = sorted(range(len(weights)), key=lambda i: -abs(weights[i]))[:m]
    smallest = sorted(
        (i for i in range(len(weights)) if weights[i] != 0), key=lambda i: abs(weights[i])
    )[:m]
    return set(largest), set(smallest) - set(largest)


def oracle_source(weights: list[float]) -> tuple[set[int], set[int]]:
    """Everything at or beyond the m-th from either end."""
    m = max(1, int(len(weights) * 0.05))
    sizes = [abs(w) for w in weights]
    high = sorted(sizes, reverse=True)[m - 1]
    nonzero = sorted(size for size in sizes if size > 0)
    low = nonzero[m - 1] if len(nonzero) >= m else math.inf
    top = {i for i, size in enumerate(sizes) if size >= high}
    return top, {i for i, size in enumerate(sizes) if 0 < size <= low}


def members(mask: torch.Tensor) -> set[int]:
    return set(mask.reshape(-1).nonzero().reshape(-1).tolist())


# few different values: ties everywhere; zeros among them
tied = st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0]), min_size=1, max_size=130)
plain = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=130)


@given(tied | plain)
@settings(max_examples=2 * settings.default.max_examples)
def test_the_tiers_are_those_of_a_sort(weights: list[float]) -> None:
    tensor = torch.tensor(weights)
    sound, source = tier_masks(tensor), source_tiers(tensor)
    assert (members(sound.top), members(sound.bottom)) == oracle_sound(weights)
    assert (members(source.top), members(source.bottom)) == oracle_source(weights)


@pytest.mark.parametrize(("numel", "m"), [(1, 1), (19, 1), (20, 1), (39, 1), (40, 2), (1000, 50)])
def test_a_tier_is_five_per_cent_and_at_least_one(numel: int, m: int) -> None:
    assert tier_size(numel) == m
    masks = tier_masks(torch.randn(numel))
    assert int(masks.top.sum()) == m
    assert int(masks.bottom.sum()) == (m if numel > 1 else 0)
    assert int(masks.middle.sum()) == numel - m - int(masks.bottom.sum())


def test_zeros_are_never_bottom_and_a_tensor_of_zeros_has_no_bottom() -> None:
    weights = torch.cat([torch.zeros(50), torch.linspace(1, 2, 50)])
    assert members(tier_masks(weights).bottom) == set(range(50, 55))
    assert members(source_tiers(weights).bottom) == set(range(50, 55))
    nothing = torch.zeros(40)
    assert not tier_masks(nothing).bottom.any()
    assert int(tier_masks(nothing).top.sum()) == 2
    assert source_tiers(nothing).top.all()  # all of them tie with the second largest


def test_a_tier_keeps_the_shape_of_its_tensor() -> None:
    weight = torch.randn(4, 30)
    assert tier_masks(weight).top.shape == weight.shape
    assert source_tiers(weight).bottom.shape == weight.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("numel", [1, 7, 100, 5000, 20_000])
def test_thresholds_are_those_of_a_sort(dtype: torch.dtype, numel: int) -> None:
    torch.manual_seed(numel)
    size = torch.randn(numel).to(dtype).abs()
    size[: numel // 3] = 0
    m = tier_size(numel)
    low, high = thresholds(size[None])[0].tolist()
    assert on_device(size[None], m).tolist() == [[low, high]]
    ordered = sorted(size.tolist())
    nonzero = [x for x in ordered if x > 0]
    assert high == ordered[-m]
    assert low == (nonzero[m - 1] if len(nonzero) >= m else math.inf)


@pytest.mark.slow
@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("numel", [1, 15, 2400, 100_000])
@pytest.mark.parametrize("exact", [False, True])
def test_sums_over_tiers_are_those_of_a_loop(
    numel: int, exact: bool, dtype: torch.dtype, num: int
) -> None:
    torch.manual_seed(1)
    weights, grads = torch.randn(num, numel).to(dtype), torch.randn(num, numel).to(dtype)
    weights[:, : numel // 4] = weights[:, numel // 4 : 2 * (numel // 4)]  # pairs that tie
    sums = tier_sums(grads, weights, thresholds(weights.abs()), exact=exact)
    for row in range(num):
        values, flat = weights[row].tolist(), grads[row].tolist()
        top, bottom = oracle_source(values)
        tiers = [top, bottom, set(range(numel)) - top - bottom, set(range(numel))]
        expected = [sum(flat[i] ** 2 for i in tier) for tier in tiers]
        torch.testing.assert_close(
            sums.source[row].double(), torch.tensor(expected).double(), rtol=5e-5, atol=1e-12
        )
        if exact:
            top, bottom = oracle_sound(values)
            tiers = [top, bottom, set(range(numel)) - top - bottom]
        expected = [sum(flat[i] ** 2 for i in tier) for tier in tiers[:3]]
        torch.testing.assert_close(
            sums.sound[row].double(), torch.tensor(expected).double(), rtol=5e-5, atol=1e-12
        )
        assert sums.counts[row].tolist() == [len(tier) for tier in tiers[:3]]


def test_the_middle_is_exact_where_nearly_all_of_the_gradient_is_on_top() -> None:
    """A difference of totals would lose it: 1e16 against 4500 in float32."""
    weight = torch.linspace(0.1, 1, 5000)
    grad = torch.ones(5000)
    grad[tier_masks(weight).top] = 1e8
    sums = tier_sums(grad[None], weight[None], thresholds(weight[None]))
    assert sums.source[0, 2].item() == 4500
    assert sums.source[0, 1].item() == 250


def test_old_thresholds_cut_the_weights_as_they_are_now() -> None:
    weight = torch.linspace(0.1, 1, 6000)[None]
    cut = thresholds(weight)
    grown = weight.clone()
    grown[0, 0] = 0.5  # was bottom, is middle
    assert tier_sums(torch.ones(1, 6000), grown, cut).counts.tolist() == [[300, 299, 5401]]


def test_nothing_is_changed() -> None:
    weight, grad = torch.randn(2, 6400), torch.randn(2, 6400)
    before = weight.clone(), grad.clone()
    tier_sums(grad, weight, thresholds(weight.abs()))
    tier_sums(grad, weight, thresholds(weight.abs()), exact=True)
    assert torch.equal(weight, before[0])
    assert torch.equal(grad, before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("columns", [700, 5000])
def test_row_by_row_in_a_scratch_is_the_same_as_all_at_once(
    dtype: torch.dtype, columns: int
) -> None:
    torch.manual_seed(2)
    weights, grads = torch.randn(4, 5000).to(dtype), torch.randn(4, 5000).to(dtype)
    weights[1] = 0.5  # all of it ties: top and bottom
    weights[2, :4000] = 0.0
    grads[3, 17] = torch.nan
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    cuts = thresholds(weights.to(wide).abs())
    sums = tier_sums(grads.to(wide), weights.to(wide), cuts)
    scratch = torch.full((5, columns), torch.nan, dtype=wide)  # what was in it does not matter
    found = tier_sums_by_row(list(grads), list(weights), cuts, scratch=scratch)
    torch.testing.assert_close(
        found, torch.cat([sums.source, sums.counts], 1), rtol=5e-5, atol=0.0, equal_nan=True
    )
    assert found[3, :4].isnan().all()
    without = tier_sums_by_row(list(grads), list(weights), cuts)
    torch.testing.assert_close(without, found, rtol=5e-5, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("middle", [1e-6, 1e-2, 1.0, 1e3])
def test_a_middle_tier_that_is_little_of_all_is_not_lost_in_rounding(middle: float) -> None:
    torch.manual_seed(3)
    weights = torch.randn(2, 40_000)
    cuts = thresholds(weights.abs())
    outer = (weights.abs() >= cuts[:, 1:]) | (weights.abs() <= cuts[:, :1])
    grads = torch.randn(2, 40_000) * torch.where(outer, 10.0, middle)
    known = grads.double().square().masked_fill(outer, 0.0).sum(1)
    found = tier_sums_by_row(list(grads), list(weights), cuts)
    torch.testing.assert_close(found[:, 2].double(), known, rtol=5e-5, atol=0.0)
    assert found[:, 6].tolist() == (~outer).sum(1).tolist()
