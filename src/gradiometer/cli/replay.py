"""`gradiometer replay`: which recipe explains what the update did."""

from __future__ import annotations

import math
from typing import TypeAlias

from gradiometer.cli.commands import ReplayRequest
from gradiometer.cli.printing import console, print_json, table, warnings_in_a_line
from gradiometer.doctor.replayed import replayed, replayed_groups, replayed_targets
from gradiometer.doctor.rules.wiring_replay import said
from gradiometer.doctor.rundata import RunData
from gradiometer.errors import UsageError
from gradiometer.maths.grouprecipes import GroupFit, ReplayedGroups
from gradiometer.maths.recipes import Fit, ReplayedRecipes
from gradiometer.maths.targetrecipes import ReplayedTargets, TargetFit
from gradiometer.store.importers import open_log

__all__ = ["replay"]

AnyReplayed: TypeAlias = ReplayedRecipes | ReplayedGroups | ReplayedTargets
AnyFit: TypeAlias = Fit | GroupFit | TargetFit


def replay(request: ReplayRequest) -> None:
    """Fit every recipe and print how much of the update each explains."""
    with warnings_in_a_line(), open_log(request.run) as run:
        data = RunData(run)
        found = replayed_groups(data) or replayed_targets(data) or replayed(data)
        if found is None:
            raise UsageError(
                f"{run.path} keeps no rollouts with the credit of their samples. `gradiometer run"
                " train.py` keeps some where the script steps a gymnasium environment and trains"
                " on what it did there (with a policy gradient, or Q-learning and what its networks"
                " say of the next observations), or on several answers to each prompt with their"
                " rewards"
            )
        if request.json:
            print_json({"run": str(run.path), **_plain(found)})
        else:
            _print(run.name, found)


def _verdict(found: AnyReplayed) -> str:
    if isinstance(found, ReplayedTargets):
        return _verdict_of_targets(found)
    if found.wrong is not None:
        return f"Advantages {said(found.wrong)} explain the update; the right recipe does not."
    if isinstance(found, ReplayedGroups) and found.is_on_padding:
        return f"{found.on_padding:.0%} of the tokens outside the mask are trained."
    if found.checked:
        return f"The right recipe explains the update: {found.right.recipe.words}."
    return "No recipe explains the update, so nothing can be said."


def _verdict_of_targets(found: ReplayedTargets) -> str:
    if found.wrong is not None:
        return f"Targets {said(found.wrong)} are what the values are trained towards."
    if found.checked and found.right is not None:
        words = found.right.recipe.words
        return f"The right recipe made the targets: {words}, a discount of {found.right.gamma:.4g}."
    return "No recipe explains the targets, so nothing can be said."


def _plain(found: AnyReplayed) -> dict[str, object]:
    padding = {"on_padding": found.on_padding} if isinstance(found, ReplayedGroups) else {}
    return {
        "verdict": _verdict(found),
        "samples": found.samples,
        "checked": found.checked,
        "wrong": None if found.wrong is None else found.wrong.recipe.name,
        **padding,
        "fits": [
            {
                "recipe": fit.recipe.name,
                "words": said(fit),
                "right": _is_right(fit),
                "r2": fit.r2,
                "flipped": fit.flipped,
                **_fitted(fit),
            }
            for fit in found.fits
        ],
    }


def _is_right(fit: AnyFit) -> bool:
    return fit.recipe.right and not fit.flipped


def _fitted(fit: AnyFit) -> dict[str, object]:
    """What was fitted beside the one factor."""
    if isinstance(fit, TargetFit):
        fitted = {"discount": fit.gamma, "temperature": fit.temperature}
        return {name: None if math.isnan(x) else x for name, x in fitted.items()}
    if isinstance(fit, GroupFit):
        return {"weighs": fit.lengths}
    return {"gamma": fit.gamma, "lambda": fit.lam}


def _print(name: str, found: AnyReplayed) -> None:
    if isinstance(found, ReplayedGroups):
        columns: tuple[str, ...] = ("weighs",)
        right: tuple[str, ...] = ("explains",)
        how = (
            "answers of first passes; nothing is fitted but one factor a backward, and whether each"
            " answer or each token weighs the same."
        )
    elif isinstance(found, ReplayedTargets):
        columns = ("discount", "temperature")
        right = ("explains", *columns)
        how = (
            "samples with what the networks said of their next observations; factors fitted on one"
            " half of each batch, R² of the other, beyond what rewards alone explain."
        )
    else:
        columns, right = ("discount", "decay"), ("explains", "discount", "decay")
        how = "samples of first epochs; discount and decay fitted on one half, R² of the other."
    rows = [
        (
            said(fit),
            "right" if _is_right(fit) else "",
            f"{fit.r2:.1%}" if not isinstance(fit, TargetFit) else _explained(fit),
            *map(_cell, _fitted(fit).values()),
        )
        for fit in found.fits
    ]
    out = console()
    out.print(f"{name}: {_verdict(found)}", highlight=False)
    out.print(table("recipe", "", "explains", *columns, rows=rows, right=right))
    out.print(f"{found.samples} {how}", highlight=False)


def _explained(fit: TargetFit) -> str:
    """The recipe that made the targets leaves nothing but rounding; no other is called whole."""
    if fit.left < 1e-6:
        return "100%"
    return f"{min(fit.r2, 0.9999):.2%}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
