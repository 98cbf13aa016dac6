"""FSDP2: each rank reads its piece, and together they give the numbers of a single process on the
same global batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import gradiometer as gm
from gradiometer.capture.distributed import Piece, ShardSketcher, places_of
from gradiometer.capture.shardedexperts import select
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
    if mode != "single":
        torch.distributed.barrier()  # a forward waits for half of the ranks only
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
    if world > 1:
        torch.distributed.barrier()
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


MIXTURES = """
import hashlib, os, sys
import torch
from torch import nn
import gradiometer as gm

rank, world, mode, folder, *options = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.top_k = nn.Linear(12, 5), 2
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 500), nn.Tanh(), nn.Linear(500, 12)) for _ in range(5)
        )

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        weights = weights * torch.zeros_like(weights).scatter(-1, weights.topk(2, -1).indices, 1.0)
        weights = weights / weights.sum(-1, keepdim=True)
        return sum(weights[:, e : e + 1] * expert(x) for e, expert in enumerate(self.experts))


class FusedExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(6, 12, 400) / 4)
        self.down = nn.Parameter(torch.randn(6, 400, 12) / 20)
        self.shift = nn.Parameter(torch.zeros(6, 12))
        self.scale = nn.Parameter(torch.randn(6, 3, 12).bfloat16().float())  # small, with ties

    def forward(self, x, weights):
        h = torch.tanh(torch.einsum("bi,eih->ebh", x, self.up))
        y = torch.einsum("ebh,eho->ebo", h, self.down) * self.scale.sum(1, keepdim=True)
        return (weights.T[:, :, None] * (y + self.shift[:, None])).sum(0)


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(12, 6), FusedExperts()

    def forward(self, x):
        return self.experts(x, self.router(x).softmax(-1))


class Mixtures(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Listed(), Fused()

    def forward(self, x):
        return x + self.second(x + self.first(x))


torch.manual_seed(0)
model = Mixtures().double() if "double" in options else Mixtures()
if mode != "single":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    sizes, names = ((2, world // 2), ("copies", "pieces")) if mode == "hybrid" else ((world,), ("pieces",))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    if mode == "across":
        across = lambda p: Shard(1) if p.ndim == 3 and p.shape[1] % world == 0 else Shard(0)
        fully_shard(model.second.experts, mesh=mesh, shard_placement_fn=across)
    for part in (*model.first.experts, model.first, model.second, model):
        fully_shard(part, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
faults = next((option for option in options if option.startswith("fault=")), "")
os.environ["GRADIOMETER_DISABLED"] = "1" if "unwatched" in options else "0"
tier = "deep" if "deep" in options else "standard"
with gm.watch(model, optimizer, run=folder, budget=None, experts_every=1, tier=tier) as meter:
    if mode != "single":
        torch.distributed.barrier()  # in a hybrid mesh a forward waits for half of the ranks only
    for step in range(5):
        exec(faults.removeprefix("fault="))
        optimizer.zero_grad()
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(step))
        x = x[rank * 16 // world : (rank + 1) * 16 // world].to(model.first.gate.weight.dtype)
        model(x).square().mean().backward()
        if "clip" in options:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in full)).hexdigest())
from gradiometer.capture.distributed import refuse_shards
try:
    refuse_shards(model)
except gm.UsageError as problem:
    print(problem)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "mode", "options"),
    [
        pytest.param(2, "fsdp", ("clip", "deep"), id="two"),
        pytest.param(4, "fsdp", ("double",), id="four", marks=pytest.mark.proof),
        pytest.param(4, "hybrid", ("clip",), id="hybrid", marks=pytest.mark.proof),
        pytest.param(2, "across", ("double",), id="across", marks=pytest.mark.proof),
    ],
)
def test_sharded_experts_are_those_of_one_process(
    tmp_path: Path,
    ranks: Ranks,
    ranked: ModuleType,
    world: int,
    mode: str,
    options: tuple[str, ...],
) -> None:
    ranks(MIXTURES, 1, "single", tmp_path / "one", *options)
    outputs = ranks(MIXTURES, world, mode, tmp_path / "many", *options)
    assert all("Probe it in one process" in out for out, _ in outputs)
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    assert {event.kind for event in many.events()} == {"ranks", "experts"}
    assert ranked.without_credit(one) == ranked.without_credit(many)
    assert {
        "grad/layer.first/expert/3/top_norm",
        "grad/layer.second/expert/5/cos_to_0",
        "grad/expert/1/log_ratio_routed",
        "grad/expert/1/norm_per_token",
        "grad/expert/2/weight_distance",
        "router/second/load/5",
    } <= set(many.names())
    names = [
        name
        for name in ranked.without_credit(one)
        if not name.startswith("meter/") and not (mode == "across" and name.endswith("cos_ema"))
    ]
    far = {name: error for name in names if (error := ranked.differences(one, many, name)) > 1e-5}
    assert not far, far


