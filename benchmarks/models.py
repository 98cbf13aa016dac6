"""The models that are measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["mlp", "num_parameters", "transformer", "with_gradients"]


def transformer(width: int, depth: int, vocabulary: int = 2000) -> nn.Module:
    """A stack of encoder layers with an embedding and a head: width 384 × 5 is 10M, width 768 × 11 is 85M."""

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
        name: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))
        for name, out in (("actor", 2), ("critic", 1))
    }
    return nn.ModuleDict(parts)


def num_parameters(model: nn.Module) -> int:
    """How many weights."""
    return sum(p.numel() for p in model.parameters())


def with_gradients(model: nn.Module, scale: float = 1e-3) -> nn.Module:
    """Give every parameter a gradient of noise."""
    generator = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator) * scale
    return model
