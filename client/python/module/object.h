// Objects, errors and the GIL of CPython for C++.
#ifndef PENSTOCK_CLIENT_PYTHON_MODULE_OBJECT_H_
#define PENSTOCK_CLIENT_PYTHON_MODULE_OBJECT_H_

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "client/penstock.h"

namespace penstock::python {

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

inline PyObject* None() {
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

// Lets one thread in at a time, as the GIL does where there is one: while it
// waits (WithoutGil), others get in.
class Alone {
 public:
#ifdef Py_GIL_DISABLED
  explicit Alone(PyObject* self) { PyCriticalSection_Begin(&section_, self); }
  ~Alone() { PyCriticalSection_End(&section_); }
#else
  explicit Alone(PyObject*) {}
  ~Alone() {}
#endif
  Alone(const Alone&) = delete;

#ifdef Py_GIL_DISABLED

 private:
  PyCriticalSection section_;
#endif
};

// Entry of an object's method.
template <typename Body>
PyObject* Entry(PyObject* self, Body body) {
  const Alone alone(self);
  return Entry(body);
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

inline PyObject* NoNew(PyTypeObject*, PyObject*, PyObject*) {
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
inline PyObject* ToPython(const char* text) {
  return PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)),
                              "backslashreplace");
}
inline PyObject* ToPython(const std::string& text) {
  return ToPython(text.c_str());
}
inline PyObject* ToPython(bool value) { return PyBool_FromLong(value ? 1 : 0); }
inline PyObject* ToPython(int32_t value) { return PyLong_FromLong(value); }
inline PyObject* ToPython(uint64_t value) {
  return PyLong_FromUnsignedLongLong(value);
}

// A path, which need not be valid text: bytes, or nullptr for None.
inline const char* BytesOrNull(PyObject* value) {
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
[[noreturn]] inline void Raise(int code, const char* text) {
  const Object errors(PyImport_ImportModule("penstock.errors"));
  const Object error(PyObject_CallMethod(errors.get(), "error_of", "iN", code,
                                         ToPython(text)));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())),
                  error.get());
  throw PythonError();
}

inline int Check(int code) {
  if (code < 0) Raise(code, penstock_error());
  return code;
}

// Checks a call that a signal may have cancelled.
inline void CheckCall(int code) {
  if (code == PENSTOCK_CANCELLED) PyErr_CheckSignals();
  if (PyErr_Occurred() != nullptr) throw PythonError();
  Check(code);
}

// Called without the GIL while the library waits.
inline int32_t SignalArrived(void*) {
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

// ---- types

// A member that cannot be set.
inline PyGetSetDef Member(const char* name, getter get) {
  return {name, get, nullptr, nullptr, nullptr};
}

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

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_MODULE_OBJECT_H_
