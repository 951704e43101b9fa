// penstock convert: writes what a dataset gives into shards of another format.
//
// A shard is whole or not there: it is written beside its place, synced, read
// back and renamed. kManifest, replaced by rename after each, says which row
// comes next, so that another run goes on there; the bytes of a shard do not
// depend on where runs ended.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "client/command/all_records.h"
#include "client/command/first_batch.h"
#include "client/command/output_file.h"
#include "client/command/shard_format.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_broker.h"
#include "client/private_broker/table.h"
#include "common/command_line.h"
#include "common/fd.h"
#include "common/printable.h"
#include "common/quantity.h"
#include "common/text_file.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

// Features that name rows, if convert itself asks for them.
constexpr char kPath[] = "path";  // of max_path_bytes
constexpr char kKey[] = "__key__";
constexpr uint64_t kKeyBytes = 4096;
constexpr char kManifest[] = "penstock-convert.json";
constexpr size_t kManifestBytesMax = size_t{64} << 20;
// A shard is in memory, twice.
constexpr uint64_t kShardBytesMax = uint64_t{1} << 30;
// Room for a picture or sound in a row: doubled for one that is larger, halved
// once so many rows would have had room. No other list has room for so many.
constexpr uint64_t kFileRoomMin = (uint64_t{64} << 10) - 8;
constexpr uint64_t kFileRoomMax = kFileRoomMin << 12;
constexpr uint64_t kRowsToShrink = 2048;

struct ConvertOptions {
  std::string spec;
  std::string out;
  ShardFormatOptions format;
  std::string shard_size = "128M";
  std::optional<uint64_t> steps;
  std::string key;
  bool json = false;
  PrivateBrokerOptions broker;
};

// The spec that gives the rows; `what` they are, but for the sizes of batches.
StatusOr<OrderedJson> SpecToConvert(const OrderedJson& spec,
                                    const std::set<uint64_t>& random,
                                    const ConvertOptions& options) {
  if (spec.at("source").contains("stream")) {
    return FailedPreconditionError(
        "it is a stream, which has no rows but those that producers put");
  }
  if (spec.contains("map_by_part") || spec["batch"].contains("by_part")) {
    return FailedPreconditionError(
        "its parts have steps or batches of their own: convert each part by a "
        "spec of its own");
  }
  const OrderedJson& steps = spec.at("map");
  const uint64_t count = options.steps.value_or(steps.size());
  if (count > steps.size()) {
    return InvalidArgumentError("--steps {}: its `map` has {}", count,
                                Counted(steps.size(), "step", "steps"));
  }
  OrderedJson made = spec;
  OrderedJson& map = made["map"] = OrderedJson::array();
  for (uint64_t i = 0; i < count; ++i) {
    const std::string& name = steps[i].begin().key();
    if (random.contains(i)) {
      return InvalidArgumentError(
          "map[{}].{} is random, and a shard holds one version of each row: "
          "write the rows before that step, with --steps {}",
          i, name, i);
    }
    map.push_back(steps[i]);
  }
  // Steps might mind another feature.
  if (options.format.format == "webdataset" && options.key.empty() &&
      map.empty()) {
    OrderedJson& sources = made["source"];
    const auto source = sources.begin();
    if (source.key() == "image_folder" || source.key() == "audio_folder") {
      (*source)["max_path_bytes"] = kKeyBytes;
    } else if (source.key() == "webdataset" && !(*source)["features"].empty() &&
               !(*source)["features"].contains(kKey)) {
      (*source)["features"][kKey] = {{"max_bytes", kKeyBytes}};
    }
  }
  for (const char* const key : {"shard", "cache", "snapshot", "prefetch"}) {
    made.erase(key);
  }
  made["hold"] = 1;
  ReadAllOnce(&made, 1);
  made["on_error"] = spec.value("on_error", "fail");
  return made;
}

OrderedJson WithRoom(OrderedJson spec, uint64_t file_room, uint64_t rows) {
  spec["map"].push_back({{"keep_encoded", {{"max_bytes", file_room}}}});
  spec["batch"]["size"] = rows;
  return spec;
}

