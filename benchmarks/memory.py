"""What the meter takes of memory, by tier, and whether it grows: resident size, each candidate in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import gradiometer as gm
from benchmarks.alternatives import actor_critic_loss, sgd, token_loss
from benchmarks.models import mlp, num_parameters, transformer
from benchmarks.trainers import train_step

__all__ = ["main"]

MEASURED_STEPS = 30
EARLY, LATE = 2_000, 20_000
MIB = 2**20
ROOT = Path(__file__).parents[1]


def resident(field: str = "VmRSS") -> int:
    """Bytes of this process in memory now; `VmHWM` is the most there ever were."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {field}")


def in_new_process(part: str, tier: str) -> dict[str, int]:
    """What that part prints, run by itself."""
    command = [sys.executable, "-m", "benchmarks.memory", part, tier]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    sizes: dict[str, int] = json.loads(printed.splitlines()[-1])
    return sizes


def tier_sizes(tier: str) -> dict[str, int]:
    """After 30 measured steps of the 10M transformer, with the gradients still there."""
    model = transformer(384, 5)
    optimizer = sgd(model)
    meter = None if tier == "none" else gm.watch(model, optimizer, run=None, tier=tier, budget=None)  # type: ignore[arg-type]
    step = train_step(model, optimizer, token_loss(model))
    for _ in range(MEASURED_STEPS):
        step()
    sizes = {"after": resident(), "peak": resident("VmHWM"), "parameters": 4 * num_parameters(model)}
    if meter is not None:
        meter.close()
    return sizes


def growth_sizes(tier: str) -> dict[str, int]:
    """After 2,000 and after 20,000 steps of the MLP, all measured and kept on disk."""
    model = mlp()
    optimizer = sgd(model)
    step = train_step(model, optimizer, actor_critic_loss(model))
    if tier == "none":
        return dict(sizes_at(step))
    with (
        tempfile.TemporaryDirectory() as folder,
        gm.watch(model, optimizer, run=Path(folder) / "run", tier=tier, budget=None),  # type: ignore[arg-type]
    ):
        return dict(sizes_at(step))


def sizes_at(step: Callable[[], None]) -> Iterator[tuple[str, int]]:
    """The resident size at both marks."""
    for number in range(1, LATE + 1):
        step()
        if number in (EARLY, LATE):
            yield str(number), resident()


def print_tiers() -> None:
    """Beyond what the training takes without a meter, as a multiple of the parameters."""
    found = {tier: in_new_process("tier", tier) for tier in ("none", "light", "standard")}
    without = found["none"]
    size = without["parameters"]
    print(f"\nmemory of the 10M transformer after {MEASURED_STEPS} measured steps; parameters are {size / MIB:.1f} MiB")
    targets = {"light": "target ~ 0 ×", "standard": "target ~ 1 ×"}
    for tier, sizes in found.items():
        extra, peak = sizes["after"] - without["after"], sizes["peak"] - without["peak"]
        print(
            f"{tier:<14} {sizes['after'] / MIB:>9.1f} MiB, {extra / MIB:>+7.1f} MiB = {extra / size:>+5.2f} ×"
            f"   at the peak {peak / size:>+5.2f} ×   {targets.get(tier, '')}"
        )


def print_growth() -> None:
    """From an early step to a late one."""
    print(f"\nmemory of the 2×64 MLP after {EARLY:,} and {LATE:,} measured steps, kept on disk")
    for tier in ("none", "light", "standard"):
        sizes = in_new_process("growth", tier)
        early, late = sizes[str(EARLY)], sizes[str(LATE)]
        print(
            f"{tier:<14} {early / MIB:>9.1f} MiB {late / MIB:>9.1f} MiB"
            f"   {(late - early) / (LATE - EARLY):>+8.1f} bytes a step   target: flat"
        )


def main() -> None:
    """Print both tables."""
    print_tiers()
    print_growth()


def be_measured(part: str, tier: str) -> None:
    """The process in which one candidate runs."""
    torch.set_num_threads(1)
    print(json.dumps({"tier": tier_sizes, "growth": growth_sizes}[part](tier)))


if __name__ == "__main__":
    be_measured(*sys.argv[1:]) if len(sys.argv) == 3 else main()
