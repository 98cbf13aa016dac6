"""Trainings of the sparsify lab in their short form, on grids of 8 × 8 and 10 × 10."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer_labs import faults
from gradiometer_labs.config import TrainingProgress
from gradiometer_labs.confirm import probe_of
from gradiometer_labs.faults import faults_of
from gradiometer_labs.sparsify.config import (
    Config,
    CreditConfig,
    CurriculumConfig,
    GaeConfig,
    GraphModelConfig,
    ProblemConfig,
    SolverConfig,
    TemperatureConfig,
)
from gradiometer_labs.sparsify.pieces import Pieces
from gradiometer_labs.sparsify.problem import graph_of
from gradiometer_labs.sparsify.report import EpochReport
from gradiometer_labs.sparsify.rollout import (
    Rollouts,
    SparsifyPurpose,
    collect,
    generator_for,
    make_solvers,
    solvers_at,
)
from gradiometer_labs.sparsify.train import SparsifyTraining, losses_of, train
from gradiometer_labs.weights import save_weights

pytestmark = pytest.mark.slow

TINY = Config(
    steps=4,
    batch_size=2,
    rollouts=3,
    val_size=2,
    problem=ProblemConfig(grid_size=5, num_samples=6),
    solver=SolverConfig(vectors=2),
    model=GraphModelConfig(hidden_size=8),
)
LEARNING = Config(
    steps=60,
    val_size=4,
    learning_rate=0.02,
    every=60,  # the meter changes no weight
    problem=ProblemConfig(grid_size=10, num_samples=24),
)


def changed(config: Config, **settings: Any) -> Config:
    return dataclasses.replace(config, **settings)


def baseline(config: Config, kind: str, **settings: Any) -> Config:
    return changed(config, baseline=dataclasses.replace(config.baseline, type=kind, **settings))


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def rollouts_of(config: Config, fault: str = "none") -> tuple[SparsifyTraining, Rollouts, Pieces]:
    """One forward pass's rollouts of a training that has not begun."""
    pieces = faults.apply(fault, "sparsify", Pieces(config=config))
    training = SparsifyTraining(pieces)
    collected = collect(
        training.model,
        solvers_at(0, training.solvers, config)[0],
        training._baseline,
        training._scale,
        1.0,
        generator_for(config, SparsifyPurpose.CHOICES),
        pieces,
    )
    return training, collected, pieces


@pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
def test_training_more_than_doubles_the_reward_of_a_random_policy(algorithm: str) -> None:
    config = LEARNING if algorithm == "reinforce" else changed(LEARNING, algorithm="ppo", steps=30)
    result = train(config)
    assert result.mean_return > 2 * result.control.random_reward
    assert result.epoch_rewards[-1] > 2 * result.epoch_rewards[0]
    assert result.validation > 1.5 * result.control.random_reward  # on problems nobody trained on
    assert result.entropy < 0.8 * result.largest_entropy


def test_credit_of_rows_learns_from_fewer_rollouts_than_a_reward_for_all() -> None:
    """Two rollouts of each problem: too few for one number to tell 256 rows apart."""
    config = changed(
        LEARNING,
        steps=24,
        rollouts=2,
        val_size=0,
        problem=ProblemConfig(grid_size=16, num_samples=24),
    )
    plain, by_row = train(config), train(changed(config, credit=CreditConfig(type="row")))
    assert by_row.mean_return > 1.5 * by_row.control.random_reward
    assert by_row.mean_return > 1.3 * plain.mean_return


def test_gae_and_a_curriculum_train() -> None:
    stepwise = train(changed(TINY, gae=GaeConfig(lam=0.9)))
    assert bool(weights(stepwise.model).isfinite().all())
    ppo = train(changed(TINY, gae=GaeConfig(lam=0.9), algorithm="ppo"))
    assert not torch.equal(weights(ppo.model), weights(stepwise.model))
    sizes: list[int] = []
    original = SparsifyTraining.solvers_of

    def noted(self: SparsifyTraining, grid_size: int) -> Any:
        sizes.append(grid_size)
        return original(self, grid_size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparsifyTraining, "solvers_of", noted)
        config = changed(
            TINY,
            problem=ProblemConfig(grid_size=10, num_samples=6),
            curriculum=CurriculumConfig(start_size=5),
        )
        result = train(config)
    assert sizes == [10, 5]
    assert np.isfinite(result.mean_return)


