r"""The Gramian of a convolution weight without patches and without gradients.

With :math:`U_{ks}` the patch of sample k under output pixel s and :math:`D_{ks}` its cotangent,

.. math::
    G_{kl} = \sum_{s,t} \langle D_{ks}, D_{lt} \rangle \langle U_{ks}, U_{lt} \rangle, \qquad
    \langle U_{ks}, U_{lt} \rangle = \sum_{d} \langle x_{k,s+d}, x_{l,t+d} \rangle,

d over the offsets of the kernel. So the products of patches are shifted sums of products of single
pixels, of which there are far fewer. Pays for small images with many channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from torch import Tensor

from lightning_jd.engines.tape.contributions._pieces import pieces
from lightning_jd.engines.tape.contributions._products import by_upper_blocks
from lightning_jd.engines.tape.contributions.convolution._geometry import Geometry


def pixel_kernel_pays(x: Tensor, D: Tensor, geometry: Geometry) -> bool:
    """Whether the variant covers the case, and takes no more operations than gradients would.

    Args:
        x: Input, shape (m, T, in, ...).
        D: Cotangent of the output, shape (m, T, out, ...).
        geometry: The convolution.
    """
    m, T, channels = x.shape[:3]
    if not geometry.is_plain_2d or geometry.groups > 1 or T > 1:
        return False
    n_in, n_out, size = m * prod(x.shape[3:]), m * prod(D.shape[3:]), prod(geometry.kernel)
    shifts = sum(geometry.kernel[2:])
    by_pixels = n_in**2 * channels + n_out**2 * (D.shape[2] + 8 * shifts)
    by_gradients = n_out * size + m * m * size
    return by_pixels / 2 < by_gradients


def pixel_kernel_gramian(x: Tensor, D: Tensor, geometry: Geometry, chunk: int) -> Tensor:
    """Gramian of the weight gradients.

    Args:
        x: Input, shape (m, in, height, width).
        D: Cotangent of the output, shape (m, out, height, width).
        geometry: The convolution; two-dimensional, one group.
        chunk: Bytes that the products of some objectives with all others should take.
    """
    m, out, height, width = D.shape
    sums = _Phases(x, (height, width), geometry)
    cotangents = D.permute(2, 3, 0, 1)  # (height, width, m, out)
    fits = chunk // (sums.pixels**2 * m * D.element_size())
    step = max(1, min(-(-m // sums.blocks), fits))

    def block(begin: int, end: int) -> Tensor:
        outputs = cotangents[:, :, begin:end].reshape(-1, out)
        outputs = outputs @ cotangents[:, :, begin:].reshape(-1, out).T
        outputs = outputs.mul_(sums.of_patches(begin, end).view(outputs.shape))
        pixels = height * width
        return outputs.view(pixels, end - begin, pixels, m - begin).sum((0, 2))

    return by_upper_blocks(m, step, D, block)


class _Phases:
    """The same by sums of few large shifted pieces, which are in the cache of a CPU."""

    def __init__(self, x: Tensor, output: tuple[int, int], geometry: Geometry) -> None:
        self._phases, self._output = list(_phases(x, geometry)), output
        self.blocks, self.pixels = min(4, pieces(x).blocks), output[0] * output[1]
        self._new_zeros, self._m = x.new_zeros, len(x)

    def of_patches(self, begin: int, end: int) -> Tensor:
        """Shape (height, width, some objectives, height, width, these and later ones)."""
        height, width = self._output
        patches = self._new_zeros(height, width, end - begin, height, width, self._m - begin)
        for image, shifts_y, shifts_x in self._phases:
            # over horizontal offsets first, so that vertical ones add whole rows
            along_x = _summed_along_x(_products(image, begin, end), shifts_x, width)
            for shift_y in shifts_y:
                _add_shifted(patches, along_x, shift_y, 0)
        return patches


def _phases(x: Tensor, geometry: Geometry) -> Iterator[tuple[Tensor, list[int], list[int]]]:
    """Every stride-th pixel, with the kernel offsets that reach it, in units of the stride."""
    axes = geometry.kernel[2:], geometry.dilation, geometry.padding, geometry.stride
    step_y, step_x = geometry.stride
    for y, x_ in product(range(step_y), range(step_x)):
        shifts_y, shifts_x = map(_shifts, *axes, (y, x_))
        if shifts_y and shifts_x:
            yield x[:, :, y::step_y, x_::step_x].permute(2, 3, 0, 1), shifts_y, shifts_x


def _shifts(kernel: int, dilation: int, padding: int, stride: int, phase: int) -> list[int]:
    offsets = [j * dilation - padding - phase for j in range(kernel)]
    return [offset // stride for offset in offsets if offset % stride == 0]


def _products(image: Tensor, begin: int, end: int) -> Tensor:
    height, width, m, channels = image.shape
    left = image[:, :, begin:end].reshape(-1, channels)
    right = image[:, :, begin:].reshape(-1, channels)
    return (left @ right.T).view(height, width, end - begin, height, width, m - begin)


def _summed_along_x(products: Tensor, shifts: list[int], width: int) -> Tensor:
    rows, columns, left, _, _, right = products.shape
    if shifts == [0] and columns == width:
        return products
    summed = products.new_zeros(rows, width, left, rows, width, right)
    for shift in shifts:
        _add_shifted(summed, products, shift, 1)
    return summed


def _add_shifted(target: Tensor, source: Tensor, shift: int, axis: int) -> None:
    """Add ``source[p + shift]`` to ``target[p]`` along an axis of both images of a product."""
    low = max(0, -shift)
    size = min(target.shape[axis], source.shape[axis] - shift) - low
    if size > 0:
        for_target = target.narrow(axis, low, size).narrow(axis + 3, low, size)
        for_target += source.narrow(axis, low + shift, size).narrow(axis + 3, low + shift, size)
