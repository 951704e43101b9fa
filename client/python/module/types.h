// The types of this module, each added by its own file.
#ifndef PENSTOCK_CLIENT_PYTHON_MODULE_TYPES_H_
#define PENSTOCK_CLIENT_PYTHON_MODULE_TYPES_H_

#include "client/python/module/object.h"

namespace penstock::python {

void AddArray(PyObject* module);
void AddReader(PyObject* module);  // and Batch
void AddProducer(PyObject* module);

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_MODULE_TYPES_H_
