from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradiometer as gm
from gradiometer.errors import UnknownName, UsageError
from gradiometer_labs.tsp import problem
from gradiometer_labs.tsp.checkpoint import load_policy, make_policy
from gradiometer_labs.tsp.config import ALGORITHMS, Config, TrainingProgress
from gradiometer_labs.tsp.evaluate import evaluate, gap
from gradiometer_labs.tsp.model import TourPolicy
from gradiometer_labs.tsp.problem import PROBLEMS
from gradiometer_labs.tsp.train import loss_of, train, weights_of

TINY = Config(
    steps=8, batch_size=4, num_loc=6, embed_dim=16, num_layers=1, num_heads=2, k=3, val_size=0
)
TSP = PROBLEMS["tsp"]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def length(cities: Tensor, tour: tuple[int, ...] | list[int]) -> float:
    places = cities.tolist()
    return sum(
        math.dist(places[a], places[b]) for a, b in zip(tour, [*tour[1:], tour[0]], strict=True)
    )


def optimum(cities: Tensor) -> float:
    """The shortest of all tours."""
    return min(length(cities, (0, *rest)) for rest in itertools.permutations(range(1, len(cities))))


def eager(policy: TourPolicy, factor: float = 3.0) -> TourPolicy:
    """With larger weights, so that choices are far from uniform."""
    with torch.no_grad():
        policy.decoder.project.weight.mul_(factor)
    return policy


@pytest.fixture(scope="module")
def policy() -> TourPolicy:
    return eager(make_policy(TINY))


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("num_starts", [None, 2, 9])
def test_every_rollout_visits_each_city_once_and_begins_at_its_own(
    policy: TourPolicy, num_starts: int | None, greedy: bool
) -> None:
    instances = policy.instances(5, 6, seeded(0))
    tours = policy.rollouts(
        instances, num_starts=num_starts, generator=seeded(1), greedy=greedy
    ).tours
    num = num_starts or 6
    assert tours.shape == (5, num, 6)
    assert (tours.sort(-1).values == torch.arange(6)).all()
    assert (tours[..., 0] == torch.arange(num) % 6).all()


def test_the_reward_is_minus_the_length_of_the_closed_tour(policy: TourPolicy) -> None:
    instances = policy.instances(3, 6, seeded(0))
    done = policy.rollouts(instances, generator=seeded(1))
    for cities, tours, rewards in zip(
        instances, done.tours.tolist(), done.reward.tolist(), strict=True
    ):
        assert rewards == pytest.approx([-length(cities, tour) for tour in tours], abs=1e-5)


def forced_log_likelihood(
    policy: TourPolicy, cities: Tensor, tour: list[int]
) -> tuple[Tensor, list[float]]:
    """The log-likelihood of one tour of one instance, choice by choice and head by head; and each
    choice's entropy."""
    decoder = policy.decoder
    width, num_heads = decoder.embed_dim, decoder.num_heads
    encoded = decoder.norm(policy.encoder(cities.unsqueeze(0)))[0]
    first, present, key, value, pointer = decoder.project.weight.split(width)
    total, entropies = torch.zeros((), dtype=cities.dtype), []
    for place in range(1, len(tour)):
        left = tour[place:]
        query = first @ encoded[tour[0]] + present @ encoded[tour[place - 1]]
        glimpse = []
        for head in torch.arange(width).chunk(num_heads):
            scores = torch.stack(
                [query[head] @ (key @ encoded[j])[head] / math.sqrt(len(head)) for j in left]
            )
            shares = scores.exp() / scores.exp().sum()
            glimpse.append(
                sum(
                    (shares[i] * (value @ encoded[j])[head] for i, j in enumerate(left)),
                    torch.zeros(()),
                )
            )
        seen = torch.cat(glimpse)
        logits = torch.stack(
            [10 * torch.tanh(seen @ (pointer @ encoded[j]) / math.sqrt(width)) for j in left]
        )
        probabilities = logits.exp() / logits.exp().sum()
        total = total + probabilities[0].log()
        entropies.append(-float((probabilities * probabilities.log()).sum().detach()))
    return total, entropies


