"""The models that are measured, and a training step of each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

__all__ = [
    "actor_critic_loss",
    "many_tensors",
    "mlp",
    "next_token_loss",
    "num_parameters",
    "sgd",
    "token_loss",
    "train_step",
    "transformer",
    "with_gradients",
]


def transformer(width: int, depth: int, vocabulary: int = 2000) -> nn.Module:
    """A stack of encoder layers with an embedding and a head: width 384 × 5 is 10M, width 768 × 11
    is 85M."""

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            layer = nn.TransformerEncoderLayer(
                width, width // 64, 4 * width, batch_first=True, dropout=0.0, norm_first=True
            )
            self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
            self.head = nn.Linear(width, vocabulary)

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.head(self.blocks(self.embed(tokens)))
            return out

    torch.manual_seed(0)
    return Transformer()


def mlp() -> nn.Module:
    """The 2×64 actor and critic of classic control."""
    torch.manual_seed(0)
    parts = {
        name: nn.Sequential(
            nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out)
        )
        for name, out in (("actor", 2), ("critic", 1))
    }
    return nn.ModuleDict(parts)


def many_tensors(pairs: int) -> nn.Module:
    """So many weights of 10 × 10 and biases of 10."""
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(10, 10) for _ in range(pairs)])


def num_parameters(model: nn.Module) -> int:
    """How many weights."""
    return sum(p.numel() for p in model.parameters())


def with_gradients(model: nn.Module, scale: float = 1e-3) -> nn.Module:
    """Give every parameter a gradient of noise."""
    generator = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator) * scale
    return model


def next_token_loss(
    model: nn.Module, batch: int, length: int, vocabulary: int = 2000
) -> Callable[[], Tensor]:
    """The loss on one batch of noise, forward anew at each call."""
    tokens = torch.randint(
        vocabulary, (batch, length + 1), generator=torch.Generator().manual_seed(2)
    )
    return lambda: cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def token_loss(model: nn.Module) -> Callable[[], Tensor]:
    """Of 2 × 16 tokens: a short step, so that what is added to it stands out."""
    return next_token_loss(model, 2, 16)


def actor_critic_loss(model: nn.Module) -> Callable[[], Tensor]:
    """Of both heads on 64 observations."""
    assert isinstance(model, nn.ModuleDict)
    observations = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))
    return lambda: sum(
        (head(observations).square().mean() for head in model.values()), torch.zeros(())
    )


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The cheapest step there is."""
    return torch.optim.SGD(model.parameters(), lr=1e-4)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]
) -> Callable[[], None]:
    """Forward, backward, clip, step."""
    parameters = list(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step
