"""`lightning-jd bench roofline`: the queue by hand, the fit, and one real network."""

from pathlib import Path

import pytest

from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.lab.bench._gpus import GPUS
from lightning_jd.lab.bench._roofline_model import PAPER, Costs, calibrated
from lightning_jd.lab.bench._timeline import SMALLEST_KERNEL, WAIT, timeline
from lightning_jd.lab.bench.roofline import roofline
from lightning_jd.lab.pretended._operations import Operation
from lightning_jd.lab.report import Report

L4 = GPUS["L4"]


def kernel(
    flops: float = 0.0, moved: float = 0.0, at: float = 0.0, dtype: str = "float32"
) -> Operation:
    return Operation("mm", flops, moved, dtype, False, at)


def wait(name: str = "to host", at: float = 0.0) -> Operation:
    return Operation(name, 0.0, 0.0, "", True, at)


def test_a_slow_host_decides_where_kernels_are_small() -> None:
    found = timeline([kernel()] * 10, L4, per_operation=1e-5, efficiency=1.0)
    assert found.total == pytest.approx(10 * 1e-5 + SMALLEST_KERNEL)
    assert found.host == pytest.approx(1e-4)


def test_a_slow_device_decides_where_kernels_are_large() -> None:
    operations = [kernel(flops=L4.float32 * 1e-3)] * 10  # a millisecond each, at its peak
    found = timeline(operations, L4, per_operation=1e-6, efficiency=0.5)
    assert found.total == pytest.approx(1e-6 + 10 * 2e-3)
    assert found.device == pytest.approx(20e-3)


def test_memory_or_arithmetic_whichever_takes_longer() -> None:
    operation = kernel(flops=L4.float32 * 1e-3, moved=L4.bandwidth * 3e-3)
    assert timeline([operation], L4, 0.0, 1.0).total == pytest.approx(3e-3)
    double = kernel(flops=L4.float64 * 5e-3, dtype="float64")
    assert timeline([double], L4, 0.0, 1.0).total == pytest.approx(5e-3)


def test_a_wait_ends_what_overlaps_and_the_program_comes_on_top() -> None:
    large = kernel(flops=L4.float32 * 1e-3)
    operations = [large, wait(at=1.0), kernel(flops=L4.float32 * 1e-3, at=1.002)]
    found = timeline(operations, L4, per_operation=0.0, efficiency=1.0)
    assert found.waits == 1
    assert found.solving == pytest.approx(2e-3)
    assert found.total == pytest.approx(1e-3 + WAIT + 2e-3 + 1e-3)
    faster = timeline(operations, L4, per_operation=0.0, efficiency=1.0, solver=2.0)
    assert faster.total == pytest.approx(found.total - 1e-3)


def test_the_share_of_the_peak_is_found_again() -> None:
    share, costs = 0.2, Costs({("cnn", "plain"): 0.0, ("cnn", "autogram"): 0.0})
    sgd, mean, _ = PAPER["mnist"]
    seconds = (mean - sgd) / 32
    steps = {
        "plain": [kernel(flops=1.0)],
        "autojac_mean": [kernel(flops=1.0), kernel(moved=share * L4.bandwidth * seconds)],
    }
    assert calibrated({"mnist": steps}, costs) == pytest.approx(share, rel=0.01)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="mnits"):
        roofline(networks=["mnits"], output=tmp_path)
    with pytest.raises(ArgumentError, match="must not be zero or empty"):
        roofline(networks=[], output=tmp_path)


@pytest.mark.slow
def test_a_network_on_four_devices(tmp_path: Path) -> None:
    roofline(networks=["mlp"], torchjd=False, repeats=2, output=tmp_path)
    report = Report.read(tmp_path / "roofline.json")
    assert [row["gpu"] for row in report.rows] == [*GPUS, *GPUS]
    for row in report.rows:
        assert row["mean"] > 0.5
        assert row["upgrad"] >= row["mean"]
        assert row["waits"].startswith("0, 0, ")  # plain, and mean
    fast, slow = report.rows[3], report.rows[0]
    assert fast["plain_device_ms"] < slow["plain_device_ms"]
    assert (tmp_path / "roofline.png").exists()
