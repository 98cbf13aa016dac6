"""`gradiometer doctor RUN --confirm`: on small trainings of the labs, and with somebody's own probe."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradiometer as gm
from gradiometer import labs
from gradiometer.cli import confirm as cli
from gradiometer.cli.main import run as gradiometer
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.errors import UsageError
from gradiometer.labs.config import configure
from gradiometer.labs.confirm import LabProbe, _Sitter, _weights, probe_of
from gradiometer.probes.confirm import Experiment, confirmed
from gradiometer.probes.confirmjudges import CHECKSUM
from gradiometer.records import Evidence, Finding

BENCHES = {name: lab.bench for name, lab in labs.LABS.items() if lab.bench is not None}
CARTPOLE = ("num_envs=2", "num_steps=24", "num_minibatches=2", "update_epochs=2", "total_steps=48000", "seed=5")
PRISMATIC = ("router_type=topk", "width=16", "context=12", "prompt=4", "batch_size=4", "num_layers=1", "num_heads=2")
TSP = ("num_loc=6", "batch_size=4", "embed_dim=16", "num_layers=1", "num_heads=2")

DEAD = Finding(
    id="dead-term",
    title="The loss term 'entropy' has no gradient",
    severity="critical",
    basis="proved",
    evidence=(Evidence(series="grad/all/term/entropy/loss", reading="0.01"),),
    confirm="Print entropy.requires_grad.",
)


def facts_of(lab: str, *overrides: str) -> dict[str, Any]:
    """As a run keeps them."""
    config = configure(labs.find(lab).config(), overrides)
    return {"config": json.loads(json.dumps(dataclasses.asdict(config)))}


def probe_for(lab: str, *overrides: str) -> LabProbe:
    probe = probe_of(facts_of(lab, *overrides))
    assert probe is not None
    return probe


def confirm(id: str, probe: LabProbe, **more: Any) -> Any:
    (found,) = confirmed([dataclasses.replace(DEAD, id=id, **more)], probe, seed=probe.seed)
    return found


# -- labs


@pytest.mark.parametrize("lab", sorted(BENCHES))
def test_a_config_is_known_by_its_keys(lab: str) -> None:
    assert probe_for(lab).lab.name == lab


def test_what_is_no_labs_config_is_not_taken_for_one() -> None:
    assert probe_of({}) is None
    assert probe_of({"config": None}) is None
    assert probe_of({"config": {"seed": 1, "learning_rate": 0.1}}) is None
    assert probe_of({"config": facts_of("cartpole")["config"] | {"mine": 1}}) is None


def test_every_coefficient_is_a_setting_of_its_lab() -> None:
    for name, bench in BENCHES.items():
        saved = probe_for(name).saved
        assert set(bench.terms.values()) <= saved.keys()
        configure(labs.find(name).config(), bench.brief)


def test_an_entropy_that_no_weight_feels_changes_no_bit_of_them() -> None:
    found = confirm("dead-term", probe_for("cartpole", *CARTPOLE, "fault=entropy_no_grad"))
    assert found.outcome == "supported"
    assert re.match(r"the weights after \d+ batches are bit-identical", found.seen)


def test_a_healthy_entropy_term_does_change_the_weights() -> None:
    found = confirm("dead-term", probe_for("cartpole", *CARTPOLE))
    assert found.outcome == "refuted"
    assert found.numbers["distance"] > 1e-6


def test_a_router_that_the_task_does_not_train_is_told_from_one_that_it_does() -> None:
    broken = confirm("router-untrained", probe_for("prismatic", *PRISMATIC, "fault=router_detached"))
    healthy = confirm("router-untrained", probe_for("prismatic", *PRISMATIC))
    assert (broken.outcome, healthy.outcome) == ("supported", "refuted"), (broken.seen, healthy.seen)
    assert broken.numbers["share"] < 1e-7
    merged = [each for each in PRISMATIC if not each.startswith("router_type")]
    cut = confirm("router-untrained", probe_for("prismatic", *merged, "fault=router_detached"))
    assert cut.outcome == "supported"


def test_a_fault_that_is_a_wrong_setting_is_not_made_twice() -> None:
    """The run keeps the settings it trained with, in which the fault already is."""
    probe = probe_for("prismatic", "router_type=topk", "fault=aux_dominates", "aux_coef=100")
    assert (probe.saved["fault"], probe.saved["aux_coef"]) == ("none", 100.0)
    assert probe_for("cartpole", "fault=entropy_no_grad").saved["fault"] == "entropy_no_grad"


def test_a_training_is_the_users_own_from_its_first_step() -> None:
    """Settings, seed and schedules of the whole training, stopped early: its first rewards are those of the run."""
    probe = probe_for("cartpole", *CARTPOLE)
    first = probe(Experiment(kind="baseline", seed=5))
    rewards: list[float] = []

    class Stop(Exception):
        pass

    config = configure(labs.find("cartpole").config(), [*CARTPOLE, "run=own", "every=1", "tier=light"])
    with pytest.raises(Stop):

        def progress(now: Any) -> None:
            rewards.append(now.done)
            if len(rewards) == probe._batches:
                raise Stop

        labs.find("cartpole").train(config, progress)
    last = gm.load("own").series("grad/all/norm/raw")[1]
    count = len(last) // len(rewards) * max(1, len(rewards) // 3)
    assert first["grad/all/norm/raw"] == pytest.approx(last[-count:].mean(), rel=1e-12)


def weights_of(numbers: dict[str, float]) -> np.ndarray[Any, Any]:
    return np.array([value for name, value in numbers.items() if name.startswith("weights/") and name != CHECKSUM])


def test_updates_of_no_length_leave_the_weights_and_longer_ones_move_them_further() -> None:
    probe = probe_for("tsp", *TSP)
    probe._searched = 3
    found = {scale: probe(Experiment(kind="line-search", scale=scale, seed=1)) for scale in (0.0, 0.1, 1.0)}
    probe._searched = 6
    longer = probe(Experiment(kind="line-search", scale=0.0, seed=1))
    assert longer[CHECKSUM] == found[0.0][CHECKSUM]
    start, short, whole = (weights_of(found[scale]) for scale in (0.0, 0.1, 1.0))
    assert 0.05 < np.linalg.norm(short - start) / np.linalg.norm(whole - start) < 0.2


def test_a_training_that_is_held_still_keeps_every_bit_of_its_weights() -> None:
    probe, checksums = probe_for("prismatic", *PRISMATIC), []
    for held in (0, 4):
        sitter = _Sitter(3, held=held)
        with probe._run(sitter, 1, ()):
            checksums.append(_weights(sitter.weights())[CHECKSUM])
            assert len(sitter.gradients) == held
    assert checksums[0] == checksums[1]
    assert all(a != b for a, b in itertools.pairwise(sitter.gradients))


def test_the_length_one_is_the_training_as_it_is() -> None:
    probe = probe_for("tsp", *TSP)
    probe._batches = probe._searched = 5
    trained = probe(Experiment(kind="baseline", seed=1))
    searched = probe(Experiment(kind="line-search", scale=1.0, seed=1))
    assert searched["reward"] == trained["reward"]


def test_gradients_are_taken_on_fresh_samples_at_the_same_weights() -> None:
    found = confirm("noise-dominated", probe_for("tsp", *TSP))
    assert found.outcome in ("supported", "refuted", "inconclusive")
    assert 0.0 <= found.numbers["p_value"] <= 1.0
    assert found.numbers["share"] < 0.999  # not one gradient twelve times


@pytest.mark.slow
@pytest.mark.proof
def test_sokoban_is_confirmed_too() -> None:
    found = confirm("dead-term", probe_for("sokoban", "env.size=5", "fault=entropy_no_grad"))
    assert found.outcome == "supported"


def test_what_a_lab_has_no_setting_for_is_said() -> None:
    probe = probe_for("tsp", *TSP)
    assert "has no coefficient for the term 'entropy'" in confirm("dead-term", probe).seen
    assert "gm.audit" in confirm("score-not-zero-mean", probe).seen
    assert "ent_coef is 0 already" in confirm("dead-term", probe_for("cartpole", "ent_coef=0")).seen
    short = confirm("noise-dominated", probe_for("tsp", *TSP, "steps=5"))
    assert (short.outcome, short.done) == ("not-run", DEAD.confirm)
    assert "ends after 5 batches" in short.seen


def test_neither_the_runs_folder_nor_the_random_numbers_are_touched(tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    probe = probe_for("cartpole", *CARTPOLE, f"run={place}")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    probe(Experiment(kind="baseline", seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    assert list(place.iterdir()) == []
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


# -- the command


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The run of a small training whose entropy bonus is dead."""
    place = tmp_path / "run"
    overrides = [*CARTPOLE, "fault=entropy_no_grad", f"run={place}", "total_steps=480", "every=1"]
    lab = labs.find("cartpole")
    lab.train(configure(lab.config(), overrides))
    return place


