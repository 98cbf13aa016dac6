"""Which log of a folder is read, what is said of the others, what is no log at all, and the
commands that open them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from forkserver import Done, python

from gradiometer.errors import GradiometerWarning, NotARun
from gradiometer.metrics import resolve
from gradiometer.records import Row
from gradiometer.store.importers import Log, load, logs_in, open_log
from gradiometer.store.reader import Run
from gradiometer.store.writer import Writer

FIXTURES = Path(__file__).parent.parent / "fixtures"
PLAIN = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "TERMINAL_WIDTH": "200"}


def csv(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("step,loss\n1,1\n2,2\n")
    return path


def jsonl(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"step": 1, "loss": 3}\n')
    return path


def a_run(folder: Path) -> Path:
    with Writer(folder) as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
    return folder


def test_of_several_logs_in_a_folder_the_stated_one_is_read_and_the_others_are_named() -> None:
    with pytest.warns(
        GradiometerWarning,
        match=r"read progress\.csv; ignored: events\.out\.tfevents\.0$",
    ):
        log = open_log(FIXTURES / "sb3_ppo")
    assert log.path.name == "progress.csv"


def test_the_order_of_kinds_is_the_stated_one(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    csv(folder / "any.csv")
    expected = [("any.csv", "csv")]
    jsonl(folder / "verl.jsonl")
    expected.append(("verl.jsonl", "jsonl"))
    shutil.copy(FIXTURES / "cleanrl_ppo" / "events.out.tfevents.0", folder)
    expected.append(("events.out.tfevents.0", "tensorboard"))
    csv(folder / "progress.csv")
    expected.append(("progress.csv", "csv"))
    shutil.copy(FIXTURES / "trl_grpo" / "checkpoint-30" / "trainer_state.json", folder)
    expected.append(("trainer_state.json", "trainer_state"))
    while expected:
        name, kind = expected.pop()
        if expected:
            with pytest.warns(GradiometerWarning, match=f"read {name}"):
                log = open_log(folder)
        else:
            log = open_log(folder)
        assert (log.path.name, log.facts["imported"]["format"]) == (name, kind)
        (folder / name).unlink()
    csv(folder / "progress.csv")
    a_run(folder)
    with load(folder) as run:
        assert isinstance(run, Run)


def test_of_several_runs_in_a_folder_the_longest_is_read_and_each_is_a_run(tmp_path: Path) -> None:
    for seed in range(3):
        rows = [{"step": step, "reward": seed + step} for step in range(10 + seed)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"seed{seed}.jsonl").write_text(lines)
    (tmp_path / "timing.jsonl").write_text('{"step": 1, "wall": 3, "other": 2}\n')
    (tmp_path / "data.jsonl").write_text('{"prompt": "2 + 2", "answer": 4}\n' * 1000)
    with pytest.warns(GradiometerWarning, match=r"read seed2\.jsonl; ignored: .*"):
        log = open_log(tmp_path)
    assert log.newest_step == 11
    seeds = [tmp_path / f"seed{seed}.jsonl" for seed in (2, 1, 0)]
    assert logs_in(tmp_path) == seeds  # and neither the samples nor what has other names


def test_tables_that_count_no_steps_are_no_logs(tmp_path: Path) -> None:
    csv(tmp_path / "run" / "history.csv")
    (tmp_path / "run" / "figure.csv").write_text("x,y\n1,2\n")
    assert open_log(tmp_path / "run").path.name == "history.csv"


def test_a_stray_table_does_not_hide_the_runs_beside_it(tmp_path: Path) -> None:
    jsonl(tmp_path / "notes.jsonl")
    runs = [a_run(tmp_path / name) for name in ("a", "b")]
    assert logs_in(tmp_path) == runs
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    csv(tmp_path / "old" / "results.csv")
    assert logs_in(tmp_path) == [tmp_path], "neither is surer than the other"


def test_a_folder_with_one_log_below_it_is_that_log(tmp_path: Path) -> None:
    csv(tmp_path / "tb" / "PPO_1" / "progress.csv")
    (tmp_path / "tb" / "empty").mkdir()
    log = open_log(tmp_path / "tb")
    assert isinstance(log, Log)
    assert log.name == "PPO_1"


def test_a_folder_of_many_logs_lists_them_and_asks_for_one(tmp_path: Path) -> None:
    for number in range(1, 14):
        csv(tmp_path / "tb" / f"PPO_{number:02}" / "progress.csv")
    a_run(tmp_path / "tb" / "deep" / "er" / "ours")
    with pytest.raises(
        NotARun, match=r"a folder of runs: open one of PPO_01, PPO_02, .* and 4 more"
    ):
        open_log(tmp_path / "tb")
    found = logs_in(tmp_path / "tb")
    assert len(found) == 14
    assert all(open_log(path).newest_step is not None for path in found)
    assert logs_in(tmp_path / "tb" / "PPO_01") == [tmp_path / "tb" / "PPO_01"]
    assert logs_in(tmp_path / "nowhere") == [tmp_path / "nowhere"]


def test_a_folder_without_a_log_says_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(
        NotARun,
        match=r"not a run: no run\.db in it, nor a log; in it: notes\.txt; what can be read is"
        r" .*trainer_state\.json",
    ):
        open_log(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    with pytest.raises(
        NotARun, match=r"model\.safetensors holds weights, which do not say how they were trained"
    ):
        open_log(tmp_path)
    (tmp_path / "new").mkdir()
    with pytest.raises(NotARun, match="nor a log, it is empty"):
        open_log(tmp_path / "new")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file"),
        (b"\x7fELF" + bytes(100), "a binary file"),
        (b"\x1f\x8b\x08" + bytes(20), r"packed \(gzip\) and cannot be unpacked"),
        (b"PK\x03\x04" + bytes(20), r"packed \(zip\) and cannot be unpacked"),
        (
            b"PK\x03\x04" + bytes(20) + b"archive/data.pkl",
            "a checkpoint, .* give the log of that training",
        ),
        (b"some words\nand more\n", "text in which no named numbers come again"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "a binary file"),
    ],
)
def test_a_file_that_is_no_log_is_named_for_what_it_is(
    tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(NotARun, match=f"not a run.*{says}"):
        open_log(tmp_path / "x.bin")


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sb3_ppo", "sb3_dqn", "cleanrl_ppo", "trl_grpo", "tensor_scalars"]
)
def test_import_and_show_open_every_real_log(tmp_path: Path, name: str) -> None:
    done = gradiometer("import", str(FIXTURES / name), "-o", "run", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    shown = gradiometer("show", str(FIXTURES / name), "--json")
    assert shown.returncode == 0, shown.stderr
    assert (
        shown.stderr.count("\n")
        == shown.stderr.count("warning: ")
        == (1 if name.startswith("sb3") else 0)
    )
    series = json.loads(shown.stdout)["series"]
    assert told["series"] == len(series)
    assert told["points"] == sum(one["count"] for one in series)
    kept = json.loads(gradiometer("show", "run", "--json").stdout)
    assert [one["name"] for one in kept["series"]] == [one["name"] for one in series]
    assert kept["facts"]["imported"]["format"] == told["format"]


def test_import_says_whose_names_what_steps_and_what_was_resumed(tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_text(
        "time/total_timesteps,rollout/ep_rew_mean,my/own,note\n10,1,1,a\n20,2,2,\n10,3,1,\n"
    )
    done = gradiometer("import", "progress.csv", "-o", "run")
    assert done.returncode == 0, done.stderr
    for line in (
        "progress.csv: csv, 2 series at 2 steps (10 to 20), 4 values",
        "names of SB3, steps from time/total_timesteps (environment steps)",
        "1 value replaced by a later one",
        "not in the catalogue, kept under their own names: my/own",
        "left out, being neither numbers nor tables: note",
    ):
        assert f"{line}\n" in done.stdout
    assert "warning: progress.csv: steps fall back from 20 to 10" in done.stderr


def test_what_cannot_be_opened_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    csv(tmp_path / "many" / "a" / "progress.csv")
    csv(tmp_path / "many" / "b" / "progress.csv")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    (tmp_path / "x.bin").write_bytes(bytes(1000))
    for path, says in (
        ("many", "open one of a, b"),
        ("x.csv", "no column that counts"),
        ("x.bin", "a binary file"),
    ):
        for command in (("import", path, "-o", "run"), ("show", path)):
            done = gradiometer(*command)
            assert (done.returncode, done.stdout) == (2, "")
            assert says in done.stderr
            assert "Traceback" not in done.stderr
            assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


NAMES = {
    "reward": (
        "rollout/ep_rew_mean",
        "charts/episodic_return",
        "reward",
        "objective/scores",
        "objective/rlhf_reward",
        "critic/score/mean",
        "critic/rewards/mean",
    ),
    "val/reward": ("eval/mean_reward", "eval_reward", "eval/reward"),
    "reward_std": ("reward_std", "rollout/in_group_reward_std"),
    "rewards/<function>/<statistic>": ("rewards/accuracy/mean",),
    "policy_loss": (
        "train/policy_gradient_loss",
        "losses/policy_loss",
        "policy_loss",
        "loss/policy_avg",
        "actor/pg_loss",
    ),
    "value_loss": ("train/value_loss", "losses/value_loss", "loss/value_avg", "critic/vf_loss"),
    "entropy": (
        "train/entropy_loss",
        "losses/entropy",
        "entropy",
        "policy/entropy_avg",
        "objective/entropy",
        "actor/entropy",
    ),
    "approx_kl": (
        "train/approx_kl",
        "losses/approx_kl",
        "losses/old_approx_kl",
        "policy/approxkl_avg",
        "actor/ppo_kl",
    ),
    "kl_ref": ("kl", "objective/kl", "actor/kl_loss", "actor/reward_kl_penalty"),
    "clip_fraction": (
        "train/clip_fraction",
        "losses/clipfrac",
        "clip_ratio/region_mean",
        "policy/clipfrac_avg",
        "actor/pg_clipfrac",
    ),
    "explained_variance": (
        "train/explained_variance",
        "losses/explained_variance",
        "critic/vf_explained_var",
    ),
    "grad/<block>/norm/raw": ("grad_norm", "actor/grad_norm", "critic/grad_norm"),
    "learning_rate": (
        "train/learning_rate",
        "charts/learning_rate",
        "learning_rate",
        "lr",
        "actor/lr",
    ),
    "zero_variance_groups": ("frac_reward_zero_std",),
    "filter_kept_ratio": ("rollout/filter_kept_ratio",),
}
"""The names people already log, by concept."""

ESTIMATORS = {
    "train/approx_kl": "k3",
    "losses/approx_kl": "k3",
    "losses/old_approx_kl": "k1",
    "policy/approxkl_avg": "k2",
    "actor/ppo_kl": "k1",
    "kl": "k3",
    "objective/kl": "k1",
}


@pytest.mark.parametrize("metric", NAMES)
def test_the_names_people_log_are_known_with_their_sign_and_estimator(metric: str) -> None:
    for name in NAMES[metric]:
        found = resolve(name)
        assert found is not None, name
        assert found[0].name == metric
        alias = found[1]
        assert (1 if alias is None else alias.sign) == (-1 if name == "train/entropy_loss" else 1)
        if name in ESTIMATORS:
            assert alias is not None
            assert alias.estimator == ESTIMATORS[name]


def test_what_transformers_writes_with_a_prefix_is_known_too() -> None:
    for name in (
        "reward",
        "entropy",
        "kl",
        "grad_norm",
        "learning_rate",
        "frac_reward_zero_std",
        "clip_ratio/region_mean",
        "objective/kl",
        "policy/approxkl_avg",
        "loss/policy_avg",
        "loss/value_avg",
        "policy/entropy_avg",
    ):
        plain, prefixed = resolve(name), resolve(f"train/{name}")
        assert plain is not None
        assert prefixed is not None, name
        assert prefixed[0] is plain[0]
