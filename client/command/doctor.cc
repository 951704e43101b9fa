#include "client/command/doctor.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "client/private_broker/json_field.h"
#include "client/private_broker/table.h"
#include "common/format.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using Json = nlohmann::json;
using enum Severity;

// penstockd.service has them.
constexpr uint64_t kOpenFiles = 65536;
constexpr uint64_t kOpenFilesLeast = 4096;
constexpr uint64_t kLockedBytes = uint64_t{64} << 20;
// The part of its CPU quota's periods in which a control group was stopped.
constexpr double kThrottled = 0.05;
constexpr double kNearlyAll = 0.9;  // of a memory limit that is promised
// The part of the last minute in which some task waited for memory.
constexpr double kPressure = 0.1;
constexpr uint64_t kFreeBytesLeast = uint64_t{1} << 30;
// S3 refuses a clock that is 900 s off.
constexpr double kSkewSeconds = 300;
constexpr double kSkewAdviceSeconds = 30;

// The file's text, as far as a pseudo file goes; nullopt: there is none.
std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(64 * 1024, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// The number behind `key ` at the beginning of a line.
std::optional<uint64_t> NumberOf(const std::string& text,
                                 const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + " ")) return Number(line.substr(key.size() + 1));
  }
  return std::nullopt;
}

struct Mount {
  std::string device;  // "8:1"
  std::string folder;
  std::string type;
  std::string options;
};

class Examination {
 public:
  explicit Examination(const Machine& machine)
      : machine_(machine), broker_(FieldOf(machine.status, "broker")) {}

  std::vector<Finding> All() {
    Kernel();
    IoUring();
    Sandbox();
    Broker();
    Limits();
    ControlGroups();
    MemoryPressure();
    HugePages();
    Numa();
    Governor();
    Clock();
    for (const std::string& path : machine_.paths) Data(path);
    for (const Json& store : machine_.stores) Store(store);
    Folders();
    return std::move(findings_);
  }

 private:
  std::optional<std::string> Read(const std::string& path) const {
    return ReadFile(machine_.root + path);
  }
  // The first line of the file.
  std::optional<std::string> Line(const std::string& path) const {
    const std::optional<std::string> text = Read(path);
    if (!text) return std::nullopt;
    return FirstLine(*text);
  }

  void Fine(std::string subject, std::string found) {
    findings_.push_back({std::move(subject), kFine, std::move(found), "", ""});
  }
  void Add(Severity severity, std::string subject, std::string found,
           std::string change, std::string gain) {
    findings_.push_back({std::move(subject), severity, std::move(found),
                         std::move(change), std::move(gain)});
  }

  void Kernel() {
    uint64_t major = 0, minor = 0;
    const std::string& release = machine_.release;
    const size_t dot = release.find('.');
    if (dot != std::string::npos) {
      major = Number(release.substr(0, dot)).value_or(0);
      minor = Number(release.substr(dot + 1)).value_or(0);
    }
    const std::pair<uint64_t, uint64_t> version(major, minor);
    const std::string found = Format("Linux {}", release);
    if (version < std::pair<uint64_t, uint64_t>(5, 14)) {
      Add(kProblem, "kernel", found, "run Linux 5.14 or later",
          "Penstock needs it");
    } else if (version < std::pair<uint64_t, uint64_t>(6, 1)) {
      Add(kAdvice, "kernel", found, "run Linux 6.1 or later",
          "its io_uring (DEFER_TASKRUN) interrupts no worker when a read ends");
    } else {
      Fine("kernel", found);
    }
  }

