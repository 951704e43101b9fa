// penstock._core: the C ABI as Python objects, and what the launcher says. The
// public classes are in penstock/*.py; this module has what needs C++: waiting
// without the GIL, and memory.
//
// It keeps to the limited API of CPython 3.9: one build serves every later
// CPython (abi3). That API has no buffers before 3.11, so NumPy takes arrays by
// its own protocol, __array_struct__.
//
// Threads: calls release the GIL while they wait. Any one thread at a time uses
// a Reader; arrays and batches may be destroyed on any thread.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/attach/launcher.h"
#include "client/penstock.h"

namespace {

// Thrown where an exception of Python is set.
struct PythonError {};

// Owns a reference.
class Object {
 public:
  // Steals the reference; throws PythonError if it is nullptr.
  explicit Object(PyObject* object) : object_(object) {
    if (object == nullptr) throw PythonError();
  }
  Object(Object&& other) noexcept : object_(other.release()) {}
  ~Object() { Py_XDECREF(object_); }
  Object& operator=(Object&&) = delete;

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

// Runs the body of a function that Python calls; without a result it is None.
template <typename Body>
PyObject* Entry(Body body) {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return None();
    } else {
      return body();
    }
  } catch (const PythonError&) {
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::out_of_range&) {
    PyErr_SetString(PyExc_IndexError, "there is no such feature");
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// An object of Python that owns a T.
template <typename T>
struct Instance {
  PyObject_HEAD;
  T* value;
};

template <typename T>
T& Of(PyObject* self) {
  return *reinterpret_cast<Instance<T>*>(self)->value;
}

template <typename T>
PyObject* New(PyTypeObject* type, std::unique_ptr<T> value) {
  Instance<T>* const self = PyObject_New(Instance<T>, type);
  if (self == nullptr) throw PythonError();
  self->value = value.release();
  return reinterpret_cast<PyObject*>(self);
}

template <typename T>
void Dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<Instance<T>*>(self)->value;
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* NoNew(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "only penstock itself makes these");
  return nullptr;
}

// PyArg_ParseTuple, and with keywords, whose names end with nullptr.
template <typename... Targets>
void Parse(PyObject* args, const char* format, Targets... targets) {
  if (PyArg_ParseTuple(args, format, targets...) == 0) throw PythonError();
}
template <typename... Targets>
void ParseKeywords(PyObject* args, PyObject* keywords, const char* format,
                   const char* const* names, Targets... targets) {
  if (PyArg_ParseTupleAndKeywords(args, keywords, format,
                                  const_cast<char**>(names), targets...) == 0) {
    throw PythonError();
  }
}

// Decodes a text of the library: UTF-8, except for file names that are not.
PyObject* ToPython(const char* text) {
  return PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)),
                              "backslashreplace");
}
PyObject* ToPython(const std::string& text) { return ToPython(text.c_str()); }
PyObject* ToPython(bool value) { return PyBool_FromLong(value ? 1 : 0); }
PyObject* ToPython(int32_t value) { return PyLong_FromLong(value); }
PyObject* ToPython(uint64_t value) {
  return PyLong_FromUnsignedLongLong(value);
}

// A path, which need not be valid text: bytes, or nullptr for None.
const char* BytesOrNull(PyObject* value) {
  if (value == Py_None) return nullptr;
  char* bytes = nullptr;
  if (PyBytes_AsStringAndSize(value, &bytes, nullptr) != 0) throw PythonError();
  return bytes;
}

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

// Calls the library where it may wait.
template <typename Body>
int CallWithoutGil(Body body) {
  const WithoutGil no_gil;
  return body();
}

// Raises the exception that penstock/errors.py has for this code.
[[noreturn]] void Raise(int code, const char* text) {
  const Object errors(PyImport_ImportModule("penstock.errors"));
  const Object error(PyObject_CallMethod(errors.get(), "error_of", "iN", code,
                                         ToPython(text)));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())),
                  error.get());
  throw PythonError();
}

int Check(int code) {
  if (code < 0) Raise(code, penstock_error());
  return code;
}

// Checks a call that a signal may have cancelled.
void CheckCall(int code) {
  if (code == PENSTOCK_CANCELLED) PyErr_CheckSignals();
  if (PyErr_Occurred() != nullptr) throw PythonError();
  Check(code);
}

// Called without the GIL while the library waits.
int32_t SignalArrived(void*) {
  PyGILState_STATE gil;
  TakeGil([&gil] { gil = PyGILState_Ensure(); });
  const bool arrived = PyErr_CheckSignals() != 0;
  PyGILState_Release(gil);
  return arrived;
}

// Lets one thread in at a time; a second one gets an error, not a crash.
class Use {
 public:
  Use(std::atomic<bool>* in_use, const char* what) : in_use_(in_use) {
    if (in_use->exchange(true)) {
      Raise(PENSTOCK_FAILED_PRECONDITION,
            (std::string("this ") + what +
             " is in use by another thread: use it from one thread at a time")
                .c_str());
    }
  }
  ~Use() { in_use_->store(false); }
  Use(const Use&) = delete;

