"""Every number that is taken of a parameter: how it is read, put together, unscaled and named.

A statistic is one record in STATISTICS, and whoever handles numbers of parameters walks that table:
gradients.py reads them, `Reading.fetch` brings them to the host, ranks.py adds up the pieces of
sharded tensors, analysis.py makes values of blocks. A new statistic is one entry here, and a line
in metrics.toml where it is a metric by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.blocks import Blocks
from gradiometer.maths import stats

__all__ = [
    "AGREEING",
    "CLIPPED",
    "COMPARED",
    "EVERYONE",
    "FOURTHS",
    "HIGH",
    "LARGE_FOURTHS",
    "LARGE_SCALE",
    "LOCAL",
    "LOW",
    "NONZEROS",
    "OF_NUMPY",
    "POSITIVES",
    "PREVIOUS_DOT",
    "PREVIOUS_NORM",
    "RAW",
    "SAMPLE_SCALE",
    "SAMPLE_SIZE",
    "STATISTICS",
    "SUM",
    "UPDATE",
    "UPDATE_DOT",
    "WEIGHT",
    "BlockReducer",
    "Fetched",
    "Mask",
    "Numbers",
    "Reading",
    "Sample",
    "Source",
    "Statistic",
    "When",
    "passes",
]

Numbers: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Column: TypeAlias = Tensor | NDArray[Any]
"""A number for each of some parameters, on their device; of the host's own they may be numpy's."""

Indices: TypeAlias = Sequence[int] | NDArray[np.int64] | slice
EVERYONE = slice(None)
"""All parameters, in their order."""
MOST_PRESENCES = 32
OF_NUMPY = (torch.float32, torch.float64, torch.int64)
"""Types that numpy reads as they are."""
SAMPLE_SIZE = 1024
"""Elements of each tensor; a fraction read off them has a standard error of at most 0.016."""


@cache
def everyone(count: int) -> Mask:
    """The mask of all parameters, the same one each time."""
    mask: Mask = np.ones(count, dtype=np.bool_)
    mask.setflags(write=False)
    return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a mask of parameters tells of the blocks."""

    everyone: bool
    there: Mask
    """Blocks with a member in it, [blocks]; `counts`: how many; `elements`: how many those have,
    `some_elements`: the same, at least 1; `root_elements`: its root."""
    counts: Numbers
    elements: Numbers
    some_elements: Numbers
    root_elements: Numbers
    weight: Numbers
    """How many elements each sampled one of a parameter stands for, [parameters]."""


