# SPDX-License-Identifier: Apache-2.0
"""Sources of the native backend, and what its kernels are compiled with."""

from tests.harness import REPOSITORY

CSRC = REPOSITORY / "dlrm" / "serve" / "csrc"
INSTRUCTION_SETS = {
    "serving_kernels_avx2.cpp": ("-mavx2", "-mfma", "-mf16c"),
    "serving_kernels_avx512.cpp": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
}