 private:
  std::atomic<bool>* const in_use_;
};

// ---- features and arrays

// An element's kind and bytes by NumPy's protocol, and its code by DLPack's.
struct DType {
  const char* name;
  char kind;
  uint8_t bytes;
  uint8_t dlpack;
};

// By PENSTOCK_UINT8 and so on. bfloat16, which NumPy lacks: as integers.
constexpr DType kDTypes[] = {
    {"", 0, 0, 0},          {"uint8", 'u', 1, 1},    {"int8", 'i', 1, 0},
    {"int16", 'i', 2, 0},   {"int32", 'i', 4, 0},    {"int64", 'i', 8, 0},
    {"float16", 'f', 2, 2}, {"bfloat16", 'u', 2, 4}, {"float32", 'f', 4, 2},
    {"float64", 'f', 8, 2}, {"bool", 'b', 1, 6}};

struct Feature {
  std::string name;
  const DType* dtype;
  std::vector<int64_t> shape;  // of one row
  bool of_batch = false;       // there is one value for all rows
};

// A tuple; None where batches differ.
Object ShapeOf(const Feature& feature) {
  Object shape(PyTuple_New(static_cast<Py_ssize_t>(feature.shape.size())));
  for (size_t i = 0; i < feature.shape.size(); ++i) {
    const int64_t size = feature.shape[i];
    PyTuple_SetItem(
        shape.get(), static_cast<Py_ssize_t>(i),
        size < 0 ? None() : Object(PyLong_FromLongLong(size)).release());
  }
  return shape;
}

const DType* DTypeOf(uint32_t dtype) {
  if (dtype == 0 || dtype >= std::size(kDTypes)) {
    Raise(PENSTOCK_INTERNAL, "a dtype of another release of Penstock");
  }
  return &kDTypes[dtype];
}

uint32_t DTypeNamed(const std::string& name) {
  std::string known;
  for (uint32_t dtype = 1; dtype < std::size(kDTypes); ++dtype) {
    if (name == kDTypes[dtype].name) return dtype;
    known += (known.empty() ? "" : ", ") + std::string(kDTypes[dtype].name);
  }
  Raise(PENSTOCK_INVALID_ARGUMENT,
        ("no dtype '" + name + "' in a batch; there are: " + known).c_str());
}

constexpr int kDimensionsMax = PENSTOCK_DIMENSIONS_MAX + 1;  // with the rows

// What __array_struct__ points to (PyArrayInterface of NumPy's documentation).
struct ArrayInterface {
  int two = 2;
  int dimensions;
  char kind;
  int bytes;  // of an element
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  void* data;
  PyObject* description = nullptr;
};
constexpr int kContiguousAlignedNative = 0x0001 | 0x0100 | 0x0200;
constexpr int kWriteable = 0x0400;

// DLPack 0.x, which every consumer takes (dlpack.h).
struct ManagedTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t dimensions;
  uint8_t dtype_code, dtype_bits;
  uint16_t dtype_lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
  void* context;
  void (*deleter)(ManagedTensor*);
};
constexpr int kCpu = 1;

// [rows, shape...] in memory that `owner` keeps. Arrays of NumPy have one as
// their base; torch, JAX and TensorFlow take it by DLPack.
class Array {
 public:
  Array(std::shared_ptr<const void> owner, void* data, const Feature& of,
        uint64_t rows, bool writable)
      : owner_(std::move(owner)), dtype_(of.dtype) {
    shape_[0] = static_cast<int64_t>(rows);
    std::copy(of.shape.begin(), of.shape.end(), shape_.begin() + 1);
    const int dimensions = static_cast<int>(of.shape.size()) + 1;
    int64_t stride = 1;
    for (int i = dimensions - 1; i >= 0; --i) {
      element_strides_[i] = stride;
      strides_[i] = stride * dtype_->bytes;
      stride *= shape_[i];
    }
    interface_.dimensions = dimensions;
    interface_.kind = dtype_->kind;
    interface_.bytes = dtype_->bytes;
    interface_.flags = kContiguousAlignedNative | (writable ? kWriteable : 0);
    interface_.shape = shape_.data();
    interface_.strides = strides_.data();
    interface_.data = data;
  }
  Array(const Array&) = delete;

  static PyObject* Struct(PyObject* self, void*) {
    PyObject* const capsule = PyCapsule_New(
        &Of<Array>(self).interface_, nullptr, [](PyObject* capsule) {
          Py_DECREF(static_cast<PyObject*>(PyCapsule_GetContext(capsule)));
        });
    if (capsule == nullptr) return nullptr;
    Py_INCREF(self);
    PyCapsule_SetContext(capsule, self);
    return capsule;
  }

