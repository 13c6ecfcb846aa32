// SPDX-License-Identifier: Apache-2.0
// Included before every source of a wheel (setup.py): versions of libm that glibc 2.28 has too.
// The later ones compute the same and do not set errno.

#pragma once

#if defined(__x86_64__)
__asm__(".symver exp,exp@GLIBC_2.2.5");
__asm__(".symver log,log@GLIBC_2.2.5");
#endif
