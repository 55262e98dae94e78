"""``lightning-jd doctor``: what will Jacobian descent do with my model?"""

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_jd._batch_norm import Replaced, frozen_batch_norm, replace_batch_norm
from lightning_jd.errors import ArgumentError, JDError, SetupError

__all__ = ["Replaced", "doctor", "frozen_batch_norm", "replace_batch_norm"]


def doctor(
    target: str,
    init: dict[str, Any] | None = None,
    input_shape: list[int] | None = None,
) -> None:
    """Run one step of a model and show how each of its parameters is differentiated.

    TARGET is written "module:name", for instance "my_project.models:LitModel". It names a class
    (built without arguments unless --init gives them) or a function without arguments that
    returns a model, or a pair (losses, model) if you want to compute the losses yourself.

    The losses are the first of these that the model offers. (1) example_batch(), a method that
    returns one batch: the losses are what training_step(batch, 0) returns (a scalar is split into
    its terms or instances). (2) --input-shape, or the attribute example_input_array: the model is
    called with it, and each instance gets a stand-in loss, the mean square of its outputs. That is
    enough to see the paths.

    Args:
        target: The model, as "module:name"; the current folder is searched first.
        init: Arguments of the class, e.g. --init '{"width": 64}'.
        input_shape: Shape of a random input, batch first, e.g. --input-shape '[32, 3, 32, 32]'.
    """
    from lightning_jd.engines import explain

    losses, model = _losses_and_model(_find(target), target, init or {}, input_shape)
    print(explain(losses, model))


def _find(target: str) -> Any:
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise ArgumentError(
            f"`target` must be written 'module:name', got {target!r}. "
            "For instance: lightning-jd doctor my_project.models:LitModel"
        )
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not search the current folder by itself
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"`target` must name a module that can be imported, got {module_name!r}: {error}. "
            "Run the command in the folder that contains it, or install the package."
        ) from error
    if not hasattr(module, name):
        public = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))) or "nothing"
        raise ArgumentError(
            f"`target` must name something in {module_name}, got {name!r}. "
            f"The module has: {public}."
        )
    return getattr(module, name)


def _losses_and_model(
    found: Any, target: str, init: dict[str, Any], input_shape: list[int] | None
) -> tuple[Any, nn.Module]:
    built = found if isinstance(found, nn.Module) else _build(found, target, init)
    if isinstance(built, tuple) and len(built) == 2 and isinstance(built[1], nn.Module):
        return built
    if not isinstance(built, nn.Module):
        raise ArgumentError(
            f"`target` must give a model or a pair (losses, model), got {type(built).__name__} "
            f"from {target}."
        )
    built.train()
    return _losses(built, input_shape), built


def _build(found: Any, target: str, init: dict[str, Any]) -> Any:
    if not callable(found):
        raise ArgumentError(
            f"`target` must be a class or a function, got {type(found).__name__} ({target})."
        )
    try:
        return found(**init)
    except TypeError as error:
        raise ArgumentError(
            f"`target` must be callable with the arguments of --init ({init}), got: {error}. "
            "Pass what is missing, e.g. --init '{\"width\": 64}', or name a function that "
            "builds the model."
        ) from error


def _losses(model: nn.Module, input_shape: list[int] | None) -> Any:
    if input_shape is None and hasattr(model, "example_batch"):
        return _of_training_step(model)
    example = getattr(model, "example_input_array", None)
    if input_shape is not None:
        example = torch.randn(input_shape)
    if example is None:
        raise SetupError(
            f"{type(model).__name__} must offer a batch to run, but has neither a method "
            "`example_batch()` nor an attribute `example_input_array`. Add one of them, or pass "
            "--input_shape '[32, 3, 32, 32]', or name a function that returns (losses, model)."
        )
    return _stand_in(model, example)


def _of_training_step(model: Any) -> Any:
    if not hasattr(model, "training_step"):
        raise SetupError(
            f"{type(model).__name__} must have a method `training_step(batch, batch_idx)` that "
            "takes its `example_batch()`, but has none. Pass --input_shape to use stand-in losses."
        )
    with warnings.catch_warnings():
        # Lightning warns that `self.log` does nothing without a Trainer: nothing is what we want.
        warnings.filterwarnings("ignore", message=".*`self.trainer` reference is not registered")
        returned = model.training_step(model.example_batch(), 0)
    losses = returned["loss"] if isinstance(returned, dict) and "loss" in returned else returned
    if isinstance(losses, Tensor) and losses.ndim == 0:
        return _split(model, losses)
    return losses


def _split(model: Any, loss: Tensor) -> Any:
    from lightning_jd.engines import split_loss

    try:
        objectives = split_loss(loss, "auto")
    except JDError as error:
        raise SetupError(
            f"`training_step` of {type(model).__name__} must return several losses, got one "
            "number that cannot be split. Return one per instance (for instance with "
            "reduction='none') or a dict {'loss': {'first task': ..., 'second task': ...}}. "
            f"({error})"
        ) from error
    print(
        "`training_step` returns one number: train with JacobianDescent(split='auto'), which reads "
        f"it as {objectives.m} {objectives.kind}."
    )
    return objectives


def _called(model: nn.Module, example: Any) -> Any:
    try:
        if isinstance(example, dict):
            return model(**example)
        return model(*example) if isinstance(example, (tuple, list)) else model(example)
    except Exception as error:  # whatever a model does with an input that it is not made for
        shape = f" of shape {tuple(example.shape)}" if isinstance(example, Tensor) else ""
        raise ArgumentError(
            f"{type(model).__name__} must take an input{shape}, got {type(error).__name__}: "
            f"{error}. Pass another --input_shape (batch first), or add a method "
            "`example_batch()`."
        ) from error


def _stand_in(model: nn.Module, example: Any) -> Tensor:
    outputs = _called(model, example)
    if not isinstance(outputs, Tensor) or outputs.ndim == 0:
        raise SetupError(
            f"{type(model).__name__} must return a tensor with one entry per instance for a "
            f"stand-in loss, got {type(outputs).__name__}. Add a method `example_batch()`, or "
            "name a function that returns (losses, model)."
        )
    return outputs.reshape(len(outputs), -1).square().mean(dim=1)
