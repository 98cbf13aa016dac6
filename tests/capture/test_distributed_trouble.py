"""Ranks that are paused, fail, are late, die or were never watched: nobody waits for ever, and the
run says what happened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from forkserver import python
from torch import nn, optim

import gradiometer as gm
from gradiometer.errors import UsageError

pytestmark = pytest.mark.slow

Ranks = Callable[..., list[tuple[str, str]]]
ALL = list(range(12))
BREAK = "setattr(meter._observer.reader, 'read_full', None) if rank == {rank} and step == {step} else None"
LATE_BREAK = """
if rank == 1 and step == 0:
    import time
    meter._observer.reader.read_full = lambda *arguments, **options: time.sleep(1) or 1 / 0
"""
OF_TERMS = "setattr(meter._observer._terms, {name!r}, None) if rank == 1 and step == 2 else None"
PAUSE = "meter.pause() if rank == {rank} and step == 3 else meter.resume() if step == 6 else None"


@pytest.mark.parametrize(
    ("mode", "fault", "measured", "told"),
    [
        ("ddp", PAUSE.format(rank=1), ALL, "rank-paused"),
        ("ddp", PAUSE.format(rank=0), [0, 1, 2, *ALL[6:]], "rank-paused"),
        ("ddp", BREAK.format(rank=1, step=4), ALL, "rank-failed"),
        ("ddp", BREAK.format(rank=0, step=4), ALL[:4], "fault"),
        ("ddp", BREAK.format(rank=1, step=0), ALL, "ranks-alone"),
        ("ddp", LATE_BREAK, ALL, "ranks-alone"),  # rank 0 is at the first meeting long before
        ("fsdp", PAUSE.format(rank=1), [0, 1, 2, *ALL[6:]], "rank-paused"),
        ("fsdp", BREAK.format(rank=1, step=4), ALL[:4], "rank-failed"),
        ("fsdp", OF_TERMS.format(name="measure_together"), [0, 1], "rank-failed"),
        ("fsdp", OF_TERMS.format(name="_take"), [0, 1], "rank-failed"),
        ("fsdp", OF_TERMS.format(name="_prepare"), ALL, "terms-unmeasurable"),
    ],
    ids=[
        "ddp-pause",
        "ddp-pause-0",
        "ddp-fail",
        "ddp-fail-0",
        "ddp-fail-first",
        "ddp-fail-first-late",
        "fsdp-pause",
        "fsdp-fail",
        "fsdp-fail-before-the-vote",
        "fsdp-fail-after-the-vote",
        "fsdp-vote-never",
    ],
)
def test_a_rank_that_cannot_measure_says_so_and_stops_nobody(
    tmp_path: Path,
    ranks: Ranks,
    ranked: ModuleType,
    mode: str,
    fault: str,
    measured: list[int],
    told: str,
) -> None:
    outputs = ranks(ranked.TRAINING, 2, mode, tmp_path / "run", f"fault={fault}")
    assert len({out for out, _ in outputs}) == 1
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == measured
    assert [event.kind for event in run.events() if event.kind not in ("ranks", "missing")] == [
        told
    ]


LATE = """
if step == 3:
    import datetime, time
    ranks_module.PATIENCE = datetime.timedelta(seconds=2)
    if rank == 1:
        sync_ranks = meter._observer.sync_ranks
        meter._observer.sync_ranks = lambda current, own: (time.sleep(6), sync_ranks(current, own))[1]
"""


@pytest.mark.proof
def test_a_late_rank_switches_the_meter_off_and_the_training_ends(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    outputs = ranks(ranked.TRAINING, 2, "ddp", tmp_path / "run", f"fault={LATE}")
    assert len({out for out, _ in outputs}) == 1
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == [0, 1, 2]
    assert "your training goes on" in run.events("rank-lost")[0].message


@pytest.mark.parametrize("where", ["before its backward", "before the meeting"])
def test_a_rank_that_dies_does_not_hang_the_meter(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType, where: str
) -> None:
    death = "__import__('os')._exit(3)"
    if where == "before the meeting":
        death = f"setattr(meter._observer, 'sync_ranks', lambda current, own: {death})"
    fault = f"fault={death} if rank == 1 and step == 5 else None"
    # The training itself cannot go on with one rank.
    (_, errors), _ = ranks(ranked.TRAINING, 2, "ddp", tmp_path / "run", fault, codes=(1, 3))
    assert "RuntimeError" in errors, errors
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == [0, 1, 2, 3, 4]
    assert run.events("exception")
    assert bool(run.events("rank-lost")) == (where == "before the meeting")


def test_watching_on_the_first_rank_only_measures_there(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    script = ranked.TRAINING.replace('"1" if "unwatched" in options', '"1" if rank == 1')
    ranks(script, 2, "ddp", tmp_path / "run")
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == ALL
    assert "was not called on rank 1" in run.events("ranks-alone")[0].message


def test_other_settings_on_another_rank_are_seen_at_once(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    script = ranked.TRAINING.replace('"budget": None', '"budget": None if rank else 0.5')
    ranks(script, 2, "fsdp", tmp_path / "run")
    run = gm.load(tmp_path / "run")
    assert "grad/all/norm/raw" not in run.names()
    assert "other settings than on rank 0" in run.events("ranks-alone")[0].message


BUDGET = """
import sys, time
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import gradiometer as gm

rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(300, 300))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
measured = []
with gm.watch(model, optimizer, run=sys.argv[3], budget=0.001) as meter:
    for step in range(120):
        optimizer.zero_grad()
        model(torch.randn(4, 300)).sum().backward()
        time.sleep(0.004 * rank)
        optimizer.step()
        if meter._measured_step == step:
            measured.append(step)
print(measured)
"""


def test_rank_0_chooses_the_steps_for_all(tmp_path: Path, ranks: Ranks) -> None:
    outputs = ranks(BUDGET, 2, tmp_path / "run")
    assert len({out for out, _ in outputs}) == 1
    chosen = [int(step) for step in outputs[0][0].strip("[]\n").split(",")]
    assert 1 < len(chosen) < 120  # the budget has left some out, by rank 0's clock
    assert gm.load(tmp_path / "run").series("grad/all/norm/raw")[0].tolist() == chosen


class DeepSpeedEngine(nn.Linear):
    """A stand-in with the names of DeepSpeed's, which is not installed."""

    def __init__(self, stage: int) -> None:
        super().__init__(2, 2)
        self._stage = stage

    def zero_optimization_stage(self) -> int:
        return self._stage


class DeepSpeedZeroOptimizer:
    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer


DeepSpeedEngine.__module__ = "deepspeed.runtime.engine"
DeepSpeedZeroOptimizer.__module__ = "deepspeed.runtime.zero.stage_1_and_2"


def test_deepspeed_zero_is_refused_in_words() -> None:
    engine = DeepSpeedEngine(2)
    with pytest.raises(
        UsageError, match=r"ZeRO stage 2 keeps gradients .* a DeepSpeedEngine.*fully_shard"
    ):
        gm.watch(engine, optim.SGD(engine.parameters(), lr=0.1), run=None)
    plain = nn.Linear(2, 2)
    wrapped = DeepSpeedZeroOptimizer(optim.SGD(plain.parameters(), lr=0.1))
    with pytest.raises(
        UsageError, match=r"DeepSpeed ZeRO keeps .* the optimizer is a DeepSpeedZeroOptimizer"
    ):
        gm.watch(plain, wrapped, run=None)  # type: ignore[arg-type]
    plain.weight.ds_id = 0  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"ZeRO stage 3 .* partitioned \(ds_id\)"):
        gm.watch(plain, optim.SGD(plain.parameters(), lr=0.1), run=None)


def test_deepspeed_without_zero_is_watched() -> None:
    engine = DeepSpeedEngine(0)
    with gm.watch(engine, optim.SGD(engine.parameters(), lr=0.1), run=None) as meter:
        assert meter.blocks.names


def test_fsdp1_is_refused_in_words(tmp_path: Path, ranks: Ranks) -> None:
    script = """
import sys
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
import gradiometer as gm

torch.distributed.init_process_group("gloo", rank=int(sys.argv[1]), world_size=2)
model = FullyShardedDataParallel(nn.Linear(4, 4), use_orig_params=True, device_id=torch.device("cpu"))
try:
    gm.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), run=None)
except gm.errors.UsageError as problem:
    print(problem)
"""
    assert all("fully_shard(model) (FSDP2)" in out for out, _ in ranks(script, 2))


def test_torchrun_writes_one_run_with_the_numbers_of_one_process(
    tmp_path: Path, ranks: Ranks, ranked: ModuleType
) -> None:
    ranks(ranked.TRAINING, 1, "single", tmp_path / "one")
    start = "import os, sys\nsys.argv[1:1] = [os.environ['RANK'], os.environ['WORLD_SIZE']]\n"
    start += "import torch\ntorch.distributed.init_process_group('gloo')\n"
    end = "\ntorch.distributed.barrier()\ntorch.distributed.destroy_process_group()\nsys.stdout.flush()\nos._exit(0)\n"
    (tmp_path / "train.py").write_text(start + ranked.TRAINING + end)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = python(
        *launch,
        tmp_path / "train.py",
        "ddp",
        tmp_path / "many",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    one, many = gm.load(tmp_path / "one"), gm.load(tmp_path / "many")
    assert not many.events("fault")
    assert ranked.without_terms(many) ^ ranked.without_terms(one) == {"meter/noise_batch"}
    ranked.assert_same(one, many)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "one", "train.py"]
