"""Replicates against brute force, against planted truths, and across engines."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.errors import MissingExtra, UnknownName
from gradiometer.maths import estimators, variance
from gradiometer.probes.engine import run_tasks
from gradiometer.probes.replicates import Replicates, replicates
from gradiometer.probes.stillness import seed_everything


class Bandit(nn.Module):
    """Instances are rewards of five arms; the policy sees them and pulls n times."""

    def __init__(self, rollouts: int = 6) -> None:
        super().__init__()
        self.rollouts = rollouts
        self.actor = nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, instances: Tensor) -> tuple[Tensor, Tensor]:
        policy = torch.distributions.Categorical(logits=self.actor(instances))
        arms = policy.sample((self.rollouts,))
        rewards = instances.gather(1, arms.T)
        return rewards, policy.log_prob(arms).T


def problem(num: int = 40, seed: int = 0) -> tuple[Bandit, Tensor]:
    torch.manual_seed(seed)
    return Bandit(), torch.randn(num, 5)


def plain(found: Replicates) -> dict:
    return json.loads(json.dumps(found.record))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "options"), [("pomo", {}), ("maxk_pomo", {"k": 2, "baseline": "subloo"})]
)
@pytest.mark.parametrize("reduction", ["mean", "source"])
def test_the_sources_replicates_equal_a_loop_by_hand(
    algorithm: str, options: dict, reduction: str
) -> None:
    policy, instances = problem()
    found = replicates(
        policy,
        instances,
        algorithm=algorithm,
        options=options,
        reduction=reduction,
        num_replicates=3,
        batch_size=16,
        seed=7,
    ).record["per_replicate"]
    direction = torch.randn(
        sum(p.numel() for p in policy.actor.parameters()) + 10,
        generator=torch.Generator().manual_seed(7 + 999),
    )
    for r in range(3):
        seed_everything(7 + r)
        policy.zero_grad()
        spreads, largest = [], []
        for batch in instances.split(16):
            rewards, log_likelihood = policy(batch)
            weights = estimators.find(algorithm)(rewards, **options)
            terms = -(weights * log_likelihood)
            summed = reduction == "source" and algorithm == "maxk_pomo"
            loss = (terms.sum(-1) if summed else terms.mean(-1)).mean() * len(batch) / 40
            loss.backward()
            spreads += (weights.sum(-1) ** 2 / (weights.square().sum(-1) + 1e-12)).tolist()
            largest += weights.abs().max(-1).values.tolist()
        flat = torch.cat(
            [
                torch.zeros(p.numel()) if p.grad is None else p.grad.reshape(-1)
                for p in policy.parameters()
            ]
        )
        assert found["grad_norm"][r] == pytest.approx(float(flat.norm()), rel=1e-5)
        assert found["grad_proj"][r] == pytest.approx(float(flat @ direction), rel=1e-4)
        assert found["ess_mean"][r] == pytest.approx(np.mean(spreads), rel=1e-4, abs=1e-7)
        assert found["weights_abs_max_mean"][r] == pytest.approx(np.mean(largest), rel=1e-5)


def test_the_record_has_the_sources_schema() -> None:
    policy, instances = problem()
    record = plain(replicates(policy, instances, num_replicates=4, config={"problem": "bandit"}))
    assert record["schema_version"] == 1
    assert record["config"]["problem"] == "bandit"
    assert record["config"]["algorithm"] == "pomo"
    assert set(record["per_replicate"]) == {
        "grad_norm",
        "grad_proj",
        "ess_mean",
        "weights_abs_max_mean",
    }
    norms = record["per_replicate"]["grad_norm"]
    assert record["metrics"]["grad_norm_mean"] == pytest.approx(np.mean(norms))
    assert record["metrics"]["grad_norm_std"] == pytest.approx(np.std(norms))
    assert len(record["extended"]["projections"]["mean"]) == 64
    assert (
        record["extended"]["controls"]["shuffled_rewards"]["snr"]["value"]
        < record["extended"]["snr"]["value"]
    )


def test_trace_signal_and_split_are_those_of_many_more_replicates() -> None:
    policy, instances = problem()
    found = replicates(policy, instances, num_replicates=8, controls=False).record["extended"]
    flats = []
    for r in range(400):
        torch.manual_seed(10_000 + r)
        rewards, log_likelihood = policy(instances)
        loss = -(estimators.pomo(rewards) * log_likelihood).mean()
        flats.append(
            torch.cat(
                [g.reshape(-1) for g in torch.autograd.grad(loss, list(policy.actor.parameters()))]
            )
        )
    many = torch.stack(flats).double()
    trace, mean = float(many.var(0).sum()), many.mean(0)
    assert found["trace"]["low"] <= trace * 1.1
    assert found["trace"]["high"] >= trace * 0.9
    assert found["trace"]["value"] == pytest.approx(trace, rel=0.3)
    assert found["signal_sq"] == pytest.approx(float(mean @ mean), rel=0.3)
    assert found["trace_of_replicates"] == pytest.approx(trace, rel=0.8)
    assert found["mean_cosine"] == pytest.approx(
        float(mean @ mean) / (float(mean @ mean) + trace), abs=0.15
    )
    assert found["instance_trace"] > 0
    assert found["blocks"] == {}


@pytest.mark.slow
def test_two_runs_of_one_seed_are_identical_and_neighbouring_seeds_share_nothing_extended() -> None:
    policy, instances = problem()
    first, second = (replicates(policy, instances, seed=3, num_replicates=3) for _ in range(2))
    assert plain(first) == plain(second)
    other = plain(replicates(policy, instances, seed=4, num_replicates=3))
    assert (
        other["per_replicate"]["grad_norm"][:2] == plain(first)["per_replicate"]["grad_norm"][1:]
    ), "the source's trap"
    assert (
        other["extended"]["projections"]["mean"] != plain(first)["extended"]["projections"]["mean"]
    )
    assert not set(np.round(other["extended"]["projections"]["variance"], 12)) & set(
        np.round(plain(first)["extended"]["projections"]["variance"], 12)
    )


@pytest.mark.slow
def test_processes_give_the_same_bits() -> None:
    policy, instances = installed()
    options = {"num_replicates": 2, "seed": 5, "random_policy": installed()[0]}
    assert plain(replicates(policy, instances, **options)) == plain(
        replicates(policy, instances, engine="processes", workers=2, **options)
    )


def test_a_policy_that_cannot_travel_is_told_of_at_once() -> None:
    policy, instances = problem()
    policy.reward = lambda arms: arms
    with pytest.raises(gm.UsageError, match="cannot be sent to another process"):
        replicates(policy, instances, num_replicates=2, engine="processes", workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.proof)])
def test_ray_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """Ray's workers take seconds to import torch: two at once are a proof."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    policy, instances = installed()
    options = {"num_replicates": 2, "seed": 5, "controls": False}
    alone = plain(replicates(policy, instances, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own, about its own
        together = replicates(policy, instances, engine="ray", workers=workers, **options)
    assert plain(together) == alone


def installed() -> tuple[nn.Module, Tensor]:
    """A policy that a process elsewhere can unpickle without this file."""
    from gradiometer_labs.tsp.checkpoint import make_policy
    from gradiometer_labs.tsp.config import Config

    policy = make_policy(Config(num_loc=5, embed_dim=16, num_layers=1, num_heads=2))
    return policy, torch.rand(8, 5, 2)


KILLER = """
import os, signal
import torch
from torch import nn

class Killer(nn.Module):
    def __init__(self, marker):
        super().__init__()
        self.marker, self.layer = marker, nn.Linear(5, 5)

    def forward(self, instances):
        if not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        policy = torch.distributions.Categorical(logits=self.layer(instances))
        arms = policy.sample((6,))
        return instances.gather(1, arms.T), policy.log_prob(arms).T
"""


@pytest.mark.slow
def test_the_work_of_a_lost_worker_is_done_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker kills itself; the marker on disk says that it has happened."""
    (tmp_path / "killer_policy.py").write_text(KILLER)
    monkeypatch.syspath_prepend(tmp_path)
    import killer_policy

    torch.manual_seed(0)
    killer, instances = killer_policy.Killer(str(tmp_path / "killed")), torch.randn(8, 5)
    found = replicates(
        killer, instances, num_replicates=2, engine="processes", workers=2, controls=False
    )
    assert (tmp_path / "killed").exists()
    assert plain(found) == plain(replicates(killer, instances, num_replicates=2, controls=False))


SURROUNDINGS = """
import os
import torch

def where(subject):
    return os.environ.get("GRADIOMETER_TEST_WORD"), os.getpid(), torch.get_num_threads()
"""


@pytest.mark.slow
def test_workers_have_the_environment_of_their_study(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the server that they are forked from is older."""
    (tmp_path / "surroundings.py").write_text(SURROUNDINGS)
    monkeypatch.syspath_prepend(tmp_path)
    import surroundings

    for word in ("first", "second"):
        monkeypatch.setenv("GRADIOMETER_TEST_WORD", word)
        found: list[tuple[str, int, int]] = []
        run_tasks(
            [surroundings.where] * 3,
            dict,
            engine="processes",
            workers=2,
            receive=lambda place, result, found=found: found.append(result),
        )
        assert {said for said, _, _ in found} == {word}
        assert os.getpid() not in {pid for _, pid, _ in found}
        assert {threads for _, _, threads in found} == {1}


def test_nothing_of_the_policy_or_the_random_states_changes() -> None:
    policy, instances = problem()
    policy.actor.weight.grad = torch.ones_like(policy.actor.weight)
    before = copy.deepcopy(policy.state_dict())
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    replicates(policy, instances, num_replicates=2)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert torch.equal(policy.actor.weight.grad, torch.ones_like(policy.actor.weight))


def test_one_replicate_has_no_variance_and_says_so() -> None:
    policy, instances = problem()
    record = plain(replicates(policy, instances, num_replicates=1))
    assert record["extended"]["trace"] is None
    assert record["extended"]["snr"] is None
    assert "undefined" in record["extended"]["notes"][0]
    assert record["metrics"]["grad_norm_std"] == 0.0, "the source's ddof 0"


@pytest.mark.slow
def test_estimators_are_compared_on_the_same_instances() -> None:
    """R = 0.3 x − 6: the mis-scaled baseline has a variance of 1500 times the scaled one's
    (docs/mathematics.md#estimators)."""
    torch.manual_seed(0)

    class Shifted(Bandit):
        def forward(self, instances: Tensor) -> tuple[Tensor, Tensor]:
            rewards, log_likelihood = super().forward(instances)
            return 0.3 * rewards - 6, log_likelihood

    policy, instances = Shifted(rollouts=12), torch.randn(32, 5)
    kinds = {
        name: replicates(
            policy, instances, algorithm="maxk", options={"k": 3, "baseline": name}, controls=False
        )
        for name in ("none", "subloo", "sample_loo_scaled")
    }
    ratio = variance.variance_ratio(kinds["subloo"].spread.units(), kinds["none"].spread.units())
    assert ratio.high < 0.2
    assert ratio.low <= ratio.value <= ratio.high
    assert kinds["none"].record["extended"]["bias"] == []
    zscore = replicates(
        policy,
        instances,
        algorithm="maxk",
        options={"k": 3, "zscore": True},
        controls=False,
        num_replicates=2,
    )
    assert "zscore" in zscore.record["extended"]["bias"][0]


def test_a_function_with_its_model_works_as_a_policy_does() -> None:
    policy, instances = problem()
    given = replicates(lambda batch: policy(batch), instances, model=policy, num_replicates=2)
    assert plain(given) == plain(replicates(policy, instances, num_replicates=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "pmo"}, "did you mean 'pomo'"),
        ({"algorithm": "maxk", "options": {"k": 7}}, "7"),
        ({"algorithm": "maxk", "options": {"k": 6, "baseline": "sample_loo"}}, "sample_loo"),
        ({"options": {"k": 2}}, "takes none"),
        ({"num_replicates": 0}, "replicates"),
        ({"batch_size": 0}, "batch_size"),
        ({"reduction": "max"}, "reduction"),
        ({"engine": "threads"}, "engine"),
    ],
)
def test_bad_input_is_one_clear_error(options: dict, message: str) -> None:
    policy, instances = problem()
    with pytest.raises(gm.UsageError, match=message):
        replicates(policy, instances, **{"num_replicates": 2, **options})


