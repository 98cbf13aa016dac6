"""Several processes, one meter: they sync at the end of every measured step.

A sync is one small message in a process group of our own, so that it never comes between the
training's messages, and the wait for it is bounded. A rank that is paused, or whose instrument
failed, takes part and says so: nobody waits for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture import statistics
from gradiometer.capture.distributed import Piece
from gradiometer.capture.rounds import SHARDED, Cadence, Recorder, Round
from gradiometer.capture.statistics import Fetched, Numbers, Statistic
from gradiometer.words import some

__all__ = [
    "NEVER",
    "Mode",
    "RankGroup",
    "RankLost",
    "RankSync",
    "ShardMessage",
    "SyncResult",
    "digest_of",
]


PATIENCE = timedelta(minutes=5)
"""How long a sync waits for the last rank. Ranks leave a step together: a second is long."""

FAILED, ABSENT, LAYOUT, EXTRAS, ROUND, INTERVAL, MEASURED, FIRST_ABSENT = 0, 1, 2, 4, 6, 8, 9, 10
HEADER = 11
"""Numbers at the head of the message; where ranks must agree stand x and −x."""

VOTES = {"terms": 0.5, "experts": 0.25}
"""Added to the number of the round in a vote on these, which is no sync at its end."""
LATER = "later"
"""At a first vote: some have not called watch() yet, so there is none in this round."""
NEVER = math.inf
"""A vote: this rank will never take part."""

Mode = Literal["alone", "replicas", "shards"]
Subject = Literal["terms", "experts"]

_num_meters = 0


class RankLost(Exception):
    """A rank did not take part, or the message broke off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """What all ranks know after a sync; the same on each of them."""

    fetched: Fetched | None
    """The numbers of the step; None when it has none."""
    interval: int
    """Rounds to the next measured one."""
    num_measured: int
    failed: int | None = None
    """A rank whose instrument has failed."""
    absent: int | None = None
    """A rank that was paused."""
    differing: str | None = None
    """What the ranks did not agree on."""
    agreed: bool = False
    """Whether all have the same extras to put together; in a vote, whether all say the same."""
    never: bool = False
    """A rank votes so now and for ever."""


