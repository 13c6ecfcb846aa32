// SPDX-License-Identifier: Apache-2.0
// The rules and dictionaries of a dataset in one file that all readers map and share.
//
// preproc/clicks/serving/feature_file.py writes it and describes its bytes.

#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "id_columns.h"
#include "kernel_choice.h"
#include "memory.h"
#include "row_parser.h"

namespace clicks {

struct FeatureColumn {
  uint64_t categories;
  uint64_t buckets_at;  // uint32 [2**bucket_bits + 1]: first entry of each bucket, then the end
  uint64_t entries_at;  // [categories] of remainder, then id, in order of the keys
  uint64_t keys_at;     // wide keys in id order, without gaps; 0: numbers of 32 bits
  uint64_t keys_bytes;
  uint64_t ends_at;  // uint64 [categories]: the end of each key; 0: integers of eight bytes
  uint32_t bucket_bits;
  uint16_t remainder_bytes;
  uint16_t id_bytes;
};

// Followed by the packed RowFormat of a line without the label, and a FeatureColumn per id column.
struct FeatureHeader {
  char magic[8];
  uint64_t bytes;              // of the file
  uint64_t rounds_to_float16;  // not 0: the numbers of the dataset are float16
  uint64_t num_columns;
  uint64_t format_bytes;
};

constexpr char kFeatureMagic[8] = {'C', 'L', 'I', 'C', 'K', 'S', 'F', '7'};
constexpr uint64_t kFeaturePadding = 8;  // bytes after the last entry, which is read by load64

// Maps a category to its id. The highest bits of a category's hash are its bucket, the next ones
// its remainder. The remainder distinguishes 32-bit categories in a bucket; wide keys are compared.
class StoredDictionary {
 public:
  StoredDictionary(const uint8_t* file, const FeatureColumn& column)
      : buckets_(file + column.buckets_at),
        entries_(file + column.entries_at),
        keys_(file + column.keys_at, column.keys_bytes,
              column.ends_at == 0 ? nullptr : file + column.ends_at),
        categories_(static_cast<uint32_t>(column.categories)),
        bucket_bits_(column.bucket_bits),
        width_(static_cast<uint32_t>(column.remainder_bytes + column.id_bytes)),
        id_shift_(8 * column.remainder_bytes),
        id_mask_((uint64_t{1} << (8 * column.id_bytes)) - 1) {}

  uint64_t categories() const { return categories_; }
  // hash: for a 32-bit category, its key in the highest bits.
  void prefetch_bucket(uint64_t hash) const { __builtin_prefetch(bucket(hash)); }
  void prefetch_entries(uint64_t hash) const { __builtin_prefetch(entry(load32(bucket(hash)))); }

  // key: null for a 32-bit category.
  CLICKS_INLINE uint32_t find(uint64_t hash, const WideKey* key) const {
    const uint8_t* ends = bucket(hash);
    // Ends are clamped to the entries, so that a damaged file gives wrong ids but no wild reads.
    const uint32_t end = std::min(load32(ends + 4), categories_);
    const uint64_t remainder = (hash << bucket_bits_) >> (64 - id_shift_);
    for (uint32_t i = load32(ends); i < end; ++i) {
      const uint64_t stored = load64(entry(i));
      if ((stored & (~uint64_t{0} >> (64 - id_shift_))) != remainder) continue;
      const auto id = static_cast<uint32_t>((stored >> id_shift_) & id_mask_);
      if (key == nullptr || (id - 1 < categories_ && keys_.is(id - 1, *key))) return id;
    }
    return 0;
  }

 private:
  CLICKS_INLINE static uint32_t load32(const uint8_t* p) {
    uint32_t value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  CLICKS_INLINE const uint8_t* bucket(uint64_t hash) const {
    return buckets_ + 4 * ((hash >> 1) >> (63 - bucket_bits_));  // no shift by 64
  }
  CLICKS_INLINE const uint8_t* entry(uint32_t i) const {
    return entries_ + uint64_t{width_} * std::min(i, categories_);
  }

  const uint8_t* buckets_;
  const uint8_t* entries_;
  WideKeys keys_;
  uint32_t categories_;
  uint32_t bucket_bits_;
  uint32_t width_;
  uint32_t id_shift_;
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
    if (data == MAP_FAILED) throw RowFormat::damaged();
    data_ = static_cast<const uint8_t*>(data);
    try {
      read();
    } catch (...) {
      munmap(data, size_);
      throw;
    }
  }
  FeatureFile(const FeatureFile&) = delete;
  FeatureFile& operator=(const FeatureFile&) = delete;
  ~FeatureFile() { munmap(const_cast<uint8_t*>(data_), size_); }

