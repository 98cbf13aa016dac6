"""What a training printed, read as a log: the console of each tool, and text that is none."""

from __future__ import annotations

import json
import random
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradiometer.errors import GradiometerWarning, UsageError
from gradiometer.store.formats.console import ConsoleText, promising
from gradiometer.store.importers import open_log
from gradiometer.store.logs import Log

COUNT = 12
REWARDS = [round(0.1 + 0.05 * n, 3) for n in range(COUNT)]
LOSSES = [round(2.0 / (n + 1), 3) for n in range(COUNT)]
PROSE = "The answer is 42, because 6 * 7 = 42. Step 1: we multiply. x = 3, so 4 apples remain."


def read(folder: Path, text: str | bytes, name: str = "train.log") -> Log:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradiometerWarning)
        log = open_log(path)
    assert isinstance(log, Log)
    return log


def verl() -> Iterator[str]:
    yield "\x1b[36m(TaskRunner pid=77)\x1b[0m {'trainer': {'name': 'x', 'save': True,"
    yield "\x1b[36m(TaskRunner pid=77)\x1b[0m              'log': ['console'], 'i': 'j', 'a': 'b', 'c': 'd',"
    yield "\x1b[36m(TaskRunner pid=77)\x1b[0m              'e': 'f', 'g': 'h'}}"
    for n in range(COUNT):
        yield f"\x1b[36m(WorkerDict pid=78)\x1b[0m {PROSE}"
        yield f'\x1b[36m(TaskRunner pid=77)\x1b[0m [response] {{"work": {n}, "play": 2}}'
        yield f'\x1b[36m(TaskRunner pid=77)\x1b[0m [response] {{"work": {n}, "play": 3}}'
        yield (
            f"\x1b[36m(TaskRunner pid=77)\x1b[0m step:{n + 1} - critic/score/mean:{REWARDS[n]}"
            f" - actor/pg_loss:np.float64({LOSSES[n]}) - training/epoch:0"
        )


def trl() -> Iterator[str]:
    yield "trainable params: 20,185,088 || all params: 7,635,801,600 || trainable%: 0.2643"
    for n in range(COUNT):
        at = 10 * (n + 1)
        bar = f"\r {at}%|###    | {at}/120 [00:{at // 4:02}<01:00,  1.5s/it]"
        yield bar + " " * 40 + "\r" + bar
        yield f"{{'loss': {LOSSES[n]}, 'reward': '{REWARDS[n]}', 'kl': nan, 'epoch': {at / 120:.2f}}}"
    yield "{'train_runtime': 12.5, 'train_samples_per_second': 3.0, 'loss': 1.0, 'reward': 9.0}"


def key_values() -> Iterator[str]:
    for n in range(COUNT):
        yield f"2024-01-02 12:30:{n:02},123 - INFO - run.py:12 - warming up the cache of {n} files"
        yield f"2024-01-02 12:30:{n:02},124 - INFO - run.py:34 - step {n + 1}/600 | reward: {REWARDS[n]} | loss={LOSSES[n]}"


def box() -> Iterator[str]:
    for n in range(COUNT):
        yield "----------------------------------"
        yield "| rollout/           |           |"
        yield f"|    ep_rew_mean     | {REWARDS[n]:<9} |"
        yield "| time/              |           |"
        yield f"|    total_timesteps | {2048 * (n + 1):<9} |"
        yield "| train/             |           |"
        yield f"|    loss            | {LOSSES[n]:<9} |"
        yield "----------------------------------"


def spinning_up() -> Iterator[str]:
    for n in range(COUNT):
        yield "---------------------------------------"
        yield f"|             Epoch |{n:>16} |"
        yield f"|      AverageEpRet |{REWARDS[n]:>16} |"
        yield f"|             LossV |{LOSSES[n]:>16} |"
        yield f"| TotalEnvInteracts |{4000 * (n + 1):>16} |"


def rsl_rl() -> Iterator[str]:
    for n in range(COUNT):
        yield "#" * 80
        yield f"{f'Learning iteration {n}/1500':^80}"
        yield ""
        yield f"{'Computation:':>35} 95000 steps/s (collection: 0.9s, learning 0.1s)"
        yield f"{'Mean value_function loss:':>35} {LOSSES[n]:.4f}"
        yield f"{'Mean reward:':>35} {REWARDS[n]:.2f}"
        yield "-" * 80
        yield f"{'Iteration time:':>35} 1.03s"
        yield f"{'ETA:':>35} 00:25:00"


