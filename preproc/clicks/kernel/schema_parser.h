// SPDX-License-Identifier: Apache-2.0
// Parses the rows of a schema.
//
// A batch is parsed column by column: all its fields have one type, so that branches are predicted
// and short texts are hashed several at a time.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "row_batch.h"

namespace clicks {

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
  if (fields.has_quotes && length > 0 && *field == format.quote) {
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
      const size_t at = batch.number_at(static_cast<size_t>(r), declared.column);
      const double x = declared.type == kDecimal ? batch.decimal[at] : batch.numerical[at];
      std::memcpy(&value, &x, sizeof(value));
      return batch.numerical_present(r, declared.column) != 0;
    }
    case kCategoricalRole: {
      const size_t at = batch.category_at(static_cast<size_t>(r), declared.column);
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

// The fields of a column in the rows of a batch, without quotes.
struct ColumnFields {
  const uint8_t* field[kBatchRows];
  uint32_t length[kBatchRows];
  bool is_present[kBatchRows];  // not a missing value

  CLICKS_INLINE ColumnFields(const uint8_t* text, const FieldEnds& fields, const RowFormat& format,
                             uint32_t f, KeyArena& unquoted) {
    const Field& declared = format.fields[f];
    // As `text_of_field` for each row, but in two loops: one takes 4% more time for the whole job.
    const uint32_t delimiter_bytes = format.delimiter_bytes();
    const uint32_t* ends = fields.ends + f;
    for (int r = 0; r < fields.rows; ++r, ends += format.num_fields) {
      const uint32_t begin = f == 0 ? fields.start[r] : ends[-1] + delimiter_bytes;
      field[r] = text + begin;
      length[r] = *ends - begin;
    }
    if (fields.has_quotes) {
      for (int r = 0; r < fields.rows; ++r) {
        if (length[r] > 0 && *field[r] == format.quote) {
          unquote(field[r], length[r], format, unquoted);
        }
      }
    }
    if (declared.role != kListRole && *format.texts_of(declared) == 0) {
      for (int r = 0; r < fields.rows; ++r) is_present[r] = length[r] != 0;
    } else {
      for (int r = 0; r < fields.rows; ++r) {
        is_present[r] = !is_missing(field[r], length[r], format, declared);
      }
    }
  }
};

// Parses the numbers of a column, and the bins that they are in.
CLICKS_INLINE void parse_numbers(const ColumnFields& column, const RowFormat& format, uint32_t f,
                                 RowBatch& batch, uint8_t* rejected) {
  const Field& declared = format.fields[f];
  const bool is_decimal = declared.type == kDecimal;
  int32_t* const integers = batch.numerical.data() + batch.number_at(0, declared.column);
  double* const decimals = batch.decimal.data() + batch.number_at(0, declared.column);
  const int rows = batch.rows;
  for (int r = 0; r < rows; ++r) {
    batch.numerical_present.add(r, declared.column, column.is_present[r]);
  }
  if (is_decimal) {
    for (int r = 0; r < rows; ++r) {
      if (!column.is_present[r]) continue;
      rejected[r] |= !parse_number(column.field[r], column.length[r], decimals[r]);
    }
  } else {
    for (int r = 0; r < rows; ++r) {
      if (!column.is_present[r]) continue;
      uint64_t digits = repeat(0x80);
      bool is_valid = true;
      parse_integer(column.field[r], column.length[r], integers[r], digits, is_valid);
      rejected[r] |= !(is_valid & (digits == repeat(0x80)));
    }
  }
  if (declared.bins_at == 0) return;
  const std::vector<double>& edges = format.edges[f];
  for (int r = 0; r < rows; ++r) {
    if (!column.is_present[r]) continue;
    const double x = is_decimal ? decimals[r] : integers[r];
    const size_t at = batch.category_at(static_cast<size_t>(r), declared.bin_column);
    if (declared.lacks_edges != 0) {
      batch.keys[at] = WideKey::of(reinterpret_cast<const uint8_t*>(&x), sizeof(x));
      batch.keys[at].value = 1;
    } else {
      const auto after = std::upper_bound(edges.begin(), edges.end(), x);
      batch.categorical[at] = static_cast<uint32_t>(after - edges.begin());
    }
    batch.id_present.add(r, declared.bin_column, true);
  }
}

// Several texts of up to 16 bytes.
template <typename Steps>
struct ShortTexts {
  using Words = typename Steps::Words;
  using Numbers = typename Steps::Numbers;

  Words low, high;  // their bytes, padded with zeros
  Words hash;
  Words odd;  // not 0 if a byte is not printable ASCII

  // Bytes of `first` and `second` after the texts are ignored. any_size: see `TextHash::of_short`.
  CLICKS_INLINE ShortTexts(const Words& first, const Words& second, const Numbers& size,
                           uint32_t any_size) {
    const Words all = ~Words{};
    const Words rest = all << (Words)(8 * size & 63);  // the bytes after the last whole word
    const Words after_low = size >= 8 ? Words{} : rest;
    const Words after_high = size >= 16 ? Words{} : size >= 8 ? rest : all;
    low = first & ~after_low;
    high = second & ~after_high;
    hash = TextHash::of_short(low, high, size, any_size);
    odd = not_printable(low | (after_low & repeat(' '))) |
          not_printable(high | (after_high & repeat(' ')));
  }
};

// Reads the texts of a column as keys.
template <typename Steps>
CLICKS_INLINE void read_text_keys(const ColumnFields& column, int rows, WideKey* keys,
                                  uint8_t* rejected) {
  using Texts = ShortTexts<Steps>;
  constexpr int kBlock = 64, kLanes = sizeof(typename Steps::Words) / sizeof(uint64_t);
  // Words that were stored one by one are loaded as vectors only when their stores are done.
  union {
    uint64_t words[kBlock];
    typename Steps::Words vectors[kBlock / kLanes];
  } low, high, hash, odd;
  union {
    int64_t words[kBlock] = {};
    typename Steps::Numbers vectors[kBlock / kLanes];
  } size;
  for (int begin = 0; begin < rows; begin += kBlock) {
    const int count = std::min(rows - begin, kBlock);
    const uint8_t* const* const field = column.field + begin;
    const uint32_t* const length = column.length + begin;
    uint32_t any_size = 0;
    for (int i = 0; i < count; ++i) {
      low.words[i] = load64(field[i]);
      high.words[i] = load64(field[i] + 8);
      size.words[i] = length[i];
      any_size |= length[i];
    }
    for (int i = 0; i * kLanes < count; ++i) {
      const Texts texts(low.vectors[i], high.vectors[i], size.vectors[i], any_size);
      low.vectors[i] = texts.low;
      high.vectors[i] = texts.high;
      hash.vectors[i] = texts.hash;
      odd.vectors[i] = texts.odd;
    }
    for (int i = 0; i < count; ++i) {
      const int r = begin + i;
      keys[r] = {hash.words[i], length[i], 1, {low.words[i], high.words[i]}};
      const bool is_long = length[i] > WideKey::kShort;
      if (__builtin_expect((is_long | (odd.words[i] != 0)) & column.is_present[r], 0)) {
        rejected[r] |= read_wide_key(field[i], length[i], kText, keys[r]) != kNumReasons;
      }
    }
  }
}

// Reads the categories of a column.
template <typename Steps>
CLICKS_INLINE void read_categories(const ColumnFields& column, const Field& declared,
                                   RowBatch& batch, uint8_t* rejected) {
  const size_t first = batch.category_at(0, declared.column);
  uint32_t* const categories = batch.categorical.data() + first;
  WideKey* const keys = batch.keys.data() + first;
  for (int r = 0; r < batch.rows; ++r) {
    batch.id_present.add(r, declared.column, column.is_present[r]);
  }
  if (declared.type == kText) {
    read_text_keys<Steps>(column, batch.rows, keys, rejected);
    if (declared.buckets == 0) return;
    for (int r = 0; r < batch.rows; ++r) {
      categories[r] = static_cast<uint32_t>(keys[r].hash % declared.buckets);
    }
    return;
  }
  for (int r = 0; r < batch.rows; ++r) {
    if (!column.is_present[r]) continue;
    const RejectReason reason =
        read_category(column.field[r], column.length[r], declared, categories[r], keys[r]);
    rejected[r] |= reason != kNumReasons;
  }
}

// Reads times, lists or a field of ratings.
CLICKS_APART void read_column_apart(const ColumnFields& column, const RowFormat& format, uint32_t f,
                                    RowBatch& batch, uint8_t* rejected) {
  const Field& declared = format.fields[f];
  const bool splits = format.split.is_by_time_of(f);
  for (int r = 0; r < batch.rows; ++r) {
    const uint8_t* const field = column.field[r];
    const uint32_t length = column.length[r];
    const bool is_present = column.is_present[r];
    if (!batch.ratings.empty()) {
      rejected[r] |= !read_rating(field, length, declared, batch.ratings[r]);
    } else if (declared.role == kListRole) {
      ListColumn& list = batch.lists[declared.column];
      list.begin[r] = static_cast<uint32_t>(list.elements->size());
      rejected[r] |= is_present && read_list(field, length, declared, list.elements) != kNumReasons;
      list.end[r] = static_cast<uint32_t>(list.elements->size());
    } else {
      int64_t time = 0;
      uint32_t features[kNumTimeFeatures];
      rejected[r] |= (!is_present && splits) ||
                     !read_time(field, length, is_present, declared.time, time, features);
      for (uint32_t i = 0; i < time_features(declared.time); ++i) {
        const size_t c = declared.column + i;
        batch.categorical[batch.category_at(static_cast<size_t>(r), c)] = features[i];
        batch.id_present.add(r, c, is_present);
      }
      if (splits) batch.split_value[r] = static_cast<uint64_t>(time);
    }
  }
}

// Parses rows of any format; see `parse_rows`.
template <typename Steps>
CLICKS_INLINE bool parse_rows_of_schema(const uint8_t* text, const FieldEnds& fields,
                                        const RowFormat& format, RowBatch& batch,
                                        uint8_t* rejected) {
  const int rows = fields.rows;
  batch.rows = rows;
  batch.unquoted.clear();
  batch.numerical_present.clear(rows, format.num_numerical);
  batch.id_present.clear(rows, format.num_categorical);
  for (ListColumn& list : batch.lists) list.elements->clear();
  std::fill_n(batch.label, rows, 0);
  std::fill_n(rejected, rows, 0);
  for (uint32_t f = 0; f < format.num_fields; ++f) {
    const Field& declared = format.fields[f];
    if (declared.role == kIgnored) continue;
    const ColumnFields column(text, fields, format, f, batch.unquoted);
    switch (declared.role) {
      case kLabelRole:
        for (int r = 0; r < rows; ++r) {
          rejected[r] |=
              !read_label(column.field[r], column.length[r], format, declared, batch.label[r]);
        }
        break;
      case kNumericalRole:
        parse_numbers(column, format, f, batch, rejected);
        break;
      case kCategoricalRole:
        read_categories<Steps>(column, declared, batch, rejected);
        break;
      default:
        read_column_apart(column, format, f, batch, rejected);
    }
  }
  if (format.split.kind == SplitRule::kAtRandom || format.group_field != kNoField) {
    for (int r = 0; r < rows; ++r) hash_row(text, fields, format, r, batch);
  }
  uint8_t any = 0;
  for (int r = 0; r < rows; ++r) any |= rejected[r];
  return any == 0;
}

}  // namespace clicks
