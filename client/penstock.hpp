// Penstock for C++20: a header-only wrapper over the C ABI.
//
//   penstock::Reader reader({.dataset = "train.yaml"});
//   for (penstock::Epoch epoch : reader.epochs()) {
//     for (penstock::Batch& batch : epoch) {
//       std::span<const float> images = batch.get<float>("image");
//       ...
//     }
//   }
//
// Threads: as penstock.h. Every function that can fail throws penstock::Error.
// The ends of an epoch and of the data end the two loops; they are not errors.
#ifndef PENSTOCK_HPP_
#define PENSTOCK_HPP_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "penstock.h"

namespace penstock {
// Gives these classes their own mangled names: libpenstock.so has internal
// classes of the same names.
inline namespace v1 {

class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  // One of the negative PENSTOCK_ results.
  int code() const { return code_; }

 private:
  int code_;
};

namespace internal {
inline int Check(int code) {
  if (code < 0) throw Error(code, penstock_error());
  return code;
}
// By the type that is pointed to; of other types there is none.
constexpr uint32_t DTypeOf(const uint8_t*) { return PENSTOCK_UINT8; }
constexpr uint32_t DTypeOf(const int8_t*) { return PENSTOCK_INT8; }
constexpr uint32_t DTypeOf(const int16_t*) { return PENSTOCK_INT16; }
constexpr uint32_t DTypeOf(const int32_t*) { return PENSTOCK_INT32; }
constexpr uint32_t DTypeOf(const int64_t*) { return PENSTOCK_INT64; }
constexpr uint32_t DTypeOf(const float*) { return PENSTOCK_FLOAT32; }
constexpr uint32_t DTypeOf(const double*) { return PENSTOCK_FLOAT64; }
constexpr uint32_t DTypeOf(const bool*) { return PENSTOCK_BOOL; }
inline const char* OrNull(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}
}  // namespace internal

// See penstock_options. Fields left as they are come from the launcher, or are
// the default. Times are seconds.
struct Options {
  std::string dataset = {};  // registered name or path of a spec file
  std::string spec = {};     // or the spec's text
  std::string job = {};
  std::string socket = {};
  int rank = -1;
  int world_size = 0;
  int local_world_size = 0;
  double timeout_s = 0;  // 0: no limit
  bool repeat_first = false;
  std::string delivery = {};       // split, dynamic, broadcast, independent
  std::string lag = {};            // broadcast: block, skip, fail
  std::string on_rank_death = {};  // wait, fail, shrink
  std::string state = {};          // of Reader::state
  int window = 0;     // broadcast: batches; 0: prefetch of the spec
  int consumers = 0;  // broadcast; 0: local_world_size, at least 8
  bool full_epoch = false;
  bool per_host = false;
  double wait_s = 0;       // 0: 600; else also for a broker to listen
  double reconnect_s = 0;  // 0: 60; negative: do not wait
  int node = -1;           // NUMA node; -1: found out
  bool autostart = false;
  int replicas = 0;        // processes that are one rank
  int replica = -1;        // which of them this is
  int local_replicas = 0;  // of each rank on this host
};

// A private broker; see penstock_broker_start. The destructor stops it.
class Broker {
 public:
  explicit Broker(int workers = 0, const std::string& memory_limit = "") {
    internal::Check(penstock_broker_start(
        workers, internal::OrNull(memory_limit), &broker_));
  }
  Broker(Broker&& other) noexcept
      : broker_(std::exchange(other.broker_, nullptr)) {}
  Broker& operator=(Broker&&) = delete;
  ~Broker() { penstock_broker_stop(broker_); }
  // For Options::socket.
  std::string socket() const { return penstock_broker_socket(broker_); }

