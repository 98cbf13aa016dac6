"""One table: what the strength of a sign, the fate of the run, the basis and the role make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.declared import Sign, worst
from gradiometer.doctor.outcome import outcome_of
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.severity import weigh
from gradiometer.metrics import CATALOGUE
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
N = 60
NOISE = 0.02 * np.random.default_rng(0).normal(size=N)
RISES = np.linspace(0.0, 10.0, N) + NOISE
STANDS = np.minimum(np.linspace(0.0, 40.0, N), 10.0) + NOISE
STUCK = 1.0 + NOISE


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("plain", ("info", "warn", "warn", "warn")),
        ("usual", ("info", "info", "warn", "info")),
        ("harmless", (None, None, "warn", "info")),
        ("note", ("info", "info", "info", "info")),
    ],
)
def test_a_strong_sign_by_its_role(patient: Patient, role: Any, expected: tuple[Any, ...]) -> None:
    """While the reward rises, once it stands, where nothing was gained, where none is known."""
    outcomes = [outcome_of(RunData(patient({"reward": x}))) for x in (RISES, STANDS, STUCK, [1.0])]
    weights = [weigh("strong", outcome, "heuristic", role) for outcome in outcomes]
    assert tuple(x and x.severity for x in weights) == expected


def test_a_strong_sign_does_not_wait_where_nothing_moves_to_the_eye(patient: Patient) -> None:
    """Thirty measurements of noise; the same in a warm-up; ten; and thirty that seem to rise."""
    wide = 1.0 + 0.5 * np.random.default_rng(3).normal(size=30)
    warming = {"reward": wide, "learning_rate": np.linspace(0.0, 1e-5, 30)}
    wander = np.cumsum(np.random.default_rng(2).normal(size=30)) + np.linspace(0.0, 9.0, 30)
    series = [{"reward": wide}, warming, {"reward": wide[:10]}, {"reward": wander}]
    outcomes = [outcome_of(RunData(patient(each))) for each in series]
    assert [each and each.fate for each in outcomes] == ["still", "early", "early", "early"]
    weights = [weigh("strong", each, "statistical") for each in outcomes]
    assert [each and each.severity for each in weights] == ["warn", "info", "info", "info"]
    total = weigh("total", outcomes[3], "statistical")
    assert total is not None
    assert total.severity == "warn"


def test_what_is_proved_needs_no_outcome() -> None:
    proved, guessed = (weigh("total", None, basis) for basis in ("proved", "heuristic"))
    assert proved is not None
    assert guessed is not None
    assert (proved.severity, guessed.severity) == ("critical", "warn")


def _series(block: str, value: float) -> Series:
    return Series(
        name=f"grad/{block}/norm/raw",
        metric=CATALOGUE["grad/<block>/norm/raw"],
        parts={"block": block},
        steps=np.arange(5),
        values=np.full(5, value),
    )


def _found(series: Series) -> Sign:
    value = float(series.values[0])
    return Sign(series=series, strength="strong", since=0, reading="x", rank=value, p_value=0.004)


def test_of_many_series_the_worst_is_told_and_a_test_is_corrected_for_their_number() -> None:
    two = [_series("actor", 1.0), _series("critic", 2.0)]
    told = worst(two, _found, "numbers/level")
    assert told is not None
    assert (told.said["block"], told.reading) == ("critic", "x; 2 of 2 blocks")
    assert worst([*two, _series("trunk", 3.0)], _found, "numbers/level") is None  # 3 × 0.004
