"""Are the tokens of answers samples of the policy that is trained on them?

Of samples of π the mean of log π(a) + H(π) is zero, token by token. A sampler that is hotter draws
what is less likely than it should be; one that is colder, or takes the likeliest tokens only, what
is likelier. It is looked at where the weights are those that answered: in the first pass over a
generation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

from gradiometer.capture import generations
from gradiometer.capture.proofs import ProofLog

__all__ = ["SampledTokens"]

ID = "sampler-mismatch"
WINDOW, LEAST_TOKENS = 4, 128
"""Generations that are judged together, and tokens that they must have."""
FRESH = 0.02
"""Mean |log ratio| up to which the weights are those that answered; half precision stays below."""
FAR, SURE = 0.25, 8.0
"""Nats a token that a truncated sampler (top-p 0.95) hardly reaches, and standard errors."""


class SampledTokens:
    """Looks at generation 1, 2, 3, 4, 6, 9, 13, ... until it is found."""

    def __init__(self, proofs: ProofLog) -> None:
        self._proofs = proofs
        self._number = self._next = 0
        self._seen: deque[Tensor] = deque(maxlen=WINDOW)
        """Of a generation: tokens, sums of log π + H, of its squares and of H."""

    def look(self, held: Mapping[str, Tensor]) -> None:
        """The loss of a generation's answers is about to go backward for the first time."""
        self._number += 1
        if self._number < self._next or self._proofs.state(ID) == "found":
            return
        self._next = self._number + max(1, self._number // 2)
        if (sums := _sums(held)) is not None:
            self._seen.append(sums)
        if len(self._seen) == WINDOW:
            self._judge()

    def _judge(self) -> None:
        tokens, total, squares, entropy = torch.stack(list(self._seen)).sum(0).tolist()
        if tokens < LEAST_TOKENS:
            return
        mean = total / tokens
        error = math.sqrt(max(squares / tokens - mean * mean, 0.0) / tokens)
        if abs(mean) < FAR or abs(mean) < SURE * error:
            self._proofs.ok(ID)
            return
        self._proofs.found(
            ID,
            f"the log-probabilities of {tokens:.0f} sampled tokens are {abs(mean):.2f} nats"
            f" {'below' if mean < 0 else 'above'} what this policy draws on the mean (its entropy"
            f" is {entropy / tokens:.2f}): they were drawn {'hotter' if mean < 0 else 'colder'}",
            subject="tokens",
            mean=mean,
            tokens=int(tokens),
        )


def _sums(held: Mapping[str, Tensor]) -> Tensor | None:
    """None where not enough is known, or other weights answered."""
    names = (generations.LOG_PROBS, generations.ENTROPIES, generations.MASK)
    log_probs, entropies, mask = (held.get(name) for name in names)
    if log_probs is None or entropies is None or mask is None:
        return None
    if not log_probs.shape == entropies.shape == mask.shape:
        return None
    counts = mask > 0
    log_probs, entropies = log_probs.float(), entropies.float()
    if (old := held.get(generations.OLD)) is not None:
        fits = old.shape == log_probs.shape and bool(counts.any())
        if not fits or float((old - log_probs)[counts].abs().mean()) > FRESH:
            return None
    beyond = (log_probs + entropies)[counts]
    found = torch.stack([beyond.sum(), beyond.square().sum(), entropies[counts].sum()])
    return torch.cat([found.new_tensor([float(beyond.numel())]), found])
