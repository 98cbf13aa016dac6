"""Scripts as people write them, run by `gradiometer run`: what it finds in them, and that they stay
what they are."""

from __future__ import annotations

import importlib
import io
import os
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forkserver import Done, python

import gradiometer as gm
from gradiometer.capture.observer import StepObserver
from gradiometer.cli.main import run
from gradiometer.integrations.script import runs as script_runs
from gradiometer.integrations.script.imports import on_import
from gradiometer.integrations.script.printed import Printed, overhear

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"
PLAIN = {
    **os.environ,
    "NO_COLOR": "1",
    "TERM": "dumb",
    "OMP_NUM_THREADS": "1",
    "WANDB_MODE": "offline",
}

HEAD = """
import sys
import torch
from torch import nn

torch.manual_seed(0)

def net(*sizes):
    return nn.Sequential(*[nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])

def step(model, optimizer, clip=None):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()

"""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """A script keeps the process to its end; the tests go on in it."""
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    yield
    sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path


Ran = Callable[..., str]


@pytest.fixture
def ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ran:
    """In this process: what was said on stderr."""

    def go(script: str, *options: str, code: int = 0) -> str:
        (tmp_path / "train.py").write_text(HEAD + script)
        assert (
            run(["run", "--run", "kept", "--budget", "none", "--no-doctor", *options, "train.py"])
            == code
        )
        return capsys.readouterr().err

    return go


def measured(folder: str | Path = "kept", name: str = "grad/all/norm/raw") -> list[int]:
    with gm.load(folder) as kept:
        return [int(step) for step in kept.series(name)[0]]


def names(folder: str | Path = "kept") -> list[str]:
    with gm.load(folder) as kept:
        return kept.names()


def layers(folder: str | Path = "kept") -> set[str]:
    return {
        name.split("/")[1].removeprefix("layer.")
        for name in names(folder)
        if name.startswith("grad/layer.")
    }


def logged(folder: str | Path = "kept") -> set[str]:
    return {
        name for name in names(folder) if not name.startswith(("grad/", "meter/", "optimizer/"))
    }


# Trainers.

SHAPES: dict[str, dict[str, Any]] = {
    "cleanrl_ppo": {
        "steps": 32,
        "layers": {"actor.0", "actor.2", "critic.0", "critic.2"},
        "blocks": {"actor", "critic"},
        "logged": {
            "charts/episodic_return",
            "charts/SPS",
            "losses/entropy",
            "losses/policy_loss",
            "losses/value_loss",
        },
    },
    "sb3_ppo": {
        "steps": 8,
        "layers": {
            "action_net",
            "value_net",
            "mlp_extractor.policy_net.0",
            "mlp_extractor.value_net.0",
        },
        "blocks": {"actor", "critic"},
        "logged": {
            "rollout/ep_rew_mean",
            "train/entropy_loss",
            "train/approx_kl",
            "time/total_timesteps",
        },
    },
    "sb3_sac": {
        "steps": 40,
        "layers": {"actor.mu", "critic.qf0.0", "critic.qf1.0", "log_ent_coef"},
        "blocks": {"actor", "critic"},
        "logged": {
            "train/actor_loss",
            "train/critic_loss",
            "train/ent_coef",
            "rollout/ep_rew_mean",
        },
    },
    "trl_grpo": {
        "steps": 3,
        "layers": {"lm_head", "model.layers.0.self_attn.q_proj"},
        "blocks": set(),
        "logged": {"loss", "reward", "reward_std", "grad_norm", "frac_reward_zero_std", "entropy"},
    },
    "lightning_fit": {
        "steps": 16,
        "layers": {"encoder", "head"},
        "blocks": set(),
        "logged": {"train/loss"},
    },
}


