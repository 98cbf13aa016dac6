"""Six kinds of healthy logs are left in peace; fourteen kinds of sick ones are seen and named.

The quick form; `python -m benchmarks.synthetic` looks at a thousand of each.
"""

from __future__ import annotations

import numpy as np
import pytest

from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer_labs.trainerlogs import HEALTHY, SICK, Columns, column_log


def read(columns: Columns) -> Diagnosis:
    return diagnose(column_log(columns))


def loud(found: Diagnosis) -> list[str]:
    return [each.id for each in found.findings if each.severity != "info"]


@pytest.mark.parametrize("kind", list(HEALTHY))
def test_a_healthy_log_is_left_in_peace(kind: str) -> None:
    for seed in (3, 4):
        found = read(HEALTHY[kind](np.random.default_rng(seed)))
        assert loud(found) == [], found.verdict
        assert found.state not in ("broken", "not-learning"), found.verdict


@pytest.mark.parametrize("kind", list(SICK))
def test_a_sick_log_is_seen_and_named(kind: str) -> None:
    make, names = SICK[kind]
    for seed in (3, 5):
        found = read(make(np.random.default_rng(seed)))
        assert found.state != "healthy", found.verdict
        assert "Nothing wrong was found" not in found.verdict
        assert set(loud(found)[:3]) & names, (found.verdict, loud(found))