  static PyObject* DLPack(PyObject* self, PyObject* args, PyObject* keywords) {
    static const char* names[] = {"stream", "max_version", "dl_device", "copy",
                                  nullptr};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None,
             *copy = Py_None;
    return Entry([&] {
      ParseKeywords(args, keywords, "|$OOOO", names, &stream, &version, &device,
                    &copy);
      const Array& array = Of<Array>(self);
      const bool writable = (array.interface_.flags & kWriteable) != 0;
      if (!writable || copy == Py_True) {
        PyErr_SetString(PyExc_BufferError,
                        writable ? "shared memory comes uncopied"
                                 : "read only, which DLPack cannot say: "
                                   "batch.torch(), jax() or tf()");
        throw PythonError();
      }
      return array.Tensor();
    });
  }
  static PyObject* DLPackDevice(PyObject*, PyObject*) {
    return Py_BuildValue("(ii)", kCpu, 0);
  }

 private:
  // Lives until its consumer deletes it, on any thread, with or without the
  // GIL, also after the interpreter's end.
  struct Export {
    ManagedTensor tensor;
    std::array<int64_t, kDimensionsMax> shape, strides;
    std::shared_ptr<const void> owner;
  };

  PyObject* Tensor() const {
    auto exported = std::make_unique<Export>();
    exported->shape = shape_;
    exported->strides = element_strides_;
    exported->owner = owner_;
    exported->tensor = {interface_.data,
                        kCpu,
                        0,
                        interface_.dimensions,
                        dtype_->dlpack,
                        static_cast<uint8_t>(8 * dtype_->bytes),
                        1,
                        exported->shape.data(),
                        exported->strides.data(),
                        0,
                        exported.get(),
                        [](ManagedTensor* tensor) {
                          delete static_cast<Export*>(tensor->context);
                        }};
    // A consumer renames the capsule whose tensor it has taken.
    static constexpr char kName[] = "dltensor";
    Object capsule(
        PyCapsule_New(&exported->tensor, kName, [](PyObject* capsule) {
          if (PyCapsule_IsValid(capsule, kName) == 0) return;
          auto* const tensor =
              static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, kName));
          tensor->deleter(tensor);
        }));
    exported.release();
    return capsule.release();
  }

  const std::shared_ptr<const void> owner_;
  const DType* const dtype_;
  ArrayInterface interface_;
  std::array<int64_t, kDimensionsMax> shape_{}, strides_{}, element_strides_{};
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
};

// The types, made when the module is imported.
PyTypeObject *g_array_type, *g_batch_type;
PyObject* g_asarray;  // numpy.asarray

// The Array itself, or NumPy's over it.
PyObject* NewArray(bool numpy, std::shared_ptr<const void> owner, void* data,
                   const Feature& of, uint64_t rows, bool writable) {
  Object array(New(g_array_type, std::make_unique<Array>(std::move(owner), data,
                                                         of, rows, writable)));
  if (!numpy) return array.release();
  return PyObject_CallFunctionObjArgs(g_asarray, array.get(), nullptr);
}

// ---- batches

// A held batch; released when the Batch and the last array over it are gone.
class Batch {
 public:
  Batch(penstock_batch* batch, std::shared_ptr<const std::vector<Feature>> spec)
      : batch_(batch, &penstock_release), spec_(std::move(spec)) {}

  // array(feature, writable): NumPy's over shared memory, read only; writable:
  // an Array for DLPack, copy on write.
  static PyObject* GetArray(PyObject* self, PyObject* args) {
    return Entry([&] {
      unsigned feature;
      int writable;
      Parse(args, "Ip", &feature, &writable);
      const Batch& batch = Of<Batch>(self);
      const Feature& of = batch.spec_->at(feature);
      void* data;
      if (writable != 0) {
        data = penstock_batch_writable_data(batch.batch_.get(), feature);
        if (data == nullptr) {
          Raise(PENSTOCK_FAILED_PRECONDITION, penstock_error());
        }
      } else {
        data =
            const_cast<void*>(penstock_batch_data(batch.batch_.get(), feature));
      }
      const uint64_t rows =
          of.of_batch ? 1 : penstock_batch_rows(batch.batch_.get());
      return NewArray(writable == 0, batch.batch_, data, of, rows,
                      writable != 0);
    });
  }
  static PyObject* Ids(PyObject* self, PyObject*) {
    return Entry([&] {
      static const Feature ids{"", &kDTypes[PENSTOCK_INT64], {}};
      const Batch& batch = Of<Batch>(self);
      return NewArray(
          true, batch.batch_,
          const_cast<int64_t*>(penstock_batch_ids(batch.batch_.get())), ids,
          penstock_batch_rows(batch.batch_.get()), false);
    });
  }
  template <auto kGet>
  static PyObject* Get(PyObject* self, void*) {
    return ToPython(kGet(Of<Batch>(self).batch_.get()));
  }

 private:
  const std::shared_ptr<penstock_batch> batch_;
  const std::shared_ptr<const std::vector<Feature>> spec_;
};

