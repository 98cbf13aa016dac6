"""One batch, one gradient: cut into micro-batches, ordered, padded or shared by ranks as you like.

Most published bugs of the kind "the loss is right and the gradient is wrong" break this. The
gradient of the whole batch in one piece is the reference; every other way is compared with it, and
where they differ the ratio is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradiometer.errors import UsageError
from gradiometer.probes.auditcheck import (
    About,
    Check,
    failed,
    num_arguments,
    passed,
    skipped,
    tolerance,
)

__all__ = ["LossOf", "Pad", "invariance"]

LossOf = Callable[..., Tensor]
"""loss_of(rows) or loss_of(rows, parts): the loss of some rows of a batch cut into `parts`."""
Pad = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
Rows = Mapping[str, Tensor]

MOST_ROWS = 16  # of the batch: each is a backward of its own, and a factor shows on two
OTHER = 0.5  # of the gradient's norm beyond a common factor: no longer the same direction
REFERENCES = ("ms-swift #10117", "TRL #6024", "Megatron-LM #7452")
PIECES: About = ("gradient-not-invariant", "micro-batches")
ORDER: About = ("gradient-not-invariant", "order of the rows")
PADDING: About = ("gradient-not-invariant", "padding")
RANKS: About = ("gradient-not-invariant", "ranks")
TELL = (
    "pass micro_batches=loss_of, your loss as a function of some rows, and batch=, tensors with a"
    " row for each sample"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Another gradient h against the reference g."""

    error: float
    """‖h − g‖/‖g‖."""
    ratio: float
    """The factor s that fits h = sg best."""
    left: float
    """What it leaves: ‖h − sg‖/‖h‖."""

    @classmethod
    def of(cls, other: Tensor, reference: Tensor) -> Likeness:
        """From flat vectors, in float64."""
        h, g = other.double(), reference.double()
        size = float(g @ g)
        ratio = float(h @ g) / size
        left = float((h - ratio * g).norm()) / max(float(h.norm()), 1e-300)
        return cls(error=float((h - g).norm()) / math.sqrt(size), ratio=ratio, left=left)


