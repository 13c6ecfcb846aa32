// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: a damaged feature file is refused, or transforms any lines.
//
// The first two bytes are the length of the lines; the rest is the feature file, which a bit
// chooses to be a damage of the sound one in $RECSYS_FUZZ_FOLDER instead.

#define main kernel_driver_main
#include "../../preproc/clicks/kernel_driver.cpp"
#undef main

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

static std::string sound;
static LineTransform* sound_features;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const std::string path = std::string(std::getenv("RECSYS_FUZZ_FOLDER")) + "/features.bin";
  std::ifstream file(path, std::ios::binary);
  sound.assign(std::istreambuf_iterator<char>(file), {});
  sound_features = clicks_transform_open(path.c_str());
  require(sound_features != nullptr, path.c_str());
  return std::freopen("/dev/null", "w", stdout) == nullptr;
}

// Overwrites bytes of the sound file: pairs of a place and a value.
static std::string damaged(const std::string& changes) {
  std::string bytes = sound;
  for (size_t at = 0; at + 3 <= changes.size(); at += 3) {
    uint16_t place = 0;
    std::memcpy(&place, &changes[at], sizeof(place));
    bytes[place % bytes.size()] = changes[at + 2];
  }
  if (changes.size() % 3 == 1)
    bytes.resize(static_cast<uint8_t>(changes.back()) * bytes.size() / 256);
  return bytes;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint16_t head = 0;
  if (size < sizeof(head)) return 0;
  std::memcpy(&head, data, sizeof(head));
  data += sizeof(head), size -= sizeof(head);
  const size_t length = std::min<size_t>(head >> 2, size);
  const std::string lines(data, data + length), rest(data + length, data + size);
  if (head % 4 == 0) {
    transform(sound_features, "x\t" + lines);
    return 0;
  }
  const std::string bytes = head % 4 == 1 ? rest : damaged(rest);
  const int file = memfd_create("features", 0);
  require(write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "write");
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  LineTransform* const features = clicks_transform_open(path.c_str());
  close(file);
  if (features == nullptr) return 0;
  transform(features, "x\t" + lines);
  clicks_transform_close(features);
  return 0;
}
