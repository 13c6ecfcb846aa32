// SPDX-License-Identifier: Apache-2.0
// Runs the dot interaction kernels in the emulator, without torch, and compares them with sums in
// double: built with AddressSanitizer, and with planted faults, which it must notice. Each buffer
// is a heap block of its exact size.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/intrinsics.cuh"
#include "interaction/kernels.h"

namespace {

using namespace recsys;

constexpr int kRows = 11;

struct Case {
  const char* name;
  Dtype dtype;
  Dtype table;  // kFloat64: vectors are given, not gathered
  int batch;
  int num_vectors;
  int dim;
  bool tf32;
  double tolerance;  // of a sum of 100 products of numbers below 1
};

struct Numbers {
  Dtype dtype;
  std::unique_ptr<char[]> bytes;

  // 0xFF is NaN of every type: a number that is not written shows.
  Numbers(Dtype type, int64_t count) : dtype(type) {
    const int64_t size = type == Dtype::kFloat64 ? 8 : type == Dtype::kFloat32 ? 4 : 2;
    bytes.reset(new char[count * size]);
    std::memset(bytes.get(), 0xFF, count * size);
  }

  double get(int64_t i) const {
    switch (dtype) {
      case Dtype::kFloat32:
        return reinterpret_cast<const float*>(bytes.get())[i];
      case Dtype::kFloat16:
        return to_float(reinterpret_cast<const float16*>(bytes.get())[i]);
      case Dtype::kBFloat16:
        return to_float(reinterpret_cast<const bfloat16*>(bytes.get())[i]);
      case Dtype::kFloat64:
        break;
    }
    return reinterpret_cast<const double*>(bytes.get())[i];
  }
  void set(int64_t i, float value) {
    switch (dtype) {
      case Dtype::kFloat32:
        reinterpret_cast<float*>(bytes.get())[i] = value;
        return;
      case Dtype::kFloat16:
        reinterpret_cast<float16*>(bytes.get())[i] = round_to<float16>(value);
        return;
      case Dtype::kBFloat16:
        reinterpret_cast<bfloat16*>(bytes.get())[i] = round_to<bfloat16>(value);
        return;
      case Dtype::kFloat64:
        reinterpret_cast<double*>(bytes.get())[i] = value;
    }
  }
  void fill(int64_t count, std::mt19937& random) {
    for (int64_t i = 0; i < count; ++i) {
      set(i, std::uniform_real_distribution<float>(-1, 1)(random));
    }
  }
};

class Run {
 public:
  Run(const Case& test, std::mt19937& random)
      : test_(test),
        rest_count_(test.num_vectors - 1),
        pairs_(test.num_vectors * (test.num_vectors - 1) / 2),
        width_((test.dim + pairs_ + 7) / 8 * 8),
        first_(test.dtype, test.batch * test.dim),
        rest_(gathers() ? test.table : test.dtype,
              static_cast<int64_t>(gathers() ? kRows : test.batch * rest_count_) * test.dim),
        rows_(new int32_t[test.batch * rest_count_]),
        output_(test.dtype, test.batch * width_),
        gradient_(test.dtype, test.batch * width_),
        first_gradient_(test.dtype, test.batch * test.dim),
        rest_gradient_(test.dtype, static_cast<int64_t>(test.batch) * rest_count_ * test.dim) {
    first_.fill(test.batch * test.dim, random);
    rest_.fill(static_cast<int64_t>(gathers() ? kRows : test.batch * rest_count_) * test.dim,
               random);
    gradient_.fill(test.batch * width_, random);
    for (int i = 0; i < test.batch * rest_count_; ++i) {
      rows_[i] = static_cast<int32_t>(random() % (kRows + 2)) - 1;  // -1 and kRows are outside
    }
  }

  bool is_right() {
    const InteractionArguments arguments = make_arguments();
    const int forward = device::dot_interaction(arguments, nullptr);
    const int backward = device::dot_interaction_backward(arguments, nullptr);
    if (forward != 0 || backward != 0) {
      std::printf("%s: launch failed: %s\n", test_.name, emulator_last_error());
      return false;
    }
    double worst = 0;
    for (int sample = 0; sample < test_.batch; ++sample) {
      std::vector<double> vectors(test_.num_vectors * test_.dim);
      for (size_t i = 0; i < vectors.size(); ++i) {
        vectors[i] =
            number(sample, static_cast<int>(i) / test_.dim, static_cast<int>(i) % test_.dim);
      }
      worst = std::fmax(worst, forward_error(sample, vectors.data()));
      worst = std::fmax(worst, backward_error(sample, vectors.data()));
    }
    const bool right = worst <= test_.tolerance;
    std::printf("%s: largest error %g%s\n", test_.name, worst, right ? "" : " FAILED");
    return right;
  }

 private:
  bool gathers() const { return test_.table != Dtype::kFloat64; }

