// SPDX-License-Identifier: Apache-2.0
// Parses text to columns of numbers, by the row grammar of preproc/clicks/schema/grammar.py.
//
// Rows of Criteo's log take a separate path in which the compiler knows the number of fields; rows
// of a schema take a general path, field by field.
//
// A batch of rows takes two steps. `split_rows` finds the ends of all fields with 64-byte masks and
// rejects rows with a wrong number of fields. `parse_rows` then converts the fields to numbers, 8
// bytes at a time, without a branch per character. It only marks the other rejected rows;
// `wrong_field` parses them again, slowly, to find the reason.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "digits.h"
#include "memory.h"
#include "presence.h"
#include "rating_fields.h"
#include "row_format.h"
#include "typed_fields.h"

namespace clicks {

constexpr size_t kPadding = 64;  // bytes after the text that must be readable

struct RejectedRow {
  uint64_t offset;  // first byte of the row in the text
  uint64_t line;    // lines before the row
  uint32_t length;  // bytes without the line end
  RejectReason reason;
  uint32_t field;  // the leftmost wrong one, the label is 0; of kColumns, the number of fields
};

// Elements of the lists of a column.
struct ListElements {
  std::vector<uint32_t> narrow;  // a column of wide keys uses `wide` instead
  std::vector<WideKey> wide;
  std::vector<float> weights;  // empty if the rule has none

  size_t size() const { return std::max(narrow.size(), wide.size()); }
  void clear() {  // keeps the memory for the next batch
    narrow.clear();
    wide.clear();
    weights.clear();
  }
};

// The lists of a column in a batch of rows.
struct ListColumn {
  ListElements* elements;
  uint32_t begin[kBatchRows];
  uint32_t end[kBatchRows];
};

// A batch of rows of a format, with room for kBatchRows.
struct RowBatch {
  int rows = 0;
  uint8_t label[kBatchRows] = {};
  Presence numerical_present;
  Presence id_present;                    // of categorical columns, then of the bins of numbers
  uint64_t split_value[kBatchRows] = {};  // see SplitRule; not read if its kind is kNone
  int64_t group[kBatchRows] = {};         // 63 bits of a hash, -1 if missing; unused without groups
  size_t numericals;                      // columns of `numerical` and `decimal`
  size_t categoricals;
  Pages<int32_t> numerical;     // [kBatchRows, numericals]
  Pages<double> decimal;        // like `numerical`, for columns of decimal numbers
  Pages<uint32_t> categorical;  // [kBatchRows, categoricals]
  Pages<WideKey> keys;          // like `categorical`, for columns of wide keys; all have value 1
  KeyArena unquoted;            // fields with quotes in them
  std::vector<ListElements> elements;
  std::vector<ListColumn> lists;  // [num_lists], of these elements or another batch's
  std::vector<Rating> ratings;    // [kBatchRows] of ratings, else none

  explicit RowBatch(const RowFormat& format)
      : numericals(format.num_numerical),
        categoricals(format.num_categorical),
        numerical(kBatchRows * numericals + 1),
        decimal(kBatchRows * numericals + 1),
        categorical(kBatchRows * categoricals + 1),
        keys(kBatchRows * categoricals + 1, Pages<WideKey>::kOnUse),
        elements(format.num_lists),
        lists(format.num_lists),
        ratings(format.has_ratings() ? kBatchRows : 0) {
    for (size_t l = 0; l < lists.size(); ++l) lists[l].elements = &elements[l];
  }

  // Copies row `from` of a batch, which may be this one, to row `to` of this batch.
  void copy_row(const RowBatch& source, int from, int to) {
    label[to] = source.label[from];
    numerical_present.copy(source.numerical_present, from, to);
    id_present.copy(source.id_present, from, to);
    split_value[to] = source.split_value[from];
    group[to] = source.group[from];
    if (!ratings.empty()) ratings[to] = source.ratings[from];
    for (size_t l = 0; l < lists.size(); ++l) {
      lists[l].elements = source.lists[l].elements;
      lists[l].begin[to] = source.lists[l].begin[from];
      lists[l].end[to] = source.lists[l].end[from];
    }
    copy_values(source.numerical, numerical, numericals, from, to);
    copy_values(source.decimal, decimal, numericals, from, to);
    copy_values(source.categorical, categorical, categoricals, from, to);
    copy_values(source.keys, keys, categoricals, from, to);
  }