// What is done and where it goes on.
struct Progress {
  OrderedJson what;    // of what the shards are made, and how
  uint64_t row = 0;    // of the plan: the next batch begins there,
  uint64_t taken = 0;  // so many of whose rows are in shards already
  uint64_t rows = 0;   // in shards
  std::vector<Shard> shards;
  OrderedJson learned;  // ShardFormat::learned
  bool done = false;

  std::string ToText() const {
    OrderedJson list = OrderedJson::array();
    for (const Shard& each : shards) list.push_back({each.rows, each.bytes});
    const OrderedJson json = {
        {"penstock_convert", 1}, {"what", what}, {"row", row},
        {"taken", taken},        {"rows", rows}, {"shards", list},
        {"learned", learned},    {"done", done}};
    return JsonLineInOrder(json) + "\n";
  }
  // nullopt: it is no such file.
  static std::optional<Progress> Parse(const std::string& text) {
    const OrderedJson json = OrderedJson::parse(text, nullptr, false);
    Progress made;
    try {
      made.what = json.at("what");
      if (json.at("penstock_convert") != 1 || !made.what.is_object()) {
        return std::nullopt;
      }
      made.row = json.at("row");
      made.taken = json.at("taken");
      made.rows = json.at("rows");
      made.learned = json.at("learned");
      made.done = json.at("done");
      for (const OrderedJson& each : json.at("shards")) {
        made.shards.push_back({each.at(0), each.at(1)});
      }
    } catch (const OrderedJson::exception&) {
      return std::nullopt;
    }
    return made;
  }
};

// Compares the file with what was written, past the page cache where the kernel
// drops it.
Status ReadBack(int fd, const std::string& path, std::string_view wrote) {
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  std::string part(size_t{1} << 20, '\0');
  for (size_t at = 0; at < wrote.size();) {
    const ssize_t got =
        pread(fd, part.data(), part.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "read '" + path + "'");
    const auto bytes = static_cast<size_t>(got);
    if (bytes == 0 ||
        wrote.substr(at, bytes) != std::string_view(part).substr(0, bytes)) {
      return DataLossError(
          "'{}': what is read is not what was written, from byte {} on: do not "
          "trust this storage",
          path, at);
    }
    at += bytes;
  }
  return OkStatus();
}

class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}

  // Makes it if need be, and holds it. Errors: another process holds it; it has
  // something else.
  StatusOr<std::optional<Progress>> Open() {
    PENSTOCK_RETURN_IF_ERROR(CheckLocal(path_));
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) {
      return ErrnoError(error.value(), "make the folder '" + path_ + "'");
    }
    lock_ = Fd(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock_) return ErrnoError(errno, "open '" + path_ + "'");
    if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      return FailedPreconditionError(
          "'{}': another `penstock convert` writes there", path_);
    }
    if (fs::exists(In(kManifest))) {
      PENSTOCK_ASSIGN_OR_RETURN(
          const std::string text,
          ReadTextFile("file", In(kManifest), kManifestBytesMax));
      if (auto found = Progress::Parse(text)) return found;
      return DataLossError("'{}' is no file of `penstock convert`",
                           In(kManifest));
    }
    for (const auto& entry : fs::directory_iterator(path_, error)) {
      const std::string name = entry.path().filename();
      if (name == std::string(kManifest) + ".part") continue;
      return FailedPreconditionError(
          "'{}' has something else in it, such as '{}': name a folder that is "
          "empty, or not there",
          path_, Printable(name));
    }
    return std::optional<Progress>();
  }

  std::string In(const std::string& name) const { return path_ + "/" + name; }

  // Whole, synced and read back, or not at all.
  Status Write(const std::string& name, const std::string& bytes) const {
    const std::string path = In(name);
    const std::string part = path + ".part";
    const auto failed = [&](int error) {
      unlink(part.c_str());
      return ErrnoError(error, "write '" + path + "'");
    };
    const Fd fd(
        open(part.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd) return failed(errno);
    if (!WriteWholly(fd.get(), bytes) || fsync(fd.get()) != 0) {
      return failed(errno);
    }
    PENSTOCK_RETURN_IF_ERROR(ReadBack(fd.get(), path, bytes));
    if (rename(part.c_str(), path.c_str()) != 0 || fsync(lock_.get()) != 0) {
      return failed(errno);
    }
    return OkStatus();
  }
  Status Write(const Progress& progress) const {
    return Write(kManifest, progress.ToText());
  }

 private:
  const std::string path_;
  Fd lock_;
};

