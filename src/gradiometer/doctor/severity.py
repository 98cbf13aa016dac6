"""How bad a sign is: its strength, what became of the run, and what it rests on. One table.

A rule says what it saw (a `Strength`) and what it rests on (a basis); `Outcome.fate` says what
became of the run; nobody else decides between information, a warning and a critical finding. What
is proved needs no outcome: such findings bring their own severity.

- A sign that is merely present says nothing while the reward rises, or as long as it
  is too early to tell.
- Where it is too early to tell, but nothing has moved to the eye for a while, a strong sign is a
  warning already.
- A strong sign is never silence: while the reward rises it is information, and its title says
  *Watch*; it is a warning once the reward stands, and critical once it fell.
- A total sign leaves nothing to learn from: critical as soon as the reward does not rise, and a
  warning before anybody can tell.
- What a converged policy shows by itself (a low entropy, groups that are solved) is no fault where
  the task is solved, and a warning on a reward that stands only where there is more to be had.
- A heuristic accuses of no more than a warning, unless its sign is total.
- What is proved is no less true where no outcome is known: it weighs as if the reward stood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from gradiometer.doctor.outcome import Fate, Outcome
from gradiometer.records import Basis, Severity

__all__ = ["Role", "Strength", "Weight", "weigh"]

Strength: TypeAlias = Literal["present", "strong", "total"]
"""There to see; what an engineer points at; nothing is left to learn from."""

Role: TypeAlias = Literal["plain", "convergence", "usual", "harmless", "note"]
"""What the sign has to do with the outcome. `convergence`: a policy that is done shows it too.
`usual`: runs that learn show it too; information until nothing is gained. `harmless`: the same, and
silent until then. `note`: information whatever the reward does."""

FATES: tuple[Fate, ...] = (
    *("best", "rises", "stands", "stuck", "fell", "still", "early", "unknown"),
)
TABLE: dict[Strength, tuple[Severity | None, ...]] = {
    #          best    rises   stands  stuck   fell    still   early   unknown
    "present": (None, None, "info", "warn", "warn", None, None, "info"),
    "strong": ("info", "info", "warn", "warn", "critical", "warn", "info", "warn"),
    "total": ("info", "info", "critical", "critical", "critical", "warn", "warn", "warn"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """How bad it is, and whether it is something to watch: a strong sign that has not cost yet."""

    severity: Severity
    watch: bool = False


def weigh(
    strength: Strength, outcome: Outcome | None, basis: Basis, role: Role = "plain"
) -> Weight | None:
    """How bad a sign is in a run with this outcome; None where it means nothing."""
    fate: Fate = "unknown" if outcome is None else outcome.fate
    if role == "note":
        return Weight(severity="info")
    if basis == "proved" and fate == "unknown":
        fate = "stands"
    gained = fate in ("best", "rises", "stands")
    if role == "harmless" and (gained or (fate == "unknown" and strength == "present")):
        return None
    if role == "convergence" and fate == "best":
        return None
    severity = TABLE[strength][FATES.index(fate)]
    if severity is None:
        return None
    if severity == "critical" and basis == "heuristic" and strength != "total":
        severity = "warn"
    more = outcome is not None and outcome.short
    done = role == "convergence" and not more
    if fate in ("stands", "unknown") and (done or role in ("usual", "harmless")):
        severity = "info"
    quiet = severity == "info" and strength != "present"
    return Weight(severity=severity, watch=quiet and fate != "best")
