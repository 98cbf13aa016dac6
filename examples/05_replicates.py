"""Which estimator has less variance, and is that more than chance? gm.replicates on a policy of
your own.

`python examples/05_replicates.py` prints the signal-to-noise ratio with three baselines, and how
much less the gradient varies with two of them than without any. Needs `pip install
"gradiometer[torch]"`.
"""

import torch

import gradiometer as gm
from gradiometer.probes.spread import compared, sentence

torch.manual_seed(0)


class Bandit(torch.nn.Module):
    """An instance is what five arms pay; the policy sees it and pulls sixteen times."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = torch.nn.Linear(5, 5)

    def forward(self, instances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        policy = torch.distributions.Categorical(logits=self.actor(instances))
        arms = policy.sample((16,))
        return (
            instances.gather(1, arms.T) - 6,
            policy.log_prob(arms).T,
        )  # rewards and log-likelihoods, [instances, 16]


policy, instances = Bandit(), torch.randn(128, 5)
studies = [
    gm.replicates(
        policy, instances, algorithm="maxk", options={"k": 4, "baseline": baseline}, controls=False
    )
    for baseline in ("none", "sample_loo_scaled", "subloo")
]
rows = compared(studies, names=["none", "sample_loo_scaled", "subloo"])
for row, study in zip(rows, studies, strict=True):
    low, high = study.record["extended"]["snr"]["low"], study.record["extended"]["snr"]["high"]
    print(f"{row.label}: SNR {low:.2g} to {high:.2g}")
for row in rows[1:]:
    print(sentence(row, rows[0]))
