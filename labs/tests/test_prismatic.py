from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import gradiometer as gm
from gradiometer.cli.main import run as run_command
from gradiometer.errors import UsageError
from gradiometer_labs import faults
from gradiometer_labs.prismatic.config import Config, TrainingProgress
from gradiometer_labs.prismatic.experts import MergedExperts, RoutedExperts, RoutingPieces
from gradiometer_labs.prismatic.model import LanguageModel, PrismaticLayer, make_model
from gradiometer_labs.prismatic.text import ALPHABET, NUMBERS, Language, decoded, encoded, made_up
from gradiometer_labs.prismatic.train import Pieces, PrismaticPurpose, task_loss_of, text_for, train
from gradiometer_labs.transformer import FeedForward, balance_loss_of

pytestmark = pytest.mark.slow

TINY = Config(
    steps=6,
    batch_size=4,
    context=24,
    prompt=8,
    width=16,
    num_heads=2,
    val_size=6,
    val_every=3,
    every=2,
)
TOPK = dataclasses.replace(TINY, router_type="topk")
PER_SAMPLE = dataclasses.replace(TINY, merge="sample")
VARIANTS = {"batch": TINY, "sample": PER_SAMPLE, "topk": TOPK}
variants = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def decided(model: LanguageModel, factor: float = 50.0) -> LanguageModel:
    """With larger router weights, so that routing is far from even."""
    with torch.no_grad():
        for layer in cast(list[PrismaticLayer], list(model.layers)):
            layer.moe.router.gate.weight.mul_(factor)
    return model


def first_moe(model: LanguageModel) -> Any:
    return cast(PrismaticLayer, model.layers[0]).moe


def broken(fault: str, config: Config) -> tuple[LanguageModel, Pieces]:
    """A fresh model of a training with that fault, and its pieces."""
    pieces = faults.apply(fault, "prismatic", Pieces(config=config))
    return make_model(pieces.config, pieces.routing), pieces


def grad_norm(loss: Tensor, parameters: list[Tensor]) -> float | None:
    """Of the gradient of a loss in these parameters; None if there is no path."""
    if not loss.requires_grad:
        return None
    grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    present = [grad.flatten() for grad in grads if grad is not None]
    return float(torch.cat(present).norm()) if present else None


def losses(model: LanguageModel, config: Config, step: int = 0) -> tuple[Tensor, Tensor]:
    """Of the task, and of the balance times its coefficient, on text of that step."""
    characters = text_for(config, PrismaticPurpose.TRAINING, step, config.batch_size)
    logits, balance = model(characters[:, :-1])
    return task_loss_of(logits, characters, config.prompt), config.aux_coef * balance


def router_outputs(model: LanguageModel, config: Config) -> Any:
    """What the first layer's router says."""
    said: list[Any] = []
    handle = first_moe(model).router.register_forward_hook(
        lambda _module, _args, out: said.append(out)
    )
    losses(model, config)
    handle.remove()
    return said[0]


def load(model: LanguageModel, config: Config) -> list[float]:
    """The share of the characters that each expert of the first layer gets."""
    _, _, indices = router_outputs(model, config)
    return [float((indices == expert).float().mean()) for expert in range(config.pool)]


def gate(model: LanguageModel) -> list[Tensor]:
    return list(first_moe(model).router.parameters())


# The text


def test_sums_and_differences_are_true_and_verbs_agree() -> None:
    sequences = made_up().sample(300, 200, np.random.default_rng(0))
    sentences = [sentence for row in sequences for sentence in decoded(row).split(". ")[:-1]]
    kinds = {"plus": 0, "minus": 0, "the": 0}
    for sentence in sentences:
        if found := re.fullmatch(r"(\w+) (plus|minus) (\w+) is (\w+)", sentence):
            a, b, c = (NUMBERS.index(found[group]) for group in (1, 3, 4))
            assert (a + b if found[2] == "plus" else a - b) == c
            kinds[found[2]] += 1
        else:
            subject, verb, _, _ = sentence.removeprefix("the ").split(" ")[-4:]
            assert subject.endswith("s") != verb.endswith("s"), sentence
            kinds["the"] += 1
    assert min(kinds.values()) > 0.2 * len(sentences)


