// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: the kernel of click logs scans, merges and encodes a text.
//
// The first four bytes choose the format of the rows, the rest is the text.

#define main kernel_driver_main
#include "../../preproc/clicks/kernel_driver.cpp"
#undef main

#include <cstdint>
#include <cstring>

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // The driver prints a line per round.
  return std::freopen("/dev/null", "w", stdout) == nullptr;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t seed = 0;
  if (size < sizeof(seed)) return 0;
  std::memcpy(&seed, data, sizeof(seed));
  std::mt19937 random(seed);
  run(std::string(data + sizeof(seed), data + size), random);
  return 0;
}
