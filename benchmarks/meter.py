"""What a measured step adds to `clip_grad_norm_` and an optimizer step that does nothing, in clips
of the same gradients.

Every step is measured (`every=1, budget=None`), and what is done at every fourth measured step
counts with its share. Reading the gradient, the previous gradient and the weights before and after
is more than four clips by itself. On a small network the cost is Python's alone, a clip takes a
tenth of a millisecond, and the budget decides what the meter costs. 10,000 small tensors are read
together: one by one they took two seconds a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import torch
from torch import nn

import gradiometer as gm
from benchmarks.models import many_tensors, mlp, transformer, with_gradients
from benchmarks.rows import Row, Scale, clock, measured
from benchmarks.timing import in_turns
from gradiometer.capture.settings import Tier

__all__ = ["rows"]

TIERS: tuple[Tier, ...] = ("light", "standard", "deep")
UNMEASURED = "standard, not measured"
UNMEASURABLE = 0.05  # of a clip: "nothing measurable"
WATCHES: dict[str, tuple[Tier, int]] = {
    **{tier: (tier, 1) for tier in TIERS},
    UNMEASURED: ("standard", 10**9),
}


class StillSGD(torch.optim.Optimizer):
    """An optimizer whose step does nothing, so that only what surrounds it is timed."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {})  # type: ignore[arg-type]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Leave the weights as they are."""
        return None


def step_of(model: nn.Module, optimizer: StillSGD) -> Callable[[], None]:
    """Clip and step."""
    parameters = list(model.parameters())

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1e9)
        optimizer.step()

    return step


def model_rows(
    name: str,
    make: Callable[[], nn.Module],
    limits: dict[str, float],
    *,
    rounds: int,
    calls: int,
    watches: Iterable[str] = tuple(WATCHES),
    seconds: float | None = None,
) -> Iterator[Row]:
    """One model, in clips, and with `seconds` as a target on the clock too. Each candidate has its
    own copy, so that no meter listens to another's clip."""
    bare = with_gradients(make())
    clipped = list(bare.parameters())
    candidates: dict[str, Callable[[], object]] = {
        "clip": lambda: torch.nn.utils.clip_grad_norm_(clipped, 1e9),
        "bare": step_of(bare, StillSGD(bare.parameters())),
    }
    with ExitStack() as stack:
        for watch in watches:
            tier, every = WATCHES[watch]
            model = with_gradients(make())
            optimizer = StillSGD(model.parameters())
            stack.enter_context(
                gm.watch(model, optimizer, run=None, tier=tier, every=every, budget=None)
            )
            candidates[watch] = step_of(model, optimizer)
        taken = in_turns(candidates, rounds=rounds, calls=calls)
    for watch in watches:
        added = {"clip": taken["clip"], "adds": taken[watch] - taken["bare"]}
        ratio, told = added["adds"] / added["clip"], clock(added, "clip", "adds")
        yield measured(
            f"{name}: what `{watch}` adds / a clip", ratio, at_most=limits.get(watch), note=told
        )
        if seconds is not None:
            yield measured(f"{name}: what `{watch}` adds", added["adds"], unit="s", at_most=seconds)


def rows(scale: Scale) -> Iterator[Row]:
    """The three models, with the targets that were set for each."""
    small, rounds = {"light": 1.5, "standard": 6.0, UNMEASURED: UNMEASURABLE}, scale.rounds()
    size = scale.of((384, 5), (64, 2))
    yield from model_rows(
        "10M transformer", lambda: transformer(*size), small, rounds=rounds, calls=scale.of(20, 1)
    )
    if not scale.quick:
        yield from model_rows(
            "81M transformer",
            lambda: transformer(768, 11),
            {"standard": 6.0},
            rounds=rounds,
            calls=4,
        )
    yield from model_rows(
        "2×64 MLP", mlp, {"standard": 6.0}, rounds=scale.rounds(15), calls=scale.of(20, 1)
    )
    pairs = scale.of(5_000, 50)
    yield from model_rows(
        f"{2 * pairs:,} tensors",
        lambda: many_tensors(pairs),
        {},
        rounds=rounds,
        calls=scale.of(4, 1),
        watches=("light", "standard"),
        seconds=0.15,
    )
