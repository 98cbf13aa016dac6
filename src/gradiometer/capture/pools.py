"""Small tensors put together: what is read of a gradient of a hundred elements takes longer to ask
for than to compute.

All small parameters of a device and dtype make a pool: one vector for what is kept of them, of
which each has a view in its own shape. A part of a pool is what is read at once: those that one
clip scales, or one optimizer steps. `torch._foreach_copy_` brings their gradients together, and
maths/segments.py takes the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.statistics import (
    EVERYONE,
    OF_NUMPY,
    SAMPLE_SIZE,
    Column,
    Mask,
    Reading,
    Sample,
    Source,
    Statistic,
    When,
    passes,
)
from gradiometer.maths import stats
from gradiometer.maths.segments import SEGMENTED, HostSegments, Segments, silent
from gradiometer.maths.stats import stride_of

__all__ = [
    "MARK_BITS",
    "NEVER",
    "Columns",
    "Grouping",
    "Loaded",
    "Pool",
    "PoolPart",
    "pools_of",
    "put_segments",
    "sample_columns",
    "segment_columns",
    "views_of",
]

SMALL = 4096  # elements: beyond, a pass over the tensor costs what it takes to ask for it
FEWEST = 24  # tensors that are worth a pool: a dozen is read as fast one by one
FEWEST_ON_HOST = 3  # the same where numpy reads them
MARK_BITS = 32  # a mark of a gradient is its address and, in these bits, its change counter
NEVER = -2  # a step that comes before none


class Pool:
    """The small parameters of one device and dtype, and one vector of their size."""

    def __init__(self, members: Sequence[int], parameters: Sequence[Tensor]) -> None:
        self.members = tuple(members)
        self.shapes = [tuple(parameters[i].shape) for i in members]
        first = parameters[members[0]]
        self.device, self.dtype = first.device, first.dtype
        self.on_host = _on_host(first)
        """Whether numpy does the arithmetic: its calls cost less than torch's."""
        self.held = torch.empty(
            sum(map(math.prod, self.shapes)), dtype=self.dtype, device=self.device
        )
        """The gradient of the step before, or the weights before the step, or what it did."""
        self.views = views_of(self.held, self.shapes)
        self.sample_sizes = [_sample_size(shape) for shape in self.shapes]
        self.signs: Any = np.zeros(sum(self.sample_sizes), np.float32)
        """Of the last sample of each, one after the other."""
        if not self.on_host:
            self.signs = torch.from_numpy(self.signs).to(self.device)
        self.sampled = np.full(len(self.members), NEVER)
        """Of which round that is."""
        self.numbers: Columns = {}
        """What was read of the gradients that are held, a number for each member."""

    def rows(self, places: NDArray[np.int64]) -> Any:
        """To choose among the rows of columns."""
        return places if self.on_host else torch.from_numpy(places).to(self.device)


