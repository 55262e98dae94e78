"""Arguments of methods that require some: the only table of them, for tests and benchmarks."""

from __future__ import annotations

from typing import Any

from lightning_jd.aggregators import Constant, Krum, Method, TrimmedMean, available


def example(cls: type[Method], m: int) -> dict[str, Any]:
    """Arguments of a method for m objectives: none, unless the method requires them."""
    if issubclass(cls, Constant):
        return {"weights": [(-1.0) ** i * (i + 1) for i in range(m)]}
    if issubclass(cls, Krum):  # as many arbitrary rows as it can stand
        return {"n_byzantine": max(0, (m - 3) // 2)}
    if issubclass(cls, TrimmedMean):
        return {"trim": (m - 1) // 2}
    return {}


def spec(name: str, m: int) -> dict[str, Any]:
    """The same as the mapping that a user writes."""
    return {"name": name, **example(available()[name], m)}
