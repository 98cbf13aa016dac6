"""What the pendulum lab is, in a list, in the clinic and in experiments; torch-free."""

from __future__ import annotations

from gradiometer_labs.lab import ClinicSetup, ExperimentSettings, Lab, kinds

__all__ = ["LAB"]

LAB = Lab(
    name="pendulum",
    summary="SAC swings a pendulum up: a squashed Gaussian actor, twin critics, on Gymnasium's"
    " Pendulum-v1",
    length_key="total_steps",
    return_over="the last 20 episodes",
    clinic_setups=(
        ClinicSetup(
            name="pendulum",
            lab="pendulum",
            overrides=("total_steps=40000",),
            kinds=kinds(
                slow=("learning_rate=1e-3",),
                noisy=("batch_size=32",),
                converged=("total_steps=20000",),
                brief=("total_steps=12000",),
            ),
            trained=("total_steps=51200",),
            quick=("critic_detached",),
        ),
    ),
    experiments=ExperimentSettings(batches=12, searched=6),
)