class RankGroup:
    """This rank among the others; `several` is False in a training on one process."""

    def __init__(self, mode: Mode, *, settings: Sequence[object]) -> None:
        global _num_meters
        self.world = dist.get_world_size() if mode != "alone" else 1
        self.rank = dist.get_rank() if mode != "alone" else 0
        self.mode: Mode = mode if self.world > 1 else "alone"
        self._message: ShardMessage | None = None
        self._group: Any = None
        self._attempts = 0
        """To make a group: at most one before a vote, and one at the end of a step."""
        self.copies = 1
        """Ranks that see the same samples, where tensors are parallel and batches are not."""
        self._pending: list[Any] = []
        self.num_bytes = 0
        """Of the last message."""
        if self.several:
            self._name, _num_meters = f"gradiometer/{_num_meters}", _num_meters + 1
            # Read by rank 0 at its first sync: by then everybody who watches has written it.
            _store().set(f"{self._name}/here/{self.rank}", str(digest_of(settings)))

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.mode != "alone"

    @property
    def sharded(self) -> bool:
        """Whether each rank holds pieces of the tensors."""
        return self.mode == "shards"

    def lay_out(self, message: ShardMessage | None) -> None:
        """The form of the message, for the model as it is now."""
        self._message = message

    def leave(self) -> None:
        """No more syncs, for this rank."""
        self.mode = "alone"
        group, self._group = self._group, None
        if group is not None and not self._pending and dist.is_initialized():
            # The training may have taken everything down already.
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group(group)

    # Before the first sync.

    def join(self, *, before_step: bool = False) -> str | None:
        """Make our own group if all ranks watch, or say why not. Rank 0 decides.

        At the end of a step all have called watch() who ever will: gradients came from them.
        `before_step` a rank may still be on its way there (hybrid meshes): `LATER`.
        """
        if self._group is not None:
            return None
        if before_step and self._attempts:
            return LATER
        self._attempts += 1
        store, key = _store(), self._word(self._attempts)
        store.set(self._came(self._attempts, self.rank), "ready")
        if self.rank == 0:
            word = self._look(store, before_step=before_step)
            store.set(key, word)
        else:
            try:
                store.wait([key], PATIENCE)
                word = store.get(key).decode()
            except RuntimeError as problem:
                raise RankLost(f"rank 0 said nothing ({problem})") from problem
        if word:
            return word
        # Gloo on the host, whatever the training uses: the numbers are there after the step's one
        # sync. Its own timeout is longer than our patience: the word of a rank that failed may have
        # to wait for the next sync.
        backend = "gloo" if dist.is_gloo_available() else None
        try:
            self._group = dist.new_group(backend=backend)
        except RuntimeError as problem:
            raise RankLost(f"no group could be made ({problem})") from problem
        return None

    def _word(self, attempt: int) -> str:
        return f"{self._name}/word/{attempt}"

    def _came(self, attempt: int, rank: int) -> str:
        return f"{self._name}/came/{attempt}/{rank}"

    def _look(self, store: Any, *, before_step: bool) -> str:
        keys = [f"{self._name}/here/{rank}" for rank in range(self.world)]
        if not store.check(keys):
            if before_step:
                return LATER
            missing = [str(rank) for rank, one in enumerate(keys) if not store.check([one])]
            return f"watch() was not called on rank {some(missing, 8)} before its first step"
        said = store.multi_get(keys)
        other = next((rank for rank, word in enumerate(said) if word != said[0]), None)
        if other is not None:
            return f"watch() on rank {other} got another model or other settings than on rank 0"
        # To make a group waits for all: nobody is called into one before each has come, or has said
        # that it cannot.
        keys = [self._came(self._attempts, rank) for rank in range(self.world)]
        try:
            store.wait(keys, PATIENCE)
        except RuntimeError:
            missing = [str(rank) for rank, one in enumerate(keys) if not store.check([one])]
            return f"rank {some(missing, 8)} did not come to the first meeting"
        came = store.multi_get(keys)
        failed = b"failed" in came
        return f"the instrument of rank {came.index(b'failed')} has failed" if failed else ""

    # A sync.

    def exchange(
        self,
        number: int,
        fetched: Fetched | None,
        *,
        extras: float,
        interval: int,
        num_measured: int,
    ) -> SyncResult:
        """Sync at the end of a round; `fetched` is None on a rank that measured nothing."""
        head = np.full(HEADER, -np.inf)
        head[FAILED], head[ABSENT] = 0.0, 0.0 if fetched is not None else self.rank + 1.0
        head[ROUND : ROUND + 2] = number, -number
        if self.rank == 0:
            head[INTERVAL], head[MEASURED] = interval, num_measured
            head[FIRST_ABSENT] = float(fetched is None)
        if fetched is not None:
            layout = self._message.digest(fetched) if self._message is not None else 0.0
            head[LAYOUT : LAYOUT + 2] = layout, -layout
            head[EXTRAS : EXTRAS + 2] = extras, -extras
        vectors = self._vectors(head, fetched)
        self._wait(self._post(vectors))
        return self._read(vectors, fetched)

    def vote(self, number: int, word: float, on: Subject) -> SyncResult:
        """Before something that all ranks must do at once, or none: a sync that carries a word. All
        must come to it; 0 is a no, `NEVER` one for ever."""
        head = np.full(HEADER, -np.inf)
        head[FAILED] = head[ABSENT] = 0.0
        place = number + VOTES[on]
        head[ROUND : ROUND + 2] = place, -place
        head[EXTRAS : EXTRAS + 2] = word, -word
        vectors = self._vectors(head, None)
        self._wait(self._post(vectors))
        return self._read(vectors, None)

    def say_failed(self) -> None:
        """Tell the next sync that our instrument has failed, without waiting for it."""
        if not self.several:
            return
        if self._group is None:
            for attempt in (self._attempts + 1, self._attempts + 2):
                _store().set(self._came(attempt, self.rank), "failed")
                if self.rank == 0:
                    _store().set(self._word(attempt), "the instrument of rank 0 has failed")
            return
        head = np.full(HEADER, -np.inf)
        head[FAILED], head[FIRST_ABSENT] = self.rank + 1.0, float(self.rank == 0)
        self._post(self._vectors(head, None))

    def _vectors(self, head: Numbers, fetched: Fetched | None) -> list[Tensor]:
        """What the largest counts of, then sums and sketches. Without shards only the head."""
        vectors: list[NDArray[Any]] = [head]
        if self._message is not None:
            largest, sums, sketches = self._message.vectors(fetched or NOTHING)
            vectors = [np.concatenate([head, largest]), sums, sketches]
        self.num_bytes = sum(vector.nbytes for vector in vectors)
        return [torch.from_numpy(vector) for vector in vectors]

    def _post(self, vectors: Sequence[Tensor], *, first: Any = dist.ReduceOp.MAX) -> list[Any]:
        """All on their way at once, in the time of one round trip; all but the first are added."""
        operations = [first, *[dist.ReduceOp.SUM] * (len(vectors) - 1)]
        try:
            works = [
                dist.all_reduce(vector, op=operation, group=self._group, async_op=True)
                for vector, operation in zip(vectors, operations, strict=True)
            ]
        except RuntimeError as problem:
            raise RankLost(str(problem)) from problem
        self._pending = [works, vectors]  # torch writes into these until they are complete
        return works

    def _wait(self, works: Sequence[Any]) -> None:
        try:
            for work in works:
                work.wait(PATIENCE)
        except RuntimeError as problem:
            raise RankLost(str(problem)) from problem
        self._pending = []

    def _read(self, vectors: Sequence[Tensor], fetched: Fetched | None) -> SyncResult:
        largest = vectors[0].numpy()
        head, rest = largest[:HEADER], largest[HEADER:]
        failed = int(head[FAILED]) - 1 if head[FAILED] > 0 else None
        absent = int(head[ABSENT]) - 1 if head[ABSENT] > 0 else None
        differing = None
        votes = head[ROUND] % 1 != 0, -head[ROUND + 1] % 1 != 0
        if failed is None and any(votes) and head[ROUND] != -head[ROUND + 1]:
            raise RankLost("some came to a vote on terms or experts, others did not")
        if head[ROUND] != -head[ROUND + 1]:
            differing = "the number of steps they have made"
        elif head[LAYOUT] != -head[LAYOUT + 1] and head[LAYOUT] != -np.inf:
            differing = "which gradients there are"
        all_there = failed is None and absent is None
        # The first rank has all of the numbers where gradients are averaged; where they are sharded
        # every piece is needed.
        enough = not head[FIRST_ABSENT] if self._message is None else all_there
        whole = enough and differing is None
        if whole and fetched is not None and self._message is not None:
            fetched = self._message.together(fetched, vectors[1].numpy(), vectors[2].numpy(), rest)
        return SyncResult(
            fetched=fetched if whole else None,
            interval=max(1, int(head[INTERVAL])) if np.isfinite(head[INTERVAL]) else 1,
            num_measured=int(head[MEASURED]) + int(whole) if np.isfinite(head[MEASURED]) else 0,
            failed=failed,
            absent=absent,
            differing=differing,
            agreed=(whole or all(votes))
            and all_there
            and head[EXTRAS] == -head[EXTRAS + 1] != 0
            and head[EXTRAS] != NEVER,
            never=head[EXTRAS] == NEVER,
        )

    def add_up(self, arrays: Mapping[str, Numbers]) -> dict[str, Numbers]:
        """Σ over the ranks of arrays that all have, by a message more."""
        if not arrays:
            return {}
        names = sorted(arrays)
        joined = torch.from_numpy(
            np.concatenate([np.asarray(arrays[name], np.float64).reshape(-1) for name in names])
        )
        self.add_up_in_place(joined)
        cuts = np.cumsum([arrays[name].size for name in names])[:-1]
        parts = np.split(joined.numpy(), cuts)
        return {
            name: part.reshape(arrays[name].shape) for name, part in zip(names, parts, strict=True)
        }

    def add_up_in_place(self, vector: Tensor) -> None:
        """The same, of one long tensor on the host."""
        if self.several:
            self._wait(self._post([vector], first=dist.ReduceOp.SUM))

    def gather(self, mine: Tensor) -> Tensor:
        """What each rank has, [ranks, ...]: tensors of one shape on the host."""
        everyone = mine.new_zeros((self.world, *mine.shape))
        everyone[self.rank] = mine
        self.add_up_in_place(everyone)
        return everyone

    def swap(self, mine: Tensor, sizes: Sequence[int], their_sizes: Sequence[int]) -> Tensor:
        """Send `sizes[r]` elements to each rank r and receive `their_sizes[r]` from it."""
        if not self.several:
            return mine
        received = mine.new_empty(sum(their_sizes))
        try:
            work = dist.all_to_all_single(
                received, mine, list(their_sizes), list(sizes), group=self._group, async_op=True
            )
        except RuntimeError as problem:
            raise RankLost(str(problem)) from problem
        self._pending = [[work], [received, mine]]
        self._wait([work])
        return received


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


