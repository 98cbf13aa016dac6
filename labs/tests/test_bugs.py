from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.cli.main import run as run_command
from gradiometer.errors import UsageError
from gradiometer_labs import faults
from gradiometer_labs.bugs.config import Config, TrainingProgress
from gradiometer_labs.bugs.model import AnswerPolicy, Experts, FeedForward, ModelPieces, mixed
from gradiometer_labs.bugs.objective import advantages_of, others_statistics_of
from gradiometer_labs.bugs.pieces import Pieces
from gradiometer_labs.bugs.questions import (
    END,
    answered,
    best_reward,
    questions,
    rewards_of,
    taught,
)
from gradiometer_labs.bugs.rollout import collect, drawn
from gradiometer_labs.bugs.train import policy_of, train
from gradiometer_labs.weights import save_weights

TINY = Config(
    steps=3,
    num_prompts=4,
    group_size=3,
    gradient_accumulation_steps=2,
    max_digits=2,
    warm_start_steps=2,
    nll_coef=0.1,
    width=16,
    every=1,
)
MIXED = dataclasses.replace(TINY, num_experts=4, aux_coef=0.01)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# The questions


def test_the_right_answer_is_the_digits_or_the_digits_reversed() -> None:
    asked, right = questions(200, 4, seeded())
    assert asked.shape == right.shape == (200, 6)
    for question, answer in zip(asked.tolist(), right.tolist(), strict=True):
        digits = [token for token in question[1:5] if token != END]
        assert question[1 : 1 + len(digits)] == digits
        assert question[0] in (8, 9)
        assert question[-1] == 10
        expected = digits if question[0] == 8 else digits[::-1]
        assert answer == expected + [END] * (6 - len(digits))
    assert {len([x for x in row[1:5] if x != END]) for row in asked.tolist()} == {1, 2, 3, 4}


def test_only_the_whole_right_answer_is_paid_less_a_hundredth_a_token() -> None:
    right = torch.tensor([[3, 1, 4, 2, END, END]])
    answers = torch.tensor(
        [
            [3, 1, 4, 2, END, END],
            [3, 1, 4, 2, END, 5],  # nothing after the end counts
            [3, 1, 4, END, END, END],
            [3, 1, 4, 2, 2, 2],
            [END, 1, 4, 2, END, END],
        ]
    )
    rewards, correct = rewards_of(answers, right.expand_as(answers))
    assert correct.tolist() == [True, True, False, False, False]
    assert rewards.tolist() == pytest.approx([0.95, 0.95, 0, 0, 0])
    assert answered(answers).sum(1).tolist() == [5, 5, 4, 6, 1]
    assert best_reward(4) == pytest.approx(1 - 0.035)


def test_the_teacher_slips_as_often_as_told_and_never_forgets_the_end() -> None:
    _, right = questions(4_000, 3, seeded())
    said = taught(right, 0.35, seeded(1))
    digits = right != END
    assert torch.equal(said[~digits], right[~digits])
    wrong = (said != right)[digits].float()
    assert wrong.mean().item() == pytest.approx(0.35 * 7 / 8, abs=4.5 * 0.5 / math.sqrt(len(wrong)))


# The policy


@pytest.mark.slow
def test_answers_are_drawn_as_often_as_the_policy_says() -> None:
    pieces = Pieces(config=TINY)
    policy = AnswerPolicy(TINY, pieces.routing)
    with torch.no_grad():
        policy.head.weight.mul_(8)
    num = 20_000
    asked = questions(1, TINY.max_digits, seeded())[0].expand(num, -1)
    answers, log_policy = drawn(policy, asked, seeded(1), pieces)
    chance = log_policy[0, 0].exp()
    assert chance.max() > 0.2
    share = torch.bincount(answers[:, 0], minlength=12) / num
    assert ((share - chance).abs() < 4.5 * (chance * (1 - chance) / num).sqrt() + 1e-9).all()


