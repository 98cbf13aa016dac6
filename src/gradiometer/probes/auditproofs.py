"""Facts that the meter would write down, as checks of the audit: with the doctor's own words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradiometer.capture.proofs import ProofLog
from gradiometer.doctor.rule import rules
from gradiometer.probes.auditcheck import Check, failed, passed, skipped

__all__ = ["ProofEvents"]

CHECKED = {
    "gradients-not-cleared": ("gradients are cleared", "before each step"),
    "shapes-broadcast": ("shapes fit", "no column meets a row in the loss"),
    "double-softmax": ("normalised once", "no probabilities are taken for logits"),
    "leak-between-terms": ("terms keep apart", "no policy term reaches the critic's head"),
}
"""What a check is called, and what it says where all is well."""


class ProofEvents:
    """Keeps the facts of a `ProofLog` for an audit."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, dict[str, Any]]] = {}

    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        """The first of each kind."""
        self.found.setdefault(kind, (message, detail))

    def checks(self, log: ProofLog) -> Iterator[Check]:
        """One for each fact that was looked for."""
        words = {each.id: each.words for each in rules()}
        for id, (name, well) in CHECKED.items():
            state = log.state(id)
            if state == "found":
                message, detail = self.found[id]
                said = words[id]
                yield failed(
                    (id, name),
                    "critical",
                    message,
                    *said.fix,
                    numbers=detail,
                    confirm=said.confirm,
                )
            elif state == "ok":
                yield passed((id, name), well)
            elif state is not None:
                yield skipped((id, name), state.partition(": ")[2])
