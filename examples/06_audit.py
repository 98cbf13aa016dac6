"""Is the loss wired right, before a night is spent on it? gm.audit on a policy with three published
mistakes.

`python examples/06_audit.py` prints the checks that fail, each with what to change, and those that
pass. Needs `pip install "gradiometer[torch]"`.
"""

from types import SimpleNamespace

import torch

import gradiometer as gm

torch.manual_seed(0)
model = torch.nn.ModuleDict(
    {
        "trunk": torch.nn.Linear(4, 32),
        "actor": torch.nn.Linear(32, 6),
        "critic": torch.nn.Linear(32, 1),
    }
)
with torch.no_grad():
    model["actor"].weight.mul_(
        4.0
    )  # a policy with opinions: to a uniform one temperature means nothing
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
states = torch.randn(256, 4)
TEMPERATURE = 0.7
batch = {
    "states": torch.randn(8, 4),
    "actions": torch.randint(0, 6, (8,)),
    "returns": torch.randn(8),
}


def policy_of(states: torch.Tensor, temperature: float = 1.0) -> torch.distributions.Categorical:
    return torch.distributions.Categorical(
        logits=model["actor"](torch.tanh(model["trunk"](states))) / temperature
    )


def terms(rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    policy = policy_of(rows["states"])
    value = model["critic"](torch.tanh(model["trunk"](rows["states"]))).squeeze(-1)
    with torch.no_grad():  # the first mistake
        entropy = policy.entropy().mean()
    advantages = rows["returns"] - value.detach()
    return {
        "policy": -(policy.log_prob(rows["actions"]) * advantages).mean(),
        "value": 0.5 * (value - rows["returns"]).square().mean(),
        "entropy": -0.01 * entropy,
    }


def loss_of(rows: dict[str, torch.Tensor], parts: int) -> torch.Tensor:
    """What goes backward for one of `parts` micro-batches."""
    loss = sum(terms(rows).values()) / parts
    return loss / parts  # the second mistake: the trainer has divided already


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    actions = policy_of(states, TEMPERATURE).sample()
    return actions, policy_of(states).log_prob(actions)  # the third mistake: of another temperature


class Baseline:
    """A moving average of rewards."""

    mean = 0.0

    def value(self) -> float:
        return self.mean

    def update(self, reward: float) -> None:
        self.mean = 0.95 * self.mean + 0.05 * float(reward)


with gm.watch(model, optimizer, run="runs/audit", overwrite=True) as meter:
    found = gm.audit(
        terms,
        model,
        optimizer,
        batch=batch,
        policy=SimpleNamespace(
            sample=sample, entropy=lambda: policy_of(states).entropy(), num_actions=6
        ),
        micro_batches=loss_of,
        baseline=Baseline(),
        meter=meter,  # kept in the run, where the doctor reads it
    )
print(found)
