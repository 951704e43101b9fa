#include <algorithm>
#include <vector>

#include "client/python/module/array.h"
#include "client/python/module/types.h"

namespace penstock::python {
namespace {

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
    return Entry(self, [&] {
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
    return Entry(self, [&] {
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
    return Entry(self, [&] {
      const uint64_t rows = RowsOf(count);
      Of<Producer>(self).Call([&](penstock_producer* producer) {
        return penstock_producer_put(producer, rows);
      });
    });
  }
  static PyObject* Finish(PyObject* self, PyObject*) {
    return Entry(self,
                 [&] { Of<Producer>(self).Call(&penstock_producer_finish); });
  }
  static PyObject* Fail(PyObject* self, PyObject* args) {
    return Entry(self, [&] {
      const char* why;
      Parse(args, "s", &why);
      Of<Producer>(self).Call([&](penstock_producer* producer) {
        return penstock_producer_fail(producer, why);
      });
    });
  }
  static PyObject* NextRow(PyObject* self, void*) {
    return Entry(self, [&] {
      return ToPython(
          penstock_producer_next_row(Of<Producer>(self).producer_.get()));
    });
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

PyMethodDef kProducerMethods[] = {
    {"reserve", &Producer::Reserve, METH_O, nullptr},
    {"array", &Producer::GetArray, METH_VARARGS, nullptr},
    {"put", &Producer::Put, METH_O, nullptr},
    {"finish", &Producer::Finish, METH_NOARGS, nullptr},
    {"fail", &Producer::Fail, METH_VARARGS, nullptr},
    {}};
PyGetSetDef kProducerMembers[] = {Member("next_row", &Producer::NextRow), {}};

}  // namespace

void AddProducer(PyObject* module) {
  AddType<Producer>(module, "penstock._core.Producer", &Producer::Make,
                    kProducerMethods, kProducerMembers);
}

}  // namespace penstock::python
