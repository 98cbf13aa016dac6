"""Named gradient vectors, kept for their inner products: in full, or as linear sketches.

One interface for both, chosen by a memory limit. Adding to a name adds the vectors, so a gradient
may come in pieces (micro-batches). Products are taken in float64: in float32 the norm of a sum of
10M-parameter gradients, c'Gc, can come out negative. A parameter may belong to one atom; the
products of a block are the sum over its atoms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.maths import sketch, stats

__all__ = [
    "ExactVectors",
    "SketchedVectors",
    "Vectors",
    "key_at",
    "products_of",
    "vectors_for",
]

CHUNK = 1 << 15  # columns turned to float64 at a time: n vectors of 32k stay in the cache
DEVICE_CHUNK = 1 << 20  # off the CPU a launch costs more than a cache miss
FEW = 1 << 12  # columns, where a chunk is used several times while it is in the cache
AT_ONCE = 1 << 18  # products of elements: up to here those of all parameters are taken in one call
Gradients = Sequence[Tensor | None]
"""One for each parameter; None where there is no path."""


class Vectors(Protocol):
    """What both kinds can do."""

    cosine_error: float | None
    """Standard error of a cosine (the widest case); None when exact."""

    def add(self, name: str, gradients: Gradients, scale: float = 1.0) -> None:
        """Add scale × gradient to the vector of that name, which starts at zero."""

    def products(
        self, names: Sequence[str], others: Sequence[str] | None = None, *, wide: bool = True
    ) -> Tensor:
        """<a, b> for each atom, [atoms, names, others] in float64 on the device.

        With wide=False chunks are multiplied in the vectors' own precision and added up in float64:
        a third of the time, an error of about 1e-7 of the norms, for many vectors of which no tiny
        difference is wanted.
        """

    def row(self, name: str) -> Tensor:
        """The vector of that name as it is kept, to be added to in place; zero at first."""

    def names(self) -> list[str]:
        """In the order they came."""

    def clear(self, parameters: Iterable[int]) -> None:
        """Make every vector zero on these parameters; where each is an atom of its own."""


class ExactVectors:
    """Every element of every vector, one row [P] each, in float32 (float64 for a float64 model)."""

    cosine_error: float | None = None

    def __init__(
        self, parameters: Sequence[Tensor], atoms: Sequence[Sequence[int]] | None = None
    ) -> None:
        self._sizes = [_size(p) for p in parameters]
        self._starts = np.cumsum([0, *self._sizes]).tolist()
        self._atoms = _listed(atoms, len(parameters))
        self._device = parameters[0].device
        self._chunk = CHUNK if self._device.type == "cpu" else DEVICE_CHUNK
        self._dtype = torch.float64 if _itemsize(parameters) == 8 else torch.float32
        self._rows: dict[str, Tensor] = {}
        self._by_parameter = atoms is None and self._device.type in stats.HOST and all(self._sizes)
        """Whether each parameter is an atom, and numpy may add up their products."""

    @torch.no_grad()
    def add(self, name: str, gradients: Gradients, scale: float = 1.0) -> None:
        """Add to the vector of that name."""
        row = self.row(name)
        for flat, start, stop in self._joined(gradients):
            row[start:stop].add_(flat.to(self._device), alpha=scale)

    def _joined(self, gradients: Gradients) -> Iterator[tuple[Tensor, int, int]]:
        """The gradients and where they lie in a vector, small neighbours as one: a network of a
        dozen layers is one call and not a dozen."""
        waiting: list[Tensor] = []
        first = 0
        for gradient, start, size in zip(gradients, self._starts, self._sizes, strict=False):
            flat = None if gradient is None else stats.filled(gradient).reshape(-1)
            whole = start - first + size <= self._chunk
            if waiting and (flat is None or not whole or flat.device != waiting[0].device):
                yield (torch.cat(waiting) if len(waiting) > 1 else waiting[0]), first, start
                waiting = []
            if flat is not None:
                first = start if not waiting else first
                waiting.append(flat)
        if waiting:
            yield (
                torch.cat(waiting) if len(waiting) > 1 else waiting[0],
                first,
                first + sum(map(len, waiting)),
            )

    @torch.no_grad()
    def products(
        self, names: Sequence[str], others: Sequence[str] | None = None, *, wide: bool = True
    ) -> Tensor:
        """<a, b> for each atom, [atoms, names, others]."""
        rows = [self.row(name) for name in names]
        columns = rows if others is None else [self.row(name) for name in others]
        if self._by_parameter and len(rows) * len(columns) * self._starts[-1] <= AT_ONCE:
            return self._products_at_once(rows, columns)
        shape = len(self._atoms), len(rows), len(columns)
        out = torch.zeros(shape, dtype=_wide(self._device), device=self._device)
        dtype = out.dtype if wide else self._dtype
        for total, atom in zip(out, self._atoms, strict=True):
            for start, stop in _runs(atom, self._starts):
                for at in range(start, stop, self._chunk):
                    part = slice(at, min(at + self._chunk, stop))
                    left = torch.stack([row[part] for row in rows]).to(dtype)
                    right = left
                    if others is not None:
                        right = torch.stack([row[part] for row in columns]).to(dtype)
                    total += left @ right.T
        return out

    def _products_at_once(self, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Tensor:
        """The same of all small parameters of the host, in one call each."""
        left, right = (torch.stack(list(each)).double().numpy() for each in (rows, columns))
        with np.errstate(all="ignore"):
            pairs = left[:, None] * right
            found = np.add.reduceat(pairs, self._starts[:-1], axis=-1)
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(found, -1, 0)))

    @torch.no_grad()
    def against(self, names: Sequence[str], gradients: Gradients) -> Tensor:
        """Products [2, 2] of the sum of named vectors and a gradient, over its parameters."""
        rows = [self._rows[name] for name in names]
        out = torch.zeros(2, 2, dtype=_wide(self._device), device=self._device)
        width = min(self._chunk, self._starts[-1])
        scratch = torch.empty(2, width, dtype=out.dtype, device=self._device)
        for flat, start, stop in self._joined(gradients):
            for at in range(start, stop, self._chunk):
                end = min(at + self._chunk, stop)
                pair = scratch[:, : end - at]
                pair[0] = rows[0][at:end]
                for row in rows[1:]:
                    pair[0] += row[at:end]
                pair[1] = flat[at - start : end - start]
                out.addmm_(pair, pair.T)
        return out

    @torch.no_grad()
    def in_one_pass(
        self, families: Sequence[Tensor], runs: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Products of F families of n vectors [n, P], in one pass over the columns.

        inside   [F, n, n]     the members of a family with each other
        between  [n, F, F]     a member with its namesakes in other families
        sums     [atoms, 1 + runs, F, F]    sums over all members, then over each run of so many
                               neighbours; in float64

        All is read from memory once.
        """
        f, n = len(families), len(families[0])
        device, wide = self._device, _wide(self._device)
        inside = torch.zeros(f, n, n, dtype=wide, device=device)
        between = torch.zeros(n, f, f, dtype=wide, device=device)
        sums = torch.zeros(len(self._atoms), 1 + len(runs), f, f, dtype=wide, device=device)
        step = FEW if device.type == "cpu" else DEVICE_CHUNK
        for total, atom in zip(sums, self._atoms, strict=True):
            for at, stop in _chunks(_runs(atom, self._starts), step):
                parts = [family[:, at:stop] for family in families]
                each = torch.empty(f, 1 + len(runs), stop - at, dtype=self._dtype, device=device)
                for i, part in enumerate(parts):
                    inside[i] += part @ part.T
                    _add_runs(part, runs, each[i, 1:])
                    for j in range(i):
                        between[:, i, j] += torch.linalg.vecdot(part, parts[j])
                torch.sum(each[:, 1:], 1, out=each[:, 0])
                each = each.transpose(0, 1).to(wide)
                total += each @ each.transpose(1, 2)
        between += between.mT.clone()
        between.diagonal(dim1=1, dim2=2).copy_(inside.diagonal(dim1=1, dim2=2).T)
        return inside, between, sums

    def block(self, names: Sequence[str]) -> Tensor:
        """The vectors of new names, side by side: [names, P]."""
        shape = len(names), self._starts[-1]
        rows = torch.zeros(shape, dtype=self._dtype, device=self._device)
        self._rows.update(zip(names, rows, strict=True))
        return rows

    def row(self, name: str) -> Tensor:
        """The vector, [P]."""
        if name not in self._rows:
            self._rows[name] = torch.zeros(self._starts[-1], dtype=self._dtype, device=self._device)
        return self._rows[name]

    def names(self) -> list[str]:
        """In the order they came."""
        return list(self._rows)

    def clear(self, parameters: Iterable[int]) -> None:
        """Zero on these parameters."""
        for i in parameters:
            for row in self._rows.values():
                row[self._starts[i] : self._starts[i + 1]] = 0.0