def test_the_log_likelihood_its_gradient_and_the_entropy_are_those_of_the_tour_walked_again() -> (
    None
):
    double = eager(make_policy(TINY)).double()
    instances = double.instances(2, 6, seeded(3)).double()
    done = double.rollouts(instances, num_starts=3, generator=seeded(4))
    again = [
        [forced_log_likelihood(double, instances[b], done.tours[b, i].tolist()) for i in range(3)]
        for b in range(2)
    ]
    log_likelihood = torch.stack([torch.stack([each[0] for each in row]) for row in again])
    torch.testing.assert_close(done.log_likelihood, log_likelihood)
    assert log_likelihood.std() > 0.1
    entropies = [entropy for row in again for each in row for entropy in each[1][:-1]]
    assert done.entropy.item() == pytest.approx(sum(entropies) / len(entropies))

    factors = torch.randn(2, 3, generator=seeded(5), dtype=torch.float64)
    parameters = list(double.parameters())
    grads = torch.autograd.grad((factors * done.log_likelihood).sum(), parameters)
    expected = torch.autograd.grad((factors * log_likelihood).sum(), parameters)
    for grad, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, wanted, rtol=1e-6, atol=1e-9)


def test_tours_are_sampled_with_the_probability_they_are_credited_with() -> None:
    policy = eager(make_policy(TINY), 1.5)
    one = policy.instances(1, 4, seeded(0))
    with torch.no_grad():
        done = policy.rollouts(one.expand(20_000, -1, -1), num_starts=1, generator=seeded(1))
    seen: dict[tuple[int, ...], tuple[int, float]] = {}
    for tour, credit in zip(
        done.tours[:, 0].tolist(), done.log_likelihood[:, 0].exp().tolist(), strict=True
    ):
        count, _ = seen.get(tuple(tour), (0, 0.0))
        seen[tuple(tour)] = (count + 1, credit)
    assert len(seen) == 6
    assert sum(credit for _, credit in seen.values()) == pytest.approx(1, abs=1e-5)
    assert max(credit for _, credit in seen.values()) > 0.2
    for count, credit in seen.values():
        assert abs(count - 20_000 * credit) < 4.5 * math.sqrt(20_000 * credit * (1 - credit))


def test_calling_the_policy_gives_rewards_and_log_likelihoods_of_as_many_rollouts_as_asked_for(
    policy: TourPolicy,
) -> None:
    instances = policy.instances(3, 7, seeded(0))
    reward, log_likelihood = policy(instances)
    assert reward.shape == log_likelihood.shape == (3, 7)
    assert (reward.requires_grad, log_likelihood.requires_grad) == (False, True)
    torch.manual_seed(5)
    from_global = policy(instances, num_starts=4)
    torch.manual_seed(5)
    again = policy(instances, num_starts=4)
    seeded_once = policy(instances, num_starts=4, generator=seeded(1))
    assert from_global[0].shape == (3, 4)
    assert torch.equal(from_global[1], again[1])
    assert not torch.equal(from_global[1], seeded_once[1])
    assert torch.equal(seeded_once[1], policy(instances, num_starts=4, generator=seeded(1))[1])


def test_a_policy_can_be_sent_to_another_process(policy: TourPolicy) -> None:
    sent = pickle.loads(pickle.dumps(policy))
    instances = policy.instances(2, 6, seeded(0))
    assert torch.equal(
        sent(instances, generator=seeded(1))[1], policy(instances, generator=seeded(1))[1]
    )


def test_an_instance_has_the_same_tours_whatever_stands_beside_it(policy: TourPolicy) -> None:
    instances = policy.instances(6, 8, seeded(0))
    together = policy.rollouts(instances, greedy=True)
    alone = policy.rollouts(instances[2:3], greedy=True)
    assert torch.equal(together.tours[2:3], alone.tours)
    torch.testing.assert_close(together.log_likelihood[2:3], alone.log_likelihood)


