"""The errors of the package, one per remedy.

Every message says what must hold, what was found and, unless it is obvious, what to do. Each class
also inherits the builtin that a caller would expect, so that ``except ValueError`` keeps working.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class JDError(Exception):
    """Base of everything that lightning_jd raises on purpose."""


class ShapeError(JDError, ValueError):
    """A tensor has the wrong number of dimensions or the wrong size: change the input."""


class NonFiniteError(JDError, ValueError):
    """A loss or gradient is NaN or infinite: find the objective that is named."""


class ArgumentError(JDError, ValueError):
    """An argument is outside its range: change the configuration."""


class AggregatorError(JDError, ValueError):
    """An aggregator returned something that is not an update: look at the one that is named."""


class UnknownNameError(JDError, ValueError):
    """A name is not registered: choose one of those that are listed."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """Build the message for an unknown ``name`` of some ``kind``, with the nearest known one.

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
    """An optional dependency is not installed: install the extra that is named."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> "MissingDependencyError":
        """Build the message for a ``package`` that ``what`` cannot do without.

        Example:
            >>> print(MissingDependencyError.of("The table", "rich", "cli"))
            The table needs `rich`, which is not installed. Run: pip install 'lightning-jd[cli]'
        """
        return cls(
            f"{what} needs `{package}`, which is not installed. "
            f"Run: pip install 'lightning-jd[{extra}]'"
        )


class GraphError(JDError, RuntimeError):
    """The computational graph of the losses cannot be differentiated: change the model code."""


class SetupError(JDError, RuntimeError):
    """Two settings exclude each other, or a surface is used where it cannot work."""


class ReplicaError(JDError, RuntimeError):
    """The processes of a distributed run hold different parameters: find what changes them."""


class PeerError(JDError, RuntimeError):
    """Another process of a distributed run has failed: look at its error, which is quoted."""
