"""Do two experts learn different things? One merge of their weights per batch, and the gradients
say: never.

`python examples/07_experts.py` prints that the experts' gradients point the same way, and differ
only by how often each is asked. Needs `pip install "gradiometer[torch]"`.
"""

import torch
from torch import nn
from torch.func import functional_call

import gradiometer as gm


class Merged(nn.Module):
    """A router weighs two experts, and the batch goes through the weighted mean of their weights
    (SMEAR)."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One merge for the whole batch."""
        weights = self.router(x).softmax(-1).mean(0)
        first, second = (dict(expert.named_parameters()) for expert in self.experts)
        merged = {name: weights[0] * first[name] + weights[1] * second[name] for name in first}
        return functional_call(self.experts[0], merged, (x,))


torch.manual_seed(0)
model = Merged()
with torch.no_grad():
    model.router.bias.copy_(torch.tensor([1.0, -1.0]))  # the first expert is asked far more often
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

with gm.watch(
    model, optimizer, run="runs/experts", budget=None, overwrite=True
) as meter:  # experts are found by themselves
    for step in range(101):
        x = torch.randn(64, 8)
        optimizer.zero_grad()
        (model(x) - x.flip(-1)).square().mean().backward()
        if step == 100:
            print(
                meter.log_gradient_dynamics()
            )  # the source's names: tiers of each expert, divergence
        optimizer.step()

run = gm.load("runs/experts")
for name in ("1/divergence", "1/cos_to_0", "0/norm_per_weight", "1/norm_per_weight"):
    print(f"expert {name:17} {run.series(f'grad/expert/{name}')[1][-1]:.5f}")
print(
    "The divergence is how often each is asked: divided by routing weights the norms agree, and the"
    " cosine is 1."
)
