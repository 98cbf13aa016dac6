"""What a measured step would cost large models on many ranks: on paper, from unit costs that are
measured here.

Bytes are those of the very messages, laid out for models of these shapes. Seconds are a model: what
a rank reads of its shard, at the measured seconds per element of this machine's one core, and a
ring of n ranks with 2 (n − 1) hops, each of half a quick round trip (the tenth percentile) of two
gloo processes, and its bytes at their measured speed. Nothing was run on more than 4 ranks, nor
over a network, nor on a GPU. `experts` is what a look at them adds, at most every tenth measured
step, where each rank holds whole experts; products beyond 256 MB a rank are left out.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import gradiometer as gm
from benchmarks.distributed import WORLD, all_reduces, in_ranks
from benchmarks.rows import Row, Scale, counted, measured
from gradiometer.capture.distributed import Piece
from gradiometer.capture.ranks import HEADER, ShardMessage
from gradiometer.capture.shardedexperts import WIRE, select
from gradiometer.capture.statistics import Fetched
from gradiometer.maths import tiers

__all__ = ["rows"]

RANKS = (8, 64, 1024)
SMALL, LARGE = 88, 2**23  # bytes of a message that is all latency, and of one that is all transport
SKETCH = 1024
Shapes = tuple[tuple[tuple[int, ...], int], ...]
"""And how many of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The tensors of a model: how many of which shape."""

    name: str
    tensors: Shapes
    experts: Shapes = ()
    """Fused, the expert as first axis."""
    expert_layers: int = 0

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of every tensor."""
        return [shape for shape, count in (*self.tensors, *self.experts) for _ in range(count)]

    @property
    def numel(self) -> int:
        """Parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def in_experts(self) -> int:
        """Parameters of experts."""
        return sum(math.prod(shape) * count for shape, count in self.experts)


def dense(name: str, layers: int, width: int, inner: int, kv: int, vocabulary: int) -> Layout:
    """A transformer with gated feed-forward layers and grouped queries."""
    tensors = (
        ((width, width), 2 * layers),
        ((kv, width), 2 * layers),
        ((inner, width), 2 * layers),
        ((width, inner), layers),
        ((width,), 2 * layers + 1),
        ((vocabulary, width), 2),
    )
    return Layout(name=name, tensors=tensors)


LAYOUTS = (
    dense("7B", 32, 4096, 11008, 4096, 32000),
    dense("70B", 80, 8192, 28672, 1024, 32000),
    Layout(
        name="MoE-256, 671B",
        tensors=(
            ((7168, 16384), 61),
            ((24576, 1536), 61),
            ((1536, 7168), 61),
            ((32768, 512), 61),
            ((576, 7168), 61),
            ((2048, 7168), 116),
            ((7168, 2048), 58),
            ((18432, 7168), 6),
            ((7168, 18432), 3),
            ((256, 7168), 58),
            ((7168,), 245),
            ((129280, 7168), 2),
        ),
        experts=(((256, 2048, 7168), 116), ((256, 7168, 2048), 58)),
        expert_layers=58,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What was measured here."""

    element: float
    """Seconds of a measured step, for each element of a shard."""
    select: float
    """Seconds to find the thresholds of a weight."""
    tier: float
    """Seconds to add a gradient's square to its tier."""
    round_trip: float
    per_byte: float

    def message(self, num_bytes: float, ranks: int) -> float:
        """Seconds in a ring."""
        hops = 2 * (ranks - 1)
        return hops * self.round_trip / 2 + 2 * num_bytes * (ranks - 1) / ranks * self.per_byte


