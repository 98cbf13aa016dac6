"""A statistic has one home: an entry in the table is all it needs, on every way its numbers go."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer import metrics
from gradiometer.capture import statistics
from gradiometer.capture.analysis import unscale
from gradiometer.capture.distributed import Piece, places_of
from gradiometer.capture.ranks import ShardMessage
from gradiometer.capture.rounds import Round
from gradiometer.capture.statistics import (
    LARGE_SCALE,
    SAMPLE_SCALE,
    SAMPLE_SIZE,
    STATISTICS,
    BlockReducer,
    Fetched,
    Reading,
    Sample,
    Statistic,
)
from gradiometer.maths import stats
from gradiometer.maths.segments import Rows

SIZE_SUM = Statistic(
    name="size_sum",
    source="gradient",
    read=lambda grad: grad.abs().sum(),
    over_ranks="sum",
    loss_scale=1,
    reduce=BlockReducer.sums,
    metric="size_sum",
)
"""Σ|g|, which nothing in the package knows of."""
TABLE = (*STATISTICS, SIZE_SUM)
ROWS, COLUMNS = 90, 40  # more elements than a sample has
WHOLE = Piece(shape=(ROWS, COLUMNS), local_shape=(ROWS, COLUMNS), offset=(0, 0), share=1.0)


def test_an_entry_in_the_table_is_all_a_new_statistic_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "STATISTICS", TABLE)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected: list[list[float]] = []
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().sum().backward()
            sizes = [float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None]
            expected.append([sum(sizes), sum(sizes[:2]), sum(sizes[2:])])
            optimizer.step()
    run = gm.load(tmp_path / "run")
    found = [run.series(f"grad/{block}/size_sum")[1] for block in ("all", "layer.0", "layer.2")]
    np.testing.assert_allclose(np.array(found).T, expected, rtol=1e-6)


def arguments(each: Statistic, whole: dict[str, Tensor], piece: Piece) -> list[Any]:
    """What a statistic is read from, of the rows of a piece."""
    rows = slice(piece.offset[0], piece.offset[0] + piece.local_shape[0])
    grad, before, moved = (whole[name][rows] for name in ("grad", "before", "moved"))
    samples = torch.zeros(2, 1, SAMPLE_SIZE)
    for sample, tensor in zip(samples, (grad, before), strict=True):
        taken = tensor.reshape(-1)[places_of(piece, SAMPLE_SIZE, tensor.device)]
        sample[0, : len(taken)] = taken
    return {
        "gradient": [grad],
        "large": [grad],
        "previous": [grad, before],
        "kept": [before],
        "clipped": [grad],
        "local": [grad],
        "weight": [before],
        "update": [moved],
        "step": [grad, moved],
        "sample": [Sample(samples[0], Rows())],
        "signs": [Sample(samples[0].sign() * samples[1].sign(), Rows())],
    }[each.source]


def fetched(whole: dict[str, Tensor], piece: Piece) -> Fetched:
    """Every statistic of the table, of one parameter or a piece of it."""
    reading = Reading(1)
    for each in TABLE:
        number = each.read(*arguments(each, whole, piece))
        number = number if each.part is None else number[each.part]
        reading.add_column(each, [0], number.reshape(1))
    return reading.fetch()


@pytest.mark.parametrize("by_numpy", [True, False])
def test_whatever_lies_on_the_host_is_fetched_as_the_number_it_is(
    by_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every type, also views that numpy does not read; and a copy, for memory is used again."""
    if not by_numpy:
        monkeypatch.setattr(stats, "HOST", ())
    subclass = torch.tensor([[4.0], [5.0]]).as_subclass(type("Own", (Tensor,), {}))
    given = {
        "trained": torch.tensor([1.5, 2.5], requires_grad=True),
        "half": torch.tensor([0.5, 0.25], dtype=torch.bfloat16),
        "counts": torch.tensor([2**40, 3]),
        "flags": torch.tensor([True, False]),
        "strided": torch.arange(6.0)[::3],
        "negated": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "own": subclass,
    }
    wanted = {name: x.detach().double().tolist() for name, x in given.items()}
    reading = Reading(1)
    for name, x in given.items():
        reading.add_array(name, x)
    reading.add_scalar("number", torch.tensor(7, dtype=torch.int32))
    found = reading.fetch()
    with torch.no_grad():
        for x in given.values():
            x.copy_(torch.zeros_like(x))
    assert {name: x.tolist() for name, x in found.arrays.items()} == wanted
    assert found.scalars == {"number": 7.0}


