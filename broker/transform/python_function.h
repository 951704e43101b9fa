// map: python. A Python function of whole rows, in processes of its own.
#ifndef BROKER_TRANSFORM_PYTHON_FUNCTION_H_
#define BROKER_TRANSFORM_PYTHON_FUNCTION_H_

#include <memory>
#include <optional>
#include <string>

#include "broker/transform/row_function.h"

namespace penstock {

struct PythonOp {
  std::string function;                 // "package.module:function"
  std::optional<ElementSpec> features;  // absent: as its input
  bool operator==(const PythonOp&) const = default;

  static const Declaration<PythonOp>& Declared();
  // python_function.py.
  static std::string_view Program();
  const std::string& Name() const { return function; }
  StatusOr<std::unique_ptr<RowFunction>> Open(const RawSpec& inputs,
                                              const FunctionOptions& options,
                                              const Cancelled& cancelled) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PYTHON_FUNCTION_H_
