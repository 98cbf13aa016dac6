"""Bugs that other people's trainers once had, each rebuilt from its public thread: one defective
line, and nothing else.

They are patients of the clinic that no rule was ever tuned on. Where a thread does not show the
line, the docstring says what was taken instead. Ranks of a data-parallel training are micro-batches
here: the arithmetic is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gradiometer_labs.faults import FaultsOf
from gradiometer_labs.sharedfaults import Line, without_gradient

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradiometer_labs.bugs.config import Config as BugsConfig
    from gradiometer_labs.bugs.objective import Counts

    Statistics = Callable[[Tensor], tuple[Tensor, Tensor]]
    Mixed = Callable[[Tensor, Tensor, Tensor, Iterable[nn.Module]], Tensor]

__all__: list[str] = []

fault = FaultsOf("bugs")

EXPERTS, LIKELIHOOD = "num_experts=4", "nll_coef=0.1"


@fault(
    piece="entropy_of",
    summary="TRL #5595: the entropies are computed under torch.no_grad() for the log, and reused "
    "as a bonus in the loss",
    expected=("dead-term",),
    catalogue="F19",
)
def trl_5595(entropy_of: Line) -> Line:
    """Also pull request 5596, and an early state of 6140: "entirely non-functional", while the loss
    shows the bonus."""
    return without_gradient(entropy_of)


@fault(
    piece="log_weights_of",
    summary="mlx-lm-lora #50: without an importance sampling level the log weights are "
    "zeros_like: the ratio is a constant 1",
    expected=("dead-term",),
    catalogue="F20",
)
def mlx_lm_lora_50(log_weights_of: Line) -> Line:
    """Taken back there, shown again with weights in issue 55, and repaired: "only KL penalty moves
    weights"."""
    import torch

    def broken(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
        return torch.zeros_like(log_weights_of(log_probs, old_log_probs))

    return broken


@fault(
    piece="train_data_of",
    summary='NeMo-RL #3792: the train batch has no "rewards", without which the likelihood of right'
    " answers is silently 0",
    expected=("dead-term",),
    catalogue="F21",
    needs=(LIKELIHOOD,),
)
def nemo_rl_3792(
    train_data_of: Callable[..., dict[str, Tensor]],
) -> Callable[..., dict[str, Tensor]]:
    """The loss asks `"rewards" in data` before it adds VAPO's term; PPO's batch had the key, GRPO's
    had not."""

    def broken(**columns: Tensor) -> dict[str, Tensor]:
        data = train_data_of(**columns)
        del data["rewards"]
        return data

    return broken


@fault(
    piece="others_statistics_of",
    summary="NeMo-RL #4158: the others' variance is E[x²] - E[x]² in float32: where all are the "
    "same it is 2e-7 and not 0",
    expected=("advantage-outliers",),
    catalogue="F13",
    needs=("use_leave_one_out_baseline=true",),
)
def nemo_rl_4158(others_statistics_of: Statistics) -> Statistics:
    """[0, 0.95 × 7] gives the first answer an advantage of -2075.39. Rewards of 0 and 1 cancel
    exactly and never show it."""
    import torch

    def broken(rewards: Tensor) -> tuple[Tensor, Tensor]:
        size = rewards.shape[1]
        others = 1 - torch.eye(size, device=rewards.device)
        baseline = rewards @ others / (size - 1)
        variance = rewards.square() @ others / (size - 1) - baseline.square()
        std = (variance * (size - 1) / (size - 2)).sqrt().nan_to_num(0)
        return baseline, std

    return broken


@fault(
    piece="group_statistics_of",
    summary="PipelineRL #54: mean and standard deviation of a group are those of its first rollout"
    " alone",
    expected=("advantage-scale",),
    catalogue="F12",
)
def pipelinerl_54(group_statistics_of: Statistics) -> Statistics:
    """ "It's notable that with the wrong advantages the whole thing still kinda works". One reward
     has no standard deviation:
    pandas says NaN, and the line after makes that 0 (`np.nan_to_num(std) + 1e-4`, from the
    repository; the thread has a picture only)."""

    def broken(rewards: Tensor) -> tuple[Tensor, Tensor]:
        first = rewards[:, :1]
        return first, first.new_zeros(first.shape)

    return broken


@fault(
    piece="wired",
    summary="Megatron-LM #5694: the model attaches the balance loss to its routing weights, by a"
    " coefficient nobody set",
    expected=("hidden-term", "regulariser-dominates"),
    catalogue="F29",
    needs=(EXPERTS,),
)
def megatron_5694(wired: Line) -> Line:
    """The engine says none, the checkpoint's router_aux_loss_coef=0.001 is used all the same: no
    loss shows it, since an autograd function adds it on the way back, once a micro-batch and
    divided by their number."""
    import torch

    inherited = 0.001

    class AuxLossAutoScaler(torch.autograd.Function):
        """Passes the weights on; on the way back it gives the auxiliary loss a gradient of its
        own."""

        @staticmethod
        def forward(ctx: Any, weights: Tensor, aux_loss: Tensor, scale: float) -> Tensor:
            ctx.save_for_backward(aux_loss)
            ctx.scale = scale
            return weights.view_as(weights)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
            (aux_loss,) = ctx.saved_tensors
            return grads[0], torch.full_like(aux_loss, ctx.scale), None

    def broken(weights: Tensor, balance: Tensor, config: BugsConfig) -> Tensor:
        scale = 1 / config.gradient_accumulation_steps
        attached: Tensor = AuxLossAutoScaler.apply(  # type: ignore[no-untyped-call]
            wired(weights, balance, config), inherited * balance, scale
        )
        return attached

    return broken


@fault(
    piece="nll_scale_of",
    summary="Megatron-LM #7452: an auxiliary loss is rescaled from all tokens to its own by "
    "counts of this rank, not of all",
    expected=("gradient-not-invariant",),
    catalogue="F28",
    needs=(LIKELIHOOD,),
)
def megatron_7452(nll_scale_of: Line) -> Line:
    """Finding 3 there: `original_num_tokens / num_tokens` in process_mtp_loss, for a gradient of
    14/3 where 4 is right. Here the auxiliary loss is the likelihood of right answers, which has
    fewer tokens than the policy's too.
    """

    def broken(tokens: Counts, right: Counts) -> Tensor:
        return tokens.micro / right.micro.clamp(min=1)

    return broken


@fault(
    piece="normaliser_of",
    summary="TRL #6024: sums over tokens are divided by those of the rollout, of which an update "
    "sees half",
    expected=("gradient-not-invariant",),
    catalogue="F28",
)
def trl_6024(normaliser_of: Line) -> Line:
    """`num_items_in_batch` counts the generation batch: with 4 micro-batches a generation and 2 an
    update the gradient is halved (×0.5), with 8 and 32 it is ×4."""

    def broken(tokens: Counts) -> Tensor:
        return tokens.rollout.sum()

    return broken


@fault(
    piece="backward",
    summary="ms-swift #10117: the loss of an update's tokens is divided by the number of its"
    " micro-batches once more",
    expected=("gradient-not-invariant",),
    catalogue="F28",
)
def ms_swift_10117(
    backward: Callable[[Tensor, BugsConfig], None],
) -> Callable[[Tensor, BugsConfig], None]:
    """The loss divides by the tokens of the whole window, and transformers' training_step by its
    micro-batches: g/4 for 4."""

    def broken(loss: Tensor, config: BugsConfig) -> None:
        backward(loss / config.gradient_accumulation_steps, config)

    return broken


@fault(
    piece="normaliser_of",
    summary="prime-rl #2358: each rank divides by its own tokens, and then ranks are averaged: "
    "short answers count more",
    expected=("gradient-not-invariant",),
    catalogue="F28",
)
def prime_rl_2358(normaliser_of: Line) -> Line:
    """A local `loss_scale` on each data-parallel rank; FSDP takes the mean."""

    def broken(tokens: Counts) -> Tensor:
        return tokens.micro * len(tokens.update)

    return broken


@fault(
    piece="mixed",
    summary="transformers #48687: a rank runs its last expert for slots of other ranks, at a "
    "weight of 0 that has a gradient",
    expected=("gradient-not-invariant", "router-untrained"),
    catalogue="F47",
    needs=(EXPERTS,),
)
def transformers_48687(mixed: Mixed) -> Mixed:
    """Expert parallelism on two ranks: "the zero routing weight hides that in the forward but not
    in the backward". "The loss is correct, only the gradient is wrong, so nothing in a training run
    looks off"."""
    import torch

    def broken(
        rows: Tensor, weights: Tensor, indices: Tensor, experts: Iterable[nn.Module]
    ) -> Tensor:
        pool = list(experts)
        local = len(pool) // 2
        out = torch.zeros_like(rows)
        for first, own in ((0, pool[:local]), (local, pool[local:])):
            elsewhere = (indices < first) | (indices >= first + len(own))
            sentinels = torch.where(elsewhere, len(own), indices - first).clamp(max=len(own) - 1)
            hidden = torch.where(elsewhere, weights.detach(), 0)
            out = out + mixed(rows, weights - hidden, sentinels, own)
        return out

    return broken


@fault(
    piece="routing_weights_of",
    summary="minimind #858: the weight of the one chosen expert is made to sum to 1: it is 1 "
    "whatever the router says",
    expected=("router-untrained",),
    catalogue="F46",
    needs=(EXPERTS, "top_k=1", "aux_coef=0.0005"),
)
def minimind_858(routing_weights_of: Line) -> Line:
    """The router is left to the balance loss (coefficient 5e-4): its load is even, its gradient of
    the task is 7e-10."""

    def broken(chosen: Tensor, config: BugsConfig) -> Tensor:
        return chosen / (chosen.sum(-1, keepdim=True) + 1e-20)

    return broken


@fault(
    piece="log_softmax",
    summary="PyTorch #190746: inside loss_parallel() the backward of log_softmax is the identity, "
    "but for cross_entropy",
    expected=("score-not-zero-mean",),
    catalogue="F25",
)
def pytorch_190746(log_softmax: Line) -> Line:
    """d/dx log_softmax(x) = I and not I - softmax(x) 1ᵀ. The forward is right, and so is the
    likelihood of right answers."""
    import torch

    class IdentityBackward(torch.autograd.Function):
        """log_softmax whose backward returns the gradient as it came."""

        @staticmethod
        def forward(ctx: Any, logits: Tensor) -> Tensor:
            return log_softmax(logits)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0]

    def broken(logits: Tensor) -> Tensor:
        made: Tensor = IdentityBackward.apply(logits)  # type: ignore[no-untyped-call]
        return made

    return broken


@fault(
    piece="sampled_log_probs_of",
    summary="TRL #6702: the sampler's log-prob of a certain token is NaN; the step is taken, and "
    "the log leaves the NaN out",
    expected=("nonfinite-gradient",),
    catalogue="F32",
)
def trl_6702(sampled_log_probs_of: Line) -> Line:
    """vLLM's NaN of issue 6166, seen at an entropy of about 4e-4. `logging_nan_inf_filter` repairs
    the report, not the run: the lab's log leaves out what is not finite whether there is a fault or
    not, as transformers' Trainer does.
    """

    def broken(log_policy: Tensor, tokens: Tensor) -> Tensor:
        entropy = -(log_policy.exp() * log_policy).sum(-1)
        return sampled_log_probs_of(log_policy, tokens).masked_fill(entropy < 4e-4, float("nan"))

    return broken
