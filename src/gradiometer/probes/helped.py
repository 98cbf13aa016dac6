"""Did the step help? What an optimizer step should have done to a held-out loss, and what it did.

With g_u the gradient of unit u's held-out loss at the weights before the step, and Δw what the step
did to the weights: predicted_u = <g_u, Δw>, realised_u = L_u(w + Δw) − L_u(w). Both are means over
independent units (prompts, episodes) with Student's interval. A norm cannot see a wrong sign; this
can.

The slopes <g_u, Δw> of all units come from two backward passes. G(v) = Σ_u v_u g_u is what a
backward with the weights v gives, so <G(v), Δw> is linear in v and its gradient in v is the list of
slopes: no gradient of one unit is ever kept. That is exact in every precision, unlike a finite
difference, whose h·Δw is lost in the rounding of half-precision weights, and needs no forward-mode
formulas, which many kernels lack. A linear function is the sum of its slopes: where that fails, or
a kernel cannot be differentiated twice (flash-attn's), each unit gets a backward of its own, or
groups of units when they are many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradiometer.capture.blocks import Model, named_parameters
from gradiometer.capture.randomness import RandomState
from gradiometer.errors import UsageError
from gradiometer.maths.means import MIN_SAMPLES, StudentMean, student
from gradiometer.maths.stats import HALF, dot, filled
from gradiometer.maths.trends import Array
from gradiometer.probes.stillness import held_still

if TYPE_CHECKING:
    from gradiometer.capture.meter import Meter

__all__ = ["Helped", "StepCheck", "helped"]

MOST_PASSES = 32
"""Backward passes where each unit needs one; more units go in groups. Student's quantile: 2.04."""
LOSES = {True: 0.05, False: 1e-3}
"""By how much of their sizes slopes may miss their sum, in half precision and else: rounding."""

LONG = 0.25
"""Realised over predicted: 1/2 for the best step on a parabola, 1/4 for 1.5 times that, 0 for 2."""

