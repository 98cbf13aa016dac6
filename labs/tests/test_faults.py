from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from importlib import import_module

import pytest

import gradiometer_labs as labs
from gradiometer.errors import UnknownName, UsageError
from gradiometer_labs import faults


@dataclasses.dataclass(frozen=True)
class Pieces:
    double: Callable[[int], int] = lambda x: 2 * x
    square: Callable[[int], int] = lambda x: x * x


@pytest.fixture
def off_by_one(monkeypatch: pytest.MonkeyPatch) -> str:
    """A fault of an imaginary lab, gone again after the test."""
    monkeypatch.setattr(faults, "FAULTS", dict(faults.FAULTS))

    @faults.FaultsOf("arithmetic")(piece="double", summary="2x + 1", expected=(), catalogue="F0")
    def off_by_one(double: Callable[[int], int]) -> Callable[[int], int]:
        return lambda x: double(x) + 1

    return "off_by_one"


def test_a_fault_changes_its_piece_and_no_other(off_by_one: str) -> None:
    healthy = Pieces()
    broken = faults.apply(off_by_one, "arithmetic", healthy)
    assert (healthy.double(3), broken.double(3)) == (6, 7)
    assert broken.square is healthy.square


@pytest.fixture
def off_by_much(monkeypatch: pytest.MonkeyPatch) -> str:
    """One with doses."""
    monkeypatch.setattr(faults, "FAULTS", dict(faults.FAULTS))

    @faults.FaultsOf("arithmetic")(
        piece="square", summary="+", expected=(), catalogue="F0", doses=(10, 100, 1000)
    )
    def off_by_much(square: Callable[[int], int], *, dose: float) -> Callable[[int], int]:
        return lambda x: square(x) + int(dose)

    return "off_by_much"


def test_a_dose_is_chosen_by_name_and_usual_otherwise(off_by_much: str) -> None:
    found = [
        faults.apply(f"{off_by_much}{dose}", "arithmetic", Pieces()).square(2)
        for dose in (":mild", "", ":severe")
    ]
    assert found == [14, 104, 1004]


def test_two_faults_are_applied_in_their_order(off_by_one: str, off_by_much: str) -> None:
    broken = faults.apply(f"{off_by_one}+{off_by_much}:mild", "arithmetic", Pieces())
    assert (broken.double(3), broken.square(2)) == (7, 14)


def test_a_dose_that_is_none_is_refused_in_words(off_by_one: str, off_by_much: str) -> None:
    with pytest.raises(UnknownName, match="unknown dose 'sever'; did you mean 'severe'"):
        faults.apply(f"{off_by_much}:sever", "arithmetic", Pieces())
    with pytest.raises(UsageError, match=r"off_by_one has no doses.*fault=off_by_one"):
        faults.apply(f"{off_by_one}:mild", "arithmetic", Pieces())


def test_none_changes_nothing() -> None:
    healthy = Pieces()
    assert faults.apply("none", "arithmetic", healthy) is healthy


def test_a_misspelt_fault_is_answered_with_the_right_name() -> None:
    with pytest.raises(
        UnknownName, match="unknown fault 'entropy_nograd'; did you mean 'entropy_no_grad'"
    ):
        faults.apply("entropy_nograd", "cartpole", Pieces())


def test_a_fault_of_another_lab_says_which(off_by_one: str) -> None:
    with pytest.raises(
        UnknownName, match=r"unknown fault 'off_by_one'.* It is a fault of: arithmetic\."
    ):
        faults.apply(off_by_one, "cartpole", Pieces())


def test_a_name_is_registered_once(off_by_one: str) -> None:
    def again(double: Callable[[int], int]) -> Callable[[int], int]:
        return double

    again.__name__ = off_by_one
    register = faults.FaultsOf("arithmetic")(
        piece="double", summary="", expected=(), catalogue="F0"
    )
    with pytest.raises(AssertionError, match="comes twice"):
        register(again)


def test_what_all_faults_of_a_file_need_comes_before_what_one_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "FAULTS", dict(faults.FAULTS))
    fault = faults.FaultsOf("arithmetic", needs=("a=1",))
    fault.wrong_setting(
        "high", times="x", summary="", expected=(), catalogue="F0", needs=("b=2",), doses=(1, 2, 3)
    )
    assert faults.FAULTS["arithmetic", "high"].needs == ("a=1", "b=2")


def test_every_fault_names_a_piece_its_labs_have_and_its_catalogue_entry() -> None:
    for fault in faults.all_faults():
        assert fault.summary, fault
        assert re.fullmatch(r"F\d+[a-d]?", fault.catalogue), fault
        pieces = import_module(f"{labs.find(fault.lab).module}.train").Pieces
        assert fault.piece in {field.name for field in dataclasses.fields(pieces)}, fault
        assert fault in faults.faults_of(fault.lab)