class BlockReducer:
    """Numbers per parameter become numbers per block, [parameters] to [blocks]. What is infinite or
    NaN stays so; the caller silences numpy, once for all of a step."""

    def __init__(self, blocks: Blocks, shapes: Sequence[tuple[int, ...]]) -> None:
        self._order, self._starts = blocks.order(), blocks.starts()
        self.sizes = np.array([math.prod(shape) for shape in shapes], dtype=np.float64)
        strides = np.array([stats.stride_of(shape, SAMPLE_SIZE) for shape in shapes])
        self._sample_sizes = np.maximum(np.ceil(self.sizes / strides), 1.0)
        self._presences: dict[bytes, Presence] = {}
        self._mask_of_all = everyone(len(shapes))
        self._of_all: Presence | None = None

    def presence(self, mask: Mask) -> Presence:
        """What a mask of parameters tells of the blocks. Few masks are ever asked for, and most
        often that of all."""
        if mask is self._mask_of_all and self._of_all is not None:
            return self._of_all
        key = mask.tobytes()
        found = self._presences.get(key)
        if found is None:
            if len(self._presences) >= MOST_PRESENCES:
                self._presences.clear()
            counts, sizes = self.add(mask.astype(np.float64)), np.where(mask, self.sizes, 0.0)
            elements = self.add(sizes)
            found = self._presences[key] = Presence(
                everyone=bool(mask.all()),
                there=counts > 0,
                counts=counts,
                elements=elements,
                some_elements=np.maximum(elements, 1.0),
                root_elements=np.sqrt(elements),
                weight=sizes / self._sample_sizes,
            )
        if mask is self._mask_of_all:
            self._of_all = found
        return found

    def add(self, numbers: Numbers) -> Numbers:
        """Σ over the members of each block, of [parameters, ...]."""
        return np.add.reduceat(numbers[self._order], self._starts)

    def any(self, mask: Mask) -> Mask:
        """Which blocks have a member in `mask`."""
        return self.presence(mask).there

    def counts(self, mask: Mask) -> Numbers:
        """How many members of each block are in `mask`."""
        return self.presence(mask).counts

    def sums(self, numbers: Numbers, present: Mask) -> Numbers:
        """Σ over the members that are there."""
        return self.add(self._there(numbers, present))

    def largest(self, numbers: Numbers, present: Mask) -> Numbers:
        """Largest over the members that are there, at least 0; a NaN stays."""
        return np.maximum.reduceat(self._there(numbers, present)[self._order], self._starts)

    def norms(self, numbers: Numbers, present: Mask) -> Numbers:
        """Norm of each block from the norms of its members: sqrt(Σ n_p²), in float64."""
        total: Numbers = np.sqrt(self.add(np.square(self._there(numbers, present))))
        return total

    def means(self, numbers: Numbers, present: Mask) -> Numbers:
        """Mean over the elements of a block, from sums over those of its members."""
        return self.sums(numbers, present) / self.presence(present).some_elements

    def sampled(self, numbers: Numbers, present: Mask) -> Numbers:
        """Sum over the elements of a block, from sums over the samples of its members."""
        return self.add(self.presence(present).weight * numbers)

    def fractions(self, counts: Numbers, present: Mask) -> Numbers:
        """The share of a block's elements, from counts in the samples of its members."""
        return self.sampled(counts, present) / self.presence(present).some_elements

    def other_fractions(self, counts: Numbers, present: Mask) -> Numbers:
        """The share of those that were not counted."""
        return self.fractions(self._sample_sizes - counts, present)

    def elements(self, present: Mask) -> Numbers:
        """How many elements the members that are there have, by block."""
        return self.presence(present).elements

    def _there(self, numbers: Numbers, present: Mask) -> Numbers:
        """Zero where a member is not there."""
        return numbers if self.presence(present).everyone else np.where(present, numbers, 0.0)


class Sample(NamedTuple):
    """A fixed strided sample of each gradient, or what is made of two: one number after the other,
    or rows of a table; at most SAMPLE_SIZE of each."""

    values: Any
    segments: Any
    """Segments, HostSegments or Rows: how the numbers of each are found and added up."""


def sample_fourths(sample: Sample) -> Any:
    """m = max|x| and Σ(x/m)⁴ of each: fourth powers neither vanish nor overflow."""
    return sample.segments.fourths(sample.values)


def sample_nonzeros(sample: Sample) -> Any:
    """How many are not zero. Not the zeros: those that fill up a short row would have to be taken
    out again."""
    return sample.segments.add(sample.values != 0)


def sample_positives(sample: Sample) -> Any:
    """How many are above zero."""
    return sample.segments.add(sample.values > 0)


Source = Literal[
    "gradient",
    "large",
    "previous",
    "kept",
    "clipped",
    "local",
    "weight",
    "update",
    "step",
    "sample",
    "signs",
]
"""The tensors a statistic is read from. `gradient`: as backward left it. `large`: that,
of a tensor with more elements than a sample has. `previous`: that and the
one of the step before. `kept`: a gradient kept for the next step. `clipped`: as the optimizer is
about to see it. `local`: this rank's own, before it is averaged. `weight`: before the step.
`update`: −Δw. `step`: the gradient and −Δw. `sample`: a `Sample`. `signs`: one of the products of
the signs of two steps' samples."""

