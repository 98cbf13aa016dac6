"""Whatever a log holds, the doctor says something about it and no rule falls over: all rules, facts
and reports together."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradiometer import metrics
from gradiometer.charts.page import as_page
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.report import as_markdown, as_text, plain
from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.signs import number
from gradiometer.maths.means import mean_interval
from gradiometer.store.logs import Log
from gradiometer.store.strictjson import to_json

PARTS = {
    "block": ("all", "actor", "layer.encoder.0"),
    "term": ("policy", "value", "entropy", "kl"),
    "term_a": ("policy",),
    "term_b": ("entropy",),
    "statistic": ("mean", "std", "max", "max_abs"),
    "bucket": ("all", "bucket_1"),
    "expert": ("0", "1"),
}
TEMPLATES = sorted(metrics.CATALOGUE) + sorted(
    a.name for m in metrics.CATALOGUE.values() for a in m.aliases
)
EXTREMES = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    -1e308,
    5e-324,
    1e-308,
    1e30,
)
FACTS = (
    "max_reward",
    "gamma",
    "target_kl",
    "num_actions",
    "action_space",
    "degree",
    "edges_per_row",
    "max_grad_norm",
    "max_episode_steps",
    "gradient_accumulation_steps",
    "baseline.momentum",
    "reward_scale",
    "beta",
    "perturbation_scale",
    "n_epochs",
    "num_experts_per_tok",
    "reward_weights",
    "fp16",
    "ent_coef",
)
ODD: tuple[Any, ...] = (
    "",
    "x",
    "0.2",
    "Discrete(4)",
    None,
    True,
    0,
    -1,
    2,
    8,
    0.99,
    math.nan,
    math.inf,
    1e308,
    10**400,
    -(10**400),
    [],
    {},
)


def filled(template: str, draws: np.random.Generator) -> str:
    return re.sub(
        r"<(\w+)>", lambda found: str(draws.choice(PARTS.get(found[1], ("x", "y")))), template
    )


def shape(n: int, draws: np.random.Generator) -> Any:
    kind = int(draws.integers(7))
    made = (
        np.full(n, draws.choice(EXTREMES)),
        draws.choice(EXTREMES, size=n),
        draws.normal(size=n) * 1e307,
        10.0 ** draws.uniform(-300, 300, size=n),
        np.linspace(0.0, 1.0, n) + 0.01 * draws.normal(size=n),
        draws.uniform(size=n),
        np.exp(np.linspace(0.0, 700.0, n)),
    )
    return made[kind]


def places(n: int, draws: np.random.Generator) -> Any:
    made = (
        np.arange(n),
        draws.integers(-9, 9, size=n),
        np.sort(draws.integers(-(2**62), 2**62, size=n)),
    )
    return made[int(draws.integers(3))]


@pytest.mark.filterwarnings("ignore:.*(runs one after another|steps fall back)")
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from((0, 1, 2, 9, 20, 60)),
    facts=st.dictionaries(st.sampled_from(FACTS), st.sampled_from(ODD)),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_log_makes_the_doctor_fall_over(seed: int, count: int, facts: dict[str, Any]) -> None:
    draws = np.random.default_rng(seed)
    names = {
        filled(str(template), draws)
        for template in draws.choice(TEMPLATES, size=int(draws.integers(1, 60)))
    }
    rows: list[tuple[int, dict[str, float]]] = []
    for name in names:
        rows += [
            (int(s), {name: float(v)})
            for s, v in zip(places(count, draws), shape(count, draws), strict=True)
        ]
    log = Log(Path("any"), name="any", run_id="any", rows=rows, facts={"config": facts})
    found = diagnose(log)
    assert found.verdict
    for said in (
        as_text(found, width=80, verbose=True),
        as_markdown(found),
        as_page(found),
        to_json(plain(found)),
    ):
        assert said


SERIES = (
    "reward",
    "success_rate",
    "zero_variance_groups",
    "reward_std",
    "mutual_information",
    "entropy",
    "policy_loss",
    "value_loss",
    "value_mean",
    "explained_variance",
    "advantages/std",
    "advantages/mean",
    "advantages/max_abs",
    "returns/mean",
    "returns/max_abs",
    "grad/all/noise_scale",
    "grad/all/noise_scale_bound",
    "meter/micro_batches",
    "grad/all/norm/raw",
    "grad/all/cos_ema",
    "grad_norm/all/p_value/task",
    "grad_norm/all/snr/task",
    "variance/pomo/snr_high",
    "grad_norm/all/task",
    "grad_norm/all/null/task",
    "grad_norm/all/reward_std_mean",
    "grad_norm/bucket_1/reward_std_mean",
    "grad_norm/bucket_2/reward_std_mean",
    "grad_norm/bucket_1/task",
)
STEP_SERIES = (
    "reward",
    "approx_kl",
    "grad/all/update_ratio",
    "learning_rate",
    "kl_ref",
    "ratio/max",
    "clip_fraction",
    "clip_fraction_low",
    "clip_fraction_high",
    "ess",
    "importance_weight",
    "grad/all/term/policy/norm",
    "grad/all/term/kl/norm",
)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1e100, -1e-100])
@pytest.mark.parametrize("names", [SERIES, STEP_SERIES], ids=["signal", "step size"])
def test_no_series_makes_a_rule_fail(
    planted: ModuleType, names: tuple[str, ...], value: float
) -> None:
    """Every rule, on every second point strange, with too few points and with enough."""
    for n, good in itertools.product((1, 9, 30), (0.0, 1.0)):
        rows = {
            step: dict.fromkeys(names, value if step % 2 else good) for step in range(-1, n - 1)
        }
        data = RunData(planted.log(rows))
        for rule in rules():
            assert isinstance(rule(data), list | Skipped), rule.id


@pytest.mark.parametrize("name", [*FACTS, "min_reward", "vocab_size", "top_k", "lr"])
def test_a_fact_of_four_hundred_digits_is_no_number(name: str) -> None:
    series = {
        "reward": 1.0,
        "entropy": 0.5,
        "approx_kl": 0.01,
        "grad_norm": 1.0,
        "grad/all/term/scale": 1.0,
    }
    rows = [
        (step, {key: value + 0.01 * step for key, value in series.items()}) for step in range(20)
    ]
    assert diagnose(
        Log(Path("any"), name="any", run_id="any", rows=rows, facts={"config": {name: 10**400}})
    ).verdict


def test_a_number_is_finite_and_no_truth_value() -> None:
    assert number(3) == 3.0
    assert [
        number(each) for each in (True, "3", None, math.nan, -math.inf, 10**400, -(10**400))
    ] == [None] * 7


def test_a_mean_that_overflows_has_no_interval() -> None:
    with np.errstate(all="ignore"):
        assert mean_interval(1e308 * np.linspace(0.9, 1.1, 50)) is None