class PoolPart:
    """Some members of a pool, in its order, and room for their gradients side by side."""

    def __init__(self, pool: Pool, places: Sequence[int], parameters: Sequence[Tensor]) -> None:
        self.pool = pool
        self._whole = len(places) == len(pool.members)
        self.indices = [pool.members[place] for place in places]
        self.parameters = [parameters[i] for i in self.indices]
        self.numbers = np.array(self.indices)
        """The same, to choose among arrays of all parameters."""
        everyone = self.indices == list(range(len(parameters)))
        self.at: Any = EVERYONE if everyone else self.numbers
        self._places = np.array(places)
        self.rows_of_pool: Any = slice(None) if self._whole else pool.rows(self._places)
        """To choose among columns of all members."""
        self.shapes = [pool.shapes[place] for place in places]
        sizes = [math.prod(shape) for shape in self.shapes]
        self.segments = _segments(pool, sizes)
        self.now = torch.zeros(sum(sizes), dtype=pool.dtype, device=pool.device)
        self._views = views_of(self.now, self.shapes)
        self._held_views = [pool.views[place] for place in places]
        self._sampled = pool.rows(_sampled_elements(self.shapes))
        self._sample_segments = _segments(pool, [pool.sample_sizes[place] for place in places])
        ends = np.cumsum([0, *pool.sample_sizes])
        ranges = [np.arange(ends[place], ends[place + 1]) for place in places]
        self._signs: Any = slice(None) if self._whole else pool.rows(np.concatenate(ranges))
        """To choose among the signs of all members."""
        self._among: dict[int, tuple[Collection[int], Mask]] = {}
        self.everyone = np.ones(len(self.indices), dtype=np.bool_)

    def among(self, chosen: Collection[int]) -> Mask:
        """Which of them are in a set of parameters; a frozen one is looked at once."""
        found = self._among.get(id(chosen))
        if found is None or found[0] is not chosen:
            mask = np.array([i in chosen for i in self.indices]) if chosen else _none(self)
            found = chosen, mask
            if isinstance(chosen, frozenset):
                self._among[id(chosen)] = found
        return found[1]

    @staticmethod
    def chosen(tensors: list[Tensor], which: Mask | None) -> list[Tensor]:
        """Those of `which`."""
        if which is None or len(tensors) == np.count_nonzero(which):
            return tensors
        return [tensors[place] for place in np.flatnonzero(which)]

    def load(self, tensors: list[Tensor], which: Mask | None = None) -> Tensor:
        """The elements of a tensor of each, or of `which`, one after the other, in `now`."""
        _copy(self.chosen(self._views, which), tensors)
        return self.now

    def held(self) -> Tensor:
        """What the pool holds of them, one after the other: the pool's own vector or a copy."""
        if self._whole:
            return self.pool.held
        found = torch.empty_like(self.now)
        _copy(views_of(found, self.shapes), self._held_views)
        return found

    def hold(self, tensors: list[Tensor], which: Mask) -> None:
        """Keep a tensor of each of `which` in the pool."""
        _copy(self.chosen(self._held_views, which), tensors)

    def hold_now(self, which: Mask) -> None:
        """Keep what is in `now`."""
        if self._whole and which.all():
            self.pool.held.copy_(self.now)
        else:
            self.hold(self.chosen(self._views, which), which)

    def keep_numbers(self, columns: Columns, which: Mask) -> None:
        """What was read of those that are held."""
        there = np.flatnonzero(which)
        rows, places = self.pool.rows(there), self.pool.rows(self._places[there])
        for each, column in columns.items():
            if each not in self.pool.numbers:
                self.pool.numbers[each] = _zeros_like(column, len(self.pool.members))
            self.pool.numbers[each][places] = column[rows]

    def read_samples(self, reading: Reading, *, step: int) -> None:
        """Counts and moments of each sample, and how its signs agree with those of the step
        before."""
        now = self._take_samples()
        put_segments(reading, self, sample_columns("sample", Sample(now, self._sample_segments)))
        signs, lag_1 = _sign(now), self.pool.sampled[self._places] == step - 1
        if lag_1.any():
            product = Sample(signs * self.pool.signs[self._signs], self._sample_segments)
            put_segments(reading, self, sample_columns("signs", product), lag_1)
        self._keep_signs(signs, step)

    def keep_samples(self, *, step: int) -> None:
        """For the next step to be compared with."""
        self._keep_signs(_sign(self._take_samples()), step)

    def _take_samples(self) -> Column:
        if self.pool.on_host:
            taken: NDArray[Any] = self.now.numpy().take(self._sampled)
            return taken.astype(np.float32, copy=False)
        return self.now[self._sampled].float()

    def _keep_signs(self, signs: Column, step: int) -> None:
        self.pool.sampled[self._places] = step
        self.pool.signs[self._signs] = signs


class Grouping:
    """A list of parameters, in the parts of pools they are read in, and the others."""

    def __init__(
        self,
        indices: tuple[int, ...],
        pools: Sequence[Pool],
        parameters: Sequence[Tensor],
        *,
        leave_out: frozenset[int],
    ) -> None:
        wanted = set(indices) - leave_out
        self.parts: list[PoolPart] = []
        for pool in pools:
            places = [place for place, i in enumerate(pool.members) if i in wanted]
            if places:
                self.parts.append(PoolPart(pool, places, parameters))
        together = {i for part in self.parts for i in part.indices}
        self.others = [i for i in indices if i not in together]


class Loaded:
    """A part with the gradients that its members have now."""

    def __init__(self, part: PoolPart) -> None:
        self.part = part
        grads = [parameter.grad for parameter in part.parameters]
        self._grads = [grad for grad in grads if grad is not None]
        self.there = part.everyone
        """Who has one."""
        if len(self._grads) < len(grads):
            self.there = np.array([grad is not None for grad in grads])

    def sparse(self) -> list[int]:
        """Those that cannot be read together."""
        if not any([grad.is_sparse for grad in self._grads]):  # noqa: C419 - a third of the time
            return []
        numbers = self.part.numbers[self.there].tolist()
        return [i for i, grad in zip(numbers, self._grads, strict=True) if grad.is_sparse]

    def unchanged(self, marks: Mapping[int, int]) -> Mask:
        """Whose gradient is the very one that was noted, untouched since."""
        same = np.zeros(len(self.there), dtype=np.bool_)
        numbers = self.part.numbers[self.there].tolist()
        same[self.there] = [
            marks.get(i) == id(grad) << MARK_BITS | grad._version
            for i, grad in zip(numbers, self._grads, strict=True)
        ]
        return same

    def now(self) -> Tensor:
        """Their elements, one after the other."""
        return self.part.load(self._grads, self.there)