When = Literal["light", "standard", "long"]
"""At every measured step of every tier, of the tiers above `light`, or at every fourth of those."""
WHENS: tuple[When, ...] = ("light", "standard", "long")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistic:
    """One number a parameter, from the tensor to the name of a metric."""

    name: str
    source: Source
    read: Callable[..., Any]
    """One pass over those tensors, no sync: a 0-dim tensor, or of samples a number a row, [n]."""
    part: int | None = None
    """Which of the numbers, where `read` gives several in its one pass."""
    read_many: Callable[[list[Tensor]], list[Tensor]] | None = None
    """The same of many tensors, where torch has a fused kernel for it."""
    when: When = "standard"
    unit: Statistic | None = None
    unit_power: int = 0
    """Read in units of another statistic, to this power; the fetch multiplies it out."""
    over_ranks: Literal["sum", "squares", "least", "largest", "own"]
    """How the pieces of a sharded tensor make the number of the whole; `squares` of norms. `own`:
    not at all, it is of no use to others."""
    loss_scale: int = 0
    """The power of the loss scale in it, divided out where a fused optimizer left it there."""
    reduce: Callable[[BlockReducer, Numbers, Mask], Numbers] | None = None
    """From the members of a block to the block; None for what is only used per parameter."""
    metric: str | None = None
    """What that is in the catalogue, `grad/<block>/<metric>`; None for a part of other metrics."""


RAW = Statistic(
    name="raw",
    source="gradient",
    read=stats.norm,
    read_many=stats.norms,
    when="light",
    over_ranks="squares",
    loss_scale=1,
    reduce=BlockReducer.norms,
    metric="norm/raw",
)
LOW = Statistic(
    name="low",
    source="gradient",
    read=stats.extreme,
    part=0,
    when="light",
    over_ranks="least",
    loss_scale=1,
)
HIGH = Statistic(
    name="high",
    source="gradient",
    read=stats.extreme,
    part=1,
    when="light",
    over_ranks="largest",
    loss_scale=1,
)
SUM = Statistic(
    name="sum",
    source="gradient",
    read=stats.total,
    when="long",
    over_ranks="sum",
    loss_scale=1,
    reduce=BlockReducer.means,
    metric="mean",
)
PREVIOUS_DOT = Statistic(
    name="previous_dot", source="previous", read=stats.dot, over_ranks="sum", loss_scale=1
)
PREVIOUS_NORM = Statistic(
    name="previous_norm", source="kept", read=stats.norm, over_ranks="squares"
)
CLIPPED = Statistic(
    name="clipped", source="clipped", read=stats.norm, over_ranks="squares", loss_scale=1
)
LOCAL = Statistic(
    name="local", source="local", read=stats.norm, over_ranks="own", reduce=BlockReducer.norms
)
WEIGHT = Statistic(
    name="weight", source="weight", read=stats.norm, over_ranks="squares", reduce=BlockReducer.norms
)
UPDATE = Statistic(
    name="update",
    source="update",
    read=stats.norm,
    over_ranks="squares",
    reduce=BlockReducer.norms,
    metric="norm/update",
)
UPDATE_DOT = Statistic(
    name="update_dot", source="step", read=stats.dot, when="long", over_ranks="sum"
)
NONZEROS = Statistic(
    name="nonzeros",
    source="sample",
    read=sample_nonzeros,
    over_ranks="sum",
    reduce=BlockReducer.other_fractions,
    metric="zero_fraction",
)
POSITIVES = Statistic(
    name="positives",
    source="sample",
    read=sample_positives,
    over_ranks="sum",
    reduce=BlockReducer.fractions,
    metric="positive_fraction",
)
SAMPLE_SCALE = Statistic(
    name="sample_scale", source="sample", read=sample_fourths, part=0, over_ranks="own"
)
FOURTHS = Statistic(
    name="fourths",
    source="sample",
    read=sample_fourths,
    part=1,
    unit=SAMPLE_SCALE,
    unit_power=4,
    over_ranks="sum",
    loss_scale=4,
)
LARGE_SCALE = Statistic(
    name="large_scale", source="large", read=stats.fourths, part=0, when="long", over_ranks="own"
)
# A few elements may hold all of a large gradient, and a sample of it misses them: read whole.
LARGE_FOURTHS = Statistic(
    name="large_fourths",
    source="large",
    read=stats.fourths,
    part=1,
    when="long",
    unit=LARGE_SCALE,
    unit_power=4,
    over_ranks="sum",
    loss_scale=4,
)
AGREEING = Statistic(
    name="agreeing",
    source="signs",
    read=sample_positives,
    over_ranks="sum",
    reduce=BlockReducer.sampled,
)
COMPARED = Statistic(
    name="compared",
    source="signs",
    read=sample_nonzeros,
    over_ranks="sum",
    reduce=BlockReducer.sampled,
)

