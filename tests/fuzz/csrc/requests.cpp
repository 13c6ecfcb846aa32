// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: the native backend answers or refuses any tensors.
//
// $RECSYS_FUZZ_FOLDER/version is a version that takes features, lines and fields.

#define main native_damage_main
#include "../../dlrm/native_drivers/damage.cpp"
#undef main

#include <fuzzer/FuzzedDataProvider.h>

static Instance* instance;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const std::string version = std::string(std::getenv("RECSYS_FUZZ_FOLDER")) + "/version";
  instance = recsys_open(version.c_str(), 1);
  require(instance != nullptr, version.c_str());
  return 0;
}

static Tensor any_tensor(FuzzedDataProvider& draws) {
  static const char* const kNames[] = {"numerical", "categorical", "line", "fields", "", "x"};
  Tensor tensor;
  tensor.name = draws.PickValueInArray(kNames);
  tensor.dtype = draws.PickValueInArray(kDtypes);
  for (int left = draws.ConsumeIntegralInRange(0, 3); left > 0; --left) {
    tensor.shape.push_back(draws.ConsumeBool() ? draws.ConsumeIntegralInRange<int64_t>(-1, 40)
                                               : draws.ConsumeIntegral<int64_t>());
  }
  tensor.data = draws.ConsumeBytes<uint8_t>(draws.ConsumeIntegralInRange<size_t>(0, 2048));
  tensor.data.shrink_to_fit();
  return tensor;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider draws(data, size);
  std::vector<Tensor> tensors;
  if (draws.ConsumeBool()) {
    std::mt19937 random(draws.ConsumeIntegral<uint32_t>());
    tensors = request(random() % 20, random);
    for (int left = draws.ConsumeIntegralInRange(0, 3); left > 0 && !tensors.empty(); --left) {
      const size_t at = draws.ConsumeIntegralInRange<size_t>(0, tensors.size() - 1);
      std::vector<uint8_t>& bytes = tensors[at].data;
      const auto given = draws.ConsumeBytes<uint8_t>(draws.ConsumeIntegralInRange<size_t>(0, 64));
      if (bytes.empty() || draws.ConsumeBool()) {
        tensors[at] = any_tensor(draws);
        continue;
      }
      const size_t start = draws.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1);
      const size_t count = std::min(given.size(), bytes.size() - start);
      std::copy_n(given.begin(), count, bytes.begin() + static_cast<ptrdiff_t>(start));
    }
  } else {
    for (int left = draws.ConsumeIntegralInRange(0, 4); left > 0; --left) {
      tensors.push_back(any_tensor(draws));
    }
  }
  std::vector<float> logit;
  respond(instance, tensors, logit);
  return 0;
}