// The name of a row among those of its shard: of the text or number of a
// feature, without what the names of tar members cannot have before their
// extension. of_file: it is a path, whose extension goes.
std::string KeyOf(std::string key, bool of_file) {
  if (of_file) {
    const size_t dot = key.rfind('.');
    if (dot != key.npos && dot > key.rfind('/') + 1) key.resize(dot);
  }
  for (char& c : key) {
    if (c == '.' || static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '_';
  }
  key.erase(0, std::min(key.find_first_not_of('/'), key.size()));
  while (key.ends_with('/')) key.pop_back();
  return key;
}

// The feature whose values name rows; "": their numbers do.
std::string KeyFeature(const OrderedJson& spec, const ConvertOptions& options) {
  if (options.format.format != "webdataset") return "";
  if (!options.key.empty() || !spec.at("map").empty()) return options.key;
  const OrderedJson& sources = spec.at("source");
  const auto source = sources.begin();
  if (source->contains("max_path_bytes")) return kPath;
  return source.key() == "webdataset" && source->at("features").contains(kKey)
             ? kKey
             : "";
}

// Its column. One of our own asking does nothing else: it is taken out.
// NotFound, InvalidArgument: --key names none, or another one than a text or
// int64.
StatusOr<std::optional<RowColumn>> TakeKey(const std::string& name,
                                           bool is_ours,
                                           std::vector<RowColumn>* columns) {
  if (name.empty()) return std::optional<RowColumn>();
  const auto found =
      std::find_if(columns->begin(), columns->end(),
                   [&](const auto& each) { return each.feature.name == name; });
  if (found == columns->end()) {
    return NotFoundError("--key {}: a row has no such feature",
                         Printable(name));
  }
  std::optional<RowColumn> key = *found;
  if (key->kind != RowColumn::Kind::kText &&
      (key->feature.dtype != DType::kInt64 || !key->feature.shape.empty())) {
    return InvalidArgumentError("--key {}: wanted a text or int64, found {}",
                                name, key->feature.ToString());
  }
  if (is_ours) columns->erase(found);
  return key;
}

// In a process of its own. Another thread writes a shard while rows of the next
// come.
class Converter {
 public:
  Converter(const ConvertOptions& options, const Folder& folder,
            uint64_t shard_bytes, OrderedJson spec, DatasetIndex index,
            std::unique_ptr<ShardFormat> format, Progress progress)
      : options_(options),
        folder_(folder),
        shard_bytes_(shard_bytes),
        spec_(std::move(spec)),
        index_(std::move(index)),
        format_(std::move(format)),
        done_(std::move(progress)),
        row_(done_.row),
        pass_over_(done_.taken),
        rows_(done_.rows) {
    if (!done_.learned.is_null()) format_->Learn(done_.learned);
  }

  StatusOr<std::string> Run(const std::string& socket) {
    while (row_ < index_.records) {
      const Status status = TakeFrom(row_, socket);
      if (!too_long_ && !shrink_) {
        PENSTOCK_RETURN_IF_ERROR(status);
        break;
      }
      if (too_long_ && room_ == kFileRoomMax) return status;
      SetRoom(too_long_ ? room_ * 2 : room_ / 2);
    }
    if (shard_rows_ > 0) PENSTOCK_RETURN_IF_ERROR(EndShard(row_, 0));
    PENSTOCK_RETURN_IF_ERROR(WaitForShard());
    if (done_.rows == 0) {
      return FailedPreconditionError("no row could be read or made");
    }
    if (!done_.done) PENSTOCK_RETURN_IF_ERROR(Finish());
    uint64_t bytes = 0;
    for (const Shard& each : done_.shards) bytes += each.bytes;
    return JsonLineInOrder({{"folder", options_.out},
                            {"shards", done_.shards.size()},
                            {"rows", done_.rows},
                            {"bytes", bytes},
                            {"broken", broken_}});
  }

 private:
  Status TakeFrom(uint64_t row, const std::string& socket) {
    AllRecords all;
    all.socket = socket;
    all.spec = WithRoom(spec_, room_, RowsAtOnce(index_)).dump();
    all.job = UniqueJobName("convert");
    all.records = index_.records - row;
    all.label = "converting";
    nlohmann::json state = FieldOf(FieldOf(index_.answer, "row"), "state");
    state["row"] = row;
    all.state = JsonLine(state);
    all.failed = [this](uint64_t record, const std::string& message) {
      NoteFailure(record, message);
    };
    too_long_ = shrink_ = false;
    rows_with_room_ = 0;
    const Status status =
        TakeAllRecords(
            all,
            [this](const ElementSpec& features) {
              columns_ = ColumnsOf(features, room_);
              const auto key = TakeKey(KeyFeature(spec_, options_),
                                       options_.key.empty(), &columns_);
              if (key.ok()) key_ = *key;
            },
            [this](const penstock_batch* batch) { return Add(batch); })
            .status();
    too_long_ |= IsTooLong(status.message());
    return status;
  }

  // What reads the shards, when all are there.
  Status Finish() {
    const std::string list = format_->Index(done_.shards);
    if (!list.empty()) {
      PENSTOCK_RETURN_IF_ERROR(folder_.Write("index.json", list));
    }
    PENSTOCK_RETURN_IF_ERROR(folder_.Write(
        "spec.yaml",
        Format("# Reads what `penstock convert` wrote here.\ndataset: {}\n"
               "source: {}\nbatch: {{size: 64}}\n",
               index_.dataset,
               JsonLineInOrder(format_->Source(done_.shards)))));
    done_.row = row_;
    done_.done = true;
    return folder_.Write(done_);
  }

  static bool IsTooLong(std::string_view message) {
    return message.find("keep_encoded has room for") != message.npos;
  }
  void NoteFailure(uint64_t record, const std::string& message) {
    if (IsTooLong(message) && room_ < kFileRoomMax) {
      too_long_ = true;
    } else if (known_broken_.insert(record).second) {
      broken_["count"] = known_broken_.size();
      if (broken_["first"].size() < 5) broken_["first"].push_back(message);
    }
  }

  void SetRoom(uint64_t room) {
    for (Feature& each : index_.element_spec) {
      if (MayBeText(each) && each.shape[0] == static_cast<int64_t>(room_)) {
        each.shape[0] = static_cast<int64_t>(room);
      }
    }
    room_ = room;
  }

  static RowValue ValueOf(const RowColumn& column, const penstock_batch* batch,
                          uint64_t row) {
    const uint64_t room = column.feature.RowBytes();
    const char* const at =
        static_cast<const char*>(penstock_batch_data(batch, column.place)) +
        row * room;
    if (!column.length) return {{at, room}, 0};
    const auto most = static_cast<uint64_t>(column.feature.shape[0]);
    const auto* const lengths =
        static_cast<const int64_t*>(penstock_batch_data(batch, *column.length));
    const uint64_t items = std::min(
        static_cast<uint64_t>(std::max<int64_t>(lengths[row], 0)), most);
    return {{at, room / most * items}, items};
  }

  Status Add(const penstock_batch* batch) {
    if (too_long_) return AbortedError("a row needs more room");
    const uint64_t rows = penstock_batch_valid_rows(batch);
    uint64_t longest = 0;
    for (uint64_t i = 0; i < rows; ++i) {
      values_.clear();
      for (const RowColumn& each : columns_) {
        values_.push_back(ValueOf(each, batch, i));
        if (each.kind == RowColumn::Kind::kFile) {
          longest = std::max<uint64_t>(longest, values_.back().items);
        }
      }
      if (i < pass_over_) continue;
      const Status added = format_->Add(Key(batch, i), values_);
      if (!added.ok()) {
        return added.Prepend(Format("sample {}", penstock_batch_ids(batch)[i]));
      }
      ++rows_;
      ++shard_rows_;
      if (format_->bytes() < shard_bytes_) continue;
      const bool is_last = i + 1 == rows;
      PENSTOCK_RETURN_IF_ERROR(
          is_last ? EndShard(row_ + penstock_batch_global_rows(batch), 0)
                  : EndShard(row_, i + 1));
    }
    pass_over_ -= std::min(pass_over_, rows);
    row_ += penstock_batch_global_rows(batch);
    rows_with_room_ = longest * 2 > room_ ? 0 : rows_with_room_ + rows;
    shrink_ = room_ > kFileRoomMin && rows_with_room_ >= kRowsToShrink;
    return shrink_ ? AbortedError("rows need less room") : OkStatus();
  }

  std::string Key(const penstock_batch* batch, uint64_t row) {
    const std::string number = Format("{:09}", rows_);
    if (!key_) return number;
    const RowValue value = ValueOf(*key_, batch, row);
    std::string key;
    if (key_->kind == RowColumn::Kind::kText) {
      key = KeyOf(std::string(value.bytes),
                  options_.key.empty() && key_->feature.name == kPath);
    } else {
      int64_t whole = 0;
      std::memcpy(&whole, value.bytes.data(), sizeof(whole));
      key = Format("{}", whole);
    }
    if (key.empty()) key = number;
    if (!keys_.insert(key).second) keys_.insert(key += "-" + number);
    return key;
  }

  // The shard is whole; the row that comes next.
  Status EndShard(uint64_t row, uint64_t taken) {
    PENSTOCK_RETURN_IF_ERROR(WaitForShard());
    done_.row = row;
    done_.taken = taken;
    done_.rows = rows_;
    done_.learned = format_->learned();
    const std::string name =
        ShardName(done_.shards.size(), format_->extension());
    PENSTOCK_ASSIGN_OR_RETURN(std::string bytes, format_->Take());
    done_.shards.push_back({shard_rows_, bytes.size()});
    shard_rows_ = 0;
    keys_.clear();
    writing_ = std::async(
        std::launch::async,
        [this, name, bytes = std::move(bytes), progress = done_]() -> Status {
          Status status = folder_.Write(name, bytes);
          if (status.ok()) status = folder_.Write(progress);
          if (status.ok()) return status;
          return Status(
              status.code(),
              Format("{}; {} finished: the same command goes on there",
                     status.message(),
                     Counted(progress.shards.size() - 1, "shard is",
                             "shards are")));
        });
    return OkStatus();
  }
  Status WaitForShard() {
    return writing_.valid() ? writing_.get() : OkStatus();
  }

  const ConvertOptions& options_;
  const Folder& folder_;
  const uint64_t shard_bytes_;
  const OrderedJson spec_;
  DatasetIndex index_;
  const std::unique_ptr<ShardFormat> format_;
  Progress done_;
  uint64_t room_ = kFileRoomMin;
  bool too_long_ = false;
  bool shrink_ = false;
  uint64_t rows_with_room_ = 0;  // twice, one after the other
  std::vector<RowColumn> columns_;
  std::vector<RowValue> values_;
  std::optional<RowColumn> key_;
  std::set<std::string> keys_;  // of the shard
  uint64_t row_;                // of the plan
  uint64_t pass_over_;  // rows from there on: of a batch, perhaps larger
  uint64_t rows_;       // delivered, those in the shard included
  uint64_t shard_rows_ = 0;
  std::set<uint64_t> known_broken_;
  OrderedJson broken_ = {{"count", 0}, {"first", OrderedJson::array()}};
  std::future<Status> writing_;
};

// Whether a folder goes on: what another spec or command has begun differs, and
// so does one whose shards are not all there.
Status CheckSame(const Progress& found, const OrderedJson& what,
                 const ShardFormat& format, const std::string& out) {
  for (const auto& [name, value] : what.items()) {
    const OrderedJson begun = found.what.value(name, OrderedJson());
    // What failed may be left out now: nothing before it did.
    if (begun == value || (name == "on_error" && begun == "fail")) continue;
    return FailedPreconditionError(
        "'{}' was begun with {}: name another folder, or remove it", out,
        name == "spec"       ? "another spec (source, select, map or dataset)"
        : name == "on_error" ? "another on_error"
        : name == "data" || name == "records"
            ? "other data: the files of the source have changed"
            : Format("another --{}", name));
  }
  if (found.row > what["records"]) {
    return DataLossError("'{}/{}' is damaged: remove the folder", out,
                         kManifest);
  }
  for (size_t i = 0; i < found.shards.size(); ++i) {
    const std::string name = ShardName(i, format.extension());
    std::error_code error;
    const uint64_t bytes = fs::file_size(fs::path(out) / name, error);
    if (!error && bytes == found.shards[i].bytes) continue;
    return DataLossError(
        "'{}/{}' is not there any more, or has not its {} bytes: remove the "
        "folder, or name another",
        out, name, found.shards[i].bytes);
  }
  return OkStatus();
}

void Tell(const OrderedJson& result, const ConvertOptions& options,
          const std::string& dataset) {
  if (options.json) return PrintJsonInOrder(result);
  ReportBroken(result["broken"], dataset + ": left out or replaced",
               "be read or made");
  Print(stdout, "{}: {} in {} of {}; read them with {}/spec.yaml\n",
        options.out,
        Counted(FormatCount(result["rows"].get<uint64_t>()), "row"),
        Counted(FormatCount(result["shards"].get<uint64_t>()), "shard"),
        options.format.format, options.out);
}

StatusOr<int> Convert(const ConvertOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t shard_bytes,
                            ParseBytes(options.shard_size));
  if (shard_bytes > kShardBytesMax) {
    return InvalidArgumentError("--shard-size {}: at most {}",
                                options.shard_size,
                                FormatBytes(kShardBytesMax));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const SpecFile file, ReadSpecFile(options.spec));
  Folder folder(options.out);
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<Progress> found, folder.Open());
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<PrivateBroker> broker,
      PrivateBroker::Start(options.broker.Without(kReported)));
  std::set<uint64_t> random;
  PENSTOCK_ASSIGN_OR_RETURN(const OrderedJson parsed,
                            ParsedSpec(broker.get(), file, &random));
  StatusOr<OrderedJson> made = SpecToConvert(parsed, random, options);
  if (!made.ok()) return made.status().Prepend(options.spec);
  OrderedJson& spec = *made;
  if (parsed.at("batch").contains("pack") && !options.json) {
    Print(stderr,
          "penstock: {}: the documents are written, each as a row, and not the "
          "sequences of `batch.pack`: give the new spec.yaml its `batch`\n",
          options.spec);
  }
  SpecFile to_read = file;
  to_read.name = "";
  to_read.base = "/";
  const auto index = [&] {
    to_read.text = WithRoom(spec, kFileRoomMin, 1).dump();
    return IndexDataset(broker->AsCall(), to_read, 1,
                        {{"epoch", 0}, {"row", 0}});
  };
  StatusOr<DatasetIndex> indexed = index();
  if (!indexed.ok() && spec["source"] != parsed["source"]) {
    // Some tar files have names in two pieces: samples are numbered then.
    spec["source"] = parsed["source"];
    indexed = index();
  }
  if (!indexed.ok()) {
    std::vector<size_t> steps(spec.at("map").size());
    std::iota(steps.begin(), steps.end(), size_t{0});
    return InFile(indexed.status(), file, steps);
  }
  PENSTOCK_RETURN_IF_ERROR(indexed->CheckHasRows(file));
  std::vector<RowColumn> columns =
      ColumnsOf(indexed->element_spec, kFileRoomMin);
  PENSTOCK_RETURN_IF_ERROR(
      TakeKey(KeyFeature(spec, options), options.key.empty(), &columns)
          .status());
  PENSTOCK_ASSIGN_OR_RETURN(
      std::unique_ptr<ShardFormat> format,
      ShardFormat::Make(options.format, std::move(columns)));
  Progress progress;
  OrderedJson rows_of = spec;
  rows_of.erase("on_error");
  progress.what = {{"to", options.format.format},
                   {"spec", JsonLineInOrder(rows_of)},
                   {"on_error", spec["on_error"]},
                   {"records", indexed->records},
                   {"data", TextField(indexed->answer, "data")},
                   {"shard-size", shard_bytes},
                   {"key", options.key},
                   {"feature", options.format.feature},
                   {"dtype", options.format.dtype}};
  if (found && !found->shards.empty()) {
    PENSTOCK_RETURN_IF_ERROR(
        CheckSame(*found, progress.what, *format, options.out));
    progress = *found;
  }
  if (!progress.done) {
    PENSTOCK_RETURN_IF_ERROR(folder.Write(progress));
  }
  const uint64_t resumed = progress.rows;
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::string result, InTakingProcess(broker.get(), [&] {
        return Converter(options, folder, shard_bytes, spec, *indexed,
                         std::move(format), std::move(progress))
            .Run(broker->socket());
      }));
  OrderedJson told = OrderedJson::parse(result, nullptr, false);
  told["rows_before"] = resumed;
  if (!options.json) ReportWarning(*indexed);
  Tell(told, options, indexed->dataset);
  return 0;
}

}  // namespace

