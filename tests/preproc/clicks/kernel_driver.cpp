// SPDX-License-Identifier: Apache-2.0
// Runs the whole kernel over files and random damage of them, for AddressSanitizer to watch.
//
// kernel_driver ROUNDS FEATURES FILE...   a line per round: rows, rejected rows, kept categories,
//                                         clicks, and the sum of the ids of its lines
//
// FEATURES: a feature file, by which the lines of FILE are transformed too.

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../../../preproc/clicks/kernel/clicks_kernel.cpp"

using namespace clicks;

static void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", what, clicks_last_message());
  std::exit(1);
}

static std::string damage(std::string text, std::mt19937& random) {
  static const std::string kPieces[] = {
      "\t",   "\n",           "\r\n", "-",      std::string(1, '\0'),
      "\xff", "123456789012", "\n\n", "\t\t\t", "ffffffffff",
      "\"",   "\t\"",         "\"\t", "\"\"",   "{\"\":",
      "[[{",  "\\ud83d",      "}"};
  const size_t times = text.empty() ? 0 : random() % 200;
  for (size_t i = 0; i < times; ++i) {
    const size_t at = random() % text.size();
    const std::string& piece = kPieces[random() % std::size(kPieces)];
    text.replace(at, std::min<size_t>(random() % 3, text.size() - at), piece);
  }
  return text.substr(0, random() % 4 == 0 ? random() % (text.size() + 1) : text.size());
}

// Packs the fields of a row, those of a Criteo log or of a schema.
static std::string random_format(std::mt19937& random) {
  const uint64_t moduli[] = {0, 1, 1000, 40000000, uint64_t{1} << 32};
  const bool is_criteo = random() % 2, has_label = !is_criteo || random() % 3;
  RowHeader header{};
  header.modulus = moduli[random() % std::size(moduli)];
  header.minimum = static_cast<int64_t>(random() % 3) - 1;
  header.offset = 2 + static_cast<int64_t>(random() % 3);
  header.bins_numerical = random() % 2;
  header.missing_is_zero_after = random() % 2;
  header.delimiter = '\t';
  header.has_header = random() % 4 == 0;
  header.group_field = header.split.field = kNoField;
  // An empty name; 1 is a click and 0 none; of features none is missing, or -1 and an empty text.
  static const uint8_t kTexts[] = {0, 1, 1, '1', 1, 1, '0', 0, 2, 2, '-', '1', 0};
  std::vector<Field> fields(kFields, Field{});
  for (uint32_t f = 0; f < kFields; ++f) {
    Field& field = fields[f];
    const bool is_number = f >= 1 && f <= kNumericals;
    field.role = f == 0 ? kLabelRole : is_number ? kNumericalRole : kCategoricalRole;
    field.column = static_cast<uint8_t>(f == 0 ? 0 : f - (is_number ? 1 : 1 + kNumericals));
    field.type = is_number ? kWholeNumber : kHexadecimal;
    field.texts_at = f == 0 ? 1 : is_criteo ? 7 : 8;
    if (is_criteo) continue;
    field.type = is_number && random() % 2 ? kDecimal : is_number ? kWholeNumber : random() % 3;
    field.buckets = random() % 2 * (1 + random() % 1000);
    field.number = {random() % 2, 0.0, 1.0};
  }
  if (!has_label) fields.erase(fields.begin());
  if (!is_criteo) {
    header.other_is_negative = random() % 4 == 0;
    header.quote = random() % 2 ? 0 : '"';
    header.is_json = random() % 3 == 0;  // of the keys one is read, which has no name
    // Categories of the last fields are times, or lists of elements between these digits.
    static const char* const kFormats[] = {"unix_s", "iso8601", "%Y%m%d", "%y-%m-%d %H:%M:%S"};
    for (uint32_t f = kFields - 3; f < kFields - 1; ++f) {
      if (random() % 2) continue;
      fields[f].role = kTimestampRole;
      std::strncpy(fields[f].time.format, kFormats[random() % std::size(kFormats)], 31);
      fields[f].time.zone_minutes = static_cast<int32_t>(random() % 2879) - 1439;
      fields[f].time.features = 1u << random() % 3;
    }
    if (random() % 2) {
      Field& list = fields[kFields - 1];
      list.role = kListRole;
      list.column = 0;
      list.list = {'0', random() % 2 ? uint32_t{'8'} : 0, 1 + static_cast<uint32_t>(random() % 3),
                   static_cast<uint32_t>(random() % 2), 0};
    }
    if (random() % 2) {
      const uint32_t field = 1 + random() % (kFields - 1);
      const bool by_time = fields[kFields - 2].role == kTimestampRole && random() % 2;
      header.split = {by_time ? SplitRule::kByTime : SplitRule::kAtRandom,
                      by_time             ? kFields - 2
                      : random() % 2 != 0 ? field
                                          : kNoField,
                      random(),
                      {uint64_t{1} << 62, uint64_t{3} << 61}};
      if (by_time) header.split.cuts[0] = 1000000000000, header.split.cuts[1] = 1700000000000;
      header.counts_train = random() % 2;
      header.group_field = random() % 2 ? field : kNoField;
    }
  }
  header.num_fields = static_cast<uint32_t>(fields.size());
  header.text_bytes = sizeof(kTexts);
  std::string packed(reinterpret_cast<const char*>(&header), sizeof(header));
  packed.append(reinterpret_cast<const char*>(fields.data()), fields.size() * sizeof(Field));
  return packed.append(reinterpret_cast<const char*>(kTexts), sizeof(kTexts));
}

