"""A linear sketch of gradients: k numbers that stand in for millions in norms and inner products.

A vector is cut into tiles. Tile t is multiplied by a fixed pattern of signs T and a sign of its
own, and added to a plane at a shift of its own; at the end the plane is hashed to k buckets, once
and not once per tile:

    plane[s_t + p] += u_t · T[p] · x_t[p],    S(x) = H(plane),    E<S(a), S(b)> = <a, b>

so a sketch costs one pass over the gradient. T decides between the elements of a tile, u and s
between tiles. Tiles folded to rows of k would be simpler, but then a gradient that lives in one
column of its matrix falls into a few buckets; the plane is far wider than k, and H scatters it at
random. Signs, shifts and H are hashes of (seed, key, tile index), so two processes agree without a
word and no random generator is touched.

One hash gives one vector one error, however often it is sketched. Where a mean over steps is
wanted, and nothing is compared over steps, every step has a shift of its own.

Reference: count sketch, Charikar, Chen & Farach-Colton (2002).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = [
    "SHIFTS",
    "Joined",
    "Sketcher",
    "Tiles",
    "cosine",
    "cosine_error",
    "key_of",
    "norm_error",
    "shift_of",
]

# Elements p and p + r·WIDTH of a tile (r < ROWS) always meet in the plane's first fold. This prime
# keeps r·WIDTH at least 15 away from a multiple of the usual row lengths (256 to 14336), so they do
# not lie in one column of a matrix.
WIDTH = 17393
ROWS = 16
# Two tiles with the same shift meet element by element, under one sign: 1/SHIFTS must be well below
# 1/k.
SHIFTS = 32768
# The largest tile: about 1 MB each for the plane and for T. Fewer, larger operations win over cache
# (measured: 48k elements 1.6 × clip_grad_norm_, 240k 1.1 ×).
TILE = ROWS * WIDTH - SHIFTS
MAX_K = SHIFTS // 8

WORD = 2**64 - 1
SIGN_STREAM, ORDER_STREAM, TILE_STREAM, SHIFT_STREAM = 1, 2, 3, 4


class Placing(NamedTuple):
    """One tile: x[first : first + length] goes to plane[start : start + length], with a sign."""

    first: int
    length: int
    start: int
    sign: float


class Tables(NamedTuple):
    """What all tiles share: T [TILE], the order in which buckets are dealt [⌈WIDTH/k⌉ · k], and the
    bucket of each column of the plane [⌈WIDTH/k⌉ · k]."""

    signs: Tensor
    order: Tensor
    buckets: Tensor


class Tiles(NamedTuple):
    """Tensors of one tile each, one after the other in a vector [L]: what each element meets."""

    starts: Tensor
    """Of each tensor, [n]."""
    lengths: Tensor
    places: Tensor
    """Of each element within its tile, [L]."""
    signs: Tensor
    buckets: Tensor
    """Where each element goes, [L], without a shift: few elements need no plane."""


class Joined(NamedTuple):
    """Many small tensors of one group, in one vector."""

    group: int
    vector: Tensor
    tiles: Tiles


@dataclass(frozen=True, slots=True)
class Sketcher:
    """A linear map from the parameters to k numbers; those of one seed and k can be compared.

    Every tensor has a key (`key_of` its name), and its sketch depends on seed, key and elements
    alone. The elements must be dense and in the same places each time: the values of a sparse
    gradient are not.
    """

    seed: int = 0
    k: int = 1024
    _tables: dict[torch.device, Tables] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _placings: dict[tuple[int, int], tuple[Placing, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _planes: dict[torch.device, Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_K:
            raise ValueError(
                f"k must lie in 1..{MAX_K}, found {self.k}: with more, keep the exact vectors."
            )

    def sketch(self, tensors: Sequence[Tensor], keys: Sequence[int]) -> Tensor:
        """The sketch [k] of all tensors taken as one vector, in float32 on their device."""
        return self.sketch_groups(tensors, keys, [range(len(tensors))])[0]

    @torch.no_grad()
    def sketch_groups(
        self,
        tensors: Sequence[Tensor],
        keys: Sequence[int],
        groups: Sequence[Sequence[int]],
        *,
        shift: int = 0,
        joined: Sequence[Joined] = (),
    ) -> Tensor:
        """One sketch for each group of indices into `tensors` [len(groups), k]; small tensors may
        come joined.

        Every tile begins `shift` further on the plane, and so meets other buckets: sketches of
        different shifts cannot be compared, and their errors are not the same ones.
        """
        if not len(set(keys)) == len(keys) == len(tensors):
            raise ValueError(
                f"every tensor needs a key of its own, found {len(set(keys))} for {len(tensors)}"
                " tensors."
            )
        vectors = [*tensors, *(each.vector for each in joined)]
        device = vectors[0].device if vectors else torch.device("cpu")
        sketches = torch.zeros(len(groups), self.k, device=device)
        if tensors:
            self._sketch_tiles(sketches, tensors, keys, groups, shift)
        for each in joined:
            found = each.vector.float() * each.tiles.signs
            sketches[each.group].index_add_(0, self._buckets(each.tiles, shift, device), found)
        return sketches

    def _sketch_tiles(
        self,
        sketches: Tensor,
        tensors: Sequence[Tensor],
        keys: Sequence[int],
        groups: Sequence[Sequence[int]],
        shift: int,
    ) -> None:
        device = sketches.device
        tables = self._tables_on(device)
        # A new megabyte is 256 page faults, a tenth of the time. Popped, not read, so that no two
        # threads share it.
        plane = self._planes.pop(device, None)
        if plane is None:
            plane = torch.zeros(ROWS * WIDTH, device=device)
        folded = torch.zeros(len(tables.order), device=device)
        for group, row in zip(groups, sketches, strict=True):
            ends = [self._place(plane, tables.signs, tensors[i], keys[i], shift) for i in group]
            stop = max(ends, default=0)
            used = plane[: math.ceil(stop / WIDTH) * WIDTH]
            torch.sum(used.view(-1, WIDTH), 0, out=folded[:WIDTH])
            torch.sum(folded.index_select(0, tables.order).view(-1, self.k), 0, out=row)
            used.zero_()
        self._planes[device] = plane

    def _place(self, plane: Tensor, signs: Tensor, x: Tensor, key: int, shift: int) -> int:
        """plane[s_t + p] += u_t T[p] x_t[p] for each tile; gives where the last of them ends."""
        # reshape copies a tensor that is not contiguous (channels last): one temporary of that
        # tensor's size
        flat, last = x.reshape(-1), 0
        for first, length, start, sign in self._placings_of(key, x.numel()):
            # float() bounds the temporary of a half-precision tensor by a tile
            tile = flat[first : first + length].float()
            start = (start + shift) % SHIFTS
            plane[start : start + length].addcmul_(tile, signs[:length], value=sign)
            last = max(last, start + length)
        return last

    def tiles_of(self, keys: Sequence[int], lengths: Sequence[int], device: torch.device) -> Tiles:
        """How tensors that are no longer than a tile meet the plane, when they come joined."""
        first = [self._placings_of(key, n)[0] for key, n in zip(keys, lengths, strict=True)]
        counts = np.asarray(lengths)
        places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        at = torch.from_numpy(places).to(device)
        own = np.repeat(np.array([each.sign for each in first], np.float32), counts)
        starts = np.array([each.start for each in first])
        columns = torch.from_numpy((np.repeat(starts, counts) + places) % WIDTH).to(device)
        tables = self._tables_on(device)
        return Tiles(
            torch.from_numpy(starts).to(device),
            torch.tensor(lengths, device=device),
            at,
            tables.signs[at] * torch.from_numpy(own).to(device),
            tables.buckets[columns],
        )

    def _buckets(self, tiles: Tiles, shift: int, device: torch.device) -> Tensor:
        """Where each element goes."""
        if shift == 0:
            return tiles.buckets
        starts = (tiles.starts + shift) % SHIFTS
        at = torch.repeat_interleave(starts, tiles.lengths, output_size=len(tiles.places))
        return self._tables_on(device).buckets[at.add_(tiles.places) % WIDTH]

    def _placings_of(self, key: int, numel: int) -> tuple[Placing, ...]:
        if (key, numel) not in self._placings:
            firsts = range(0, numel, TILE)
            words = random_words(len(firsts), self.seed, TILE_STREAM, key)
            drawn = zip(firsts, (words % SHIFTS).tolist(), signs_of(words).tolist(), strict=True)
            self._placings[key, numel] = tuple(
                Placing(i, min(TILE, numel - i), start, sign) for i, start, sign in drawn
            )
        return self._placings[key, numel]

    def _tables_on(self, device: torch.device) -> Tables:
        if device not in self._tables:
            signs = signs_of(random_words(TILE, self.seed, SIGN_STREAM))
            words = random_words(-(-WIDTH // self.k) * self.k, self.seed, ORDER_STREAM)
            order = np.argsort(words, kind="stable")
            buckets = np.argsort(order) % self.k  # where `order` puts each column
            self._tables[device] = Tables(
                torch.from_numpy(signs.astype(np.float32)).to(device),
                torch.from_numpy(order).to(device),
                torch.from_numpy(buckets).to(device),
            )
        return self._tables[device]


def shift_of(number: int) -> int:
    """A shift for the round of that number, the same in every process."""
    return int(random_words(1, SHIFT_STREAM, number)[0] % np.uint64(SHIFTS))


def key_of(name: str) -> int:
    """A key for the tensor of that name, the same in every process (unlike `hash`)."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def random_words(count: int, *stream: int) -> NDArray[np.uint64]:
    """`count` words of 64 random bits, a function of the stream alone (splitmix64)."""
    state = np.zeros(1, np.uint64)
    for number in stream:
        state = mixed(state ^ np.uint64(number & WORD))
    return mixed(state + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the input moves about half of the output's."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def signs_of(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """±1 from the highest bit."""
    return 1.0 - 2.0 * (words >> np.uint64(63)).astype(np.float64)


def norm_error(k: int) -> float:
    """Relative standard error of ‖S(x)‖² as an estimate of ‖x‖²; of the norm it is half."""
    return math.sqrt(2 / k)


def cosine_error(k: int) -> float:
    """Standard error of a cosine between two sketches of orthogonal vectors, the widest case."""
    return 1 / math.sqrt(k)


def cosine(a: ArrayLike, b: ArrayLike) -> float | None:
    """<a, b>/(‖a‖‖b‖) of two sketches [k]; None when either is zero or not finite."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    scale = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    return float(x @ y) / scale if 0 < scale < math.inf else None
