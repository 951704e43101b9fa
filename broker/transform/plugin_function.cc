#include <dlfcn.h>
#include <sys/stat.h>

#include <cstring>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/transform/row_function.h"
#include "client/penstock_plugin.h"

namespace penstock {
namespace {

constexpr size_t kErrorBytes = 1024;

// Never unloaded: its threads or exit handlers may run anywhere.
struct Library {
  void* handle = nullptr;
  penstock_plugin_function function = nullptr;
};

StatusOr<Library> Load(const std::string& path, const std::string& function) {
  Library library;
  library.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library.handle == nullptr) return InvalidArgumentError("{}", dlerror());
  const auto* const abi = static_cast<const uint32_t*>(
      dlsym(library.handle, "penstock_plugin_abi"));
  if (abi == nullptr) {
    return InvalidArgumentError(
        "{} does not say what it was built against: it needs "
        "PENSTOCK_PLUGIN_EXPORTS_ABI (penstock_plugin.h)",
        path);
  }
  if (*abi != PENSTOCK_PLUGIN_ABI) {
    return InvalidArgumentError(
        "{} was built against version {} of penstock_plugin.h, this broker has "
        "{}: build it again",
        path, *abi, PENSTOCK_PLUGIN_ABI);
  }
  // The prefix and the check of the library exclude names such as `abort`:
  // dlsym also searches the library's dependencies.
  void* const found =
      dlsym(library.handle, ("penstock_plugin_function_" + function).c_str());
  Dl_info of_found;
  Dl_info of_abi;
  if (found == nullptr || dladdr(found, &of_found) == 0 ||
      dladdr(abi, &of_abi) == 0 || of_found.dli_fbase != of_abi.dli_fbase) {
    return InvalidArgumentError(
        "{} has no PENSTOCK_PLUGIN_FUNCTION({}) (penstock_plugin.h)", path,
        function);
  }
  library.function = reinterpret_cast<penstock_plugin_function>(found);
  return library;
}

penstock_plugin_tensor TensorOf(const Feature& feature) {
  penstock_plugin_tensor tensor = {};
  tensor.name = feature.name.c_str();
  tensor.dtype = static_cast<uint32_t>(feature.dtype);
  tensor.rank = static_cast<uint32_t>(feature.shape.size());
  tensor.shape = feature.shape.data();
  tensor.bytes = feature.RowBytes();
  return tensor;
}

class PluginCaller final : public RowFunction::Caller {
 public:
  PluginCaller(const Library& library, const RawSpec& inputs,
               const ElementSpec& outputs)
      : library_(library), inputs_spec_(inputs), outputs_spec_(outputs) {
    file_bytes_.resize(inputs.size());
    for (const RawFeature& input : inputs) {
      inputs_.push_back(TensorOf(input.feature));
    }
    for (const Feature& output : outputs) outputs_.push_back(TensorOf(output));
    row_.struct_bytes = sizeof(row_);
    row_.input_count = static_cast<uint32_t>(inputs_.size());
    row_.output_count = static_cast<uint32_t>(outputs_.size());
    row_.inputs = inputs_.data();
    row_.outputs = outputs_.data();
  }

  StatusOr<std::span<std::byte* const>> Inputs(
      std::span<const uint64_t> bytes) override {
    PENSTOCK_ASSIGN_OR_RETURN(const RowLayout layout,
                              PlanRow(bytes, outputs_spec_));
    if (layout.bytes + kFunctionAlign > memory_.size()) {
      memory_ = std::vector<std::byte>(layout.bytes + kFunctionAlign);
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    std::byte* const begin =
        memory_.data() + (kFunctionAlign - address % kFunctionAlign);
    places_.clear();
    for (size_t i = 0; i < bytes.size(); ++i) {
      places_.push_back(begin + layout.input_offsets[i]);
      inputs_[i].data = places_[i];
      if (inputs_spec_[i].encoded) {
        file_bytes_[i] = static_cast<int64_t>(bytes[i]);
        inputs_[i].bytes = bytes[i];
        inputs_[i].shape = &file_bytes_[i];
        inputs_[i].rank = 1;
      }
    }
    results_.clear();
    for (size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i].data = begin + layout.output_offsets[i];
      results_.push_back({begin + layout.output_offsets[i], outputs_[i].bytes});
    }
    return std::span<std::byte* const>(places_);
  }

