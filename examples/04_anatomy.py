"""Which groups teach, and which terms push: gm.anatomy on a small policy of your own, between two
training steps.

`python examples/04_anatomy.py` prints three times the task's gradient by how much a prompt's
rewards vary, beside its shuffled null. Needs `pip install "gradiometer[torch]"`.
"""

import torch

import gradiometer as gm

torch.manual_seed(0)
NUM_PROMPTS, NUM_ROLLOUTS, LENGTH, WORDS = 24, 8, 6, 10
policy = torch.nn.Sequential(
    torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, LENGTH * WORDS)
)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
difficulty = torch.linspace(
    0, 1, NUM_PROMPTS
)  # on an easy prompt every word is right, on a hard one only the word 0


def distribution(prompts: torch.Tensor) -> torch.distributions.Categorical:
    return torch.distributions.Categorical(
        logits=policy(difficulty[prompts, None]).view(-1, LENGTH, WORDS)
    )


def loss_terms(rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Losses of every token [n, LENGTH], not reduced; the first is the task's."""
    words = distribution(rows["prompts"])
    return {
        "task": -rows["advantages"][:, None] * words.log_prob(rows["words"]),
        "entropy": -0.01 * words.entropy(),
    }


def rollouts() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    prompts = torch.arange(NUM_PROMPTS).repeat_interleave(NUM_ROLLOUTS)
    with torch.no_grad():
        words = distribution(prompts).sample()
    rewards = (
        ((words == 0) | (torch.rand(words.shape) > difficulty[prompts][:, None])).float().sum(1)
    )
    means = rewards.view(NUM_PROMPTS, NUM_ROLLOUTS).mean(1).repeat_interleave(NUM_ROLLOUTS)
    return {"prompts": prompts, "words": words, "advantages": rewards - means}, rewards


with gm.watch(policy, optimizer, run="runs/anatomy", overwrite=True) as meter:
    for step in range(60):
        batch, rewards = rollouts()
        if step % 20 == 0:  # changes nothing of the training, and lands in the run at this step
            found = gm.anatomy(
                policy,
                batch,
                loss_terms,
                rewards=rewards,
                groups=batch["prompts"],
                mask=torch.ones(batch["words"].shape),
                num_buckets=3,
                null=True,
                meter=meter,
            )
            for bucket in found.buckets:
                names = (
                    "task",
                    "null/task",
                    "signal_low/task",
                    "signal_high/task",
                )  # an interval may be missing
                norm, shuffled, *interval = (
                    found.metrics.get(f"grad_norm/{bucket}/{name}") for name in names
                )
                signal = [limit and round(limit, 3) for limit in interval]
                print(
                    f"step {step} {bucket}: norm {norm:.3f}, shuffled {shuffled:.3f}, 95 % of"
                    f" signal {signal}"
                )
        optimizer.zero_grad()
        with meter.terms(**{name: loss.mean() for name, loss in loss_terms(batch).items()}) as loss:
            loss.backward()
        optimizer.step()
        meter.log(reward=rewards.mean())
