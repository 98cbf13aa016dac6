"""`gradiometer.watch`: from a model and its optimizers to a meter that runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, get_args

from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture import hooks, terms
from gradiometer.capture.blocks import Blocks, Model, Selector, find_blocks, named_parameters
from gradiometer.capture.meter import Meter, OnNonfinite, Tier
from gradiometer.errors import UsageError
from gradiometer.store import facts
from gradiometer.store.writer import Writer

__all__ = ["NullMeter", "watch"]

Optimizers = Optimizer | Sequence[Optimizer] | Mapping[str, Optimizer]


def watch(
    model: Model,
    optimizer: Optimizers,
    *,
    run: str | os.PathLike[str] | None = "auto",
    every: int = 1,
    tier: Tier = "standard",
    blocks: Mapping[str, Selector] | None = None,
    config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    resume: int | None = None,
    overwrite: bool = False,
    keep: int | None = None,
    on_nonfinite: OnNonfinite = "record",
    terms_every: int = 10,
) -> Meter:
    """Measure the gradients of `model` at every step of `optimizer`, and keep them in the folder `run`.

    `run="auto"` makes `runs/<script>-<time>`; `run=None` keeps nothing on disk. `resume=s` goes on after the checkpoint
    of step s and removes what lies beyond it; `overwrite=True` starts the run afresh. `blocks` maps a name to a regular
    expression over parameter names, a module or a list of parameters; without it actor, critic and what they share are
    read off the names. `config` and `seed` are kept with the run. GRADIOMETER_DISABLED=1 turns all of it into nothing.
    """
    if os.environ.get("GRADIOMETER_DISABLED", "").lower() in ("1", "true", "yes"):
        return NullMeter()
    _check(every=every, tier=tier, on_nonfinite=on_nonfinite, terms_every=terms_every)
    optimizers = _listed(optimizer)
    parameters = named_parameters(model)
    find_blocks(parameters, blocks)  # a wrong pattern is said before a folder is made
    held = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
    if not any(id(p) in held for p in parameters.values()):
        raise UsageError("the optimizer holds none of the model's parameters; pass the model it was made from")
    writer = None
    if run is not None:
        folder = Path("runs") / _run_name() if run == "auto" else Path(run)
        writer = Writer(folder, facts=_facts(config, seed, tier, every), resume=resume, overwrite=overwrite, keep=keep)
    return Meter(
        model,
        optimizers,
        writer=writer,
        every=every,
        tier=tier,
        blocks=blocks,
        on_nonfinite=on_nonfinite,
        terms_every=terms_every,
        first_step=0 if resume is None else resume + 1,
    )


class NullMeter(Meter):
    """The meter that does nothing: what `watch` returns when GRADIOMETER_DISABLED is set."""

    def __init__(self) -> None:
        self.run = None

    @property
    def blocks(self) -> Blocks:
        """There are none."""
        return Blocks(names=(), members=(), num_named=0)

    @property
    def states(self) -> dict[str, str]:
        """Nothing is known."""
        return {}

    def log(self, values: Mapping[str, Any] | None = None, /, **scalars: Any) -> None:
        """Nothing is kept."""

    def at(self, *, env_steps: int | None = None, rollout: int | None = None, epoch: int | None = None) -> None:
        """Nothing is kept."""

    def step(self, number: int) -> None:
        """Nothing is counted."""

    def pause(self) -> None:
        """Nothing runs."""

    def resume(self) -> None:
        """Nothing runs."""

    @contextmanager
    def terms(self, **given: Tensor) -> Iterator[Tensor]:
        """The same sum as the real meter's."""
        terms.check_terms(given)
        yield terms.total(given.values())

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is open."""


def _check(*, every: int, tier: str, on_nonfinite: str, terms_every: int) -> None:
    for name, number in (("every", every), ("terms_every", terms_every)):
        if not isinstance(number, int) or number < 1:
            raise UsageError(
                f"{name} is the number of steps from one measurement to the next, 1 or more; found {number!r}"
            )
    for name, word, allowed in (("tier", tier, get_args(Tier)), ("on_nonfinite", on_nonfinite, get_args(OnNonfinite))):
        if word not in allowed:
            raise UsageError(f"{name} is one of {', '.join(map(repr, allowed))}; found {word!r}")


def _listed(optimizer: Any) -> list[Optimizer]:
    if isinstance(optimizer, Mapping):
        optimizer = list(optimizer.values())
    given = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    if not given:
        raise UsageError("watch() needs at least one optimizer; found an empty list")
    try:
        return [hooks.unwrap(one) for one in given]
    except TypeError as problem:
        raise UsageError(f"watch() takes torch optimizers; {problem}") from problem


def _run_name() -> str:
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else ""
    return f"{script if script not in ('', '-c') else 'python'}-{time.strftime('%Y%m%d-%H%M%S')}"


def _facts(config: Mapping[str, Any] | None, seed: int | None, tier: str, every: int) -> dict[str, Any]:
    return {**facts.collect(config, seed), "meter": {"tier": tier, "every": every}}
