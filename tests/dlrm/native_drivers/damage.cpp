// SPDX-License-Identifier: Apache-2.0
// Sends requests and damaged versions to the native backend, for sanitizers to watch.
//
// native_damage VERSION FOLDER ROUNDS   prints the instruction set, then the answers that were
//                                       given, refused, the versions that did not open, and the
//                                       sum of the logits of the good requests
//
// VERSION takes raw rows; damaged copies of its files are written to FOLDER.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "../../../dlrm/serve/csrc/checksum.h"
#include "requests.h"

struct RecsysTensor {
  const char* name;
  const char* dtype;
  const int64_t* shape;
  int64_t dimensions;
  const uint8_t* data;
  uint64_t bytes;
};

struct Instance;

extern "C" {
const char* recsys_last_error();
const char* recsys_instruction_set();
Instance* recsys_open(const char* folder, int num_threads);
void recsys_close(Instance* instance);
int recsys_respond(Instance* instance, const RecsysTensor* tensors, int64_t count, int64_t capacity,
                   float* probability, float* logit, int64_t* num_rows);
}

namespace {

const char* const kDtypes[] = {"float32", "int64", "bool", "object", "another type"};

struct Counts {
  int answered = 0;
  int refused = 0;
  int not_opened = 0;
  double logits = 0;
};

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", what, recsys_last_error());
  std::exit(1);
}

// Changes, cuts and lengthens some bytes.
void damage(std::vector<uint8_t>& bytes, std::mt19937& random) {
  for (auto times = random() % 8; times > 0 && !bytes.empty(); --times) {
    bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
  }
  if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 9));
}

void damage(std::vector<Tensor>& tensors, std::mt19937& random) {
  Tensor& tensor = tensors[random() % tensors.size()];
  switch (random() % 6) {
    case 0:
      tensor.name += "s";
      break;
    case 1:
      tensor.dtype = kDtypes[random() % std::size(kDtypes)];
      break;
    case 2:
      tensor.shape[random() % 2] = static_cast<int64_t>(random()) << (random() % 32);
      break;
    case 3:
      tensor.shape.resize(random() % 4, 2);
      break;
    case 4:
      tensors.erase(tensors.begin() + static_cast<int64_t>(random() % tensors.size()));
      break;
    default:
      damage(tensor.data, random);
  }
}

int respond(Instance* instance, const std::vector<Tensor>& tensors, std::vector<float>& logit) {
  std::vector<RecsysTensor> given;
  for (const Tensor& tensor : tensors) {
    given.push_back({tensor.name.c_str(), tensor.dtype.c_str(), tensor.shape.data(),
                     static_cast<int64_t>(tensor.shape.size()), tensor.data.data(),
                     tensor.data.size()});
  }
  std::vector<float> probability(kMostRows);
  logit.assign(kMostRows, 0);
  int64_t rows = 0;
  const int status = recsys_respond(instance, given.data(), static_cast<int64_t>(given.size()),
                                    kMostRows, probability.data(), logit.data(), &rows);
  require(rows >= 0 && rows <= kMostRows, "rows");
  logit.resize(static_cast<size_t>(rows));
  return status;
}

std::vector<uint8_t> read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  require(!bytes.empty(), path.c_str());
  return bytes;
}

void write(const std::filesystem::path& path, const std::vector<uint8_t>& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  require(static_cast<bool>(file.flush()), path.c_str());
}

const std::string kChecksum = ",\n \"checksum\": \"";

// Takes its checksum from the text of a deployment.json.
void take_checksum(std::vector<uint8_t>& bytes) {
  const std::string text(bytes.begin(), bytes.end());
  bytes.resize(text.rfind(kChecksum));
}

// Gives a damaged text the checksum that a deployment would have given it.
void add_checksum(std::vector<uint8_t>& bytes) {
  std::string text(bytes.begin(), bytes.end());
  text += kChecksum + recsys::serve::checksum_of(text) + "\"\n}\n";
  bytes.assign(text.begin(), text.end());
}

void send_requests(Instance* instance, int rounds, std::mt19937& random, Counts& counts) {
  std::vector<float> logit;
  for (int64_t rows = 1; rows <= kMostRows; rows += 1 + rows / 4) {
    require(respond(instance, request(rows, random), logit) == 0, "a good request");
    require(static_cast<int64_t>(logit.size()) == rows, "its rows");
    counts.logits = std::accumulate(logit.begin(), logit.end(), counts.logits);
    ++counts.answered;
  }
  for (int round = 0; round < rounds; ++round) {
    std::vector<Tensor> tensors = request(random() % 20, random);
    damage(tensors, random);
    ++(respond(instance, tensors, logit) == 0 ? counts.answered : counts.refused);
  }
}

void open_damaged(const std::filesystem::path& version, const std::filesystem::path& folder,
                  int rounds, std::mt19937& random, Counts& counts) {
  const char* const names[] = {"deployment.json", "features.bin", "weights.safetensors"};
  for (const char* const name : names) std::filesystem::copy(version / name, folder);
  std::vector<float> logit;
  for (const char* const name : names) {
    const std::vector<uint8_t> undamaged = read(version / name);
    std::vector<uint8_t> whole = undamaged;
    const bool has_checksum = name == names[0];
    if (has_checksum) take_checksum(whole);
    const size_t interesting = std::min<size_t>(whole.size(), 4096);  // headers come first
    for (int round = 0; round < rounds; ++round) {
      std::vector<uint8_t> bytes(whole.begin(), whole.begin() + static_cast<int64_t>(interesting));
      damage(bytes, random);
      if (bytes.size() == interesting) {
        bytes.insert(bytes.end(), whole.begin() + static_cast<int64_t>(interesting), whole.end());
      }
      if (has_checksum) add_checksum(bytes);
      write(folder / name, bytes);
      Instance* const instance = recsys_open(folder.c_str(), 1);
      if (instance == nullptr) {
        ++counts.not_opened;
        continue;
      }
      ++(respond(instance, request(3, random), logit) == 0 ? counts.answered : counts.refused);
      recsys_close(instance);
    }
    write(folder / name, undamaged);
  }
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 4, "usage: native_damage VERSION FOLDER ROUNDS");
  const int rounds = std::atoi(argv[3]);
  std::mt19937 random(23);
  Counts counts;
  for (const int threads : {1, 3}) {
    Instance* const instance = recsys_open(argv[1], threads);
    require(instance != nullptr, argv[1]);
    send_requests(instance, rounds, random, counts);
    recsys_close(instance);
  }
  open_damaged(argv[1], argv[2], rounds, random, counts);
  std::printf("%s: %d answered, %d refused, %d not opened, logits %.6f\n", recsys_instruction_set(),
              counts.answered, counts.refused, counts.not_opened, counts.logits);
  return 0;
}
