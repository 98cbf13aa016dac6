from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .parts import STEPS

NAMES = {"policy": "per_token_pg", "kl": "per_token_kl"}


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(tokens)))


def train(watch: Any, oracle: Any) -> None:
    model = Tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    beta = 0.04
    with watch(model, optimizer):
        for _ in range(STEPS):
            tokens = torch.randint(11, (4, 7))
            mask = (torch.arange(7) < torch.randint(3, 8, (4, 1))).float()
            advantages = torch.randn(4, 1)
            per_token_logps = (
                model(tokens).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
            )
            reference = per_token_logps.detach() + 0.1 * torch.randn(4, 7)
            delta = reference - per_token_logps
            per_token_kl = torch.exp(delta) - delta - 1
            coef_1 = torch.exp(per_token_logps - per_token_logps.detach())
            coef_2 = torch.clamp(coef_1, 0.8, 1.2)
            per_token_pg = -torch.min(coef_1 * advantages, coef_2 * advantages)
            per_token_loss = per_token_pg + beta * per_token_kl
            loss = (per_token_loss * mask).sum() / mask.sum()
            oracle(
                model,
                policy=(per_token_pg * mask).sum() / mask.sum(),
                kl=beta * (per_token_kl * mask).sum() / mask.sum(),
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
