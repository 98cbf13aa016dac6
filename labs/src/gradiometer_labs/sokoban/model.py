"""The actor, a Hugging Face causal language model, and the critic that is made of a copy of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils import logging

from gradiometer.errors import UsageError
from gradiometer_labs.sokoban.config import Config, ModelConfig
from gradiometer_labs.sokoban.tokens import make_tokenizer

__all__ = ["Critic", "frozen", "load_actor", "make_actor", "make_critic", "quiet", "value_of"]

VALUE_SCALE = 10.0
"""A solved level pays about this much: the critic's head is of order one."""
ROPE_BASE = 100.0
"""The wavelengths of the rotary positions reach over a few hundred tokens, not over ten
thousands."""


def value_of(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The head: hidden states [N, T, H] to values [N, T]."""
    values: Tensor = VALUE_SCALE * (hidden @ weight + bias).float()
    return values


class Critic(nn.Module):
    """V of the state in which each token was chosen: tokens [N, T] to [N, T], the first column
    0."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(
        self, tokens: Tensor, head: Callable[[Tensor, Tensor, Tensor], Tensor] = value_of
    ) -> Tensor:
        """What the tokens before it say about each token."""
        hidden = self.backbone(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        return nn.functional.pad(head(hidden, self.weight, self.bias), (1, 0))


def make_actor(
    config: Config, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of `model_path`, or a small one with random weights, which come from the seed
    alone."""
    if config.model_path is not None:
        actor, tokenizer = load_actor(config.model_path)
    else:
        tokenizer = make_tokenizer()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            actor = small_model(config.model, tokenizer)
    nn.Module.to(actor, device)
    nn.Module.eval(actor)
    return actor, tokenizer  # no dropout: the losses are those of the policy that played


def small_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A Qwen2 of a few hundred thousand parameters."""
    return Qwen2ForCausalLM(  # type: ignore[no-untyped-call]
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_heads,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            initializer_range=config.hidden_size**-0.5,
            attn_implementation="sdpa",
        )
    )


def load_actor(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Weights and tokenizer from a folder or from the hub, in float32."""
    try:
        with quiet():
            tokenizer = load_tokenizer(path)
            actor = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"model_path={path} cannot be loaded ({reason}): give a folder written by"
            " save_pretrained with a causal language model and its tokenizer, or the name of one"
            " on the hub"
        ) from error
    embeddings: Any = actor.get_input_embeddings()
    if len(tokenizer) > len(embeddings.weight):
        raise UsageError(
            f"model_path={path} has a tokenizer of {len(tokenizer)} words and a model that knows"
            f" {len(embeddings.weight)}: they do not belong together"
        )
    return actor, tokenizer


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """As it was saved. From a folder with a Qwen2, AutoTokenizer would make a Qwen2 tokenizer of
    any other's words."""
    settings = Path(path) / "tokenizer_config.json"
    saved_as = (
        json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class")
        if settings.is_file()
        else None
    )
    plain = saved_as in {"TokenizersBackend", "PreTrainedTokenizerFast"}
    tokenizer: PreTrainedTokenizerBase = (
        PreTrainedTokenizerFast if plain else AutoTokenizer
    ).from_pretrained(path)
    return tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars of transformers: the training has its own."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def make_critic(actor: PreTrainedModel) -> Critic:
    """A critic that reads as the actor does, and values everything at 0."""
    embeddings: Any = actor.get_input_embeddings()
    return (
        Critic(copy.deepcopy(actor.base_model), embeddings.weight.shape[-1]).to(actor.device).eval()
    )


def frozen(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that does not learn."""
    return copy.deepcopy(model).requires_grad_(False)
