"""`gradiometer replay`: which recipe explains what the update did."""

from __future__ import annotations

from gradiometer.cli.commands import ReplayRequest
from gradiometer.cli.printing import console, print_json, table, warnings_in_a_line
from gradiometer.doctor.replayed import replayed
from gradiometer.doctor.rules.wiring_replay import said
from gradiometer.doctor.rundata import RunData
from gradiometer.errors import UsageError
from gradiometer.maths.recipes import ReplayedRecipes
from gradiometer.store.importers import open_log

__all__ = ["replay"]


def replay(request: ReplayRequest) -> None:
    """Fit every recipe and print how much of the update each explains."""
    with warnings_in_a_line(), open_log(request.run) as run:
        found = replayed(RunData(run))
        if found is None:
            raise UsageError(
                f"{run.path} keeps no rollouts with the credit of their samples. `gradiometer run"
                " train.py` keeps some where the script steps a gymnasium environment and trains"
                " on what it did there"
            )
        if request.json:
            print_json({"run": str(run.path), **_plain(found)})
        else:
            _print(run.name, found)


def _verdict(found: ReplayedRecipes) -> str:
    if found.wrong is not None:
        return f"Advantages {said(found.wrong)} explain the update; the right recipe does not."
    if found.checked:
        best = found.right
        return f"The right recipe explains the update: {best.recipe.words}."
    return "No recipe explains the update, so nothing can be said."


def _plain(found: ReplayedRecipes) -> dict[str, object]:
    return {
        "verdict": _verdict(found),
        "samples": found.samples,
        "checked": found.checked,
        "wrong": None if found.wrong is None else found.wrong.recipe.name,
        "fits": [
            {
                "recipe": fit.recipe.name,
                "words": said(fit),
                "right": fit.recipe.right and not fit.flipped,
                "r2": fit.r2,
                "flipped": fit.flipped,
                "gamma": fit.gamma,
                "lambda": fit.lam,
            }
            for fit in found.fits
        ],
    }


def _print(name: str, found: ReplayedRecipes) -> None:
    out = console()
    out.print(f"{name}: {_verdict(found)}", highlight=False)
    rows = table(
        "recipe",
        "explains",
        "discount",
        "decay",
        "",
        rows=[
            (
                said(fit),
                f"{fit.r2:.1%}",
                f"{fit.gamma:g}",
                f"{fit.lam:g}",
                "right" if fit.recipe.right and not fit.flipped else "",
            )
            for fit in found.fits
        ],
        right=("explains", "discount", "decay"),
    )
    out.print(rows)
    out.print(
        f"{found.samples} samples of first epochs; discount and decay fitted on one half, R² of"
        " the other.",
        highlight=False,
    )
