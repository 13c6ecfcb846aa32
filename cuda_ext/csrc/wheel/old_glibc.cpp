// SPDX-License-Identifier: Apache-2.0
// Defines, in a wheel, what glibc 2.28 and the libstdc++ of GCC 8 lack; empty in other builds. This
// is a source compiled for every processor, not a header that the AVX kernels would compile too.

#ifdef RECSYS_WHEEL
#include <new>
#include <sstream>

#define RECSYS_HIDDEN __attribute__((visibility("hidden")))

extern "C" {
// libstdc++ asks before it counts references; 0 means that there may be threads.
RECSYS_HIDDEN char libc_single_threaded __asm__("__libc_single_threaded") = 0;

RECSYS_HIDDEN void throw_bad_array_new_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_array_new_length() { throw std::bad_array_new_length(); }
}

namespace std {
template RECSYS_HIDDEN ostringstream::basic_ostringstream();
template RECSYS_HIDDEN stringstream::basic_stringstream();
}  // namespace std
#endif
