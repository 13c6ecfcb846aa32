// SPDX-License-Identifier: Apache-2.0
// Stable radix sort of row numbers, least significant digit first, with the position of each.
//
// A pass counts the digits of each chunk of keys, turns the counts into the place of the first key
// of each digit and chunk, and moves the keys there. A stable sort has only one result, so neither
// chunks nor threads can change it. Only the bits in which the keys differ are sorted.
#include <algorithm>
#include <cstring>

#include "../../cpu/parallel.h"
#include "../update_arguments.h"

namespace recsys::cpu {
namespace {

constexpr int kDigitBits = 11;  // the 2048 open lines of a pass still fit the second-level cache
constexpr int64_t kBins = int64_t{1} << kDigitBits;
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kChunksPerThread = 2;  // the places of a pass are computed by one thread
constexpr int64_t kMinChunk = 8192;      // keys; below, counting bins costs more than moving keys

template <typename KeyType>
struct Entry {
  using Key = KeyType;
  Key key;
  uint32_t position;
};

template <typename Row, typename KeyType>
struct RowSource {
  const Row* rows;
  KeyType key(int64_t i) const { return static_cast<KeyType>(rows[i]); }
  uint32_t position(int64_t i) const { return static_cast<uint32_t>(i); }
};

template <typename Key>
struct EntrySource {
  const Entry<Key>* entries;
  Key key(int64_t i) const { return entries[i].key; }
  uint32_t position(int64_t i) const { return entries[i].position; }
};

template <typename Key>
struct EntryTarget {
  Entry<Key>* entries;
  void put(int64_t i, Key key, uint32_t position) const { entries[i] = {key, position}; }
};

template <typename Row, typename Key>
struct SortedTarget {
  Row* rows;
  int32_t* positions;
  void put(int64_t i, Key key, uint32_t position) const {
    rows[i] = static_cast<Row>(key);
    positions[i] = static_cast<int32_t>(position);
  }
};

struct Chunks {
  int64_t count;
  int64_t number;
  int64_t size;

  explicit Chunks(int64_t count_of_keys)
      : count(count_of_keys),
        number(std::clamp((count_of_keys + kMinChunk - 1) / kMinChunk, int64_t{1},
                          std::min(kMaxChunks, kChunksPerThread * num_threads()))),
        size((count_of_keys + number - 1) / number) {}

  int64_t begin(int64_t chunk) const { return std::min(count, chunk * size); }
  int64_t end(int64_t chunk) const { return std::min(count, (chunk + 1) * size); }
};

struct Digit {
  int shift;
  uint32_t mask;
  template <typename Key>
  uint32_t operator()(Key key) const {
    return static_cast<uint32_t>(key >> shift) & mask;
  }
};

// Turns the counts of digits per chunk into the place of each chunk's first key with each digit.
void counts_to_places(uint32_t* counts, int64_t chunks) {
  uint32_t places[kBins] = {};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t bin = 0; bin < kBins; ++bin) {
      places[bin] += counts[chunk * kBins + bin];
    }
  }
  uint32_t total = 0;
  for (uint32_t& place : places) {
    const uint32_t keys = place;
    place = total;
    total += keys;
  }
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t bin = 0; bin < kBins; ++bin) {
      const uint32_t keys = counts[chunk * kBins + bin];
      counts[chunk * kBins + bin] = places[bin];
      places[bin] += keys;
    }
  }
}

template <typename Source, typename Target>
void run_pass(const Source source, const Target target, Digit digit, const Chunks& chunks,
              uint32_t* counts) {
  parallel_for(chunks.number, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      uint32_t* bins = counts + chunk * kBins;
      std::memset(bins, 0, kBins * sizeof(uint32_t));
      for (int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) {
        ++bins[digit(source.key(i))];
      }
    }
  });
  counts_to_places(counts, chunks.number);
  parallel_for(chunks.number, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      uint32_t* places = counts + chunk * kBins;
      for (int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) {
        const auto key = source.key(i);
        target.put(places[digit(key)]++, key, source.position(i));
      }
    }
  });
}

// Returns the bits in which the keys differ from one another.
template <typename Source>
uint64_t differing_bits(const Source source, const Chunks& chunks) {
  if (chunks.count == 0) {
    return 0;
  }
  const auto first_key = source.key(0);
  uint64_t differing[kMaxChunks] = {};
  parallel_for(chunks.number, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      auto bits = first_key ^ first_key;
      for (int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) {
        bits |= source.key(i) ^ first_key;
      }
      differing[chunk] = bits;
    }
  });
  uint64_t all = 0;
  for (const uint64_t bits : differing) {
    all |= bits;
  }
  return all;
}

template <typename Row, typename Key>
void sort_keys(const SortArguments& arguments) {
  const RowSource<Row, Key> source{static_cast<const Row*>(arguments.rows)};
  const SortedTarget<Row, Key> target{static_cast<Row*>(arguments.sorted_rows),
                                      arguments.positions};
  const Chunks chunks(arguments.count);
  uint32_t* counts = static_cast<uint32_t*>(arguments.workspace);
  auto* entries = reinterpret_cast<Entry<Key>*>(counts + chunks.number * kBins);
  Entry<Key>* buffers[2] = {entries, entries + arguments.count};

  const uint64_t differing = differing_bits(source, chunks);
  const int low = differing == 0 ? 0 : __builtin_ctzll(differing);
  const int bits = differing == 0 ? 1 : 64 - __builtin_clzll(differing) - low;
  const int passes = (bits + kDigitBits - 1) / kDigitBits;
  const int digit_bits = (bits + passes - 1) / passes;
  const auto digit = [&](int pass) {
    return Digit{low + pass * digit_bits, (uint32_t{1} << digit_bits) - 1};
  };

  if (passes == 1) {
    run_pass(source, target, digit(0), chunks, counts);
    return;
  }
  run_pass(source, EntryTarget<Key>{buffers[0]}, digit(0), chunks, counts);
  int pass = 1;
  for (; pass + 1 < passes; ++pass) {
    run_pass(EntrySource<Key>{buffers[(pass + 1) % 2]}, EntryTarget<Key>{buffers[pass % 2]},
             digit(pass), chunks, counts);
  }
  run_pass(EntrySource<Key>{buffers[(pass + 1) % 2]}, target, digit(pass), chunks, counts);
}

bool fits_32_bits(const SortArguments& arguments) {
  return arguments.row_type == IndexType::kInt32 || arguments.num_table_rows <= (int64_t{1} << 32);
}

}  // namespace

size_t sort_workspace_bytes(const SortArguments& arguments) {
  const size_t entry = fits_32_bits(arguments) ? sizeof(Entry<uint32_t>) : sizeof(Entry<uint64_t>);
  const Chunks chunks(arguments.count);
  return static_cast<size_t>(chunks.number * kBins) * sizeof(uint32_t) +
         2 * static_cast<size_t>(arguments.count) * entry;
}

void sort_rows(const SortArguments& arguments) {
  if (arguments.row_type == IndexType::kInt32) {
    sort_keys<int32_t, uint32_t>(arguments);
  } else if (fits_32_bits(arguments)) {
    sort_keys<int64_t, uint32_t>(arguments);
  } else {
    sort_keys<int64_t, uint64_t>(arguments);
  }
}

}  // namespace recsys::cpu
