"""The end of a measured round: the last readings, the meeting of the ranks, and what it all cost."""

from __future__ import annotations

import time

from gradiometer.capture.cadence import Cadence
from gradiometer.capture.council import Council
from gradiometer.capture.distributed import num_ranks
from gradiometer.capture.expertbook import ExpertBook
from gradiometer.capture.gauge import Gauge
from gradiometer.capture.message import Ledger
from gradiometer.capture.microbatches import MicroBatches
from gradiometer.capture.ranks import Mode, Ranks
from gradiometer.capture.reading import Fetched, Reading
from gradiometer.capture.roster import Roster
from gradiometer.capture.rounds import Owner, Round
from gradiometer.capture.samples import Samples
from gradiometer.capture.settings import Settings
from gradiometer.capture.termbook import TermBook

__all__ = ["Closing"]


class Closing:
    """The half of the rig that no hook calls; the other half opens rounds and fills them."""

    roster: Roster
    gauge: Gauge
    ranks: Ranks
    experts: ExpertBook
    num_replicas: int
    _terms: TermBook
    _micro_batches: MicroBatches
    _samples: Samples
    _council: Council

    def __init__(self, settings: Settings, owner: Owner) -> None:
        self._settings, self._owner = settings, owner
        self.cadence = Cadence(settings.every, settings.budget)
        self.seconds = self.entered = 0.0
        self._counted_seconds = 0.0
        self.num_measured = 0

    def retire(self) -> None:
        """Measure no more."""
        raise NotImplementedError

    def _finish_measured(self, current: Round, reading: Reading) -> None:
        self._micro_batches.finish(current, reading)
        reading.add("local", list(current.local_norms), list(current.local_norms.values()))
        self._terms.finish(current)
        current.experts = self.experts.finish(reading, current.number)
        several, first = self.ranks.several, self.num_measured == 0
        self._owner.round_ended(current)
        if not several:
            self.num_measured += 1
            self._count_cost(current.number)
        elif first:  # to make a group takes its time, which is not what a measurement costs
            self._counted_seconds = self._spent()

    def _spent(self) -> float:
        return self.seconds + time.perf_counter() - self.entered

    def _count_cost(self, number: int) -> None:
        spent = self._spent()
        self.cadence.measured(number, spent - self._counted_seconds)
        self._counted_seconds = spent

    def meet(self, current: Round, fetched: Fetched | None) -> Fetched | None:
        """The numbers of the step as all ranks know them together; None when there are none."""
        if not self.ranks.several:
            return fetched
        if fetched is not None:
            self._count_cost(current.number)
        met, self.num_measured = self._council.meet(current, fetched, self.num_measured, self.atoms)
        if met is None:  # the next step is compared with nothing, on all ranks alike
            self.gauge.forget_past()
            self._samples.forget()
            self._micro_batches.forget()
            return None
        for clip in current.clips:
            clip.settle(met)
        return met

    def _gather_ranks(self) -> None:
        """Who trains this model with us, and the form of what we say to each other."""
        pieces, size = self.gauge.pieces, self._settings.sketch_size
        if not hasattr(self, "ranks"):
            mode: Mode = "shards" if pieces and num_ranks() > 1 else "replicas" if self.num_replicas > 1 else "alone"
            names = [(name, tuple(p.shape)) for name, p in self.roster.named.items()]
            self.ranks = Ranks(mode, settings=[names, self._settings.plain()])
            self._council = Council(self.ranks, self._owner, self.cadence, retire=self.retire)
        both = self._settings.direction == "sketch"
        atoms = self._micro_batches.num_atoms
        self.ranks.lay_out(
            Ledger(pieces, num_atoms=atoms, sketch_size=size, both_sketches=both) if self.ranks.sharded else None
        )

    @property
    def atoms(self) -> list[list[int]]:
        """Which rows of a sketch make up each named block."""
        return self._micro_batches.atoms
