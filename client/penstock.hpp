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
// Threads: as penstock.h. Errors are penstock::Error; the end of an epoch and
// of the data are not errors but the ends of the two loops.
#ifndef PENSTOCK_HPP_
#define PENSTOCK_HPP_

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
// Its own mangled names: the library inside has classes called the same.
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
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<uint8_t> {
  static constexpr uint32_t value = PENSTOCK_UINT8;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr uint32_t value = PENSTOCK_INT8;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr uint32_t value = PENSTOCK_INT16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr uint32_t value = PENSTOCK_INT32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr uint32_t value = PENSTOCK_INT64;
};
template <>
struct DTypeOf<float> {
  static constexpr uint32_t value = PENSTOCK_FLOAT32;
};
template <>
struct DTypeOf<double> {
  static constexpr uint32_t value = PENSTOCK_FLOAT64;
};
template <>
struct DTypeOf<bool> {
  static constexpr uint32_t value = PENSTOCK_BOOL;
};
}  // namespace internal

// See penstock_options; what is left out comes from the launcher.
struct Options {
  std::string dataset;
  std::string spec;
  std::string job;
  std::string socket;
  int rank = -1;
  int world_size = 0;
  int local_world_size = 0;
  double timeout_s = 0;
  bool repeat_first = false;
  std::string delivery;       // split, dynamic, broadcast, independent
  std::string lag;            // broadcast: block, skip, fail
  std::string on_rank_death;  // wait, fail, shrink
  std::string state;          // of Reader::state
  int window = 0;
  int consumers = 0;
  bool full_epoch = false;
  bool per_host = false;
  double wait_s = 0;
  double reconnect_s = 0;
  int node = -1;  // NUMA
  bool autostart = false;
};

