from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer.maths import losses
from gradiometer_labs import faults
from gradiometer_labs.config import configure
from gradiometer_labs.sokoban import advantages, batches, update
from gradiometer_labs.sokoban.config import Config, TrainingProgress
from gradiometer_labs.sokoban.learner import Learner, make_learner, warm_up
from gradiometer_labs.sokoban.pieces import Pieces, log_probs_of, token_losses, value_loss_of
from gradiometer_labs.sokoban.rollout import (
    Rows,
    Sampler,
    SokobanPurpose,
    generator_for,
    play_games,
)
from gradiometer_labs.sokoban.tokens import Dialogue, make_tokenizer
from gradiometer_labs.sokoban.train import Result, train
from gradiometer_labs.sokoban.warmstart import imitation_loss, solver_games

pytestmark = pytest.mark.slow

TINY = (
    "model.hidden_size=32",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.intermediate_size=32",
    "env.max_turns=3",
    "env.max_actions_per_turn=2",
    "warm_start.steps=20",
    "warm_start.batch_size=16",
    "warm_start.num_levels=64",
    "es_manager.train.env_groups=4",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=3",
    "es_manager.val.group_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=6",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.gradient_analysis_mode=false",
    "actor_rollout_ref.rollout.rollout_filter_value=1",  # a policy this small seldom earns anything
)


def tiny(*overrides: str) -> Config:
    return configure(Config, [*TINY, *overrides])


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@functools.cache
def _warmed(config: Config) -> Learner:
    learner = make_learner(config, torch.device("cpu"))
    warm_up(learner, config)
    return learner


def warm(config: Config) -> Learner:
    """A learner after its warm start, the caller's own."""
    return copy.deepcopy(_warmed(config))


@functools.cache
def tiny_training() -> tuple[Result, tuple[TrainingProgress, ...]]:
    """The tiny training and what it told, for tests that only look at it."""
    told: list[TrainingProgress] = []
    return train(tiny(), told.append), tuple(told)


def trained_on(config: Config, *, step: int = 1) -> tuple[Learner, Rows, Pieces]:
    """A warm learner, and a batch it could be trained on."""
    learner, pieces = warm(config), Pieces(config=config)
    batch = batches.batch_of(
        learner, pieces, SokobanPurpose.TRAIN, step, env_groups=4, group_size=4
    )
    return learner, batch.kept, pieces


# The words.


def test_a_room_is_read_in_pairs_of_cells_and_an_answer_word_by_word() -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.tokenize("####\n#PX#\n#_O#\n####") == [
        "##",
        "##",
        "#P",
        "X#",
        "#_",
        "O#",
        "##",
        "##",
    ]
    assert tokenizer.tokenize("###\n#S#") == ["##", "#", "#S", "#"]
    assert tokenizer.tokenize("Up || Right") == ["Up", "||", "Right"]
    assert tokenizer.tokenize("Upwards, please") == ["Up"]
    dialogue = Dialogue(tokenizer, max_actions=3)
    answer = dialogue.answer((0, 3))
    assert answer[-1] == dialogue.end
    assert dialogue.text(list(answer)) == "Up||Right"
    assert dialogue.answer_limit == len(dialogue.answer((3, 3, 3)))


