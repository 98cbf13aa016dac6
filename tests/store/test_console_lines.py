"""The named numbers of one printed line."""

from __future__ import annotations

import math
import time

import pytest

from gradiometer.store.console_lines import Bar, LineReader, is_counter, plain

LINES: list[tuple[str, dict[str, float]]] = [
    (
        "update 10: mean reward 0.672, loss -0.08",
        {"update": 10, "mean reward": 0.672, "loss": -0.08},
    ),
    ("Iteration 10/200: mean reward 0.5", {"Iteration": 10, "mean reward": 0.5}),
    ("Step 5: loaded 12 shards", {"Step": 5}),
    ("[2025-03-11 10:00:00,1][4] Avg episode reward: [(0, '4.1')]", {"Avg episode reward": 4.1}),
    ("Step 5 | loss nan | reward nan", {"Step": 5, "loss": math.nan, "reward": math.nan}),
    # dicts
    (
        "{'loss': 0.1, 'grad_norm': 2e-3, 'epoch': 0.5}",
        {"loss": 0.1, "grad_norm": 2e-3, "epoch": 0.5},
    ),
    (
        "{'loss': '0.1', 'reward': '-1.5e-05', 'clip': '1', 'name': 'x'}",
        {"loss": 0.1, "reward": -1.5e-5, "clip": 1.0},
    ),
    ("{'a': {'b': 1, 'c': np.float64(0.5)}, 'd': tensor(2.5)}", {"a/b": 1, "a/c": 0.5, "d": 2.5}),
    ('{"reward": -1, "kl": null, "acc": 0.25}', {"reward": -1, "acc": 0.25}),
    ("rollout 3: {'rollout/reward': 0.5}", {"rollout": 3, "rollout/reward": 0.5}),
    ("eval: {'eval_reward': 2.5, 'epoch': 1.0}", {"eval_reward": 2.5, "epoch": 1.0}),
    # verl
    (
        "step:7 - actor/entropy:0.25 - actor/lr:np.float64(1e-06) - val-core/x/mean@1:0.5",
        {"step": 7, "actor/entropy": 0.25, "actor/lr": 1e-6, "val-core/x/mean@1": 0.5},
    ),
    # names and numbers
    ("step 10 reward 3.2 loss=0.1", {"step": 10, "reward": 3.2, "loss": 0.1}),
    ("Epoch 3/10 | loss: 0.25 | acc: 93.5%", {"Epoch": 3, "loss": 0.25, "acc": 0.935}),
    ("Epoch 3 | reward 0.4 | loss: 0.1", {"Epoch": 3, "reward": 0.4, "loss": 0.1}),
    ("[INFO] 2024-01-02 12:30:11 step 12 reward=0.3", {"step": 12, "reward": 0.3}),
    ("2024-01-02 12:30:11,123 - INFO - trainer - step=12 loss=0.3", {"step": 12, "loss": 0.3}),
    ("[12:30:45] INFO train: loss: 0.3, time: 12:30", {"loss": 0.3}),
    ("INFO:root:Loss: 0.3", {"Loss": 0.3}),
    ("[tag_8B_100]   7/100 | loss=-4.6 | acc=62.5%", {"n/100": 7, "loss": -4.6, "acc": 0.625}),
    ("[200/1500] last_reward=+0.05 kind=none", {"n/1500": 200, "last_reward": 0.05}),
    ("Episode 100\tAverage Score: 12.3", {"Episode": 100, "Average Score": 12.3}),
    ("Episode 100\tAverage Score: 12.3\\", {"Episode": 100, "Average Score": 12.3}),
    ("Episode   100\tAvg:  -12.5\tSteps:  900", {"Episode": 100, "Avg": -12.5, "Steps": 900}),
    ("Ep 12, Total Steps 4000, Return 12.5", {"Ep": 12, "Total Steps": 4000, "Return": 12.5}),
    ("[Ep 10] R=3.5 L=200 eps=0.1", {"Ep": 10, "R": 3.5, "L": 200, "eps": 0.1}),
    ("episode: 12/500, score: 33, e: 0.98", {"episode": 12, "score": 33, "e": 0.98}),
    ("global_step=400, episodic_return=[21.]", {"global_step": 400, "episodic_return": 21}),
    ("steps: 12,000, reward: -1,234.5, all: [1.0, 2.0]", {"steps": 12000, "reward": -1234.5}),
    ("Reward at step 100: 0.45", {"step": 100, "Reward": 0.45}),
    ("Evaluation over 10 episodes: 123.5", {"Evaluation over 10 episodes": 123.5}),
    (
        "Eval num_timesteps=500, episode_reward=22.0 +/- 3.1",
        {"Eval num_timesteps": 500, "episode_reward": 22},
    ),
    ("MeanEntropy \t 2.39", {"MeanEntropy": 2.39}),
    ("MeanRew: \t -257.4 +- 63.1", {"MeanRew": -257.4}),
    ("loss: nan, reward: -inf", {"loss": math.nan, "reward": -math.inf}),
    ("loss: 0.1 val: loss: 0.2", {"loss": 0.1, "loss#2": 0.2}),
    (
        "Mean Reward: 1.0  Policy Entropy: 0.3  Value Explained Variance: 0.05",
        {"Mean Reward": 1.0, "Policy Entropy": 0.3, "Value Explained Variance": 0.05},
    ),
    (
        "Epoch 01: Policy Grad Norm = 0.9, GNN Grad Norm = 0.1",
        {"Epoch": 1, "Policy Grad Norm": 0.9, "GNN Grad Norm": 0.1},
    ),
    (
        "Time 08h 36m 42s, Avg Reward 0.06, Avg Ep length 5.2",
        {"Avg Reward": 0.06, "Avg Ep length": 5.2},
    ),
    (
        "Total rewards in episode 7 is 3.5 total number of steps are 36",
        {"episode": 7, "Total rewards": 3.5, "total number of steps": 36},
    ),
    (
        "Last 10 training episodes: mean/median reward 3.5/4.0, min/max reward 1.0/5.0",
        {"mean reward": 3.5, "median reward": 4, "min reward": 1, "max reward": 5},
    ),
    ("[12] reward: 0.5 | loss: 0.25", {"[n]": 12, "reward": 0.5, "loss": 0.25}),
    (
        "51000 / 90000 eps 0.8 |  avgR -0.9 | Loss 9.2e-03",
        {"n/90000": 51000, "eps": 0.8, "avgR": -0.9, "Loss": 9.2e-3},
    ),
    ("eval/return=2.5±1.2 sr=0.5", {"eval/return": 2.5, "sr": 0.5}),
    ("Training epoch 3...", {"Training epoch": 3}),
    # tools
    ("          Learning iteration 12/1500          ", {"Learning iteration": 12}),
    ("             Mean action noise std: 0.99", {"Mean action noise std": 0.99}),
    (
        "fps step: 1234 fps total: 1100 epoch: 5/500 frames: 65536",
        {"fps step": 1234, "fps total": 1100, "epoch": 5, "frames": 65536},
    ),
    (
        "[INFO] Agent. Step: 10000. Time Elapsed: 45.1 s. Mean Reward: 1.2. Std of Reward: 0.3.",
        {"Step": 10000, "Mean Reward": 1.2, "Std of Reward": 0.3},
    ),
    (
        "INFO: run: Walker: Step: 3000. Time Elapsed: 9.5 s Mean Reward: 0.4. Std of Reward: 0.1.",
        {"Step": 3000, "Mean Reward": 0.4, "Std of Reward": 0.1},
    ),
    (
        "Epoch #1: test_reward: 20.5 ± 0.5, best_reward: 21.0 ± 0.0 in #0",
        {"Epoch": 1, "test_reward": 20.5, "best_reward": 21},
    ),
    (
        "02:40:52 SUCCESS Step 4 | Time: 5.1s | Loss: 12.2 | Grad. Norm: 28.2 | Peak Mem.: 5.1/23.7 GiB",
        {"Step": 4, "Loss": 12.2, "Grad. Norm": 28.2},
    ),
    ("========== Step 3/100 ==========", {"Step": 3}),
    ("  • Avg Reward: 0.5", {"Avg Reward": 0.5}),
    ("[Learner] Critic Loss = 0.1 | Learner Steps = 12", {"Critic Loss": 0.1, "Learner Steps": 12}),
    ("\x1b[32mreturn=-5\x1b[0m", {"return": -5}),
    (
        "│ ppo_actor/kl │ 1.5e-03 │ ppo_actor/reward │ 0.25 │",
        {"ppo_actor/kl": 1.5e-3, "ppo_actor/reward": 0.25},
    ),
    ("|             Epoch |               3 |", {"Epoch": 3}),
    # nothing
    ("Loaded 3 files in 2.5 s", {}),
    ("TensorBoard at http://127.0.0.1:6006/", {}),
    ("took 2.5s, size=3MB, v=1.2.3", {}),
    ('  File "/usr/lib/x.py", line 12, in run', {}),
    ("/usr/lib/foo.py:71: FutureWarning: this is old", {}),
    ("memory: 12.3 GiB, ETA: 00:25:00, date: 2024-01-02", {}),
    ("Collecting numpy>=1.2 (from -r requirements.txt (line 1))", {}),
    ("There are 5 apples and 3 oranges in the basket.", {}),
    ("if x == 5 and y >= 3: z += 1", {}),
    ("-----------------------", {}),
    ("", {}),
    ("x=1 " * 2000, {}),
]


