"""Rollouts with what their samples were given: rewards, ends and values beside the credit of the
first epoch, for a few rollouts of a run.

`gradiometer replay` and the doctor compute the advantages of such a rollout again, rightly and
wrongly, and see which the update had (maths/recipes.py). Values are heard where the critic gives
them: the head is the layer of one output behind the value error of a loss, and its observations are
what the last layer as wide as an observation took. On a CPU only: elsewhere each would be a sync.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradiometer.capture import hooks
from gradiometer.capture.environment import Collection, EnvironmentView
from gradiometer.capture.living import living
from gradiometer.capture.logprobs import SeenGraph, observations, trained_towards, value_weights
from gradiometer.records import Table

__all__ = ["CriticListener", "RolloutKeeper"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_ROLLOUTS, ENOUGH_SAMPLES, MOST_SMALL = 6, 512, 48
"""Rollouts of a run that are kept; small ones are joined by the judge, so of those as many as make
up enough samples: an end of an episode may be in one of three."""
MOST_ROWS = 4096
"""Transitions of one that is kept: 200 kB of text. Of more, those of the first environments."""
MOST_TRIES = 16
"""Rollouts whose first updates are asked to be measured."""
MOST_VALUES = 65_536
KNOWN = 0.98
"""Of the transitions, whose values must have been heard."""
FIRST_UPDATES, LEAST_FIRST = 5, 64
"""Updates on the first rollout after which its part so far is written: a mistake in its advantages
can be told by then. And samples that it must have."""
DIGITS = 7
MOST_ERRORS = 4
MOST_LENT = 64
"""Layers of the process that may be those of a critic without weights of its own."""


class CriticListener:
    """What the critic said of observations since the last update; what it said first counts."""

    def __init__(self, modules: Callable[[], Iterable[nn.Module]]) -> None:
        self._modules = modules
        self._remove: list[hooks.Remove] = []
        self._given: Tensor | None = None
        self._has_searched = False
        self._answers: list[tuple[bytes, list[float]]] = []
        """What was asked, row by row, and what was said; looked through only where it is needed."""
        self._num_answers = 0
        self.listening = False
        self._early: list[tuple[int, bytes, list[float]]] = []
        """What layers of one output said before the critic was known, each by its id."""
        self._stop_expecting: list[hooks.Remove] = []

    def expect(self, width: Callable[[], int]) -> None:
        """Until it is known who the critic is, hear every layer that may be its head: what the
        first rollout was worth is said before the first loss. `width` of an observation."""
        linear = list(self._linear()) or living(nn.Linear)[nn.Linear]  # lent ones
        heads = [each for each in linear if each.out_features == 1]
        if not heads or len(linear) > MOST_LENT or self._is_compiled():
            return
        mine = weakref.ref(self)  # a module's hooks must not keep the listener
        notes = [(each, _expecting(mine, width)) for each in linear]
        notes += [(each, _answering_early(mine, id(each))) for each in heads]
        for each, note in notes:
            self._stop_expecting.append(hooks.observe_module(each, _LentListener(note)))

    def _is_compiled(self) -> bool:
        """A hook that comes and goes would make it compile again."""
        parts = (part for root in self._modules() for part in root.modules())
        return any(getattr(part, "_compiled_call_impl", None) is not None for part in parts)

    def expect_no_more(self) -> None:
        """A loss was seen: its critic is known, or there is none."""
        self._early.clear()
        while self._stop_expecting:
            self._stop_expecting.pop()()

    def _take_early(self, heads: Iterable[nn.Module]) -> None:
        """These are the heads: what they said so far counts."""
        wanted = {id(each) for each in heads}
        self._answers += [(rows, said) for head, rows, said in self._early if head in wanted]
        self._num_answers += sum(len(said) for _, said in self._answers)
        self._given = None
        self.expect_no_more()

    @property
    def values(self) -> dict[bytes, float]:
        """By the bytes of an observation."""
        found: dict[bytes, float] = {}
        for whole, said in self._answers:
            size = len(whole) // len(said)
            for place, value in enumerate(said):
                found.setdefault(whole[size * place : size * (place + 1)], value)
        return found

    def learn(self, weights: Sequence[Tensor], width: int) -> None:
        """These weights are of the layer whose output is the value; `width` of an observation."""
        if self.listening:
            return
        wanted, linear = {id(each) for each in weights}, list(self._linear())
        heads = [each for each in linear if id(each.weight) in wanted and each.out_features == 1]
        entries = [each for each in linear if each.in_features == width]
        if not heads:
            self._learn_lent(weights, width)
            return
        if not entries:
            return
        self.listening = True
        self._take_early(heads)
        self._remove += [hooks.observe_layer(each, self._entered) for each in entries]
        self._remove += [hooks.observe_layer(each, self._answered) for each in heads]

    def _learn_lent(self, weights: Sequence[Tensor], width: int) -> None:
        """torchrl lends its weights to a network without any of its own, for one call each; which
        layer it is shows when it answers."""
        if self._has_searched:
            return
        self._has_searched = True
        linear = living(nn.Linear)[nn.Linear]
        sizes = {each.shape[-1] for each in weights if each.ndim == 2 and each.shape[0] == 1}
        heads = [each for each in linear if each.out_features == 1 and each.in_features in sizes]
        entries = [each for each in linear if each.in_features == width]
        if not heads or not entries or len(heads) + len(entries) > MOST_LENT:
            return
        self.listening = True
        self._take_early(heads)
        for each in entries:
            self._remove.append(hooks.observe_module(each, _LentListener(self._entered)))
        for each in heads:
            note = _answering(weakref.ref(self), weakref.ref(each), weights)
            self._remove.append(hooks.observe_module(each, _LentListener(note)))

    def forget(self) -> None:
        """An update is over: what the critic said before it is of the past."""
        self._answers.clear()
        self._num_answers = 0

    def stop(self) -> None:
        """Listen no more."""
        self.forget()
        self.expect_no_more()
        while self._remove:
            self._remove.pop()()

    def _linear(self) -> Iterable[nn.Linear]:
        seen = {id(part): part for root in self._modules() for part in root.modules()}
        return (part for part in seen.values() if isinstance(part, nn.Linear))

    def _entered(self, given: Tensor, _: Tensor) -> None:
        # of every forward of the policy too: what it costs is this line
        self._given = given.detach() if given.requires_grad else given

    def _answered(self, _: Tensor, said: Tensor) -> None:
        given, self._given = self._given, None
        if given is None or self._num_answers >= MOST_VALUES:
            return
        number = said.numel()
        if given.numel() != number * given.shape[-1] or not number:
            return
        found = [said.item()] if number == 1 else said.detach().reshape(-1).tolist()
        rows = given if given.dtype is torch.float32 else given.float()
        self._answers.append((rows.numpy().tobytes(), found))
        self._num_answers += number


def _expecting(
    mine: weakref.ref[CriticListener], width: Callable[[], int]
) -> Callable[[Tensor, Tensor], None]:
    def note(given: Tensor, _: Tensor) -> None:
        if (listener := mine()) is not None and given.shape[-1] == width():
            listener._given = given.detach()

    return note


def _answering_early(
    mine: weakref.ref[CriticListener], head: int
) -> Callable[[Tensor, Tensor], None]:
    def note(_: Tensor, said: Tensor) -> None:
        listener = mine()
        given = None if listener is None else listener._given
        if listener is None or given is None or given.numel() != said.numel() * given.shape[-1]:
            return
        if len(listener._early) < MOST_VALUES:
            found = said.detach().reshape(-1).tolist()
            listener._early.append((head, given.float().numpy().tobytes(), found))

    return note


class _LentListener(hooks.LayerListener):
    """As for a layer, also where torch.func.vmap calls it with several sets of weights."""

    __slots__ = ()

    def __call__(self, _module: nn.Module, inputs: Any, output: Any) -> None:
        if inputs and not torch.compiler.is_compiling():
            self._hand_on(inputs[0], output)

    @hooks.harmless
    def _hand_on(self, given: Any, said: Any) -> None:
        whole = _whole(given), _whole(said)
        if whole[0] is not None and whole[1] is not None:
            self._note(whole[0], whole[1])


def _whole(x: Any) -> Tensor | None:
    """A tensor; within a vmap, what it is a part of: the sets first, then the rows."""
    functorch = torch._C._functorch
    if isinstance(x, Tensor) and functorch.is_batchedtensor(x):
        x = functorch.get_unwrapped(x) if functorch.maybe_get_bdim(x) == 0 else None
    if not isinstance(x, Tensor) or functorch.is_functorch_wrapped_tensor(x):
        return None
    return x.detach() if x.device.type == "cpu" else None


def _answering(
    mine: weakref.ref[CriticListener], layer: weakref.ref[nn.Linear], weights: Sequence[Tensor]
) -> Callable[[Tensor, Tensor], None]:
    """Note what the layer says while it has one of these weights."""
    wanted = [weakref.ref(each) for each in weights]

    def note(given: Tensor, said: Tensor) -> None:
        listener, held = mine(), layer()
        now = None if held is None else _whole(held.weight)
        known = [each for ref in wanted if (each := ref()) is not None]
        if listener is None or now is None:
            return
        first = now[0] if now.ndim == 3 else now
        if any(np.array_equal(first.numpy(), each.detach().numpy()) for each in known):
            listener._answered(given, said)

    return note


@dataclass(slots=True, kw_only=True)
class _Open:
    """A rollout whose first epoch is in progress."""

    collection: Collection
    kept: Ints
    """Which transitions of it are kept, of how many environments: [steps, kept environments]."""
    values: Floats | None
    next_values: Floats | None
    credit: list[Floats] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)
    calls: list[Ints] = field(default_factory=list)
    places: list[Ints] = field(default_factory=list)
    targets: list[Floats] = field(default_factory=list)
    """What the values of the same samples were trained towards; NaN where that is not known."""
    seen: set[int] = field(default_factory=set)
    rounds: int = 0
    """Updates on it so far."""


class RolloutKeeper:
    """Gathers the credit of first epochs, and writes a rollout when its epoch is over."""

    def __init__(
        self, put: Callable[[Table], None], critic: CriticListener, view: EnvironmentView
    ) -> None:
        self._put, self._critic, self._view = put, critic, view
        self._open: _Open | None = None
        self.kept = self._samples = 0
        self._towards: tuple[Tensor, Tensor] | None = None
        """Observations of the newest error of values, and its targets."""
        self.values_of: list[Tensor] = []
        """Observations of all errors of values that went backward last."""
        self._wanted = self._tries = 0
        """The rollout whose first updates were asked for, and how many were."""

    @property
    def done(self) -> bool:
        """Whether enough is kept."""
        most = MOST_ROLLOUTS if self._samples >= ENOUGH_SAMPLES else MOST_SMALL
        return self.kept >= most

    def wants_first_update(self) -> bool:
        """Whether the coming update is the first on a rollout that the critic is heard in: of one
        whose first update is not measured nothing can be kept."""
        if not self._critic.listening or self.done or not self._view.is_ahead:
            return False
        coming = self._view.num_collections + 1
        if coming == self._wanted:
            return False
        if self._tries >= MOST_TRIES:
            self._critic.stop()
            return False
        self._wanted, self._tries = coming, self._tries + 1
        return True

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss goes backward: if it has an error of values, whose values they are."""
        if seen.errors and not self.done and self._view.width:
            self._critic.learn(value_weights(seen), self._view.width)
            told = list(_told_of(seen))
            self._towards = told[0] if told else None
            self.values_of = [data for data, _ in told]

    def round_ended(self, step: int) -> None:
        """An update is over: from here on the critic says something else. Is its rollout done?"""
        self._critic.forget()
        self._critic.expect_no_more()
        self.values_of = []
        held = self._open
        if held is None:
            return
        held.rounds += 1
        if len(held.seen) >= held.kept.size:
            self._end(step)
        elif held.rounds == FIRST_UPDATES and not self.kept and len(held.seen) >= LEAST_FIRST:
            content = _content(held) | {"is_part": True}
            self._put(Table(step=step, name="replay", content=content))

    def close(self) -> None:
        """What is open is not whole, and is not kept."""
        self._open = None
        self._critic.stop()

    def begin(self, collection: Collection, step: int) -> None:
        """The first update on a rollout: what the critic said of it is known now."""
        self._end(step)
        steps, parts = collection.ends.shape
        few = min(parts, MOST_ROWS // steps)
        if self.done or not few:
            return
        kept = np.arange(steps)[:, None] * parts + np.arange(few)
        over = (collection.ends + collection.cuts).reshape(-1)[kept.reshape(-1)] > 0
        values = self._heard(collection.observations, kept, np.ones_like(over))
        # of what lies beyond an end many a critic is never asked, and it counts for nothing
        following = self._heard(collection.following, kept, ~over)
        both = values is not None and following is not None
        if self._critic.listening and not both:
            self._open = None
            return
        self._open = _Open(
            collection=collection,
            kept=kept,
            values=values.reshape(kept.shape) if both and values is not None else None,
            next_values=following.reshape(kept.shape) if both and following is not None else None,
        )

    def add(
        self, collection: Collection, call: int, parts: Sequence[tuple[Floats, Ints, Ints]]
    ) -> None:
        """Credit of one backward: of each node its values, the transitions and their places in the
        batch."""
        held, towards = self._open, self._towards
        self._towards = None
        if held is None or held.collection.number != collection.number:
            return
        credit, rows, places = (np.concatenate(each) for each in zip(*parts, strict=True))
        num, few = collection.ends.shape[1], held.kept.shape[1]
        mine = rows % num < few
        credit, rows, places = credit[mine], rows[mine], places[mine]
        if not held.seen.isdisjoint(rows.tolist()):
            return  # the second epoch
        held.seen.update(rows.tolist())
        held.credit.append(credit)
        held.rows.append(rows // num * few + rows % num)
        held.calls.append(np.full(len(rows), call, dtype=np.int64))
        held.places.append(places)
        held.targets.append(_targets_of(rows, towards, collection))

    def _end(self, step: int) -> None:
        """The first epoch of the rollout is over."""
        held, self._open = self._open, None
        if held is None or not held.credit:
            return
        self.kept += 1
        self._samples += len(held.seen)
        # without its first step it is no table of steps by environments
        part = {"is_part": True} if held.collection.lacks_first else {}
        self._put(Table(step=step, name="replay", content=_content(held) | part))
        if self.done:
            self._critic.stop()

    def _heard(self, rows: Sequence[bytes], kept: Ints, needed: NDArray[np.bool_]) -> Floats | None:
        """Values of these observations; None where too many of those needed were not heard."""
        values = self._critic.values
        if len(rows) <= kept.max():
            return None
        found = np.array([values.get(rows[i], np.nan) for i in kept.reshape(-1).tolist()])
        if not needed.any():  # each step is an episode
            return np.zeros(len(needed)) if values else None
        return np.nan_to_num(found) if np.isfinite(found[needed]).mean() >= KNOWN else None


def _told_of(seen: SeenGraph) -> Iterator[tuple[Tensor, Tensor]]:
    """Observations and targets of the errors that tell them: of a clipped value's two, one does."""
    for error in seen.errors[:MOST_ERRORS]:
        told = trained_towards(*error)
        data = None if told is None else observations(told.below, told.targets.numel())
        if told is not None and data is not None and data.ndim == 2 and told.actions is None:
            yield data.detach(), told.targets.detach()


def _targets_of(
    rows: Ints, towards: tuple[Tensor, Tensor] | None, collection: Collection
) -> Floats:
    """The target of each of these transitions, NaN where it is not known."""
    found = np.full(len(rows), np.nan)
    if towards is None or towards[1].device.type != "cpu":
        return found
    data, targets = towards[0].double().numpy(), towards[1].double().reshape(-1).numpy()
    places = collection.places(data)
    known = {its[0]: targets[n] for n, its in enumerate(places) if len(its) == 1}
    return np.array([known.get(int(row), np.nan) for row in rows])


def _content(held: _Open) -> dict[str, Any]:
    run, few = held.collection, held.kept.shape[1]
    arrays: dict[str, NDArray[Any] | None] = {
        "rewards": run.rewards.reshape(run.ends.shape)[:, :few],
        "ends": run.ends[:, :few],
        "cuts": run.cuts[:, :few],
        "values": held.values,
        "next_values": held.next_values,
        "credit": np.concatenate(held.credit),
        "rows": np.concatenate(held.rows),
        "calls": np.concatenate(held.calls),
        "places": np.concatenate(held.places),
    }
    targets = np.concatenate(held.targets)
    arrays["targets"] = targets if np.isfinite(targets).all() else None
    return {name: None if x is None else _short(x) for name, x in arrays.items()}


def _short(x: NDArray[Any]) -> Any:
    """As lists, with as many digits as a float has."""
    if x.dtype.kind in "iub":
        return x.astype(np.int64).tolist()
    flat = [float(f"{value:.{DIGITS}g}") for value in x.reshape(-1).tolist()]
    rows = iter(flat)
    return (
        flat if x.ndim == 1 else [list(itertools.islice(rows, x.shape[1])) for _ in range(len(x))]
    )
