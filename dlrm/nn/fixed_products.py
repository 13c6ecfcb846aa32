# SPDX-License-Identifier: Apache-2.0
"""Makes the bits of MKL's matrix products independent of the number of threads.

MKL reads the environment variable once, before its first product; later it has no effect.

Source: Intel oneMKL Developer Guide, "Obtaining Numerically Reproducible Results", strict CNR mode.
"""

import os
import sys

from recsys.errors import UserError

VARIABLE, STRICT = "MKL_CBWR", "STRICT"


def fix_products() -> None:
    """Asks for products of fixed bits, with the fastest instructions that this processor has.

    Raises:
        UserError: torch is loaded and may have multiplied already.
    """
    if "torch" in sys.modules and VARIABLE not in os.environ:
        raise UserError(
            "`deterministic` must be known before torch computes: use the command line, or start "
            f"Python with the environment variable {VARIABLE}=AUTO,{STRICT}",
            setting="deterministic",
        )
    os.environ.setdefault(VARIABLE, f"AUTO,{STRICT}")


def has_fixed_products() -> bool:
    """Returns True if torch multiplies with MKL, which was asked for products of fixed bits."""
    import torch  # takes seconds, and MKL must not be loaded before the variable is set

    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return has_mkl and STRICT in os.environ.get(VARIABLE, "").upper()
