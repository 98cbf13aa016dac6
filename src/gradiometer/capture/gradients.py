"""Reads gradients and weights into a `Reading`, without a sync and without changing them.

Tensor by tensor, not statistic by statistic: while a tensor is in the cache, everything is taken
from it. Small tensors are read together, statistic by statistic (pools.py): there the time is that
of the calls.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from gradiometer.capture.blocks import Blocks
from gradiometer.capture.distributed import Piece, ShardSketcher, local, places_of, version_of
from gradiometer.capture.hooks import without_graph
from gradiometer.capture.pools import (
    MARK_BITS,
    NEVER,
    Grouping,
    Loaded,
    PoolPart,
    pools_of,
    put_segments,
    sample_columns,
    segment_columns,
)
from gradiometer.capture.rounds import Round, SeenClip, WatchedModel
from gradiometer.capture.statistics import (
    SAMPLE_SIZE,
    Mask,
    Reading,
    Sample,
    Source,
    When,
    passes,
)
from gradiometer.maths import stats
from gradiometer.maths.histogram import log_histogram
from gradiometer.maths.segments import Rows, silent
from gradiometer.maths.sketch import Joined, Sketcher, Tiles, key_of, shift_of

__all__ = [
    "SKETCH_SEED",
    "GradientReader",
    "GradientSamples",
    "GradientSketches",
    "SentinelGradients",
    "StatisticColumns",
    "Version",
]

MOST_GROUPINGS = 256  # lists of parameters that are read at once; a model has few
SKETCH_SEED = 20_177  # one for all runs, so that sketches of two runs of a model can be compared


class StatisticColumns:
    """The statistics of one source, tensor by tensor: each function runs once a tensor."""

    def __init__(self, source: Source, when: When = "long") -> None:
        self._passes = passes(source, when)
        self._indices: list[int] = []
        self._columns: list[list[Any]] = [[] for _ in self._passes]
        self._reads = [read for read, _ in self._passes]

    def read(self, *tensors: Tensor) -> list[Any]:
        """What the functions give, to be added later."""
        return [read(*tensors) for read in self._reads]

    def add(self, i: int, numbers: list[Any]) -> None:
        """What was read of the parameter `i`."""
        self._indices.append(i)
        for column, number in zip(self._columns, numbers, strict=True):
            column.append(number)

    def take(self, i: int, *tensors: Tensor) -> None:
        """Read and add, at the fewest calls: this runs for every tensor of every measured step."""
        self._indices.append(i)
        for column, read in zip(self._columns, self._reads, strict=True):
            column.append(read(*tensors))

    def take_many(self, indices: Sequence[int], tensors: list[Tensor]) -> None:
        """The same of many, by fused kernels where there are any."""
        self._indices += indices
        for (read, statistics), column in zip(self._passes, self._columns, strict=True):
            many = statistics[0].read_many
            column += [read(x) for x in tensors] if many is None else many(tensors)

    def put_into(self, reading: Reading) -> None:
        """All of them, a column a statistic."""
        for (_, statistics), column in zip(self._passes, self._columns, strict=True):
            for each in statistics:
                part = each.part
                numbers = column if part is None else [several[part] for several in column]
                reading.add(each, self._indices, numbers)


class GradientReader:
    """Holds the parameters and one scratch copy of their size (tier `standard` and above).

    The scratch holds the previous gradient until the new one has been compared with it, then the
    weights before the step, then the gradient again.
    """

    def __init__(
        self, parameters: Sequence[Tensor], pieces: Mapping[int, Piece] | None = None
    ) -> None:
        self.parameters = list(parameters)
        self.pieces = pieces or {}
        """Where this rank's part of each parameter lies, when they are sharded."""
        self._places = {
            i: places_of(piece, SAMPLE_SIZE, parameters[i].device)
            for i, piece in self.pieces.items()
        }
        self._large = frozenset(
            i
            for i, p in enumerate(self.parameters)
            if p.numel() * (2 if p.is_complex() else 1) > SAMPLE_SIZE
        )
        self.index = {id(p): i for i, p in enumerate(self.parameters)}
        self._scratch: dict[int, Tensor] = {}
        self._samples = GradientSamples()
        count = len(self.parameters)
        self._gradient_of = np.full(count, NEVER)
        """Whose scratch holds a gradient: of which step."""
        self._numbers_kept = np.zeros(count, dtype=np.bool_)
        """Whether something was read of it when it was kept; else the host has the same from the
        step itself."""
        self._numbers: dict[int, list[Any]] = {}
        self._weights_of = np.full(count, -1)
        """Whose scratch holds the weights: their change counter at the time."""
        self._unpooled: frozenset[int] = frozenset()
        """Small parameters that turned out to have sparse gradients."""
        self._set_up_pools()
        self._noted: dict[int, int] = {}

    def indices(self, tensors: Iterable[Tensor]) -> list[int]:
        """The watched ones among `tensors`."""
        index = self.index
        return [index[id(t)] for t in tensors if id(t) in index]

    def first_of(self, tensors: Iterable[Tensor]) -> int | None:
        """The first watched one among `tensors`; None when they are another model's."""
        index = self.index
        for tensor in tensors:
            if (found := index.get(id(tensor))) is not None:
                return found
        return None

    def with_grad(self, indices: Iterable[int]) -> list[int]:
        """Those that hold a gradient now."""
        return [i for i in indices if self.parameters[i].grad is not None]

    def grad(self, i: int) -> Tensor:
        """A gradient that is there, dense and real; of a sharded one what is here."""
        grad = self.parameters[i].grad
        assert grad is not None
        return stats.filled(local(grad))

    def _weight(self, i: int) -> Tensor:
        return stats.filled(local(self.parameters[i]))

    def _sample(self, i: int, grad: Tensor) -> Tensor:
        return (
            grad.reshape(-1)[self._places[i]] if self._places else stats.sample(grad, SAMPLE_SIZE)
        )

    def versions(self, indices: Iterable[int]) -> dict[int, int]:
        """torch's counter of in-place changes of each gradient: equal means untouched."""
        parameters, of = self.parameters, version_of if self.pieces else _version
        return {i: of(grad) for i in indices if (grad := parameters[i].grad) is not None}

    def marks(self, indices: Iterable[int]) -> dict[int, int]:
        """Address and change counter of each gradient, in one number, which nobody has to collect
        as garbage: equal means the same tensor, untouched."""
        parameters, of = self.parameters, version_of if self.pieces else _version
        return {
            i: id(grad) << MARK_BITS | of(grad)
            for i in indices
            if (grad := parameters[i].grad) is not None
        }

    def _set_up_pools(self) -> None:
        self._pools = [] if self.pieces else pools_of(self.parameters)
        self._groupings: dict[tuple[int, ...], Grouping] = {}
        self.forget_past()
        self._weights_of.fill(-1)

    def _grouping(self, indices: Sequence[int]) -> Grouping:
        """Which of them are read together; found once for each list of parameters."""
        for pool in self._pools:
            first = self.parameters[pool.members[0]]
            if (first.device, first.dtype) != (pool.device, pool.dtype):  # the model has moved
                self._set_up_pools()
                break
        key = tuple(indices)
        found = self._groupings.get(key)
        if found is None:
            if len(self._groupings) >= MOST_GROUPINGS:
                self._groupings.clear()
            found = Grouping(key, self._pools, self.parameters, leave_out=self._unpooled)
            self._groupings[key] = found
        return found

    def grouped(self, indices: Sequence[int]) -> tuple[list[Loaded], list[int]]:
        """Those that are read together, with their gradients, and the others."""
        grouping = self._grouping(indices)
        loaded = [Loaded(part) for part in grouping.parts]
        if sparse := [i for each in loaded for i in each.sparse()]:
            self._take_out(sparse)
            return self.grouped(indices)
        return loaded, grouping.others

    def _take_out(self, indices: Sequence[int]) -> None:
        """They are read one by one from here on; what is held of them stays where it is."""
        self._unpooled |= frozenset(indices)
        self._groupings.clear()
        for pool in self._pools:
            places = {i: place for place, i in enumerate(pool.members)}
            self._scratch.update((i, pool.views[places[i]]) for i in indices if i in places)
        self._gradient_of[list(indices)] = NEVER

    @without_graph
    def read_light(self, reading: Reading, indices: Sequence[int]) -> None:
        """The few statistics of each gradient that every tier has, as backward left it."""
        together, others = self.grouped(indices)
        for each in together:
            part, now = each.part, each.now()
            put_segments(reading, part, segment_columns("gradient", part, now, when="light"))
        if not others:
            return
        gradients = StatisticColumns("gradient", "light")
        gradients.take_many(others, self._elements(others))
        gradients.put_into(reading)

    @without_graph
    @silent
    def read_full(
        self,
        reading: Reading,
        indices: Sequence[int],
        *,
        step: int,
        keep_weights: Collection[int],
        long_view: bool,
    ) -> None:
        """Each gradient as backward left it, by itself and beside that of the step before.

        The weights of those about to be stepped are kept on the way, while the scratch is in the
        cache; a small sample of each gradient is taken for the same reason.
        """
        together, others = self.grouped(indices)
        for each in together:
            self._read_together(reading, each, step=step, long_view=long_view)
            self._keep_weights_of(each.part, each.part.among(keep_weights))
        if not others:
            return
        gradients = StatisticColumns("gradient", _when(long_view))
        large, read_whole = StatisticColumns("large"), self._large if long_view else ()
        against, kept = StatisticColumns("previous"), StatisticColumns("kept")
        samples = self._no_samples(others)
        for row, i in enumerate(others):
            grad = self.grad(i)
            gradients.take(i, grad)
            if i in read_whole:
                large.take(i, grad)
            sample = self._sample(i, grad)
            samples[row, : len(sample)] = sample
            # a cosine over another lag would be another quantity
            if self._gradient_of[i] == step - 1:
                against.take(i, grad, self._scratch[i])
                if self._numbers_kept[i]:
                    kept.add(i, self._numbers[i])
            if i in keep_weights:
                self._keep_weight(i)
        for columns in (gradients, large, against, kept):
            columns.put_into(reading)
        self._samples.read(reading, others, samples, step=step)

    def _read_together(
        self, reading: Reading, loaded: Loaded, *, step: int, long_view: bool
    ) -> None:
        part, now, when = loaded.part, loaded.now(), _when(long_view)
        put_segments(reading, part, segment_columns("gradient", part, now, when=when))
        large = part.among(self._large)
        if long_view and large.any():
            put_segments(reading, part, segment_columns("large", part, now), large)
        lag_1 = self._gradient_of[part.numbers] == step - 1
        if lag_1.any():
            put_segments(reading, part, segment_columns("previous", part, now, part.held()), lag_1)
            kept = part.pool.numbers
            columns = {each: kept[each][part.rows_of_pool] for each in kept}
            put_segments(reading, part, columns, lag_1 & self._numbers_kept[part.numbers])
        part.read_samples(reading, step=step)

    @without_graph
    def read_clipped(self, reading: Reading, indices: Sequence[int]) -> None:
        """Each gradient as the optimizer is about to see it."""
        together, others = self.grouped(indices)
        for each in together:
            put_segments(reading, each.part, segment_columns("clipped", each.part, each.now()))
        if not others:
            return
        clipped = StatisticColumns("clipped")
        for i in others:
            clipped.take(i, self.grad(i))
        clipped.put_into(reading)

    @without_graph
    def keep_weights(self, indices: Sequence[int]) -> None:
        """Copy the weights before the step, unless they are kept and unchanged."""
        grouping = self._grouping(indices)
        for part in grouping.parts:
            versions = np.array([weight._version for weight in part.parameters])
            self._keep_weights_of(part, versions != self._weights_of[part.numbers])
        for i in grouping.others:
            if self._weights_of[i] != version_of(self.parameters[i]):
                self._keep_weight(i)

    def _keep_weights_of(self, part: PoolPart, which: Mask) -> None:
        if which.any():
            chosen, weights = part.numbers[which], part.chosen(part.parameters, which)
            part.hold(weights, which)
            self._gradient_of[chosen] = NEVER
            self._weights_of[chosen] = [weight._version for weight in weights]

    def _keep_weight(self, i: int) -> None:
        self._gradient_of[i] = NEVER
        self._scratch_for(i).copy_(self._weight(i))
        self._weights_of[i] = version_of(self.parameters[i])

    def note_gradients(self, indices: Sequence[int]) -> None:
        """Remember the gradients as the optimizer gets them: some change them inside their step."""
        self._noted = self.marks(indices)

    def changed_since(self, versions: Mapping[int, int], indices: Iterable[int]) -> set[int]:
        """Those among `indices` whose gradient has another change counter; of the noted ones, as
        it was noted."""
        noted, last = self._noted, (1 << MARK_BITS) - 1
        others = self.versions(i for i in indices if i not in noted)
        now = {**{i: noted[i] & last for i in indices if i in noted}, **others}
        return {i for i, version in now.items() if versions.get(i) != version}

    @without_graph
    @silent
    def read_update(
        self,
        reading: Reading,
        indices: Sequence[int],
        *,
        dots: bool,
        keep_as: int | None,
    ) -> None:
        """The weights before the step, what it did to them and, if asked for, that beside the
        gradient; then the scratch may take the gradient, as that of the step `keep_as`."""
        together, others = self.grouped(indices)
        for each in together:
            self._read_update_of(reading, each, dots=dots, keep_as=keep_as)
        if not others:
            return
        unchanged = {i for i, mark in self.marks(others).items() if self._noted.get(i) == mark}
        weights, updates = StatisticColumns("weight"), StatisticColumns("update")
        steps, for_next = StatisticColumns("step"), StatisticColumns("kept")
        for i in others:
            kept = self._scratch[i]
            weights.take(i, kept)
            kept.sub_(self._weight(i))  # w_before − w_after = −Δw
            updates.take(i, kept)
            self._weights_of[i] = -1
            if self.parameters[i].grad is None or not (dots or keep_as is not None):
                continue
            grad = self.grad(i)
            if dots and i in unchanged:
                steps.take(i, grad, kept)
            if keep_as is not None:
                kept.copy_(grad)
                self._gradient_of[i], self._numbers_kept[i] = keep_as, i not in unchanged
                if i not in unchanged:
                    self._numbers[i] = for_next.read(kept)
        for columns in (weights, updates, steps):
            columns.put_into(reading)

    def _read_update_of(
        self,
        reading: Reading,
        loaded: Loaded,
        *,
        dots: bool,
        keep_as: int | None,
    ) -> None:
        part = loaded.part
        moved = part.held()
        put_segments(reading, part, segment_columns("weight", part, moved))
        moved.sub_(part.load(part.parameters))
        put_segments(reading, part, segment_columns("update", part, moved))
        self._weights_of[part.numbers] = -1
        if not (dots or keep_as is not None):
            return
        there, now, same = loaded.there, loaded.now(), loaded.unchanged(self._noted)
        if dots:
            put_segments(reading, part, segment_columns("step", part, now, moved), there & same)
        if keep_as is not None:
            self._keep_gradients_of(part, there, step=keep_as, known=same)

    @without_graph
    def keep_gradients(self, indices: Sequence[int], *, step: int) -> None:
        """Copy the gradients, and a sample of each, for the next step to be compared with."""
        together, others = self.grouped(indices)
        for each in together:
            each.now()
            self._keep_gradients_of(each.part, each.there, step=step, known=~each.there)
            each.part.keep_samples(step=step)
        if not others:
            return
        samples, for_next = self._no_samples(others), StatisticColumns("kept")
        for row, i in enumerate(others):
            grad = self.grad(i)
            self._weights_of[i] = -1
            self._scratch_for(i).copy_(grad)
            self._gradient_of[i], self._numbers_kept[i] = step, True
            self._numbers[i] = for_next.read(grad)
            sample = self._sample(i, grad)
            samples[row, : len(sample)] = sample
        self._samples.keep(others, samples, step=step)

    def _keep_gradients_of(self, part: PoolPart, which: Mask, *, step: int, known: Mask) -> None:
        """Those in `now`; of the `known` ones the host has the numbers."""
        chosen = part.numbers[which]
        part.hold_now(which)
        self._weights_of[chosen] = -1
        self._gradient_of[chosen], self._numbers_kept[chosen] = step, ~known[which]
        if not known[which].all():
            part.keep_numbers(segment_columns("kept", part, part.now), which & ~known)

    def forget_past(self) -> None:
        """The next step is compared with nothing."""
        self._gradient_of.fill(NEVER)
        self._samples.forget()
        for pool in self._pools:
            pool.sampled.fill(NEVER)

    def read_histograms(self, reading: Reading, indices: Sequence[int], blocks: Blocks) -> None:
        """A histogram of each named block's gradient."""
        named = {name: frozenset(members) for name, members in blocks.named.items()}
        for i in indices:
            counts = log_histogram(self.grad(i))
            if self.pieces:
                counts = counts * self.pieces[i].share
            for name, members in named.items():
                if i in members:
                    reading.add_array(f"histogram/{name}", counts)

    @without_graph
    def nonfinite(self, indices: Sequence[int]) -> list[int]:
        """The parameters with a NaN or an Inf among their gradient's elements. A sync."""
        grads = self._elements(indices)
        # A finite norm is one fused pass and settles it; an infinite one may be an overflow.
        if not grads or bool(_are_finite(stats.norms(grads)).all()):
            return []
        low, high = stats.extremes(grads)
        good = _are_finite(low) & _are_finite(high)
        return [i for i, is_good in zip(indices, good.tolist(), strict=True) if not is_good]

    @without_graph
    def are_finite(self) -> Tensor:
        """Whether all gradients have a finite norm. No sync."""
        norms = stats.norms(self._elements(range(len(self.parameters))))
        if not norms:
            return torch.tensor(True)
        return torch.isfinite(torch.stack([x.to(norms[0]) for x in norms]).sum())

    def _elements(self, indices: Sequence[int]) -> list[Tensor]:
        """The gradients, of sparse ones the elements that are there."""
        grads = [self.parameters[i].grad for i in indices]
        return [stats.values(local(grad)) for grad in grads if grad is not None]

    def _no_samples(self, indices: Sequence[int]) -> Tensor:
        """Room for a sample of each gradient, one row each, [len(indices), SAMPLE_SIZE]."""
        return torch.zeros(
            len(indices),
            SAMPLE_SIZE,
            dtype=torch.float32,
            device=self.parameters[indices[0]].device if indices else None,
        )

    def _scratch_for(self, i: int) -> Tensor:
        kept = self._scratch.get(i)
        weight = local(self.parameters[i])
        shape = (*weight.shape, 2) if weight.is_complex() else weight.shape
        form = weight.device, weight.dtype.to_real(), shape
        if kept is None or (kept.device, kept.dtype, kept.shape) != form:
            kept = torch.empty_like(stats.filled(weight), memory_format=torch.contiguous_format)
            self._scratch[i] = kept
        return kept


