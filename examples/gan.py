"""Manual optimization with two optimizers: a GAN whose players have several objectives each.

The generator has to fool the discriminator and to match the mean of the data; the discriminator has
to recognise real and generated samples. ``manual_backward`` takes the losses of either as a dict.
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_jd import JacobianDescent

CENTRE = torch.tensor([2.0, -1.0])


class GAN(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        (real,) = batch
        for_generator, for_discriminator = self.optimizers()
        fake = self.generator(torch.randn(len(real), 4))

        self.toggle_optimizer(for_discriminator)
        on_real = self.discriminator(real)
        on_fake = self.discriminator(fake.detach())
        for_discriminator.zero_grad()
        self.manual_backward(
            {
                "real": F.binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real)),
                "fake": F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake)),
            }
        )
        for_discriminator.step()
        self.untoggle_optimizer(for_discriminator)

        self.toggle_optimizer(for_generator)
        fake = self.generator(torch.randn(len(real), 4))
        verdict = self.discriminator(fake)
        for_generator.zero_grad()
        self.manual_backward(
            {
                "fool": F.binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict)),
                "match": (fake.mean(dim=0) - real.mean(dim=0)).square().sum(),
            }
        )
        for_generator.step()
        self.untoggle_optimizer(for_generator)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.generator.parameters(), lr=0.005),
            torch.optim.Adam(self.discriminator.parameters(), lr=0.005),
        ]


def distance_to_the_data(module: GAN) -> float:
    with torch.no_grad():
        return (module.generator(torch.randn(1000, 4)).mean(dim=0) - CENTRE).norm().item()


if __name__ == "__main__":
    seed_everything(0, verbose=False)
    data = TensorDataset(CENTRE + 0.5 * torch.randn(512, 2))
    module = GAN()
    before = distance_to_the_data(module)
    trainer = Trainer(
        callbacks=[JacobianDescent("upgrad")],
        accelerator="cpu",
        max_epochs=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(data, batch_size=64))
    after = distance_to_the_data(module)
    print(f"distance of the generated mean to that of the data: {before:.2f} -> {after:.2f}")
    assert after < before / 4