 private:
  penstock_broker* broker_ = nullptr;
};

class Reader;

// A batch on the GPU; see penstock_device_batch. The destructor gives its
// memory back. Move only; any thread.
class DeviceBatch {
 public:
  DeviceBatch(DeviceBatch&& other) noexcept
      : copy_(std::exchange(other.copy_, nullptr)) {}
  DeviceBatch& operator=(DeviceBatch&& other) noexcept {
    std::swap(copy_, other.copy_);
    return *this;
  }
  ~DeviceBatch() { penstock_device_release(copy_); }

  // stream: a CUstream or cudaStream_t, which has to outlive this.
  void wait(void* stream) {
    internal::Check(penstock_device_wait(copy_, stream));
  }
  // On the GPU; nullptr: no rows, or no such feature.
  const void* data(uint32_t feature) const {
    return penstock_device_data(copy_, feature, nullptr);
  }

 private:
  friend class Batch;
  explicit DeviceBatch(penstock_device_batch* copy) : copy_(copy) {}
  penstock_device_batch* copy_;
};

// A lease on one batch; the destructor releases it. Move only. In a batch that
// outlives its Reader, data() and ids() can still be read; get() cannot be
// used. Any thread may use and destroy it. Members: see penstock_batch_*.
class Batch {
 public:
  Batch() = default;  // no batch: only assignment and release() are allowed
  Batch(Batch&& other) noexcept
      : reader_(other.reader_), batch_(std::exchange(other.batch_, nullptr)) {}
  Batch& operator=(Batch&& other) noexcept {
    if (this != &other) {
      release();
      reader_ = other.reader_;
      batch_ = std::exchange(other.batch_, nullptr);
    }
    return *this;
  }
  ~Batch() { release(); }

  void release() {
    if (batch_ != nullptr) penstock_release(std::exchange(batch_, nullptr));
  }

  // Padding included.
  uint64_t rows() const { return penstock_batch_rows(batch_); }
  uint64_t valid_rows() const { return penstock_batch_valid_rows(batch_); }
  uint64_t global_rows() const { return penstock_batch_global_rows(batch_); }
  // Both from 0.
  uint64_t epoch() const { return penstock_batch_epoch(batch_); }
  uint64_t step() const { return penstock_batch_step(batch_); }
  bool redelivered() const { return penstock_batch_redelivered(batch_) != 0; }
  uint64_t skipped() const { return penstock_batch_skipped(batch_); }
  uint64_t left_out() const { return penstock_batch_left_out(batch_); }
  // nullopt: rows of any part.
  std::optional<uint32_t> part() const {
    const int32_t part = penstock_batch_part(batch_);
    return part < 0 ? std::nullopt : std::optional<uint32_t>(part);
  }
  // With its shape in this batch. Throws when there is no such feature. The
  // reader must exist.
  penstock_feature feature(uint32_t index) const {
    penstock_feature info;
    internal::Check(penstock_batch_feature(batch_, index, &info));
    return info;
  }
  // [rows]; PENSTOCK_PADDING_ID for padding. Valid until the release.
  std::span<const int64_t> ids() const {
    return {penstock_batch_ids(batch_), rows()};
  }
  // [rows, shape...], 64-byte aligned, read only; nullptr: no such feature.
  const void* data(uint32_t feature) const {
    return penstock_batch_data(batch_, feature);
  }
  // The same bytes, writable: for this process alone, until the release. Throws
  // when there is no such feature, or it cannot be mapped.
  void* writable_data(uint32_t feature) {
    void* const data = penstock_batch_writable_data(batch_, feature);
    if (data == nullptr) {
      throw Error(PENSTOCK_FAILED_PRECONDITION, penstock_error());
    }
    return data;
  }
  // See penstock_batch_to_device.
  DeviceBatch to_device() {
    penstock_device_batch* copy = nullptr;
    internal::Check(penstock_batch_to_device(batch_, &copy));
    return DeviceBatch(copy);
  }
  // All values of a feature, [rows, shape...] flattened. Throws when there is
  // no such feature, or its dtype is not T. Each bool is 0 or 1, whatever a
  // file held. float16 and bfloat16: use data(). The reader must exist.
  template <typename T>
  std::span<const T> get(const std::string& feature) const {
    const int index =
        internal::Check(penstock_feature_index(reader_, feature.c_str()));
    const penstock_feature info = this->feature(index);
    const auto* const values = static_cast<const T*>(data(index));
    if (info.dtype != internal::DTypeOf(values)) {
      throw Error(PENSTOCK_INVALID_ARGUMENT,
                  "feature '" + feature + "' has another dtype than requested");
    }
    return {values, rows() * (info.row_bytes / sizeof(T))};
  }