bool Redelivered(const penstock_batch* batch) {
  return penstock_batch_redelivered(batch) != 0;
}

// ---- a private broker

class Broker {
 public:
  Broker(int workers, const char* memory_limit) {
    Check(CallWithoutGil([&] {
      return penstock_broker_start(workers, memory_limit, &broker_);
    }));
    socket_ = penstock_broker_socket(broker_);
  }
  ~Broker() { Stop(); }
  Broker(const Broker&) = delete;

  void Stop() {
    penstock_broker* const broker = std::exchange(broker_, nullptr);
    const WithoutGil no_gil;
    penstock_broker_stop(broker);
  }

  static PyObject* Make(PyTypeObject* type, PyObject* args,
                        PyObject* keywords) {
    static const char* names[] = {"workers", "memory_limit", nullptr};
    return Entry([&] {
      int workers;
      const char* memory_limit;
      ParseKeywords(args, keywords, "iz", names, &workers, &memory_limit);
      return New(type, std::make_unique<Broker>(workers, memory_limit));
    });
  }
  static PyObject* PyStop(PyObject* self, PyObject*) {
    Of<Broker>(self).Stop();
    return None();
  }
  static PyObject* Socket(PyObject* self, void*) {
    return ToPython(Of<Broker>(self).socket_);
  }

 private:
  penstock_broker* broker_ = nullptr;
  std::string socket_;
};

// The socket of this program's own broker.
PyObject* OwnBroker(PyObject*, PyObject*) {
  return Entry([] {
    const char* socket = nullptr;
    Check(CallWithoutGil([&] { return penstock_own_broker(&socket); }));
    return ToPython(socket);
  });
}

// The launcher that started this process ("none": no launcher), its number of
// ranks, this one's rank, the number of ranks on this host, its number among
// these (-1: unknown), from one of these to the next (0: unknown), and its id
// of this run (""). A variable that is wrong is an error of attach.
PyObject* Launch(PyObject*, PyObject*) {
  return Entry([] {
    const auto found = penstock::DetectLaunch(penstock::ProcessEnvironment());
    const penstock::LaunchInfo info =
        found.ok() ? *found : penstock::LaunchInfo{};
    return Py_BuildValue("(NLLLLLN)", ToPython(info.launcher),
                         static_cast<long long>(info.world_size),
                         static_cast<long long>(info.rank),
                         static_cast<long long>(info.local_world_size),
                         static_cast<long long>(info.local_rank),
                         static_cast<long long>(info.stride),
                         ToPython(info.job));
  });
}

// ---- a rank

class Reader {
 public:
  explicit Reader(const penstock_options& options) {
    CheckCall(
        CallWithoutGil([&] { return penstock_attach(&options, &reader_); }));
    ReadSpec();
  }
  ~Reader() { Close(); }
  Reader(const Reader&) = delete;

  static PyObject* Make(PyTypeObject* type, PyObject* args,
                        PyObject* keywords) {
    static const char* names[] = {"dataset",
                                  "spec",
                                  "job",
                                  "socket",
                                  "delivery",
                                  "lag",
                                  "on_rank_death",
                                  "state",
                                  "rank",
                                  "world_size",
                                  "local_world_size",
                                  "timeout_s",
                                  "repeat_first",
                                  "window",
                                  "consumers",
                                  "full_epoch",
                                  "per_host",
                                  "wait_s",
                                  "reconnect_s",
                                  "node",
                                  "autostart",
                                  "replica",
                                  "replicas",
                                  "local_replicas",
                                  nullptr};
    return Entry([&] {
      penstock_options options = PENSTOCK_OPTIONS_INIT;
      PyObject *dataset = Py_None, *socket = Py_None;
      ParseKeywords(
          args, keywords, "|$OzzOzzzziiidpiippddipiii", names, &dataset,
          &options.spec, &options.job, &socket, &options.delivery, &options.lag,
          &options.on_rank_death, &options.state, &options.rank,
          &options.world_size, &options.local_world_size, &options.timeout_s,
          &options.repeat_first, &options.window, &options.consumers,
          &options.full_epoch, &options.per_host, &options.wait_s,
          &options.reconnect_s, &options.node, &options.autostart,
          &options.replica, &options.replicas, &options.local_replicas);
      options.dataset = BytesOrNull(dataset);
      options.socket = BytesOrNull(socket);
      options.spec_generated = 1;  // by penstock.Dataset
      options.cancelled = &SignalArrived;
      return New(type, std::make_unique<Reader>(options));
    });
  }

  // Held batches stay readable.
  void Close() {
    if (reader_ == nullptr) return;
    const Use use(&in_use_, kWhat);
    penstock_reader* const reader = std::exchange(reader_, nullptr);
    const WithoutGil no_gil;
    penstock_detach(reader);
  }
  static PyObject* PyClose(PyObject* self, PyObject*) {
    return Entry([&] { Of<Reader>(self).Close(); });
  }

