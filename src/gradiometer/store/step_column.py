"""Which column of a log counts its steps: by its name, and by what is in it.

Tools call it by dozens of names, and many logs have several such columns: environment steps,
updates, episodes, epochs. A name alone is not enough: `steps` may be the length of an episode and
`epoch` a fraction. So a column counts the steps if most rows have it, it holds whole numbers, it
rises, and rows do not share one value. Where none does, the rows are counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from gradiometer.store.logs import CLOCKS, ENV_STEPS, INT64, MOST_PARTS

__all__ = ["ROWS", "STEP_KEYS", "axis_of", "expected_steps", "is_step_name", "step_column", "whole"]

ROWS = "rows"
"""What the steps of a log count that has no column for them."""

UPDATES, OPTIMIZER = "updates", "optimizer steps"

STEP_KEYS: dict[str, str] = {
    "_step": "",
    "step": "",
    "global_step": "",
    "global_steps": "",
    "current_steps": OPTIMIZER,
    "global_step/max_steps": OPTIMIZER,
    "training/global_step": "rollout batches",
    "train/global_step": OPTIMIZER,
    "trainer/global_step": OPTIMIZER,
    "system/global_step": "rollout batches",
    "system/step": "rollout batches",
    "progress/step": "rollout batches",
    "progress/batch": "rollout batches",
    "time/total_timesteps": ENV_STEPS,
    "total_timesteps": ENV_STEPS,
    "timesteps_total": ENV_STEPS,
    "misc/total_timesteps": ENV_STEPS,
    "total/steps": ENV_STEPS,
    "num_env_steps_sampled_lifetime": ENV_STEPS,
    "env_runners/num_env_steps_sampled_lifetime": ENV_STEPS,
    "num_env_steps_sampled": ENV_STEPS,
    "env_steps": ENV_STEPS,
    "env_step": ENV_STEPS,
    "environment_steps": ENV_STEPS,
    "totalenvinteracts": ENV_STEPS,
    "timesteps_so_far": ENV_STEPS,
    "total_env_steps": ENV_STEPS,
    "total_num_steps": ENV_STEPS,
    "num_timesteps": ENV_STEPS,
    "total_steps": ENV_STEPS,
    "total_step": ENV_STEPS,
    "num_steps": ENV_STEPS,
    "agent_steps": ENV_STEPS,
    "agent_step": ENV_STEPS,
    "actor_steps": ENV_STEPS,
    "timesteps": ENV_STEPS,
    "timestep": ENV_STEPS,
    "frames": ENV_STEPS,
    "frame": ENV_STEPS,
    "num_frames": ENV_STEPS,
    "steps": "",
    "train_step": "",
    "train_steps": "",
    "train/step": "",
    "training_step": "",
    "training_steps": "",
    "learner_steps": OPTIMIZER,
    "gradient_steps": OPTIMIZER,
    "grad_steps": OPTIMIZER,
    "optimizer_step": OPTIMIZER,
    "opt_step": OPTIMIZER,
    "time/iterations": UPDATES,
    "training_iteration": UPDATES,
    "iteration": UPDATES,
    "iterations": UPDATES,
    "iter": UPDATES,
    "iters": UPDATES,
    "itr": UPDATES,
    "iters_so_far": UPDATES,
    "num_updates": UPDATES,
    "n_updates": UPDATES,
    "nupdates": UPDATES,
    "misc/nupdates": UPDATES,
    "update": UPDATES,
    "updates": UPDATES,
    "batch": "",
    "round": "",
    "generation": "",
    "episode": "episodes",
    "episodes": "episodes",
    "time/episodes": "episodes",
    "total/episodes": "episodes",
    "episodes_total": "episodes",
    "episodes_so_far": "episodes",
    "num_episodes": "episodes",
    "ep": "episodes",
    "epoch": "epochs",
    "epochs": "epochs",
    "total/epochs": "epochs",
}
"""What may count the steps, in order of preference, with what it counts where the name says so."""

SHOWN = 12
SPELLED = {re.sub(r"[_\- ]", "", key): axis for key, axis in STEP_KEYS.items() if key != "_step"}
SPELLED["_step"] = ""
COUNTS = re.compile(
    r"(?:^|[^a-z])(?:steps?|time_?steps?|iters?|iterations?|updates?|episodes?|epochs?|frames?"
    r"|batch(?:es)?|interacts)(?:$|[^a-z])"
)
"""A word in a name nobody listed that says it counts."""
MEASURES = re.compile(
    r"(?:^|[^a-z])(?:rewards?|returns?|scores?|loss|losses|len|lengths?|mean|avg|std|min|max|time"
    r"|rate|per|this|success|kl|entropy|acc|accuracy|s|ms|sec)(?:$|[^a-z])"
)
"""A word that says that it does not."""
OF_WHOLE = re.compile(r"\s*([+-]?\d+)\s*/\s*\d+\s*")
"""`12/600`: the step and how many there will be."""
GROUPED = re.compile(r"[+-]?\d{1,3}(?:[,_ ]\d{3})+")
SCALED = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([kKmM])")
SCALES = {"k": 1_000, "m": 1_000_000}
MOST_FRACTIONS = 0.05
"""Epochs such as 0.25 are no steps; a broken cell or two in a column of steps are no reason."""
MOST_REPEATED = 0.5
"""Rows that say again what another said at the same step: more, and the column counts other than
rows (the epoch of every batch, the step of every worker)."""
FEW_FALLS, SHORTEST_PART, SHARE_OF_FALLS = 16, 8, 0.02
"""A log of several runs, one after another, falls back a few times; the length of an episode falls
at every other row."""


class _Look(NamedTuple):
    """What the first rows of a column say."""

    filled: int
    known: int
    fractions: int
    falls: int
    restarts: int
    """Falls to where it began."""
    repeats: int

    def counts(self, *, inner: bool) -> bool:
        """Whether the column can be what the steps are counted by; `inner` says that another one
        counts on while it begins again, as an episode does over its steps."""
        if not self.known or 2 * self.known < self.filled:
            return False
        if self.fractions > MOST_FRACTIONS * self.known:
            return False
        if self.repeats > MOST_REPEATED * max(self.known - 1, 1):
            return False
        if self.falls < 2 or self.falls <= SHARE_OF_FALLS * self.known:
            return True
        if self.falls == self.restarts and not inner:
            return self.falls < MOST_PARTS - 1
        return self.falls <= FEW_FALLS and (self.falls + 1) * SHORTEST_PART <= self.known


def step_column(columns: Mapping[str, Sequence[Any]], rows: int) -> str | None:
    """The name that counts the steps, given the first cells of each column (None where a row has
    none); None when the rows have to be counted.

    The first of `STEP_KEYS` that at least half of the rows have, else the one most rows have; and
    where no name is known, one that speaks of steps and rises at every row.
    """
    spelled = {name: _spelled(name) for name in columns}
    known = [name for key in SPELLED for name, spelt in spelled.items() if spelt == key]
    looks = {name: _look(columns, name) for name in known}
    outer = {
        name
        for name, look in looks.items()
        if look.known and not look.falls and _differs(columns[name])
    }
    able = [name for name in known if looks[name].counts(inner=bool(outer - {name}))]
    for name in able:
        if 2 * looks[name].filled >= rows:
            return name
    if able:
        return max(able, key=lambda name: looks[name].filled)
    return _unlisted([name for name in columns if name not in looks], columns, rows)


def is_step_name(name: str) -> bool:
    """Whether a name is one of those that count steps."""
    return _spelled(name) in SPELLED


def axis_of(name: str) -> str:
    """What a step column counts, where its name says so."""
    return SPELLED.get(_spelled(name), "")


def expected_steps() -> str:
    """The commonest step names for an error message."""
    return ", ".join([*list(STEP_KEYS)[:SHOWN], "..."])


def whole(value: Any) -> int | None:
    """A step as logs spell it: 12, 12.0, "12/600", "1,200", "3k"; None when it is none."""
    if isinstance(value, str):
        value = _read(value)
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if not math.isfinite(value) or value != int(value):
            return None
        value = int(value)
    return value if value in INT64 else None


def _read(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        pass
    text = text.strip()
    if found := OF_WHOLE.fullmatch(text):
        return int(found[1][:20])
    if GROUPED.fullmatch(text):
        return int(re.sub(r"[,_ ]", "", text)[:20])
    if found := SCALED.fullmatch(text):
        return float(found[1]) * SCALES[found[2].lower()]
    return None


def _spelled(name: str) -> str:
    name = name.strip().lower()
    return name if name == "_step" else re.sub(r"[_\- ]", "", name)


def _look(columns: Mapping[str, Sequence[Any]], name: str) -> _Look:
    filled = known = fractions = falls = restarts = repeats = 0
    before = first = None
    others = [
        cells for other, cells in columns.items() if other not in CLOCKS and not is_step_name(other)
    ]
    row_before = 0
    for row, cell in enumerate(columns[name]):
        if cell is None or cell == "":
            continue
        filled += 1
        step = whole(cell)
        if step is None:
            fractions += isinstance(cell if isinstance(cell, float) else _read(str(cell)), float)
            continue
        known += 1
        first = step if first is None else first
        if before is not None:
            again = step <= before and _overlap(others, row_before, row)
            falls += again and step < before
            restarts += again and step < before and step <= first
            repeats += again and step == before
        before, row_before = step, row
    return _Look(filled, known, fractions, falls, restarts, repeats)


def _differs(cells: Sequence[Any]) -> bool:
    return len({cell for cell in cells if isinstance(cell, str | int | float) and cell != ""}) > 1


def _overlap(columns: Iterable[Sequence[Any]], one: int, other: int) -> bool:
    """Whether two rows both have a value of the same name."""
    return any(cells[one] not in (None, "") and cells[other] not in (None, "") for cells in columns)


def _unlisted(names: list[str], columns: Mapping[str, Sequence[Any]], rows: int) -> str | None:
    for name in names:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        if not COUNTS.search(words) or MEASURES.search(words):
            continue
        steps = [whole(cell) for cell in columns[name]]
        counted = [step for step in steps if step is not None]
        rises = all(after > before for before, after in pairwise(counted))
        if len(counted) > 2 and 10 * len(counted) >= 9 * rows and rises:
            return name
    return None
