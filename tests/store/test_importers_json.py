"""Logs of JSON objects: the `trainer_state.json` of a real TRL training, verl's file logger, lists,
and odd rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from gradiometer.doctor.rundata import RunData
from gradiometer.errors import GradiometerWarning, NotARun, UsageError
from gradiometer.store.formats.json_files import read_json, read_jsonl
from gradiometer.store.import_log import import_log
from gradiometer.store.importers import open_log
from gradiometer.store.reader import load

FIXTURES = Path(__file__).parent.parent / "fixtures"
STATE = FIXTURES / "trl_grpo" / "checkpoint-30" / "trainer_state.json"


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_every_number_of_a_real_trainer_state_is_a_point_at_its_step() -> None:
    log = open_log(STATE)
    history = json.loads(STATE.read_text())["log_history"]
    expected: dict[str, dict[int, float]] = {}
    for entry in history:
        for name, value in entry.items():
            if name != "step":
                expected.setdefault(name, {})[entry["step"]] = float(value)
    assert log.names() == sorted(expected)
    for name, points in expected.items():
        steps, values = log.series(name)
        assert dict(zip(steps.tolist(), values.tolist(), strict=True)) == points


def test_evaluation_rows_are_points_at_their_own_steps_and_no_nan_elsewhere() -> None:
    log = open_log(STATE)
    assert log.series("eval_reward")[0].tolist() == [10, 20, 30]
    assert len(log.series("reward")[0]) == 30
    assert not any(np.isnan(log.series(name)[1]).any() for name in log.names())
    assert "returns" not in log.facts["imported"]
    assert "replaced" not in log.facts["imported"]  # the epoch is said twice, but the same


def test_a_trl_log_is_known_as_one_and_its_names_are_resolved() -> None:
    log = open_log(STATE)
    assert log.name == "trl_grpo"
    assert log.facts["imported"] == {
        "format": "trainer_state",
        "library": "TRL",
        "step": "step",
        "x_axis": "optimizer steps",
    }
    assert (log.facts["config"]["max_steps"], log.facts["config"]["train_batch_size"]) == (30, 16)
    data = RunData(log)
    for template in (
        "reward",
        "reward_std",
        "entropy",
        "kl_ref",
        "clip_fraction",
        "clip_fraction_low",
        "clip_fraction_high",
        "val/reward",
        "learning_rate",
        "zero_variance_groups",
        "truncated_fraction",
        "episode_length",
        "grad/<block>/norm/raw",
        "val/loss",
    ):
        assert data.has(template), template
    kl = data.get("kl_ref")
    assert kl is not None
    assert kl.estimator == "k3"
    assert len(data.every("rewards/<function>/<statistic>")) == 4


def test_the_event_file_and_the_state_of_one_training_say_the_same() -> None:
    events, state = open_log(FIXTURES / "trl_grpo" / "runs"), open_log(STATE)
    for name in ("reward", "entropy", "kl", "grad_norm"):
        assert events.series(f"train/{name}")[0].tolist() == state.series(name)[0].tolist()
        np.testing.assert_allclose(
            events.series(f"train/{name}")[1], state.series(name)[1], rtol=1e-6
        )


def test_a_trainer_state_becomes_a_run(tmp_path: Path) -> None:
    log = open_log(STATE)
    kept = import_log(log, tmp_path / "run")
    assert (kept.format, kept.steps, kept.first_step, kept.last_step) == (
        "trainer_state",
        30,
        1,
        30,
    )
    assert "eval_num_tokens" in kept.unknown
    assert "eval_kl" not in kept.unknown
    with load(tmp_path / "run") as run:
        assert run.names() == log.names()
        assert run.facts["config"]["max_steps"] == 30


def test_a_folder_of_checkpoints_is_read_from_its_newest(tmp_path: Path) -> None:
    for number in (9, 10, 100):
        (tmp_path / "out" / f"checkpoint-{number}").mkdir(parents=True)
        history = [{"step": step, "loss": 1.0} for step in range(number)]
        text = json.dumps({"log_history": history, "max_steps": 100}, indent=2)
        (tmp_path / "out" / f"checkpoint-{number}" / "trainer_state.json").write_text(text)
    log = open_log(tmp_path / "out")
    assert (log.newest_step, log.name) == (99, "out")
    assert open_log(tmp_path / "out" / "checkpoint-10").newest_step == 9
    (tmp_path / "out" / "trainer_state.json").write_text(
        json.dumps({"log_history": [{"step": 7, "loss": 1}]})
    )
    assert open_log(tmp_path / "out").newest_step == 7


def test_nan_in_a_history_is_a_nan_and_text_is_left_out(tmp_path: Path) -> None:
    text = (
        '{"log_history": [{"step": 1, "loss": NaN, "a": "nan", "b": "half", "c": null}, {"step": 2,'
        ' "a": "-inf", "c": 1}]}'
    )
    log = open_log(written(tmp_path / "trainer_state.json", text))
    assert math.isnan(log.series("loss")[1][0])
    assert math.isnan(log.series("a")[1][0])
    assert log.series("a")[1][1] == -math.inf
    assert log.series("c")[0].tolist() == [2]
    assert log.left_out == ("b",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"log_history": []}', "empty log_history.*logging_steps"),
        ('{"log_history": [1, 2]}', "empty log_history"),
        ('{"log_history": [{"loss": 1}]}', "one set of values and not a curve"),
        ('{"log_history": [{"step": 1,', "not JSON .*cut off"),
        ("", "it is an empty file"),
        ("[]", "its JSON is a list of 0"),
        ("[1, 2]", "no name of what a training logs"),
        ("3", "its JSON is int"),
        ('{"best_metric": null}', r"its JSON is one object \(best_metric\)"),
        ('{"gauges": {}}', "timers with last values .the curves are in its TensorBoard files"),
        ("[" * 100_000, "not JSON|too deeply"),
        ('{"log_history": [{"step": 1, "x": ' + "[" * 3000 + "]" * 3000 + "}]}", "too deeply"),
    ],
)
def test_a_json_document_that_is_no_log_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "trainer_state.json").write_text(text)
    with pytest.raises(UsageError, match=says):
        open_log(tmp_path / "trainer_state.json")


def test_a_list_of_rows_and_rows_in_a_json_file_are_read(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    for name, text in (
        ("list.json", json.dumps(rows, indent=1)),
        ("list.txt", json.dumps(rows)),
        ("lines.json", "\n".join(map(json.dumps, rows))),
    ):
        log = open_log(written(tmp_path / name, text))
        assert log.series("loss")[1].tolist() == [0.5, 0.25]


def test_the_file_logger_of_verl_is_known_as_verls(tmp_path: Path) -> None:
    lines = [
        json.dumps(
            {
                "step": n,
                "data": {
                    "actor/pg_loss": 0.1,
                    "critic/score/mean": n / 2,
                    "training/global_step": n,
                },
            }
        )
        for n in (1, 2, 3)
    ]
    log = open_log(written(tmp_path / "experiment.jsonl", *lines))
    assert log.name == "experiment"
    assert (log.facts["imported"]["library"], log.facts["imported"]["x_axis"]) == (
        "verl",
        "rollout batches",
    )
    reward = RunData(log).get("reward")
    assert reward is not None
    assert (reward.values.tolist(), reward.library) == ([0.5, 1.0, 1.5], "verl")


@pytest.mark.parametrize(
    ("key", "axis"),
    [
        ("training/global_step", "rollout batches"),
        ("train/global_step", "optimizer steps"),
        ("time/total_timesteps", "environment steps"),
        ("Step", None),
        ("iteration", "updates"),
        ("epoch", "epochs"),
    ],
)
def test_the_step_may_have_many_names_and_what_it_counts_is_kept(
    tmp_path: Path, key: str, axis: str | None
) -> None:
    log = read_jsonl(
        written(
            tmp_path / "a.jsonl", json.dumps({key: 4, "x": 1.5}), json.dumps({key: 5, "x": 1.5})
        )
    )
    assert log.newest_step == 5
    assert log.names() == ["x"]
    assert log.facts["imported"].get("x_axis") == axis


def test_rows_that_lack_the_step_never_fall_back_on_another_count(tmp_path: Path) -> None:
    lines = [json.dumps({"step": 100 * n, "epoch": n, "loss": 1.0}) for n in range(3)] + [
        '{"epoch": 2, "eval": 0.5}'
    ]
    with pytest.warns(GradiometerWarning, match=r"1 line without a step \(step\).*line 4"):
        log = read_jsonl(written(tmp_path / "a.jsonl", *lines))
    assert log.names() == ["epoch", "loss"]
    assert log.steps()["step"].tolist() == [0, 100, 200]


def test_a_key_that_is_said_twice_is_named_and_the_last_counts(tmp_path: Path) -> None:
    with pytest.warns(GradiometerWarning, match="said twice in one object, the last counts: loss"):
        log = read_jsonl(written(tmp_path / "a.jsonl", '{"step": 1, "loss": 1, "loss": 2}'))
    assert log.series("loss")[1].tolist() == [2.0]


def test_a_log_whose_steps_go_backwards_says_where(tmp_path: Path) -> None:
    lines = [
        json.dumps({"step": step, "x": place}) for place, step in enumerate((0, 5, 9, 5, 9, 12))
    ]
    with pytest.warns(GradiometerWarning, match="steps fall back from 9 to 5"):
        log = read_jsonl(written(tmp_path / "a.jsonl", *lines))
    assert log.series("x")[0].tolist() == [0, 5, 9, 12]
    assert log.series("x")[1].tolist() == [0.0, 3.0, 4.0, 5.0]
    assert (log.facts["imported"]["returns"], log.facts["imported"]["replaced"]) == ([[9, 5]], 2)


def test_settings_beside_a_log_are_its_config_unless_they_are_a_models(tmp_path: Path) -> None:
    written(tmp_path / "metrics.jsonl", '{"step": 1, "x": 1}')
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "hidden_size": 8}')
    assert "config" not in read_jsonl(tmp_path / "metrics.jsonl").facts
    (tmp_path / "args.json").write_text('{"target_kl": 0.02, "api_key": "abc"}')
    assert read_jsonl(tmp_path / "metrics.jsonl").facts["config"] == {
        "target_kl": 0.02,
        "api_key": "[redacted]",
    }
    (tmp_path / "args.json").write_text("{broken")
    assert "config" not in read_jsonl(tmp_path / "metrics.jsonl").facts


def test_a_document_too_large_to_hold_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradiometer.store.formats.json_files.LARGEST_DOCUMENT", 10)
    with pytest.raises(UsageError, match="one object a line"):
        read_json(written(tmp_path / "a.json", '[{"step": 1, "x": 1}]'))
    monkeypatch.setattr("gradiometer.store.formats.json_files.LONGEST_LINE", 10)
    with pytest.raises(UsageError, match="line 1: longer than"):
        read_jsonl(written(tmp_path / "a.jsonl", '{"step": 1, "x": 1}'))


def test_json_of_another_kind_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="not a run"):
        open_log(written(tmp_path / "x.json", '["a", "b"]'))
