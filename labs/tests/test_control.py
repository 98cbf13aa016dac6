"""What a random policy and a simple rule earn: measured before a training, said and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gradiometer as gm
from gradiometer_labs import find
from gradiometer_labs.bugs.questions import random_reward
from gradiometer_labs.config import TrainingProgress, configure
from gradiometer_labs.control import MEASURED, ControlRewards
from gradiometer_labs.tsp import problem
from gradiometer_labs.tsp.config import Config as TspConfig
from gradiometer_labs.tsp.problem import tour_lengths
from gradiometer_labs.tsp.train import control_of as tsp_control
from gradiometer_labs.tsp.train import nearest_first


def test_a_control_is_said_once_before_everything_else() -> None:
    heard: list[TrainingProgress] = []
    control = ControlRewards(random_reward=1.0, baseline_reward=2.5, rule="Largest entries")
    listener = control.announced(heard.append)
    assert listener is not None
    for done in (1, 2):
        listener(TrainingProgress(done=done, total=2, mean_return=0.0, notes=(f"Epoch {done}",)))
    assert heard[0].notes == (
        "Random policy | Mean Reward: 1.0000",
        "Largest entries | Mean Reward: 2.5000",
        "Epoch 1",
    )
    assert heard[1].notes == ("Epoch 2",)
    assert control.announced(None) is None
    assert set(control.facts) == set(MEASURED)
    assert set(ControlRewards(random_reward=1.0).facts) == {"random_reward"}


def test_the_nearest_city_is_always_next_and_beats_any_order() -> None:
    control = tsp_control(problem.find("tsp"), TspConfig(num_loc=10))
    assert control.baseline_reward is not None
    # 0.5214 is the mean distance of two points of the unit square
    assert control.random_reward == pytest.approx(-10 * 0.5214, abs=0.3)
    assert control.baseline_reward > 0.8 * control.random_reward
    places = torch.tensor([[[0.0, 0.0], [0.9, 0.0], [0.1, 0.0], [0.3, 0.0]]])
    tsp = problem.find("tsp")
    tour = nearest_first(tsp, places, tsp.starts(places, 1), torch.cdist(places, places))
    assert tour.tolist() == [[[0, 2, 3, 1]]]
    assert float(tour_lengths(places, tour)) == pytest.approx(1.8)


def test_answers_at_random_earn_next_to_nothing() -> None:
    assert 0 <= random_reward(4, seed=1) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lab", "overrides", "low", "high"),
    [
        ("cartpole", ["total_steps=2048", "every=100"], 15, 30),
        ("pendulum", ["total_steps=1600", "num_envs=4", "every=100"], -1600, -900),
    ],
)
def test_a_run_keeps_what_a_random_policy_earns(
    tmp_path: Path, lab: str, overrides: list[str], low: float, high: float
) -> None:
    found = find(lab)
    heard: list[TrainingProgress] = []
    config = configure(found.config(), [*overrides, f"run={tmp_path / 'run'}"])
    found.train(config, heard.append)
    with gm.load(tmp_path / "run") as run:
        reward = run.facts["config"]["random_reward"]
    assert low < reward < high
    assert heard[0].notes[0] == f"Random policy | Mean Reward: {reward:.4f}"