def test_a_reward_that_is_not_finite_is_refused() -> None:
    class Broken(Bandit):
        def forward(self, instances: Tensor) -> tuple[Tensor, Tensor]:
            rewards, log_likelihood = super().forward(instances)
            return rewards.fill_(math.nan), log_likelihood

    with pytest.raises(gm.UsageError, match=r"nan|finite"):
        replicates(Broken(), torch.randn(4, 5), num_replicates=2)


def test_a_policy_that_is_not_finite_is_no_result() -> None:
    policy, instances = problem()
    nn.init.constant_(policy.actor.weight, 0.0)

    class Infinite(Bandit):
        def forward(self, instances: Tensor) -> tuple[Tensor, Tensor]:
            rewards, log_likelihood = super().forward(instances)
            return rewards, log_likelihood * math.nan

    with pytest.raises(gm.UsageError, match="NaN or an Inf"):
        replicates(Infinite(), instances, num_replicates=2)


def test_variance_in_one_unit_alone_has_no_interval_and_no_verdict_of_nan() -> None:
    class Sparse(Bandit):
        def forward(self, instances: Tensor) -> tuple[Tensor, Tensor]:
            rewards, log_likelihood = super().forward(instances)
            return torch.where(instances[:, :1] > 1e6, rewards, 0.0), log_likelihood

    instances = torch.randn(8, 5)
    instances[3, 0] = 2e6
    torch.manual_seed(0)
    policy = Sparse()
    nn.init.zeros_(policy.actor.weight)
    studies = [
        replicates(policy, instances, algorithm=name, controls=False) for name in ("pomo", "rloo")
    ]
    assert studies[0].record["extended"]["snr"]["low"] is None
    assert variance.variance_ratio(studies[1].spread.units(), studies[0].spread.units()).low is None


def test_errors_come_back_whole_from_other_processes() -> None:
    error = (
        gm.UsageError("x"),
        UnknownName("lab", "tps", ["tsp"], hint="Try."),
        MissingExtra("ray", "ray", "it"),
    )
    for each in error:
        back = pickle.loads(pickle.dumps(each))
        assert type(back) is type(each)
        assert str(back) == str(each)


def test_no_k_is_preferred_where_intervals_of_the_snr_overlap() -> None:
    from gradiometer.maths.variance import Interval
    from gradiometer.probes.spread import best_k

    def at(value: float, width: float | None) -> Interval:
        low, high = (None, None) if width is None else (value - width, value + width)
        return Interval(value=value, low=low, high=high)

    overlap = best_k([(2, at(1.2, 0.5)), (4, at(1.0, 0.5)), (8, at(0.2, 0.1))])
    assert overlap.startswith("No K stands out: the intervals of the SNR at K = 2, 4 overlap")
    assert "2 has the largest SNR" in best_k([(2, at(1.2, 0.1)), (4, at(1.0, 0.05))])
    assert "too few units" in best_k([(2, at(1.2, None)), (4, at(1.0, None))])