Subcommand AddConvert(Command parent) {
  Command convert = parent.AddCommand(
      "convert", "Write a dataset in another format, in shards");
  const auto options = std::make_shared<ConvertOptions>();
  convert.AddOption("SPEC.yaml", &options->spec, "Spec of the dataset")
      .Required();
  convert.AddOption("--to", &options->format.format, "The format")
      .OneOf({std::begin(kShardFormats), std::end(kShardFormats)})
      .Required();
  convert
      .AddOption("--out", &options->out,
                 "The folder of the shards; if it has some, it goes on there")
      .Type("FOLDER")
      .Required();
  convert
      .AddOption("--steps", &options->steps,
                 "Rows are made by the first N steps of `map`, which must not "
                 "be random; by default by all")
      .Type("N");
  convert.AddOption("--shard-size", &options->shard_size, "Bytes of a shard")
      .Type("SIZE")
      .ShowDefault();
  convert
      .AddOption("--key", &options->key,
                 "webdataset: a text or int64 that names samples; by default "
                 "that of a file or in a tar file, else a number")
      .Type("FEATURE");
  convert
      .AddOption("--feature", &options->format.feature,
                 "tokens: which feature, if several have integers")
      .Type("NAME");
  convert
      .AddOption("--dtype", &options->format.dtype,
                 "tokens: as what they are written; by default as they are")
      .OneOf({"uint16", "uint32", "int32", "int64"});
  convert.AddFlag("--json", &options->json,
                  "Print the result, or the error, as JSON");
  options->broker.AddTo(convert);
  convert.SetFooter(R"(
Each record that `select` leaves is written once, in order, without
`shuffle`. What is not decoded stays the bytes of its file, so with
--steps 0 pictures and sounds are copied. A shard appears when it is
complete, synced, and read back byte for byte; the same command goes on
after the last one, and its shards are those of one run. FOLDER/spec.yaml
reads them. `tokens` has a list of integers of each row, one after the
other; `fixed` has the room of each text and list. Of a spec with
`batch.pack` the documents are written, not the sequences.

Examples:
  penstock convert photos.yaml --to webdataset --out tars --steps 0
  penstock convert text.yaml --to tokens --dtype uint16 --out tokens
  penstock convert train.yaml --to fixed --steps 1 --out records)");
  return {convert, [options] {
            return WithJsonError(Convert(*options), options->json);
          }};
}

}  // namespace penstock
