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
// What is fetched at once where all is kept, and where it is not
// (broker/fetch/python_fetcher.py).
constexpr uint64_t kUnitBytes = 512 << 10;
constexpr uint64_t kBlockBytes = 4096;

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

// Between rows of one block, of those that a host reads in an epoch.
double RowsApart(const RemoteData& data) {
  if (!data.shuffled) return 1;
  const double rows =
      data.window_files
          ? static_cast<double>(*data.window_files * data.windows) *
                RowsOfFile(data)
          : static_cast<double>(data.rows);
  return rows / static_cast<double>(data.sharing);
}

// The part of all ranges of so many bytes that have a row of this host.
double PartTouched(const RemoteData& data, uint64_t bytes) {
  const auto hosts = static_cast<double>(data.sharing);
  const double rows =
      std::max(1.0, static_cast<double>(bytes) / std::max(data.row_bytes, 1.0));
  if (data.shuffled) return 1 - std::pow(1 - 1 / hosts, rows);
  // Stretches of each step.
  const double stretch =
      std::max(1.0, static_cast<double>(data.global_batch) / hosts);
  return std::min(1.0, (stretch + rows - 1) / (stretch * hosts));
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

std::string HostsText(const RemoteData& data) {
  if (data.hosts == 1) return "";
  const Downloads found = DownloadsOf(data);
  const double times =
      static_cast<double>(found.all_hosts_bytes) /
      static_cast<double>(std::max<uint64_t>(found.all_hosts_least_bytes, 1));
  return Format(
      "; all {} hosts {} in the first epoch, {:.1f} x the least ({}){}",
      data.hosts, FormatBytes(found.all_hosts_bytes), times,
      FormatBytes(found.all_hosts_least_bytes),
      data.sharing > 1 && times >= kTimesWorth
          ? "; `shard: file` downloads each byte once"
          : "");
}

std::string WindowText(const RemoteData& data) {
  const Downloads now = DownloadsOf(data);
  // Hosts that share rows have some of each block.
  if (now.all_kept || !data.shuffled || data.sharing > 1) return "";
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

std::optional<RemoteData> RemoteDataOf(const DatasetIndex& index,
                                       uint64_t hosts, uint64_t ranks) {
  const nlohmann::json& remote = FieldOf(index.answer, "remote");
  if (!remote.is_object()) return std::nullopt;
  const auto count = [&remote](const char* key) {
    return CountField(remote, key).value_or(0);
  };
  const nlohmann::json& shuffle = FieldOf(index.spec, "shuffle");
  const bool by_file = TextField(index.spec, "shard") == "file";
  const uint64_t parts = by_file ? hosts : 1;
  return RemoteData{(count("files") + parts - 1) / parts,
                    count("bytes") / parts,
                    count("rows") / parts,
                    NumberField(remote, "row_bytes").value_or(0),
                    NumberField(remote, "row_block_bytes").value_or(0),
                    count("room_bytes"),
                    count("kept_bytes"),
                    count("ahead_bytes"),
                    count("ahead_rows"),
                    count("free_bytes"),
                    shuffle.is_object(),
                    CountField(shuffle, "window_files"),
                    FieldOf(shuffle, "each_epoch") == false,
                    hosts,
                    hosts / parts,
                    by_file ? std::max<uint64_t>(ranks / hosts, 1) : 1,
                    std::max<uint64_t>(index.global_batch, 1),
                    count("files"),
                    count("bytes")};
}

Downloads DownloadsOf(const RemoteData& data) {
  Downloads found;
  const double needed = static_cast<double>(data.rows) * data.row_bytes;
  const auto sharing = static_cast<double>(data.sharing);
  // Files of shards are those of one host each.
  const double shards = static_cast<double>(data.hosts) / sharing;
  const auto of_hosts = [&](double least) {
    found.all_hosts_bytes = found.first_bytes * data.hosts;
    found.all_hosts_least_bytes = Bytes(least * shards);
    return found;
  };
  found.all_kept = data.bytes <= data.kept_bytes;
  if (found.all_kept) {
    const auto all = static_cast<double>(data.bytes);
    const double touched = PartTouched(data, kUnitBytes);
    found.first_bytes = Bytes(all * touched);
    if (data.shuffled && !data.same_order) {
      found.later_bytes = Bytes(all * touched * (1 - touched));
    }
    return of_hosts(all);
  }
  const auto left = [&data](uint64_t kept) {
    return std::max(
        0.0, 1 - static_cast<double>(kept) / static_cast<double>(data.bytes));
  };
  const double together = needed * PartTouched(data, kBlockBytes);
  const bool apart = RowsApart(data) > RowsAhead(data);
  if (apart) found.times = TimesOfBlocks(data);
  const double passes = left(data.kept_bytes) *
                        (apart ? needed / sharing * found.times : together);
  found.first_bytes = Bytes(together * (1 - left(data.kept_bytes)) + passes);
  found.later_bytes = Bytes(passes);
  found.least_bytes = Bytes(needed / sharing * left(data.room_bytes));
  return of_hosts(needed);
}

uint64_t WindowOf(const RemoteData& data) {
  return std::min(
      static_cast<uint64_t>(RowsAhead(data) / std::max(RowsOfFile(data), 1e-9) /
                            static_cast<double>(data.windows)),
      data.files);
}

uint64_t WindowBytes(const RemoteData& data, uint64_t files) {
  return Bytes(static_cast<double>(data.bytes) /
               static_cast<double>(std::max<uint64_t>(data.files, 1)) *
               static_cast<double>(std::min(files * data.windows, data.files)));
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
    return Format("{}, then {}: all of it is kept ({}){}", first,
                  found.later_bytes == 0
                      ? "nothing"
                      : FormatBytes(found.later_bytes) +
                            " in the second and less in each",
                  room, HostsText(data));
  }
  // The part of the room that stays grows with it.
  const double all =
      static_cast<double>(data.bytes) * static_cast<double>(data.room_bytes) /
      static_cast<double>(std::max<uint64_t>(data.kept_bytes, 1));
  return Format(
      "{}, then {} in each{}, at least {} with this room: {} is kept ({}); "
      "`cache: {{files: {}}}` keeps all{}",
      first, FormatBytes(found.later_bytes),
      TimeOf(found.later_bytes, bytes_per_s), FormatBytes(found.least_bytes),
      FormatBytes(data.kept_bytes), room,
      std::to_string((Bytes(all) >> 20) + 1) + "M", HostsText(data));
}

std::string RemoteText(const RemoteData& data, double bytes_per_s,
                       double made_per_s) {
  const Downloads found = DownloadsOf(data);
  std::string text =
      Format("Of {} in object stores ({}) {} downloads {}.{}",
             Counted(std::max(data.all_files, data.files), "file"),
             FormatBytes(std::max(data.all_bytes, data.bytes)),
             data.hosts == 1 ? "it" : Format("each of {} hosts", data.hosts),
             DownloadsText(data, bytes_per_s), WindowText(data));
  if (bytes_per_s <= 0 || made_per_s <= 0 || data.rows == 0) return text;
  const double rows =
      static_cast<double>(data.rows) / static_cast<double>(data.sharing);
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
  json.update(HostsJson(data));
  return json;
}

nlohmann::json HostsJson(const RemoteData& data) {
  if (data.hosts == 1) return nlohmann::json::object();
  const Downloads found = DownloadsOf(data);
  return {{"hosts", data.hosts},
          {"host_first_epoch_bytes", found.first_bytes},
          {"host_epoch_bytes", found.later_bytes},
          {"all_hosts_bytes", found.all_hosts_bytes},
          {"all_hosts_bytes_least", found.all_hosts_least_bytes}};
}

}  // namespace penstock
