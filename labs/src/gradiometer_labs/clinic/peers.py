"""Other public doctors on the clinic's logs, with their findings under our ids.

    pip install rldoctor                       # in an environment of its own
    gradiometer clinic --wards trl --judge "python -m gradiometer_labs.clinic.peers {log}"

`rl-doctor` (rldoctor on PyPI, Apache 2.0) reads the scalar log of a group-relative training. It is
run as its users run it and must be on the PATH. TrainCheck compares traces of PyTorch calls with
those of a correct run of the same script, and reads no log: it cannot be asked here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MEANING", "SEVERITIES", "main", "translated"]

MEANING: Mapping[str, tuple[str, ...]] = {
    "advantage_collapse": ("groups-too-hard", "groups-too-easy"),
    "entropy_collapse": ("entropy-collapse",),
    "reward_hacking": ("reward-hacking",),
    "length_pathology": ("truncation", "length-exploit"),
    "clip_saturation": ("ppo-clip-saturated",),
    "kl_drift": ("kl-runaway",),
    "gradient_pathology": ("gradient-spikes", "exploding-gradient"),
    "reward_composition": ("reward-term-dominates",),
    "plateau": ("reward-plateau",),
}
"""Their detectors, and the findings that say the same; where they do not tell two of ours apart,
both, in favour of them."""
SEVERITIES = ("CRITICAL", "WARNING")
"""What they want to be acted on, the worst first."""


def translated(report: Mapping[str, Any]) -> list[str]:
    """What their report says is wrong, under our ids, the worst first."""
    loud = [each for each in report["findings"] if each["severity"] in SEVERITIES]
    loud.sort(key=lambda each: SEVERITIES.index(each["severity"]))
    return [name for each in loud for name in MEANING.get(each["detector"], ())]


def main(arguments: Sequence[str]) -> None:
    """Ask rl-doctor about one log, and print ids."""
    command = ["rl-doctor", "diagnose", arguments[0], "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:  # a log that it cannot read: nothing found
        return
    print("\n".join(translated(report)))


if __name__ == "__main__":
    main(sys.argv[1:])
