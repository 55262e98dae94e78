"""Losses and parameters in, Jacobian or Gramian out; usable from plain PyTorch.

>>> import torch
>>> x = torch.tensor([1.0, 2.0], requires_grad=True)
>>> jacobian([x.sum(), x.prod()], [x])
tensor([[1., 1.],
        [2., 1.]])
"""

from lightning_jd.engines._blocks import gramian_of_data
from lightning_jd.engines._gradients import gradient_norms, gramian, project
from lightning_jd.engines._graph import (
    check_not_freed,
    holds_compiled,
    holds_custom,
    holds_hooks,
    leaves_reached,
    mark_as_freed,
    nodes_below,
    task_roots,
    tasks_above,
    tasks_reaching,
)
from lightning_jd.engines._hooks import hooks_registered, hooks_silenced, listens, own_hooks
from lightning_jd.engines._jacobian import jacobian, jacobian_with_reasons
from lightning_jd.engines._objectives import Losses, Objectives
from lightning_jd.engines._parameters import (
    Groups,
    NamedParameters,
    Parameters,
    Select,
    Selection,
    check_select,
    column_count,
    from_columns,
    named_parameters_of,
    select,
    split_into_groups,
)
from lightning_jd.engines.split import Split, SplitSpec, split_loss
from lightning_jd.engines.tape import (
    Explanation,
    Slow,
    Tape,
    TapeOptions,
    explain,
    register_rule,
    slow_parameters,
)

__all__ = [
    "Explanation",
    "Groups",
    "Losses",
    "NamedParameters",
    "Objectives",
    "Parameters",
    "Select",
    "Selection",
    "Slow",
    "Split",
    "SplitSpec",
    "Tape",
    "TapeOptions",
    "check_not_freed",
    "check_select",
    "column_count",
    "explain",
    "from_columns",
    "gradient_norms",
    "gramian",
    "gramian_of_data",
    "holds_compiled",
    "holds_custom",
    "holds_hooks",
    "hooks_registered",
    "hooks_silenced",
    "jacobian",
    "jacobian_with_reasons",
    "leaves_reached",
    "listens",
    "mark_as_freed",
    "named_parameters_of",
    "nodes_below",
    "own_hooks",
    "project",
    "register_rule",
    "select",
    "slow_parameters",
    "split_into_groups",
    "split_loss",
    "task_roots",
    "tasks_above",
    "tasks_reaching",
]