  StatusOr<const RawRecord*> Call(const AugmentationKey& key,
                                  uint64_t step) override {
    row_.seed = key.seed;
    row_.epoch = key.epoch;
    row_.sample = key.sample;
    row_.step = step;
    // Clear the outputs, so that unwritten bytes are not those of the previous
    // row.
    for (const penstock_plugin_tensor& output : outputs_) {
      std::memset(output.data, 0, output.bytes);
    }
    char error[kErrorBytes] = "";
    const int result = library_.function(&row_, error, sizeof(error));
    if (result == 0) return &results_;
    error[kErrorBytes - 1] = '\0';
    return DataLossError("it returned {}{}{}", result,
                         error[0] == '\0' ? "" : ": ", error);
  }

 private:
  const Library library_;
  const RawSpec& inputs_spec_;
  const ElementSpec& outputs_spec_;
  std::vector<std::byte> memory_;
  std::vector<int64_t> file_bytes_;  // the shape of an encoded input
  std::vector<penstock_plugin_tensor> inputs_;
  std::vector<penstock_plugin_tensor> outputs_;
  penstock_plugin_row row_ = {};
  std::vector<std::byte*> places_;
  RawRecord results_;
};

bool IsLibrary(std::string_view text) {
  return text.find('/') == text.npos && text.ends_with(".so");
}

bool IsCName(std::string_view text) {
  return IsDottedName(text) && text.find('.') == text.npos;
}

class PluginFunction final : public RowFunction {
 public:
  PluginFunction(const Library& library, RawSpec inputs, ElementSpec outputs)
      : library_(library),
        inputs_(std::move(inputs)),
        made_(std::move(outputs)),
        outputs_(RawSpecOf(made_)) {}

  const RawSpec& outputs() const override { return outputs_; }
  std::unique_ptr<Caller> MakeCaller(Cancelled) const override {
    return std::make_unique<PluginCaller>(library_, inputs_, made_);
  }
  uint64_t wait_ns() const override { return 0; }

 private:
  const Library library_;
  const RawSpec inputs_;
  const ElementSpec made_;
  const RawSpec outputs_;
};

}  // namespace

const Declaration<PluginOp>& PluginOp::Declared() {
  static const auto declared =
      Declaration<PluginOp>("plugin", "A C function of a whole row.")
          .Gives("a row → features")
          .Example("{library: brightness.so, function: brightness}")
          .Required(
              "library", &PluginOp::library,
              Text("the name of a file in the broker's plugin_dir, \"name.so\"",
                   IsLibrary),
              "built with penstock_plugin.h")
          .Required("function", &PluginOp::function,
                    Text("the name of a C function", IsCName),
                    "as in PENSTOCK_PLUGIN_FUNCTION")
          .Optional("features", &PluginOp::features, Maybe(Features()),
                    kOutputsText);
  return declared;
}

StatusOr<std::unique_ptr<RowFunction>> PluginOp::Open(
    const RawSpec& inputs, const FunctionOptions& options, MapOpening*) const {
  PENSTOCK_ASSIGN_OR_RETURN(ElementSpec outputs, OutputsOf(features, inputs));
  if (options.plugin_dir.empty()) {
    return FailedPreconditionError(
        "this broker loads no plugins: `plugin_dir` in its configuration, or "
        "PENSTOCK_PLUGIN_DIR, names the folder of libraries that it may load");
  }
  const std::string path = options.plugin_dir + "/" + library;
  struct stat st;
  if (stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) {
    return NotFoundError("no library '{}' in plugin_dir ({})", library,
                         options.plugin_dir);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckTrustedFile(path, st, options.writable_by));
  PENSTOCK_ASSIGN_OR_RETURN(const Library loaded, Load(path, function));
  return std::unique_ptr<RowFunction>(
      new PluginFunction(loaded, inputs, std::move(outputs)));
}

}  // namespace penstock
