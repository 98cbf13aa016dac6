"""Two real processes: the same norms as one, the noise scale from the ranks, and rank 0 alone writes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import gradiometer as gm

SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import gradiometer as gm

rank, folder = int(sys.argv[1]), sys.argv[2]
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
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_give_the_averaged_norm_and_a_noise_scale(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    ranks = [
        subprocess.Popen(
            [*call, str(rank), str(tmp_path / "run")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
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
    folder = f"{sys.argv[1]}/{view}-{quiet}"
    with gm.watch(model, optimizer, run=folder, budget=None):
        for _ in range(4):
            optimizer.zero_grad()
            for part in range(2):
                with model.no_sync() if quiet and part == 0 else contextlib.nullcontext():
                    model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    run = gm.load(folder)
    print(view, quiet, run.newest_step, len(run.events("skipped-step")), len(run.events("fault")))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_accumulation_under_data_parallelism_skips_nothing(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-W", "ignore", "-c", ACCUMULATION, str(tmp_path)]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [line.split()[2:] for line in done.stdout.splitlines()] == [["3", "0", "0"]] * 4
