"""`on_nonfinite="raise"`: a NaN or an Inf stops the training before it reaches the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradiometer.capture.gauge import Gauge
from gradiometer.capture.rounds import Owner, Round
from gradiometer.capture.termbook import TermBook
from gradiometer.errors import NonFiniteGradient

__all__ = ["Alarm"]


class Alarm:
    """Looks at gradients, at a sync each time, and raises; for those who asked for it."""

    def __init__(
        self, gauge: Gauge, names: Sequence[str], terms: TermBook, owner: Owner, current: Callable[[], Round]
    ) -> None:
        self._gauge, self._names, self._terms, self._owner, self._current = gauge, names, terms, owner, current

    def check(self, indices: Sequence[int], where: str = "") -> None:
        """Raise if one of these gradients is not finite."""
        bad = self._gauge.nonfinite(self._gauge.with_grad(indices))
        if not bad:
            return
        current, names = self._current(), [self._names[i] for i in bad]
        guilty = self._terms.nonfinite(bad)
        message = f"step {current.step}: NaN or Inf in the gradient of {names[0]}"
        message += f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
        message += f", from the term {guilty[0]!r}" if guilty else ""
        message += f", in micro-batch {len(current.reaches)}{where}"
        self._owner.event("nonfinite", message, current.step, tensors=names[:20], terms=guilty)
        raise NonFiniteGradient(f"{message}. The weights are still those before the step.")
