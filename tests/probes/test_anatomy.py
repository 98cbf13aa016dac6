"""The anatomy against brute force: every bucket's gradient by a backward of its own."""

from __future__ import annotations

import copy
import math
import random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.maths import gram, losses
from gradiometer.maths.groups import RolloutFilter
from gradiometer.metrics import resolve
from gradiometer.probes.anatomy import Anatomy, Products, anatomy, relations
from gradiometer.probes.survey import LossTerms

GROUPS, SIZE, TOKENS, WORDS = 9, 4, 7, 11


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 12)
        self.body = nn.Linear(12, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(12, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(self.embed(tokens)))
        return self.head(self.drop(hidden))


class Rollouts(NamedTuple):
    model: Policy
    batch: dict[str, Tensor]
    rewards: Tensor
    groups: list[str]

    def probe(self, loss_terms: LossTerms | None = None, **options: object) -> Anatomy:
        """Of the policy's own terms, and with the batch's mask, if nothing else is asked for."""
        model = options.pop("model", self.model)
        given = {"rewards": self.rewards, "groups": self.groups, "mask": self.batch["mask"]}
        terms = terms_of(self.model) if loss_terms is None else loss_terms
        return anatomy(model, self.batch, terms, **{**given, **options})


def batch_of(seed: int = 0) -> Rollouts:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model, number = Policy(), GROUPS * SIZE
    tokens = torch.randint(0, WORDS, (number, TOKENS), generator=generator)
    lengths = torch.randint(2, TOKENS + 1, (number,), generator=generator)
    spread = torch.linspace(0.1, 3.0, GROUPS)[
        torch.randperm(GROUPS, generator=generator)
    ].repeat_interleave(SIZE)
    rewards = torch.randn(number, generator=generator) * spread
    batch = {
        "tokens": tokens,
        "mask": (torch.arange(TOKENS) < lengths[:, None]).float(),
        "old": torch.randn(number, TOKENS, generator=generator) * 0.1 - 2.4,
        "ref": torch.randn(number, TOKENS, generator=generator) * 0.1 - 2.4,
        "advantages": rewards - rewards.view(GROUPS, SIZE).mean(1).repeat_interleave(SIZE),
    }
    return Rollouts(model, batch, rewards, [f"level {i // SIZE}" for i in range(number)])


def terms_of(model: nn.Module):
    def loss_terms(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        logits = model(rows["tokens"])
        log_probs = losses.token_log_probs(logits, rows["tokens"])
        return {
            "task": losses.policy_loss(
                log_probs, rows["old"], rows["advantages"][:, None].expand_as(log_probs)
            ),
            "entropy": -0.01 * losses.entropy(logits),
            "kl": 0.1 * losses.kl_loss(log_probs, rows["ref"], "k3"),
        }

    return loss_terms


def probe(**options: object) -> tuple[Anatomy, Policy, dict[str, Tensor], Tensor, list[str]]:
    given = batch_of()
    return given.probe(**{"num_buckets": 3, **options}), *given


def flat_grad(model: nn.Module, loss: Tensor) -> np.ndarray:
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return np.concatenate(
        [
            np.zeros(p.numel()) if g is None else g.reshape(-1).double().numpy()
            for p, g in zip(parameters, found, strict=True)
        ]
    )


@pytest.mark.parametrize("aggregation", losses.AGGREGATIONS)
@pytest.mark.parametrize("micro_batch_size", [None, 1, 3])
def test_every_bucket_equals_a_backward_of_its_own(
    aggregation: str, micro_batch_size: int | None
) -> None:
    result, model, batch, rewards, groups = probe(
        aggregation=aggregation, micro_batch_size=micro_batch_size
    )
    per_token = terms_of(model)(batch)
    buckets = {name: [] for name in result.buckets}
    for bucket in result.buckets[1:]:
        for _, group, std in result.tables[f"grad_norm/{bucket}/group_rv_table"]["data"]:
            rows = [i for i, name in enumerate(groups) if name == group]
            assert std == pytest.approx(float(rewards[rows].std()), rel=1e-6)
            buckets[bucket] += rows
            buckets["all"] += rows
    assert sorted(buckets["all"]) == list(range(GROUPS * SIZE))
    for bucket, rows in buckets.items():
        vectors = {}
        for term, loss in per_token.items():
            aggregated = losses.aggregate(loss[rows], batch["mask"][rows], aggregation)
            name = "policy" if term == "task" else term
            assert result.metrics[f"grad_norm/{bucket}/loss/{name}"] == pytest.approx(
                float(aggregated.detach()), rel=1e-4, abs=1e-7
            )
            vectors[term] = flat_grad(model, aggregated)
            assert result.metrics[f"grad_norm/{bucket}/{term}"] == pytest.approx(
                np.linalg.norm(vectors[term]), rel=1e-5
            )
        total = sum(vectors.values())
        assert result.metrics[f"grad_norm/{bucket}/total"] == pytest.approx(
            np.linalg.norm(total), rel=1e-5
        )
        cosine = (
            vectors["task"]
            @ vectors["kl"]
            / np.linalg.norm(vectors["task"])
            / np.linalg.norm(vectors["kl"])
        )
        assert result.metrics[f"grad_norm/{bucket}/cos/task~kl"] == pytest.approx(cosine, abs=1e-5)
        share = vectors["kl"] @ total / (total @ total)
        assert result.metrics[f"grad_norm/{bucket}/share/kl"] == pytest.approx(share, abs=1e-5)
        tokens = float(batch["mask"][rows].sum())
        norm = result.metrics[f"grad_norm/{bucket}/task"]
        assert result.metrics[f"grad_norm/{bucket}/sample_count"] == len(rows)
        assert result.metrics[f"grad_norm/{bucket}/sample_pct"] == len(rows) / (GROUPS * SIZE)
        assert result.metrics[f"grad_norm/{bucket}/token_count"] == tokens
        assert result.metrics[f"grad_norm/{bucket}/per_sample/task"] == pytest.approx(
            norm / len(rows)
        )
        assert result.metrics[f"grad_norm/{bucket}/per_token/task"] == pytest.approx(norm / tokens)
        weights = losses.token_weights(batch["mask"], aggregation)[rows]
        summed = np.linalg.norm(flat_grad(model, (weights * per_token["task"][rows]).sum()))
        assert result.metrics[f"grad_norm/{bucket}/per_token_sum/task"] == pytest.approx(
            summed / tokens, rel=1e-5
        )


def test_signal_and_noise_are_those_of_whole_groups() -> None:
    result, model, batch, _, groups = probe()
    per_token, mask = terms_of(model)(batch), batch["mask"]
    for bucket in result.buckets:
        parts = result.tables[f"grad_norm/{bucket}/group_rv_table"]["data"]
        rows = [[i for i, name in enumerate(groups) if name == group] for _, group, _ in parts]
        vectors = np.stack([flat_grad(model, (mask[r] * per_token["task"][r]).sum()) for r in rows])
        weights = [float(mask[r].sum()) for r in rows]
        expected = gram.signal(vectors @ vectors.T, weights)
        assert expected is not None
        assert result.metrics[f"grad_norm/{bucket}/signal/task"] == pytest.approx(
            gram.signed_root(expected.signal_sq), rel=1e-4
        )
        assert result.metrics[f"grad_norm/{bucket}/snr/task"] == pytest.approx(
            expected.snr, rel=1e-4
        )
        few = len(parts) < gram.MIN_UNITS
        assert (f"grad_norm/{bucket}/signal_low/task" not in result.metrics) == few
        assert (f"grad_norm/{bucket}/p_value/task" not in result.metrics) == few


def test_every_key_of_the_source_is_there_and_every_key_is_in_the_catalogue() -> None:
    result, *_ = probe(null=True)
    for bucket in ("all", "bucket_1", "bucket_2", "bucket_3"):
        for key in (
            "sample_count",
            "sample_pct",
            "reward_std_mean",
            "reward_std_min",
            "reward_std_max",
            "group_rv_count",
        ):
            assert f"grad_norm/{bucket}/{key}" in result.metrics
        for term in ("task", "entropy", "kl"):
            for prefix in ("", "per_sample/", "per_token/"):
                assert result.metrics[f"grad_norm/{bucket}/{prefix}{term}"] > 0
        for name in ("policy", "entropy", "kl", "total"):
            assert f"grad_norm/{bucket}/loss/{name}" in result.metrics
        assert result.tables[f"grad_norm/{bucket}/group_rv_table"]["columns"] == [
            "bucket",
            "group_id",
            "reward_std",
        ]
    for name in ("policy", "entropy", "kl", "total"):
        assert result.metrics[f"actor/loss/{name}"] == result.metrics[f"grad_norm/all/loss/{name}"]
    for term in ("task", "entropy", "kl"):
        assert result.metrics[f"actor/grad_norm/{term}"] == result.metrics[f"grad_norm/all/{term}"]
    assert [name for name in result.metrics if resolve(name) is None] == []
    assert {name for name in result.metrics if name.startswith("actor/")} == {
        f"actor/{kind}"
        for kind in (
            "loss/policy",
            "loss/entropy",
            "loss/kl",
            "loss/total",
            "grad_norm/task",
            "grad_norm/entropy",
            "grad_norm/kl",
            "grad_norm/total",
        )
    }


def test_the_null_is_the_task_with_rewards_permuted_inside_groups() -> None:
    result, model, batch, _, groups = probe(null=True, seed=5)
    from gradiometer.probes.survey import permuted_inside

    order = permuted_inside(groups, 5)
    assert [groups[i] for i in order] == groups
    assert order.tolist() != list(range(len(groups)))
    permuted = {**batch, "advantages": batch["advantages"][order]}
    loss = losses.aggregate(terms_of(model)(permuted)["task"], batch["mask"], "token-mean")
    assert result.metrics["grad_norm/all/null/task"] == pytest.approx(
        np.linalg.norm(flat_grad(model, loss)), rel=1e-5
    )
    assert "grad_norm/all/null_signal/task" in result.metrics
    given, *_ = probe(null=lambda order: {"advantages": batch["advantages"][order]}, seed=5)
    assert given.metrics == result.metrics


def test_a_loss_that_knows_the_null_saves_the_second_forward() -> None:
    model, batch, rewards, groups = batch_of()
    plain, calls = terms_of(model), 0

    def knowing(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        nonlocal calls
        calls += 1
        found = plain(rows)
        if "null_advantages" in rows:
            found["null"] = plain({**rows, "advantages": rows["null_advantages"]})["task"]
        return found

    options = {"rewards": rewards, "groups": groups, "mask": batch["mask"], "null": True}
    options["together"] = False  # a forward for each group
    assert (
        anatomy(model, batch, knowing, **options).metrics
        == anatomy(model, batch, plain, **options).metrics
    )
    assert calls == GROUPS


def test_under_a_null_the_plain_norm_stays_and_the_signal_does_not() -> None:
    """Rewards that are noise: the norm rises with reward variance all the same, the signal's
    interval covers zero."""
    torch.manual_seed(0)
    model, number, size = nn.Linear(30, 1, bias=False), 60, 8
    features = torch.randn(number * size, 30)
    spread = torch.linspace(0.1, 4, number).repeat_interleave(size)
    rewards = torch.randn(number * size) * spread
    advantages = rewards - rewards.view(number, size).mean(1).repeat_interleave(size)
    result = anatomy(
        model,
        {"features": features, "advantages": advantages},
        lambda rows: {"task": rows["advantages"] * model(rows["features"]).squeeze(-1)},
        rewards=rewards,
        groups=np.arange(number * size) // size,
        null=True,
    )
    norms = [result.metrics[f"grad_norm/bucket_{i}/task"] for i in range(1, 7)]
    assert norms[5] > 3 * norms[0]
    assert norms[5] == pytest.approx(result.metrics["grad_norm/bucket_6/null/task"], rel=0.5)
    inside = [
        result.metrics[f"grad_norm/bucket_{i}/signal_low/task"]
        <= 0
        <= result.metrics[f"grad_norm/bucket_{i}/signal_high/task"]
        for i in range(1, 7)
    ]
    assert sum(inside) >= 5


def test_nothing_of_the_training_changes() -> None:
    """Weights, gradients, random states, buffers, modes, and the next step, to the bit."""
    given = batch_of()
    model, batch = given.model, given.batch
    model.drop.p = 0.3
    model.norm.train()
    optimizer = torch.optim.Adam(model.parameters())

    def with_noise(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        model.norm(torch.randn(8, 12))
        model.eval()
        random.random(), np.random.rand()
        model.train()
        return terms_of(model)(rows)

    def step() -> None:
        optimizer.zero_grad()
        sum(
            losses.aggregate(loss, batch["mask"], "token-mean")
            for loss in terms_of(model)(batch).values()
        ).backward()
        optimizer.step()

    step()
    model.head.eval()
    before = copy.deepcopy(
        (model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()])
    )
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    modes = [part.training for part in model.modules()]
    given.probe(with_noise, null=True)
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
    after = (model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()])
    for one, other in zip(_tensors(before), _tensors(after), strict=True):
        assert torch.equal(one, other)
    step()
    with_probe = [p.clone() for p in model.parameters()]
    model.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    torch.set_rng_state(states[0])
    step()
    assert all(
        torch.equal(one, other) for one, other in zip(with_probe, model.parameters(), strict=True)
    )


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, (list, tuple))
        else []
    )
    return [tensor for item in items for tensor in _tensors(item)]


