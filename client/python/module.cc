// penstock._core: the C ABI as Python objects, and what the launcher says. The
// public classes are in penstock/*.py; this module has what needs C++: waiting
// without the GIL, and memory.
//
// Threads: calls release the GIL while they wait. Any one thread at a time uses
// a Reader; arrays and batches may be destroyed on any thread.
#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/attach/launcher.h"
#include "client/penstock.h"

namespace nb = nanobind;

namespace {

// Takes the GIL by calling body. While the interpreter ends, CPython
// before 3.14 unwinds the stack of a thread that wants the GIL, which C++ does
// not survive. The thread sleeps until the process ends instead, as in 3.14.
template <typename Body>
void TakeGil(Body body) {
  try {
    body();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    TakeGil([this] { PyEval_RestoreThread(thread_); });
  }
  WithoutGil(const WithoutGil&) = delete;

 private:
  PyThreadState* const thread_;
};

// Decodes a text of the library: UTF-8, except for file names that are not.
nb::object TextOf(const char* text) {
  return nb::steal(PyUnicode_DecodeUTF8(
      text, static_cast<Py_ssize_t>(std::strlen(text)), "backslashreplace"));
}

// Raises the exception that penstock/errors.py has for this code.
[[noreturn]] void Raise(int code, const char* text) {
  const nb::object error = nb::module_::import_("penstock.errors")
                               .attr("error_of")(code, TextOf(text));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())),
                  error.ptr());
  throw nb::python_error();
}

int Check(int code) {
  if (code < 0) Raise(code, penstock_error());
  return code;
}

void CheckSignals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Checks a call that a signal may have cancelled.
void CheckCall(int code) {
  if (code == PENSTOCK_CANCELLED) CheckSignals();
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  Check(code);
}

struct Feature {
  std::string name;
  uint32_t dtype;
  std::vector<size_t> shape;  // of one row
};

