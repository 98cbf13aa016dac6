"""Settings of the sparsify lab: what is refused, and case studies from a YAML file."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from forkserver import Done, python

import gradiometer as gm
from gradiometer.errors import UnknownName, UsageError
from gradiometer_labs import faults, find
from gradiometer_labs.config import configure
from gradiometer_labs.sparsify.config import Config
from gradiometer_labs.sparsify.problem import graph_of
from gradiometer_labs.sparsify.train import train
from gradiometer_labs.study import overrides_from

pytestmark = pytest.mark.slow

LAB = find("sparsify")
STUDY = "study_1_anisotropic.yaml"
PLAIN = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


def studied(variation: str, *overrides: str) -> Config:
    return configure(Config, [*overrides_from(STUDY, variation, LAB), *overrides])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("problem.grid_size=3", "problem.grid_size=3: use 4 to 512"),
        ("problem.degree=6", r"problem.degree=6: use 8 \(any angle\) or 4"),
        ("problem.epsilon_min=0.5", "use 0 < epsilon_min <= epsilon_max <= 1"),
        (
            "problem.num_samples=3",
            "batch_size=4 × accumulate=1 = 4 problems of an update are more than",
        ),
        ("accumulate=99", "are more than problem.num_samples=150"),
        ("solver.levels=1", "solver.levels=1: use 2 or more"),
        ("k=4", "k=4: a corner of the grid has 3 connections"),
        ("model.backbone=gat", "unknown model.backbone 'gat'.*There is: gcn, graphsage, gin"),
        ("baseline.type=ema", "unknown baseline.type 'ema'.*exponential_moving"),
        ("baseline.momentum=1", "baseline.momentum=1.0: use a number from 0 up to but not 1"),
        ("temperature.initial=0", "temperature.initial=0.0: use a number above 0"),
        ("temperature.anneal_factor=-1", "temperature.anneal_factor=-1.0: use a number above 0"),
        ("algorithm=trpo", "unknown algorithm 'trpo'"),
        ("steps=0", "steps=0: use 1 or more"),
        ("rollouts=0", "rollouts=0: use 1 or more"),
        ("entropy_coef=-1", "entropy_coef=-1.0: use a number from 0 up"),
        ("learning_rate=nan", "learning_rate=nan: use a number above 0"),
        ("grad_clip=inf", "grad_clip=inf: use a number from 0 up"),
        ("ppo.clip=0", "ppo.clip=0.0: use a number above 0"),
        ("credit.type=edge", "unknown credit.type 'edge'.*There is: rollout, row"),
        ("credit.window=4", "credit.window=4: use an odd number"),
        ("gae.lam=1.5", "gae.lam=1.5: use 0 to 1"),
        ("curriculum.start_size=64", "curriculum.start_size=64 is above problem.grid_size=32"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_words(override: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        configure(Config, [override])


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"baseline\.type=rollout_mean with rollouts=1: use 2 rollouts or more"
    ):
        configure(Config, ["baseline.type=rollout_mean", "rollouts=1"])
    with pytest.raises(UsageError, match=r"credit\.type=row with rollouts=1: a row is compared"):
        configure(Config, ["credit.type=row", "rollouts=1"])
    with pytest.raises(UsageError, match=r"gae\.lam=0\.9 with baseline\.type=none: use"):
        configure(Config, ["gae.lam=0.9", "baseline.type=none"])
    with pytest.raises(UsageError, match="k=3: a corner of the grid has 2 connections"):
        configure(Config, ["k=3", "problem.degree=4"])


def test_steps_come_before_epochs_and_an_epoch_is_a_pass_over_the_problems() -> None:
    config = configure(
        Config, ["problem.num_samples=30", "batch_size=2", "accumulate=4", "epochs=5"]
    )
    assert (config.updates_per_epoch, config.updates) == (3, 15)
    assert configure(Config, ["steps=7"]).updates == 7


def test_the_study_has_the_hyperparameters_of_the_source() -> None:
    config = studied("B")
    assert (config.epochs, config.batch_size, config.entropy_coef, config.grad_clip) == (
        50,
        1,
        0.01,
        1.0,
    )
    assert (
        config.temperature.initial,
        config.temperature.anneal_factor,
        config.temperature.min_temperature,
    ) == (
        0.9,
        0.97,
        0.5,
    )
    baseline = config.baseline
    assert (baseline.type, baseline.momentum, baseline.var_momentum) == (
        "exponential_moving",
        0.95,
        0.99,
    )
    assert (baseline.normalize, baseline.warmup_steps) == (True, 100)
    assert [studied(name).problem.grid_size for name in ("A", "B", "A_fixed", "B_fixed")] == [
        128,
        32,
        128,
        32,
    ]
    assert {studied(name).problem.num_samples for name in ("A", "B")} == {150}


def test_the_reported_training_is_the_study_with_its_bugs_and_the_remedies_keep_its_entropy() -> (
    None
):
    reported, bare = studied("reported"), studied("B")
    assert dataclasses.replace(reported, fault="none", epochs=bare.epochs) == bare
    assert {fault.name for fault, _ in faults.chosen(reported.fault, "sparsify")} == {
        "entropy_no_grad",
        "entropy_wrong_axis",
        "baseline_leak",
        "sampler_ignores_logits",
    }
    for name in ("A_fixed", "B_fixed"):
        assert studied(name).entropy_coef == bare.entropy_coef
        assert studied(name).solver == bare.solver  # the reward is the study's own


def test_the_reported_training_shows_the_symptoms_of_the_report_on_a_small_grid(
    tmp_path: Path,
) -> None:
    """600 updates on 6 × 6 points: no progress, an entropy over all connections that collapses, a
    norm at the clip, a baseline that explains the 7 % it leaks."""
    small = ["problem.grid_size=6", "problem.num_samples=20", "solver.cycles=3", "val_size=0"]
    brief = ["learning_rate=0.01", "every=20", "tier=light", f"run={tmp_path / 'run'}"]
    train(studied("reported", *small, *brief))
    with gm.load(tmp_path / "run") as run:
        known = {
            name: run.series(name)[1]
            for name in (
                "reward",
                "entropy",
                "explained_variance",
                "grad/all/norm/raw",
                "grad/all/norm/clipped",
            )
        }
    connections = len(graph_of(6, 8).row)
    assert known["entropy"][0] == pytest.approx(np.log(connections), rel=1e-3)
    assert np.median(known["entropy"][-200:]) < 0.75 * np.log(connections)
    assert 0.03 < np.median(known["explained_variance"][100:]) < 0.1
    assert known["grad/all/norm/raw"].max() > 10
    assert known["grad/all/norm/clipped"].max() == pytest.approx(1.0, rel=1e-3)
    first, last = known["reward"][:100].mean(), known["reward"][-100:].mean()
    assert last == pytest.approx(first, rel=0.1)


def test_overrides_come_on_top_of_a_variation_and_a_variation_on_top_of_the_settings() -> None:
    assert studied("A").learning_rate == 0.001
    assert studied("A", "learning_rate=0.5", "temperature.initial=2").learning_rate == 0.5
    assert studied("A", "temperature.initial=2").temperature.anneal_factor == 0.97
    assert (
        studied("B_fixed").baseline.momentum == 0.95
    )  # of the settings, although the variation has a baseline of its own


def written(tmp_path: Path, text: str) -> str:
    place = tmp_path / "mine.yaml"
    place.write_text(text, encoding="utf-8")
    return str(place)


def test_a_study_of_ones_own_needs_neither_a_lab_nor_variations(tmp_path: Path) -> None:
    own = written(tmp_path, "settings: {k: 1, problem: {grid_size: 16}, run: null}")
    assert overrides_from(own, None, LAB) == ["k=1", "problem.grid_size=16", "run=null"]
    assert overrides_from(None, None, LAB) == []
    assert overrides_from(written(tmp_path, "settings: {seed: 3}"), None, find("cartpole")) == [
        "seed=3"
    ]


@pytest.mark.parametrize(
    ("text", "variation", "says"),
    [
        ("settings: {k: [", None, "is not YAML in line 1"),
        ("- 1", None, "is no case study: it needs lab, settings, variations"),
        ("setting: {k: 1}", None, "unknown key in .*: 'setting'; did you mean 'settings'"),
        ("lab: tsp", None, "is a study of the tsp lab, not of sparsify"),
        ("settings: 3", None, "settings must map names to values"),
        ("variations: {A: 3}", "A", "variation A must map names to values"),
        ("variations: {A: {}}", None, "has the variations A: choose with --variation"),
        ("variations: {A: {}}", "B", r"unknown variation 'B'.*mine.yaml has: A\."),
        ("settings: {}", "A", r"unknown variation 'A'.*mine.yaml has none\."),
    ],
)
def test_a_study_that_is_none_is_refused_in_words(
    tmp_path: Path, text: str, variation: str | None, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        overrides_from(written(tmp_path, text), variation, LAB)


def test_a_study_that_is_not_there_says_which_there_are() -> None:
    with pytest.raises(
        UsageError, match=f"no such case study can be read; the sparsify lab comes with {STUDY}"
    ):
        overrides_from("study_2.yaml", "A", LAB)
    with pytest.raises(UsageError, match="the cartpole lab comes with none"):
        overrides_from(STUDY, "A", find("cartpole"))
    with pytest.raises(UsageError, match="name its file with --config"):
        overrides_from(None, "A", LAB)


def test_a_setting_nobody_knows_is_named_by_its_place_in_the_study(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownName, match=r"unknown override 'baseline.momentm'; did you mean 'baseline.momentum'"
    ):
        configure(
            Config,
            overrides_from(written(tmp_path, "settings: {baseline: {momentm: 1}}"), None, LAB),
        )


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


@pytest.mark.parametrize(
    "arguments", [("--config", "nope.yaml"), ("--config", STUDY, "--variation", "C")]
)
def test_a_wrong_file_or_variation_ends_with_2_and_one_line(arguments: tuple[str, ...]) -> None:
    done = gradiometer("train", "sparsify", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_variation_trains_from_the_command_line_and_says_its_epochs(tmp_path: Path) -> None:
    small = ["problem.grid_size=5", "problem.num_samples=2", "epochs=2", f"run={tmp_path / 'run'}"]
    done = gradiometer("train", "sparsify", "--config", STUDY, "--variation", "B", *small)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Random policy | Mean Reward: ")
    assert [line.split(" | ")[0] for line in lines if line.startswith("Epoch")] == [
        "Epoch 001",
        "Epoch 002",
    ]
    assert any(line.startswith("  Policy Entropy: ") for line in lines)
    assert "steps" not in done.stderr.partition("Epoch 001")[2]  # no other progress beside them
    assert done.stdout.startswith("mean reward ")
    assert "4 rollouts in all" in done.stdout
