"""Experts are found by themselves, and everything said of them is what a loop over their gradients
says."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import gradiometer as gm
from gradiometer.capture.blocks import named_parameters
from gradiometer.capture.experts import ExpertLayer, find_experts
from gradiometer.capture.routing import read_router


class Merged(nn.Module):
    """SMEAR: one expert whose weights are the mean of all, weighted by the router; per batch or per
    sample."""

    def __init__(self, num: int = 3, width: int = 12, *, per_sample: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(width, num)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 20), nn.Tanh(), nn.Linear(20, width)) for _ in range(num)
        )
        self.per_sample = per_sample

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        if not self.per_sample:
            return self.merge(weights.mean(0), x)
        return torch.stack([self.merge(w, row[None])[0] for w, row in zip(weights, x, strict=True)])

    def merge(self, weights: Tensor, x: Tensor) -> Tensor:
        named = [dict(expert.named_parameters()) for expert in self.experts]
        merged = {
            name: sum(w * part[name] for w, part in zip(weights, named, strict=True))
            for name in named[0]
        }
        return functional_call(self.experts[0], merged, (x,))


class Routed(nn.Module):
    """The usual top-k of tokens, an expert a module, as Mixtral was written before weights were
    fused."""

    def __init__(self, num: int = 4, width: int = 12, top_k: int = 2) -> None:
        super().__init__()
        self.gate = nn.Linear(width, num, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(num))
        self.top_k = top_k

    def forward(self, x: Tensor) -> Tensor:
        best = self.gate(x).softmax(-1).topk(self.top_k, -1)
        weights = best.values / best.values.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, place = (best.indices == e).nonzero(as_tuple=True)
            if len(token):
                out = out.index_add(0, token, weights[token, place, None] * expert(x[token]))
        return out


class Stack(nn.Module):
    """Two layers of experts with residuals."""

    def __init__(self, make: Callable[[], nn.Module], layers: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(layers))
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def found_in(model: nn.Module, given: Any = None) -> list[ExpertLayer]:
    return find_experts(model, named_parameters(model), given)


def trained(
    model: nn.Module,
    run: Path | None,
    *,
    steps: int = 1,
    before_step: Callable[[gm.Meter], Any] | None = None,
    **given: Any,
) -> gm.Meter:
    optimizer = torch.optim.SGD(model.parameters(), lr=given.pop("lr", 0.01))
    torch.manual_seed(3)
    with gm.watch(model, optimizer, run=run, budget=None, **{"experts_every": 1, **given}) as meter:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(16, 12)).square().mean().backward()
            if before_step is not None:
                before_step(meter)
            optimizer.step()
    return meter


def last(run: Path) -> dict[str, float]:
    opened = gm.load(run)
    return {name: float(opened.series(name)[1][-1]) for name in opened.names()}


# Finding them.


def test_a_list_of_one_shape_beside_a_router_is_a_layer_of_experts() -> None:
    layers = found_in(Stack(Merged))
    assert [(layer.path, layer.num, layer.kind) for layer in layers] == [
        ("blocks.0", 3, "list"),
        ("blocks.1", 3, "list"),
    ]
    assert all(len(layer.slabs) == 4 and layer.router is not None for layer in layers)
    assert found_in(Stack(Routed))[0].top_k == 2


def test_the_layers_of_a_transformer_are_no_experts() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16), num_layers=3, enable_nested_tensor=False
    )
    assert found_in(encoder) == []
    gated = nn.Module()
    gated.convolution = nn.Conv1d(8, 8, 3)
    gated.gate = nn.Linear(8, 8)
    assert found_in(gated) == []  # a 3-D weight with eight outputs beside a gate with eight outputs


def test_lists_of_different_shapes_or_shared_weights_are_no_experts() -> None:
    model = Merged()
    model.experts[1] = nn.Linear(12, 5)
    assert found_in(model) == []
    model = Merged(num=2)
    model.experts[1] = model.experts[0]
    assert found_in(model) == []


@pytest.mark.slow
def test_experts_of_hugging_face_are_found(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    common = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts_per_tok": 2,
        "output_router_logits": True,
    }
    mixtral = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**common, num_local_experts=4)
    )
    special = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
    qwen = transformers.Qwen2MoeForCausalLM(
        transformers.Qwen2MoeConfig(**common, num_experts=4, **special)
    )
    olmoe = transformers.OlmoeForCausalLM(
        transformers.OlmoeConfig(**common, num_experts=4, pad_token_id=0, eos_token_id=1)
    )
    for name, model in {"mixtral": mixtral, "qwen": qwen, "olmoe": olmoe}.items():
        folder = tmp_path / name
        grads = train_language_model(model, folder)
        values = last(folder)
        for layer in range(2):
            path = f"model.layers.{layer}.mlp"
            fused = [grads[f"{path}.experts.{part}"] for part in ("gate_up_proj", "down_proj")]
            for e in range(4):
                parts = torch.cat([part[e].reshape(-1) for part in fused])
                assert values[f"grad/layer.{path}/expert/{e}/norm"] == pytest.approx(
                    parts.norm().item(), rel=1e-5
                )
                first = torch.cat([part[0].reshape(-1) for part in fused])
                if e:
                    cosine = torch.cosine_similarity(parts, first, dim=0).item()
                    assert values[f"grad/layer.{path}/expert/{e}/cos_to_0"] == pytest.approx(
                        cosine, abs=1e-5
                    )
            loads = [values[f"router/{path}/load/{e}"] for e in range(4)]
            assert sum(loads) == pytest.approx(1)
            assert values[f"router/{path}/grad"] == pytest.approx(
                grads[f"{path}.gate.weight"].norm().item(), rel=1e-5
            )
            split = values[f"router/{path}/grad_task"], values[f"router/{path}/grad_aux"]
            assert abs(split[0] - split[1]) <= values[f"router/{path}/grad"] <= sum(split) + 1e-9
            assert min(split) > 0
        if name == "mixtral":  # its weights are normalised: over tokens they add up to one
            assert sum(
                values[f"grad/expert/{e}/routing_weight"] for e in range(4)
            ) == pytest.approx(1, rel=1e-5)


def train_language_model(model: Any, folder: Path) -> dict[str, Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(0)
    grads: dict[str, Tensor] = {}
    with gm.watch(model, optimizer, run=folder, budget=None, experts_every=1) as meter:
        for _ in range(2):
            tokens = torch.randint(0, 64, (4, 16))
            out = model(input_ids=tokens, labels=tokens)
            aux = model.config.router_aux_loss_coef * out.aux_loss
            optimizer.zero_grad()
            with meter.terms(task=out.loss - aux, aux=aux) as loss:
                loss.backward()
            grads = {
                name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
            }
            optimizer.step()
    return grads


def test_an_expert_list_one_level_below_its_gate_is_found() -> None:
    model = nn.Module()
    model.moe = nn.Module()
    model.moe.gate = nn.Linear(6, 3)
    model.moe.experts = nn.Module()
    model.moe.experts.local = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
    (layer,) = found_in(model)
    assert (layer.path, layer.num) == ("moe", 3)
    assert layer.router is model.moe.gate


def test_a_list_of_layers_that_hold_experts_is_no_list_of_experts() -> None:
    model = nn.Module()
    model.moe_layers = nn.ModuleList(Merged() for _ in range(2))
    assert [(layer.path, layer.num) for layer in found_in(model)] == [
        ("moe_layers.0", 3),
        ("moe_layers.1", 3),
    ]


def test_two_lists_in_one_module_have_names_of_their_own() -> None:
    model = Merged()
    model.shared_experts = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
    assert [(layer.path, layer.num) for layer in found_in(model)] == [
        ("model", 3),
        ("model.shared_experts", 2),
    ]


def test_fused_weights_beside_their_router_in_one_module_are_found() -> None:
    for gate in (
        nn.Linear(12, 4),
        nn.Parameter(torch.randn(12, 4)),
        nn.Parameter(torch.randn(4, 12)),
    ):
        model = nn.Module()
        model.moe = nn.Module()
        model.moe.w1, model.moe.w2 = (
            nn.Parameter(torch.randn(4, 12, 20)),
            nn.Parameter(torch.randn(4, 20, 12)),
        )
        model.moe.gate = gate
        (layer,) = found_in(model)
        assert (layer.path, layer.num, len(layer.slabs)) == ("moe", 4, 2)
        assert len(layer.router_parameters) == (2 if isinstance(gate, nn.Module) else 1)
    model.moe = nn.Module()
    model.moe.input_linear, model.moe.output_linear, model.moe.gate = (
        FusedExperts(),
        FusedExperts(),
        nn.Linear(12, 4),
    )
    (layer,) = found_in(model)  # JetMoe: two halves of the same experts
    assert (layer.path, layer.num, len(layer.slabs)) == ("moe", 4, 2)


class FusedExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 12, 12))


def test_a_dict_of_experts_may_hold_a_dropout_too_and_a_gate_has_an_output_for_each() -> None:
    model = nn.Module()
    model.experts = nn.ModuleDict(
        {"a": nn.Linear(6, 6), "b": nn.Linear(6, 6), "dropout": nn.Dropout(0.1)}
    )
    model.router = nn.Linear(6, 2)
    assert found_in(model)[0].num == 2
    other = nn.Module()
    other.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
    other.gate = nn.Linear(8, 5)  # eight inputs, not outputs
    assert found_in(other) == []


def test_experts_can_be_given_and_left_out() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "chooser": nn.Linear(4, 2)})
    assert found_in(model, {"pair": ["^a", "^b"]})[0].num == 2
    (layer,) = found_in(model, {"pair": ([model["a"], model["b"]], model["chooser"])})
    assert layer.router is model["chooser"]
    assert [len(slab.parts) for slab in layer.slabs] == [2, 2]
    assert found_in(Stack(Merged), False) == []


def test_a_module_list_can_be_given_with_its_router_and_the_choice_of_its_module_is_known() -> None:
    model = Stack(Routed, layers=1)
    block = model.blocks[0]
    (layer,) = found_in(model, {"moe": (block.experts, block.gate)})
    assert (layer.num, layer.router, layer.top_k) == (4, block.gate, 2)
    (layer,) = found_in(model, {"moe": block.experts})
    assert (layer.num, layer.router) == (4, None)
    (layer,) = found_in(model, {"moe": (block.experts[0], block.experts[1])})
    assert (layer.num, layer.router) == (2, None)
    both = nn.ModuleDict(
        {"a": nn.ModuleList([nn.Linear(4, 4)]), "b": nn.ModuleList([nn.Linear(4, 4)])}
    )
    assert found_in(both, {"moe": (both["a"], both["b"])})[0].num == 2
    assert found_in(both, {"moe": both})[0].num == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("experts", "mapping from a layer's name"),
        ({"pair": ["^a"]}, "two or more experts"),
        ({"pair": ["^a", "^chooser"]}, "different shapes"),
        ({"pair": ["^a", "^a"]}, "share parameters"),
        ({"pair": ["^a", "^nothing"]}, "nothing"),
        ({"a/b": ["^a", "^b"]}, "without slashes"),
    ],
)
def test_wrong_experts_are_one_clear_error(given: Any, words: str, tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "chooser": nn.Linear(4, 2)})
    with pytest.raises(gm.UsageError, match=words):
        gm.watch(
            model, torch.optim.SGD(model.parameters(), lr=0.1), run=tmp_path / "run", experts=given
        )
    assert not (tmp_path / "run").exists()


# The numbers.


def by_hand(model: Stack) -> Mapping[str, float]:
    """Every value of one layer's experts by loops over Python lists, from the gradients that are
    there now."""
    found: dict[str, float] = {}
    for number, block in enumerate(model.blocks):
        rows = [expert_by_hand(expert) for expert in block.experts]
        for e, row in enumerate(rows):
            path = f"grad/layer.blocks.{number}/expert/{e}"
            found |= {f"{path}/{name}": x for name, x in row.items()}
            if e:
                gaps = [
                    abs(row[f"{tier}_norm"] - rows[0][f"{tier}_norm"])
                    for tier in ("top", "bottom", "middle")
                ]
                logs = [
                    abs(math.log(row[f"{t}_rms"] / rows[0][f"{t}_rms"]))
                    for t in ("top", "bottom", "middle")
                ]
                found[f"{path}/divergence"], found[f"{path}/log_ratio"] = (
                    sum(gaps) / 3,
                    sum(logs) / 3,
                )
    for e in range(len(model.blocks[0].experts)):
        for name in ("top_norm", "bottom_norm", "middle_norm", "norm", "divergence"):
            parts = [
                found[key]
                for n in range(2)
                if (key := f"grad/layer.blocks.{n}/expert/{e}/{name}") in found
            ]
            if parts:
                found[f"grad/expert/{e}/{name}"] = sum(parts) / len(parts)
    return found


def expert_by_hand(expert: nn.Module) -> dict[str, float]:
    squares = {"top": 0.0, "bottom": 0.0, "middle": 0.0}
    sound, counts = dict(squares), dict(squares)
    for parameter in expert.parameters():
        sizes, grads = (
            parameter.detach().abs().reshape(-1).tolist(),
            parameter.grad.reshape(-1).tolist(),
        )
        m = max(1, int(len(sizes) * 0.05))
        order = sorted(range(len(sizes)), key=lambda i, sizes=sizes: sizes[i])
        tier_of = dict.fromkeys(order[:m], "bottom") | dict.fromkeys(order[-m:], "top")
        for i, grad in enumerate(grads):
            tier = tier_of.get(i, "middle")
            squares[tier] += grad**2
            if parameter.ndim >= 2:
                sound[tier] += grad**2
                counts[tier] += 1
    found = {f"{tier}_norm": math.sqrt(x) for tier, x in squares.items()}
    found |= {f"{tier}_rms": math.sqrt(sound[tier] / counts[tier]) for tier in counts}
    return found | {"norm": math.sqrt(sum(squares.values()))}


def test_every_tier_is_what_a_loop_says(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Stack(Merged)
    expected: dict[str, float] = {}
    trained(model, tmp_path / "run", before_step=lambda _: expected.update(by_hand(model)))
    values = last(tmp_path / "run")
    assert len(expected) == 2 * 3 * 7 + 2 * 2 * 2 + 3 * 4 + 2
    for name, x in expected.items():
        assert values[name] == pytest.approx(x, rel=1e-5), name


@pytest.mark.parametrize("each", ["parameter", "expert"])
def test_clipping_piece_by_piece_is_read_before_the_first_piece_is_clipped(
    tmp_path: Path, each: str
) -> None:
    torch.manual_seed(0)
    model = Stack(Merged)
    expected: dict[str, float] = {}

    def clip(_: gm.Meter) -> None:
        expected.update(by_hand(model))
        experts = [list(expert.parameters()) for block in model.blocks for expert in block.experts]
        for piece in [[p] for p in model.parameters()] if each == "parameter" else experts:
            nn.utils.clip_grad_norm_(piece, 1e-3)

    trained(model, tmp_path / "run", before_step=clip)
    values = last(tmp_path / "run")
    for name, x in expected.items():
        assert values[name] == pytest.approx(x, rel=1e-5), name


def test_a_merge_of_the_batch_gives_collinear_gradients_and_divergence_is_routing(
    tmp_path: Path,
) -> None:
    """∂L/∂W_e = w̄_e ∂L/∂W: cosines are one, norms per routing weight are one number, the source's
    divergence is not zero."""
    torch.manual_seed(0)
    model = Stack(Merged)
    with torch.no_grad():
        for block in model.blocks:
            block.router.bias.copy_(torch.tensor([1.0, 0.0, -1.0]))
    trained(model, tmp_path / "run")
    values = last(tmp_path / "run")
    for layer in ("layer.blocks.0/", "layer.blocks.1/"):
        first = values[f"grad/{layer}expert/0/norm_per_weight"]
        for e in (1, 2):
            assert values[f"grad/{layer}expert/{e}/cos_to_0"] == pytest.approx(1, abs=1e-5)
            assert values[f"grad/{layer}expert/{e}/norm_per_weight"] == pytest.approx(
                first, rel=1e-4
            )
            weights = [values[f"grad/{layer}expert/{k}/routing_weight"] for k in (0, e)]
            ratio = values[f"grad/{layer}expert/{e}/norm"] / values[f"grad/{layer}expert/0/norm"]
            assert ratio == pytest.approx(weights[1] / weights[0], rel=1e-4)
    for e in (1, 2):
        assert values[f"grad/expert/{e}/cos_to_0"] == pytest.approx(1, abs=1e-5)
        assert values[f"grad/expert/{e}/divergence"] > 0.1 * values["grad/expert/0/middle_norm"]


def test_merging_per_sample_is_not_collinear(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Stack(lambda: Merged(per_sample=True))
    with torch.no_grad():
        for block in model.blocks:
            block.router.weight.mul_(20)
    trained(model, tmp_path / "run")
    values = last(tmp_path / "run")
    assert values["grad/expert/1/cos_to_0"] < 0.9


def test_a_planted_divergence_is_recovered_when_routing_is_divided_out(tmp_path: Path) -> None:
    """Expert 2's gradient is made three times as large on its bottom weights, over and above its
    routing weight."""
    torch.manual_seed(0)
    model = Stack(lambda: Merged(width=12), layers=1)
    first = model.blocks[0].experts[0].state_dict()
    for expert in model.blocks[0].experts:
        expert.load_state_dict(first)  # the same tiers, so that routing alone explains everything

    def plant(_: gm.Meter) -> None:
        for parameter in model.blocks[0].experts[2].parameters():
            if parameter.ndim >= 2:
                size = parameter.detach().abs()
                low = size.reshape(-1).sort().values[max(1, int(size.numel() * 0.05)) - 1]
                parameter.grad[size <= low] *= 3

    trained(model, tmp_path / "run", before_step=plant)
    values = last(tmp_path / "run")
    assert values["grad/expert/1/log_ratio_routed"] == pytest.approx(0, abs=1e-4)
    assert values["grad/expert/2/log_ratio_routed"] == pytest.approx(
        math.log(3) / 3, rel=1e-3
    )  # one tier of three
    bottom = [
        values[f"grad/expert/{e}/bottom_rms"] / values[f"grad/expert/{e}/routing_weight"]
        for e in (0, 2)
    ]
    assert bottom[1] / bottom[0] == pytest.approx(3, rel=1e-4)


def test_loads_are_counted(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Stack(Routed, layers=1)
    seen: list[Tensor] = []
    handle = model.blocks[0].gate.register_forward_hook(
        lambda _m, _i, out: seen.append(out.detach().softmax(-1))
    )
    trained(model, tmp_path / "run")
    handle.remove()
    values = last(tmp_path / "run")
    best = seen[-1].topk(2, -1)
    tokens = torch.bincount(best.indices.reshape(-1), minlength=4).double()
    load = (tokens / tokens.sum()).numpy()
    assert [values[f"router/blocks.0/load/{e}"] for e in range(4)] == pytest.approx(load.tolist())
    assert values["router/blocks.0/utilisation"] == pytest.approx(np.minimum(1, 4 * load).mean())
    busy = load[load > 0]
    assert values["router/blocks.0/balance"] == pytest.approx(
        np.exp(-(busy * np.log(busy)).sum()) / 4
    )
    assert values["router/blocks.0/max_violation"] == pytest.approx(4 * load.max() - 1)
    weights = torch.zeros(4).scatter_add_(
        0, best.indices.reshape(-1), (best.values / best.values.sum(-1, keepdim=True)).reshape(-1)
    )
    for e in range(4):
        norm = values[f"grad/expert/{e}/norm"]
        assert values[f"grad/expert/{e}/routing_weight"] == pytest.approx(
            weights[e].item() / 16, rel=1e-5
        )
        assert values[f"grad/expert/{e}/norm_per_token"] == pytest.approx(
            norm / tokens[e].item(), rel=1e-5
        )


def test_an_expert_nobody_asks_is_missing_and_counted_as_dead(tmp_path: Path) -> None:
    model = Stack(Routed, layers=1)
    with torch.no_grad():
        model.blocks[0].gate.weight.zero_()
    model.blocks[0].gate.register_forward_hook(
        lambda _m, _i, out: out + torch.tensor([0.0, 0.0, 0.0, -1e9])
    )
    trained(model, tmp_path / "run")
    values = last(tmp_path / "run")
    assert values["router/blocks.0/dead_share"] == pytest.approx(
        0.5
    )  # top-2 of equal logits, the same two for all
    assert "grad/expert/3/norm" not in values
    assert values["router/blocks.0/load/3"] == 0


def test_forwards_that_train_nothing_are_not_counted(tmp_path: Path) -> None:
    model = Stack(Routed, layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, experts_every=1):
        with torch.no_grad():
            model(torch.randn(500, 12))
        for _ in range(2):  # accumulation: both count
            model(torch.randn(8, 12)).sum().backward()
        optimizer.step()
    values = last(tmp_path / "run")
    tokens = [
        values[f"grad/expert/{e}/norm"] / values[f"grad/expert/{e}/norm_per_token"]
        for e in range(4)
    ]
    assert sum(tokens) == pytest.approx(2 * 8 * 2)


def test_one_who_asks_by_hand_gets_the_routing_of_that_step_only(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Stack(Routed, layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(
        model, optimizer, run=tmp_path / "run", every=4, budget=None, experts_every=1
    ) as meter:
        for step in range(9):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 12)).square().mean()
            if step == 4:
                with pytest.warns(gm.GradiometerWarning, match="no expert has a gradient"):
                    # too early: neither the look at this step nor its routing is lost
                    meter.log_gradient_dynamics()
            loss.backward()
            if step in (1, 2):
                meter.log_gradient_dynamics()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    for e in range(4):
        (at, norms), (routed_at, per_token) = (
            run.series(f"grad/expert/{e}/{x}") for x in ("norm", "norm_per_token")
        )
        assert at.tolist() == [0, 1, 2, 4, 8]
        assert routed_at.tolist() == [
            0,
            2,
            4,
            8,
        ]  # nobody listened to the first forward that was asked about
        assert (np.delete(norms, 1) / per_token).max() <= 16.001


def test_a_forward_of_the_next_step_is_not_counted_with_the_last(tmp_path: Path) -> None:
    """Rounds of several optimizers may end only when the next backward has run."""
    torch.manual_seed(0)
    model, other = Stack(Routed, layers=1), nn.Linear(12, 1)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (model, other)]
    with gm.watch([model, other], optimizers, run=tmp_path / "run", budget=None, experts_every=1):
        for _ in range(3):  # the second optimizer never steps
            optimizers[0].zero_grad()
            model(torch.randn(16, 12)).square().mean().backward()
            optimizers[0].step()
    run = gm.load(tmp_path / "run")
    weights = sum(run.series(f"grad/expert/{e}/routing_weight")[1] for e in range(4))
    (_, norms), (at, per_token) = (
        run.series(f"grad/expert/0/{x}") for x in ("norm", "norm_per_token")
    )
    assert at.tolist() == [0, 1, 2]
    assert weights == pytest.approx(1)
    assert (norms / per_token).max() <= 16.001


def test_a_closure_counts_the_forward_of_its_last_gradient(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Stack(Routed, layers=1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(16, 12)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, experts_every=1):
        optimizer.step(closure)
    values = last(tmp_path / "run")
    tokens = [
        values[f"grad/expert/{e}/norm"] / values[f"grad/expert/{e}/norm_per_token"]
        for e in range(4)
    ]
    assert sum(tokens) == pytest.approx(2 * 16)


def test_a_router_inside_torch_func_disturbs_nothing(tmp_path: Path) -> None:
    from torch.func import grad, vmap

    model = Stack(Merged, layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parameters = dict(model.named_parameters())

    def loss(given: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model.blocks[0].router, given, (x,)).square().sum()

    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, experts_every=1):
        router = {name: parameters[f"blocks.0.router.{name}"] for name in ("weight", "bias")}
        vmap(grad(loss), (None, 0))(router, torch.randn(16, 12))
        model(torch.randn(16, 12)).square().mean().backward()
        optimizer.step()
    assert not gm.load(tmp_path / "run").events("fault")
    values = last(tmp_path / "run")
    assert sum(values[f"grad/expert/{e}/routing_weight"] for e in range(3)) == pytest.approx(1)


def test_a_router_output_that_breaks_the_tally_does_not_stop_the_training(tmp_path: Path) -> None:
    model = Stack(Merged, layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, experts_every=1) as meter:
        meter._observer.experts._tallies[0]._layer = None  # type: ignore[assignment]
        for step in range(2):
            optimizer.zero_grad()
            with (
                pytest.warns(gm.GradiometerWarning, match="had a fault")
                if step == 0
                else warnings.catch_warnings()
            ):
                model(torch.randn(16, 12)).square().mean().backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    assert len(run.events("fault")) == 1
    assert run.series("grad/expert/0/norm")[0].tolist() == [0, 1]
    assert "grad/expert/0/routing_weight" not in run.names()


def test_checkpointed_forwards_count_once(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        model = Stack(Routed, layers=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with gm.watch(
            model, optimizer, run=tmp_path / str(reentrant), budget=None, experts_every=1
        ):
            x = torch.randn(8, 12, requires_grad=True)
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
            optimizer.step()
        values = last(tmp_path / str(reentrant))
        tokens = [
            values[f"grad/expert/{e}/norm"] / values[f"grad/expert/{e}/norm_per_token"]
            for e in range(4)
        ]
        assert sum(tokens) == pytest.approx(16)


@pytest.mark.parametrize(
    ("output", "weights", "tokens", "rows"),
    [
        (torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]), [0.6, 0.4, 1.0], None, 2),
        (torch.tensor([0.5, 0.3, 0.2]), [0.5, 0.3, 0.2], None, 1),
        (torch.tensor([[0.0, 0.0, 0.0]]), [1 / 3] * 3, None, 1),
        (
            (torch.zeros(2, 3), torch.tensor([[0.9], [0.7]]), torch.tensor([[2], [0]])),
            [0.7, 0, 0.9],
            [1, 0, 1],
            2,
        ),
        (
            (torch.tensor([[2], [3]]), torch.tensor([[0.9], [0.7]])),
            [0, 0, 0.9],
            [0, 0, 1],
            2,
        ),  # 3 goes nowhere
        ((torch.tensor([[0, 1, 0], [0, 1, 0]]),), None, [0, 2, 0], 2),
        # Switch: rows of zeros and ones, the weight of each, and logits
        (
            (
                torch.tensor([[0, 1, 0], [0, 0, 0]]),
                torch.tensor([[0.6], [0.9]]),
                torch.tensor([[-1.0, 2, 0], [5, 1, 1]]),
            ),
            [0, 0.6, 0],
            [0, 1, 0],
            2,
        ),
        # NLLB: such rows, and two tensors of which one holds weights
        (
            (torch.tensor([[0, 1, 0], [1, 0, 0]]), torch.ones(2, 3), torch.zeros(2, 3)),
            [math.nan] * 3,
            [1, 1, 0],
            2,
        ),
        # all three, in the order of their weights: top-3 of 3
        (
            (torch.tensor([[2, 0, 1]]), torch.tensor([[0.6, 0.3, 0.1]])),
            [0.3, 0.1, 0.6],
            [1, 1, 1],
            1,
        ),
    ],
)
def test_router_outputs_are_understood(
    output: Any, weights: list[float] | None, tokens: list[float] | None, rows: int
) -> None:
    asked = read_router(output, 3, None)
    assert asked is not None
    assert asked.rows == rows
    assert (None if asked.weights is None else asked.weights.tolist()) == (
        weights and pytest.approx(weights, nan_ok=True)
    )
    assert (None if asked.tokens is None else asked.tokens.tolist()) == tokens


def test_weights_that_are_zero_but_for_the_chosen_are_taken_as_they_are() -> None:
    """Llama 4 gives the sigmoid of the chosen logits; logits that are all zero are logits."""
    scores = torch.tensor([[0.0, 0.7, 0.0], [0.4, 0.0, 0.0]])
    asked = read_router((scores, torch.randn(2, 3)), 3, 1)
    assert asked is not None
    assert asked.weights is not None
    assert asked.weights.tolist() == pytest.approx([0.4, 0.7, 0.0])
    even = read_router(torch.zeros(2, 3), 3, 2)
    assert even is not None
    assert even.weights is not None
    assert even.weights.sum().item() == pytest.approx(2)


def test_an_output_that_says_nothing_is_none() -> None:
    assert read_router(torch.zeros(2, 7), 3, None) is None
    assert read_router("text", 3, None) is None
    assert read_router(None, 3, None) is None


# How it behaves.


def test_without_experts_nothing_is_logged_and_nothing_is_hooked(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 1))
    meter = trained(model, tmp_path / "run")
    assert meter.log_gradient_dynamics() is None
    assert not any(
        "expert" in name or name.startswith("router") for name in gm.load(tmp_path / "run").names()
    )
    assert not any(part._forward_hooks for part in model.modules())


def test_the_default_is_every_tenth_step_and_hooks_are_removed(tmp_path: Path) -> None:
    model = Stack(Merged)
    trained(model, tmp_path / "run", steps=25, experts_every=10)
    assert gm.load(tmp_path / "run").series("grad/expert/1/divergence")[0].tolist() == [0, 10, 20]
    assert not any(part._forward_hooks for part in model.modules())
    trained(model, tmp_path / "light", steps=3, tier="light")
    assert not any("/expert/" in name for name in gm.load(tmp_path / "light").names())


def test_it_can_be_switched_off_and_on(tmp_path: Path) -> None:
    step = iter(range(100))

    def switch(meter: gm.Meter) -> None:
        now = next(step)
        if now == 4:
            meter.watch_experts(None)
        if now == 8:
            meter.watch_experts(every=2)

    trained(Stack(Merged), tmp_path / "run", steps=12, before_step=switch)
    # the switch comes before the step is read
    assert gm.load(tmp_path / "run").series("grad/expert/0/norm")[0].tolist() == [0, 1, 2, 3, 8, 10]
    with pytest.raises(gm.UsageError, match="1 or more"):
        trained(Stack(Merged), None, before_step=lambda meter: meter.watch_experts(0))


def test_it_can_be_switched_on_in_tier_light(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained(Stack(Merged), tmp_path / "off", tier="light", steps=2)
    assert not [name for name in gm.load(tmp_path / "off").names() if "/expert/" in name]
    trained(
        Stack(Merged),
        tmp_path / "on",
        tier="light",
        steps=3,
        before_step=lambda meter: meter.watch_experts(1),
    )
    assert gm.load(tmp_path / "on").series("grad/expert/0/norm")[0].tolist() == [0, 1, 2]


def test_asking_by_hand_gives_the_names_of_the_source(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Stack(Merged)
    answers: list[dict[str, Any]] = []
    expected: list[Mapping[str, float]] = []

    def ask(meter: gm.Meter) -> None:
        answers.append(meter.log_gradient_dynamics())
        expected.append(by_hand(model))

    trained(model, tmp_path / "run", steps=2, before_step=ask, experts_every=None)
    assert set(answers[0]) == {"expert_gradients", "divergence_scores"}
    gradients = answers[-1]["expert_gradients"]
    assert set(gradients["expert_0"]) == {"top_norm", "bottom_norm", "middle_norm", "clean_norm"}
    assert set(gradients["expert_2"]) == {
        "top_norm",
        "bottom_norm",
        "middle_norm",
        "perturbed_norm",
    }
    assert set(answers[0]["divergence_scores"]) == {"expert_1_divergence", "expert_2_divergence"}
    assert gradients["expert_1"]["perturbed_norm"] == pytest.approx(
        expected[-1]["grad/expert/1/norm"], rel=1e-5
    )
    run = gm.load(tmp_path / "run")
    steps, values = run.series("grad/expert/1/divergence")
    assert steps.tolist() == [0, 1]
    assert values[-1] == pytest.approx(answers[-1]["divergence_scores"]["expert_1_divergence"])
    assert run.series("grad/expert/1/routing_weight")[0].tolist() == [
        1
    ]  # routers are heard from the first asking on


def test_asking_by_hand_leaves_the_step_to_be_read_once(tmp_path: Path) -> None:
    trained(
        Stack(Merged),
        tmp_path / "run",
        steps=1,
        before_step=lambda meter: meter.log_gradient_dynamics(step=0),
    )
    run = gm.load(tmp_path / "run")
    assert run.series("grad/expert/0/norm")[0].tolist() == [0]
    assert len(run.events("experts")) == 1


@pytest.mark.parametrize("to_none", [True, False])
def test_asking_at_the_wrong_time_is_missing_with_a_hint_and_never_zero(
    tmp_path: Path, to_none: bool
) -> None:
    model = Stack(Merged)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, experts_every=None) as meter:
        if not to_none:
            model(torch.randn(4, 12)).sum().backward()
            optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        with pytest.warns(gm.GradiometerWarning, match="after backward"):
            assert meter.log_gradient_dynamics() == {
                "expert_gradients": {},
                "divergence_scores": {},
            }
        meter.log_gradient_dynamics()  # said once
    run = gm.load(tmp_path / "run")
    assert not any(name.startswith("grad/expert") for name in run.names())
    (event,) = run.events("experts-missing")
    assert "zero_grad" in event.message


def test_a_nan_is_recorded_as_a_nan(tmp_path: Path) -> None:
    model = Stack(Merged)

    def spoil(_: gm.Meter) -> None:
        model.blocks[0].experts[1][0].weight.grad[0, 0] = torch.nan

    trained(model, tmp_path / "run", before_step=spoil)
    run = gm.load(tmp_path / "run")
    for name in ("grad/expert/1/norm", "grad/layer.blocks.0/expert/1/top_norm"):
        assert math.isnan(run.series(name)[1][0])
    assert math.isfinite(run.series("grad/expert/0/norm")[1][0])
    assert math.isfinite(run.series("grad/layer.blocks.1/expert/1/norm")[1][0])
    # What the sound layer holds is not passed off as the whole.
    for name in ("divergence", "bottom_rms", "cos_to_0", "norm_per_weight"):
        assert f"grad/expert/1/{name}" not in run.names()
        assert math.isfinite(run.series(f"grad/expert/2/{name}")[1][0])
    assert math.isfinite(run.series("grad/expert/1/routing_weight")[1][0])


def test_experts_added_while_training_get_columns_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Stack(Merged, layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, experts_every=1):
        for step in range(4):
            if step == 2:
                block = model.blocks[0]
                new = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 12))
                block.experts.append(new)
                grown = nn.Linear(12, 4)
                block.router = grown
                optimizer.add_param_group({"params": [*new.parameters(), *grown.parameters()]})
            optimizer.zero_grad()
            model(torch.randn(16, 12)).square().mean().backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    assert run.series("grad/expert/2/norm")[0].tolist() == [0, 1, 2, 3]
    assert run.series("grad/expert/3/norm")[0].tolist() == [2, 3]
    assert run.series("grad/expert/3/routing_weight")[0].tolist() == [
        3
    ]  # its router was hooked when its step began
    assert len(run.tables("experts")) == 2


@pytest.mark.parametrize("make", [Merged, Routed])
@pytest.mark.parametrize("tier", ["standard", "deep"])
def test_the_training_is_the_same_bits_with_and_without(
    make: Callable[[], nn.Module], tier: str, tmp_path: Path
) -> None:
    def weights(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Stack(make)
        if watched:
            trained(
                model,
                tmp_path / "run",
                steps=6,
                tier=tier,
                before_step=lambda meter: meter.log_gradient_dynamics(),
            )
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            torch.manual_seed(3)
            for _ in range(6):
                optimizer.zero_grad()
                model(torch.randn(16, 12)).square().mean().backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(False), weights(True), strict=True))


def test_histograms_per_expert_in_tier_deep_count_every_element(tmp_path: Path) -> None:
    model = Stack(Merged)
    trained(model, tmp_path / "run", tier="deep")
    run = gm.load(tmp_path / "run")
    per_expert = sum(p.numel() for p in model.blocks[0].experts[0].parameters())
    assert int(run.vector("histogram/expert/1", 0).values.sum()) == 2 * per_expert
    assert int(run.vector("histogram/layer.blocks.1/expert/2", 0).values.sum()) == per_expert


def test_gradients_that_a_fused_optimizer_holds_scaled_are_read_unscaled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Stack(Merged)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    expected: Mapping[str, float] = {}
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, experts_every=1):
        model(torch.randn(16, 12)).square().mean().backward()
        expected = by_hand(model)
        for parameter in model.parameters():
            parameter.grad.mul_(1024)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(1024.0), torch.tensor(0.0)
        optimizer.step()
    values = last(tmp_path / "run")
    assert values["grad/expert/1/top_norm"] == pytest.approx(
        expected["grad/expert/1/top_norm"], rel=1e-5
    )
    assert values["grad/expert/1/divergence"] == pytest.approx(
        expected["grad/expert/1/divergence"], rel=1e-5
    )


def test_half_precision_experts_are_summed_in_single(tmp_path: Path) -> None:
    model = Stack(Merged).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    expected: Mapping[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, experts_every=1):
            model(torch.randn(16, 12, dtype=torch.bfloat16)).square().mean().backward()
            expected = by_hand(model)
            optimizer.step()
    values = last(tmp_path / "run")
    assert values["grad/expert/1/norm"] == pytest.approx(expected["grad/expert/1/norm"], rel=1e-5)


def wide(num: int = 2) -> nn.Module:
    """6,000 elements a tensor: beyond the size that is cut anew each time."""
    block = Merged(num=num)
    block.experts = nn.ModuleList(
        nn.Sequential(nn.Linear(12, 500), nn.Tanh(), nn.Linear(500, 12)) for _ in range(num)
    )
    return block


@pytest.mark.slow
def test_thresholds_that_stand_still_are_kept_for_longer_and_longer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Stack(wide)
    expected: list[Mapping[str, float]] = []
    trained(
        model,
        tmp_path / "run",
        steps=17,
        lr=1e-4,
        before_step=lambda _: expected.append(by_hand(model)),
    )
    run = gm.load(tmp_path / "run")
    name = "grad/layer.blocks.0/expert/1/bottom_norm"
    values = run.series(name)[1]
    fresh = run.series("grad/layer.blocks.0/expert/1/weight_distance")[0].tolist()
    assert fresh == [0, 1, 3, 7, 15]
    for step in fresh:
        assert values[step] == pytest.approx(expected[step][name], rel=1e-5)
    assert values == pytest.approx([each[name] for each in expected], rel=0.05)


def test_thresholds_that_move_are_found_anew_each_time(tmp_path: Path) -> None:
    """Weights that grow by a tenth a step would all be top soon, by thresholds of the first
    step."""
    torch.manual_seed(0)
    model = Stack(wide)
    expected: list[Mapping[str, float]] = []

    def grow(_: gm.Meter) -> None:
        with torch.no_grad():
            for block in model.blocks:
                for parameter in block.experts.parameters():
                    parameter.mul_(1.1)
        expected.append(by_hand(model))

    trained(model, tmp_path / "run", steps=8, before_step=grow)
    run = gm.load(tmp_path / "run")
    for name in (
        "grad/layer.blocks.0/expert/1/top_norm",
        "grad/layer.blocks.1/expert/0/bottom_norm",
    ):
        assert run.series(name)[1] == pytest.approx([each[name] for each in expected], rel=1e-5)


@pytest.mark.slow
def test_many_experts_are_read_in_pieces_and_the_numbers_are_those_of_a_loop(
    tmp_path: Path,
) -> None:
    """96 experts of 5,376 and 3,600 weights: one tensor is read in several pieces, the other is cut
    whole."""

    def make() -> nn.Module:
        block = Merged(num=96)
        block.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 448), nn.Linear(448, 12)) for _ in range(96)
        )
        return block

    torch.manual_seed(0)
    model = Stack(make, layers=2)
    expected: dict[str, float] = {}
    trained(model, tmp_path / "run", before_step=lambda _: expected.update(by_hand(model)))
    values = last(tmp_path / "run")
    for e in (0, 1, 95):
        for name in ("top_norm", "bottom_norm", "middle_norm", "norm", "top_rms"):
            key = f"grad/layer.blocks.1/expert/{e}/{name}"
            assert values[key] == pytest.approx(expected[key], rel=1e-4), key
    assert values["grad/layer.blocks.0/expert/95/cos_to_0"] == pytest.approx(1, abs=1e-5)
