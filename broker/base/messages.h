// Every message of the daemon's log: the declaration of which are made the text
// of each, the fields of its entry in systemd's journal, the journal's
// catalogue (`journalctl -x`), `penstock help messages` and penstockd(8).
//
// A message keeps its id for ever, whatever becomes of its text: filters and
// alarms of administrators name it.
#ifndef BROKER_BASE_MESSAGES_H_
#define BROKER_BASE_MESSAGES_H_

#include <cstddef>
#include <string_view>

namespace penstock {

enum class LogLevel { kInfo, kWarning, kError, kCritical };
constexpr std::string_view NameOf(LogLevel level) {
  constexpr std::string_view kNames[] = {"info", "warning", "error",
                                         "critical"};
  return kNames[static_cast<size_t>(level)];
}

struct LogMessage {
  std::string_view name;
  std::string_view id;  // MESSAGE_ID: 128 random bits in hexadecimal
  LogLevel level;
  // {value} is the field PENSTOCK_VALUE too.
  std::string_view text;
  std::string_view advice;  // what it means, and what to do
};

inline constexpr LogMessage kLogMessages[] = {
    // ---- the daemon
    {"serving", "4cbaa8e1494541b2b5cac6732441deaf", LogLevel::kInfo,
     "penstockd {version} serves at {socket}, workers: {workers}, reads by "
     "{read_backend}",
     "The broker has started and answers. Nothing is to be done."},
    {"failed", "1f900b17163b4cb6bbbeac011a0eb9ae", LogLevel::kError, "{error}",
     "penstockd cannot start and has ended. The message names what is wrong. "
     "`penstockd --check` with the same options looks for mistakes in the "
     "configuration without starting."},
    {"wrong-usage", "fac85a7683124e15a4e11014d5790f2e", LogLevel::kError,
     "{error}; see `penstockd --help`",
     "The command line of penstockd has a mistake. Look at ExecStart of the "
     "unit, and at what was changed with `systemctl edit`."},
    {"no-state-directory", "5f1f60a82761419d95fbefeb78506ea2",
     LogLevel::kWarning,
     "no state directory (--state-dir): if this process dies, registered "
     "datasets, streams and all jobs but split ones are lost, and their ranks "
     "end with an error",
     "Set state_dir in the configuration. The unit has one."},
    {"stuck", "41999507c49841a19d79bbe3250abaae", LogLevel::kCritical,
     "{error}; the broker exits to be restarted",
     "A sample hangs its decoder, and only the end of the process stops it. "
     "The next instance decodes that sample alone, and leaves it out as "
     "`on_error` says when it hangs again. Ranks wait meanwhile. Look at the "
     "named sample."},
    {"thread-hangs", "a280a2a631ab475288e322444f41d4e9", LogLevel::kWarning,
     "a thread does not end (hung storage?): exiting without it",
     "penstockd was asked to end, and a read or a decoder did not let it. "
     "Nothing is lost. Look at the storage of the datasets."},
    {"owner-gone", "57f42ff0eb964aa59e065007c7171626", LogLevel::kWarning,
     "the owner process of this broker is gone: exiting",
     "A private broker (`penstock run`, a trainer with autostart) outlived the "
     "process that it served, and ends. Look at why that process was killed."},
    {"reloaded", "8d058f7eb9784f5b982a091516a06d1f", LogLevel::kInfo,
     "{file} is reloaded: {keys}",
     "The configuration was read again, and these keys are in force."},
    {"restart-needed", "a79521e655834ce1ab4ffc4ecb10541c", LogLevel::kWarning,
     "{file}: changed, but needs a restart: {keys}",
     "A reload does not apply these keys. `systemctl restart penstockd` does, "
     "without losing a batch."},
    {"reload-failed", "426ec739fbb84384beaec6d2fc4dc714", LogLevel::kError,
     "reload: {error}",
     "The configuration has a mistake at the named place. Nothing has changed. "
     "`systemctl reload` checks the file before."},
    {"workers-set", "9a77566fae534f9aa64d129db8a9a200", LogLevel::kInfo,
     "workers: {workers}, set by user {uid}",
     "`penstock workers` has changed the number of threads, until a restart."},

    {"cache-unusable", "83f86dd1f4884ce5bc277bdb1e00717c", LogLevel::kWarning,
     "cache_dir: {error}: indexes are made anew at each opening",
     "Datasets of many files open slowly. Give penstockd a folder that it may "
     "write, as CacheDirectory of the unit does."},
    {"fetcher-ended", "8a4f0b7c5d0e4c0a9b9b6c1f2f3e7d41", LogLevel::kWarning,
     "the process that fetches from object stores has ended: number {count}",
     "It is started again, and fetches what was asked of the former one."},
    {"second-socket", "fc665d7a50354c4ba320a658f854c714", LogLevel::kWarning,
     "socket activation: wanted one listening SOCK_SEQPACKET socket "
     "(ListenSequentialPacket=), found two: the second is closed",
     "Remove the other socket from penstockd.socket."},
    {"sandbox-lacks", "c32216db360a49b4a7b989b68e91484b", LogLevel::kWarning,
     "sandbox: {error}; a file that takes over a decoder is held back by the "
     "rest alone",
     "This kernel or container has no Landlock or refuses seccomp. Serve only "
     "data of users who trust each other, or allow what is named."},

    // ---- connections
    {"accept-failed", "92a14aace6794d0f84f27c4883092a88", LogLevel::kWarning,
     "cannot accept new connections for now: {error}",
     "Clients wait and are accepted later. With \"Too many open files\": raise "
     "LimitNOFILE of the unit. Each rank costs four descriptors."},
    {"connection-unwatched", "269ec1a151a34d2bae060663f6222775",
     LogLevel::kWarning, "cannot watch a new connection: {error}",
     "The connection was closed, because the kernel refused epoll a watch: "
     "see /proc/sys/fs/epoll/max_user_watches."},
    {"connection-refused", "326f040841654ae2b3162576b809df6b",
     LogLevel::kWarning, "user {uid}, process {pid}: {error}",
     "A limit of connections is reached, or the broker is private to another "
     "user. `penstock status` shows whose ranks there are."},
    {"broken-request", "54c0cc603b484d0289c83ed3f1461e0e", LogLevel::kWarning,
     "user {uid}, process {pid} does not speak the protocol: {error}",
     "The connection was closed. The client is of another version of Penstock, "
     "or no client of Penstock at all. If it does not end, look at that "
     "process."},
    {"request-refused", "ce6a086d1fc0429eacc48d0bebdb6a7d", LogLevel::kInfo,
     "user {uid}, process {pid}: {request} is refused: {error}",
     "The client was told the same, with the way out. Many of one user may be "
     "a program that tries again without end, or somebody who looks for data "
     "of others."},

    // ---- jobs and their ranks
    {"rank-died", "eb326fbdab934c99bd2aabbca13daf59", LogLevel::kInfo,
     "job '{job}': rank {rank} died",
     "A trainer process has ended without leaving its job. The job waits for "
     "another one, fails or goes on without it, as its `on_rank_death` says."},
    {"rank-back", "4d442948e6ec43bf8f8acc117db2306f", LogLevel::kInfo,
     "job '{job}': rank {rank} is back, batches handed over: {batches}",
     "Another process has taken the place of a rank that was gone."},
    {"weights-changed", "acc009fad81146c590ab21bb590f770b", LogLevel::kInfo,
     "job '{job}': its mix has other weights from row {row} of epoch {epoch} "
     "on",
     "Somebody has changed the weights of the job's mix (`penstock job NAME "
     "weights`). They are a part of its state from now on."},
    {"rank-evicted", "b01aed800c904b40a0132ad80be6b00a", LogLevel::kInfo,
     "job '{job}': rank {rank} is evicted: {reason}",
     "The rank gets no more batches. What it had is handed to others, or kept "
     "until its process ends."},
    {"rank-closed-connection", "8a4ab16ffabd411b8f8fbb94978dfd70",
     LogLevel::kWarning,
     "job '{job}': process {pid} closed its connection without detaching: "
     "evicted",
     "The process lives and holds batches, but cannot be told anything any "
     "more. Its program closed a descriptor that is not its own, for example "
     "all of them after a fork."},
    {"rank-corrupt", "85061dc477234e09ad89d9bf839cc054", LogLevel::kWarning,
     "job '{job}': rank {rank} wrote impossible values: evicted",
     "Only this rank is harmed. Its client has a bug, or something overwrote "
     "its memory: run the trainer under AddressSanitizer."},
    {"rank-node-unknown", "56a21294d12b4a158734dbfcc107e9ed",
     LogLevel::kWarning,
     "job '{job}': rank {rank}: {error}; its memory may be on any node",
     "Bind each rank to the processors of one NUMA node, as launchers do by "
     "`--bind-to numa` or `numactl`, or name the node when it attaches."},
    {"job-failed", "f51a4796b84842efa890c0e9181435e5", LogLevel::kInfo,
     "job '{job}' ends: {error}",
     "The ranks have got the same error. It names the file and the sample, or "
     "the rank, and what to do."},
    {"job-waits", "30df8fb04234412ebcdd99be7433bb84", LogLevel::kInfo,
     "job '{job}' of a former broker instance waits for its ranks",
     "penstockd was restarted. Ranks reconnect by themselves, within seconds. "
     "`penstock status` names those that have not."},
    {"job-told-end", "7b7ae5bed5e848ccbc08aead7f66505e", LogLevel::kInfo,
     "job '{job}': rank {rank} is told the end of incarnation {incarnation}, "
     "whose data were delivered before; `penstock stop` or another job name "
     "begins anew",
     "A rank came after the end of its job. If it was meant to begin a new "
     "training, give that another name, or stop the job first."},
    {"job-undelivered", "cba6fb0eafdc436c9f8b44dbc2fdb7c7", LogLevel::kWarning,
     "job '{job}' of dataset '{dataset}' is over before all was delivered: its "
     "ranks are gone, and a job of one rank without a name of its own (`job`, "
     "PENSTOCK_JOB) waits for no other",
     "Nothing is to be done if the trainer ended on purpose. A job with a name "
     "waits for the next process."},
    {"job-delivered", "78f66f9a1bf94caf86ce9f6a6343e03b", LogLevel::kInfo,
     "job '{job}': all data of incarnation {incarnation} are delivered; ranks "
     "that attach within {seconds} s and have not been told so are told the "
     "end",
     "The job has ended well."},
    {"job-warning", "ab706347c67c4775a4909e248f414c3d", LogLevel::kWarning,
     "job '{job}': {warning}",
     "Something in its data works but may not be what was meant: labels of two "
     "datasets that differ, lines that are cut, tar files that seem cut off. "
     "`penstock check` says the same of the spec."},
    {"sample-skipped", "85b14fd533ba4e1a9a89c60feb8b46d8", LogLevel::kWarning,
     "job '{job}' skips: {error} ({count} so far)",
     "The sample is left out of this epoch (`on_error: skip`). Look at the "
     "named file. penstock_job_rows_failed_total counts them by kind."},
    {"sample-substituted", "a4a8b1d04ff54d9092c92e69819af1d5",
     LogLevel::kWarning, "job '{job}' substitutes: {error} ({count} so far)",
     "Another sample has taken its place (`on_error: substitute`). Look at the "
     "named file. penstock_job_rows_failed_total counts them by kind."},
    {"producer-joined", "0885a4372f1240ac9947234f8b852095", LogLevel::kInfo,
     "job '{job}': producer {producer} is {state}",
     "A process that makes rows of a stream has come, or has come back after a "
     "restart of the broker."},
    {"producer-left", "548fae002d7a4fc6864664ef8a9680d4", LogLevel::kInfo,
     "job '{job}': producer {producer} {state}",
     "A process that makes rows of a stream has finished, or has died."},
    {"link-joined", "3b6df10c2066419c9506e80967f032c6", LogLevel::kInfo,
     "a link of user {user} has come: other hosts may make rows",
     "A process `penstock link use` has connected."},
    {"link-left", "73d4ca66d35942e4b261bc9509bea3bf", LogLevel::kInfo,
     "a link of user {user} is gone: rows are made here alone",
     "`penstock link use` has ended. Training goes on without it."},
    {"job-not-lent", "b8a03b6e60a849c9abc4c564224c9c2d", LogLevel::kWarning,
     "job '{job}': other hosts make no rows of it: {error}",
     "Its memory for their rows could not be had. Training goes on without."},
    {"maker-distrusted", "5e39118cf67c491f9ea696dab4e747d2", LogLevel::kError,
     "job '{job}': {maker} makes other rows than this host: sample {record}",
     "A row that both made differed, and this host's was delivered. That maker "
     "is asked for nothing more. Compare its files, and the versions of its "
     "libraries, with this host's."},
    {"stream-full", "c15fd122294e41d38920f45a17c20f63", LogLevel::kWarning,
     "ranks hold batches for long, and producers wait because their rings are "
     "full: {error}",
     "Rows of batches that ranks hold cannot be kept elsewhere. Let ranks "
     "release batches earlier (a smaller `hold`), give producers larger rings, "
     "or raise memory_limit."},
    {"dataset-lost", "1aca51b922b34b29b51db11f64105330", LogLevel::kWarning,
     "dataset '{dataset}' of user {uid} is no longer registered: {error}",
     "This version cannot read a spec that was registered with a former one. "
     "Its user registers it again (`penstock register`)."},

    {"inflating", "3df2c94bf39acf4bbe568ef8bfc2d098", LogLevel::kWarning,
     "inflates {files}: about {bytes} of the {allowed} that copies may "
     "take "
     "in {folder}",
     "Files that are compressed as a whole are read from local copies, which "
     "are made once and kept until others need their room. A spec's `cache: "
     "{files}` bounds those of its dataset."},
    {"opening-delayed", "30830d535a1a4edfab4fe93348ffbef8", LogLevel::kWarning,
     "cannot start a thread: {error}; a dataset opens later",
     "The limit of threads is reached: raise TasksMax of the unit."},

    // ---- memory of NUMA nodes
    {"numa-off", "359123fd307a45d1b324049e9e5dd1d2", LogLevel::kWarning,
     "NUMA is off, batches may be on any node: {error}",
     "Ranks read some batches from memory of another node, which is slower. In "
     "a container allow mbind (CAP_SYS_NICE, or the seccomp profile)."},
    {"node-full", "f555c7e5aeca4e4fa9dd57e805d0bf35", LogLevel::kWarning,
     "job '{job}': {bytes} of its batches belong on NUMA node {node}, where "
     "other jobs leave too little memory: they are not bound",
     "Ranks of that node may read from another one. Fewer or smaller jobs, a "
     "smaller `prefetch` or ranks spread over the nodes help."},
    {"not-bound", "322c2cb5dd5546fa82eda639fe3db69e", LogLevel::kWarning,
     "job '{job}': {error}",
     "Memory of its batches could not be bound to a NUMA node. It works, from "
     "the node where the memory happens to be."},
    {"pages-elsewhere", "4a41a782fb35476bbff6b6bdc144f01d", LogLevel::kWarning,
     "job '{job}': {pages} of {pages_seen} pages are not on the NUMA node they "
     "were bound to",
     "The node was full when they were made. `numactl --hardware` shows what "
     "is free; the page cache may be what fills it."},

    // ---- functions of users
    {"sample-ended-process", "599c3e2ca48b4a1d94720fb905d431de",
     LogLevel::kWarning, "python {dataset}: sample {sample}: {error}",
     "The process that makes samples of a Python dataset died or hung at this "
     "one, and is started again. When that happens again, the sample is an "
     "error (`on_error`)."},
    {"function-ended", "3e214086b91a4affb47b807d810013ea", LogLevel::kWarning,
     "python {function}: {error}",
     "The process of a Python function died. It is started again, and the row "
     "is an error (`on_error`). Look for what ends it: memory, a crash in a "
     "library."},

    // ---- workers
    {"worker-unpinned", "fdeb3801a941474996e28c78dbd593ae", LogLevel::kWarning,
     "{error}; it runs unpinned",
     "A worker may move between processors, which costs a little. Compare "
     "`cpus` of the configuration with the unit's AllowedCPUs."},
    {"worker-cpus", "88536a95fb64413f87a700c2f5738fb7", LogLevel::kWarning,
     "{error}",
     "A worker cannot be kept to the processors that were chosen, and may take "
     "time from trainers. Compare `cpus` of the configuration with the unit's "
     "AllowedCPUs."},
    {"worker-reads-plainly", "7b291d0d3e0940bea8c8945ee878aba1",
     LogLevel::kWarning, "worker {worker}: {error}; it reads with pread",
     "io_uring worked when the broker started, so memory or descriptors have "
     "run out: see LimitNOFILE and LimitMEMLOCK of the unit."},
    {"worker-held", "6d378970f2b647a1a45f8415907d0895", LogLevel::kWarning,
     "worker {worker} is held by a read that does not end; worker {other} "
     "takes its place",
     "Storage hangs. `penstock status` names the file under late reads. Other "
     "jobs go on."},
    {"worker-not-started", "f0f8d68aebe54d90b6e2e9919333944a",
     LogLevel::kWarning, "{error}",
     "No thread takes the place of a worker that is held by a read. Rows are "
     "made by fewer threads until the storage answers. Raise TasksMax of the "
     "unit."},
    {"reads-hang", "c4b60951d3424e53a0d0c1ab4ff1fa7c", LogLevel::kWarning,
     "worker {worker}: {reads} reads of ended jobs hang; it goes on beside "
     "them",
     "Storage hangs, and its users' jobs are over. Other jobs go on. Look at "
     "the mount; a hard NFS mount waits for its server for ever."},

    {"worker-makes-no-turn", "5a468af9d2b1470d8296ff6e4f8d993d",
     LogLevel::kError,
     "worker {worker} makes no turn: the service manager's watchdog will "
     "restart this service unless it does",
     "A thread hangs, not in a read. Ranks lose nothing by the restart. Report "
     "it, with the stacks of all threads (`gdb -p`, `thread apply all bt`) if "
     "it comes again."},

    // ---- samples that end the broker
    {"samples-suspected", "da11cd8166854b6ab6621a47e9cc2c39",
     LogLevel::kWarning,
     "the broker died, maybe of samples in work: {accused} (named once the "
     "dataset is open again); under suspicion are {suspects} in all, each is "
     "decoded alone until it proves innocent; {condemned} are not decoded any "
     "more ({file})",
     "penstockd crashed or was killed. Nothing is to be done if it was killed "
     "on purpose. Otherwise wait for the message that names the sample, and "
     "report that file."},
    {"sample-charged", "e4429732d54d42739e9b24dc5d9a94ae", LogLevel::kWarning,
     "job '{job}', dataset '{dataset}': the death of the broker is charged to "
     "sample {sample} in {file}, {reason}; {consequence}",
     "A sample that is not decoded any more is an error (`on_error`). Look at "
     "the named file, and report one that crashes a decoder."},
    {"samples-charged-more", "fb9fd2a5e7c746b185a065b2825fd33b",
     LogLevel::kWarning,
     "job '{job}', dataset '{dataset}': and {count} more samples that were in "
     "work",
     "Too many to be named. They are decoded alone until they prove innocent."},
    {"samples-forgotten", "c6d3a1159e7a49c3905802f19ac12e15",
     LogLevel::kWarning,
     "{file} is {reason}: set aside as {other}; which samples ended the broker "
     "before is forgotten",
     "The file is damaged or of another version. Samples that crash a decoder "
     "are found again, at the price of two deaths each."},
    {"samples-full", "9a2435b61ee144e19bd2a4f28bd7580f", LogLevel::kWarning,
     "{file}: all {count} entries are samples that ended the broker again and "
     "again: a new suspect is not remembered",
     "A dataset has very many samples that crash or hang their decoder. Repair "
     "or leave out those files."},
    {"samples-unknown", "ec16c4c3d8964253be308b99d277e546", LogLevel::kWarning,
     "{error}; a sample that ends the broker will not be known at its next "
     "start",
     "The folder in memory cannot be used: look at space and permissions of "
     "/dev/shm."},

    // ---- the state directory
    {"state-trouble", "a8b051c6ac91443284c2d21b963b8b5a", LogLevel::kError,
     "{error}",
     "The state directory is not written: the disk is full, slow, read-only or "
     "gone. Running jobs go on, and new ranks are refused where a restart "
     "would forget them. Repair the disk; penstockd tries again by itself."},
    {"state-well", "aa6d17a4e0024a56b82993c635a45631", LogLevel::kWarning,
     "the state directory {directory} is written again, nothing is missing",
     "The trouble told before is over."},
    {"state-unread", "85caae817d954eb79db6eb1a9b90af14", LogLevel::kWarning,
     "{error}",
     "A part of the journal in the state directory is damaged. What stands in "
     "front of it is used. Batches that may come twice are marked as "
     "redelivered, streams end."},
    {"state-in-memory-off", "8c3368c15ba24ce8a51f3c41ca4fb85f",
     LogLevel::kWarning,
     "no memory that outlives this process: {error}; should it be killed, the "
     "next one does not know all that the ranks have had, marks as redelivered "
     "what may come twice, and ends streams",
     "Look at space and permissions of /dev/shm."},
    {"state-not-kept", "4370072236584c53b56a9b6f0a470951", LogLevel::kError,
     "journal: {error}",
     "Nothing is recorded, as on a full disk: jobs go on, and a restart does "
     "not know them. Look at memory and /dev/shm, then restart."},
    {"state-incomplete", "f49d2962a741433b90cb454d75e57ad7", LogLevel::kWarning,
     "journal: the former broker could not keep all records, because its state "
     "directory did not take them: what may come twice is marked as "
     "redelivered, streams end",
     "Trainers that skip batches marked as redelivered are exact. Look at the "
     "disk of the state directory."},
    {"state-memory-gone", "bf7e00b322254438a11bdbe5e607ddf3",
     LogLevel::kWarning,
     "journal: what the former broker had not written yet is gone with its "
     "folder in memory: what may come twice is marked as redelivered, streams "
     "end",
     "Somebody removed files of /dev/shm while penstockd was down. Trainers "
     "that skip batches marked as redelivered are exact."},
    {"state-overwritten", "7cea2dd299454e22867326a1c0a4c2f7", LogLevel::kError,
     "journal: another program wrote into {file}",
     "A program of the broker's user damaged its records in memory. They are "
     "written anew. Find that program."},
    {"state-not-compacted", "bd43d9da06b3414a8339c91517471676",
     LogLevel::kWarning, "{error}",
     "The journal in the state directory could not be written anew, only space "
     "is wasted. It is tried again."},
    {"record-left-out", "936bcd795ee64ecba01cd0bfd7cc42ba", LogLevel::kWarning,
     "journal: a record of type {type} is left out: {error}",
     "A record in the state directory is damaged, or was written by a newer "
     "version. If penstockd was replaced by an older one, install the newer "
     "one again."},
    {"job-given-up", "853bb121e10e4bb4a28850cc1ce8e046", LogLevel::kWarning,
     "journal: job {number} is given up: {error}",
     "The record of a running job cannot be used. Its ranks end with an error, "
     "and begin again at a state of their own."},

    // ---- the log itself
    {"more-like-this", "4f3924c8ebb34fd7a00f06a88d86d405", LogLevel::kInfo,
     "{count} more like this in the last {seconds} s: {kind} of {cause}",
     "One cause made so many messages of one kind that most were left out. The "
     "level is that of the messages."},
    {"messages-lost", "1aaf771a73d64c26b5c4f3739cd9366c", LogLevel::kWarning,
     "{count} messages are lost: systemd-journald did not take them",
     "systemd-journald is overloaded or its disk hangs. penstockd does not "
     "wait for it."},

    // ---- caches of rows
    {"cache-stopped", "c607c85ac8524075ae2711c82018584a", LogLevel::kWarning,
     "cache {where}: keeps no more, training goes on: {error}",
     "What is kept by now is used on; other records are read and made each "
     "time. Give the cache less, or free memory or space on the disk; the next "
     "opening of its dataset tries again."},
    {"snapshot-complete", "cbc34ec5cafc4e12a943089c3abe0b10", LogLevel::kInfo,
     "snapshot {path}: complete, with {records} records",
     "Its records are read there from now on."},
    {"cache-damaged", "f2427a2e5e3346288a63612ef712b66c", LogLevel::kWarning,
     "cache {where}: the entry of sample {sample} is damaged and read from its "
     "source again: {error} (told once)",
     "Something wrote into the files of the cache, or the disk is failing. "
     "Nothing wrong was delivered. Remove the files to have them made anew, "
     "and look at the disk."},
};

}  // namespace penstock
#endif  // BROKER_BASE_MESSAGES_H_