def test_a_sequence_keeps_to_one_topic() -> None:
    for row in made_up().sample(100, 150, np.random.default_rng(1)):
        text = decoded(row)
        assert sum(word in text for word in ("plus", "minus", "the ")) == 1


def test_the_probabilities_of_all_next_characters_sum_to_one_wherever_a_text_is_cut() -> None:
    language = made_up()
    text = decoded(language.sample(1, 60, np.random.default_rng(2))[0])
    for cut in range(60):
        here = language.log_likelihood(text[:cut])
        after = [
            math.exp(language.log_likelihood(text[:cut] + character) - here)
            for character in ALPHABET
        ]
        assert sum(after) == pytest.approx(1)
    assert language.log_likelihood("") == pytest.approx(0, abs=1e-12)
    assert language.log_likelihood("two plus two is five") == -math.inf


SMALL_LANGUAGE = Language([{"a. ": 3.0, "bb. ": 1.0}, {"a. ": 1.0, "ca. ": 1.0}])


def test_texts_are_sampled_as_often_as_their_likelihood_says() -> None:
    num = 20_000
    sampled = SMALL_LANGUAGE.sample(num, 6, np.random.default_rng(0))
    texts = [decoded(row) for row in sampled]
    seen = set(texts)
    chances = {text: math.exp(SMALL_LANGUAGE.log_likelihood(text)) for text in seen}
    assert sum(chances.values()) == pytest.approx(1)
    for text, chance in chances.items():
        assert abs(texts.count(text) - num * chance) < 4.5 * math.sqrt(num * chance * (1 - chance))


def test_the_floor_is_the_conditional_entropy_after_the_prompt() -> None:
    length, prompt = 6, 3
    everything = ["".join(each) for each in itertools.product(" .abc", repeat=length)]
    possible = [text for text in everything if SMALL_LANGUAGE.log_likelihood(text) > -math.inf]
    exact = 0.0
    for text in possible:
        whole, begun = (
            SMALL_LANGUAGE.log_likelihood(text),
            SMALL_LANGUAGE.log_likelihood(text[:prompt]),
        )
        exact -= math.exp(whole) * (whole - begun) / (length - prompt)
    sampled = SMALL_LANGUAGE.sample(40_000, length, np.random.default_rng(1))
    assert SMALL_LANGUAGE.floor(sampled, prompt) == pytest.approx(exact, rel=0.02)
    assert exact > 0.1


# The experts


def test_a_tenth_of_each_clone_is_perturbed_and_only_its_largest_and_smallest_weights() -> None:
    config = Config(seed=3)
    model = make_model(config)
    clean_model = make_model(
        config, RoutingPieces(perturbed=lambda weight, config, generator: weight)
    )
    deviations = []
    for pool, untouched in zip(model.pools(), clean_model.pools(), strict=True):
        assert len(pool) == 3
        assert torch.equal(weights(pool[0]), weights(untouched[0]))
        clean = dict(pool[0].named_parameters())
        for clone in pool[1:]:
            for name, parameter in clone.named_parameters():
                changed = parameter != clean[name]
                if parameter.dim() < 2:
                    assert not changed.any()
                    continue
                size = clean[name].detach().abs().flatten()
                m = int(0.05 * size.numel())
                order = size.argsort(stable=True)
                allowed = set(order[:m].tolist()) | set(order[-m:].tolist())
                places = set(changed.flatten().nonzero().flatten().tolist())
                assert places == allowed
                assert changed.float().mean().item() == pytest.approx(0.1, abs=0.001)
                moved = (parameter - clean[name])[changed] / clean[name].abs()[changed]
                deviations.append(moved.detach())
    noise = torch.cat(deviations)
    assert noise.numel() > 5_000
    assert abs(noise.mean()) < 4.5 / math.sqrt(noise.numel())
    assert noise.std().item() == pytest.approx(1, abs=4.5 / math.sqrt(2 * noise.numel()))
    assert (
        abs(torch.corrcoef(torch.stack([deviations[0], deviations[1][: len(deviations[0])]]))[0, 1])
        < 0.2
    )


