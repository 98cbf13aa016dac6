"""Two gloo processes on one machine: what a meeting of the ranks weighs, and what default settings
take under DDP.

A language model of 147 tensors and 0.9M parameters. In each rank a plain training and a watched one
step in turns. A meeting is one all-reduce; FSDP2 has more to say to each other than DDP, whose
gradients are the same on every rank.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradiometer as gm
from benchmarks.models import transformer
from benchmarks.relay import Runner, alternate, overhead_rows
from benchmarks.rows import Row, Scale, counted, measured

__all__ = ["rows"]

WORLD = 2
WIDTH, DEPTH = 64, 12  # 147 tensors, 0.9M parameters
ROOT = Path(__file__).parents[1]


def in_ranks(
    mode: str, rounds: int, steps: int, *, module: str = "benchmarks.distributed"
) -> dict[str, Any]:
    """What rank 0 prints last; each rank is a process of its own, that runs the module."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    call = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        module,
        mode,
        str(rounds),
        str(steps),
    ]
    ranks = [
        subprocess.Popen(
            [*call, str(rank)], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for rank in range(WORLD)
    ]
    printed = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank of {mode} ended with {[rank.returncode for rank in ranks]}")
    found: dict[str, Any] = json.loads(printed[0].splitlines()[-1])
    return found


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

    def step(self) -> None:
        """Forward, backward, clip, step."""
        self.optimizer.zero_grad()
        logits = self.model(self._tokens)
        loss: Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), self._tokens.flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def side_by_side(mode: str, rounds: int, steps: int, **options: Any) -> dict[str, Any]:
    """A plain and a watched training; what each round took, and what a meeting weighs."""
    plain, watched, meters = Training(mode), Training(mode), list[Any]()
    for _ in range(3):
        plain.step()
        watched.step()
    with tempfile.TemporaryDirectory() as folder:

        def watch() -> tuple[Callable[[], None], Any]:
            meters.append(
                gm.watch(watched.model, watched.optimizer, run=Path(folder) / "run", **options)
            )
            return watched.step, meters[0]

        other, ours = alternate(plain.step, watch, rounds, steps)
    return {
        "plain": other.rounds,
        "ours": ours.rounds,
        "hooks": ours.hooks,
        "bytes": meters[0]._observer.ranks.num_bytes,
        "tensors": len(list(plain.model.parameters())),
    }


def all_reduces(rounds: int, num_bytes: int) -> list[float]:
    """Seconds of an all-reduce of that many bytes, with nobody late."""
    vector, taken = torch.ones(num_bytes // 8, dtype=torch.float64), []
    for _ in range(rounds):
        torch.distributed.barrier()
        started = time.perf_counter()
        torch.distributed.all_reduce(vector)
        taken.append(time.perf_counter() - started)
    return taken


def rank_main(mode: str, rounds: int, steps: int, rank: int) -> None:
    """One rank."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=WORLD)
    found = {"measured": side_by_side(mode, rounds, 4, budget=None)}
    found["measured"]["meeting"] = all_reduces(max(rounds, 30), found["measured"]["bytes"])
    if mode == "ddp":
        found["default"] = side_by_side(mode, rounds, steps)
    print(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may outlive C++'s globals


def runners(found: dict[str, Any]) -> tuple[Runner, Runner]:
    """As they were in the rank."""
    plain, ours = Runner(), Runner()
    plain.rounds, ours.rounds, ours.hooks = found["plain"], found["ours"], found["hooks"]
    return plain, ours


def rows(scale: Scale) -> Iterator[Row]:
    """DDP whole, FSDP2 by its measured step."""
    for mode, name in (("ddp", "DDP"), ("fsdp", "FSDP2")):
        found = in_ranks(mode, 1 + scale.rounds(), scale.of(40, 2))
        if "default" in found:
            yield from overhead_rows(
                f"{name}, default settings", *runners(found["default"]), at_most=0.02
            )
        steps = found["measured"]
        ratio = np.array(steps["ours"][1:]) / np.array(steps["plain"][1:])
        yield measured(f"{name}: a measured step / a plain one", ratio)
        told = (
            f"{steps['tensors']} tensors; an all-reduce of it"
            f" {1e3 * float(np.median(steps['meeting'])):.2f} ms"
        )
        yield counted(
            f"{name}: a meeting", steps["bytes"] / 1024, unit="KiB", at_most=64, note=told
        )


if __name__ == "__main__":
    rank_main(sys.argv[1], *(int(each) for each in sys.argv[2:5]))
