"""What follows from a meeting of the ranks: which numbers hold, who goes on, and what the run is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradiometer.capture import termshare
from gradiometer.capture.cadence import Cadence
from gradiometer.capture.message import digest_of
from gradiometer.capture.ranks import Minutes, RankLost, Ranks
from gradiometer.capture.reading import Fetched
from gradiometer.capture.rounds import Owner, Round

__all__ = ["Council"]

Numbers = NDArray[np.float64]


class Council:
    """Holds the meetings of one meter. `retire` is called when this rank measures no more."""

    def __init__(self, ranks: Ranks, owner: Owner, cadence: Cadence, *, retire: Callable[[], None]) -> None:
        self._ranks, self._owner, self._cadence, self._retire = ranks, owner, cadence, retire
        self._said: set[str] = set()

    def meet(
        self, current: Round, fetched: Fetched | None, num_measured: int, atoms: Sequence[Sequence[int]]
    ) -> tuple[Fetched | None, int]:
        """The numbers of the whole training, if this step has them, and how many steps have been measured by now."""
        try:
            if reason := self._ranks.join():
                return self._without_all(reason, fetched), num_measured + int(fetched is not None)
            extras = self._extras(current, fetched)
            minutes = self._ranks.meet(
                current.number,
                fetched,
                extras=digest_of(_forms(extras, current)) + 1 if extras or current.own_terms else 0.0,
                interval=self._cadence.interval,
                num_measured=num_measured,
            )
            found = self._with_extras(minutes, current, extras, atoms)
        except RankLost as problem:
            self._lost(problem)
            return None, num_measured
        self._cadence.follow(current.number, minutes.interval)
        self._tell(minutes, current)
        return found, minutes.num_measured

    def _extras(self, current: Round, fetched: Fetched | None) -> dict[str, Numbers]:
        """What some steps have beside the usual: added up in a second message, when all ranks have it."""
        if fetched is None:
            return {}
        if self._ranks.sharded:
            return {k: x for k, x in fetched.arrays.items() if k == "accumulated" or k.startswith("histogram/")}
        extras = {k: x for k, x in fetched.arrays.items() if k.endswith(("/weights", "/tokens"))}
        extras |= {f"{each.name}/rows": np.array([float(each.rows)]) for each in current.experts}
        if current.own_terms is not None:
            extras |= current.own_terms.arrays(fetched)
        return extras

    def _with_extras(
        self, minutes: Minutes, current: Round, extras: dict[str, Numbers], atoms: Sequence[Sequence[int]]
    ) -> Fetched | None:
        fetched = minutes.fetched
        if not minutes.agreed:
            own, current.own_terms = current.own_terms, None
            if fetched is None or not (extras or own):
                return fetched
            self._once(
                "ranks-differ", "not all ranks have the same terms, routing or micro-batches: left out of such steps"
            )
            return replace(fetched, arrays={k: x for k, x in fetched.arrays.items() if k not in extras})
        arrays = self._ranks.add_up(extras)
        if fetched is None:
            return None
        if current.own_terms is not None:
            current.terms, fetched = termshare.together(current.own_terms, arrays, fetched, self._ranks)
        rows = {each.name: arrays.get(f"{each.name}/rows") for each in current.experts}
        current.experts = [
            each if (seen := rows[each.name]) is None else replace(each, rows=round(float(seen[0])))
            for each in current.experts
        ]
        joined = {**fetched.arrays, **{k: x for k, x in arrays.items() if k in fetched.arrays}}
        if "accumulated" in joined:
            joined["parts"], joined["parts_sum"] = _parts(joined.pop("accumulated"), atoms)
        return replace(fetched, arrays=joined)

    # What the run is told.

    def _tell(self, minutes: Minutes, current: Round) -> None:
        if "ranks" not in self._said:
            how = "pieces of sharded tensors" if self._ranks.sharded else "averaged gradients"
            message = f"{self._ranks.world} ranks measure together, {how}; {self._ranks.num_bytes} bytes a meeting"
            self._once("ranks", message, mode=self._ranks.mode, world=self._ranks.world, bytes=self._ranks.num_bytes)
        if minutes.absent is not None:
            self._once("rank-paused", f"the meter of rank {minutes.absent} is paused: {self._without_it()}")
        if minutes.differing is not None:
            message = f"the ranks differ in {minutes.differing}: such steps have no numbers"
            self._once("ranks-differ", message, step=current.step)
        if minutes.failed is not None:
            self._without(minutes.failed)

    def _without_it(self) -> str:
        return (
            "such steps have no numbers"
            if self._ranks.sharded
            else "such steps have no terms, and none if it is rank 0"
        )

    def _without(self, failed: int) -> None:
        """A rank's instrument has failed: there are no meetings any more."""
        message = f"the instrument of rank {failed} failed, see its own output"
        if self._ranks.sharded or failed == 0:
            self._end("rank-failed", f"{message}; without its part there are no numbers, and the meter stops")
        else:
            self._once(
                "rank-failed", f"{message}; rank 0 goes on by itself, with terms and routing of its own batch only"
            )
            self._go_alone()

    def _without_all(self, reason: str, fetched: Fetched | None) -> Fetched | None:
        """There can be no meetings. Rank 0 has all of an averaged gradient, and nobody all of a sharded one."""
        if self._ranks.sharded:
            self._end("ranks-alone", f"{reason}; a sharded model is read piece by piece, on every rank")
            return None
        self._once("ranks-alone", f"{reason}; rank 0 measures by itself, with terms and routing of its own batch only")
        self._go_alone()
        return fetched if self._ranks.rank == 0 else None

    def _go_alone(self) -> None:
        self._ranks.leave()
        if self._ranks.rank:
            self._retire()

    def _lost(self, problem: Exception) -> None:
        self._end("rank-lost", f"the ranks did not meet ({str(problem)[:200]}); the meter stops, your training goes on")

    def _end(self, kind: str, message: str) -> None:
        self._owner.event(kind, message)
        self._owner.warn(f"Gradiometer measures no more: {message}.")
        self._retire()

    def _once(self, kind: str, message: str, step: int | None = None, **detail: object) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._owner.event(kind, message, step, **detail)


def _forms(extras: dict[str, Numbers], current: Round) -> list[object]:
    forms: list[object] = [(name, array.shape) for name, array in sorted(extras.items())]
    return forms if current.own_terms is None else [*forms, *current.own_terms.forms()]


def _parts(sums: Numbers, atoms: Sequence[Sequence[int]]) -> tuple[Numbers, Numbers]:
    """Squared norms of what each backward added, [parts, blocks], and of their sum, from sketches [parts, atoms, k]."""
    added = np.diff(sums, axis=0, prepend=np.zeros_like(sums[:1]))
    parts = np.stack([added[:, list(places)].sum(1) for places in atoms], axis=1)
    return np.square(parts).sum(-1), np.square(parts.sum(0)).sum(-1)
