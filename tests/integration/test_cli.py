"""Everything can be written in YAML and on the command line of LightningCLI."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.cli import LightningCLI

from lightning_jd.engines import Split
from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import QUIET, Regression

EVERY_ARGUMENT = {
    "aggregator": {"name": "cagrad", "c": 0.4},
    "rows": "tasks",
    "params": ["net.0.*", "net.2.weight"],
    "groups": "layer",
    "accumulation": "step",
    "nonfinite": "skip",
    "memory": "low",
    "split": "terms",
}


class Model(Regression):
    def __init__(self, form: str = "tasks") -> None:
        super().__init__(form)


def command(tmp_path: Path, *more: str, **trainer: Any) -> LightningCLI:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"seed_everything": 0, "trainer": {**QUIET, **trainer}}))
    return LightningCLI(Model, args=["--config", str(config), *more], run=False)


def test_every_argument_of_the_callback(tmp_path: Path) -> None:
    entry = {"class_path": "lightning_jd.JacobianDescent", "init_args": EVERY_ARGUMENT}
    cli = command(tmp_path, callbacks=[entry])
    settings = next(c for c in cli.trainer.callbacks if isinstance(c, JacobianDescent)).settings
    assert settings.aggregator.c == 0.4
    assert settings.split == Split("terms")
    for name in EVERY_ARGUMENT.keys() - {"aggregator", "split"}:
        assert getattr(settings, name) == EVERY_ARGUMENT[name]


def test_every_argument_of_the_strategy(tmp_path: Path) -> None:
    entry = {"class_path": "lightning_jd.JDStrategy", "init_args": EVERY_ARGUMENT}
    settings = command(tmp_path, strategy=entry).trainer.strategy.jacobian_descent.settings
    assert settings.aggregator.c == 0.4
    assert settings.accumulation == "step"
    assert settings.split == Split("terms")


def test_on_the_command_line(tmp_path: Path) -> None:
    added = "--trainer.callbacks+=lightning_jd.JacobianDescent"
    cli = command(tmp_path, added, "--trainer.callbacks.aggregator", "mgda")
    callback = next(c for c in cli.trainer.callbacks if isinstance(c, JacobianDescent))
    assert callback.settings.aggregator.name == "mgda"
    assert command(tmp_path, "--trainer.strategy", "jd").trainer.strategy.strategy_name == "jd"


@pytest.mark.parametrize("name", ["rows", "accumulation", "nonfinite", "memory"])
def test_a_wrong_value_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"`{name}` must be one of .*, got 'nonsense'"):
        JacobianDescent(**{name: "nonsense"})


def test_an_unknown_aggregator_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'upgrad'"):
        JacobianDescent("upgrd")