 private:
  template <typename T>
  static void copy_values(const Pages<T>& source, Pages<T>& target, size_t width, int from,
                          int to) {
    std::memcpy(target.data() + static_cast<size_t>(to) * width,
                source.data() + static_cast<size_t>(from) * width, width * sizeof(T));
  }
};

// Ends of the fields in the rows of a batch that have the right number of fields.
struct FieldEnds {
  int rows = 0;
  uint32_t start[kBatchRows];
  uint32_t line[kBatchRows];
  uint32_t* ends;  // [size_of_ends()]
};

// Larger than needed, because the ends in a chunk of 64 bytes are appended without a size check.
constexpr size_t size_of_ends(size_t num_fields) {
  return kBatchRows * num_fields + num_fields + 2 * 64;
}

struct ChunkMasks {
  uint64_t delimiters;  // bit i: byte i is a tab or a line feed
  uint64_t line_feeds;
};

// Four fields at a time; compilers turn this into AVX2, SSE2 or NEON, depending on the target.
typedef uint64_t Fields4 __attribute__((vector_size(32)));
constexpr int kHexGroups = (kCategoricals + 3) / 4;

// The steps of the parser without special instructions.
struct PortableSteps {
  CLICKS_INLINE static ChunkMasks chunk_masks(const uint8_t* p, uint8_t delimiter) {
    ChunkMasks masks{0, 0};
#ifdef CLICKS_X86
    const __m128i tab = _mm_set1_epi8(static_cast<char>(delimiter));
    const __m128i line_feed = _mm_set1_epi8('\n');
    for (int i = 0; i < 4; ++i) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
      const uint64_t tabs = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, tab)));
      const uint64_t feeds =
          static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, line_feed)));
      masks.delimiters |= (tabs | feeds) << (16 * i);
      masks.line_feeds |= feeds << (16 * i);
    }
#else
    for (int i = 0; i < 8; ++i) {
      const auto equal = [&](uint8_t byte) {
        // The high bit of each byte that the exclusive or makes zero, moved into 8 adjacent bits.
        const uint64_t x = load64(p + 8 * i) ^ repeat(byte);
        const uint64_t zero = ~(((x & repeat(0x7f)) + repeat(0x7f)) | x | repeat(0x7f));
        return ((zero >> 7) * 0x0102040810204080ull) >> 56;
      };
      const uint64_t feeds = equal('\n');
      masks.delimiters |= (equal(delimiter) | feeds) << (8 * i);
      masks.line_feeds |= feeds << (8 * i);
    }