  // next(timeout_s): a Batch; None at the end of an epoch; False at the end of
  // the data.
  static PyObject* Next(PyObject* self, PyObject* timeout_s) {
    return Entry([&] {
      Reader& r = Of<Reader>(self);
      const bool limited = timeout_s != Py_None;
      const double limit_s = limited ? PyFloat_AsDouble(timeout_s) : 0;
      if (limited && PyErr_Occurred() != nullptr) throw PythonError();
      const Use use(&r.in_use_, kWhat);
      penstock_reader* const reader = r.Open();
      penstock_batch* batch = nullptr;
      // A ready batch is taken without releasing the GIL.
      int code = penstock_next_ready(reader, &batch);
      if (code == PENSTOCK_DEADLINE_EXCEEDED) {
        const WithoutGil no_gil;
        code = limited ? penstock_next_within(reader, limit_s, &batch)
                       : penstock_next(reader, &batch);
      }
      CheckCall(code);
      if (code == PENSTOCK_END_OF_EPOCH) return None();
      if (code == PENSTOCK_END_OF_DATA) return ToPython(false);
      r.left_out_ += penstock_batch_left_out(batch);
      return New(g_batch_type, std::make_unique<Batch>(batch, r.SpecOf(batch)));
    });
  }

  static PyObject* State(PyObject* self, PyObject*) {
    return Entry([&] {
      const char* state = nullptr;
      Of<Reader>(self).Call([&](penstock_reader* reader) {
        return penstock_state(reader, &state);
      });
      return ToPython(state);
    });
  }
  static PyObject* Fingerprint(PyObject* self, PyObject* args) {
    return Entry([&] {
      const char* name;
      const char* text = nullptr;
      Parse(args, "s", &name);
      Of<Reader>(self).Call([&](penstock_reader* reader) {
        return penstock_fingerprint(reader, name, &text);
      });
      return ToPython(text);
    });
  }
  static PyObject* FirstFreeRow(PyObject* self, PyObject*) {
    return Entry([&] {
      int64_t epoch = 0, row = 0;
      Of<Reader>(self).Call([&](penstock_reader* reader) {
        return penstock_first_free_row(reader, &epoch, &row);
      });
      return Py_BuildValue("(LL)", static_cast<long long>(epoch),
                           static_cast<long long>(row));
    });
  }
  static PyObject* Reset(PyObject* self, PyObject* args) {
    return Entry([&] {
      int rank, world_size, local_world_size;
      const char* state;
      Parse(args, "iiis", &rank, &world_size, &local_world_size, &state);
      Reader& r = Of<Reader>(self);
      r.Call([&](penstock_reader* reader) {
        return penstock_reset(reader, rank, world_size, local_world_size,
                              state);
      });
      r.ReadSpec();
    });
  }
  static PyObject* StopJob(PyObject* self, PyObject* now) {
    return Entry([&] {
      const int at_once = PyObject_IsTrue(now);
      if (at_once < 0) throw PythonError();
      Of<Reader>(self).Call([&](penstock_reader* reader) {
        return penstock_stop_job(reader, at_once);
      });
    });
  }
  static PyObject* SetWeights(PyObject* self, PyObject* args) {
    return Entry([&] {
      PyObject* list;
      long long epoch, row;
      Parse(args, "O!LL", &PyList_Type, &list, &epoch, &row);
      std::vector<double> weights;
      for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
        weights.push_back(PyFloat_AsDouble(PyList_GetItem(list, i)));
        if (PyErr_Occurred() != nullptr) throw PythonError();
      }
      Of<Reader>(self).Call([&](penstock_reader* reader) {
        return penstock_set_weights(reader, weights.data(),
                                    static_cast<uint32_t>(weights.size()),
                                    epoch, row);
      });
    });
  }

  template <auto kGet>
  static PyObject* Get(PyObject* self, void*) {
    return Entry([&] { return ToPython(kGet(Of<Reader>(self).Open())); });
  }
  static PyObject* Fileno(PyObject* self, PyObject*) {
    return Get<penstock_fileno>(self, nullptr);
  }

  // [(name, dtype's name, shape of a row)]
  static PyObject* ElementSpec(PyObject* self, PyObject*) {
    return Entry([&] {
      Object list(PyList_New(0));
      for (const Feature& feature : *Of<Reader>(self).spec_) {
        const Object item(Py_BuildValue("(NsN)", ToPython(feature.name),
                                        feature.dtype->name,
                                        ShapeOf(feature).release()));
        if (PyList_Append(list.get(), item.get()) != 0) throw PythonError();
      }
      return list.release();
    });
  }
  static PyObject* Stats(PyObject* self, PyObject*) {
    return Entry([&] {
      penstock_stats stats;
      penstock_get_stats(Of<Reader>(self).Open(), &stats);
      const auto count = [](uint64_t value) {
        return static_cast<unsigned long long>(value);
      };
      return Py_BuildValue(
          "{sKsKsKsdsKsIsIsKsKsK}", "batches", count(stats.batches), "rows",
          count(stats.rows), "left_out", count(Of<Reader>(self).left_out_),
          "wait_s", stats.wait_s, "waits", count(stats.waits), "held",
          stats.held, "hold_max", stats.hold_max, "skipped",
          count(stats.skipped), "redelivered", count(stats.redelivered),
          "reconnects", count(stats.reconnects));
    });
  }

 private:
  static constexpr char kWhat[] = "reader";

  penstock_reader* Open() const {
    if (reader_ == nullptr) {
      Raise(PENSTOCK_FAILED_PRECONDITION, "this reader is closed");
    }
    return reader_;
  }

  // Calls body(reader) without the GIL.
  template <typename Body>
  void Call(Body body) {
    const Use use(&in_use_, kWhat);
    penstock_reader* const reader = Open();
    CheckCall(CallWithoutGil([&] { return body(reader); }));
  }

  using Spec = std::shared_ptr<const std::vector<Feature>>;

  // batch: nullptr: of all.
  Spec Read(const penstock_batch* batch) {
    auto spec = std::make_shared<std::vector<Feature>>();
    for (uint32_t i = 0; i < penstock_feature_count(reader_); ++i) {
      penstock_feature feature;
      Check(batch == nullptr ? penstock_feature_at(reader_, i, &feature)
                             : penstock_batch_feature(batch, i, &feature));
      std::vector<int64_t> shape(feature.shape,
                                 feature.shape + feature.dimensions);
      const bool sized = std::all_of(shape.begin(), shape.end(),
                                     [](int64_t size) { return size > 0; });
      spec->push_back({feature.name, DTypeOf(feature.dtype), std::move(shape),
                       sized && feature.row_bytes == 0});
    }
    return spec;
  }
  void ReadSpec() {
    spec_ = Read(nullptr);
    spec_by_part_.clear();
    differs_ =
        std::any_of(spec_->begin(), spec_->end(), [](const Feature& feature) {
          return std::count(feature.shape.begin(), feature.shape.end(), -1) > 0;
        });
  }
  Spec SpecOf(const penstock_batch* batch) {
    if (!differs_) return spec_;
    Spec& spec = spec_by_part_[penstock_batch_part(batch)];
    if (spec == nullptr) spec = Read(batch);
    return spec;
  }

  penstock_reader* reader_ = nullptr;
  Spec spec_;
  bool differs_ = false;  // the shapes of parts
  std::map<int32_t, Spec> spec_by_part_;
  uint64_t left_out_ = 0;  // rows, of all batches taken
  std::atomic<bool> in_use_{false};
};

