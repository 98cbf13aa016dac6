"""The loss as a diagram: from the loss to its terms to the blocks they train.

What is drawn is decided here, from the record of a run at a step; where it lies on a wide sheet and
on a phone is in wiringsheets.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from gradiometer.charts.drawing import typeset
from gradiometer.doctor.terms import role_of
from gradiometer.metrics import key, parse
from gradiometer.store.reader import Run
from gradiometer.store.wiring import LossTerm, Wiring, read_wiring, wiring_steps
from gradiometer.words import some

__all__ = ["Conflict", "CreditShares", "LossDiagram", "Strand", "block_said", "read_diagram"]

NORM, RAW = "grad/<block>/term/<term>/norm", "grad/<block>/norm/raw"
COSINE = "grad/<block>/term/<term_a>~<term_b>/cos"
CREDIT = ("credit/zero_share", "credit/positive_share", "credit/corr_return")
STRONG = -0.5
"""A cosine below which two terms undo each other; the catalogue's healthy bound."""
SLIGHT = -0.05
COMPARABLE = 3.0
"""A ratio of norms within which a conflict costs something, as in the doctor's terms-conflict."""
INK_BY_ROLE = {"policy": "0", "value": "1", "entropy": "2", "kl": "4"}
OTHER_INKS = ("5", "6", "3", "7", "4", "2", "1", "0")
K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strand:
    """What a term brings to a block."""

    term: str
    block: str
    norm: float | None
    series: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two terms that work against each other in a block."""

    block: str
    first: str
    second: str
    cosine: float
    strong: bool
    """Whether they undo each other: far beyond a right angle, and about equally large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditShares:
    """What a step does to the samples of the policy's term, in shares of all of them."""

    up: float
    down: float
    none: float
    return_correlation: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDiagram:
    """All that is drawn."""

    run: str
    step: int
    wiring: Wiring
    blocks: tuple[str, ...]
    """Those that terms reach, in the order of the terms; then those that none does."""
    strands: tuple[Strand, ...]
    block_norms: Mapping[str, float]
    conflicts: tuple[Conflict, ...]
    credit: CreditShares | None

    @property
    def terms(self) -> tuple[LossTerm, ...]:
        """The terms, those that train the same blocks beside each other."""
        return self.wiring.terms

    @property
    def widest(self) -> float:
        """The largest norm that is drawn."""
        return max((each.norm for each in self.strands if each.norm is not None), default=0.0)

    @property
    def dead_blocks(self) -> tuple[str, ...]:
        """Blocks that no term reaches."""
        reached = {strand.block for strand in self.strands}
        return tuple(block for block in self.blocks if block not in reached)

    def role(self, term: LossTerm) -> str | None:
        """What a term is for: as the graph says, else by its name."""
        return term.role or role_of(term.name)

    def inks(self) -> dict[str, str]:
        """A colour for each term: that of its role, the first of several."""
        given: dict[str, str] = {}
        for term in self.terms:
            usual = INK_BY_ROLE.get(self.role(term) or "")
            if usual is not None and usual not in given.values():
                given[term.name] = usual
        free = [ink for ink in OTHER_INKS if ink not in given.values()] or list(OTHER_INKS)
        rest = [term.name for term in self.terms if term.name not in given]
        return given | {name: free[place % len(free)] for place, name in enumerate(rest)}

    def norm_of(self, term: str) -> float | None:
        """The norm of a term over all it reaches; blocks share no weights."""
        norms = [each.norm for each in self.strands if each.term == term]
        known = [norm for norm in norms if norm is not None]
        return math.hypot(*known) if known else None

    def headline(self) -> str:
        """The picture in a sentence: the worst first."""
        dead = [term for term in self.terms if not term.alive]
        if dead:
            return _dead_said(dead)
        wrong = [term for term in self.terms if term.wrong]
        if wrong:
            return f"{wrong[0].name} {wrong[0].wrong}"
        if self.dead_blocks:
            return f"No term of the loss trains {some(self.dead_blocks, 3)}"
        strong = [each for each in self.conflicts if each.strong]
        if strong:
            worst = min(strong, key=lambda each: each.cosine)
            pair = f"{worst.first} and {worst.second}"
            return f"{pair} work against each other in {block_said(worst.block)}"
        if len(self.terms) == 1:
            return f"One term, {self.terms[0].name}, trains {some(map(block_said, self.blocks), 3)}"
        count = "Both" if len(self.terms) == 2 else f"All {len(self.terms)}"
        return f"{count} terms of the loss reach weights"


def block_said(block: str) -> str:
    """A block as people call it."""
    return "the whole model" if block == "all" else block


def _dead_said(dead: Sequence[LossTerm]) -> str:
    if len(dead) > 1:
        return f"{some([term.name for term in dead], 3)} have no gradient: they train nothing"
    adds = "" if dead[0].value is None else f"it adds {typeset(dead[0].value)} to the loss and "
    return f"{dead[0].name} has no gradient: {adds or 'it '}trains nothing"


