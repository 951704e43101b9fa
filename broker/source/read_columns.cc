// The cache's layout, native byte order: Header, the key, the values, the ends
// of the texts, the texts.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"
#include "broker/index/cache_file.h"
#include "broker/index/fingerprint.h"
#include "broker/index/in_parallel.h"
#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/selection.h"

namespace penstock {
namespace {

constexpr uint64_t kColumnsMagic = 0x324c4f4354534e50;  // "PNSTCOL2"
constexpr char kCacheKind[] = "column";
// Records of one turn of a thread, and of it at once in flight.
constexpr uint64_t kTurn = 1 << 14;
constexpr uint32_t kInFlight = 64;
constexpr uint64_t kProgress = 256;  // records between two reports
constexpr uint64_t kInFlightBytes = uint64_t{8} << 20;
// Bytes of a file whose size is not known before it is read.
constexpr uint64_t kFileBytes = uint64_t{1} << 20;
// What a text takes besides its bytes, in a map and in the list.
constexpr uint64_t kTextBytes = 128;

struct Header {
  uint64_t magic = kColumnsMagic;
  uint64_t key_bytes = 0;
  uint64_t records = 0;
  uint64_t bad_records = 0;
  uint64_t first_bad = 0;
  uint64_t texts = 0;
  uint64_t text_bytes = 0;
  Fingerprint::Digest digest{};
};
static_assert(sizeof(Header) == 72);

// A feature that a column can be made of.
struct Readable {
  size_t feature = 0;                   // of the source, or of what is made
  std::optional<size_t> bytes_feature;  // of a text: the one with its length
  DType dtype = DType::kInt64;          // of a number
};

std::optional<Readable> FindReadable(const RawSpec& raw_spec,
                                     const std::string& name) {
  const auto find = [&](const std::string& wanted) {
    return std::find_if(
        raw_spec.begin(), raw_spec.end(),
        [&](const RawFeature& raw) { return raw.feature.name == wanted; });
  };
  const auto found = find(name);
  if (found == raw_spec.end()) return std::nullopt;
  Readable readable = {.feature = static_cast<size_t>(found - raw_spec.begin()),
                       .dtype = found->feature.dtype};
  if (IsNumber(*found)) return readable;
  const auto bytes = find(name + "_bytes");
  if (found->encoded || found->feature.dtype != DType::kUint8 ||
      found->feature.shape.size() != 1 || bytes == raw_spec.end() ||
      bytes->feature.dtype != DType::kInt64 || !bytes->feature.shape.empty()) {
    return std::nullopt;
  }
  readable.bytes_feature = static_cast<size_t>(bytes - raw_spec.begin());
  return readable;
}

bool IsRead(const Source& source, const std::string& name) {
  const std::array names = {name};
  return FindReadable(source.raw_spec(), name) &&
         (source.wait_ns() == 0 || source.OfFeatures(names) != nullptr);
}

std::string_view TextIn(const RawRecord& raw, const Readable& readable) {
  const std::span<const std::byte> room = raw[readable.feature];
  const auto bytes = ValueAt<int64_t>(raw[*readable.bytes_feature].data());
  return {
      reinterpret_cast<const char*>(room.data()),
      std::min(room.size(), static_cast<size_t>(std::max<int64_t>(bytes, 0)))};
}

uint64_t BytesOf(const ReadRequest& request) {
  const auto bytes_of = [](const ReadPart& part) {
    return part.kind == ReadPart::Kind::kFile ? kFileBytes : part.bytes;
  };
  uint64_t bytes = bytes_of(request);
  for (const ReadPart& part : request.more) bytes += bytes_of(part);
  return bytes;
}

// Records without a value whose errors are none. Any thread adds to them.
class BadRecords {
 public:
  // numbers: the value is one, and 0 for them.
  BadRecords(const WithoutValues& without, bool numbers)
      : without_(without), takes_(numbers && without.bad_ones) {}

  bool excludes(uint64_t record) const { return without_.has(record); }
  // status: of the record. Gives what is left of it.
  Status Take(uint64_t record, const Status& status) {
    if (status.ok() || excludes(record)) return OkStatus();
    if (!takes_ || status.code() != StatusCode::kDataLoss) return status;
    const std::lock_guard<std::mutex> lock(mutex_);
    first_ = count_++ == 0 ? record : std::min(first_, record);
    return OkStatus();
  }

