"""Two real processes: the same norms as one, the noise scale in one unit, and rank 0 alone writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gradiometer as gm

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import gradiometer as gm

rank, folder = int(sys.argv[1]), sys.argv[3]
torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(400, 1, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
generator = torch.Generator().manual_seed(rank + 1)
norms = []
with gm.watch(model, optimizer, run=folder, budget=None) as meter:
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(400, generator=generator)).sum().backward()
        norms.append(float(model.module.weight.grad.norm()))
        optimizer.step()
    assert (meter.run is None) == (rank == 1)
if rank == 0:
    print(norms[-1])
"""


def test_two_ranks_give_the_averaged_norm(
    tmp_path: Path, ranks: Callable[..., list[tuple[str, str]]]
) -> None:
    outputs = ranks(SCRIPT, 2, tmp_path / "run")
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    assert run.series("grad/all/norm/raw")[1][-1] == pytest.approx(float(outputs[0][0]), rel=1e-5)


NOISE = """
import contextlib, sys
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import gradiometer as gm

rank, world, folder, PARTS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], 4
wanted = sys.argv[4:]
if world > 1:
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)


def train(name, model, quiet=contextlib.nullcontext, parts=PARTS, **options):
    if name not in wanted:
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    generator = torch.Generator().manual_seed(rank + 1)
    options |= {"budget": None, "direction": "sketch"}  # looks at noise at every step
    with gm.watch(model, optimizer, run=f"{folder}/{name}", **options):
        for _ in range(80):
            optimizer.zero_grad()
            for part in range(parts):
                x = 0.1 + 0.2 * torch.randn(1, 400, generator=generator)  # |G|^2 = 4, tr Sigma = 16
                with quiet() if part + 1 < parts else contextlib.nullcontext():
                    (model(x).sum() / parts).backward()
            optimizer.step()


def line():
    torch.manual_seed(0)
    return nn.Linear(400, 1, bias=False)


if world == 1:
    train("one", line())
else:
    model = DistributedDataParallel(line())
    train("quiet", model, model.no_sync)
    train("averaged", model)
    train("whole", model, parts=1)
    train("samples", model, model.no_sync, micro_batch_size=32)
    views = DistributedDataParallel(line(), gradient_as_bucket_view=True)
    train("views", views)
    train("quiet-views", views, views.no_sync)
    model = line()
    fully_shard(model)
    train("sharded", model)
"""


NEAR, IN_SAMPLES = pytest.approx(4.0, rel=0.2), pytest.approx(32 * 4.0, rel=0.2)
UNITS = {
    "one": (NEAR, 4.0),
    "quiet": (NEAR, 8.0),
    "averaged": (NEAR, 8.0),
    "whole": (NEAR, 2.0),
    "samples": (IN_SAMPLES, 256.0),
    "views": (NEAR, 8.0),
    "quiet-views": (NEAR, 8.0),
    "sharded": (NEAR, 8.0),
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("one", "sharded"), id="some"),
        pytest.param(tuple(UNITS), id="all", marks=pytest.mark.proof),
    ],
)
def test_the_noise_scale_has_one_unit_however_a_step_is_put_together(
    names: tuple[str, ...], tmp_path: Path, ranks: Callable[..., list[tuple[str, str]]]
) -> None:
    """tr Σ/|G|² of one backward on one rank is 4: with accumulation, with ranks and with both."""
    ranks(NOISE, 1, tmp_path, *names)
    ranks(NOISE, 2, tmp_path, *names)
    found = {
        folder.name: (
            gm.load(folder).series("grad/all/noise_scale")[1][-1],
            gm.load(folder).series("meter/noise_batch")[1][-1],
        )
        for folder in tmp_path.iterdir()
    }
    assert found == {name: UNITS[name] for name in names}


ACCUMULATION = """
import contextlib, itertools, sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import gradiometer as gm

rank, world = int(sys.argv[1]), int(sys.argv[2])
torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
for view, quiet in itertools.product((False, True), (False, True)):
    model = DistributedDataParallel(nn.Linear(4, 4), gradient_as_bucket_view=view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = f"{sys.argv[3]}/{view}-{quiet}"
    with gm.watch(model, optimizer, run=folder, budget=None):
        for number in range(5):
            optimizer.zero_grad()
            for part in range(2):
                with model.no_sync() if quiet and part == 0 else contextlib.nullcontext():
                    model(torch.randn(3, 4)).sum().backward()
            if number != 2:
                optimizer.step()
    if rank == 0:
        run = gm.load(folder)
        skipped = [event.step for event in run.events("skipped-step")]
        updates = run.series("grad/all/norm/update")[0].tolist()
        kinds = {event.kind for event in run.events()}
        print(run.newest_step, skipped, updates, sorted(kinds - {"ranks"}), sep="|")
"""


@pytest.mark.parametrize("world", [1, 2])
def test_accumulation_under_data_parallelism_skips_what_was_left_out_and_nothing_else(
    world: int, tmp_path: Path, ranks: Callable[..., list[tuple[str, str]]]
) -> None:
    said = ranks(ACCUMULATION, world, tmp_path)[0][0]
    assert said.splitlines() == ["4|[2]|[0, 1, 3, 4]|['skipped-step']"] * 4
