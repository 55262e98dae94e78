"""The table of exactness: what is right is called right, what is wrong is not."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from examples.lab.bench import exactness
from examples.lab.bench.exactness import ENGINES, MODELS, compared


@pytest.mark.filterwarnings("ignore")  # vmap of an LSTM is slow, and warns
@pytest.mark.parametrize("name", MODELS)
def test_our_norms_and_those_of_torch_are_right(name: str) -> None:
    row = compared(name, MODELS[name])
    assert str(row["lightning_jd"]).startswith("right")
    assert str(row["torch"]).startswith("right")


def test_what_is_wrong_and_what_is_refused_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(model: nn.Module, words: Tensor) -> Tensor:
        return exactness.by_us(model, words) / 2

    def refusing(model: nn.Module, words: Tensor) -> Tensor:
        raise NotImplementedError

    wrong = {"torch": ("", half), "torchmetrics": ("", refusing), "nobody": ("", half)}
    monkeypatch.setattr(exactness, "ENGINES", {**ENGINES, **wrong})
    row = compared("LSTM", MODELS["LSTM"])
    assert row["torch"] == "**wrong by 50 %**"
    assert row["torchmetrics"] == "refused (NotImplementedError)"
    assert row["nobody"] == "-"


@pytest.mark.filterwarnings("ignore")  # of the other packages
def test_the_table_is_written(tmp_path: Path) -> None:
    torch.manual_seed(0)
    exactness.exactness(tmp_path)
    text = (tmp_path / "exactness.md").read_text()
    assert all(name in text for name in MODELS)