def test_the_eight_symmetries_are_different_and_keep_every_distance() -> None:
    instances = TSP.generate(4, 6, seeded(0))
    symmetric = TSP.symmetries(instances)
    assert torch.equal(symmetric[0], instances)
    assert symmetric.shape == (problem.NUM_SYMMETRIES, 4, 6, 2)
    torch.testing.assert_close(
        torch.cdist(symmetric, symmetric), torch.cdist(instances, instances).expand(8, -1, -1, -1)
    )
    for a, b in itertools.combinations(symmetric, 2):
        assert (a - b).abs().max() > 0.01
    assert symmetric.min() >= 0
    assert symmetric.max() <= 1


def test_the_evaluation_is_the_best_of_the_starts_and_of_the_symmetries_and_never_beats_the_optimum(
    policy: TourPolicy,
) -> None:
    instances = policy.instances(7, 6, seeded(0))
    found = evaluate(policy, instances)
    shortest = torch.tensor([optimum(cities) for cities in instances])
    plain = policy.rollouts(instances, greedy=True).reward.max(-1).values
    torch.testing.assert_close(found.plain, plain)
    by_hand = torch.stack(
        [
            policy.rollouts(each, greedy=True).reward.max(-1).values
            for each in TSP.symmetries(instances)
        ]
    )
    torch.testing.assert_close(found.augmented, by_hand.max(0).values)
    assert (found.augmented <= -shortest + 1e-5).all()
    assert (found.augmented > found.plain + 1e-3).any()


def test_an_evaluation_in_parts_is_the_same(
    policy: TourPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = policy.instances(7, 6, seeded(0))
    whole = evaluate(policy, instances)
    monkeypatch.setattr("gradiometer_labs.tsp.evaluate.ROWS", 3)
    torch.testing.assert_close(evaluate(policy, instances).augmented, whole.augmented)


def test_the_gap_is_the_mean_share_by_which_tours_are_too_long() -> None:
    assert gap(-torch.tensor([4.4, 2.0]), -torch.tensor([4.0, 2.0])) == pytest.approx(0.05)


def test_the_reference_is_the_optimum_of_brute_force() -> None:
    pytest.importorskip("elkai")
    instances = TSP.generate(6, 7, seeded(0))
    assert TSP.reference(instances).tolist() == pytest.approx(
        [-optimum(cities) for cities in instances], abs=1e-5
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"algorithm": "pomo"}, [-1.5, -0.5, 0.5, 1.5]),
        ({"algorithm": "leader_reward"}, [-1.5, -0.5, 0.5, 3.0]),
        ({"algorithm": "leader_reward", "alpha": 0.5}, [-1.5, -0.5, 0.5, 2.25]),
        ({"algorithm": "maxk_pomo", "k": 2, "baseline": "subloo"}, [0, 1 / 6, 1 / 2, 1]),
        ({"algorithm": "maxk_pomo", "k": 2, "baseline": "none"}, [1.5, 1.5, 5 / 3, 2]),
    ],
)
def test_the_algorithm_and_its_settings_choose_the_weights(
    settings: dict[str, Any], expected: list[float]
) -> None:
    config = dataclasses.replace(TINY, **settings)
    assert weights_of(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), config)[0].tolist() == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("reduction", "algorithm", "expected"),
    [
        ("sum", "pomo", 4.0),
        ("sum", "maxk_pomo", 4.0),
        ("mean", "maxk_pomo", 2.0),
        ("source", "pomo", 2.0),
        ("source", "leader_reward", 2.0),
        ("source", "maxk_pomo", 4.0),
    ],
)
def test_one_reduction_serves_every_algorithm_and_the_sources_is_another(
    reduction: str, algorithm: str, expected: float
) -> None:
    config = dataclasses.replace(TINY, reduction=reduction, algorithm=algorithm)
    loss = loss_of(
        torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[-1.0, -2.0], [-1.0, 0.0]]), config
    )
    assert loss.item() == expected


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_few_updates_shorten_the_tours(algorithm: str) -> None:
    settings = Config(
        steps=100, batch_size=16, num_loc=6, embed_dim=32, num_layers=2, algorithm=algorithm, k=4
    )
    config = dataclasses.replace(settings, learning_rate=2e-3, val_size=40)
    untrained, trained = (
        train(dataclasses.replace(config, learning_rate=0.0, steps=10)),
        train(config),
    )
    assert trained.mean_return > untrained.mean_return + 0.3
    assert trained.entropy < untrained.entropy
    instances = trained.model.instances(40, 6, seeded(99))
    reference = -torch.tensor([optimum(cities) for cities in instances])
    # One tour of each instance, so that the best of six starts does not hide what was learnt
    one = gap(trained.model.rollouts(instances, num_starts=1, greedy=True).reward[:, 0], reference)
    one_before = gap(
        untrained.model.rollouts(instances, num_starts=1, greedy=True).reward[:, 0], reference
    )
    assert 0 <= one < 0.7 * one_before
    assert trained.validation is not None
    assert gap(evaluate(trained.model, instances).augmented, reference) < 0.02


