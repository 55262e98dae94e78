"""The helpers of `bench engines` on tiny work; nothing here is a measurement."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from examples.lab.bench import _growth, _memory, engines
from examples.lab.bench._cases import CASES, Case
from examples.lab.bench._memory import Peak
from examples.lab.work import networks
from examples.lab.work.steps import ENGINES, make_step

TINY = {
    "tiny-instances": Case(
        "tiny-instances", lambda: networks.mlp(4, 8, inputs=6), "mean", 1e6, 1e6
    ),
    "tiny-tasks": Case(
        "tiny-tasks", lambda: networks.mlp_tasks(2, 4, 8), "upgrad", 1e-6, skips=("autojac",)
    ),
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the lines of the table by two that take no time."""
    for name in list(CASES):
        monkeypatch.delitem(CASES, name)
    for name, case in TINY.items():
        monkeypatch.setitem(CASES, name, case)
    return


@pytest.mark.parametrize("aggregator", ["mean", "upgrad"])
@pytest.mark.parametrize("name", TINY)
def test_every_engine_computes_the_same_update(name: str, aggregator: str) -> None:
    pytest.importorskip("torchjd")
    updates = {}
    for engine in ENGINES:
        torch.manual_seed(0)
        work = TINY[name].build()
        step = make_step(engine, work, aggregator)
        step()
        shared = work.model.trunk if work.has_tasks else work.model
        updates[engine] = torch.cat([p.grad.flatten() for p in shared.parameters()])
    plain = updates.pop("plain")
    reference = plain if aggregator == "mean" else updates["autojac"]
    for engine, update in updates.items():
        # TorchJD normalises and regularises a little differently.
        torch.testing.assert_close(update, reference, rtol=1e-2, atol=1e-4, msg=engine)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_the_command_writes_table_and_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {
        "batch": {"MLP": lambda b: networks.mlp(b, 8)},
        "depth": {"MLP": lambda d: networks.mlp(4, 8, d)},
    }
    monkeypatch.setattr(_growth, "_LINES", line)
    monkeypatch.setattr(_growth, "_SIZES", {"batch": (1, 2), "depth": (1, 2)})
    monkeypatch.setattr(engines, "peak_memory", lambda case, engine, threads: Peak(15.0, 10.0))
    before = torch.get_num_threads()
    engines.engines(threads=1, repeats=2, memory=True, growth=True, busy=True, output=tmp_path)
    assert torch.get_num_threads() == before
    rows = {row["case"]: row for row in json.loads((tmp_path / "engines.json").read_text())["rows"]}
    assert rows["tiny-instances"]["mark"] == "yes"
    assert rows["tiny-instances"]["memory_mark"] == "yes"
    assert rows["tiny-tasks"]["mark"] == "missed"
    assert rows["tiny-tasks"]["m"] == 2
    assert "autojac" not in rows["tiny-tasks"]
    assert {"busy_plain_ms", "busy_ours", "busy_loop"} <= set(rows["tiny-instances"])
    shown = capsys.readouterr().out
    assert "Slower than it must be: tiny-tasks" in shown
    assert "takes minutes" in shown
    assert (tmp_path / "engines_growth.png").stat().st_size > 1000
    assert len(json.loads((tmp_path / "engines_growth.json").read_text())["rows"]) == 4


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_the_peak_of_a_process_is_measured() -> None:
    peak = _memory.peak_memory("mnist-mean", "plain", threads=1)
    assert peak is not None
    # 0.5 MB of gradients, and the activations of the first convolution alone are 2.8 MB.
    assert 3 < peak.later < 100
    assert peak.first == pytest.approx(peak.later, rel=0.5)  # nothing is tuned in a plain step