# What a rank says of its pieces.

SKETCHES = ("sketch", "previous_sketch")
NOTHING = Fetched({}, {}, {}, {})


class ShardMessage:
    """The numbers of a step as flat vectors: sums, sketches, and what the largest counts of.

    Their length depends on the model alone, not on the step, so that a rank that has nothing to say
    can say just that.
    """

    def __init__(
        self, pieces: Mapping[int, Piece], *, num_atoms: int, sketch_size: int, both_sketches: bool
    ) -> None:
        in_order = [pieces[i] for i in range(len(pieces))]
        self._share = np.array([piece.share for piece in in_order])
        self._empty = np.array([piece.numel == 0 for piece in in_order])
        self._num = len(in_order)
        self._sketch_numel = num_atoms * sketch_size
        self._sketches = SKETCHES if both_sketches else SKETCHES[:1]
        table = statistics.STATISTICS
        self._added = [each for each in table if each.over_ranks in ("sum", "squares")]
        self._extremes = [each for each in table if each.over_ranks in ("least", "largest")]

    def digest(self, fetched: Fetched) -> float:
        """Equal on all ranks when they read the same statistics of the same parameters."""
        there = sorted((each.name, mask.tobytes()) for each, mask in fetched.present.items())
        return digest_of(
            [*there, sorted(name for name in fetched.arrays if name in self._sketches)]
        )

    def vectors(self, fetched: Fetched) -> tuple[Numbers, Numbers, NDArray[np.float32]]:
        """What the largest counts of, what is added, and the sketches, which are added too."""
        return self.largest(fetched), self.sums(fetched), self.sketches(fetched)

    def sums(self, fetched: Fetched) -> Numbers:
        """What is added over the ranks."""
        out = np.zeros((len(self._added), self._num))
        with np.errstate(over="ignore", invalid="ignore"):
            for row, each in zip(out, self._added, strict=True):
                if each in fetched.values:
                    numbers = fetched.values[each]
                    addend = numbers**2 if each.over_ranks == "squares" else numbers
                    row[:] = np.where(fetched.present[each], addend, 0.0) * self._share
        return out.reshape(-1)

    def sketches(self, fetched: Fetched) -> NDArray[np.float32]:
        """Sketches of the pieces add up to those of the whole; float32, as they were made."""
        out = np.zeros(len(self._sketches) * self._sketch_numel, np.float32)
        for name, place in self._sketch_places():
            if name in fetched.arrays:
                out[place] = fetched.arrays[name].reshape(-1)
        return out

    def largest(self, fetched: Fetched) -> Numbers:
        """What the largest is taken of: highs, negated lows, and whether there is a NaN."""
        out = np.full((len(self._extremes) + 1, self._num), -np.inf)
        read = [each for each in self._extremes if each in fetched.values]
        bad = np.zeros(self._num, dtype=np.bool_)
        for each in read:
            bad |= np.isnan(fetched.values[each])
        for row, each in zip(out, self._extremes, strict=False):
            if each in read:
                there = fetched.present[each] & ~self._empty
                row[:] = np.where(there & ~bad, _sign(each) * fetched.values[each], -np.inf)
                out[-1] = np.maximum(out[-1], there & bad)
        return out.reshape(-1)

    def together(
        self, fetched: Fetched, sums: Numbers, sketches: NDArray[np.float32], largest: Numbers
    ) -> Fetched:
        """The numbers of the whole tensors, in the form one process would have read them."""
        values = dict(fetched.values)
        with np.errstate(invalid="ignore"):
            for row, each in zip(sums.reshape(-1, self._num), self._added, strict=True):
                if each in values:
                    values[each] = np.sqrt(row) if each.over_ranks == "squares" else row.copy()
        *extremes, bad = largest.reshape(-1, self._num)
        for row, each in zip(extremes, self._extremes, strict=True):
            if each in values:
                found = np.where(row == -np.inf, 0.0, _sign(each) * row)
                values[each] = np.where(bad > 0, np.nan, found)
        arrays = dict(fetched.arrays)
        for name, place in self._sketch_places():
            if name in arrays:
                arrays[name] = sketches[place].astype(np.float64).reshape(arrays[name].shape)
        return replace(fetched, values=values, arrays=arrays)

    def _sketch_places(self) -> list[tuple[str, slice]]:
        size = self._sketch_numel
        return [(name, slice(n * size, (n + 1) * size)) for n, name in enumerate(self._sketches)]


