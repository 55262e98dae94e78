"""The callback, without the base class of either Lightning package."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from itertools import count
from typing import Any, ClassVar

from typing_extensions import override

from lightning_jd.core import Report, report_failure
from lightning_jd.errors import NotComputedError, SetupError
from lightning_jd.surfaces._examples import Examples, Table
from lightning_jd.surfaces._monitor import Monitor
from lightning_jd.surfaces._patch import Patch
from lightning_jd.surfaces._session import Session
from lightning_jd.surfaces._settings import Settings, TakesNothingElse, TakesSettings
from lightning_jd.surfaces._skipped import Skipped
from lightning_jd.surfaces._support import check_object, check_supported

_NUMBERS = count()
#: What is not copied with a callback: `log` and `log_dict` are methods that the Trainer puts there.
_OF_ONE_FIT = {"_session", "_patch", "_owner", "log", "log_dict"}


class JacobianDescent(TakesSettings, TakesNothingElse):
    """Trains a module that returns several losses by Jacobian descent.

    The module returns its losses without combining them: a vector (one objective per instance),
    a matrix (one per instance and task), or a dict or list of scalars (one per task). They are
    the output of ``training_step`` or its entry ``"loss"``. With manual optimization, pass them
    to ``manual_backward``. A scalar loss is trained as in plain Lightning.

    During ``fit`` the callback wraps ``training_step`` and ``backward`` of the strategy. It
    restores both at the end, also after an error.

    Attributes:
        report: The report of the last update (Gramian, weights, ...); ``None`` before the
            first.
        reports: The reports of all updates of the last batch, by name. Manual optimization may
            make several.
        skipped: The number of objectives that ``nonfinite="skip"`` has dropped.
        examples: With the option ``examples``, the table of the examples of this epoch.

    Raises:
        ArgumentError: If an argument has an invalid value.
        UnknownNameError: If no aggregator has the given name.
    """

    #: The base class, by its place in either of Lightning's packages.
    lightning_base: ClassVar[str] = "callbacks.Callback"
    #: Prints a line on the first process; each package brings its own.
    _inform: ClassVar[Callable[[str], object]] = print

    @override
    def _configure(self, settings: Settings) -> None:
        self.settings = settings
        self._monitor = Monitor.of(settings.log)
        self._fresh = deepcopy(settings.aggregator.state_dict())
        self._session: Session | None = None
        self._patch: Patch | None = None
        self._skipped = Skipped()
        source = settings.examples
        self._examples = None if source is None or source is False else Examples(source)
        self._owner: weakref.ref[Any] | None = None
        self._idle = False
        self._is_set_up = False

    @property
    def state_key(self) -> str:
        """The name in a checkpoint.

        Before ``setup``, no two are equal: the Trainer refuses equal keys with an error of its own,
        and ``setup`` raises a better one.
        """
        name = type(self).__qualname__
        return name if self._is_set_up else f"{name} {next(_NUMBERS)}"

    @classmethod
    def with_settings(cls, settings: Settings) -> JacobianDescent:
        """The callback for settings that have been validated already."""
        callback = cls()
        callback._configure(settings)
        return callback

    @classmethod
    def of(cls, spec: Any, owner: Any = None) -> Any:
        """Build the callback from the value of ``jacobian_descent``.

        Args:
            spec: An aggregator (name or object), a dict of the arguments of this class, or a
                callback.
            owner: The module that it applies to; it does nothing for other modules.
        """
        if isinstance(spec, JacobianDescent):
            callback = spec
        elif isinstance(spec, Mapping) and "name" not in spec:
            callback = cls(**spec)
        else:
            callback = cls(spec)
        callback._owner = None if owner is None else weakref.ref(owner)
        return callback

    @property
    def report(self) -> Report | None:
        """The report of the last update; ``None`` before the first."""
        return None if self._session is None else self._session.report

    @property
    def reports(self) -> dict[str, Report]:
        """The reports of all updates of the last batch; manual optimization may make several.

        The key is the ``name`` given to ``manual_backward``, or else the optimizer, or else the
        position.
        """
        updates = [] if self._session is None else self._session.passes()
        return {update.name: update.report for update in updates}

    @property
    def skipped(self) -> int:
        """The number of objectives dropped because they were NaN or infinite."""
        return self._skipped.total

    @property
    def examples(self) -> Table:
        """The examples of this epoch (or of the last one), on all processes.

        A dict of arrays with one entry per example: ``index``; ``steps``, the number of updates
        with it; and means over these: ``worse``, the share that made it worse to first order; the
        ``norm`` of its gradient; its ``alignment``, the cosine with the mean gradient of the batch;
        and its ``loss``. What a method does not compute is NaN.

        Raises:
            NotComputedError: Without the option ``examples``.
        """
        if self._examples is None:
            raise NotComputedError(
                "`examples` must be set, got a callback without a table of examples. Set it to "
                "True, or to the key of the indices in the batch: JacobianDescent(..., "
                "examples=True)."
            )
        return self._examples.table()

    def setup(self, trainer: Any, pl_module: Any = None, stage: str = "") -> None:
        """Wrap ``training_step`` and ``backward`` of the strategy."""
        check_object(self, JacobianDescent)
        if stage == "fit" and self._concerns(pl_module):
            self._check_alone(trainer, pl_module)
        self._is_set_up = True
        if stage != "fit" or self._patch is not None:
            return
        self._idle = not self._concerns(pl_module)
        if self._idle:
            return
        check_supported(trainer, pl_module, self.settings)
        is_new = trainer.global_step == 0  # a run that is resumed loads its state later
        if is_new:
            self.settings.aggregator.load_state_dict(deepcopy(self._fresh))
        self._skipped = Skipped(0 if is_new else self.skipped)
        strategy, examples = trainer.strategy, self._examples
        session = Session(self.settings, type(self)._inform, self._skipped, examples)
        self._session = session
        wrappers: dict[str, Callable[..., Any]] = {
            "training_step": partial(session.training_step, strategy),
            "backward": partial(session.backward, strategy),
            # Called at every end of a fit, also where callbacks are not (in the lr finder).
            "teardown": self._before_strategy_teardown,
        }
        if examples is not None:
            if is_new:
                examples.clear(-1)
            if examples.reads_sampler:
                wrappers["process_dataloader"] = partial(examples.watch, trainer)
        self._patch = Patch(strategy, wrappers)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restore the methods of the strategy."""
        self._undo()

    def on_exception(self, trainer: Any, pl_module: Any, exception: Any = None) -> None:
        """Notify the other processes, and restore the methods of the strategy."""
        if not isinstance(self, JacobianDescent):  # the class, see `check_object`
            return
        if self._patch is not None:
            report_failure(exception, trainer.strategy.root_device)
        self._undo()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check that the batches show their examples."""
        if self._examples is not None and self._session is not None:
            self._examples.check_loader(trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Start the timer of the log, and find the indices of the examples."""
        if self._monitor is not None:
            self._monitor.before_batch()
        if self._examples is not None and self._session is not None:
            self._examples.start(batch, batch_idx)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Check the replicas, and log the metrics of the update."""
        if self._session is not None:
            self._session.batches.check_first(self._session.steps)
            self._session.check_replicas(trainer)
            self._session.watch.after(self._session.passes())
        if self._monitor is not None and self._session is not None:
            self._monitor.after_batch(trainer, pl_module, self._session)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Signal the epoch to the aggregator; raise if no batch of the epoch was trained."""
        if self._session is not None:
            self.settings.aggregator.end_epoch()
        if self._monitor is not None:
            self._monitor.after_epoch(trainer)
        session = self._session
        if session is not None:
            self._skipped.end_epoch(trainer.current_epoch)
            session.batches.check_epoch()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Warn if nothing was logged."""
        if self._monitor is not None:
            self._monitor.after_fit(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The state of the aggregator, in types that ``weights_only=True`` can load."""
        self._is_set_up = True
        if self._idle:  # another module is trained, and may have a callback of its own
            return {}
        state = {
            "name": self.settings.aggregator.label,
            "aggregator": dict(self.settings.aggregator.state_dict()),
            "skipped": self.skipped,
        }
        if self._examples is not None:
            state["examples"] = self._examples.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        name = self.settings.aggregator.label
        self._skipped.total = state_dict["skipped"]
        if self._examples is not None and "examples" in state_dict:
            self._examples.load_state_dict(state_dict["examples"])
        if state_dict["name"] == name:
            self.settings.aggregator.load_state_dict(state_dict["aggregator"])
        else:
            type(self)._inform(
                f"Jacobian descent continues with {name}. The checkpoint was written with "
                f"{state_dict['name']}, whose state is ignored."
            )

    @override
    def __repr__(self) -> str:
        """The aggregator and the arguments without their default value."""
        return f"{type(self).__name__}({self.settings.text()})"

    @override
    def __getstate__(self) -> dict[str, bytes]:
        # Sent to a process that is spawned, the state of a generator would share memory that is
        # gone when it arrives. Bytes are copied. What belongs to one fit stays here.
        kept = {name: value for name, value in vars(self).items() if name not in _OF_ONE_FIT}
        return {"pickled": pickle.dumps(kept)}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        vars(self).update(dict.fromkeys(("_session", "_patch", "_owner")))
        vars(self).update(pickle.loads(state["pickled"]))

    def _concerns(self, module: Any) -> bool:
        return self._owner is None or self._owner() is module

    def _check_alone(self, trainer: Any, module: Any) -> None:
        if self._owner is None and getattr(module, "jacobian_descent", None) is not None:
            raise SetupError(
                "Jacobian descent must be configured once, got it from the Trainer and from the "
                f"attribute `jacobian_descent` of {type(module).__name__}. Remove the attribute "
                "(it has no effect without JDModuleMixin), or the callback or strategy."
            )
        found = [each for each in trainer.callbacks if isinstance(each, JacobianDescent)]
        if (times := sum(callback._concerns(module) for callback in found)) > 1:
            raise SetupError(
                f"Jacobian descent must be configured once, got it {times} times. Keep one of: the "
                "callback JacobianDescent, the strategy 'jd' or 'jd_ddp', the flag "
                "`jacobian_descent` of the module."
            )

    def _before_strategy_teardown(self, original: Callable[[], None]) -> None:
        self._undo()
        original()

    def _undo(self) -> None:
        if self._patch is not None:
            self._patch.undo()
            self._patch = None
        if self._session is not None:
            self._session.forget()
        if self._examples is not None:
            self._examples.release()
