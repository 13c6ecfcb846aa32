# SPDX-License-Identifier: Apache-2.0
"""Bounds the time that waiting OpenMP threads spin; imported before torch.

A thread of libgomp (the OpenMP runtime of torch's wheels) that waits for another spins 300,000
times by default, about a millisecond. If another process has one of the cores, every parallel
region then burns the time of the thread it waits for, and a step takes 4 to 50 times as long.
1,000 times, about 20 microseconds, cover the waits of a step on idle cores; a longer wait gives
the core away. `GOMP_SPINCOUNT` and `OMP_WAIT_POLICY` of the user hold. libgomp reads them when
torch loads it; after that this module does nothing.

Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
"""

import os

SPIN_COUNT = 1_000

if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
