"""A decoder-only transformer over characters, with a block of experts in each layer.

Shapes: B sequences of T characters, D the width, H heads, V characters of the alphabet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Generator, Tensor, nn

from gradiometer_labs.config import torch_device
from gradiometer_labs.prismatic.config import Config
from gradiometer_labs.prismatic.experts import MergedExperts, RoutedExperts, RoutingPieces
from gradiometer_labs.prismatic.text import ALPHABET
from gradiometer_labs.transformer import Attention, FeedForward

__all__ = ["LanguageModel", "make_model"]


class PrismaticLayer(nn.Module):
    """Attention and experts, each on the normalised input and added to it."""

    def __init__(self, config: Config, routing: RoutingPieces, generator: Generator) -> None:
        super().__init__()
        self.norm_attention, self.norm_moe = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config.width, config.num_heads)
        self.moe: MergedExperts | RoutedExperts
        if config.router_type == "prismatic":
            self.moe = MergedExperts(config, routing, generator)
        else:
            self.moe = RoutedExperts(config, routing)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.norm_attention(x))
        added, balance = self.moe(self.norm_moe(x))
        return x + added, balance


class LanguageModel(nn.Module):
    """Characters to the logits of the next one."""

    def __init__(self, config: Config, routing: RoutingPieces, generator: Generator) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), config.width)
        self.places = nn.Embedding(config.context, config.width)
        self.layers = nn.ModuleList(
            [PrismaticLayer(config, routing, generator) for _ in range(config.num_layers)]
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, len(ALPHABET))

    def forward(self, characters: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T] -> logits [B, T, V], and the balance loss summed over layers."""
        x = self.characters(characters) + self.places.weight[: characters.shape[1]]
        balance = x.new_zeros(())
        for layer in self.layers:
            x, of_layer = layer(x)
            balance = balance + of_layer
        return self.head(self.norm(x)), balance

    def pools(self) -> Iterator[list[FeedForward]]:
        """The experts, layer by layer."""
        for layer in self.layers:
            yield [cast(FeedForward, expert) for expert in cast(PrismaticLayer, layer).moe.experts]


def make_model(config: Config, routing: RoutingPieces | None = None) -> LanguageModel:
    """The model the config describes, its weights drawn from the seed; torch's global state stays
    as it was."""
    perturbations = torch.Generator().manual_seed(config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = LanguageModel(config, routing or RoutingPieces(), perturbations)
    return model.to(torch_device(config.device))
