"""Models of other libraries, trained by their own interfaces, unmodified.

With the mean of the objectives (or their sum), training is that without the callback. With UPGrad,
the rows differ, and all come from one pass (or one per term).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd.surfaces import JacobianDescent

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
#: Trains with the arguments of a Trainer, and returns the module.
Training = Callable[[dict[str, Any]], nn.Module]


def chemprop(trainer: dict[str, Any]) -> nn.Module:
    import lightning.pytorch as L
    from chemprop import data, models
    from chemprop import nn as parts

    molecules = ["CCO", "CCC", "CCN", "c1ccccc1", "CC(=O)O", "CCCC", "OCCO", "CNC"]
    points = [data.MoleculeDatapoint.from_smi(m, [float(len(m))]) for m in molecules]
    loader = data.build_dataloader(data.MoleculeDataset(points), batch_size=4, shuffle=False)
    passing = parts.BondMessagePassing(d_h=16)
    predictor = parts.RegressionFFN(input_dim=16, hidden_dim=8)
    module = models.MPNN(passing, parts.MeanAggregation(), predictor)
    L.Trainer(max_epochs=2, enable_checkpointing=False, **trainer).fit(module, loader)
    return module


def gluonts(trainer: dict[str, Any]) -> nn.Module:
    from gluonts.dataset.pandas import PandasDataset
    from gluonts.torch import SimpleFeedForwardEstimator

    data = PandasDataset({str(k): series(k).set_index("ds")["y"] for k in range(3)}, freq="D")
    estimator = SimpleFeedForwardEstimator(
        prediction_length=4,
        context_length=12,
        batch_size=8,
        num_batches_per_epoch=3,
        trainer_kwargs={"max_epochs": 1, **trainer},
    )
    return estimator.train_model(data).trained_net


def darts(trainer: dict[str, Any]) -> nn.Module:
    from darts import TimeSeries
    from darts.models import NBEATSModel

    model = NBEATSModel(
        12, 4, num_stacks=1, num_blocks=1, layer_widths=16, n_epochs=1, batch_size=16,
        random_state=0, pl_trainer_kwargs=trainer,
    )  # fmt: skip
    model.fit(TimeSeries.from_dataframe(series(0), "ds", "y").astype("float32"))
    return model.model


def pytorch_tabular(trainer: dict[str, Any]) -> nn.Module:
    import pandas as pd
    from pytorch_tabular import TabularModel
    from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
    from pytorch_tabular.models import CategoryEmbeddingModelConfig

    draw = torch.Generator().manual_seed(0)
    table = pd.DataFrame(torch.randn(64, 4, generator=draw).numpy(), columns=list("abcd"))
    model = TabularModel(
        data_config=DataConfig(target=["d"], continuous_cols=list("abc"), num_workers=0),
        model_config=CategoryEmbeddingModelConfig(
            task="regression", layers="16-8", use_batch_norm=False
        ),
        optimizer_config=OptimizerConfig(),
        trainer_config=TrainerConfig(
            batch_size=16, max_epochs=1, accelerator="cpu", progress_bar="none", seed=0,
            early_stopping=None, checkpoints=None, load_best=False,
        ),
        verbose=False,
    )  # fmt: skip
    model.fit(table, validation=table, callbacks=trainer["callbacks"])
    return model.model


def neuralforecast(trainer: dict[str, Any]) -> nn.Module:
    import pandas as pd
    from neuralforecast import NeuralForecast
    from neuralforecast.models import NHITS

    model = NHITS(
        h=4, input_size=12, mlp_units=3 * [[16, 16]], max_steps=4, batch_size=3,
        windows_batch_size=16, random_seed=0, **trainer,
    )  # fmt: skip
    data = pd.concat([series(k).assign(unique_id=str(k)) for k in range(3)])
    forecaster = NeuralForecast([model], freq="D")
    forecaster.fit(data)
    (copied,) = forecaster.models
    trainer["callbacks"][:] = copied.trainer_kwargs["callbacks"]
    return copied


def pina(trainer: dict[str, Any]) -> nn.Module:
    from pina import Condition, Trainer
    from pina.domain import CartesianDomain
    from pina.equation import Equation, FixedValue
    from pina.model import FeedForward
    from pina.operator import grad
    from pina.problem import SpatialProblem
    from pina.solver import PINN

    class Growth(SpatialProblem):
        output_variables = ["u"]  # noqa: RUF012  # as the library asks for it
        spatial_domain = CartesianDomain({"x": [0, 1]})
        domains = {"start": CartesianDomain({"x": 0.0}), "inside": spatial_domain}  # noqa: RUF012
        conditions = {  # noqa: RUF012
            "start": Condition(domain="start", equation=FixedValue(1.0)),
            "inside": Condition(
                domain="inside",
                equation=Equation(lambda x, u: grad(u, x) - u.extract(["u"])),
            ),
        }

    problem = Growth()
    problem.discretise_domain(10, "grid", domains=["start", "inside"])
    solver = PINN(problem, FeedForward(1, 1, layers=[8]))
    Trainer(solver, max_epochs=4, enable_checkpointing=False, **trainer).train()
    return solver


def series(seed: int) -> Any:
    import pandas as pd

    draw = torch.Generator().manual_seed(seed)
    days = pd.date_range("2024-01-01", periods=60, freq="D")
    return pd.DataFrame({"ds": days, "y": torch.randn(60, generator=draw).cumsum(0).numpy()})


@pytest.mark.parametrize(
    ("train", "needs", "plain", "names"),
    [
        (chemprop, "chemprop", "mean", None),
        (gluonts, "gluonts.torch", "mean", None),
        (darts, "darts", "mean", None),
        (pytorch_tabular, "pytorch_tabular", "mean", None),
        (neuralforecast, "neuralforecast", "mean", None),
        (pina, "pina", "sum", {"start_loss", "inside_loss"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_training_is_that_of_the_library(
    train: Training,
    needs: str,
    plain: str,
    names: set[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(needs, exc_type=ImportError)
    monkeypatch.chdir(tmp_path)  # some write logs and checkpoints
    monkeypatch.setattr(torch, "load", _trusting(torch.load))

    def trained(*callbacks: JacobianDescent) -> tuple[dict[str, Tensor], list[JacobianDescent]]:
        seed_everything(0, verbose=False)
        arguments = {**QUIET, "callbacks": list(callbacks)}
        module = train(arguments)
        parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
        return parameters, [c for c in arguments["callbacks"] if isinstance(c, JacobianDescent)]

    expected, _ = trained()
    found, _ = trained(JacobianDescent(plain, split="auto"))
    assert_close(found, expected, rtol=1e-4, atol=1e-6)
    _, (upgrad,) = trained(JacobianDescent("upgrad", split="auto"))
    assert upgrad.report is not None
    assert len(upgrad.report.gramian.diagonal().unique()) > 1
    assert not upgrad.report.slow
    if names is None:
        assert len(upgrad.report.names) > 2
    else:
        assert set(upgrad.report.names) == names


def _trusting(load: Callable[..., Any]) -> Callable[..., Any]:
    """Libraries load checkpoints of their own that are more than tensors."""
    return lambda *args, **kwargs: load(*args, **{**kwargs, "weights_only": False})
