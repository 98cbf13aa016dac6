"""What the tsp lab is, in a list, in the clinic and in experiments; torch-free."""

from __future__ import annotations

from gradiometer_labs.lab import ClinicSetup, ExperimentSettings, Lab, kinds

__all__ = ["LAB"]

SHORT = (
    "num_loc=10",
    "embed_dim=32",
    "num_layers=2",
    "steps=250",
    "learning_rate=1e-3",
    "every=4",
    "val_size=32",
    "val_every=25",
)

LAB = Lab(
    name="tsp",
    summary="POMO, leader reward or max@K teaches an attention model short tours, one rollout from"
    " every city",
    length_key="steps",
    return_over="the last 10 updates",
    clinic_setups=(
        ClinicSetup(
            name="tsp",
            lab="tsp",
            overrides=SHORT,
            kinds=kinds(
                slow=("learning_rate=3e-4",),
                noisy=("batch_size=8",),
                converged=("steps=120", "learning_rate=2e-4"),
                brief=("steps=60",),
            ),
            trained=("steps=800",),
            quick=("encoder_detached", "none"),
            doubles=("wrong_sign+encoder_detached",),
        ),
    ),
    experiments=ExperimentSettings(batches=30, searched=15, brief=("val_size=0", "resume=null")),
)
