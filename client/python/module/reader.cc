#include <algorithm>
#include <map>
#include <vector>

#include "client/python/module/array.h"
#include "client/python/module/types.h"

namespace penstock::python {
namespace {

PyTypeObject* g_batch_type;

// A held batch; released when the Batch and the last array over it are gone.
class Batch {
 public:
  Batch(penstock_batch* batch, std::shared_ptr<const std::vector<Feature>> spec)
      : batch_(batch, &penstock_release), spec_(std::move(spec)) {}

  // array(feature, writable): NumPy's over shared memory, read only; writable:
  // an Array for DLPack, copy on write.
  static PyObject* GetArray(PyObject* self, PyObject* args) {
    return Entry(self, [&] {
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
    return Entry(self, [&] {
      static const Feature ids{"", &kDTypes[PENSTOCK_INT64], {}};
      const Batch& batch = Of<Batch>(self);
      return NewArray(
          true, batch.batch_,
          const_cast<int64_t*>(penstock_batch_ids(batch.batch_.get())), ids,
          penstock_batch_rows(batch.batch_.get()), false);
    });
  }
  // to_device(device): an Array on the GPU of each feature.
  static PyObject* ToDevice(PyObject* self, PyObject* args) {
    return Entry(self, [&] {
      int device;
      Parse(args, "i", &device);
      const Batch& batch = Of<Batch>(self);
      penstock_device_batch* made = nullptr;
      CheckCall(CallWithoutGil(
          [&] { return penstock_batch_to_device(batch.batch_.get(), &made); }));
      const std::shared_ptr<penstock_device_batch> owner(
          made, &penstock_device_release);
      Object list(PyList_New(0));
      uint32_t index = 0;
      for (const Feature& of : *batch.spec_) {
        const uint64_t rows =
            of.of_batch ? 1 : penstock_batch_rows(batch.batch_.get());
        const Object array(NewDeviceArray(owner, device, index++, of, rows));
        if (PyList_Append(list.get(), array.get()) != 0) throw PythonError();
      }
      return list.release();
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
    return Entry(self, [&] { Of<Reader>(self).Close(); });
  }

  // next(timeout_s): a Batch; None at the end of an epoch; False at the end of
  // the data.
  static PyObject* Next(PyObject* self, PyObject* timeout_s) {
    return Entry(self, [&] {
      Reader& r = Of<Reader>(self);
      const bool limited = timeout_s != Py_None;
      const double limit_s = limited ? PyFloat_AsDouble(timeout_s) : 0;
      if (limited && PyErr_Occurred() != nullptr) throw PythonError();
      const Use use(&r.in_use_, kWhat);
      penstock_reader* const reader = r.Open();
      penstock_batch* batch = nullptr;
      // A ready batch is taken without releasing the GIL, unless it is copied
      // to a GPU, whose work of before may be waited for.
      int code = r.on_device_ ? PENSTOCK_DEADLINE_EXCEEDED
                              : penstock_next_ready(reader, &batch);
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
    return Entry(self, [&] {
      const char* state = nullptr;
      Of<Reader>(self).Call([&](penstock_reader* reader) {
        return penstock_state(reader, &state);
      });
      return ToPython(state);
    });
  }
  static PyObject* Fingerprint(PyObject* self, PyObject* args) {
    return Entry(self, [&] {
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
    return Entry(self, [&] {
      int64_t epoch = 0, row = 0;
      Of<Reader>(self).Call([&](penstock_reader* reader) {
        return penstock_first_free_row(reader, &epoch, &row);
      });
      return Py_BuildValue("(LL)", static_cast<long long>(epoch),
                           static_cast<long long>(row));
    });
  }
  static PyObject* Reset(PyObject* self, PyObject* args) {
    return Entry(self, [&] {
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
    return Entry(self, [&] {
      const int at_once = PyObject_IsTrue(now);
      if (at_once < 0) throw PythonError();
      Of<Reader>(self).Call([&](penstock_reader* reader) {
        return penstock_stop_job(reader, at_once);
      });
    });
  }
  static PyObject* SetWeights(PyObject* self, PyObject* args) {
    return Entry(self, [&] {
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

  // prefetch_to_device(device, batches): why they are staged, or "".
  static PyObject* PrefetchToDevice(PyObject* self, PyObject* args) {
    return Entry(self, [&] {
      int device;
      unsigned batches;
      Parse(args, "iI", &device, &batches);
      penstock_device_stats stats;
      Reader& r = Of<Reader>(self);
      r.Call([&](penstock_reader* reader) {
        const int code = penstock_prefetch_to_device(reader, device, batches);
        if (code >= 0) r.on_device_ = true;
        return code < 0 ? code : penstock_get_device_stats(reader, &stats);
      });
      return ToPython(stats.why_staged == nullptr ? "" : stats.why_staged);
    });
  }

  template <auto kGet>
  static PyObject* Get(PyObject* self, void*) {
    return Entry(self, [&] { return ToPython(kGet(Of<Reader>(self).Open())); });
  }
  static PyObject* Fileno(PyObject* self, PyObject*) {
    return Get<penstock_fileno>(self, nullptr);
  }

  // [(name, dtype's name, shape of a row)]
  static PyObject* ElementSpec(PyObject* self, PyObject*) {
    return Entry(self, [&] {
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
    return Entry(self, [&] {
      penstock_stats stats;
      penstock_reader* const reader = Of<Reader>(self).Open();
      penstock_get_stats(reader, &stats);
      penstock_device_stats device{};  // zeros: no GPU
      (void)penstock_get_device_stats(reader, &device);
      const auto count = [](uint64_t value) {
        return static_cast<unsigned long long>(value);
      };
      return Py_BuildValue(
          "{sKsKsKsdsKsIsIsKsKsKsKsKsK}", "batches", count(stats.batches),
          "rows", count(stats.rows), "left_out",
          count(Of<Reader>(self).left_out_), "wait_s", stats.wait_s, "waits",
          count(stats.waits), "held", stats.held, "hold_max", stats.hold_max,
          "skipped", count(stats.skipped), "redelivered",
          count(stats.redelivered), "reconnects", count(stats.reconnects),
          "device_bytes", count(device.device_bytes), "registered_bytes",
          count(device.registered_bytes), "staging_bytes",
          count(device.staging_bytes));
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
  bool on_device_ = false;  // prefetch_to_device
  std::atomic<bool> in_use_{false};
};

PyMethodDef kBatchMethods[] = {
    {"array", &Batch::GetArray, METH_VARARGS, nullptr},
    {"ids", &Batch::Ids, METH_NOARGS, nullptr},
    {"to_device", &Batch::ToDevice, METH_VARARGS, nullptr},
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

PyMethodDef kReaderMethods[] = {
    {"next", &Reader::Next, METH_O, nullptr},
    {"close", &Reader::PyClose, METH_NOARGS, nullptr},
    {"state", &Reader::State, METH_NOARGS, nullptr},
    {"fingerprint", &Reader::Fingerprint, METH_VARARGS, nullptr},
    {"first_free_row", &Reader::FirstFreeRow, METH_NOARGS, nullptr},
    {"reset", &Reader::Reset, METH_VARARGS, nullptr},
    {"stop_job", &Reader::StopJob, METH_O, nullptr},
    {"prefetch_to_device", &Reader::PrefetchToDevice, METH_VARARGS, nullptr},
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

}  // namespace

void AddReader(PyObject* module) {
  g_batch_type = AddType<Batch>(module, "penstock._core.Batch", &NoNew,
                                kBatchMethods, kBatchMembers);
  AddType<Reader>(module, "penstock._core.Reader", &Reader::Make,
                  kReaderMethods, kReaderMembers);
}

}  // namespace penstock::python