def _sign(each: Statistic) -> float:
    return -1.0 if each.over_ranks == "least" else 1.0


def digest_of(parts: Sequence[object]) -> float:
    """A whole number below 2^48, which float64 holds exactly; the same in every process."""
    return float(
        int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "little")
    )


# What follows from it.


class RankSync:
    """Syncs one meter with the others. `retire` is called when this rank measures no more."""

    def __init__(
        self, ranks: RankGroup, recorder: Recorder, cadence: Cadence, *, retire: Callable[[], None]
    ) -> None:
        self._ranks, self._recorder, self._cadence, self._retire = ranks, recorder, cadence, retire
        self._said: set[str] = set()

    def sync(
        self,
        current: Round,
        fetched: Fetched | None,
        num_measured: int,
        atoms: Sequence[Sequence[int]],
    ) -> tuple[Fetched | None, int]:
        """The numbers of all ranks together, if there are any, and the steps measured by now."""
        try:
            if reason := self._ranks.join():
                return self._without_all(reason, fetched), num_measured + int(fetched is not None)
            extras = self._extras(current, fetched)
            result = self._ranks.exchange(
                current.number,
                fetched,
                extras=_digest(extras, current),
                interval=self._cadence.interval,
                num_measured=num_measured,
            )
            found = self._with_extras(result, current, extras, atoms)
        except RankLost as problem:
            self._lost(problem)
            return None, num_measured
        self._cadence.follow(current.number, result.interval)
        self._tell(result, current)
        return found, result.num_measured

    def vote(self, number: int, word: float, on: Subject) -> tuple[bool, bool]:
        """Whether all ranks say this word; and whether one of them never will."""
        try:
            reason = self._ranks.join(before_step=True)
            if reason == LATER:
                return False, False
            if reason:
                self._without_all(reason, None)
                return False, True
            result = self._ranks.vote(number, word, on)
        except RankLost as problem:
            self._lost(problem)
            return False, True
        if result.failed is not None:
            self._without(result.failed)
        return result.agreed, result.never

    def together(self, number: int, word: float, act: Callable[[], None]) -> bool:
        """Read experts with messages of their own, if all ranks vote for the same; whether it was
        done."""
        if self._ranks.several:
            agreed, _ = self.vote(number, word, "experts")
            if not agreed:
                return False
        try:
            act()
        except RankLost as problem:
            self._lost(problem)
            return False
        return True

    def _extras(self, current: Round, fetched: Fetched | None) -> dict[str, Numbers]:
        """What some steps have beside the usual: a second message, when all ranks have it."""
        if fetched is None:
            return {}
        extras: dict[str, Numbers] = {}
        if self._ranks.sharded:
            extras = {
                k: x
                for k, x in fetched.arrays.items()
                if k == "added" or k.startswith((SHARDED, "histogram/", "gram/", "terms/left/"))
            }
        copies = self._ranks.copies
        extras |= {
            k: x / copies for k, x in fetched.arrays.items() if k.endswith(("/weights", "/tokens"))
        }
        extras |= {f"{each.name}/rows": np.array([each.rows / copies]) for each in current.experts}
        if current.own_terms is not None:
            extras |= current.own_terms.arrays(fetched)
        return extras

    def _with_extras(
        self,
        result: SyncResult,
        current: Round,
        extras: dict[str, Numbers],
        atoms: Sequence[Sequence[int]],
    ) -> Fetched | None:
        fetched = result.fetched
        if not result.agreed:
            own, current.own_terms = current.own_terms, None
            if fetched is None or not (extras or own):
                return fetched
            if result.absent is None and result.failed is None:  # which has its own event
                what = "not all ranks have the same terms, routing or micro-batches"
                self._once("ranks-differ", f"{what}: left out of such steps")
            kept = {k: x for k, x in fetched.arrays.items() if k not in extras}
            current.experts = [each for each in current.experts if SHARDED not in each.name]
            return replace(fetched, arrays=kept)
        arrays = self._ranks.add_up(extras)
        if fetched is None:
            return None
        if current.own_terms is not None:
            current.terms, fetched = current.own_terms.together(arrays, fetched, self._ranks)
        rows = {each.name: arrays.get(f"{each.name}/rows") for each in current.experts}
        current.experts = [
            each if (seen := rows[each.name]) is None else replace(each, rows=round(float(seen[0])))
            for each in current.experts
        ]
        joined = {**fetched.arrays, **{k: x for k, x in arrays.items() if k in fetched.arrays}}
        if "added" in joined:
            joined["parts"], joined["parts_sum"] = _parts(joined.pop("added"), atoms)
        return replace(fetched, arrays=joined)

    # What the run is told.

    def _tell(self, result: SyncResult, current: Round) -> None:
        mode, world, size = self._ranks.mode, self._ranks.world, self._ranks.num_bytes
        how = "pieces of sharded tensors" if self._ranks.sharded else "averaged gradients"
        message = f"{world} ranks measure together, {how}; {size} bytes a meeting"
        self._once("ranks", message, mode=mode, world=world, bytes=size)
        if result.absent is not None:
            message = f"the meter of rank {result.absent} is paused: {self._without_it()}"
            self._once("rank-paused", message)
        if result.differing is not None:
            message = f"the ranks differ in {result.differing}: such steps have no numbers"
            self._once("ranks-differ", message, step=current.step)
        if result.failed is not None:
            self._without(result.failed)

    def _lost(self, problem: RankLost) -> None:
        what = f"the ranks did not meet ({str(problem)[:200]})"
        self._end("rank-lost", f"{what}; the meter stops, your training goes on")

    def _without_it(self) -> str:
        if self._ranks.sharded:
            return "such steps have no numbers"
        return "such steps have no terms, and none if it is rank 0"

    def _without(self, failed: int) -> None:
        """A rank's instrument has failed: there are no syncs any more."""
        message = f"the instrument of rank {failed} failed, see its own output"
        if self._ranks.sharded or failed == 0:
            message += "; without its part there are no numbers, and the meter stops"
            self._end("rank-failed", message)
        else:
            message += "; rank 0 goes on by itself, with terms and routing of its own batch only"
            self._once("rank-failed", message)
            self._go_alone()

    def _without_all(self, reason: str, fetched: Fetched | None) -> Fetched | None:
        """No sync is possible. Rank 0 has all of an averaged gradient, nobody of a sharded one."""
        if self._ranks.sharded:
            reason += "; a sharded model is read piece by piece, on every rank"
            self._end("ranks-alone", reason)
            return None
        reason += "; rank 0 measures by itself, with terms and routing of its own batch only"
        self._once("ranks-alone", reason)
        self._go_alone()
        return fetched if self._ranks.rank == 0 else None

    def _go_alone(self) -> None:
        self._ranks.leave()
        if self._ranks.rank:
            self._retire()

    def _end(self, kind: str, message: str) -> None:
        self._recorder.event(kind, message)
        self._recorder.warn(f"Gradiometer measures no more: {message}.")
        self._retire()

    def _once(self, kind: str, message: str, step: int | None = None, **detail: object) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._recorder.event(kind, message, step, **detail)


def _digest(extras: dict[str, Numbers], current: Round) -> float:
    """Equal where two ranks have the same extras; 0 where there are none."""
    if not extras and current.own_terms is None:
        return 0.0
    forms: list[object] = [(name, array.shape) for name, array in sorted(extras.items())]
    own = [] if current.own_terms is None else current.own_terms.forms()
    return digest_of([*forms, *own]) + 1


def _parts(added: Numbers, atoms: Sequence[Sequence[int]]) -> tuple[Numbers, Numbers]:
    """Squared norms of what each backward added and of the sum, from sketches [parts, atoms, k]."""
    parts = np.stack([added[:, list(places)].sum(1) for places in atoms], axis=1)
    return np.square(parts).sum(-1), np.square(parts.sum(0)).sum(-1)