def ml_agents() -> Iterator[str]:
    for n in range(COUNT):
        yield (
            f"[INFO] Walker. Step: {10000 * (n + 1)}. Time Elapsed: {n}.123 s."
            f" Mean Reward: {REWARDS[n]}. Std of Reward: {LOSSES[n]}. Training."
        )


def openrlhf() -> Iterator[str]:
    for n in range(COUNT):
        epoch, at = divmod(n, 6)
        yield (
            f"\rTrain epoch [{epoch + 1}/2]:  10%|#   | {at + 1}/6 [00:1{at}<01:30,  2.0s/it,"
            f" act_loss={LOSSES[n]}, reward={REWARDS[n]}]"
        )


def prime_rl() -> Iterator[str]:
    for n in range(COUNT):
        yield f"02:40:{n:02}    INFO Starting training step {n}"
        yield (
            f"02:40:{n:02} SUCCESS Step {n} | Time: 5.13s | Reward: {REWARDS[n]} | Loss: {LOSSES[n]} |"
            " Throughput: 0 tokens/s | Peak Mem.: 5.1/23.7 GiB (21.4%)"
        )


def nemo_rl() -> Iterator[str]:
    for n in range(COUNT):
        yield f"========================= Step {n + 1}/1000 ========================="
        yield "▶ Generating responses..."
        yield f"  • Loss: {LOSSES[n]}"
        yield f"  • Avg Reward: {REWARDS[n]}"
        yield "  • Total step time: 12.3s"


def episodes() -> Iterator[str]:
    for n in range(COUNT):
        yield f"\rEpisode {100 * (n + 1)}\tAverage Score: {REWARDS[n]}\tLoss: {LOSSES[n]}"


def td3() -> Iterator[str]:
    for n in range(COUNT):
        yield f"Total T: {200 * (n + 1)} Episode Num: {n + 1} Episode T: 200 Reward: {REWARDS[n]}"
        yield "---------------------------------------"
        yield f"Evaluation over 10 episodes: {LOSSES[n]}"


def notebook_table() -> Iterator[str]:
    yield "Step\tTraining Loss\treward"
    for n in range(COUNT):
        yield f"{n + 1}\t{LOSSES[n]:.6f}\t{REWARDS[n]:.6f}"


def status_table() -> Iterator[str]:
    for n in range(COUNT):
        yield "+------------+----------+--------+--------+------+"
        yield "| Trial name | status   |   iter | reward | loss |"
        yield "|------------+----------+--------+--------+------|"
        yield f"| PPO_a_0000 | RUNNING  | {n + 1} | {REWARDS[n]} | {LOSSES[n]} |"


def pretty() -> Iterator[str]:
    for n in range(COUNT):
        yield "{"
        yield f'  "training_step": {n + 1},'
        yield f'  "reward": {REWARDS[n]},'
        yield f'  "loss": {LOSSES[n]}'
        yield "}"


def listed() -> Iterator[str]:
    rows = [{"step": n + 1, "reward": REWARDS[n], "loss": LOSSES[n]} for n in range(COUNT)]
    yield f"history: {rows}"


def block_of_lines() -> Iterator[str]:
    for n in range(COUNT):
        yield f"Iteration: \t {n}"
        yield f"MaxRew: \t {REWARDS[n]}"
        yield f"Loss:     \t {LOSSES[n]}"
        yield "-----------------"


def slime() -> Iterator[str]:
    for n in range(COUNT):
        yield f"[2025-01-02 03:04:05] rollout.py:12 - rollout {n}: {{'rollout/reward': {REWARDS[n]}, 'rollout/loss': {LOSSES[n]}}}"


def acme() -> Iterator[str]:
    for n in range(COUNT):
        yield f"[Learner] Critic Loss = {LOSSES[n]} | Learner Steps = {n + 1} | Return = {REWARDS[n]}"