 private:
  friend class Reader;
  Batch(const penstock_reader* reader, penstock_batch* batch)
      : reader_(reader), batch_(batch) {}
  const penstock_reader* reader_ = nullptr;
  penstock_batch* batch_ = nullptr;
};

// One epoch as a range of batches, to be iterated once. Advancing releases the
// batch unless it was moved out.
class Epoch {
 public:
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;
    explicit Iterator(Epoch* epoch) : epoch_(epoch) {}
    Batch& operator*() const { return epoch_->batch_; }
    Batch* operator->() const { return &epoch_->batch_; }
    Iterator& operator++() {
      epoch_->Advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return epoch_->over_; }

   private:
    Epoch* epoch_;
  };

  Iterator begin() {
    Advance();
    return Iterator(this);
  }
  std::default_sentinel_t end() const { return {}; }
  // From 0. Valid once the loop has begun.
  uint64_t number() const { return number_; }

 private:
  friend class Reader;
  explicit Epoch(Reader* reader) : reader_(reader) {}
  inline void Advance();
  Reader* reader_;
  Batch batch_;
  uint64_t number_ = 0;
  bool over_ = false;
};

// One rank of a job. Neither copied nor moved.
class Reader {
 public:
  // Attaches; see penstock_attach for what it waits for and throws.
  explicit Reader(const Options& options) {
    penstock_options c = PENSTOCK_OPTIONS_INIT;
    c.dataset = internal::OrNull(options.dataset);
    c.spec = internal::OrNull(options.spec);
    c.job = internal::OrNull(options.job);
    c.socket = internal::OrNull(options.socket);
    c.rank = options.rank;
    c.world_size = options.world_size;
    c.local_world_size = options.local_world_size;
    c.timeout_s = options.timeout_s;
    c.repeat_first = options.repeat_first ? 1 : 0;
    c.delivery = internal::OrNull(options.delivery);
    c.lag = internal::OrNull(options.lag);
    c.on_rank_death = internal::OrNull(options.on_rank_death);
    c.state = internal::OrNull(options.state);
    c.window = options.window;
    c.consumers = options.consumers;
    c.full_epoch = options.full_epoch ? 1 : 0;
    c.per_host = options.per_host ? 1 : 0;
    c.wait_s = options.wait_s;
    c.reconnect_s = options.reconnect_s;
    c.node = options.node;
    c.autostart = options.autostart ? 1 : 0;
    c.replicas = options.replicas;
    c.replica = options.replica;
    c.local_replicas = options.local_replicas;
    internal::Check(penstock_attach(&c, &reader_));
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { penstock_detach(reader_); }

  enum class Result { kBatch, kEndOfEpoch, kEndOfData };
  // One call, one result; see penstock_next. Releases what *batch held before
  // waiting, so that the broker can refill it; sets *batch only with kBatch.
  Result next(Batch* batch) {
    batch->release();
    penstock_batch* raw = nullptr;
    switch (internal::Check(penstock_next(reader_, &raw))) {
      case PENSTOCK_END_OF_EPOCH:
        return Result::kEndOfEpoch;
      case PENSTOCK_END_OF_DATA:
        ended_ = true;
        return Result::kEndOfData;
      default:
        *batch = Batch(reader_, raw);
        return Result::kBatch;
    }
  }

  // The remaining epochs, as a range of ranges.
  class Epochs {
   public:
    class Iterator {
     public:
      using value_type = Epoch;
      using difference_type = std::ptrdiff_t;
      using iterator_category = std::input_iterator_tag;
      explicit Iterator(Reader* reader) : reader_(reader) {}
      Epoch operator*() const { return Epoch(reader_); }
      Iterator& operator++() { return *this; }
      void operator++(int) {}
      bool operator==(std::default_sentinel_t) const {
        return reader_->ended_ || (reader_->epoch_count() != 0 &&
                                   reader_->epoch() >= reader_->epoch_count());
      }

     private:
      Reader* reader_;
    };
    explicit Epochs(Reader* reader) : reader_(reader) {}
    Iterator begin() const { return Iterator(reader_); }
    std::default_sentinel_t end() const { return {}; }

   private:
    Reader* reader_;
  };
  Epochs epochs() { return Epochs(this); }

  int rank() const { return penstock_rank(reader_); }
  int world_size() const { return penstock_world_size(reader_); }
  int replica() const { return penstock_replica(reader_); }
  int replicas() const { return penstock_replicas(reader_); }
  // Both 0 for a stream.
  uint64_t sample_count() const { return penstock_sample_count(reader_); }
  uint64_t steps_per_epoch() const { return penstock_steps_per_epoch(reader_); }
  // The next batch's epoch, from 0; epoch_count() at the end.
  uint64_t epoch() const { return penstock_epoch(reader_); }
  uint64_t incarnation() const { return penstock_incarnation(reader_); }
  // "" if none; see penstock_warning.
  std::string warning() const { return penstock_warning(reader_); }
  // See penstock_state, penstock_reset, penstock_stop_job.
  std::string state() {
    const char* state = nullptr;
    internal::Check(penstock_state(reader_, &state));
    return state;
  }
  // See penstock_several_hosts.
  bool several_hosts() const { return penstock_several_hosts(reader_) != 0; }
  // See penstock_fingerprint; part: "": all of it.
  std::string fingerprint(const std::string& part = "") {
    const char* text = nullptr;
    internal::Check(penstock_fingerprint(
        reader_, part.empty() ? nullptr : part.c_str(), &text));
    return text;
  }
  void reset(int rank, int world_size, const std::string& state,
             int local_world_size = 0) {
    internal::Check(penstock_reset(reader_, rank, world_size, local_world_size,
                                   state.c_str()));
    ended_ = false;
  }
  void stop_job(bool now = false) {
    internal::Check(penstock_stop_job(reader_, now ? 1 : 0));
  }
  // See penstock_prefetch_to_device, penstock_get_device_stats.
  void prefetch_to_device(int device = 0, uint32_t batches = 2) {
    internal::Check(penstock_prefetch_to_device(reader_, device, batches));
  }
  penstock_device_stats device_stats() const {
    penstock_device_stats stats;
    internal::Check(penstock_get_device_stats(reader_, &stats));
    return stats;
  }
  // See penstock_set_weights.
  void set_weights(std::span<const double> weights, int64_t epoch = -1,
                   int64_t row = 0) {
    internal::Check(penstock_set_weights(reader_, weights.data(),
                                         static_cast<uint32_t>(weights.size()),
                                         epoch, row));
  }
  // Epochs of the job; 0: forever.
  uint64_t epoch_count() const { return penstock_epoch_count(reader_); }
  // The features of a row; their strings live as long as the reader.
  std::vector<penstock_feature> element_spec() const {
    std::vector<penstock_feature> spec(penstock_feature_count(reader_));
    for (uint32_t i = 0; i < spec.size(); ++i) {
      internal::Check(penstock_feature_at(reader_, i, &spec[i]));
    }
    return spec;
  }
  penstock_stats stats() const {
    penstock_stats stats;
    penstock_get_stats(reader_, &stats);
    return stats;
  }
  // For the functions of penstock.h.
  penstock_reader* c_reader() const { return reader_; }

 private:
  penstock_reader* reader_ = nullptr;
  bool ended_ = false;
};

// One feature of a stream's row: {"image", PENSTOCK_FLOAT32, {3, 224, 224}}.
struct FeatureSpec {
  std::string name;
  uint32_t dtype = PENSTOCK_UINT8;
  std::vector<int64_t> shape;  // of one row, 8 dimensions at most
};

// See penstock_producer_options. Times are seconds.
struct ProducerOptions {
  std::vector<FeatureSpec> features;
  uint64_t rows = 1;  // most rows of one put
  std::string job;
  std::string dataset;
  std::string socket;
  double timeout_s = 0;    // of every call; 0: no limit
  double reconnect_s = 0;  // 0: 60; negative: do not wait
};

// Puts rows of a stream; see penstock_produce. Move only. Destroying it without
// finish() or fail() counts as the death of the process.
class Producer {
 public:
  explicit Producer(const ProducerOptions& options) {
    std::vector<penstock_feature> features;
    for (const FeatureSpec& from : options.features) {
      penstock_feature& feature = features.emplace_back();
      feature = {from.name.c_str(),
                 from.dtype,
                 static_cast<uint32_t>(from.shape.size()),
                 {},
                 0};
      if (from.shape.size() >= PENSTOCK_DIMENSIONS_MAX) {
        throw Error(PENSTOCK_INVALID_ARGUMENT,
                    "feature '" + from.name + "' has too many dimensions");
      }
      std::copy(from.shape.begin(), from.shape.end(), feature.shape);
    }
    penstock_producer_options c = PENSTOCK_PRODUCER_OPTIONS_INIT;
    c.feature_count = static_cast<uint32_t>(features.size());
    c.features = features.data();
    c.rows = options.rows;
    c.job = internal::OrNull(options.job);
    c.dataset = internal::OrNull(options.dataset);
    c.socket = internal::OrNull(options.socket);
    c.timeout_s = options.timeout_s;
    c.reconnect_s = options.reconnect_s;
    internal::Check(penstock_produce(&c, &producer_));
  }
  Producer(Producer&& other) noexcept
      : producer_(std::exchange(other.producer_, nullptr)) {}
  Producer& operator=(Producer&&) = delete;
  ~Producer() { penstock_producer_close(producer_); }

