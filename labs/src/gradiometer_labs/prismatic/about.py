"""What the prismatic lab is, in a list, in the clinic and in experiments; torch-free."""

from __future__ import annotations

from gradiometer_labs.lab import ClinicSetup, ExperimentSettings, Lab, Wording, kinds

__all__ = ["LAB"]

SHORT = ("steps=250", "batch_size=16", "every=4", "val_size=32", "val_every=25")
KINDS = kinds(
    slow=("learning_rate=3e-3",),
    noisy=("batch_size=8",),
    converged=("steps=120", "learning_rate=1e-3"),
    brief=("steps=40",),
)

LAB = Lab(
    name="prismatic",
    summary="a small language model with experts: merged by a Prismatic router, or routed to the "
    "top k of them",
    length_key="steps",
    return_over="the last 10 updates",
    wording=Wording(
        result="log-likelihood per character",
        live="log-likelihood",
        decimals=3,
        counted="sequences",
    ),
    clinic_setups=(
        ClinicSetup(
            name="prismatic",
            lab="prismatic",
            overrides=SHORT,
            kinds=KINDS,
            trained=("steps=700",),
            quick=("router_detached", "none"),
            doubles=("router_detached+nan_layer",),
        ),
        ClinicSetup(
            name="prismatic-topk",
            lab="prismatic",
            overrides=("router_type=topk", *SHORT),
            kinds=KINDS,
            trained=("steps=700",),
        ),
    ),
    experiments=ExperimentSettings(
        terms={"aux": "aux_coef"}, batches=40, searched=15, brief=("val_size=0",)
    ),
)
