"""The exceptions of the package, one class per remedy.

Every message states the requirement, the actual value and, unless it is obvious, the remedy. Each
class also derives from the matching builtin, so ``except ValueError`` works.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class JDError(Exception):
    """Base class of all exceptions that lightning_jd raises."""


class ShapeError(JDError, ValueError):
    """A tensor has the wrong number of dimensions or the wrong size: change the input."""


class NonFiniteError(JDError, ValueError):
    """A loss or gradient is NaN or infinite: check the named objective."""


class ArgumentError(JDError, ValueError):
    """An argument is outside its range: change the configuration."""


class AggregatorError(JDError, ValueError):
    """An aggregator returned an invalid update: check the named aggregator."""


class UnknownNameError(JDError, ValueError):
    """A name is not registered: choose one of the listed names."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """Build the message for an unknown ``name`` of a ``kind``, with the closest known name.

        Example:
            >>> print(UnknownNameError.of("aggregator", "upgrd", ["mean", "upgrad"]))
            `aggregator` must be one of 'mean', 'upgrad', got 'upgrd'. Did you mean 'upgrad'?
        """
        known = sorted(known)
        near = get_close_matches(name.lower(), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(map(repr, known))
        return cls(f"`{kind}` must be one of {listed}, got {name!r}.{hint}")


class MissingDependencyError(JDError, ImportError):
    """An optional dependency is not installed: install the named extra."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> "MissingDependencyError":
        """Build the message for a ``package`` that ``what`` requires.

        Example:
            >>> print(MissingDependencyError.of("It", "matplotlib", "plot"))
            It needs `matplotlib`, which is not installed. Run: pip install 'lightning-jd[plot]'
        """
        return cls(
            f"{what} needs `{package}`, which is not installed. "
            f"Run: pip install 'lightning-jd[{extra}]'"
        )


class NotComputedError(JDError, AttributeError):
    """A step has not computed what was asked of its report: check before you ask."""


class GraphError(JDError, RuntimeError):
    """The computational graph of the losses cannot be differentiated: change the model code."""


class SetupError(JDError, RuntimeError):
    """Two settings are incompatible, or a feature is used where it is not supported."""


class ReplicaError(JDError, RuntimeError):
    """The processes of a distributed run hold different parameters: find the cause."""


class PeerError(JDError, RuntimeError):
    """Another process of a distributed run has failed: see its error, quoted in the message."""
