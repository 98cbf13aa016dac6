"""Several processes, one meter: they meet at the end of every measured step, and rank 0 says which step is the next.

A meeting is one small message in a process group of our own, so that it never comes between the training's messages, and
the wait for it is bounded. A rank that is paused, or whose instrument failed, comes too and says so: nobody waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.message import Ledger, digest_of
from gradiometer.capture.reading import Fetched

__all__ = ["Minutes", "Mode", "RankLost", "Ranks"]

Numbers = NDArray[np.float64]

PATIENCE = timedelta(minutes=5)
"""How long a meeting waits for the last rank. Ranks leave a step together, so a second is already long."""

FAILED, ABSENT, LAYOUT, EXTRAS, ROUND, INTERVAL, MEASURED, FIRST_ABSENT = 0, 1, 2, 4, 6, 8, 9, 10
HEADER = 11
"""Numbers at the head of the message, the largest of which counts: where two ranks must agree stand x and −x."""

Mode = Literal["alone", "replicas", "shards"]

_num_meters = 0


class RankLost(Exception):
    """A rank did not come to the meeting, or the message broke off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """What all ranks know after a meeting; the same on each of them."""

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
    """Whether all have the same extras to put together."""


class Ranks:
    """This rank among the others. `several` is False in a training on one process, where nothing of this runs."""

    def __init__(self, mode: Mode, *, settings: Sequence[object]) -> None:
        global _num_meters
        self.world = dist.get_world_size() if mode != "alone" else 1
        self.rank = dist.get_rank() if mode != "alone" else 0
        self.mode: Mode = mode if self.world > 1 else "alone"
        self._ledger: Ledger | None = None
        self._group: Any = None
        self._pending: list[Any] = []
        self.num_bytes = 0
        """Of the last meeting's message."""
        if self.several:
            self._name, _num_meters = f"gradiometer/{_num_meters}", _num_meters + 1
            # Read by rank 0 at its first meeting: by then everybody who watches has written it.
            _store().set(f"{self._name}/here/{self.rank}", str(digest_of(settings)))

    @property
    def several(self) -> bool:
        """Whether there is anybody to meet."""
        return self.mode != "alone"

    @property
    def sharded(self) -> bool:
        """Whether each rank holds pieces of the tensors."""
        return self.mode == "shards"

    def lay_out(self, ledger: Ledger | None) -> None:
        """The form of the message, for the model as it is now."""
        self._ledger = ledger

    def leave(self) -> None:
        """No more meetings, for this rank."""
        self.mode = "alone"
        group, self._group = self._group, None
        if group is not None and not self._pending and dist.is_initialized():
            # The training may have taken everything down already.
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group(group)

    # The first meeting.

    def join(self) -> str | None:
        """Make our own group, if all ranks watch; otherwise why not. Rank 0 looks and decides, the others wait for its word."""
        if self._group is not None:
            return None
        store, key = _store(), f"{self._name}/word"
        store.set(f"{self._name}/came/{self.rank}", "ready")
        if self.rank == 0:
            word = self._look(store)
            store.set(key, word)
        else:
            try:
                store.wait([key], PATIENCE)
                word = store.get(key).decode()
            except RuntimeError as problem:
                raise RankLost(f"rank 0 said nothing ({problem})") from problem
        if word:
            return word
        # Gloo on the host, whatever the training uses: the numbers are there after the step's one sync. Its own timeout is
        # longer than our patience: the word of a rank that failed may have to wait for the next meeting.
        backend = "gloo" if dist.is_gloo_available() else None
        try:
            self._group = dist.new_group(backend=backend)
        except RuntimeError as problem:
            raise RankLost(f"no group could be made ({problem})") from problem
        return None

    def _look(self, store: Any) -> str:
        keys = [f"{self._name}/here/{rank}" for rank in range(self.world)]
        if not store.check(keys):
            missing = [str(rank) for rank, one in enumerate(keys) if not store.check([one])]
            return f"watch() was not called on rank {_listed(missing)} before its first step"
        said = store.multi_get(keys)
        other = next((rank for rank, word in enumerate(said) if word != said[0]), None)
        if other is not None:
            return f"watch() on rank {other} got another model or other settings than on rank 0"
        # To make a group waits for all: nobody is called into one before each has come, or has said that it cannot.
        keys = [f"{self._name}/came/{rank}" for rank in range(self.world)]
        try:
            store.wait(keys, PATIENCE)
        except RuntimeError:
            missing = [str(rank) for rank, one in enumerate(keys) if not store.check([one])]
            return f"rank {_listed(missing)} did not come to the first meeting"
        came = store.multi_get(keys)
        return f"the instrument of rank {came.index(b'failed')} has failed" if b"failed" in came else ""

    # Meetings.

    def meet(self, number: int, fetched: Fetched | None, *, extras: float, interval: int, num_measured: int) -> Minutes:
        """Take part in the meeting at the end of a round; `fetched` is None on a rank that has measured nothing."""
        head = np.full(HEADER, -np.inf)
        head[FAILED], head[ABSENT] = 0.0, 0.0 if fetched is not None else self.rank + 1.0
        head[ROUND : ROUND + 2] = number, -number
        if self.rank == 0:
            head[INTERVAL], head[MEASURED], head[FIRST_ABSENT] = interval, num_measured, float(fetched is None)
        if fetched is not None:
            layout = self._ledger.digest(fetched) if self._ledger is not None else 0.0
            head[LAYOUT : LAYOUT + 2] = layout, -layout
            head[EXTRAS : EXTRAS + 2] = extras, -extras
        vectors = self._vectors(head, fetched)
        self._wait(self._post(vectors))
        return self._read(vectors, fetched)

    def say_failed(self) -> None:
        """Our instrument has failed: that is this rank's word at the next meeting, which it does not wait for."""
        if not self.several:
            return
        if self._group is None:
            _store().set(f"{self._name}/came/{self.rank}", "failed")
            if self.rank == 0:
                _store().set(f"{self._name}/word", "the instrument of rank 0 has failed")
            return
        head = np.full(HEADER, -np.inf)
        head[FAILED], head[FIRST_ABSENT] = self.rank + 1.0, float(self.rank == 0)
        self._post(self._vectors(head, None))

    def _vectors(self, head: Numbers, fetched: Fetched | None) -> list[Tensor]:
        """What the largest is taken of, and what is added up: sums and sketches. Without shards the head is all."""
        ledger, largest = self._ledger, [head]
        added: list[NDArray[Any]] = []
        if ledger is not None and fetched is None:
            largest.append(np.full(ledger.num_largest, -np.inf))
            added = [np.zeros(ledger.num_sums), np.zeros(ledger.num_sketched, np.float32)]
        elif ledger is not None and fetched is not None:
            largest.append(ledger.largest(fetched))
            added = [ledger.sums(fetched), ledger.sketches(fetched)]
        vectors = [np.concatenate(largest), *added]
        self.num_bytes = sum(vector.nbytes for vector in vectors)
        return [torch.from_numpy(vector) for vector in vectors]

    def _post(self, vectors: Sequence[Tensor]) -> list[Any]:
        """All on their way at once: the time of one round trip."""
        operations = [dist.ReduceOp.MAX, *[dist.ReduceOp.SUM] * (len(vectors) - 1)]
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

    def _read(self, vectors: Sequence[Tensor], fetched: Fetched | None) -> Minutes:
        largest = vectors[0].numpy()
        head, rest = largest[:HEADER], largest[HEADER:]
        failed = int(head[FAILED]) - 1 if head[FAILED] > 0 else None
        absent = int(head[ABSENT]) - 1 if head[ABSENT] > 0 else None
        differing = None
        if head[ROUND] != -head[ROUND + 1]:
            differing = "the number of steps they have made"
        elif head[LAYOUT] != -head[LAYOUT + 1] and head[LAYOUT] != -np.inf:
            differing = "which gradients there are"
        # The first rank has all of the numbers where gradients are averaged; where they are sharded every piece is needed.
        whole = not head[FIRST_ABSENT] if self._ledger is None else failed is None and absent is None
        whole = whole and differing is None
        if whole and fetched is not None and self._ledger is not None:
            fetched = self._ledger.together(fetched, vectors[1].numpy(), vectors[2].numpy(), rest)
        return Minutes(
            fetched=fetched if whole else None,
            interval=max(1, int(head[INTERVAL])) if np.isfinite(head[INTERVAL]) else 1,
            num_measured=int(head[MEASURED]) + int(whole) if np.isfinite(head[MEASURED]) else 0,
            failed=failed,
            absent=absent,
            differing=differing,
            agreed=whole and failed is None and absent is None and head[EXTRAS] == -head[EXTRAS + 1] != 0,
        )

    def add_up(self, arrays: Mapping[str, Numbers]) -> dict[str, Numbers]:
        """Σ over the ranks of arrays that all of them have, after a meeting that agreed on it: a message more."""
        if not arrays:
            return {}
        names = sorted(arrays)
        joined = torch.from_numpy(np.concatenate([np.asarray(arrays[name], np.float64).reshape(-1) for name in names]))
        self.add_up_in_place(joined)
        cuts = np.cumsum([arrays[name].size for name in names])[:-1]
        parts = np.split(joined.numpy(), cuts)
        return {name: part.reshape(arrays[name].shape) for name, part in zip(names, parts, strict=True)}

    def add_up_in_place(self, vector: Tensor) -> None:
        """The same, of one long tensor on the host."""
        try:
            work = dist.all_reduce(vector, group=self._group, async_op=True)
        except RuntimeError as problem:
            raise RankLost(str(problem)) from problem
        self._pending = [work, vector]
        self._wait([work])


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _listed(ranks: Sequence[str]) -> str:
    return ", ".join(ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