def test_each_token_goes_through_its_experts_by_hand() -> None:
    config = dataclasses.replace(MIXED, top_k=2)
    block = Experts(config, ModelPieces()).double()
    x = torch.randn(2, 5, config.width, dtype=torch.float64, generator=seeded())
    out, balance = block(x)
    for row, got in zip(x.flatten(0, 1), out.flatten(0, 1), strict=True):
        chosen, indices = block.router(row).softmax(-1).topk(2)
        expected = sum(
            (
                p / chosen.sum() * block.experts[int(e)](row)
                for p, e in zip(chosen, indices, strict=True)
            ),
            torch.zeros(()),
        )
        torch.testing.assert_close(got, expected)
    assert 0.9 < balance.item() < 4


def test_an_even_load_has_a_balance_loss_of_one() -> None:
    experts = [FeedForward(4) for _ in range(4)]
    rows = torch.randn(8, 4, generator=seeded())
    indices = torch.arange(8).remainder(4).unsqueeze(1)
    out = mixed(rows, torch.ones(8, 1), indices, experts)
    torch.testing.assert_close(out[5], experts[1](rows[5]))


# The advantages


def test_an_answer_is_compared_with_the_others_only() -> None:
    rewards = torch.rand(3, 5, dtype=torch.float64, generator=seeded())
    mean, std = others_statistics_of(rewards)
    for group in range(3):
        for answer in range(5):
            others = torch.cat([rewards[group, :answer], rewards[group, answer + 1 :]])
            assert mean[group, answer].item() == pytest.approx(others.mean().item())
            assert std[group, answer].item() == pytest.approx(others.std().item())


def test_others_that_are_all_the_same_leave_the_advantage_as_it_is() -> None:
    config = dataclasses.replace(TINY, use_leave_one_out_baseline=True)
    for length in range(1, 7):  # every reward there is
        rewards = torch.full((1, 8), 1 - 0.01 * length)
        rewards[0, 0] = 0
        got = advantages_of(rewards, others_statistics_of(rewards), config)
        assert got[0, 0].item() == pytest.approx(-(1 - 0.01 * length))


# The training


@pytest.mark.slow
def test_a_short_training_learns() -> None:
    told: list[TrainingProgress] = []
    result = train(Config(steps=30, every=30, tier="light"), told.append)
    assert told[0].mean_return < 0.6
    assert result.mean_return > told[0].mean_return + 0.2
    assert result.success_rate > result.mean_return
    assert result.episodes == 30 * 64
    assert (told[-1].done, told[-1].total) == (30, 30)


@pytest.mark.slow
@pytest.mark.parametrize("config", [TINY, MIXED], ids=["dense", "experts"])
def test_a_seed_gives_the_same_weights_twice_whatever_the_global_state(config: Config) -> None:
    torch.manual_seed(5)
    first = weights(train(config).model)
    torch.manual_seed(6)
    again = weights(train(config).model)
    other = weights(train(dataclasses.replace(config, seed=2)).model)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.slow
def test_watching_changes_nothing() -> None:
    often, rarely = (
        weights(train(dataclasses.replace(MIXED, every=every)).model) for every in (1, 50)
    )
    assert torch.equal(often, rarely)


def test_given_weights_are_the_start_and_the_reference_and_nothing_is_imitated(
    tmp_path: Path,
) -> None:
    place = tmp_path / "start.pt"
    taught_policy = train(dataclasses.replace(TINY, steps=0)).model
    save_weights(taught_policy, place)
    config = dataclasses.replace(TINY, start=str(place), warm_start_steps=10_000, seed=9)
    policy = policy_of(Pieces(config=config), seeded())
    assert torch.equal(weights(policy), weights(taught_policy))
    run = tmp_path / "run"
    train(dataclasses.replace(config, steps=1, gradient_accumulation_steps=4, run=str(run)))
    assert gm.load(run).series("kl_ref")[1].tolist() == pytest.approx([0], abs=1e-9)