def test_scale_and_sparsity_of_the_perturbation_are_as_told() -> None:
    config = dataclasses.replace(TINY, num_experts=2)
    configs = [
        config,
        dataclasses.replace(config, perturbation_scale=3.0),
        dataclasses.replace(config, sparsity=0.5),
        dataclasses.replace(config, sparsity=0.0),
    ]
    pools = [next(make_model(each).pools()) for each in configs]
    one, triple, half, none = (pool[1].up.weight - pool[0].up.weight for pool in pools)
    torch.testing.assert_close(triple, 3 * one, rtol=1e-4, atol=1e-6)
    assert (half != 0).float().mean().item() == pytest.approx(0.5, abs=0.01)
    assert not none.any()


def by_hand(moe: MergedExperts, x: Tensor, share: Tensor) -> Tensor:
    """One expert with merged weights, run by torch itself."""
    names = [name for name, _ in moe.experts[0].named_parameters()]
    merged = {
        name: sum(
            (share[e] * expert.get_parameter(name) for e, expert in enumerate(moe.experts)),
            torch.zeros(()),
        )
        for name in names
    }
    return cast(Tensor, functional_call(moe.experts[0], merged, x))


@pytest.mark.parametrize("config", [TINY, PER_SAMPLE], ids=["batch", "sample"])
def test_a_merged_layer_is_an_expert_with_the_weighted_mean_of_the_experts_weights(
    config: Config,
) -> None:
    moe = first_moe(decided(make_model(config).double()))
    x = torch.randn(5, 12, config.width, dtype=torch.float64, generator=seeded(0))
    out, balance = moe(x)
    shares = moe.router(x[:, : config.prompt])
    assert shares.shape == (5, 3)
    assert shares.std(0).max() > 0.05
    torch.testing.assert_close(shares.sum(-1), torch.ones(5, dtype=torch.float64))
    used = shares if config.merge == "sample" else shares.mean(0).expand(5, 3)
    expected = torch.stack(
        [by_hand(moe, sample, share) for sample, share in zip(x, used, strict=True)]
    )
    torch.testing.assert_close(out, expected)
    assert balance == 0
    assert not balance.requires_grad


def expert_grads(config: Config) -> tuple[Tensor, Tensor]:
    """Gradients of the first layer's experts, [N, P], and their mean routing weights, [N]."""
    model = decided(make_model(config).double())
    task, _ = losses(model, config)
    pool = list(next(model.pools()))
    grads = [
        torch.cat(
            [
                grad.flatten()
                for grad in torch.autograd.grad(task, list(expert.parameters()), retain_graph=True)
            ]
        )
        for expert in pool
    ]
    return torch.stack(grads), router_outputs(model, config).mean(0).detach()


def test_with_one_merge_a_batch_the_experts_gradients_are_collinear_in_the_ratio_of_their_routing_weights() -> (
    None
):
    grads, share = expert_grads(dataclasses.replace(TINY, batch_size=8))
    assert share.max() / share.min() > 1.1
    common = grads[0] / share[0]
    for e in range(3):
        torch.testing.assert_close(grads[e], share[e] * common, rtol=1e-9, atol=1e-15)