Tool = Callable[[], Iterator[str]]
TOOLS: list[tuple[Tool, str, str, str, int, int]] = [
    (verl, "critic/score/mean", "actor/pg_loss", "step", 1, 1),
    (trl, "reward", "loss", "progress bar", 10, 10),
    (key_values, "reward", "loss", "step", 1, 1),
    (box, "rollout/ep_rew_mean", "train/loss", "time/total_timesteps", 2048, 2048),
    (spinning_up, "AverageEpRet", "LossV", "TotalEnvInteracts", 4000, 4000),
    (rsl_rl, "Mean reward", "Mean value_function loss", "Learning iteration", 0, 1),
    (ml_agents, "Mean Reward", "Std of Reward", "Step", 10000, 10000),
    (openrlhf, "reward", "act_loss", "progress bar", 1, 1),
    (prime_rl, "Reward", "Loss", "Step", 0, 1),
    (nemo_rl, "Avg Reward", "Loss", "Step", 1, 1),
    (episodes, "Average Score", "Loss", "Episode", 100, 100),
    (td3, "Reward", "Evaluation over 10 episodes", "Episode Num", 1, 1),
    (notebook_table, "reward", "Training Loss", "Step", 1, 1),
    (status_table, "reward", "loss", "iter", 1, 1),
    (pretty, "reward", "loss", "training_step", 1, 1),
    (listed, "reward", "loss", "step", 1, 1),
    (block_of_lines, "MaxRew", "Loss", "Iteration", 0, 1),
    (slime, "rollout/reward", "rollout/loss", "rollout", 0, 1),
    (acme, "Return", "Critic Loss", "Learner Steps", 1, 1),
]


@pytest.mark.parametrize(
    ("tool", "reward", "loss", "step", "first", "each"),
    TOOLS,
    ids=[one[0].__name__ for one in TOOLS],
)
def test_the_console_of_a_tool_is_its_log(
    tool: Tool, reward: str, loss: str, step: str, first: int, each: int, tmp_path: Path
) -> None:
    log = read(tmp_path, "\n".join(tool()) + "\n")
    steps = [first + each * n for n in range(COUNT)]
    assert log.facts["imported"]["step"] == step
    assert log.series(reward)[0].tolist() == steps
    assert log.series(reward)[1] == pytest.approx(REWARDS, abs=0.006)
    assert log.series(loss)[1] == pytest.approx(LOSSES, abs=0.006)
    assert len(log.names()) <= 6


def test_rows_are_counted_where_nothing_counts_them_and_that_is_said(tmp_path: Path) -> None:
    text = "\n".join(f"{{'loss': {loss}, 'reward': 1.0, 'kl': 0.5}}" for loss in LOSSES)
    path = tmp_path / "out.log"
    path.write_text(text)
    with pytest.warns(GradiometerWarning, match="so its rows are counted"):
        log = open_log(path)
    assert log.series("loss")[0].tolist() == list(range(1, COUNT + 1))
    assert log.facts["imported"]["x_axis"] == "rows"


def test_lines_that_came_late_are_spread_over_the_steps_of_the_bar(tmp_path: Path) -> None:
    bars = "".join(f"\r {n}%|#  | {n}/60 [00:01<00:09,  1.0s/it]" for n in range(1, 61))
    rows = "\n".join(f"{{'loss': {loss}, 'reward': 0.5, 'epoch': 0.1}}" for loss in LOSSES)
    log = read(tmp_path, f"{bars}\n{rows}\n")
    assert log.series("loss")[0].tolist() == list(range(5, 61, 5))


def test_of_ranks_that_print_the_same_the_first_is_read(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]: step={n} loss={LOSSES[n] + rank} reward={REWARDS[n]}"
        for n in range(COUNT)
        for rank in range(4)
    ]
    path = tmp_path / "out.log"
    path.write_text("\n".join(lines))
    with pytest.warns(GradiometerWarning, match="4 workers print .*; the first is read"):
        log = open_log(path)
    assert log.series("loss")[1] == pytest.approx(LOSSES)


def test_who_speaks_after_another_ended_goes_on_with_his_log(tmp_path: Path) -> None:
    lines = [
        f"(TaskRunner pid={7 if n < 6 else 9}) step:{n} - actor/pg_loss:{LOSSES[n]} - lr:0.1"
        for n in range(COUNT)
    ]
    assert read(tmp_path, "\n".join(lines)).series("actor/pg_loss")[1] == pytest.approx(LOSSES)


def test_a_block_that_begins_again_is_a_restart(tmp_path: Path) -> None:
    def run(to: int, by: float) -> str:
        return "".join(f"step {n} | reward: {by * n} | loss: {n}\n" for n in range(to))

    log = read(tmp_path, run(30, 1.0) + run(40, 2.0))
    assert log.series("reward")[1].tolist() == [2.0 * n for n in range(40)]
    assert log.facts["imported"]["returns"] == [[29, 0]]


def test_settings_that_every_rank_prints_are_no_series(tmp_path: Path) -> None:
    settings = "  Reward weights: accuracy=0.7, grounding=0.25\n  KL coef: 0.05\n" * 4
    log = read(tmp_path, settings + "\n".join(trl()))
    assert set(log.names()) == {"loss", "reward", "kl", "epoch"}


