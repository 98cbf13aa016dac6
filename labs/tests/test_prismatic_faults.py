"""What the faults of the prismatic lab change that are not about experts alone, and where a
training starts."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer_labs import faults
from gradiometer_labs.prismatic.config import Config
from gradiometer_labs.prismatic.model import LanguageModel, make_model
from gradiometer_labs.prismatic.text import ALPHABET
from gradiometer_labs.prismatic.train import (
    Pieces,
    PrismaticPurpose,
    lag_of,
    task_loss_of,
    text_for,
    train,
)
from gradiometer_labs.weights import save_weights

TINY = Config(
    steps=4, batch_size=4, context=24, prompt=8, width=16, num_heads=2, val_size=0, every=2
)
TOPK = dataclasses.replace(TINY, router_type="topk")
variants = pytest.mark.parametrize("config", [TINY, TOPK], ids=["prismatic", "topk"])
NAMES = [each.name for each in faults.faults_of("prismatic")]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def broken(fault: str, config: Config) -> tuple[LanguageModel, Pieces]:
    """A fresh model of a training with that fault, and its pieces."""
    pieces = faults.apply(fault, "prismatic", Pieces(config=config))
    return pieces.model_of(pieces.config, pieces.routing), pieces


def task_loss(model: LanguageModel, config: Config) -> Tensor:
    characters = text_for(config, PrismaticPurpose.TRAINING, 0, config.batch_size)
    return task_loss_of(model(characters[:, :-1])[0], characters, config.prompt)


def grads(model: LanguageModel, config: Config) -> dict[str, Tensor | None]:
    """Of the task's loss, by the names of the weights."""
    names, weights = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(task_loss(model, config), weights, allow_unused=True)
    return dict(zip(names, found, strict=True))


def first_logits(model: LanguageModel, config: Config) -> Tensor:
    """What the first layer's router makes of a batch, [..., N]."""
    characters = text_for(config, PrismaticPurpose.TRAINING, 0, config.batch_size)[:, :-1]
    heard: list[Tensor] = []
    moe = model.layers[0].get_submodule("moe")
    handle = moe.register_forward_pre_hook(lambda _module, args: heard.append(args[0]))
    model(characters)
    handle.remove()
    router = moe.get_submodule("router")
    seen = heard[0][:, : config.prompt].mean(1) if config.router_type == "prismatic" else heard[0]
    return router.logits(seen).detach()  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_changes_its_piece_and_no_other(name: str) -> None:
    healthy, (_, wrong) = Pieces(config=TOPK), broken(name, TOPK)
    piece = {each.name: each for each in faults.faults_of("prismatic")}[name].piece
    changed = [
        field.name
        for field in dataclasses.fields(Pieces)
        if getattr(healthy, field.name) is not getattr(wrong, field.name)
    ]
    assert changed == [piece]


def test_at_most_a_third_of_the_faults_are_settings() -> None:
    pieces = [each.piece for each in faults.faults_of("prismatic")]
    assert len(pieces) >= 9
    assert 3 * pieces.count("config") <= len(pieces)


@variants
@pytest.mark.parametrize(("dose", "raised"), [(":mild", 2.0), ("", 4.0), (":severe", 8.0)])
def test_a_hot_expert_has_a_higher_logit_and_nobody_else(
    config: Config, dose: str, raised: float
) -> None:
    model, _ = broken(f"hot_expert{dose}", config)
    healthy = first_logits(make_model(config), config)
    more = first_logits(model, config) - healthy
    expected = torch.zeros(config.pool)
    expected[0] = raised
    torch.testing.assert_close(more, expected.expand_as(more))


def test_a_hot_expert_is_asked_by_every_character(tmp_path: Path) -> None:
    train(dataclasses.replace(TOPK, fault="hot_expert", run=str(tmp_path / "hot")))
    train(dataclasses.replace(TINY, fault="hot_expert", run=str(tmp_path / "merged")))
    with gm.load(tmp_path / "hot") as run:
        assert run.series("router/layers.0.moe/load/0")[1] == pytest.approx(
            [0.5] * 2
        )  # one of two for all
    with gm.load(tmp_path / "merged") as run:
        assert (run.series("router/layers.0.moe/load/0")[1] > 0.9).all()


@variants
@pytest.mark.parametrize(("dose", "factor"), [(":mild", 8.0), ("", 64.0), (":severe", 4096.0)])
def test_a_scaled_router_has_a_wrong_gradient_under_the_right_loss(
    config: Config, dose: str, factor: float
) -> None:
    healthy, (wrong, _) = make_model(config), broken(f"router_grad_scaled{dose}", config)
    assert torch.equal(task_loss(healthy, config), task_loss(wrong, config))
    right, found = grads(healthy, config), grads(wrong, config)
    last = "layers.1.moe.router.gate.weight"  # what is below also feels the routers above it
    for name, grad in right.items():
        assert grad is not None
        if name == last:
            torch.testing.assert_close(found[name], grad / factor, rtol=1e-3, atol=1e-9)
        elif name.startswith(("layers.1.moe.experts", "norm", "head")):
            torch.testing.assert_close(found[name], grad)
    below, its = found["layers.0.moe.router.gate.weight"], right["layers.0.moe.router.gate.weight"]
    assert below is not None
    assert its is not None
    assert float(below.norm() / its.norm()) == pytest.approx(1 / factor, rel=0.1)


