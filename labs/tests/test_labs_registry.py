from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

import gradiometer_labs as labs
from gradiometer.errors import MissingExtra, UnknownName
from gradiometer_labs.config import LabConfig, keys_of


def test_importing_the_registries_does_not_import_torch() -> None:
    code = (
        "import sys, gradiometer_labs as labs, gradiometer_labs.faults, gradiometer_labs.config;"
        "[lab.config()() for lab in labs.LABS.values()];"
        "sys.exit(sorted({'torch', 'gymnasium'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_lab_is_listed_under_its_own_name() -> None:
    assert {name: lab.name for name, lab in labs.LABS.items()} == {name: name for name in labs.LABS}
    assert "cartpole" in labs.LABS


@pytest.mark.parametrize("name", labs.LABS)
def test_a_lab_takes_the_shared_settings_and_its_length(name: str) -> None:
    lab = labs.find(name)
    config = lab.config()()
    assert isinstance(config, LabConfig)
    assert {"run", "seed", "fault", "device", lab.length_key} <= set(keys_of(config))
    assert config.fault == "none"
    assert dataclasses.fields(config)


def test_a_misspelt_lab_is_answered_with_the_right_name() -> None:
    listed = ", ".join(labs.LABS)
    with pytest.raises(
        UnknownName,
        match=rf"unknown lab 'cartpol'; did you mean 'cartpole'\? The labs are: {listed}\.",
    ):
        labs.find("cartpol")


def test_a_lab_without_its_packages_says_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gradiometer_labs.cartpole.train", raising=False)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    lab = labs.find("cartpole")
    with pytest.raises(
        MissingExtra, match=r'the cartpole lab needs gymnasium.*pip install "gradiometer\[labs\]"'
    ):
        lab.train(lab.config()())
