"""Student's t against scipy, over degrees of freedom and tails that a diagnosis may meet."""

from __future__ import annotations

import math

import pytest
from scipy import special

from gradiometer.maths.students import t_below, t_quantile

FREEDOMS = (1, 2, 3, 4, 7.5, 12, 30, 99, 1000, 50_000, 1e7)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_the_distribution_function_is_that_of_scipy(freedom: float) -> None:
    for t in (-40.0, -8.0, -3.0, -1.0, -0.1, -1e-9, 0.0, 1e-9, 0.3, 1.96, 5.0, 40.0):
        assert t_below(freedom, t) == pytest.approx(special.stdtr(freedom, t), rel=1e-8, abs=1e-14)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_quantiles_are_those_of_scipy(freedom: float) -> None:
    for p in (0.5, 0.6, 0.9, 0.975, 0.995, 0.9999, 0.025, 1e-4):
        exact = float(special.stdtrit(freedom, p))
        assert t_quantile(freedom, p) == pytest.approx(exact, rel=1e-8, abs=1e-12)


def test_what_is_beyond_is_certain() -> None:
    assert (t_below(3, math.inf), t_below(3, -math.inf)) == (1.0, 0.0)
    assert math.isnan(t_below(3, math.nan))
    assert t_quantile(3, 1.0) == math.inf
