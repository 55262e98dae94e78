"""Graphs that an engine must get right, each named by what it may break."""

from tests.engines.zoo._registry import CASES, Case, default_dtype

from tests.engines.zoo import composed, layers, losses, mixing, odd, reuse, sequences, tasks  # isort: skip  # noqa: F401

__all__ = ["CASES", "Case", "default_dtype"]