def test_a_dead_term_is_named_and_a_stationary_one_is_zero() -> None:
    given = batch_of()
    model = given.model

    def loss_terms(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        found = terms_of(model)(rows)
        with torch.no_grad():
            found["entropy"] = -0.01 * losses.entropy(model(rows["tokens"]))
        found["kl"] = 0.0 * found["kl"]
        return found

    result = given.probe(loss_terms)
    assert result.dead == ("entropy",)
    assert "grad_norm/all/entropy" not in result.metrics
    assert result.metrics["grad_norm/all/loss/entropy"] < 0
    assert result.metrics["grad_norm/all/kl"] == 0.0
    assert "grad_norm/all/cos/task~kl" not in result.metrics, "a zero vector has no direction"
    assert "grad_norm/all/share/kl" in result.metrics


def test_sketches_stand_in_where_there_is_no_memory_and_say_so() -> None:
    exact, *_ = probe()
    both = 4 * 3 * sum(p.numel() for p in Policy().parameters()) * 4
    for limit, error in ((both, None), (0, 1 / 32)):
        rough, *_ = probe(memory_limit=limit)
        assert rough.tables["anatomy"]["vectors"] == "sketch"
        assert rough.tables["anatomy"]["signal_error"] == 1 / 32
        assert rough.tables["anatomy"]["cosine_error"] == error
        tolerance = 1e-5 if error is None else 0.2
        assert rough.metrics["grad_norm/all/task"] == pytest.approx(
            exact.metrics["grad_norm/all/task"], rel=tolerance
        )
        assert rough.metrics["grad_norm/all/signal/task"] == pytest.approx(
            exact.metrics["grad_norm/all/signal/task"], rel=0.5
        )
    assert exact.tables["anatomy"]["vectors"] == "exact"


def test_blocks_are_norms_of_their_own_parameters() -> None:
    result, model, batch, *_ = probe(blocks={"head": "^head", "body": "^body"})
    loss = losses.aggregate(terms_of(model)(batch)["task"], batch["mask"], "token-mean")
    head = torch.autograd.grad(loss, list(model.head.parameters()))
    expected = math.sqrt(sum(float(g.square().sum()) for g in head))
    assert result.tables["anatomy"]["blocks"]["head"]["all"]["task"] == pytest.approx(
        expected, rel=1e-5
    )


def test_padding_that_is_trimmed_changes_nothing() -> None:
    given = batch_of()
    model, batch = given.model, given.batch
    batch["mask"][:, -2:] = 0
    whole = given.probe()
    widths = set()

    def loss_terms(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        widths.add(rows["tokens"].shape[1])
        return terms_of(model)(rows)

    cut = given.probe(loss_terms, trim="mask")
    assert max(widths) == TOKENS - 2
    for name, value in whole.metrics.items():
        assert cut.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-7)


def test_cross_fitting_scores_one_half_and_probes_the_other() -> None:
    result, _, _, rewards, groups = probe(cross_fit=True)
    assert result.metrics["grad_norm/all/sample_count"] == GROUPS * SIZE / 2
    table = {row[1]: row[2] for row in result.tables["grad_norm/all/group_rv_table"]["data"]}
    rows = [i for i, name in enumerate(groups) if name == "level 3"]
    assert table["level 3"] == pytest.approx(float(rewards[rows[::2]].std()))


def test_a_filter_goes_first() -> None:
    result, *_ = probe(rollout_filter=RolloutFilter(strategy="top_k_abs", value=4))
    assert result.metrics["grad_norm/all/group_rv_count"] == 4
    assert result.metrics["grad_norm/all/sample_pct"] == 1.0
    assert result.tables["anatomy"]["filter"]["strategy"] == "top_k_abs"
    everything, *_ = probe()
    highest = everything.metrics["grad_norm/all/reward_std_max"]
    assert result.metrics["grad_norm/all/reward_std_max"] == highest


def test_more_buckets_than_groups_leaves_one_group_in_each() -> None:
    result, *_ = probe(num_buckets=50)
    assert len(result.buckets) == GROUPS + 1
    assert "grad_norm/bucket_1/signal/task" not in result.metrics, (
        "one group has no signal to tell from noise"
    )


def test_a_bucket_without_a_token_has_counts_and_no_gradient() -> None:
    given = batch_of()
    batch, groups = given.batch, given.groups
    quiet = {name for name in groups if name in ("level 0",)}
    batch["mask"][[i for i, name in enumerate(groups) if name in quiet]] = 0
    result = given.probe(num_buckets=GROUPS)
    bucket = next(
        b
        for b in result.buckets[1:]
        if result.tables[f"grad_norm/{b}/group_rv_table"]["data"][0][1] in quiet
    )
    assert result.metrics[f"grad_norm/{bucket}/token_count"] == 0
    assert f"grad_norm/{bucket}/task" not in result.metrics


BAD = {
    "a group of one": ({"groups": list(range(GROUPS * SIZE))}, "one"),
    "a reward that is NaN": ({"rewards": [float("nan")] * GROUPS * SIZE}, "nan|NaN"),
    "a mask of zeros": ({"mask": torch.zeros(GROUPS * SIZE, TOKENS)}, "zero everywhere"),
    "another length of rewards": ({"rewards": [1.0, 2.0], "groups": [0, 0]}, "rewards"),
    "unknown mode": ({"bucket_mode": "quantiles"}, "did you mean 'quantile'"),
    "unknown aggregation": ({"aggregation": "token_mean"}, "did you mean 'token-mean'"),
    "no bucket": ({"num_buckets": 0}, "num_buckets is a whole number"),
    "half a bucket": ({"num_buckets": 2.5}, "num_buckets is a whole number"),
    "no groups": ({"groups": None}, "groups are ids"),
    "groups that are lists": (
        {"groups": [[1]] * GROUPS * SIZE, "cross_fit": True},
        "groups are ids",
    ),
    "a mask below zero": ({"mask": -torch.ones(GROUPS * SIZE, TOKENS)}, "negative number or a NaN"),
    "a null that replaces nothing": (
        {"null": lambda order: {"advantage": order}},
        "did you mean 'advantages'",
    ),
    "scores below the slack of linear top_p": (
        {"rewards": torch.rand(GROUPS * SIZE) * 1e-4, "rollout_filter": RolloutFilter(value=0.9)},
        "stops 0.01 below its share",
    ),
    "no rows in a forward": ({"micro_batch_size": 0}, "micro_batch_size"),
    "equal rewards": (
        {"rewards": [1.0] * GROUPS * SIZE, "rollout_filter": RolloutFilter(value=0.9)},
        "all rewards are equal",
    ),
    "trim of nothing": ({"trim": "attention"}, "attention mask"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str) -> None:
    options, message = BAD[case]
    model, batch, rewards, groups = batch_of()
    arguments = {"rewards": rewards, "groups": groups, "mask": batch["mask"], **options}
    with pytest.raises(gm.UsageError, match=message):
        anatomy(model, batch, terms_of(model), **arguments)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda found: {"task": found["task"].mean()}, "not reduced"),
        (lambda found: {"task": 1.0}, "float"),
        (lambda found: {"a/b": found["task"]}, "plain word"),
        (lambda found: {"total": found["task"]}, "plain word"),
        (lambda found: {"sample_count": found["task"]}, "plain word"),
        (lambda found: {"task": found["task"], "policy": found["kl"]}, "plain word"),
        (lambda found: {"null": found["task"]}, "without null="),
        (lambda found: {}, "no term"),
    ],
)
def test_losses_of_a_wrong_shape_or_name_are_refused(wrong, message: str) -> None:
    given = batch_of()
    model = given.model
    with pytest.raises(gm.UsageError, match=message):
        given.probe(lambda rows: wrong(terms_of(model)(rows)))


