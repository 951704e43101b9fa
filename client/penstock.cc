// The C ABI: translates between penstock.h and RankReader; nothing else.
#include "client/penstock.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "client/attach/launcher.h"
#include "client/attach/own_broker.h"
#include "client/rank/producer.h"
#include "client/rank/rank_reader.h"

struct penstock_reader {
  std::unique_ptr<penstock::RankReader> reader;
  // The last results of penstock_state and penstock_fingerprint.
  std::string state;
  std::string fingerprint;
};

struct penstock_broker {
  std::unique_ptr<penstock::OwnBroker> broker;
};

struct penstock_producer {
  std::unique_ptr<penstock::Producer> producer;
};

// penstock_batch is never defined: its pointers are RankReader::Batch*.
static penstock::RankReader::Batch* FromC(penstock_batch* batch) {
  return reinterpret_cast<penstock::RankReader::Batch*>(batch);
}
static const penstock::RankReader::Batch* FromC(const penstock_batch* batch) {
  return reinterpret_cast<const penstock::RankReader::Batch*>(batch);
}

// Nor is penstock_device_batch.
static penstock::DeviceBatch* FromC(penstock_device_batch* copy) {
  return reinterpret_cast<penstock::DeviceBatch*>(copy);
}
static const penstock::DeviceBatch* FromC(const penstock_device_batch* copy) {
  return reinterpret_cast<const penstock::DeviceBatch*>(copy);
}

namespace {

using penstock::FailedPreconditionError;
using penstock::Format;
using penstock::InvalidArgumentError;
using penstock::OkStatus;
using penstock::Status;

thread_local std::string last_error;

int Fail(int code, std::string message) {
  last_error = std::move(message);
  return code;
}

int Fail(const Status& status) {
  return Fail(-static_cast<int>(status.code()), status.message());
}

int CodeOf(const Status& status) {
  return status.ok() ? static_cast<int>(PENSTOCK_OK) : Fail(status);
}
int CodeOf(int code) { return code; }

std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

// False: one of them is NULL, which is the last error.
template <typename... Pointers>
bool AllGiven(Pointers... pointers) {
  if ((... && (pointers != nullptr))) return true;
  last_error = "a pointer is NULL";
  return false;
}

// The code of body's Status, or body's own. given: of AllGiven. Keeps
// exceptions from crossing the ABI; only running out of memory throws.
template <typename Body>
int Guard(bool given, Body body) {
  if (!given) return PENSTOCK_INVALID_ARGUMENT;
  try {
    return CodeOf(body());
  } catch (const std::exception& error) {
    return Fail(PENSTOCK_INTERNAL, error.what());
  }
}

Status CheckTime(const char* name, double seconds) {
  if (seconds >= 0) return OkStatus();
  return InvalidArgumentError("{}: {}: wanted 0 seconds or more", name,
                              seconds);
}

// The callback of C as one of C++; none: nullptr.
std::function<bool()> Callback(int32_t (*ask)(void*), void* context) {
  if (ask == nullptr) return nullptr;
  return [=] { return ask(context) != 0; };
}

Status Describe(const penstock::ElementSpec& spec, uint32_t index,
                penstock_feature* feature) {
  if (index >= spec.size()) {
    return InvalidArgumentError("feature {} of {}", index, spec.size());
  }
  const penstock::Feature& from = spec[index];
  feature->name = from.name.c_str();
  feature->dtype = static_cast<uint32_t>(from.dtype);
  feature->dimensions = static_cast<uint32_t>(from.shape.size());
  for (size_t i = 0; i < PENSTOCK_DIMENSIONS_MAX; ++i) {
    feature->shape[i] = i < from.shape.size() ? from.shape[i] : 0;
  }
  feature->row_bytes = from.room > 0 ? 0 : from.RowBytes();
  return OkStatus();
}

// next: takes a RankReader and where its batch goes.
template <class Next>
int Take(penstock_reader* reader, penstock_batch** batch, const Next& next) {
  return Guard(AllGiven(reader, batch), [&] {
    *batch = nullptr;
    penstock::RankReader::Batch* taken = nullptr;
    const auto result = next(*reader->reader, &taken);
    if (!result.ok()) return Fail(result.status());
    switch (*result) {
      case penstock::RankReader::Result::kEndOfEpoch:
        return static_cast<int>(PENSTOCK_END_OF_EPOCH);
      case penstock::RankReader::Result::kEndOfData:
        return static_cast<int>(PENSTOCK_END_OF_DATA);
      case penstock::RankReader::Result::kBatch:
        break;
    }
    *batch = reinterpret_cast<penstock_batch*>(taken);
    return static_cast<int>(PENSTOCK_OK);
  });
}

}  // namespace