  // Once all threads are done.
  uint64_t count() const { return count_; }
  uint64_t first() const { return first_; }

 private:
  const WithoutValues& without_;
  const bool takes_;
  std::mutex mutex_;
  uint64_t count_ = 0;
  uint64_t first_ = 0;
};

// Calls each(record, raw) for the records [begin, end), in any order.
template <typename Each>
Status ReadRecords(const Source& source, uint64_t begin, uint64_t end,
                   BadRecords* bad, const Each& each) {
  std::vector<std::byte> scratch;
  RawRecord raw;
  ReadRequest request;
  source.Locate(begin, &request);
  if (request.kind == ReadRequest::Kind::kNone) {
    for (uint64_t record = begin; record < end; ++record) {
      const Status unpacked = source.Unpack(record, {}, &scratch, &raw);
      PENSTOCK_RETURN_IF_ERROR(unpacked.ok() ? each(record, raw)
                                             : bad->Take(record, unpacked));
    }
    return OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<StorageReader> reader,
                            MakeStorageReader(ReadBackend::kAuto, kInFlight));
  struct InFlight {
    uint64_t record = 0;
    uint64_t bytes = 0;
  };
  std::array<InFlight, kInFlight> in_flight;
  std::vector<uint32_t> free(reader->blocking() ? 1 : kInFlight);
  for (uint32_t i = 0; i < free.size(); ++i) free[i] = i;
  uint64_t bytes_in_flight = 0;
  uint64_t next = begin;
  Status status;
  while (next < end || reader->in_flight() > 0) {
    while (status.ok() && next < end && !free.empty() &&
           bytes_in_flight < kInFlightBytes) {
      request.more.clear();
      source.Locate(next, &request);
      const uint32_t ticket = free.back();
      free.pop_back();
      in_flight[ticket] = {next++, BytesOf(request)};
      bytes_in_flight += in_flight[ticket].bytes;
      if (reader->Start(ticket, request, {}, kNotPinned)) break;
    }
    reader->Submit();
    StorageReader::Done done;
    for (bool any = reader->Next(kWaitForever, &done); any;
         any = reader->Next(kNoWait, &done)) {
      const InFlight read = in_flight[done.ticket];
      if (status.ok() && done.status.ok()) {
        status = source.Unpack(read.record, done.read(), &scratch, &raw);
        status = status.ok() ? each(read.record, raw)
                             : bad->Take(read.record, status);
      } else if (status.ok() && !bad->excludes(read.record)) {
        status = done.status;  // storage may give it another time
      }
      bytes_in_flight -= read.bytes;
      reader->Release(done.ticket);
      free.push_back(done.ticket);
    }
    if (!status.ok() && reader->in_flight() == 0) break;
  }
  return status;
}

// The same of records that a process makes, in their order.
template <typename Each>
Status MakeRecords(const Source& source, uint64_t begin, uint64_t end,
                   BadRecords* bad, const OpenProgress& progress,
                   const Each& each) {
  constexpr uint64_t kAtOnce = 1024;
  const std::unique_ptr<Source::Maker> maker =
      source.MakeMaker([&progress] { return progress.cancel.load(); });
  std::vector<Source::Wanted> wanted;
  RawRecord raw;
  for (uint64_t record = begin; record < end; ++record) {
    if ((record - begin) % kAtOnce == 0) {
      wanted.clear();
      for (uint64_t i = record; i < std::min(end, record + kAtOnce); ++i) {
        wanted.push_back({i, 0});
      }
    }
    const auto rest = std::span(wanted).subspan((record - begin) % kAtOnce);
    Status made = AbortedError("not asked");
    while (made.code() == StatusCode::kAborted) {
      maker->Expect(0, rest);
      made = maker->Make(0, rest.front(), &raw);
    }
    PENSTOCK_RETURN_IF_ERROR(
        made.ok() ? each(record, raw)
                  : bad->Take(record, made.Prepend(source.Describe(record))));
  }
  return OkStatus();
}

// Any thread adds texts.
class Texts {
 public:
  explicit Texts(OpenProgress* progress) : progress_(progress) {}

  StatusOr<uint32_t> PlaceOf(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = places_.find(text);
    if (found != places_.end()) return found->second;
    if (places_.size() == std::numeric_limits<uint32_t>::max()) {
      return ResourceExhaustedError("more than 2^32 different texts");
    }
    PENSTOCK_RETURN_IF_ERROR(progress_->reserve(kTextBytes + text.size()));
    return places_.emplace(text, static_cast<uint32_t>(places_.size()))
        .first->second;
  }