def test_a_null_of_token_advantages_asks_for_a_function() -> None:
    given = batch_of()
    batch = given.batch
    batch["advantages"] = batch["advantages"][:, None]
    with pytest.raises(gm.UsageError, match="null=lambda order"):
        given.probe(null=True)


def test_a_buffer_that_the_forward_rebinds_comes_back() -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return self.layer(x - self.mean).squeeze(-1)

    model = Running()
    held = model.mean
    batch = {"x": torch.randn(8, 3)}
    anatomy(
        model,
        batch,
        lambda rows: {"task": model(rows["x"])},
        rewards=torch.randn(8),
        groups=torch.arange(8) // 2,
    )
    assert model.mean is held
    assert torch.equal(model.mean, torch.zeros(3))


def test_autocasts_cache_is_as_it_was() -> None:
    """Between two forwards whose losses are added, cached weights stay the same objects."""

    def gradients(probed: bool) -> list[Tensor]:
        given = batch_of()
        model, batch = given.model, given.batch
        with torch.autocast("cpu", torch.bfloat16):
            first = model(batch["tokens"]).square().mean()
            if probed:
                given.probe()
            loss = first + model(batch["tokens"]).mean()
        return list(
            torch.autograd.grad(loss, [p for n, p in model.named_parameters() if "norm" not in n])
        )

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


