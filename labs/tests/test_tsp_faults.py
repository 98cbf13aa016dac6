"""What each fault of the tsp lab changes, and what the lab logs so that it can be found."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer_labs import faults
from gradiometer_labs.tsp import train as lab
from gradiometer_labs.tsp.checkpoint import make_policy
from gradiometer_labs.tsp.config import Config
from gradiometer_labs.tsp.model import TourPolicy, TourRollouts, Walk
from gradiometer_labs.tsp.problem import PROBLEMS
from gradiometer_labs.tsp.train import Pieces, train
from gradiometer_labs.weights import save_weights

TINY = Config(
    steps=6, batch_size=4, num_loc=6, embed_dim=16, num_layers=2, num_heads=2, every=2, val_size=0
)
NAMES = [each.name for each in faults.faults_of("tsp")]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def broken(fault: str, config: Config = TINY) -> Pieces:
    return faults.apply(fault, "tsp", Pieces(config=config))


def eager(policy: TourPolicy) -> TourPolicy:
    """With weights of its own taste, so that choices are far from even."""
    weight = policy.decoder.project.weight
    with torch.no_grad():
        weight.add_(0.4 * torch.randn(weight.shape, generator=seeded(5)))
    return policy


def walked(
    policy: TourPolicy, walk: Walk | None = None, num: int = 4
) -> tuple[Tensor, TourRollouts]:
    instances = policy.instances(num, 6, seeded(0))
    return instances, policy.rollouts(instances, generator=seeded(1), walk=walk or Walk())


def series(folder: Path, name: str) -> tuple[list[int], Any]:
    with gm.load(folder) as run:
        steps, values = run.series(name)
        return steps.tolist(), values


# What faults change


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_changes_its_piece_and_no_other(name: str) -> None:
    healthy, wrong = Pieces(config=TINY), broken(name)
    piece = {each.name: each for each in faults.faults_of("tsp")}[name].piece
    changed = [
        field.name
        for field in dataclasses.fields(Pieces)
        if getattr(healthy, field.name) is not getattr(wrong, field.name)
    ]
    assert changed == [piece]


def test_at_most_a_third_of_the_faults_are_settings() -> None:
    pieces = [each.piece for each in faults.faults_of("tsp")]
    assert len(pieces) >= 7
    assert 3 * pieces.count("config") <= len(pieces)


def test_a_wrong_sign_is_the_loss_negated() -> None:
    weights, log_likelihood = (
        torch.randn(4, 6, generator=seeded(0)),
        torch.randn(4, 6, generator=seeded(1)),
    )
    healthy = Pieces(config=TINY).policy_loss_of(weights, log_likelihood, TINY)
    assert broken("wrong_sign").policy_loss_of(weights, log_likelihood, TINY) == -healthy
    assert healthy != 0


def test_a_choice_is_credited_with_the_probability_of_the_city_after_it() -> None:
    policy = eager(make_policy(TINY))
    instances, done = walked(policy)
    _, wrong = walked(policy, broken("log_prob_wrong_action").walk)
    assert torch.equal(wrong.tours, done.tours)
    assert torch.equal(wrong.entropies, done.entropies)
    # The probability at the t-th choice of the city that was chosen next, from a tour in which it
    # comes first
    for place in range(4):
        other = done.tours.clone()
        other[..., [place + 1, place + 2]] = done.tours[..., [place + 2, place + 1]]
        at_once = policy.log_probs_of_tours(instances, other)[..., place]
        torch.testing.assert_close(wrong.log_probs[..., place], at_once)
    assert torch.equal(wrong.log_probs[..., 4], torch.zeros(4, 6))
    assert (wrong.log_probs - done.log_probs).abs().max() > 0.5


def test_a_sampler_that_ignores_the_logits_draws_open_cities_evenly() -> None:
    log_probs = torch.tensor([0.0, 3.0, -math.inf, 1.0]).log_softmax(-1).expand(1, 30_000, 4)
    for name, expected in (
        ("none", log_probs[0, 0].exp()),
        ("sampler_ignores_logits", torch.tensor([1, 1, 0, 1]) / 3),
    ):
        drawn = broken(name).sampled(log_probs, seeded(0))
        shares = torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()
        torch.testing.assert_close(shares, expected, atol=0.015, rtol=0)
        assert shares[2] == 0


def test_misaligned_rewards_are_those_of_other_tours() -> None:
    rewards = torch.arange(12.0).view(3, 4)
    weights = broken("rewards_misaligned").weights_of(rewards, TINY)
    read = torch.tensor([[0.0, 4, 8, 1], [5, 9, 2, 6], [10, 3, 7, 11]])
    torch.testing.assert_close(weights, read - read.mean(-1, keepdim=True))


def test_without_a_baseline_the_weights_are_the_rewards() -> None:
    rewards = -torch.rand(3, 4, generator=seeded(0))
    assert torch.equal(broken("baseline_missing").weights_of(rewards, TINY), rewards)


@pytest.mark.parametrize(("dose", "share"), [("mild", 0.5), ("usual", 0.8), ("severe", 0.95)])
def test_a_noisy_verifier_tells_a_share_of_the_tours_what_another_instance_earned(
    dose: str, share: float
) -> None:
    _, done = walked(make_policy(TINY), num=400)
    said = broken(f"noisy_verifier:{dose}").rewards_of(done, TINY)
    changed = said != done.reward
    assert float(changed.float().mean()) == pytest.approx(
        share, abs=4.5 * math.sqrt(share * (1 - share) / 2_400)
    )
    assert torch.equal(said[changed], done.reward.flip(0)[changed])
    # Whom it hits has nothing to do with how good the tour is
    spread = done.reward.std() / math.sqrt(min(int(changed.sum()), int((~changed).sum())))
    assert abs(done.reward[changed].mean() - done.reward[~changed].mean()) < 4.5 * spread
    assert torch.equal(broken(f"noisy_verifier:{dose}").rewards_of(done, TINY), said)


def test_a_frozen_encoder_has_gradients_and_stays_as_it_was() -> None:
    start = make_policy(TINY)
    trained = train(dataclasses.replace(TINY, fault="frozen_layer")).model
    assert torch.equal(flat(trained.encoder), flat(start.encoder))
    assert not torch.equal(flat(trained.decoder), flat(start.decoder))
    assert all(
        parameter.grad is not None and parameter.grad.any()
        for parameter in trained.encoder.parameters()
    )


def test_no_loss_reaches_a_detached_encoder() -> None:
    healthy, faulty = make_policy(TINY), broken("encoder_detached").policy_of(TINY)
    (_, right), (_, wrong) = walked(healthy), walked(faulty)
    assert torch.equal(right.log_probs, wrong.log_probs)
    for done in (right, wrong):
        done.log_likelihood.square().sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in faulty.encoder.parameters())
    for mine, its in zip(healthy.decoder.parameters(), faulty.decoder.parameters(), strict=True):
        assert mine.grad is not None
        assert its.grad is not None
        assert torch.equal(mine.grad, its.grad)


def test_a_nan_begins_in_one_layer_behind_a_finite_loss() -> None:
    faulty = broken("nan_layer").policy_of(TINY)
    _, done = walked(faulty)
    loss = done.log_likelihood.square().sum()
    assert loss.isfinite()
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name for name, weight in faulty.named_parameters() if not weight.grad.isfinite().all()}  # type: ignore[union-attr]
    below = {
        name
        for name, _ in faulty.named_parameters()
        if name.startswith(("encoder.embed", "encoder.layers.0"))
    }
    own = ("norm_attention", "norm_mlp", "qkv", "out", "mlp.0")
    here = {
        name
        for name, _ in faulty.named_parameters()
        if name.startswith(tuple(f"encoder.layers.1.{x}" for x in own))
    }
    assert found == below | here
    assert len(here) == 9


def test_where_weights_are_nan_a_tour_is_still_a_tour_and_the_training_ends() -> None:
    result = train(dataclasses.replace(TINY, fault="nan_layer"))
    assert flat(result.model.encoder).isnan().any()
    assert -5 < result.mean_return < -1
    _, done = walked(result.model)
    assert done.log_likelihood.isnan().all()
    assert (done.tours.sort(-1).values == torch.arange(6)).all()


@pytest.mark.parametrize(
    ("fault", "changed"),
    [
        ("lr_high:mild", {"learning_rate": 5e-3}),
        ("lr_high", {"learning_rate": 5e-2}),
        ("lr_high:severe", {"learning_rate": 0.5}),
        ("lr_low:mild", {"learning_rate": 5e-4 / 30}),
        ("lr_low", {"learning_rate": 5e-6}),
        ("lr_low:severe", {"learning_rate": 5e-7}),
        ("clip_tiny:mild", {"max_grad_norm": 1e-2}),
        ("clip_tiny", {"max_grad_norm": 1e-3}),
        ("clip_tiny:severe", {"max_grad_norm": 1e-7}),
    ],
)
def test_a_setting_is_changed_by_its_dose(fault: str, changed: dict[str, float]) -> None:
    name, value = next(iter(changed.items()))
    found = broken(fault).config
    assert getattr(found, name) == pytest.approx(value)
    assert dataclasses.replace(found, **{name: getattr(TINY, name)}) == TINY


# What is logged


def test_choices_of_tours_are_as_likely_as_when_they_were_made() -> None:
    policy = eager(make_policy(TINY))
    instances, done = walked(policy)
    torch.testing.assert_close(
        policy.log_probs_of_tours(instances, done.tours), done.log_probs, rtol=1e-4, atol=1e-5
    )
    assert done.log_probs.shape == (4, 6, 5)
    assert done.entropies.shape == (5, 4, 6)
    assert torch.equal(done.log_likelihood, done.log_probs.sum(-1))
    assert done.entropies[-1].abs().max() == 0
    assert done.entropy == done.entropies[:-1].mean()


def test_a_second_look_is_that_of_a_computation_by_hand() -> None:
    _, done = walked(eager(make_policy(TINY)))
    after = done.log_probs.detach() + 0.1 * torch.randn(4, 6, 5, generator=seeded(2))
    found = lab.second_look(done.log_probs.detach(), after, done, done.reward)
    ratios = (after - done.log_probs.detach())[..., :4].double().flatten().tolist()
    assert found["approx_kl"] == pytest.approx(
        sum(math.exp(x) - 1 - x for x in ratios) / len(ratios), rel=1e-4
    )
    earned = (done.reward - done.reward.mean(-1, keepdim=True)).flatten().tolist()
    gained = (after - done.log_probs.detach()).sum(-1).flatten().tolist()
    assert found["reward_gain"] == pytest.approx(float(np.corrcoef(earned, gained)[0, 1]), abs=1e-5)
    scores = [
        float(done.log_probs[b, i, t].detach() + done.entropies[t, b, i])
        for b, i, t in itertools.product(range(4), range(6), range(4))
    ]
    pairs = [x * y for x, y in itertools.permutations(scores, 2)]
    assert found["score_z"] == pytest.approx(
        sum(pairs) / math.sqrt(2 * sum(x * x for x in pairs)), rel=1e-3
    )


@pytest.mark.parametrize("shift", [0, 1, -2])
def test_the_lag_is_how_many_tours_on_the_rewards_of_the_weights_are(shift: int) -> None:
    rewards = -torch.rand(5, 6, generator=seeded(0))
    own = rewards - rewards.mean(-1, keepdim=True)
    assert lab.lag_of(own.flatten().roll(-shift).view(5, 6), rewards) == shift


LEARNING = dataclasses.replace(
    TINY, steps=30, batch_size=16, num_layers=1, learning_rate=4e-3, every=2
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Short trainings by fault."""
    folder = tmp_path_factory.mktemp("tsp")
    names = (
        "none",
        "wrong_sign",
        "log_prob_wrong_action",
        "sampler_ignores_logits",
        "noisy_verifier:severe",
    )
    found = {name: folder / name.replace(":", ".") for name in names}
    for name, run in found.items():
        train(dataclasses.replace(LEARNING, fault=name, run=str(run), val_every=10, val_size=4))
    return found