def typed(folder: Path, *words: str) -> Done:
    """A process of its own; trainers and loggers are imported when the script imports them."""
    done = python(*words, env=PLAIN, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def alone(script: str, *arguments: str) -> None:
    """A script without us, in this process: its trainer need not be imported again."""
    sys.argv = [script, *arguments]
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(script, run_name="__main__")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_trainer_is_measured_and_trains_the_same_bits(tmp_path: Path, shape: str) -> None:
    script, expected = str(SCRIPTS / f"{shape}.py"), SHAPES[shape]
    alone(script, "bare.pt")
    told = typed(
        tmp_path,
        "-m",
        "gradiometer",
        "run",
        "--run",
        "kept",
        "--budget",
        "none",
        script,
        "watched.pt",
    ).stderr
    bare, watched = torch.load(tmp_path / "bare.pt"), torch.load(tmp_path / "watched.pt")
    assert bare.keys() == watched.keys()
    assert all(torch.equal(bare[name], watched[name]) for name in bare)
    assert "next: gradiometer doctor kept" in told
    assert "fault" not in told
    kept = tmp_path / "kept"
    assert measured(kept) == list(range(expected["steps"]))
    assert expected["layers"] <= layers(kept)
    assert {f"grad/{block}/norm/raw" for block in expected["blocks"]} <= set(names(kept))
    assert expected["logged"] <= logged(kept)
    assert not gm.load(kept).events("fault")
    assert not gm.load(kept).events("missing")
    if shape != "sb3_sac":  # which clips nothing
        _check_stages(kept)
    if shape == "trl_grpo":
        _check_against_trl(kept)


def _check_stages(kept: Path) -> None:
    """From the very first step: raw before the clip, clipped after it."""
    run = gm.load(kept)
    (steps, raw), (clipped_steps, clipped) = (
        run.series("grad/all/norm/raw"),
        run.series("grad/all/norm/clipped"),
    )
    assert steps.tolist() == clipped_steps.tolist()
    limit = run.series("grad/all/clip/threshold")[1][0]
    assert clipped == pytest.approx(raw.clip(max=limit), rel=1e-3)
    assert (raw > limit).any()


def _check_against_trl(kept: Path) -> None:
    run = gm.load(kept)
    assert run.series("grad/all/norm/raw")[1] == pytest.approx(run.series("grad_norm")[1], rel=1e-4)
    # heard once, from the trainer, and not again from what it prints or hands to other loggers
    assert not [name for name in run.names() if name.startswith("train/")]


# Models and optimizers as they appear.


def test_the_first_step_is_measured_before_and_after_its_clip(ran: Ran) -> None:
    ran(
        "model = net(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3): step(model, optimizer, 0.01)"
    )
    with gm.load("kept") as kept:
        steps, clipped = kept.series("grad/all/norm/clipped")
        assert steps.tolist() == measured() == [0, 1, 2]
        assert clipped == pytest.approx([0.01] * 3, rel=1e-3)
        assert kept.series("grad/all/norm/raw")[1].min() > 0.02


def test_a_first_step_whose_raw_gradient_was_not_seen_is_left_out(ran: Ran) -> None:
    ran(
        "model = net(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for p in model.parameters(): p.grad = torch.ones_like(p)\n"  # no backward
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)\noptimizer.step()\n"
        "for _ in range(2): step(model, optimizer, 0.01)"
    )
    assert measured() == [1, 2]


def test_several_models_have_the_names_of_the_script(ran: Ran) -> None:
    ran(
        "actor, qf1, qf2, qf1_target = net(4, 1), net(4, 1), net(4, 1), net(4, 1)\n"
        "log_alpha = torch.zeros(1, requires_grad=True)\n"
        "opt_q = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()])\n"
        "opt_a, opt_alpha = torch.optim.Adam(actor.parameters()), torch.optim.Adam([log_alpha])\n"
        "for _ in range(4):\n"
        "    x = torch.randn(8, 4)\n"
        "    opt_q.zero_grad(); (qf1(x) + qf2(x)).square().mean().backward(); opt_q.step()\n"
        "    opt_a.zero_grad(); actor(x).square().mean().backward(); opt_a.step()\n"
        "    opt_alpha.zero_grad(); (log_alpha.exp() * 2).sum().backward(); opt_alpha.step()\n"
    )
    assert layers() == {"actor.0", "qf1.0", "qf2.0", "log_alpha"}
    assert {"grad/actor/norm/raw", "grad/critic/norm/raw"} <= set(names())
    assert measured() == [0, 1, 2, 3]


