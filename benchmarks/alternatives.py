"""What a measured step adds to a real training step, beside `wandb.watch` and beside the loop people write by hand."""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gradiometer as gm
from benchmarks.models import mlp, num_parameters, transformer
from benchmarks.timing import in_turns, row
from benchmarks.trainers import next_token_loss, train_step
from gradiometer.capture.settings import Tier

__all__ = ["main"]

CALLS = 20  # what is done at every fourth or tenth measured step counts with its share

Losses = Callable[[nn.Module], Callable[[], Tensor]]
Step = Callable[[], object]


def token_loss(model: nn.Module) -> Callable[[], Tensor]:
    """Of 2 × 16 tokens: a short step, so that what is added to it stands out."""
    return next_token_loss(model, 2, 16)


def actor_critic_loss(model: nn.Module) -> Callable[[], Tensor]:
    """Of both heads on 64 observations."""
    assert isinstance(model, nn.ModuleDict)
    observations = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))
    return lambda: sum((head(observations).square().mean() for head in model.values()), torch.zeros(()))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The cheapest step there is."""
    return torch.optim.SGD(model.parameters(), lr=1e-4)


# The candidates: each makes the training step of its own copy of the model.


def bare(model: nn.Module, losses: Losses, _: ExitStack) -> Step:
    """Nothing looks at the gradients."""
    return train_step(model, sgd(model), losses(model))


def metered(tier: Tier, run: Path | None = None) -> Callable[[nn.Module, Losses, ExitStack], Step]:
    """Watched by a meter that measures every step."""

    def make(model: nn.Module, losses: Losses, stack: ExitStack) -> Step:
        optimizer = sgd(model)
        stack.enter_context(gm.watch(model, optimizer, run=run, tier=tier, budget=None))
        return train_step(model, optimizer, losses(model))

    return make


def wandb_watched(model: nn.Module, losses: Losses, stack: ExitStack) -> Step:
    """`wandb.watch` of the gradients and `wandb.log` at every step, kept offline: nothing is sent."""
    run = stack.enter_context(offline_run())
    run.watch(model, log="gradients", log_freq=1)
    stack.callback(run.unwatch, model)
    step = train_step(model, sgd(model), losses(model))

    def logged() -> None:
        step()
        run.log({"trained": 1.0})

    return logged


@contextmanager
def offline_run() -> Iterator[Any]:
    """A silent W&B run in a temporary folder."""
    os.environ.update(WANDB_SILENT="true", WANDB_CONSOLE="off", WANDB_ERROR_REPORTING="false")
    import wandb

    with tempfile.TemporaryDirectory() as folder:
        settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True)
        with wandb.init(mode="offline", dir=folder, settings=settings) as run:
            yield run


def by_hand(model: nn.Module, losses: Losses, _: ExitStack) -> Step:
    """Six statistics of each gradient, each fetched by itself, before the clip."""
    parameters, optimizer, loss = list(model.parameters()), sgd(model), losses(model)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        for p in parameters:
            assert p.grad is not None
            six_statistics(p.grad)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def six_statistics(grad: Tensor) -> tuple[float, ...]:
    """Norm, mean, standard deviation, largest, share of zeros, all finite."""
    return (
        grad.norm().item(),
        grad.mean().item(),
        grad.std(correction=0).item(),
        grad.abs().max().item(),
        (grad == 0).float().mean().item(),
        torch.isfinite(grad).all().item(),
    )


def cockpit_tracked(model: nn.Module, losses: Losses, _: ExitStack) -> Step:
    """Cockpit's norm and update size, the two of its quantities that ask nothing of the layers."""
    from cockpit import Cockpit, quantities
    from cockpit.utils.schedules import linear

    parameters, optimizer, loss = list(model.parameters()), sgd(model), losses(model)
    cockpit = Cockpit(parameters, quantities=[quantities.GradNorm(linear(1)), quantities.UpdateSize(linear(1))])
    number = 0

    def step() -> None:
        nonlocal number
        optimizer.zero_grad()
        value = loss()
        with cockpit(number, info={"loss": value, "optimizer": optimizer}):
            value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        number += 1

    return step


def added_in_turns(plain: Step, others: dict[str, Step], rounds: int) -> dict[str, float]:
    """Seconds each of the others adds to the plain step: the median over rounds of the mean over CALLS steps.

    A plain step goes before each step of another. The speed of a shared machine drifts by 10 % within seconds, which is
    more than `light` adds to a step of the transformer; between two neighbouring steps it hardly does.
    """
    added: dict[str, list[float]] = {name: [] for name in others}
    for number in range(rounds + 1):
        for name, other in others.items():
            extra = sum(-seconds(plain) + seconds(other) for _ in range(CALLS)) / CALLS
            if number > 0:  # the first round warms up
                added[name].append(extra)
    return {name: statistics.median(extras) for name, extras in added.items()}


def seconds(step: Step) -> float:
    """Of one call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure(name: str, make: Callable[[], nn.Module], losses: Losses, rounds: int) -> None:
    """Print the table of one model. Each candidate has its own copy, so that no meter listens to another's clip."""
    has_cockpit = importlib.util.find_spec("cockpit") is not None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        candidates = {
            "bare": bare,
            "light": metered("light"),
            "standard": metered("standard"),
            "standard, kept on disk": metered("standard", Path(folder) / "run"),
            "wandb.watch + wandb.log": wandb_watched,
            "six statistics by hand": by_hand,
        } | ({"cockpit, norm and update": cockpit_tracked} if has_cockpit else {})
        models = {candidate: make() for candidate in candidates}
        steps = {candidate: prepare(models[candidate], losses, stack) for candidate, prepare in candidates.items()}
        plain = steps.pop("bare")
        added = added_in_turns(plain, steps, rounds)
        clipped = list(models["bare"].parameters())
        clip = {"clip": lambda: nn.utils.clip_grad_norm_(clipped, 1.0), "step": plain}
        taken = in_turns(clip, rounds=rounds, warm_up=1, calls=CALLS)
    print(
        f"\n{name}: {num_parameters(models['bare']):,} parameters in {len(clipped)} tensors, "
        f"{torch.get_num_threads()} threads; measured at every step"
    )
    report(taken, added)
    if not has_cockpit:
        print("cockpit-for-pytorch is not installed")


def report(taken: dict[str, float], added: dict[str, float]) -> None:
    """What each adds to a bare step, and how the meter compares."""
    clip = taken["clip"]
    print(row("clip_grad_norm_", clip, clip))
    print(row("forward, backward, clip, step", taken["step"], clip))
    for name, extra in added.items():
        print(row(f"{name} adds", extra, clip, "target ≤ 6 ×" if name == "standard" else ""))
    for ours, theirs, limit in (
        ("light", "wandb.watch + wandb.log", 25),
        ("standard", "wandb.watch + wandb.log", 7),
        ("standard, kept on disk", "wandb.watch + wandb.log", 7),
        ("standard", "six statistics by hand", 2),
    ):
        ratio = added[theirs] / added[ours]
        print(f"{f'{ours} / {theirs}':<58} 1/{ratio:<8.1f} target ≤ 1/{limit}")


def main() -> None:
    """A transformer, where memory counts, and a small network, where Python does."""
    torch.set_num_threads(1)
    measure("transformer", lambda: transformer(384, 5), token_loss, rounds=6)
    measure("2×64 MLP", mlp, actor_critic_loss, rounds=15)


if __name__ == "__main__":
    main()