  void IoUring() {
    const std::string gain =
        "a worker keeps 16 to 128 reads in flight; without it, it waits for "
        "each";
    const uint64_t disabled =
        Number(Line("/proc/sys/kernel/io_uring_disabled").value_or("0"))
            .value_or(0);
    const std::string backend = TextField(broker_, "read_backend");
    if (disabled == 2 || (disabled == 1 && machine_.io_uring_error != 0)) {
      Add(kAdvice, "io_uring",
          Format("kernel.io_uring_disabled is {}", disabled),
          disabled == 2 ? "sysctl kernel.io_uring_disabled=0"
                        : "sysctl kernel.io_uring_disabled=0, or name the "
                          "service's group in kernel.io_uring_group",
          gain);
    } else if (machine_.io_uring_error != 0) {
      Add(kAdvice, "io_uring",
          Format("io_uring_setup: {}", strerror(machine_.io_uring_error)),
          machine_.io_uring_error == ENOSYS
              ? "run a kernel that has it"
              : "allow io_uring_setup, io_uring_enter and io_uring_register in "
                "the container's seccomp profile",
          gain);
    } else if (backend.starts_with("pread")) {
      Add(kAdvice, "io_uring", "it works here, but the broker reads by pread",
          "look at its log for the reason, and at `read_backend` of its "
          "configuration",
          gain);
    } else {
      Fine("io_uring",
           backend.empty() ? "works" : "the broker uses " + backend);
    }
  }

  void Sandbox() {
    const std::string held = TextField(broker_, "sandbox");
    if (held.empty()) return;
    const std::string gain =
        "a hostile file that takes over a decoder starts no program, reaches "
        "no network, and writes nowhere but in the broker's own folders";
    if (held == "off") {
      Add(kAdvice, "sandbox", "it is off",
          "remove `sandbox: off` from the configuration (PENSTOCK_SANDBOX from "
          "the environment)",
          gain);
    } else if (held.find("landlock") == std::string::npos) {
      Add(kAdvice, "sandbox", "there is no Landlock: " + held,
          "run Linux 5.13 or later with landlock in its list of security "
          "modules (lsm= of the kernel's command line), and allow "
          "landlock_create_ruleset in the container's seccomp profile",
          gain);
    } else if (held.find("seccomp") == std::string::npos) {
      Add(kAdvice, "sandbox", "there is no seccomp: " + held,
          "run a kernel with CONFIG_SECCOMP_FILTER", gain);
    } else {
      Fine("sandbox", held);
    }
  }

  void Broker() {
    const Status& answered = machine_.answered;
    if (answered.code() == StatusCode::kPermissionDenied) {
      Add(kProblem, "broker", answered.message(),
          Format("usermod -aG penstock {}, and log in again", machine_.user),
          "this user can attach ranks");
      return;
    }
    if (!machine_.status.is_object()) {
      Add(kAdvice, "broker", answered.message(),
          "systemctl enable --now penstockd.socket, or start ranks with "
          "`penstock run`; look again while it runs",
          "what concerns a running broker is looked at too");
      return;
    }
    const std::string version = TextField(broker_, "version");
    if (version != machine_.version) {
      Add(kAdvice, "version",
          Format("the broker is {}, this command {}", version,
                 machine_.version),
          "systemctl restart penstockd (ranks go on), or install both of one "
          "version",
          "messages and fields of one fit the other");
    } else {
      Fine("version", version);
    }
    if (const std::string trouble = TextField(broker_, "journal");
        !trouble.empty()) {
      Add(kProblem, "state directory", trouble,
          "free space there, or repair its storage",
          "jobs survive the next restart of the broker");
    }
    for (const Json& read : ArrayField(machine_.status, "late_reads")) {
      Add(kProblem, "storage",
          Format("'{}' has been read for {}", TextField(read, "file", "?"),
                 FormatSeconds(NumberField(read, "seconds").value_or(0))),
          "look at that file's storage (dmesg, its server)",
          "job '" + TextField(read, "job") + "' goes on");
    }
    if (const uint64_t samples =
            CountField(broker_, "condemned_samples").value_or(0);
        samples > 0) {
      Add(kAdvice, "samples",
          Counted(samples, "sample crashes or hangs its decoder",
                  "samples crash or hang their decoder"),
          "remove them; the broker's log names them",
          "they are errors now, or left out");
    }
  }

  // nullopt: it is in another PID namespace (a container), where its number is
  // another.
  std::optional<uint64_t> BrokerPid() {
    const std::optional<uint64_t> pid = CountField(broker_, "pid");
    const std::string name =
        pid ? Line(Format("/proc/{}/comm", *pid)).value_or("penstockd") : "";
    return name == "penstockd" ? pid : std::nullopt;
  }