  // Whether the numbers of the dataset are float16.
  bool rounds_to_float16() const { return header_.rounds_to_float16 != 0; }
  // Fields of a line.
  const RowFormat& format() const { return *format_; }
  const std::vector<StoredDictionary>& dictionaries() const { return dictionaries_; }
  // Ids per row of each column: one, or the greatest length of a list.
  const std::vector<uint32_t>& widths() const { return widths_; }

 private:
  void read() {
    std::memcpy(&header_, data_, sizeof(header_));
    const bool known = std::memcmp(header_.magic, kFeatureMagic, sizeof(kFeatureMagic)) == 0;
    if (!known || header_.bytes != size_ || !fits(sizeof(header_), header_.format_bytes)) {
      throw RowFormat::damaged();
    }
    format_ = std::make_unique<RowFormat>(data_ + sizeof(header_), header_.format_bytes);
    const RowFormat& format = *format_;
    for (uint32_t f = format.first_field(); f < format.num_fields; ++f) {
      if (format.fields[f].role == kLabelRole) throw RowFormat::damaged();
    }
    const bool is_of_file =
        format.split.kind != SplitRule::kNone || format.has_header || format.lacks_edges();
    const IdColumns id_columns(format);
    const auto columns = static_cast<uint64_t>(id_columns.count() + id_columns.num_lists());
    if (is_of_file || format.group_field != kNoField || header_.num_columns != columns) {
      throw RowFormat::damaged();
    }
    std::vector<KeyType> key_types(columns, KeyType::kNarrow);
    widths_.assign(columns, 1);
    for (const Field& field : format.fields) {
      if (!field.has_categories()) continue;
      const auto c = static_cast<size_t>(id_columns.of(field));
      if (field.role == kListRole) widths_[c] = field.list.max_length;
      if (!field.has_wide_keys()) continue;
      key_types[c] = field.type == kText ? KeyType::kText : KeyType::kInteger;
    }
    const uint64_t begin = sizeof(header_) + header_.format_bytes;
    if (!fits(begin, columns * sizeof(FeatureColumn))) throw RowFormat::damaged();
    for (uint64_t c = 0; c < columns; ++c) {
      FeatureColumn column;
      std::memcpy(&column, data_ + begin + c * sizeof(column), sizeof(column));
      const uint64_t width = uint64_t{column.remainder_bytes} + column.id_bytes;
      // Remainders must distinguish 32-bit categories.
      const uint32_t least_bits = key_types[c] == KeyType::kNarrow ? 32 : 1;
      if (column.bucket_bits > 31 || column.categories > UINT32_MAX || width > 8 ||
          8u * column.remainder_bytes + column.bucket_bits < least_bits ||
          column.remainder_bytes < 1 || column.id_bytes < 1 || column.id_bytes > 4 ||
          (column.keys_at != 0) != (key_types[c] != KeyType::kNarrow) ||
          (column.ends_at != 0) != (key_types[c] == KeyType::kText) ||
          !fits(column.keys_at, column.keys_bytes) ||
          !fits(column.ends_at, column.ends_at == 0 ? 0 : 8 * column.categories) ||
          !fits(column.buckets_at, 4 * ((uint64_t{1} << column.bucket_bits) + 1)) ||
          !fits(column.entries_at, width * column.categories + kFeaturePadding)) {
        throw RowFormat::damaged();
      }
      dictionaries_.emplace_back(data_, column);
    }
  }

  bool fits(uint64_t at, uint64_t bytes) const { return at <= size_ && bytes <= size_ - at; }

  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  FeatureHeader header_;
  std::unique_ptr<const RowFormat> format_;
  std::vector<StoredDictionary> dictionaries_;
  std::vector<uint32_t> widths_;
};

}  // namespace clicks