def test_models_without_a_role_are_blocks_of_their_own(ran: Ran) -> None:
    ran(
        "class Twin:\n"
        "    def __init__(self):\n"
        "        self.left, self.right = net(4, 1), net(4, 1)\n"
        "twin = Twin()\n"
        "optimizer = torch.optim.SGD([*twin.left.parameters(), *twin.right.parameters()], 0.1)\n"
        "step(lambda x: twin.left(x) + twin.right(x), optimizer)\n"
    )
    assert {"grad/left/norm/raw", "grad/right/norm/raw"} <= set(names())


def test_a_target_network_is_not_missed(ran: Ran) -> None:
    ran(
        "class Policy(nn.Module):\n    def __init__(self):\n        super().__init__()\n       "
        " self.q_net, self.q_net_target, self.scale = net(4, 1), net(4, 1),"
        " nn.Parameter(torch.ones(1))\n    def forward(self, x):\n        return self.q_net(x) *"
        " self.scale\npolicy = Policy()\noptimizer = torch.optim.SGD([*policy.q_net.parameters(),"
        " policy.scale], 0.1)\nstep(policy, optimizer)\n"
    )
    assert layers() == {"q_net.0", "scale"}
    assert not gm.load("kept").events("missing")


def test_a_second_training_has_a_run_of_its_own(ran: Ran) -> None:
    told = ran(
        "def train(seed):\n"
        "    model = net(4, 1 + seed)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    for _ in range(2 + seed): step(model, optimizer)\n"
        "for seed in range(3): train(seed)\n"
    )
    assert [measured(name) for name in ("kept", "kept-2", "kept-3")] == [
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 3],
    ]
    assert all(f"optimizer steps in {name}." in told for name in ("kept", "kept-2", "kept-3"))


def test_an_optimizer_made_anew_goes_on_with_the_run(ran: Ran) -> None:
    ran(
        "model = net(4, 1)\n"
        "for phase in range(3):\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    for _ in range(2): step(model, optimizer, 0.01)\n"
    )
    assert measured() == measured(name="grad/all/norm/clipped") == list(range(6))
    assert not Path("kept-2").exists()


def test_an_optimizer_that_joins_later_is_of_the_same_run(ran: Ran) -> None:
    ran(
        "actor, critic = net(4, 2), net(4, 1)\n"
        "first = torch.optim.SGD(actor.parameters(), 0.1)\n"
        "for _ in range(2): step(actor, first)\n"
        "second = torch.optim.SGD(critic.parameters(), 0.1)\n"
        "step(actor, first)\n"
        "for _ in range(3): step(actor, first); step(critic, second)\n"
    )
    assert measured() == list(range(7))  # a round ends when both have stepped
    assert layers() == {"actor.0", "critic.0", "0"}
    assert not Path("kept-2").exists()