// A private broker; see penstock_broker_start. Ends when destroyed. Move only.
class Broker {
 public:
  explicit Broker(int workers = 0, const std::string& memory_limit = "") {
    internal::Check(penstock_broker_start(
        workers, memory_limit.empty() ? nullptr : memory_limit.c_str(),
        &broker_));
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

// A lease on one batch; released when destroyed. Move only. One that outlives
// its Reader is still to be read, by data() and ids().
class Batch {
 public:
  Batch() = default;
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

  uint64_t rows() const { return penstock_batch_rows(batch_); }
  uint64_t valid_rows() const { return penstock_batch_valid_rows(batch_); }
  uint64_t global_rows() const { return penstock_batch_global_rows(batch_); }
  uint64_t epoch() const { return penstock_batch_epoch(batch_); }
  uint64_t step() const { return penstock_batch_step(batch_); }
  bool redelivered() const { return penstock_batch_redelivered(batch_) != 0; }
  uint64_t skipped() const { return penstock_batch_skipped(batch_); }
  std::span<const int64_t> ids() const {
    return {penstock_batch_ids(batch_), rows()};
  }
  const void* data(uint32_t feature) const {
    return penstock_batch_data(batch_, feature);
  }
  // The same bytes, to be written: for this process alone, until the release.
  void* writable_data(uint32_t feature) {
    void* const data = penstock_batch_writable_data(batch_, feature);
    if (data == nullptr) {
      throw Error(PENSTOCK_FAILED_PRECONDITION, penstock_error());
    }
    return data;
  }
  // All values of a feature, [rows, shape...] flattened. Throws when it is not
  // there or has another dtype. A bool is true or false, whatever a file or a
  // producer had in it. float16 and bfloat16: use data().
  template <typename T>
  std::span<const T> get(const std::string& feature) const {
    const int index =
        internal::Check(penstock_feature_index(reader_, feature.c_str()));
    penstock_feature info;
    internal::Check(penstock_feature_at(reader_, index, &info));
    if (info.dtype != internal::DTypeOf<T>::value) {
      throw Error(PENSTOCK_INVALID_ARGUMENT,
                  "feature '" + feature + "' has another dtype than asked for");
    }
    return {static_cast<const T*>(data(index)),
            rows() * (info.row_bytes / sizeof(T))};
  }

 private:
  friend class Reader;
  Batch(const penstock_reader* reader, penstock_batch* batch)
      : reader_(reader), batch_(batch) {}
  const penstock_reader* reader_ = nullptr;
  penstock_batch* batch_ = nullptr;
};

// One epoch as a range of batches. Each batch is released when the loop goes on
// unless it is moved out.
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
  // From 0. Known once the loop has begun.
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

class Reader {
 public:
  explicit Reader(const Options& options) {
    penstock_options c = PENSTOCK_OPTIONS_INIT;
    c.dataset = OrNull(options.dataset);
    c.spec = OrNull(options.spec);
    c.job = OrNull(options.job);
    c.socket = OrNull(options.socket);
    c.rank = options.rank;
    c.world_size = options.world_size;
    c.local_world_size = options.local_world_size;
    c.timeout_s = options.timeout_s;
    c.repeat_first = options.repeat_first ? 1 : 0;
    c.delivery = OrNull(options.delivery);
    c.lag = OrNull(options.lag);
    c.on_rank_death = OrNull(options.on_rank_death);
    c.state = OrNull(options.state);
    c.window = options.window;
    c.consumers = options.consumers;
    c.full_epoch = options.full_epoch ? 1 : 0;
    c.per_host = options.per_host ? 1 : 0;
    c.wait_s = options.wait_s;
    c.reconnect_s = options.reconnect_s;
    c.node = options.node;
    c.autostart = options.autostart ? 1 : 0;
    internal::Check(penstock_attach(&c, &reader_));
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { penstock_detach(reader_); }

  enum class Result { kBatch, kEndOfEpoch, kEndOfData };
  // The plain way: one call, one result. What *batch held is released first, so
  // that the broker can fill it again meanwhile; it is set with kBatch only.
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

  // All epochs left, as a range of ranges.
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
  uint64_t sample_count() const { return penstock_sample_count(reader_); }
  uint64_t steps_per_epoch() const { return penstock_steps_per_epoch(reader_); }
  // Of the next batch; epoch_count() at the end.
  uint64_t epoch() const { return penstock_epoch(reader_); }
  uint64_t incarnation() const { return penstock_incarnation(reader_); }
  std::string warning() const { return penstock_warning(reader_); }
  // See penstock_state, penstock_reset, penstock_stop_job.
  std::string state() {
    const char* state = nullptr;
    internal::Check(penstock_state(reader_, &state));
    return state;
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
  // 0: forever.
  uint64_t epoch_count() const { return penstock_epoch_count(reader_); }
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
  penstock_reader* c_reader() const { return reader_; }

 private:
  static const char* OrNull(const std::string& text) {
    return text.empty() ? nullptr : text.c_str();
  }
  penstock_reader* reader_ = nullptr;
  bool ended_ = false;
};

// What a row of a stream has: PENSTOCK_FLOAT32, {3, 224, 224}.
struct FeatureSpec {
  std::string name;
  uint32_t dtype = PENSTOCK_UINT8;
  std::vector<int64_t> shape;
};

struct ProducerOptions {
  std::vector<FeatureSpec> features;
  uint64_t rows = 1;  // of one put, at most
  std::string job;
  std::string dataset;
  std::string socket;
  double timeout_s = 0;
  double reconnect_s = 0;
};

// Puts rows of a stream; see penstock_produce. Destroyed without finish(): as
// if the process had died.
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
      for (size_t i = 0; i < from.shape.size(); ++i) {
        feature.shape[i] = from.shape[i];
      }
    }
    const auto or_null = [](const std::string& text) {
      return text.empty() ? nullptr : text.c_str();
    };
    penstock_producer_options c = PENSTOCK_PRODUCER_OPTIONS_INIT;
    c.feature_count = static_cast<uint32_t>(features.size());
    c.features = features.data();
    c.rows = options.rows;
    c.job = or_null(options.job);
    c.dataset = or_null(options.dataset);
    c.socket = or_null(options.socket);
    c.timeout_s = options.timeout_s;
    c.reconnect_s = options.reconnect_s;
    internal::Check(penstock_produce(&c, &producer_));
  }
  Producer(Producer&& other) noexcept
      : producer_(std::exchange(other.producer_, nullptr)) {}
  Producer& operator=(Producer&&) = delete;
  ~Producer() { penstock_producer_close(producer_); }

  // Room for so many rows, until the next call.
  void reserve(uint64_t rows) {
    internal::Check(penstock_producer_reserve(producer_, rows));
  }
  // [reserved rows, shape...] of a feature.
  template <typename T>
  T* data(uint32_t feature) const {
    return static_cast<T*>(penstock_producer_data(producer_, feature));
  }
  void put(uint64_t rows) {
    internal::Check(penstock_producer_put(producer_, rows));
  }
  void finish() { internal::Check(penstock_producer_finish(producer_)); }
  void fail(const std::string& why) {
    internal::Check(penstock_producer_fail(producer_, why.c_str()));
  }
  uint64_t next_row() const { return penstock_producer_next_row(producer_); }

 private:
  penstock_producer* producer_ = nullptr;
};

inline void Epoch::Advance() {
  batch_.release();  // before waiting: the broker can fill it again
  over_ = reader_->next(&batch_) != Reader::Result::kBatch;
  if (!over_) number_ = batch_.epoch();
}

}  // namespace v1
}  // namespace penstock
#endif  // PENSTOCK_HPP_