_version = attrgetter("_version")


def _when(long_view: bool) -> When:
    return "long" if long_view else "standard"


def _are_finite(numbers: list[Tensor]) -> Tensor:
    return torch.isfinite(torch.stack([x.double() for x in numbers]))


class GradientSamples:
    """Keeps the samples of the step before, to compare signs with."""

    def __init__(self) -> None:
        self._previous: dict[int, tuple[int, Tensor]] = {}

    @without_graph
    def read(self, reading: Reading, indices: Sequence[int], now: Tensor, *, step: int) -> None:
        """Counts and moments of each sample: a thousand numbers a tensor, whatever its size."""
        for each, column in sample_columns("sample", Sample(now, Rows())).items():
            reading.add_column(each, indices, column)
        held = [
            place
            for place, i in enumerate(indices)
            if self._previous.get(i, (None,))[0] == step - 1
        ]
        if held:
            before = torch.stack([self._previous[indices[place]][1] for place in held])
            rows = now if len(held) == len(indices) else torch.stack([now[place] for place in held])
            product = Sample(rows.sign() * before.sign(), Rows())
            compared = [indices[place] for place in held]
            for each, column in sample_columns("signs", product).items():
                reading.add_column(each, compared, column)
        self.keep(indices, now, step=step)

    def keep(self, indices: Sequence[int], samples: Tensor, *, step: int) -> None:
        """For the next step to be compared with."""
        self._previous.update(
            (i, (step, row)) for i, row in zip(indices, samples.unbind(), strict=True)
        )

    def forget(self) -> None:
        """The next step is compared with nothing."""
        self._previous.clear()