// ---- a producer

class Producer {
 public:
  Producer(std::vector<Feature> spec, penstock_producer_options options)
      : spec_(std::move(spec)) {
    std::vector<penstock_feature> given;
    for (const Feature& feature : spec_) {
      penstock_feature& c = given.emplace_back();
      c = {feature.name.c_str(),
           static_cast<uint32_t>(feature.dtype - kDTypes),
           static_cast<uint32_t>(feature.shape.size()),
           {},
           0};
      std::copy(feature.shape.begin(), feature.shape.end(), c.shape);
    }
    options.feature_count = static_cast<uint32_t>(given.size());
    options.features = given.data();
    options.cancelled = &SignalArrived;
    penstock_producer* producer = nullptr;
    CheckCall(
        CallWithoutGil([&] { return penstock_produce(&options, &producer); }));
    producer_.reset(producer, &penstock_producer_close);
  }

  // Producer([(name, dtype's name, shape of a row)], rows, job, dataset,
  // socket, timeout_s, reconnect_s)
  static PyObject* Make(PyTypeObject* type, PyObject* args, PyObject*) {
    return Entry([&] {
      penstock_producer_options options = PENSTOCK_PRODUCER_OPTIONS_INIT;
      PyObject *features, *socket;
      Py_ssize_t rows;
      Parse(args, "O!nzzOdd", &PyList_Type, &features, &rows, &options.job,
            &options.dataset, &socket, &options.timeout_s,
            &options.reconnect_s);
      options.rows = static_cast<uint64_t>(rows);
      options.socket = BytesOrNull(socket);
      std::vector<Feature> spec;
      for (Py_ssize_t i = 0; i < PyList_Size(features); ++i) {
        spec.push_back(FeatureOf(PyList_GetItem(features, i)));
      }
      return New(type, std::make_unique<Producer>(std::move(spec), options));
    });
  }

