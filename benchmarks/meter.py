"""What the meter costs on a step, against `clip_grad_norm_` on the same gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import gradiometer as gm
from benchmarks.models import mlp, num_parameters, transformer, with_gradients
from benchmarks.timing import in_turns, row

__all__ = ["main"]


class StillSGD(torch.optim.Optimizer):
    """An optimizer whose step does nothing, so that only what surrounds it is timed."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {})  # type: ignore[arg-type]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Leave the weights as they are."""
        return None


def step_with(model: nn.Module, tier: str | None, every: int = 1) -> Callable[[], None]:
    """Clip and step, watched by a meter of that tier (None: not watched)."""
    optimizer = StillSGD(model.parameters())
    parameters = list(model.parameters())
    if tier is not None:
        gm.watch(model, optimizer, run=None, tier=tier, every=every, budget=None)  # type: ignore[arg-type]

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1e9)
        optimizer.step()

    return step


def measure(name: str, make: Callable[[], nn.Module], rounds: int = 12) -> None:
    """Print the table of one model. Each candidate has its own copy, so that no meter listens to another's clip."""
    models = [with_gradients(make()) for _ in range(5)]
    clip_only = list(models[0].parameters())
    taken = in_turns(
        {
            "clip": lambda: torch.nn.utils.clip_grad_norm_(clip_only, 1e9),
            "bare": step_with(models[0], None),
            "light": step_with(models[1], "light"),
            "standard": step_with(models[2], "standard"),
            "deep": step_with(models[4], "deep"),
            "unmeasured": step_with(models[3], "standard", every=10**9),
        },
        rounds=rounds,
        warm_up=1,
        calls=20,  # what is done at every fourth or tenth measured step counts with its share
    )
    base = taken["clip"]
    print(
        f"\n{name}: {num_parameters(models[0]):,} parameters in {len(clip_only)} tensors, {torch.get_num_threads()} threads"
    )
    print(row("clip_grad_norm_", base, base))
    print(row("light adds, on a measured step", taken["light"] - taken["bare"], base, "target ≤ 1.5 ×"))
    print(row("standard adds, on a measured step", taken["standard"] - taken["bare"], base, "target ≤ 6 ×"))
    print(row("deep adds, on a measured step", taken["deep"] - taken["bare"], base))
    print(
        row("standard adds, on another step", taken["unmeasured"] - taken["bare"], base, "target: nothing measurable")
    )


def main() -> None:
    """The three models."""
    torch.set_num_threads(1)
    measure("transformer", lambda: transformer(384, 5))
    measure("transformer", lambda: transformer(768, 11), rounds=3)
    measure("2×64 MLP", mlp)


if __name__ == "__main__":
    main()
