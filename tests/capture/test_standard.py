"""Tier standard against numbers computed by hand from the same gradients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import gradiometer as gm


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 40)
        self.actor = nn.Linear(40, 3)
        self.critic = nn.Linear(40, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.trunk(x))
        return self.actor(h), self.critic(h)


@pytest.fixture
def model() -> Policy:
    torch.manual_seed(0)
    return Policy()


def loss_of(model: Policy, size: int = 16) -> Tensor:
    action, value = model(torch.randn(size, 6))
    return action.square().mean() + value.square().mean()


def gradient(model: nn.Module, prefix: str = "") -> np.ndarray[Any, Any]:
    parts = [
        p.grad.flatten()
        for name, p in model.named_parameters()
        if name.startswith(prefix) and p.grad is not None
    ]
    return torch.cat(parts).double().numpy()


def weights(model: nn.Module, prefix: str = "") -> np.ndarray[Any, Any]:
    parts = [
        p.detach().flatten() for name, p in model.named_parameters() if name.startswith(prefix)
    ]
    return torch.cat(parts).double().numpy()


def cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def series(folder: Path, name: str) -> dict[int, float]:
    steps, values = gm.load(folder).series(name)
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


def train(
    model: Policy, folder: Path, steps: int, *, clip: float | None = None, **options: Any
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Raw gradients, gradients as the optimizer saw them, and updates."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    raw, seen, moved = [], [], []
    with gm.watch(model, optimizer, run=folder, budget=None, **options):
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            raw.append(gradient(model))
            if clip is not None:
                clip_grad_norm_(model.parameters(), clip)
            seen.append(gradient(model))
            before = weights(model)
            optimizer.step()
            moved.append(weights(model) - before)
    return raw, seen, moved


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("every", [1, 3])
def test_cos_prev_is_the_cosine_with_the_step_before_whatever_the_cadence(
    every: int, clip: float | None, model: Policy, tmp_path: Path
) -> None:
    raw, _, _ = train(model, tmp_path / "run", 10, clip=clip, every=every)
    measured = series(tmp_path / "run", "grad/all/cos_prev")
    assert set(measured) == {step for step in range(1, 10) if step % every == 0}
    for step, value in measured.items():
        assert value == pytest.approx(cosine(raw[step], raw[step - 1]), abs=1e-5)


def test_cos_update_is_that_of_descent_and_update(model: Policy, tmp_path: Path) -> None:
    _, seen, moved = train(model, tmp_path / "run", 5, clip=0.05)
    for step, value in series(tmp_path / "run", "grad/all/cos_update").items():
        assert value == pytest.approx(cosine(-seen[step], moved[step]), abs=1e-5)


def test_update_ratio_divides_by_the_weights_the_step_started_from(
    model: Policy, tmp_path: Path
) -> None:
    """A head of gain 0.01 grows tenfold in ten steps of Adam, and one of zeros from nothing."""
    nn.init.orthogonal_(model.actor.weight, 0.01)
    nn.init.zeros_(model.actor.bias)
    nn.init.zeros_(model.critic.weight)
    nn.init.zeros_(model.critic.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-3)
    expected: dict[str, dict[int, float]] = {"actor": {}, "critic": {}}
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for step in range(12):
            optimizer.zero_grad()
            action, value = model(torch.randn(16, 6))
            ((action - 1).square().mean() + (value - 1).square().mean()).backward()
            before = {block: weights(model, block) for block in expected}
            optimizer.step()
            for block, start in before.items():
                if size := np.linalg.norm(start):
                    moved = np.linalg.norm(weights(model, block) - start)
                    expected[block][step] = pytest.approx(moved / size, rel=1e-4)
    for block, ratios in expected.items():
        assert series(tmp_path / "run", f"grad/{block}/update_ratio") == ratios
    assert 0 not in expected["critic"]
    assert 1 in expected["critic"]


def test_cos_update_of_plain_descent_is_one(model: Policy, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        loss_of(model).backward()
        optimizer.step()
    assert series(tmp_path / "run", "grad/actor/cos_update")[0] == pytest.approx(1.0, abs=1e-4)


def test_mean_zeros_signs_and_participation_are_those_of_the_elements(
    model: Policy, tmp_path: Path
) -> None:
    raw, _, _ = train(model, tmp_path / "run", 3)  # every tensor is smaller than its sample: exact
    for step, g in enumerate(raw):
        if step == 0:  # a whole pass for a number this quiet: taken with the sketches
            assert series(tmp_path / "run", "grad/all/mean") == {
                0: pytest.approx(g.mean(), rel=1e-4, abs=1e-9)
            }
        expected = {
            "zero_fraction": (g == 0).mean(),
            "positive_fraction": (g > 0).mean(),
            "participation": (g**2).sum() ** 2 / (g**4).sum(),
        }
        for name, value in expected.items():
            assert series(tmp_path / "run", f"grad/all/{name}")[step] == pytest.approx(
                value, rel=1e-4, abs=1e-9
            )
    both = (raw[2] != 0) & (raw[1] != 0)
    agreeing = (np.sign(raw[2]) == np.sign(raw[1]))[both].mean()
    assert series(tmp_path / "run", "grad/all/sign_agreement")[2] == pytest.approx(
        agreeing, abs=1e-6
    )


def test_a_large_tensor_is_sampled_and_its_fractions_are_close(tmp_path: Path) -> None:
    model = nn.Linear(400, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    torch.manual_seed(3)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        model.weight.grad = torch.randn(300, 400) * (torch.rand(300, 400) > 0.3)
        model.bias.grad = torch.randn(300)
        optimizer.step()
    zeros = series(tmp_path / "run", "grad/all/zero_fraction")[0]
    assert zeros == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("holds", ["one element", "heavy tail", "half precision"])
def test_participation_of_a_large_tensor_is_that_of_its_elements(
    holds: str, tmp_path: Path
) -> None:
    """A sample would miss what a few elements hold; it is read whole at the long view's steps."""
    torch.manual_seed(0)
    grad = torch.zeros(300, 300)
    grad[17, 5] = 3.0
    if holds != "one element":
        grad = torch.randn(300, 300) ** 3 * 1e-3
    model = nn.Linear(300, 300)
    if holds == "half precision":
        grad, model = grad.bfloat16(), model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(6):
            model.weight.grad, model.bias.grad = grad.clone(), grad[17].clone()
            optimizer.step()
    g = torch.cat([grad.flatten(), grad[17]]).double().numpy()
    expected = pytest.approx((g**2).sum() ** 2 / (g**4).sum(), rel=1e-3)
    assert series(tmp_path / "run", "grad/all/participation") == {0: expected, 4: expected}


