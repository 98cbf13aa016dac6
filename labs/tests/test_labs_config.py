from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gradiometer.errors import MissingExtra, RunExists, UnknownName, UsageError
from gradiometer_labs import find
from gradiometer_labs.cartpole.config import Config
from gradiometer_labs.config import LabConfig, configure, keys_of, torch_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    depth: int = 3
    sizes: list[int] = field(default_factory=lambda: [8, 8])
    fast: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested(LabConfig):
    trainer: Inner = field(default_factory=Inner)


def test_no_overrides_give_the_defaults() -> None:
    assert configure(Config, []) == Config()


def test_overrides_take_the_type_of_their_field() -> None:
    config = configure(
        Config,
        [
            "seed=7",
            "learning_rate=1e-4",
            "total_steps=20_000",
            "run=runs/a",
            "fault=entropy_no_grad",
        ],
    )
    assert config == Config(
        seed=7, learning_rate=1e-4, total_steps=20_000, run="runs/a", fault="entropy_no_grad"
    )


def test_dotted_keys_reach_into_nested_configs() -> None:
    config = configure(
        Nested, ["trainer.depth=5", "trainer.sizes=[1, 2, 3]", "trainer.fast=true", "seed=2"]
    )
    assert config == Nested(seed=2, trainer=Inner(depth=5, sizes=[1, 2, 3], fast=True))
    assert set(keys_of(Nested())) == {
        "run",
        "seed",
        "fault",
        "device",
        "start",
        "every",
        "tier",
        "sinks",
        "overwrite",
        "trainer.depth",
        "trainer.sizes",
        "trainer.fast",
    }


def test_the_last_of_two_overrides_wins() -> None:
    assert configure(Config, ["run=auto", "seed=2", "run=runs/b", "seed=3"]) == Config(
        run="runs/b", seed=3
    )


@pytest.mark.parametrize("name", ["007", "1e5", "a:b", "a=b", "true", "[x", "2024-01-01"])
def test_a_run_name_stays_as_it_was_typed(name: str) -> None:
    assert configure(Config, [f"run={name}"]).run == name


def test_null_keeps_no_run() -> None:
    assert configure(Config, ["run=runs/a", "run=null"]).run is None


def test_an_unknown_key_is_answered_with_the_close_ones() -> None:
    with pytest.raises(
        UnknownName, match="unknown override 'totl_steps'; did you mean 'total_steps'"
    ) as caught:
        configure(Config, ["totl_steps=5"])
    assert caught.value.close[0] == "total_steps"


def test_an_unknown_key_that_is_close_to_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"unknown override 'qqq' \(there are .*total_steps"):
        configure(Config, ["qqq=5"])


def test_a_group_of_settings_is_not_a_setting() -> None:
    with pytest.raises(UnknownName, match=r"did you mean .*'trainer\.fast'"):
        configure(Nested, ["trainer=5"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=often", "override seed=often: found 'often', expected int"),
        ("seed=1.5", "override seed=1.5: found '1.5', expected int"),
        ("seed=", "override seed=: found '', expected int"),
        ("seed=null", "override seed=null: found 'null', expected int"),
        ("seed=[1", r"override seed=\[1: found '\[1', expected int"),
        ("gamma=high", "override gamma=high: found 'high', expected float"),
        ("fault=null", "override fault=null: found 'null', expected str"),
        ("run=${nothing}", r"found '\$\{nothing\}', expected str or null"),
        ("seed", "'seed' is not an override: write key=value"),
        ("seed=-1", "seed=-1 is negative"),
        ("run=", "run= is empty"),
        ("num_envs=0", "num_envs=0 leaves nothing to train on"),
        (
            "total_steps=10",
            "total_steps=10 is shorter than a rollout .* = 1000 transitions: use 1000 or more",
        ),
        ("num_minibatches=501", "num_minibatches=501 is too many"),
    ],
)
def test_a_wrong_override_says_what_was_found_and_what_is_expected(
    override: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        configure(Config, [override])


def test_overrides_without_omegaconf_say_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "omegaconf", None)
    with pytest.raises(MissingExtra, match=r'needs omegaconf.*pip install "gradiometer\[labs\]"'):
        configure(Config, ["seed=2"])


def test_the_device_is_one_this_machine_has() -> None:
    assert torch_device("cpu").type == "cpu"
    with pytest.raises(UsageError, match=r"device=abacus cannot be used here .*: try device=cpu"):
        torch_device("abacus")


def test_a_seed_fits_into_64_bits() -> None:
    assert configure(Config, [f"seed={2**63 - 1}"]).seed == 2**63 - 1
    with pytest.raises(
        UsageError,
        match=f"seed={2**63} does not fit into 64 bits: use a whole number up to {2**63 - 1}",
    ):
        configure(Config, [f"seed={2**63}"])


@pytest.mark.parametrize("text", ["none", "None", "null"])
def test_a_run_of_none_keeps_nothing_as_in_every_command(text: str) -> None:
    assert configure(find("cartpole").config(), [f"run={text}"]).run is None


def test_what_a_lab_suggests_for_a_folder_that_is_taken_works(tmp_path: Path) -> None:
    lab = find("prismatic")
    given = [f"run={tmp_path / 'run'}", "steps=2", "every=1"]
    lab.train(configure(lab.config(), given))
    with pytest.raises(RunExists, match="overwrite=true starts afresh") as refused:
        lab.train(configure(lab.config(), given))
    assert "resume=" not in str(refused.value)
    lab.train(configure(lab.config(), [*given, "overwrite=True"]))


def test_the_sources_path_of_a_study_is_the_labs_own(tmp_path: Path) -> None:
    from gradiometer_labs.study import overrides_from

    lab, name = find("sparsify"), "study_1_anisotropic.yaml"
    own = overrides_from(name, "A", lab)
    assert overrides_from(f"case_studies/configs/{name}", "A", lab) == own
    with pytest.raises(UsageError, match="no such case study"):
        overrides_from(f"elsewhere/{name}", "A", lab)