def test_the_value_head_explains_a_fifth_of_the_rewards_of_a_policy_that_stands_still() -> None:
    """With log-probs detached the policy stays as it is, and all that is left to learn is the value
    head."""
    result = train(changed(LEARNING, fault="log_prob_detached", entropy_coef=0.0))
    assert result.explained_variance > 0.2


def test_a_grad_clip_of_zero_never_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("clipped")

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", refuse)
    train(changed(TINY, grad_clip=0.0, steps=1))
    with pytest.raises(AssertionError, match="clipped"):
        train(changed(TINY, grad_clip=1.0, steps=1))


def test_two_trainings_of_a_seed_are_the_same_and_another_seed_is_another() -> None:
    first, again, other = (train(changed(TINY, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(weights(first.model), weights(again.model))
    assert first.epoch_rewards == again.epoch_rewards != other.epoch_rewards


def test_passes_that_are_accumulated_make_the_step_of_one_pass() -> None:
    """Two passes of one problem each, and one of both, on the same rollouts."""
    training, both, pieces = rollouts_of(TINY)
    halves = [
        Rollouts(
            **{x.name: _part(getattr(both, x.name), place) for x in dataclasses.fields(Rollouts)}
        )
        for place in range(2)
    ]
    gradients = []
    for batches, accumulate in (([both], 1), (halves, 2)):
        training.model.zero_grad()
        for batch in batches:
            losses = losses_of(training.model, batch, 1.0, pieces)
            pieces.averaged(sum(losses.values()), changed(TINY, accumulate=accumulate)).backward()  # type: ignore[no-untyped-call, arg-type]
        gradients.append(
            torch.cat([p.grad.flatten() for p in training.model.parameters() if p.grad is not None])
        )
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)
    assert float(gradients[0].norm()) > 0


def _part(value: Any, place: int) -> Any:
    return value[place : place + 1] if isinstance(value, torch.Tensor) else value


def test_an_epoch_sees_every_problem_once_in_an_order_of_its_own() -> None:
    config = changed(TINY, accumulate=1)
    solvers = make_solvers(config, SparsifyPurpose.PROBLEMS, 6)
    epochs = [
        [
            solvers.index(x)
            for step in range(3)
            for each in solvers_at(3 * epoch + step, solvers, config)
            for x in each
        ]
        for epoch in range(2)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(6))] * 2
    assert epochs[0] != epochs[1]


def test_the_temperature_falls_by_the_epoch_to_its_floor() -> None:
    temperature = TemperatureConfig(initial=0.9, anneal_factor=0.97, min_temperature=0.5)
    assert [temperature.at(epoch) for epoch in (0, 1, 2)] == pytest.approx([0.9, 0.873, 0.84681])
    assert temperature.at(19) > 0.5
    assert temperature.at(20) == temperature.at(50) == 0.5


def test_a_run_holds_what_the_doctor_asks_for(tmp_path: Path) -> None:
    result = train(changed(TINY, run=str(tmp_path / "run"), algorithm="ppo", steps=6))
    with gm.load(tmp_path / "run") as run:
        known = set(run.names())
        assert run.facts["config"]["problem"]["degree"] == 8
        assert run.facts["config"]["k"] == 2
        control = result.control
        assert run.facts["config"]["random_reward"] == control.random_reward
        assert run.facts["config"]["baseline_reward"] == control.baseline_reward
        _, kl = run.series("sampler_kl")
    assert result.run == tmp_path / "run"
    assert abs(kl).max() < 1e-5
    assert known >= {
        "reward",
        "entropy",
        "policy_loss",
        "value_loss",
        "approx_kl",
        "clip_fraction",
        "explained_variance",
        "score_z",
        "learning_rate",
        "action_share",
        "returns/mean",
        "advantages/std",
        "ratio/max",
        "value_mean",
        "reward_gain",
        "val/reward",
        "reward_std",
        "terminal_correlation",
        "grad/policy_head/norm/raw",
        "grad/gnn/norm/raw",
        "grad/value_head/norm/raw",
        "grad/all/term/policy/norm",
        "grad/all/term/entropy/norm",
        "grad/all/term/value/norm",
    }


def test_a_training_says_a_line_an_epoch_and_diagnostics_every_tenth() -> None:
    heard: list[TrainingProgress] = []
    result = train(
        changed(
            TINY, steps=None, epochs=10, problem=dataclasses.replace(TINY.problem, num_samples=2)
        ),
        heard.append,
    )
    lines = [line for progress in heard for line in progress.notes]
    assert lines[0] == f"Random policy | Mean Reward: {result.control.random_reward:.4f}"
    assert lines[1].startswith("Largest entries | Mean Reward: ")
    epochs = [line for line in lines if line.startswith("Epoch")]
    assert [line.split(" | ")[0] for line in epochs] == [
        f"Epoch {number:03d}" for number in range(1, 11)
    ]
    assert f"Epoch 010 | Mean Reward: {result.epoch_rewards[-1]:.4f}" in epochs[-1]
    assert sum(line.startswith("  Policy Entropy: ") for line in lines) == 2  # of epochs 1 and 10
    assert any(line.startswith("  Total Grad Norm: ") for line in lines)
    assert heard[-1].done == heard[-1].total == 10


def test_a_report_leaves_out_what_is_not_known() -> None:
    report = EpochReport(largest_entropy=4.0)
    report.add({"reward": 1.0, "entropy": 2.0, "explained_variance": np.nan})
    lines = report.end_epoch(np.nan)
    assert lines[:3] == (
        "Epoch 001 | Mean Reward: 1.0000",
        "  Policy Entropy: 2.0000 of at most 4.0000 in a row",
        "  Value Explained Variance: -",
    )


def test_a_training_starts_from_given_weights(tmp_path: Path) -> None:
    trained = train(TINY)
    save_weights(trained.model, tmp_path / "weights.pt")
    still = train(changed(TINY, start=str(tmp_path / "weights.pt"), learning_rate=1e-12))
    assert torch.allclose(weights(still.model), weights(trained.model), atol=1e-7)
    with pytest.raises(UsageError, match="does not hold weights of this lab's model"):
        train(baseline(changed(TINY, start=str(tmp_path / "weights.pt")), "rollout_mean"))


@pytest.mark.parametrize("kind", ["exponential_moving", "rollout_mean", "none"])
@pytest.mark.parametrize("backbone", ["gcn", "gin"])
def test_every_baseline_and_backbone_trains(kind: str, backbone: str) -> None:
    config = changed(
        TINY, model=dataclasses.replace(TINY.model, backbone=backbone), normalize_reward=True
    )
    result = train(baseline(config, kind))
    assert np.isfinite(result.mean_return)
    assert result.model.value_head is None
    assert bool(weights(result.model).isfinite().all())


def test_doctor_confirm_knows_a_run_of_this_lab(tmp_path: Path) -> None:
    train(changed(TINY, run=str(tmp_path / "run")))
    with gm.load(tmp_path / "run") as run:
        probe = probe_of(run.facts)
    assert probe is not None
    assert probe.lab.name == "sparsify"
    assert probe.lab.experiments.terms == {"entropy": "entropy_coef", "value": "vf_coef"}


# What each fault changes, on the same rollouts or in a short training.


def with_needs(config: Config, name: str) -> Config:
    """The config with what the fault asks for."""
    needed = next(each.needs for each in faults_of("sparsify") if each.name == name)
    if "baseline.type=exponential_moving" in needed:
        config = baseline(config, "exponential_moving")
    if "temperature.initial=0.5" in needed:
        config = changed(config, temperature=TemperatureConfig(initial=0.5))
    if "model.separate_value=false" in needed:
        config = changed(config, model=dataclasses.replace(config.model, separate_value=False))
    return config


@cache
def healthy_weights(config: Config) -> torch.Tensor:
    return weights(train(config).model)


@pytest.mark.parametrize("fault", faults_of("sparsify"), ids=lambda fault: fault.name)
def test_every_fault_trains_and_ends_with_other_weights_than_the_healthy_training(
    fault: faults.Fault,
) -> None:
    config = with_needs(TINY, fault.name)
    broken = weights(train(changed(config, fault=fault.name)).model)
    assert not torch.equal(healthy_weights(config), broken)


def test_an_entropy_without_gradient_and_detached_log_probs_reach_no_weight() -> None:
    for fault, term in (
        ("entropy_no_grad", "entropy"),
        ("log_prob_detached", "policy"),
        ("critic_detached", "value"),
    ):
        training, collected, pieces = rollouts_of(TINY, fault)
        losses = losses_of(training.model, collected, 1.0, pieces)
        assert {name for name, loss in losses.items() if not loss.requires_grad} == {term}


def test_an_entropy_over_all_connections_is_above_what_a_row_can_have() -> None:
    training, collected, pieces = rollouts_of(TINY, "entropy_wrong_axis")
    found = float(losses_of(training.model, collected, 1.0, pieces)["entropy"].detach())
    assert found == pytest.approx(np.log(len(graph_of(5, 8).row)), rel=0.01)


def test_an_entropy_of_missing_candidates_is_nan() -> None:
    training, collected, pieces = rollouts_of(TINY, "entropy_nan")
    assert bool(losses_of(training.model, collected, 1.0, pieces)["entropy"].isnan())


def test_a_wrong_sign_turns_the_policy_loss_around() -> None:
    values = {}
    for fault in ("none", "wrong_sign"):
        training, collected, pieces = rollouts_of(TINY, fault)
        values[fault] = float(losses_of(training.model, collected, 1.0, pieces)["policy"].detach())
    assert values["wrong_sign"] == -values["none"] != 0


def test_a_leaking_baseline_knows_the_rewards_it_is_subtracted_from() -> None:
    config = baseline(
        changed(TINY, batch_size=1, rollouts=1), "exponential_moving", momentum=0.5, warmup_steps=0
    )
    _, honest, _ = rollouts_of(config)
    _, leaking, _ = rollouts_of(config, "baseline_leak")
    assert (
        honest.expected.tolist()
        == honest.expected_before.tolist()
        == leaking.expected_before.tolist()
        == [[0.0]]
    )
    assert torch.equal(leaking.expected, leaking.targets)


@pytest.mark.parametrize("fault", ["log_prob_wrong_action", "log_prob_with_replacement"])
def test_wrong_log_probs_are_not_those_of_the_sampler_and_still_those_of_candidates(
    fault: str,
) -> None:
    _, collected, _ = rollouts_of(TINY, fault)
    off = collected.sampled_log_probs - collected.log_probs
    assert bool((off.abs() > 1e-6).any())
    assert bool((collected.log_probs > -100).all())  # a candidate that is not there would have −1e9


def test_a_sampler_with_another_temperature_says_other_log_probs() -> None:
    _, collected, _ = rollouts_of(TINY, "sampler_mismatch")
    assert torch.allclose(
        collected.sampled_log_probs, collected.log_probs
    )  # at a temperature of 1 there is no fault
    config = changed(TINY, temperature=TemperatureConfig(initial=0.5))
    run = train(changed(config, fault="sampler_mismatch"))
    assert not torch.equal(weights(run.model), weights(train(config).model))


def test_a_sampler_that_ignores_logits_draws_the_same_whatever_they_are() -> None:
    pieces = faults.apply("sampler_ignores_logits", "sparsify", Pieces(config=TINY))
    logits = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    drawn = [
        draw(times * logits, 2, 1.0, 5, torch.Generator().manual_seed(1))[0]
        for draw in (pieces.draw, Pieces(config=TINY).draw)
        for times in (1.0, 9.0)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[2], drawn[3])


def test_misaligned_scaled_and_noisy_rewards_are_what_they_say() -> None:
    _, healthy, _ = rollouts_of(TINY)
    _, misaligned, _ = rollouts_of(TINY, "rewards_misaligned")
    assert torch.equal(misaligned.rewards, healthy.rewards)
    assert torch.equal(misaligned.targets.flatten(), healthy.rewards.flatten().roll(1))
    _, scaled, _ = rollouts_of(TINY, "reward_x100")
    assert torch.allclose(scaled.targets, 100 * healthy.rewards)
    _, noisy, _ = rollouts_of(changed(TINY, rollouts=40), "noisy_verifier")
    _, clean, _ = rollouts_of(changed(TINY, rollouts=40))
    assert float((noisy.rewards != clean.rewards).float().mean()) == pytest.approx(0.5, abs=0.2)


def test_a_frozen_head_never_moves() -> None:
    start = SparsifyTraining(Pieces(config=TINY)).model
    frozen = train(changed(TINY, fault="frozen_layer")).model
    assert torch.equal(weights(start.policy_head), weights(frozen.policy_head))
    assert not torch.equal(weights(start.gnn), weights(frozen.gnn))


def test_the_spread_of_advantages_is_said_with_one_rollout_too() -> None:
    report = EpochReport(largest_entropy=4.0)
    for advantage in (-1.0, 0.0, 1.0):
        lone = torch.tensor([[advantage]])
        report.add({"reward": 1.0, "advantages": lone, "advantage_std": np.nan})
    assert "  Advantage Std: 1.0000" in report.end_epoch(np.nan)
