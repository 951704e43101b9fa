// map: plugin. A function of whole rows in a shared library
// (client/penstock_plugin.h), called on the worker's own thread.
#ifndef BROKER_TRANSFORM_PLUGIN_FUNCTION_H_
#define BROKER_TRANSFORM_PLUGIN_FUNCTION_H_

#include <memory>
#include <optional>
#include <string>

#include "broker/transform/row_function.h"

namespace penstock {

struct PluginOp {
  std::string library;  // a file name
  std::string function;
  std::optional<ElementSpec> features;  // absent: as its input
  bool operator==(const PluginOp&) const = default;

  static const Declaration<PluginOp>& Declared();
  std::string Name() const { return Format("{} of {}", function, library); }
  StatusOr<std::unique_ptr<RowFunction>> Open(const RawSpec& inputs,
                                              const FunctionOptions& options,
                                              const Cancelled&) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PLUGIN_FUNCTION_H_