def test_with_a_merge_for_each_sample_they_are_not() -> None:
    grads, share = expert_grads(dataclasses.replace(PER_SAMPLE, batch_size=8))
    cosines = torch.corrcoef(grads)[0, 1:]
    assert (cosines < 0.999).all()
    assert (
        (grads[1] / share[1] - grads[0] / share[0]).norm() / (grads[0] / share[0]).norm()
    ) > 0.05


def test_a_character_is_the_weighted_sum_of_its_top_experts() -> None:
    moe = cast(RoutedExperts, first_moe(decided(make_model(TOPK).double())))
    x = torch.randn(3, 7, TOPK.width, dtype=torch.float64, generator=seeded(0))
    out, _ = moe(x)
    logits, shares, indices = moe.router(x.flatten(0, 1))
    assert (logits.shape, shares.shape, indices.shape) == ((21, 4), (21, 2), (21, 2))
    for row, vector in enumerate(x.flatten(0, 1)):
        chances = (moe.router.gate.weight @ vector / 4).softmax(0)  # √16
        best = [e for _, e in sorted(zip((-chances).tolist(), range(4), strict=True))[:2]]
        expected = sum((chances[e] * moe.experts[e](vector) for e in best), torch.zeros(()))
        torch.testing.assert_close(out.flatten(0, 1)[row], expected)
        assert indices[row].tolist() == best


def test_the_balance_loss_is_that_of_a_computation_by_hand() -> None:
    logits = torch.tensor(
        [[2.0, 0.0, -1.0], [0.0, 1.0, 0.5], [3.0, 0.0, 1.0], [0.0, 0.0, 2.0]], dtype=torch.float64
    )
    indices = torch.tensor([[0, 1], [1, 2], [0, 2], [2, 0]])
    rows = [[math.exp(each) for each in row] for row in logits.tolist()]
    mean_chance = [sum(row[e] / sum(row) for row in rows) / 4 for e in range(3)]
    load = [3 / 8, 2 / 8, 3 / 8]
    expected = 3 * sum(f * p for f, p in zip(load, mean_chance, strict=True))
    assert balance_loss_of(logits, indices).item() == pytest.approx(expected)
    even = balance_loss_of(torch.zeros(4, 4), torch.tensor([[0, 1], [2, 3], [1, 2], [3, 0]]))
    collapsed = balance_loss_of(torch.tensor([[50.0, 0, 0, 0]] * 4), torch.tensor([[0]] * 4))
    assert (even.item(), collapsed.item()) == (1, 4)


@variants
def test_no_prediction_sees_what_comes_after_it(config: Config) -> None:
    model = decided(make_model(config))
    characters = text_for(config, PrismaticPurpose.TRAINING, 0, 4)[:, :-1]
    before = model(characters)[0]
    for place in (config.prompt, config.prompt + 5, config.context - 1):
        other = characters.clone()
        other[:, place] = (other[:, place] + 1) % len(ALPHABET)
        after = model(other)[0]
        torch.testing.assert_close(after[:, :place], before[:, :place])
        assert not torch.allclose(after[:, place], before[:, place])


def test_the_loss_is_the_mean_over_the_characters_after_the_prompt() -> None:
    logits = torch.randn(2, 5, len(ALPHABET), generator=seeded(0))
    characters = torch.from_numpy(np.stack([encoded("abcdef"), encoded("the ca")]))
    log_chances = logits.log_softmax(-1)
    expected = [-log_chances[b, t - 1, characters[b, t]] for b in range(2) for t in range(3, 6)]
    assert task_loss_of(logits, characters, 3).item() == pytest.approx(
        float(torch.stack(expected).mean())
    )


# The training


QUICK = Config(steps=60, batch_size=16, context=32, prompt=8, num_layers=1, width=32)