#endif
    return masks;
  }

  CLICKS_INLINE static uint32_t* append_positions(uint64_t bits, uint32_t base, uint32_t* out) {
    while (bits != 0) {
      *out++ = base + static_cast<uint32_t>(__builtin_ctzll(bits));
      bits &= bits - 1;
    }
    return out;
  }

  CLICKS_INLINE static bool parse_categoricals(const uint8_t* text, const uint32_t* ends,
                                               uint32_t* values, uint32_t& present) {
    uint64_t raw[4 * kHexGroups] = {}, halves[4 * kHexGroups] = {};
    uint32_t mask = 0, longest = 0;
    for (int c = 0; c < kCategoricals; ++c) {
      const uint32_t length = ends[c + 1] - ends[c] - 1;
      raw[c] = load64(text + ends[c] + 1);
      halves[c] = 4 * std::min(length, 8u);
      longest = std::max(longest, length);
      mask |= static_cast<uint32_t>(length != 0) << c;
    }
    present = mask;
    Fields4 valid = Fields4{} + repeat(0x80);
    uint32_t decoded[4 * kHexGroups];
    for (int g = 0; g < kHexGroups; ++g) {
      Fields4 v, half;
      std::memcpy(&v, raw + 4 * g, sizeof(v));
      std::memcpy(&half, halves + 4 * g, sizeof(half));
      v = ((v << (32 - half)) << (32 - half)) | (((Fields4{} + repeat('0')) >> half) >> half);
      const Fields4 low = v & repeat(0x7f), letter = low | repeat(0x20);
      const Fields4 is_digit = (low + repeat(0x80 - '0')) & ~(low + repeat(0x7f - '9'));
      const Fields4 is_letter = (letter + repeat(0x80 - 'a')) & ~(letter + repeat(0x7f - 'f'));
      valid &= (is_digit | is_letter) & ~v;
      const Fields4 bit6 = (v >> 6) & repeat(1);
      Fields4 x = (v & repeat(0x0f)) + (bit6 << 3) + bit6;
      x = ((x << 4) | (x >> 8)) & 0x00ff00ff00ff00ffull;
      x = ((x << 8) | (x >> 16)) & 0x0000ffff0000ffffull;
      x = (x << 16) | (x >> 32);
      for (int i = 0; i < 4; ++i) decoded[4 * g + i] = static_cast<uint32_t>(x[i]);
    }
    std::memcpy(values, decoded, kCategoricals * sizeof(uint32_t));
    return (valid[0] & valid[1] & valid[2] & valid[3]) == repeat(0x80) && longest <= 8;
  }

  CLICKS_INLINE static bool parse_numericals(const uint8_t* text, const uint32_t* ends,
                                             int32_t* values, uint64_t& present) {
    uint64_t valid = repeat(0x80);
    bool long_valid = true;
    uint32_t mask = 0;
    for (int c = 0; c < kNumericals; ++c) {
      const uint32_t begin = ends[c] + 1;
      const uint32_t length = ends[c + 1] - begin;
      mask |= static_cast<uint32_t>(length != 0) << c;
      parse_integer(text + begin, length, values[c], valid, long_valid);
    }
    present = mask;
    return valid == repeat(0x80) && long_valid;
  }
};

// Splits whole lines into fields until the batch is full; returns the bytes read.
//
// text: ends in a line feed, followed by kPadding readable bytes.
// line: lines before the text; increased by the lines read.
template <typename Steps>
CLICKS_INLINE uint32_t split_rows(const uint8_t* text, uint32_t size, const RowFormat& format,
                                  uint64_t& line, FieldEnds& fields,
                                  std::vector<RejectedRow>& rejected) {
  const uint8_t delimiter = format.delimiter;
  const ptrdiff_t num_fields = format.num_fields;
  const bool lacks_label = !format.has_label;
  fields.rows = 0;
  uint32_t* row_ends = fields.ends;
  uint32_t start = 0;
  const auto begin_row = [&] {
    *row_ends = start - 1;
    return row_ends + lacks_label;
  };
  uint32_t* out = begin_row();
  const uint64_t first_line = line;
  for (uint32_t chunk = 0; chunk < size; chunk += 64) {
    ChunkMasks masks = Steps::chunk_masks(text + chunk, delimiter);
    if (size - chunk < 64) {
      const uint64_t inside = (uint64_t{1} << (size - chunk)) - 1;
      masks.delimiters &= inside;
      masks.line_feeds &= inside;
    }
    while (masks.line_feeds != 0) {
      const uint64_t upto = masks.line_feeds ^ (masks.line_feeds - 1);
      out = Steps::append_positions(masks.delimiters & upto, chunk, out);
      masks.delimiters &= ~upto;
      masks.line_feeds &= masks.line_feeds - 1;
      const uint32_t end = out[-1];
      if (out - row_ends == num_fields) {
        fields.start[fields.rows] = start;
        fields.line[fields.rows++] = static_cast<uint32_t>(line - first_line);
        // A row of one field may be empty; then the byte before belongs to the previous line.
        row_ends[num_fields - 1] -= end > start && text[end - 1] == '\r';
        row_ends = out;
      } else {
        const uint32_t without_cr = end - (end > start && text[end - 1] == '\r');
        const uint8_t* tabs = text + start;
        const auto fields_of_row = std::count(tabs, text + without_cr, delimiter) + 1;
        rejected.push_back(
            {start, line, without_cr - start, kColumns, static_cast<uint32_t>(fields_of_row)});
      }
      start = end + 1;
      out = begin_row();
      ++line;
      if (fields.rows == kBatchRows) return start;
    }
    out = Steps::append_positions(masks.delimiters, chunk, out);
    // A row with too many fields is rejected anyway, so further ends are dropped.
    if (out - row_ends > num_fields) out = row_ends + num_fields;
  }
  return start;
}