  InteractionArguments make_arguments() {
    InteractionArguments arguments{};
    arguments.dtype = test_.dtype;
    arguments.batch = test_.batch;
    arguments.num_vectors = test_.num_vectors;
    arguments.dim = test_.dim;
    arguments.width = width_;
    arguments.allow_tf32 = test_.tf32;
    arguments.first = first_.bytes.get();
    arguments.first_stride = test_.dim;
    (gathers() ? arguments.table : arguments.rest) = rest_.bytes.get();
    arguments.rest_stride = rest_count_ * test_.dim;
    arguments.table_dtype = test_.table;
    arguments.num_table_rows = kRows;
    arguments.rows = gathers() ? rows_.get() : nullptr;
    arguments.row_type = IndexType::kInt32;
    arguments.output = output_.bytes.get();
    arguments.gradient = gradient_.bytes.get();
    arguments.first_gradient = first_gradient_.bytes.get();
    arguments.first_gradient_stride = test_.dim;
    arguments.rest_gradient = rest_gradient_.bytes.get();
    arguments.rest_gradient_stride = rest_count_ * test_.dim;
    return arguments;
  }

  double number(int sample, int vector, int column) const {
    if (vector == 0) {
      return first_.get(sample * test_.dim + column);
    }
    const int64_t place = sample * rest_count_ + vector - 1;
    if (!gathers()) {
      return rest_.get(place * test_.dim + column);
    }
    if (rows_[place] < 0 || rows_[place] >= kRows) {
      return 0;
    }
    Numbers rounded(test_.dtype, 1);
    rounded.set(0, static_cast<float>(rest_.get(rows_[place] * test_.dim + column)));
    return rounded.get(0);
  }

  int pair(int a, int b) const { return test_.dim + a * (a - 1) / 2 + b; }

  // NaN where a number is: std::fmax would drop it.
  static double distance(double value, double truth) {
    return std::isnan(value) ? INFINITY : std::abs(value - truth);
  }

  double forward_error(int sample, const double* vectors) const {
    double worst = 0;
    const int64_t begin = static_cast<int64_t>(sample) * width_;
    for (int i = 0; i < test_.dim; ++i) {
      worst = std::fmax(worst, distance(output_.get(begin + i), vectors[i]));
    }
    for (int a = 0; a < test_.num_vectors; ++a) {
      for (int b = 0; b < a; ++b) {
        double sum = 0;
        for (int i = 0; i < test_.dim; ++i) {
          sum += vectors[a * test_.dim + i] * vectors[b * test_.dim + i];
        }
        worst = std::fmax(worst, distance(output_.get(begin + pair(a, b)), sum));
      }
    }
    for (int i = test_.dim + pairs_; i < width_; ++i) {
      worst = std::fmax(worst, distance(output_.get(begin + i), 0));
    }
    return worst;
  }

  double backward_error(int sample, const double* vectors) const {
    double worst = 0;
    const int64_t begin = static_cast<int64_t>(sample) * width_;
    for (int a = 0; a < test_.num_vectors; ++a) {
      for (int i = 0; i < test_.dim; ++i) {
        double sum = a == 0 ? gradient_.get(begin + i) : 0;
        for (int b = 0; b < test_.num_vectors; ++b) {
          if (a != b) {
            sum += gradient_.get(begin + pair(std::max(a, b), std::min(a, b))) *
                   vectors[b * test_.dim + i];
          }
        }
        const double found =
            a == 0 ? first_gradient_.get(sample * test_.dim + i)
                   : rest_gradient_.get(
                         (static_cast<int64_t>(sample) * rest_count_ + a - 1) * test_.dim + i);
        worst = std::fmax(worst, distance(found, sum));
      }
    }
    return worst;
  }

  const Case& test_;
  int rest_count_;
  int pairs_;
  int width_;
  Numbers first_;
  Numbers rest_;  // or the table
  std::unique_ptr<int32_t[]> rows_;
  Numbers output_;
  Numbers gradient_;
  Numbers first_gradient_;
  Numbers rest_gradient_;
};

// Half a unit of the last place at 16, and for tf32 the rounding of both factors of each product.
constexpr double kBFloat16Error = 0.07;
constexpr double kFloat16Error = 0.004;
constexpr double kTf32Error = 0.01;

const Case kCases[] = {
    {"bfloat16", Dtype::kBFloat16, Dtype::kFloat64, 13, 27, 72, false, kBFloat16Error},
    {"bfloat16, gathered", Dtype::kBFloat16, Dtype::kBFloat16, 3, 5, 40, false, kBFloat16Error},
    {"bfloat16 of float32", Dtype::kBFloat16, Dtype::kFloat32, 2, 17, 72, false, kBFloat16Error},
    {"bfloat16, 48 vectors", Dtype::kBFloat16, Dtype::kFloat32, 1, 48, 72, false, kBFloat16Error},
    {"float16", Dtype::kFloat16, Dtype::kFloat64, 2, 32, 8, false, kFloat16Error},
    {"tf32", Dtype::kFloat32, Dtype::kFloat32, 2, 30, 36, true, kTf32Error},
    {"tf32, 64 vectors", Dtype::kFloat32, Dtype::kFloat64, 1, 64, 20, true, kTf32Error},
    {"one vector", Dtype::kBFloat16, Dtype::kFloat64, 5, 1, 16, false, kBFloat16Error},
    {"float32", Dtype::kFloat32, Dtype::kFloat32, 5, 9, 33, false, 1e-5},
    {"float64", Dtype::kFloat64, Dtype::kFloat64, 4, 64, 5, false, 1e-13},
    {"odd bfloat16", Dtype::kBFloat16, Dtype::kFloat32, 4, 3, 13, false, kBFloat16Error},
};

}  // namespace

int main() {
  bool right = true;
  std::mt19937 random(1);
  for (const Case& test : kCases) {
    right = Run(test, random).is_right() && right;
  }
  return right ? 0 : 1;
}
