// penstock._core: the C ABI as Python objects, and what the launcher says. The
// public classes are in penstock/*.py; this module has what needs C++: waiting
// without the GIL, and memory.
//
// It keeps to the limited API of CPython 3.9: one build serves every later
// CPython (abi3). That API has no buffers before 3.11, so NumPy takes arrays by
// its own protocol, __array_struct__. A free-threaded CPython before 3.15 has
// no limited API: a build for it is for that version alone.
//
// Threads: calls release the GIL while they wait. Any one thread at a time uses
// a Reader; arrays and batches may be destroyed on any thread. Without a GIL
// each object has a lock in its place (Alone); the module's own variables are
// written only while it is imported.
#include "client/attach/launcher.h"
#include "client/python/module/object.h"
#include "client/python/module/types.h"

namespace penstock::python {
namespace {

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
    return Entry(self, [&] { Of<Broker>(self).Stop(); });
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
    const auto found = DetectLaunch(ProcessEnvironment());
    const LaunchInfo info = found.ok() ? *found : LaunchInfo{};
    return Py_BuildValue("(NLLLLLN)", ToPython(info.launcher),
                         static_cast<long long>(info.world_size),
                         static_cast<long long>(info.rank),
                         static_cast<long long>(info.local_world_size),
                         static_cast<long long>(info.local_rank),
                         static_cast<long long>(info.stride),
                         ToPython(info.job));
  });
}

// ---- the module

PyMethodDef kModuleMethods[] = {
    {"own_broker", &OwnBroker, METH_NOARGS, nullptr},
    {"launch", &Launch, METH_NOARGS, nullptr},
    {}};

PyMethodDef kBrokerMethods[] = {{"stop", &Broker::PyStop, METH_NOARGS, nullptr},
                                {}};
PyGetSetDef kBrokerMembers[] = {Member("socket", &Broker::Socket), {}};

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
}  // namespace penstock::python

PyMODINIT_FUNC PyInit__core() {
  using namespace penstock::python;
  return Entry([] {
    Object module(PyModule_Create(&g_module));
    PyObject* const m = module.get();
    if (PyModule_AddStringConstant(m, "version", penstock_version()) != 0 ||
        PyModule_AddIntConstant(m, "PADDING_ID", PENSTOCK_PADDING_ID) != 0) {
      throw PythonError();
    }
    AddArray(m);
    AddType<Broker>(m, "penstock._core.Broker", &Broker::Make, kBrokerMethods,
                    kBrokerMembers);
    AddReader(m);
    AddProducer(m);
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(m, Py_MOD_GIL_NOT_USED);
#endif
    return module.release();
  });
}
