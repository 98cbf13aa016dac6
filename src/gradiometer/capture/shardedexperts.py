"""Experts whose tensors lie on several ranks (FSDP2, DTensor): the numbers of one process.

Sums over tiers add up over the ranks once all know the thresholds of the whole tensors, which are
selected digit by digit from counts that add up. Products of experts need the same columns of all of
them: where each rank holds whole experts (a fused tensor cut along its first axis) columns are
swapped, a bounded part at a time. Small tensors are gathered, for their tiers resolve ties.

All of it follows a vote, and every rank sends the same messages: what fails here between them is
raised when the last is through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.distributed import Piece, is_sharded, local
from gradiometer.capture.expertlayers import SMALL, SOURCE, ExpertLayerReader, wide
from gradiometer.capture.experts import ExpertLayer, Slab
from gradiometer.capture.ranks import RankGroup
from gradiometer.capture.statistics import Reading
from gradiometer.maths import tiers
from gradiometer.maths.histogram import log_histogram
from gradiometer.maths.stats import filled

__all__ = ["WIRE", "DueLayer", "ShardedLayerReader", "is_readable", "read_together", "select"]

WIRE = 2**28
"""Bytes that a rank may send to have the same columns of all experts; beyond it there are no
products and no distances of those that ranks hold whole."""
AT_ONCE = 2**22
"""Elements of a rank that are in one message, or selected from at once."""
MANY = 4096
"""Rows whose thresholds are selected at once: 4 kB of counts each."""
DIGIT = 8
"""Bits of a number that one message of a selection settles."""
DIMENSIONS = 6
"""The most that an expert's tensor may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabSpread:
    """How a slab lies on the ranks."""

    kind: Literal["columns", "rows", "small"]
    """A rank has the same part of every expert, or some experts whole; or it is gathered."""
    counts: tuple[bool, ...]
    """Of each tensor, whether this rank's is the copy that counts."""
    experts: tuple[range, ...]
    """Which experts each rank has a part of."""
    numel: int
    """Of one expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueLayer:
    """A layer to be read now."""

    reader: ShardedLayerReader
    name: str
    fresh: bool
    """Whether thresholds are found anew."""
    histograms: bool


class ShardedLayerReader(ExpertLayerReader):
    """What is here of one layer, with the thresholds of its tiers."""

    def __init__(
        self,
        layer: ExpertLayer,
        parameters: Sequence[Tensor],
        scratch: dict[torch.dtype, Tensor],
        pieces: Mapping[int, Piece],
    ) -> None:
        super().__init__(layer, parameters, scratch)
        self._pieces = pieces
        self.spread: list[SlabSpread] | None = None
        """Of each slab, once the ranks have told each other what they hold."""

    def present(self) -> list[bool]:
        """Which experts have a gradient in all of their trained tensors."""
        trained = [
            slab
            for slab in self.layer.slabs
            if any(self._parameters[i].requires_grad for i in slab.parts)
        ]
        return [
            bool(trained) and all(self._part(slab, e).grad is not None for slab in trained)
            for e in range(self.layer.num)
        ]

    def _part(self, slab: Slab, e: int) -> Tensor:
        return self._parameters[slab.parts[0 if slab.fused else e]]

    def has_gradient(self, slab: Slab) -> bool:
        """Whether any expert has one in it."""
        return any(self._parameters[i].grad is not None for i in slab.parts)

    # Who has what.

    def boxes(self) -> Tensor:
        """Where what is here begins and how long it is, [tensors, 2, DIMENSIONS]."""
        parts = [i for slab in self.layer.slabs for i in slab.parts]
        found = torch.zeros(len(parts), 2, DIMENSIONS, dtype=torch.int64)
        for row, i in zip(found, parts, strict=True):
            piece = self._pieces[i]
            row[0, : len(piece.shape)] = torch.tensor(piece.offset)
            row[1, : len(piece.shape)] = torch.tensor(piece.local_shape)
        return found

    def learn_spread(self, everyone: Tensor, rank: int) -> None:
        """`boxes` of all ranks, [ranks, tensors, 2, DIMENSIONS]."""
        first, self.spread = 0, []
        for slab in self.layer.slabs:
            held = everyone[:, first : first + len(slab.parts)]
            self.spread.append(self._spread_of(slab, held, rank))
            first += len(slab.parts)

    def _spread_of(self, slab: Slab, held: Tensor, rank: int) -> SlabSpread:
        shape = self._pieces[slab.parts[0]].shape
        numel = int(np.prod(shape[1:] if slab.fused else shape))
        empty = (held[:, :, 1, : len(shape)] == 0).any(-1)
        before = (held[:rank] == held[rank]).flatten(2).all(-1).any(0)
        counts = tuple((~before & ~empty[rank]).tolist())
        begin, length = held[:, 0, 0, 0].tolist(), held[:, 0, 1, 0].tolist()
        nobody = empty[:, 0].tolist()
        whole = slab.fused and bool(
            ((held[:, 0, 1, 1 : len(shape)] == torch.tensor(shape[1:])).all(-1) | empty[:, 0]).all()
        )
        experts = [range(self.layer.num)] * len(held)
        if slab.fused:
            experts = [
                range(0) if none else range(a, a + n)
                for a, n, none in zip(begin, length, nobody, strict=True)
            ]
        everybody = all(len(e) in (0, self.layer.num) for e in experts)
        same = slab.fused or bool((held == held[:, :1]).all())
        kind: Literal["columns", "rows", "small"] = "small"
        if numel > SMALL:
            kind = "columns" if everybody and same else "rows"
            if kind == "rows" and not whole:
                raise ValueError(f"experts of {self.layer.path} are cut along two axes")
        return SlabSpread(kind=kind, counts=counts, experts=tuple(experts), numel=numel)

    # What is here of a slab.

    def dtype_of(self, slab: Slab) -> torch.dtype:
        """In which its numbers are taken."""
        double = self._parameters[slab.parts[0]].dtype == torch.float64
        return torch.float64 if double else torch.float32

    def here(self, slab: Slab, *, of_grads: bool) -> list[Tensor]:
        """Gradient or weights, of each tensor."""
        held = [self._parameters[i] for i in slab.parts]
        if not of_grads:
            return [local(p.detach()) for p in held]
        return [
            torch.zeros_like(local(p.detach()))
            if p.grad is None
            else filled(local(p.grad.detach()))
            for p in held
        ]

    def rows(self, slab: Slab, *, of_grads: bool) -> list[Tensor]:
        """The same, a row for each expert that is here."""
        held = self.here(slab, of_grads=of_grads)
        return [row.reshape(-1) for row in (held[0] if slab.fused else held)]

    def fill_whole(self, both: Tensor, slab: Slab, spread: SlabSpread) -> None:
        """Gradients and weights of a small slab where they belong in zeros [2, N, n]."""
        found = both.view(2, len(slab.parts), *self._pieces[slab.parts[0]].shape)
        for kind, of_grads in enumerate((True, False)):
            parts = self.here(slab, of_grads=of_grads)
            for place, (x, counts) in enumerate(zip(parts, spread.counts, strict=True)):
                if counts:
                    piece = self._pieces[slab.parts[place]]
                    box = tuple(
                        slice(a, a + n)
                        for a, n in zip(piece.offset, piece.local_shape, strict=True)
                    )
                    found[kind, place][box] = x.to(found.dtype).cpu()

    def sums_here(self, slab: Slab, spread: SlabSpread, mine: range, cuts: Tensor) -> Tensor:
        """The ten numbers of each expert, [N, 10], of what is here and counts."""
        found = torch.zeros(self.layer.num, 10, dtype=cuts.dtype, device=cuts.device)
        grads, weights = self.rows(slab, of_grads=True), self.rows(slab, of_grads=False)
        if spread.counts[0] and mine:
            found[mine.start : mine.stop] = self._sums(grads, weights, cuts[mine.start : mine.stop])
        return found

    def histograms_here(
        self, slab: Slab, spread: SlabSpread, mine: range, reading: Reading
    ) -> None:
        """Of every expert, nothing where nothing of it is here."""
        parts = self.here(slab, of_grads=True)
        for e in range(self.layer.num):
            if self._part(slab, e).grad is None:
                continue
            place = 0 if slab.fused else e
            x = parts[place]
            there = spread.counts[place] and e in mine
            counts = log_histogram(x[e - mine.start] if slab.fused and there else x)
            counts = counts if there else torch.zeros_like(counts)
            reading.add_array(f"histogram/layer.{self.layer.path}/expert/{e}", counts)
            reading.add_array(f"histogram/expert/{e}", counts)

    def cuts(self, number: int) -> Tensor:
        """The thresholds of a large slab, [N, 2]."""
        return self._cuts[number]

    def has_cuts(self, number: int) -> bool:
        """Whether it has been cut before."""
        return number in self._cuts

    def set_cuts(self, number: int, new: Tensor) -> Tensor | None:
        """Keep new thresholds; the old ones."""
        old = self._cuts.get(number)
        device = local(self._parameters[self.layer.slabs[number].parts[0]]).device
        self._cuts[number] = new.to(device)
        return old


def is_readable(
    layer: ExpertLayer, parameters: Sequence[Tensor], pieces: Mapping[int, Piece]
) -> bool:
    """Whether ranks can read these experts together: real, in one place, and no cut of a fused
    tensor goes through both experts and their elements."""
    own = [parameters[i] for i in sorted(layer.parameters)]
    if any(p.is_complex() or p.ndim > DIMENSIONS for p in own):
        return False
    if len({local(p).device for p in own}) != 1 or not all(i in pieces for i in layer.parameters):
        return False
    return all(_cut_once(parameters[slab.parts[0]]) for slab in layer.slabs if slab.fused) and all(
        len({_placed(parameters[i]) for i in slab.parts}) == 1 for slab in layer.slabs
    )


def _placed(p: Tensor) -> tuple[object, ...]:
    return (p.device_mesh, *p.placements) if is_sharded(p) else ()  # type: ignore[attr-defined]


def _cut_once(p: Tensor) -> bool:
    """Whether its first axis is cut, or others are, and not both: the same on every rank."""
    placements = p.placements if is_sharded(p) else ()  # type: ignore[attr-defined]
    axes = {x.dim for x in placements if hasattr(x, "dim")}
    return axes <= {0} or 0 not in axes


# The messages.


class _Work:
    """Runs what is done here between messages; a fault waits until the last of them."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None

    def do(self, act: Callable[[], object]) -> None:
        if self.trouble is None:
            try:
                act()
            except Exception as problem:
                self.trouble = problem