// Reads a list; returns the reason to reject it, else kNumReasons. Blanks around an element or a
// weight are ignored. elements: may be null.
inline RejectReason read_list(const uint8_t* field, uint32_t length, const Field& declared,
                              ListElements* elements) {
  const ListRule& rule = declared.list;
  const uint8_t* const end = field + length;
  const auto separator = static_cast<uint8_t>(rule.separator);
  const auto count = static_cast<size_t>(std::count(field, end, separator)) + 1;
  const size_t dropped = count > rule.max_length ? count - rule.max_length : 0;
  const size_t first = rule.keeps_first ? 0 : dropped, after = first + count - dropped;
  const bool is_wide = declared.has_wide_keys();
  for (size_t i = 0; i < count; ++i) {
    const auto* stop = static_cast<const uint8_t*>(memchr(field, separator, end - field));
    if (stop == nullptr) stop = end;
    const uint8_t *key = field, *key_end = stop;
    trim(key, key_end);
    double weight = 1;
    if (rule.weight_separator != 0) {
      const uint8_t* digits_end = key_end;
      key_end = static_cast<const uint8_t*>(
          memrchr(key, static_cast<int>(rule.weight_separator), key_end - key));
      if (key_end == nullptr) return kList;
      const uint8_t* digits = key_end + 1;
      trim(digits, digits_end);
      if (!parse_number(digits, static_cast<uint32_t>(digits_end - digits), weight)) return kList;
      trim(key, key_end);
    }
    if (key_end == key) return kList;
    uint32_t category = 0;
    WideKey wide;
    const RejectReason reason =
        read_category(key, static_cast<uint32_t>(key_end - key), declared, category, wide);
    if (reason != kNumReasons) return reason;
    if (elements != nullptr && first <= i && i < after) {
      if (is_wide) {
        elements->wide.push_back(wide);
      } else {
        elements->narrow.push_back(category);
      }
      if (rule.weight_separator != 0) elements->weights.push_back(static_cast<float>(weight));
    }
    field = stop + 1;
  }
  return kNumReasons;
}

// Text of field `f` of row `r`, without its quotes.
inline const uint8_t* text_of_field(const uint8_t* text, const FieldEnds& fields,
                                    const RowFormat& format, uint32_t f, int r, uint32_t& length,
                                    KeyArena& unquoted) {
  const uint32_t* const ends = fields.ends + static_cast<size_t>(r) * format.num_fields;
  const uint32_t begin = f == 0 ? fields.start[r] : ends[f - 1] + format.delimiter_bytes();
  const uint8_t* field = text + begin;
  length = ends[f] - begin;
  if (format.quote != 0 && length > 0 && *field == format.quote) {
    unquote(field, length, format, unquoted);
  }
  return field;
}