def test_a_block_without_a_path_is_missing_and_not_zero() -> None:
    given = batch_of()
    model = given.model
    parts = {"actor": model, "critic": nn.Linear(4, 1)}
    found = given.probe(model=parts, blocks={"actor": "^actor", "critic": "^critic"})
    assert found.tables["anatomy"]["blocks"]["critic"]["all"] == {}
    assert found.tables["anatomy"]["blocks"]["actor"]["all"]["task"] > 0


def test_a_nan_in_one_group_is_kept_as_nan_and_leaves_the_other_buckets_alone() -> None:
    given = batch_of()
    batch, groups = given.batch, given.groups
    clean = given.probe(num_buckets=3)
    sick = next(row[1] for row in clean.tables["grad_norm/bucket_1/group_rv_table"]["data"])
    batch["advantages"][[i for i, name in enumerate(groups) if name == sick]] = math.nan
    found = given.probe(num_buckets=3)
    assert set(found.metrics) >= {
        name for name in clean.metrics if "snr" not in name and "cos_signal" not in name
    }
    for name in (
        "grad_norm/bucket_1/task",
        "grad_norm/bucket_1/share/task",
        "grad_norm/bucket_1/cos/task~kl",
    ):
        assert math.isnan(found.metrics[name])
    assert math.isnan(found.metrics["grad_norm/between/task/bucket_1~bucket_2"])
    for name in (
        "grad_norm/between/task/bucket_2~bucket_3",
        "grad_norm/bucket_2/signal/task",
        "grad_norm/all/kl",
    ):
        assert found.metrics[name] == pytest.approx(clean.metrics[name], rel=1e-4)