class GradientSketches:
    """Sketches of the whole gradient for its direction, of what each backward added for its noise.

    Kept per atom, the finest parts the named blocks have in common; a block's sketch is the sum of
    its atoms'. A sketch is linear, so what a micro-batch added is the sketch after its backward
    less the one before: nothing is copied.
    """

    def __init__(self, reader: GradientReader, watched: WatchedModel, size: int) -> None:
        self._reader = reader
        self._keys = [key_of(name) for name in watched.names]
        blocks = watched.blocks
        self.sharded = bool(reader.pieces)
        by_key = {key: reader.pieces[i] for i, key in enumerate(self._keys)} if self.sharded else {}
        self._sketcher = (
            ShardSketcher(seed=SKETCH_SEED, k=size, pieces=by_key)
            if self.sharded
            else Sketcher(seed=SKETCH_SEED, k=size)
        )
        self._previous: tuple[int, Tensor] | None = None
        self._accumulates, self._shift = False, 0
        self._tiles: WeakKeyDictionary[PoolPart, Tiles] = WeakKeyDictionary()
        named = [frozenset(part) for part in blocks.named.values()]
        signatures = [tuple(i in part for part in named) for i in range(len(reader.parameters))]
        atoms = sorted(set(signatures))
        self._atom_of = [atoms.index(signature) for signature in signatures]
        self.atoms = [
            [place for place, inside in enumerate(column) if inside]
            for column in zip(*atoms, strict=True)
        ]
        """Which atoms each named block is made of."""
        self.num_atoms = len(atoms)

    @without_graph
    def read(self, current: Round, reached: frozenset[int]) -> None:
        """After a backward: the sketch of what it added to what was there."""
        held = self._reader.with_grad(range(len(self._reader.parameters)))
        if not current.added:
            # A fixed hash has a fixed error, which no mean over steps takes away. Where one
            # backward makes a step nothing is compared, and its sketch serves for the direction.
            self._shift = shift_of(current.number) if self._accumulates else 0
        sketch = self._sketch(held, self._shift)
        current.added.append(sketch if current.base is None else sketch - current.base)
        current.parts_known = current.parts_known and current.base_known
        current.base, current.base_known = sketch, True
        current.reaches.append(reached)
        current.sketched = self._reader.marks(held)

    @without_graph
    def clipped(self, current: Round, indices: Sequence[int], clip: SeenClip) -> None:
        """After a clip: what the next backward adds to is the clipped gradient."""
        if current.base is None:
            return
        by_atom = [set[bool]() for _ in range(self.num_atoms)]
        clipped = set(indices)
        for i in current.sketched:
            by_atom[self._atom_of[i]].add(i in clipped)
        norm = clip.call.total_norm
        if norm is None or self.sharded or any(len(found) > 1 for found in by_atom):
            current.base_known = False
            return
        factor = clip.factor_of(local(norm)).to(current.base)
        whole = torch.tensor([True in found for found in by_atom], device=factor.device)
        current.base = current.base * torch.where(whole, factor, 1.0).unsqueeze(1)

    @without_graph
    def read_raw(self, current: Round, reading: Reading, indices: Sequence[int]) -> None:
        """The sketch of the whole gradient; the last backward's, if nothing has changed since."""
        usable = self._shift == 0 and current.sketched
        unchanged = usable and self._reader.marks(indices) == current.sketched
        whole = current.base if unchanged else None
        reading.add_array("sketch", self._sketch(indices) if whole is None else whole)
        if self._previous is not None and self._previous[0] == current.number - 1:
            reading.add_array("previous_sketch", self._previous[1])
            self._previous = None

    @without_graph
    def keep(self, indices: Sequence[int], *, step: int) -> None:
        """Keep a sketch for the next step; those of several optimizers add up."""
        sketch = self._sketch(indices)
        of_step, held = self._previous or (step, torch.zeros_like(sketch))
        self._previous = step, sketch + held if of_step == step else sketch

    def forget(self) -> None:
        """The next step is compared with nothing."""
        self._previous = None

    @without_graph
    def finish(self, current: Round, reading: Reading) -> None:
        """Squared norms of what each backward added, [parts, blocks], and of the sum."""
        if current.added:
            self._accumulates = len(current.added) > 1
        # Backward passes that reach different parameters are different losses, not parts of one
        # batch.
        of_one_loss = len(set(current.reaches)) == 1
        if len(current.added) < 2 or not (of_one_loss and current.parts_known):
            return
        added = torch.stack(current.added)
        if self.sharded:  # squares come after the sum over ranks
            reading.add_array("added", added)
            return
        parts = torch.stack(
            [torch.stack([added[:, place] for place in places]).sum(0) for places in self.atoms],
            dim=1,
        )
        reading.add_array("parts", parts.square().sum(-1))
        reading.add_array("parts_sum", parts.sum(0).square().sum(-1))

    def _sketch(self, indices: Sequence[int], shift: int = 0) -> Tensor:
        by_device: dict[torch.device, list[int]] = {}
        for i in indices:
            by_device.setdefault(self._reader.parameters[i].device, []).append(i)
        first, *others = [self._sketch_on_one_device(part, shift) for part in by_device.values()]
        for other in others:
            first = first + other.to(first)
        return first

    def _sketch_on_one_device(self, indices: Sequence[int], shift: int) -> Tensor:
        by_atom: list[list[int]] = [[] for _ in range(self.num_atoms)]
        for i in indices:
            by_atom[self._atom_of[i]].append(i)
        joined: list[Joined] = []
        groups: list[range] = []
        single: list[int] = []
        for atom, members in enumerate(by_atom):
            together, others = self._reader.grouped(members)
            joined += [Joined(atom, each.now(), self._tiles_of(each.part)) for each in together]
            groups.append(range(len(single), len(single) + len(others)))
            single += others
        grads, keys = [self._reader.grad(i) for i in single], [self._keys[i] for i in single]
        return self._sketcher.sketch_groups(grads, keys, groups, shift=shift, joined=joined)

    def _tiles_of(self, part: PoolPart) -> Tiles:
        if part not in self._tiles:
            keys = [self._keys[i] for i in part.indices]
            sizes = [math.prod(shape) for shape in part.shapes]
            self._tiles[part] = self._sketcher.tiles_of(keys, sizes, part.pool.device)
        return self._tiles[part]