def test_the_same_seed_gives_the_same_weights_whatever_the_global_state() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = train(TINY)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    again, other = train(TINY), train(dataclasses.replace(TINY, seed=2))
    assert torch.equal(weights(first.model), weights(again.model))
    assert first.mean_return == again.mean_return
    assert not torch.equal(weights(first.model), weights(other.model))


def test_the_meter_does_not_touch_the_weights() -> None:
    seldom = train(dataclasses.replace(TINY, every=1_000))
    always = train(dataclasses.replace(TINY, every=1))
    assert torch.equal(weights(seldom.model), weights(always.model))


def test_progress_is_told_after_each_update() -> None:
    told: list[TrainingProgress] = []
    result = train(TINY, told.append)
    assert [each.done for each in told] == list(range(1, 9))
    assert {each.total for each in told} == {8}
    assert told[-1].mean_return == result.mean_return
    assert (result.steps, result.episodes) == (8, 8 * 4 * 6)


def test_the_run_keeps_the_gradients_and_the_scalars(tmp_path: Path) -> None:
    result = train(dataclasses.replace(TINY, run=str(tmp_path / "run"), every=2, val_size=3))
    with gm.load(tmp_path / "run") as run:
        logged = {
            "reward",
            "best_reward",
            "entropy",
            "policy_loss",
            "learning_rate",
            "val/reward",
            "val/reward_augmented",
        }
        assert logged <= set(run.names())
        assert {
            "grad/encoder/norm/raw",
            "grad/decoder/norm/raw",
            "grad/all/term/policy/norm",
        } <= set(run.names())
        assert run.series("reward")[0].tolist() == list(range(8))
        assert run.series("grad/encoder/norm/raw")[0].tolist() == [0, 2, 4, 6]
        assert run.series("learning_rate")[1].tolist() == pytest.approx(
            [5e-4 * (1 - step / 8) for step in range(8)]
        )
        assert (run.series("best_reward")[1] > run.series("reward")[1]).all()
        assert result.validation is not None
        assert run.series("val/reward")[1].tolist() == pytest.approx(
            [float(result.validation.plain.mean())]
        )


def test_a_checkpoint_is_one_plain_file_that_gives_the_policy_back(tmp_path: Path) -> None:
    result = train(dataclasses.replace(TINY, run=str(tmp_path / "run"), algorithm="maxk_pomo"))
    assert result.checkpoint == tmp_path / "run" / "last.ckpt"
    content = torch.load(result.checkpoint, weights_only=True)
    assert (content["algorithm"], content["problem"], content["step"]) == ("maxk_pomo", "tsp", 8)
    assert {"state_dict", "optimizer", "config"} <= content.keys()
    assert isinstance(content["config"], dict)
    policy, config = load_policy(result.checkpoint)
    assert config == dataclasses.replace(TINY, run=str(tmp_path / "run"), algorithm="maxk_pomo")
    assert torch.equal(weights(policy), weights(result.model))
    instances = policy.instances(2, 9, seeded(0))  # another number of cities than it was trained on
    assert torch.equal(
        policy(instances, generator=seeded(1))[1], result.model(instances, generator=seeded(1))[1]
    )
    assert torch.equal(weights(load_policy(tmp_path / "run")[0]), weights(policy))
    assert [file.name for file in (tmp_path / "run").iterdir() if "partial" in file.name] == []


def test_a_training_that_keeps_nothing_writes_no_checkpoint(tmp_path: Path) -> None:
    assert train(TINY).checkpoint is None
    assert not list(tmp_path.rglob("*.ckpt"))