// Reads the value of a field of a parsed row, independent of its spelling: see `field_value` of
// preproc/clicks/engines/row_values.py. Returns false if the value is missing.
CLICKS_INLINE bool read_value(const uint8_t* text, const FieldEnds& fields, const RowFormat& format,
                              uint32_t f, int r, RowBatch& batch, uint64_t& value) {
  const Field& declared = format.fields[f];
  switch (declared.role) {
    case kLabelRole:
      value = batch.label[r];
      return true;
    case kNumericalRole: {
      const size_t at = static_cast<size_t>(r) * format.num_numerical + declared.column;
      const double x = declared.type == kDecimal ? batch.decimal[at] : batch.numerical[at];
      std::memcpy(&value, &x, sizeof(value));
      return batch.numerical_present(r, declared.column) != 0;
    }
    case kCategoricalRole: {
      const size_t at = static_cast<size_t>(r) * format.num_categorical + declared.column;
      if (declared.type == kHexadecimal && declared.buckets != 0) break;
      value = declared.type == kText          ? batch.keys[at].hash
              : declared.type == kWholeNumber ? batch.keys[at].words[0]
                                              : batch.categorical[at];
      return batch.id_present(r, declared.column) != 0;
    }
    case kListRole: {
      const ListColumn& list = batch.lists[declared.column];
      const ListElements& elements = *list.elements;
      value = list.end[r] - list.begin[r];
      const bool is_present = value != 0;
      for (uint32_t i = list.begin[r]; i < list.end[r]; ++i) {
        const uint64_t element = !declared.has_wide_keys() ? elements.narrow[i]
                                 : declared.type == kText  ? elements.wide[i].hash
                                                           : elements.wide[i].words[0];
        value = shuffle_key(value, element);
        if (elements.weights.empty()) continue;
        uint32_t weight;
        std::memcpy(&weight, &elements.weights[i], sizeof(weight));
        value = shuffle_key(value, weight);
      }
      return is_present;
    }
    default:
      break;
  }
  uint32_t length;
  const uint8_t* const field = text_of_field(text, fields, format, f, r, length, batch.unquoted);
  if (is_missing(field, length, format, declared)) return false;
  int64_t time = 0;
  uint32_t category = 0;
  switch (declared.role) {
    case kTimestampRole:
      parse_time(field, length, declared.time, time);
      value = static_cast<uint64_t>(time);
      break;
    case kCategoricalRole:
      parse_hexadecimal(field, length, category);
      value = category;
      break;
    default:
      return value_of_any(field, length, value);
  }
  return true;
}

// Sets a row's group, and its split by the hash of a field, or of the row if the field is missing.
CLICKS_APART void hash_row(const uint8_t* text, const FieldEnds& fields, const RowFormat& format,
                           int r, RowBatch& batch) {
  uint64_t value = 0;
  const auto has_value = [&](uint32_t f) {
    return f != kNoField && read_value(text, fields, format, f, r, batch, value);
  };
  batch.group[r] =
      has_value(format.group_field) ? static_cast<int64_t>(shuffle_key(0, value) >> 1) : -1;
  if (format.split.kind != SplitRule::kAtRandom) return;
  uint64_t hash = 0;
  if (has_value(format.split.field)) {
    hash = value;
  } else {
    for (uint32_t f = 0; f < format.num_fields; ++f) {
      if (has_value(f)) hash += shuffle_key(format.name_hashes[f], value);
    }
  }
  batch.split_value[r] = shuffle_key(format.split.seed, hash) >> 1;
}

// Reads a time, a list or a field of a rating; returns whether it is valid.
CLICKS_APART bool read_apart(const uint8_t* field, uint32_t length, const RowFormat& format,
                             uint32_t f, int r, RowBatch& batch, uint64_t* id_present) {
  const Field& declared = format.fields[f];
  if (!batch.ratings.empty()) return read_rating(field, length, declared, batch.ratings[r]);
  const uint32_t column = declared.column;
  const bool is_present = !is_missing(field, length, format, declared);
  if (declared.role == kListRole) {
    ListColumn& list = batch.lists[column];
    list.begin[r] = static_cast<uint32_t>(list.elements->size());
    const bool is_valid =
        !is_present || read_list(field, length, declared, list.elements) == kNumReasons;
    list.end[r] = static_cast<uint32_t>(list.elements->size());
    return is_valid;
  }
  const bool splits = format.split.is_by_time_of(f);
  int64_t time = 0;
  uint32_t* const categories =
      batch.categorical.data() + static_cast<size_t>(r) * format.num_categorical + column;
  if (!is_present && splits) return false;
  if (!read_time(field, length, is_present, declared.time, time, categories)) return false;
  const uint32_t end = column + time_features(declared.time);
  for (uint32_t c = column; c < end; ++c) id_present[c / 64] |= uint64_t{is_present} << c % 64;
  if (splits) batch.split_value[r] = static_cast<uint64_t>(time);
  return true;
}

