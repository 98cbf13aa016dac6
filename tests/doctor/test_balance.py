"""Balance of loss terms: fires on the smallest evidence, silent just below it, silent on what only
looks like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.terms import role_of
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
N = 60
RNG = np.random.default_rng(0)
FLAT = 1.0 + 0.05 * RNG.normal(size=N)
RISING = np.linspace(0.0, 10.0, N)
NOISE = 0.02 * RNG.normal(size=N)


def judge(id: str, run: Run) -> Any:
    """The one finding, None, or Skipped, through the registry."""
    found = next(each for each in rules() if each.id == id)(RunData(run))
    return found if isinstance(found, Skipped) else (found[0] if found else None)


def norms(block: str, **sizes: float) -> dict[str, np.ndarray]:
    return {f"grad/{block}/term/{term}/norm": size * (1 + NOISE) for term, size in sizes.items()}


@pytest.mark.parametrize(
    ("term", "role"),
    [
        ("policy", "policy"),
        ("pg_loss", "policy"),
        ("task", "policy"),
        ("vf_loss", "value"),
        ("critic", "value"),
        ("entropy_bonus", "entropy"),
        ("kl_ref", "kl"),
        ("router_aux", "auxiliary"),
        ("z_loss", "auxiliary"),
        ("weight_reg", "penalty"),
        ("actor_entropy", "entropy"),
        ("value_kl", "kl"),
        ("policy_value", None),
        ("entropy_kl", None),
        ("reconstruction", None),
    ],
)
def test_a_term_is_known_by_the_words_of_its_name(term: str, role: str | None) -> None:
    assert role_of(term) == role


# critic-dominates
# ----------------------------------------------------------------------------------------------------------


def test_a_value_term_ten_times_the_policy_s_on_shared_weights_is_told(patient: Patient) -> None:
    finding = judge(
        "critic-dominates", patient({**norms("trunk", policy=0.09, value=1.0), "reward": FLAT})
    )
    assert (finding.severity, finding.block, finding.since_step) == ("warn", "trunk", 0)
    assert "Both terms train trunk" in finding.cause


def test_a_value_term_just_below_that_is_not(patient: Patient) -> None:
    assert (
        judge(
            "critic-dominates", patient({**norms("trunk", policy=0.12, value=1.0), "reward": FLAT})
        )
        is None
    )


def test_terms_that_are_all_the_range_of_floats_apart_are_told(patient: Patient) -> None:
    sizes = norms("trunk", policy=1e-250, value=1e250)
    assert judge("critic-dominates", patient({**sizes, "reward": FLAT})).severity == "warn"
    sizes = norms("trunk", policy=1e-250, entropy=1e250)
    assert judge("regulariser-dominates", patient({**sizes, "reward": FLAT})).severity == "warn"


def test_since_is_where_the_critic_took_over(patient: Patient) -> None:
    value = np.concatenate([np.ones(20), np.full(40, 50.0)])
    logged = {**norms("trunk", policy=1.0), "grad/trunk/term/value/norm": value, "reward": FLAT}
    assert judge("critic-dominates", patient(logged)).since_step == 20


def test_a_policy_that_learns_beside_a_large_critic_is_information(patient: Patient) -> None:
    finding = judge(
        "critic-dominates", patient({**norms("trunk", policy=0.05, value=1.0), "reward": RISING})
    )
    assert finding.severity == "info"


SEPARATE = {
    **norms("all", policy=0.01, value=1.0),
    **norms("actor", policy=0.01),
    **norms("critic", value=1.0),
    "grad/all/term/policy~value/cos": np.zeros(N),
    "reward": FLAT,
}


def test_with_networks_of_their_own_a_large_critic_harms_nobody(patient: Patient) -> None:
    assert judge("critic-dominates", patient(SEPARATE)) is None


@pytest.mark.parametrize(
    ("ratio", "severity", "words"),
    [
        (np.full(N, 0.3), "info", "Adam undoes"),
        (10.0 ** (-0.7 + 0.3 * np.sin(np.arange(N))), "warn", "follows the critic's error"),
        (np.full(N, 1e-4), "warn", "ε outweighs"),
    ],
)
def test_one_clip_over_both_couples_them(
    patient: Patient, ratio: np.ndarray, severity: str, words: str
) -> None:
    clipped = {"grad/all/clip/active": np.ones(N), "grad/all/clip/ratio": ratio}
    finding = judge("critic-dominates", patient({**SEPARATE, **clipped}))
    assert finding.severity == severity
    assert words in finding.cause
    rarely = {**clipped, "grad/all/clip/active": np.arange(N) % 3 == 0}
    assert judge("critic-dominates", patient({**SEPARATE, **rarely})) is None


def test_without_named_blocks_a_cosine_that_is_not_zero_shows_shared_weights(
    patient: Patient,
) -> None:
    whole = {**norms("all", policy=0.01, value=1.0), "reward": FLAT}
    assert (
        judge("critic-dominates", patient({**whole, "grad/all/term/policy~value/cos": np.zeros(N)}))
        is None
    )
    finding = judge("critic-dominates", patient({**whole, "grad/all/term/policy~value/cos": NOISE}))
    assert finding.severity == "warn"


def test_five_measurements_of_the_terms_are_too_few(patient: Patient) -> None:
    few = {name: values[:5] for name, values in norms("trunk", policy=0.01, value=1.0).items()}
    skipped = judge("critic-dominates", patient({**few, "reward": FLAT}))
    assert isinstance(skipped, Skipped)
    assert "5 points, 9 needed" in skipped.why


# regulariser-dominates
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("term", ["entropy", "kl", "aux"])
def test_a_regulariser_above_the_policy_with_a_flat_reward_is_told(
    patient: Patient, term: str
) -> None:
    finding = judge(
        "regulariser-dominates",
        patient({**norms("actor", policy=1.0, **{term: 1.1}), "reward": FLAT}),
    )
    assert (finding.severity, finding.block) == ("warn", "actor")
    assert term in finding.title
    assert (
        judge(
            "regulariser-dominates",
            patient({**norms("actor", policy=1.0, **{term: 0.9}), "reward": FLAT}),
        )
        is None
    )


def test_a_regulariser_of_a_policy_that_learns_or_has_learnt_is_well(patient: Patient) -> None:
    heavy = norms("actor", policy=1.0, entropy=1.5)
    converged = np.concatenate([np.linspace(0, 10, 15), np.full(45, 10.0)])
    assert judge("regulariser-dominates", patient({**heavy, "reward": RISING})) is None
    assert judge("regulariser-dominates", patient({**heavy, "reward": converged})) is None


def test_a_policy_at_rest_against_its_bonus_with_its_entropy_left_is_told(patient: Patient) -> None:
    standing = {
        **norms("actor", policy=1.0, entropy=1.0),
        "grad/actor/term/policy~entropy/cos": np.full(N, -0.98),
        "entropy": np.full(N, 0.65),
        "reward": np.concatenate([np.linspace(20, 60, 20), np.full(40, 60.0)]) + 50 * NOISE,
    }
    assert judge("regulariser-dominates", patient(standing)).severity == "warn"
    chosen = {
        **standing,
        "entropy": np.linspace(0.69, 0.3, N),
    }  # the same balance where a policy has learnt to choose
    assert judge("regulariser-dominates", patient(chosen)) is None
    assert judge("regulariser-dominates", patient({**standing, "reward": RISING})) is None


def test_without_a_reward_a_regulariser_must_be_three_times_as_large(patient: Patient) -> None:
    watched = judge("regulariser-dominates", patient(norms("all", task=1.0, balance=3.2)))
    assert watched.severity == "info"  # what it costs is not in this log
    assert watched.title.startswith("Watch: ")
    assert judge("regulariser-dominates", patient(norms("all", task=1.0, balance=2.8))) is None


# terms-conflict
# ------------------------------------------------------------------------------------------------------------


def conflict(
    cosine: float, *, weaker: float = 1.0, reward: np.ndarray = FLAT
) -> dict[str, np.ndarray]:
    cosines = {"grad/trunk/term/policy~value/cos": np.clip(cosine + 5 * NOISE, -1, 1)}
    return {**norms("trunk", policy=1.0, value=weaker), **cosines, "reward": reward}


def test_terms_of_like_size_that_oppose_each_other_are_told(patient: Patient) -> None:
    finding = judge("terms-conflict", patient(conflict(-0.6)))
    assert (finding.severity, finding.basis, finding.block) == ("warn", "statistical", "trunk")
    assert "1 of 1 pairs" in finding.evidence[0].reading


@pytest.mark.parametrize("cosine", [-0.45, 0.0, 0.5])
def test_a_cosine_above_minus_one_half_is_normal(patient: Patient, cosine: float) -> None:
    assert judge("terms-conflict", patient(conflict(cosine))) is None


def test_a_weak_opponent_or_a_rising_reward_is_no_conflict(patient: Patient) -> None:
    assert judge("terms-conflict", patient(conflict(-0.9, weaker=0.3))) is None
    assert judge("terms-conflict", patient(conflict(-0.9, reward=RISING))) is None


def test_few_cosines_are_skipped(patient: Patient) -> None:
    logged = {name: values[:5] for name, values in conflict(-0.9).items()}
    assert isinstance(judge("terms-conflict", patient(logged)), Skipped)


# head-collapse
# -------------------------------------------------------------------------------------------------------------


def starving(
    end: float, *, trunk_end: float = 1.0, reward: np.ndarray = FLAT
) -> dict[str, np.ndarray]:
    head = np.concatenate([np.full(8, 0.99), np.geomspace(0.99, end, 12), np.full(40, end)]) * (
        1 + NOISE
    )
    trunk = np.geomspace(0.16, 1.0, 20)
    trunk = np.concatenate([trunk, np.full(40, 1.0)]) * np.linspace(1.0, trunk_end, N)
    return {
        "grad/policy_head/norm/raw": head,
        "grad/gnn/norm/raw": trunk,
        "grad/all/norm/raw": np.hypot(head, trunk),
        "reward": reward,
    }


def test_the_source_s_starving_head_is_told(patient: Patient) -> None:
    finding = judge("head-collapse", patient(starving(0.08)))
    assert (finding.severity, finding.block) == ("warn", "policy_head")
    assert 10 <= finding.since_step <= 25
    assert "stays" in finding.evidence[1].reading


def test_a_head_that_keeps_a_quarter_or_a_policy_that_learns_is_well(patient: Patient) -> None:
    assert judge("head-collapse", patient(starving(0.3))) is None
    assert judge("head-collapse", patient(starving(0.08, reward=RISING))).severity == "info"
    solved = patient(starving(0.08, reward=np.full(N, 3.0)), facts={"max_reward": 3.0})
    assert judge("head-collapse", solved) is None


def test_a_head_that_fades_with_its_trunk_has_converged(patient: Patient) -> None:
    logged = starving(0.08)
    logged["grad/gnn/norm/raw"] = np.geomspace(1.0, 0.1, N)
    assert judge("head-collapse", patient(logged)) is None


def test_a_critic_s_head_may_fade(patient: Patient) -> None:
    logged = {
        name.replace("policy_head", "value_head"): values for name, values in starving(0.08).items()
    }
    assert isinstance(judge("head-collapse", patient(logged)), Skipped)


# all of them
# ---------------------------------------------------------------------------------------------------------------


def serious(data: RunData) -> list[str]:
    found = []
    for each in rules():
        if each.family == "balance":
            result = each(data)
            found += (
                []
                if isinstance(result, Skipped)
                else [f.id for f in result if f.severity != "info"]
            )
    return found


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_healthy_wandering_raises_no_alarm(
    tmp_path: Path, patients: ModuleType, phi: float
) -> None:
    for seed in range(8):
        noise = [patients.ar1(N, phi, 1.0, 10 * seed + k) for k in range(7)]
        logged = {
            "reward": 5 + noise[0],  # flat: the second signal is there, the first must not be
            "grad/trunk/term/policy/norm": np.exp(0.5 * noise[1]),
            "grad/trunk/term/value/norm": 2 * np.exp(0.5 * noise[2]),
            "grad/trunk/term/entropy/norm": 0.1 * np.exp(0.5 * noise[3]),
            "grad/trunk/term/policy~value/cos": np.tanh(-0.2 + 0.5 * noise[4]),
            "grad/policy_head/norm/raw": np.exp(0.5 * noise[5]),
            "grad/trunk/norm/raw": np.exp(0.5 * noise[6]),
        }
        logged["grad/all/norm/raw"] = np.hypot(
            logged["grad/policy_head/norm/raw"], logged["grad/trunk/norm/raw"]
        )
        assert serious(RunData(patients.patient(tmp_path, logged))) == []


@pytest.mark.parametrize(
    "values", [[], [1.0], [np.nan] * 40, [0.0] * 40, [np.inf, -np.inf] * 20, [1e100, -1e100] * 20]
)
def test_no_series_makes_a_rule_raise(patient: Patient, values: list[float]) -> None:
    names = [
        f"grad/{block}/term/{term}/norm"
        for block in ("all", "trunk")
        for term in ("policy", "value", "entropy")
    ]
    names += [
        "grad/trunk/term/policy~value/cos",
        "grad/all/term/policy~entropy/cos",
        "entropy",
        "reward",
    ]
    names += ["grad/head/norm/raw", "grad/trunk/norm/raw", "grad/all/norm/raw", "grad_norm"]
    names += ["grad/all/clip/active", "grad/all/clip/ratio"]
    for reward in (values, FLAT):
        serious(
            RunData(
                patient({**dict.fromkeys(names, values), "reward": reward, "learning_rate": [1.0]})
            )
        )
