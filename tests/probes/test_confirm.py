"""Confirming experiments on probes whose truth is known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import rules
from gradiometer.errors import UnknownName, UsageError
from gradiometer.maths.means import student
from gradiometer.maths.variance import signal_share
from gradiometer.probes.confirm import (
    EXPERIMENTS,
    REPLICATES,
    Confirmation,
    Experiment,
    Probe,
    confirmed,
    load_probe,
    seeds_of,
    worth_confirming,
)
from gradiometer.records import Evidence, Finding


def finding(id: str, **more: Any) -> Finding:
    return Finding(
        id=id, title="", severity="critical", basis="proved", confirm="Print it.", **more
    )


def confirm(id: str, probe: Probe | None, *, seed: int = 7, **more: Any) -> Confirmation:
    (found,) = confirmed([finding(id, **more)], probe, seed=seed)
    return found


def noise(experiment: Experiment, size: float = 1.0) -> float:
    """Of the arm and the seed."""
    words = [experiment.seed, *experiment.kind.encode(), round(10 * experiment.scale)]
    return size * float(np.random.default_rng(words).standard_normal())


ENTROPY = {"evidence": (Evidence(series="grad/all/term/entropy/loss", reading=""),)}


def test_every_experiment_belongs_to_a_finding_that_exists() -> None:
    assert EXPERIMENTS.keys() <= {rule.id for rule in rules()}


# -- dead terms


def test_a_term_that_changes_no_bit_is_dead() -> None:
    asked: list[Experiment] = []

    def probe(experiment: Experiment) -> dict[str, float]:
        asked.append(experiment)
        return {
            "reward": 0.1 + experiment.seed,
            "loss": 1.0 if experiment.kind == "baseline" else 0.7,
        }

    found = confirm("dead-term", probe, **ENTROPY)
    assert found.outcome == "supported"
    assert "bit-identical" in found.seen
    assert "'entropy'" in found.done
    assert [(each.kind, each.term, each.seed) for each in asked] == [
        ("zero-term", "entropy", 7),
        ("baseline", None, 7),
        ("baseline", None, 7),
    ]


def test_a_term_that_changes_the_last_bit_is_not() -> None:
    def probe(experiment: Experiment) -> dict[str, float]:
        return {
            "grad_norm": 1.0 if experiment.kind == "baseline" else float(np.nextafter(1.0, 2.0))
        }

    found = confirm("dead-term", probe, **ENTROPY)
    assert found.outcome == "refuted"
    assert found.numbers["distance"] == pytest.approx(2.2e-16, rel=0.01)


def test_a_probe_that_does_not_repeat_itself_proves_nothing() -> None:
    calls = iter(range(10))
    found = confirm("dead-term", lambda experiment: {"reward": 1.0 + next(calls)}, **ENTROPY)
    assert found.outcome == "inconclusive"
    assert "repeatable" in found.seen


def test_a_loss_that_holds_the_term_itself_proves_nothing() -> None:
    found = confirm(
        "dead-term", lambda experiment: 1.0 if experiment.kind == "baseline" else 0.7, **ENTROPY
    )
    assert found.outcome == "inconclusive"
    assert "weights or gradient norms" in found.seen


@pytest.mark.parametrize(
    ("series", "title", "term"),
    [
        ("grad/actor/term/kl/norm", "", "kl"),
        ("grad/all/term/policy~entropy/cos", "", "entropy"),
        ("grad/all/term/value~policy/cos", "", "value"),
        ("terms", "The loss term 'bonus' has no gradient", "bonus"),
        ("terms", "nothing is quoted", None),
    ],
)
def test_the_term_is_the_one_the_evidence_names(series: str, title: str, term: str | None) -> None:
    seen: list[str | None] = []

    def probe(experiment: Experiment) -> float:
        seen.append(experiment.term)
        return 1.0

    told = Finding(
        id="dead-term",
        title=title,
        severity="warn",
        basis="proved",
        evidence=(Evidence(series=series, reading=""),),
    )
    list(confirmed([told], probe))
    assert seen[0] == term


# -- better or worse


@pytest.mark.parametrize(
    ("gain", "outcome"), [(10.0, "supported"), (-10.0, "refuted"), (0.0, "inconclusive")]
)
@pytest.mark.parametrize(("name", "sign"), [("reward", 1), ("loss", -1)])
def test_what_stands_in_the_way_is_better_left_out(
    name: str, sign: int, gain: float, outcome: str
) -> None:
    def probe(experiment: Experiment) -> dict[str, float]:
        return {name: sign * gain * (experiment.kind == "freeze") + noise(experiment)}

    found = confirm("critic-dominates", probe)
    assert found.outcome == outcome, found.seen
    assert len(found.seeds) == 5
    assert "95 % interval" in found.seen


def test_without_any_difference_one_in_twenty_is_called_one() -> None:
    outcomes = [
        confirm(
            "critic-dominates", lambda experiment: {"reward": noise(experiment)}, seed=seed
        ).outcome
        for seed in range(400)
    ]
    assert 0.02 <= np.mean([outcome != "inconclusive" for outcome in outcomes]) <= 0.09


def test_a_result_without_an_objective_says_what_to_return() -> None:
    found = confirm("kl-strangled", lambda experiment: {"speed": 1.0})
    assert found.outcome == "inconclusive"
    assert "val/reward, reward" in found.seen
    assert "found: speed" in found.seen


def test_a_training_that_is_not_finite_is_left_out_of_the_comparison() -> None:
    found = confirm("kl-strangled", lambda experiment: float("nan"))
    assert found.outcome == "inconclusive"
    assert "not finite" in found.seen


@pytest.mark.parametrize(
    ("fall", "outcome"), [(1.0, "supported"), (-1.0, "refuted"), (0.0, "inconclusive")]
)
def test_entropy_that_a_bonus_holds_up_falls_without_it(fall: float, outcome: str) -> None:
    def probe(experiment: Experiment) -> dict[str, float]:
        assert experiment.term in (None, "entropy")
        return {"entropy": 2.0 - fall * (experiment.kind == "zero-term") + noise(experiment, 0.05)}

    assert confirm("entropy-never-falls", probe).outcome == outcome


@pytest.mark.parametrize(
    ("left", "outcome"), [(1e-9, "supported"), (0.0, "supported"), (1e-2, "refuted")]
)
def test_a_router_that_only_the_balance_loss_trains_is_left_without_a_gradient(
    left: float, outcome: str
) -> None:
    def probe(experiment: Experiment) -> dict[str, float]:
        router = 0.1 if experiment.kind == "baseline" else left
        return {"grad/router/norm/raw": router, "grad/all/norm/raw": 1.0}

    assert confirm("router-untrained", probe).outcome == outcome


# -- gradients on fresh samples


def gradient(experiment: Experiment, signal: float, size: int = 200) -> dict[str, float]:
    """E g has the power `signal`, the noise the power 1."""
    random = np.random.default_rng(experiment.seed).standard_normal(size) / np.sqrt(size)
    return {f"projection/{place}": x + np.sqrt(signal / size) for place, x in enumerate(random)}


@pytest.mark.parametrize(
    ("snr", "outcome"),
    [(0.0, "supported"), (0.01, "supported"), (0.1, "inconclusive"), (0.5, "refuted")],
)
def test_gradients_with_nothing_in_common_are_noise(snr: float, outcome: str) -> None:
    found = confirm("noise-dominated", lambda experiment: gradient(experiment, snr))
    assert found.outcome == outcome, found.seen
    assert len(found.seeds) == REPLICATES


@pytest.mark.slow
def test_the_interval_of_the_signal_covers_the_truth() -> None:
    for snr in (0.0, 0.2, 2.0):
        truth, covered = snr / (1 + snr), 0
        for seed in range(200):
            seeds = range(1000 * seed, 1000 * seed + REPLICATES)
            vectors = [
                list(gradient(Experiment(kind="replicate", seed=each), snr).values())
                for each in seeds
            ]
            share = signal_share(vectors).share
            assert share.low is not None
            assert share.high is not None
            covered += share.low <= truth <= share.high
        assert 0.88 <= covered / 200 <= 1.0, (snr, covered)


@pytest.mark.parametrize(("mean", "outcome"), [(0.0, "refuted"), (1.0, "supported")])
def test_scores_that_have_a_mean_are_not_those_of_the_sampler(mean: float, outcome: str) -> None:
    found = confirm("score-not-zero-mean", lambda experiment: gradient(experiment, mean))
    assert found.outcome == outcome, found.seen


def test_norms_are_no_gradients() -> None:
    found = confirm("noise-dominated", lambda experiment: {"grad_norm": 1.0})
    assert found.outcome == "inconclusive"
    assert "projection/<i>" in found.seen


# -- the length of the step


def along(experiment: Experiment, best: float) -> dict[str, float]:
    return {"loss": (experiment.scale - best) ** 2 + noise(experiment, 0.01)}


@pytest.mark.parametrize(
    ("best", "outcome"), [(0.2, "supported"), (0.55, "supported"), (1.0, "refuted")]
)
def test_a_step_is_too_large_when_a_shorter_one_does_better(best: float, outcome: str) -> None:
    found = confirm("step-too-large", lambda experiment: along(experiment, best))
    assert found.outcome == outcome, found.seen
    assert list(found.numbers) == ["0.1x", "0.3x", "1x", "3x"]


def test_lengths_that_make_no_difference_say_nothing() -> None:
    for id in ("step-too-large", "update-opposes-reward"):
        assert confirm(id, lambda experiment: {"loss": noise(experiment)}).outcome == "inconclusive"


def test_a_step_that_leaves_no_finite_loss_is_too_large() -> None:
    def probe(experiment: Experiment) -> float:
        return float("nan") if experiment.scale >= 1 else 1.0

    assert confirm("step-too-large", probe).outcome == "supported"


@pytest.mark.parametrize(
    ("best", "outcome"), [(-1.0, "supported"), (0.2, "refuted"), (1.0, "refuted")]
)
def test_a_step_that_is_wrong_at_every_length_goes_the_wrong_way(best: float, outcome: str) -> None:
    found = confirm("update-opposes-reward", lambda experiment: along(experiment, best))
    assert found.outcome == outcome, found.seen
    assert list(found.numbers) == ["0x", "0.1x", "0.3x", "1x"]


# -- what cannot be run


def test_a_finding_without_an_experiment_repeats_how_to_make_sure() -> None:
    found = confirm("reward-hacking", lambda experiment: 1.0)
    assert (found.outcome, found.done) == ("not-run", "Print it.")


def test_without_a_probe_and_with_one_that_cannot_it_says_so() -> None:
    assert confirm("dead-term", None).outcome == "not-run"

    def probe(experiment: Experiment) -> float:
        raise NotImplementedError("no critic here")

    found = confirm("critic-dominates", probe)
    assert found.outcome == "not-run"
    assert found.seen == "the probe does not do freeze: no critic here"


def test_only_the_first_findings_that_ask_for_action_are_confirmed() -> None:
    some = [
        Finding(id=id, title="", severity=how, basis="proved")
        for id, how in (("a", "info"), ("b", "critical"), ("c", "warn"), ("d", "warn"))
    ]  # type: ignore[arg-type]
    assert [each.id for each in worth_confirming(some)] == ["b", "c"]


def test_seeds_begin_with_the_runs_own_and_do_not_meet_those_of_its_neighbour() -> None:
    assert seeds_of(3, 5)[0] == 3
    assert len({*seeds_of(3, 5), *seeds_of(4, 5)}) == 10
    assert seeds_of(3, 5) == seeds_of(3, 5)


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    list(
        confirmed(
            [finding("dead-term")], lambda experiment: 1.0, progress=lambda *now: told.append(now)
        )
    )
    assert told == [("dead-term", 1, 3), ("dead-term", 2, 3), ("dead-term", 3, 3)]


@pytest.mark.parametrize(
    ("nonsense", "words"),
    [
        (None, "loss = None"),
        ("good", "loss = 'good'"),
        (True, "loss = True"),
        ([1.0], r"loss = \[1.0\]"),
        ({}, "no numbers"),
        ({"reward": "high"}, "reward = 'high'"),
        ({1: 2.0}, "names are text"),
    ],
)
def test_nonsense_is_one_clear_error(nonsense: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        confirm("dead-term", lambda experiment: nonsense)


# -- module:function


PROBES = """
import sys
number = 3
def good(experiment):
    return {"reward": 1.0}