// Parses rows of any format; see `parse_rows`. kWords: words for the bits of a row's columns.
template <size_t kWords>
CLICKS_INLINE bool parse_rows_of_schema(const uint8_t* text, const FieldEnds& fields,
                                        const RowFormat& format, RowBatch& batch,
                                        uint8_t* rejected) {
  bool all_valid = true;
  batch.rows = fields.rows;
  batch.unquoted.clear();
  for (uint32_t l = 0; l < format.num_lists; ++l) batch.lists[l].elements->clear();
  const bool is_random = format.split.kind == SplitRule::kAtRandom;
  const bool has_hashes = is_random || format.group_field != kNoField;
  const Field* const declared_fields = format.fields.data();
  const uint32_t delimiter_bytes = format.delimiter_bytes();
  for (int r = 0; r < fields.rows; ++r) {
    const uint32_t* ends = fields.ends + static_cast<size_t>(r) * format.num_fields;
    int32_t* numerical = batch.numerical.data() + static_cast<size_t>(r) * format.num_numerical;
    double* decimal = batch.decimal.data() + static_cast<size_t>(r) * format.num_numerical;
    const size_t first_category = static_cast<size_t>(r) * format.num_categorical;
    uint64_t digits = repeat(0x80);
    uint64_t numerical_present[kWords] = {}, id_present[kWords] = {};
    bool valid = true;
    uint32_t begin = fields.start[r];
    batch.label[r] = 0;
    for (uint32_t f = 0; f < format.num_fields; ++f) {
      const Field& declared = declared_fields[f];
      uint32_t length = ends[f] - begin;
      const uint8_t* field = text + begin;
      const uint32_t column = declared.column;
      const size_t word = kWords == 1 ? 0 : column / 64;
      if (format.quote != 0 && length > 0 && *field == format.quote) {
        unquote(field, length, format, batch.unquoted);
      }
      begin = ends[f] + delimiter_bytes;
      switch (declared.role) {
        case kLabelRole:
          valid &= read_label(field, length, format, declared, batch.label[r]);
          break;
        case kNumericalRole: {
          const bool is_present = !is_missing(field, length, format, declared);
          numerical_present[word] |= uint64_t{is_present} << column % 64;
          if (is_present && declared.type == kDecimal) {
            valid &= parse_number(field, length, decimal[column]);
          } else if (is_present) {
            parse_integer(field, length, numerical[column], digits, valid);
          }
          if (is_present && declared.bins_at != 0) {
            const double x = declared.type == kDecimal ? decimal[column] : numerical[column];
            const size_t bin = declared.bin_column;
            if (declared.lacks_edges != 0) {
              WideKey& key = batch.keys[first_category + bin];
              key = WideKey::of(reinterpret_cast<const uint8_t*>(&x), sizeof(x));
              key.value = 1;
            } else {
              const std::vector<double>& edges = format.edges[f];
              const auto after = std::upper_bound(edges.begin(), edges.end(), x);
              batch.categorical[first_category + bin] =
                  static_cast<uint32_t>(after - edges.begin());
            }
            id_present[kWords == 1 ? 0 : bin / 64] |= uint64_t{1} << bin % 64;
          }
          break;
        }
        case kCategoricalRole: {
          const bool is_present = !is_missing(field, length, format, declared);
          id_present[word] |= uint64_t{is_present} << column % 64;
          if (is_present) {
            const size_t at = first_category + column;
            valid &= read_category(field, length, declared, batch.categorical[at],
                                   batch.keys[at]) == kNumReasons;
          }
          break;
        }
        case kTimestampRole:
        case kListRole:
        case kUserRole:
        case kItemRole:
        case kRatingRole:
          valid &= read_apart(field, length, format, f, r, batch, id_present);
          break;
        default:
          break;
      }
    }
    valid &= digits == repeat(0x80);
    batch.numerical_present.set(r, numerical_present);
    batch.id_present.set(r, id_present);
    if (has_hashes) hash_row(text, fields, format, r, batch);
    rejected[r] = !valid;
    all_valid &= valid;
  }
  return all_valid;
}