class Stopped(Exception):
    pass


def test_a_resumed_training_ends_with_the_same_bits_as_one_that_was_never_stopped(
    tmp_path: Path,
) -> None:
    config = dataclasses.replace(TINY, save_every=4, every=2)
    whole = train(dataclasses.replace(config, run=str(tmp_path / "whole")))

    def stop_after_five(now: TrainingProgress) -> None:
        if now.done == 5:
            raise Stopped

    cut = dataclasses.replace(config, run=str(tmp_path / "cut"))
    with pytest.raises(Stopped):
        train(cut, stop_after_five)
    assert torch.load(tmp_path / "cut" / "last.ckpt", weights_only=True)["step"] == 4
    told: list[TrainingProgress] = []
    resumed = train(
        dataclasses.replace(cut, resume=str(tmp_path / "cut" / "last.ckpt")), told.append
    )
    assert [each.done for each in told] == [5, 6, 7, 8]
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert (resumed.mean_return, resumed.entropy) == (whole.mean_return, whole.entropy)
    with gm.load(tmp_path / "whole") as one, gm.load(tmp_path / "cut") as other:
        for name in (
            "reward",
            "best_reward",
            "entropy",
            "learning_rate",
            "grad/encoder/norm/raw",
            "grad/all/norm/update",
        ):
            for left, right in zip(one.series(name), other.series(name), strict=True):
                assert left.tolist() == right.tolist(), name


