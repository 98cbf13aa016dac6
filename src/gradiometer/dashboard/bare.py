"""Which tabs have nothing to show of the chosen runs, and what would fill them."""

from __future__ import annotations

from collections.abc import Callable

from gradiometer.charts.studies import studies_of
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.store.reader import Run

__all__ = ["bare_tabs"]

FILLED_BY = {
    "wiring": "the loss of a watched training: gradiometer run train.py",
    "gradients": "gradients: gm.watch(model, optimizer) or gradiometer run train.py",
    "terms": "loss terms, of a watched training or of gradiometer analyze",
    "estimators": "replicates: gradiometer variance --ckpt_path ...",
    "dynamics": "layers of experts, which gm.watch finds automatically",
    "samples": "texts: meter.log_samples(prompts, completions, rewards), or TRL's callback",
}


def bare_tabs(request: ViewRequest) -> dict[str, str]:
    """By tab, what would fill it; tabs that any of the runs fills are left out."""
    looks = [_look(run) for run in request.runs]
    return {
        tab: f"Nothing here yet. It is filled by {words}"
        for tab, words in FILLED_BY.items()
        if not any(look(tab) for look in looks)
    }


def _look(run: OpenRun) -> Callable[[str], bool]:
    tables = set(run.log.table_names()) if isinstance(run.log, Run) else set()
    names = run.names

    def has(tab: str) -> bool:
        if tab == "wiring":
            return bool(tables & {"wiring", "terms"})
        if tab == "gradients":
            return any(name.startswith("grad/") or "grad_norm" in name for name in names)
        if tab == "terms":
            return bool(tables & {"terms", "wiring"}) or any(
                "/term/" in name or "/reward/" in name or name.startswith("grad_norm/")
                for name in names
            )
        if tab == "estimators":
            return studies_of(run.log) is not None
        if tab == "dynamics":
            return any("expert" in name for name in names)
        return "samples" in tables

    return has
