#include "client/command/remote_cost.h"

#include <algorithm>
#include <cmath>

#include "client/private_broker/json_field.h"
#include "client/private_broker/table.h"
#include "common/format.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Bytes that come so much more often than once are worth a window.
constexpr double kTimesWorth = 1.05;

uint64_t Bytes(double bytes) {
  return static_cast<uint64_t>(std::llround(std::max(0.0, bytes)));
}

// Rows that are looked ahead at once.
double RowsAhead(const RemoteData& data) {
  return std::min(
      static_cast<double>(data.ahead_rows),
      static_cast<double>(data.ahead_bytes) / std::max(data.row_bytes, 1.0));
}

double RowsOfFile(const RemoteData& data) {
  return static_cast<double>(data.rows) /
         static_cast<double>(std::max<uint64_t>(data.files, 1));
}

// Between rows of one block, in the order of the epoch.
double RowsApart(const RemoteData& data) {
  if (!data.shuffled) return 1;
  if (!data.window_files) return static_cast<double>(data.rows);
  return static_cast<double>(*data.window_files) * RowsOfFile(data);
}

// How often the blocks of rows come that are not looked ahead together.
double TimesOfBlocks(const RemoteData& data) {
  return data.row_bytes > 0
             ? std::max(1.0, data.row_block_bytes / data.row_bytes)
             : 1;
}

std::string TimeOf(uint64_t bytes, double bytes_per_s) {
  return bytes_per_s > 0
             ? ", " + FormatSeconds(static_cast<double>(bytes) / bytes_per_s)
             : "";
}

std::string WindowText(const RemoteData& data) {
  const Downloads now = DownloadsOf(data);
  if (now.all_kept || !data.shuffled) return "";
  if (data.window_files && now.times < kTimesWorth) {
    return Format(
        " Windows of {} download each byte once in a pass; one takes up to {} "
        "of the disk.",
        Counted(*data.window_files, "file"),
        FormatBytes(WindowBytes(data, *data.window_files)));
  }
  if (now.times < kTimesWorth) {
    return " A shuffle of all records downloads each byte once in a pass: a "
           "window of files would save nothing.";
  }
  const std::string costs = Format(
      " {} downloads what is not kept {:.1f} times in a pass, because rows "
      "that lie in one block of 4 KiB are far apart.",
      data.window_files
          ? Format("A window of {}", Counted(*data.window_files, "file"))
          : "A shuffle of all records",
      now.times);
  const uint64_t window = WindowOf(data);
  if (window == 0) {
    return costs +
           Format(
               " No window of files helps: a file has {} rows, and {} are "
               "looked ahead; write smaller files, or keep all.",
               FormatCount(Bytes(RowsOfFile(data))),
               FormatCount(Bytes(RowsAhead(data))));
  }
  RemoteData windowed = data;
  windowed.window_files = window;
  return costs + Format(
                     " `shuffle: {{window_files: {}}}` downloads each byte "
                     "once, {} in a later epoch; a window takes up to {} of "
                     "the disk.",
                     window, FormatBytes(DownloadsOf(windowed).later_bytes),
                     FormatBytes(WindowBytes(data, window)));
}

}  // namespace

std::optional<RemoteData> RemoteDataOf(const DatasetIndex& index) {
  const nlohmann::json& remote = FieldOf(index.answer, "remote");
  if (!remote.is_object()) return std::nullopt;
  const auto count = [&remote](const char* key) {
    return CountField(remote, key).value_or(0);
  };
  const nlohmann::json& shuffle = FieldOf(index.spec, "shuffle");
  return RemoteData{count("files"),
                    count("bytes"),
                    count("rows"),
                    NumberField(remote, "row_bytes").value_or(0),
                    NumberField(remote, "row_block_bytes").value_or(0),
                    count("room_bytes"),
                    count("kept_bytes"),
                    count("ahead_bytes"),
                    count("ahead_rows"),
                    count("free_bytes"),
                    shuffle.is_object(),
                    CountField(shuffle, "window_files")};
}

Downloads DownloadsOf(const RemoteData& data) {
  Downloads found;
  const double needed = static_cast<double>(data.rows) * data.row_bytes;
  found.all_kept = data.bytes <= data.kept_bytes;
  if (found.all_kept) {
    found.first_bytes = data.bytes;
    return found;
  }
  const auto left = [&data](uint64_t kept) {
    return std::max(
        0.0, 1 - static_cast<double>(kept) / static_cast<double>(data.bytes));
  };
  if (RowsApart(data) > RowsAhead(data)) found.times = TimesOfBlocks(data);
  const double passes = needed * left(data.kept_bytes) * found.times;
  found.first_bytes = Bytes(needed * (1 - left(data.kept_bytes)) + passes);
  found.later_bytes = Bytes(passes);
  found.least_bytes = Bytes(needed * left(data.room_bytes));
  return found;
}