@pytest.mark.slow
@pytest.mark.proof
def test_whole_experts_are_not_compared_where_that_sends_too_much(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    narrow = "fault=__import__('gradiometer.capture.shardedexperts', fromlist=['x']).WIRE = 0"
    ranks(MIXTURES, 1, "single", tmp_path / "one")
    ranks(MIXTURES, 2, "fsdp", tmp_path / "many", narrow)
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    assert len(many.events("experts-apart")) == 1
    missing = {name for name in one.names() if "second/expert" in name} - set(many.names())
    assert {name.rpartition("/")[2] for name in missing} == {
        "cos_mean",
        "cos_to_0",
        "weight_distance",
    }
    kept = "grad/layer.second/expert/5/top_norm"
    assert ranked.differences(one, many, kept) < 1e-5


@pytest.mark.slow
@pytest.mark.proof
def test_reading_sharded_experts_changes_no_bit_of_the_training(
    tmp_path: Path, ranks: Ranks
) -> None:
    with_it = ranks(MIXTURES, 2, "fsdp", tmp_path / "run", "clip", "deep")
    without = ranks(MIXTURES, 2, "fsdp", tmp_path / "none", "clip", "deep", "unwatched")
    assert len({out for out, _ in [*with_it, *without]}) == 1


AT = "if rank == 1 and step == 1:"
PAUSED = "meter.pause() if rank == 1 and step == 2 else meter.resume()"
IN_A_MESSAGE = f"""
{AT}
    from gradiometer.capture import shardedexperts
    shardedexperts._bits = lambda sizes: 1 / 0
"""
BEFORE_THE_VOTE = f"""
{AT}
    meter._observer.experts._due_layer = None
"""
SWAPPING = f"""
{AT}
    from gradiometer.capture import shardedexperts
    shardedexperts._fill = lambda *given: 1 / 0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "measured", "told"),
    [
        pytest.param(PAUSED, [0, 1, 3, 4], "rank-paused", id="paused"),
        pytest.param(IN_A_MESSAGE, [0], "rank-failed", id="counting"),
        pytest.param(SWAPPING, [0], "rank-failed", id="swapping", marks=pytest.mark.proof),
        pytest.param(BEFORE_THE_VOTE, [0], "rank-failed", id="before", marks=pytest.mark.proof),
    ],
)
def test_a_rank_that_cannot_read_experts_stops_nobody(
    tmp_path: Path, ranks: Ranks, fault: str, measured: list[int], told: str
) -> None:
    outputs = ranks(MIXTURES, 2, "fsdp", tmp_path / "run", "clip", f"fault={fault}")
    assert len({out for out, _ in outputs}) == 1
    run = gm.load(tmp_path / "run")
    for name in ("grad/all/norm/raw", "grad/layer.first/expert/3/top_norm"):
        assert run.series(name)[0].tolist() == measured
    assert [event.kind for event in run.events() if event.kind not in ("ranks", "experts")] == [
        told
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_ranks_select_from_counts_what_one_sorts(dtype: type, num_ranks: int) -> None:
    random = np.random.default_rng(0)
    rows = [
        np.abs(random.standard_normal(997)).astype(dtype),
        np.round(np.abs(random.standard_normal(500)), 1).astype(dtype),  # many that tie
        np.array([0.0, np.inf, np.nan, 1e-42, 3.0], dtype),
    ]
    places = np.array([40, 480, 2])
    bits = 8 * np.dtype(dtype).itemsize
    keys = [
        [row[rank::num_ranks].view(f"u{bits // 8}") for row in rows] for rank in range(num_ranks)
    ]
    found = _selected(keys, places, bits)
    expected = [np.sort(row)[place] for row, place in zip(rows, places, strict=True)]
    np.testing.assert_array_equal(found.view(dtype), np.array(expected, dtype))


def _selected(keys: list[list[np.ndarray]], places: np.ndarray, bits: int) -> np.ndarray:
    """What every rank finds, each in a thread of its own that waits for the others' counts."""
    barrier, counts = threading.Barrier(len(keys)), dict[int, torch.Tensor]()

    def add_up(rank: int, mine: torch.Tensor) -> None:
        counts[rank] = mine.clone()
        barrier.wait()
        mine.copy_(torch.stack(list(counts.values())).sum(0))
        barrier.wait()

    with ThreadPoolExecutor(len(keys)) as pool:
        found = list(
            pool.map(
                lambda rank: select(keys[rank], places, bits=bits, add_up=partial(add_up, rank)),
                range(len(keys)),
            )
        )
    assert all((each == found[0]).all() for each in found)
    return found[0]


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