def read_diagram(run: Run, name: str, step: int | None = None) -> LossDiagram:
    """The diagram of a run at a step, or of its newest."""
    wiring = _untangled(_with_the_dead(read_wiring(run, step), read_wiring(run)))
    newest = run.newest_step
    asked = step if step is not None else wiring.step if newest is None else newest
    strands = tuple(
        Strand(term=term.name, block=block, norm=norm, series=_series(run, term.name, block))
        for term in wiring.terms
        for block, norm in term.reaches.items()
    )
    blocks, at = _blocks(run, strands), _measured(run, strands, asked)
    return LossDiagram(
        run=name,
        step=at,
        wiring=wiring,
        blocks=blocks,
        strands=strands,
        block_norms=_known(run, {block: key(RAW, block=block) for block in blocks}, at),
        conflicts=_conflicts(run, strands, at),
        credit=_credit(run, at, max((each for each in wiring_steps(run) if each < at), default=-1)),
    )


def _with_the_dead(at_step: Wiring, newest: Wiring) -> Wiring:
    """With parts that were found to have no gradient later, and were never alive; living terms
    first: a value has to change before it is told from a literal."""
    there = {term.name for term in at_step.terms}
    later = [
        replace(term, value=None)
        for term in newest.terms
        if not term.alive and term.name not in there
    ]
    terms = sorted((*at_step.terms, *later), key=lambda term: (term.backward, not term.alive))
    return replace(at_step, terms=tuple(terms))


def _untangled(wiring: Wiring) -> Wiring:
    """With terms that train the same blocks beside each other, so that few lines cross: each lies
    at the mean place of the blocks it reaches."""
    blocks = list(dict.fromkeys(block for term in wiring.terms for block in term.reaches))

    def place(term: LossTerm) -> tuple[int, bool, float]:
        places = [blocks.index(block) for block in term.reaches]
        return term.backward, not term.alive, sum(places) / max(len(places), 1)

    return replace(wiring, terms=tuple(sorted(wiring.terms, key=place)))


def _series(run: Run, term: str, block: str) -> str:
    own = key(NORM, block=block, term=term)
    return own if own in run.names() else key(RAW, block=block)


def _blocks(run: Run, strands: Sequence[Strand]) -> tuple[str, ...]:
    reached = dict.fromkeys(strand.block for strand in strands)
    parsed = ((parse(RAW, name) or {}).get("block", "all") for name in run.names())
    known = [block for block in parsed if block != "all" and not block.startswith("layer.")]
    split = any(block != "all" for block in reached)
    return tuple(reached | dict.fromkeys(known if split else ()))


def _known(run: Run, names: Mapping[K, str], at: int) -> dict[K, float]:
    """The newest value of each series up to a step, of those that have one."""
    there = set(run.names())
    steps = np.array([at], dtype=np.int64)
    found = {
        label: float(run.latest(name, steps)[0]) for label, name in names.items() if name in there
    }
    return {label: value for label, value in found.items() if not math.isnan(value)}


def _measured(run: Run, strands: Sequence[Strand], at: int) -> int:
    """The step at which the norms that are drawn were read."""
    there = set(run.names())
    steps = [
        int(before[-1])
        for strand in strands
        if strand.series in there and len(before := run.part(strand.series, None, at)[0])
    ]
    return max(steps, default=at)


def _conflicts(run: Run, strands: Sequence[Strand], at: int) -> tuple[Conflict, ...]:
    there = {(strand.block, strand.term): strand.norm for strand in strands}
    names = {
        (parts["block"], parts["term_a"], parts["term_b"]): name
        for name in run.names()
        if (parts := parse(COSINE, name)) is not None
        and {(parts["block"], parts["term_a"]), (parts["block"], parts["term_b"])} <= there.keys()
    }
    found = [
        Conflict(
            block=block,
            first=first,
            second=second,
            cosine=cosine,
            strong=cosine < STRONG and _comparable(there[block, first], there[block, second]),
        )
        for (block, first, second), cosine in _known(run, names, at).items()
        if cosine < SLIGHT
    ]
    return tuple(sorted(found, key=lambda each: each.cosine))


def _comparable(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and 0.0 < max(a, b) <= COMPARABLE * min(a, b)


def _credit(run: Run, at: int, before: int) -> CreditShares | None:
    """Of the step; nothing that was measured no later than the split before it."""
    there = set(run.names())
    fresh = [name for name in CREDIT if name in there and len(run.part(name, before + 1, at)[0])]
    known = _known(run, {name: name for name in fresh}, at)
    none, positive = known.get("credit/zero_share"), known.get("credit/positive_share")
    if none is None or positive is None:
        return None
    return CreditShares(
        up=(1.0 - none) * positive,
        down=(1.0 - none) * (1.0 - positive),
        none=none,
        return_correlation=known.get("credit/corr_return"),
    )