  // Returns the texts in byte order; *places become those in this list.
  std::vector<std::string> Sort(std::vector<uint32_t>* places) const {
    const std::map<std::string, uint32_t> sorted(places_.begin(),
                                                 places_.end());
    std::vector<std::string> texts;
    std::vector<uint32_t> moved(sorted.size());
    for (const auto& [text, place] : sorted) {
      moved[place] = static_cast<uint32_t>(texts.size());
      texts.push_back(text);
    }
    for (uint32_t& place : *places) place = moved[place];
    return texts;
  }

 private:
  OpenProgress* const progress_;
  std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> places_;
};

// The texts that one thread knows: it asks the list of all only for a new one.
class KnownTexts {
 public:
  explicit KnownTexts(Texts* all) : all_(all) {}

  StatusOr<uint32_t> PlaceOf(std::string_view view) {
    std::string text(view);
    const auto found = places_.find(text);
    if (found != places_.end()) return found->second;
    PENSTOCK_ASSIGN_OR_RETURN(const uint32_t place, all_->PlaceOf(text));
    if (places_.size() == kMost) places_.clear();
    places_.emplace(std::move(text), place);
    return place;
  }

 private:
  static constexpr size_t kMost = 4096;
  Texts* const all_;
  std::unordered_map<std::string, uint32_t> places_;
};

uint64_t BitsOf(const ColumnValue& number) {
  if (const auto* whole = std::get_if<int64_t>(&number)) {
    return static_cast<uint64_t>(*whole);
  }
  return std::bit_cast<uint64_t>(std::get<double>(number));
}

template <typename T>
bool Fill(CacheReader* cache, uint64_t count, std::vector<T>* values) {
  if (count > cache->left() / sizeof(T)) return false;
  values->resize(count);
  return cache->Read(std::as_writable_bytes(std::span(*values)));
}

}  // namespace

class ColumnValues {
 public:
  // made: nullptr: the column is a feature of the source.
  ColumnValues(std::string name, const Readable& readable,
               const MadeNumbers* made, uint64_t records)
      : name_(std::move(name)),
        readable_(readable),
        made_(made),
        records_(records) {}

  const std::string& name() const { return name_; }
  ColumnValue At(uint64_t record) const {
    if (readable_.bytes_feature) return texts_[places_[record]];
    const uint64_t bits = numbers_[record];
    if (IsWhole()) return static_cast<int64_t>(bits);
    return std::bit_cast<double>(bits);
  }
  bool is_text() const { return readable_.bytes_feature.has_value(); }
  uint64_t bad_records() const { return bad_records_; }
  uint64_t first_bad() const { return first_bad_; }
  uint64_t memory_bytes() const {
    uint64_t bytes = numbers_.size() * sizeof(numbers_[0]) +
                     places_.size() * sizeof(places_[0]);
    for (const std::string& text : texts_) bytes += kTextBytes + text.size();
    return bytes;
  }
  Fingerprint::Digest Digest() const {
    Fingerprint fingerprint("column");
    fingerprint.Add(std::as_bytes(std::span(numbers_)));
    fingerprint.Add(std::as_bytes(std::span(places_)));
    for (const std::string& text : texts_) {
      fingerprint.Add(text.size());
      fingerprint.Add(text);
    }
    return fingerprint.digest();
  }

  // From the cache, else from the records: those that are made of them all at
  // once.
  static Status Find(std::span<ColumnValues* const> columns,
                     const SourceSpec& spec, const Source& source,
                     const WithoutValues& without, OpenProgress* progress) {
    std::vector<ColumnValues*> missing;
    for (ColumnValues* each : columns) {
      PENSTOCK_RETURN_IF_ERROR(progress->reserve(
          each->records_ * (each->readable_.bytes_feature ? sizeof(uint32_t)
                                                          : sizeof(uint64_t))));
      each->key_ = each->KeyOf(spec, source, without);
      PENSTOCK_ASSIGN_OR_RETURN(const bool cached,
                                each->ReadCache(without, progress));
      if (!cached) missing.push_back(each);
    }
    if (missing.empty()) return OkStatus();
    BadRecords bad(without, !missing[0]->is_text());
    if (missing[0]->made_ == nullptr) {
      PENSTOCK_RETURN_IF_ERROR(missing[0]->Read(source, &bad, progress));
    } else {
      PENSTOCK_RETURN_IF_ERROR(MakeAll(missing, source, &bad, progress));
    }
    for (ColumnValues* each : missing) {
      each->bad_records_ = bad.count();
      each->first_bad_ = bad.first();
      // A failure costs time at the next opening.
      if (!each->key_.empty() && !source.Changed()) (void)each->WriteCache();
    }
    return OkStatus();
  }

