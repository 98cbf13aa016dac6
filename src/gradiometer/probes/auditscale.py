"""Half precision: gradients clipped, or looked at, while they are still multiplied by the loss scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture.hooks import ClipCall, observe_clips
from gradiometer.probes.auditcheck import About, Check, failed, passed, skipped

__all__ = ["SCALE", "ClipWatch", "clip_before_unscale", "judged", "scale_now"]

SCALE: About = ("clip-before-unscale", "clip after unscale")
LEAST_SCALE = 16.0  # a factor below may be an accumulation's
UNSCALED = 1  # OptState.UNSCALED of torch.amp.grad_scaler, private; READY is 0


class ClipWatch:
    """Told of clips: how large gradients are, and whether a scaler says that they are still scaled."""

    def __init__(self, scalers: Callable[[], Iterable[Any]], optimizers: Callable[[], Iterable[Optimizer]]) -> None:
        self._scalers, self._optimizers = scalers, optimizers
        self.clips = 0
        self.scaled: float | None = None
        """The scale of a clip that came too early."""
        self.norm_after: float | None = None
        self._clipped: tuple[Tensor, ...] = ()

    def before_clip(self, call: ClipCall) -> None:
        """Is anything of this scaled?"""
        self.clips += 1
        clipped = {id(p) for p in call.parameters}
        for optimizer in self._optimizers():
            if clipped.isdisjoint(id(p) for group in optimizer.param_groups for p in group["params"]):
                continue
            for scaler in self._scalers():
                factor = scale_now(scaler)
                if factor not in (None, 1.0) and not _is_unscaled(scaler, optimizer):
                    self.scaled = factor

    def after_clip(self, call: ClipCall) -> None:
        """What the clip left."""
        self._clipped = call.parameters
        self.norm_after = _norm(call.parameters)

    def factor_since(self) -> float | None:
        """By how much the clipped gradients have been divided since; None when there was no clip or nothing in it."""
        if not self.norm_after or not math.isfinite(self.norm_after):
            return None
        now = _norm(self._clipped)
        return self.norm_after / now if now > 0 else None


def scale_now(scaler: Any) -> float | None:
    """The scaler's factor; None when it is switched off or has not scaled a loss yet."""
    if not scaler.is_enabled() or getattr(scaler, "_scale", None) is None:
        return None
    return float(scaler.get_scale())


def _is_unscaled(scaler: Any, optimizer: Optimizer) -> bool:
    stage = scaler._per_optimizer_states[id(optimizer)]["stage"]
    return int(getattr(stage, "value", stage)) >= UNSCALED


def _norm(parameters: Iterable[Tensor]) -> float:
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(torch.stack([torch.linalg.vector_norm(g.double()) for g in grads]).norm()) if grads else 0.0


def clip_before_unscale(update: Callable[[], Any] | None, scaler: Any, optimizers: Sequence[Optimizer]) -> Check:
    """Run one update of the training with its optimizers held back, and watch its clips."""
    if update is None:
        return skipped(
            SCALE, "pass update=, a function that does one update as your training does, and scaler= if it has one"
        )
    watch = ClipWatch(lambda: [] if scaler is None else [scaler], lambda: optimizers)
    factors: list[float | None] = []
    with _held_back(optimizers, lambda: factors.append(watch.factor_since())), _kept(scaler):
        remove = observe_clips(watch)
        try:
            with torch.enable_grad():
                update()
            scale = None if scaler is None else scale_now(scaler)
        finally:
            remove()
    if not factors:
        return skipped(SCALE, "update() took no optimizer step: nothing could be seen")
    return judged(watch, scale, max((f for f in factors if f is not None), default=None))


def judged(watch: ClipWatch, scale: float | None, factor: float | None) -> Check:
    """From what was seen at the clip, and by how much gradients shrank between it and the step."""
    if not watch.clips:
        return passed(SCALE, "no clip was seen" + (f"; the loss scale is {scale:g}" if scale else ""))
    found = watch.scaled
    if found is None and factor is not None and factor >= LEAST_SCALE and _is_power_of_two(factor):
        found = factor
    if found is None:
        how = f"unscaled first (the scale is {scale:g})" if scale else "not scaled"
        return passed(SCALE, f"gradients were {how} when they were clipped", **({"scale": scale} if scale else {}))
    return failed(
        SCALE,
        "critical",
        f"gradients were clipped while {found:g} times too large: the threshold is in fact {found:g} times smaller",
        numbers={"scale": found},
        fix=("call scaler.unscale_(optimizer) after backward() and before clip_grad_norm_",),
        confirm="print the total norm that the clip returns: it is that of the scaled gradients",
        references=("Lightning #9330", "Lightning #9694"),
    )


def _is_power_of_two(factor: float) -> bool:
    power = math.log2(factor)
    return abs(power - round(power)) < 1e-3


@contextmanager
def _held_back(optimizers: Sequence[Optimizer], stepping: Callable[[], None]) -> Iterator[None]:
    """Their steps do nothing but tell us; learning rates and the other options are as before."""
    before = [vars(optimizer).get("step") for optimizer in optimizers]
    options = [[{k: v for k, v in group.items() if k != "params"} for group in o.param_groups] for o in optimizers]

    def step(closure: Callable[[], Any] | None = None, **_: Any) -> Any:
        loss = None if closure is None else closure()
        stepping()
        return loss

    for optimizer in optimizers:
        optimizer.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        for optimizer, own, groups in zip(optimizers, before, options, strict=True):
            if own is None:
                del optimizer.step
            else:
                optimizer.step = own  # type: ignore[method-assign]
            for group, kept in zip(optimizer.param_groups, groups, strict=True):
                group.update(kept)


@contextmanager
def _kept(scaler: Any) -> Iterator[None]:
    """The scale, its growth and its notes about optimizers as they were."""
    if scaler is None:
        yield
        return
    held = {name: value.clone() if isinstance(value, Tensor) else value for name, value in vars(scaler).items()}
    notes = {key: dict(value) for key, value in scaler._per_optimizer_states.items()}
    scaler._per_optimizer_states.clear()  # the gradients of which it has notes are out of reach meanwhile
    try:
        yield
    finally:
        vars(scaler).update(held)
        scaler._per_optimizer_states.clear()
        scaler._per_optimizer_states.update(notes)