  void Limits() {
    const std::optional<uint64_t> pid = BrokerPid();
    if (!pid) return;
    const std::optional<std::string> text =
        Read(Format("/proc/{}/limits", *pid));
    if (!text) return;
    const auto soft = [&](const std::string& name) -> std::optional<uint64_t> {
      const size_t at = text->find(name);
      if (at == std::string::npos) return std::nullopt;
      const size_t value = text->find_first_not_of(' ', at + name.size());
      if (value == std::string::npos) return std::nullopt;
      if (text->compare(value, 9, "unlimited") == 0) {
        return std::numeric_limits<uint64_t>::max();
      }
      return Number(std::string_view(*text).substr(value));
    };
    if (const auto files = soft("Max open files")) {
      if (*files < kOpenFilesLeast) {
        Add(kAdvice, "open files", Format("the broker may have {}", *files),
            Format("LimitNOFILE={} in its unit, or ulimit -n", kOpenFiles),
            "four descriptors a rank, and one for each file being read: "
            "hundreds "
            "of ranks can attach");
      } else {
        Fine("open files", *files == std::numeric_limits<uint64_t>::max()
                               ? "no limit"
                               : Format("{}", *files));
      }
    }
    if (const auto bytes = soft("Max locked memory")) {
      if (*bytes < kLockedBytes) {
        Add(kAdvice, "locked memory",
            Format("the broker may lock {}", FormatBytes(*bytes)),
            "LimitMEMLOCK=infinity in its unit, or ulimit -l unlimited",
            "large direct reads land in memory that is pinned once, not for "
            "each read");
      } else {
        Fine("locked memory", *bytes == std::numeric_limits<uint64_t>::max()
                                  ? "no limit"
                                  : FormatBytes(*bytes));
      }
    }
  }

