"""What answers of a generation tell by themselves: equal ones, their samples, what fills them up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradiometer.capture import generations
from gradiometer.capture.equalanswers import EqualAnswers
from gradiometer.capture.generations import Generation, before_filler
from gradiometer.capture.preferencepairs import PreferencePairs
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.sampledtokens import SampledTokens


class Told:
    """Events, by kind."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.details: list[dict[str, Any]] = []

    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        """One more."""
        assert message
        self.kinds.append(kind)
        self.details.append(detail)


def heard(rewards: np.ndarray[Any, Any], same: np.ndarray[Any, Any]) -> Generation:
    return Generation(rewards=rewards, groups=same * 0, places={}, same=same)


def generations_of(how: str) -> Told:
    rng, told = np.random.default_rng(0), Told()
    reader = EqualAnswers(ProofLog(told))
    worth = rng.normal(size=12)
    for _ in range(6):
        same = rng.integers(0, 12, 16)
        rewards = worth[same]
        if how == "shuffled":
            rewards = rng.permutation(rewards)
        elif how == "moved":
            rewards = np.roll(rewards, 1)
        elif how == "errs":  # now and then
            rewards = np.where(rng.random(16) < 0.05, -rewards, rewards)
        reader.look(heard(rewards, same))
    return told


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ("", []),
        ("errs", []),
        ("shuffled", ["reward-unreliable"]),
        ("moved", ["misaligned-data"]),
    ],
)
def test_equal_answers_that_earn_otherwise_are_told(how: str, kinds: list[str]) -> None:
    assert list(dict.fromkeys(generations_of(how).kinds)) == kinds


def sampled(temperature: float, *, stale: bool = False) -> list[str]:
    torch.manual_seed(0)
    told = Told()
    reader = SampledTokens(ProofLog(told))
    for _ in range(12):
        logits = 2.0 * torch.randn(8, 6, 20)
        spread = torch.distributions.Categorical(logits=logits)
        drawn = torch.distributions.Categorical(logits=logits / temperature).sample()
        held: dict[str, Tensor] = {
            generations.LOG_PROBS: spread.log_prob(drawn),
            generations.ENTROPIES: spread.entropy(),
            generations.MASK: torch.ones(8, 6),
        }
        if stale:
            held[generations.OLD] = held[generations.LOG_PROBS] - 0.5
        reader.look(held)
    return told.kinds


def test_tokens_of_a_hotter_sampler_are_told_and_those_of_the_policy_are_not() -> None:
    assert sampled(1.0) == []
    assert sampled(3.0) == ["sampler-mismatch"]
    assert sampled(0.3) == ["sampler-mismatch"]
    assert sampled(3.0, stale=True) == []  # of other weights nothing is known


def test_what_stands_behind_the_end_of_an_answer_does_not_count() -> None:
    answers = torch.tensor([[5, 1, 0, 0, 0], [5, 5, 5, 5, 5], [0, 5, 1, 0, 0]])
    assert before_filler(answers, 0).tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1, 1, 1, 1, 0]]
    ends = torch.tensor([[5, 1, 1, 1]])  # the token that fills is the one that ends
    assert before_filler(ends, 1).tolist() == [[1, 1, 0, 0]]


def pairs(how: str) -> Told:
    torch.manual_seed(0)
    told = Told()
    reader = PreferencePairs(told.event)
    stock = torch.randint(3, 9, (20, 2, 6))
    for step in range(10):
        chosen = stock[torch.arange(8 * step, 8 * step + 8) % 20]
        if how == "exchanged":
            turned = torch.rand(8) < 0.5
            chosen = torch.where(turned[:, None, None], chosen.flip(1), chosen)
        prompt = torch.full((16, 2), 3)
        ids = torch.cat([prompt, torch.cat([chosen[:, 0], chosen[:, 1]])], dim=1)
        mask = torch.cat([torch.zeros(16, 2), torch.ones(16, 6)], dim=1)
        inputs = {"input_ids": ids, "completion_mask": 1 - mask if how == "prompt" else mask}
        reader.look(inputs, 0)
    return told


@pytest.mark.parametrize(
    ("how", "kinds"),
    [("", []), ("exchanged", ["reward-unreliable"]), ("prompt", ["recipe-mismatch"])],
)
def test_pairs_that_come_back_exchanged_or_look_alike_are_told(how: str, kinds: list[str]) -> None:
    assert pairs(how).kinds == kinds