@pytest.mark.parametrize("router_type", ["prismatic", "topk"])
@pytest.mark.parametrize(
    ("config", "left"),
    [
        pytest.param(QUICK, 0.45, id="small"),
        pytest.param(Config(steps=150), 0.25, id="whole", marks=pytest.mark.proof),
    ],
)
def test_a_few_updates_take_most_of_what_there_is_to_learn(
    config: Config, left: float, router_type: str
) -> None:
    """In a tenth of the default updates; benchmarks/prismatic_learns.py measures the whole."""
    result = train(dataclasses.replace(config, router_type=router_type, val_size=64))
    assert result.validation is not None
    unlearned = math.log(len(ALPHABET)) - result.validation.floor
    assert 0 < result.validation.excess < left * unlearned
    assert -result.mean_return == pytest.approx(result.validation.loss, rel=0.15)


@variants
def test_the_same_seed_gives_the_same_weights_whatever_the_global_state(config: Config) -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = train(config)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    again, other = train(config), train(dataclasses.replace(config, seed=2))
    assert torch.equal(weights(first.model), weights(again.model))
    assert (first.mean_return, first.validation) == (again.mean_return, again.validation)
    assert not torch.equal(weights(first.model), weights(other.model))


@variants
@pytest.mark.parametrize("tier", ["standard", "deep"])
def test_the_weights_are_the_same_to_the_bit_with_and_without_the_meter(
    config: Config, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = train(dataclasses.replace(config, every=1, tier=tier))
    monkeypatch.setenv("GRADIOMETER_DISABLED", "1")
    unwatched = train(config)
    assert torch.equal(weights(watched.model), weights(unwatched.model))


def test_progress_is_told_after_each_update() -> None:
    told: list[TrainingProgress] = []
    result = train(TINY, told.append)
    assert [each.done for each in told] == list(range(1, 7))
    assert {each.total for each in told} == {6}
    assert told[-1].mean_return == result.mean_return
    assert (result.steps, result.episodes) == (6, 6 * 4)


@pytest.mark.parametrize(
    ("config", "terms"), [(TINY, {"task"}), (TOPK, {"task", "aux"})], ids=["prismatic", "topk"]
)
def test_the_run_keeps_the_gradients_and_the_scalars(
    tmp_path: Path, config: Config, terms: set[str]
) -> None:
    result = train(dataclasses.replace(config, run=str(tmp_path / "run")))
    with gm.load(tmp_path / "run") as run:
        names = set(run.names())
        assert run.series("loss")[0].tolist() == list(range(6))
        assert run.series("learning_rate")[1].tolist() == pytest.approx(
            [1e-2 * (1 - step / 6) for step in range(6)]
        )
        assert run.series("val/loss")[0].tolist() == [2, 5]
        assert result.validation is not None
        assert run.series("val/loss")[1][-1] == pytest.approx(result.validation.loss)
        assert run.series("val/floor")[1][-1] == pytest.approx(result.validation.floor)
        assert {f"grad/{block}/norm/raw" for block in ("attention", "experts", "router")} <= names
        assert run.series("grad/experts/norm/raw")[0].tolist() == [0, 2, 4]
        assert run.series("grad/expert/1/norm")[0].tolist() == [0, 2, 4]
        assert {
            f"router/{path}/load/0" for path in ("all", "layers.0.moe", "layers.1.moe")
        } <= names
        kept = {
            name.split("/")[3] for name in names if re.fullmatch(r"grad/all/term/\w+/norm", name)
        }
        assert kept == terms


def test_the_meter_finds_the_experts_and_reads_the_router_right(tmp_path: Path) -> None:
    train(dataclasses.replace(TINY, run=str(tmp_path / "merged")))
    shares = router_outputs(make_model(TINY), TINY).mean(0).tolist()
    with gm.load(tmp_path / "merged") as run:
        for expert, share in enumerate(shares):
            name = f"grad/layer.layers.0.moe/expert/{expert}/routing_weight"
            assert run.series(name)[1][0] == pytest.approx(share, rel=1e-5)
        assert run.series("grad/layer.layers.0.moe/expert/2/cos_to_0")[1].tolist() == pytest.approx(
            [1] * 3, abs=1e-4
        )
        distance = run.series("grad/layer.layers.0.moe/expert/1/weight_distance")[1][0]
        clean, clone, _ = (weights(expert) for expert in next(make_model(TINY).pools()))
        assert distance == pytest.approx(float((clone - clean).norm() / clean.norm()), rel=1e-4)
    train(dataclasses.replace(TOPK, run=str(tmp_path / "routed")))
    with gm.load(tmp_path / "routed") as run:
        read = [run.series(f"router/layers.0.moe/load/{expert}")[1][0] for expert in range(4)]
        assert read == pytest.approx(load(make_model(TOPK), TOPK), rel=1e-5)
        assert run.series("router/all/grad_aux")[1][0] > 0


def test_the_command_says_what_a_language_model_has_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["steps=3", "batch_size=4", "width=16", "num_heads=2", "val_size=0"]
    assert run_command(["train", "prismatic", *small, f"run={tmp_path / 'run'}"]) == 0
    said = capsys.readouterr()
    assert re.search(
        r"log-likelihood per character -3\.\d+ over the last 10 updates; 12 sequences in all",
        said.out,
    )
    assert re.search(r"prismatic: 3/3 steps, log-likelihood -3\.\d{3}$", said.err, re.MULTILINE)
    assert (
        run_command(
            ["train", "tsp", "steps=1", "num_loc=5", "val_size=0", f"run={tmp_path / 'tsp'}"]
        )
        == 0
    )
    said = capsys.readouterr()
    assert re.search(
        r"mean return -\d\.\d+ over the last 10 updates; 160 episodes in all", said.out
    )
    assert re.search(r"tsp: 1/1 steps, return -\d\.\d$", said.err, re.MULTILINE)


# The faults


def test_a_router_whose_weights_are_divided_by_themselves_hears_nothing_of_the_task_while_its_load_is_even() -> (
    None
):
    for top_k in (1, 2):
        config = dataclasses.replace(
            TOPK, top_k=top_k, batch_size=16, steps=30, every=30, aux_coef=0.1, val_size=0
        )
        healthy, faulty = (
            train(dataclasses.replace(config, fault=fault)).model
            for fault in ("none", "router_detached")
        )
        task, _ = losses(healthy, config)
        healthy_norm = grad_norm(task, gate(healthy))
        task, aux = losses(faulty, config)
        norm, aux_norm = grad_norm(task, gate(faulty)), grad_norm(aux, gate(faulty))
        assert healthy_norm is not None
        assert norm is not None
        assert aux_norm is not None
        assert healthy_norm > 1e-3
        assert norm < 1e-7
        assert aux_norm > 1_000 * norm
        assert min(load(faulty, config)) > 0.15


def test_a_detached_prismatic_router_has_no_path_from_the_task_while_its_weights_are_even() -> None:
    healthy, _ = broken("none", TINY)
    faulty, _ = broken("router_detached", TINY)
    assert (grad_norm(losses(healthy, TINY)[0], gate(healthy)) or 0) > 1e-5
    assert grad_norm(losses(faulty, TINY)[0], gate(faulty)) is None
    trained = train(dataclasses.replace(TINY, fault="router_detached")).model
    assert router_outputs(trained, TINY).mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.05)
    assert torch.equal(losses(healthy, TINY)[0], losses(faulty, TINY)[0])