  static PyObject* Reserve(PyObject* self, PyObject* count) {
    return Entry([&] {
      Producer& p = Of<Producer>(self);
      const uint64_t rows = RowsOf(count);
      p.reserved_ = 0;
      p.Call([&](penstock_producer* producer) {
        return penstock_producer_reserve(producer, rows);
      });
      p.reserved_ = rows;
    });
  }
  // array(feature, rows): NumPy's, writable.
  static PyObject* GetArray(PyObject* self, PyObject* args) {
    return Entry([&] {
      unsigned feature;
      PyObject* count;
      Parse(args, "IO", &feature, &count);
      const Producer& p = Of<Producer>(self);
      const Feature& of = p.spec_.at(feature);
      const uint64_t rows = RowsOf(count);
      void* const data = penstock_producer_data(p.producer_.get(), feature);
      if (data == nullptr || rows > p.reserved_) {
        Raise(PENSTOCK_FAILED_PRECONDITION, "fewer rows are reserved");
      }
      return NewArray(true, p.producer_, data, of, rows, true);
    });
  }
  static PyObject* Put(PyObject* self, PyObject* count) {
    return Entry([&] {
      const uint64_t rows = RowsOf(count);
      Of<Producer>(self).Call([&](penstock_producer* producer) {
        return penstock_producer_put(producer, rows);
      });
    });
  }
  static PyObject* Finish(PyObject* self, PyObject*) {
    return Entry([&] { Of<Producer>(self).Call(&penstock_producer_finish); });
  }
  static PyObject* Fail(PyObject* self, PyObject* args) {
    return Entry([&] {
      const char* why;
      Parse(args, "s", &why);
      Of<Producer>(self).Call([&](penstock_producer* producer) {
        return penstock_producer_fail(producer, why);
      });
    });
  }
  static PyObject* NextRow(PyObject* self, void*) {
    return ToPython(
        penstock_producer_next_row(Of<Producer>(self).producer_.get()));
  }

 private:
  static Feature FeatureOf(PyObject* item) {
    const char *name, *dtype;
    PyObject* sizes;
    if (PyTuple_Check(item) == 0) {
      PyErr_SetString(PyExc_TypeError, "wanted (name, dtype, shape)");
      throw PythonError();
    }
    Parse(item, "ssO!", &name, &dtype, &PyList_Type, &sizes);
    Feature feature{name, &kDTypes[DTypeNamed(dtype)], {}};
    for (Py_ssize_t i = 0; i < PyList_Size(sizes); ++i) {
      const long long size = PyLong_AsLongLong(PyList_GetItem(sizes, i));
      if (PyErr_Occurred() != nullptr) throw PythonError();
      feature.shape.push_back(size);
    }
    if (feature.shape.size() >= PENSTOCK_DIMENSIONS_MAX) {
      Raise(PENSTOCK_INVALID_ARGUMENT, "a feature of too many dimensions");
    }
    return feature;
  }
  static uint64_t RowsOf(PyObject* count) {
    const unsigned long long rows = PyLong_AsUnsignedLongLong(count);
    if (PyErr_Occurred() != nullptr) throw PythonError();
    return rows;
  }

  // Calls body(producer) without the GIL.
  template <typename Body>
  void Call(Body body) {
    const Use use(&in_use_, "producer");
    CheckCall(CallWithoutGil([&] { return body(producer_.get()); }));
  }

  const std::vector<Feature> spec_;
  // Its memory is mapped as long as any array over it exists.
  std::shared_ptr<penstock_producer> producer_;
  uint64_t reserved_ = 0;
  std::atomic<bool> in_use_{false};
};

// ---- the module

// A member that cannot be set.
PyGetSetDef Member(const char* name, getter get) {
  return {name, get, nullptr, nullptr, nullptr};
}

PyMethodDef kModuleMethods[] = {
    {"own_broker", &OwnBroker, METH_NOARGS, nullptr},
    {"launch", &Launch, METH_NOARGS, nullptr},
    {}};

PyMethodDef kArrayMethods[] = {
    {"__dlpack__",
     reinterpret_cast<PyCFunction>(
         reinterpret_cast<void (*)()>(&Array::DLPack)),
     METH_VARARGS | METH_KEYWORDS, nullptr},
    {"__dlpack_device__", &Array::DLPackDevice, METH_NOARGS, nullptr},
    {}};
PyGetSetDef kArrayMembers[] = {Member("__array_struct__", &Array::Struct), {}};

PyMethodDef kBatchMethods[] = {
    {"array", &Batch::GetArray, METH_VARARGS, nullptr},
    {"ids", &Batch::Ids, METH_NOARGS, nullptr},
    {}};
PyGetSetDef kBatchMembers[] = {
    Member("rows", &Batch::Get<penstock_batch_rows>),
    Member("valid_rows", &Batch::Get<penstock_batch_valid_rows>),
    Member("global_rows", &Batch::Get<penstock_batch_global_rows>),
    Member("epoch", &Batch::Get<penstock_batch_epoch>),
    Member("step", &Batch::Get<penstock_batch_step>),
    Member("redelivered", &Batch::Get<Redelivered>),
    Member("skipped", &Batch::Get<penstock_batch_skipped>),
    Member("left_out", &Batch::Get<penstock_batch_left_out>),
    Member("part", &Batch::Get<penstock_batch_part>),
    {}};

