"""Names of array types, one for each kind of number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Longs = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]  # positions of users, items or times in a catalog
Bits = npt.NDArray[np.int8]  # 0 or 1
Mask = npt.NDArray[np.bool_]