def tensors(scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = {
        name: torch.randn(ROWS, COLUMNS, generator=generator)
        for name in ("grad", "before", "moved")
    }
    found["grad"] = torch.where(found["grad"].abs() < 0.3, 0.0, found["grad"]) * scale
    return found


def test_the_numbers_of_the_pieces_make_the_number_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "STATISTICS", TABLE)
    whole, cuts = tensors(), [0, 17, 60, ROWS]
    pieces = [
        replace(WHOLE, local_shape=(end - start, COLUMNS), offset=(start, 0))
        for start, end in pairwise(cuts)
    ]
    ranks = [
        (ShardMessage({0: piece}, num_atoms=1, sketch_size=1, both_sketches=False), piece)
        for piece in pieces
    ]
    read = [fetched(whole, piece) for piece in pieces]
    sums = np.sum(
        [message.sums(part) for (message, _), part in zip(ranks, read, strict=True)], axis=0
    )
    largest = np.max(
        [message.largest(part) for (message, _), part in zip(ranks, read, strict=True)], axis=0
    )
    found = ranks[0][0].together(read[0], sums, np.zeros(1, np.float32), largest)
    expected = fetched(whole, WHOLE)
    put_together = [each for each in TABLE if each.over_ranks != "own"]
    assert len(put_together) >= len(TABLE) - 3
    for each in put_together:
        np.testing.assert_allclose(
            found.values[each], expected.values[each], rtol=1e-5, atol=1e-3, err_msg=each.name
        )


def test_the_loss_scale_is_divided_out_of_whatever_was_read_with_it() -> None:
    scaled, expected = fetched(tensors(scale=1024.0), WHOLE), fetched(tensors(), WHOLE)
    scaled.scalars["grad_scale/0"] = 1024.0
    current = Round(step=0, number=0, reading=None, scaled=[((0,), "grad_scale/0")])
    unscale(scaled, current)
    # The gradient that goes with the update is that after the step, which holds no scale any more.
    read_with_it = [
        each
        for each in TABLE
        if each.source in ("gradient", "large", "previous", "clipped", "sample")
    ]
    assert SIZE_SUM in read_with_it
    for each in read_with_it:
        if each not in (SAMPLE_SCALE, LARGE_SCALE):  # multiplied out by the fetch
            np.testing.assert_allclose(
                scaled.values[each], expected.values[each], rtol=1e-6, err_msg=each.name
            )


def test_a_function_that_gives_two_numbers_is_called_once_a_tensor() -> None:
    reads = [read for read, _ in statistics.passes("gradient")]
    assert len(reads) == len(set(reads))
    (both,) = [each for read, each in statistics.passes("gradient") if read is stats.extreme]
    assert [(each.name, each.part) for each in both] == [("low", 0), ("high", 1)]


def test_the_tier_and_the_long_view_say_what_is_read_of_a_gradient() -> None:
    def names(when: statistics.When) -> list[str]:
        found = statistics.passes("gradient", when)
        return [each.name for _, several in found for each in several]

    assert names("light") == names("standard") == ["raw", "low", "high"]
    assert names("long") == ["raw", "low", "high", "sum"]


@pytest.mark.parametrize("each", STATISTICS, ids=lambda each: each.name)
def test_what_a_statistic_becomes_is_in_the_catalogue(each: Statistic) -> None:
    assert (each.metric is None) or each.reduce is not None
    assert each.metric is None or metrics.resolve(f"grad/all/{each.metric}") is not None
