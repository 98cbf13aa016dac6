"""Draw the pictures of the docs from real runs: `gradiometer demo --no-serve`, the commands of docs/guide/sparsify.md, then
`python docs/pictures.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import gradiometer as gm

PICTURES = Path(__file__).parent / "pictures"
DEMO = Path("runs/demo")
STUDY = Path("runs")
"""Holds broken, bonus and fixed, made by the commands of docs/guide/sparsify.md."""
CONTROL = 1.0665
"""What those trainings say a random policy earns."""
COLOURS = {"policy": "#3b6fb6", "entropy": "#d1603d"}


def dead_term() -> None:
    """The gradient of each loss term on the actor, healthy and broken, under the returns that do not differ."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 4.6), sharex=True, sharey="row", height_ratios=(1, 1.6))
    for column, name in enumerate(("healthy", "broken")):
        run = gm.load(DEMO / name)
        steps, reward = run.series("reward")
        axes[0, column].plot(steps, reward, color="0.35", linewidth=1.2)
        axes[0, column].set_title({"healthy": "healthy", "broken": "entropy under no_grad"}[name], fontsize=11)
        for term, colour in COLOURS.items():
            series = f"grad/actor/term/{term}/norm"
            if series in run.names():
                at, norms = run.series(series)
                axes[1, column].semilogy(
                    at, np.maximum(norms, 1e-6), ".-", color=colour, label=f"{term} term", markersize=3
                )
        dead = run.events("dead-term")
        if dead:
            axes[1, column].text(
                0.5, 0.25, f"entropy: no gradient path, since step {dead[0].step}",
                transform=axes[1, column].transAxes, ha="center", color=COLOURS["entropy"], fontsize=10,
            )  # fmt: skip
        axes[1, column].set_xlabel("optimizer step")
        axes[1, column].legend(frameon=False, fontsize=9, loc="lower right")
    axes[0, 0].set_ylabel("return")
    axes[1, 0].set_ylabel("gradient norm on the actor")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(PICTURES / "dead_term.png", dpi=130)


def sparsify() -> None:
    """Reward and per-row entropy of the case study: as reported, with the entropy fixed, with the remedies."""
    shown = {
        "broken": ("as reported: entropy under no_grad", "#d1603d"),
        "bonus": ("the entropy fixed, nothing else", "#8a8a8a"),
        "fixed": ("value head, 8 rollouts, 4 problems", "#3b6fb6"),
    }
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    for name, (label, colour) in shown.items():
        run = gm.load(STUDY / name)
        samples = run.facts["config"]["problem"]["num_samples"] // run.facts["config"]["batch_size"]
        for axis, series in zip(axes, ("reward", "entropy"), strict=True):
            values = run.series(series)[1]
            epochs = [values[at : at + samples].mean() for at in range(0, len(values), samples)]
            axis.plot(range(1, len(epochs) + 1), epochs, "o-", color=colour, label=label, markersize=3, linewidth=1.4)
    axes[0].axhline(CONTROL, color="0.6", linestyle=":", linewidth=1)
    axes[0].text(10, CONTROL + 0.03, "random policy", ha="right", color="0.45", fontsize=9)
    axes[1].axhline(np.log(2), color="0.6", linestyle=":", linewidth=1)
    axes[1].text(10, np.log(2) + 0.06, "one pair, in either order", ha="right", color="0.45", fontsize=9)
    for axis, title in zip(axes, ("mean reward", "entropy of a row's choice, nats"), strict=True):
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("epoch")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=9, loc="lower right")
    figure.tight_layout()
    figure.savefig(PICTURES / "sparsify.png", dpi=130)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    dead_term()
    sparsify()