def test_participation_does_not_underflow(tmp_path: Path) -> None:
    model = nn.Linear(30, 30, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        model.weight.grad = torch.full((30, 30), 1e-12)
        optimizer.step()
    assert series(tmp_path / "run", "grad/all/participation")[0] == pytest.approx(900, rel=1e-4)


@pytest.mark.slow
def test_noise_alone_reads_what_we_say_it_reads(tmp_path: Path) -> None:
    model = nn.Linear(30, 30, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    torch.manual_seed(0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(300):
            model.weight.grad = torch.randn(30, 30)
            optimizer.step()
    band = list(series(tmp_path / "run", "grad/all/cos_noise").values())
    assert np.mean(band) == pytest.approx(1.96 / 30, rel=0.1)
    window = list(series(tmp_path / "run", "grad/all/alignment_window").values())
    assert np.mean(window) == pytest.approx(1 / math.sqrt(8), rel=0.05)
    ema = list(series(tmp_path / "run", "grad/all/cos_ema").values())
    assert abs(np.mean(ema)) < 0.02  # 0.44 if the average already held the gradient


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.embed(tokens)))
        return out


POLICIES: dict[str, tuple[Any, Any]] = {
    "mlp": (
        lambda: nn.Sequential(
            nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
        ),
        lambda: torch.randn(32, 4),
    ),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)),
        lambda: torch.randn(16, 1, 8, 8),
    ),
    "transformer": (Transformer, lambda: torch.randint(0, 20, (8, 6))),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "descent", "options"),
    [
        ("mlp", "sgd", {}),
        ("conv", "adam", {}),
        ("transformer", "adam", {}),
        ("mlp", "adam", {"direction": "sketch"}),
    ],
)
def test_the_band_of_noise_holds_95_percent_of_cosines_of_noise(
    name: str, descent: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """A policy gradient whose advantages are drawn at random: independent, and without a signal."""
    torch.manual_seed(2)
    make, batch = POLICIES[name]
    model = make()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    if descent == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, **options):
        for _ in range(420):
            optimizer.zero_grad()
            chosen = torch.distributions.Categorical(logits=model(batch()))
            actions = chosen.sample()
            (chosen.log_prob(actions) * torch.randn(actions.shape)).mean().backward()
            optimizer.step()
    cosines, bands = (series(tmp_path / "run", f"grad/all/{x}") for x in ("cos_prev", "cos_noise"))
    assert min(bands) == 21  # after 20 cosines
    covered = np.mean([abs(cosines[step]) <= band for step, band in bands.items()])
    assert 0.92 <= covered <= 0.98


