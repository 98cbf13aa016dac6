"""The grid is what the issue asks for: enough faults, every lab, doses, pairs, controls; and a split that nobody moved."""

from __future__ import annotations

from collections import Counter

import pytest

from gradiometer.doctor.faultmap import FAULT_IDS
from gradiometer.errors import UnknownName
from gradiometer.labs import LABS, faults
from gradiometer.labs.clinic.patients import Patient, grid, quick_grid
from gradiometer.labs.clinic.wards import WARDS
from gradiometer.labs.config import configure
from gradiometer.labs.lab import KINDS


def test_there_are_at_least_forty_faults_five_in_each_lab_and_six_pairs() -> None:
    by_lab = Counter(fault.lab for fault in faults.all_faults())
    assert by_lab.total() >= 40
    assert set(by_lab) == set(LABS)
    assert min(by_lab.values()) >= 5, by_lab
    assert sum(len(ward.doubles) for ward in WARDS.values()) >= 6


def test_at_least_124_healthy_runs_of_every_ward_and_kind() -> None:
    controls = [patient for patient in grid() if patient.healthy]
    assert len(controls) >= 124
    assert {(patient.ward, patient.kind) for patient in controls} == {(ward, kind) for ward in WARDS for kind in KINDS}


def test_no_two_patients_share_a_folder() -> None:
    names = [patient.name for patient in grid()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("ward", WARDS.values(), ids=lambda ward: ward.name)
def test_every_setting_of_a_ward_is_one_of_its_lab(ward) -> None:  # type: ignore[no-untyped-def]
    config = LABS[ward.lab].config()
    for kind in KINDS:
        configure(config, [*ward.overrides, *ward.kinds[kind]])
    configure(config, [*ward.overrides, *ward.trained])
    configure(config, [*ward.overrides, *(ward.base or ())])


@pytest.mark.parametrize("patient", [each for each in grid(seeds=1) if not each.healthy], ids=lambda each: each.name)
def test_every_patient_has_its_settings_and_a_finding_to_expect(patient: Patient) -> None:
    config = configure(LABS[patient.home.lab].config(), patient.overrides)
    assert config.fault == patient.fault
    for found, _ in patient.faults:
        assert 1 <= len(found.expected) <= 2, found.name
        assert set(found.expected) & set(FAULT_IDS[found.catalogue])


def test_what_is_held_out_is_whole_faults_labs_and_doses() -> None:
    held = {patient.name for patient in grid() if patient.held_out}
    for patient in grid():
        if any(found.name == "no_done_mask" for found, _ in patient.faults) or patient.home.lab in ("pendulum", "bugs"):
            assert patient.name in held
        if patient.dose == "mild":
            assert patient.name in held
    tuned = {fault.name for fault in faults.all_faults()} - {f.name for p in grid() if p.held_out for f, _ in p.faults}
    assert tuned, "something must be left to tune on"


def test_one_can_ask_for_some() -> None:
    only = grid(labs=["cartpole"], only=["entropy_no_grad"], seeds=2)
    assert all("entropy_no_grad" in patient.fault for patient in only)
    assert any(patient.fault == "entropy_no_grad" for patient in only)
    controls = grid(labs=["cartpole"], only=["none"])
    assert controls
    assert all(patient.healthy for patient in controls)


def test_a_misspelt_lab_or_fault_is_answered_with_the_right_name() -> None:
    with pytest.raises(UnknownName, match="did you mean 'cartpole'"):
        grid(labs=["cartpol"])
    with pytest.raises(UnknownName, match="did you mean 'entropy_no_grad'"):
        grid(only=["entropy_nograd"])


def test_the_quick_ones_are_of_every_lab_with_and_without_a_fault() -> None:
    quick = quick_grid()
    assert {patient.home.lab for patient in quick if not patient.healthy} == set(LABS)
    assert sum(patient.healthy for patient in quick) >= 2