  // Judges the control groups of the broker, or of this process.
  void ControlGroups() {
    const std::optional<uint64_t> pid = BrokerPid();
    const std::optional<std::string> text =
        Read(Format("/proc/{}/cgroup", pid ? std::to_string(*pid) : "self"));
    if (!text) return;
    if (!std::filesystem::exists(machine_.root +
                                 "/sys/fs/cgroup/cgroup.controllers")) {
      Add(kAdvice, "control groups", "version 1, which this does not look into",
          "boot with systemd.unified_cgroup_hierarchy=1",
          "throttling and processes killed for want of memory are found here");
      return;
    }
    std::string group;
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("0::")) group = line.substr(3);
    }
    bool fine = true;
    // Limits of all groups above hold too.
    for (std::string at = group; !at.empty() && at != "/";
         at = at.substr(0, at.rfind('/'))) {
      fine &= ControlGroup(at, at == group);
    }
    if (fine) Fine("control groups", "version 2, no limit in the way");
  }

  bool ControlGroup(const std::string& group, bool own) {
    const std::string folder = "/sys/fs/cgroup" + group + "/";
    const size_t before = findings_.size();
    const std::string stat = Read(folder + "cpu.stat").value_or("");
    const uint64_t periods = NumberOf(stat, "nr_periods").value_or(0);
    const uint64_t throttled = NumberOf(stat, "nr_throttled").value_or(0);
    if (periods > 0 && throttled > kThrottled * periods) {
      Add(kAdvice, "CPU quota",
          Format("{} was stopped in {} of {} periods (cpu.max {})", group,
                 throttled, periods,
                 Line(folder + "cpu.max").value_or("unknown")),
          "raise CPUQuota= of its unit, or start fewer workers (`penstock "
          "workers`)",
          "no batch waits for the end of a period");
    }
    const std::optional<uint64_t> limit =
        Number(Line(folder + "memory.max").value_or(""));
    const uint64_t promised = CountField(broker_, "memory_bytes").value_or(0);
    if (limit && promised > kNearlyAll * *limit) {
      Add(kAdvice, "memory limit",
          Format("jobs are promised {} of the {} of {}", FormatBytes(promised),
                 FormatBytes(*limit), group),
          "raise MemoryMax= of its unit, or lower `prefetch`",
          "the next job is not refused, and pages are not reclaimed");
    }
    // Deaths of groups below count in those above.
    const uint64_t killed =
        own ? NumberOf(Read(folder + "memory.events").value_or(""), "oom_kill")
                  .value_or(0)
            : 0;
    if (killed > 0) {
      Add(kProblem, "memory limit",
          Format("{} in {} for want of memory",
                 Counted(killed, "process was killed", "processes were killed"),
                 group),
          "raise MemoryMax= of its unit, or give `memory_limit` in "
          "penstock.yaml",
          "jobs are refused with a message instead");
    }
    return findings_.size() == before;
  }

  void MemoryPressure() {
    const std::string some = Line("/proc/pressure/memory").value_or("");
    const size_t at = some.find("avg60=");
    if (at == std::string::npos) return;
    const double share =
        static_cast<double>(Number(some.substr(at + 6)).value_or(0)) / 100;
    if (share >= kPressure) {
      Add(kAdvice, "memory pressure",
          Format("tasks waited for memory in {:.0f} % of the last minute",
                 100 * share),
          "run less beside it, or lower `prefetch`",
          "files stay in the page cache, and ranks are not slowed down");
    }
  }

  void HugePages() {
    const std::optional<std::string> line =
        Line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    if (!line) return;
    if (line->find("[never]") != std::string::npos ||
        line->find("[deny]") != std::string::npos) {
      Add(kAdvice, "huge pages", Format("shmem_enabled: {}", *line),
          "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled (at "
          "boot: tmpfiles.d)",
          "the memory of a job is there 5 to 15 times as fast, with fewer TLB "
          "misses afterwards");
    } else {
      Fine("huge pages", *line);
    }
  }

  void Numa() {
    const std::string nodes =
        Line("/sys/devices/system/node/online").value_or("0");
    if (nodes.find_first_of("-,") == std::string::npos) return;
    const size_t before = findings_.size();
    if (Line("/proc/sys/kernel/numa_balancing").value_or("0") != "0") {
      Add(kAdvice, "NUMA balancing", "kernel.numa_balancing is on",
          "sysctl kernel.numa_balancing=0",
          "workers and memory are bound already: no page faults to find out "
          "where they should be");
    }
    if (Line("/proc/sys/vm/zone_reclaim_mode").value_or("0") != "0") {
      Add(kAdvice, "NUMA reclaim", "vm.zone_reclaim_mode is on",
          "sysctl vm.zone_reclaim_mode=0",
          "the page cache uses the memory of all nodes");
    }
    const std::string numa = TextField(broker_, "numa");
    if (numa.starts_with("off")) {
      Add(kAdvice, "NUMA", numa,
          "allow mbind to the broker's container (seccomp, or CAP_SYS_NICE)",
          "a batch is made in the memory of the node that reads it");
    } else if (numa.find("elsewhere") != std::string::npos) {
      Add(kAdvice, "NUMA", numa, "leave more memory free on each node",
          "batches are on the node that reads them");
    }
    if (findings_.size() == before) {
      Fine("NUMA", numa.empty() ? "nodes " + nodes : numa);
    }
  }

  void Governor() {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cpufreq/";
    const std::optional<std::string> governor =
        Line(folder + "scaling_governor");
    if (!governor) return;
    // Drivers that choose the frequency themselves: their `powersave` is not
    // the lowest frequency.
    const std::string preference =
        Line(folder + "energy_performance_preference").value_or("");
    const bool slow =
        preference.empty()
            ? *governor == "powersave" || *governor == "conservative"
            : preference == "power" || preference == "balance_power";
    const std::string found =
        preference.empty() ? *governor
                           : Format("{}, preference {}", *governor, preference);
    if (slow) {
      Add(kAdvice, "CPU frequency", "governor " + found,
          preference.empty()
              ? "cpupower frequency-set -g performance"
              : "cpupower set --epp performance (or balance_performance)",
          "workers that wake for a batch run at full speed at once");
    } else {
      Fine("CPU frequency", "governor " + found);
    }
  }

  void Clock() {
    const std::optional<std::string> source = Line(
        "/sys/devices/system/clocksource/clocksource0/current_clocksource");
    if (!source) return;
    if (*source == "hpet" || *source == "acpi_pm" || *source == "jiffies" ||
        *source == "refined-jiffies") {
      Add(kAdvice, "clock", *source,
          "boot with tsc=reliable if the machine's TSC is (dmesg says why the "
          "kernel left it)",
          "reading the time is not a system call of a microsecond");
    } else {
      Fine("clock", *source);
    }
  }

  // The mount that the path is on.
  std::optional<Mount> MountOf(const std::string& path) const {
    std::istringstream lines(Read("/proc/self/mountinfo").value_or(""));
    std::optional<Mount> found;
    for (std::string line; std::getline(lines, line);) {
      // ID PARENT DEVICE ROOT FOLDER OPTIONS [TAG ...] - TYPE ...
      std::istringstream words(line);
      std::string id, parent, root, word;
      Mount mount;
      words >> id >> parent >> mount.device >> root >> mount.folder >>
          mount.options;
      while (words >> word && word != "-") {
      }
      words >> mount.type;
      const std::string below = mount.folder == "/" ? "/" : mount.folder + "/";
      if ((path == mount.folder || path.starts_with(below)) &&
          (!found || mount.folder.size() >= found->folder.size())) {
        found = mount;
      }
    }
    return found;
  }

  void Data(const std::string& path) {
    const std::string subject = "data " + path;
    if (const std::string why = machine_.unreadable(path); !why.empty()) {
      Add(kProblem, subject, why,
          "correct the path, or let the broker's user read it: setfacl -R -m "
          "u:penstock:rX " +
              path,
          "the dataset can be opened");
      return;
    }
    const std::optional<Mount> mount = MountOf(path);
    if (!mount) return;
    const std::string found = Format("{} at {}", mount->type, mount->folder);
    const size_t before = findings_.size();
    if (mount->type.starts_with("nfs") &&
        mount->options.find("nconnect=") == std::string::npos) {
      Add(kAdvice, subject, found,
          "mount it with nconnect=8 (shown in /proc/self/mounts)",
          "reads in flight share several connections instead of one");
    }
    if (mount->type.starts_with("fuse")) {
      Add(kAdvice, subject, found,
          "copy the data to a local disk, or mount it in the kernel",
          "each read passes through another process here");
    }
    if (mount->type == "9p" || mount->type == "virtiofs" ||
        mount->type == "overlay") {
      Add(kAdvice, subject, found, "mount a volume for the data",
          "each open file passes through a second file system here");
    }
    if (mount->options.find("strictatime") != std::string::npos) {
      Add(kAdvice, subject, found + ", strictatime", "mount it with noatime",
          "a read writes nothing");
    }
    if (Rotational(mount->device)) {
      Add(kAdvice, subject, found + ", a rotating disk",
          "keep the data on an SSD, or pack small files in few large ones "
          "(tfrecord, webdataset)",
          "a shuffled read is not a movement of the disk's head");
    }
    if (findings_.size() == before) Fine(subject, found);
  }

  void Store(const Json& store) {
    const std::string url = TextField(store, "url", "?");
    const std::string subject = "store " + url;
    const std::string credentials = TextField(store, "credentials");
    const double skew_s = NumberField(store, "clock_skew_s").value_or(0);
    if (std::abs(skew_s) >= kSkewAdviceSeconds) {
      Add(std::abs(skew_s) >= kSkewSeconds ? kProblem : kAdvice, subject,
          Format("this machine's clock is {:.0f} s {} the store's",
                 std::abs(skew_s), skew_s > 0 ? "ahead of" : "behind"),
          "set the clock (timedatectl set-ntp true)",
          "S3 refuses signatures that are 15 minutes off");
    }
    if (const Json& error = FieldOf(store, "error"); error.is_object()) {
      return StoreError(store, error);
    }
    std::string best;
    double most = 0;
    for (const Json& rate : ArrayField(store, "rates")) {
      const double bytes = NumberField(rate, "bytes_per_s").value_or(0);
      if (bytes <= most) continue;
      most = bytes;
      best =
          Format("{}/s with {} of 1 MiB at once",
                 FormatBytes(static_cast<uint64_t>(bytes)),
                 Counted(CountField(rate, "at_once").value_or(0), "request"));
    }
    Fine(subject,
         Format("{:.0f} ms to the first byte, {}, {} small requests a second",
                1000 * NumberField(store, "first_byte_s").value_or(0), best,
                FormatCount(static_cast<uint64_t>(
                    NumberField(store, "requests_per_s").value_or(0)))));
    if (const auto listed = CountField(store, "listed")) {
      Fine(subject,
           Format("lists {} in {}", Counted(*listed, "object"),
                  FormatSeconds(NumberField(store, "list_s").value_or(0))));
    }
    Fine(subject, "ranges are answered; credentials: " + credentials);
    if (FieldOf(store, "etag") == false) {
      Add(kAdvice, subject, "its objects have no ETags",
          "give objects of other content other names",
          "a changed object is seen by its time and size alone");
    }
    const uint64_t throttled = CountField(store, "throttled").value_or(0);
    const uint64_t failures = CountField(store, "failed").value_or(0);
    if (throttled + failures > 0) {
      Add(kAdvice, subject,
          Format("{} were refused as too many, {} failed",
                 Counted(throttled, "request"), FormatCount(failures)),
          "ask for a higher rate, or spread keys over more prefixes",
          "no range waits for its next try");
    }
    const uint64_t free = CountField(store, "free_bytes").value_or(0);
    const uint64_t room = CountField(store, "room_bytes").value_or(0);
    const std::string copies =
        Format("copies have {} of {}, with {} free", FormatBytes(room),
               TextField(store, "folder"), FormatBytes(free));
    if (free < kFreeBytesLeast) {
      Add(kAdvice, subject, copies,
          "free some, or set PENSTOCK_CACHE_DIR to a folder of a larger disk",
          "what was fetched is kept for the next epoch");
    } else {
      Fine(subject, copies);
    }
  }

  void StoreError(const Json& store, const Json& error) {
    const std::string step = TextField(error, "step");
    const auto code =
        static_cast<StatusCode>(CountField(error, "code").value_or(0));
    const std::string found = TextField(error, "text", "it cannot be read");
    std::string change;
    if (found.find("pip install") != std::string::npos) {
      change =
          "pip install obstore, or set PENSTOCK_PYTHON to a Python that has it";
    } else if (step == "start") {
      change = "look at PENSTOCK_PYTHON and PENSTOCK_CACHE_DIR";
    } else if (step == "resolve") {
      change = "look at the address, DNS, AWS_ENDPOINT_URL and HTTPS_PROXY";
    } else if (code == StatusCode::kPermissionDenied) {
      change = Format(
          "give credentials that may list and read it, by the environment or a "
          "profile; those tried: {}",
          TextField(store, "credentials", "none"));
    } else if (step == "read_small") {
      change =
          "use a store or a web server that answers ranges (Range: bytes=)";
    } else if (code == StatusCode::kNotFound ||
               code == StatusCode::kInvalidArgument) {
      change = "correct the address: wanted a bucket, a prefix or an object";
    } else {
      change = "look at the network and the store's state; try again";
    }
    Add(kProblem, "store " + TextField(store, "url", "?"), found,
        std::move(change), "its files can be read from here");
  }

  bool Rotational(const std::string& device) const {
    // A partition has its disk's queue one folder above.
    for (const char* queue : {"/queue", "/../queue"}) {
      const std::optional<std::string> line =
          Line("/sys/dev/block/" + device + queue + "/rotational");
      if (line) return *line == "1";
    }
    return false;
  }

  void Folders() {
    for (const char* folder :
         {"/var/lib/penstock", "/var/cache/penstock", "/dev/shm"}) {
      const std::optional<Machine::Space> space = machine_.space(folder);
      if (!space || space->bytes == 0) continue;
      if (space->free_bytes < std::min(kFreeBytesLeast, space->bytes / 20)) {
        Add(kAdvice, "space",
            Format("{} free in {}", FormatBytes(space->free_bytes), folder),
            "free some, or name other folders in penstock.yaml",
            "indexes are kept, and jobs survive restarts of the broker");
      }
    }
  }

  const Machine& machine_;
  const Json& broker_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> Examine(const Machine& machine) {
  return Examination(machine).All();
}

}  // namespace penstock