PyMethodDef kBrokerMethods[] = {{"stop", &Broker::PyStop, METH_NOARGS, nullptr},
                                {}};
PyGetSetDef kBrokerMembers[] = {Member("socket", &Broker::Socket), {}};

PyMethodDef kReaderMethods[] = {
    {"next", &Reader::Next, METH_O, nullptr},
    {"close", &Reader::PyClose, METH_NOARGS, nullptr},
    {"state", &Reader::State, METH_NOARGS, nullptr},
    {"fingerprint", &Reader::Fingerprint, METH_VARARGS, nullptr},
    {"first_free_row", &Reader::FirstFreeRow, METH_NOARGS, nullptr},
    {"reset", &Reader::Reset, METH_VARARGS, nullptr},
    {"stop_job", &Reader::StopJob, METH_O, nullptr},
    {"set_weights", &Reader::SetWeights, METH_VARARGS, nullptr},
    {"fileno", &Reader::Fileno, METH_NOARGS, nullptr},
    {"element_spec", &Reader::ElementSpec, METH_NOARGS, nullptr},
    {"stats", &Reader::Stats, METH_NOARGS, nullptr},
    {}};
PyGetSetDef kReaderMembers[] = {
    Member("rank", &Reader::Get<penstock_rank>),
    Member("world_size", &Reader::Get<penstock_world_size>),
    Member("replica", &Reader::Get<penstock_replica>),
    Member("replicas", &Reader::Get<penstock_replicas>),
    Member("several_hosts", &Reader::Get<penstock_several_hosts>),
    Member("replaces", &Reader::Get<penstock_replaces>),
    Member("incarnation", &Reader::Get<penstock_incarnation>),
    Member("warning", &Reader::Get<penstock_warning>),
    Member("epoch", &Reader::Get<penstock_epoch>),
    Member("job", &Reader::Get<penstock_job>),
    Member("sample_count", &Reader::Get<penstock_sample_count>),
    Member("steps_per_epoch", &Reader::Get<penstock_steps_per_epoch>),
    Member("epoch_count", &Reader::Get<penstock_epoch_count>),
    {}};

PyMethodDef kProducerMethods[] = {
    {"reserve", &Producer::Reserve, METH_O, nullptr},
    {"array", &Producer::GetArray, METH_VARARGS, nullptr},
    {"put", &Producer::Put, METH_O, nullptr},
    {"finish", &Producer::Finish, METH_NOARGS, nullptr},
    {"fail", &Producer::Fail, METH_VARARGS, nullptr},
    {}};
PyGetSetDef kProducerMembers[] = {Member("next_row", &Producer::NextRow), {}};

// Makes the type of T; new_object is `Make`, or NoNew.
template <typename T>
PyTypeObject* AddType(PyObject* module, const char* name, newfunc new_object,
                      PyMethodDef* methods, PyGetSetDef* members) {
  PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_object)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(&Dealloc<T>)},
                         {Py_tp_methods, methods},
                         {Py_tp_getset, members},
                         {0, nullptr}};
  PyType_Spec spec = {name, sizeof(Instance<T>), 0, Py_TPFLAGS_DEFAULT, slots};
  Object type(PyType_FromSpec(&spec));
  Py_INCREF(type.get());  // for the caller, for ever
  if (PyModule_AddObject(module, std::strrchr(name, '.') + 1, type.get()) !=
      0) {
    throw PythonError();
  }
  return reinterpret_cast<PyTypeObject*>(type.release());
}

PyModuleDef g_module = {PyModuleDef_HEAD_INIT,
                        "penstock._core",
                        nullptr,
                        -1,
                        kModuleMethods,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__core() {
  return Entry([] {
    Object module(PyModule_Create(&g_module));
    PyObject* const m = module.get();
    if (PyModule_AddStringConstant(m, "version", penstock_version()) != 0 ||
        PyModule_AddIntConstant(m, "PADDING_ID", PENSTOCK_PADDING_ID) != 0) {
      throw PythonError();
    }
    const Object numpy(PyImport_ImportModule("numpy"));
    g_asarray =
        Object(PyObject_GetAttrString(numpy.get(), "asarray")).release();
    g_array_type = AddType<Array>(m, "penstock._core.Array", &NoNew,
                                  kArrayMethods, kArrayMembers);
    g_batch_type = AddType<Batch>(m, "penstock._core.Batch", &NoNew,
                                  kBatchMethods, kBatchMembers);
    AddType<Broker>(m, "penstock._core.Broker", &Broker::Make, kBrokerMethods,
                    kBrokerMembers);
    AddType<Reader>(m, "penstock._core.Reader", &Reader::Make, kReaderMethods,
                    kReaderMembers);
    AddType<Producer>(m, "penstock._core.Producer", &Producer::Make,
                      kProducerMethods, kProducerMembers);
    return module.release();
  });
}