def message_bytes(shapes: Sequence[tuple[int, ...]], ranks: int) -> int:
    """Of the message of a measured step, by the code that makes it."""
    pieces = {
        i: Piece(
            shape=shape,
            local_shape=(-(-shape[0] // ranks), *shape[1:]),
            offset=(0,) * len(shape),
            share=1.0,
        )
        for i, shape in enumerate(shapes)
    }
    message = ShardMessage(pieces, num_atoms=1, sketch_size=SKETCH, both_sketches=False)
    return 8 * HEADER + sum(part.nbytes for part in message.vectors(Fetched({}, {}, {}, {})))


def expert_bytes(layout: Layout, ranks: int) -> tuple[float, float]:
    """Of a look at the experts, on each rank: what always travels, and what is swapped."""
    (num, *_), _ = layout.experts[0]
    told = 8 * layout.expert_layers * (12 * num + num**2)  # sums, distances and products
    told += sum(8 * num * count for _, count in layout.experts)  # thresholds
    swapped = 2 * 4 * layout.in_experts / ranks
    return told, swapped if swapped <= WIRE else 0.0


class Square:
    """A training of one square layer."""

    def __init__(self, width: int) -> None:
        self.model = nn.Linear(width, width, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self._x = torch.ones(2, width)

    def seconds(self) -> float:
        """Of the processor, for a step."""
        started = time.process_time()
        self.optimizer.zero_grad()
        torch.autograd.backward(self.model(self._x).square().mean())
        self.optimizer.step()
        return time.process_time() - started


def reading_seconds(rounds: int, width: int) -> list[float]:
    """For each element, what a measured step takes more than a plain one, of the processor."""
    plain, watched = Square(width), Square(width)
    with (
        tempfile.TemporaryDirectory() as folder,
        gm.watch(watched.model, watched.optimizer, run=Path(folder) / "run", budget=None),
    ):
        taken = [watched.seconds() - plain.seconds() for _ in range(rounds + 2)]
    return [seconds / width**2 for seconds in taken[2:]]  # the first two set up


def expert_seconds(rounds: int, numel: int) -> dict[str, list[float]]:
    """For each element: both thresholds, of a whole expert and by digits, and sums over tiers."""
    weights, grads = torch.randn(1, numel), torch.randn(1, numel)
    sizes = weights.abs()
    places = np.array([numel // 20, numel - numel // 20])
    keys, cuts = [sizes[0].numpy().view("u4")] * 2, torch.tensor([[0.05, 2.0]])
    work: dict[str, Callable[[], object]] = {
        "whole": lambda: tiers.thresholds(sizes),
        "digits": lambda: select(keys, places, bits=32, add_up=lambda counts: None),
        "sums": lambda: tiers.tier_sums_by_row(list(grads), list(weights), cuts),
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, act in work.items():
            started = time.process_time()
            act()
            taken[name].append((time.process_time() - started) / numel)
    return taken


def rank_main(rounds: int, rank: int) -> None:
    """One of two ranks: messages of both sizes."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=WORLD)
    found = {str(size): all_reduces(max(rounds, 5), size) for size in (SMALL, LARGE)}
    print(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may outlive C++'s globals


def rows(scale: Scale) -> Iterator[Row]:
    """The unit costs, then each layout on each number of ranks."""
    rounds = scale.rounds()
    reading = reading_seconds(rounds, scale.of(2048, 256))
    experts = expert_seconds(rounds, scale.of(2**22, 2**14))
    messages = in_ranks("", rounds, 0, module="benchmarks.growth")
    trips = messages[str(SMALL)]
    transport = (np.array(messages[str(LARGE)]) - np.percentile(trips, 10)) / LARGE
    yield measured("a measured step, of an element", 1e9 * np.array(reading), unit="ns")
    told = (
        "thresholds of a whole expert, of a weight",
        "the same by digits",
        "tiers, of an element",
    )
    for name, taken in zip(told, experts.values(), strict=True):
        yield measured(name, 1e9 * np.array(taken), unit="ns")
    yield measured("a message of 88 bytes, two ranks", 1e3 * np.array(trips), unit="ms")
    yield measured("a message's bytes, two ranks", 1e9 * transport, unit="ns")
    units = Units(
        element=float(np.median(reading)),
        select=float(np.median(experts["whole"])),
        tier=float(np.median(experts["sums"])),
        round_trip=float(np.percentile(trips, 10)),
        per_byte=max(0.0, float(np.percentile(transport, 10))),
    )
    for layout in LAYOUTS:
        size = message_bytes(layout.shapes, RANKS[-1]) / 1024
        yield counted(f"{layout.name}: a message", size, unit="KiB", at_most=256)
        for ranks in RANKS:
            yield from paper(layout, ranks, units)


def paper(layout: Layout, ranks: int, units: Units) -> Iterator[Row]:
    """A layout on so many ranks."""
    size, shard = message_bytes(layout.shapes, ranks), layout.numel / ranks
    seconds = shard * units.element, units.message(size, ranks)
    yield counted(
        f"{layout.name} on {ranks} ranks: a measured step",
        sum(seconds),
        unit="s",
        note=f"{len(layout.shapes)} tensors, {size / 1024:,.0f} KiB a message;"
        f" reading {seconds[0]:.2g} s, messages {seconds[1]:.2g} s",
    )
    if layout.experts:
        told, swapped = expert_bytes(layout, ranks)
        work = layout.in_experts / ranks * (units.select + units.tier)
        wait = units.message(told, ranks) + 2 * units.message(0, ranks)  # vote and thresholds
        wait += swapped * units.per_byte
        how = f"{swapped / 2**20:,.0f} MiB swapped" if swapped else "no products, too many bytes"
        yield counted(
            f"{layout.name} on {ranks} ranks: experts",
            work + wait,
            unit="s",
            note=f"{told / 2**20:,.0f} MiB a message, {how};"
            f" reading {work:.2g} s, messages {wait:.2g} s",
        )


if __name__ == "__main__":
    rank_main(int(sys.argv[2]), int(sys.argv[4]))
