"""Causal self-attention, as the labs' small transformers use it: B sequences of T tokens, D the width."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["Attention"]


class Attention(nn.Module):
    """Each token looks at itself and what came before, [B, T, D] -> [B, T, D]."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        return cast(Tensor, self.out(attended.transpose(1, 2).flatten(2)))