Verdict = Literal["helps", "hurts", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """What one step did to a held-out loss; below zero is better."""

    predicted: StudentMean
    """<held-out gradient, Δw>: the first-order change of the mean loss."""
    realised: StudentMean
    ratio: float | None
    """realised / predicted: 1 for a small step, falling as it grows; None if predicted may be 0."""
    verdict: Verdict
    reason: str
    too_large: bool
    """The direction is right, and the loss rose all the same."""
    step_norm: float
    """‖Δw‖."""


def helped(model: Model, loss_of: Callable[[], Tensor], *, units: Any = None) -> Helped:
    """Check an optimizer step on held-out data; the training goes on as if nobody had looked.

        with gm.helped(model, loss_of) as check:
            optimizer.step()
        print(check.verdict, check.reason)
        check.record(meter)

    `loss_of()` gives the held-out loss of each independent unit, [n], at the weights as they are:
    for a policy gradient -(ratio * advantages) of each held-out episode, with ratio = (log_prob -
    log_prob_when_sampled).exp(). It must hold what is to be achieved, not the loss under suspicion.
    `units` [n] says which unit each loss belongs to when a unit has several (the prompt of each
    answer); None is one each. Each call starts from the same random numbers. It costs a copy of the
    trained weights, two forwards and about three backwards. Your own hooks on the model fire in it
    too.
    """
    return Helped(model, loss_of, units=units)


class Helped:
    """The check around a step; its results are there when the block is left."""

    def __init__(self, model: Model, loss_of: Callable[[], Tensor], *, units: Any = None) -> None:
        if not callable(loss_of):
            raise UsageError(
                "helped() takes a function that gives the held-out losses; found"
                f" {type(loss_of).__name__}"
            )
        self._model, self._loss_of = model, loss_of
        self._units = None if units is None else _numbered(units)
        self._before: list[Tensor] = []
        self._trained: list[torch.nn.Parameter] = []
        self._result: StepCheck | None = None

    def __enter__(self) -> Self:
        self._result = None
        self._trained = [p for p in named_parameters(self._model).values() if p.requires_grad]
        self._before = [p.detach().clone() for p in self._trained]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before, self._before = self._before, []
        if kind is None:
            self._result = self._checked(before)

    @property
    def result(self) -> StepCheck:
        """All of it, frozen."""
        if self._result is None:
            raise UsageError(
                "helped() has nothing to say yet: read it after `with gm.helped(...) as check:"
                " optimizer.step()`"
            )
        return self._result

    @property
    def predicted(self) -> StudentMean:
        """What the step should have changed of the held-out loss."""
        return self.result.predicted

    @property
    def realised(self) -> StudentMean:
        """What it did change."""
        return self.result.realised

    @property
    def ratio(self) -> float | None:
        """Realised over predicted."""
        return self.result.ratio

    @property
    def verdict(self) -> Verdict:
        """helps, hurts or undecided."""
        return self.result.verdict

    @property
    def reason(self) -> str:
        """The verdict in words, with numbers."""
        return self.result.reason

    def record(self, meter: Meter) -> None:
        """Keep it in the meter's run at the step that was made, where the doctor finds it."""
        found = self.result
        meter.log({"step/predicted": found.predicted.mean, "step/realised": found.realised.mean})

    def _checked(self, before: list[Tensor]) -> StepCheck:
        with torch.no_grad():
            moved = [_difference(p, old) for p, old in zip(self._trained, before, strict=True)]
            length = math.sqrt(sum(float(dot(each, each)) for each in moved))
        # Of torch's attention kernels only the plain one can be differentiated twice, and both
        # losses must come from the same.
        with held_still(self._model), sdpa_kernel(SDPBackend.MATH):
            state = RandomState.now()
            with torch.no_grad():
                after = self._losses(state)
            with _holding(self._trained, before), torch.enable_grad():
                losses, slopes = self._slopes(state, moved)
        if len(losses) != len(after):
            raise UsageError(
                f"loss_of() gave {len(losses)} losses, then {len(after)}: the held-out units must"
                " stay the same"
            )
        predicted = student(slopes)
        realised = student(self._by_unit(_numbers(after) - _numbers(losses)))
        return _judged(predicted, realised, length, before=_numbers(losses), after=_numbers(after))

    def _losses(self, state: RandomState) -> Tensor:
        state.restore()
        found = self._loss_of()
        if not isinstance(found, Tensor) or found.ndim != 1 or not found.is_floating_point():
            shaped = isinstance(found, Tensor)
            what = f"a tensor {list(found.shape)}" if shaped else type(found).__name__
            raise UsageError(
                "loss_of() must give the losses of the held-out units, a tensor [units]; found"
                f" {what}"
            )
        if self._units is not None and len(self._units) != len(found):
            raise UsageError(
                f"units has {len(self._units)} entries for {len(found)} losses: give one for each"
            )
        return found.float() if found.dtype in HALF else found

    def _slopes(self, state: RandomState, moved: list[Tensor]) -> tuple[Tensor, Array]:
        """The losses at the weights before the step [n], and <g_u, Δw> of each unit."""
        losses = self._losses(state)
        if not losses.requires_grad:
            raise UsageError(
                "loss_of() gave losses without a gradient: compute them outside torch.no_grad(), no"
                " .detach()"
            )
        half = any(p.dtype in HALF for p in self._trained)
        slopes = _twice(losses, self._trained, moved, tolerance=LOSES[half])
        if slopes is not None:
            return losses, self._by_unit(_numbers(slopes))
        losses = self._losses(state)  # the first graph is used up
        return losses, _one_by_one(losses, self._trained, moved, self._units)

    def _by_unit(self, values: Array) -> Array:
        """Means of the values that belong to the same unit."""
        if self._units is None:
            return values
        return np.bincount(self._units, weights=values) / np.bincount(self._units)


def _twice(
    losses: Tensor, trained: Sequence[Tensor], moved: Sequence[Tensor], *, tolerance: float
) -> Tensor | None:
    """∂<G(v), Δw>/∂v at v = 1, [n]; None where the graph cannot be differentiated twice."""
    weights = torch.ones_like(losses, requires_grad=True)
    try:
        with _no_autocast(losses):
            grads = torch.autograd.grad(
                losses, trained, grad_outputs=weights, create_graph=True, allow_unused=True
            )
            pairs = zip(grads, moved, strict=True)
            parts = [(g.to(d.dtype) * d).sum() for g, d in pairs if g is not None]
            if not parts:
                return torch.zeros_like(losses)
            total = torch.stack([part.to(losses.device) for part in parts]).sum()
            (slopes,) = torch.autograd.grad(total, weights)
    except RuntimeError:  # "derivative for ... is not implemented", in each kernel's own words
        return None
    missed = float((total.detach() - slopes.sum()).abs())
    return slopes if missed <= tolerance * float(slopes.abs().sum()) + 1e-30 else None


def _one_by_one(
    losses: Tensor, trained: Sequence[Tensor], moved: Sequence[Tensor], units: Any
) -> Array:
    """A backward for each unit, or for groups of them; the mean is that of the units."""
    labels = np.arange(len(losses)) if units is None else units
    count = int(labels.max()) + 1
    share = torch.as_tensor(1.0 / np.bincount(labels)[labels]).to(losses)
    # Of even size.
    groups = np.array_split(np.arange(count), math.ceil(count / math.ceil(count / MOST_PASSES)))
    slopes = []
    for group in groups:
        chosen = torch.as_tensor(np.isin(labels, group), device=losses.device)
        with _no_autocast(losses):
            weights = torch.where(chosen, share, 0.0) * (len(groups) / count)
            grads = torch.autograd.grad(
                losses, trained, grad_outputs=weights, retain_graph=True, allow_unused=True
            )
        pairs = zip(grads, moved, strict=True)
        slopes.append(sum(float(dot(filled(g), d)) for g, d in pairs if g is not None))
    return np.array(slopes)


def _judged(
    predicted: StudentMean, realised: StudentMean, length: float, *, before: Array, after: Array
) -> StepCheck:
    verdict, reason = _verdict(predicted, realised, length, before, after)
    clear = predicted.sign != 0 and math.isfinite(realised.mean)
    return StepCheck(
        predicted=predicted,
        realised=realised,
        ratio=realised.mean / predicted.mean if clear else None,
        verdict=verdict,
        reason=reason,
        too_large=predicted.sign < 0 < realised.sign
        or (predicted.sign < 0 and _broke(before, after)),
        step_norm=length,
    )


def _verdict(
    predicted: StudentMean, realised: StudentMean, length: float, before: Array, after: Array
) -> tuple[Verdict, str]:
    units = realised.count
    numbers = f"predicted {predicted}, realised {realised} over {units} units"
    if length == 0.0:
        return "undecided", "no weight moved: the step was skipped, or its learning rate is 0"
    if _broke(before, after):
        return "hurts", f"the held-out loss is not finite after the step: {numbers}"
    if not np.isfinite(before).all():
        return "undecided", "the held-out loss was not finite before the step"
    if units < MIN_SAMPLES:
        why = f"{units} units are too few for an interval, {MIN_SAMPLES} needed"
        return "undecided", f"{why}: {numbers}"
    if predicted.sign < 0 < realised.sign:
        why = "the step is too large: its direction lowers the held-out loss, its length raises it"
        return "hurts", f"{why}; {numbers}"
    if predicted.sign > 0 > realised.sign:
        why = "the slope leads up and the loss went down: the step is far from small"
        return "undecided", f"{why}; {numbers}"
    if predicted.sign > 0:
        return "hurts", f"the step goes against the held-out loss: look for a wrong sign; {numbers}"
    if realised.sign > 0:
        why = "the held-out loss rose, and the slope does not say why: try a smaller step"
        return "hurts", f"{why}; {numbers}"
    if realised.sign < 0 or (predicted.sign < 0 and realised.mean < 0):
        long = predicted.sign < 0 and realised.mean / predicted.mean < LONG
        more = ", but a shorter one would lower it more" if long else ""
        return "helps", f"the step lowers the held-out loss{more}: {numbers}"
    if predicted.sign < 0:
        why = "the direction is right, the gain is not there: the step may be too large"
        return "undecided", f"{why}; {numbers}"
    return "undecided", f"too little to tell from nothing: {numbers}"


def _broke(before: Array, after: Array) -> bool:
    return bool(np.isfinite(before).all() and not np.isfinite(after).all())


@contextmanager
def _holding(parameters: Sequence[torch.nn.Parameter], weights: Sequence[Tensor]) -> Iterator[None]:
    """Other weights for a while; then the very same storage again, which the optimizer knows."""
    own = [p.data for p in parameters]
    try:
        for parameter, other in zip(parameters, weights, strict=True):
            parameter.data = other
        yield
    finally:
        for parameter, data in zip(parameters, own, strict=True):
            parameter.data = data


@contextmanager
def _no_autocast(like: Tensor) -> Iterator[None]:
    """A backward inside autocast would run its second half in another precision than its first."""
    with torch.autocast(like.device.type, enabled=False):
        yield


def _difference(parameter: Tensor, before: Tensor) -> Tensor:
    """Δw, in float32 where the weights are half: the difference is exact there."""
    if parameter.dtype in HALF:
        return parameter.detach().float() - before.float()
    return parameter.detach() - before


def _numbers(x: Tensor) -> Array:
    return x.detach().double().cpu().numpy()


def _numbered(units: Any) -> Any:
    """Labels of any kind as 0, 1, ..., [n]."""
    labels = units.detach().cpu().numpy() if isinstance(units, Tensor) else np.asarray(units)
    if labels.ndim != 1:
        raise UsageError(
            f"units says which unit each loss belongs to, [n]; found the shape {list(labels.shape)}"
        )
    return np.unique(labels, return_inverse=True)[1].reshape(-1)
