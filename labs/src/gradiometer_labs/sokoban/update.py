"""The updates of critic and actor: passes over a batch, mini-batches, and micro-batches whose
gradients add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import gradiometer as gm
from gradiometer.maths.losses import sequence_weights, token_weights
from gradiometer_labs.sokoban.model import Critic
from gradiometer_labs.sokoban.pieces import Pieces, TokenLosses, log_probs_of, token_losses
from gradiometer_labs.sokoban.rollout import Rows, cut, select
from gradiometer_labs.sokoban.sources import ActorConfig

__all__ = [
    "in_micro_batches",
    "log_probs_in_parts",
    "update_actor",
    "update_critic",
    "values_in_parts",
]

MINI_BATCH = 32
"""Rollouts per optimizer step when the config does not say."""


def update_actor(
    actor: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    meter: gm.Meter,
    rows: Rows,
    pieces: Pieces,
    generator: torch.Generator,
) -> dict[str, float]:
    """PPO's passes over the batch; the meter looks at the first optimizer step. Returns means to
    log."""
    settings = pieces.config.actor_rollout_ref.actor
    horizon = float(rows["mask"].shape[1])
    sums: dict[str, Tensor] = {}
    ratios: list[Tensor] = []
    for number, index in enumerate(
        _mini_batches(len(rows["tokens"]), settings.ppo_epochs, pieces, generator)
    ):
        if number == 1:
            meter.pause()
        batch = select(rows, index)
        total = sequence_weights(batch["mask"], settings.loss_agg_mode).sum()
        optimizer.zero_grad()
        for part in in_micro_batches(batch, settings.ppo_micro_batch_size_per_gpu):
            tokens = token_losses(actor, part, pieces)
            weights = token_weights(part["mask"], settings.loss_agg_mode, horizon=horizon) / total
            terms: dict[str, Any] = {
                name: (weights * each).sum() for name, each in tokens.terms.items()
            }
            with meter.terms(policy=terms.pop("task"), **terms) as loss:  # their sum
                loss.backward()  # type: ignore[no-untyped-call]
            seen = _seen(tokens, part["old_log_probs"], settings)
            ratios.append(seen["ratio/mean"][part["mask"] > 0])
            _add(
                sums,
                {name: (part["mask"] * each).sum() for name, each in seen.items()},
                part["mask"].sum(),
            )
        nn.utils.clip_grad_norm_(actor.parameters(), settings.grad_clip)
        optimizer.step()
    meter.resume()
    extremes = torch.stack(torch.cat(ratios).aminmax()).tolist()
    return {**_means(sums), "ratio/min": extremes[0], "ratio/max": extremes[1]}


def _seen(tokens: TokenLosses, old_log_probs: Tensor, settings: ActorConfig) -> dict[str, Tensor]:
    """What is worth a mean over the chosen tokens, [N, T] each."""
    log_ratio = tokens.log_probs.detach() - old_log_probs
    ratio_off = log_ratio.expm1()
    above, below = ratio_off > settings.clip_ratio_high, ratio_off < -settings.clip_ratio_low
    seen = {
        "policy_loss": tokens.terms["task"].detach(),
        "entropy": tokens.entropy.detach(),
        "approx_kl": ratio_off - log_ratio,
        "clip_fraction": (above | below).float(),
        "clip_fraction_low": below.float(),
        "clip_fraction_high": above.float(),
        "ratio/mean": ratio_off + 1,
    }
    return seen if tokens.kl is None else {**seen, "kl_ref": tokens.kl.detach()}


def update_critic(
    critic: Critic,
    optimizer: torch.optim.Optimizer,
    rows: Rows,
    pieces: Pieces,
    generator: torch.Generator,
) -> dict[str, float]:
    """Regression of the values on the returns, in mini-batches like the actor's."""
    settings = pieces.config.critic
    micro = pieces.config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
    optimizer.param_groups[0]["lr"] = pieces.critic_learning_rate_of(pieces.config)
    sums: dict[str, Tensor] = {}
    for index in _mini_batches(len(rows["tokens"]), settings.ppo_epochs, pieces, generator):
        batch = select(rows, index)
        total = batch["mask"].sum()
        optimizer.zero_grad()
        for part in in_micro_batches(batch, micro):
            values = critic(part["tokens"], pieces.value_of)
            each = pieces.value_loss_of(
                values, part["values"], part["returns"], settings.cliprange_value
            )
            loss = (part["mask"] * each).sum() / total
            loss.backward()  # type: ignore[no-untyped-call]
            _add(sums, {"value_loss": (part["mask"] * each.detach()).sum()}, part["mask"].sum())
        nn.utils.clip_grad_norm_(critic.parameters(), settings.grad_clip)
        optimizer.step()
    return _means(sums)


def in_micro_batches(rows: Mapping[str, Tensor], size: int) -> Iterator[Rows]:
    """Rollouts of similar length together, each part as wide as its longest."""
    positions = torch.arange(1, rows["mask"].shape[1] + 1, device=rows["mask"].device)
    lengths = ((rows["mask"] > 0) * positions).amax(-1)
    for index in torch.split(lengths.argsort(stable=True), size):
        yield cut(select(rows, index))


def log_probs_in_parts(model: PreTrainedModel, rows: Rows, pieces: Pieces) -> Tensor:
    """log π of every token, without a gradient, [N, T]."""
    temperature = pieces.config.actor_rollout_ref.rollout.temperature
    return _in_parts(
        lambda tokens: log_probs_of(model, tokens, temperature, pieces.labels_of), rows, pieces
    )


def values_in_parts(critic: Critic, rows: Rows, pieces: Pieces) -> Tensor:
    """V before every token, without a gradient, [N, T]."""
    return _in_parts(lambda tokens: critic(tokens, pieces.value_of), rows, pieces)


@torch.no_grad()
def _in_parts(function: Callable[[Tensor], Tensor], rows: Rows, pieces: Pieces) -> Tensor:
    """A function of tokens [N, T] to [N, T], micro-batch by micro-batch; 0 where no token was
    chosen."""
    size = pieces.config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
    result = torch.zeros_like(rows["old_log_probs"])
    numbered = {**rows, "row": torch.arange(len(result), device=result.device)}
    for part in in_micro_batches(numbered, size):
        result[part["row"], : part["tokens"].shape[1]] = function(part["tokens"]) * part["mask"]
    return result


def _mini_batches(
    count: int, epochs: int, pieces: Pieces, generator: torch.Generator
) -> Iterator[Tensor]:
    """Rows of each optimizer step: in every epoch a new permutation, cut into pieces."""
    size = pieces.config.actor_rollout_ref.actor.ppo_mini_batch_size or MINI_BATCH
    for _ in range(epochs):
        yield from torch.split(
            torch.randperm(count, generator=generator, device=generator.device), size
        )


def _add(sums: dict[str, Tensor], more: Mapping[str, Tensor], count: Tensor) -> None:
    for name, value in {**more, "": count}.items():
        sums[name] = sums[name] + value if name in sums else value


def _means(sums: dict[str, Tensor]) -> dict[str, float]:
    """Over the chosen tokens of all passes."""
    count = sums.pop("")
    return {name: float(value / count) for name, value in sums.items()}
