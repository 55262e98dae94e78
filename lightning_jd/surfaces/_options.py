"""The keyword arguments of Lightning's strategies, for type checkers."""

from __future__ import annotations

from typing import Any, TypedDict


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