def test_a_loss_shifted_twice_scores_the_character_after_the_next() -> None:
    _, pieces = broken("loss_shifted", TINY)
    logits = torch.randn(2, 6, len(ALPHABET), generator=torch.Generator().manual_seed(0))
    characters = text_for(TINY, PrismaticPurpose.TRAINING, 0, 2)[:, :7]
    log_probs = logits.log_softmax(-1)
    expected = [-log_probs[b, t, characters[b, t + 2]] for b in range(2) for t in range(2, 5)]
    assert float(pieces.task_loss_of(logits, characters, 3)) == pytest.approx(
        float(torch.stack(expected).mean())
    )


@pytest.mark.slow
def test_validation_is_not_shifted_with_the_loss() -> None:
    config = dataclasses.replace(TINY, steps=40, batch_size=8, val_size=16, every=20)
    wrong, right = (
        train(dataclasses.replace(config, fault=fault)) for fault in ("loss_shifted", "none")
    )
    assert wrong.validation is not None
    assert right.validation is not None
    assert right.validation.loss < 2.4 < 2.8 < wrong.validation.loss
    assert -wrong.mean_return < 2.5


@pytest.mark.parametrize("shift", [-1, 0, 1, 2])
def test_the_lag_is_the_place_of_the_character_that_predictions_are_of(shift: int) -> None:
    characters = text_for(TINY, PrismaticPurpose.TRAINING, 0, 8)
    known = characters.roll(-1 - shift, 1)[:, :-1]
    assert lag_of(5.0 * one_hot(known, len(ALPHABET)).float(), characters, TINY.prompt) == shift


def test_predictions_of_no_place_have_no_lag() -> None:
    characters = text_for(TINY, PrismaticPurpose.TRAINING, 0, 8)
    common = torch.bincount(characters.flatten(), minlength=len(ALPHABET)).add(0.1).log()
    assert lag_of(common.expand(8, 24, -1), characters, TINY.prompt) == 0
    assert lag_of(torch.full((8, 24, len(ALPHABET)), math.nan), characters, TINY.prompt) == 0


def test_the_run_keeps_the_lag_and_the_reward(tmp_path: Path) -> None:
    train(dataclasses.replace(TINY, run=str(tmp_path / "run")))
    with gm.load(tmp_path / "run") as run:
        assert run.series("reward_lag")[0].tolist() == [0, 2]
        assert (run.series("reward")[1] == -run.series("loss")[1]).all()


@variants
def test_frozen_attentions_have_gradients_and_stay_as_they_were(config: Config) -> None:
    start, trained = (
        make_model(config),
        train(dataclasses.replace(config, fault="frozen_layer")).model,
    )
    for (name, before), after in zip(start.named_parameters(), trained.parameters(), strict=True):
        assert torch.equal(before, after) == (".attention." in name), name
        if ".attention." in name:
            assert after.grad is not None
            assert after.grad.any()


@variants
def test_nothing_below_a_detached_residual_is_reached(config: Config) -> None:
    healthy, (wrong, _) = make_model(config), broken("residual_detached", config)
    assert torch.equal(task_loss(healthy, config), task_loss(wrong, config))
    right, found = grads(healthy, config), grads(wrong, config)
    for name, grad in right.items():
        assert grad is not None
        if name.startswith(("layers.1.", "norm.", "head.")):
            torch.testing.assert_close(found[name], grad)
        else:
            assert found[name] is None, name


@variants
def test_a_nan_begins_in_one_attention_behind_a_finite_loss(config: Config) -> None:
    model, _ = broken("nan_layer", config)
    assert task_loss(model, config).isfinite()
    bad = {
        name
        for name, grad in grads(model, config).items()
        if grad is not None and not grad.isfinite().all()
    }
    assert bad >= {
        "layers.1.attention.qkv.weight",
        "layers.0.attention.out.weight",
        "characters.weight",
    }
    above = ("layers.1.attention.out", "layers.1.moe", "layers.1.norm_moe", "norm", "head")
    assert not [name for name in bad if name.startswith(above)]


@pytest.mark.parametrize(("dose", "rate"), [(":mild", 0.1), ("", 1.0), (":severe", 10.0)])
def test_a_high_learning_rate_is_a_setting_and_changes_no_other(dose: str, rate: float) -> None:
    _, pieces = broken(f"lr_high{dose}", TINY)
    assert pieces.config == dataclasses.replace(TINY, learning_rate=rate)


@pytest.mark.slow
@variants
def test_a_training_starts_from_the_weights_of_another(tmp_path: Path, config: Config) -> None:
    before = train(config).model
    save_weights(before, tmp_path / "before.pt")
    started = dataclasses.replace(config, start=str(tmp_path / "before.pt"), seed=9)
    frozen = train(dataclasses.replace(started, fault="frozen_layer")).model
    for (name, weight), after in zip(before.named_parameters(), frozen.parameters(), strict=True):
        assert torch.equal(weight, after) == (".attention." in name), name
    assert torch.equal(
        flat(train(dataclasses.replace(started, learning_rate=0.0)).model), flat(before)
    )


def test_weights_of_another_model_are_one_clear_error(tmp_path: Path) -> None:
    save_weights(make_model(TOPK), tmp_path / "topk.pt")
    with pytest.raises(
        UsageError, match=r"start=.*topk\.pt does not hold weights of this lab's model"
    ):
        train(dataclasses.replace(TINY, start=str(tmp_path / "topk.pt")))
    with pytest.raises(UsageError, match=r"start=.*nowhere\.pt: there is no such file"):
        train(dataclasses.replace(TINY, start=str(tmp_path / "nowhere.pt")))