@pytest.mark.slow
def test_what_needs_a_second_look_is_logged_as_often_as_the_meter_measures(
    runs: dict[str, Path],
) -> None:
    for name in ("approx_kl", "reward_gain", "score_z", "reward_lag"):
        steps, values = series(runs["none"], name)
        assert steps == list(range(0, 30, 2))
        assert np.isfinite(values).all()
    for name in ("reward_std", "observation/mean", "advantages/std"):
        assert series(runs["none"], name)[0] == list(range(30))
    assert series(runs["none"], "val/reward")[0] == [9, 19, 29]
    assert series(runs["none"], "observation/mean")[1].mean() == pytest.approx(0.5, abs=0.02)
    with gm.load(runs["none"]) as run:
        settings = run.facts["config"]
    assert settings["num_actions"] == 5
    assert settings["max_reward"] == pytest.approx(-2.32, abs=0.02)


def test_the_score_of_sampled_choices_is_zero_in_the_mean_and_that_of_others_is_not(
    runs: dict[str, Path],
) -> None:
    medians = {name: float(np.median(series(run, "score_z")[1])) for name, run in runs.items()}
    assert abs(medians["none"]) < 1.5
    assert abs(medians["wrong_sign"]) < 1.5
    assert medians["log_prob_wrong_action"] > 10
    assert medians["sampler_ignores_logits"] > 10


