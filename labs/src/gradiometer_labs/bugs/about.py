"""What the bugs lab is, in a list, in the clinic and in experiments; torch-free."""

from __future__ import annotations

from gradiometer_labs.lab import ClinicSetup, Lab, Wording, kinds

__all__ = ["LAB"]

LAB = Lab(
    name="bugs",
    summary="GRPO in plain torch on small verifiable questions, with bugs that other people's "
    "trainers once had",
    length_key="steps",
    return_over="the last 10 rollouts",
    wording=Wording(result="mean reward", live="reward", decimals=3, counted="answers"),
    clinic_setups=(
        ClinicSetup(
            name="bugs",
            lab="bugs",
            overrides=("steps=100",),
            kinds=kinds(
                slow=("learning_rate=3e-4",),
                noisy=("num_prompts=4",),
                converged=("steps=60",),
                brief=("steps=20",),
            ),
            trained=("steps=250",),
            quick=("trl_5595",),
        ),
    ),
)