def test_the_null_stands_beside_the_task_whatever_that_is_called() -> None:
    given = batch_of()
    model = given.model

    def loss_terms(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        found = terms_of(model)(rows)
        return {"policy": found["task"], "kl": found["kl"]}

    result = given.probe(loss_terms, null=True)
    assert "grad_norm/all/null/policy" in result.metrics
    assert result.terms == ("policy", "kl")
    assert "null" not in result.tables["anatomy"]["terms"]
    assert "null" not in result.tables["anatomy"]["blocks"]["all"]["all"]
    total = sum(result.metrics[f"grad_norm/all/loss/{name}"] for name in ("policy", "kl"))
    assert result.metrics["grad_norm/all/loss/total"] == pytest.approx(total)


def test_half_precision_does_not_overflow_where_the_training_does_not() -> None:
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False).half()
    batch = {"x": torch.full((64, 100, 1), 200.0).half()}
    found = anatomy(
        model,
        batch,
        lambda rows: {"task": model(rows["x"]).squeeze(-1)},
        rewards=torch.randn(64),
        groups=torch.arange(64) // 16,
        mask=torch.ones(64, 100),
    )
    assert found.metrics["grad_norm/all/task"] == pytest.approx(200.0, rel=1e-2)


@pytest.mark.parametrize("size", [1e15, 1e-20])
def test_gradients_at_the_ends_of_float32_have_their_signal(size: float) -> None:
    given = batch_of()
    model = given.model
    plain = given.probe()

    def scaled(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: size * loss for name, loss in terms_of(model)(rows).items()}

    found = given.probe(scaled)
    for name in ("task", "signal/task", "noise/task"):
        key = f"grad_norm/all/{name}"
        assert found.metrics[key] == pytest.approx(size * plain.metrics[key], rel=1e-3)


