"""Fused statistics against loops of public calls."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradiometer.maths import stats

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def some_tensors(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 5), (7,), (), (2, 3, 4), (1000,)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fused", [True, False])
def test_norms_equal_those_in_float64(
    dtype: torch.dtype, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.delattr(torch, "_foreach_norm")
    tensors = some_tensors(dtype)
    expected = [float(x.double().square().sum().sqrt()) for x in tensors]
    assert [float(n) for n in stats.norms(tensors)] == pytest.approx(expected, rel=1e-6)


def test_norms_of_mixed_types_are_taken_one_by_one() -> None:
    tensors = [torch.ones(4, dtype=dtype) for dtype in DTYPES]
    assert [float(n) for n in stats.norms(tensors)] == [2.0] * 4


def test_half_precision_does_not_overflow() -> None:
    (norm,) = stats.norms([torch.full((1000,), 300.0, dtype=torch.float16)])
    assert float(norm) == pytest.approx(300.0 * math.sqrt(1000), rel=1e-6)


def test_extremes_keep_nan_and_inf() -> None:
    low, high = stats.extremes(
        [torch.tensor([1.0, -3.0]), torch.tensor([1.0, math.nan]), torch.tensor([math.inf, 0.0])]
    )
    assert (float(low[0]), float(high[0])) == (-3.0, 1.0)
    assert math.isnan(float(low[1]))
    assert math.isnan(float(high[1]))
    assert float(high[2]) == math.inf


def test_nothing_has_no_extremes_but_zero() -> None:
    low, high = stats.extremes([torch.empty(0)])
    assert (float(low[0]), float(high[0])) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dot_norm_and_total_equal_those_in_float64(dtype: torch.dtype) -> None:
    a, b = some_tensors(dtype)[-1], some_tensors(dtype)[-1].flip(0)
    x, y = a.double(), b.double()
    assert float(stats.dot(a, b)) == pytest.approx(float(x @ y), rel=1e-4)
    assert float(stats.norm(a)) == pytest.approx(float(x.norm()), rel=1e-6)
    assert float(stats.total(a)) == pytest.approx(float(x.sum()), rel=1e-4)


@pytest.mark.parametrize(
    ("n", "size"), [(1, 10), (10, 10), (11, 10), (999, 10), (1025, 1024), (2048, 1024)]
)
def test_a_sample_is_strided_and_never_larger_than_asked(n: int, size: int) -> None:
    sample = stats.sample(torch.arange(n), size)
    assert 0 < len(sample) <= size
    assert len(set(sample.diff().tolist())) <= 1
    assert int(sample[0]) == 0


def test_a_sparse_gradient_gives_its_coalesced_values() -> None:
    grad = torch.sparse_coo_tensor(
        [[0, 2, 2]], torch.tensor([[1.0], [2.0], [3.0]]), (4, 1), check_invariants=False
    )
    assert stats.values(grad).flatten().tolist() == [1.0, 5.0]
    assert stats.filled(grad).flatten().tolist() == [1.0, 0.0, 5.0, 0.0]


def test_a_complex_gradient_gives_both_parts() -> None:
    (norm,) = stats.norms([stats.values(torch.tensor([3 + 4j]))])
    assert float(norm) == pytest.approx(5.0)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50), st.floats(0.01, 100.0))
def test_norms_scale_and_extremes_bound(numbers: list[float], factor: float) -> None:
    x = torch.tensor(numbers, dtype=torch.float64)
    (norm,), (scaled,) = stats.norms([x]), stats.norms([x * factor])
    assert float(scaled) == pytest.approx(float(norm) * factor, rel=1e-9, abs=1e-12)
    (low,), (high,) = stats.extremes([x])
    assert max(abs(float(low)), abs(float(high))) <= float(norm) * (1 + 1e-12)


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fourth_powers_in_units_of_the_largest_neither_vanish_nor_overflow(
    dtype: torch.dtype, scale: float
) -> None:
    x = (torch.randn(40, 50, generator=torch.Generator().manual_seed(0)) ** 3 * scale).to(dtype)
    largest, powers = stats.fourths(x)
    ratio = (x.double() / x.double().abs().max()).square().square().sum()
    assert float(largest) == float(x.abs().max())
    assert float(powers) == pytest.approx(float(ratio), rel=1e-5)


def test_fourth_powers_of_nothing_are_zero() -> None:
    assert [float(x) for x in stats.fourths(torch.zeros(0, 3))][1] == 0.0
    assert [float(x) for x in stats.fourths(torch.zeros(4))][1] == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["equal", "normal"])
def test_a_long_tensor_is_added_up_without_losing_its_small_parts(
    kind: str, dtype: torch.dtype
) -> None:
    """Adam's first update has equal elements; in a few float32 sums 16.8M of them lose 0.9 %."""
    size = 3_000_001
    x = torch.full((size,), 0.1)
    if kind == "normal":
        x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    x = x.to(dtype)
    exact = x.double()
    length = float(exact.norm())
    short = torch.ones(3, dtype=dtype)
    assert float(stats.norm(x)) == pytest.approx(length, rel=2e-5)
    assert [float(n) for n in stats.norms([short, x, short])] == pytest.approx(
        [math.sqrt(3), length, math.sqrt(3)], rel=2e-5
    )
    assert float(stats.dot(x, x)) == pytest.approx(length**2, rel=2e-4)
    largest, powers = stats.fourths(x)
    assert float(powers) == pytest.approx(float((exact / float(largest)).pow(4).sum()), rel=4e-5)