class SketchedVectors:
    """k numbers for each atom of each vector, linear in the gradient; products are estimates."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        atoms: Sequence[Sequence[int]] | None = None,
        *,
        k: int = 1024,
        seed: int = 0,
        sketcher: sketch.Sketcher | None = None,
    ) -> None:
        self._atoms = _listed(atoms, len(parameters))
        self._device = parameters[0].device
        self._sketcher = sketcher or sketch.Sketcher(seed, k)
        self._keys = [key_at(i) for i in range(len(parameters))]
        self.cosine_error: float | None = sketch.cosine_error(self._sketcher.k)
        self._rows: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, name: str, gradients: Gradients, scale: float = 1.0) -> None:
        """Add the sketch of the gradient to that of its name."""
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        place = {i: at for at, i in enumerate(there)}
        dense = [self._filled(gradients[i]) for i in there]
        groups = [[place[i] for i in atom if i in place] for atom in self._atoms]
        taken = self._sketcher.sketch_groups(dense, [self._keys[i] for i in there], groups)
        self.row(name).add_(taken.to(self._device), alpha=scale)

    @torch.no_grad()
    def products(
        self, names: Sequence[str], others: Sequence[str] | None = None, *, wide: bool = True
    ) -> Tensor:
        """<S(a), S(b)> for each atom, [atoms, names, others]: unbiased, sd about ‖a‖‖b‖/√k."""
        dtype = _wide(self._device)
        left = right = torch.stack([self.row(name) for name in names], 1).to(dtype)
        if others is not None:
            right = torch.stack([self.row(name) for name in others], 1).to(dtype)
        return left @ right.transpose(1, 2)

    def row(self, name: str) -> Tensor:
        """The sketch of each atom, [atoms, k]."""
        if name not in self._rows:
            self._rows[name] = torch.zeros(len(self._atoms), self._sketcher.k, device=self._device)
        return self._rows[name]

    def names(self) -> list[str]:
        """In the order they came."""
        return list(self._rows)

    def clear(self, parameters: Iterable[int]) -> None:
        """Zero on these parameters."""
        for i in parameters:
            for row in self._rows.values():
                row[i] = 0.0

    def _filled(self, gradient: Tensor | None) -> Tensor:
        assert gradient is not None
        return stats.filled(gradient).to(self._device)


def vectors_for(
    parameters: Sequence[Tensor],
    atoms: Sequence[Sequence[int]] | None = None,
    *,
    expected: int,
    memory_limit: int,
    k: int = 1024,
    seed: int = 0,
    sketcher: sketch.Sketcher | None = None,
) -> Vectors:
    """Exact if `expected` vectors fit into `memory_limit` bytes, sketched otherwise: by a sketcher
    of that k and seed, or by one that is given."""
    needed = expected * sum(_size(p) for p in parameters) * _itemsize(parameters)
    if needed <= memory_limit:
        return ExactVectors(parameters, atoms)
    return SketchedVectors(parameters, atoms, k=k, seed=seed, sketcher=sketcher)


def key_at(i: int) -> int:
    """Under which a sketcher has the parameter of this number."""
    return sketch.key_of(str(i))


def products_of(
    vectors: Vectors, names: Sequence[str], *, wide: bool = True
) -> NDArray[np.float64]:
    """The products on the host, [atoms, names, names]: a sync."""
    return vectors.products(names, wide=wide).cpu().numpy().astype(np.float64, copy=False)


def _listed(atoms: Sequence[Sequence[int]] | None, num_parameters: int) -> list[list[int]]:
    """The atoms, or each parameter as one."""
    if atoms is None:
        return [[i] for i in range(num_parameters)]
    return [list(atom) for atom in atoms]


def _size(parameter: Tensor) -> int:
    """Real numbers in it: a complex one is two."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _itemsize(parameters: Sequence[Tensor]) -> int:
    return 8 if any(p.dtype in (torch.float64, torch.complex128) for p in parameters) else 4


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def _add_runs(part: Tensor, runs: Sequence[int], out: Tensor) -> None:
    """Sums of neighbouring rows of [n, columns], by the length of each run, to [runs, columns]."""
    if len(set(runs)) == 1:  # one call, where there is one for each of many buckets
        torch.sum(part.view(len(runs), -1, part.shape[1]), 1, out=out)
        return
    for run, total in zip(part.split_with_sizes(list(runs)), out, strict=True):
        torch.sum(run, 0, out=total)


def _chunks(runs: Sequence[tuple[int, int]], step: int) -> Iterator[tuple[int, int]]:
    """The runs, cut where they are longer than a step."""
    for start, stop in runs:
        for at in range(start, stop, step):
            yield at, min(at + step, stop)


def _runs(atom: Sequence[int], starts: Sequence[int]) -> list[tuple[int, int]]:
    """The atom's columns as few long slices: neighbouring parameters lie side by side."""
    runs: list[tuple[int, int]] = []
    for i in sorted(atom):
        if runs and runs[-1][1] == starts[i]:
            runs[-1] = (runs[-1][0], starts[i + 1])
        else:
            runs.append((starts[i], starts[i + 1]))
    return runs