def raises(experiment):
    raise KeyError("nothing here")
def leaves(experiment):
    sys.exit(4)
def cannot(experiment):
    raise NotImplementedError
"""


@pytest.fixture
def probes(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A module of this test's own in the current folder."""
    name = f"probes_of_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(PROBES)
    return name


def test_a_function_in_this_folder_is_found(probes: str) -> None:
    before = list(sys.path)
    assert load_probe(f"{probes}:good")(Experiment(kind="baseline")) == {"reward": 1.0}
    assert sys.path == before


def test_a_wrong_name_is_told_in_one_line(probes: str, tmp_path: Path) -> None:
    (tmp_path / "broken_probes.py").write_text("import nothing_of_that_name")
    (tmp_path / "wrong_probes.py").write_text("1 +")
    for name, words in {
        "probes": "write --probe module:function",
        ":good": "write --probe module:function",
        f"{probes}.py:good": "not its file",
        "no_such_module:good": "no module 'no_such_module'",
        f"{probes}:number": "which cannot be called",
        "broken_probes:good": "ModuleNotFoundError: No module named 'nothing_of_that_name'",
        "wrong_probes:good": "SyntaxError",
    }.items():
        with pytest.raises(UsageError, match=words):
            load_probe(name)
    with pytest.raises(UnknownName, match="did you mean 'good'"):
        load_probe(f"{probes}:goood")


def test_what_a_probe_raises_is_told_with_its_place(probes: str) -> None:
    experiment = Experiment(kind="zero-term", term="entropy", seed=3)
    with pytest.raises(UsageError, match=rf"KeyError: 'nothing here' \(.*{probes}.py:7\)"):
        load_probe(f"{probes}:raises")(experiment)
    with pytest.raises(UsageError, match=r"zero-term.*SystemExit: 4"):
        load_probe(f"{probes}:leaves")(experiment)
    with pytest.raises(NotImplementedError):
        load_probe(f"{probes}:cannot")(experiment)


def test_experiments_need_no_torch() -> None:
    code = "import sys, gradiometer.probes.confirm; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_students_interval_is_the_textbooks() -> None:
    found = student([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.low == pytest.approx(2.5 - 3.182446 * 1.2909944 / 2, rel=1e-6)
    assert student([1.0, 2.0, 3.0]).low is None
    wider: Mapping[str, float | None] = {"low": student([1.0, 2.0, 3.0, 4.0], tests=2).low}
    assert wider["low"] is not None
    assert wider["low"] < found.low
