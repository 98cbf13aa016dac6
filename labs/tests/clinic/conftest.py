from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from gradiometer_labs.clinic.grid import ClinicTraining
from gradiometer_labs.clinic.judging import CountedFinding, JudgedTraining
from gradiometer_labs.clinic.training import TrainingRecord

Case = Callable[..., JudgedTraining]


@pytest.fixture
def case() -> Case:
    """A judged training of the cartpole setup, made up: what was said, and what the training came
    to."""

    def made(
        fault: str = "none",
        said: Sequence[str | tuple[str, str]] = (),
        *,
        seed: int = 1,
        kind: str = "fast",
        setup: str = "cartpole-ppo",
        scalars: Sequence[str] = (),
        public: Sequence[str] = (),
        early: Mapping[str, list[str]] | None = None,
        returns: tuple[float, float] = (20.0, 500.0),
        ended: str = "",
        measured: int = 100,
    ) -> JudgedTraining:
        pairs = [(each, "warn") if isinstance(each, str) else each for each in said]
        return JudgedTraining(
            training=ClinicTraining(setup=setup, fault=fault, kind=kind, seed=seed),
            record=TrainingRecord(
                overrides=[],
                first_return=returns[0],
                mean_return=returns[1],
                seconds=2.0,
                ended=ended,
            ),
            measured=measured,
            last_step=1000,
            full=[
                CountedFinding(id=id, severity=severity, basis="statistical")
                for id, severity in pairs
            ],
            scalars=[CountedFinding(id=id, severity="warn", basis="statistical") for id in scalars],
            public=list(public),
            early=early or {},
        )

    return made
