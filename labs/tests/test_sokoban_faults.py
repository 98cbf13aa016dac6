from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer_labs import faults
from gradiometer_labs.config import configure
from gradiometer_labs.sokoban import advantages, batches, looking, rewards, update
from gradiometer_labs.sokoban.config import Config, TrainingProgress
from gradiometer_labs.sokoban.learner import Learner, make_learner
from gradiometer_labs.sokoban.levels import level_seeds
from gradiometer_labs.sokoban.pieces import Pieces, log_probs_of, token_losses
from gradiometer_labs.sokoban.rollout import Rows, SokobanPurpose, generator_for
from gradiometer_labs.sokoban.solver import solve
from gradiometer_labs.sokoban.train import train
from gradiometer_labs.weights import save_weights

pytestmark = pytest.mark.slow

TINY = (
    "env.size=5",
    "env.max_pushes=2",
    "env.max_turns=2",
    "env.max_actions_per_turn=2",
    "model.hidden_size=32",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.intermediate_size=32",
    "warm_start.steps=60",
    "warm_start.batch_size=16",
    "warm_start.num_levels=64",
    "reward.kind=verifier",
    "reward.solved=0.9",
    "reward.format=0.1",
    "es_manager.train.env_groups=6",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=12",
    "actor_rollout_ref.rollout.rollout_filter_value=1",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.gradient_analysis_mode=false",
    "algorithm.adv_estimator=grpo",
)
FAULTS = faults.faults_of("sokoban")
GAE = "algorithm.adv_estimator=gae"
ONLY_THE_WARM_START = (
    "trainer.gradient_analysis_mode=true",
    "trainer.exit_after_gradient_analysis=true",
)
CPU = torch.device("cpu")