 private:
  bool IsWhole() const {
    return readable_.dtype != DType::kFloat32 &&
           readable_.dtype != DType::kFloat64;
  }

  // What a thread does with each record, and then.
  struct Turn {
    std::function<Status(uint64_t record, const RawRecord& raw)> each;
    std::function<Status()> end = [] { return OkStatus(); };
  };

  Status Read(const Source& source, BadRecords* bad, OpenProgress* progress) {
    Texts texts(progress);
    if (readable_.bytes_feature) {
      places_.resize(records_);
    } else {
      numbers_.resize(records_);
    }
    const std::array names = {name_};
    const std::unique_ptr<Source> alone = source.OfFeatures(names);
    const Source& column = alone ? *alone : source;
    const Readable readable = *FindReadable(column.raw_spec(), name_);
    PENSTOCK_RETURN_IF_ERROR(
        OfAllRecords(column, /*in_processes=*/false, bad, progress, [&] {
          return Turn{[&, known = std::make_shared<KnownTexts>(&texts)](
                          uint64_t record, const RawRecord& raw) {
            if (readable.bytes_feature) {
              PENSTOCK_ASSIGN_OR_RETURN(places_[record],
                                        known->PlaceOf(TextIn(raw, readable)));
              return OkStatus();
            }
            SetNumber(record, readable, raw[readable.feature].data());
            return OkStatus();
          }};
        }));
    texts_ = texts.Sort(&places_);
    return OkStatus();
  }

  static Status MakeAll(std::span<ColumnValues* const> columns,
                        const Source& source, BadRecords* bad,
                        OpenProgress* progress) {
    const MadeNumbers& made = *columns[0]->made_;
    for (ColumnValues* each : columns) each->numbers_.resize(each->records_);
    const auto take = [&, columns](uint64_t record, const auto& numbers) {
      if (!numbers.ok()) {
        return bad->Take(record,
                         numbers.status().Prepend(source.Describe(record)));
      }
      for (ColumnValues* each : columns) {
        each->SetNumber(record, each->readable_,
                        (*numbers)[each->readable_.feature]);
      }
      return OkStatus();
    };
    return OfAllRecords(source, made.in_processes, bad, progress, [&] {
      const std::shared_ptr<MadeNumbers::Maker> maker = made.begin(take);
      return Turn{[maker](uint64_t record, const RawRecord& raw) {
                    return maker->Add(record, raw);
                  },
                  [maker] { return maker->Finish(); }};
    });
  }

  void SetNumber(uint64_t record, const Readable& readable,
                 const std::byte* number) {
    numbers_[record] = BitsOf(NumberOf(readable.dtype, number));
  }

  // begin_turn() gives each thread its Turn.
  template <typename Begin>
  static Status OfAllRecords(const Source& source, bool in_processes,
                             BadRecords* bad, OpenProgress* progress,
                             const Begin& begin_turn) {
    const uint64_t records = source.record_count();
    progress->done = 0;
    progress->total = records;
    const bool is_made = source.wait_ns() > 0;
    // A process for each processor, and one turn for each process.
    const uint64_t turn_records =
        is_made || in_processes
            ? std::max(
                  kTurn,
                  records / std::max(std::thread::hardware_concurrency(), 1u) +
                      1)
            : kTurn;
    const auto turns =
        static_cast<size_t>((records + turn_records - 1) / turn_records);
    return InParallel(turns, [&](size_t turn) -> Status {
      if (progress->cancel.load()) {
        return CancelledError("nobody waits any more");
      }
      const uint64_t begin = turn * turn_records;
      const uint64_t end = std::min(begin + turn_records, records);
      uint64_t kept = 0;
      const Turn of_thread = begin_turn();
      const auto keep = [&](uint64_t record, const RawRecord& raw) {
        if (++kept % kProgress == 0) progress->done += kProgress;
        return of_thread.each(record, raw);
      };
      PENSTOCK_RETURN_IF_ERROR(
          is_made ? MakeRecords(source, begin, end, bad, *progress, keep)
                  : ReadRecords(source, begin, end, bad, keep));
      PENSTOCK_RETURN_IF_ERROR(of_thread.end());
      progress->done += kept % kProgress;
      return OkStatus();
    });
  }

