"""What a log of another tool cannot show, and the lines that would: gradients are in none of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gradiometer import metrics
from gradiometer.doctor.diagnosis import Diagnosis

__all__ = ["Lacking", "lacking", "measure_it"]

MEASURED = (*metrics.TIERS, "terms")
"""Where the meter's own metrics come from, in the catalogue."""
WATCH = """import gradiometer as gm

with gm.watch(model, optimizer, run="runs/mine"{more}) as meter:
    ...  # your training loop, as it is"""
CALLBACKS = {
    "SB3": ("sb3", 'model.learn(total_steps, callback=GradiometerCallback(run="runs/mine"))'),
    "TRL": ("trl", 'trainer = GRPOTrainer(..., callbacks=[GradiometerCallback(run="runs/mine")])'),
    "transformers": ("transformers", 'trainer = Trainer(..., callbacks=[GradiometerCallback(run="runs/mine")])'),
    "Lightning": ("lightning", 'trainer = Trainer(..., callbacks=[GradiometerCallback(run="runs/mine")])'),
}
"""By library: the module of the integration, and where its callback goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Rules that could not look, by what would let them."""

    measured: int
    """Gradients and terms of the loss."""
    logged: int
    """Scalars that whoever trains could log."""
    scalars: tuple[str, ...]
    """Which, the one that most rules ask for first."""


def lacking(diagnosis: Diagnosis) -> Lacking:
    """Counted over the rules that were skipped; those of experts and probes are not for every training."""
    origins = [(metrics.CATALOGUE[each.metric].origin, each) for each in diagnosis.skipped if each.metric]
    logged = [each for origin, each in origins if origin == "logged"]
    missing = Counter(each.metric for each in logged if each.why.startswith(f"no {each.metric}"))
    return Lacking(
        measured=sum(origin in MEASURED for origin, _ in origins),
        logged=len(logged),
        scalars=tuple(name for name, _ in missing.most_common()),
    )


def measure_it(library: str | None = "", *, more: str = "") -> str:
    """The lines that measure the gradients of a training with this library; for any other those of a plain loop, with
    further arguments of `watch`."""
    if library not in CALLBACKS:
        return WATCH.format(more=f", {more}" if more else "")
    module, line = CALLBACKS[library]
    return f"from gradiometer.integrations.{module} import GradiometerCallback\n\n{line}"