def test_an_update_raises_what_earned_more_unless_its_sign_is_wrong(runs: dict[str, Path]) -> None:
    assert series(runs["none"], "reward_gain")[1].mean() > 0.1
    assert series(runs["wrong_sign"], "reward_gain")[1].mean() < -0.02
    assert (series(runs["none"], "reward_lag")[1] == 0).all()


def test_what_a_noisy_verifier_says_is_logged_and_what_tours_are_worth_is_returned(
    runs: dict[str, Path],
) -> None:
    told: list[float] = []
    result = train(
        dataclasses.replace(LEARNING, steps=1, fault="noisy_verifier:severe"),
        lambda now: told.append(now.mean_return),
    )
    healthy = train(dataclasses.replace(LEARNING, steps=1))
    assert told == [result.mean_return] == [healthy.mean_return]
    noisy, right = (
        series(runs[name], "reward_std")[1][0] for name in ("noisy_verifier:severe", "none")
    )
    assert noisy > 1.05 * right


def test_a_clip_is_there_where_it_is_asked_for(tmp_path: Path) -> None:
    train(dataclasses.replace(TINY, fault="clip_tiny", run=str(tmp_path / "clipped")))
    train(dataclasses.replace(TINY, run=str(tmp_path / "free")))
    assert set(series(tmp_path / "clipped", "grad/all/clip/threshold")[1]) == {1e-3}
    assert series(tmp_path / "clipped", "grad/all/norm/clipped")[1] == pytest.approx(
        [1e-3] * 3, rel=1e-3
    )
    with gm.load(tmp_path / "free") as run:
        assert "grad/all/clip/threshold" not in run.names()