constexpr const char* kDTypeNames[] = {
    "",        "uint8",    "int8",    "int16",   "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "bool"};

const char* NameOf(uint32_t dtype) {
  return dtype < std::size(kDTypeNames) ? kDTypeNames[dtype] : "";
}

uint32_t DTypeNamed(const std::string& name) {
  for (uint32_t dtype = 1; dtype < std::size(kDTypeNames); ++dtype) {
    if (name == kDTypeNames[dtype]) return dtype;
  }
  std::string known;
  for (uint32_t dtype = 1; dtype < std::size(kDTypeNames); ++dtype) {
    known += (known.empty() ? "" : ", ") + std::string(kDTypeNames[dtype]);
  }
  Raise(PENSTOCK_INVALID_ARGUMENT,
        ("no dtype '" + name + "' in a batch; there are: " + known).c_str());
}

nb::dlpack::dtype DTypeOf(uint32_t dtype) {
  using nb::dlpack::dtype_code;
  const auto of = [](dtype_code code, uint8_t bits) {
    return nb::dlpack::dtype{static_cast<uint8_t>(code), bits, 1};
  };
  switch (dtype) {
    case PENSTOCK_UINT8:
      return of(dtype_code::UInt, 8);
    case PENSTOCK_INT8:
      return of(dtype_code::Int, 8);
    case PENSTOCK_INT16:
      return of(dtype_code::Int, 16);
    case PENSTOCK_INT32:
      return of(dtype_code::Int, 32);
    case PENSTOCK_INT64:
      return of(dtype_code::Int, 64);
    case PENSTOCK_FLOAT16:
      return of(dtype_code::Float, 16);
    case PENSTOCK_BFLOAT16:
      return of(dtype_code::Bfloat, 16);
    case PENSTOCK_FLOAT32:
      return of(dtype_code::Float, 32);
    case PENSTOCK_FLOAT64:
      return of(dtype_code::Float, 64);
    case PENSTOCK_BOOL:
      return of(dtype_code::Bool, 8);
    default:
      Raise(PENSTOCK_INTERNAL, "a dtype of another release of Penstock");
  }
}

// A held batch; released when it and the last array over it are gone.
class Batch {
 public:
  Batch(penstock_batch* batch, std::shared_ptr<const std::vector<Feature>> spec)
      : batch_(batch), spec_(std::move(spec)) {}
  ~Batch() { penstock_release(batch_); }
  Batch(const Batch&) = delete;

  // [rows, shape...] of a feature over shared memory: read only, or writable as
  // copy on write. bits: unsigned integers for a dtype that NumPy lacks.
  nb::object Array(uint32_t feature, bool writable, bool bits,
                   nb::handle self) {
    const Feature& of = spec_->at(feature);
    nb::dlpack::dtype dtype = DTypeOf(of.dtype);
    if (bits && of.dtype == PENSTOCK_BFLOAT16) {
      dtype.code = static_cast<uint8_t>(nb::dlpack::dtype_code::UInt);
    }
    std::vector<size_t> shape = {penstock_batch_rows(batch_)};
    shape.insert(shape.end(), of.shape.begin(), of.shape.end());
    if (!writable) {
      return nb::cast(nb::ndarray<nb::ro, nb::numpy>(
          penstock_batch_data(batch_, feature), shape.size(), shape.data(),
          self, nullptr, dtype));
    }
    void* const data = penstock_batch_writable_data(batch_, feature);
    if (data == nullptr) Raise(PENSTOCK_FAILED_PRECONDITION, penstock_error());
    return nb::cast(nb::ndarray<nb::array_api>(data, shape.size(), shape.data(),
                                               self, nullptr, dtype));
  }
  nb::object Ids(nb::handle self) {
    const size_t rows = penstock_batch_rows(batch_);
    return nb::cast(nb::ndarray<nb::ro, nb::numpy>(penstock_batch_ids(batch_),
                                                   1, &rows, self, nullptr,
                                                   DTypeOf(PENSTOCK_INT64)));
  }
  const penstock_batch* get() const { return batch_; }

 private:
  penstock_batch* const batch_;
  const std::shared_ptr<const std::vector<Feature>> spec_;
};

// Paths, which need not be valid text.
using Bytes = std::optional<nb::bytes>;

const char* OrNull(const Bytes& value) {
  return value ? value->c_str() : nullptr;
}
const char* OrNull(const std::optional<std::string>& value) {
  return value ? value->c_str() : nullptr;
}

// Fields that are None or 0 come from the launcher, else are the default.
struct Options {
  Bytes dataset;
  std::optional<std::string> spec, job;
  Bytes socket;
  std::optional<std::string> delivery, lag, on_rank_death, state;
  int rank = -1;
  int world_size = 0;
  int local_world_size = 0;
  double timeout_s = 0;
  bool repeat_first = false;
  int window = 0;
  int consumers = 0;
  bool full_epoch = false;
  bool per_host = false;
  double wait_s = 0;
  double reconnect_s = 0;
  int node = -1;
  bool autostart = false;
};

// A private broker.
class Broker {
 public:
  Broker(int workers, const std::optional<std::string>& memory_limit) {
    int code;
    {
      const WithoutGil no_gil;
      code = penstock_broker_start(
          workers, memory_limit ? memory_limit->c_str() : nullptr, &broker_);
    }
    Check(code);
    socket_ = penstock_broker_socket(broker_);
  }
  ~Broker() { Stop(); }
  Broker(const Broker&) = delete;

  void Stop() {
    penstock_broker* const broker = std::exchange(broker_, nullptr);
    const WithoutGil no_gil;
    penstock_broker_stop(broker);
  }
  const std::string& socket() const { return socket_; }

 private:
  penstock_broker* broker_ = nullptr;
  std::string socket_;
};

// Called without the GIL while the library waits.
int32_t SignalArrived(void*) {
  PyGILState_STATE gil;
  TakeGil([&gil] { gil = PyGILState_Ensure(); });
  const bool arrived = PyErr_CheckSignals() != 0;
  PyGILState_Release(gil);
  return arrived;
}

class Reader {
 public:
  explicit Reader(const Options& options) {
    penstock_options given = PENSTOCK_OPTIONS_INIT;
    given.dataset = OrNull(options.dataset);
    given.spec = OrNull(options.spec);
    given.job = OrNull(options.job);
    given.socket = OrNull(options.socket);
    given.delivery = OrNull(options.delivery);
    given.lag = OrNull(options.lag);
    given.on_rank_death = OrNull(options.on_rank_death);
    given.state = OrNull(options.state);
    given.rank = options.rank;
    given.world_size = options.world_size;
    given.local_world_size = options.local_world_size;
    given.timeout_s = options.timeout_s;
    given.repeat_first = options.repeat_first ? 1 : 0;
    given.window = options.window;
    given.consumers = options.consumers;
    given.full_epoch = options.full_epoch ? 1 : 0;
    given.per_host = options.per_host ? 1 : 0;
    given.wait_s = options.wait_s;
    given.reconnect_s = options.reconnect_s;
    given.node = options.node;
    given.autostart = options.autostart ? 1 : 0;
    given.spec_generated = 1;  // by penstock.Dataset
    given.cancelled = &SignalArrived;
    int code;
    {
      const WithoutGil no_gil;
      code = penstock_attach(&given, &reader_);
    }
    CheckCall(code);
    ReadSpec();
  }
  ~Reader() { Close(); }
  Reader(const Reader&) = delete;

  // Held batches stay readable.
  void Close() {
    if (reader_ == nullptr) return;
    const Use use(this);
    penstock_reader* const reader = std::exchange(reader_, nullptr);
    const WithoutGil no_gil;
    penstock_detach(reader);
  }

  // A Batch; None at the end of an epoch; False at the end of the data.
  nb::object Next(std::optional<double> timeout_s) {
    const Use use(this);
    penstock_reader* const reader = Open();
    penstock_batch* batch = nullptr;
    // A ready batch is taken without releasing the GIL.
    int code = penstock_next_within(reader, 0, &batch);
    if (code == PENSTOCK_DEADLINE_EXCEEDED && timeout_s != 0.0) {
      const WithoutGil no_gil;
      code = timeout_s ? penstock_next_within(reader, *timeout_s, &batch)
                       : penstock_next(reader, &batch);
    }
    CheckCall(code);
    if (code == PENSTOCK_END_OF_EPOCH) return nb::none();
    if (code == PENSTOCK_END_OF_DATA) return nb::bool_(false);
    return nb::cast(new Batch(batch, spec_), nb::rv_policy::take_ownership);
  }

  std::string State() {
    const Use use(this);
    penstock_reader* const reader = Open();
    const char* state = nullptr;
    int code;
    {
      const WithoutGil no_gil;
      code = penstock_state(reader, &state);
    }
    CheckCall(code);
    return state;
  }
  void Reset(int rank, int world_size, int local_world_size,
             const std::string& state) {
    const Use use(this);
    penstock_reader* const reader = Open();
    int code;
    {
      const WithoutGil no_gil;
      code = penstock_reset(reader, rank, world_size, local_world_size,
                            state.c_str());
    }
    CheckCall(code);
    ReadSpec();
  }
  void StopJob(bool now) {
    const Use use(this);
    penstock_reader* const reader = Open();
    int code;
    {
      const WithoutGil no_gil;
      code = penstock_stop_job(reader, now ? 1 : 0);
    }
    CheckCall(code);
  }

  penstock_reader* Open() const {
    if (reader_ == nullptr) {
      Raise(PENSTOCK_FAILED_PRECONDITION, "this reader is closed");
    }
    return reader_;
  }
  const std::vector<Feature>& spec() const { return *spec_; }

 private:
  // Lets one thread in at a time; a second one gets an error, not a crash.
  class Use {
   public:
    explicit Use(Reader* reader) : reader_(reader) {
      if (reader_->in_use_.exchange(true)) {
        Raise(PENSTOCK_FAILED_PRECONDITION,
              "this reader is in use by another thread: use it from one thread "
              "at a time");
      }
    }
    ~Use() { reader_->in_use_.store(false); }

   private:
    Reader* const reader_;
  };

  void ReadSpec() {
    auto spec = std::make_shared<std::vector<Feature>>();
    for (uint32_t i = 0; i < penstock_feature_count(reader_); ++i) {
      penstock_feature feature;
      Check(penstock_feature_at(reader_, i, &feature));
      spec->push_back({feature.name,
                       feature.dtype,
                       {feature.shape, feature.shape + feature.dimensions}});
    }
    spec_ = std::move(spec);
  }

  penstock_reader* reader_ = nullptr;
  std::shared_ptr<const std::vector<Feature>> spec_;
  std::atomic<bool> in_use_{false};
};

// Its memory is mapped as long as any array over it exists.
class Producer {
 public:
  // features: [(name, dtype's name, shape of a row)]
  Producer(const nb::typed<nb::list, nb::object>& features, uint64_t rows,
           const std::optional<std::string>& job,
           const std::optional<std::string>& dataset, const Bytes& socket,
           double timeout_s, double reconnect_s) {
    std::vector<penstock_feature> given;
    for (const nb::handle item : features) {
      const auto entry = nb::cast<nb::tuple>(item);
      Feature& feature = spec_.emplace_back();
      feature.name = nb::cast<std::string>(entry[0]);
      feature.dtype = DTypeNamed(nb::cast<std::string>(entry[1]));
      for (const nb::handle size : nb::cast<nb::list>(entry[2])) {
        feature.shape.push_back(nb::cast<size_t>(size));
      }
      if (feature.shape.size() >= PENSTOCK_DIMENSIONS_MAX) {
        Raise(PENSTOCK_INVALID_ARGUMENT, "a feature of too many dimensions");
      }
    }
    for (const Feature& feature : spec_) {
      penstock_feature& c = given.emplace_back();
      c = {feature.name.c_str(),
           feature.dtype,
           static_cast<uint32_t>(feature.shape.size()),
           {},
           0};
      std::copy(feature.shape.begin(), feature.shape.end(), c.shape);
    }
    penstock_producer_options options = PENSTOCK_PRODUCER_OPTIONS_INIT;
    options.feature_count = static_cast<uint32_t>(given.size());
    options.features = given.data();
    options.rows = rows;
    options.job = OrNull(job);
    options.dataset = OrNull(dataset);
    options.socket = OrNull(socket);
    options.timeout_s = timeout_s;
    options.reconnect_s = reconnect_s;
    options.cancelled = &SignalArrived;
    int code;
    {
      const WithoutGil no_gil;
      code = penstock_produce(&options, &producer_);
    }
    CheckCall(code);
  }
  ~Producer() { penstock_producer_close(producer_); }
  Producer(const Producer&) = delete;

  void Reserve(uint64_t rows) {
    reserved_ = 0;
    Call([&] { return penstock_producer_reserve(producer_, rows); });
    reserved_ = rows;
  }
  // [rows, shape...] of a feature, writable; unsigned integers for a dtype that
  // NumPy lacks.
  nb::object Array(uint32_t feature, size_t rows, nb::handle self) {
    const Feature& of = spec_.at(feature);
    void* const data = penstock_producer_data(producer_, feature);
    if (data == nullptr || rows > reserved_) {
      Raise(PENSTOCK_FAILED_PRECONDITION, "fewer rows are reserved");
    }
    nb::dlpack::dtype dtype = DTypeOf(of.dtype);
    if (of.dtype == PENSTOCK_BFLOAT16) {
      dtype.code = static_cast<uint8_t>(nb::dlpack::dtype_code::UInt);
    }
    std::vector<size_t> shape = {rows};
    shape.insert(shape.end(), of.shape.begin(), of.shape.end());
    return nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.data(),
                                           self, nullptr, dtype));
  }
  void Put(uint64_t rows) {
    Call([&] { return penstock_producer_put(producer_, rows); });
  }
  void Finish() {
    Call([&] { return penstock_producer_finish(producer_); });
  }
  void Fail(const std::string& why) {
    Call([&] { return penstock_producer_fail(producer_, why.c_str()); });
  }
  uint64_t next_row() const { return penstock_producer_next_row(producer_); }

 private:
  template <typename Body>
  void Call(Body body) {
    if (in_use_.exchange(true)) {
      Raise(PENSTOCK_FAILED_PRECONDITION,
            "this producer is in use by another thread: use it from one thread "
            "at a time");
    }
    int code;
    {
      const WithoutGil no_gil;
      code = body();
    }
    in_use_.store(false);
    CheckCall(code);
  }

  penstock_producer* producer_ = nullptr;
  std::vector<Feature> spec_;
  uint64_t reserved_ = 0;
  std::atomic<bool> in_use_{false};
};

}  // namespace