def test_many_buckets_are_compared_with_their_neighbours_and_the_first() -> None:
    number = 40
    model = nn.Linear(4, 1)
    batch = {"x": torch.randn(number * 2, 4)}
    found = anatomy(
        model,
        batch,
        lambda rows: {"task": model(rows["x"]).squeeze(-1)},
        rewards=torch.randn(number * 2),
        groups=torch.arange(number * 2) // 2,
        num_buckets=number,
    )
    pairs = [name for name in found.metrics if name.startswith("grad_norm/between/")]
    assert len(pairs) == 2 * (number - 1) - 1
    assert "grad_norm/all/token_count" not in found.metrics, "losses per sample have no tokens"


def test_trimming_knows_shifted_losses_padding_and_what_is_no_token() -> None:
    given = batch_of()
    model, batch, rewards, groups = given.model, given.batch, given.rewards, given.groups
    batch["attention"] = torch.ones(GROUPS * SIZE, TOKENS)
    batch["attention"][:, -3:] = 0
    batch["features"] = torch.randn(GROUPS * SIZE, TOKENS)
    mask = batch["mask"][:, 1:].clone()
    mask[:, -3:] = 0
    widths = set()

    def shifted(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        widths.add((rows["tokens"].shape[1], rows["features"].shape[1]))
        return {
            "task": losses.token_log_probs(model(rows["tokens"][:, :-1]), rows["tokens"][:, 1:])
        }

    options = {"rewards": rewards, "groups": groups, "mask": mask}
    cut = anatomy(model, batch, shifted, trim=("attention", "tokens"), **options)
    assert widths == {(TOKENS - 3, TOKENS)}
    assert cut.metrics["grad_norm/all/task"] == pytest.approx(
        anatomy(model, batch, shifted, **options).metrics["grad_norm/all/task"], rel=1e-5
    )
    with pytest.raises(gm.UsageError, match="calls padding"):
        given.probe(shifted, trim="attention", mask=torch.ones_like(mask))
    batch["attention"][:] = 0
    nothing = torch.zeros_like(mask)
    nothing[:, 0] = 1
    with pytest.raises(gm.UsageError, match=r"calls padding|not reduced"):
        given.probe(shifted, trim="attention", mask=nothing)


def test_inference_mode_is_refused_instead_of_calling_every_term_dead() -> None:
    given = batch_of()
    with torch.inference_mode(), pytest.raises(gm.UsageError, match="inference_mode"):
        given.probe()
    with torch.no_grad():
        assert given.probe().dead == ()


def test_the_horizon_of_a_trainer_can_be_given() -> None:
    by_width, *_ = probe(aggregation="seq-mean-token-sum-norm")
    given, *_ = probe(aggregation="seq-mean-token-sum-norm", horizon=2.0 * TOKENS)
    assert given.metrics["grad_norm/all/task"] == pytest.approx(
        by_width.metrics["grad_norm/all/task"] / 2, rel=1e-5
    )


def test_group_ids_of_any_kind_come_back_from_the_run(tmp_path) -> None:
    given = batch_of()
    model, groups = given.model, given.groups
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "run") as meter:
        ids = [torch.tensor(int(name.split()[1])) for name in groups]
        given.probe(groups=ids, meter=meter)
    run = gm.load(tmp_path / "run")
    rows = run.table("grad_norm/all/group_rv_table").content["data"]
    assert sorted(row[1] for row in rows) == list(range(GROUPS))
    assert run.series("grad_norm/all/task")[0].tolist() == [0]


