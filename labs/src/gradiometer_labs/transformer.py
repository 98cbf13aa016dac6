"""What the labs' small transformers share: B sequences of T tokens, D the width, N experts, k of
them for one of S tokens."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn.functional import gelu, one_hot, scaled_dot_product_attention

__all__ = ["Attention", "FeedForward", "balance_loss_of"]


class Attention(nn.Module):
    """Each token looks at itself and what came before, [B, T, D] -> [B, T, D]."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for each in self.qkv(x).chunk(3, -1)
        )
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        return cast(Tensor, self.out(attended.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """Two linear layers, [..., D] -> [..., D]; an expert, where there are several."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(gelu(self.up(x))))


def balance_loss_of(logits: Tensor, indices: Tensor) -> Tensor:
    """N Σ_e f_e P_e with f_e the share of the load and P_e the mean probability; 1 when even. [S,
    N] and [S, k] -> []."""
    num_experts = logits.shape[-1]
    load = one_hot(indices.flatten(), num_experts).to(logits.dtype).mean(0)
    return num_experts * (load * logits.softmax(-1).mean(0)).sum()
