"""Groups that share a forward: the numbers of a walk group by group, or that walk itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradiometer.maths import losses
from gradiometer.probes.anatomy import Anatomy, anatomy

GROUPS, SIZE, TOKENS, WORDS, WIDTH = 12, 4, 9, 13, 8
Rows = Mapping[str, Tensor]


class Layers(nn.Module):
    """Whatever layers are given, between words and logits."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embed(tokens)))


class Scale(nn.Module):
    """A scale for each channel, as most language models write RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class Flipped(nn.Module):
    """GPT-2's linear layer, and a product written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.other = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.bias, x.view(-1, WIDTH), self.weight).view(x.shape)
        return torch.tanh(y) @ self.other


class Causal(nn.Module):
    """Attention to what came before, with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions(torch.arange(x.shape[1])[None])
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Tied(Layers):
    """Words in and out by the same weight."""

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.body(self.embed(tokens)), self.embed.weight)


def batch_of(seed: int = 0) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    number = GROUPS * SIZE
    lengths = torch.randint(2, TOKENS, (number,), generator=generator)
    rewards = torch.randn(number, generator=generator)
    batch = {
        "tokens": torch.randint(0, WORDS, (number, TOKENS), generator=generator),
        "mask": (torch.arange(TOKENS) < lengths[:, None]).float(),
        "old": torch.full((number, TOKENS), -math.log(WORDS)),
        "advantages": rewards,
    }
    return batch, rewards, torch.arange(number) // SIZE


def terms_of(model: nn.Module) -> Callable[[Rows], dict[str, Tensor]]:
    def loss_terms(rows: Rows) -> dict[str, Tensor]:
        logits = model(rows["tokens"])
        log_probs = losses.token_log_probs(logits, rows["tokens"])
        advantages = rows["advantages"][:, None].expand_as(log_probs)
        return {
            "task": losses.policy_loss(log_probs, rows["old"], advantages),
            "entropy": -0.01 * losses.entropy(logits),
        }

    return loss_terms


def probe(
    model: nn.Module, terms: Callable[[Rows], dict[str, Tensor]] | None = None, **options: object
) -> Anatomy:
    batch, rewards, groups = batch_of()
    given = {"rewards": rewards, "groups": groups, "mask": batch["mask"], "num_buckets": 3}
    return anatomy(model, batch, terms or terms_of(model), **{**given, **options})


def check_same(one: Anatomy, other: Anatomy) -> None:
    assert set(one.metrics) == set(other.metrics)
    for name, value in other.metrics.items():
        assert one.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for name in (name for name in one.metrics if name.count("/") == 2 and "grad_norm" in name):
        assert one.metrics[name] == pytest.approx(other.metrics[name], rel=1e-5), name


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear layers": lambda: Layers(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)),
    "norms": lambda: Layers(
        nn.LayerNorm(WIDTH), Scale(), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
    ),
    "weights the other way round": lambda: Layers(Flipped()),
    "attention": lambda: Layers(Causal(), nn.LayerNorm(WIDTH)),
    "tied words": lambda: Tied(nn.Linear(WIDTH, WIDTH, bias=False)),
    "an idle dropout": lambda: Layers(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)).eval(),
}


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_groups_that_share_forwards_have_the_numbers_of_a_walk_by_groups(
    kind: str, null: bool
) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]()
    options = {"null": null, "blocks": {"words": "^embed"}}
    apart, together = probe(model, together=False, **options), probe(model, **options)
    assert together.tables["anatomy"]["walk"] == {"together": True, "trimmed": True, "why": ""}
    assert apart.tables["anatomy"]["walk"]["together"] is False
    check_same(together, apart)
    blocks = [result.tables["anatomy"]["blocks"]["words"] for result in (together, apart)]
    for bucket, norms in blocks[1].items():
        assert blocks[0][bucket] == pytest.approx(norms, rel=1e-5)


@pytest.mark.parametrize(
    "options", [{"trim": "mask"}, {"micro_batch_size": 2}, {"cross_fit": True}]
)
def test_they_have_them_with_the_options_of_the_walk(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = MODELS["attention"]()
    together = probe(model, **options)
    assert together.tables["anatomy"]["walk"]["together"]
    check_same(together, probe(model, together=False, **options))


class Pool(nn.Module):
    """Every token sees the mean over all of them, padding included."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean(1, keepdim=True)


