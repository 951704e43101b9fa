#include "broker/source/tensor_values.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/index/values.h"
#include "broker/source/number.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

// Appends the numbers in value, whose shape from this depth on must equal
// shape.
Status Collect(const YamlValue& value, const std::vector<size_t>& shape,
               size_t depth, std::vector<YamlValue>* numbers) {
  if (depth == shape.size()) {
    if (value.IsSequence()) {
      return value.Error(
          Format("ragged: a list of {} here, a number at this position of the "
                 "first row",
                 value.size()));
    }
    if (!value.IsScalar()) return value.Wanted("a number");
    numbers->push_back(value);
    return OkStatus();
  }
  if (!value.IsSequence() || value.size() != shape[depth]) {
    if (value.IsSequence() || value.IsScalar()) {
      return value.Error(Format(
          "ragged: {} here, a list of {} at this position of the first row",
          value.IsScalar() ? "a number" : Format("a list of {}", value.size()),
          shape[depth]));
    }
    return value.Wanted("a list of numbers");
  }
  for (size_t i = 0; i < value.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(Collect(value.Item(i), shape, depth + 1, numbers));
  }
  return OkStatus();
}

template <typename T>
StatusOr<int64_t> ReadWhole(const YamlValue& value) {
  static const auto type = WholeNumber<int64_t>(std::numeric_limits<T>::min(),
                                                std::numeric_limits<T>::max());
  int64_t number = 0;
  PENSTOCK_RETURN_IF_ERROR(type.Read(value, &number));
  return number;
}

// What to write instead of a value that ReadNumber refused.
std::string WayOut(const YamlValue& value, DType dtype) {
  double number = 0;
  if (value.IsNumber(&number)) {
    return dtype == DType::kBool
               ? "write all as true or false, or all as numbers"
               : Format("{} cannot hold it, give another `dtype`",
                        DTypeName(dtype));
  }
  if (value.IsBool()) return "write 1 or 0, or all as true or false";
  std::string text;
  if (!value.String(&text).ok()) return "each row needs a value";
  if (text.find_first_not_of("0123456789.eE+-") == std::string::npos) {
    return "write a number of that range, without quotes";
  }
  text.erase(0, text.find_first_not_of("+-."));
  for (char& c : text) c = static_cast<char>(std::tolower(c));
  if (text == "nan" || text == "inf" || text == "infinity") {
    return "a spec has no NaN and no infinity: leave the row out, or put the "
           "values into a file (`fixed_length_records`)";
  }
  return "text is no value: number the texts, or put them into a file "
         "(`text_lines`)";
}

template <typename T>
T Take(const std::byte** at) {
  return ValueAt<T>(std::exchange(*at, *at + sizeof(T)));
}

// The double with the shortest decimal digits that mean the same float32, which
// may be beyond the largest one, max.
double Shortest(float number, double max) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), number).ptr;
  double shortest = 0;
  std::from_chars(text, end, shortest);
  return std::abs(shortest) > max ? number : shortest;
}

// The value of a 16-bit format, as StoreReal writes it; finite.
double SmallFloat(uint16_t bits, int mantissa_bits, int exponent_min,
                  double max) {
  const int units = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int implicit = exponent > 0 ? 1 << mantissa_bits : 0;
  const double magnitude =
      std::ldexp(units + implicit,
                 std::max(exponent, 1) - 1 + exponent_min - mantissa_bits);
  const bool negative = (bits & 0x8000) != 0;
  return Shortest(static_cast<float>(negative ? -magnitude : magnitude), max);
}

nlohmann::ordered_json TakeNumber(DType dtype, const std::byte** at) {
  switch (dtype) {
    case DType::kUint8:
      return Take<uint8_t>(at);
    case DType::kInt8:
      return Take<int8_t>(at);
    case DType::kInt16:
      return Take<int16_t>(at);
    case DType::kInt32:
      return Take<int32_t>(at);
    case DType::kInt64:
      return Take<int64_t>(at);
    case DType::kFloat16:
      return SmallFloat(Take<uint16_t>(at), 10, -14, kFloat16Max);
    case DType::kBFloat16:
      return SmallFloat(Take<uint16_t>(at), 7, -126, kBFloat16Max);
    case DType::kFloat32:
      return Shortest(Take<float>(at), std::numeric_limits<float>::max());
    case DType::kFloat64:
      return Take<double>(at);
    case DType::kBool:
      return Take<bool>(at);
  }
  return nullptr;
}

