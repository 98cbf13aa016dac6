"""Rows of many groups through the model at once, where that gives the numbers of a walk by groups.

A forward of one small group keeps no processor busy, and most of a group's rows are shorter than
its longest. Here rows of similar width share a forward, whosever they are, without the padding at
their right, and layers give the gradient of each group (`byparts`).

This is right where rows do not meet and padding is not read. Nobody can know that of a model, so
it is tried: one group, the one with the most padding, is a witness. It is walked as the survey
walks, and its rows, spread over the shared forwards, must have the same losses and the same
gradients. Otherwise, and where random numbers are drawn, buffers change or a parameter is used in
a way that `byparts` cannot take apart, the survey walks group by group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.blocks import Model, modules_of
from gradiometer.capture.randomness import RandomState
from gradiometer.maths.vectors import ExactVectors
from gradiometer.probes.byparts import ByParts, Refused
from gradiometer.probes.stillness import held_still
from gradiometer.probes.survey import (
    Asked,
    Progress,
    Survey,
    Trim,
    Trimming,
    last_used,
    trimming_of,
)

__all__ = ["Walked", "walk_together"]

FULL = 576  # numbers of a batch's widest entry that fill a forward: about as many tokens
FEW = 6  # groups, of which the witness is too large a part
VISIT = 8.0  # numbers that could go through the model while a vector is read and written once more
WORTHWHILE = 0.9  # of the numbers, or of the forwards
SAME = 1e-5  # of the witness's own losses and gradients
NOTHING = 1e-6  # of those of its largest term: a term below that is rounding
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """How the groups went through the model."""

    together: bool
    trimmed: bool
    """Padding was cut off, asked for or not."""
    why: str = ""
    """Why not together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """Which rows share a forward; the numbers of the widest entry say how large each is."""

    chunks: list[Rows]
    trimming: Trimming | None
    numbers: float


@dataclass(slots=True, kw_only=True)
class Witness:
    """One group, walked as the survey walks."""

    part: int
    terms: tuple[str, ...]
    losses: dict[str, dict[int, Tensor]]
    """By term and row of the batch, weight · loss [T]."""
    reached: dict[str, set[int]]
    vectors: dict[str, Tensor]
    """By term, the gradient [P]; nothing once it was compared, for it takes memory."""
    compared: bool = False

    def check_losses(self, rows: Rows, losses: dict[str, Tensor]) -> None:
        """Those of its rows are what they were."""
        if tuple(losses) != self.terms:
            raise Refused("the terms are not the same for all rows")
        own = self.losses[self.terms[0]]
        its = [(at, row) for at, row in enumerate(rows.tolist()) if row in own]
        if not its:
            return
        largest = max(float(one.abs().max()) for of in self.losses.values() for one in of.values())
        for name, known in self.losses.items():
            scale = max(float(one.abs().max()) for one in known.values())
            for at, row in its:
                if not _near(losses[name][at], known[row], scale, largest):
                    raise Refused(f"the loss {name!r} of a row depends on the rows beside it")

    def check_gradients(self, survey: Survey) -> None:
        """So are its gradients, and the parameters that have them."""
        if any(self.reached[term] - survey.reached.get(term, set()) for term in self.reached):
            raise Refused("a parameter has a gradient in only one of the walks")
        largest = max((float(known.norm()) for known in self.vectors.values()), default=0.0)
        for name, known in self.vectors.items():
            difference = float((survey.rows[name][self.part] - known).norm())
            if not difference <= SAME * float(known.norm()) + NOTHING * largest:
                raise Refused(f"the gradient of {name!r} depends on the rows beside it")
        self.compared, self.vectors = True, {}


def _near(found: Tensor, known: Tensor, scale: float, largest: float) -> bool:
    """[T] and [T], of which one may have been cut: nothing counts there."""
    found, known = found.detach().reshape(-1), known.reshape(-1)
    width = min(len(found), len(known))
    difference = (found[:width] - known[:width]).abs().max()
    return bool(difference <= SAME * scale + NOTHING * largest)


def walk_together(
    model: Model,
    names: Sequence[str],
    survey: Survey,
    asked: Asked,
    *,
    micro_batch_size: int | None,
    trim: Trim,
    progress: Progress | None,
) -> Walked:
    """Fill the survey, or leave it empty and say why."""
    trimming = trimming_of(asked.batch, trim, asked.weights)
    why = _unfit(survey)
    seatings = [] if why else _seatings(survey, asked, micro_batch_size, trimming)
    if not why and not seatings:
        why = "groups fill their forwards by themselves"
    if not why:
        with held_still(model):
            witness, why = _witness(model, survey, asked, micro_batch_size, trimming)
    for seating in [] if why else seatings:
        if witness.compared:  # it agreed, and what failed then fails again
            break
        with held_still(model):
            why = _tried(survey, asked, seating, witness, names, progress)
        if not why:
            return Walked(together=True, trimmed=seating.trimming is not None)
        survey.forget()
    return Walked(together=False, trimmed=trimming is not None, why=why)


