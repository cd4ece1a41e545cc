"""Type aliases of arrays, written once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Array = NDArray[Any]
"""An array whose type the code around it decides."""