static void run(const std::string& text, std::mt19937& random) {
  const std::string packed = random_format(random);
  const RowFormat format(packed.data(), packed.size());
  const IdColumns id_columns(format);
  const int columns = id_columns.count() + id_columns.num_lists();
  char name[] = "kernel_driver_XXXXXX";
  const int runs_fd = mkstemp(name);
  unlink(name);
  const int null = open("/dev/null", O_RDWR);
  Progress progress{};
  const uint64_t limit = random() % 5 == 0 ? random() % 1000 : UINT64_MAX;
  Reader* scan =
      clicks_scan_open(packed.data(), packed.size(), 1, limit, runs_fd, null, 0, &progress);
  require(scan != nullptr, "open");
  for (size_t at = 0; at < text.size();) {
    // Pieces in blocks of their own size, so that reading past one is seen.
    const size_t size = std::min<size_t>(1 + random() % 100000, text.size() - at);
    const std::vector<uint8_t> piece(text.begin() + at, text.begin() + at + size);
    require(clicks_read_text(scan, piece.data(), size) == 0, "scan");
    at += size;
  }
  ScanSummary summary;
  require(clicks_scan_finish(scan, &summary) == 0, "finish");
  std::vector<Run> runs(summary.num_runs);
  clicks_scan_runs(scan, runs.data());
  clicks_read_close(scan);

  const off_t bytes = lseek(runs_fd, 0, SEEK_END);
  std::vector<uint64_t> entries(static_cast<size_t>(bytes) / sizeof(uint64_t));
  require(pread(runs_fd, entries.data(), static_cast<size_t>(bytes), 0) == bytes, "read runs");
  std::vector<ColumnDictionary*> dictionaries;
  std::vector<std::vector<uint8_t>> files;  // of which wide dictionaries hold addresses
  files.reserve(2 * static_cast<size_t>(columns));
  uint64_t kept = 0;
  for (uint32_t column = 0; column < static_cast<uint32_t>(columns); ++column) {
    std::vector<RunSlice> slices;
    for (const Run& r : runs) {
      if (r.column == column) slices.push_back({entries.data() + r.first_word, r.words});
    }
    KeyType type = KeyType::kNarrow;
    for (const Field& field : format.fields) {
      if (!field.has_wide_keys() || id_columns.of(field) != static_cast<int>(column)) continue;
      type = field.type == kText ? KeyType::kText : KeyType::kInteger;
    }
    int fds[2];
    for (int& fd : fds) {
      char file_name[] = "kernel_driver_XXXXXX";
      fd = mkstemp(file_name);
      unlink(file_name);
    }
    MergeResult merged;
    const uint64_t limit = random() % 4, max_ids = random() % 3 == 0 ? 1 + random() % 100 : 0;
    require(clicks_merge(slices.data(), slices.size(), limit, max_ids, 1 << 21,
                         static_cast<uint32_t>(type), nullptr, fds[0], fds[1], -1, &progress,
                         &merged) == 0,
            "merge");
    for (const int fd : fds) {
      std::vector<uint8_t>& bytes = files.emplace_back(lseek(fd, 0, SEEK_END));
      const auto size = static_cast<ssize_t>(bytes.size());
      require(pread(fd, bytes.data(), bytes.size(), 0) == size, "read dictionary");
      close(fd);
    }
    const std::vector<uint8_t>&keys = files[files.size() - 2], &ends = files.back();
    dictionaries.push_back(
        clicks_dictionary_open(static_cast<uint32_t>(type), keys.data(), keys.size(),
                               type == KeyType::kText ? ends.data() : nullptr, merged.kept));
    require(dictionaries.back() != nullptr, "dictionary");
    kept += merged.kept;
    MergeResult grown;
    require(
        clicks_merge(slices.data(), slices.size(), limit, 0, 1 << 21, static_cast<uint32_t>(type),
                     dictionaries.back(), null, null, null, &progress, &grown) == 0,
        "merge of a later day");
    require(max_ids != 0 || grown.kept == 0, "known categories get no second id");
  }

  std::vector<EncodeTarget> targets(2);
  const uint64_t rows = summary.rows;
  for (size_t i = 0; i < 2; ++i) {
    EncodeTarget& target = targets[i];
    target = EncodeTarget{};
    target.first_row = i * (rows / 3);
    target.rows = i == 0 ? rows / 3 : rows / 2;
    target.group_fd = format.group_field == kNoField ? -1 : null;
    if (format.split.kind != SplitRule::kNone) {
      target.first_row = 0;
      target.rows = summary.split_rows[i];
      target.split = static_cast<uint32_t>(i);
    }
    target.label_fd = target.float16_fd = target.float32_fd = null;
    for (int& fd : target.list_fds[0]) fd = null;
    for (int c = 0; c < columns; ++c) {
      target.categorical_fds[c] = null;
      target.id_bytes[c] = static_cast<uint8_t>(1 << (random() % 3));
    }
  }
  Reader* encode = clicks_encode_open(dictionaries.data(), packed.data(), packed.size(),
                                      targets.data(), 2, 0, &progress);
  require(clicks_read_text(encode, reinterpret_cast<const uint8_t*>(text.data()), text.size()) == 0,
          "encode");
  uint64_t read = 0;
  require(clicks_encode_finish(encode, &read) == 0, "encode finish");
  require(limit != UINT64_MAX || read == rows, "rows differ");
  clicks_read_close(encode);
  for (ColumnDictionary* dictionary : dictionaries) clicks_dictionary_close(dictionary);
  close(runs_fd);
  close(null);
  uint64_t rejected = 0;
  for (uint64_t count : summary.rejected) rejected += count;
  std::printf("%llu %llu %llu %llu ", static_cast<unsigned long long>(rows),
              static_cast<unsigned long long>(rejected), static_cast<unsigned long long>(kept),
              static_cast<unsigned long long>(targets[0].positives + targets[1].positives));
}

