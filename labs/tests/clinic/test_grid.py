"""The grid is what the issue asks for: enough faults, every lab, doses, pairs, controls; and a
split that nobody moved."""

from __future__ import annotations

from collections import Counter

import pytest

from gradiometer.doctor.faultmap import FAULT_IDS
from gradiometer.errors import UnknownName
from gradiometer_labs import LABS, faults
from gradiometer_labs.clinic.grid import SETUPS, grid, quick_grid
from gradiometer_labs.config import configure
from gradiometer_labs.lab import KINDS


def test_there_are_at_least_forty_faults_five_in_each_lab_and_six_pairs() -> None:
    by_lab = Counter(fault.lab for fault in faults.all_faults())
    assert by_lab.total() >= 40
    assert set(by_lab) == set(LABS)
    assert min(by_lab.values()) >= 5, by_lab
    assert sum(len(setup.doubles) for setup in SETUPS.values()) >= 6


def test_at_least_124_healthy_runs_of_every_ward_and_kind() -> None:
    controls = [training for training in grid() if training.healthy]
    assert len(controls) >= 124
    assert {(training.setup, training.kind) for training in controls} == {
        (setup, kind) for setup in SETUPS for kind in KINDS
    }


def test_no_two_patients_share_a_folder() -> None:
    names = [training.name for training in grid()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("setup", SETUPS.values(), ids=lambda setup: setup.name)
def test_every_setting_of_a_ward_is_one_of_its_lab(setup) -> None:  # type: ignore[no-untyped-def]
    config = LABS[setup.lab].config()
    for kind in KINDS:
        configure(config, [*setup.overrides, *setup.kinds[kind]])
    configure(config, [*setup.overrides, *setup.trained])
    configure(config, [*setup.overrides, *(setup.base or ())])


@pytest.mark.slow
def test_every_patient_has_its_settings_and_a_finding_to_expect() -> None:
    for training in grid(seeds=1):
        if training.healthy:
            continue
        config = configure(LABS[training.clinic_setup.lab].config(), training.overrides)
        assert config.fault == training.fault, training.name
        for found, _ in training.faults:
            assert 1 <= len(found.expected) <= 2, found.name
            assert set(found.expected) & set(FAULT_IDS[found.catalogue]), found.name


def test_what_is_held_out_is_whole_faults_labs_and_doses() -> None:
    held = {training.name for training in grid() if training.held_out}
    for training in grid():
        if any(
            found.name == "no_done_mask" for found, _ in training.faults
        ) or training.clinic_setup.lab in (
            "pendulum",
            "bugs",
        ):
            assert training.name in held
        if training.dose == "mild":
            assert training.name in held
    tuned = {fault.name for fault in faults.all_faults()} - {
        f.name for p in grid() if p.held_out for f, _ in p.faults
    }
    assert tuned, "something must be left to tune on"


def test_one_can_ask_for_some() -> None:
    only = grid(labs=["cartpole"], only=["entropy_no_grad"], seeds=2)
    assert all("entropy_no_grad" in training.fault for training in only)
    assert any(training.fault == "entropy_no_grad" for training in only)
    controls = grid(labs=["cartpole"], only=["none"])
    assert controls
    assert all(training.healthy for training in controls)


def test_a_misspelt_lab_or_fault_is_answered_with_the_right_name() -> None:
    with pytest.raises(UnknownName, match="did you mean 'cartpole'"):
        grid(labs=["cartpol"])
    with pytest.raises(UnknownName, match="did you mean 'entropy_no_grad'"):
        grid(only=["entropy_nograd"])


def test_the_quick_ones_are_of_every_lab_with_and_without_a_fault() -> None:
    quick = quick_grid()
    assert {training.clinic_setup.lab for training in quick if not training.healthy} == set(LABS)
    assert sum(training.healthy for training in quick) >= 2