@pytest.mark.parametrize(("line", "found"), LINES, ids=[line[:30] for line, _ in LINES])
def test_a_line_says_what_a_reader_sees(line: str, found: dict[str, float]) -> None:
    read = {}
    for one in LineReader().read(plain(line)):
        read.update(one.values)
    assert read == pytest.approx(found, nan_ok=True)


def test_a_box_has_sections_and_a_table_a_line_of_names() -> None:
    lines = LineReader()
    for line in ("| rollout/        |       |", "|    ep_rew_mean  | 22.5  |"):
        read = lines.read(line)
    assert read[0].values == {"rollout/ep_rew_mean": 22.5}
    for line in ("Step | Training Loss | rewards / f", "-- | -- | --", "3 | 0.5 | -1"):
        read = lines.read(line)
    assert read[0].values == {"Step": 3, "Training Loss": 0.5, "rewards/f": -1}
    for line in ("Step\tTraining Loss\treward", "10\t0.25\tNo log"):
        read = lines.read(line)
    assert read[0].values == {"Step": 10, "Training Loss": 0.25}
    for line in ("| Trial | iter | reward |", "|---+---+---|", "| PPO_a | 4 | 2.5 |"):
        read = lines.read(line)
    assert read[0].values == {"iter": 4, "reward": 2.5}