static void transform(LineTransform* features, const std::string& text) {
  uint32_t shape[4];
  clicks_transform_shape(features, shape);
  int64_t sum = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const size_t label = std::min(text.find('\t', at), end);
    const std::vector<uint8_t> line(text.begin() + std::min(label + 1, end), text.begin() + end);
    at = end + 1;
    std::vector<float> numerical(shape[0]);
    std::vector<int64_t> ids(shape[2]);
    std::vector<float> scale(shape[3]);
    uint64_t rejected;
    const int form = static_cast<int>(at % 2);
    const int status = clicks_transform_rows(features, form, line.data(), line.size(), 1,
                                             numerical.data(), ids.data(), scale.data(), &rejected);
    if (status == kOk) {
      for (int64_t id : ids) sum += id;
    }
  }
  std::printf("%lld\n", static_cast<long long>(sum));
}

// Writes cells from buffers of their own size, so that reading past one is seen.
static void write_random_rows(std::mt19937& random) {
  static const char* const kTexts[] = {"", "a", "\t", "\\", "of some more bytes than are copied"};
  const uint64_t rows = 1 + random() % 20;
  std::vector<CellColumn> columns(1 + random() % 5);
  std::vector<std::vector<uint8_t>> texts(columns.size()), bits(columns.size());
  std::vector<std::vector<int32_t>> ends(columns.size()), indices(columns.size());
  for (size_t c = 0; c < columns.size(); ++c) {
    const bool has_codes = random() % 2;
    const uint64_t count = has_codes ? 1 + random() % 4 : rows;
    ends[c].push_back(0);
    for (uint64_t t = 0; t < count; ++t) {
      const std::string text = kTexts[random() % std::size(kTexts)];
      texts[c].insert(texts[c].end(), text.begin(), text.end());
      ends[c].push_back(static_cast<int32_t>(texts[c].size()));
    }
    texts[c].shrink_to_fit();
    for (uint64_t i = 0; i < (count + 7) / 8; ++i) {
      bits[c].push_back(static_cast<uint8_t>(random()));
    }
    for (uint64_t r = 0; has_codes && r < rows; ++r) {
      indices[c].push_back(static_cast<int32_t>(random() % count));
    }
    columns[c] = CellColumn{};
    columns[c].ends = ends[c].data();
    columns[c].text = texts[c].data();
    columns[c].text_bytes = texts[c].size();
    columns[c].texts = count;
    columns[c].text_bits = random() % 2 ? bits[c].data() : nullptr;
    columns[c].indices = has_codes ? indices[c].data() : nullptr;
  }
  std::vector<uint8_t> text(clicks_measure_rows(columns.data(), columns.size(), rows));
  const uint64_t size = clicks_write_rows(columns.data(), columns.size(), rows, text.data());
  const auto lines = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(size), '\n');
  require(static_cast<uint64_t>(lines) == rows, "rows written");
}

int main(int argc, char** argv) {
  std::mt19937 random(17);
  const int rounds = std::atoi(argv[1]);
  LineTransform* features = clicks_transform_open(argv[2]);
  require(features != nullptr, argv[2]);
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    require(!text.empty(), argv[i]);
    for (int round = 0; round <= rounds; ++round) {
      const std::string damaged = round == 0 ? text : damage(text, random);
      run(damaged, random);
      write_random_rows(random);
      transform(features, damaged);
    }
  }
  clicks_transform_close(features);
  return 0;
}
