from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from gradiometer.labs.clinic.admission import Admission
from gradiometer.labs.clinic.judging import Judged, Said
from gradiometer.labs.clinic.patients import Patient

Case = Callable[..., Judged]


@pytest.fixture
def case() -> Case:
    """A judged patient of the cartpole ward, made up: what was said, and what the training came to."""

    def made(
        fault: str = "none",
        said: Sequence[str | tuple[str, str]] = (),
        *,
        seed: int = 1,
        kind: str = "fast",
        ward: str = "cartpole-ppo",
        scalars: Sequence[str] = (),
        public: Sequence[str] = (),
        early: Mapping[str, list[str]] | None = None,
        returns: tuple[float, float] = (20.0, 500.0),
        ended: str = "",
        measured: int = 100,
    ) -> Judged:
        pairs = [(each, "warn") if isinstance(each, str) else each for each in said]
        return Judged(
            patient=Patient(ward=ward, fault=fault, kind=kind, seed=seed),
            admission=Admission(
                overrides=[], first_return=returns[0], mean_return=returns[1], seconds=2.0, ended=ended
            ),
            measured=measured,
            last_step=1000,
            full=[Said(id=id, severity=severity, basis="statistical") for id, severity in pairs],
            scalars=[Said(id=id, severity="warn", basis="statistical") for id in scalars],
            public=list(public),
            early=early or {},
        )

    return made
