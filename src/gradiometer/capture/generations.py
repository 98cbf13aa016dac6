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
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.hooks import Remove

__all__ = ["Generation", "keys_of", "listen_to", "newest", "note", "trained_on", "training_on"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_ANSWERS = 4096
PROMPT, ANSWER = "prompt_ids", "completion_ids"
MASK = "completion_mask"
SCORE, MAKE, LOSS = "_calculate_rewards", "_generate_and_score_completions", "_compute_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Answers in the order of their generation."""

    rewards: Floats
    groups: Ints
    places: Mapping[bytes, int]
    """Where each pair of prompt and answer stands; of equal ones the first: they are of one group
    and earn the same, or are not listed."""
    repeated: frozenset[bytes] = frozenset()
    """Those that stand in several places: of an answer that comes again nobody knows which."""


_heard: deque[Generation] = deque(maxlen=2)
_trained_on: dict[str, Tensor] = {}


def newest() -> list[Generation]:
    """The last two, newest first: a batch may be of the one before."""
    return list(reversed(_heard))


def training_on(batch: Mapping[str, Any]) -> None:
    """A loss of these answers is computed: whatever goes backward next is of them."""
    held = {name: batch.get(name) for name in (PROMPT, ANSWER, MASK)}
    _trained_on.clear()
    _trained_on.update({name: x for name, x in held.items() if isinstance(x, Tensor)})


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
    for place, key in enumerate(keys_of(prompts, answers)):
        if (first := places.setdefault(key, place)) != place:
            repeated.add(key)
        if earned[first] != earned[place]:
            unsure.add(key)
    _heard.append(
        Generation(
            rewards=earned,
            groups=np.array([numbers[key] for key in asked], dtype=np.int64),
            places={key: place for key, place in places.items() if key not in unsure},
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
            training_on(inputs)
        return loss(self, model, inputs, *args, **kwargs)

    ours: dict[str, Callable[..., Any]] = {SCORE: scored, MAKE: made, LOSS: lost}
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


def _is_alone(trainer: Any) -> bool:
    return int(trainer.accelerator.num_processes) == 1
