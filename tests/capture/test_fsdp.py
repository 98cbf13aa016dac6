"""FSDP2: each rank reads its piece, and together they give the numbers of a single process on the
same global batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import gradiometer as gm
from gradiometer.capture.distributed import Piece, ShardSketcher, places_of
from gradiometer.maths import stats
from gradiometer.maths.sketch import TILE, Sketcher

Ranks = Callable[..., list[tuple[str, str]]]

MESHES = """
import sys
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import gradiometer as gm

rank, world, mode, folder = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 32), nn.Linear(32, 16)
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x):
        h = torch.tanh(self.down(torch.tanh(self.up(x))))
        return self.actor(h), self.critic(h)


if mode != "single" and not torch.distributed.is_initialized():
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
torch.manual_seed(0)
model, place, places = Policy(), 0, 1
plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
if mode == "tensor":
    parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
elif mode != "single":
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
    if mode == "both":
        parallelize_module(model, mesh["inner"], plan)
        fully_shard(model, mesh=mesh["outer"])
        place, places = rank // (world // 2), 2
    else:
        fully_shard(model.up, mesh=mesh)
        fully_shard(model, mesh=mesh)
        place, places = rank, world
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
with gm.watch(model, optimizer, run=folder, budget=None):
    for step in range(6):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        logits, value = model(x.chunk(places)[place])
        log_probs = logits.log_softmax(-1)
        policy_loss = log_probs[:, 0].mean()
        value_loss = 0.5 * (value - 1).square().mean()
        entropy_loss = 0.01 * (log_probs.exp() * log_probs).sum(-1).mean()
        optimizer.zero_grad()
        (policy_loss + value_loss + entropy_loss).backward()
        optimizer.step()
"""
OWN_SKETCHES = {"cos_ema", "mean"}
"""Of pieces across rows; and the mean over a softmax's rows, which is rounding."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "mode"),
    [
        (4, "both"),
        pytest.param(4, "hybrid", marks=pytest.mark.proof),
        pytest.param(2, "tensor", marks=pytest.mark.proof),
        pytest.param(4, "tensor", marks=pytest.mark.proof),
    ],
)
def test_meshes_of_two_dimensions_and_tensor_parallel_layers_have_terms(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType, world: int, mode: str
) -> None:
    ranks(MESHES, 1, "single", tmp_path / "one")
    ranks(MESHES, world, mode, tmp_path / "many")
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    assert {event.kind for event in many.events()} == {"ranks"}
    assert "grad/trunk/term/policy_loss~value_loss/cos" in ranked.without_credit(many)
    assert ranked.without_credit(one) == ranked.without_credit(many)
    far = {
        name
        for name in ranked.without_credit(one)
        if not name.startswith("meter/") and ranked.differences(one, many, name) > 1e-5
    }
    far -= {"grad/all/term/additivity_error"}  # rounding on both sides
    assert {name.rpartition("/")[2] for name in far} <= OWN_SKETCHES
    assert np.nanmax(many.series("grad/all/term/additivity_error")[1]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "options"),
    [
        pytest.param(2, ("accumulate", "sketch", "deep"), id="micro-batches"),
        pytest.param(2, ("adam", "sparse", "noclip"), id="sparse", marks=pytest.mark.proof),
        pytest.param(2, ("terms",), id="terms by hand", marks=pytest.mark.proof),
        pytest.param(4, (), id="four"),
    ],
)
def test_the_numbers_are_those_of_one_process(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType, world: int, options: tuple[str, ...]
) -> None:
    ranks(ranked.TRAINING, 1, "single", tmp_path / "one", *options)
    ranks(ranked.TRAINING, world, "fsdp", tmp_path / "many", *options)
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    assert not many.events("fault")
    assert not many.events("skipped-step")
    assert ranked.without_credit(one) == ranked.without_credit(many)
    assert ("grad/all/noise_scale" in one.names()) == ("accumulate" in options)
    ranked.assert_same(one, many)
    assert many.table("states").content == one.table("states").content
    assert many.table("states").content["frozen.weight"] == "frozen"
    assert many.table("states").content["unused.weight"] == "missing"


