"""`gradiometer replay`: which recipe explains what the update did."""

from __future__ import annotations

from gradiometer.cli.commands import ReplayRequest
from gradiometer.cli.printing import console, print_json, table, warnings_in_a_line
from gradiometer.doctor.replayed import replayed, replayed_groups
from gradiometer.doctor.rules.wiring_replay import said
from gradiometer.doctor.rundata import RunData
from gradiometer.errors import UsageError
from gradiometer.maths.grouprecipes import ReplayedGroups
from gradiometer.maths.recipes import ReplayedRecipes
from gradiometer.store.importers import open_log

__all__ = ["replay"]


def replay(request: ReplayRequest) -> None:
    """Fit every recipe and print how much of the update each explains."""
    with warnings_in_a_line(), open_log(request.run) as run:
        data = RunData(run)
        if (groups := replayed_groups(data)) is not None:
            _show_groups(str(run.path), run.name, groups, json=request.json)
            return
        found = replayed(data)
        if found is None:
            raise UsageError(
                f"{run.path} keeps no rollouts with the credit of their samples. `gradiometer run"
                " train.py` keeps some where the script steps a gymnasium environment and trains"
                " on what it did there, or on several answers to each prompt with their rewards"
            )
        if request.json:
            print_json({"run": str(run.path), **_plain(found)})
        else:
            _print(run.name, found)


def _show_groups(path: str, name: str, found: ReplayedGroups, *, json: bool) -> None:
    """Of answers in groups."""
    if json:
        print_json({"run": path, **_plain_groups(found)})
        return
    out = console()
    out.print(f"{name}: {_verdict_of_groups(found)}", highlight=False)
    rows = [
        (
            said(fit),
            f"{fit.r2:.1%}",
            fit.lengths,
            "right" if fit.recipe.right and not fit.flipped else "",
        )
        for fit in found.fits
    ]
    out.print(table("recipe", "explains", "weighs", "", rows=rows, right=("explains",)))
    out.print(
        f"{found.samples} answers of first passes; nothing is fitted but one factor a backward, and"
        " whether each answer or each token weighs the same.",
        highlight=False,
    )


def _verdict_of_groups(found: ReplayedGroups) -> str:
    if found.wrong is not None:
        return f"Advantages {said(found.wrong)} explain the update; the right recipe does not."
    if found.is_on_padding:
        return f"{found.on_padding:.0%} of the tokens outside the mask are trained."
    if found.checked:
        return f"The right recipe explains the update: {found.right.recipe.words}."
    return "No recipe explains the update, so nothing can be said."


def _plain_groups(found: ReplayedGroups) -> dict[str, object]:
    return {
        "verdict": _verdict_of_groups(found),
        "samples": found.samples,
        "checked": found.checked,
        "wrong": None if found.wrong is None else found.wrong.recipe.name,
        "on_padding": found.on_padding,
        "fits": [
            {
                "recipe": fit.recipe.name,
                "words": said(fit),
                "right": fit.recipe.right and not fit.flipped,
                "r2": fit.r2,
                "flipped": fit.flipped,
                "weighs": fit.lengths,
            }
            for fit in found.fits
        ],
    }


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
