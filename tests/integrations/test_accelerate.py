"""A loop of one's own with accelerate: what it prepares, accumulates and clips is seen as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

import gradiometer as gm

pytestmark = pytest.mark.slow

STEPS, MAX_NORM = 6, 0.05


@pytest.fixture(autouse=True)
def _no_shared_state() -> Iterator[None]:
    """Accelerate keeps its precision for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def train(
    run: str | None,
    *,
    accumulation: int = 1,
    precision: str = "no",
    fails_at: int | None = None,
    **options: Any,
) -> tuple[nn.Module, list[float]]:
    """The loop of accelerate's documentation. The weights, and each norm that `clip_grad_norm_`
    gave back."""
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accumulation, mixed_precision=precision
    )
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))
    data = torch.utils.data.TensorDataset(torch.randn(4 * STEPS * accumulation, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    norms: list[float] = []
    watching: Any = (
        nullcontext()
        if run is None
        else gm.watch(model, optimizer, run=run, budget=None, **options)
    )
    with watching as meter:
        for (x,) in loader:
            with accelerator.accumulate(model):
                loss = model(x).square().mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)))
                optimizer.step()
                optimizer.zero_grad()
            if meter is not None and accelerator.sync_gradients:
                meter.log(loss=loss)
            if len(norms) == fails_at:
                raise OSError("the disk is gone")
    return model, norms


@pytest.mark.parametrize(
    ("accumulation", "precision"), [(1, "no"), (3, "no"), (1, "bf16"), (2, "bf16")]
)
def test_the_stages_are_those_of_the_optimizers_steps(accumulation: int, precision: str) -> None:
    _, norms = train("run", accumulation=accumulation, precision=precision)

    run = gm.load("run")
    steps, raw = run.series("grad/all/norm/raw")
    assert steps.tolist() == list(range(STEPS))
    np.testing.assert_allclose(raw, norms, rtol=1e-5)
    np.testing.assert_allclose(
        run.series("grad/all/norm/clipped")[1], np.minimum(raw, MAX_NORM), rtol=1e-4
    )
    assert raw.max() > MAX_NORM
    assert (run.series("grad/all/norm/update")[1] > 0).all()
    assert run.series("loss")[0].tolist() == list(range(STEPS))
    if accumulation > 1:
        assert set(run.series("meter/micro_batches")[1]) == {float(accumulation)}
    assert not run.events()


@pytest.mark.parametrize(("accumulation", "precision"), [(1, "no"), (3, "no"), (2, "bf16")])
def test_the_trained_weights_are_the_same_bits(accumulation: int, precision: str) -> None:
    plain, watched = (
        train(run, accumulation=accumulation, precision=precision)[0] for run in (None, "run")
    )

    pairs = zip(plain.parameters(), watched.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_an_exception_a_resumed_run_and_a_second_one_in_one_process() -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        train("run", fails_at=3)
    assert [event.message for event in gm.load("run").events("exception")] == [
        "OSError: the disk is gone"
    ]
    train("run", resume=1)
    train("another")

    assert gm.load("run").series("grad/all/norm/raw")[0].tolist() == list(range(STEPS + 2))
    assert gm.load("another").series("grad/all/norm/raw")[0].tolist() == list(range(STEPS))


RANKS = """
import sys
import torch
from accelerate import Accelerator
import gradiometer as gm

rank, world, run = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
import os
os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "ACCELERATE_USE_CPU": "1"}
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
assert accelerator.num_processes == world
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
data = torch.utils.data.TensorDataset(torch.randn(4 * 4 * world, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
norms = []
with gm.watch(model, optimizer, run=run, budget=None):
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).square().mean())
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.05)))
            optimizer.step()
            optimizer.zero_grad()
if rank == 0:
    print(norms)
"""


def test_several_processes_give_the_norm_of_the_averaged_gradient(
    ranks: Any, tmp_path: Path
) -> None:
    (output, _), _ = ranks(RANKS, 2, tmp_path / "run")

    steps, raw = gm.load(tmp_path / "run").series("grad/all/norm/raw")
    norms = [float(norm) for norm in output.strip().strip("[]").split(",")]
    assert steps.tolist() == [0, 1]
    np.testing.assert_allclose(raw, norms, rtol=1e-5)
