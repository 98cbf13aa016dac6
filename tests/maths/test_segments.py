"""Many small tensors at once give what each gives by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradiometer.maths import stats
from gradiometer.maths.segments import SEGMENTED, HostSegments, Segments
from gradiometer.maths.sketch import Joined, Sketcher

SIZES = (1, 7, 100, 3, 1)


def tensors(dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(dtype) for size in SIZES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("read", list(SEGMENTED), ids=lambda read: read.__name__)
def test_a_segment_is_read_as_its_tensor(read: object, dtype: torch.dtype) -> None:
    assert callable(read)
    one, other = tensors(dtype, 0), tensors(dtype, 1)
    given = (one, other) if read is stats.dot else (one,)
    vectors = [torch.cat(each) for each in given]
    found = [getattr(Segments(SIZES, torch.device("cpu")), SEGMENTED[read])(*vectors)]
    if dtype in (torch.float32, torch.float64):
        arrays = [vector.numpy() for vector in vectors]
        found.append(getattr(HostSegments(SIZES), SEGMENTED[read])(*arrays))
    expected = [read(*each) for each in zip(*given, strict=True)]
    wanted = [each if isinstance(each, tuple) else (each,) for each in expected]
    for columns in (each if isinstance(each, tuple) else (each,) for each in found):
        for part, column in enumerate(columns):
            exact = torch.stack([each[part].double() for each in wanted])
            of_host = torch.as_tensor(np.asarray(column)).double()
            torch.testing.assert_close(of_host, exact, rtol=1e-5, atol=1e-6)


@pytest.fixture(params=["device", "host"])
def made(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Segments of lengths, and what they are given of a list of numbers."""
    if request.param == "host":
        return lambda lengths, x: (HostSegments(lengths), np.array(x, dtype=np.float32))
    return lambda lengths, x: (Segments(lengths, torch.device("cpu")), torch.tensor(x))


@pytest.mark.filterwarnings("error")
def test_nan_and_inf_stay_where_they_are(made: Callable[..., Any]) -> None:
    given = [1.0, math.nan, 2.0, math.inf, -3.0, -math.inf]
    segments, x = made([2, 2, 1, 1], given)
    low, high = segments.extreme(x)
    with np.errstate(invalid="ignore"):  # as its caller does, once for all that is read
        segments.fourths(x)
    assert np.isnan([float(low[0]), float(high[0]), float(segments.norm(x)[0])]).all()
    assert (low[1:].tolist(), high[1:].tolist()) == (
        [2.0, -3.0, -math.inf],
        [math.inf, -3.0, -math.inf],
    )
    assert segments.norm(x)[1:].tolist() == [math.inf, 3.0, math.inf]


def test_a_norm_of_huge_elements_does_not_overflow(made: Callable[..., Any]) -> None:
    segments, x = made([2, 1], [3e30, 4e30, 1e-30])
    assert segments.norm(x).tolist() == pytest.approx([5e30, 1e-30])


@pytest.mark.parametrize("shift", [0, 12_345])
def test_joined_tensors_have_the_sketch_that_each_by_itself_has(shift: int) -> None:
    sketcher, keys = Sketcher(seed=3, k=64), [11, 12, 13, 14, 15]
    one = tensors(torch.float32, 0)
    alone = sketcher.sketch_groups(one, keys, [[0, 3], [1, 2, 4]], shift=shift)
    tiles = sketcher.tiles_of([12, 13, 15], [7, 100, 1], torch.device("cpu"))
    joined = Joined(1, torch.cat([one[1], one[2], one[4]]), tiles)
    together = sketcher.sketch_groups(
        [one[0], one[3]], [11, 14], [[0, 1], []], shift=shift, joined=[joined]
    )
    torch.testing.assert_close(together, alone)
