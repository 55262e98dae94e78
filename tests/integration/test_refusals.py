"""Messages that no real Trainer on one CPU can provoke."""

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_jd.aggregators import GradDrop, Mean
from lightning_jd.errors import MissingDependencyError, SetupError
from lightning_jd.surfaces import _namespace
from lightning_jd.surfaces._settings import Settings
from lightning_jd.surfaces._support import check_supported


class SomeStrategy:
    pass


def test_an_unknown_strategy_on_several_processes() -> None:
    trainer = SimpleNamespace(strategy=SomeStrategy(), world_size=2)
    with pytest.raises(SetupError, match=r"requires strategy='ddp', .* got SomeStrat"):
        check_supported(trainer, SimpleNamespace(automatic_optimization=True), Settings(Mean()))


class ModelParallelStrategy:
    pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            Settings(Mean(), params="shared"),
            "params='shared' cannot be combined with ModelParallel",
        ),
        (
            Settings(Mean(), nonfinite="skip"),
            "nonfinite='skip' cannot be combined with ModelParallel",
        ),
        (Settings(GradDrop()), "must be a weighting of the rows, got graddrop"),
    ],
)
def test_what_cannot_work_with_parameters_in_pieces(settings: Settings, message: str) -> None:
    trainer = SimpleNamespace(strategy=ModelParallelStrategy(), world_size=2)
    with pytest.raises(SetupError, match=message):
        check_supported(trainer, SimpleNamespace(automatic_optimization=True), settings)


def test_lightning_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _namespace.SURFACES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(_namespace, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install lightning"):
        _namespace.surfaces_in_use()


def test_what_is_installed_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_one(name: str) -> Any:
        return importlib.util.find_spec(name) if name == "lightning" else None

    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    monkeypatch.setattr(_namespace, "find_spec", only_one)
    assert _namespace.surfaces_in_use().__name__ == "lightning_jd.surfaces.lightning_pytorch"


def test_a_backward_of_ones_own_in_manual_optimization_is_explained() -> None:
    from lightning_jd.surfaces._batches import Batches

    batches = Batches()
    batches.add(is_skipped=False)
    with pytest.raises(SetupError, match=r"manual_backward\(losses\)` in place of `loss\.backward"):
        batches.check_first(steps=0)
