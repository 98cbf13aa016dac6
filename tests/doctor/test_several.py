"""Several runs at once: what most share, which differ, and in which setting or series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradiometer as gm
from gradiometer.doctor.report import as_text, several_as_text
from gradiometer.doctor.several import Apart, RunsDiagnosis, diagnose_runs
from gradiometer.errors import GradiometerWarning
from gradiometer.store.logs import Log

STEPS = 200


def log(name: str, *, learns: bool, seed: int = 0, entropy: float = 0.5, **config: Any) -> Log:
    rng = np.random.default_rng(seed)
    rows = [
        (
            step,
            {
                "reward": (step / 10 if learns else 0.0) + 10 + rng.normal(),
                "entropy": entropy + 0.01 * rng.normal(),
                "unheard-of": float(learns),
            },
        )
        for step in range(STEPS)
    ]
    facts = {"config": {"seed": seed, **config}} if config else {}
    return Log(Path("runs") / name, name=name, run_id=name, rows=rows, facts=facts)


def test_the_run_that_differs_is_named_with_its_setting_and_its_series() -> None:
    runs = [log(f"a{n}", learns=True, seed=n, lr=1e-3, note=n) for n in range(3)]
    odd = log("odd", learns=False, seed=9, entropy=0.01, lr=1e-1, note=9)
    found = diagnose_runs([*runs, odd])
    assert dict(found.states) == {"not-learning": 1, "healthy": 3}
    assert found.runs[0].state == "not-learning"
    assert found.contrast is not None
    assert found.contrast.runs == ("odd",)
    assert found.contrast.settings == (Apart(name="lr", here="0.1", others="0.001"),)
    assert [each.name for each in found.contrast.series] == ["entropy", "reward"]
    assert not found.contrast.only_own
    said = several_as_text(found, width=100)
    assert said.startswith("4 runs: 1 not-learning, 3 healthy\n")
    assert "differs   odd: not-learning; the others are healthy" in said
    assert "setting   lr: 0.1; the others 0.001" in said


def test_where_only_the_seed_differs_that_is_said() -> None:
    runs = [log(f"s{n}", learns=n < 2, seed=n, lr=1e-3) for n in range(3)]
    contrast = diagnose_runs(runs).contrast
    assert contrast is not None
    assert contrast.runs == ("s2",)
    assert contrast.settings == ()
    assert contrast.only_own
    unknown = diagnose_runs([log(f"s{n}", learns=n < 2, seed=n) for n in range(3)]).contrast
    assert unknown is not None
    assert not unknown.only_own  # nobody wrote the settings down


def test_half_and_half_those_that_failed_are_set_apart_by_what_all_of_them_have() -> None:
    good = [log(f"g{n}", learns=True, seed=n, lr=1e-3 * (n + 1), clip=0.2) for n in range(2)]
    bad = [log(f"b{n}", learns=False, seed=n, lr=1e-2 * (n + 1), clip=0.9) for n in range(2)]
    contrast = diagnose_runs([*good, *bad]).contrast
    assert contrast is not None
    assert contrast.runs == ("b0", "b1")
    # of lr no two runs have the same, so it says nothing of either side
    assert contrast.settings == (Apart(name="clip", here="0.9", others="0.2"),)


def test_runs_that_went_the_same_way_have_no_contrast_unless_one_ends_far_off() -> None:
    runs = [log(f"r{n}", learns=True, seed=n) for n in range(3)]
    assert diagnose_runs(runs).contrast is None
    rows = [(step, {"reward": 10 + 3.0 * step + (step % 3)}) for step in range(STEPS)]
    far = Log(Path("runs") / "far", name="far", run_id="far", rows=rows, facts={})
    contrast = diagnose_runs([*runs, far]).contrast
    assert contrast is not None
    assert contrast.runs == ("far",)
    assert contrast.why.startswith("ends at ")


def test_the_public_name_takes_folders_and_warns_of_what_it_cannot_read(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        lines = ["step,reward", *(f"{n},{n + n % 3}" for n in range(60))]
        (tmp_path / name / "progress.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "noise.bin").write_bytes(b"\x00\x01")
    with pytest.warns(GradiometerWarning, match="not judged"):
        found = gm.diagnose_runs([tmp_path / "one", tmp_path / "two", tmp_path / "noise.bin"])
    assert isinstance(found, RunsDiagnosis)
    assert [each.state for each in found.runs] == ["healthy", "healthy"]
    assert sorted(found.names) == ["one", "two"]
    with pytest.raises(gm.UsageError):
        gm.diagnose_runs([tmp_path / "noise.bin"])
    with pytest.raises(gm.UsageError, match="at least one run"):
        gm.diagnose_runs([])


def test_who_has_watched_the_training_is_not_told_to_watch_it() -> None:
    watched = log("watched", learns=True)
    watched.facts["meter"] = {"tier": "light"}
    said = as_text(diagnose_runs([watched]).longest, verbose=True)
    assert "watch the training" not in said
    assert "watch it with tier='standard'" in said
    assert "this training has none" in said
    assert "watch the training with gm.watch" in as_text(
        diagnose_runs([log("log", learns=True)]).longest, verbose=True
    )
