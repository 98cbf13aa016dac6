"""A file a tab: each makes a view of the runs of the request."""

from __future__ import annotations

from collections.abc import Callable

from gradiometer.dashboard.request import ViewRequest
from gradiometer.dashboard.shape import View
from gradiometer.dashboard.views.compare import compare
from gradiometer.dashboard.views.dynamics import dynamics
from gradiometer.dashboard.views.estimators import estimators
from gradiometer.dashboard.views.findings import findings
from gradiometer.dashboard.views.gradients import gradients
from gradiometer.dashboard.views.overview import overview
from gradiometer.dashboard.views.samples import samples
from gradiometer.dashboard.views.terms import terms
from gradiometer.dashboard.views.wiring import wiring

__all__ = ["VIEWS"]

VIEWS: dict[str, Callable[[ViewRequest], View]] = {
    "overview": overview,
    "wiring": wiring,
    "gradients": gradients,
    "terms": terms,
    "estimators": estimators,
    "dynamics": dynamics,
    "samples": samples,
    "compare": compare,
    "findings": findings,
}
"""In the order of the tabs."""
