// SPDX-License-Identifier: Apache-2.0
// The rules and dictionaries of a dataset in one file, mapped and shared by all its readers.
//
// preproc/clicks/serving/feature_file.py writes it and describes its bytes.

#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "id_columns.h"
#include "kernel_choice.h"
#include "memory.h"
#include "numerical_transform.h"
#include "row_parser.h"

namespace clicks {

struct FeatureColumn {
  uint64_t categories;
  uint64_t buckets_at;  // uint32 [2**bucket_bits + 1]: first entry of each bucket, then the end
  uint64_t entries_at;  // [categories] of remainder, then id, in order of the keys
  uint32_t bucket_bits;
  uint16_t remainder_bytes;
  uint16_t id_bytes;
};

struct FeatureHeader {
  char magic[8];
  uint64_t bytes;  // of the file
  RowRule row_rule;
  NumericalRule numerical_rule;
  uint64_t rounds_to_float16;  // not 0: the numbers of the dataset are float16
  uint64_t num_columns;
};

constexpr char kFeatureMagic[8] = {'C', 'R', 'I', 'T', 'E', 'O', 'F', '1'};
constexpr uint64_t kFeaturePadding = 8;  // bytes after the last entry, which is read by load64

// Maps a category to its id. The highest bits of a category's key are its bucket, the others its
// remainder, which tells the categories of a bucket apart.
class StoredDictionary {
 public:
  StoredDictionary(const uint8_t* file, const FeatureColumn& column)
      : buckets_(file + column.buckets_at),
        entries_(file + column.entries_at),
        categories_(static_cast<uint32_t>(column.categories)),
        shift_(32 - column.bucket_bits),
        width_(static_cast<uint32_t>(column.remainder_bytes + column.id_bytes)),
        id_shift_(8 * column.remainder_bytes),
        remainder_mask_((uint64_t{1} << shift_) - 1),
        id_mask_((uint64_t{1} << (8 * column.id_bytes)) - 1) {}

  CLICKS_INLINE void prefetch_bucket(uint32_t key) const { __builtin_prefetch(bucket(key)); }
  CLICKS_INLINE void prefetch_entries(uint32_t key) const {
    __builtin_prefetch(entry(load32(bucket(key))));
  }
  // Ends are limited to the entries, so that a damaged file gives wrong ids but no wild reads.
  CLICKS_INLINE uint32_t find(uint32_t key) const {
    const uint8_t* ends = bucket(key);
    const uint32_t end = std::min(load32(ends + 4), categories_);
    const uint64_t remainder = key & remainder_mask_;
    for (uint32_t i = load32(ends); i < end; ++i) {
      const uint64_t stored = load64(entry(i));
      if ((stored & (~uint64_t{0} >> (64 - id_shift_))) == remainder) {
        return static_cast<uint32_t>((stored >> id_shift_) & id_mask_);
      }
    }
    return 0;
  }

 private:
  CLICKS_INLINE static uint32_t load32(const uint8_t* p) {
    uint32_t value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  CLICKS_INLINE const uint8_t* bucket(uint32_t key) const {
    return buckets_ + 4 * (uint64_t{key} >> shift_);
  }
  CLICKS_INLINE const uint8_t* entry(uint32_t i) const {
    return entries_ + uint64_t{width_} * std::min(i, categories_);
  }

  const uint8_t* buckets_;
  const uint8_t* entries_;
  uint32_t categories_;
  uint32_t shift_;
  uint32_t width_;
  uint32_t id_shift_;
  uint64_t remainder_mask_;
  uint64_t id_mask_;
};

class FeatureFile {
 public:
  explicit FeatureFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size < 0) {
      const std::runtime_error error = system_error("cannot be read");
      if (fd >= 0) close(fd);
      throw error;
    }
    size_ = static_cast<uint64_t>(size);
    void* data = size_ < sizeof(FeatureHeader) ? MAP_FAILED
                                               : mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (data == MAP_FAILED) throw damaged();
    data_ = static_cast<const uint8_t*>(data);
    try {
      read_columns();
    } catch (...) {
      munmap(data, size_);
      throw;
    }
  }
  FeatureFile(const FeatureFile&) = delete;
  FeatureFile& operator=(const FeatureFile&) = delete;
  ~FeatureFile() { munmap(const_cast<uint8_t*>(data_), size_); }

  const FeatureHeader& header() const { return header_; }
  const std::vector<StoredDictionary>& dictionaries() const { return dictionaries_; }
  // Categories of each column.
  const std::vector<uint64_t>& sizes() const { return sizes_; }

 private:
  std::runtime_error damaged() const {
    return std::runtime_error("is damaged or of another release");
  }

  void read_columns() {
    std::memcpy(&header_, data_, sizeof(header_));
    const bool known = std::memcmp(header_.magic, kFeatureMagic, sizeof(kFeatureMagic)) == 0;
    const uint64_t columns = IdColumns(header_.row_rule, kUnlabelledCriteo).count();
    if (!known || header_.bytes != size_ || header_.num_columns != columns) throw damaged();
    if (sizeof(header_) + columns * sizeof(FeatureColumn) > size_) throw damaged();
    for (uint64_t c = 0; c < columns; ++c) {
      FeatureColumn column;
      std::memcpy(&column, data_ + sizeof(header_) + c * sizeof(column), sizeof(column));
      const uint64_t width = uint64_t{column.remainder_bytes} + column.id_bytes;
      if (column.bucket_bits > 31 || column.categories > UINT32_MAX || width > 8 ||
          8u * column.remainder_bytes + column.bucket_bits < 32 || column.id_bytes < 1 ||
          column.id_bytes > 4 ||
          !fits(column.buckets_at, 4 * ((uint64_t{1} << column.bucket_bits) + 1)) ||
          !fits(column.entries_at, width * column.categories + kFeaturePadding)) {
        throw damaged();
      }
      dictionaries_.emplace_back(data_, column);
      sizes_.push_back(column.categories);
    }
  }

  bool fits(uint64_t at, uint64_t bytes) const { return at <= size_ && bytes <= size_ - at; }

  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  FeatureHeader header_;
  std::vector<StoredDictionary> dictionaries_;
  std::vector<uint64_t> sizes_;
};

}  // namespace clicks
