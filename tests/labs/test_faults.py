from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from importlib import import_module

import pytest

from gradiometer import labs
from gradiometer.errors import UnknownName
from gradiometer.labs import faults


@dataclasses.dataclass(frozen=True)
class Pieces:
    double: Callable[[int], int] = lambda x: 2 * x
    square: Callable[[int], int] = lambda x: x * x


@pytest.fixture
def off_by_one(monkeypatch: pytest.MonkeyPatch) -> str:
    """A fault of an imaginary lab, gone again after the test."""
    monkeypatch.setattr(faults, "FAULTS", dict(faults.FAULTS))

    @faults.fault("off_by_one", labs=("arithmetic",), piece="double", summary="2x + 1", expected=(), catalogue="F0")
    def broken(double: Callable[[int], int]) -> Callable[[int], int]:
        return lambda x: double(x) + 1

    return "off_by_one"


def test_a_fault_changes_its_piece_and_no_other(off_by_one: str) -> None:
    healthy = Pieces()
    broken = faults.apply(off_by_one, "arithmetic", healthy)
    assert (healthy.double(3), broken.double(3)) == (6, 7)
    assert broken.square is healthy.square


def test_none_changes_nothing() -> None:
    healthy = Pieces()
    assert faults.apply("none", "arithmetic", healthy) is healthy


def test_a_misspelt_fault_is_answered_with_the_right_name() -> None:
    with pytest.raises(UnknownName, match="unknown fault 'entropy_nograd'; did you mean 'entropy_no_grad'"):
        faults.apply("entropy_nograd", "cartpole", Pieces())


def test_a_fault_of_another_lab_says_which(off_by_one: str) -> None:
    with pytest.raises(UnknownName, match=r"unknown fault 'off_by_one'.* It is a fault of: arithmetic\."):
        faults.apply(off_by_one, "cartpole", Pieces())


def test_a_name_is_registered_once(off_by_one: str) -> None:
    again = faults.fault(off_by_one, labs=("arithmetic",), piece="double", summary="", expected=(), catalogue="F0")
    with pytest.raises(AssertionError, match="registered twice"):
        again(lambda double: double)


@pytest.mark.parametrize("fault", faults.FAULTS.values(), ids=lambda fault: fault.name)
def test_every_fault_names_a_piece_its_labs_have_and_its_catalogue_entry(fault: faults.Fault) -> None:
    assert fault.summary
    assert re.fullmatch(r"F\d+[a-d]?", fault.catalogue)
    for lab in fault.labs:
        pieces = import_module(f"{labs.find(lab).module}.train").Pieces
        assert fault.piece in {field.name for field in dataclasses.fields(pieces)}
        assert fault in faults.faults_of(lab)