def test_shortest_tours_are_as_long_as_the_formula_says_in_the_mean() -> None:
    instances = PROBLEMS["tsp"].generate(1_500, 5, seeded(3))
    rests = torch.tensor([(0, *rest) for rest in itertools.permutations(range(1, 5))])
    best = PROBLEMS["tsp"].reward(instances, rests.expand(1_500, -1, -1)).max(-1).values
    assert PROBLEMS["tsp"].best_mean(5) == pytest.approx(
        float(best.mean()), abs=4.5 * float(best.std()) / 1_500**0.5
    )


# Where a training starts


def test_a_training_starts_from_the_weights_of_another(tmp_path: Path) -> None:
    before = train(TINY).model
    save_weights(before, tmp_path / "before.pt")
    still = train(
        dataclasses.replace(TINY, start=str(tmp_path / "before.pt"), learning_rate=0.0, seed=9)
    ).model
    assert torch.equal(flat(still), flat(before))
    moved = train(
        dataclasses.replace(TINY, start=str(tmp_path / "before.pt"), fault="frozen_layer", seed=9)
    ).model
    assert torch.equal(flat(moved.encoder), flat(before.encoder))
    assert not torch.equal(flat(moved.decoder), flat(before.decoder))


def test_weights_that_do_not_fit_and_two_beginnings_are_told(tmp_path: Path) -> None:
    save_weights(make_policy(dataclasses.replace(TINY, embed_dim=32)), tmp_path / "wide.pt")
    with pytest.raises(
        UsageError, match=r"start=.*wide\.pt does not hold weights of this lab's model"
    ):
        train(dataclasses.replace(TINY, start=str(tmp_path / "wide.pt")))
    with pytest.raises(UsageError, match="start= and resume= are two places to begin at"):
        dataclasses.replace(TINY, start="a.pt", resume="b.ckpt")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"val_every": 0}, "val_every=0: use 1 or more"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0: use a number above 0"),
    ],
)
def test_settings_that_cannot_be_are_told_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Config(**settings)