def test_two_optimizers_of_the_same_parameters_do_not_fight(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    watch = script_runs.watch
    monkeypatch.setattr(
        script_runs, "watch", lambda *a, **k: (opened.append(len(a[1])), watch(*a, **k))[1]
    )
    ran(
        "model = net(4, 1)\none, two = torch.optim.SGD(model.parameters(), 0.1),"
        " torch.optim.Adam(model.parameters())\nfor _ in range(6): step(model, one); step(model,"
        " two)\n"
    )
    assert opened == [1, 1, 2]


def test_optimizers_without_a_constructor_call_are_seen_when_they_step(ran: Ran) -> None:
    ran(
        "import copy, pickle\n"
        "model = net(4, 1)\n"
        "made = torch.optim.SGD(model.parameters(), 0.1)\n"
        "optimizer = copy.copy(made)\n"
        "del made\n"
        "for _ in range(3): step(model, optimizer)\n"
    )
    assert measured()[-1] == 2


def test_a_training_in_a_thread_is_waited_for(ran: Ran) -> None:
    ran(
        "import threading, time\n"
        "def train():\n"
        "    time.sleep(0.3)\n"
        "    model = net(4, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    for _ in range(3): step(model, optimizer)\n"
        "threading.Thread(target=train).start()\n"
    )
    assert measured() == [0, 1, 2]


def test_closures_are_measured(ran: Ran) -> None:
    ran(
        "model = net(4, 1)\n"
        "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)\n"
        "x = torch.randn(8, 4)\n"
        "def closure():\n"
        "    optimizer.zero_grad()\n"
        "    loss = (model(x) - 1).square().mean()\n"
        "    loss.backward()\n"
        "    return loss\n"
        "for _ in range(2): optimizer.step(closure)\n"
    )
    assert measured() == [0, 1]


def test_a_forked_child_is_left_alone(ran: Ran) -> None:
    told = ran(
        "import os\n"
        "model = net(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    step(model, optimizer)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "step(model, optimizer)\n"
    )
    assert told.count("watching") == 1
    assert measured() == [0]


def test_a_script_with_a_meter_of_its_own_keeps_its_own_run_only(ran: Ran) -> None:
    told = ran(
        "import gradiometer as gm\n"
        "model = net(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "with gm.watch(model, optimizer, run='mine', budget=None):\n"
        "    for _ in range(3): step(model, optimizer)\n"
        "print(len(optimizer._optimizer_step_pre_hooks), file=sys.stderr)\n"
    )
    assert (
        "the script has its own meter, which keeps mine: `gradiometer run` records nothing" in told
    )
    assert measured("mine") == [0, 1, 2]
    assert not Path("kept").exists()
    assert "no optimizer stepped" not in told


def test_nothing_of_ours_stays_behind(ran: Ran) -> None:
    optimizers = importlib.import_module("torch.optim.optimizer")
    optimizer, meter, write = torch.optim.Optimizer.__init__, gm.Meter.__init__, sys.stdout.write
    finders = list(sys.meta_path)
    ran(
        "model = net(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\nstep(model,"
        " optimizer)"
    )
    assert (torch.optim.Optimizer.__init__, gm.Meter.__init__) == (optimizer, meter)
    assert "write" not in vars(sys.stdout)
    assert sys.stdout.write == write
    assert sys.meta_path == finders
    assert not optimizers._global_optimizer_pre_hooks
    assert not optimizers._global_optimizer_post_hooks


# Trouble of ours.


def test_a_fault_of_ours_is_told_once_and_the_script_goes_on(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no models today")

    monkeypatch.setattr(script_runs, "models_of", broken)
    told = ran(
        "model = net(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3): step(model, optimizer)\nsys.exit(6)",
        code=6,
    )
    assert told.count("had a fault; the script goes on unwatched") == 1
    assert "no models today" in told
    assert not Path("kept").exists()


def test_what_cannot_be_measured_is_a_line(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise gm.UsageError("DeepSpeed ZeRO keeps gradients in partitions of its own")

    monkeypatch.setattr(script_runs, "watch", refused)
    told = ran(
        "model = net(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\nstep(model,"
        " optimizer)"
    )
    assert told.startswith(
        "gradiometer: the script goes on unwatched: DeepSpeed ZeRO keeps gradients"
    )
    assert "Traceback" not in told


@pytest.mark.filterwarnings("ignore::gradiometer.GradiometerWarning")
def test_a_fault_of_the_meter_leaves_the_run(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, calls = StepObserver.before_step, []

    def failing(self: StepObserver, *args: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("a bug")
        honest(self, *args)

    from gradiometer.capture.hooks import guarded

    monkeypatch.setattr(StepObserver, "before_step", guarded(failing))
    told = ran(
        "model = net(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\nfor _ in"
        " range(5): step(model, optimizer)"
    )
    assert "5 optimizer steps in kept." in told
    assert gm.load("kept").events("fault")


# Scalars.

LOOP = """
model = net(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(4):
    step(model, optimizer)
"""


def points(name: str) -> list[tuple[int, float]]:
    with gm.load("kept") as kept:
        steps, values = kept.series(name)
        return list(zip(steps.tolist(), values.tolist(), strict=True))


def test_tensorboard_is_heard_under_the_names_and_at_the_steps_of_the_script(ran: Ran) -> None:
    pytest.importorskip("torch.utils.tensorboard")
    ran(
        "import numpy as np\nfrom torch.utils.tensorboard import SummaryWriter\nwriter ="
        " SummaryWriter('tb')\nwriter.add_scalar('charts/episodic_return', 1.5, 10)\n"
        + LOOP
        + "    print(f'loss: {i}')\n"
        + "    writer.add_scalar('losses/value_loss', torch.tensor(float(i)), 100 * i)\n"
        + "    writer.add_scalar(tag='charts/episodic_return', scalar_value=np.array([2.0 + i]),"
        " global_step=100 * i)\n"
        + "    writer.add_scalars('both', {'a': i, 'b': float('nan')}, i)\n"
        + "    writer.add_scalar('grad/all/norm/raw', 1e9, i)\n"
        + "writer.close()\n"
    )
    assert points("losses/value_loss") == [(i, i) for i in range(4)]
    assert points("charts/episodic_return") == [(i, 2.0 + i) for i in range(4)]
    assert points("both/a") == [(i, i) for i in range(4)]
    with gm.load("kept") as kept:
        assert kept.series("grad/all/norm/raw")[1].max() < 1e3
        assert kept.steps()["env_steps"].tolist() == [10, 0, 100, 200]  # where a step began
        assert "loss" not in kept.names()  # printed beside a logger
    assert Path("tb").exists()


def test_printed_scalars_are_heard_where_there_is_no_logger(ran: Ran) -> None:
    script = (
        "print('lr=0.1 seed=3')\n"
        + LOOP
        + "    print(f'step {i} reward {i * 2}', end=' ')\n    print(f'accuracy={i}')\n"
    )
    ran(script)
    assert points("reward") == [(i, 2 * i) for i in range(4)]
    assert points("accuracy") == [(i, i) for i in range(4)]
    assert logged() == {"reward", "accuracy"}


def test_nobody_listens_when_told_not_to(ran: Ran) -> None:
    ran(LOOP + "    print(f'reward {i} loss {i}')\n", "--no-stdout")
    assert logged() == set()


def test_wandb_is_heard_however_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import wandb\nrun = wandb.init(project='x')\n"
        + HEAD
        + LOOP
        + "    wandb.log({'reward': i, 'text': 'no', 'table': wandb.Table(columns=['a'])})\n   "
        " run.log({'entropy': 0.5})\n" + "wandb.finish()\n"
    )
    typed(
        tmp_path,
        "-m",
        "gradiometer",
        "run",
        "--run",
        "kept",
        "--budget",
        "none",
        "--no-doctor",
        "train.py",
    )
    assert logged(tmp_path / "kept") == {"reward", "entropy"}
    assert gm.load(tmp_path / "kept").series("reward")[1].tolist() == [0, 1, 2, 3]


def test_scalars_of_another_thread_wait_for_the_step(ran: Ran) -> None:
    pytest.importorskip("torch.utils.tensorboard")
    ran(
        "import threading\nfrom torch.utils.tensorboard import SummaryWriter\nwriter ="
        " SummaryWriter('tb')\n"
        + LOOP
        + "    one = threading.Thread(target=writer.add_scalar, args=('reward', i, i));"
        " one.start(); one.join()\n" + "step(model, optimizer)\nwriter.close()\n"
    )
    assert [value for _, value in points("reward")] == [0, 1, 2, 3]


def heard(*lines: str) -> list[dict[str, float]]:
    """What is taken of lines that are printed twice."""
    taken: list[dict[str, float]] = []
    printed = Printed(taken.append)
    for text in (*lines, *lines):
        printed.hear(f"{text}\n")
    return taken[len(taken) // 2 :]


def test_names_of_several_words_stay_whole_and_norms_apart() -> None:
    line = "Epoch 3 | Value Explained Variance: 0.05  Policy Grad Norm: 0.9  GNN Grad Norm: 0.2"
    assert heard(line) == [
        {"Value Explained Variance": 0.05, "Policy Grad Norm": 0.9, "GNN Grad Norm": 0.2}
    ]


def test_where_in_the_training_a_line_was_printed_is_no_series() -> None:
    assert heard("global_step=400, episodic_return=[21.], time: 3") == [{"episodic_return": 21.0}]


def test_a_line_counts_when_it_comes_again_or_is_known() -> None:
    taken: list[dict[str, float]] = []
    printed = Printed(taken.append)
    table = "| zone/ | |\n|    zeta | {} |\n"
    for text in (
        "size=0.1 seed=3\n",
        "zeta=",
        "1\n",
        "zeta=2\nreward=7\n",
        table.format(3),
        table.format(4),
    ):
        printed.hear(text)
    assert taken == [{"zeta": 2.0}, {"reward": 7.0}, {"zone/zeta": 4.0}]


def test_stdout_stays_the_object_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    heard: list[str] = []
    remove = overhear(heard.append)
    print("one", 2)
    sys.stdout.writelines(["three\n"])
    assert sys.stdout is out
    remove()
    print("four")
    out.flush()
    assert "".join(heard) == "one 2\nthree\n"
    assert out.buffer.getvalue() == b"one 2\nthree\nfour\n"  # type: ignore[attr-defined]


def test_an_import_is_told_once_and_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "arriving.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []

    def arrived(module: Any) -> None:
        told.append(module.__name__)
        module.value = 2

    remove = on_import({"arriving": arrived, "sys": arrived})
    try:
        import arriving  # type: ignore[import-not-found]
        import arriving as again

        assert again.value == arriving.value == 2
        assert told == ["sys", "arriving"]
    finally:
        remove()
        del sys.value  # type: ignore[attr-defined]


AS_TORCHRUN = """
import os, sys
os.environ["RANK"], os.environ["WORLD_SIZE"] = sys.argv[1:3]
del sys.argv[1:3]
"""


def test_ranks_of_torchrun_are_one_run(
    tmp_path: Path, ranks: Callable[..., list[tuple[str, str]]]
) -> None:
    script = (
        "import torch.distributed as dist\n" + HEAD + "dist.init_process_group('gloo')\n"
        "model = nn.parallel.DistributedDataParallel(net(4, 8, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "torch.manual_seed(dist.get_rank())\n"
        "for i in range(4): step(model, optimizer, 0.01)\n"
        "if dist.get_rank() == 0: torch.save(model.state_dict(), sys.argv[1])\n"
    )
    ranks(AS_TORCHRUN + script, 2, "bare.pt")
    (tmp_path / "train.py").write_text(script + "dist.barrier(); dist.destroy_process_group()\n")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ours = (
        "-m",
        "gradiometer",
        "run",
        "-o",
        "kept",
        "--budget",
        "none",
    )  # torchrun trips over --run
    told = typed(tmp_path, *launch, *ours, "train.py", "watched.pt").stderr
    assert told.count("4 optimizer steps in kept.") == 1
    assert measured(tmp_path / "kept") == [0, 1, 2, 3]
    assert layers(tmp_path / "kept") == {"0", "1"}
    bare, watched = torch.load(tmp_path / "bare.pt"), torch.load(tmp_path / "watched.pt")
    assert all(torch.equal(bare[name], watched[name]) for name in bare)