Version: TypeAlias = tuple[int, int, int]
"""Parameter, address and change counter of one gradient."""

Fate: TypeAlias = Literal["kept", "changed", "gone"]


class SentinelGradients:
    """How the last backward, or clip, left one gradient of each block: the sentinels'.

    Gradients are gone when each of them is None, or zero though it was not. A change counter that
    moved is no sign of it (views of one tensor share theirs, and anybody may change a gradient in
    place), only a reason to look: a sync, for those who change gradients between two backwards.
    """

    def __init__(self, reader: GradientReader, watched: WatchedModel) -> None:
        self._reader, self._watched = reader, watched
        self._version = version_of if reader.pieces else _version
        # nobody zeroes what no optimizer has
        self._noted = {
            number: reader.parameters[i]
            for number, i in enumerate(watched.sentinels)
            if i in watched.trained
        }
        self._left: dict[int, tuple[int, int]] = {}
        """Address and change counter of each gradient."""
        self._weights = 0
        """The sum of the change counters of the weights, when they were last made."""
        self._sizes: dict[int, Tensor] | None = None
        """The largest element of each, once somebody has been seen to change gradients."""

    def of(self, indices: Sequence[int]) -> Version | None:
        """The first of these parameters that has a gradient."""
        for i in indices:
            if (grad := self._reader.parameters[i].grad) is not None:
                return i, id(grad), self._version(grad)
        return None

    def note(self, reached: Collection[int]) -> None:
        """After a backward, of the sentinels it reached."""
        marks = self._marks(reached)
        self._left.update(marks)
        self._weights = self._weights_now()
        self._note_sizes(marks)

    def _note_sizes(self, numbers: Collection[int]) -> None:
        if self._sizes is not None:
            self._sizes.update([(number, self._size(number)) for number in numbers])

    def note_again(self) -> None:
        """After a clip, which changed them, and no weights."""
        marks = self._marks(self._left)
        self._left.update(marks)
        self._note_sizes(marks)

    def _weights_now(self) -> int:
        return sum(map(self._version, self._noted.values()))

    def _marks(self, numbers: Collection[int]) -> dict[int, tuple[int, int]]:
        """Of those that have a gradient."""
        noted, version = self._noted, self._version
        return {
            number: (id(grad), version(grad))
            for number in numbers
            if number in noted and (grad := noted[number].grad) is not None
        }

    def clear(self) -> None:
        """After a step, when making them anew is what everybody does."""
        self._left.clear()

    def weights_moved(self) -> bool:
        """Whether the weights have changed since, as SAM does between its two backwards."""
        return bool(self._left) and self._weights_now() != self._weights

    def fate(self) -> Fate:
        """What became of them since, as long as no backward has added to them."""
        if not (left := self._left):
            return "kept"
        if (now := self._marks(left)) == left:
            return "kept"
        if not now:
            return "gone"
        if self._watched.data_parallel or self._reader.pieces:
            # DDP touches gradients once more when it averages them, and may hand out new views of a
            # buffer; so does FSDP2.
            return "kept"
        touched = [number for number, mark in now.items() if mark != left[number]]
        return self._fate_of(touched) if len(touched) == len(now) else "changed"

    def _fate_of(self, touched: Sequence[int]) -> Fate:
        self._sizes = {} if self._sizes is None else self._sizes
        known = [self._sizes[number] for number in touched if number in self._sizes]
        found = _on_host([*(self._size(number) for number in touched), *known])
        now, before = found[: len(touched)], found[len(touched) :]
        if now == before:
            return "kept"
        return "changed" if any(now) else "gone"

    @without_graph
    def _size(self, number: int) -> Tensor:
        """The largest element; a NaN is of no size, but not zero."""
        low, high = stats.extreme(self._reader.grad(self._watched.sentinels[number]))
        return torch.maximum(high, -low).float().nan_to_num(torch.inf)


def _on_host(numbers: Sequence[Tensor]) -> list[float]:
    found: list[float] = torch.stack([x.to(numbers[0].device) for x in numbers]).tolist()
    return found
