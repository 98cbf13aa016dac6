"""Groups, filters and buckets: numbers by hand, brute force, and invariants over random scores."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradiometer.errors import UnknownName, UsageError
from gradiometer.maths.groups import BUCKET_MODES, Bucket, RolloutFilter, reward_std, split

GOLDEN = (3.0, 1.0, 0.0, 2.0)
SCORES = st.lists(st.floats(0, 20) | st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=30)


def kept(scores: Any, **settings: Any) -> list[int]:
    return [int(group) for group in RolloutFilter(**settings).select(scores)]


def members(buckets: tuple[Bucket, ...]) -> dict[str, list[int]]:
    return {bucket.name: bucket.groups.tolist() for bucket in buckets}


# Scores


def test_scores_by_hand() -> None:
    found = reward_std([1.0, 5.0, 3.0, 5.0, 2.0, 5.0], ["b", "a", "b", "a", "b", "a"])
    assert found.ids == ("b", "a")
    assert found.scores.tolist() == [1.0, 0.0]
    assert found.means.tolist() == [2.0, 5.0]
    assert found.sizes.tolist() == [3, 3]
    assert found.index.tolist() == [0, 1, 0, 1, 0, 1]
    assert found.scores.dtype == np.float64


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-100, 100)), min_size=1, max_size=40))
def test_scores_equal_the_standard_library(samples: list[tuple[int, float]]) -> None:
    by_group: dict[int, list[float]] = {}
    for group, reward in samples:
        by_group.setdefault(group, []).append(reward)
    by_group = {group: rewards for group, rewards in by_group.items() if len(rewards) > 1}
    samples = [(group, reward) for group, reward in samples if group in by_group]
    if not samples:
        return
    found = reward_std(np.array([r for _, r in samples]), np.array([g for g, _ in samples]))
    assert found.ids == tuple(by_group)
    assert found.scores == pytest.approx(
        [statistics.stdev(r) for r in by_group.values()], abs=1e-12
    )
    assert found.means == pytest.approx([statistics.fmean(r) for r in by_group.values()], abs=1e-12)


@pytest.mark.parametrize("reward", [0.1, 1 / 3, -7.3, 1e9 + 0.1])
def test_equal_rewards_have_exactly_no_variance(reward: float) -> None:
    found = reward_std([reward] * 7, [0] * 7)
    assert found.scores.tolist() == [0.0]
    assert found.means.tolist() == [reward]


def test_a_small_spread_on_a_large_offset_is_found() -> None:
    assert reward_std([1e9, 1e9 + 2], [0, 0]).scores == pytest.approx([math.sqrt(2)])


def test_ids_may_be_anything_that_can_be_a_key() -> None:
    assert reward_std([0, 1, 0, 1], [("level", 1), ("level", 1), None, None]).ids == (
        ("level", 1),
        None,
    )
    assert all(type(label) is int for label in reward_std([0, 1], np.array([7, 7])).ids)


@pytest.mark.parametrize(
    ("rewards", "groups", "message"),
    [
        (
            [1.0, 2.0, 3.0],
            ["a", "a", "lonely"],
            r"'lonely' has one sample \(1 of 2 .*at least 2 rollouts",
        ),
        ([1.0, math.nan, math.inf], [0, 0, 0], r"sample 1 is nan \(2 of 3"),
        ([1.0, -math.inf], [0, 0], "sample 1 is -inf"),
        ([1.0, 2.0], [0, 0, 0], "2 rewards, 3 groups"),
        ([], [], "empty"),
        ([[1.0, 2.0]], [0, 0], r"shape \(1, 2\)"),
        ([1.0, 2.0], [[0, 0]], "flat sequence"),
    ],
)
def test_bad_groups_are_said(rewards: Any, groups: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reward_std(rewards, groups)


# Filters


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # the golden vectors of docs/mathematics.md#groups-and-buckets
        ({"strategy": "top_p", "value": 0.9, "top_p_prob_mode": "linear"}, [0, 3, 1]),
        ({"strategy": "top_p", "value": 0.9, "top_p_prob_mode": "softmax"}, [0, 3, 1]),
        ({"strategy": "min_p", "value": 0.5}, [0, 3]),
        ({"strategy": "top_k", "value": 0.5}, [0, 3]),
        # linear: the threshold 6v − 0.01 against sums 3, 5, 6
        ({"value": 0.5}, [0]),
        ({"value": 0.501}, [0]),
        ({"value": 0.502}, [0, 3]),
        ({"value": 0.835}, [0, 3]),
        ({"value": 0.836}, [0, 3, 1]),
        ({"value": 0.999}, [0, 3, 1]),
        ({"value": 0.001}, []),  # 0.006 − 0.01 is reached by nothing at all
        ({"value": 1.0}, [0, 3, 1, 2]),
        ({"value": 7.0, "include_zero": False}, [0, 3, 1]),
        # softmax: p = 0.6439, 0.2369, 0.0871, 0.0321
        ({"value": 0.64, "top_p_prob_mode": "softmax"}, [0]),
        ({"value": 0.65, "top_p_prob_mode": "softmax"}, [0, 3]),
        ({"value": 0.97, "top_p_prob_mode": "softmax"}, [0, 3, 1, 2]),
        ({"value": 0.97, "top_p_prob_mode": "softmax", "include_zero": False}, [0, 3, 1]),
        ({"value": 0.9, "top_p_prob_mode": "softmax", "type": "smallest"}, [2, 1, 3]),
        # top_k counts shares of all four groups, zeros dropped or not
        ({"strategy": "top_k", "value": 0.1}, [0]),
        ({"strategy": "top_k", "value": 0.99}, [0, 3, 1]),
        ({"strategy": "top_k", "value": 1.0, "include_zero": False}, [0, 3, 1]),
        ({"strategy": "top_k", "value": 0.5, "include_zero": False}, [0, 3]),
        ({"strategy": "top_k", "value": 0.5, "type": "smallest"}, [2, 1]),
        ({"strategy": "top_k_abs", "value": 3}, [0, 3, 1]),
        ({"strategy": "top_k_abs", "value": 9.0}, [0, 3, 1, 2]),
        ({"strategy": "top_k_abs", "value": 1, "type": "smallest", "include_zero": False}, [1]),
        ({"strategy": "min_p", "value": 0.0}, [0, 3, 1, 2]),
        ({"strategy": "min_p", "value": 1.0}, [0]),
        ({"strategy": "min_p", "value": 0.5, "type": "smallest"}, [2]),
        # 1/(0.5 + 1e-10) + 1e-10 is 3e-10 short of 2
        ({"strategy": "min_p", "value": 0.5, "type": "smallest", "include_zero": False}, [1]),
        ({"strategy": "min_p", "value": 0.499, "type": "smallest", "include_zero": False}, [1, 3]),
        # linear, smallest: a score of 0 comes first and ends the walk; without it the sums are 1,
        # 3, 6
        ({"value": 0.5, "type": "smallest"}, []),
        ({"value": 0.5, "type": "smallest", "include_zero": False}, [1, 3]),
        ({"value": 0.9, "type": "smallest", "include_zero": False}, [1, 3, 0]),
    ],
)
def test_filters_by_hand(settings: dict[str, Any], expected: list[int]) -> None:
    assert kept(GOLDEN, **settings) == expected


def test_a_filter_as_it_stands_keeps_all() -> None:
    assert kept(GOLDEN) == [0, 3, 1, 2]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"value": 0.9, "top_p_prob_mode": "linear"}, []),
        ({"value": 0.9, "top_p_prob_mode": "linear", "type": "smallest"}, []),
        ({"value": 0.7, "top_p_prob_mode": "softmax"}, [0, 1, 2]),
        ({"value": 1.0}, [0, 1, 2, 3]),
        ({"strategy": "top_k", "value": 0.5}, [0, 1]),
        ({"strategy": "top_k_abs", "value": 3}, [0, 1, 2]),
        ({"strategy": "min_p", "value": 0.5}, [0, 1, 2, 3]),
        ({"strategy": "min_p", "value": 0.5, "type": "smallest"}, [0, 1, 2, 3]),
    ],
)
def test_when_all_rewards_are_equal(settings: dict[str, Any], expected: list[int]) -> None:
    assert kept([0.0] * 4, **settings) == expected
    assert kept([1e-11] * 4, **settings, include_zero=False) == []


@pytest.mark.parametrize(("scores", "expected"), [([0.004, 0.003], []), ([0.4, 0.3], [0, 1])])
def test_linear_keeps_nothing_where_all_scores_are_within_its_slack(
    scores: list[float], expected: list[int]
) -> None:
    assert kept(scores, value=0.9) == expected


def test_ties_keep_the_order_of_the_groups() -> None:
    assert kept([1, 2, 1, 2, 1], strategy="top_k_abs", value=4) == [1, 3, 0, 2]
    assert kept([1, 2, 1, 2, 1], strategy="top_k_abs", value=4, type="smallest") == [0, 2, 4, 1]


def test_the_metric_says_what_groups_are_ranked_by() -> None:
    groups = reward_std([0, 4, 3, 3, 3], ["spread", "spread", "good", "good", "good"])
    assert RolloutFilter().scores_of(groups).tolist() == [pytest.approx(math.sqrt(8)), 0.0]
    assert RolloutFilter(metric="reward").scores_of(groups).tolist() == [2.0, 3.0]
    assert RolloutFilter(metric="reward_sum").scores_of(groups).tolist() == [4.0, 9.0]


def test_negative_scores_have_a_rank_but_no_share() -> None:
    scores = [-3.0, -1.0, 2.0]
    assert kept(scores, strategy="top_k_abs", value=2, metric="reward") == [2, 1]
    assert kept(scores, value=0.9, top_p_prob_mode="softmax", metric="reward") == [2]
    for settings in ({"value": 0.9}, {"strategy": "min_p", "value": 0.5}):
        with pytest.raises(UsageError, match=r"negative \(-3\).*softmax"):
            kept(scores, **settings)


SETTINGS = st.one_of(
    st.fixed_dictionaries({"strategy": st.just("top_p"), "value": st.floats(0.01, 1.2)}),
    st.fixed_dictionaries({"strategy": st.just("top_k"), "value": st.floats(0.01, 1.0)}),
    st.fixed_dictionaries({"strategy": st.just("top_k_abs"), "value": st.integers(1, 40)}),
    st.fixed_dictionaries({"strategy": st.just("min_p"), "value": st.floats(0.0, 1.0)}),
)


@given(
    SCORES,
    SETTINGS,
    st.sampled_from(["largest", "smallest"]),
    st.sampled_from(["linear", "softmax"]),
    st.booleans(),
)
def test_filters_give_different_groups_best_first(
    scores: list[float], settings: dict[str, Any], kind: str, mode: str, include_zero: bool
) -> None:
    found = kept(scores, **settings, type=kind, top_p_prob_mode=mode, include_zero=include_zero)
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(len(scores)))
    sign = -1 if kind == "largest" else 1
    assert found == sorted(found, key=lambda i: (sign * scores[i], i))
    best_left_out = [
        sign * scores[i] for i in range(len(scores)) if i not in found and abs(scores[i]) > 1e-10
    ]
    assert not found or all(sign * scores[found[-1]] <= other for other in best_left_out)
    assert include_zero or all(scores[i] > 1e-10 for i in found)


@given(
    SCORES.filter(lambda s: len(s) <= 8),
    st.floats(0.01, 0.99),
    st.sampled_from(["largest", "smallest"]),
)
def test_softmax_keeps_the_fewest_groups_of_enough_probability(
    scores: list[float], value: float, kind: str
) -> None:
    signed = [s if kind == "largest" else -s for s in scores]
    p = [math.exp(s) / math.fsum(map(math.exp, signed)) for s in signed]
    found = kept(scores, value=value, top_p_prob_mode="softmax", type=kind)
    assert math.fsum(p[i] for i in found) >= value - 1e-12
    for fewer in itertools.combinations(range(len(p)), len(found) - 1):
        assert math.fsum(p[i] for i in fewer) < value + 1e-12


@given(SCORES, st.floats(0.01, 0.99), st.sampled_from(["largest", "smallest"]))
def test_linear_equals_a_walk(scores: list[float], value: float, kind: str) -> None:
    order = sorted(range(len(scores)), key=lambda i: -scores[i] if kind == "largest" else scores[i])
    threshold = value * float(np.sum([scores[i] for i in order])) - 0.01
    total = 0.0
    walked: list[int] = []
    while total < threshold and len(walked) < len(order) and scores[order[len(walked)]] > 0:
        total += scores[order[len(walked)]]
        walked.append(order[len(walked)])
    assert kept(scores, value=value, type=kind) == (walked if total >= threshold else [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "topp"}, "strategy 'topp'; did you mean 'top_p'"),
        ({"type": "large"}, "did you mean 'largest'"),
        ({"top_p_prob_mode": "soft"}, "did you mean 'softmax'"),
        (
            {"metric": "length"},
            "unknown rollout filter metric 'length'. The known ones are reward_variance",
        ),
    ],
)
def test_unknown_names_are_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        RolloutFilter(**settings)


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        ("top_p", [0, -0.1, math.nan, math.inf]),
        ("top_k", [0, 1.01, 4, math.nan]),
        ("top_k_abs", [0, 0.5, 2.5, -1, math.nan, math.inf]),
        ("min_p", [-0.1, 1.1, math.nan]),
    ],
)
def test_values_out_of_range_are_said(strategy: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(
            UsageError, match=f"value of a {strategy} filter must be .*, found {value}"
        ):
            RolloutFilter(strategy=strategy, value=value)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_said(bad: float) -> None:
    with pytest.raises(UsageError, match=f"score of group 1 is {bad}"):
        RolloutFilter().select([1.0, bad])
    with pytest.raises(UsageError, match=f"score of group 1 is {bad}"):
        split([1.0, bad])


def test_no_groups_in_none_out() -> None:
    assert kept([]) == []


# Buckets


def test_quantiles_spread_the_remainder_over_the_last_buckets() -> None:
    scores = [0.7, 0.1, 0.6, 0.2, 0.5, 0.3, 0.4]
    assert members(split(scores, num_buckets=3)) == {
        "bucket_1": [1, 3],
        "bucket_2": [5, 6],
        "bucket_3": [4, 2, 0],
    }
    sizes = [len(bucket.groups) for bucket in split(np.arange(11), num_buckets=6)]
    assert sizes == [1, 2, 2, 2, 2, 2]


def test_the_source_puts_the_remainder_in_the_last_bucket() -> None:
    sizes = [
        len(bucket.groups) for bucket in split(np.arange(11), mode="quantile_source", num_buckets=6)
    ]
    assert sizes == [1, 1, 1, 1, 1, 6]


def test_more_buckets_than_groups_are_as_many_as_groups() -> None:
    assert members(split([2.0, 1.0])) == {"bucket_1": [1], "bucket_2": [0]}


def test_quantiles_of_ties_keep_the_order_of_the_groups() -> None:
    assert members(split([0.0] * 4, num_buckets=2)) == {"bucket_1": [0, 1], "bucket_2": [2, 3]}


def test_fixed_intervals_keep_their_number_when_others_are_empty() -> None:
    scores = [2.5, 0.0, 99.0, 2.0, 5.0, 0.999]
    found = {"bucket_1": [1, 5], "bucket_3": [3, 0], "bucket_6": [4, 2]}
    assert members(split(scores, mode="fixed_rv", num_buckets=2)) == found


def test_pass_rates_by_hand() -> None:
    solved = [0, 4, 1, 3, 2, 0]  # of 4
    rewards = [float(i < k) for k in solved for i in range(4)]
    groups = reward_std(rewards, np.repeat(range(6), 4))
    found = members(split(groups.scores, mode="pass_rate", means=groups.means))
    assert found == {
        "bucket_1": [0, 5],
        "bucket_2": [2],
        "bucket_3": [4],
        "bucket_4": [3],
        "bucket_6": [1],
    }


@given(
    st.lists(st.lists(st.booleans(), min_size=2, max_size=64), min_size=1, max_size=10),
    st.booleans(),
)
def test_pass_rates_take_all_rewards_of_zero_and_one(
    outcomes: list[list[bool]], single: bool
) -> None:
    ids = [g for g, rewards in enumerate(outcomes) for _ in rewards]
    groups = reward_std([float(r) for rewards in outcomes for r in rewards], ids)
    scores, means = (x.astype(np.float32) if single else x for x in (groups.scores, groups.means))
    lows, highs = [-1, 0, 0.25, 0.5, 0.75, 0.99], [0, 0.25, 0.5, 0.75, 0.99, 1]
    for bucket in split(scores, mode="pass_rate", means=means):
        number = int(bucket.name[-1]) - 1
        for rate in (sum(outcomes[g]) / len(outcomes[g]) for g in bucket.groups):
            assert lows[number] < rate <= highs[number]


@pytest.mark.parametrize(
    "rewards", [[0, 0.5], [0.5, 0.5], [-1, 1], [-1, 1, 1, 1], [2, 2], [0, 1, 2], [0.1, 0.9, 1, 0]]
)
def test_pass_rates_refuse_rewards_other_than_zero_and_one(rewards: list[float]) -> None:
    groups = reward_std([0, 1, *rewards], [0, 0] + [1] * len(rewards))
    with pytest.raises(UsageError, match="rewards of 0 and 1, and those of group 1"):
        split(groups.scores, mode="pass_rate", means=groups.means)


@given(SCORES, st.integers(1, 12), st.sampled_from(["quantile", "quantile_source", "fixed_rv"]))
def test_buckets_partition_the_groups_in_order_of_score(
    scores: list[float], num_buckets: int, mode: str
) -> None:
    buckets = split(scores, mode=mode, num_buckets=num_buckets)
    everyone = [g for bucket in buckets for g in bucket.groups.tolist()]
    assert everyone == sorted(range(len(scores)), key=lambda g: scores[g])
    assert all(len(bucket.groups) for bucket in buckets)
    if mode != "fixed_rv":
        assert [bucket.name for bucket in buckets] == [
            f"bucket_{i + 1}" for i in range(min(num_buckets, len(scores)))
        ]
    if mode == "quantile":
        sizes = [len(bucket.groups) for bucket in buckets]
        assert sizes == sorted(sizes)
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("scores", "settings", "message"),
    [
        ([1.0], {"num_buckets": 0}, "at least 1 bucket, found num_buckets=0"),
        ([], {}, "no groups to split"),
        ([1.0, -1.0], {"mode": "fixed_rv"}, "group 1 has -1"),
        ([0.0], {"mode": "pass_rate"}, "give means="),
        ([0.0], {"mode": "pass_rate", "means": [0.0, 1.0]}, "1 scores, 2 means"),
        ([0.0], {"mode": "pass_rate", "means": [math.nan]}, "mean reward of group 0 is nan"),
        ([[1.0]], {}, r"shape \(1, 1\)"),
    ],
)
def test_bad_buckets_are_said(scores: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(scores, **settings)


def test_an_unknown_bucket_mode_is_said() -> None:
    with pytest.raises(UnknownName, match="did you mean 'quantile'") as caught:
        split([1.0], mode="quantiles")
    assert all(mode in str(caught.value) for mode in BUCKET_MODES)