def test_a_training_goes_on_in_a_run_of_its_own(tmp_path: Path) -> None:
    before = train(dataclasses.replace(TINY, run=str(tmp_path / "before")))
    longer = dataclasses.replace(
        TINY, run=str(tmp_path / "after"), resume=str(before.checkpoint), steps=12
    )
    assert train(longer).episodes == 4 * 4 * 6
    with gm.load(tmp_path / "after") as run:
        assert run.series("reward")[0].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"embed_dim": 32}, "another training: it has embed_dim=16, not 32"),
        (
            {"algorithm": "leader_reward"},
            "another training: it has algorithm=pomo, not leader_reward",
        ),
        ({"steps": 8}, "is at step 8, and steps=8 leaves nothing to do: use 9 or more"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused_before_anything_is_written(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    before = train(dataclasses.replace(TINY, run=str(tmp_path / "before")))
    after = dataclasses.replace(
        TINY, run=str(tmp_path / "after"), steps=12, resume=str(before.checkpoint)
    )
    with pytest.raises(UsageError, match=said):
        train(dataclasses.replace(after, **changed))
    assert not (tmp_path / "after").exists()


def test_a_policy_is_asked_for_with_the_algorithm_and_the_problem_it_was_trained_with(
    tmp_path: Path,
) -> None:
    file = train(dataclasses.replace(TINY, run=str(tmp_path / "run"))).checkpoint
    assert file is not None
    assert load_policy(file, algorithm="pomo", problem="tsp")[1].algorithm == "pomo"
    with pytest.raises(
        UsageError, match=r"last.ckpt was trained with algorithm pomo, not maxk_pomo"
    ):
        load_policy(file, algorithm="maxk_pomo")
    with pytest.raises(UsageError, match=r"last.ckpt was trained with problem tsp, not cvrp"):
        load_policy(file, problem="cvrp")
    content = torch.load(file, weights_only=True)
    content["state_dict"]["encoder.embed.weight"] = torch.zeros(17, 2)
    torch.save(content, tmp_path / "bent.ckpt")
    with pytest.raises(
        UsageError, match=r"encoder.embed.weight has the shape \[17, 2\], not \[16, 2\]"
    ):
        load_policy(tmp_path / "bent.ckpt")


def test_a_file_that_is_no_checkpoint_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no checkpoint"):
        load_policy(tmp_path / "nowhere.ckpt")
    (tmp_path / "text.ckpt").write_text("hello, this is no checkpoint")
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    torch.save({"state_dict": TINY}, tmp_path / "code.ckpt")
    whole = train(dataclasses.replace(TINY, run=str(tmp_path / "run"))).checkpoint
    assert whole is not None
    (tmp_path / "half.ckpt").write_bytes(whole.read_bytes()[:4_000])
    for name in ("text", "code", "half"):
        with pytest.raises(UsageError, match=f"{name}.ckpt cannot be read as a checkpoint"):
            load_policy(tmp_path / f"{name}.ckpt")
    with pytest.raises(UsageError, match=r"other.ckpt is not a checkpoint of the tsp lab"):
        load_policy(tmp_path / "other.ckpt")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("state_dict", [1, 2], "its state_dict is a list, not a mapping"),
        (
            "state_dict",
            {"encoder.embed.weight": 3},
            "encoder.embed.weight in its state_dict is no tensor",
        ),
        ("config", None, "its config is a NoneType, not a mapping"),
        ("optimizer", 3, "its optimizer is a int, not a mapping"),
        ("optimizer", {}, "its optimizer does not fit the policy"),
    ],
)
def test_a_checkpoint_whose_parts_are_something_else_is_one_clear_error(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    whole = train(dataclasses.replace(TINY, run=str(tmp_path / "run"))).checkpoint
    assert whole is not None
    torch.save({**torch.load(whole, weights_only=True), key: value}, tmp_path / "bent.ckpt")
    with pytest.raises(UsageError, match=rf"bent\.ckpt is damaged.*{said}"):
        train(dataclasses.replace(TINY, steps=12, resume=str(tmp_path / "bent.ckpt")))


def test_a_checkpoint_cut_at_any_length_is_one_clear_error(tmp_path: Path) -> None:
    whole = train(dataclasses.replace(TINY, run=str(tmp_path / "run"))).checkpoint
    assert whole is not None
    content = whole.read_bytes()
    for length in [
        *range(0, 64, 7),
        *range(64, len(content), len(content) // 40),
        len(content) - 1,
    ]:
        (tmp_path / "cut.ckpt").write_bytes(content[:length])
        with pytest.raises(UsageError, match=r"cut\.ckpt cannot be read as a checkpoint"):
            load_policy(tmp_path / "cut.ckpt")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": "pommo"}, "unknown algorithm 'pommo'; did you mean 'pomo'"),
        ({"baseline": "sublo"}, "unknown baseline 'sublo'; did you mean 'subloo'"),
        ({"reduction": "max"}, "unknown reduction 'max'"),
        ({"num_loc": 3}, "num_loc=3 leaves no choice"),
        ({"num_starts": 1}, "use 2 or more"),
        (
            {"algorithm": "maxk_pomo", "k": 21},
            "k=21 with baseline=subloo and 20 rollouts .*: use 2 to 20",
        ),
        ({"algorithm": "maxk_pomo", "k": 1}, "use 2 to 20"),
        ({"algorithm": "maxk_pomo", "k": 20, "baseline": "sample_loo"}, "use 1 to 19"),
        ({"embed_dim": 66}, "embed_dim=66 cannot be shared by num_heads=4"),
        ({"steps": 0}, "steps=0 leaves nothing to train"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"val_size": -1}, "val_size=-1 is negative"),
    ],
)
def test_settings_that_cannot_be_are_told_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Config(**settings)


def test_an_unknown_problem_and_instances_of_the_wrong_shape_are_told(policy: TourPolicy) -> None:
    with pytest.raises(
        UnknownName, match=r"unknown problem 'ts'; did you mean 'tsp'\? The problems are: tsp"
    ):
        train(dataclasses.replace(TINY, problem="ts"))
    with pytest.raises(
        UsageError, match=r"instances of tsp are \[num, num_loc, 2\]; found \[5, 2\]"
    ):
        policy(torch.rand(5, 2))


@pytest.mark.slow
@pytest.mark.proof
def test_it_comes_within_8_percent_of_the_optimum_of_20_cities() -> None:
    """In a fifth of the default updates; benchmarks/tsp_learns.py measures the whole.

    Its quick form, with six cities: `test_a_few_updates_shorten_the_tours`.
    """
    pytest.importorskip("elkai")
    result = train(Config(steps=200, val_size=0))
    instances = result.model.instances(200, 20, seeded(2024))
    found = evaluate(result.model, instances)
    assert gap(found.augmented, TSP.reference(instances)) < 0.08