STATISTICS: tuple[Statistic, ...] = (
    *(RAW, LOW, HIGH, SUM, PREVIOUS_DOT, PREVIOUS_NORM, CLIPPED, LOCAL, WEIGHT, UPDATE),
    *(UPDATE_DOT, NONZEROS, POSITIVES, SAMPLE_SCALE, FOURTHS, LARGE_SCALE, LARGE_FOURTHS),
    *(AGREEING, COMPARED),
)

Pass: TypeAlias = tuple[Callable[..., Any], tuple[Statistic, ...]]


def passes(source: Source, when: When = "long") -> list[Pass]:
    """What is read from a source: each function once, with the statistics that its numbers are."""
    return _passes(STATISTICS, source, when)


@cache
def _passes(table: tuple[Statistic, ...], source: Source, when: When) -> list[Pass]:
    wanted = [
        each
        for each in table
        if each.source == source and WHENS.index(each.when) <= WHENS.index(when)
    ]
    reads = dict.fromkeys(each.read for each in wanted)
    return [(read, tuple(each for each in wanted if each.read is read)) for read in reads]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A step on the host. A parameter that a statistic was not read of is absent, not zero."""

    values: dict[Statistic, Numbers]
    """One number per parameter; only meaningful where `present`."""
    present: dict[Statistic, Mask]
    scalars: dict[str, float]
    arrays: dict[str, Numbers]

    def get(self, statistic: Statistic, otherwise: Numbers) -> Numbers:
        """The numbers where they are present, and others elsewhere."""
        if statistic not in self.values:
            return otherwise
        return np.where(self.present[statistic], self.values[statistic], otherwise)

    @property
    def nonfinite(self) -> Mask:
        """The parameters whose raw gradient holds a NaN or an Inf."""
        return self.present[RAW] & ~np.isfinite(self.values[LOW] + self.values[HIGH])


class Reading:
    """Collects device tensors by statistic and parameter; `fetch` is the step's one sync."""

    def __init__(self, num_parameters: int) -> None:
        self._num_parameters = num_parameters
        self._columns: list[tuple[Statistic, Indices, Column]] = []
        self._scalars: dict[str, Tensor] = {}
        self._arrays: dict[str, Tensor] = {}

    def add(self, statistic: Statistic, indices: Sequence[int], values: list[Tensor]) -> None:
        """One number for each of the parameters `indices`."""
        if not values:
            return
        if len({value.device for value in values}) == 1:
            self.add_column(statistic, indices, torch.stack(values))
            return
        places: dict[torch.device, list[int]] = {}
        for place, value in enumerate(values):
            places.setdefault(value.device, []).append(place)
        for where in places.values():
            stacked = torch.stack([values[place] for place in where])
            self.add_column(statistic, [indices[place] for place in where], stacked)

    def add_column(self, statistic: Statistic, indices: Indices, values: Column) -> None:
        """The same, already stacked; `EVERYONE`: of all parameters, in order."""
        self._columns.append((statistic, indices, values))

    def add_scalar(self, name: str, value: Tensor) -> None:
        """One number that belongs to no parameter."""
        self._scalars[name] = value.detach().reshape(1)

    def add_array(self, name: str, value: Tensor) -> None:
        """Numbers that belong to no parameter; several of one name are added up."""
        held = self._arrays.get(name)
        self._arrays[name] = value if held is None else held + value.to(held.device)

    def fetch(self) -> Fetched:
        """Everything, on the host: one transfer for each device that took part."""
        columns = [values for _, _, values in self._columns]
        numbers = _transfer(
            [*columns, *self._scalars.values(), *(a.reshape(-1) for a in self._arrays.values())]
        )
        values, present = self._by_statistic(numbers)
        single = numbers[len(columns) : len(columns) + len(self._scalars)]
        arrays = numbers[len(columns) + len(self._scalars) :]
        return Fetched(
            values,
            present,
            {name: float(x[0]) for name, x in zip(self._scalars, single, strict=True)},
            {
                name: x.reshape(a.shape)
                for (name, a), x in zip(self._arrays.items(), arrays, strict=True)
            },
        )

    def _by_statistic(
        self, numbers: Sequence[Numbers]
    ) -> tuple[dict[Statistic, Numbers], dict[Statistic, Mask]]:
        values: dict[Statistic, Numbers] = {}
        present: dict[Statistic, Mask] = {}
        of_all = everyone(self._num_parameters)
        places: dict[int, Any] = {}  # most are of one and the same list of parameters
        for (statistic, indices, _), column in zip(self._columns, numbers, strict=False):
            if indices is EVERYONE:
                own = column.base is None and column.dtype == np.float64
                values[statistic] = column if own else column.astype(np.float64)
                present[statistic] = of_all
                continue
            if statistic not in values:
                values[statistic] = np.zeros(self._num_parameters)
                present[statistic] = np.zeros(self._num_parameters, dtype=np.bool_)
            at = places.get(id(indices))
            if at is None:
                at = places[id(indices)] = np.asarray(indices)
            values[statistic][at] = column
            if present[statistic] is not of_all:
                present[statistic][at] = True
        with np.errstate(over="ignore", invalid="ignore"):
            for statistic, column in values.items():
                if statistic.unit is not None:
                    column *= values[statistic.unit] ** statistic.unit_power
        return values, present