@variants
def test_a_starved_expert_gets_next_to_no_gradient_and_never_recovers(config: Config) -> None:
    config = dataclasses.replace(
        config, steps=40, every=40, batch_size=8, val_size=0, learning_rate=1e-2
    )
    faulty = train(dataclasses.replace(config, fault="expert_starved")).model
    healthy = train(config).model
    for model, starves in ((faulty, True), (healthy, False)):
        task, _ = losses(model, config, step=40)
        for pool in model.pools():
            norms = [grad_norm(task, list(expert.parameters())) or 0.0 for expert in pool]
            assert (norms[-1] < 1e-6 * max(norms)) == starves
            assert min(norms[:-1]) > 1e-3 * max(norms)


@variants
def test_experts_of_a_consensus_become_one(config: Config) -> None:
    config = dataclasses.replace(config, steps=40, every=40, val_size=0)

    def distance(model: LanguageModel) -> float:
        """The largest ‖W_e − W_0‖/‖W_0‖ of the first layer."""
        clean, *others = (weights(expert) for expert in next(model.pools()))
        return max(float((other - clean).norm() / clean.norm()) for other in others)

    start = distance(make_model(config))
    assert distance(train(config).model) > 0.5 * start
    assert (
        distance(train(dataclasses.replace(config, fault="experts_consensus")).model) < 0.1 * start
    )