@torch.no_grad()
def read_together(due: Sequence[DueLayer], ranks: RankGroup, reading: Reading) -> bool:
    """`<name>/sums`, `/gram`, `/apart` and `/moved/<slab>` of each layer, as `ExpertLayerReader`
    reads them; what the ranks have of each adds up to the whole. Whether columns were swapped where
    that was needed; without it products and distances are NaN."""
    work = _Work()
    _learn_spreads([each.reader for each in due], ranks)
    swaps = _swapped_bytes(due, ranks.world) <= WIRE
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        _find_cuts(due, ranks, reading, work)
        for each in due:
            _read_small(each, ranks, reading, work)
            for number, slab, spread in _slabs(each, "columns", "rows"):
                if swaps or spread.kind == "columns":
                    _read_large(each, number, slab, spread, ranks, reading, work)
                else:
                    work.do(partial(_read_unswapped, each, number, slab, spread, ranks, reading))
            if each.histograms:
                for _, slab, spread in _slabs(each, "columns", "rows", "small"):
                    mine = spread.experts[ranks.rank]
                    if each.reader.has_gradient(slab):
                        read = each.reader.histograms_here
                        work.do(partial(read, slab, spread, mine, reading))
    if work.trouble is not None:
        raise work.trouble
    return swaps


def _swapped_bytes(due: Sequence[DueLayer], world: int) -> float:
    """What a rank sends of a look's gradients, and of weights where their distances are due."""
    return sum(
        spread.numel
        * each.reader.layer.num
        * each.reader.dtype_of(slab).itemsize
        / world
        * (each.reader.has_gradient(slab) + each.fresh)
        for each in due
        for _, slab, spread in _slabs(each, "rows")
    )


