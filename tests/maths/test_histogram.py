"""The log histogram against a loop over edges in numpy."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradiometer.maths import histogram
from gradiometer.maths.histogram import CHUNK, EDGES, LABELS, log_histogram

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def oracle(x: Tensor) -> list[int]:
    """Each count by comparing with its two edges, in float64."""
    size = np.abs(x.double().numpy())
    bounds = [*EDGES, math.inf]
    bins = [int(((size >= low) & (size < high)).sum()) for low, high in itertools.pairwise(bounds)]
    zero, below = int((size == 0).sum()), int(((size > 0) & (size < EDGES[0])).sum())
    return [zero, below, *bins, int(np.isnan(size).sum()), int(np.isinf(size).sum())]


def around_the_edges(dtype: torch.dtype) -> Tensor:
    """Every edge, its two neighbours and the special values, with both signs."""
    limits = torch.finfo(dtype)
    edges = torch.tensor(EDGES, dtype=torch.float64).to(dtype)
    up, down = (torch.nextafter(edges, torch.tensor(to, dtype=dtype)) for to in (math.inf, 0.0))
    special = [
        0.0,
        math.nan,
        math.inf,
        limits.max,
        limits.tiny,
        limits.tiny / 3,
        limits.smallest_normal,
    ]
    smallest = torch.nextafter(torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype))
    values = torch.cat(
        [edges, up, down, smallest, torch.tensor(special, dtype=torch.float64).to(dtype)]
    )
    return torch.cat([values, -values])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_edges_and_special_values_fall_where_the_oracle_says(dtype: torch.dtype) -> None:
    x = around_the_edges(dtype)
    assert log_histogram(x).tolist() == oracle(x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_all_sizes_fall_where_the_oracle_says(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.rand(2 * CHUNK + 5, generator=generator, dtype=torch.float64) * 24 - 16
    x = (10.0**sizes * torch.randn(sizes.shape, generator=generator).sign()).to(dtype)
    assert log_histogram(x).tolist() == oracle(x)


def test_golden() -> None:
    x = torch.tensor(
        [[0.0, -0.0, 1e-45], [0.5, -0.5, 2.0], [-1.0, 1e9, math.inf], [-math.inf, math.nan, 3e-13]]
    )
    found = dict(zip(LABELS, log_histogram(x).tolist(), strict=True))
    assert {label: count for label, count in found.items() if count} == {
        "zero": 2,
        "(0, 1.0e-12)": 2,
        "[3.2e-01, 1.0e+00)": 2,
        "[1.0e+00, 3.2e+00)": 2,
        "[1.0e+04, inf)": 1,
        "NaN": 1,
        "Inf": 2,
    }


@given(
    st.lists(
        st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True), max_size=60
    )
)
def test_nothing_is_lost(numbers: list[float]) -> None:
    x = torch.tensor(numbers, dtype=torch.float32)
    counts = log_histogram(x)
    assert counts.dtype == torch.int64
    assert int(counts.sum()) == len(numbers)
    assert counts.tolist() == oracle(x)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_every_pattern_of_bits_is_counted_once(patterns: list[int]) -> None:
    # signalling NaNs among them: as bits, for a conversion of a Python float would quiet them
    x = torch.frombuffer(
        bytearray(struct.pack(f"<{len(patterns) + 1}I", *patterns, 0x7F800001)), dtype=torch.float32
    )
    assert log_histogram(x).tolist() == oracle(x)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True), max_size=40))
def test_float64_is_not_rounded_to_float32(numbers: list[float]) -> None:
    x = torch.tensor(numbers, dtype=torch.float64)
    assert log_histogram(x).tolist() == oracle(x)


def test_the_count_for_an_accelerator_is_that_of_bincount() -> None:
    codes = torch.randint(
        0, 99, (1000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32
    )
    assert torch.equal(histogram.scattered(codes, 120), torch.bincount(codes, minlength=120))


def test_edges_are_half_decades_to_half_a_percent() -> None:
    assert len(EDGES) == 33
    assert len(LABELS) == 37
    assert np.log10(EDGES) == pytest.approx(np.linspace(-12, 4, 33), abs=0.0018)


def test_layout_in_memory_does_not_matter() -> None:
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(log_histogram(x), log_histogram(x.T))
    assert torch.equal(log_histogram(x.requires_grad_()), log_histogram(x[::1]))


class Syncs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the operations that would make the host wait for an accelerator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if "_local_scalar_dense" in str(func):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_no_sync() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    log_histogram(x)
    with Syncs() as syncs:
        log_histogram(x)
    assert syncs.seen == []
