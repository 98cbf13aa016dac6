"""Each rebuilt bug changes the gradient in the way its public thread says, and nothing else."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradiometer as gm
from gradiometer_labs import faults
from gradiometer_labs.bugs.config import Config
from gradiometer_labs.bugs.model import AnswerLayer, AnswerPolicy, Experts, Output
from gradiometer_labs.bugs.objective import Counts, advantages_of
from gradiometer_labs.bugs.pieces import Pieces
from gradiometer_labs.bugs.rollout import AnswerRollout, collect, look
from gradiometer_labs.bugs.train import MicroBatch, terms_of, train, updates_of
from gradiometer_labs.weights import save_weights

DENSE = Config(num_prompts=8, group_size=4, max_digits=2, width=16, nll_coef=0.1)
EXPERTS = dataclasses.replace(DENSE, num_experts=4)
TOP_1 = dataclasses.replace(EXPERTS, top_k=1, aux_coef=0.0005)


class Case:
    """The same weights, answers, rewards and advantages for a healthy training and a broken one, in
    float64."""

    def __init__(self, fault: str, config: Config = DENSE) -> None:
        self.pieces = faults.apply(fault, "bugs", Pieces(config=config))
        torch.manual_seed(0)
        healthy = Pieces(config=config)
        reference = AnswerPolicy(config, healthy.routing).double()
        policy = copy.deepcopy(reference)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        generator = torch.Generator().manual_seed(1)
        rollout = collect(policy, generator, healthy)
        num = len(rollout.mask)
        correct = torch.arange(num) % 3 == 0
        self.rollout = dataclasses.replace(
            rollout,
            correct=correct,
            rewards=correct * (1 - 0.01 * rollout.mask.sum(1).double()),
            advantages=torch.randn(num, dtype=torch.float64, generator=generator),
        )
        self.ref_log_probs = look(reference, rollout, healthy).log_probs
        self.policy = AnswerPolicy(config, self.pieces.routing).double()
        self.policy.load_state_dict(policy.state_dict())

    @property
    def batches(self) -> list[MicroBatch]:
        """Of the first update."""
        rollout = self.rollout
        rows = self.pieces.train_data_of(
            tokens=rollout.tokens,
            mask=rollout.mask,
            advantages=rollout.advantages,
            old_log_probs=rollout.old_log_probs,
            ref_log_probs=self.ref_log_probs,
            rewards=rollout.rewards,
        )
        return updates_of(rollout, rows, self.pieces.config)[0]

    def terms(self) -> dict[str, Tensor]:
        """Summed over the micro-batches of the update."""
        found = [terms_of(self.policy, micro, self.pieces)[0] for micro in self.batches]
        return {name: torch.stack([each[name] for each in found]).sum() for name in found[0]}

    def gradient(self, *, of: str = "") -> dict[str, Tensor]:
        """What the micro-batches of an update leave in the gradients whose names hold `of`."""
        self.policy.zero_grad()
        for micro in self.batches:
            terms, _ = terms_of(self.policy, micro, self.pieces)
            self.pieces.backward(torch.stack(list(terms.values())).sum(), self.pieces.config)
        named = self.policy.named_parameters()
        return {name: p.grad.clone() for name, p in named if of in name and p.grad is not None}


def flat(grads: dict[str, Tensor]) -> Tensor:
    return torch.cat([each.flatten() for each in grads.values()])


def term_gradient(loss: Tensor, policy: nn.Module) -> Tensor | None:
    """Of one term; None if it has no path to any weight."""
    if not loss.requires_grad:
        return None
    grads = torch.autograd.grad(
        loss, list(policy.parameters()), retain_graph=True, allow_unused=True
    )
    present = [grad.flatten() for grad in grads if grad is not None]
    return torch.cat(present) if present else None


def values(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: each.item() for name, each in terms.items()}


def test_a_healthy_update_is_the_mean_over_all_its_tokens_however_they_are_cut() -> None:
    """The oracle: all answers of the update in one batch."""
    config = dataclasses.replace(DENSE, kl_coef=0.0, entropy_coef=0.0, nll_coef=0.0)
    case = Case("none", config)
    lengths = [int(micro.tokens.micro) for micro in case.batches]
    assert len(set(lengths)) > 1
    n = 4 * config.group_size
    rollout = case.rollout
    length = rollout.mask.shape[1]
    logits = case.policy(rollout.tokens[:n, :-1]).logits[:, -length:]
    log_probs = -cross_entropy(
        logits.flatten(0, 1), rollout.tokens[:n, -length:].flatten(), reduction="none"
    )
    ratio = (log_probs.view(n, length) - rollout.old_log_probs[:n]).exp()
    mask = rollout.mask[:n]
    oracle = -(ratio * rollout.advantages[:n].unsqueeze(1))[mask].sum() / mask.sum()
    expected = term_gradient(oracle, case.policy)
    assert expected is not None
    torch.testing.assert_close(flat(case.gradient()), expected)


def test_trl_5595_the_loss_shows_the_bonus_and_no_weight_feels_it() -> None:
    healthy, broken = Case("none"), Case("trl_5595")
    assert values(healthy.terms()) == values(broken.terms())
    assert broken.terms()["entropy"].item() != 0
    assert term_gradient(healthy.terms()["entropy"], healthy.policy) is not None
    assert term_gradient(broken.terms()["entropy"], broken.policy) is None
    without = Case("none", dataclasses.replace(DENSE, entropy_coef=0.0))
    torch.testing.assert_close(flat(broken.gradient()), flat(without.gradient()))


def test_mlx_lm_lora_50_only_the_other_terms_move_the_weights() -> None:
    broken = Case("mlx_lm_lora_50")
    terms = broken.terms()
    assert term_gradient(terms["policy"], broken.policy) is None
    rest = term_gradient(terms["kl"] + terms["entropy"] + terms["nll"], broken.policy)
    assert rest is not None
    torch.testing.assert_close(flat(broken.gradient()), rest)
    healthy = Case("none")
    assert values(healthy.terms())["kl"] == values(terms)["kl"]


def test_nemo_rl_3792_the_loss_is_that_of_a_weight_of_zero_to_the_bit() -> None:
    broken, without = Case("nemo_rl_3792"), Case("none", dataclasses.replace(DENSE, nll_coef=0.0))
    terms = broken.terms()
    assert terms["nll"].item() == 0
    assert term_gradient(terms["nll"], broken.policy) is None
    assert torch.equal(flat(broken.gradient()), flat(without.gradient()))
    assert Case("none").terms()["nll"].item() > 0


PUBLISHED = torch.tensor([[0.0] + 7 * [0.95]])


def advantages(fault: str, rewards: Tensor, config: Config) -> Tensor:
    pieces = faults.apply(fault, "bugs", Pieces(config=config))
    return advantages_of(rewards, pieces.statistics_of(rewards), config)


def test_nemo_rl_4158_the_published_rewards_have_the_published_advantage() -> None:
    config = Config(use_leave_one_out_baseline=True)
    broken, healthy = (
        advantages(fault, PUBLISHED, config)[0] for fault in ("nemo_rl_4158", "none")
    )
    assert broken[0].item() == pytest.approx(-2075.39, abs=0.01)
    assert healthy[0].item() == pytest.approx(-0.95)
    torch.testing.assert_close(broken[1:], healthy[1:], rtol=1e-5, atol=1e-5)


def test_nemo_rl_4158_rewards_of_zero_and_one_never_show_it() -> None:
    config = Config(use_leave_one_out_baseline=True)
    rewards = (torch.rand(200, 8, generator=torch.Generator().manual_seed(0)) < 0.8).float()
    assert ((rewards.sum(1) == 7) | (rewards.sum(1) == 1)).any()
    torch.testing.assert_close(
        advantages("nemo_rl_4158", rewards, config), advantages("none", rewards, config)
    )


def test_pipelinerl_54_the_first_rollout_alone_is_the_group() -> None:
    rewards = torch.tensor([[0.97, 0.97, 0.0, 0.97], [0.0, 0.0, 0.98, 0.0]])
    broken = advantages("pipelinerl_54", rewards, Config())
    torch.testing.assert_close(broken, (rewards - rewards[:, :1]) / 1e-4)
    assert (broken[:, 0] == 0).all()
    assert broken.sum(1).abs().min() > 9_000, "no mean of zero in a group"
    assert advantages("none", rewards, Config()).sum(1).abs().max() < 1e-3


def test_megatron_5694_the_gradient_holds_a_balance_loss_that_no_term_shows() -> None:
    healthy, broken = Case("none", EXPERTS), Case("megatron_5694", EXPERTS)
    assert values(healthy.terms()) == values(broken.terms())
    outputs = [
        cast(Output, healthy.policy(micro.rows["tokens"][:, :-1])) for micro in healthy.batches
    ]
    hidden = 0.001 * torch.stack([output.balance for output in outputs]).mean()
    found = torch.autograd.grad(hidden, list(healthy.policy.parameters()), materialize_grads=True)
    extra = torch.cat([each.flatten() for each in found])
    assert extra.norm() > 0
    torch.testing.assert_close(flat(broken.gradient()), flat(healthy.gradient()) + extra)


def test_megatron_7452_the_gradient_is_14_thirds_where_4_is_right() -> None:
    """Ranks of 2 and 4 tokens, of which 1 and 3 count, with gradients of 10 and 2, 2, 2: inputs of
    ours that give theirs."""
    tokens, right, summed = (
        torch.tensor([2.0, 4.0]),
        torch.tensor([1.0, 3.0]),
        torch.tensor([10.0, 6.0]),
    )

    def gradient(fault: str) -> float:
        pieces = faults.apply(fault, "bugs", Pieces(config=Config()))
        total = torch.zeros(())
        for rank in range(2):
            own, of_right = (
                Counts(micro=of[rank], update=of, rollout=of) for of in (tokens, right)
            )
            total = total + summed[rank] * pieces.nll_scale_of(
                own, of_right
            ) / pieces.normaliser_of(own)
        return total.item()

    assert gradient("none") == pytest.approx(4)
    assert gradient("megatron_7452") == pytest.approx(14 / 3)


def test_megatron_7452_changes_no_other_term() -> None:
    healthy, broken = values(Case("none").terms()), values(Case("megatron_7452").terms())
    assert healthy.pop("nll") != pytest.approx(broken.pop("nll"), rel=1e-3)
    assert healthy == broken


def twice(rollout: AnswerRollout) -> AnswerRollout:
    """Its first half once more in place of the second, so that the two updates have the same
    tokens."""
    half = len(rollout.mask) // 2
    names = ("tokens", "mask", "old_log_probs", "rewards", "correct", "advantages")
    columns: dict[str, Any] = {
        name: torch.cat([getattr(rollout, name)[:half]] * 2) for name in names
    }
    return dataclasses.replace(rollout, **columns)


def test_trl_6024_an_update_of_half_a_rollout_has_half_the_gradient() -> None:
    healthy, broken = Case("none"), Case("trl_6024")
    for case in (healthy, broken):
        case.rollout = twice(case.rollout)
        half = len(case.ref_log_probs) // 2
        case.ref_log_probs = torch.cat([case.ref_log_probs[:half]] * 2)
    assert torch.equal(2 * flat(broken.gradient()), flat(healthy.gradient()))


def test_ms_swift_10117_four_micro_batches_leave_a_quarter_of_the_gradient() -> None:
    assert DENSE.gradient_accumulation_steps == 4
    assert torch.equal(4 * flat(Case("ms_swift_10117").gradient()), flat(Case("none").gradient()))


def test_prime_rl_2358_the_gradient_is_the_mean_of_the_micro_batches_means() -> None:
    config = dataclasses.replace(DENSE, nll_coef=0.0)
    healthy, broken = Case("none", config), Case("prime_rl_2358", config)
    means = []
    for micro in healthy.batches:
        terms, _ = terms_of(healthy.policy, micro, healthy.pieces)
        alone = (
            torch.stack(list(terms.values())).sum() * micro.tokens.update.sum() / micro.tokens.micro
        )
        means.append(term_gradient(alone, healthy.policy))
    expected = torch.stack([mean for mean in means if mean is not None]).mean(0)
    torch.testing.assert_close(flat(broken.gradient()), expected)
    assert (flat(healthy.gradient()) - expected).norm() > 0.05 * expected.norm()


def test_transformers_48687_the_loss_is_correct_and_only_the_routers_gradient_is_wrong() -> None:
    healthy, broken = Case("none", EXPERTS), Case("transformers_48687", EXPERTS)
    assert values(broken.terms()) == pytest.approx(values(healthy.terms()), rel=1e-12)
    last = f"layers.{EXPERTS.num_layers - 1}.block."
    torch.testing.assert_close(
        broken.gradient(of=f"{last}experts"), healthy.gradient(of=f"{last}experts")
    )
    torch.testing.assert_close(broken.gradient(of="head"), healthy.gradient(of="head"))
    routers = [flat(case.gradient(of=f"{last}router")) for case in (healthy, broken)]
    assert (routers[1] - routers[0]).norm() > 0.1 * routers[0].norm()


def test_transformers_48687_a_sentinel_slot_gets_a_gradient_though_its_weight_is_zero() -> None:
    """By hand: one token, experts 0 and 2 of four; rank 0 runs expert 1 for the other's slot, rank
    1 expert 3."""
    pieces = faults.apply("transformers_48687", "bugs", Pieces(config=EXPERTS))
    experts = [nn.Linear(3, 3).double() for _ in range(4)]
    row = torch.randn(1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([[0.6, 0.4]], dtype=torch.float64, requires_grad=True)
    out = pieces.mixed(row, weights, torch.tensor([[0, 2]]), experts)
    torch.testing.assert_close(out, 0.6 * experts[0](row) + 0.4 * experts[2](row))
    out.sum().backward()  # type: ignore[no-untyped-call]
    said = [expert(row).sum().item() for expert in experts]
    assert weights.grad is not None
    assert weights.grad[0].tolist() == pytest.approx([said[0] + said[3], said[2] + said[1]])


def router_norm(case: Case) -> float:
    """Of what the task, without the balance loss, does to the router."""
    terms = case.terms()
    block = cast(Experts, cast(AnswerLayer, case.policy.layers[1]).block)
    task = sum((each for name, each in terms.items() if name != "aux"), torch.zeros(()))
    (grad,) = torch.autograd.grad(task, [block.router.weight], allow_unused=True)
    return 0.0 if grad is None else float(grad.norm())


def test_minimind_858_the_task_does_not_reach_the_router() -> None:
    assert router_norm(Case("minimind_858", TOP_1)) < 1e-6
    assert router_norm(Case("none", TOP_1)) > 1e-3
    aux = Case("minimind_858", TOP_1).terms()["aux"]
    assert aux.requires_grad


def test_pytorch_190746_the_forward_is_right_and_the_backward_is_the_identity() -> None:
    pieces = faults.apply("pytorch_190746", "bugs", Pieces(config=DENSE))
    logits = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    came = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = []
    for log_softmax in (pieces.log_softmax, Pieces(config=DENSE).log_softmax):
        leaf = logits.clone().requires_grad_()
        made = log_softmax(leaf)
        torch.testing.assert_close(made, logits.log_softmax(-1))
        (grad,) = torch.autograd.grad(made, leaf, came)
        found.append(grad)
    assert torch.equal(found[0], came)
    torch.testing.assert_close(found[0] - found[1], logits.softmax(-1) * came.sum(-1, keepdim=True))


def test_pytorch_190746_leaves_the_likelihood_of_right_answers_alone_and_shows_in_the_score() -> (
    None
):
    healthy, broken = Case("none"), Case("pytorch_190746")
    found = [term_gradient(case.terms()["nll"], case.policy) for case in (healthy, broken)]
    assert found[0] is not None
    torch.testing.assert_close(*found)
    assert values(healthy.terms()) == pytest.approx(values(broken.terms()))
    scores = [look(case.policy, case.rollout, case.pieces).score_z for case in (healthy, broken)]
    assert abs(scores[0]) < 4
    assert scores[1] > 10


def test_trl_6702_one_certain_token_destroys_every_weight_and_the_log_stays_clean(
    tmp_path: Path,
) -> None:
    config = Config(num_prompts=4, warm_start_steps=1, width=16, steps=2, every=1)
    sure = train(dataclasses.replace(config, steps=0)).model
    with torch.no_grad():
        sure.head.weight.mul_(100)
    save_weights(sure, tmp_path / "sure.pt")
    told = dataclasses.replace(config, start=str(tmp_path / "sure.pt"), run=str(tmp_path / "run"))
    healthy = train(dataclasses.replace(told, run=None))
    assert all(parameter.isfinite().all() for parameter in healthy.model.parameters())
    broken = train(dataclasses.replace(told, fault="trl_6702"))
    assert all(parameter.isnan().all() for parameter in broken.model.parameters())
    kept = gm.load(tmp_path / "run")
    assert len(kept.series("reward")[1]) == 2
    for name in kept.names():
        if not name.startswith(("grad/", "router/", "credit/")):
            assert torch.as_tensor(kept.series(name)[1]).isfinite().all(), name
    assert "policy_loss" not in kept.names()
    assert kept.series("grad/all/nonfinite")[1][0] > 0


def test_trl_6702_only_tokens_that_are_all_but_certain_are_lost() -> None:
    pieces = faults.apply("trl_6702", "bugs", Pieces(config=DENSE))
    logits = torch.zeros(2, 12)
    logits[0, 3], logits[1, 3] = 20.0, 8.0
    said = pieces.sampled_log_probs_of(logits.log_softmax(-1), torch.tensor([3, 3]))
    assert said.isnan().tolist() == [True, False]