Columns: TypeAlias = dict[Statistic, Column]
"""A number for each member of a part."""


@silent
def segment_columns(
    source: Source, part: PoolPart, *vectors: Tensor, when: When = "long"
) -> Columns:
    """The statistics of a source, of all members at once."""
    columns: Columns = {}
    given = [vector.numpy() for vector in vectors] if part.pool.on_host else vectors
    for read, statistics in passes(source, when):
        many = SEGMENTED.get(read)
        if many is not None:
            found = getattr(part.segments, many)(*given)
        else:
            found = _one_by_one(read, part, vectors)
        for each in statistics:
            columns[each] = found if each.part is None else found[each.part]
    return columns


def _one_by_one(read: Callable[..., Any], part: PoolPart, vectors: Sequence[Tensor]) -> Any:
    """What nobody wrote for segments."""
    tensors = zip(*(views_of(vector, part.shapes) for vector in vectors), strict=True)
    numbers = [read(*each) for each in tensors]
    if isinstance(numbers[0], Tensor):
        return torch.stack(numbers)
    return [torch.stack(list(column)) for column in zip(*numbers, strict=True)]


def put_segments(
    reading: Reading, part: PoolPart, columns: Columns, which: Mask | None = None
) -> None:
    """Put them into the reading, for all members or for `which`."""
    if which is None or which.all():
        for each, column in columns.items():
            reading.add_column(each, part.at, column)
    elif which.any():
        there = np.flatnonzero(which)
        indices, rows = part.numbers[there], part.pool.rows(there)
        for each, column in columns.items():
            reading.add_column(each, indices, column[rows])


@silent
def sample_columns(source: Source, sample: Sample) -> Columns:
    """The statistics of samples, of all of them at once."""
    columns: Columns = {}
    for read, statistics in passes(source):
        found = read(sample)
        for each in statistics:
            columns[each] = found if each.part is None else found[each.part]
    return columns


def pools_of(parameters: Sequence[Tensor]) -> list[Pool]:
    """The pools of a model, of what is trained; float64 is needed, which not every device has."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, p in enumerate(parameters):
        fits = p.requires_grad and 0 < p.numel() <= SMALL and p.is_floating_point()
        if fits and p.device.type in ("cpu", "cuda"):
            groups.setdefault((p.device, p.dtype), []).append(i)
    return [
        Pool(members, parameters)
        for members in groups.values()
        if len(members) >= (FEWEST_ON_HOST if _on_host(parameters[members[0]]) else FEWEST)
    ]


def _on_host(x: Tensor) -> bool:
    return x.device.type in stats.HOST and x.dtype in OF_NUMPY


def _sign(x: Column) -> Any:
    return np.sign(x) if isinstance(x, np.ndarray) else x.sign()


def _zeros_like(column: Column, shape: int | tuple[int, ...]) -> Column:
    if isinstance(column, np.ndarray):
        return np.zeros(shape, dtype=column.dtype)
    return column.new_zeros(shape)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """One call for all of them, where torch has it: it is private, and takes no empty list."""
    if not targets:
        return
    if (fused := getattr(torch, "_foreach_copy_", None)) is not None:
        fused(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _none(part: PoolPart) -> Mask:
    return np.zeros(len(part.indices), dtype=np.bool_)


def views_of(vector: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Each tensor of a vector in which they lie one after the other."""
    parts = torch.split_with_sizes(vector, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _sample_size(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // stride_of(shape, SAMPLE_SIZE))


def _sampled_elements(shapes: Sequence[tuple[int, ...]]) -> NDArray[np.int64]:
    """Which elements of a vector of such tensors are sampled."""
    taken, first = [], 0
    for shape in shapes:
        size = math.prod(shape)
        taken.append(np.arange(first, first + size, stride_of(shape, SAMPLE_SIZE)))
        first += size
    return np.concatenate(taken)


def _segments(pool: Pool, sizes: Sequence[int]) -> HostSegments | Segments:
    return HostSegments(sizes) if pool.on_host else Segments(sizes, pool.device)