@pytest.mark.parametrize("direction", ["exact", "sketch"])
def test_sketched_directions_agree_with_exact_ones_within_their_error(
    direction: str, model: Policy, tmp_path: Path
) -> None:
    raw, _, _ = train(model, tmp_path / "run", 12, direction=direction)
    run = gm.load(tmp_path / "run")
    for step, value in series(tmp_path / "run", "grad/all/cos_prev").items():
        assert value == pytest.approx(
            cosine(raw[step], raw[step - 1]), abs=1e-5 if direction == "exact" else 0.15
        )
    between = run.cosine(4, 8)
    assert between.error == pytest.approx(1 / 32)
    assert between.value == pytest.approx(cosine(raw[4], raw[8]), abs=5 * between.error)
    every = (
        4 if direction == "exact" else 1
    )  # beside exact comparisons a sketch is taken at every fourth measured step
    ema = raw[0] * 0.1
    for step in range(every, 12, every):
        assert series(tmp_path / "run", "grad/all/cos_ema")[step] == pytest.approx(
            cosine(raw[step], ema), abs=0.15
        )
        ema = 0.9 * ema + 0.1 * raw[step]


def test_with_sketches_no_gradient_is_copied(model: Policy) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=None, budget=None, direction="sketch") as meter:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            assert (meter._observer.reader._gradient_of < -1).all()


@pytest.mark.slow
def test_micro_batches_give_alignment_and_noise_scale(tmp_path: Path) -> None:
    """Gradient of part i: x_i = G + noise of known covariance; the truth is known."""
    size, parts = 400, 8
    model = nn.Linear(size, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    torch.manual_seed(1)
    signal = torch.full((size,), 0.1)  # |G|² = 4
    watched = gm.watch(model, optimizer, run=tmp_path / "run", budget=None, sketch_size=1024)
    with watched:
        for _ in range(200):
            optimizer.zero_grad()
            for _ in range(parts):
                (
                    model(signal + 0.5 * torch.randn(size)).sum() / parts
                ).backward()  # tr Σ = 400 · 0.25 = 100
            optimizer.step()
    truth = size * 0.25 / 4.0
    noise = list(series(tmp_path / "run", "grad/all/noise_scale").values())
    assert noise[-1] == pytest.approx(truth, rel=0.35)
    assert (
        min(series(tmp_path / "run", "grad/all/noise_scale")) == 28
    )  # no value until 8 updates, one in 4 measured steps
    expected = math.sqrt((4 + 100 / parts) / (4 + 100)) / 1.0
    measured = np.mean(list(series(tmp_path / "run", "grad/all/alignment").values()))
    assert measured == pytest.approx(expected, rel=0.05)
    assert set(series(tmp_path / "run", "meter/micro_batches").values()) == {8.0}


def test_later_epochs_do_not_enter_the_noise_scale(tmp_path: Path) -> None:
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None) as meter:
        for number in range(60):
            meter.at(epoch=1 if number else 0)
            optimizer.zero_grad()
            for _ in range(2):
                model(torch.randn(4, 20)).sum().backward()
            optimizer.step()
    names = gm.load(tmp_path / "run").names()
    assert "grad/all/alignment" in names
    assert "grad/all/noise_scale" not in names
    assert "grad/all/noise_scale_bound" not in names