def test_padding_that_the_model_reads_is_not_cut_off() -> None:
    torch.manual_seed(0)
    model = Layers(nn.Linear(WIDTH, WIDTH), Pool())
    together = probe(model)
    assert together.tables["anatomy"]["walk"] == {"together": True, "trimmed": False, "why": ""}
    check_same(together, probe(model, together=False))


class Crowd(nn.Module):
    """Rows see each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Steps(nn.Module):
    """A parameter that torch uses in one piece with others."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + 0.1 * self.calls)


FALLBACKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dropout": (lambda: Layers(nn.Dropout(0.3)), "random numbers"),
    "batch norm": (
        lambda: Layers(nn.Flatten(0, 1), nn.BatchNorm1d(WIDTH), nn.Unflatten(0, (-1, TOKENS))),
        "changes buffers",
    ),
    "rows that see each other": (lambda: Layers(Crowd()), "depends on the rows beside it"),
    "a recurrent layer": (lambda: Layers(Steps()), "no gradient by group"),
    "a buffer that counts": (lambda: Layers(Counter()), "changes buffers"),
    "half precision": (lambda: Layers(nn.Linear(WIDTH, WIDTH)).bfloat16(), "float32"),
}


@pytest.mark.parametrize("kind", FALLBACKS)
def test_what_cannot_share_forwards_is_walked_by_groups_and_says_so(kind: str) -> None:
    make, why = FALLBACKS[kind]
    torch.manual_seed(0)
    model = make()
    state = torch.get_rng_state()
    asked = probe(model)
    assert torch.equal(torch.get_rng_state(), state)
    apart = probe(model, together=False)
    walk = asked.tables["anatomy"]["walk"]
    assert not walk["together"]
    assert why in walk["why"]
    assert asked.metrics == apart.metrics, "the same walk, to the bit"


def test_losses_that_look_at_their_micro_batch_are_walked_by_groups() -> None:
    torch.manual_seed(0)
    model = MODELS["linear layers"]()

    def whitened(rows: Rows) -> dict[str, Tensor]:
        advantages = rows["advantages"] - rows["advantages"].mean()
        return terms_of(model)({**rows, "advantages": advantages})

    asked = probe(model, whitened)
    assert "depends on the rows beside it" in asked.tables["anatomy"]["walk"]["why"]
    assert asked.metrics == probe(model, whitened, together=False).metrics


def test_a_weight_that_is_changed_before_its_use_is_walked_by_groups() -> None:
    """An untied path to one parameter, beside uses that could be taken apart."""
    torch.manual_seed(0)
    model = MODELS["linear layers"]()

    def decayed(rows: Rows) -> dict[str, Tensor]:
        found = terms_of(model)(rows)
        found["decay"] = model.head.weight.square().sum().expand_as(found["task"])
        return found

    asked = probe(model, decayed)
    assert "head.weight is used in a way" in asked.tables["anatomy"]["walk"]["why"]
    assert asked.metrics == probe(model, decayed, together=False).metrics


def test_sketches_and_few_groups_are_walked_by_groups() -> None:
    torch.manual_seed(0)
    model = MODELS["linear layers"]()
    assert probe(model, memory_limit=0).tables["anatomy"]["walk"]["why"] == "vectors are sketches"
    batch, rewards, groups = batch_of()
    rows = {name: entry[: 3 * SIZE] for name, entry in batch.items()}
    few = anatomy(
        model, rows, terms_of(model), rewards=rewards[: 3 * SIZE], groups=groups[: 3 * SIZE],
        mask=rows["mask"],
    )  # fmt: skip
    assert few.tables["anatomy"]["walk"]["why"] == "fewer than 6 groups"