PROBES = """
def nothing(experiment):
    return {"reward": experiment.seed % 7, "grad_norm": 2.0}
def fails(experiment):
    if experiment.kind != "baseline":
        raise ValueError("no such coefficient")
    return 1.0
"""


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A module in the current folder, under a name of this test's own."""
    name = f"my_probes_{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(PROBES)
    return lambda function: f"{name}:{function}"


def test_the_command_confirms_the_first_finding(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((each.name, each.stat().st_mtime_ns) for each in trained.iterdir() if each.name == "run.db")
    assert gradiometer(["doctor", str(trained), "--confirm"]) == 0
    told = capsys.readouterr()
    assert "CONFIRM dead-term · supported" in told.out
    assert "bit-identical" in told.out
    assert told.out.index("CRITICAL dead-term") < told.out.index("CONFIRM dead-term")
    assert "confirming dead-term: 3/3" in told.err
    assert sorted((each.name, each.stat().st_mtime_ns) for each in trained.iterdir() if each.name == "run.db") == files


def test_a_probe_of_ones_own_is_asked_instead(
    trained: Path, probes: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gradiometer(["doctor", str(trained), "--confirm", "--probe", probes("nothing"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    found = content["confirmations"][0]
    assert (found["finding"], found["outcome"], found["seeds"]) == ("dead-term", "supported", [5])
    assert content["findings"][0]["id"] == "dead-term"


def test_a_probe_that_fails_costs_exit_2_and_not_the_diagnosis(
    trained: Path, probes: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--json"]):
        assert gradiometer(["doctor", str(trained), "--confirm", "--probe", probes("fails"), *more]) == 2
        told = capsys.readouterr()
        assert "dead-term" in told.out
        assert "ValueError: no such coefficient" in told.err
        assert "Traceback" not in told.err
    assert json.loads(told.out)["confirmations"] == []


def test_wrong_usage_is_told_before_anything_is_judged(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--confirm", "--probe", "nowhere:probe"], "no module 'nowhere'"),
        (["--confirm", "--probe", "nowhere"], "module:function"),
        (["--probe", "nowhere:probe"], "belongs to --confirm"),
        ([str(trained), "--confirm"], "one run at a time; found 2"),
    ):
        assert gradiometer(["doctor", str(trained), *arguments]) == 2
        told = capsys.readouterr()
        assert words in told.err
        assert told.out == ""


# -- how it is said


def diagnosis_of(*findings: Finding) -> Diagnosis:
    return Diagnosis(
        run=Path("run"),
        verdict="",
        findings=findings,
        folded=(),
        skipped=(),
        unknown_keys=(),
        looked=(),
        curves={},
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Somebody else's log: no lab."""
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps({"step": step, "reward": 1.0}) + "\n" for step in range(5)))
    return file


def test_without_a_lab_and_a_probe_it_says_how_to_make_sure(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.prepared([log], probe="").tell(diagnosis_of(DEAD), form="text", output="")
    told = capsys.readouterr().out
    assert "CONFIRM dead-term · not run" in told
    assert "by hand   Print entropy.requires_grad." in told
    assert "--probe module:function" in told.replace("\n            ", " ")


def test_a_healthy_run_has_nothing_to_confirm(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.prepared([log], probe="").tell(diagnosis_of(), form="text", output="")
    told = capsys.readouterr()
    assert told.out == ""
    assert "nothing to confirm" in told.err


def test_a_report_in_a_file_has_it_too(
    log: Path, tmp_path: Path, probes: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.md"
    report.write_text("# Report\n")
    asked = cli.prepared([log], probe=probes("nothing"))
    asked.tell(diagnosis_of(DEAD), form="markdown", output=str(report))
    assert capsys.readouterr().out == ""
    written = report.read_text()
    assert written.startswith("# Report\n\n### Confirm dead-term: supported · 1 seed")
    assert "- saw: reward, grad_norm are bit-identical" in written


def test_several_runs_are_too_many(log: Path) -> None:
    with pytest.raises(UsageError, match="one run at a time"):
        cli.prepared([log, log], probe="")
