"""Questions with one right answer: copy these digits, or reverse them.

    c 3 1 4 . =   ->   3 1 4 .          r 3 1 4 . =   ->   4 1 3 .

A question is padded to one length with END, so that every answer begins at the same place.
Shapes: N questions of Q = max_digits + 2 tokens, answers of up to A = max_digits + 2 tokens.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

__all__ = [
    "END",
    "NUM_DIGITS",
    "VOCABULARY",
    "answered",
    "best_reward",
    "questions",
    "random_reward",
    "rewards_of",
    "taught",
    "tokens_of",
]

NUM_DIGITS = 8
COPY, REVERSE, EQUALS, END = 8, 9, 10, 11
VOCABULARY = 12
TOKEN_COST = 0.01
"""What every token of a right answer costs: one of four digits and an end earns 0.95."""


def questions(num: int, max_digits: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Questions [N, Q] and their right answers [N, A], each filled up with END."""
    digits = torch.randint(NUM_DIGITS, (num, max_digits), generator=generator)
    lengths = torch.randint(1, max_digits + 1, (num, 1), generator=generator)
    modes = torch.where(torch.rand(num, 1, generator=generator) < 0.5, COPY, REVERSE)
    places = torch.arange(max_digits).expand(num, -1)
    inside = places < lengths
    asked = torch.where(inside, digits, END)
    from_where = torch.where(modes == REVERSE, lengths - 1 - places, places).clamp(min=0)
    right = torch.where(inside, digits.gather(1, from_where), END)
    ends = torch.full((num, 2), END)
    return torch.cat([modes, asked, torch.full((num, 1), EQUALS)], 1), torch.cat([right, ends], 1)


def taught(right: Tensor, clumsiness: float, generator: Generator) -> Tensor:
    """What a teacher answers who gets that share of the digits wrong, [N, A]."""
    slips = torch.rand(right.shape, generator=generator) < clumsiness
    others = torch.randint(NUM_DIGITS, right.shape, generator=generator)
    return torch.where(slips & (right != END), others, right)


def answered(tokens: Tensor) -> Tensor:
    """Which tokens are of the answer: up to its first END, which is the answer's too, [N, A]."""
    ended = (tokens == END).cumsum(1)
    return (ended == 0) | ((ended == 1) & (tokens == END))


def tokens_of(answers: Tensor) -> Tensor:
    """How many tokens each answer has, [N]."""
    return answered(answers).sum(1)


def rewards_of(answers: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """1 less a hundredth a token for the right answer, 0 for any other; and which are right. [N, A]
    twice -> [N] twice."""
    correct = (torch.where(answered(answers), answers, END) == right).all(1)
    return correct * (1 - TOKEN_COST * tokens_of(answers)), correct


def best_reward(max_digits: int) -> float:
    """Of a policy that is always right, in the mean over questions."""
    return 1 - TOKEN_COST * ((1 + max_digits) / 2 + 1)


def random_reward(max_digits: int, seed: int, num: int = 4096) -> float:
    """Of tokens at random, in the mean over questions."""
    generator = torch.Generator().manual_seed(seed)
    _, right = questions(num, max_digits, generator)
    answers = torch.randint(VOCABULARY, right.shape, generator=generator)
    return float(rewards_of(answers, right)[0].mean())