// The values of the dimensions from `shape` on.
nlohmann::ordered_json TakeList(std::span<const int64_t> shape, DType dtype,
                                const std::byte** at) {
  if (shape.empty()) return TakeNumber(dtype, at);
  auto list = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < shape.front(); ++i) {
    list.push_back(TakeList(shape.subspan(1), dtype, at));
  }
  return list;
}

}  // namespace

Status ReadNumber(const YamlValue& value, DType dtype, std::byte* to) {
  const auto whole = [&](const StatusOr<int64_t>& number) {
    if (!number.ok()) return number.status();
    StoreWhole(*number, dtype, to);  // in its range, as read
    return OkStatus();
  };
  const auto real = [&](double max) {
    double number = 0;
    const Status status = Number(-max, max).Read(value, &number);
    if (status.ok()) StoreReal(number, dtype, to);  // in its range, as read
    return status;
  };
  switch (dtype) {
    case DType::kUint8:
      return whole(ReadWhole<uint8_t>(value));
    case DType::kInt8:
      return whole(ReadWhole<int8_t>(value));
    case DType::kInt16:
      return whole(ReadWhole<int16_t>(value));
    case DType::kInt32:
      return whole(ReadWhole<int32_t>(value));
    case DType::kInt64:
      return whole(ReadWhole<int64_t>(value));
    case DType::kFloat16:
      return real(kFloat16Max);
    case DType::kBFloat16:
      return real(kBFloat16Max);
    case DType::kFloat32:
      return real(std::numeric_limits<float>::max());
    case DType::kFloat64:
      return real(std::numeric_limits<double>::max());
    case DType::kBool: {
      bool truth = false;
      PENSTOCK_RETURN_IF_ERROR(Bool().Read(value, &truth));
      *to = static_cast<std::byte>(truth);
      return OkStatus();
    }
  }
  return value.Wanted("a known dtype");
}

void WriteNumber(DType dtype, const std::byte* from,
                 nlohmann::ordered_json* out) {
  *out = TakeNumber(dtype, &from);
}

Status ReadTensor(const YamlValue& values, std::optional<DType> dtype,
                  size_t dimensions_max, TensorsSource::Tensor* tensor,
                  uint64_t* rows) {
  if (!values.present()) return values.Absent();
  if (!values.IsSequence())
    return values.Wanted("a list with a row for each record");
  // The first row determines the shape of all rows.
  std::vector<size_t> shape;
  for (YamlValue first = values; first.IsSequence(); first = first.Item(0)) {
    if (first.size() == 0) return first.Error("an empty list");
    if (shape.size() > dimensions_max) {
      return first.Error(Format("more than {} dimensions", dimensions_max));
    }
    shape.push_back(first.size());
  }
  std::vector<YamlValue> numbers;
  PENSTOCK_RETURN_IF_ERROR(Collect(values, shape, 0, &numbers));

  if (!dtype) {
    const auto all = [&](bool (YamlValue::*is)() const) {
      return std::all_of(numbers.begin(), numbers.end(), std::mem_fn(is));
    };
    dtype = all(&YamlValue::IsWholeNumber) ? DType::kInt64
            : all(&YamlValue::IsBool)      ? DType::kBool
                                           : DType::kFloat32;
  }
  const size_t value_bytes = DTypeBytes(*dtype);
  tensor->data.resize(numbers.size() * value_bytes);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Status status =
        ReadNumber(numbers[i], *dtype, tensor->data.data() + i * value_bytes);
    if (status.ok()) continue;
    return Status(status.code(),
                  Format("{} in row {} (from 0): {}", status.message(),
                         i / (numbers.size() / shape.front()),
                         WayOut(numbers[i], *dtype)));
  }
  tensor->feature.dtype = *dtype;
  tensor->feature.shape.assign(shape.begin() + 1, shape.end());
  *rows = shape.front();
  return OkStatus();
}

void WriteTensor(const TensorsSource::Tensor& tensor, uint64_t rows,
                 nlohmann::ordered_json* out) {
  std::vector<int64_t> shape = {static_cast<int64_t>(rows)};
  shape.insert(shape.end(), tensor.feature.shape.begin(),
               tensor.feature.shape.end());
  const std::byte* at = tensor.data.data();
  *out = TakeList(shape, tensor.feature.dtype, &at);
}

}  // namespace penstock