extern "C" {

const char* penstock_error(void) { return last_error.c_str(); }

const char* penstock_version(void) { return PENSTOCK_VERSION; }

int penstock_attach(const penstock_options* options, penstock_reader** reader) {
  return Guard(AllGiven(options, reader), [&] {
    *reader = nullptr;
    // A program built with an older header has fewer fields: the others keep
    // their defaults.
    constexpr uint32_t kSmallest = offsetof(penstock_options, delivery);
    if (options->struct_bytes < kSmallest ||
        options->struct_bytes > sizeof(penstock_options)) {
      return FailedPreconditionError(
          "penstock_options has {} bytes, this libpenstock.so takes {} to {}: "
          "initialise it with PENSTOCK_OPTIONS_INIT, and compile with the "
          "penstock.h of the library",
          options->struct_bytes, kSmallest, sizeof(penstock_options));
    }
    penstock_options given = PENSTOCK_OPTIONS_INIT;
    std::memcpy(&given, options, options->struct_bytes);
    PENSTOCK_RETURN_IF_ERROR(CheckTime("timeout_s", given.timeout_s));
    PENSTOCK_RETURN_IF_ERROR(CheckTime("wait_s", given.wait_s));
    penstock::AttachOptions attach;
    attach.dataset = OrEmpty(given.dataset);
    attach.spec = OrEmpty(given.spec);
    attach.job = OrEmpty(given.job);
    attach.socket = OrEmpty(given.socket);
    attach.rank = given.rank;
    attach.world_size = given.world_size;
    attach.local_world_size = given.local_world_size;
    attach.timeout_s = given.timeout_s;
    attach.repeat_first = given.repeat_first != 0;
    attach.delivery = OrEmpty(given.delivery);
    attach.lag = OrEmpty(given.lag);
    attach.on_rank_death = OrEmpty(given.on_rank_death);
    attach.state = OrEmpty(given.state);
    attach.window = given.window;
    attach.consumers = given.consumers;
    attach.full_epoch = given.full_epoch != 0;
    attach.per_host = given.per_host != 0;
    attach.wait_s = given.wait_s;
    attach.node = given.node;
    attach.autostart = given.autostart != 0;
    attach.replica = given.replica;
    attach.replicas = given.replicas;
    attach.local_replicas = given.local_replicas;
    attach.spec_generated = given.spec_generated != 0;
    attach.cancelled = Callback(given.cancelled, given.cancelled_context);
    attach.reconnect_s = given.reconnect_s == 0
                             ? penstock::kReconnectSeconds
                             : std::max(given.reconnect_s, 0.0);
    PENSTOCK_ASSIGN_OR_RETURN(auto attached,
                              penstock::RankReader::Attach(attach));
    *reader = new penstock_reader{std::move(attached), {}};
    return OkStatus();
  });
}

int penstock_broker_start(int32_t workers, const char* memory_limit,
                          penstock_broker** broker) {
  return Guard(AllGiven(broker), [&] {
    *broker = nullptr;
    PENSTOCK_ASSIGN_OR_RETURN(
        auto started,
        penstock::OwnBroker::Start(
            {.workers = workers, .memory_limit = OrEmpty(memory_limit)}));
    *broker = new penstock_broker{std::move(started)};
    return OkStatus();
  });
}

const char* penstock_broker_socket(const penstock_broker* broker) {
  return broker->broker->socket().c_str();
}

void penstock_broker_stop(penstock_broker* broker) { delete broker; }

int penstock_own_broker(const char** socket) {
  return Guard(AllGiven(socket), [&] {
    PENSTOCK_ASSIGN_OR_RETURN(
        const auto launch,
        penstock::DetectLaunch(penstock::ProcessEnvironment()));
    PENSTOCK_ASSIGN_OR_RETURN(
        const std::string found,
        penstock::SocketOfOwnBroker(launch.local_world_size > 1));
    // Kept for the process: a broker that died is followed by another.
    static std::mutex mutex;
    static auto* const sockets = new std::set<std::string>();
    const std::lock_guard lock(mutex);
    *socket = sockets->insert(found).first->c_str();
    return OkStatus();
  });
}

void penstock_detach(penstock_reader* reader) {
  if (reader == nullptr) return;
  penstock::RankReader::Detach(std::move(reader->reader));
  delete reader;
}

int penstock_next_within(penstock_reader* reader, double timeout_s,
                         penstock_batch** batch) {
  return Take(reader, batch, [&](penstock::RankReader& from, auto* taken) {
    return from.Next(timeout_s, taken);
  });
}

int penstock_next_ready(penstock_reader* reader, penstock_batch** batch) {
  return Take(reader, batch, [&](penstock::RankReader& from, auto* taken) {
    return from.NextReady(taken);
  });
}

int penstock_next(penstock_reader* reader, penstock_batch** batch) {
  if (!AllGiven(reader, batch)) return PENSTOCK_INVALID_ARGUMENT;
  const double timeout_s = reader->reader->default_timeout_s();
  return penstock_next_within(reader, timeout_s > 0 ? timeout_s : -1, batch);
}

void penstock_interrupt(penstock_reader* reader) {
  reader->reader->Interrupt();
}

void penstock_release(penstock_batch* batch) {
  if (batch != nullptr) penstock::RankReader::Release(FromC(batch));
}

int penstock_state(penstock_reader* reader, const char** state) {
  return Guard(AllGiven(reader, state), [&] {
    *state = nullptr;
    PENSTOCK_ASSIGN_OR_RETURN(reader->state, reader->reader->State());
    *state = reader->state.c_str();
    return OkStatus();
  });
}

int penstock_fingerprint(penstock_reader* reader, const char* part,
                         const char** text) {
  return Guard(AllGiven(reader, text), [&] {
    *text = nullptr;
    PENSTOCK_ASSIGN_OR_RETURN(reader->fingerprint,
                              reader->reader->Fingerprint(OrEmpty(part)));
    *text = reader->fingerprint.c_str();
    return OkStatus();
  });
}

int penstock_several_hosts(const penstock_reader* reader) {
  return reader->reader->several_hosts() ? 1 : 0;
}

int penstock_replaces(const penstock_reader* reader) {
  return reader->reader->replaces() ? 1 : 0;
}

int penstock_first_free_row(penstock_reader* reader, int64_t* epoch,
                            int64_t* row) {
  return Guard(AllGiven(reader, epoch, row),
               [&] { return reader->reader->FirstFreeRow(epoch, row); });
}

int penstock_reset(penstock_reader* reader, int32_t rank, int32_t world_size,
                   int32_t local_world_size, const char* state) {
  return Guard(AllGiven(reader), [&] {
    return reader->reader->Reset(rank, world_size, local_world_size,
                                 OrEmpty(state));
  });
}

int penstock_stop_job(penstock_reader* reader, int32_t now) {
  return Guard(AllGiven(reader),
               [&] { return reader->reader->StopJob(now != 0); });
}

int penstock_set_weights(penstock_reader* reader, const double* weights,
                         uint32_t count, int64_t epoch, int64_t row) {
  return Guard(AllGiven(reader, weights), [&] {
    return reader->reader->SetWeights({weights, weights + count}, epoch, row);
  });
}

int penstock_fileno(const penstock_reader* reader) {
  return reader->reader->fileno();
}

int penstock_rank(const penstock_reader* reader) {
  return static_cast<int>(reader->reader->rank());
}

int penstock_world_size(const penstock_reader* reader) {
  return static_cast<int>(reader->reader->world_size());
}

int penstock_replica(const penstock_reader* reader) {
  return static_cast<int>(reader->reader->replica());
}

int penstock_replicas(const penstock_reader* reader) {
  return static_cast<int>(reader->reader->replicas());
}

uint64_t penstock_incarnation(const penstock_reader* reader) {
  return reader->reader->incarnation();
}

const char* penstock_warning(const penstock_reader* reader) {
  return reader->reader->warning().c_str();
}

uint64_t penstock_epoch(const penstock_reader* reader) {
  return reader->reader->epoch();
}

const char* penstock_job(const penstock_reader* reader) {
  return reader->reader->job().c_str();
}

uint32_t penstock_feature_count(const penstock_reader* reader) {
  return static_cast<uint32_t>(reader->reader->element_spec().size());
}

int penstock_feature_at(const penstock_reader* reader, uint32_t index,
                        penstock_feature* feature) {
  return Guard(AllGiven(reader, feature), [&] {
    return Describe(reader->reader->element_spec(), index, feature);
  });
}

int penstock_feature_index(const penstock_reader* reader, const char* name) {
  return Guard(AllGiven(reader, name), [&] {
    const penstock::ElementSpec& spec = reader->reader->element_spec();
    for (size_t i = 0; i < spec.size(); ++i) {
      if (spec[i].name == name) return static_cast<int>(i);
    }
    std::string known;
    for (const penstock::Feature& feature : spec) {
      known += (known.empty() ? "" : ", ") + feature.name;
    }
    return Fail(PENSTOCK_INVALID_ARGUMENT,
                Format("no feature '{}'; there are: {}", name, known));
  });
}

uint64_t penstock_sample_count(const penstock_reader* reader) {
  return reader->reader->sample_count();
}

uint64_t penstock_steps_per_epoch(const penstock_reader* reader) {
  return reader->reader->steps_per_epoch();
}

uint64_t penstock_epoch_count(const penstock_reader* reader) {
  return reader->reader->epochs();
}

void penstock_get_stats(const penstock_reader* reader, penstock_stats* stats) {
  const penstock::RankReader::Stats& from = reader->reader->stats();
  stats->batches = from.batches;
  stats->rows = from.rows;
  stats->wait_s = static_cast<double>(from.wait_ns) * 1e-9;
  stats->waits = from.waits;
  stats->held = reader->reader->held();
  stats->hold_max = reader->reader->hold_max();
  stats->skipped = from.skipped;
  stats->redelivered = from.redelivered;
  stats->reconnects = from.reconnects;
}

int penstock_prefetch_to_device(penstock_reader* reader, int32_t device,
                                uint32_t batches) {
  return Guard(AllGiven(reader), [&] {
    return reader->reader->PrefetchToDevice(device, batches);
  });
}

int penstock_get_device_stats(const penstock_reader* reader,
                              penstock_device_stats* stats) {
  return Guard(AllGiven(reader, stats), [&] {
    const auto from = reader->reader->device_stats();
    if (!from) return FailedPreconditionError("the reader has no GPU");
    static thread_local std::string why;
    why = from->why_staged;
    *stats = {from->device,        from->copies,
              from->device_bytes,  from->registered_bytes,
              from->staging_bytes, why.empty() ? nullptr : why.c_str()};
    return OkStatus();
  });
}

int penstock_batch_to_device(penstock_batch* batch,
                             penstock_device_batch** copy) {
  return Guard(AllGiven(batch, copy), [&] {
    *copy = nullptr;
    PENSTOCK_ASSIGN_OR_RETURN(auto made,
                              penstock::RankReader::ToDevice(FromC(batch)));
    *copy = reinterpret_cast<penstock_device_batch*>(made.release());
    return OkStatus();
  });
}

int penstock_device_wait(penstock_device_batch* copy, void* stream) {
  return Guard(AllGiven(copy), [&] {
    return FromC(copy)->MakeWait(static_cast<penstock::cuda::Stream>(stream));
  });
}

const void* penstock_device_data(const penstock_device_batch* copy,
                                 uint32_t feature, uint64_t* bytes) {
  const auto& places = FromC(copy)->places();
  const bool known = feature < places.size();
  if (bytes != nullptr) *bytes = known ? places[feature].bytes : 0;
  return known ? reinterpret_cast<const void*>(places[feature].data) : nullptr;
}

void penstock_device_release(penstock_device_batch* copy) {
  delete FromC(copy);
}

int penstock_produce(const penstock_producer_options* options,
                     penstock_producer** producer) {
  return Guard(AllGiven(options, producer), [&] {
    *producer = nullptr;
    if (options->struct_bytes != sizeof(penstock_producer_options)) {
      return FailedPreconditionError(
          "penstock_producer_options has {} bytes, this libpenstock.so takes "
          "{}: initialise it with PENSTOCK_PRODUCER_OPTIONS_INIT, and compile "
          "with the penstock.h of the library",
          options->struct_bytes, sizeof(penstock_producer_options));
    }
    const Status null = InvalidArgumentError("a pointer is NULL");
    if (options->feature_count > 0 && options->features == nullptr) return null;
    penstock::ProduceOptions produce;
    for (uint32_t i = 0; i < options->feature_count; ++i) {
      const penstock_feature& from = options->features[i];
      if (from.name == nullptr) return null;
      if (from.dtype < PENSTOCK_UINT8 || from.dtype > PENSTOCK_BOOL ||
          from.dimensions >= PENSTOCK_DIMENSIONS_MAX ||
          std::any_of(from.shape, from.shape + from.dimensions,
                      [](int64_t size) { return size < 1; })) {
        return InvalidArgumentError(
            "feature '{}': its dtype or its shape is impossible", from.name);
      }
      produce.features.push_back({from.name,
                                  static_cast<penstock::DType>(from.dtype),
                                  {from.shape, from.shape + from.dimensions}});
    }
    PENSTOCK_RETURN_IF_ERROR(CheckTime("timeout_s", options->timeout_s));
    produce.job = OrEmpty(options->job);
    produce.dataset = OrEmpty(options->dataset);
    produce.socket = OrEmpty(options->socket);
    produce.rows = options->rows;
    produce.timeout_s = options->timeout_s;
    if (options->reconnect_s != 0) {
      produce.reconnect_s = std::max(options->reconnect_s, 0.0);
    }
    produce.cancelled =
        Callback(options->cancelled, options->cancelled_context);
    PENSTOCK_ASSIGN_OR_RETURN(auto opened, penstock::Producer::Open(produce));
    *producer = new penstock_producer{std::move(opened)};
    return OkStatus();
  });
}

uint64_t penstock_producer_next_row(const penstock_producer* producer) {
  return producer->producer->next_row();
}

int penstock_producer_reserve(penstock_producer* producer, uint64_t rows) {
  return Guard(AllGiven(producer),
               [&] { return producer->producer->Reserve(rows); });
}

void* penstock_producer_data(const penstock_producer* producer,
                             uint32_t feature) {
  return producer->producer->data(feature);
}

int penstock_producer_put(penstock_producer* producer, uint64_t rows) {
  return Guard(AllGiven(producer),
               [&] { return producer->producer->Put(rows); });
}

int penstock_producer_finish(penstock_producer* producer) {
  return Guard(AllGiven(producer),
               [&] { return producer->producer->Finish(); });
}

int penstock_producer_fail(penstock_producer* producer, const char* why) {
  return Guard(AllGiven(producer),
               [&] { return producer->producer->Fail(OrEmpty(why)); });
}

void penstock_producer_close(penstock_producer* producer) { delete producer; }

uint64_t penstock_batch_rows(const penstock_batch* batch) {
  return FromC(batch)->cell.rows;
}

uint64_t penstock_batch_valid_rows(const penstock_batch* batch) {
  return FromC(batch)->cell.valid_rows;
}

uint64_t penstock_batch_global_rows(const penstock_batch* batch) {
  return FromC(batch)->cell.global_rows;
}

uint64_t penstock_batch_epoch(const penstock_batch* batch) {
  return FromC(batch)->cell.epoch;
}

uint64_t penstock_batch_step(const penstock_batch* batch) {
  return FromC(batch)->cell.step_in_epoch;
}

int32_t penstock_batch_part(const penstock_batch* batch) {
  const auto part = penstock::PartOf(FromC(batch)->cell);
  return part ? static_cast<int32_t>(*part) : -1;
}

int penstock_batch_feature(const penstock_batch* batch, uint32_t index,
                           penstock_feature* feature) {
  return Guard(AllGiven(batch, feature), [&] {
    const penstock::RankReader::Batch* from = FromC(batch);
    return Describe(from->reader->element_spec(from->cell), index, feature);
  });
}

const void* penstock_batch_data(const penstock_batch* batch, uint32_t feature) {
  const penstock::RankReader::Batch* from = FromC(batch);
  if (feature >= from->reader->element_spec().size()) return nullptr;
  return penstock::RankReader::data(*from, feature);
}

void* penstock_batch_writable_data(penstock_batch* batch, uint32_t feature) {
  penstock::RankReader::Batch* from = FromC(batch);
  void* data = nullptr;
  Guard(true, [&] {
    const size_t features = from->reader->element_spec().size();
    if (feature >= features) {
      return InvalidArgumentError("feature {} of {}", feature, features);
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        data, penstock::RankReader::WritableData(from, feature));
    return OkStatus();
  });
  return data;
}

const int64_t* penstock_batch_ids(const penstock_batch* batch) {
  return penstock::RankReader::ids(*FromC(batch));
}

int penstock_batch_redelivered(const penstock_batch* batch) {
  return (FromC(batch)->cell.flags & penstock::kRedelivered) != 0;
}

uint64_t penstock_batch_skipped(const penstock_batch* batch) {
  return FromC(batch)->cell.skipped;
}

uint64_t penstock_batch_left_out(const penstock_batch* batch) {
  return FromC(batch)->cell.left_out;
}

}  // extern "C"
