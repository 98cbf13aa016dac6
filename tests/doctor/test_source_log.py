"""The stagnated study's own printed text, as document 004 quotes it: names of several words stay
whole, and three gradient norms are three."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer.doctor.rundata import RunData
from gradiometer.integrations.script.printed import Printed
from gradiometer.metrics import read_names

EPOCHS = 30
MEANINGS = {
    "Mean Reward": ("reward", {}),
    "Policy Entropy": ("entropy", {}),
    "Value Explained Variance": ("explained_variance", {}),
    "Advantage Std": ("advantages/<statistic>", {"statistic": "std"}),
    "Total Grad Norm": ("total_grad_norm", {}),
    "Policy Grad Norm": ("part_grad_norm/<block>", {"block": "policy"}),
    "GNN Grad Norm": ("part_grad_norm/<block>", {"block": "gnn"}),
}


def epoch_lines(epoch: int) -> list[str]:
    at = lambda points: float(np.exp(np.interp(epoch, list(points), np.log(list(points.values())))))  # noqa: E731
    noise = np.random.default_rng(epoch).normal(0.0, 0.01)
    head = at({1: 0.9874, 10: 0.1587, 30: 0.0772})
    return [
        f"Epoch {epoch:03d} | Mean Reward: {at({1: 0.4404, 10: 0.4252, 30: 0.424}) + noise:.4f}",
        f"Epoch {epoch:02d}: Policy Entropy = {at({1: 8.8268, 10: 0.0211, 20: 0.0041}):.4f}",
        f"Value Explained Variance: {0.06 + noise / 2:.4f}",
        f"Advantage Std: {0.535 + noise:.4f}",
        "Total Grad Norm: 1.0000",
        f"Epoch {epoch:02d}: Policy Grad Norm = {head:.4f},"
        f" GNN Grad Norm = {np.sqrt(1.0 - head**2):.4f}",
    ]


@pytest.fixture(scope="module")
def text() -> str:
    return "\n".join(line for epoch in range(1, EPOCHS + 1) for line in epoch_lines(epoch)) + "\n"


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory, text: str) -> tuple[RunData, Diagnosis]:
    from gradiometer.store.importers import open_log

    path: Path = tmp_path_factory.mktemp("log") / "study1_varA.log"
    path.write_text(text)
    return RunData(open_log(path)), diagnose(path)


def test_every_name_of_the_log_is_read_whole_and_known(
    read: tuple[RunData, Diagnosis], text: str
) -> None:
    run, _ = read
    found = {name: (each.metric.name, dict(each.parts)) for name, each in read_names(MEANINGS).items()}  # fmt: skip
    assert found == MEANINGS
    assert set(MEANINGS) <= set(run.source.names())
    assert run.unknown == []
    for name in MEANINGS:
        assert len(run.source.series(name)[0]) == EPOCHS


def test_a_watched_script_that_prints_them_keeps_the_same_names(text: str) -> None:
    taken: list[dict[str, float]] = []
    printed = Printed(taken.append)
    printed.hear(text)
    heard = {name: [each[name] for each in taken if name in each] for name in MEANINGS}
    assert {name for each in taken for name in each} == set(MEANINGS)
    assert all(len(values) >= EPOCHS - 1 for values in heard.values())
    assert heard["Policy Grad Norm"][-1] == pytest.approx(0.0772)
    assert heard["GNN Grad Norm"][-1] == pytest.approx(0.9970)


def test_the_doctor_finds_the_symptoms_of_the_document(read: tuple[RunData, Diagnosis]) -> None:
    _, found = read
    assert found.state in ("not-learning", "broken")
    ids = [each.id for each in found.findings]
    assert ids[0] == "entropy-collapse"
    assert {"critic-explains-nothing", "clip-always-active"} <= set(ids)
    said = {*ids, *(id for each in found.findings for id in each.suppressed)}
    assert "head-collapse" in said


@pytest.mark.parametrize("name", ["grad_norm_after_clip", "grad_norm_l2", "gradient_norm_ratio"])
def test_words_that_say_how_a_norm_was_taken_name_no_part(name: str) -> None:
    found = read_names(["Total Grad Norm", name])
    assert name not in found or found[name].metric.name != "part_grad_norm/<block>"


def test_a_policys_norm_alone_is_all_there_is() -> None:
    assert read_names(["policy_grad_norm"])["policy_grad_norm"].metric.name == "total_grad_norm"
