"""Answers of a group-relative training with what their update gave them: rewards and groups beside
the credit of a few batches, for `gradiometer replay` (maths/grouprecipes.py).

When a loss over sequences goes backward, the frames that called it are read: rewards by their name,
one to each sequence; the mask of the tokens that count; tokens, whose common beginnings tell which
sequences answer one prompt. A trainer of TRL shuffles its batches, and its rewards are those heard
at the generation (generations.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture import generations
from gradiometer.capture.credit import CreditBatch, SampledRows
from gradiometer.capture.equalanswers import EqualAnswers
from gradiometer.capture.frames import NamedTensor, names_around
from gradiometer.capture.logprobs import SeenGraph, SeenLogProbs
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.sampledtokens import SampledTokens
from gradiometer.records import Table

__all__ = ["GroupCreditKeeper"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TABLE = "group-replay"
MOST_BATCHES, MOST_LOOKS = 12, 64
LEAST_ROWS, MOST_ROWS = 4, 4096
MOST_KNOWN = 0.5
"""Share of the rows of a batch that must be found again; where that many come once only, those
that come several times are left out."""
DIGITS = 7
REWARDS = re.compile(r"rewards?|scores?|(total|task|final|outcome|sequence)_(rewards?|scores?)")
MASK = re.compile(r"((completion|response|loss|answer|action|token)s?_)?mask")


@dataclass(slots=True, kw_only=True)
class _Answers:
    """The sequences of one loss."""

    rewards: dict[str, Floats]
    groups: Ints
    rows: Ints
    """Of each sequence its place among the rewards; −1 where that is not known."""
    outside: Ints | None = None
    """Of each sequence, how many tokens do not count."""
    key: tuple[float, ...] = field(default=())
    """To know a second pass by."""


class GroupCreditKeeper:
    """Looks at the losses of a training until a few batches are kept."""

    def __init__(self, put: Callable[[Table], None], proofs: ProofLog) -> None:
        self._put = put
        self._equal, self._tokens = EqualAnswers(proofs), SampledTokens(proofs)
        self._newest: generations.Generation | None = None
        self._pending: list[_Answers | None] = []
        self._passed: set[tuple[float, ...]] = set()
        self._looks = self.kept = 0

    @property
    def done(self) -> bool:
        """Whether enough is kept, or there is nothing to be found."""
        return self.kept >= MOST_BATCHES or self._looks >= MOST_LOOKS

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss goes backward in a measured step: is it one over sequences?"""
        self._look_at_newest()
        found = [each for each in seen.log_probs if _shape(each) is not None]
        if self.done or not found:
            return
        self._looks += 1
        self._pending.append(self._look(found[0]) if len(found) == 1 else None)

    def _look_at_newest(self) -> None:
        """The generation that was heard last, once and before it has changed the weights."""
        heard = generations.newest()[:1]
        if not heard or heard[0] is self._newest:
            return
        self._newest = heard[0]
        self._equal.look(heard[0])
        self._tokens.look(generations.trained_on())

    def note(self, batch: CreditBatch | None, step: int) -> None:
        """The round is over: its credit is known."""
        pending, self._pending = self._pending, []
        samples = [] if batch is None else [each for each in batch.samples if each.sums is not None]
        if len(samples) != len(pending):
            return
        for answers, one in zip(pending, samples, strict=True):
            if answers is None or one.sums is None or one.counts is None or self.done:
                continue
            known = answers.rows >= 0
            if len(known) != len(one.sums) or np.count_nonzero(known) < LEAST_ROWS:
                continue
            if answers.key in self._passed or not np.any(one.sums):
                continue
            self._passed.add(answers.key)
            self.kept += 1
            beyond = 0 if one.beyond is None else int(one.beyond.sum())
            self._put(
                Table(
                    step=step,
                    name=TABLE,
                    content={
                        "rewards": {name: _short(x) for name, x in answers.rewards.items()},
                        "groups": answers.groups.tolist(),
                        "rows": answers.rows[known].tolist(),
                        "credit": _short(one.sums[known]),
                        "tokens": one.counts[known].astype(np.int64).tolist(),
                        "beyond": beyond,
                        "outside": _outside(answers, one),
                    },
                )
            )

    def _look(self, found: SeenLogProbs) -> _Answers | None:
        shape = _shape(found)
        assert shape is not None
        named = [
            each for each in names_around(sys._getframe(1)).tensors if not each.tensor.is_sparse
        ]
        answers, masks = _generated(shape), [generations.trained_on().get(generations.MASK)]
        if answers is None:
            answers = _in_frames(named, shape)
            masks = [each.tensor for each in named if MASK.fullmatch(each.name)]
        if answers is None:
            return None
        mask = next((x for each in masks if (x := _mask(each, shape)) is not None), None)
        if mask is not None:
            found.mask = mask
            answers.outside = (mask == 0).sum(1).cpu().numpy()
        return answers


