"""Answers that a trainer generated, with their rewards: heard where TRL's trainers make them.

A class is listened to once it is imported. `GRPOTrainer` and `RLOOTrainer` first ask for rewards
and then return the batch; both are of one generation, in one order. What is trained on later is
shuffled, and found again by its tokens.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.hooks import Remove

__all__ = [
    "Generation",
    "before_filler",
    "filler_of",
    "forwarded",
    "keys_of",
    "listen_to",
    "newest",
    "note",
    "trained_on",
    "training_on",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_ANSWERS = 4096
PROMPT, ANSWER = "prompt_ids", "completion_ids"
MASK, OLD = "completion_mask", "old_per_token_logps"
LOG_PROBS, ENTROPIES = "log_probs", "entropies"
FORWARD = "_get_per_token_logps_and_entropies"
SCORE, MAKE, LOSS = "_calculate_rewards", "_generate_and_score_completions", "_compute_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Answers in the order of their generation."""

    rewards: Floats
    groups: Ints
    places: Mapping[bytes, int]
    """Where each pair of prompt and answer stands; of equal ones the first: they are of one group
    and earn the same, or are not listed."""
    same: Ints
    """A number for each answer, the same for equal ones to one prompt."""
    repeated: frozenset[bytes] = frozenset()
    """Those that stand in several places: of an answer that comes again nobody knows which."""


_heard: deque[Generation] = deque(maxlen=2)
_trained_on: dict[str, Tensor] = {}


def newest() -> list[Generation]:
    """The last two, newest first: a batch may be of the one before."""
    return list(reversed(_heard))


def training_on(batch: Mapping[str, Any], filler: int | None = None) -> None:
    """A loss of these answers is computed: whatever goes backward next is of them. `filler` is the
    token that stands behind the end of an answer."""
    held = {name: batch.get(name) for name in (PROMPT, ANSWER, MASK, OLD)}
    answers, mask = held[ANSWER], held[MASK]
    if filler is not None and isinstance(answers, Tensor) and isinstance(mask, Tensor):
        counts = before_filler(answers, filler)
        held[MASK] = counts if bool((mask > counts).any()) else mask
    _trained_on.clear()
    _trained_on.update({name: x for name, x in held.items() if isinstance(x, Tensor)})


def forwarded(answer: Any) -> None:
    """A forward for the loss gave log-probabilities and entropies of all tokens of the answers."""
    if not torch.is_grad_enabled() or not isinstance(answer, tuple) or len(answer) < 2:
        return
    log_probs, entropies = answer[:2]
    if isinstance(log_probs, Tensor) and isinstance(entropies, Tensor):
        _trained_on.update({LOG_PROBS: log_probs.detach(), ENTROPIES: entropies.detach()})


def before_filler(answers: Tensor, filler: int) -> Tensor:
    """1 for each token that is followed by something else, and for the first of those that are not:
    a token that fills may be the one that ends."""
    behind = (answers == filler).flip(1).long().cumprod(1).flip(1)
    first = torch.cat([torch.zeros_like(behind[:, :1]), behind[:, :-1]], dim=1)
    return 1 - behind * first


def trained_on() -> Mapping[str, Tensor]:
    """Prompts, answers and mask of the loss that was computed last."""
    return _trained_on


def note(batch: Mapping[str, Any], rewards: Tensor) -> None:
    """A batch as the trainer returns it, with one reward an answer."""
    prompts, answers = batch.get(PROMPT), batch.get(ANSWER)
    if not isinstance(prompts, Tensor) or not isinstance(answers, Tensor):
        return
    if not len(prompts) == len(answers) == len(rewards) <= MOST_ANSWERS:
        return
    earned = rewards.detach().double().cpu().numpy()
    asked = [row.tobytes() for row in prompts.cpu().numpy()]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(asked))}
    places: dict[bytes, int] = {}
    unsure: set[bytes] = set()
    repeated: set[bytes] = set()
    keys = keys_of(prompts, answers)
    for place, key in enumerate(keys):
        if (first := places.setdefault(key, place)) != place:
            repeated.add(key)
        if earned[first] != earned[place]:
            unsure.add(key)
    _heard.append(
        Generation(
            rewards=earned,
            groups=np.array([numbers[key] for key in asked], dtype=np.int64),
            places={key: place for key, place in places.items() if key not in unsure},
            same=np.array([places[key] for key in keys], dtype=np.int64),
            repeated=frozenset(repeated),
        )
    )


def keys_of(prompts: Tensor, answers: Tensor) -> list[bytes]:
    """What each row of a batch is known by."""
    pairs = zip(prompts.cpu().numpy(), answers.cpu().numpy(), strict=True)
    return [prompt.tobytes() + b"|" + answer.tobytes() for prompt, answer in pairs]


def listen_to(trainer: type[Any]) -> Remove:
    """Hear what trainers of this class generate; a fault of ours is nothing to them."""
    score, make, loss = (getattr(trainer, name, None) for name in (SCORE, MAKE, LOSS))
    if score is None or make is None or loss is None:  # another version
        return lambda: None

    told: list[Tensor] = []

    @functools.wraps(score)
    def scored(self: Any, *args: Any, **kwargs: Any) -> Any:
        by_function = score(self, *args, **kwargs)
        with suppress(Exception):
            weights = self.reward_weights.to(by_function.device)
            told[:] = [(by_function.detach() * weights).nansum(dim=1)]
        return by_function

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> Any:
        told.clear()
        batch = make(self, *args, **kwargs)
        with suppress(Exception):
            if told and self.model.training and _is_alone(self):
                note(batch, told[0])
        told.clear()
        return batch

    @functools.wraps(loss)
    def lost(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            training_on(inputs, filler_of(self))
        return loss(self, model, inputs, *args, **kwargs)

    ours: dict[str, Callable[..., Any]] = {SCORE: scored, MAKE: made, LOSS: lost}
    if (forward := getattr(trainer, FORWARD, None)) is not None:

        @functools.wraps(forward)
        def gave(self: Any, *args: Any, **kwargs: Any) -> Any:
            answer = forward(self, *args, **kwargs)
            with suppress(Exception):
                forwarded(answer)
            return answer

        ours[FORWARD] = gave
    before = {name: vars(trainer).get(name) for name in ours}
    for name, method in ours.items():
        setattr(trainer, name, method)

    def remove() -> None:
        _heard.clear()
        _trained_on.clear()
        for name, method in before.items():
            if vars(trainer).get(name) is not ours[name]:
                continue
            if method is None:
                delattr(trainer, name)
            else:
                setattr(trainer, name, method)

    return remove


def filler_of(trainer: Any) -> int | None:
    """The token that a trainer of TRL puts behind the end of an answer."""
    found = getattr(getattr(trainer, "_tokenizer", None), "pad_token_id", None)
    return found if isinstance(found, int) else None


def _is_alone(trainer: Any) -> bool:
    return int(trainer.accelerator.num_processes) == 1