  // Empty: nothing tells whether the data are the same.
  std::string KeyOf(const SourceSpec& spec, const Source& source,
                    const WithoutValues& without) const {
    nlohmann::ordered_json key;
    const std::string data = source.fingerprint();
    if (data.empty() || (made_ != nullptr && made_->key.empty())) return "";
    Fingerprint times("changed");
    source.AddTimes(&times);
    WriteKind(KindsOf<SourceSpec>(), &spec, &key["source"]);
    key["data"] = data;
    key["changed"] = times.Hex();
    key["column"] = name_;
    if (made_ != nullptr) key["made"] = made_->key;
    for (const auto& [path, digest] : without.files) {
      key["without"].push_back(digest);
    }
    key["penstock"] = PENSTOCK_VERSION;  // another one may read other values
    return key.dump();
  }

  // An error is the promise of memory's.
  StatusOr<bool> ReadCache(const WithoutValues& without,
                           OpenProgress* progress) {
    if (key_.empty()) return false;
    auto cache = CacheReader::Open(CachePath(kCacheKind, key_));
    Header header;
    if (!cache || !cache->Read(std::as_writable_bytes(std::span(&header, 1))) ||
        header.magic != kColumnsMagic || header.key_bytes != key_.size() ||
        header.records != records_ || header.bad_records > records_ ||
        (header.bad_records > 0 &&
         (!without.bad_ones || header.first_bad >= records_))) {
      return false;
    }
    std::string cached_key(key_.size(), '\0');
    if (!cache->Read(std::as_writable_bytes(std::span(cached_key))) ||
        cached_key != key_) {
      return false;
    }
    ColumnValues found(name_, readable_, made_, records_);
    std::vector<uint64_t> ends;
    std::vector<char> bytes;
    const bool has_texts = readable_.bytes_feature.has_value();
    if (!(has_texts ? Fill(&*cache, records_, &found.places_)
                    : Fill(&*cache, records_, &found.numbers_)) ||
        header.texts > cache->left() / sizeof(uint64_t)) {
      return false;
    }
    PENSTOCK_RETURN_IF_ERROR(
        progress->reserve(header.texts * kTextBytes +
                          std::min(header.text_bytes, cache->left())));
    if (!Fill(&*cache, header.texts, &ends) ||
        !Fill(&*cache, header.text_bytes, &bytes)) {
      return false;
    }
    uint64_t begin = 0;
    for (const uint64_t end : ends) {
      if (end < begin || end > bytes.size()) return false;
      found.texts_.emplace_back(bytes.data() + begin, end - begin);
      begin = end;
    }
    const bool in_list =
        std::all_of(found.places_.begin(), found.places_.end(),
                    [&](uint32_t place) { return place < ends.size(); });
    if (!in_list || found.Digest() != header.digest) return false;
    bad_records_ = header.bad_records;
    first_bad_ = header.first_bad;
    numbers_ = std::move(found.numbers_);
    places_ = std::move(found.places_);
    texts_ = std::move(found.texts_);
    return true;
  }

  Status WriteCache() const {
    std::string bytes;
    std::vector<uint64_t> ends;
    for (const std::string& text : texts_) {
      bytes += text;
      ends.push_back(bytes.size());
    }
    const Header header = {.key_bytes = key_.size(),
                           .records = records_,
                           .bad_records = bad_records_,
                           .first_bad = first_bad_,
                           .texts = texts_.size(),
                           .text_bytes = bytes.size(),
                           .digest = Digest()};
    const std::array<std::span<const std::byte>, 6> regions = {
        std::as_bytes(std::span(&header, 1)), std::as_bytes(std::span(key_)),
        std::as_bytes(std::span(numbers_)),   std::as_bytes(std::span(places_)),
        std::as_bytes(std::span(ends)),       std::as_bytes(std::span(bytes))};
    return WriteCacheFile(CachePath(kCacheKind, key_), regions);
  }