def _is_of_numpy(x: Tensor) -> bool:
    """Whether numpy reads it as it lies there, without a copy of torch's."""
    plain = type(x) is Tensor and x.dtype in OF_NUMPY and not x.is_neg()
    return plain and x.device.type in stats.HOST


def _transfer(columns: Sequence[Column]) -> list[Numbers]:
    """Each 1-dim tensor on the host: joined on its device, one copy a device."""
    numbers: list[Numbers] = [np.empty(0)] * len(columns)
    by_device: dict[torch.device, dict[torch.dtype, dict[int, Tensor]]] = {}
    for place, column in enumerate(columns):
        if isinstance(column, np.ndarray):
            numbers[place] = column
        elif _is_of_numpy(column):
            numbers[place] = np.array(column.detach().numpy(), dtype=np.float64)
        else:
            alike = by_device.setdefault(column.device, {})
            alike.setdefault(column.dtype, {})[place] = column
    for device, by_dtype in by_device.items():
        # float64 keeps what a float64 model measured and counts past 2^24; MPS has none.
        wide = torch.float32 if device.type == "mps" else torch.float64
        joined = [torch.cat(list(of.values())).to(wide) for of in by_dtype.values()]
        host = torch.cat(joined).detach().cpu().numpy().astype(np.float64, copy=False)  # the sync
        end = 0
        for place, tensor in (item for of in by_dtype.values() for item in of.items()):
            start, end = end, end + len(tensor)
            numbers[place] = host[start:end]
    return numbers
