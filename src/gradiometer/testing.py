"""For the tests of a training: fail where the doctor finds something wrong.

from gradiometer.testing import assert_healthy

def test_a_short_training_is_wired_right(tmp_path):
    train(steps=200, run=tmp_path / "run")
    assert_healthy(tmp_path / "run")
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Literal

from gradiometer.doctor.arbitration import SEVERITY
from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer.doctor.report import as_text
from gradiometer.errors import UnknownName
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

__all__ = ["assert_healthy"]

BAD: tuple[str, ...] = ("broken", "not-a-run")
"""States that no short training may end in; not learning yet is allowed, unless told otherwise."""


def assert_healthy(
    run: Run | Log | str | os.PathLike[str],
    *,
    fail_on: Literal["info", "warn", "critical"] = "warn",
    allow: Collection[str] = (),
    must_learn: bool = False,
) -> Diagnosis:
    """Raise AssertionError with the doctor's report, or give the diagnosis.

    Findings of `fail_on` or worse fail, except those whose ids are in `allow`; so does a run that
    is broken or holds nothing, and with `must_learn` one whose reward did not rise.
    """
    if fail_on not in SEVERITY:
        raise UnknownName("severity", fail_on, SEVERITY)
    found = diagnose(run)
    serious = [
        each
        for each in found.findings
        if SEVERITY[each.severity] <= SEVERITY[fail_on] and each.id not in allow
    ]
    # A run is called broken for its findings too: for those that are allowed it may be.
    bad = found.state in BAD and not found.findings
    lame = must_learn and found.state not in ("healthy", "concern")
    if serious or bad or lame:
        raise AssertionError(as_text(found))
    return found