def test_two_losses_with_a_backward_each_are_not_micro_batches(
    model: Policy, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(10):
            optimizer.zero_grad()
            action, value = model(torch.randn(8, 6))
            action.square().mean().backward(retain_graph=True)
            value.square().mean().backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    assert "grad/all/alignment" not in run.names()
    assert not run.events("skipped-step")


def test_an_actor_loss_that_leaves_gradients_in_the_critic_skips_nothing(tmp_path: Path) -> None:
    """SAC: the actor's backward runs through the critic, whose gradients are then thrown away."""
    actor, critic = nn.Linear(3, 1), nn.Linear(4, 1)
    actor_optimizer = torch.optim.SGD(actor.parameters(), lr=0.01)
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    watched = gm.watch(
        {"actor": actor, "critic": critic},
        [critic_optimizer, actor_optimizer],
        run=tmp_path / "run",
        budget=None,
    )
    with watched:
        for _ in range(6):
            x = torch.randn(8, 3)
            critic_optimizer.zero_grad()
            critic(torch.cat([x, torch.randn(8, 1)], 1)).square().mean().backward()
            critic_optimizer.step()
            actor_optimizer.zero_grad()
            (-critic(torch.cat([x, actor(x)], 1)).mean()).backward()
            actor_optimizer.step()
    run = gm.load(tmp_path / "run")
    assert not run.events("skipped-step")
    assert run.newest_step == 5


def test_concentration_is_the_entropy_of_the_layers(model: Policy, tmp_path: Path) -> None:
    train(model, tmp_path / "run", 1)
    run = gm.load(tmp_path / "run")
    energy = np.array(
        [
            run.series(f"grad/layer.{name}/norm/raw")[1][0] ** 2
            for name in ("trunk", "actor", "critic")
        ]
    )
    share = energy / energy.sum()
    expected = -(share * np.log(share)).sum() / math.log(3)
    assert run.series("grad/all/concentration")[1][0] == pytest.approx(expected)


@pytest.mark.slow
def test_the_past_survives_a_checkpoint(model: Policy, tmp_path: Path) -> None:
    def go(meter: gm.Meter, optimizer: torch.optim.Optimizer, steps: int, first: int) -> None:
        for number in range(steps):
            torch.manual_seed(first + number)
            optimizer.zero_grad()
            loss_of(model).backward()
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    with gm.watch(model, optimizer, run=tmp_path / "whole", budget=None) as meter:
        go(meter, optimizer, 60, 0)
    model.load_state_dict(start)
    with gm.watch(model, optimizer, run=tmp_path / "cut", budget=None) as meter:
        go(meter, optimizer, 30, 0)
        torch.save(meter.state_dict(), tmp_path / "meter.pt")
    with gm.watch(model, optimizer, run=tmp_path / "cut", budget=None, resume=29) as meter:
        meter.load_state_dict(torch.load(tmp_path / "meter.pt", weights_only=True))
        go(meter, optimizer, 30, 30)
    whole, cut = gm.load(tmp_path / "whole"), gm.load(tmp_path / "cut")
    for name in (
        "norm/ema",
        "cos_ema",
        "clip/rate",
        "health",
        "vanishing_severity",
        "drift",
        "alignment_window",
    ):
        steps, expected = whole.series(f"grad/all/{name}")
        found_steps, found = cut.series(f"grad/all/{name}")
        assert list(found_steps) == list(steps)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)


def test_a_pair_says_which_parameters_it_is_of(tmp_path: Path) -> None:
    """A seed that never gets a gradient has no ratio: the table is how the doctor knows of it."""
    model = nn.ModuleDict({"host": nn.Linear(3, 1), "seed": nn.Linear(3, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(
        model, optimizer, run=tmp_path / "run", budget=None, pairs={"graft": ("^seed", "^host")}
    ):
        model["host"](torch.randn(4, 3)).sum().backward()
        optimizer.step()
    content = gm.load(tmp_path / "run").table("pairs").content
    assert content == {
        "graft": {"seed": ["seed.weight", "seed.bias"], "host": ["host.weight", "host.bias"]}
    }


@pytest.mark.slow
def test_the_error_of_a_sketch_averages_out_of_the_noise_scale(tmp_path: Path) -> None:
    """Two micro-batches G ± d, the same at every step: a fixed hash would err by 25 % for good."""
    torch.manual_seed(5)
    model = nn.Linear(400, 1, bias=False)
    signal, half = torch.randn(400), 0.5 * torch.randn(400)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options: dict[str, Any] = {"budget": None, "direction": "sketch", "sketch_size": 32}
    with gm.watch(model, optimizer, run=tmp_path / "run", **options):
        for _ in range(150):
            optimizer.zero_grad()
            for x in (signal + half, signal - half):
                model(x).sum().backward()
            optimizer.step()
    d, g = (float(x.double().square().sum()) for x in (half, signal))
    # Squared norms of g + d at one micro-batch and of g at two: |G|² = g − d, tr Σ = 2d.
    found = series(tmp_path / "run", "grad/all/noise_scale")
    assert found[149] == pytest.approx(2 * d / (g - d), rel=0.08)
