"""The ranges that pyproject states: what is installed here, and was tested, lies within them."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import gradiometer
from gradiometer.store.sinks import KNOWN

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
INTEGRATIONS = {
    file.stem for file in (Path(gradiometer.__file__).parent / "integrations").glob("*.py")
}
FOREIGN = sorted({*INTEGRATIONS, *KNOWN, "ray"} & EXTRAS.keys())
"""Trainers and trackers: what others may change under us."""


def requirements() -> list[Requirement]:
    listed = [
        Requirement(text) for texts in (PROJECT["dependencies"], *EXTRAS.values()) for text in texts
    ]
    return [each for each in listed if each.name != "gradiometer"]


def test_what_is_installed_is_in_the_range_we_state() -> None:
    installed = [(wanted, metadata.version(wanted.name)) for wanted in requirements()]
    assert installed
    assert [
        f"{wanted}, and {version} is installed"
        for wanted, version in installed
        if not wanted.specifier.contains(version, prereleases=True)
    ] == []


@pytest.mark.parametrize("extra", FOREIGN)
def test_a_trainer_or_tracker_has_a_lower_and_an_upper_bound(extra: str) -> None:
    own = [
        each
        for each in map(Requirement, EXTRAS[extra])
        if each.name not in ("torch", "transformers", "accelerate") or each.name == extra
    ]
    assert own
    assert all({part.operator for part in each.specifier} == {">=", "<"} for each in own)