@pytest.mark.slow
def test_credit_is_that_of_ddp_which_sees_the_same_samples(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    for mode in ("ddp", "fsdp"):
        ranks(ranked.TRAINING, 2, mode, tmp_path / mode)
    replicas, shards = gm.load(tmp_path / "ddp"), gm.load(tmp_path / "fsdp")
    names = {name for name in replicas.names() if name.startswith("credit/")}
    assert "credit/entropy_slope" in names <= set(shards.names())
    assert all(ranked.differences(replicas, shards, name) < 1e-5 for name in names)


@pytest.mark.slow
def test_accumulation_without_reduction_is_one_gradient(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    ranks(ranked.TRAINING, 1, "single", tmp_path / "one", "accumulate")
    ranks(ranked.TRAINING, 2, "fsdp", tmp_path / "many", "accumulate", "nosync")
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    missing = ranked.without_terms(one) - set(many.names())
    assert {name.rpartition("/")[2] for name in missing} == {
        "alignment",
        "micro_batches",
        "noise_batch",
    }
    ranked.assert_same(one, many)


@pytest.mark.slow
def test_the_training_is_the_same_bits_with_and_without_the_meter(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    options = ("adam", "accumulate", "deep", "terms")
    with_it = ranks(ranked.TRAINING, 2, "fsdp", tmp_path / "run", *options)
    without = ranks(ranked.TRAINING, 2, "fsdp", tmp_path / "none", *options, "unwatched")
    assert len({out for out, _ in [*with_it, *without]}) == 1
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    assert not run.events("terms-unmeasurable")
    assert not run.events("dead-term")
    assert {"grad/trunk/term/policy~value/cos", "grad/all/term/entropy/norm"} <= set(run.names())


@pytest.mark.slow
def test_a_nan_in_one_piece_is_a_nan_of_the_tensor_and_of_no_other(
    tmp_path: Path, ranks: Ranks
) -> None:
    ranks(NONFINITE, 2, tmp_path / "run")
    run = gm.load(tmp_path / "run")
    assert run.series("grad/actor/nonfinite")[1].tolist() == [0.0, 1.0, 1.0]
    assert run.series("grad/critic/nonfinite")[1].tolist() == [0.0, 0.0, 0.0]
    largest = run.series("grad/layer.actor/max_abs")[1]
    assert np.isfinite(largest[0])
    assert np.isnan(largest[1])
    assert largest[2] == math.inf
    assert run.table("states").content["actor.weight"] == "nonfinite"


NONFINITE = """
import sys
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
import gradiometer as gm

rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
model = nn.Module()
model.actor, model.critic = nn.Linear(3, 4), nn.Linear(3, 1)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
with gm.watch(model, optimizer, run=sys.argv[3], budget=None):
    torch.distributed.barrier()  # as every real forward and backward is
    for bad in (0.0, float("nan"), float("inf")):
        for p in model.parameters():
            p.grad = p.detach().clone()
        if rank == 1:
            model.actor.weight.grad.to_local()[0, 0] = bad
        optimizer.step()
"""

HYBRID = """
import sys
import torch
from torch import nn
import gradiometer as gm

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 7))
if world > 1:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "pieces"))
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: Shard(1) if p.ndim > 1 and p.shape[1] % 2 == 0 else Shard(0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with gm.watch(model, optimizer, run=folder, budget=None, direction=sys.argv[4]):
    for step in range(6):
        optimizer.zero_grad()
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        model(x[rank * 8 // world : (rank + 1) * 8 // world]).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.proof
def test_copies_of_pieces_cut_across_rows_count_once(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    ranks(HYBRID, 1, tmp_path / "one", "exact")
    ranks(HYBRID, 4, tmp_path / "many", "exact")
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    assert not many.events("fault")
    assert set(one.names()) == set(many.names())
    of_sketches = (
        "cos_ema",
        "alignment_window",
    )  # such a cut has a sketch of its own, as good as the other
    names = [
        name
        for name in one.names()
        if not name.endswith(of_sketches) and not name.startswith("meter/")
    ]
    assert max(ranked.differences(one, many, name) for name in names) < 1e-5


MIXTURE = """
import sys
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
import gradiometer as gm


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return sum(weights[:, e : e + 1] * expert(x) for e, expert in enumerate(self.experts))


torch.distributed.init_process_group("gloo", rank=int(sys.argv[1]), world_size=2)
model = Mixture()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with gm.watch(model, optimizer, run=sys.argv[3], budget=None) as meter:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
from gradiometer.capture.distributed import refuse_shards
try:
    refuse_shards(model)
except gm.UsageError as problem:
    print(problem)
"""


@pytest.mark.slow
def test_sharded_experts_are_left_out_and_that_is_said_once(tmp_path: Path, ranks: Ranks) -> None:
    outputs = ranks(MIXTURE, 2, tmp_path / "run")
    assert all("Probe it in one process" in out for out, _ in outputs)
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    assert not [name for name in run.names() if "expert/" in name]
    assert ["are sharded" in event.message for event in run.events("experts-sharded")] == [True]


def pieces(shape: tuple[int, ...], cuts: int, dim: int) -> list[tuple[Piece, tuple[slice, ...]]]:
    """The boxes that `cuts` ranks hold of a tensor, as DTensor cuts it: the last ones may be
    smaller, or empty."""
    size = -(-shape[dim] // cuts)
    found = []
    for rank in range(cuts):
        first, last = min(rank * size, shape[dim]), min((rank + 1) * size, shape[dim])
        box = tuple(slice(first, last) if d == dim else slice(None) for d in range(len(shape)))
        local = tuple(last - first if d == dim else n for d, n in enumerate(shape))
        offset = tuple(first if d == dim else 0 for d in range(len(shape)))
        found.append((Piece(shape=shape, local_shape=local, offset=offset, share=1.0), box))
    return found


@pytest.mark.parametrize(
    "shape", [(1,), (7,), (50, 9), (300, 40), (3, 5, 700), (TILE // 1000 + 60, 1000)]
)
@pytest.mark.parametrize("cuts", [1, 2, 4])
def test_the_pieces_add_up_to_the_sketch_of_the_whole(shape: tuple[int, ...], cuts: int) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    whole = Sketcher(seed=3, k=64).sketch([x], [5])
    parts = [
        ShardSketcher(seed=3, k=64, pieces={5: piece}).sketch([x[box]], [5])
        for piece, box in pieces(shape, cuts, 0)
    ]
    torch.testing.assert_close(torch.stack(parts).sum(0), whole, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("cuts", [1, 2, 4])
def test_the_pieces_take_the_sample_of_the_whole(dim: int, cuts: int) -> None:
    x = torch.arange(90.0 * 70).reshape(90, 70)
    taken = [
        x[box].reshape(-1)[places_of(piece, 1024, x.device)]
        for piece, box in pieces(tuple(x.shape), cuts, dim)
    ]
    assert torch.cat(taken).sort().values.tolist() == stats.sample(x, 1024).tolist()


def test_a_cut_across_rows_keeps_lengths_within_the_sketch_s_error() -> None:
    x = torch.randn(60, 400, generator=torch.Generator().manual_seed(1))
    parts = [
        ShardSketcher(seed=3, k=4096, pieces={5: piece}).sketch([x[box]], [5])
        for piece, box in pieces(tuple(x.shape), 4, 1)
    ]
    assert float(torch.stack(parts).sum(0).norm()) == pytest.approx(
        float(x.norm()), rel=4 * math.sqrt(0.5 / 4096)
    )
