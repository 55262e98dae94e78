"""Types of plain data that all stages share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]
#: Owners of slices, positions of entries, or values of an index tensor.
Ids = npt.NDArray[np.int64]