NB_MODULE(_core, m) {
  // Objects left in a program's globals at the end are no leak.
  nb::set_leak_warnings(false);
  m.attr("version") = penstock_version();
  m.attr("PADDING_ID") = PENSTOCK_PADDING_ID;

  nb::class_<Batch>(m, "Batch")
      .def(
          "array",
          [](nb::handle self, uint32_t feature, bool writable, bool bits) {
            return nb::cast<Batch&>(self).Array(feature, writable, bits, self);
          },
          nb::arg("feature"), nb::arg("writable"), nb::arg("bits"),
          nb::sig("def array(self, feature: int, writable: bool, bits: bool) "
                  "-> typing.Any"))
      .def(
          "ids",
          [](nb::handle self) { return nb::cast<Batch&>(self).Ids(self); },
          nb::sig("def ids(self) -> typing.Any"))
      .def_prop_ro("rows",
                   [](const Batch& b) { return penstock_batch_rows(b.get()); })
      .def_prop_ro(
          "valid_rows",
          [](const Batch& b) { return penstock_batch_valid_rows(b.get()); })
      .def_prop_ro(
          "global_rows",
          [](const Batch& b) { return penstock_batch_global_rows(b.get()); })
      .def_prop_ro("epoch",
                   [](const Batch& b) { return penstock_batch_epoch(b.get()); })
      .def_prop_ro("step",
                   [](const Batch& b) { return penstock_batch_step(b.get()); })
      .def_prop_ro("redelivered",
                   [](const Batch& b) {
                     return penstock_batch_redelivered(b.get()) != 0;
                   })
      .def_prop_ro("skipped", [](const Batch& b) {
        return penstock_batch_skipped(b.get());
      });

  nb::class_<Broker>(m, "Broker")
      .def(nb::init<int, std::optional<std::string>>(), nb::arg("workers"),
           nb::arg("memory_limit").none())
      .def("stop", &Broker::Stop)
      .def_prop_ro("socket", &Broker::socket);

  // The socket of this program's own broker.
  m.def("own_broker", [] {
    const char* socket = nullptr;
    int code;
    {
      const WithoutGil no_gil;
      code = penstock_own_broker(&socket);
    }
    Check(code);
    return std::string(socket);
  });

  // The launcher that started this process ("none": no launcher) and its number
  // of ranks. A variable that is wrong is an error of attach.
  m.def("launch", [] {
    const auto found = penstock::DetectLaunch(penstock::ProcessEnvironment());
    const penstock::LaunchInfo info =
        found.ok() ? *found : penstock::LaunchInfo{};
    return std::pair(info.launcher, info.world_size);
  });

  nb::class_<Producer>(m, "Producer")
      .def(nb::init<nb::typed<nb::list, nb::object>, uint64_t,
                    std::optional<std::string>, std::optional<std::string>,
                    Bytes, double, double>(),
           nb::arg("features"), nb::arg("rows"), nb::arg("job").none(),
           nb::arg("dataset").none(), nb::arg("socket").none(),
           nb::arg("timeout_s"), nb::arg("reconnect_s"))
      .def("reserve", &Producer::Reserve)
      .def(
          "array",
          [](nb::handle self, uint32_t feature, size_t rows) {
            return nb::cast<Producer&>(self).Array(feature, rows, self);
          },
          nb::sig("def array(self, feature: int, rows: int, /) "
                  "-> typing.Any"))
      .def("put", &Producer::Put)
      .def("finish", &Producer::Finish)
      .def("fail", &Producer::Fail)
      .def_prop_ro("next_row", &Producer::next_row);

  nb::class_<Reader>(m, "Reader")
      .def(
          "__init__",
          [](Reader* self, Bytes dataset, std::optional<std::string> spec,
             std::optional<std::string> job, Bytes socket,
             std::optional<std::string> delivery,
             std::optional<std::string> lag,
             std::optional<std::string> on_rank_death,
             std::optional<std::string> state, int rank, int world_size,
             int local_world_size, double timeout_s, bool repeat_first,
             int window, int consumers, bool full_epoch, bool per_host,
             double wait_s, double reconnect_s, int node, bool autostart) {
            new (self) Reader({.dataset = std::move(dataset),
                               .spec = std::move(spec),
                               .job = std::move(job),
                               .socket = std::move(socket),
                               .delivery = std::move(delivery),
                               .lag = std::move(lag),
                               .on_rank_death = std::move(on_rank_death),
                               .state = std::move(state),
                               .rank = rank,
                               .world_size = world_size,
                               .local_world_size = local_world_size,
                               .timeout_s = timeout_s,
                               .repeat_first = repeat_first,
                               .window = window,
                               .consumers = consumers,
                               .full_epoch = full_epoch,
                               .per_host = per_host,
                               .wait_s = wait_s,
                               .reconnect_s = reconnect_s,
                               .node = node,
                               .autostart = autostart});
          },
          nb::kw_only(), nb::arg("dataset").none(), nb::arg("spec").none(),
          nb::arg("job").none(), nb::arg("socket").none(),
          nb::arg("delivery").none(), nb::arg("lag").none(),
          nb::arg("on_rank_death").none(), nb::arg("state").none(),
          nb::arg("rank"), nb::arg("world_size"), nb::arg("local_world_size"),
          nb::arg("timeout_s"), nb::arg("repeat_first"), nb::arg("window"),
          nb::arg("consumers"), nb::arg("full_epoch"), nb::arg("per_host"),
          nb::arg("wait_s"), nb::arg("reconnect_s"), nb::arg("node"),
          nb::arg("autostart"))
      .def("next", &Reader::Next, nb::arg("timeout_s").none() = nb::none())
      .def("close", &Reader::Close)
      .def("state", &Reader::State)
      .def("reset", &Reader::Reset, nb::arg("rank"), nb::arg("world_size"),
           nb::arg("local_world_size"), nb::arg("state"))
      .def("stop_job", &Reader::StopJob, nb::arg("now"))
      .def("fileno", [](const Reader& r) { return penstock_fileno(r.Open()); })
      .def_prop_ro("rank",
                   [](const Reader& r) { return penstock_rank(r.Open()); })
      .def_prop_ro(
          "world_size",
          [](const Reader& r) { return penstock_world_size(r.Open()); })
      .def_prop_ro(
          "incarnation",
          [](const Reader& r) { return penstock_incarnation(r.Open()); })
      .def_prop_ro("warning",
                   [](const Reader& r) { return penstock_warning(r.Open()); })
      .def_prop_ro("epoch",
                   [](const Reader& r) { return penstock_epoch(r.Open()); })
      .def_prop_ro("job",
                   [](const Reader& r) { return penstock_job(r.Open()); })
      .def_prop_ro(
          "sample_count",
          [](const Reader& r) { return penstock_sample_count(r.Open()); })
      .def_prop_ro(
          "steps_per_epoch",
          [](const Reader& r) { return penstock_steps_per_epoch(r.Open()); })
      .def_prop_ro(
          "epoch_count",
          [](const Reader& r) { return penstock_epoch_count(r.Open()); })
      .def_prop_ro("structure",
                   [](const Reader& r) { return penstock_structure(r.Open()); })
      // [(name, dtype's name, shape of a row)]
      .def(
          "element_spec",
          [](const Reader& r) {
            nb::list list;
            for (const Feature& feature : r.spec()) {
              nb::list shape;
              for (const size_t size : feature.shape) shape.append(size);
              list.append(nb::make_tuple(feature.name, NameOf(feature.dtype),
                                         nb::tuple(shape)));
            }
            return list;
          },
          nb::sig("def element_spec(self) "
                  "-> list[tuple[str, str, tuple[int, ...]]]"))
      .def(
          "stats",
          [](const Reader& r) {
            penstock_stats stats;
            penstock_get_stats(r.Open(), &stats);
            nb::dict dict;
            dict["batches"] = stats.batches;
            dict["rows"] = stats.rows;
            dict["wait_s"] = stats.wait_s;
            dict["waits"] = stats.waits;
            dict["held"] = stats.held;
            dict["hold_max"] = stats.hold_max;
            dict["skipped"] = stats.skipped;
            dict["redelivered"] = stats.redelivered;
            dict["reconnects"] = stats.reconnects;
            return dict;
          },
          nb::sig("def stats(self) -> dict[str, int | float]"));
}
