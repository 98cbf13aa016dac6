"""The files that tools write, with numbers of our own: what is read of each, and at which steps."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forkserver import python

from gradiometer.errors import GradiometerWarning, NotARun, UsageError
from gradiometer.store.formats import formats
from gradiometer.store.importers import load, logs_in
from gradiometer.store.logs import Log

PLAIN = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def points(log: Any, name: str) -> tuple[list[int], list[float]]:
    steps, values = log.series(name)
    return steps.tolist(), values.tolist()


def imported(log: Any) -> Any:
    return log.facts["imported"]


def monitor(path: Path, began: float, episodes: Sequence[tuple[float, int, float]]) -> Path:
    rows = "".join(f"{ret},{length},{when}\n" for ret, length, when in episodes)
    return written(path, f'#{{"t_start": {began}, "env_id": "CartPole-v1"}}\nr,l,t\n{rows}')


def test_the_steps_of_a_monitor_are_the_lengths_of_its_episodes_added_up(tmp_path: Path) -> None:
    path = monitor(tmp_path / "monitor.csv", 1e9, [(1.5, 10, 0.1), (2.5, 20, 0.2), (-3.0, 5, 0.3)])
    log = load(path)
    assert points(log, "reward") == ([10, 30, 35], [1.5, 2.5, -3.0])
    assert points(log, "episode_length") == ([10, 30, 35], [10.0, 20.0, 5.0])
    assert imported(log)["x_axis"] == "environment steps"
    assert log.steps()["wall_time"].tolist() == pytest.approx([1e9 + 0.1, 1e9 + 0.2, 1e9 + 0.3])


def test_the_monitors_of_one_training_are_put_in_order_of_time(tmp_path: Path) -> None:
    monitor(tmp_path / "0.monitor.csv", 1e9, [(1.0, 10, 1.0), (3.0, 10, 3.0)])
    monitor(tmp_path / "1.monitor.csv", 1e9 + 0.5, [(2.0, 7, 1.0), (4.0, 7, 3.5)])
    np.savez(
        tmp_path / "evaluations.npz",
        timesteps=[20, 40],
        results=[[1.0, 3.0], [5.0, 7.0]],
        ep_lengths=[[4, 4], [6, 8]],
    )
    log = load(tmp_path)
    assert points(log, "reward") == ([10, 17, 27, 34], [1.0, 2.0, 3.0, 4.0])
    assert points(log, "eval/mean_reward") == ([20, 40], [2.0, 6.0])
    assert logs_in(tmp_path) == [tmp_path]


def test_a_monitor_with_extra_columns_a_broken_line_and_a_second_run(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    rows = "".join(f"{n},10,{n},True,x\n" for n in range(5))
    written(path, f'#{{"t_start": 1.0}}\nr,l,t,is_success,note\n{rows}oops\n1,')
    with pytest.warns(GradiometerWarning, match=r"2 lines skipped: no episode"):
        log = load(path)
    assert points(log, "success_rate") == ([10, 20, 30, 40, 50], [1.0] * 5)
    assert isinstance(log, Log)
    assert log.left_out == ("note",)
    head = '#{"t_start": 1.0}\nr,l,t\n'
    again = "".join(f"{n},10,{n}\n" for n in range(8))
    path.write_text(head + again + head + again)
    with pytest.warns(GradiometerWarning, match="2 runs one after another"):
        log = load(path)
    assert log.newest_step == 80


def test_the_oldest_monitors_are_lines_of_json(tmp_path: Path) -> None:
    rows = [{"t_start": 1e9, "env_id": "x"}, *({"r": n, "l": 10, "t": n} for n in range(4))]
    log = load(written(tmp_path / "monitor.json", lines(rows)))
    assert points(log, "reward") == ([10, 20, 30, 40], [0.0, 1.0, 2.0, 3.0])


def test_evaluations_are_read_without_unpickling(tmp_path: Path) -> None:
    results = np.arange(12.0).reshape(4, 3)
    steps = np.array([100, 200, 300, 400])
    path = tmp_path / "evaluations.npz"
    np.savez(path, timesteps=steps, results=results, successes=results > 5)
    log = load(path)
    assert points(log, "eval/mean_reward") == ([100, 200, 300, 400], results.mean(axis=1).tolist())
    assert points(log, "eval/std_reward")[1] == pytest.approx(results.std(axis=1).tolist())
    assert points(log, "eval/success_rate")[1] == (results > 5).mean(axis=1).tolist()
    objects = np.array([[1], [1, 2]], dtype=object)
    np.savez(tmp_path / "objects.npz", a=objects)
    with pytest.raises(NotARun, match=r"holds arrays \(no numbers\)"):
        load(tmp_path / "objects.npz")
    np.savez(tmp_path / "own.npz", episode_rewards=np.arange(5.0), weights=np.zeros((2, 3, 4)))
    with pytest.warns(GradiometerWarning, match="rows are counted"):
        own = load(tmp_path / "own.npz")
    assert points(own, "episode_rewards") == ([0, 1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0, 4.0])
    assert isinstance(own, Log)
    assert own.left_out == ("weights",)


def rllib_row(iteration: int, *, new: bool) -> dict[str, Any]:
    common = {"training_iteration": iteration, "config": {"lr": 1e-4, "gamma": 0.99}, "done": False}
    if new:
        runners = {
            "episode_return_mean": 2.0 * iteration,
            "num_env_steps_sampled_lifetime": 4000 * iteration,
        }
        return {**common, "env_runners": runners, "learners": {"p0": {"entropy": 0.5}}}
    stats = {"learner": {"default_policy": {"learner_stats": {"entropy": 0.5}}}}
    return {
        **common,
        "timesteps_total": 4000 * iteration,
        "episode_reward_mean": 2.0 * iteration,
        "hist_stats": {"episode_reward": [1.0, 2.0]},
        "info": stats,
    }


@pytest.mark.parametrize(
    ("new", "reward", "step"),
    [
        (False, "episode_reward_mean", "timesteps_total"),
        (True, "env_runners/episode_return_mean", "env_runners/num_env_steps_sampled_lifetime"),
    ],
)
def test_rllib_is_read_in_old_and_new_naming(
    tmp_path: Path, new: bool, reward: str, step: str
) -> None:
    rows = [rllib_row(iteration, new=new) for iteration in range(1, 6)]
    written(tmp_path / "result.json", lines(rows))
    written(tmp_path / "progress.csv", "training_iteration,x\n1,2\n2,3\n")
    written(tmp_path / "params.json", '{"lr": 0.0001}')
    with pytest.warns(GradiometerWarning, match=r"read result\.json; ignored: progress\.csv"):
        log = load(tmp_path)
    assert points(log, reward) == ([4000, 8000, 12000, 16000, 20000], [2.0, 4.0, 6.0, 8.0, 10.0])
    assert (imported(log)["step"], imported(log)["library"]) == (step, "RLlib")
    assert log.facts["config"]["gamma"] == 0.99
    assert not any(name.startswith("config") for name in log.names())


def test_spinning_up_baselines_and_acme_are_known_by_their_steps(tmp_path: Path) -> None:
    up = "Epoch\tAverageEpRet\tTotalEnvInteracts\n0\t1.5\t4000\n1\t2.5\t8000\n"
    log = load(written(tmp_path / "up" / "progress.txt", up))
    assert points(log, "AverageEpRet") == ([4000, 8000], [1.5, 2.5])
    assert imported(log)["library"] == "Spinning Up"
    for name in ("total/steps", "misc/total_timesteps", "steps", "TimestepsSoFar", "actor_steps"):
        text = f"rollout/return,{name},episodes\n-3,2000,4\n-2,4000,8\n"
        log = load(written(tmp_path / "progress.csv", text))
        assert points(log, "rollout/return") == ([2000, 4000], [-3.0, -2.0]), name
    log = load(
        written(tmp_path / "progress.json", lines([{"steps": 5, "x": 1}, {"steps": 9, "x": 2}]))
    )
    assert points(log, "x") == ([5, 9], [1.0, 2.0])


def test_llama_factory_and_swift_have_their_own_steps_and_fractional_epochs(tmp_path: Path) -> None:
    factory = [
        {"current_steps": n, "total_steps": 5100, "loss": 1.0 / n, "epoch": 0.002 * n}
        for n in range(1, 6)
    ]
    log = load(written(tmp_path / "trainer_log.jsonl", lines(factory)))
    assert points(log, "loss")[0] == [1, 2, 3, 4, 5]
    swift = [
        {
            "loss": 0.5,
            "epoch": 0.1 * n,
            "global_step/max_steps": f"{10 * n}/600",
            "memory": "55.3GiB",
        }
        for n in range(1, 4)
    ]
    log = load(written(tmp_path / "logging.jsonl", lines(swift)))
    assert points(log, "memory") == ([10, 20, 30], [55.3, 55.3, 55.3])
    assert imported(log)["step"] == "global_step/max_steps"


def test_a_chart_that_wandb_exported_is_the_longest_run_under_plain_names(tmp_path: Path) -> None:
    text = '"Step","a - reward","a - reward__MIN","a - reward__MAX","b - reward"\n'
    text += "".join(f'"{n}","{n}","{n}","{n}","{2 * n if n < 3 else ""}"\n' for n in range(1, 7))
    with pytest.warns(GradiometerWarning, match="2 runs in it; read is a, not b"):
        log = load(written(tmp_path / "wandb_export.csv", text))
    assert log.names() == ["reward"]
    assert points(log, "reward") == ([1, 2, 3, 4, 5, 6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert imported(log)["format"] == "wandb-csv"


def test_a_folder_of_mlflow_is_one_run_with_its_params(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "0" / "abc"
    written(run / "metrics" / "reward", "1700000000000 1.5 0\n1700000001000 2.5 10\n")
    written(run / "metrics" / "train" / "loss", "1700000000000 0.5 0\n1700000001000 nan 10\nhalf")
    written(run / "params" / "lr", "0.001")
    for place in (run, tmp_path / "mlruns"):
        with pytest.warns(GradiometerWarning, match="1 line skipped: no step and value"):
            log = load(place)
        assert log.names() == ["reward", "train/loss"]
        assert points(log, "reward") == ([0, 10], [1.5, 2.5])
        assert log.facts["config"] == {"lr": "0.001"}
        assert log.name == "abc"
    assert load(run / "metrics" / "reward").names() == ["reward"]


def test_the_scalars_of_torchrl_are_one_run(tmp_path: Path) -> None:
    written(tmp_path / "exp" / "scalars" / "reward.csv", "0,1.5\n10,2.5\n")
    written(tmp_path / "exp" / "scalars" / "train" / "loss.csv", "0,3\n")
    log = load(tmp_path / "exp")
    assert (log.names(), log.name) == (["reward", "train/loss"], "exp")
    assert points(log, "reward") == ([0, 10], [1.5, 2.5])


def test_charts_downloaded_from_tensorboard_are_named_by_their_files(tmp_path: Path) -> None:
    head = "Wall time,Step,Value\n"
    for run, tag, count in (
        ("A", "rollout_ep_rew_mean", 5),
        ("A", "my_tag", 3),
        ("B", "my_tag", 2),
    ):
        rows = "".join(f"{1.7e9 + n},{100 * n},{0.5 * n}\n" for n in range(count))
        written(tmp_path / f"run-{run}-tag-{tag}.csv", head + rows)
    with pytest.warns(GradiometerWarning, match=r"read run-A.*, run-A.*ignored: run-B"):
        log = load(tmp_path)
    assert log.names() == ["my_tag", "rollout_ep_rew_mean"]
    assert points(log, "my_tag") == ([0, 100, 200], [0.0, 0.5, 1.0])
    triples = [[1.7e9 + n, 100 * n, 0.5 * n] for n in range(3)]
    written(tmp_path / "reward.json", json.dumps(triples))
    assert points(load(tmp_path / "reward.json"), "reward") == ([0, 100, 200], [0.0, 0.5, 1.0])


ROWS = [{"step": 10 * n, "reward": 0.5 * n, "loss": 1.0} for n in range(1, 5)]
LISTS = {"steps": [10, 20, 30, 40], "reward": [0.5, 1.0, 1.5, 2.0], "loss": [1.0] * 4}


@pytest.mark.parametrize(
    "content",
    [
        ROWS,
        {"history": ROWS},
        {"config": {"lr": 1}, "metrics": {"train": ROWS}},
        LISTS,
        {"run": "a", "history": LISTS},
        {str(row["step"]): {"reward": row["reward"], "loss": 1.0} for row in ROWS},
        {
            "reward": [{"step": r["step"], "reward": r["reward"]} for r in ROWS],
            "x": [{"step": 1, "loss": 2}],
        },
    ],
)
def test_json_is_read_in_every_shape_people_write(tmp_path: Path, content: Any) -> None:
    log = load(written(tmp_path / "x.json", json.dumps(content)))
    assert points(log, "reward") == ([10, 20, 30, 40], [0.5, 1.0, 1.5, 2.0])


def test_rows_one_after_another_and_rows_that_are_cut_off_are_read(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(row, indent=2) for row in ROWS)
    assert points(load(written(tmp_path / "x.json", text)), "loss")[0] == [10, 20, 30, 40]
    for whole in (ROWS, {"a": 1, "log_history": ROWS}):
        cut = json.dumps(whole)[:-20]
        with pytest.warns(GradiometerWarning, match="is cut off at its end: 3 rows read"):
            log = load(written(tmp_path / "x.json", cut))
        assert points(log, "reward") == ([10, 20, 30], [0.5, 1.0, 1.5])


def test_the_seeds_of_a_document_are_runs_and_the_longest_is_read(tmp_path: Path) -> None:
    content = {f"seed{n}": {"rewards": [float(n)] * (5 + n)} for n in range(3)}
    with pytest.warns(GradiometerWarning) as said:
        log = load(written(tmp_path / "x.json", json.dumps(content)))
    assert "3 runs in it; read is seed2, not seed0, seed1" in " ".join(str(w.message) for w in said)
    assert points(log, "rewards") == (list(range(7)), [2.0] * 7)


@pytest.mark.parametrize(
    "text",
    [
        "step reward loss\n10 0.5 1\n20 1.0 1\n30 1.5 1\n40 2.0 1\n",
        "step  reward   loss\n  10   0.5   1\n  20   1.0   1\n  30   1.5   1\n  40   2.0   1\n",
        "| Step | reward | loss |\n|---|---|---|\n| 10 | 0.5 | 1 |\n| 20 | 1.0 | 1 |\n| 30 | 1.5 | 1 |\n| 40 | 2.0 | 1 |\n",
        "step;reward;loss\n10;0,5;1\n20;1,0;1\n30;1,5;1\n40;2,0;1\n",
        'step,reward,loss\n10,0.5,"1,000"\n20,50%,1\nstep,reward,loss\n20,1.0,\n30,1.5,1\n40,2.0,1\n',
        "step\treward\n10/600\t0.5\n20/600\t1.0\n30/600\t1.5\n40/600\t2.0\n",
    ],
)
@pytest.mark.filterwarnings("ignore:.*the names again")
def test_tables_are_read_however_their_cells_are_split(tmp_path: Path, text: str) -> None:
    log = load(written(tmp_path / "table.txt", text))
    assert points(log, "reward") == ([10, 20, 30, 40], [0.5, 1.0, 1.5, 2.0])


def test_a_file_of_numbers_is_named_by_the_file(tmp_path: Path) -> None:
    with pytest.warns(GradiometerWarning, match="rows are counted"):
        log = load(written(tmp_path / "rewards.csv", "1.5\n2.5\n3.5\n"))
    assert points(log, "rewards") == ([0, 1, 2], [1.5, 2.5, 3.5])


def test_a_file_names_the_only_column_beside_the_steps(tmp_path: Path) -> None:
    log = load(written(tmp_path / "rewards.csv", "100,-21\n210,-20\n305,-18\n"))
    assert points(log, "rewards") == ([100, 210, 305], [-21.0, -20.0, -18.0])


def test_the_first_column_of_a_table_without_names_may_count(tmp_path: Path) -> None:
    log = load(written(tmp_path / "log.csv", "0,0,1.0\n1,0,0.9\n1,0,0.9\n2,3,0.8\n"))
    assert points(log, "column 2") == ([0, 1, 2], [0.0, 0.0, 3.0])


def test_a_parquet_table_is_read_where_pyarrow_is(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"_step": [1, 2, 3], "reward": [0.5, None, 1.5], "note": ["a", "b", "c"]})
    parquet.write_table(table, tmp_path / "0000.parquet")
    log = load(tmp_path)
    assert points(log, "reward") == ([1, 3], [0.5, 1.5])
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(NotARun, match="no Parquet table that can be read"):
        load(tmp_path / "x.parquet")


def test_compressed_logs_are_simply_read(tmp_path: Path) -> None:
    text = lines(ROWS).encode()
    for suffix, packed in (
        (".gz", gzip.compress(text)),
        (".bz2", bz2.compress(text)),
        (".xz", lzma.compress(text)),
    ):
        path = tmp_path / suffix[1:] / f"metrics.jsonl{suffix}"
        path.parent.mkdir()
        path.write_bytes(packed)
        for place in (path, path.parent):
            log = load(place)
            assert points(log, "reward") == ([10, 20, 30, 40], [0.5, 1.0, 1.5, 2.0])
            assert log.path == path
        path.write_bytes(packed[:-12])
        with pytest.raises(NotARun, match="cannot be unpacked"):
            load(path)


def test_an_archive_with_a_log_is_read_and_nothing_leaves_its_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.writestr("../../run/metrics.jsonl", lines(ROWS))
        archive.writestr("readme.md", "words")
    with tarfile.open(tmp_path / "one.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("run/metrics.jsonl")
        member.size = len(lines(ROWS))
        tar.addfile(member, io.BytesIO(lines(ROWS).encode()))
    for name in ("one.zip", "one.tar.gz"):
        log = load(tmp_path / name)
        assert points(log, "reward")[0] == [10, 20, 30, 40]
        assert log.path == tmp_path / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.tar.gz", "one.zip"]
    with zipfile.ZipFile(tmp_path / "none.zip", "w") as archive:
        archive.writestr("readme.md", "words")
    with pytest.raises(NotARun, match=r"none\.zip"):
        load(tmp_path / "none.zip")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.txt", "[INFO] hello\n[INFO] world\n", "not a run"),
        ("x.txt", "[2025-01-02 10:11:12,131] [INFO] hello\n[2025-01-02] world\n", "not a run"),
        ("timers.json", '{"name": "root", "gauges": {"a": {"value": 1}}}', "ML-Agents"),
        ("results.csv", "model,acc\na,0.5\nb,0.6\nc,0.7\n", "a table of runs or models"),
        ("houses.csv", "rooms,price\n3,100\n4,200\n", "no name of what a training logs"),
    ],
)
def test_what_is_no_log_says_in_one_line_what_it_looked_like(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        load(written(tmp_path / name, text))
    assert "\n" not in str(caught.value)
    assert "cut off" not in str(caught.value)


def notebook(path: Path, *outputs: dict[str, Any]) -> Path:
    cells = [{"cell_type": "code", "source": [], "outputs": [output]} for output in outputs]
    return written(path, json.dumps({"cells": cells, "nbformat": 4}))


def test_a_notebook_is_the_table_it_drew_or_what_it_printed(tmp_path: Path) -> None:
    head = "<tr><th>Step</th><th>Training Loss</th><th>reward</th></tr>"
    rows = "".join(f"<tr><td>{n}</td><td>0.1</td><td>{n / 2}</td></tr>" for n in range(1, 5))
    table = {"data": {"text/html": ["<div><table>", head, rows, "</table></div>"]}}
    log = load(notebook(tmp_path / "a.ipynb", {"text": ["hello\n"]}, table))
    assert points(log, "reward") == ([1, 2, 3, 4], [0.5, 1.0, 1.5, 2.0])
    printed = {"text": [f"step: {n} reward: {n / 2}\n" for n in range(1, 30)]}
    log = load(notebook(tmp_path / "b.ipynb", printed))
    assert points(log, "reward")[0] == list(range(1, 30))
    assert (log.path.name, log.name) == ("b.ipynb", "b")
    with pytest.raises(UsageError, match="no named numbers"):
        load(notebook(tmp_path / "c.ipynb", {"text": "hello"}))
    with pytest.raises(UsageError, match=r"not a notebook .*cut off"):
        load(written(tmp_path / "d.ipynb", '{"cells": [{'))
    written(tmp_path / "run" / "metrics.jsonl", lines(ROWS))
    notebook(tmp_path / "run" / "a.ipynb", table)
    with pytest.warns(GradiometerWarning, match=r"read metrics\.jsonl; ignored: a\.ipynb"):
        load(tmp_path / "run")


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "log.pkl").write_bytes(pickle.dumps({"reward": [1.0, 2.0]}))
    with pytest.raises(NotARun, match="a pickle, which is not opened because that can run code"):
        load(tmp_path / "log.pkl")


@pytest.mark.slow
def test_the_doctor_judges_a_folder_of_seeds_and_says_one_state_for_scripts(tmp_path: Path) -> None:
    for seed in range(2):
        rows = [{"step": n, "reward": n * 0.01 + seed} for n in range(60 + seed)]
        written(tmp_path / f"seed{seed}.jsonl", lines(rows))
    written(tmp_path / "seed2.jsonl", "{broken\n")
    done = python("-m", "gradiometer", "doctor", str(tmp_path), "--json", env=PLAIN)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert Path(said["run"]).name == "seed1.jsonl"
    assert isinstance(said["findings"], list)
    assert [Path(run["run"]).name for run in said["runs"]] == ["seed1.jsonl", "seed0.jsonl"]


def test_every_format_says_for_the_guide_what_it_reads() -> None:
    told = {known.read for known in formats() if known.reads}
    assert [known.name for known in formats() if known.read not in told] == []


def test_a_log_that_holds_nothing_gives_way_to_one_that_does(tmp_path: Path) -> None:
    run = tmp_path / "run-20250101_000000-abc"
    written(run / "progress.csv", "step,reward\n")
    written(run / "metrics.jsonl", lines(ROWS))
    with pytest.warns(GradiometerWarning, match=r"read metrics\.jsonl; ignored: progress\.csv"):
        assert load(run).newest_step == 40
    (run / "metrics.jsonl").unlink()
    written(run / "files" / "wandb-history.jsonl", lines(ROWS))
    assert load(run).newest_step == 40


def test_logs_below_are_those_of_a_reader(tmp_path: Path) -> None:
    monitor(tmp_path / "a" / "0.monitor.csv", 1e9, [(1.0, 2, 3.0)])
    written(tmp_path / "b" / "metrics.jsonl", lines(ROWS))
    written(tmp_path / "c" / "data.jsonl", lines([{"prompt": "x", "reward": 1}] * 3))
    found = logs_in(tmp_path)
    assert found == [tmp_path / "a", tmp_path / "b"]
    assert all(isinstance(load(path), Log) for path in found)
