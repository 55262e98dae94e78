"""Somebody else's module, unmodified: two targets of one forecaster. Half a minute, no download.

The Temporal Fusion Transformer of pytorch-forecasting returns one number, the sum of the losses of
its targets. ``split="terms"`` finds them in the graph: the only line that is new is the callback.
Needs ``pip install 'lightning-jd[examples]'``.
"""

import warnings

import numpy as np
import pandas as pd
from lightning.pytorch import Trainer, seed_everything
from pytorch_forecasting import MultiNormalizer, TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data import TorchNormalizer
from pytorch_forecasting.metrics import MAE, RMSE, MultiLoss

from lightning_jd import JacobianDescent, JDReport
from lightning_jd.report import Run

TARGETS = ["sales", "returns"]


def dataset() -> TimeSeriesDataSet:
    """Eight series; returns follow sales with the opposite sign and a delay."""
    noise = np.random.default_rng(0)
    time = np.arange(60)
    frames = []
    for i in range(8):
        sales = np.sin(time / 5 + i) + 0.3 * noise.standard_normal(len(time))
        returns = -np.roll(sales, 3) + 0.3 * noise.standard_normal(len(time))
        frames.append(
            pd.DataFrame({"time": time, "sales": sales, "returns": returns}).assign(series=str(i))
        )
    return TimeSeriesDataSet(
        pd.concat(frames, ignore_index=True),
        time_idx="time",
        target=TARGETS,
        group_ids=["series"],
        max_encoder_length=20,
        max_prediction_length=5,
        time_varying_unknown_reals=TARGETS,
        target_normalizer=MultiNormalizer([TorchNormalizer() for _ in TARGETS]),
    )


def train(aggregator: str) -> Run:
    seed_everything(0, verbose=False)
    data = dataset()
    forecaster = TemporalFusionTransformer.from_dataset(
        data,
        hidden_size=8,
        attention_head_size=1,
        hidden_continuous_size=4,
        output_size=[1, 1],
        loss=MultiLoss([MAE(), RMSE()]),
        learning_rate=0.01,
        log_interval=-1,
    )
    split = {"by": "terms", "names": TARGETS}
    report = JDReport(f"forecasting_{aggregator}", every_n_steps=1)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        gradient_clip_val=0.1,
        callbacks=[JacobianDescent(aggregator, split=split), report],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(forecaster, data.to_dataloader(train=True, batch_size=16, num_workers=0))
    return report.run


if __name__ == "__main__":
    warnings.filterwarnings("ignore")  # of libraries about one another
    plain, settled = train("sum"), train("upgrad")
    for name, run in (("plain training", plain), ("UPGrad", settled)):
        harmed = run.mean("violation_share")
        print(
            f"{name}: {harmed:.1%} of the targets harmed per step, {list(run.members('weight/'))}"
        )
    assert list(settled.members("weight/")) == TARGETS
    assert plain.mean("violation_share") > 0.02, "the sum is expected to harm a target now and then"
    assert settled.mean("violation_share") < 0.01, "UPGrad is expected to harm none"
