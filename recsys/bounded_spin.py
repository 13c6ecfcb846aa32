# SPDX-License-Identifier: Apache-2.0
"""Bounds the time that waiting OpenMP threads spin; imported before torch.

While a thread of libgomp (the OpenMP runtime of torch's wheels) waits for another, it spins 300,000
times by default, about a millisecond. If another process uses one of the cores, every parallel
region then burns the time of the thread it waits for, and a step takes 4 to 50 times as long.
1,000 spins, about 20 microseconds, cover the waits of a step on idle cores; after that, a waiting
thread yields its core. `GOMP_SPINCOUNT` and `OMP_WAIT_POLICY` of the user take precedence. libgomp
reads them when torch loads it; after that this module has no effect.

Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
"""

import os

SPIN_COUNT = 1_000

if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