def test_a_bar_says_how_far_it_has_come_and_what_its_postfix_says() -> None:
    line = "Train epoch [1/3]:  10%|#   | 5/50 [00:10<01:30,  2.0s/it, act_loss=0.1, kl=0.01]"
    (read,) = LineReader().read(line)
    assert read.bar == Bar("Train epoch [1/3]", 5, 50)
    assert read.values == {"Train epoch": 1, "act_loss": 0.1, "kl": 0.01}
    (read,) = LineReader().read(" 47% 140/300 [1:22:16<1:30:47, 34.05s/it]{'loss': 0.5, 'kl': 1}")
    assert read.bar == Bar("", 140, 300)
    assert read.values == {"loss": 0.5, "kl": 1.0}


def test_a_dict_may_be_spread_over_lines_with_bars_between() -> None:
    lines = LineReader()
    cut = [
        "{'loss': 0.5, 'rew",
        " 1%|  | 1/90 [00:01<01:30, 1.0s/it]",
        "ard': 2.5, 'entropy': ",
        "0.25}",
    ]
    found = [one for line in cut for one in lines.read(line)]
    assert found[-1].values == {"loss": 0.5, "reward": 2.5, "entropy": 0.25}
    assert lines.read("{'loss': 0.5, 'cut off by a crash") == []
    assert lines.read("{'loss': 0.25, 'reward': 1.0}")[0].values["loss"] == 0.25


def test_a_configuration_is_no_row() -> None:
    text = "{'lr': 1e-3, 'model': 'x', 'trainer': {'name': 'y', 'on': True, 'tags': ['a'], 'b': 'c', 'd': 'e', 'f': 'g'}}"
    (read,) = LineReader().read(text)
    assert not read.values
    assert read.config is not None
    assert read.config["lr"] == 1e-3


def test_what_was_learned_of_a_shape_reads_as_before() -> None:
    def line(n: int) -> str:
        return f"2024-01-02 12:{n:02}:11 INFO step {n}/500 | mean reward: {n / 8} acc={n}% [x{n}.py:{n}]"

    lines = LineReader()
    for n in range(1, 30):
        learned = lines.shapes.match(line(n))
        (read,) = lines.read(line(n))
        assert read.values == pytest.approx({"step": n, "mean reward": n / 8, "acc": n / 100})
        if learned is not None:
            shape, numbers = learned
            assert dict(zip(shape.names, numbers, strict=True)) == pytest.approx(read.values)
    assert learned is not None


@pytest.mark.parametrize(
    "name",
    ["step", "Epoch", "global_step", "Total timesteps", "Learning iteration", "n/100", "env_steps"],
)
def test_counters_are_known(name: str) -> None:
    assert is_counter(name)


@pytest.mark.parametrize(
    "name", ["fps step", "Mean episode length", "eps", "reward", "n/ep", "batch_size"]
)
def test_what_only_sounds_like_a_counter_is_none(name: str) -> None:
    assert not is_counter(name)


@pytest.mark.parametrize(
    "line",
    [
        "a " * 100_000,
        "a:" * 100_000,
        "nan " * 50_000,
        "1," * 100_000,
        "1" * 200_000,
        "=1e" * 60_000,
        "{'" * 80_000,
        "{'a': " * 30_000 + "1" + "}" * 30_000,
        "[" * 200_000,
        "| " * 100_000,
        "|1" * 100_000,
        "\t1" * 100_000,
        "step " * 40_000 + "1",
        "loss=" + "9" * 200_000,
        "x.y/" * 50_000 + ": 1",
        "tensor(" * 30_000,
        "1/2 [00:00<" * 20_000,
        " - step:" * 25_000,
        "\x1b[" * 100_000,
        "(a pid=" * 30_000,
    ],
    ids=lambda line: line[:10],
)
def test_no_line_takes_long(line: str) -> None:
    started = time.process_time()
    lines = LineReader()
    for _ in range(2):
        lines.read(plain(line))
        lines.shapes.match(line)
    assert time.process_time() - started < 1.0
