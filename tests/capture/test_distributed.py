"""Two real processes: the same norms as one, the noise scale from the ranks, and rank 0 alone writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gradiometer as gm

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
    for _ in range(240):
        optimizer.zero_grad()
        x = 0.1 + 0.5 * torch.randn(400, generator=generator)  # |G|^2 = 4, tr Sigma = 100
        model(x).sum().backward()
        norms.append(float(model.module.weight.grad.norm()))
        optimizer.step()
    assert (meter.run is None) == (rank == 1)
if rank == 0:
    print(norms[-1])
"""


@pytest.mark.slow
def test_two_ranks_give_the_averaged_norm_and_a_noise_scale(
    tmp_path: Path, ranks: Callable[..., list[tuple[str, str]]]
) -> None:
    outputs = ranks(SCRIPT, 2, tmp_path / "run")
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    assert run.series("grad/all/norm/raw")[1][-1] == pytest.approx(float(outputs[0][0]), rel=1e-5)
    values = run.series("grad/all/noise_scale")[1]
    assert values[-1] == pytest.approx(100 / 4, rel=0.4)


ACCUMULATION = """
import contextlib, itertools, sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import gradiometer as gm

torch.distributed.init_process_group("gloo", rank=0, world_size=1)
for view, quiet in itertools.product((False, True), (False, True)):
    model = DistributedDataParallel(nn.Linear(4, 4), gradient_as_bucket_view=view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = f"{sys.argv[3]}/{view}-{quiet}"
    with gm.watch(model, optimizer, run=folder, budget=None):
        for _ in range(4):
            optimizer.zero_grad()
            for part in range(2):
                with model.no_sync() if quiet and part == 0 else contextlib.nullcontext():
                    model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    run = gm.load(folder)
    print(view, quiet, run.newest_step, len(run.events("skipped-step")), len(run.events("fault")))
"""


@pytest.mark.slow
def test_accumulation_under_data_parallelism_skips_nothing(
    tmp_path: Path, ranks: Callable[..., list[tuple[str, str]]]
) -> None:
    said = ranks(ACCUMULATION, 1, tmp_path)[0][0]
    assert [line.split()[2:] for line in said.splitlines()] == [["3", "0", "0"]] * 4
