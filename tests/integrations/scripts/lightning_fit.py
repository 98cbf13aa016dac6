"""Lightning's automatic optimisation: a closure, with a clip in it."""

import sys

import lightning
import torch
from torch import nn


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 8)
        self.head = nn.Linear(8, 1)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.head(torch.tanh(self.encoder(x))), y)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    lightning.seed_everything(0)
    pairs = torch.utils.data.TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=2,
        gradient_clip_val=0.1,
        log_every_n_steps=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(pairs, batch_size=8))
    torch.save(module.state_dict(), sys.argv[1])