uint64_t WindowOf(const RemoteData& data) {
  return std::min(
      static_cast<uint64_t>(RowsAhead(data) / std::max(RowsOfFile(data), 1e-9)),
      data.files);
}

uint64_t WindowBytes(const RemoteData& data, uint64_t files) {
  return Bytes(static_cast<double>(data.bytes) /
               static_cast<double>(std::max<uint64_t>(data.files, 1)) *
               static_cast<double>(std::min(files, data.files)));
}

std::string IndexText(const DatasetIndex& index) {
  const nlohmann::json& remote = FieldOf(index.answer, "remote");
  const auto count = [&remote](const char* key) {
    return CountField(remote, key).value_or(0);
  };
  std::string text;
  const auto add = [&](const char* key, const std::string& what) {
    if (count(key) == 0) return;
    text += Format("{}{} {}", text.empty() ? "" : ", ",
                   Counted(count(key), "file's", "files'"), what);
  };
  add("index_kept", "in the cache folder");
  add("index_beside", "beside the files");
  add("index_scanned",
      Format("by reading them once ({}): `penstock index --out` writes it "
             "beside them",
             FormatBytes(count("index_scanned_bytes"))));
  return text.empty() ? "none is needed, or the format has its own" : text;
}

std::string DownloadsText(const RemoteData& data, double bytes_per_s) {
  const Downloads found = DownloadsOf(data);
  const std::string first =
      Format("{} in the first epoch{}", FormatBytes(found.first_bytes),
             TimeOf(found.first_bytes, bytes_per_s));
  const std::string room =
      Format("{} for copies, {} free on the disk", FormatBytes(data.room_bytes),
             FormatBytes(data.free_bytes));
  if (found.all_kept) {
    return Format("{}, then nothing: all of it is kept ({})", first, room);
  }
  // The part of the room that stays grows with it.
  const double all =
      static_cast<double>(data.bytes) * static_cast<double>(data.room_bytes) /
      static_cast<double>(std::max<uint64_t>(data.kept_bytes, 1));
  return Format(
      "{}, then {} in each{}, at least {} with this room: {} is kept ({}); "
      "`cache: {{files: {}}}` keeps all",
      first, FormatBytes(found.later_bytes),
      TimeOf(found.later_bytes, bytes_per_s), FormatBytes(found.least_bytes),
      FormatBytes(data.kept_bytes), room,
      std::to_string((Bytes(all) >> 20) + 1) + "M");
}

std::string RemoteText(const RemoteData& data, double bytes_per_s,
                       double made_per_s) {
  const Downloads found = DownloadsOf(data);
  std::string text =
      Format("Of {} in object stores ({}) it downloads {}.{}",
             Counted(data.files, "file"), FormatBytes(data.bytes),
             DownloadsText(data, bytes_per_s), WindowText(data));
  if (bytes_per_s <= 0 || made_per_s <= 0 || data.rows == 0) return text;
  const auto rows = static_cast<double>(data.rows);
  const auto per_s = [&](uint64_t bytes) {
    return rows * bytes_per_s / static_cast<double>(bytes);
  };
  const auto told = [&](const char* epochs, uint64_t bytes) {
    if (bytes == 0) return std::string();
    return Format(
        " In {} {}/s of network give {} samples/s, {} the {} that "
        "can be made.",
        epochs, FormatBytes(Bytes(bytes_per_s)),
        FormatCount(Bytes(per_s(bytes))),
        per_s(bytes) < made_per_s ? "less than" : "enough for",
        FormatCount(Bytes(made_per_s)));
  };
  return text + told("the first epoch", found.first_bytes) +
         told("later ones", found.later_bytes);
}

nlohmann::ordered_json RemoteJson(const RemoteData& data, double bytes_per_s) {
  const Downloads found = DownloadsOf(data);
  nlohmann::ordered_json json = {{"files", data.files},
                                 {"bytes", data.bytes},
                                 {"bytes_per_s", bytes_per_s},
                                 {"first_epoch_bytes", found.first_bytes},
                                 {"epoch_bytes", found.later_bytes},
                                 {"epoch_bytes_least", found.least_bytes},
                                 {"kept_bytes", data.kept_bytes},
                                 {"room_bytes", data.room_bytes},
                                 {"free_bytes", data.free_bytes},
                                 {"window_files", WindowOf(data)}};
  json["window_bytes"] = WindowBytes(data, WindowOf(data));
  return json;
}

}  // namespace penstock
