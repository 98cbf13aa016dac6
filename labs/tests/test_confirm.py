"""Small trainings of the labs, trained again to confirm a finding: the probe behind --confirm."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradiometer as gm
import gradiometer_labs as labs
from gradiometer.probes.confirm import CHECKSUM, Experiment, confirmed
from gradiometer.records import Evidence, Finding
from gradiometer_labs.config import configure
from gradiometer_labs.confirm import LabProbe, _StepHooks, _weights, probe_of

EXPERIMENTS = {
    name: lab.experiments for name, lab in labs.LABS.items() if lab.experiments is not None
}
CARTPOLE = (
    "num_envs=2",
    "num_steps=24",
    "num_minibatches=2",
    "update_epochs=2",
    "total_steps=48000",
    "seed=5",
)
PRISMATIC = (
    "router_type=topk",
    "width=16",
    "context=12",
    "prompt=4",
    "batch_size=4",
    "num_layers=1",
    "num_heads=2",
)
TSP = ("num_loc=6", "batch_size=4", "embed_dim=16", "num_layers=1", "num_heads=2")

DEAD = Finding(
    id="dead-term",
    title="The loss term 'entropy' has no gradient",
    severity="critical",
    basis="proved",
    evidence=(Evidence(series="grad/all/term/entropy/loss", reading="0.01"),),
    confirm="Print entropy.requires_grad.",
)


def facts_of(lab: str, *overrides: str) -> dict[str, Any]:
    """As a run keeps them."""
    config = configure(labs.find(lab).config(), overrides)
    return {"config": json.loads(json.dumps(dataclasses.asdict(config)))}


def probe_for(lab: str, *overrides: str) -> LabProbe:
    probe = probe_of(facts_of(lab, *overrides))
    assert probe is not None
    return probe


def confirm(id: str, probe: LabProbe, **more: Any) -> Any:
    (found,) = confirmed([dataclasses.replace(DEAD, id=id, **more)], probe, seed=probe.seed)
    return found


@pytest.mark.parametrize("lab", sorted(EXPERIMENTS))
def test_a_config_is_known_by_its_keys(lab: str) -> None:
    assert probe_for(lab).lab.name == lab


def test_what_is_no_labs_config_is_not_taken_for_one() -> None:
    assert probe_of({}) is None
    assert probe_of({"config": None}) is None
    assert probe_of({"config": {"seed": 1, "learning_rate": 0.1}}) is None
    assert probe_of({"config": facts_of("cartpole")["config"] | {"mine": 1}}) is None


def test_every_coefficient_is_a_setting_of_its_lab() -> None:
    for name, experiments in EXPERIMENTS.items():
        saved = probe_for(name).saved
        assert set(experiments.terms.values()) <= saved.keys()
        configure(labs.find(name).config(), experiments.brief)


@pytest.mark.slow
def test_an_entropy_that_no_weight_feels_changes_no_bit_of_them() -> None:
    found = confirm("dead-term", probe_for("cartpole", *CARTPOLE, "fault=entropy_no_grad"))
    assert found.outcome == "supported"
    assert re.match(r"the weights after \d+ batches are bit-identical", found.seen)


@pytest.mark.slow
def test_a_healthy_entropy_term_does_change_the_weights() -> None:
    found = confirm("dead-term", probe_for("cartpole", *CARTPOLE))
    assert found.outcome == "refuted"
    assert found.numbers["distance"] > 1e-6


@pytest.mark.slow
def test_a_router_that_the_task_does_not_train_is_told_from_one_that_it_does() -> None:
    broken = confirm(
        "router-untrained", probe_for("prismatic", *PRISMATIC, "fault=router_detached")
    )
    healthy = confirm("router-untrained", probe_for("prismatic", *PRISMATIC))
    assert (broken.outcome, healthy.outcome) == ("supported", "refuted"), (
        broken.seen,
        healthy.seen,
    )
    assert broken.numbers["share"] < 1e-7
    merged = [each for each in PRISMATIC if not each.startswith("router_type")]
    cut = confirm("router-untrained", probe_for("prismatic", *merged, "fault=router_detached"))
    assert cut.outcome == "supported"


def test_a_fault_that_is_a_wrong_setting_is_not_made_twice() -> None:
    """The run keeps the settings it trained with, in which the fault already is."""
    probe = probe_for("prismatic", "router_type=topk", "fault=aux_dominates", "aux_coef=100")
    assert (probe.saved["fault"], probe.saved["aux_coef"]) == ("none", 100.0)
    assert probe_for("cartpole", "fault=entropy_no_grad").saved["fault"] == "entropy_no_grad"


@pytest.mark.slow
def test_a_training_is_the_users_own_from_its_first_step() -> None:
    """Settings, seed and schedules of the whole training, stopped early: its first rewards are
    those of the run."""
    probe = probe_for("cartpole", *CARTPOLE)
    first = probe(Experiment(kind="baseline", seed=5))
    rewards: list[float] = []

    class Stop(Exception):
        pass

    config = configure(
        labs.find("cartpole").config(), [*CARTPOLE, "run=own", "every=1", "tier=light"]
    )
    with pytest.raises(Stop):

        def progress(now: Any) -> None:
            rewards.append(now.done)
            if len(rewards) == probe._batches:
                raise Stop

        labs.find("cartpole").train(config, progress)
    last = gm.load("own").series("grad/all/norm/raw")[1]
    count = len(last) // len(rewards) * max(1, len(rewards) // 3)
    assert first["grad/all/norm/raw"] == pytest.approx(last[-count:].mean(), rel=1e-12)


def weights_of(numbers: dict[str, float]) -> np.ndarray[Any, Any]:
    return np.array(
        [
            value
            for name, value in numbers.items()
            if name.startswith("weights/") and name != CHECKSUM
        ]
    )


def test_updates_of_no_length_leave_the_weights_and_longer_ones_move_them_further() -> None:
    probe = probe_for("tsp", *TSP)
    probe._searched = 3
    found = {
        scale: probe(Experiment(kind="line-search", scale=scale, seed=1))
        for scale in (0.0, 0.1, 1.0)
    }
    probe._searched = 6
    longer = probe(Experiment(kind="line-search", scale=0.0, seed=1))
    assert longer[CHECKSUM] == found[0.0][CHECKSUM]
    start, short, whole = (weights_of(found[scale]) for scale in (0.0, 0.1, 1.0))
    assert 0.05 < np.linalg.norm(short - start) / np.linalg.norm(whole - start) < 0.2


def test_a_training_that_is_held_still_keeps_every_bit_of_its_weights() -> None:
    probe, checksums = probe_for("prismatic", *PRISMATIC), []
    for held in (0, 4):
        hooks = _StepHooks(3, held=held)
        with probe._run(hooks, 1, ()):
            checksums.append(_weights(hooks.weights())[CHECKSUM])
            assert len(hooks.gradients) == held
    assert checksums[0] == checksums[1]
    assert all(a != b for a, b in itertools.pairwise(hooks.gradients))


def test_the_length_one_is_the_training_as_it_is() -> None:
    probe = probe_for("tsp", *TSP)
    probe._batches = probe._searched = 5
    trained = probe(Experiment(kind="baseline", seed=1))
    searched = probe(Experiment(kind="line-search", scale=1.0, seed=1))
    assert searched["reward"] == trained["reward"]


def test_gradients_are_taken_on_fresh_samples_at_the_same_weights() -> None:
    found = confirm("noise-dominated", probe_for("tsp", *TSP))
    assert found.outcome in ("supported", "refuted", "inconclusive")
    assert 0.0 <= found.numbers["p_value"] <= 1.0
    assert found.numbers["share"] < 0.999  # not one gradient twelve times


@pytest.mark.slow
@pytest.mark.proof
def test_sokoban_is_confirmed_too() -> None:
    found = confirm("dead-term", probe_for("sokoban", "env.size=5", "fault=entropy_no_grad"))
    assert found.outcome == "supported"


def test_what_a_lab_has_no_setting_for_is_said() -> None:
    probe = probe_for("tsp", *TSP)
    assert "has no coefficient for the term 'entropy'" in confirm("dead-term", probe).seen
    assert "gm.audit" in confirm("score-not-zero-mean", probe).seen
    assert "ent_coef is 0 already" in confirm("dead-term", probe_for("cartpole", "ent_coef=0")).seen
    short = confirm("noise-dominated", probe_for("tsp", *TSP, "steps=5"))
    assert (short.outcome, short.done) == ("not-run", DEAD.confirm)
    assert "ends after 5 batches" in short.seen


@pytest.mark.slow
def test_neither_the_runs_folder_nor_the_random_numbers_are_touched(tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    probe = probe_for("cartpole", *CARTPOLE, f"run={place}")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    probe(Experiment(kind="baseline", seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    assert list(place.iterdir()) == []
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
