"""Autocast for the device: what CUDA does to products, convolutions, losses and norms."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tests.pretended._device import NAME

_HALF = """
mm addmm bmm baddbmm matmul linear mv addmv addbmm chain_matmul einsum conv1d conv2d conv3d
convolution conv_transpose1d conv_transpose2d.input conv_transpose3d.input conv_tbc prelu
scaled_dot_product_attention _scaled_dot_product_efficient_attention lstm_cell gru_cell
rnn_tanh_cell rnn_relu_cell
""".split()
_SINGLE = """
exp expm1 log log10 log2 log1p acos asin cosh erfinv pow.Tensor_Scalar pow.Tensor_Tensor
reciprocal rsqrt sinh tan layer_norm native_layer_norm group_norm cosine_similarity
cosine_embedding_loss mse_loss l1_loss smooth_l1_loss huber_loss nll_loss nll_loss2d nll_loss_nd
cross_entropy_loss binary_cross_entropy_with_logits kl_div poisson_nll_loss hinge_embedding_loss
margin_ranking_loss triplet_margin_loss multi_margin_loss multilabel_margin_loss
soft_margin_loss softplus softmax.int log_softmax.int cdist renorm norm.Scalar cumsum cumprod
prod sum sum.dim_IntList
""".split()

_LIBRARY = torch.library.Library("aten", "IMPL")
_OTHERS = torch.library.Library("_", "IMPL")
_OTHERS.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    is_ours = (
        isinstance(value, Tensor)
        and value.device.type == NAME
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )
    return value.to(dtype) if is_ours else value


def _rule(packet: Any, half: bool) -> Any:
    def in_autocast(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME) if half else torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            args, kwargs = tree_map(lambda value: _cast(value, dtype), (args, kwargs))
            return packet(*args, **kwargs)

    return in_autocast


def _install() -> None:
    for names, half in ((_HALF, True), (_SINGLE, False)):
        for name in names:
            packet_name, _, overload = name.partition(".")
            packet = getattr(torch.ops.aten, packet_name, None)
            wanted = overload or "default"
            if packet is None or wanted not in packet.overloads():
                continue
            operation = getattr(packet, wanted)
            _LIBRARY.impl(name, _rule(operation, half), "AutocastPrivateUse1")


_install()
