"""GRPO's loss taken apart by TRL's own code, into policy, KL to the reference, entropy bonus and a
router's balancing loss, and the anatomy of a batch by these terms.

A shallow copy of the trainer is asked for the loss again, with parts of it switched off, on the
log-probabilities of the one forward that there was. No formula of TRL's is repeated here, so every
`loss_type` is the trainer's own; the copy takes what is written meanwhile (metrics, the entropy
controller), and asks nothing of other ranks.

For an anatomy the trainer's own loss of the whole batch gives a slope for each token and term,
∂L/∂log π; slope · log π then has the gradient of that term on any part of the batch.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradiometer.errors import UnknownName, UsageError
from gradiometer.maths import losses
from gradiometer.probes.anatomy import Anatomy, anatomy
from gradiometer.probes.stillness import held_still
from gradiometer.probes.survey import NULL

__all__ = ["Through", "anatomy_of", "loss_terms", "noting_forward", "replaced"]

Forward: TypeAlias = tuple[Tensor, Tensor, Tensor | None]
"""Log-probabilities [B, T], entropies [B, T], balancing loss, as TRL's forward gives them."""

# How each loss type makes one number of its tokens.
AGGREGATIONS = MappingProxyType(
    {
        **dict.fromkeys(("grpo", "sapo"), "seq-mean-token-mean"),
        **dict.fromkeys(("bnpo", "dapo", "cispo", "vespo"), "token-mean"),
        "dr_grpo": "seq-mean-token-sum-norm",
        "luspo": "seq-mean-token-sum",
    }
)
TASK = "task"  # what the keys of an anatomy call the policy term
IDS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


class _Alone:
    """An accelerator without other ranks, whose accumulation never ends, so nothing is adapted."""

    sync_gradients = False

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def gather(self, tensor: Tensor, **_: Any) -> Tensor:
        return tensor

    gather_for_metrics = reduce = gather

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)


def loss_terms(
    trainer: Any, model: Any, inputs: Mapping[str, Any], forward: Forward
) -> dict[str, Tensor]:
    """The terms whose sum is `trainer._compute_loss(model, inputs)`, in the graph of `forward`."""
    double = copy.copy(trainer)
    double.accelerator = _Alone(trainer.accelerator)
    double._get_per_token_logps_and_entropies = lambda *_, **__: forward
    parts = {"policy": True, "kl": trainer.beta != 0.0}
    parts |= {"entropy": trainer._entropy_bonus_enabled, "balance": trainer.aux_loss_enabled}
    terms = {}
    for name in (name for name, there in parts.items() if there):
        double._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        double.beta = trainer.beta if name == "kl" else 0.0
        double._entropy_bonus_enabled = name == "entropy"
        double.aux_loss_enabled = name == "balance"
        advantages = inputs["advantages"]
        advantages = advantages if name == "policy" else torch.zeros_like(advantages)
        given = {**inputs, "advantages": advantages}
        terms[name] = type(trainer)._compute_loss(double, model, given)
    return terms


class Through(torch.autograd.Function):
    """The loss as it is; backward leads past the terms too, so that they count as gone backward."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *terms: Tensor) -> Tensor:
        """The same number."""
        ctx.num_terms = len(terms)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The same gradient."""
        return (gradient, *[None] * ctx.num_terms)


@contextmanager
def replaced(trainer: Any, **methods: Callable[..., Any]) -> Iterator[None]:
    """Other methods, on this trainer alone and for a while."""
    own = vars(trainer)
    held = {name: own[name] for name in methods if name in own}
    own.update(methods)
    try:
        yield
    finally:
        for name in methods:
            own.pop(name, None)
        own.update(held)


@contextmanager
def noting_forward(trainer: Any) -> Iterator[list[Forward]]:
    """What forwards for the loss give, in a list."""
    forward, seen = trainer._get_per_token_logps_and_entropies, list[Forward]()

    def noted(*args: Any, **kwargs: Any) -> Forward:
        seen.append(forward(*args, **kwargs))
        return seen[-1]

    with replaced(trainer, _get_per_token_logps_and_entropies=noted):
        yield seen


