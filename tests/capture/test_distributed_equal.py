"""DDP: every number of the averaged gradient is the one that a single process gives on the same
global batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gradiometer as gm

Ranks = Callable[..., list[tuple[str, str]]]
pytestmark = pytest.mark.slow

OF_ONE_PROCESS = {"alignment", "micro_batches", "additivity_error", "scale"}
"""Micro-batches are not told apart under DDP, and the ranks' gradients not compared with the sum of
the terms."""
OF_ENOUGH_SAMPLES = {"value_loss", "explained_variance"}
"""Of credit, which is of a rank's own samples: half of a micro-batch may be too few."""


@pytest.mark.parametrize(
    ("world", "options"),
    [
        pytest.param(2, ("terms",), id="plain", marks=pytest.mark.proof),
        pytest.param(2, ("accumulate", "terms", "sparse"), id="no_sync"),
        pytest.param(2, ("hook",), id="comm-hook"),
        pytest.param(4, ("sketch", "deep"), id="four", marks=pytest.mark.proof),
    ],
)
def test_the_numbers_are_those_of_one_process(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType, world: int, options: tuple[str, ...]
) -> None:
    ranks(ranked.TRAINING, 1, "single", tmp_path / "one", *options)
    ranks(ranked.TRAINING, world, "ddp", tmp_path / "many", *options)
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    assert not many.events("fault")
    assert {
        name.rpartition("/")[2] for name in set(one.names()) - set(many.names())
    } <= OF_ONE_PROCESS | OF_ENOUGH_SAMPLES
    more = set(many.names()) - set(one.names())
    if "hook" in options:  # of one process it has no backward, only gradients set by hand
        more &= ranked.without_terms(many)
    assert {name.rpartition("/")[2] for name in more} <= {"noise_scale", "noise_batch"}
    ranked.assert_same(one, many)
    assert many.table("states").content == one.table("states").content
    if "hook" not in options:
        assert many.table("layers").content == one.table("layers").content
    assert set(many.series("rank")[1]) == {0.0}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("adam", "accumulate", "terms"), id="accumulate"),
        pytest.param(("adam", "deep", "hook"), id="hook", marks=pytest.mark.proof),
        pytest.param(("static", "terms"), id="static", marks=pytest.mark.proof),
    ],
)
def test_the_training_is_the_same_bits_with_and_without_the_meter(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType, options: tuple[str, ...]
) -> None:
    with_it = ranks(ranked.TRAINING, 2, "ddp", tmp_path / "run", *options)
    without = ranks(ranked.TRAINING, 2, "ddp", tmp_path / "none", *options, "unwatched")
    assert len({out for out, _ in [*with_it, *without]}) == 1
    assert not gm.load(tmp_path / "run").events("fault")
    assert not (tmp_path / "none").exists()


@pytest.mark.proof
def test_a_static_graph_has_terms_from_its_second_step_on(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    ranks(ranked.TRAINING, 1, "single", tmp_path / "one", "terms")
    ranks(ranked.TRAINING, 2, "ddp", tmp_path / "many", "static", "terms")
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    name = "grad/actor/term/policy/norm"
    assert many.series(name)[0].tolist() == one.series(name)[0].tolist()[1:]
    np.testing.assert_allclose(many.series(name)[1], one.series(name)[1][1:], rtol=1e-5)


@pytest.mark.proof
def test_term_vectors_beyond_the_limit_are_added_up_as_sketches(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    ranks(ranked.TRAINING, 1, "single", tmp_path / "one", "terms")
    narrow = "fault=__import__('gradiometer.capture.termgradients', fromlist=['x']).__dict__.update(WIRE=0)"
    ranks(ranked.TRAINING, 2, "ddp", tmp_path / "many", "terms", narrow)
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    error = many.series("grad/all/term/cos_error")[1][0]
    assert error == pytest.approx(1 / 32)
    for name in ("grad/all/term/policy/norm", "grad/all/term/value/norm"):
        assert ranked.differences(one, many, name) < 4 * error
    cosine = "grad/trunk/term/policy~value/cos"
    assert np.abs(one.series(cosine)[1] - many.series(cosine)[1]).max() < 4 * error


ROUTED = """
import sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import gradiometer as gm

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return sum(weights[:, e : e + 1] * expert(x) for e, expert in enumerate(self.experts))


torch.manual_seed(0)
model = Mixture()
if world > 1:
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with gm.watch(model, optimizer, run=folder, budget=None, experts_every=1):
    for step in range(4):
        optimizer.zero_grad()
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        x = x[rank * 8 // world : (rank + 1) * 8 // world]
        model(x).square().mean().backward()
        optimizer.step()
"""


def test_experts_and_their_routing_are_those_of_the_whole_batch(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    ranks(ROUTED, 1, tmp_path / "one")
    ranks(ROUTED, 2, tmp_path / "many")
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    assert {"router/all/load/2", "grad/expert/1/routing_weight", "grad/expert/1/top_norm"} <= set(
        one.names()
    )
    assert set(many.names()) - {"meter/noise_batch"} == set(one.names())
    ranked.assert_same(one, many)