// Parses the rows of `fields`; marks rejected rows with 1, and returns false if there are any.
template <typename Steps>
CLICKS_INLINE bool parse_rows(const uint8_t* text, const FieldEnds& fields, const RowFormat& format,
                              RowBatch& batch, uint8_t* rejected) {
  if (!format.is_criteo) {
    return std::max(format.num_numerical, format.num_categorical) <= 64
               ? parse_rows_of_schema<1>(text, fields, format, batch, rejected)
               : parse_rows_of_schema<Presence::kWords>(text, fields, format, batch, rejected);
  }
  const bool has_label = format.has_label;
  bool all_valid = true;
  batch.rows = fields.rows;
  for (int r = 0; r < fields.rows; ++r) {
    const uint32_t* ends = fields.ends + r * kFields;
    const uint8_t label = text[fields.start[r]];
    bool valid = !has_label || (ends[0] - fields.start[r] == 1 && (label | 1) == '1');
    batch.label[r] = label & has_label;
    uint64_t& numerical_present = batch.numerical_present.words[0][r];
    valid &= Steps::parse_numericals(text, ends, batch.numerical.data() + r * kNumericals,
                                     numerical_present);
    uint32_t present;
    valid &= Steps::parse_categoricals(text, ends + kNumericals,
                                       batch.categorical.data() + r * kCategoricals, present);
    batch.id_present.words[0][r] = numerical_present << kCategoricals | present;
    rejected[r] = !valid;
    all_valid &= valid;
  }
  return all_valid;
}

inline bool is_not_printable(uint8_t byte) { return byte < 0x20 || byte > 0x7e; }

struct WrongField {
  RejectReason reason;
  uint32_t field;
};

// Returns why a field without quotes is not valid in its column, else kNumReasons.
inline RejectReason reject_reason(const uint8_t* field, uint32_t length, const RowFormat& format,
                                  uint32_t f) {
  const Field& declared = format.fields[f];
  RejectReason reason = kNumReasons;
  uint8_t label;
  double number;
  int64_t time;
  uint32_t category;
  int32_t integer;
  WideKey key;
  const bool negative = length > 0 && *field == '-';
  if (format.has_ratings() && declared.role != kIgnored) {
    Rating rating;
    if (!read_rating(field, length, declared, rating)) reason = kString;  // the reader says why
  } else if (declared.role == kLabelRole) {
    if (!read_label(field, length, format, declared, label)) reason = kLabel;
  } else if (declared.role != kIgnored && is_missing(field, length, format, declared)) {
    if (format.split.is_by_time_of(f)) reason = kTime;
  } else if (declared.role == kTimestampRole) {
    if (!parse_time(field, length, declared.time, time)) reason = kTime;
  } else if (declared.role == kListRole) {
    reason = read_list(field, length, declared, nullptr);
  } else if (declared.role == kCategoricalRole) {
    reason = read_category(field, length, declared, category, key);
  } else if (declared.role == kNumericalRole && declared.type == kDecimal) {
    if (!parse_number(field, length, number)) reason = kNumber;
  } else if (declared.role == kNumericalRole) {
    if (!parse_long_integer(field + negative, length - negative, negative, integer)) {
      reason = kInteger;
    }
  }
  const bool is_text = declared.has_categories() && declared.type == kText;
  if (reason == kNumReasons || is_text) return reason;
  return std::any_of(field, field + length, is_not_printable) ? kEncoding : reason;
}

// Returns the leftmost invalid field of a row that has all fields.
inline WrongField wrong_field(const uint8_t* text, uint32_t start, const uint32_t* ends,
                              const RowFormat& format) {
  KeyArena unquoted;
  for (uint32_t f = format.first_field(); f < format.num_fields; ++f) {
    const uint8_t* field = text + start;
    uint32_t length = ends[f] - start;
    if (format.quote != 0 && length > 0 && *field == format.quote) {
      unquote(field, length, format, unquoted);
    }
    start = ends[f] + format.delimiter_bytes();
    const RejectReason reason = reject_reason(field, length, format, f);
    if (reason != kNumReasons) return {reason, f};
  }
  throw std::logic_error("a valid row was marked as rejected");
}

}  // namespace clicks