def _slabs(each: DueLayer, *kinds: str) -> Iterator[tuple[int, Slab, SlabSpread]]:
    assert each.reader.spread is not None
    for number, slab in enumerate(each.reader.layer.slabs):
        if each.reader.spread[number].kind in kinds:
            yield number, slab, each.reader.spread[number]


def _learn_spreads(readers: Sequence[ShardedLayerReader], ranks: RankGroup) -> None:
    unknown = [reader for reader in readers if reader.spread is None]
    if not unknown:
        return
    mine = [reader.boxes() for reader in unknown]
    everyone = ranks.gather(torch.cat(mine))
    parts = torch.split(everyone, [len(x) for x in mine], 1)
    for reader, boxes in zip(unknown, parts, strict=True):
        reader.learn_spread(boxes, ranks.rank)


# Thresholds.


def _find_cuts(due: Sequence[DueLayer], ranks: RankGroup, reading: Reading, work: _Work) -> None:
    """Of all large slabs that want new ones."""
    for dtype in (torch.float32, torch.float64):
        wanted = [
            (each, number, slab, spread, torch.zeros(each.reader.layer.num, 2, dtype=dtype))
            for each in due
            for number, slab, spread in _slabs(each, "columns", "rows")
            if each.reader.has_gradient(slab) and each.reader.dtype_of(slab) == dtype
            if each.fresh or not each.reader.has_cuts(number)
        ]
        for each, _, slab, spread, found in wanted:
            if spread.kind == "rows":
                work.do(partial(_cut_rows, found, each.reader, slab, spread, ranks.rank))
            else:
                _cut_columns(found, each.reader, slab, spread, ranks, work)
        _tell_each_other([found for *_, spread, found in wanted if spread.kind == "rows"], ranks)
        for each, number, _, _, found in wanted:
            old = each.reader.set_cuts(number, found)
            if old is not None:
                moved = ((found - old.cpu()).abs() / old.cpu()).max().reshape(1)
                counted = moved if ranks.rank == 0 else torch.zeros_like(moved)
                reading.add_array(f"{each.name}/moved/{number}", counted)


