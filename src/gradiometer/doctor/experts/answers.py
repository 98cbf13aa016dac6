"""What an answer is made of: a verdict, the readings it rests on, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

__all__ = [
    "SENTENCES",
    "TONES",
    "Answer",
    "Answers",
    "Number",
    "Routing",
    "SeriesSource",
    "Tone",
    "Verdict",
]

Routing = Literal["merged", "top-k", "unknown"]

Verdict = Literal[
    "waking up",
    "not waking up",
    "genuine",
    "explained by routing",
    "lasts",
    "fades",
    "collapses",
    "converged",
    "dead",
    "undecided",
]

Tone = Literal["good", "warn", "bad", "unsure"]

TONES: dict[Verdict, Tone] = {
    "waking up": "good",
    "genuine": "good",
    "lasts": "good",
    "not waking up": "warn",
    "explained by routing": "warn",
    "fades": "warn",
    "converged": "warn",
    "collapses": "bad",
    "dead": "bad",
    "undecided": "unsure",
}
"""How a verdict is shown, on the page and in a terminal alike."""

SENTENCES: dict[Verdict, str] = {
    "waking up": "Yes: their gradient grows relative to that of the middle weights.",
    "not waking up": "No: their gradient stays as small as it was.",
    "genuine": "Yes: they differ by more than their share of the samples.",
    "explained by routing": "No: they only get more or fewer samples than each other.",
    "lasts": "Yes: it is still there at the end.",
    "fades": "It becomes smaller over the training.",
    "collapses": "No: the experts become the same.",
    "converged": "No: the experts are alike.",
    "dead": "No: an expert gets no gradient at all.",
    "undecided": "Not known yet: the data does not decide it.",
}
"""A verdict as the answer to its question."""


class SeriesSource(Protocol):
    """What is judged: our own run, or anybody's log."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """How the run was started."""
        ...

    def names(self) -> list[str]:
        """Every series."""
        ...

    def series(
        self, name: str
    ) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.float64]]]:
        """Steps and values of a series."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One measured quantity of one expert, over the steps that were looked at."""

    expert: str
    name: str
    unit: str
    value: float
    """Its mean; of a `trend` what it did over the window, in decades."""
    low: float | None = None
    """95 % interval, honest about autocorrelation; None below the measurements it needs."""
    high: float | None = None
    p_value: float | None = None
    """Of a trend: two-sided Mann–Kendall on block means; None below 8 blocks."""
    points: int = 0
    """Finite measurements."""
    blocks: int | None = None
    """Independent blocks they are worth; None when too few to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question, answered twice: as the Prismatic dynamics tab reads it, and soundly."""

    question: str
    verdict: Verdict
    """Over all experts, corrected for how many were looked at (Holm)."""
    source_reading: str
    sound_reading: str
    numbers: tuple[Number, ...] = ()
    missing: tuple[str, ...] = ()
    """What would decide it, or make it surer: series, or measurements."""
    experts: Mapping[str, Verdict] = field(default_factory=dict)
    """The verdict on each expert by itself, uncorrected."""
    tone: Tone = "unsure"
    """`bad` is what the doctor has a finding for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The three questions about experts, how the router is, and what to try next."""

    routing: Routing
    reference: str
    """What the experts are compared with, in words."""
    experts: tuple[str, ...]
    layers: tuple[str, ...]
    """Layers measured one by one; empty when the run has only what was averaged over them."""
    points: int
    """Measured steps."""
    first_step: int
    last_step: int
    waking: Answer
    divergence: Answer
    lasting: Answer
    health: tuple[str, ...]
    """Load, dead experts, router gradient: a line each."""
    next: tuple[str, ...]
    """What to try, only where an answer asks for it."""
    notes: tuple[str, ...] = ()

    @property
    def becoming_one(self) -> bool:
        """Whether the experts are one, or are becoming it: what `experts-converged` reports."""
        return self.lasting.tone == "bad" and self.lasting.verdict != "dead"

    @property
    def answers(self) -> tuple[Answer, Answer, Answer]:
        """In the order of the questions."""
        return self.waking, self.divergence, self.lasting
