"""Two gloo processes: what a meeting of the ranks weighs and takes, and what default settings cost under DDP and FSDP2."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradiometer as gm
from benchmarks.models import transformer

__all__ = ["main"]

WORLD = 2
STEPS = 40
LONG = 120
TURNS = 3
WIDTH, DEPTH = 64, 12  # 147 tensors, 0.9M parameters
SIZES = 11, 3_000, 12_500, 125_000  # float64 numbers: a meeting under DDP, of 147 tensors, of 70B; and 1 MB
ROOT = Path(__file__).parents[1]


def in_ranks(*arguments: str) -> list[dict[str, Any]]:
    """What each rank prints last, run in processes of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-W", "ignore", "-m", "benchmarks.distributed", *arguments]
    ranks = [
        subprocess.Popen([*call, str(rank)], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for rank in range(WORLD)
    ]
    printed = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank of {arguments} ended with {[rank.returncode for rank in ranks]}")
    return [json.loads(text.splitlines()[-1]) for text in printed]


def wrapped(model: nn.Module, mode: str) -> nn.Module:
    """The model as that mode trains it."""
    if mode == "ddp":
        return DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for layer in model.blocks.layers:  # type: ignore[union-attr]
        fully_shard(layer)
    fully_shard(model)
    return model


class Training:
    """Steps of a small language model on this rank."""

    def __init__(self, mode: str) -> None:
        self.model = wrapped(transformer(WIDTH, DEPTH), mode)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._tokens = torch.randint(2000, (4, 32))

    def step(self) -> tuple[float, float]:
        """One step; the seconds it took, by the clock and of this process, which others on the machine do not stretch."""
        started = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        logits = self.model(self._tokens)
        loss: Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), self._tokens.flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return time.perf_counter() - started[0], time.process_time() - started[1]


def measured_steps(mode: str) -> dict[str, Any]:
    """Every step measured, and steps of an unwatched training, in turns; and the meetings by themselves."""
    watched, plain = Training(mode), Training(mode)
    meetings: list[float] = []
    times: dict[str, list[tuple[float, float]]] = {"watched": [], "plain": []}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with gm.watch(watched.model, watched.optimizer, run=run, budget=None) as meter:
            meet = meter._rig.ranks.meet

            def timed(*given: Any, **named: Any) -> Any:
                torch.distributed.barrier()  # without the wait for a slower rank, which training has anyway
                started = time.perf_counter()
                minutes = meet(*given, **named)
                meetings.append(time.perf_counter() - started)
                return minutes

            for number in range(STEPS):
                if number == STEPS // 2:
                    meter._rig.ranks.meet = timed  # type: ignore[method-assign]
                seconds = watched.step()
                if 5 <= number < STEPS // 2:
                    times["watched"].append(seconds)
                    times["plain"].append(plain.step())
            num_bytes = meter._rig.ranks.num_bytes
    return {
        "bytes": num_bytes,
        "tensors": len(list(plain.model.parameters())),
        "meeting": statistics.median(meetings),
        **{name: [statistics.median(column) for column in zip(*taken, strict=True)] for name, taken in times.items()},
    }


def whole_training(mode: str, watch: str) -> dict[str, Any]:
    """Many steps at default settings, or without a meter: seconds a step, and the share the meter counts itself."""
    training = Training(mode)
    with tempfile.TemporaryDirectory() as folder:
        meter = gm.watch(training.model, training.optimizer, run=Path(folder) / "run") if watch == "yes" else None
        for _ in range(10):
            training.step()
        taken = [training.step() for _ in range(LONG)]
        share = meter._rig.cadence.share() if meter is not None else 0.0
        if meter is not None:
            meter.close()
    return {"seconds": [sum(column) / LONG for column in zip(*taken, strict=True)], "share": share}


def all_reduces() -> dict[str, float]:
    """The least time of an all-reduce by its bytes: what the network takes when nobody is late."""
    best: dict[str, float] = {}
    for numbers in SIZES:
        vector = torch.ones(numbers, dtype=torch.float64)
        for _ in range(150):
            torch.distributed.barrier()
            started = time.perf_counter()
            torch.distributed.all_reduce(vector)
            taken = time.perf_counter() - started
            best[str(8 * numbers)] = min(taken, best.get(str(8 * numbers), taken))
    return best


def rank_main(mode: str, part: str, rank: int) -> None:
    """One rank of one part."""
    torch.distributed.init_process_group("gloo", rank=rank, world_size=WORLD)
    if mode == "sizes":
        found: dict[str, Any] = all_reduces()
    else:
        found = measured_steps(mode) if part == "steps" else whole_training(mode, part)
    print(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may outlive C++'s globals


def main() -> None:
    """Print the tables."""
    print(f"{WORLD} gloo processes on the CPU, {torch.get_num_threads()} thread(s) each")
    for size, seconds in in_ranks("sizes", "-")[0].items():
        print(f"an all-reduce of {int(size):>9,} bytes: {seconds * 1e3:.2f} ms at best")
    for mode in ("ddp", "fsdp"):
        first = in_ranks(mode, "steps")[0]
        print(f"{mode}: {first['tensors']} tensors, {first['bytes']:,} bytes a meeting (target 65,536)")
        print(f"  a meeting {first['meeting'] * 1e3:.2f} ms")
        for what, watched, plain in zip(("by the clock", "processor"), first["watched"], first["plain"], strict=True):
            added = watched - plain
            print(f"  a step {plain * 1e3:.1f} ms {what}; measured {added * 1e3:+.1f} ms, {added / plain:+.0%}")
        ratios, shares = [], []
        for _ in range(TURNS):
            plain, watched = in_ranks(mode, "no")[0]["seconds"], in_ranks(mode, "yes")[0]
            ratios.append([a / b - 1 for a, b in zip(watched["seconds"], plain, strict=True)])
            shares.append(watched["share"])
        clock, processor = (statistics.median(column) for column in zip(*ratios, strict=True))
        print(f"  default settings, {LONG} steps: {clock:+.1%} by the clock, {processor:+.1%} processor (target 2 %)")
        print(f"  counted by the meter itself: {statistics.median(shares):.2%} of wall time", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
