"""The programs that the doctor is tried on: every bug is one line that is there."""

from __future__ import annotations

from benchmarks import programs

from gradiometer.doctor.rule import rules


def test_every_bug_changes_its_program_in_one_place_and_leaves_a_program() -> None:
    broken = [each for each in programs.patients() if each.bug != programs.HEALTHY]
    assert len(broken) >= 30
    for patient in broken:
        compile(programs.changed(patient), patient.name, "exec")


def test_every_program_is_tried_healthy_too() -> None:
    healthy = {each.program for each in programs.patients() if each.bug == programs.HEALTHY}
    assert healthy == {file.stem for file in programs.PROGRAMS.glob("*.py")}


def test_the_findings_that_would_name_a_bug_exist() -> None:
    known = {each.id for each in rules()}
    accepted = set().union(*(each.accept for each in programs.patients()))
    assert accepted <= known, sorted(accepted - known)