def free_cosine(seed: int, signal: float) -> tuple[float, float | None]:
    """The cosine by products of different units alone, and what the analysis gives: eight units
    of two terms whose true directions are opposite, with noise of 1 in each of 20 dimensions."""
    noise = np.random.default_rng(seed).normal(size=(2, 8, 20))
    vectors = noise + signal * np.array([1.0, -1.0])[:, None, None]
    products = Products(
        units={term: vectors[i] @ vectors[i].T for i, term in enumerate(("task", "kl"))},
        own=np.einsum("aud,bud->uab", vectors, vectors),
        sums={"all": (vectors.sum(1) @ vectors.sum(1).T)[None]},
        across={},
        terms=("task", "kl"),
    )
    across = products.sums["all"][0] - products.own.sum(0)
    with np.errstate(invalid="ignore"):
        plain = float(across[0, 1] / np.sqrt(across[0, 0] * across[1, 1]))
    found = relations("all", products, range(8), np.ones(8))
    return plain, found.get("grad_norm/all/cos_signal/task~kl")


def test_cosines_free_of_noise_are_bounded_or_not_given() -> None:
    weak = [free_cosine(seed, 0.15) for seed in range(300)]
    assert any(abs(plain) > 1.5 for plain, _ in weak)  # what was printed
    assert all(given is None or abs(given) <= 1.0 for _, given in weak)
    assert sum(given is not None for _, given in weak) < 60
    strong = [free_cosine(seed, 2.0)[1] for seed in range(20)]
    assert [given for given in strong if given is not None] == pytest.approx([-1.0] * 20, abs=0.05)