  // Reserves memory for rows, at most ProducerOptions::rows; waits while the
  // ranks are behind. A second reserve() discards what was not put.
  void reserve(uint64_t rows) {
    internal::Check(penstock_producer_reserve(producer_, rows));
  }
  // [reserved rows, shape...] of a feature; nullptr: nothing is reserved.
  template <typename T>
  T* data(uint32_t feature) const {
    return static_cast<T*>(penstock_producer_data(producer_, feature));
  }
  // Puts the first rows of those reserved.
  void put(uint64_t rows) {
    internal::Check(penstock_producer_put(producer_, rows));
  }
  // No more rows; waits until the broker has recorded all puts.
  void finish() { internal::Check(penstock_producer_finish(producer_)); }
  // Fails the job with this text.
  void fail(const std::string& why) {
    internal::Check(penstock_producer_fail(producer_, why.c_str()));
  }
  // The stream's row number, from 0, that was next at the start.
  uint64_t next_row() const { return penstock_producer_next_row(producer_); }

 private:
  penstock_producer* producer_ = nullptr;
};

inline void Epoch::Advance() {
  batch_.release();  // before waiting, so that the broker can refill it
  over_ = reader_->next(&batch_) != Reader::Result::kBatch;
  // A redelivered batch may be of an epoch before.
  if (!over_) number_ = reader_->epoch();
}

}  // namespace v1
}  // namespace penstock
#endif  // PENSTOCK_HPP_
