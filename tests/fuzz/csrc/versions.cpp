// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: the native backend opens or refuses a damaged version, and asks one it opened.
//
// $RECSYS_FUZZ_FOLDER/version is a sound version without checksums of its files. The first byte
// chooses the file that is damaged; deployment.json gets a checksum that agrees with the damage.

#define main native_damage_main
#include "../../dlrm/native_drivers/damage.cpp"
#undef main

#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

static const char* const kFiles[] = {"deployment.json", "features.bin", "weights.safetensors"};
static std::vector<uint8_t> contents[3];
static std::filesystem::path folder;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const std::filesystem::path given = std::getenv("RECSYS_FUZZ_FOLDER");
  folder = given / ("open_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  for (int i = 0; i < 3; ++i) {
    contents[i] = read(given / "version" / kFiles[i]);
    write(folder / kFiles[i], contents[i]);
  }
  take_checksum(contents[0]);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider draws(data, size);
  const int file = draws.ConsumeIntegralInRange(0, 2);
  std::vector<uint8_t> bytes = contents[file];
  if (draws.ConsumeIntegralInRange(0, 15) == 0)
    bytes.resize(draws.ConsumeIntegralInRange<size_t>(0, bytes.size()));
  while (draws.remaining_bytes() > 0 && !bytes.empty()) {
    // Headers come first.
    const size_t interesting =
        std::min<size_t>(bytes.size(), draws.ConsumeBool() ? 4096 : bytes.size());
    const auto at =
        static_cast<ptrdiff_t>(draws.ConsumeIntegralInRange<size_t>(0, interesting - 1));
    const auto removed = std::min<ptrdiff_t>(draws.ConsumeIntegralInRange(0, 12),
                                             static_cast<ptrdiff_t>(bytes.size()) - at);
    const auto added = draws.ConsumeBytes<uint8_t>(draws.ConsumeIntegralInRange<size_t>(0, 12));
    bytes.erase(bytes.begin() + at, bytes.begin() + at + removed);
    bytes.insert(bytes.begin() + at, added.begin(), added.end());
  }
  if (file == 0) add_checksum(bytes);
  write(folder / kFiles[file], bytes);
  Instance* const instance = recsys_open(folder.c_str(), 1);
  if (instance != nullptr) {
    std::mt19937 random(1);
    std::vector<float> logit;
    respond(instance, request(3, random), logit);
    recsys_close(instance);
  }
  bytes = contents[file];
  if (file == 0) add_checksum(bytes);
  write(folder / kFiles[file], bytes);
  return 0;
}
