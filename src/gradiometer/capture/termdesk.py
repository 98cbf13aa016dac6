"""What is said of loss terms beside their numbers: what each reaches, and what the rewards leave over."""

from __future__ import annotations

from collections.abc import Callable

from gradiometer.capture import termstates
from gradiometer.capture.blocks import Blocks
from gradiometer.capture.microbatches import SKETCH_SEED
from gradiometer.capture.reading import Fetched
from gradiometer.capture.rounds import Owner, SeenTerms
from gradiometer.capture.settings import Settings
from gradiometer.capture.termstates import TermStates
from gradiometer.records import Table
from gradiometer.store.sinks import Fanout

__all__ = ["TermDesk"]

LEFT_OVER = 0.05  # of the policy gradient's norm; rounding in bfloat16 stays below 0.02


class TermDesk:
    """Remembers what has been said, so that each thing is said once."""

    def __init__(self, owner: Owner, put: Callable[[Table], None], settings: Settings, writer: Fanout | None) -> None:
        self._owner, self._put, self._settings, self._writer = owner, put, settings, writer
        self._states = TermStates()
        self._vectors: str | None = None
        self._said_left_over = False

    def note(self, step: int, seen: SeenTerms, fetched: Fetched, blocks: Blocks) -> None:
        """Take in a round whose loss was split."""
        change = self._states.update(seen, fetched, blocks)
        if change.changed:
            self._put(Table(step=step, name="terms", content=self._states.current))
        for name in change.newly_stationary:
            message = f"the gradient of the term {name!r} is exactly zero on every watched parameter; its path is there"
            self._owner.event("stationary-term", message, step, term=name, severity="info")
        left = termstates.rewards_left_over(seen, fetched)
        if left is not None and left > LEFT_OVER and not self._said_left_over:
            self._said_left_over = True
            message = f"the rewards account for all of the policy gradient but {left:.2g} of its norm"
            hint = "the loss is not linear in the advantages (normalised inside it?), or has a part without them"
            self._owner.event("rewards-not-additive", f"{message}: {hint}", step, error=left)
        self._note_vectors("exact" if seen.cosine_error is None else "sketch")

    def _note_vectors(self, kind: str) -> None:
        """How the terms' gradients are kept, once it is known: among the facts of the run."""
        if self._writer is not None and kind != self._vectors:
            self._vectors = kind
            facts = {**self._settings.plain(), "sketch_seed": SKETCH_SEED, "terms_vectors": kind}
            self._writer.set_facts({"meter": facts})
