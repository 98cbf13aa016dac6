"""What the doctor says about made-up logs: `python -m benchmarks.synthetic [HOW_MANY_OF_EACH]`.

Six kinds of healthy runs and fourteen kinds of sick ones (gradiometer_labs.trainerlogs), by seeds
that no threshold was chosen on. Held to: at most 1 % of the healthy ones with a warning.
"""

from __future__ import annotations

import sys

import numpy as np

from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer_labs.trainerlogs import HEALTHY, SICK, Columns, column_log

FIRST_SEED = 10_000


def read(columns: Columns) -> Diagnosis:
    """What the doctor says of one."""
    return diagnose(column_log(columns))


def loud(found: Diagnosis) -> list[str]:
    """Its findings that are worth acting on."""
    return [each.id for each in found.findings if each.severity != "info"]


def main(many: int) -> None:
    """A line for each kind: how many were warned about, flagged, and named."""
    warned = 0
    for place, (kind, make) in enumerate(HEALTHY.items()):
        found = [
            read(make(np.random.default_rng(FIRST_SEED * (place + 1) + seed)))
            for seed in range(many)
        ]
        alarms = sum(bool(loud(each)) for each in found)
        warned += alarms
        print(f"healthy {kind}: {alarms} of {many} with a warning")
    print(f"healthy: {warned} of {many * len(HEALTHY)} with a warning")
    for place, (kind, (make, names)) in enumerate(SICK.items()):
        found = [
            read(make(np.random.default_rng(FIRST_SEED * (place + 1) + seed)))
            for seed in range(many)
        ]
        flagged = sum(bool(loud(x)) or x.state in ("broken", "not-learning") for x in found)
        named = sum(bool(set(loud(x)[:3]) & names) for x in found)
        print(f"{kind}: flagged {flagged}, named {named} of {many}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 167)