def tiny(*overrides: str) -> Config:
    return configure(Config, [*TINY, *overrides])


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights that have imitated the solver, kept as the clinic keeps them."""
    file = tmp_path_factory.mktemp("weights") / "base.pt"
    save_weights(train(tiny(*ONLY_THE_WARM_START)).model, file)
    return f"start={file}"


def learner_of(start: str, *overrides: str) -> tuple[Learner, Pieces]:
    config = tiny(start, *overrides)
    return make_learner(config, CPU), Pieces(config=config)


def broken(name: str, pieces: Pieces) -> Pieces:
    return faults.apply(name, "sokoban", pieces)


def batch(learner: Learner, pieces: Pieces, *, groups: int = 6) -> batches.Batch:
    return batches.batch_of(
        learner, pieces, SokobanPurpose.TRAIN, 1, env_groups=groups, group_size=4
    )


# Starting from weights in a file.


def test_a_training_from_kept_weights_is_the_one_that_made_them_warm(start: str) -> None:
    told: list[TrainingProgress] = []
    warmed, kept = train(tiny()), train(tiny(start), told.append)
    assert torch.equal(weights(warmed.model), weights(kept.model))
    assert warmed.mean_return == kept.mean_return
    assert {each.unit for each in told} == {"steps"}  # nothing is imitated


def test_actor_reference_and_critic_all_start_from_the_file(start: str) -> None:
    learner, _ = learner_of(start, GAE)
    kept = torch.load(start.removeprefix("start="), weights_only=True)
    assert torch.equal(learner.actor.lm_head.weight, kept["lm_head.weight"])
    assert torch.equal(weights(learner.actor), weights(learner.reference))
    assert learner.critic is not None
    assert torch.equal(weights(learner.actor.base_model), weights(learner.critic.backbone))


def test_weights_of_another_model_are_one_clear_error(start: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not hold weights of this lab's model"):
        train(tiny(start, "model.hidden_size=16"))
    with pytest.raises(UsageError, match="there is no such file"):
        train(tiny(f"start={tmp_path / 'nothing.pt'}"))


# The verifier's rewards.


def games() -> Rows:
    """Three games: solved at once, failed in two complete answers, failed with one of two
    complete."""
    mask = torch.tensor([[0.0, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 1, 1, 1, 0]])
    return {
        "mask": mask,
        "token_rewards": torch.full_like(mask, -0.1) * mask,
        "rewards": -0.1 * mask.sum(-1),
        "solved": torch.tensor([True, False, False]),
        "turns": torch.tensor([1, 2, 2]),
        "complete": torch.tensor([0, 2, 1]),
    }


def test_a_verifier_pays_once_at_the_last_token_for_the_solution_and_the_format() -> None:
    found = rewards.paid(games(), Pieces(config=tiny()))
    assert found["rewards"].tolist() == pytest.approx([0.9, 0.1, 0.05])
    assert found["token_rewards"].nonzero().tolist() == [[0, 2], [1, 4], [2, 3]]
    torch.testing.assert_close(found["token_rewards"].sum(-1), found["rewards"])
    assert torch.equal(found["earned"], found["rewards"])
    assert found["rewards/solved"].tolist() == pytest.approx([0.9, 0, 0])
    assert found["rewards/format"].tolist() == pytest.approx([0, 0.1, 0.05])


def test_a_function_without_a_weight_is_not_there() -> None:
    found = rewards.paid(games(), Pieces(config=tiny("reward.solved=1", "reward.format=0")))
    assert found["rewards"].tolist() == [1, 0, 0]
    assert "rewards/format" not in found


def test_the_games_own_rewards_stay_as_they_are() -> None:
    rows = games()
    found = rewards.paid(rows, Pieces(config=tiny("reward.kind=game")))
    assert found["rewards"] is found["earned"] is rows["rewards"]
    assert found["token_rewards"] is rows["token_rewards"]
    assert found["verdicts"].tolist() == [1, 0, 0]


def test_rewards_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="leave nothing to earn"):
        tiny("reward.solved=0", "reward.format=0")
    with pytest.raises(UsageError, match=r"unknown reward.kind 'verifer'; did you mean 'verifier'"):
        tiny("reward.kind=verifer")


# What is looked at before and after an update.


def test_a_fresh_batch_agrees_with_its_sampler_and_its_scores_have_mean_zero(start: str) -> None:
    learner, pieces = learner_of(start)
    rows = batch(learner, pieces, groups=24).played
    before = looking.look(learner.actor, rows, pieces)
    torch.testing.assert_close(
        before.log_probs, update.log_probs_in_parts(learner.actor, rows, pieces)
    )
    agreement = looking.agreement(before, rows)
    assert agreement["sampler_kl"] == pytest.approx(0, abs=1e-6)
    assert (agreement["importance_weight"], agreement["ess"]) == pytest.approx((1, 1), abs=1e-4)
    assert abs(before.score_z) < 5


def test_importance_weights_say_how_far_sampler_and_trainer_are_apart() -> None:
    mask = torch.tensor([[0.0, 1, 1]])
    log_weight = torch.tensor([[0.0, 2.0, -1.0]]).log1p()[:, [0, 1, 0]]  # weights 3 and 1
    look = looking.RolloutCheck(log_probs=log_weight, score_z=0.0)
    found = looking.agreement(look, {"mask": mask, "old_log_probs": torch.zeros(1, 3)})
    assert found["importance_weight"] == pytest.approx(2)
    assert found["ess"] == pytest.approx(4**2 / (3**2 + 1) / 2)
    assert found["sampler_kl"] == pytest.approx((3 - 1 - torch.tensor(3.0).log().item()) / 2)


def test_a_gain_compares_inside_groups() -> None:
    """Group 4 earns more in all; only what differs inside a group counts."""
    rows = {"groups": torch.tensor([1, 1, 4, 4]), "rewards": torch.tensor([0.0, 1, 10, 11])}
    before, raised = torch.zeros(4, 2), torch.tensor([[-1.0, 0], [1, 0], [0, -1], [0, 1]])
    assert looking.gain_of(rows, before, before + raised) == pytest.approx(1)
    assert looking.gain_of(rows, before, before - raised) == pytest.approx(-1)
    assert looking.gain_of(rows, before, before + rows["groups"].unsqueeze(-1)) == pytest.approx(0)


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_run_keeps_what_the_doctor_asks_for(start: str, tmp_path: Path, estimator: str) -> None:
    train(tiny(start, f"run={tmp_path / 'run'}", f"algorithm.adv_estimator={estimator}"))
    names = (
        "score_z reward_gain reward_std truncated_fraction clip_fraction_low clip_fraction_high"
        " action_share ess "
    )
    names += (
        "sampler_kl importance_weight ratio/mean ratio/min ratio/max advantages/mean"
        " advantages/std "
    )
    names += "rewards/solved/mean rewards/solved/std rewards/format/mean rewards/format/std"
    with gm.load(tmp_path / "run") as run:
        for name in names.split() + (["value_mean", "returns/std"] if estimator == "gae" else []):
            assert run.series(name)[0].tolist() == [1, 2], name
        low, high = (run.series(f"clip_fraction_{side}")[1] for side in ("low", "high"))
        assert (low + high).tolist() == pytest.approx(run.series("clip_fraction")[1].tolist())
        assert (run.series("ratio/min")[1] <= 1).all()
        assert (run.series("ratio/max")[1] >= 1).all()


# The faults: all of them.


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_its_piece_alone(fault: faults.Fault) -> None:
    healthy = Pieces(config=tiny())
    changed = broken(fault.name, healthy)
    fields = [each.name for each in dataclasses.fields(Pieces)]
    assert [each for each in fields if getattr(healthy, each) is not getattr(changed, each)] == [
        fault.piece
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_the_training(
    fault: faults.Fault, start: str, trained: dict[tuple[str, ...], Tensor]
) -> None:
    if fault.needs not in trained:
        trained[fault.needs] = weights(train(tiny(start, *fault.needs)).model)
    ended = weights(train(tiny(start, *fault.needs, f"fault={fault.name}")).model)
    assert ended.isfinite().all()
    assert not torch.equal(ended, trained[fault.needs])


@pytest.fixture(scope="module")
def trained() -> dict[tuple[str, ...], Tensor]:
    """Weights of healthy trainings, by what a fault needs."""
    return {}


def test_a_fault_in_a_line_that_is_not_used_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"fault=noisy_verifier breaks nothing without reward\.kind=verifier"
    ):
        train(tiny("reward.kind=game", "fault=noisy_verifier"))
    with pytest.raises(UsageError, match=r"without algorithm\.adv_estimator=gae"):
        train(tiny("fault=critic_lr_zero"))


def test_at_most_a_third_of_the_faults_are_settings() -> None:
    settings = [each for each in FAULTS if each.piece == "config" or "learning_rate" in each.piece]
    assert 3 * len(settings) <= len(FAULTS)
    assert len(FAULTS) >= 9


# Levels, sampling and rewards.


def test_levels_too_easy_or_too_hard_are_those_of_the_shortest_or_longest_solution() -> None:
    pieces, seeds = Pieces(config=tiny()), [11, 12]
    env = pieces.config.env
    for name, most in (("groups_too_easy", min), ("groups_too_hard", max)):
        found = broken(name, pieces).levels_of(env, seeds)
        for level, seed in zip(found, seeds, strict=True):
            lengths = [
                len(solve(each) or ())
                for each in pieces.levels_of(env, level_seeds(seed, count=64))
            ]
            assert len(solve(level) or ()) == most(lengths)
            assert min(lengths) < max(lengths)


def test_validation_plays_the_games_own_levels_whatever_is_trained_on(start: str) -> None:
    learner, pieces = learner_of(start)
    first, again = (
        batches.rollouts(learner, each, SokobanPurpose.VALIDATION, 3, env_groups=3, group_size=1)
        for each in (pieces, broken("groups_too_hard", pieces))
    )
    assert torch.equal(first["tokens"], again["tokens"])


def test_an_answer_that_is_cut_short_has_no_end(start: str) -> None:
    learner, pieces = learner_of(start)
    limit = learner.dialogue.answer_limit
    limits = [
        broken(f"truncation:{dose}", pieces).answer_limit_of(learner.dialogue)
        for dose in faults.DOSES
    ]
    assert limits == [limit - 1, limit - 2, max(1, limit - 4)]
    whole, cut = (batch(learner, each).played for each in (pieces, broken("truncation", pieces)))
    assert whole["truncated"].float().mean() < 0.3
    assert cut["truncated"].float().mean() > 0.3
    assert cut["mask"].sum(-1).max() <= 2 * (limit - 2)


def test_a_sampler_of_another_temperature_disagrees_with_the_losses(start: str) -> None:
    learner, pieces = learner_of(start)
    rows = batch(learner, broken("sampler_mismatch", pieces)).played
    chosen = rows["mask"] > 0
    drawn_from = log_probs_of(learner.actor, rows["tokens"], 1.5)
    torch.testing.assert_close(drawn_from[chosen], rows["old_log_probs"][chosen], atol=1e-4, rtol=0)
    agreement = looking.agreement(looking.look(learner.actor, rows, pieces), rows)
    assert agreement["sampler_kl"] > 0.02
    assert agreement["ess"] < 0.99


def test_a_noisy_verifier_errs_on_its_share_and_what_was_earned_stays() -> None:
    pieces = Pieces(config=tiny())
    solved = torch.arange(4000) % 4 == 0
    for dose, share in (("mild", 0.2), ("usual", 0.4), ("severe", 0.5)):
        wrong = broken(f"noisy_verifier:{dose}", pieces).verdicts_of(solved) != solved
        assert wrong.float().mean().item() == pytest.approx(share, abs=0.03)
    always = dataclasses.replace(pieces, verdicts_of=lambda solved: 1 - solved.float())
    found = rewards.paid(games(), always)
    assert found["rewards"].tolist() == pytest.approx([0, 1.0, 0.95])
    assert found["verdicts"].tolist() == [0, 1, 1]
    assert found["earned"].tolist() == pytest.approx([0.9, 0.1, 0.05])


def test_rewarded_length_and_swapped_weights_change_the_reward_and_not_what_was_earned() -> None:
    pieces = Pieces(config=tiny())
    for name, expected in (
        ("length_rewarded", [0.9 + 0.2, 0.4, 0.3]),
        ("format_dominates", [0.1, 0.9, 0.45]),
    ):
        found = rewards.paid(games(), broken(name, pieces))
        assert found["rewards"].tolist() == pytest.approx(expected)
        assert found["earned"].tolist() == pytest.approx([0.9, 0.1, 0.05])


def test_stale_batches_are_collected_once_in_eight_steps() -> None:
    collected: list[int] = []

    def collect(step: int) -> batches.Batch:
        collected.append(step)
        return step  # type: ignore[return-value]

    stale = broken("stale_batches", Pieces(config=tiny()))
    assert [stale.batch_at(step, collect) for step in range(1, 18)] == [1] * 8 + [9] * 8 + [17]
    assert collected == [1, 9, 17]


# Advantages, losses and values.


def test_a_tiny_spread_makes_a_huge_advantage() -> None:
    """The numbers of NeMo-RL issue 4158, beside a group with nothing wrong."""
    pieces = Pieces(config=tiny())
    tiny_std = broken("tiny_std", pieces).group_advantages
    alike, groups = torch.tensor([0.0] + [0.95] * 7 + [0, 1, 2, 4]), torch.tensor([0] * 8 + [1] * 4)
    found = tiny_std(alike, groups, by_std=True)
    assert found[0] < -1000
    for left_out in range(4):
        others = torch.tensor([x for i, x in enumerate([0.0, 1.0, 2.0, 4.0]) if i != left_out])
        expected = (alike[8 + left_out] - others.mean()) / others.std(correction=0)
        torch.testing.assert_close(found[8 + left_out], expected, atol=1e-4, rtol=1e-4)
    assert pieces.group_advantages(alike, groups, by_std=True).abs().max() < 3
    healthy = advantages.group_advantages(alike, groups, by_std=False)
    assert torch.equal(tiny_std(alike, groups, by_std=False), healthy)


def test_misaligned_rewards_are_those_of_another_level() -> None:
    given, groups = torch.arange(6.0).square(), torch.tensor([0, 0, 0, 1, 1, 1])
    found = broken("rewards_misaligned", Pieces(config=tiny())).group_advantages(
        given, groups, by_std=False
    )
    laid_out = torch.tensor([0.0, 9, 1, 16, 4, 25])
    torch.testing.assert_close(found, laid_out - torch.tensor([10.0, 10, 10, 45, 45, 45]) / 3)


def test_the_wrong_sign_turns_the_gradient_round_and_a_detached_log_prob_takes_it_away(
    start: str,
) -> None:
    learner, healthy = learner_of(start)
    rows = batch(learner, healthy).kept

    def task(pieces: Pieces) -> Tensor:
        return token_losses(learner.actor, rows, pieces).terms["task"]

    def gradient(pieces: Pieces) -> Tensor:
        return torch.autograd.grad(task(pieces).sum(), learner.actor.get_input_embeddings().weight)[
            0
        ]

    turned = broken("wrong_sign", healthy)
    torch.testing.assert_close(task(turned), -task(healthy))
    torch.testing.assert_close(gradient(turned), -gradient(healthy))
    detached = task(broken("log_prob_detached", healthy))
    assert torch.equal(detached, task(healthy))
    assert not detached.requires_grad


def test_labels_that_are_not_shifted_are_those_of_the_token_before(start: str) -> None:
    learner, healthy = learner_of(start)
    rows = batch(learner, healthy, groups=12).kept
    unshifted = broken("log_prob_wrong_action", healthy)
    log_policy = learner.actor(input_ids=rows["tokens"][:, :-1]).logits.log_softmax(-1)
    of_the_one_before = log_policy.gather(-1, rows["tokens"][:, :-1].unsqueeze(-1)).squeeze(-1)
    chosen = rows["mask"][:, 1:] > 0
    found = token_losses(learner.actor, rows, unshifted).log_probs[:, 1:]
    torch.testing.assert_close(found[chosen], of_the_one_before[chosen], atol=1e-5, rtol=1e-5)
    assert looking.look(learner.actor, rows, unshifted).score_z > 20


def test_a_detached_value_head_has_one_value_for_all_and_learns_its_bias_alone(start: str) -> None:
    learner, healthy = learner_of(start, GAE)
    critic = learner.critic
    assert critic is not None
    pieces = broken("critic_detached", healthy)
    critic(batch(learner, healthy).kept["tokens"], pieces.value_of).sum().backward()
    assert critic.weight.grad is None
    assert critic.bias.grad is not None
    assert all(
        not each.grad.any() for each in critic.backbone.parameters() if each.grad is not None
    )


def critic_after_an_update(start: str, name: str) -> tuple[Tensor, Tensor]:
    learner, healthy = learner_of(start, GAE)
    assert learner.critic is not None
    assert learner.critic_optimizer is not None
    before, pieces = weights(learner.critic), broken(name, healthy)
    generator = generator_for(pieces.config, SokobanPurpose.CRITIC_UPDATE, 1, CPU)
    update.update_critic(
        learner.critic, learner.critic_optimizer, batch(learner, pieces).kept, pieces, generator
    )
    return before, weights(learner.critic)


def test_a_critic_without_a_learning_rate_stays_where_it_is(start: str) -> None:
    before, after = critic_after_an_update(start, "none")
    assert not torch.equal(before, after)
    before, after = critic_after_an_update(start, "critic_lr_zero")
    assert torch.equal(before, after)


# Settings.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kl_strangles:mild", {"kl_loss_coef": 1.0}),
        ("kl_strangles", {"kl_loss_coef": 10.0}),
        ("clip_tiny", {"grad_clip": 1e-3}),
        ("clip_tiny:severe", {"grad_clip": 1e-4}),
        ("ppo_clip_tiny", {"clip_ratio_low": 2e-3, "clip_ratio_high": 2e-3, "ppo_epochs": 3}),
    ],
)
def test_a_wrong_setting_is_that_setting_and_no_other(
    name: str, expected: dict[str, float]
) -> None:
    healthy = Pieces(config=tiny())
    changed = broken(name, healthy).config
    actor = changed.actor_rollout_ref.actor
    assert {key: getattr(actor, key) for key in expected} == pytest.approx(expected)
    kept = {key: getattr(healthy.config.actor_rollout_ref.actor, key) for key in expected}
    restored = dataclasses.replace(
        changed.actor_rollout_ref, actor=dataclasses.replace(actor, **kept)
    )
    assert dataclasses.replace(changed, actor_rollout_ref=restored) == healthy.config


def test_learning_rates_are_multiplied_and_divided_by_their_dose() -> None:
    pieces = Pieces(config=tiny("actor_rollout_ref.actor.optim.lr=3e-4"))
    found = [
        broken(name, pieces).learning_rate_at(pieces.config, 0.5)
        for name in ("lr_high", "lr_low:mild")
    ]
    assert found == pytest.approx([10 * 3e-4, 1e-5])
