"""The wide table of experts of a Prismatic `dynamics.db`: its columns, the series behind them, and
a run's view `dynamics`.

A row is a step at which something of the table was measured, a column a quantity of an expert:
expert 0 is the clean one, the others are perturbed and have a divergence from it. An expert of
which one quantity was measured has all its columns. The table says nothing of layers, RMS, cosines
or routers; those are series of a run and have no column.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

from gradiometer.metrics import key, parse

__all__ = ["MOST_COLUMNS", "columns_of", "experts_of", "fitting", "recreate_view", "series_of"]

MOST_COLUMNS = 2000
"""SQLite's limit for a view: `step` and 400 experts. Those beyond stay series of the run only."""

TIERS = {
    f"{tier}_norm": f"grad/expert/<expert>/{tier}_norm" for tier in ("top", "bottom", "middle")
}
CLEAN = TIERS | {"clean_norm": "grad/expert/<expert>/norm"}
PERTURBED = TIERS | {
    "perturbed_norm": "grad/expert/<expert>/norm",
    "divergence": "grad/expert/<expert>/divergence",
}
NUMBER = r"0|[1-9][0-9]{0,8}"
COLUMN = re.compile(rf"expert_({NUMBER})_[a-z_]+")
BEGINNING = PERTURBED["divergence"].partition("<")[0]


def columns_of(expert: int) -> dict[str, str]:
    """The columns of an expert in Prismatic's order, each with the series it shows."""
    quantities = PERTURBED if expert else CLEAN
    shown = {f"expert_{expert}_{name}": template for name, template in quantities.items()}
    return {column: key(template, expert=str(expert)) for column, template in shown.items()}


def series_of(column: str) -> str | None:
    """The series a column shows; None when Prismatic's table has no such column."""
    found = COLUMN.fullmatch(column)
    return None if found is None else columns_of(int(found[1])).get(column)


def experts_of(names: Iterable[str]) -> set[int]:
    """The experts of which the series, among others, hold a quantity of the table."""
    return {expert for name in names if name.startswith(BEGINNING) for expert in _expert(name)}


def fitting(experts: Iterable[int]) -> tuple[list[int], list[int]]:
    """The experts in order as far as their columns fit beside `step`, and those left out."""
    experts, room = sorted(experts), MOST_COLUMNS - 1
    for place, expert in enumerate(experts):
        room -= len(columns_of(expert))
        if room < 0:
            return experts[:place], experts[place:]
    return experts, []


def recreate_view(db: sqlite3.Connection, experts: Iterable[int]) -> None:
    """Make the view `dynamics` show exactly these experts, as far as they fit; without any there is
    no view.

    Series are found by name when the view is read, so it stays true whatever becomes of their
    numbers. Few columns of it are read at the price of those columns.
    """
    shown, _ = fitting(experts)
    db.execute("DROP VIEW IF EXISTS dynamics")
    if not shown:
        return
    columns = {column: series for expert in shown for column, series in columns_of(expert).items()}
    cells = ",\n".join(
        "(SELECT value FROM points WHERE points.step = measured.step"
        f" AND series_id = (SELECT id FROM series WHERE name = '{series}')) AS {column}"
        for column, series in columns.items()
    )
    names = ", ".join(f"'{series}'" for series in columns.values())
    db.execute(
        f"CREATE VIEW dynamics AS SELECT step,\n{cells}\nFROM (SELECT DISTINCT step FROM points"
        f" WHERE series_id IN (SELECT id FROM series WHERE name IN ({names}))) AS measured ORDER BY"
        " step"
    )


def _expert(name: str) -> set[int]:
    for template in PERTURBED.values():
        expert = (parse(template, name) or {}).get("expert", "")
        if re.fullmatch(NUMBER, expert) and name in columns_of(int(expert)).values():
            return {int(expert)}
    return set()