def test_the_tokenizer_is_the_same_after_it_was_saved(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    again = Dialogue(type(make_tokenizer()).from_pretrained(tmp_path), max_actions=2)
    fresh = Dialogue(make_tokenizer(), max_actions=2)
    for text in ("####\n#PX#\n#_O#\n####", "####\n#S√#\n#__#\n####"):
        assert again.opening(text) == fresh.opening(text) == again.following(text)
    assert (again.end, again.pad, again.answer((1, 2))) == (
        fresh.end,
        fresh.pad,
        fresh.answer((1, 2)),
    )


# The games.


def test_the_samplers_log_probs_are_those_of_the_forward_that_trains() -> None:
    config = tiny(
        "actor_rollout_ref.rollout.temperature=0.7", "env.max_turns=5", "env.max_actions_per_turn=3"
    )
    learner = warm(config)
    rows = batches.rollouts(
        learner, Pieces(config=config), SokobanPurpose.TRAIN, 1, env_groups=6, group_size=4
    )
    chosen = rows["mask"] > 0
    assert (
        len(set(chosen.sum(-1).tolist())) > 1
    )  # answers of different lengths leave gaps in the sampler's cache
    again = log_probs_of(learner.actor, rows["tokens"], 0.7)
    torch.testing.assert_close(again[chosen], rows["old_log_probs"][chosen], atol=1e-4, rtol=0)
    assert (rows["old_log_probs"][chosen] < 0).all()


def test_rows_say_who_spoke_and_what_it_paid() -> None:
    config = tiny()
    learner = warm(config)
    rows = batches.rollouts(
        learner, Pieces(config=config), SokobanPurpose.TRAIN, 1, env_groups=3, group_size=4
    )
    assert rows["groups"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    torch.testing.assert_close(rows["token_rewards"].sum(-1), rows["rewards"])
    chosen, ends = rows["mask"] > 0, rows["tokens"] == learner.dialogue.end
    assert not (rows["token_rewards"] != 0)[~chosen].any()
    paid = (rows["token_rewards"] != 0).sum(-1)
    assert torch.equal(paid, rows["turns"])  # every turn costs something, and is paid once
    answered = (ends & chosen).sum(-1)
    assert (answered <= rows["turns"]).all()
    assert not chosen[:, 0].any()
    first = rows["tokens"][::4, :18]
    assert torch.equal(
        rows["tokens"][:, :18], first.repeat_interleave(4, 0)
    )  # a group plays one level
    assert not torch.equal(first[0], first[1])


def test_contexts_of_different_lengths_do_not_disturb_each_other() -> None:
    config = tiny()
    learner = warm(config)
    texts = [(9, 10, 11, 12, 13), (9, 10), (14, 11, 10)]
    generator = torch.Generator().manual_seed(3)
    sampler = Sampler(
        learner.actor, learner.dialogue, pieces=Pieces(config=config), generator=generator
    )
    together = sampler.answers(texts)
    sampler.keep([0, 2])
    more = sampler.answers([(10, 10), (12,)])
    for row, (text, later, then) in enumerate(
        ((texts[0], (10, 10), more[0]), (texts[1], None, None), (texts[2], (12,), more[1]))
    ):
        tokens, log_probs = together[row]
        context, expected = [*text, *tokens], log_probs
        if later is not None and then is not None:
            context, expected = [*context, *later, *then[0]], [*log_probs, *then[1]]
        alone = log_probs_of(learner.actor, torch.tensor([context]), 1.0)[0]
        said = [
            *alone[len(text) : len(text) + len(tokens)],
            *alone[len(text) + len(tokens) + len(later or ()) :],
        ]
        torch.testing.assert_close(torch.stack(said), torch.tensor(expected), atol=1e-4, rtol=0)


def test_the_solver_teaches_games_that_are_solved() -> None:
    config = tiny()
    learner = make_learner(config, torch.device("cpu"))
    games = solver_games(learner.dialogue, config, torch.device("cpu"))
    moves = torch.tensor([learner.dialogue.answer((action,))[0] for action in range(4)])
    assert len(games["tokens"]) == 64
    assert set(games["tokens"][games["mask"] > 0].tolist()) <= {
        *moves.tolist(),
        learner.dialogue.end,
        7,
    }
    exact = imitation_loss(learner.actor, games, moves, noise=0.0)
    chosen = games["mask"] > 0
    expected = -log_probs_of(learner.actor, games["tokens"], 1.0)[chosen].mean()
    torch.testing.assert_close(exact, expected)
    before = imitation_loss(learner.actor, games, moves, noise=0.3).item()
    warm_up(learner, config)
    assert imitation_loss(learner.actor, games, moves, noise=0.3).item() < before - 0.2
    assert torch.equal(weights(learner.actor), weights(learner.reference))
    assert not any(p.requires_grad for p in learner.reference.parameters())


# Advantages.


def test_advantages_skip_the_tokens_that_were_not_chosen() -> None:
    """By brute force, over the chosen tokens only: Â_t = Σ_k (γλ)^k δ_{t+k}."""
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 5, 14, generator=generator, dtype=torch.float64)
    mask = (torch.rand(5, 14, generator=generator) < 0.5).double()
    found = advantages.advantages_of(rewards * mask, values, mask, gamma=0.9, lam=0.8)
    for row in range(5):
        steps = mask[row].nonzero().flatten().tolist()
        later = [*[values[row, t] for t in steps[1:]], 0.0]
        delta = [
            rewards[row, t] + 0.9 * v - values[row, t] for t, v in zip(steps, later, strict=True)
        ]
        for place, t in enumerate(steps):
            expected = sum(0.72**k * d for k, d in enumerate(delta[place:]))
            assert found[row, t] == pytest.approx(float(expected))
    assert (found[mask == 0] == 0).all()


def test_normalised_advantages_have_mean_zero_and_variance_one_over_the_chosen_tokens() -> None:
    generator = torch.Generator().manual_seed(1)
    mask = (torch.rand(4, 9, generator=generator) < 0.6).float()
    found = advantages.normalised(5 + 3 * torch.randn(4, 9, generator=generator), mask)
    chosen = found[mask > 0]
    assert chosen.mean().item() == pytest.approx(0, abs=1e-6)
    assert chosen.std().item() == pytest.approx(1, abs=1e-5)
    assert (found[mask == 0] == 0).all()


def test_group_advantages_compare_within_a_group() -> None:
    rewards, groups = torch.tensor([1.0, 3.0, 7.0, 7.0]), torch.tensor([4, 4, 9, 9])
    assert advantages.group_advantages(rewards, groups, by_std=False).tolist() == [-1, 1, 0, 0]
    expected = [-1 / (2**0.5 + 1e-6), 1 / (2**0.5 + 1e-6), 0, 0]
    assert advantages.group_advantages(rewards, groups, by_std=True).tolist() == pytest.approx(
        expected
    )


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_null_keeps_when_a_game_was_paid_and_changes_how_much(estimator: str) -> None:
    learner, rows, pieces = trained_on(tiny(f"algorithm.adv_estimator={estimator}"))
    number = torch.arange(len(rows["rewards"]))
    as_trained = batches.scored(rows, learner, pieces)["advantages"]
    torch.testing.assert_close(
        batches.permuted_advantages(rows, number, pieces)["advantages"], as_trained
    )
    # Had all games been paid alike, there would be nothing to permute, and the null would be the
    # task.
    alike = {**rows, "rewards": torch.full_like(rows["rewards"], 3.0)}
    torch.testing.assert_close(
        batches.permuted_advantages(alike, number.flip(0), pieces)["advantages"],
        batches.permuted_advantages(alike, number, pieces)["advantages"],
    )
    width = rows["mask"].shape[1]
    last = torch.tensor([max(t for t in range(width) if row[t] > 0) for row in rows["mask"]])
    paid = rows["token_rewards"].clone()
    rows["rewards"] = number.float() ** 2
    paid[number, last] += rows["rewards"].flip(0) - rows["rewards"]
    expected = batches.scored({**rows, "token_rewards": paid}, learner, pieces)["advantages"]
    torch.testing.assert_close(
        batches.permuted_advantages(rows, number.flip(0), pieces)["advantages"], expected
    )


def test_the_values_error_is_the_larger_of_the_plain_and_the_clipped_one() -> None:
    found = value_loss_of(
        torch.tensor([3.0, 0.2]), torch.tensor([0.0, 0.0]), torch.tensor([2.0, 2.0]), 0.5
    )
    assert found.tolist() == pytest.approx([0.5 * 1.5**2, 0.5 * 1.8**2])


# The update.


def test_micro_batches_of_any_size_add_up_to_the_same_step() -> None:
    def stepped(size: int) -> tuple[Tensor, dict[str, float]]:
        config = tiny(f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={size}")
        learner, rows, pieces = trained_on(config)
        learner.actor_optimizer = torch.optim.SGD(learner.actor.parameters(), lr=0.1)
        with gm.watch(learner.actor, learner.actor_optimizer, run=None, budget=None) as meter:
            generator = torch.Generator().manual_seed(0)
            logged = update.update_actor(
                learner.actor, learner.actor_optimizer, meter, rows, pieces, generator
            )
        return weights(learner.actor), logged

    whole, whole_log = stepped(100)
    parts, parts_log = stepped(3)
    torch.testing.assert_close(whole, parts, atol=1e-6, rtol=1e-4)
    assert whole_log == pytest.approx(parts_log, rel=1e-3, abs=1e-5)


def test_at_the_first_update_the_policy_is_that_of_the_sampler_and_of_the_reference() -> None:
    learner, rows, pieces = trained_on(tiny())
    tokens = token_losses(learner.actor, rows, pieces)
    chosen = rows["mask"] > 0
    assert tokens.kl is not None
    assert tokens.kl[chosen].abs().max() < 1e-6
    torch.testing.assert_close(
        tokens.terms["task"][chosen], -rows["advantages"][chosen], atol=1e-4, rtol=1e-4
    )
    entropy = tokens.entropy[chosen]
    assert ((entropy > 0) & (entropy < np.log(len(learner.tokenizer)))).all()
    torch.testing.assert_close(tokens.terms["entropy"], -0.001 * tokens.entropy)
    without = Pieces(config=tiny("actor_rollout_ref.actor.use_kl_loss=false"))
    assert set(token_losses(learner.actor, rows, without).terms) == {"task", "entropy"}


def test_entropy_no_grad_cuts_the_path_from_the_entropy_and_leaves_its_value() -> None:
    learner, rows, healthy = trained_on(tiny())
    broken = faults.apply("entropy_no_grad", "sokoban", healthy)
    changed = [
        f.name
        for f in dataclasses.fields(Pieces)
        if getattr(healthy, f.name) is not getattr(broken, f.name)
    ]
    assert changed == ["entropy_of"]
    with_path, without = (
        token_losses(learner.actor, rows, pieces).terms["entropy"] for pieces in (healthy, broken)
    )
    assert with_path.requires_grad
    assert not without.requires_grad
    assert torch.equal(with_path, without)


def test_the_dead_entropy_is_recorded_and_the_training_goes_on(tmp_path: Path) -> None:
    config = tiny(
        "fault=entropy_no_grad", f"run={tmp_path / 'run'}", "trainer.gradient_analysis_mode=true"
    )
    result = train(config)
    assert result.steps == 2
    with gm.load(tmp_path / "run") as run:
        assert {"dead-term"} <= {event.kind for event in run.events()}
    assert result.analyses[1].dead == ("entropy",)


# The training.


def test_the_same_seed_gives_the_same_weights_whatever_the_global_state() -> None:
    first, _ = tiny_training()
    torch.manual_seed(99)
    np.random.seed(99)
    before = torch.get_rng_state()
    again = train(tiny())
    assert torch.equal(before, torch.get_rng_state())
    other = train(tiny("seed=2"))
    assert torch.equal(weights(first.model), weights(again.model))
    assert (first.mean_return, first.episodes) == (again.mean_return, again.episodes)
    assert not torch.equal(weights(first.model), weights(other.model))


def test_the_analysis_does_not_change_the_training() -> None:
    quiet, _ = tiny_training()
    on = "trainer.gradient_analysis_mode=true"
    of_the_batch = train(
        tiny(on, "trainer.gradient_analysis_every=1", "trainer.gradient_analysis_null=true")
    )
    of_its_own = train(
        tiny(on, "trainer.gradient_analysis_every=1", "trainer.gradient_analysis_env_groups=6")
    )
    assert list(of_the_batch.analyses) == list(of_its_own.analyses) == [1, 2]
    for probed in (of_the_batch, of_its_own):
        assert torch.equal(weights(quiet.model), weights(probed.model))
    assert of_the_batch.analyses[1].metrics != of_its_own.analyses[1].metrics
    assert any(name.startswith("grad_norm/all/null") for name in of_the_batch.analyses[1].metrics)


def test_the_run_keeps_gradients_scalars_and_anatomy_on_the_axis_of_training_steps(
    tmp_path: Path,
) -> None:
    config = tiny(
        f"run={tmp_path / 'run'}",
        "every=1",
        "trainer.val_before_train=true",
        "trainer.test_freq=1",
        "trainer.gradient_analysis_mode=true",
    )
    result = train(config)
    assert result.run == tmp_path / "run"
    assert (result.steps, result.episodes, result.exited_after_analysis) == (2, 32, False)
    with gm.load(tmp_path / "run") as run:
        names = set(run.names())
        for name in (
            "reward",
            "success_rate",
            "entropy",
            "kl_ref",
            "policy_loss",
            "value_loss",
            "clip_fraction",
        ):
            assert run.series(name)[0].tolist() == [1, 2], name
        for name in (
            "approx_kl",
            "zero_variance_groups",
            "filter_kept_ratio",
            "episode_length",
            "learning_rate",
        ):
            assert run.series(name)[0].tolist() == [1, 2], name
        assert (
            run.series("val/reward")[0].tolist()
            == run.series("val/success_rate")[0].tolist()
            == [0, 1, 2]
        )
        assert run.series("grad/all/norm/raw")[0][0] == 1
        assert run.series("grad_norm/all/task")[0].tolist() == [1]
        assert {
            "grad/all/term/policy/norm",
            "grad/all/term/entropy/norm",
            "actor/grad_norm/task",
        } <= names
        assert "trainer/exited_after_gradient_analysis" not in names


def test_without_a_kl_loss_there_is_no_kl(tmp_path: Path) -> None:
    config = tiny(
        f"run={tmp_path / 'run'}",
        "actor_rollout_ref.actor.use_kl_loss=false",
        "trainer.gradient_analysis_mode=true",
        "trainer.total_training_steps=1",
    )
    train(config)
    with gm.load(tmp_path / "run") as run:
        assert not [
            name
            for name in run.names()
            if "kl_ref" in name or name.endswith("/kl") or "/term/kl" in name
        ]


def test_it_stops_after_the_analysis_and_before_the_update(tmp_path: Path) -> None:
    config = tiny(
        f"run={tmp_path / 'run'}",
        "trainer.gradient_analysis_mode=true",
        "trainer.exit_after_gradient_analysis=true",
        "trainer.val_before_train=true",
        "trainer.test_freq=1",
        "trainer.save_freq=1",
    )
    result = train(config)
    untouched = warm(config)
    assert result.exited_after_analysis
    assert (result.steps, result.checkpoint, result.entropy) == (0, None, None)
    assert torch.equal(weights(result.model), weights(untouched.actor))
    with gm.load(tmp_path / "run") as run:
        assert run.series("trainer/exited_after_gradient_analysis")[1].tolist() == [1.0]
        assert run.series("val/reward")[0].tolist() == [0]
        assert run.series("value_loss")[0].tolist() == [1]  # the critic learns before the analysis
        assert "policy_loss" not in run.names()
    assert not (tmp_path / "run" / "checkpoints").exists()


def hopeless(*overrides: str) -> Config:
    """Levels that nobody can solve in the one move there is: all rewards are equal."""
    return tiny(
        "env.min_pushes=2",
        "env.max_turns=1",
        "env.max_actions_per_turn=1",
        "actor_rollout_ref.rollout.rollout_filter_include_zero=false",
        *overrides,
    )


def test_a_step_of_which_the_filter_keeps_nothing_is_told_and_updates_nothing(
    tmp_path: Path,
) -> None:
    config = hopeless(f"run={tmp_path / 'run'}", "trainer.gradient_analysis_mode=true")
    result = train(config)
    untouched = warm(config)
    with gm.load(tmp_path / "run") as run:
        assert run.series("filter_kept_ratio")[1].tolist() == [0.0, 0.0]
        assert run.series("zero_variance_groups")[1].tolist() == [1.0, 1.0]
        assert [event.step for event in run.events() if event.kind == "nothing-kept"] == [1, 2]
        assert [event.step for event in run.events() if event.kind == "analysis-skipped"] == [1]
        assert "policy_loss" not in run.names()
    assert torch.equal(weights(result.model), weights(untouched.actor))


def test_an_analysis_of_nothing_is_an_error_that_says_so() -> None:
    exits = ("trainer.gradient_analysis_mode=true", "trainer.exit_after_gradient_analysis=true")
    with pytest.raises(UsageError, match="kept none of 4 groups"):
        train(hopeless(*exits))


def test_a_filter_that_cannot_be_is_told_before_anything_is_trained() -> None:
    with pytest.raises(UsageError, match="strategy"):
        train(tiny("actor_rollout_ref.rollout.rollout_filter_strategy=top_q"))


def test_it_trains_the_same_without_the_instrument(monkeypatch: pytest.MonkeyPatch) -> None:
    with_meter, _ = tiny_training()
    monkeypatch.setenv("GRADIOMETER_DISABLED", "1")
    without = train(tiny())
    assert without.run is None
    assert torch.equal(weights(with_meter.model), weights(without.model))


def test_progress_is_told_after_each_step() -> None:
    result, told = tiny_training()
    assert [(each.done, each.total) for each in told if each.unit == "steps"] == [(1, 2), (2, 2)]
    assert told[0].unit == "steps of imitation"
    assert told[-1].mean_return == result.mean_return


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_what_is_rewarded_is_said_more_often(estimator: str) -> None:
    """Each Up is worth 1: a policy that starts near chance must say it most of the time, or nothing
    here learns."""
    config = tiny(
        f"algorithm.adv_estimator={estimator}",
        "actor_rollout_ref.actor.optim.lr=2e-3",
        "env.max_turns=2",
    )
    learner, pieces = warm(config), Pieces(config=config)
    up = learner.dialogue.answer((0,))[0]
    said: list[float] = []
    with gm.watch(learner.actor, learner.actor_optimizer, run=None, budget=None) as meter:
        for step in range(1, 16):
            rows = batches.rollouts(
                learner, pieces, SokobanPurpose.TRAIN, step, env_groups=4, group_size=8
            )
            rows["token_rewards"] = ((rows["tokens"] == up) & (rows["mask"] > 0)).float()
            rows["rewards"] = rows["token_rewards"].sum(-1)
            said.append(float(rows["rewards"].sum() / rows["mask"].sum()))
            rows = batches.scored(rows, learner, pieces)
            generator = generator_for(
                config, SokobanPurpose.ACTOR_UPDATE, step, torch.device("cpu")
            )
            if learner.critic is not None and learner.critic_optimizer is not None:
                update.update_critic(
                    learner.critic, learner.critic_optimizer, rows, pieces, generator
                )
            update.update_actor(
                learner.actor, learner.actor_optimizer, meter, rows, pieces, generator
            )
    assert said[0] < 0.2
    assert np.mean(said[-3:]) > 0.4


# Weights from elsewhere.


def test_model_path_trains_other_weights_with_the_same_code(tmp_path: Path) -> None:
    """A GPT-2 of random weights: other names, learned positions, no warm start."""
    tokenizer = make_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings: Any = {"n_positions": 256, "n_embd": 32, "n_layer": 1, "n_head": 2}
        ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **settings, **ends))
    model.save_pretrained(tmp_path / "gpt")
    tokenizer.save_pretrained(tmp_path / "gpt")
    result = train(tiny(f"model_path={tmp_path / 'gpt'}", "trainer.total_training_steps=1"))
    assert type(result.model).__name__ == "GPT2LMHeadModel"
    start = make_learner(tiny(f"model_path={tmp_path / 'gpt'}"), torch.device("cpu"))
    assert torch.equal(weights(start.actor), weights(model))
    assert not torch.equal(weights(result.model), weights(model))


CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with a chat template, as instruction models have."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE({letter: number for number, letter in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHAT
    )


def test_a_chat_model_sees_the_rules_once_and_then_one_observation_a_turn(tmp_path: Path) -> None:
    tokenizer = letters()
    dialogue = Dialogue(tokenizer, max_actions=2)
    room = "####\n#PX#\n#_O#\n####"
    opening, following = (
        tokenizer.decode(tokens) for tokens in (dialogue.opening(room), dialogue.following(room))
    )
    assert opening.startswith("<|im_start|>system\nPush every box")
    assert opening.endswith(f"<|im_start|>user\n{room}<|im_end|>\n<|im_start|>assistant\n")
    assert following == f"\n<|im_start|>user\n{room}<|im_end|>\n<|im_start|>assistant\n"
    assert dialogue.text(list(dialogue.answer((0, 3)))) == "Up || Right"

    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes: Any = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
        model = Qwen2ForCausalLM(
            Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, **sizes)
        )
    model.save_pretrained(tmp_path / "chat")
    tokenizer.save_pretrained(tmp_path / "chat")
    config = tiny(f"model_path={tmp_path / 'chat'}", "env.max_turns=2")
    learner = make_learner(config, torch.device("cpu"))
    rows = batches.rollouts(
        learner, Pieces(config=config), SokobanPurpose.TRAIN, 1, env_groups=2, group_size=2
    )
    chosen = rows["mask"] > 0
    again = log_probs_of(learner.actor, rows["tokens"], 1.0)
    torch.testing.assert_close(again[chosen], rows["old_log_probs"][chosen], atol=1e-4, rtol=0)


