"""A character-level language model with experts, watched by a meter: read it from top to bottom.

An update reads sequences nobody has seen before, and predicts each character after the prompt from
those before it. The text of update s comes from (seed, purpose, s).

Shapes: B sequences of T characters.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import gradiometer as gm
from gradiometer_labs import faults
from gradiometer_labs.control import ControlRewards
from gradiometer_labs.prismatic import experts
from gradiometer_labs.prismatic.config import Config, TrainingProgress
from gradiometer_labs.prismatic.experts import RoutingPieces
from gradiometer_labs.prismatic.model import LanguageModel, make_model
from gradiometer_labs.prismatic.text import ALPHABET, made_up
from gradiometer_labs.transformer import FeedForward, balance_loss_of
from gradiometer_labs.watching import watched
from gradiometer_labs.weights import load_weights

__all__ = [
    "Config",
    "Pieces",
    "Result",
    "TrainingProgress",
    "Validation",
    "task_loss_of",
    "train",
    "validate",
]

BLOCKS = {"attention": r"\.attention\.", "experts": r"\.experts\.", "router": r"\.router\."}
RECENT = 10
"""Updates whose mean loss is reported."""
SHIFTS = (0, -1, 1, 2)
"""Places, from the next character on, at which the character that a prediction is of is looked
for."""
CLEARLY = 0.1
"""Nats by which another place must fit better than the next one: less is which letters are common,
not where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """How well text is predicted that nobody trained on, in nats per character."""

    loss: float
    floor: float
    """Of the source itself on the same text: no model is better in the long run."""

    @property
    def excess(self) -> float:
        """What is left to learn."""
        return self.loss - self.floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the training ended."""

    mean_return: float
    """Log-likelihood per character, the mean of the last 10 updates: minus their loss."""
    episodes: int
    """Sequences trained on."""
    steps: int
    validation: Validation | None
    """Of the trained model; None when `val_size` is 0."""
    run: Path | None
    model: LanguageModel


class PrismaticPurpose(IntEnum):
    """What text is drawn for: each has its own stream at each step."""

    TRAINING = 1
    VALIDATION = 2


def text_for(config: Config, purpose: PrismaticPurpose, step: int, num: int) -> Tensor:
    """Sequences of one character more than the context, [num, T + 1]."""
    rng = np.random.default_rng((config.seed, purpose, step))
    return torch.from_numpy(made_up().sample(num, config.context + 1, rng))


def optimizer_of(
    weights: Iterable[tuple[str, nn.Parameter]], config: Config
) -> torch.optim.Optimizer:
    """AdamW, on all weights; given with their names."""
    return torch.optim.AdamW(
        [weight for _, weight in weights], lr=config.learning_rate, weight_decay=0.01
    )


def task_loss_of(logits: Tensor, characters: Tensor, prompt: int) -> Tensor:
    """Mean cross-entropy of the characters after the prompt: logits [B, T, V] of characters [B, T +
    1]."""
    return cross_entropy(logits[:, prompt - 1 :].flatten(0, 1), characters[:, prompt:].flatten())


def learning_rate_at(config: Config, done_fraction: float) -> float:
    """Linear from `learning_rate` to zero."""
    return config.learning_rate * (1 - done_fraction)


@torch.no_grad()
def lag_of(logits: Tensor, characters: Tensor, prompt: int) -> int:
    """Which shift of the characters the predictions fit best; 0 for a model that learns the next
    one: as `task_loss_of`."""
    window = slice(prompt, logits.shape[1] - max(SHIFTS))
    log_probs = logits[:, window].log_softmax(-1)
    fits = []
    for shift in SHIFTS:
        of = characters[:, window.start + 1 + shift : window.stop + 1 + shift]
        fits.append(log_probs.gather(-1, of.unsqueeze(-1)).mean())
    fits[0] += CLEARLY
    return SHIFTS[int(torch.stack(fits).argmax())]


def after_step(pool: Sequence[FeedForward]) -> None:
    """What is done to the experts of a layer after each step: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The lines of this training that a fault may change; see `gradiometer_labs/faults.py`."""

    config: Config
    model_of: Callable[[Config, RoutingPieces], LanguageModel] = make_model
    optimizer_of: Callable[[Iterable[tuple[str, nn.Parameter]], Config], torch.optim.Optimizer] = (
        optimizer_of
    )
    task_loss_of: Callable[[Tensor, Tensor, int], Tensor] = task_loss_of
    router_logits_of: Callable[[Tensor, nn.Linear], Tensor] = experts.router_logits_of
    routing_weights_of: Callable[[Tensor, Config], Tensor] = experts.routing_weights_of
    balance_loss_of: Callable[[Tensor, Tensor], Tensor] = balance_loss_of
    perturbed: Callable[[Tensor, Config, Generator], Tensor] = experts.perturbed
    after_step: Callable[[Sequence[FeedForward]], None] = after_step
    learning_rate_at: Callable[[Config, float], float] = learning_rate_at

    @property
    def routing(self) -> RoutingPieces:
        """Those that are inside the model."""
        return RoutingPieces(
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(RoutingPieces)}
        )


def update(
    model: LanguageModel,
    optimizer: torch.optim.Optimizer,
    meter: gm.Meter,
    characters: Tensor,
    pieces: Pieces,
) -> tuple[Tensor, Tensor]:
    """One optimizer step on sequences [B, T + 1]; returns the task's loss and the logits it was
    made of."""
    config = pieces.config
    logits, balance = model(characters[:, :-1])
    task_loss = pieces.task_loss_of(logits, characters, config.prompt)
    terms = {"task": task_loss}
    if config.router_type == "topk":
        terms["aux"] = config.aux_coef * balance

    optimizer.zero_grad()
    with meter.terms(**terms) as loss:  # type: ignore[arg-type]  # their sum
        loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    optimizer.step()
    for pool in model.pools():
        pieces.after_step(pool)
    return task_loss.detach(), logits.detach()


def train(config: Config, progress: Callable[[TrainingProgress], None] | None = None) -> Result:
    """Train from scratch or from weights; all that is random comes from `config.seed`."""
    pieces = faults.apply(config.fault, "prismatic", Pieces(config=config))
    config = pieces.config
    model = pieces.model_of(config, pieces.routing)
    load_weights(model, config.start)
    device = next(model.parameters()).device
    optimizer = pieces.optimizer_of(model.named_parameters(), config)
    recent: deque[float] = deque(maxlen=RECENT)
    validation: Validation | None = None
    control = ControlRewards(random_reward=-math.log(len(ALPHABET)))  # every character as likely
    progress = control.announced(progress)
    kept: dict[str, Any] = {
        "facts": control.facts,
        "blocks": BLOCKS,
        "experts_every": config.every,
        "dynamics_db": config.dynamics_db,
    }
    with watched(model, optimizer, config, **kept) as meter:
        for step in range(config.steps):
            learning_rate = pieces.learning_rate_at(config, step / config.steps)
            optimizer.param_groups[0]["lr"] = learning_rate
            characters = text_for(config, PrismaticPurpose.TRAINING, step, config.batch_size).to(
                device
            )
            loss, logits = update(model, optimizer, meter, characters, pieces)
            meter.log(loss=loss, reward=-loss, learning_rate=learning_rate)
            if step % config.every == 0:
                meter.log(reward_lag=lag_of(logits, characters, config.prompt))
            recent.append(float(loss))
            done = step + 1
            if config.val_size and (done % config.val_every == 0 or done == config.steps):
                validation = validate(model, config)
                meter.log({"val/loss": validation.loss, "val/floor": validation.floor})
            if progress is not None:
                progress(
                    TrainingProgress(
                        done=done, total=config.steps, mean_return=-float(np.mean(recent))
                    )
                )
    return Result(
        mean_return=-float(np.mean(recent)),
        episodes=config.steps * config.batch_size,
        steps=config.steps,
        validation=validation,
        run=meter.run,
        model=model,
    )


@torch.no_grad()
def validate(model: LanguageModel, config: Config) -> Validation:
    """On sequences that depend on the seed alone, in batches of the size trained with: a merge is
    over a batch."""
    characters = text_for(config, PrismaticPurpose.VALIDATION, 0, config.val_size)
    device = next(model.parameters()).device
    losses = []
    for batch in torch.split(characters.to(device), config.batch_size):
        loss = task_loss_of(model(batch[:, :-1])[0], batch, config.prompt)
        losses.append(float(loss) * len(batch))
    floor = made_up().floor(characters.numpy(), config.prompt)
    return Validation(loss=sum(losses) / config.val_size, floor=floor)
