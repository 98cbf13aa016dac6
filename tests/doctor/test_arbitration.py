"""Arbitration: causes first, consequences folded, nothing lost, and two faults at once both come
out."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradiometer.doctor.arbitration import (
    BASIS,
    BY_ARITHMETIC,
    CONSEQUENCES,
    DEAD_TERM,
    OPPOSITES,
    SEVERITY,
    arbitrate,
    brings,
    reason,
)
from gradiometer.doctor.faultmap import FAULT_IDS
from gradiometer.doctor.rule import rules
from gradiometer.records import Evidence, Finding

IDS = {rule.id for rule in rules()}


def finding(id: str, severity: Any = "warn", basis: Any = "statistical", **given: Any) -> Finding:
    return Finding(id=id, title=given.pop("title", id), severity=severity, basis=basis, **given)


def ids(findings: tuple[Finding, ...]) -> list[str]:
    return [each.id for each in findings]


# -- the table


def test_the_table_speaks_of_known_ids_only_and_nothing_brings_about_itself() -> None:
    for cause, consequences in CONSEQUENCES.items():
        assert {cause, *consequences} <= IDS, cause
        assert cause not in consequences
        assert len(set(consequences)) == len(consequences), cause


def test_no_chain_of_causes_closes() -> None:
    done: set[str] = set()

    def walk(id: str, path: tuple[str, ...]) -> None:
        assert id not in path, f"{' -> '.join((*path, id))}"
        if id not in done:
            for following in CONSEQUENCES.get(id, ()):
                walk(following, (*path, id))
            done.add(id)

    for id in CONSEQUENCES:
        walk(id, ())


def test_every_kind_of_dead_term_is_within_what_a_dead_term_brings() -> None:
    for role, consequences in DEAD_TERM.items():
        assert set(consequences) <= set(CONSEQUENCES["dead-term"]), role


ROOTS = (
    "ratio-always-one",
    "entropy-sign",
    "never-trained",
    "dead-term",
    "hidden-term",
    "not-in-optimizer",
    "gradients-not-cleared",
    "shapes-broadcast",
    "double-softmax",
    "leak-between-terms",
    "actions-ignore-policy",
    "entropy-of-wrong-distribution",
    "gradient-not-invariant",
    "kl-gradient-wrong",
    "clip-before-unscale",
    "sampler-mismatch",
    "observation-scale",
    "misaligned-data",
    "reward-scale",
    "advantage-outliers",
    "reward-unreliable",
    "reward-term-dominates",
    "groups-too-easy",
    "target-network",
    "baseline-leak",
    "step-too-large",
    "exploration-schedule",
    "update-opposes-reward",
    "length-exploit",
    "host-dominates",
)
"""What begins with a changed line, a wrong setting or a wrong reward."""


def test_what_begins_with_a_changed_line_is_nobodys_consequence() -> None:
    consequences = {id for found in CONSEQUENCES.values() for id in found}
    assert consequences.isdisjoint(ROOTS)
    assert set(ROOTS) <= IDS


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("F1", "F15"),  # easy prompts and too large a step
        ("F2", "F26"),  # hard prompts and a wrong sign
        ("F6", "F15"),  # cut-off answers and too large a step
        ("F6", "F17"),  # cut-off answers and no exploration
        ("F8", "F24"),  # rewards of another scale and replayed batches
        ("F9", "F16"),  # no done mask and too small a step
        ("F11", "F15"),  # unnormalised advantages and too large a step
        ("F15", "F36"),  # too large a step and a critic that does not learn
        ("F17", "F22"),  # no exploration and no penalty
        ("F17", "F36"),  # no exploration and no critic
        ("F19", "F15"),  # a detached bonus and too large a step
        ("F22", "F36"),
        ("F31", "F17"),
        ("F36", "F42"),
        ("F39", "F22"),
        ("F45", "F36"),
    ],
)
def test_two_faults_at_once_both_come_out(one: str, other: str) -> None:
    result = arbitrate(
        [finding(FAULT_IDS[one][0], since_step=0), finding(FAULT_IDS[other][0], since_step=0)]
    )
    assert not result.folded


def test_any_two_causes_that_begin_with_a_changed_line_both_come_out_with_their_consequences_folded() -> (
    None
):
    for one, other in combinations(ROOTS, 2):
        follow = [
            finding(id, since_step=1)
            for id in {*CONSEQUENCES.get(one, ()), *CONSEQUENCES.get(other, ())}
        ]
        result = arbitrate([finding(one, since_step=0), finding(other, since_step=0), *follow])
        assert sorted(ids(result.findings)) == sorted((one, other))


@pytest.mark.parametrize("severity", ["warn", "info"])
def test_a_fault_that_began_earlier_is_never_folded_under_one_that_began_later(
    severity: Any,
) -> None:
    for cause, consequences in CONSEQUENCES.items():
        for consequence in consequences:
            result = arbitrate(
                [
                    finding(cause, severity, since_step=10),
                    finding(consequence, severity, since_step=9),
                ]
            )
            assert not result.folded


# -- what folds


def test_the_chain_of_the_stagnated_run_folds_under_the_dead_term() -> None:
    result = arbitrate(
        [
            finding("reward-plateau", since_step=50),
            finding("head-collapse", since_step=30, block="head"),
            finding("dead-term", "critical", "proved", since_step=1),
            finding("entropy-collapse", since_step=20),
        ]
    )
    assert ids(result.findings) == ["dead-term"]
    assert ids(result.folded) == ["entropy-collapse", "head-collapse", "reward-plateau"]
    assert result.findings[0].suppressed == ("entropy-collapse", "head-collapse", "reward-plateau")


def test_a_dead_kl_term_does_not_explain_a_collapsed_entropy() -> None:
    evidence = (Evidence(series="grad/all/term/kl_penalty/loss", reading="0.1"),)
    dead = finding("dead-term", "critical", "proved", since_step=1, evidence=evidence)
    assert brings(dead) == DEAD_TERM["kl"]
    result = arbitrate(
        [dead, finding("entropy-collapse", since_step=5), finding("kl-runaway", since_step=5)]
    )
    assert ids(result.findings) == ["dead-term", "entropy-collapse"]
    assert ids(result.folded) == ["kl-runaway"]


def test_a_chain_needs_its_links() -> None:
    easy, frozen = (
        finding("groups-too-easy", since_step=0),
        finding("entropy-never-falls", since_step=3),
    )
    assert not arbitrate([easy, frozen]).folded
    linked = arbitrate([easy, finding("policy-frozen", since_step=2), frozen])
    assert ids(linked.findings) == ["groups-too-easy"]


def test_a_critical_finding_is_never_folded_but_its_own_consequences_are() -> None:
    result = arbitrate(
        [
            finding("exploding-gradient", since_step=5),
            finding("nonfinite-gradient", "critical", "proved", since_step=9),
            finding("policy-frozen", since_step=9),
        ]
    )
    assert ids(result.findings) == ["nonfinite-gradient", "exploding-gradient"]
    assert result.findings[0].suppressed == ("policy-frozen",)


def test_a_suspicion_explains_no_warning_away() -> None:
    result = arbitrate(
        [
            finding("update-opposes-reward", "info", since_step=0),
            finding("reward-declining", since_step=3),
        ]
    )
    assert ids(result.findings) == ["reward-declining", "update-opposes-reward"]
    folded = arbitrate(
        [
            finding("noise-dominated", since_step=0),
            finding("direction-random", "info", since_step=3),
        ]
    )
    assert ids(folded.folded) == ["direction-random"]


def test_batches_of_solved_groups_have_no_gradient_however_mild_that_is() -> None:
    solved = finding("groups-too-easy", "info", since_step=27)
    without = finding("zero-gradient-steps", basis="proved", since_step=34)
    result = arbitrate([solved, without])
    assert ids(result.folded) == ["zero-gradient-steps"]
    assert ids(result.findings) == ["groups-too-easy"]


def test_what_must_follow_from_a_critical_root_comes_after_it_and_is_shown() -> None:
    still = finding("zero-gradient-steps", "critical", "proved", since_step=0)
    hard = finding("groups-too-hard", "critical", "heuristic", since_step=0)
    cut = finding("truncation", "critical", "heuristic", since_step=0)
    assert ids(arbitrate([still, hard, cut]).findings) == [
        "truncation",
        "zero-gradient-steps",
        "groups-too-hard",
    ]
    mild = finding("truncation", "warn", "heuristic", since_step=0)
    assert ids(arbitrate([still, mild]).findings)[0] == "zero-gradient-steps"


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("actor", "critic", False),
        ("actor", "actor", True),
        (None, "critic", True),
        ("actor", None, True),
        ("all", "critic", True),
        ("layer.encoder", "layer.encoder.0", True),
        ("layer.encoder.0", "layer.encoder", True),
        ("layer.encoder.1", "layer.encoder.10", False),
    ],
)
def test_a_consequence_folds_only_where_the_blocks_touch(
    one: str | None, other: str | None, together: bool
) -> None:
    result = arbitrate(
        [finding("dormant-units", block=one), finding("vanishing-gradient", block=other)]
    )
    assert bool(result.folded) is together


def test_what_hangs_on_a_folded_finding_of_another_block_comes_out() -> None:
    """The middle link touches both blocks, the first and the last do not touch: the first does not
    explain the last."""
    result = arbitrate(
        [
            finding("observation-scale", block="actor", since_step=0),
            finding("dormant-units", since_step=1),
            finding("vanishing-gradient", block="critic", since_step=2),
        ]
    )
    assert ids(result.findings) == ["observation-scale", "vanishing-gradient"]


def test_a_proved_warning_is_as_urgent_as_a_critical_one_then_come_basis_and_time() -> None:
    result = arbitrate(
        [
            finding("terms-conflict", "info", "proved", since_step=0),
            finding("length-exploit", "warn", "heuristic", since_step=0),
            finding("stale-data", "warn", "statistical", since_step=9),
            finding("sampler-mismatch", "warn", "statistical", since_step=10),
            finding("not-in-optimizer", "warn", "proved", since_step=50),
            finding("dead-block", "critical", "heuristic", since_step=99),
        ]
    )
    expected = [
        "not-in-optimizer",
        "dead-block",
        "stale-data",
        "sampler-mismatch",
        "length-exploit",
        "terms-conflict",
    ]
    assert ids(result.findings) == expected


# -- whatever the findings are

EVERY_WEIGHT = Evidence(series="grad/all/update_ratio", reading="low", first_step=0, last_step=9)
FINDINGS = st.lists(
    st.builds(
        finding,
        st.sampled_from(sorted(IDS)),
        st.sampled_from(sorted(SEVERITY)),
        st.sampled_from(sorted(BASIS)),
        since_step=st.none() | st.integers(-2, 6),
        block=st.sampled_from([None, "all", "actor", "critic", "layer.a", "layer.a.0"]),
        title=st.sampled_from(["one", "two"]),
    ).map(lambda each: replace(each, evidence=(EVERY_WEIGHT,) if each.title == "two" else ())),
    max_size=14,
)


def bare(findings: tuple[Finding, ...]) -> list[tuple[Any, ...]]:
    return sorted(
        (f.id, f.severity, f.basis, str(f.since_step), str(f.block), f.title) for f in findings
    )


@given(FINDINGS)
def test_no_finding_is_ever_lost_and_criticals_are_all_shown(found: list[Finding]) -> None:
    result = arbitrate(found)
    assert bare((*result.findings, *result.folded)) == bare(tuple(found))
    assert all(each.severity != "critical" for each in result.folded)
    assert {each.id for each in result.folded} == {
        id for each in result.findings for id in each.suppressed
    }
    assert bool(result.findings) == bool(found)


@given(FINDINGS)
def test_every_folded_finding_has_a_shown_cause_that_began_no_later_and_is_no_mere_suspicion(
    found: list[Finding],
) -> None:
    result = arbitrate(found)
    for folded in result.folded:
        causes = [shown for shown in result.findings if folded.id in shown.suppressed]
        assert any(
            (
                cause.since_step is None
                or folded.since_step is None
                or cause.since_step <= folded.since_step
            )
            and (
                cause.severity != "info"
                or folded.severity == "info"
                or (cause.id, folded.id) in BY_ARITHMETIC
            )
            for cause in causes
        )


@pytest.mark.parametrize("first", ["warn", "critical"])
def test_a_proof_that_is_critical_comes_before_the_same_as_a_warning(first: str) -> None:
    both = [finding("action-collapse", one, "proved") for one in ("warn", "critical")]
    found = arbitrate(both if first == "warn" else both[::-1]).findings
    assert [each.severity for each in found] == ["critical", "warn"]


@given(FINDINGS, st.randoms())
def test_the_order_of_the_findings_given_does_not_matter(found: list[Finding], random: Any) -> None:
    shuffled = found[:]
    random.shuffle(shuffled)
    assert arbitrate(shuffled) == arbitrate(found)


@given(FINDINGS)
def test_arbitrating_again_changes_nothing(found: list[Finding]) -> None:
    once = arbitrate(found)
    assert arbitrate((*once.findings, *once.folded)) == once
    assert arbitrate(once.findings).findings == once.findings


@given(
    FINDINGS,
    st.sampled_from(sorted(SEVERITY)),
    st.sampled_from(sorted(BASIS)),
    st.none() | st.integers(-2, 6),
)
def test_an_unrelated_finding_changes_nothing_else(
    found: list[Finding], severity: str, basis: str, since: int | None
) -> None:
    stranger = finding("a-rule-of-somebody-else", severity, basis, since_step=since)
    before, after = arbitrate(found), arbitrate([*found, stranger])
    assert tuple(each for each in after.findings if each != stranger) == before.findings
    assert after.folded == before.folded


def test_hundreds_of_findings_are_sorted_out_at_once() -> None:
    found = [finding(id, since_step=k, block=f"layer.{k}") for k in range(10) for id in sorted(IDS)]
    result = arbitrate(found)
    assert len(result.findings) + len(result.folded) == len(found)


def frozen(*series: str) -> Finding:
    seen = tuple(Evidence(series=name, reading="low", first_step=0, last_step=9) for name in series)
    return finding("policy-frozen", basis="heuristic", since_step=0, evidence=seen)


@pytest.mark.parametrize(
    "series", ["grad/all/update_ratio", "train/learning_rate", "actor/lr", "learning_rate"]
)
def test_where_every_weight_stands_still_the_critic_that_learns_nothing_is_a_consequence(
    series: str,
) -> None:
    blind = finding("critic-explains-nothing", since_step=5, block="critic")
    result = arbitrate([blind, frozen("approx_kl", series)])
    assert ids(result.findings) == ["policy-frozen"]
    assert ids(result.folded) == ["critic-explains-nothing"]


@pytest.mark.parametrize("severity", ["warn", "info"])
def test_a_chain_that_closes_where_every_weight_stands_still_has_one_cause(severity: str) -> None:
    """Advantages too large are clipped, which freezes the policy, and a frozen critic leaves them
    too large: the doctor went round in circles."""
    ring = [finding(id, severity, since_step=0) for id in ("advantage-scale", "over-clipping")]
    still = replace(frozen("grad/all/update_ratio"), severity=severity)  # type: ignore[arg-type]
    result = arbitrate([*ring, still])
    assert len(result.findings) == 1
    assert len(result.folded) == 2


def test_where_the_policy_alone_stands_still_the_critic_is_a_fault_of_its_own() -> None:
    blind = finding("critic-explains-nothing", since_step=5, block="critic")
    assert len(arbitrate([blind, frozen("train/approx_kl")]).findings) == 2


def test_what_held_from_its_first_measurement_on_began_no_later_than_what_is_measured_at_every_step() -> (
    None
):
    seen = (Evidence(series="value_loss", reading="5e+05", first_step=39, last_step=999),)
    scale = finding("reward-scale", since_step=39, evidence=seen)
    swamped = finding("critic-dominates", since_step=0, block="all")
    assert ids(arbitrate([swamped, scale], first_step={"value_loss": 39}.get).findings) == [
        "reward-scale"
    ]
    assert len(arbitrate([swamped, scale], first_step={"value_loss": 19}.get).findings) == 2
    assert len(arbitrate([swamped, scale]).findings) == 2


# no two findings ask for opposite things


def test_of_two_findings_that_ask_for_opposite_things_the_later_waits() -> None:
    large = finding("step-too-large", "critical", since_step=5)
    frozen = finding("policy-frozen", "warn", since_step=0)
    first, second = arbitrate([frozen, large]).findings
    assert (first.id, second.id) == ("step-too-large", "policy-frozen")
    assert first.fix == large.fix
    assert second.fix == ("Settle step-too-large first: the two ask for opposite things.",)


def test_no_finding_is_on_both_sides_of_a_contradiction() -> None:
    for one, other in OPPOSITES:
        assert not one & other
        assert one | other <= IDS


def test_what_became_of_the_reward_comes_after_what_may_have_caused_it() -> None:
    fell = finding("reward-declining", "warn", "statistical", since_step=0)
    noise = finding("template-collapse", "warn", "heuristic", since_step=50)
    assert ids(arbitrate([fell, noise]).findings) == ["template-collapse", "reward-declining"]


def test_a_rule_with_a_poor_record_never_leads_over_one_that_is_usually_right() -> None:
    poor = finding("hidden-term", "warn", "statistical", since_step=0)  # right in 0 of 4
    good = finding("stale-data", "warn", "heuristic", since_step=50)
    assert ids(arbitrate([poor, good]).findings) == ["stale-data", "hidden-term"]
    proved = finding("hidden-term", "warn", "proved", since_step=0)
    assert ids(arbitrate([proved, good]).findings)[0] == "hidden-term"


def test_a_finding_without_a_step_does_not_come_first() -> None:
    never = finding("stale-data", "warn", since_step=None)
    known = finding("truncation", "warn", since_step=900)
    assert ids(arbitrate([never, known]).findings) == ["truncation", "stale-data"]


def test_a_measured_wrong_sign_leads() -> None:
    sign = finding("update-opposes-reward", "critical", "statistical", since_step=40)
    large = finding("step-too-large", "critical", "proved", since_step=0)
    assert ids(arbitrate([large, sign]).findings)[0] == "update-opposes-reward"


def test_a_line_that_is_proved_leads_over_a_large_step() -> None:
    large = finding("step-too-large", "critical", "proved", since_step=0)
    line = finding("not-in-optimizer", "critical", "proved", since_step=3)
    assert ids(arbitrate([large, line]).findings) == ["not-in-optimizer", "step-too-large"]


def test_every_edge_has_its_reason_in_words() -> None:
    assert reason("dead-term", "router-untrained") == "the task term is what trains a router"
    silent = [
        (cause, effect)
        for cause, effects in CONSEQUENCES.items()
        for effect in effects
        if cause != "dead-term" and not reason(cause, effect)
    ]
    assert not silent