def test_a_tokenizer_without_a_chat_template_gets_plain_text() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    dialogue = Dialogue(tokenizer, max_actions=2)
    plain = Dialogue(make_tokenizer(), max_actions=2)
    room = "####\n#PX#\n#_O#\n####"
    assert dialogue.following(room) == plain.following(room)
    assert len(dialogue.opening(room)) > len(
        plain.opening(room)
    )  # the rules, as far as it knows the words


def test_a_model_path_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"model_path=.* cannot be loaded"):
        train(tiny(f"model_path={tmp_path / 'empty'}"))


def test_a_tokenizer_of_another_model_is_told(tmp_path: Path) -> None:
    sizes: Any = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    Qwen2ForCausalLM(Qwen2Config(vocab_size=10, num_key_value_heads=1, **sizes)).save_pretrained(
        tmp_path
    )
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="a tokenizer of 64 words and a model that knows 10"):
        train(tiny(f"model_path={tmp_path}"))


def test_games_draw_from_their_own_generator() -> None:
    config = tiny()
    learner = warm(config)
    levels = [config.env.level(3)]

    def tokens(step: int) -> Tensor:
        generator = generator_for(config, SokobanPurpose.TRAIN, step, torch.device("cpu"))
        rows = play_games(
            learner.actor,
            learner.dialogue,
            levels,
            group_size=8,
            pieces=Pieces(config=config),
            generator=generator,
        )
        return rows["tokens"]

    assert torch.equal(tokens(1), tokens(1))
    assert not torch.equal(tokens(1), tokens(2))


def test_the_losses_are_those_of_the_maths_room() -> None:
    pieces = Pieces(config=tiny())
    assert pieces.policy_loss_of is losses.policy_loss
    assert pieces.kl_loss_of is losses.kl_loss
    assert pieces.entropy_of is losses.entropy