def test_without_steps_only_the_teacher_is_imitated() -> None:
    result = train(dataclasses.replace(TINY, steps=0))
    assert math.isnan(result.mean_return)
    assert result.episodes == 0


LOGGED = """
    reward reward_std success_rate episode_length truncated_fraction zero_variance_groups action_share policy_loss entropy
    kl_ref approx_kl clip_fraction clip_fraction_low clip_fraction_high ratio/mean ratio/max advantages/mean advantages/std
    learning_rate score_z sampler_kl importance_weight ess reward_gain
"""


def test_what_the_doctor_asks_for_is_logged_after_each_rollout(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(dataclasses.replace(MIXED, run=str(run)))
    kept = gm.load(run)
    for name in LOGGED.split():
        assert len(kept.series(name)[1]) == 3, name
    terms = {
        name.split("/")[3]
        for name in kept.names()
        if name.startswith("grad/all/term/") and name.endswith("/norm")
    }
    assert terms == {"policy", "kl", "entropy", "nll", "aux"}
    assert any(name.startswith("router/") and name.endswith("/grad_task") for name in kept.names())
    assert kept.series("ratio/mean")[1][0] == pytest.approx(1, abs=0.2)
    assert kept.series("importance_weight")[1].tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert kept.facts["config"]["num_actions"] == 12


def test_a_rollout_has_groups_side_by_side_and_advantages_that_cancel() -> None:
    pieces = Pieces(config=TINY)
    rollout = collect(policy_of(pieces, seeded()), seeded(3), pieces)
    asked = rollout.tokens[:, : TINY.max_digits + 2].view(4, 3, -1)
    assert (asked == asked[:, :1]).all()
    assert rollout.advantages.view(4, 3).sum(1).abs().max() < 1e-4
    assert rollout.earned.view(4, 3).sum(1).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"num_prompts": 6},
            (
                "gradient_accumulation_steps=4 does not divide num_prompts=6 micro-batches: use a"
                " divisor"
            ),
        ),
        ({"group_size": 1}, "group_size=1 leaves nothing to compare an answer with: use 2 or more"),
        (
            {"group_size": 2, "use_leave_one_out_baseline": True},
            "leaves one other, which has no spread: use 3 or more",
        ),
        ({"num_experts": 1}, "num_experts=1: use 0 for a dense block, or 2 or more"),
        ({"num_experts": 4, "top_k": 5}, "top_k=5 of 4 experts: use 1 to 4"),
        ({"aux_coef": 0.1}, "aux_coef=0.1 balances nothing: there are experts with num_experts=4"),
        ({"width": 15}, "width=15 cannot be shared by num_heads=2: use a multiple"),
        ({"steps": -1}, "steps=-1 is negative"),
        ({"every": 0}, "every=0: use 1 or more"),
        ({"clumsiness": 2.0}, "clumsiness=2.0 is a share of the digits: use 0 to 1"),
        ({"learning_rate": math.nan}, "learning_rate=nan: use a number from 0 up"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0: use a number above 0"),
        ({"tier": "depe"}, "unknown tier 'depe'; did you mean 'deep'"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_words(
    wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Config(**wrong)  # type: ignore[arg-type]


def test_a_fault_in_a_line_that_is_not_there_says_what_to_add() -> None:
    with pytest.raises(
        UsageError, match=r"fault=minimind_858 .* add num_experts=4 top_k=1 aux_coef=0\.0005"
    ):
        train(dataclasses.replace(TINY, fault="minimind_858"))


def test_the_command_trains_and_names_the_reward(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["steps=1", "warm_start_steps=1", "num_prompts=4", "width=16", "run=null"]
    assert run_command(["train", "bugs", *small, "fault=trl_5595"]) == 0
    assert "mean reward" in capsys.readouterr().out


def test_every_fault_is_named_by_project_and_number() -> None:
    names = [found.name for found in faults.faults_of("bugs")]
    assert len(names) >= 9
    assert all(name.rpartition("_")[2].isdigit() for name in names)