def _tell_each_other(parts: Sequence[Tensor], ranks: RankGroup) -> None:
    """Add these up over the ranks, in one message."""
    if parts:
        joined = torch.cat([part.reshape(-1) for part in parts])
        ranks.add_up_in_place(joined)
        for part, told in zip(parts, torch.split(joined, [x.numel() for x in parts]), strict=True):
            part.copy_(told.view_as(part))


def _cut_rows(
    found: Tensor, reader: ShardedLayerReader, slab: Slab, spread: SlabSpread, rank: int
) -> None:
    """Whole experts are here: each rank cuts its own."""
    if spread.counts[0]:
        rows = reader.rows(slab, of_grads=False)
        for e, row in zip(spread.experts[rank], rows, strict=True):
            found[e] = tiers.thresholds(wide(row).abs()[None])[0].cpu()


def _cut_columns(
    found: Tensor,
    reader: ShardedLayerReader,
    slab: Slab,
    spread: SlabSpread,
    ranks: RankGroup,
    work: _Work,
) -> None:
    """A part of every expert is here: they are selected together, some experts at a time."""
    m = tiers.tier_size(spread.numel)
    together = max(1, min(MANY, AT_ONCE * ranks.world // spread.numel))
    for first in range(0, len(found), together):
        several = slice(first, min(first + together, len(found)))
        keys: list[NDArray[np.unsignedinteger]] = []

        def take(several: slice = several, keys: list[NDArray[np.unsignedinteger]] = keys) -> None:
            if spread.counts[0]:
                for row in reader.rows(slab, of_grads=False)[several]:
                    sizes = wide(row).abs().cpu().numpy()
                    nonzero = np.where(sizes == 0, sizes.dtype.type(np.inf), sizes)
                    keys.extend((_bits(nonzero), _bits(sizes)))

        work.do(take)
        num = several.stop - several.start
        bits = 8 * found.element_size()
        if len(keys) != 2 * num:
            keys = [np.zeros(0, f"u{bits // 8}")] * (2 * num)
        places = np.tile([m - 1, spread.numel - m], num)
        chosen = select(keys, places, bits=bits, add_up=ranks.add_up_in_place)
        found[several] = torch.from_numpy(chosen.view(f"f{bits // 8}").reshape(num, 2))


def _bits(sizes: NDArray[np.floating]) -> NDArray[np.unsignedinteger]:
    """Numbers that are not negative, as integers of the same order; NaN is the largest."""
    return sizes.reshape(-1).view(f"u{sizes.dtype.itemsize}")


def select(
    keys: Sequence[NDArray[np.unsignedinteger]],
    places: NDArray[np.int64],
    *,
    bits: int,
    add_up: Callable[[Tensor], None],
) -> NDArray[np.unsignedinteger]:
    """The key at `places[r]` in the order of all ranks' keys of row r, from 0; exact.

    A digit at a time, the highest first: counts of the keys that begin like the one that is sought
    are added up over the ranks, and tell its next digit. Nobody sends a key.
    """
    kind = f"u{bits // 8}"
    left, found = places.copy(), np.zeros(len(places), kind)
    candidates = list(keys)
    for shift in range(bits - DIGIT, -1, -DIGIT):
        counts = np.zeros((len(candidates), 2**DIGIT), np.int64)
        for row, x in zip(counts, candidates, strict=True):
            digits = ((x >> shift) & (2**DIGIT - 1)).astype(np.int64)
            row[:] = np.bincount(digits, minlength=2**DIGIT)
        add_up(torch.from_numpy(counts))
        until = counts.cumsum(1)
        digit = (until > left[:, None]).argmax(1)
        left -= np.where(digit > 0, until[np.arange(len(until)), digit - 1], 0)
        found = (found << DIGIT) | digit.astype(kind)
        candidates = [x[(x >> shift) == f] for x, f in zip(candidates, found, strict=True)]
    return found


# Sums and products.


def _read_small(each: DueLayer, ranks: RankGroup, reading: Reading, work: _Work) -> None:
    """Small slabs are gathered, and read by rank 0 as one process reads them."""
    reader = each.reader
    for _, slab, spread in _slabs(each, "small"):
        if not reader.has_gradient(slab) and not each.fresh:
            continue
        both = torch.zeros(2, reader.layer.num, spread.numel, dtype=reader.dtype_of(slab))
        work.do(partial(reader.fill_whole, both, slab, spread))
        ranks.add_up_in_place(both)
        work.do(partial(_take_small, each, slab, both, reading, counts=ranks.rank == 0))


def _take_small(
    each: DueLayer, slab: Slab, both: Tensor, reading: Reading, *, counts: bool
) -> None:
    grad, weight = both
    if not counts:
        if each.reader.has_gradient(slab):
            reading.add_array(f"{each.name}/sums", torch.zeros(len(grad), 10, dtype=both.dtype))
            reading.add_array(
                f"{each.name}/gram", torch.zeros(len(grad), len(grad), dtype=both.dtype)
            )
        if each.fresh:
            reading.add_array(f"{each.name}/apart", torch.zeros(len(grad), 2, dtype=both.dtype))
        return
    if each.reader.has_gradient(slab):
        matrix = each.reader.is_matrix(slab)
        cuts = tiers.thresholds(weight.abs())
        sums = torch.cat(tiers.tier_sums(grad, weight, cuts, exact=matrix), 1)
        if not matrix:
            sums[:, SOURCE:] = 0.0
        reading.add_array(f"{each.name}/sums", sums)
        reading.add_array(f"{each.name}/gram", grad @ grad.T)
    if each.fresh:
        reading.add_array(f"{each.name}/apart", _apart(weight))


def _read_large(
    each: DueLayer,
    number: int,
    slab: Slab,
    spread: SlabSpread,
    ranks: RankGroup,
    reading: Reading,
    work: _Work,
) -> None:
    reader, num = each.reader, each.reader.layer.num
    dtype, mine = reader.dtype_of(slab), spread.experts[ranks.rank]
    if reader.has_gradient(slab):
        work.do(partial(_take_sums, each, number, slab, spread, mine, reading))
        products = torch.zeros(num, num, dtype=dtype)
        _by_columns(
            lambda part: products.add_((part @ part.T).cpu()),
            *(reader, slab, spread, ranks, work),
            of_grads=True,
        )
        reading.add_array(f"{each.name}/gram", products)
    if each.fresh:
        apart = torch.zeros(num, 2, dtype=dtype)
        _by_columns(
            lambda part: apart.add_(_apart(part).cpu()),
            *(reader, slab, spread, ranks, work),
            of_grads=False,
        )
        reading.add_array(f"{each.name}/apart", apart)


def _read_unswapped(
    each: DueLayer, number: int, slab: Slab, spread: SlabSpread, ranks: RankGroup, reading: Reading
) -> None:
    num, mine = each.reader.layer.num, spread.experts[ranks.rank]
    if each.reader.has_gradient(slab):
        _take_sums(each, number, slab, spread, mine, reading)
        reading.add_array(f"{each.name}/gram", torch.full((num, num), torch.nan))
    if each.fresh:
        reading.add_array(f"{each.name}/apart", torch.full((num, 2), torch.nan))


def _take_sums(
    each: DueLayer, number: int, slab: Slab, spread: SlabSpread, mine: range, reading: Reading
) -> None:
    sums = each.reader.sums_here(slab, spread, mine, each.reader.cuts(number))
    if not each.reader.is_matrix(slab):
        sums[:, SOURCE:] = 0.0
    reading.add_array(f"{each.name}/sums", sums)


def _apart(weights: Tensor) -> Tensor:
    """‖W_e − W_0‖² and ‖W_0‖² of each expert, [N, 2]."""
    apart = (weights - weights[0]).square().sum(1)
    return torch.stack([apart, weights[0].square().sum().expand(len(weights))], 1)


def _by_columns(
    take: Callable[[Tensor], object],
    reader: ShardedLayerReader,
    slab: Slab,
    spread: SlabSpread,
    ranks: RankGroup,
    work: _Work,
    *,
    of_grads: bool,
) -> None:
    """Hand over all experts side by side, [N, some columns] at a time, each column on one rank."""
    num, dtype = reader.layer.num, reader.dtype_of(slab)
    width = max(1, AT_ONCE // num)
    rows = reader.rows(slab, of_grads=of_grads)
    if spread.kind == "columns":
        if spread.counts[0]:
            for first in range(0, len(rows[0]), width):
                here = [row[first : first + width] for row in rows]
                work.do(partial(_side_by_side, take, here))
        return
    lengths = [len(experts) for experts in spread.experts]
    for first in range(0, spread.numel, width * ranks.world):
        ends = [min(first + rank * width, spread.numel) for rank in range(ranks.world + 1)]
        widths = [end - begin for begin, end in pairwise(ends)]
        sent = torch.zeros(len(rows) * sum(widths), dtype=dtype)
        work.do(partial(_fill, sent, rows, ends))
        mine = widths[ranks.rank]
        received = ranks.swap(
            sent, [len(rows) * each for each in widths], [mine * each for each in lengths]
        )
        whole = torch.zeros(num, mine, dtype=dtype)
        parts = torch.split(received, [mine * each for each in lengths])
        for experts, part in zip(spread.experts, parts, strict=True):
            # Those that several ranks hold are the same.
            whole[experts.start : experts.stop] = part.view(len(experts), mine)
        work.do(partial(take, whole))


def _side_by_side(take: Callable[[Tensor], object], rows: Sequence[Tensor]) -> None:
    take(wide(torch.stack(list(rows))))


def _fill(sent: Tensor, rows: Sequence[Tensor], ends: Sequence[int]) -> None:
    """For each rank the columns it is sent, of all rows."""
    parts = [row[begin:end] for begin, end in pairwise(ends) for row in rows]
    if parts:
        sent.copy_(torch.cat(parts))
