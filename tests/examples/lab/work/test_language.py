"""The language model of the size of GPT-2 small."""

import torch
from torch import nn

from examples.lab.work.language import LanguageModel, language_model

TINY = {"vocabulary": 11, "width": 8, "layers": 2, "heads": 2, "positions": 6}


def test_it_has_as_many_parameters_as_gpt2_small() -> None:
    with torch.device("meta"):
        model = LanguageModel(50257, 1024, 768, 12, 12)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_no_token_sees_those_after_it() -> None:
    work = language_model(2, 6, **TINY)
    scores = work.model(work.x)
    later = work.x.clone()
    later[:, -1] = (later[:, -1] + 1) % 11
    torch.testing.assert_close(work.model(later)[:, :-1], scores[:, :-1])
    assert not torch.equal(work.model(later)[:, -1], scores[:, -1])


def test_one_loss_per_sequence_predicts_the_next_token() -> None:
    work = language_model(3, 6, **TINY)
    assert torch.equal(work.x[:, 1:], work.y[:, :-1])
    expected = [
        nn.functional.cross_entropy(work.model(x[None])[0], y)
        for x, y in zip(work.x, work.y, strict=True)
    ]
    torch.testing.assert_close(work.losses(), torch.stack(expected))
