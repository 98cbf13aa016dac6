"""Lightning: one callback. A policy learns by REINFORCE which of four actions a state asks for.

`python examples/10_lightning.py` prints the reward, and the gradient norm before and after
Lightning's clip. Needs `pip install "gradiometer[lightning]"`.
"""

import warnings

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import gradiometer as gm
from gradiometer.integrations.lightning import GradiometerCallback

warnings.filterwarnings("ignore", module="lightning")  # its advice for larger trainings


class Policy(pl.LightningModule):
    def __init__(self, lr: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)
        )

    def training_step(self, batch, batch_idx):
        (states,) = batch
        choice = torch.distributions.Categorical(logits=self.net(states))
        actions = choice.sample()
        rewards = (actions == states.argmax(1)).float()
        loss = -((rewards - rewards.mean()) * choice.log_prob(actions)).mean()
        self.log_dict(
            {"reward": rewards.mean(), "entropy": choice.entropy().mean(), "policy_loss": loss}
        )
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


pl.seed_everything(0, verbose=False)
watched = GradiometerCallback(run="runs/lightning", overwrite=True)
trainer = pl.Trainer(
    max_epochs=2,
    gradient_clip_val=0.1,
    callbacks=[watched],
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Policy(), DataLoader(TensorDataset(torch.randn(6400, 4)), batch_size=64))

run = gm.load("runs/lightning")
_, rewards = run.series("reward")
steps, raw = run.series("grad/all/norm/raw")
_, clipped = run.series("grad/all/norm/clipped")
print(
    f"reward {rewards[0]:.2f} -> {rewards[-1]:.2f} in {trainer.global_step} steps, {len(steps)} of"
    " them measured"
)
print(
    f"gradient norm at the end {raw[-1]:.3f}, after the clip {clipped[-1]:.3f}; lr"
    f" {run.facts['config']['lr']}"
)