def _unfit(survey: Survey) -> str:
    """What needs no forward to see."""
    kinds = {(p.dtype, p.device) for p in survey.parameters}
    if dist.is_initialized() and dist.get_world_size() > 1:
        return "ranks share the groups"
    if len(survey.plan.parts) < FEW:
        return f"fewer than {FEW} groups"
    if len(kinds) > 1 or survey.parameters[0].dtype not in (torch.float32, torch.float64):
        return "parameters are not all float32 or all float64 on one device"
    return ""


def _seatings(
    survey: Survey, asked: Asked, micro_batch_size: int | None, trimming: Trimming | None
) -> list[Seating]:
    """Those to try, the better first, if they save enough."""
    known = None if trimming is None else trimming.used
    pieces = [rows for _, rows in survey.plan.micro_batches(micro_batch_size, known)]
    sizes = _sizes(asked, trimming)
    largest = max(_size(piece, sizes) for piece in pieces)
    # The size of a micro-batch is a bound of memory, and kept.
    room = largest if micro_batch_size is not None else max(largest, FULL)
    unread = _unread(asked) if trimming is None else None
    seatings = [
        _seating([part.rows for part in survey.plan.parts], asked, room, one)
        for one in ([trimming] if unread is None else [unread, None])
    ]
    spent = sum(_size(piece, sizes) for piece in pieces)
    return [
        seating
        for seating in seatings
        if seating.numbers <= WORTHWHILE * spent or len(seating.chunks) <= WORTHWHILE * len(pieces)
    ]


def _sizes(asked: Asked, trimming: Trimming | None) -> NDArray[np.float64]:
    """Numbers of the batch's widest entry in each row, [N]."""
    whole = float(max(entry[:1].numel() for entry in asked.batch.values()))
    if trimming is None:
        return np.full(len(asked.weights), whole)
    return whole * trimming.used / trimming.width


def _size(rows: Rows, sizes: NDArray[np.float64]) -> float:
    """As much as that many of the largest row."""
    return len(rows) * float(sizes[rows].max())


def _seating(parts: list[Rows], asked: Asked, room: float, trimming: Trimming | None) -> Seating:
    """Rows of a part that are about as wide stay together; the widest of all go first."""
    sizes = _sizes(asked, trimming)
    alike = [rows for part in parts for rows in _alike(part, sizes, room)]
    chunks = list[list[Rows]]()
    for rows in sorted(alike, key=lambda rows: -float(sizes[rows[0]])):
        largest = sizes[chunks[-1][0][0]] if chunks else 0.0
        if not chunks or (sum(map(len, chunks[-1])) + len(rows)) * largest > room:
            chunks.append([])
        chunks[-1].append(rows)
    joined = [np.concatenate(chunk) for chunk in chunks]
    numbers = sum(_size(chunk, sizes) for chunk in joined)
    return Seating(chunks=joined, trimming=trimming, numbers=numbers)


def _alike(rows: Rows, sizes: NDArray[np.float64], room: float) -> list[Rows]:
    """The rows of a part, largest first, cut where that saves more than a visit costs."""
    rows = rows[np.argsort(-sizes[rows], kind="stable")]
    own = sizes[rows]
    saved = (own[0] - own) * np.arange(len(rows), 0, -1)
    at = int(saved.argmax())
    if saved[at] <= VISIT:
        if len(rows) * own[0] <= room or len(rows) == 1:
            return [rows]
        at = min(max(int(room / own[0]), 1), len(rows) - 1)
    return [*_alike(rows[:at], sizes, room), *_alike(rows[at:], sizes, room)]


def _unread(asked: Asked) -> Trimming | None:
    """The columns at the right that no loss is taken of."""
    if asked.weights.ndim != 2:
        return None
    width, used = asked.weights.shape[1], last_used(asked.weights).clamp(min=1).cpu().numpy()
    if used.min() == width:
        return None
    # Losses of the next token have one column less than the tokens.
    more = any(e.ndim >= 2 and e.shape[1] == width + 1 for e in asked.batch.values())
    return Trimming(width=width + more, used=used.astype(np.intp) + more)