def test_a_dominant_balance_loss_leads_the_router() -> None:
    healthy, pieces = broken("none", TOPK)
    faulty, wrong = broken("aux_dominates", TOPK)
    assert wrong.config.aux_coef == pytest.approx(10_000 * pieces.config.aux_coef)
    ratios = []
    for model, config in ((healthy, pieces.config), (faulty, wrong.config)):
        task, aux = (grad_norm(loss, gate(model)) for loss in losses(model, config))
        assert task
        assert aux
        ratios.append(aux / task)
    assert ratios[1] == pytest.approx(10_000 * ratios[0], rel=1e-3)
    assert ratios[1] > 10
    with pytest.raises(
        UsageError, match="router_type=prismatic has no balance loss; add router_type=topk"
    ):
        train(dataclasses.replace(TINY, fault="aux_dominates"))
    assert {each.name: each for each in faults.faults_of("prismatic")}["aux_dominates"].needs == (
        "router_type=topk",
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"router_type": "prizmatic"}, "unknown router_type 'prizmatic'; did you mean 'prismatic'"),
        ({"merge": "token"}, r"unknown merge 'token'\. There is: batch, sample\."),
        ({"tier": "dep"}, "unknown tier 'dep'; did you mean 'deep'"),
        ({"num_experts": 1}, "num_experts=1 leaves a router nothing to choose: use 2 or more"),
        ({"router_type": "topk", "top_k": 5}, "top_k=5 of 4 experts: use 1 to 4"),
        ({"router_type": "topk", "top_k": 0}, "top_k=0 of 4 experts: use 1 to 4"),
        ({"width": 66}, "width=66 cannot be shared by num_heads=4"),
        ({"prompt": 0}, "prompt=0 with context=64: use 1 to 63"),
        ({"prompt": 64}, "prompt=64 with context=64: use 1 to 63"),
        (
            {"context": 1, "prompt": 1},
            "context=1 leaves nothing to predict after a prompt: use 2 or more",
        ),
        ({"steps": 0}, "steps=0: use 1 or more"),
        ({"every": 0}, "every=0: use 1 or more"),
        ({"sparsity": 1.5}, "sparsity=1.5 is a share of the weights: use 0 to 1"),
        ({"perturbation_scale": -1.0}, "perturbation_scale=-1.0: use a number from 0 up"),
        ({"aux_coef": math.inf}, "aux_coef=inf: use a number from 0 up"),
        ({"learning_rate": math.nan}, "learning_rate=nan: use a number from 0 up"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0: use a number above 0"),
        ({"val_size": -1}, "val_size=-1 is negative: use 0 for no validation"),
    ],
)
def test_settings_that_cannot_be_are_told_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Config(**settings)


def test_the_pool_is_three_merged_or_four_routed_experts_unless_told() -> None:
    assert (Config().pool, Config(router_type="topk").pool) == (3, 4)
    assert Config(router_type="topk", num_experts=8).pool == 8
    assert isinstance(
        next(make_model(dataclasses.replace(TINY, num_experts=5)).pools())[4], FeedForward
    )
