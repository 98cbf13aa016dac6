"""What can be broken in the training of a model with experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from gradiometer.errors import UsageError
from gradiometer_labs.faults import FaultsOf
from gradiometer_labs.sharedfaults import Line

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from gradiometer_labs.prismatic.config import Config as PrismaticConfig
    from gradiometer_labs.prismatic.experts import RoutingPieces
    from gradiometer_labs.prismatic.model import LanguageModel

    MakeModel = Callable[[PrismaticConfig, RoutingPieces], LanguageModel]
    MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]], PrismaticConfig], Optimizer]

__all__: list[str] = []

fault = FaultsOf("prismatic")


@fault(
    piece="routing_weights_of",
    summary="the weight of an expert is divided by itself (topk) or detached (prismatic): the task"
    " never trains the router",
    expected=("router-untrained",),
    catalogue="F46",
)
def router_detached(routing_weights_of: Line) -> Line:
    """As minimind once had it (issue 858): the weight of a top-1 expert, made to sum to 1, is 1
    whatever the router says."""

    def broken(chosen: Tensor, config: PrismaticConfig) -> Tensor:
        if config.router_type == "topk":
            return chosen / (chosen + 1e-20) / config.top_k
        return routing_weights_of(chosen, config).detach()

    return broken


@fault(
    piece="router_logits_of",
    summary="the last expert's logit is lowered by 20: the router cannot choose it, so it does not"
    " learn",
    expected=("expert-starved",),
    catalogue="F45",
)
def expert_starved(router_logits_of: Line) -> Line:
    """A probability of 2e-9 leaves a gradient below Adam's eps, so that nothing brings the expert
    back."""

    def broken(hidden: Tensor, gate: nn.Linear) -> Tensor:
        logits = router_logits_of(hidden, gate)
        lowered = logits.new_zeros(logits.shape[-1])
        lowered[-1] = 20.0
        return logits - lowered

    return broken


@fault(
    piece="after_step",
    summary="after each step every expert is moved a fifth of the way to the experts' mean: soon "
    "they are one expert",
    expected=("experts-converged",),
    catalogue="F45",
)
def experts_consensus(
    after_step: Callable[[Sequence[nn.Module]], None],
) -> Callable[[Sequence[nn.Module]], None]:
    """As when experts are averaged between processes like the weights that all of them share."""
    import torch

    def broken(pool: Sequence[nn.Module]) -> None:
        after_step(pool)
        with torch.no_grad():
            for alike in zip(*(expert.parameters() for expert in pool), strict=True):
                mean = torch.stack(alike).mean(0)
                for parameter in alike:
                    parameter.lerp_(mean, 0.2)

    return broken


@fault(
    piece="config",
    summary="with router_type=topk, the balance loss counts ten thousand times as much: it leads "
    "the router, not the task",
    expected=("routing-imbalance", "regulariser-dominates"),
    catalogue="F29",
    needs=("router_type=topk",),
)
def aux_dominates(config: PrismaticConfig) -> PrismaticConfig:
    """As a coefficient that was inherited and never looked at (Megatron-LM issue 5694)."""
    if config.router_type != "topk":
        raise UsageError(
            f"fault=aux_dominates: router_type={config.router_type} has no balance loss; add"
            " router_type=topk"
        )
    return dataclasses.replace(config, aux_coef=10_000 * config.aux_coef)


@fault(
    piece="router_logits_of",
    summary="the first expert's logit is raised by 4: it is asked nearly always, and has nearly "
    "all of the gradient",
    expected=("expert-dominates", "routing-imbalance"),
    catalogue="F48",
    doses=(2, 4, 8),
)
def hot_expert(router_logits_of: Line, *, dose: float) -> Line:
    """As a bias that balances loads and has the wrong sign: who is asked more is asked still
    more."""

    def broken(hidden: Tensor, gate: nn.Linear) -> Tensor:
        logits = router_logits_of(hidden, gate)
        raised = logits.new_zeros(logits.shape[-1])
        raised[0] = dose
        return logits + raised

    return broken


@fault(
    piece="routing_weights_of",
    summary="the routing weights pass on a sixty-fourth of their gradient: the loss is right, the"
    " router's gradient is not",
    expected=("gradient-not-invariant", "router-untrained"),
    catalogue="F47",
    doses=(8, 64, 4_096),
)
def router_grad_scaled(routing_weights_of: Line, *, dose: float) -> Line:
    """As under expert parallelism in transformers issue 48687: divided by the ranks once more than
    it was summed over them."""

    def broken(chosen: Tensor, config: PrismaticConfig) -> Tensor:
        weights = routing_weights_of(chosen, config)
        return weights.detach() + (weights - weights.detach()) / dose

    return broken


@fault(
    piece="task_loss_of",
    summary="targets are shifted twice: what is said of the next character is scored on the one"
    " after it",
    expected=("misaligned-data",),
    catalogue="F44",
)
def loss_shifted(task_loss_of: Line) -> Line:
    """As labels that a collator has shifted and the model shifts again."""
    return lambda logits, characters, prompt: task_loss_of(
        logits[:, :-1], characters[:, 1:], prompt
    )


@fault(
    piece="optimizer_of",
    summary="the optimizer is not given the weights of the attentions: they have gradients and "
    "stay as they were drawn",
    expected=("not-in-optimizer",),
    catalogue="F34",
)
def frozen_layer(optimizer_of: MakeOptimizer) -> MakeOptimizer:
    """As groups of weights chosen by their names, one of which is misspelt."""
    return lambda weights, config: optimizer_of(
        [each for each in weights if ".attention." not in each[0]], config
    )


@fault(
    piece="model_of",
    summary="the last layer is given its input detached: no loss reaches what lies below it",
    expected=("dead-block",),
    catalogue="F34",
)
def residual_detached(model_of: MakeModel) -> MakeModel:
    """As a checkpointed layer whose input was stored without its history."""

    def broken(config: PrismaticConfig, routing: RoutingPieces) -> LanguageModel:
        model = model_of(config, routing)
        model.layers[-1].register_forward_pre_hook(lambda _module, args: (args[0].detach(),))
        return model

    return broken


@fault(
    piece="model_of",
    summary="one attention puts where(x > 0, √x, 0) before its last product: forward all is finite,"
    " backward 0 · NaN is NaN",
    expected=("nonfinite-gradient",),
    catalogue="F32",
)
def nan_layer(model_of: MakeModel) -> MakeModel:
    """In the last layer: the first loss is finite, its gradient in that attention and below it is
    not."""
    import torch

    def broken(config: PrismaticConfig, routing: RoutingPieces) -> LanguageModel:
        model = model_of(config, routing)
        out = model.layers[-1].get_submodule("attention.out")
        out.register_forward_pre_hook(
            lambda _module, args: (torch.where(args[0] > 0, args[0].sqrt(), 0.0),)
        )
        return model

    return broken


# As a rate that was meant for another optimizer.
fault.wrong_setting(
    "lr_high",
    times="learning_rate",
    summary="the learning rate is a hundred times what it should be",
    expected=("step-too-large",),
    catalogue="F15",
    doses=(10, 100, 1_000),
)
