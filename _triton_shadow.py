# SPDX-License-Identifier: Apache-2.0
"""Keeps this repository's `triton/` folder from posing as the Triton compiler.

Import this before torch. On a CPU build of torch (no compiler installed) a top-level folder named
`triton` on the path makes `import triton` succeed as an empty namespace package, and optimizers,
`torch.compile`, `torch.export` and DDP then fail with "module 'triton' has no attribute
'language'". A namespace package has no origin; where the real compiler is installed nothing is
done. Where nothing of that name is found yet, the folder may come onto the path later.
"""

import importlib.util
import sys

if "triton" not in sys.modules:
    _spec = importlib.util.find_spec("triton")
    if _spec is None or _spec.origin is None:
        sys.modules["triton"] = None  # type: ignore[assignment]  # makes `import triton` raise ImportError