def _outside(answers: _Answers, one: SampledRows) -> int:
    """Tokens that do not count, of sequences that were given anything: a clip takes whole ones."""
    if answers.outside is None or one.beyond is None or one.counts is None:
        return 0
    return int(answers.outside[one.counts > 0].sum())


def _shape(found: SeenLogProbs) -> tuple[int, int] | None:
    """Sequences and tokens of a node of log-probabilities; None where it is not of sequences."""
    shape = tuple(found.node._input_metadata[0].shape)
    shape = shape[:2] if len(shape) == 3 and shape[2] == 1 else shape
    if found.wide or found.reparametrised or len(shape) != 2:
        return None
    fits = shape[1] > 1 and LEAST_ROWS <= shape[0] <= MOST_ROWS
    return (int(shape[0]), int(shape[1])) if fits else None


def _generated(shape: tuple[int, int]) -> _Answers | None:
    """Answers of a generation that was heard, found again by their tokens."""
    heard, held = generations.newest(), generations.trained_on()
    prompts, answers = held.get(generations.PROMPT), held.get(generations.ANSWER)
    if not heard or prompts is None or answers is None or tuple(answers.shape) != shape:
        return None
    keys = generations.keys_of(prompts, answers)
    for one in heard:
        rows = np.array([one.places.get(key, -1) for key in keys], dtype=np.int64)
        sure = np.where([key in one.repeated for key in keys], -1, rows)
        if np.mean(sure >= 0) > MOST_KNOWN:
            rows = sure
        if np.mean(rows >= 0) > MOST_KNOWN:
            return _Answers(
                rewards={"rewards": one.rewards},
                groups=one.groups,
                rows=rows,
                key=(*one.rewards.tolist(), *rows.tolist()),
            )
    return None


def _in_frames(named: list[NamedTensor], shape: tuple[int, int]) -> _Answers | None:
    """Answers whose rewards are a tensor of the program's."""
    rewards: dict[str, Floats] = {}
    for each in named:
        x = each.tensor
        is_one = REWARDS.fullmatch(each.name) and x.numel() == shape[0] and x.is_floating_point()
        if is_one and not x.requires_grad and each.name not in rewards:
            rewards[each.name] = x.detach().double().reshape(-1).cpu().numpy()
    rewards = {name: x for name, x in rewards.items() if np.isfinite(x).all() and np.ptp(x) > 0}
    groups = _groups(named, shape[0]) if rewards else None
    if groups is None:
        return None
    first = next(iter(rewards.values()))
    rows = np.arange(shape[0], dtype=np.int64)
    return _Answers(rewards=rewards, groups=groups, rows=rows, key=tuple(first.tolist()))


def _groups(named: list[NamedTensor], rows: int) -> Ints | None:
    """Which sequences answer one prompt: those that begin alike, in equal groups of neighbours or
    at equal distances; None where the tokens do not tell."""
    best: tuple[int, int, Ints] | None = None
    for each in named:
        x = each.tensor
        if (
            x.ndim != 2
            or len(x) != rows
            or x.shape[1] < 2
            or x.dtype not in (torch.int64, torch.int32)
        ):
            continue
        tokens = x.cpu().numpy()
        common = _alike(tokens[None])
        for size in (k for k in range(2, rows // 2 + 1) if rows % k == 0):
            order = np.arange(rows)
            for groups in (order // size, order % (rows // size)):
                members = tokens[np.argsort(groups, kind="stable")].reshape(-1, size, x.shape[1])
                alike = _alike(members)
                if alike > common and (best is None or (alike, size) > best[:2]):
                    best = alike, size, groups
    return None if best is None else best[2]


def _alike(members: NDArray[np.int64]) -> int:
    """How many first tokens the sequences of each group share, [groups, size, tokens]."""
    same = np.all(members == members[:, :1], axis=(0, 1))
    return len(same) if same.all() else int(np.argmin(same))


def _mask(x: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    """A mask of the tokens that count: of each sequence one piece, and not all of it."""
    if x is None or tuple(x.shape) != shape or x.requires_grad:
        return None
    held = x.detach().to(torch.float32)
    if not bool(((held == 0) | (held == 1)).all()) or bool(held.all()):
        return None
    edges = (held[:, 1:] > held[:, :-1]).sum(1) + (held[:, 0] > 0)
    return held if bool((edges <= 1).all()) and bool(held.any()) else None


def _short(x: Floats) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in x.tolist()]