def anatomy_of(
    trainer: Any, batch: Mapping[str, Any], rewards: Any, groups: Any = None, **options: Any
) -> Anatomy:
    """`gm.anatomy` of a batch as `GRPOTrainer` makes it, by the terms of its loss and the reward
    variance of its groups.

    `rewards` [N] one number a completion; `groups` [N] are told by equal prompts where not given.
    `options` are those of `gm.anatomy`; `null=True` permutes advantages. The batch counts as one
    micro-batch, whatever the accumulation, and in one process. Losses are not in the result: the
    trainer logs its own.
    """
    _check(trainer, batch)
    model, mask = trainer.model, batch["completion_mask"] * batch.get("tool_mask", 1)
    aggregation, horizon = AGGREGATIONS[trainer.loss_type], float(trainer.max_completion_length)
    weight = losses.token_weights(mask, aggregation, horizon=horizon)
    total = losses.sequence_weights(mask, aggregation).sum()
    # A mean over rows is taken by the anatomy, bucket by bucket.
    undo = torch.where(weight > 0, total / weight, 0.0)
    slopes = _slopes(trainer, batch, mask)
    slopes = {TASK if name == "policy" else name: slope for name, slope in slopes.items()}
    rows = {name: batch[name] for name in IDS}
    rows |= {name: slope * undo for name, slope in slopes.items()}

    def terms(part: Mapping[str, Tensor]) -> dict[str, Tensor]:
        log_probs, entropies, _ = _forward(trainer, model, part)
        of = {name: entropies if name == "entropy" else log_probs for name in slopes}
        found = {name: part[name] * of[name] for name in slopes}
        return found | ({NULL: part[f"null_{TASK}"] * log_probs} if f"null_{TASK}" in part else {})

    def null(order: Tensor) -> dict[str, Tensor]:
        shuffled = {**batch, "advantages": batch["advantages"][order.to(mask.device)]}
        return {TASK: _slopes(trainer, shuffled, mask)["policy"] * undo}

    options["null"] = null if options.get("null") is True else options.get("null")
    groups = [tuple(row) for row in batch["prompt_ids"].tolist()] if groups is None else groups
    meter = options.pop("meter", None)
    options = {"mask": mask, "aggregation": aggregation, "horizon": horizon, **options}
    result = anatomy(model, rows, terms, rewards=rewards, groups=groups, **options)
    # The slopes have the gradients of the losses, not their values.
    kept = {name: x for name, x in result.metrics.items() if "/loss/" not in name}
    result = replace(result, metrics=kept)
    if meter is not None:
        meter.record(result.metrics, tables=result.tables)
    return result


def _slopes(trainer: Any, batch: Mapping[str, Any], mask: Tensor) -> dict[str, Tensor]:
    """∂L/∂log π of each term and token [N, T], ∂L/∂H of the entropy bonus, of the whole batch."""
    with held_still(trainer.model), torch.no_grad():
        size = trainer.args.per_device_train_batch_size
        forward = _forward(trainer, trainer.model, batch, batch_size=size)
    log_probs, entropies = (tensor.detach().requires_grad_() for tensor in forward[:2])
    still = copy.copy(trainer)
    still.model = SimpleNamespace(training=False)  # then nothing is divided over steps
    still.aux_loss_enabled = False
    with torch.enable_grad():
        whole = {**batch, "num_items_in_batch": mask.sum()}
        found = loss_terms(still, None, whole, (log_probs, entropies, None))
        wanted = {name: entropies if name == "entropy" else log_probs for name in found}
        slope = partial(torch.autograd.grad, retain_graph=True)
        return {name: slope(found[name], of)[0] for name, of in wanted.items()}


def _forward(trainer: Any, model: Any, rows: Mapping[str, Tensor], **options: Any) -> Forward:
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    seen = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    keep = rows["completion_ids"].size(1)
    compute = partial(type(trainer)._get_per_token_logps_and_entropies, trainer, model)
    given = compute(ids, seen, keep, compute_entropy=True, **options)
    return given  # type: ignore[no-any-return]


def _check(trainer: Any, batch: Mapping[str, Any]) -> None:
    if trainer.loss_type not in AGGREGATIONS:
        raise UnknownName("loss_type", trainer.loss_type, AGGREGATIONS)
    if trainer.accelerator.num_processes > 1:
        raise UsageError(
            "the anatomy of a GRPO batch is taken in one process; each rank has a batch of its own"
            " here"
        )
    if "pixel_values" in batch:
        raise UsageError("the anatomy of a GRPO batch takes text; this batch has images")
