"""What a measured step adds to a real forward, backward, clip and step, beside the alternatives;
every step is measured.

`wandb.watch(log="gradients", log_freq=1)` is followed by `wandb.log`, offline. By hand are six
statistics, each fetched by `.item()`, before the clip. On a network of 9,155 parameters those are
cheaper than our forty with their history. Cockpit has its norm and its update size where it is
installed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gradiometer as gm
from benchmarks.models import actor_critic_loss, mlp, sgd, token_loss, train_step, transformer
from benchmarks.rows import Row, Scale, clock, measured
from benchmarks.timing import Taken, seconds_of
from gradiometer.capture.settings import Tier

__all__ = ["rows"]

# what is done at every fourth measured step counts with its share; rarer things show in the spread
CALLS = 8
WANDB, BY_HAND, COCKPIT = "`wandb.watch`", "six statistics by hand", "Cockpit"
PLAIN = "the training step"
COMPARED = (
    (WANDB, "light", 25),
    (WANDB, "standard", 7),
    (WANDB, "standard, kept on disk", 7),
    (BY_HAND, "standard", 2),
    (COCKPIT, "standard", None),
)

Losses = Callable[[nn.Module], Callable[[], Tensor]]
Step = Callable[[], object]


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
    """`wandb.watch` of the gradients and `wandb.log` at every step, kept offline: nothing is
    sent."""
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
        settings = wandb.Settings(
            x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True
        )
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
    cockpit = Cockpit(
        parameters, quantities=[quantities.GradNorm(linear(1)), quantities.UpdateSize(linear(1))]
    )
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


def added_in_turns(plain: Step, others: dict[str, Step], rounds: int, calls: int) -> Taken:
    """Seconds each of the others adds to the plain step, and those of the plain step, by round: the
    mean over its steps.

    A plain step goes before each step of another. The speed of a shared machine drifts by 10 %
    within seconds, which is more than `light` adds to a step of the transformer; between two
    neighbouring steps it hardly does.
    """
    taken: dict[str, list[float]] = {name: [] for name in (*others, PLAIN)}
    for number in range(rounds + 1):
        alone: list[float] = []
        for name, other in others.items():
            pairs = [(seconds_of(plain), seconds_of(other)) for _ in range(calls)]
            alone += [without for without, _ in pairs]
            if number > 0:  # the first round warms up
                taken[name].append(sum(beside - without for without, beside in pairs) / calls)
        if number > 0:
            taken[PLAIN].append(sum(alone) / len(alone))
    return {name: np.array(seconds) for name, seconds in taken.items()}


def model_rows(
    name: str,
    make: Callable[[], nn.Module],
    losses: Losses,
    *,
    rounds: int,
    calls: int = CALLS,
    of_a_step: Mapping[str, float] | None = None,
) -> Iterator[Row]:
    """One model. Each candidate has its own copy, so that no meter listens to another's clip.
    `of_a_step` are targets beside the training step itself."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        candidates = {
            "light": metered("light"),
            "standard": metered("standard"),
            "standard, kept on disk": metered("standard", Path(folder) / "run"),
            WANDB: wandb_watched,
            BY_HAND: by_hand,
        } | ({COCKPIT: cockpit_tracked} if find_spec("cockpit") is not None else {})
        steps = {
            candidate: prepare(make(), losses, stack) for candidate, prepare in candidates.items()
        }
        added = added_in_turns(bare(make(), losses, stack), steps, rounds, calls)
    for theirs, ours, limit in COMPARED:
        if theirs in added:
            ratio, told = added[theirs] / added[ours], clock(added, theirs, ours)
            yield measured(
                f"{name}: what {theirs} adds / what `{ours}` adds", ratio, at_least=limit, note=told
            )
    for ours, most in (of_a_step or {}).items():
        ratio, told = added[ours] / added[PLAIN], clock(added, ours, PLAIN)
        yield measured(f"{name}: what `{ours}` adds / {PLAIN}", ratio, at_most=most, note=told)


def rows(scale: Scale) -> Iterator[Row]:
    """A transformer, where memory counts, and a small network, where Python does."""
    size, calls = scale.of((384, 5), (64, 2)), scale.of(CALLS, 1)
    yield from model_rows(
        "10M transformer",
        lambda: transformer(*size),
        token_loss,
        rounds=scale.rounds(),
        calls=calls,
    )
    yield from model_rows(
        "2×64 MLP",
        mlp,
        actor_critic_loss,
        rounds=scale.rounds(15),
        calls=scale.of(CALLS * 4, 1),
        of_a_step={"light": 0.2, "standard": 0.6},
    )
