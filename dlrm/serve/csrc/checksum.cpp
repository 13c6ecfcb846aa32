// SPDX-License-Identifier: Apache-2.0
#include "checksum.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "weights_file.h"

namespace recsys::serve {
namespace {

constexpr uint64_t kPrimes[] = {0,
                                11400714785074694791U,
                                14029467366897019727U,
                                1609587929392839161U,
                                9650029242287828579U,
                                2870177450012600261U};

uint64_t rotated(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

template <typename Word>
uint64_t word_at(const char* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

uint64_t round_of(uint64_t lane, uint64_t word) {
  return rotated(lane + word * kPrimes[2], 31) * kPrimes[1];
}

[[noreturn]] void refuse(const std::string& path) {
  throw std::runtime_error(path +
                           ": its checksum differs from that of the deployment; the file is "
                           "damaged, deploy the checkpoint again");
}

}  // namespace

std::string checksum_of(std::string_view bytes) {
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  uint64_t hash = kPrimes[5];
  if (bytes.size() >= 32) {
    uint64_t lanes[] = {kPrimes[1] + kPrimes[2], kPrimes[2], 0, 0 - kPrimes[1]};
    for (; end - at >= 32; at += 32) {
      for (int i = 0; i < 4; ++i) lanes[i] = round_of(lanes[i], word_at<uint64_t>(at + 8 * i));
    }
    hash =
        rotated(lanes[0], 1) + rotated(lanes[1], 7) + rotated(lanes[2], 12) + rotated(lanes[3], 18);
    for (const uint64_t lane : lanes) {
      hash = (hash ^ round_of(0, lane)) * kPrimes[1] + kPrimes[4];
    }
  }
  hash += bytes.size();
  for (; end - at >= 8; at += 8) {
    hash = rotated(hash ^ round_of(0, word_at<uint64_t>(at)), 27) * kPrimes[1] + kPrimes[4];
  }
  if (end - at >= 4) {
    hash = rotated(hash ^ word_at<uint32_t>(at) * kPrimes[1], 23) * kPrimes[2] + kPrimes[3];
    at += 4;
  }
  for (; at < end; ++at) hash = rotated(hash ^ word_at<uint8_t>(at) * kPrimes[5], 11) * kPrimes[1];
  hash = (hash ^ hash >> 33) * kPrimes[2];
  hash = (hash ^ hash >> 29) * kPrimes[3];
  hash ^= hash >> 32;
  std::string hex(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4)
    hex[static_cast<size_t>(i)] = "0123456789abcdef"[hash & 15];
  return hex;
}

void check_version(const std::string& folder, const std::string& text, const Json& deployment) {
  const std::string before = ",\n \"checksum\": \"";
  const size_t end = text.rfind(before);
  const std::string_view signed_text = std::string_view(text).substr(0, std::min(end, text.size()));
  if (text != std::string(signed_text) + before + checksum_of(signed_text) + "\"\n}\n") {
    refuse(folder + "/deployment.json");
  }
  for (const auto& [name, checksum] : deployment.at("checksums").members()) {
    const MappedFile file(folder + "/" + name);
    if (checksum_of(file.bytes()) != checksum.string()) refuse(folder + "/" + name);
  }
}

}  // namespace recsys::serve