def _witness(
    model: Model,
    survey: Survey,
    asked: Asked,
    micro_batch_size: int | None,
    trimming: Trimming | None,
) -> tuple[Witness, str]:
    """The group with the most padding, walked; and what of that forbids another walk."""
    part = _most_padded(survey, trimming or _unread(asked))
    alone, losses = survey.of_one(part), dict[str, dict[int, Tensor]]()
    state, buffers = RandomState.now(), _buffers(model)
    known = None if trimming is None else trimming.used
    for _, rows in alone.plan.micro_batches(micro_batch_size, known):
        cut = None if trimming is None else trimming.cut(rows)
        for name, loss in alone.take(0, rows, asked, cut).items():
            losses.setdefault(name, {}).update(zip(rows.tolist(), loss, strict=True))
    witness = Witness(
        part=part,
        terms=alone.terms,
        losses=losses,
        reached=alone.reached,
        vectors={name: rows[0] for name, rows in alone.rows.items()},
    )
    if not _equal(state, RandomState.now()):
        return witness, "the forward draws random numbers"
    if not _unchanged(buffers, _buffers(model)):
        return witness, "the forward changes buffers"
    survey.begin(alone.terms)
    why = "" if isinstance(survey.vectors, ExactVectors) else "vectors are sketches"
    survey.forget()
    return witness, why


def _most_padded(survey: Survey, trimming: Trimming | None) -> int:
    """The number of the part whose rows are the shortest, of those that count."""
    parts = survey.plan.parts
    counting = [i for i, part in enumerate(parts) if survey.weights.row[part.rows].any()]
    if trimming is None:
        return counting[0]
    used = trimming.used
    return min(counting, key=lambda i: float(used[parts[i].rows].mean()))


def _buffers(model: Model) -> list[Tensor]:
    parts = [part for module in modules_of(model).values() for part in module.modules()]
    held = [buffer for part in parts for buffer in part._buffers.values()]
    return [buffer.detach().clone() for buffer in held if buffer is not None]


def _unchanged(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    return len(before) == len(after) and all(map(torch.equal, before, after))


def _equal(before: RandomState, after: RandomState) -> bool:
    return (
        _unchanged([before.cpu, *before.cuda], [after.cpu, *after.cuda])
        and before.python == after.python
        and before.numpy[2:] == after.numpy[2:]
        and np.array_equal(before.numpy[1], after.numpy[1])
    )


def _tried(
    survey: Survey,
    asked: Asked,
    seating: Seating,
    witness: Witness,
    names: Sequence[str],
    progress: Progress | None,
) -> str:
    """Walked that way; why it cannot be."""
    try:
        _walk(survey, asked, seating, witness, names, progress)
    except Refused as refusal:
        return str(refusal)
    except Exception as problem:  # a loss that is at fault by itself is so group by group, too
        return f"{type(problem).__name__}: {problem}"
    return ""


def _walk(
    survey: Survey,
    asked: Asked,
    seating: Seating,
    witness: Witness,
    names: Sequence[str],
    progress: Progress | None,
) -> None:
    """A forward for each chunk, those first that the witness has rows in."""
    owners = np.zeros(len(asked.weights), dtype=np.int64)
    for number, part in enumerate(survey.plan.parts):
        owners[part.rows] = number
    byparts = ByParts(survey.parameters, names)
    chunks = sorted(seating.chunks, key=lambda rows: witness.part not in owners[rows])
    last = sum(witness.part in owners[rows] for rows in chunks) - 1
    for number, chunk in enumerate(chunks):
        rows = chunk[np.argsort(owners[chunk], kind="stable")]
        byparts.seat(owners[rows].tolist())
        cut = None if seating.trimming is None else seating.trimming.cut(rows)
        with byparts, torch.enable_grad():
            losses = asked.losses(rows, cut)
        witness.check_losses(rows, losses)
        _differentiate(survey, losses, byparts)
        if number == last:
            witness.check_gradients(survey)
        if progress is not None:
            progress(number + 1, len(chunks))


def _differentiate(survey: Survey, losses: dict[str, Tensor], byparts: ByParts) -> None:
    """A backward for each term."""
    survey.begin(tuple(losses))
    with torch.enable_grad():
        sums = {name: loss.sum() for name, loss in losses.items()}
    alive = [name for name, loss in sums.items() if loss.requires_grad]
    for name, loss in losses.items():
        survey.add_losses(name, byparts.owners, loss)
        if name not in alive:
            continue
        if name not in survey.rows:
            survey.make_room(name)
        reached = byparts.differentiate(sums[name], survey.rows[name], again=name != alive[-1])
        if reached:
            survey.reached.setdefault(name, set()).update(reached)