  const std::string name_;
  const Readable readable_;
  const MadeNumbers* const made_;  // outlives the opening only
  const uint64_t records_;
  std::string key_;  // of the cache; "": it is not kept
  uint64_t bad_records_ = 0;
  uint64_t first_bad_ = 0;
  std::vector<uint64_t> numbers_;   // the bits of int64 or double
  std::vector<uint32_t> places_;    // of texts, in texts_
  std::vector<std::string> texts_;  // in byte order
};

std::vector<std::string> ReadColumns::NamesOf(const Source& source) {
  std::vector<std::string> names;
  for (const RawFeature& raw : source.raw_spec()) {
    if (IsRead(source, raw.feature.name)) names.push_back(raw.feature.name);
  }
  return names;
}

bool ReadColumns::Has(const Source& source, const std::string& name) {
  const Columns columns = source.columns(0);
  return IsRead(source, name) ||
         std::any_of(columns.begin(), columns.end(),
                     [&](const Column& each) { return each.name == name; });
}

StatusOr<ReadColumns> ReadColumns::Open(std::span<const ColumnUse> uses,
                                        const SourceSpec& spec,
                                        const Source& source,
                                        const WithoutValues& without,
                                        const MadeNumbers& made,
                                        OpenProgress* progress) {
  ReadColumns opened;
  if (source.record_count() == 0) return opened;
  const auto find = [&](std::span<ColumnValues* const> columns,
                        const std::string& path) {
    Status found = ColumnValues::Find(columns, spec, source, without, progress);
    if (found.code() == StatusCode::kDataLoss) {
      found = DataLossError(
          "{}; mend it, or begin `select` with `exclude` and the list of "
          "`penstock check --all`{}",
          found.message(),
          columns[0]->is_text() || without.bad_ones
              ? ""
              : ", or leave it out by `on_error: skip`");
    }
    if (found.ok()) return found;
    return AtPath(path,
                  found.Prepend(Format("column '{}'", columns[0]->name())));
  };
  std::set<std::string> known;
  for (const Column& column : source.columns(0)) known.insert(column.name);
  std::vector<ColumnValues*> of_map;
  std::string of_map_path;
  for (const ColumnUse& use : uses) {
    const std::string& name = use.name;
    const auto number =
        std::find_if(made.features.begin(), made.features.end(),
                     [&](const Feature& each) { return each.name == name; });
    const bool is_read = IsRead(source, name);
    if ((!is_read && number == made.features.end()) ||
        !known.insert(name).second) {
      continue;
    }
    if (is_read) {
      auto values = std::make_shared<ColumnValues>(
          name, *FindReadable(source.raw_spec(), name), nullptr,
          source.record_count());
      ColumnValues* const alone[] = {values.get()};
      PENSTOCK_RETURN_IF_ERROR(find(alone, use.path));
      opened.columns_.push_back(std::move(values));
      continue;
    }
    const Readable readable = {
        .feature = static_cast<size_t>(number - made.features.begin()),
        .dtype = number->dtype};
    auto values = std::make_shared<ColumnValues>(name, readable, &made,
                                                 source.record_count());
    if (of_map.empty()) of_map_path = use.path;
    of_map.push_back(values.get());
    opened.columns_.push_back(std::move(values));
  }
  PENSTOCK_RETURN_IF_ERROR(of_map.empty() ? OkStatus()
                                          : find(of_map, of_map_path));
  for (const auto& each : opened.columns_) {
    if (each->bad_records() == 0 || !opened.warning_.empty()) continue;
    opened.warning_ = Format(
        "{} of {} records have no '{}', the first of them {}: it counts as 0, "
        "and `on_error` goes on without them; `penstock check --all` lists "
        "them",
        each->bad_records(), source.record_count(), each->name(),
        source.Describe(each->first_bad()));
  }
  return opened;
}

void ReadColumns::AddTo(uint64_t first, Columns* columns) const {
  for (const auto& values : columns_) {
    columns->push_back({values->name(), [first, values](uint64_t record) {
                          return values->At(record - first);
                        }});
  }
}

uint64_t ReadColumns::memory_bytes() const {
  uint64_t bytes = 0;
  for (const auto& values : columns_) bytes += values->memory_bytes();
  return bytes;
}

void ReadColumns::AddDigests(FileDigests* digests) const {
  for (const auto& values : columns_) {
    const auto [high, low] = values->Digest();
    const std::string digest = Format("{:016x}{:016x}", high, low);
    (*digests)[Format("column {} {}", values->name(), digest)] = digest;
  }
}

}  // namespace penstock