class Bench:
    """The loss of some rows, and its gradient as one flat vector."""

    def __init__(self, loss_of: LossOf, parameters: Sequence[nn.Parameter]) -> None:
        self._loss_of = loss_of
        self._parameters = [p for p in parameters if p.requires_grad]
        self.told_parts = num_arguments(loss_of) >= 2
        self.tolerance = 0.0

    def gradient(self, rows: Rows, parts: int = 1) -> Tensor:
        """∇ loss_of(rows), [P]."""
        with torch.enable_grad():
            loss = self._loss_of(rows, parts) if self.told_parts else self._loss_of(rows)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise UsageError(
                "micro_batches: loss_of(rows) gives a scalar loss, as it goes backward; found"
                f" {what}"
            )
        if not loss.requires_grad:
            raise UsageError("micro_batches: the loss of loss_of(rows) has no gradient")
        self.tolerance = max(self.tolerance, tolerance([loss], self._parameters))
        found = torch.autograd.grad(loss.reshape(()), self._parameters, allow_unused=True)
        pairs = zip(found, self._parameters, strict=True)
        flat = [(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs]
        return torch.cat([each.float() if each.itemsize < 4 else each for each in flat])

    def summed(self, pieces: Sequence[Rows]) -> Tensor:
        """What the optimizer finds after a backward for each piece."""
        total = self.gradient(pieces[0], len(pieces))
        for piece in pieces[1:]:
            total += self.gradient(piece, len(pieces))
        return total


def invariance(
    loss_of: LossOf | None, batch: Rows | None, pad: Pad | None, parameters: Sequence[nn.Parameter]
) -> Iterator[Check]:
    """The checks, dropout and running statistics switched off by the caller."""
    every = (PIECES, ORDER, PADDING, RANKS)
    if loss_of is None or batch is None:
        yield from (skipped(about, TELL) for about in every)
        return
    bench, rows = Bench(loss_of, parameters), _some_rows(_shared(batch))
    reference, again = bench.gradient(rows), bench.gradient(rows)
    trouble = _unfit(reference, again, bench)
    if trouble:
        yield from (skipped(about, trouble) for about in every)
        return
    yield _micro_batches(bench, rows, reference)
    reversed_ = bench.gradient(_picked(rows, torch.arange(_size(rows)).flip(0)))
    yield _plain(ORDER, bench, reversed_, reference, "the rows in reverse order")
    if pad is None:
        yield skipped(PADDING, "pass pad=, a function that gives the batch with more padding")
    else:
        yield _plain(PADDING, bench, bench.gradient(pad(rows)), reference, "more padding")
    yield _ranks(bench, rows, reference)


def _unfit(reference: Tensor, again: Tensor, bench: Bench) -> str:
    if not bool(torch.isfinite(reference).all()):
        return "the gradient of the batch is not finite: mend that first"
    if not bool(reference.any()):
        return "the gradient of this batch is exactly zero: take one whose advantages are not"
    error = Likeness.of(again, reference).error
    if error > bench.tolerance:
        return (
            f"loss_of gives another gradient for the same rows ({error:.2g}): it must not draw"
            " random numbers"
        )
    return ""


def _micro_batches(bench: Bench, rows: Rows, reference: Tensor) -> Check:
    """1×N against N×1. A loss that is not told the number of pieces may be added up or averaged."""
    number = _size(rows)
    if number < 2:
        return skipped(PIECES, "the batch has one row: give two or more")
    pieces = [_picked(rows, torch.tensor([i])) for i in range(number)]
    summed = bench.summed(pieces)
    ways = {"added up": Likeness.of(summed, reference)}
    if not bench.told_parts:
        ways["averaged"] = Likeness.of(summed / number, reference)
    way = min(ways, key=lambda way: ways[way].error if math.isfinite(ways[way].error) else math.inf)
    alike = ways[way]
    if alike.error <= bench.tolerance:
        note = _unequal(bench, rows, reference, averaged=way == "averaged")
        told = f" when {way}; write loss_of(rows, parts) to check the division by parts too"
        return passed(
            PIECES,
            f"1×{number} and {number}×1 give the same gradient"
            f"{'' if bench.told_parts else told}{note}",
            ratio=alike.ratio,
        )
    fix = _division(alike.ratio, number)
    return _different(PIECES, alike, bench, f"{number} micro-batches of one row, {way}", fix)


def _unequal(bench: Bench, rows: Rows, reference: Tensor, *, averaged: bool) -> str:
    """A last micro-batch of one row: worth a word, but trainers that drop it may average."""
    number = _size(rows)
    if number < 3:
        return ""
    parts = [_picked(rows, torch.arange(number - 1)), _picked(rows, torch.tensor([number - 1]))]
    summed = bench.summed(parts)
    alike = Likeness.of(summed / 2 if averaged else summed, reference)
    if alike.error <= bench.tolerance:
        return ""
    return (
        f". Pieces of unequal size do not ({number - 1} + 1 rows: off by {alike.error:.0%}): keep"
        " them equal"
    )


def _division(ratio: float, number: int) -> str:
    if math.isclose(ratio, 1 / number, rel_tol=0.02):
        return (
            "the loss is divided by the number of micro-batches twice: by you and by the trainer"
            " (accelerate). Drop one"
        )
    if math.isclose(ratio, number, rel_tol=0.02):
        return (
            "the loss is not divided by the number of micro-batches: divide it, or normalise by the"
            " whole batch"
        )
    return (
        "a mean in each micro-batch weighs short ones too much: sum in each, and divide by the"
        " count of the whole batch (num_items_in_batch of transformers, token-mean over the"
        " mini-batch in verl)"
    )


def _plain(about: About, bench: Bench, found: Tensor, reference: Tensor, what: str) -> Check:
    alike = Likeness.of(found, reference)
    if alike.error <= bench.tolerance:
        return passed(about, f"{what}: the same gradient", ratio=alike.ratio)
    fix = {
        ORDER: "something depends on a row's place: a shifted index, a group that is taken from"
        " neighbours, a state kept",
        PADDING: "mask the padding in attention, in the loss and in its denominator; a mean over "
        "all columns counts it",
        RANKS: "ranks average their gradients: normalise by the count over all ranks (all_reduce)"
        " times the world size",
    }
    return _different(about, alike, bench, what, fix[about])


def _different(about: About, alike: Likeness, bench: Bench, what: str, fix: str) -> Check:
    if not math.isfinite(alike.error):
        message = f"{what}: the gradient is not finite, and that of the whole batch is"
    elif alike.left <= bench.tolerance:
        message = f"{what}: ×{alike.ratio:.4g} of the gradient of the whole batch"
    else:
        message = (
            f"{what}: another gradient, ×{alike.ratio:.4g} along that of the whole batch and"
            f" {alike.left:.0%} beside it"
        )
    severe = not (alike.left <= OTHER and alike.ratio > 0)
    return failed(
        about,
        "critical" if severe else "warn",
        message,
        fix,
        numbers={
            "ratio": alike.ratio,
            "error": alike.error,
            "beside": alike.left,
            "tolerance": bench.tolerance,
        },
        confirm="train ten steps with one micro-batch and ten with several, from one checkpoint: "
        "the weights must agree",
        references=REFERENCES,
    )


def _ranks(bench: Bench, rows: Rows, reference: Tensor) -> Check:
    """Every rank its share of the rows, gradients averaged as DistributedDataParallel does."""
    if not _distributed():
        return skipped(
            RANKS, "run it under torchrun --nproc-per-node 2 (torch.distributed initialised)"
        )
    rank, world = dist.get_rank(), dist.get_world_size()
    if _size(rows) < world:
        return skipped(RANKS, f"{_size(rows)} rows for {world} ranks: give one for each or more")
    share = bench.gradient(_picked(rows, torch.arange(rank, _size(rows), world)))
    both = torch.stack([share, reference])
    dist.all_reduce(both)
    share, whole = both / world
    return _plain(RANKS, bench, share, whole, f"shared by {world} ranks and averaged")


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _shared(batch: Rows) -> Rows:
    """That of the first rank on all of them: in training each has its own."""
    for name, entry in batch.items():
        if not isinstance(entry, Tensor) or entry.ndim == 0:
            raise UsageError(f"batch[{name!r}] is no tensor with a row for each sample")
    if not batch or len({len(entry) for entry in batch.values()}) != 1:
        raise UsageError(
            "batch= is a mapping of names to tensors, all with the same number of rows"
        )
    if not _distributed():
        return batch
    given = [{name: entry.detach().cpu() for name, entry in batch.items()}]
    dist.broadcast_object_list(given, src=0)
    return {name: entry.to(batch[name].device) for name, entry in given[0].items()}


def _some_rows(batch: Rows) -> Rows:
    number = _size(batch)
    if number <= MOST_ROWS:
        return batch
    return _picked(batch, torch.linspace(0, number - 1, MOST_ROWS).long())


def _size(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def _picked(rows: Rows, places: Tensor) -> dict[str, Tensor]:
    return {name: entry[places.to(entry.device)] for name, entry in rows.items()}