def test_samples_between_the_rows_are_no_series(tmp_path: Path) -> None:
    samples = "".join(f"  Format score: {n % 3}\n  Total: {n}\nx = {n}\n" for n in range(20))
    log = read(tmp_path, "".join(f"{samples}{line}\n" for line in key_values()))
    assert set(log.names()) == {"loss", "reward"}


def test_a_learning_rate_that_was_rounded_away_is_left_out(tmp_path: Path) -> None:
    text = "\n".join(f"step:{n} - actor/lr:0.000 - critic/score/mean:{n}" for n in range(9))
    assert read(tmp_path, text).names() == ["critic/score/mean"]


def test_a_configuration_is_kept_as_such(tmp_path: Path) -> None:
    log = read(tmp_path, "\n".join(verl()))
    assert log.facts["config"]["trainer"]["name"] == "x"


def test_what_powershell_wrote_is_text(tmp_path: Path) -> None:
    log = read(tmp_path, "\r\n".join(key_values()).encode("utf-16"))
    assert log.series("reward")[1] == pytest.approx(REWARDS)


def test_a_folder_with_a_console_log_is_opened(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("tried lr 0.1\n")
    (tmp_path / "nohup.out").write_text("\n".join(key_values()))
    log = open_log(tmp_path)
    assert log.series("reward")[1] == pytest.approx(REWARDS)


README = textwrap.dedent(
    """\
    # A trainer
    Version 1.2.3, needs python 3.10 and torch >= 2.1. See http://localhost:8080/docs.
    | Model | Accuracy | Size |
    |-------|----------|------|
    | small | 0.71     | 12   |
    | large | 0.75     | 34   |
    | huge  | 0.79     | 56   |
    Train with `--lr 0.1 --steps 100`, or `lr=0.2, steps=200`, or `lr=0.3, seed=3`.
    """
)
CODE = "\n".join(
    f"def step_{n}(x, padding={n % 2}, stride=1):\n    return conv(x, kernel={n % 2}, stride=1)"
    for n in range(30)
)
TRACEBACK = "Traceback (most recent call last):\n" + "\n".join(
    f'  File "/usr/lib/run.py", line {n}, in step\n    loss = fn(x, dim=1)' for n in range(12)
)
PIP = "\n".join(
    f"Collecting package{n}>=1.{n} (from -r req.txt (line {n}))\n  Downloading package{n}-1.{n}.0.whl (12.{n} MB)\n"
    "     |████████████| 12.3 MB 5.1 MB/s eta 0:00:01"
    for n in range(20)
)
SETTINGS = "\n".join(f"optimizer_{n}:\n  lr: 0.001\n  betas: 0.9\n  decay: 0.1" for n in range(9))
DIARY = "\n".join(
    f"On day {n} we saw {n + 2} birds and {n} fish, at 12:3{n % 10}." for n in range(40)
)


@pytest.mark.parametrize(
    "text",
    [README, CODE, TRACEBACK, PIP, SETTINGS, DIARY, "word " * 5000, "\n" * 1000],
    ids=["readme", "code", "traceback", "pip", "settings", "diary", "words", "blank"],
)
def test_text_that_is_no_log_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read(tmp_path, text, "file.txt")


def test_lines_that_are_passed_over_say_nothing() -> None:
    """Array arithmetic picks the lines that are read: with it and without it the rows are one."""
    rng = random.Random(3)
    lines = [line for tool, *_ in TOOLS for line in tool()] + [PROSE, *README.splitlines()] * 9
    for _ in range(20):
        rng.shuffle(lines)
        data = "\n".join(lines).encode()
        picked = set(promising(data).tolist())
        for index, line in enumerate(data.split(b"\n")):
            if index not in picked:
                text = ConsoleText()
                text.feed(line)
                text.end()
                assert not text.rows.count, line


def test_however_text_arrives_the_rows_are_the_same(tmp_path: Path) -> None:
    text = "\n".join(line for tool in (verl, trl, box, key_values) for line in tool()).encode()
    whole, pieces = ConsoleText(), ConsoleText()
    whole.feed(text)
    for line in text.split(b"\n"):
        pieces.feed(line)
    whole.end()
    pieces.end()
    assert whole.rows.columns.names() == pieces.rows.columns.names()
    for name in whole.rows.columns.names():
        one, other = whole.rows.columns.series(name), pieces.rows.columns.series(name)
        assert np.array_equal(one[1], other[1], equal_nan=True)


def boxes_in_a_row(n: int, rng: random.Random) -> str:
    rows = "".join(f"|    {name:<10} | {rng.random():<9.3g} |\n" for name in ("kl", "loss"))
    rule = "-" * 28 + "\n"
    return f"{rule}| time/ | |\n|    total_timesteps | {n} |\n| train/ | |\n{rows}{rule}"


def dated_lines(n: int, rng: random.Random) -> str:
    share = f"{100 * rng.random():.1f}%"
    return f"2024-01-02 12:30:11,123 - INFO - step {n} | loss: {rng.random():.4f} | won={share}\n"


def spoken_lines(n: int, rng: random.Random) -> str:
    return f"(Runner pid=7) step {n} | loss: {rng.random() - 0.5:.4f} | reward={rng.random():.3e}\n"


def dicts_below_a_bar(n: int, rng: random.Random) -> str:
    bar = f"\r{n % 100}%|##   | {n}/1000 [1:00<2:00,  4.5s/it]\n"
    return f"{bar}{{'loss': {rng.random()}, 'reward_0': {rng.random()}, 'reward_1': {n}}}\n"


IN_A_ROW = (boxes_in_a_row, dated_lines, spoken_lines, dicts_below_a_bar)
STRAY = (
    "| odd/ | |\n",
    "|    kl | nan |\n",
    "step 3 | loss: nan | won=1%\n",
    "{'loss': 1}\n",
    "x\n",
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("print_one", IN_A_ROW)
def test_lines_that_are_read_at_once_read_as_one_by_one(
    print_one: Callable[[int, random.Random], str], seed: int
) -> None:
    rng = random.Random(seed)
    steps = [
        print_one(n, rng) + (rng.choice(STRAY) if seed and rng.random() < 0.1 else "")
        for n in range(1, 121)
    ]
    at_once, singly = ConsoleText(), ConsoleText()
    for first in range(0, 120, 40):
        at_once.feed("".join(steps[first : first + 40]).encode())
    for line in "".join(steps).splitlines():
        singly.feed(line.encode())
    at_once.end()
    singly.end()
    found, expected = at_once.rows.columns, singly.rows.columns
    assert found.names() == expected.names()
    for name in found.names():
        for one, other in zip(found.series(name), expected.series(name), strict=True):
            np.testing.assert_array_equal(one, other)


def test_numbers_near_the_largest_are_learned_as_they_are(tmp_path: Path) -> None:
    log = read(
        tmp_path, "".join(f"step {n} | loss: {n}e300 | reward: 0.{n}\n" for n in range(1, 9))
    )
    assert log.series("loss")[1].tolist() == [n * 1e300 for n in range(1, 9)]


def test_rows_beyond_memory_are_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gradiometer.store.formats.console as console

    monkeypatch.setattr(console, "BUFFERED", 7)
    monkeypatch.setattr(console, "AT_ONCE", 100)
    monkeypatch.setattr(console, "ROWS_AT_ONCE", 5)
    log = read(tmp_path, "\n".join(key_values()))
    assert log.series("reward")[1] == pytest.approx(REWARDS)
    assert json.dumps(log.facts["imported"]["step"]) == '"step"'


def test_the_outputs_of_a_notebook_are_its_log(tmp_path: Path) -> None:
    cells = "".join(
        f"<tr>\n <td>{n + 1}</td>\n <td>{LOSSES[n]}</td>\n <td>{REWARDS[n]}</td>\n</tr>"
        for n in range(COUNT)
    )
    table = (
        f"<table><tr>\n<th>Step</th>\n<th>Training Loss</th>\n<th>reward</th>\n</tr>{cells}</table>"
    )
    shown = {"output_type": "display_data", "data": {"text/html": [table], "text/plain": ["x"]}}
    printed = {
        "output_type": "stream",
        "text": [f"Step {n}, eval acc: {n / 50}\n" for n in (1, 6, 12)],
    }
    notebook = {"cells": [{"source": "x = 1"}, {"outputs": [printed]}, {"outputs": [shown]}]}
    log = read(tmp_path, json.dumps(notebook), "train.ipynb")
    assert log.series("reward")[1] == pytest.approx(REWARDS)
    assert log.series("Training Loss")[0].tolist() == list(range(1, COUNT + 1))
    with pytest.raises(UsageError):
        read(tmp_path, json.dumps({"cells": [{"source": "x = 1"}]}), "empty.ipynb")


def test_a_bar_for_each_epoch_counts_on_though_none_draws_its_end(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch {epoch}/4: {5 * at}%|#| {at}/20 [00:01<00:09, 1.0it/s, loss={2 - at / 50:.3f}]\r"
        for epoch in range(1, 5)
        for at in range(20)
    )
    assert read(tmp_path, text).series("loss")[0].tolist() == list(range(80))
