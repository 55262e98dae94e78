"""The arguments that every surface shares: names, defaults, documentation and checks.

Callback and strategies inherit their signature from :class:`TakesSettings`. So a new argument is
written here and works with the callback, the strategies, the module flag and YAML.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from lightning_jd.aggregators import (
    AggregatorSpec,
    Balancer,
    Method,
    resolve,
    with_cheaper_weights,
)
from lightning_jd.core import (
    Accumulation,
    BatchNormOption,
    Groups,
    MemoryOption,
    Nonfinite,
    RowsOption,
    check_options,
)
from lightning_jd.engines import Select, Split, TapeOptions, check_select
from lightning_jd.errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    Aggregation = AggregatorSpec

    class StrategyOptions(TypedDict, total=False):
        """What ``SingleDeviceStrategy`` and ``DDPStrategy`` take; the callback takes none of it."""

        accelerator: Any
        checkpoint_io: Any
        precision_plugin: Any
        device: Any
        parallel_devices: Any
        cluster_environment: Any
        ddp_comm_state: Any
        ddp_comm_hook: Any
        ddp_comm_wrapper: Any
        model_averaging_period: int | None
        process_group_backend: str | None
        timeout: Any
        start_method: str
        find_unused_parameters: bool
        static_graph: bool
        gradient_as_bucket_view: bool
        broadcast_buffers: bool
        bucket_cap_mb: int | None
        init_sync: bool
else:  # what jsonargparse can read from a file; it resolves `**kwargs` by itself
    Aggregation = str | Method | dict[str, Any] | Callable[..., Any]
    StrategyOptions = "StrategyOptions"
    Unpack = {StrategyOptions: Any}

By = Literal["terms", "instances", "auto"]
ExamplesOption = bool | int | str | Callable[[Any], Any] | None


@dataclass(frozen=True)
class Settings:
    """The arguments of a surface after validation; :class:`TakesSettings` documents each.

    Raises:
        ArgumentError: If an argument has an invalid value.
    """

    aggregator: Method
    rows: RowsOption | None = None
    params: Select = "all"
    groups: Groups = None
    accumulation: Accumulation = "batch"
    nonfinite: Nonfinite = "raise"
    memory: MemoryOption = "fast"
    check_every: int = 1000
    log: bool | dict[str, Any] = False
    check_replicas: int = 100
    split: Split | None = None
    batch_norm: BatchNormOption = "exact"
    examples: ExamplesOption = None

    def text(self) -> str:
        """The arguments as Python source, without those that have their default value.

        Example:
            >>> from lightning_jd.aggregators import resolve
            >>> Settings(resolve("mean"), params="shared", split=Split("auto")).text()
            "Mean(), params='shared', split='auto'"
        """
        parts = [repr(self.aggregator)]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                plain = value.by if isinstance(value, Split) and value == Split(value.by) else value
                parts.append(f"{field.name}={plain!r}")
        return ", ".join(parts)

    @property
    def tape(self) -> TapeOptions:
        """The options of the tape."""
        return TapeOptions(self.memory, check_every=self.check_every)

    def __post_init__(self) -> None:
        check_options(
            rows=self.rows,
            accumulation=self.accumulation,
            nonfinite=self.nonfinite,
            memory=self.memory,
            batch_norm=self.batch_norm,
        )
        _ = self.tape  # checks them
        check_select(self.params)
        if self.split is not None and self.rows == "ranks":
            raise ArgumentError(
                "`split` cannot be combined with rows='ranks', which makes the scalar loss of each "
                f"process one objective, got split={self.split.by!r}. Remove one of the two."
            )
        self._check_examples()
        every = self.check_replicas
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise ArgumentError(
                "`check_replicas` must be a number of steps, or 0 to disable the check, got "
                f"{every!r}."
            )

    def _check_examples(self) -> None:
        source = self.examples
        if not (source is None or isinstance(source, (str, int)) or callable(source)):
            raise ArgumentError(
                "`examples` must be True (the indices of the sampler), the key or position of the "
                "indices in the batch, or a function that takes the batch and returns them, got "
                f"{source!r}."
            )
        if source is None or source is False:
            return
        if isinstance(self.aggregator, Balancer) or self.rows in ("tasks", "ranks"):
            kind = f"rows={self.rows!r}" if self.rows else f"{self.aggregator.label}, a balancer"
            raise ArgumentError(
                f"`examples` requires the gradients of single examples, got {kind}. Remove one of "
                "the two."
            )


class TakesSettings:
    """Base of the callback and the strategies: one signature for all of them.

    Args:
        aggregator: The method that combines the rows of the Jacobian into one update: a name
            (``"upgrad"``), a dict with a name and arguments (``{"name": "cagrad", "c": 0.4}``), or
            an aggregator, a balancer, or a function from Gramians to weights.
        rows: What one objective is, if the type of the losses does not imply it: ``"tasks"`` or
            ``"instances"``; a matrix of losses is averaged over the other dimension. With
            ``"ranks"``, the module returns a scalar loss and each process is one objective.
        params: The parameters to aggregate: ``"all"``; ``"shared"`` for those that more than one
            task reaches, so that each head keeps the gradient of its own loss; a name pattern
            (``"encoder.*"``); or a list of patterns.
        groups: ``None`` to aggregate all parameters together, or ``"layer"`` to aggregate each
            module separately.
        accumulation: With ``accumulate_grad_batches``: ``"batch"`` aggregates each micro-batch;
            ``"step"`` aggregates the Jacobian of all micro-batches of an optimizer step. ``"step"``
            equals one step on the large batch and stores its m rows of n numbers until then.
        nonfinite: ``"raise"`` an error that names the objective and the batch if a loss or a
            gradient is NaN or infinite, or ``"skip"`` the objective and count it.
        memory: ``"fast"``, or ``"low"`` to use less memory at the cost of a second backward pass
            where activation gradients are large.
        check_every: The number of steps between two certificates, which compare the Gramian and the
            gradients with an ordinary backward pass. The first step is certified too.
        log: Whether to log conflict metrics as ``jd/...``: ``True``, or a dict with any of
            ``every_n_steps``, ``per_group``, ``progress_bar``, ``figures`` and ``stationarity``.
            With ``aggregator="mean"``, the metrics describe plain training.
        check_replicas: With several processes: the number of steps between two checks that all
            processes hold the same parameters. The first check follows the first step; 0 disables
            it. A check reads all parameters once.
        split: How to split a scalar loss: ``"terms"`` makes each term of its sum a task,
            ``"instances"`` makes each example of the batch an objective, ``"auto"`` uses the terms
            if there are several. A dict gives details: ``{"by": "terms", "names":
            ["reconstruction", "kl"]}``, and ``"least"`` and ``"most"``, bounds on the number of
            terms. Terms are named as the module logs them, or after their operation.
        weights_from: The gradients from which the weights are computed: ``"parameters"``;
            ``"features"`` for the gradients at the activations where the tasks branch, which is
            much cheaper for many tasks; or the name (or a name pattern) of a module, for the
            gradients at its output. See :class:`~lightning_jd.aggregators.FromFeatures`.
        weights_every: Compute the weights every n-th step only; the steps in between cost one
            ordinary backward pass. See :class:`~lightning_jd.aggregators.WeightsEvery`.
        batch_norm: ``"exact"``, or ``"frozen"`` to treat the mean and variance of the batch as
            constants in the backward pass. Then BatchNorm does not mix instances, and all of them
            take one pass. See :func:`~lightning_jd.doctor.frozen_batch_norm`.
        examples: With one objective per example: keep norm, alignment and loss of each example, and
            how often the update works against it, in the table ``callback.examples``. The indices
            of the examples are those of the sampler (``True``), or they are in the batch: give
            their key or position, or a function of the batch.
        **kwargs: The arguments of the Lightning strategy; the callback takes none.
    """

    def __init__(
        self,
        aggregator: Aggregation = "upgrad",
        rows: RowsOption | None = None,
        params: str | list[str] | Callable[..., bool] = "all",
        groups: Literal["layer"] | Callable[..., Any] | None = None,
        accumulation: Accumulation = "batch",
        nonfinite: Nonfinite = "raise",
        memory: MemoryOption = "fast",
        check_every: int = 1000,
        log: bool | dict[str, Any] = False,
        check_replicas: int = 100,
        split: By | dict[str, Any] | None = None,
        weights_from: str = "parameters",
        weights_every: int = 1,
        batch_norm: BatchNormOption = "exact",
        examples: ExamplesOption = None,
        **kwargs: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(**kwargs)  # type: ignore[misc]  # Lightning's strategy is there
        self._configure(
            Settings(
                aggregator=with_cheaper_weights(resolve(aggregator), weights_from, weights_every),
                rows=rows,
                params=params,
                groups=groups,
                accumulation=accumulation,
                nonfinite=nonfinite,
                memory=memory,
                check_every=check_every,
                log=log,
                check_replicas=check_replicas,
                split=Split.of(split),
                batch_norm=batch_norm,
                examples=examples,
            )
        )

    def _configure(self, settings: Settings) -> None:
        """Use the settings; called once, at the end of ``__init__``."""
        raise NotImplementedError


class TakesNothingElse:
    """Ends the chain of ``super().__init__(**kwargs)``: an unknown argument is a TypeError."""

    def __init__(self, **unknown: object) -> None:
        if unknown:
            name = next(iter(unknown))
            raise TypeError(
                f"JacobianDescent.__init__() got an unexpected keyword argument {name!r}. An "
                "argument of the aggregator goes with its name: JacobianDescent({'name': 'upgrad', "
                f"{name!r}: {unknown[name]!r}}})."
            )
        super().__init__()


def with_arguments(cls: type) -> str:
    """The docstring of a class, with the shared arguments before its attributes."""
    shared = inspect.cleandoc(TakesSettings.__doc__ or "").partition("Args:\n")[2]
    shared = shared.partition("    **kwargs")[0]
    before, attributes, after = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    return f"{before}Args:\n{shared}\n{attributes}{after}"
