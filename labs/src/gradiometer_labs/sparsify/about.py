"""What the sparsify lab is, in a list, in the clinic and in experiments; torch-free."""

from __future__ import annotations

from gradiometer_labs.lab import ClinicSetup, ExperimentSettings, Lab, Wording, kinds

__all__ = ["LAB"]

LAB = Lab(
    name="sparsify",
    summary="REINFORCE or PPO on a graph: which k connections of a matrix's rows multigrid should"
    " coarsen along",
    length_key="steps",
    return_over="the last 10 updates",
    wording=Wording(result="mean reward", live="reward", decimals=4, counted="rollouts"),
    clinic_setups=(
        ClinicSetup(
            name="sparsify",
            lab="sparsify",
            overrides=("problem.grid_size=16", "problem.num_samples=64", "steps=60"),
            kinds=kinds(
                slow=("learning_rate=5e-3",),
                noisy=("rollouts=2",),
                converged=("steps=40",),
                brief=("steps=12",),
            ),
            trained=("steps=160",),
            quick=("entropy_no_grad",),
        ),
    ),
    experiments=ExperimentSettings(
        terms={"entropy": "entropy_coef", "value": "vf_coef"},
        batches=40,
        searched=15,
        brief=("val_size=0",),
    ),
)
