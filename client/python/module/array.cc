#include "client/python/module/array.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "client/python/module/types.h"

namespace penstock::python {

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

namespace {

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
constexpr int kCuda = 2;
// __dlpack__'s stream: CUDA's default stream, also as a handle of the driver.
constexpr intptr_t kDefaultStream = 1;

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
  Array(std::shared_ptr<penstock_device_batch> batch, int device, void* data,
        const Feature& of, uint64_t rows)
      : Array(batch, data, of, rows, true) {
    on_device_ = batch.get();
    device_ = device;
  }
  Array(const Array&) = delete;

  static PyObject* Struct(PyObject* self, void*) {
    if (Of<Array>(self).on_device_ != nullptr) {
      PyErr_SetString(PyExc_AttributeError, "this array is on a GPU");
      return nullptr;
    }
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
      if (device != Py_None) {
        const Object own(DLPackDevice(self, nullptr));
        const int same = PyObject_RichCompareBool(device, own.get(), Py_EQ);
        if (same < 0) throw PythonError();
        if (same == 0) {
          PyErr_SetString(PyExc_BufferError, "it is on another device");
          throw PythonError();
        }
      }
      if (array.on_device_ != nullptr) array.MakeWait(stream);
      return array.Tensor();
    });
  }
  static PyObject* DLPackDevice(PyObject* self, PyObject*) {
    const Array& array = Of<Array>(self);
    return Py_BuildValue("(ii)", array.on_device_ == nullptr ? kCpu : kCuda,
                         array.device_);
  }

 private:
  // Lives until its consumer deletes it, on any thread, with or without the
  // GIL, also after the interpreter's end.
  struct Export {
    ManagedTensor tensor;
    std::array<int64_t, kDimensionsMax> shape, strides;
    std::shared_ptr<const void> owner;
  };

  // stream: None: the default stream; -1: no wait, by a consumer that uses one
  // all the same.
  void MakeWait(PyObject* stream) const {
    intptr_t handle = kDefaultStream;
    if (stream != Py_None) handle = PyLong_AsSsize_t(stream);
    if (PyErr_Occurred() != nullptr) throw PythonError();
    Check(penstock_device_wait(
        on_device_, reinterpret_cast<void*>(std::max(handle, kDefaultStream))));
  }

  PyObject* Tensor() const {
    auto exported = std::make_unique<Export>();
    exported->shape = shape_;
    exported->strides = element_strides_;
    exported->owner = owner_;
    exported->tensor = {interface_.data,
                        on_device_ == nullptr ? kCpu : kCuda,
                        device_,
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
  penstock_device_batch* on_device_ = nullptr;  // its owner
  int device_ = 0;
  ArrayInterface interface_;
  std::array<int64_t, kDimensionsMax> shape_{}, strides_{}, element_strides_{};
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
};

PyTypeObject* g_array_type;
PyObject* g_asarray;  // numpy.asarray

PyMethodDef kArrayMethods[] = {
    {"__dlpack__",
     reinterpret_cast<PyCFunction>(
         reinterpret_cast<void (*)()>(&Array::DLPack)),
     METH_VARARGS | METH_KEYWORDS, nullptr},
    {"__dlpack_device__", &Array::DLPackDevice, METH_NOARGS, nullptr},
    {}};
PyGetSetDef kArrayMembers[] = {Member("__array_struct__", &Array::Struct), {}};

}  // namespace

PyObject* NewArray(bool numpy, std::shared_ptr<const void> owner, void* data,
                   const Feature& of, uint64_t rows, bool writable) {
  Object array(New(g_array_type, std::make_unique<Array>(std::move(owner), data,
                                                         of, rows, writable)));
  if (!numpy) return array.release();
  return PyObject_CallFunctionObjArgs(g_asarray, array.get(), nullptr);
}

PyObject* NewDeviceArray(std::shared_ptr<penstock_device_batch> owner,
                         int device, uint32_t feature, const Feature& of,
                         uint64_t rows) {
  uint64_t bytes = 0;
  void* const data =
      const_cast<void*>(penstock_device_data(owner.get(), feature, &bytes));
  Feature there = of;
  // Only what the batch has of its room was copied.
  if (of.of_batch) there.shape = {static_cast<int64_t>(bytes)};
  return New(g_array_type, std::make_unique<Array>(std::move(owner), device,
                                                   data, there, rows));
}

void AddArray(PyObject* module) {
  const Object numpy(PyImport_ImportModule("numpy"));
  g_asarray = Object(PyObject_GetAttrString(numpy.get(), "asarray")).release();
  g_array_type = AddType<Array>(module, "penstock._core.Array", &NoNew,
                                kArrayMethods, kArrayMembers);
}

}  // namespace penstock::python
