"""Train the runs of docs/gallery.md, draw their curves and write the page.

`python docs/gallery.py` trains what is not in runs/gallery yet (a quarter of an hour on one core),
and asks the doctor about every run. `python docs/gallery.py NAME ...` trains only those that are
named. Pictures and page are made of real runs; the prose of each case stands here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

import gradiometer as gm
from gradiometer.demo import BROADCAST, script
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.report import as_text

DOCS = Path(__file__).parent
PROGRAMS = DOCS.parent / "labs" / "programs"
RUNS = Path("runs/gallery")
PAGE, PICTURES = DOCS / "gallery.md", DOCS / "pictures" / "gallery"
WIDTH = 96
HEALTHY, BROKEN, SIGN = "#8A94A3", "#D1491B", "#B3261E"


class Case(NamedTuple):
    """A training that was broken on purpose."""

    name: str
    title: str
    source: str
    """`demo`, a program of labs/programs, or a lab."""
    bug: str
    """Of a program its name in bugs.toml, of a lab its fault."""
    about: str
    more: tuple[str, ...] = ()
    """Arguments of the script or settings of the lab."""

    @property
    def is_lab(self) -> bool:
        """Whether `gradiometer train` trains it."""
        return self.source != "demo" and not (PROGRAMS / f"{self.source}.py").exists()

    @property
    def run(self) -> Path:
        """The broken run."""
        return RUNS / self.name

    @property
    def healthy(self) -> Path:
        """The same training without the bug; cases of one program share it."""
        return RUNS / f"healthy-{self.source}"


CASES = (
    Case(
        "broadcast",
        "PPO whose policy gradient averages to nothing",
        "demo",
        "",
        "The log-probabilities keep the shape (N, 1), the advantages have (N,). torch multiplies"
        " them to an N × N table without an error, so every action is credited with every"
        " advantage. Loss, entropy and gradient norm look normal.",
    ),
    Case(
        "actor-sign",
        "TD3 whose actor minimises Q",
        "td3_steps",
        "actor_sign",
        "One minus sign is missing in the actor's loss. The critic learns well, and the actor uses"
        " it to find the worst action. The graph shows the sign, so the finding is proved within"
        " the first steps of the actor.",
        ("--total-timesteps", "4000"),
    ),
    Case(
        "group-order",
        "GRPO whose groups are mixed up",
        "grpo_tokens",
        "groups_cut_wrongly",
        "`repeat` instead of `repeat_interleave`: the answers that are compared with each other"
        " belong to different prompts. Gradiometer computes the advantages again from the rewards,"
        " with the right formula and with each known mistake, and compares them with the update."
        " This task is easy enough to be learned anyway, so the reward does not show the fault.",
    ),
    Case(
        "wrong-observation",
        "DQN that stores the observation after the action",
        "dqn_agent",
        "next_is_now",
        "The replay memory receives `next_obs` twice. The network learns values of states in which"
        " the action was never taken.",
    ),
    Case(
        "learning-rate",
        "PPO with a learning rate that is too high",
        "cartpole",
        "lr_high",
        "No line of the code is wrong here, only a number. The policy collapses to one action after"
        " the first updates; the dashed line is the step of the KL peak.",
        ("total_steps=20000",),
    ),
    Case(
        "groups",
        "GRPO whose rewards never differ",
        "grpo_tokens",
        "reward_constant",
        "All answers to a prompt get the same reward, so every advantage is 0, and so is every"
        " gradient.",
    ),
    Case(
        "optimizer",
        "A critic that is in no optimizer",
        "episodes_gae",
        "critic_without_optimizer",
        "The second optimizer was given the parameters of the actor again. The critic has a"
        " gradient at every step and never moves. The actor still learns here, with a detour.",
    ),
    Case(
        "nan",
        "A NaN, and the layer it came from",
        "tsp",
        "nan_layer",
        "The gradient of one layer is NaN. Its weights are lost after one step, and the tours stay"
        " random. The finding names the tensor and the loss term in which the NaN started.",
        ("num_loc=10", "embed_dim=32", "num_layers=2", "steps=250", "learning_rate=1e-3"),
    ),
)


def main(names: list[str]) -> None:
    """Train what is missing; then pictures and page, if all of it is there."""
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        raise SystemExit(f"no case is called {', '.join(sorted(unknown))}")
    for case in CASES:
        if not names or case.name in names:
            train(case, case.healthy, broken=False)
            train(case, case.run, broken=True)
    if any(not (case.run / "trained").exists() for case in CASES):
        print("the page is written when all cases are trained")
        return
    plt.rcParams |= {"svg.hashsalt": "gallery", "svg.fonttype": "none", "font.size": 9}
    PICTURES.mkdir(parents=True, exist_ok=True)
    parts = [section(case) for case in CASES]
    PAGE.write_text(INTRO + "".join(parts), encoding="utf-8")
    print(f"wrote {PAGE} and {len(CASES)} pictures in {PICTURES}")


def train(case: Case, folder: Path, *, broken: bool) -> None:
    """One run, unless it is there."""
    if (folder / "trained").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)  # of a training that was stopped
    folder.mkdir(parents=True)
    run = folder / "run"
    if case.is_lab:
        fault = [f"fault={case.bug}"] if broken else []
        words = ["train", case.source, *fault, *case.more, f"run={run}"]
    else:
        file = folder / f"{case.source if case.source != 'demo' else 'train'}.py"
        file.write_text(program(case, broken=broken), encoding="utf-8")
        words = ["run", "--run", str(run), "--no-doctor", str(file), *case.more]
    print(" ".join(["gradiometer", *words]), flush=True)
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "gradiometer", *words]
        subprocess.run(command, stdout=output, stderr=output, env=environment, check=True)
    (folder / "trained").touch()


def change(case: Case) -> tuple[str, str]:
    """The right and the wrong text of a program."""
    if case.source == "demo":
        return BROADCAST.right, BROADCAST.wrong
    bug = tomllib.loads((PROGRAMS / "bugs.toml").read_text(encoding="utf-8"))[case.source][case.bug]
    return bug["old"], bug["new"]


def program(case: Case, *, broken: bool) -> str:
    """The script, as it is or with its bug."""
    file = PROGRAMS / f"{case.source}.py"
    text = script() if case.source == "demo" else file.read_text(encoding="utf-8")
    return text.replace(*change(case)) if broken else text


def changed_lines(case: Case) -> str:
    """The lines that differ, as a diff shows them."""
    right, wrong = change(case)
    text = script() if case.source == "demo" else program(case, broken=False)
    at = text.index(right)
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at + len(right.rstrip("\n")))
    before = text[start:end]
    after = text[start:at] + wrong + text[at + len(right) : max(end, at + len(right))]
    both = [("-", before), ("+", after)]
    common = min(len(line) - len(line.lstrip()) for _, line in both if line.strip())
    return "\n".join(
        f"{mark} {line[common:]}"
        for mark, lines in both
        for line in lines.split("\n")
        if line.strip()
    )


def section(case: Case) -> str:
    """The case on the page; its picture is drawn by the way."""
    with gm.load(case.run / "run") as run, gm.load(case.healthy / "run") as healthy:
        diagnosis = gm.diagnose(run)
        draw(case, diagnosis, gm.diagnose(healthy))
    if case.is_lab:
        how = f"```bash\ngradiometer train {case.source} fault={case.bug} {' '.join(case.more)}"
        how = f"{how.rstrip()}\n```"
    else:
        how = f"```diff\n{changed_lines(case)}\n```"
    first = diagnosis.findings[0]
    picture = f"![{case.title}: {first.id}](pictures/gallery/{case.name}.svg)"
    about = textwrap.fill(case.about, 130)
    said = f"```text\n{report(diagnosis, case)}\n```\n"
    return "\n" + "\n\n".join([f"## {case.title}", about, how, picture, said])


def report(diagnosis: Diagnosis, case: Case) -> str:
    """What the doctor prints, up to the end of its first finding."""
    lines = as_text(diagnosis, width=WIDTH).split("\n")
    blank = [at for at, line in enumerate(lines) if not line]
    kept = [line for line in lines[: blank[1]] if line.strip() != str(diagnosis.run)]
    return "\n".join([f"$ gradiometer doctor runs/{case.name}", *kept, "..."])


def draw(case: Case, diagnosis: Diagnosis, healthy: Diagnosis) -> None:
    """The outcome of both runs, and since when the first finding holds."""
    figure, axis = plt.subplots(figsize=(7.2, 2.3), layout="constrained")
    for found, colour, label in ((healthy, HEALTHY, "healthy"), (diagnosis, BROKEN, "broken")):
        outcome = found.outcome
        assert outcome is not None, (case.name, label)
        curve = found.curves[outcome.series]
        axis.plot(curve.steps, curve.mean, color=colour, linewidth=1.3, label=label)
    mark(axis, diagnosis)
    axis.set(xlabel="optimizer step", ylabel=diagnosis.outcome.series if diagnosis.outcome else "")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 0.97), fontsize=8)
    figure.savefig(PICTURES / f"{case.name}.svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def mark(axis: Axes, diagnosis: Diagnosis) -> None:
    """The first finding, where it begins."""
    first = diagnosis.findings[0]
    if first.since_step is None:
        return
    axis.axvline(first.since_step, color=SIGN, linewidth=1, linestyle=(0, (4, 3)))
    left, right = axis.get_xlim()
    late = (first.since_step - left) / (right - left) > 0.4
    axis.annotate(
        f"{first.id}, step {first.since_step}",
        (first.since_step, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if late else 4, 2),
        textcoords="offset points",
        ha="right" if late else "left",
        color=SIGN,
        fontsize=8.5,
    )


INTRO = """<!-- Made by docs/gallery.py; edit that, not this page. -->

# Gallery

Eight trainings with one fault each. Every run is real, trained on a CPU, and every text is what
`gradiometer doctor` printed, up to the end of the first finding. The grey curve is the same
training without the fault. The dashed line is the first step at which the finding holds. `python
docs/gallery.py` trains all of them again (about fifteen minutes) and writes this page.

These cases were chosen, after looking, to show different kinds of findings. Two other bugs of
`labs/programs/ppo_gaussian.py` were tried for this page and dropped because the doctor found
nothing wrong: `truncation_as_end`, and `traces_not_cut`, which [replay](guide/replay.md) names
since rollouts of a short training are kept whatever recording them costs. [The clinic](clinic.md)
counts how often the doctor is right, and where it fails.
"""


if __name__ == "__main__":
    main(sys.argv[1:])
