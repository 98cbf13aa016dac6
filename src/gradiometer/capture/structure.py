"""What the structure of a training proves, looked at while it trains, and told once.

The observer tells of backwards and steps. Graphs are walked on the first measured steps and then
rarely, as the line of a mistake does not change. A fault of ours here ends the looking, nothing
else.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec

from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture.callers import SourceLine, line_of_call, line_of_node, namespaces
from gradiometer.capture.cleared import ClearedGradients
from gradiometer.capture.hooks import shape_warnings
from gradiometer.capture.leaks import GraphTerm, TermLeaks
from gradiometer.capture.proofs import (
    ExpandedSides,
    OtherAxis,
    ProofLog,
    Twice,
    broadcast_shape,
    broadcasts,
    dimension_of,
    is_mixed,
    normalised_elsewhere,
    normalised_twice,
    shape_of,
)
from gradiometer.capture.rounds import Recorder, WatchedModel
from gradiometer.capture.seensettings import note_settings
from gradiometer.capture.twins import TargetNetworks
from gradiometer.capture.untrained import (
    HandMoved,
    IdleOptimizers,
    UnreachedOptimizers,
    UntrainedParameters,
    held_by,
)

__all__ = ["Structure", "tell_broadcast", "tell_other_axis", "tell_twice"]

MOST_WALKS = 12
"""Backwards that are walked at once: a delayed actor, or another optimizer, comes after the first.
Later those of measured steps whose number is a power of two."""
SHAPES, TWICE, OTHER_AXIS = "shapes-broadcast", "double-softmax", "score-not-zero-mean"
WORDS = {
    "Sub": "a difference",
    "Rsub": "a difference",
    "Add": "a sum",
    "Mul": "a product",
    "Div": "a ratio",
    "Minimum": "a minimum",
    "Maximum": "a maximum",
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
}

P = ParamSpec("P")


def _contained(
    method: Callable[Concatenate[Structure, P], None],
) -> Callable[Concatenate[Structure, P], None]:
    """A fault ends the looking and is kept as an event."""

    @functools.wraps(method)
    def wrapper(self: Structure, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.is_over:
            return
        try:
            method(self, *args, **kwargs)
        except Exception:
            self.is_over = True
            self.recorder.event("fault", f"proofs: {traceback.format_exc()}")

    return wrapper


class Structure:
    """Looks at graphs, gradients and modules, and writes what they prove into the log."""

    def __init__(self, recorder: Recorder, log: ProofLog, optimizers: Sequence[Optimizer]) -> None:
        self.recorder, self.log = recorder, log
        self.is_over = False
        self._optimizers = optimizers
        self._cleared = ClearedGradients(log)
        self._targets = TargetNetworks(log)
        self._untrained = UntrainedParameters(log)
        self._unreached = UnreachedOptimizers(log)
        self._hand_moved = HandMoved(recorder)
        self._idle = IdleOptimizers(log, optimizers)
        self._leaks = TermLeaks(log)
        self._walks = 0
        self._number: int | None = None
        """Of the last measured round that has begun."""

    @_contained
    def scan(self, watched: WatchedModel, *, sharded: bool) -> None:
        """The model was read, perhaps anew."""
        if sharded:
            self._cannot("the model is sharded: each rank has pieces of its gradients")
            return
        self._unreached.scan(watched)
        self._leaks.scan(watched.names, watched.parameters, watched.owner)
        sentinels = [watched.parameters[i] for i in watched.sentinels]
        self._cleared.scan(sentinels, [watched.owner.get(i) for i in watched.sentinels])

    def leave(self, why: str) -> None:
        """Look at nothing any more."""
        self._cannot(why)
        self.is_over = True

    def _cannot(self, why: str) -> None:
        for id in ("gradients-not-cleared", "not-in-optimizer", "leak-between-terms"):
            self.log.unmeasurable(id, why)

    @_contained
    def round_begins(self, number: int, measured: int) -> None:
        """The first backward of a measured round is about to begin; nobody has stepped in it."""
        if number == self._number:
            return
        self._number = number
        if not self._targets.is_found:
            spaces = namespaces(nn.Module, Optimizer)
            around = [x for space in spaces for x in space.values() if isinstance(x, Optimizer)]
            self._targets.find(spaces, held_by([*self._optimizers, *around]), number)
            note_settings(namespaces(float, int), self.recorder)
        self._targets.look(number, measured)

    @_contained
    def measured(self, watched: WatchedModel, captured: Collection[int]) -> None:
        """A measured round is over, in which these parameters had a gradient."""
        self._untrained.look(watched, captured)
        self._hand_moved.look(watched, captured)
        if self.log.state(SHAPES) != "found":
            self._heed_warnings()

    def _heed_warnings(self) -> None:
        """torch warns where mse_loss and the like expand both sides, also where no graph shows."""
        for warned in shape_warnings():
            result = broadcast_shape(warned.target, warned.given)
            if is_mixed(warned.given, warned.target, result):
                line = SourceLine(file=warned.file, line=warned.line)
                message = (
                    f"torch warns of a loss whose sides have shapes {warned.given} and"
                    f" {warned.target} ({line}): they are expanded to {result}"
                )
                shapes = [list(warned.given), list(warned.target)]
                detail = {"shapes": shapes, "result": list(result or ()), **line.detail()}
                self.log.found(SHAPES, message, **detail)
                return

    @_contained
    def finish(self, number: int) -> None:
        """The training is over, after so many rounds."""
        self._targets.finish(number)
        self._idle.finish()

    @_contained
    def graph_ready(self, tensors: Iterable[Any], measured: int) -> None:
        """A loss of a measured step is about to go backward."""
        rare = measured >= MOST_WALKS and measured & (measured - 1) == 0
        if self._walks >= MOST_WALKS and not rare:
            return
        self._walks += 1
        roots = [x.grad_fn for x in tensors if isinstance(x, Tensor) and x.grad_fn is not None]
        if roots:
            walk(roots, self.log)
            self._unreached.look(roots)

    @_contained
    def terms_ready(self, terms: Collection[GraphTerm]) -> None:
        """The terms of a loss that is about to go backward."""
        self._leaks.look(terms)

    @property
    def follows_backwards(self) -> bool:
        """Whether the two below are of any use; asked at every backward, measured or not."""
        return self._leaks.is_looking or self._cleared.is_looking

    @_contained
    def before_backward(self) -> None:
        """A backward is about to add to gradients."""
        self._leaks.before_backward()
        if self._cleared.is_looking:
            self._cleared.before_backward()

    @_contained
    def after_backward(self, reached: frozenset[int]) -> None:
        """A backward has ended."""
        self._leaks.after_backward()
        if self._cleared.is_looking:
            self._cleared.after_backward(reached)

    @_contained
    def stepping(self, optimizer: int) -> None:
        """The gradients of a step are complete."""
        self._unreached.stepping()
        self._leaks.stepping(optimizer)
        self._cleared.stepping(optimizer)

    @_contained
    def stepped(self, optimizer: int) -> None:
        """A step is over."""
        self._idle.stepped(optimizer)
        self._leaks.stepped(optimizer)
        self._cleared.stepped(optimizer)


def walk(roots: list[Any], log: ProofLog) -> None:
    """Everything that the nodes of a loss tell by themselves."""
    sides = next(broadcasts(roots), None)
    twice = next(normalised_twice(roots), None)
    _note(SHAPES, None if sides is None else tell_broadcast(sides), log)
    _note(TWICE, None if twice is None else tell_twice(twice), log)
    if (other := next(normalised_elsewhere(roots), None)) is not None:
        message, detail = tell_other_axis(other)
        log.found(OTHER_AXIS, message, **detail)


def _note(id: str, told: tuple[str, dict[str, Any]] | None, log: ProofLog) -> None:
    if told is None:
        log.ok(id)
    else:
        log.found(id, told[0], **told[1])


def tell_broadcast(found: ExpandedSides) -> tuple[str, dict[str, Any]]:
    """A message and the details of two sides that were expanded against each other."""
    rows = max(found.result)
    line = line_of_node([found.node, *found.above])
    what = WORDS.get(found.operation, found.operation)
    message = (
        f"{what} of shapes {found.first} and {found.second} is {found.result}{_at(line)}: each of"
        f" {rows} rows meets every other one, and {rows} × {rows} numbers go into the loss"
    )
    return message, {
        "shapes": [list(found.first), list(found.second)],
        "result": list(found.result),
        "node": found.node.name(),
        **_detail(line),
    }


def tell_twice(found: Twice) -> tuple[str, dict[str, Any]]:
    """A message and the details of probabilities that are taken for logits."""
    first, second = found.words
    line = line_of_node([found.node, found.below])
    message = f"what {first} gave goes through {second} as if it were logits{_at(line)}"
    shape = shape_of(found.below)
    if dimension_of(found.below) == 0 and shape is not None and len(shape) > 1:
        message += f": {first} is along dimension 0, the {shape[0]} samples"
    return message, {"node": found.node.name(), "below": found.below.name(), **_detail(line)}


def tell_other_axis(found: OtherAxis) -> tuple[str, dict[str, Any]]:
    """A message and the details of probabilities that add up to 1 over the samples."""
    line = line_of_node([found.node, found.below])
    shape, along = shape_of(found.below) or (0, 0), dimension_of(found.below) or 0
    rows, actions = shape[along], shape[-1]
    over = "samples" if along == 0 else "places of a sequence"
    message = (
        f"{' × '.join(map(str, shape))} probabilities add up to 1 over the {rows} {over}, not over"
        f" the {actions} actions of each{_at(line)}: softmax along dimension {along}"
    )
    return message, {"how": "axis", "shape": list(shape), **_detail(line)}


def _at(line: SourceLine | None) -> str:
    if line is not None:
        return f" ({line.name!r}, {line})" if line.name else f" ({line})"
    call = line_of_call()
    return "" if call is None else f" (seen at the backward in {call})"


def _detail(line: SourceLine | None) -> dict[str, Any]:
    line = line or line_of_call()
    return {} if line is None else line.detail()
