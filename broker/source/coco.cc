#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/index/fingerprint.h"
#include "broker/index/values.h"
#include "broker/source/csv_rows.h"
#include "broker/source/kinds.h"
#include "broker/source/listed_files.h"
#include "broker/source/text_scan.h"
#include "common/quantity.h"

namespace penstock {
namespace {

namespace json = simdjson::ondemand;

constexpr uint64_t kAnnotationBytesMax = (uint64_t{4} << 30) - 1;  // simdjson's
constexpr uint64_t kLengthMax = 1 << 20;
// Every whole pixel up to it is a float32.
constexpr double kPlaceMax = 1 << 24;
// Names of labels that are ids, which may have gaps.
constexpr int64_t kNamedIdsMax = 65536;
constexpr uint64_t kSegmentationBytesMax = 16 << 20;  // of a picture
constexpr char kNoClass[] = "__background__";

struct Object {
  std::array<float, 4> box;  // x, y, width, height
  float area;
  uint32_t is_crowd : 1;
  uint32_t category : 31;  // its place among the ids
  uint64_t mask;           // its number, if they are read
};

// JSON of a mask each: polygons, or an RLE.
struct Masks {
  std::string text;
  std::vector<uint64_t> ends;

  std::string_view operator[](uint64_t mask) const {
    const uint64_t begin = mask == 0 ? 0 : ends[mask - 1];
    return std::string_view(text).substr(begin, ends[mask] - begin);
  }
};

// The pictures in the order of their ids, as pycocotools and torchvision have
// them, and the objects of each in the order of the file.
struct Pictures {
  ListedPaths paths;
  std::vector<int64_t> ids;
  std::vector<uint64_t> ends;  // of their objects
  std::vector<Object> objects;
  Masks masks;
  std::vector<int64_t> category_ids;  // increasing
  std::vector<std::string> category_names;

  std::span<const Object> ObjectsOf(uint64_t picture) const {
    const uint64_t begin = picture == 0 ? 0 : ends[picture - 1];
    return std::span(objects).subspan(begin, ends[picture] - begin);
  }
  // The JSON list of its masks.
  uint64_t SegmentationBytes(uint64_t picture) const {
    const std::span<const Object> of = ObjectsOf(picture);
    uint64_t bytes = 2 + (of.empty() ? 0 : of.size() - 1);
    for (const Object& each : of) bytes += masks[each.mask].size();
    return bytes;
  }
  uint64_t MemoryBytes() const {
    return masks.text.size() + masks.ends.capacity() * sizeof(uint64_t) +
           paths.MemoryBytes() + ids.capacity() * sizeof(int64_t) +
           ends.capacity() * sizeof(uint64_t) +
           objects.capacity() * sizeof(Object);
  }
};

// segmentation_bytes: 0: masks are not read.
FeatureValues<TextField> FieldsOf(uint64_t max_length,
                                  uint64_t segmentation_bytes) {
  const auto list = [max_length](DType dtype, std::vector<int64_t> shape = {}) {
    return TextField{
        .dtype = dtype, .shape = std::move(shape), .max_length = max_length};
  };
  TextField picture;
  picture.encoded = true;
  FeatureValues<TextField> fields = {
      {"image", std::move(picture)},   {"boxes", list(DType::kFloat32, {4})},
      {"labels", list(DType::kInt64)}, {"area", list(DType::kFloat32)},
      {"iscrowd", list(DType::kBool)}, {"image_id", {.dtype = DType::kInt64}}};
  if (segmentation_bytes > 0) {
    fields.push_back({"segmentation", {.max_bytes = segmentation_bytes}});
  }
  return fields;
}

RawSpec WithObjects(RawSpec spec) {
  for (RawFeature& each : spec) {
    const std::string& name = each.feature.name;
    if (name == "boxes") each.boxes = BoxFormat::kXyxy;
    if (each.boxes || name == "labels" || name == "area" || name == "iscrowd") {
      each.picture = "image";
    }
  }
  return spec;
}

enum CocoField : size_t {
  kImage,
  kBoxes,
  kLabels,
  kArea,
  kIsCrowd,
  kImageId,
  kSegmentation
};

class Coco final : public Source {
 public:
  Coco(const CocoSource& spec, DataFile annotations, ListedFolder folder,
       Pictures pictures, uint64_t max_length, uint64_t segmentation_bytes,
       std::string left_out)
      : spec_(spec),
        annotations_(std::move(annotations)),
        folder_(std::move(folder)),
        fields_(FieldsOf(max_length, segmentation_bytes), spec.longer),
        raw_spec_(WithObjects(fields_.raw_spec())),
        pictures_(std::move(pictures)),
        left_out_(std::move(left_out)) {
    folder_.Place(pictures_.paths);
  }

  Status AskFileSystem(Io io) { return folder_.Ask(pictures_.paths[0], io); }

  uint64_t record_count() const override { return pictures_.ids.size(); }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override {
    return pictures_.MemoryBytes() + folder_.memory_bytes();
  }
  bool Changed() const override {
    return annotations_.Changed() || folder_.Changed();
  }
  std::string io() const override { return IoText(folder_.align()); }
  std::string left_out() const override { return left_out_; }

  std::vector<std::string> class_names() const override {
    std::vector<std::string> names;
    if (spec_.labels != CocoSource::Labels::kIds) {
      if (spec_.labels == CocoSource::Labels::kFrom1) names = {kNoClass};
      names.insert(names.end(), pictures_.category_names.begin(),
                   pictures_.category_names.end());
      return names;
    }
    const std::vector<int64_t>& ids = pictures_.category_ids;
    if (ids.empty() || ids.front() < 0 || ids.back() >= kNamedIdsMax) return {};
    names.resize(static_cast<size_t>(ids.back()) + 1, kNoClass);
    for (size_t i = 0; i < ids.size(); ++i) {
      names[static_cast<size_t>(ids[i])] = pictures_.category_names[i];
    }
    return names;
  }

  std::string fingerprint() const override {
    Fingerprint fingerprint("coco");
    pictures_.paths.AddTo(&fingerprint);
    fingerprint.Add(std::as_bytes(std::span(pictures_.ids)));
    fingerprint.Add(std::as_bytes(std::span(pictures_.ends)));
    fingerprint.Add(std::as_bytes(std::span(pictures_.objects)));
    fingerprint.Add(pictures_.masks.text);
    fingerprint.Add(std::as_bytes(std::span(pictures_.category_ids)));
    for (const std::string& name : pictures_.category_names) {
      fingerprint.Add(name);
    }
    return fingerprint.Hex();
  }
  void ListFiles(const FileVisit& visit) const override {
    pictures_.paths.List(visit);
  }
  // As of a list of pictures.
  void AddTimes(Fingerprint* to) const override {
    annotations_.AddTime(to);
    folder_.AddTime(to);
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    folder_.Locate(pictures_.paths, record, request);
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    if (read.bytes.empty()) {
      return DataLossError("{}: is empty", Describe(record));
    }
    if (scratch->size() < fields_.bytes()) scratch->resize(fields_.bytes());
    std::byte* const row = scratch->data();
    const std::span<const Object> objects = pictures_.ObjectsOf(record);
    std::array<std::byte*, kImageId + 1> to;
    for (size_t i = kBoxes; i <= kImageId; ++i) {
      to[i] = fields_.NumbersIn(row, i);
    }
    for (const Object& object : objects) {
      std::array<float, 4> box = object.box;
      box[2] += box[0];
      box[3] += box[1];
      Put(box, &to[kBoxes]);
      Put(LabelOf(object), &to[kLabels]);
      Put(object.area, &to[kArea]);
      Put(object.is_crowd == 1, &to[kIsCrowd]);
    }
    for (size_t i = kBoxes; i <= kIsCrowd; ++i) {
      fields_.EndList(objects.size(), i, row);
    }
    Put(pictures_.ids[record], &to[kImageId]);
    if (spec_.segmentation) {
      PENSTOCK_RETURN_IF_ERROR(
          fields_.StoreText(Segmentation(objects), kSegmentation, row));
    }
    fields_.Point(std::span(*scratch).first(fields_.bytes()), raw);
    (*raw)[kImage] = read.bytes;
    return OkStatus();
  }

  bool KnownNumber(uint64_t record, size_t feature,
                   std::byte* number) const override {
    const Feature& of = raw_spec()[feature].feature;
    if (raw_spec()[feature].encoded || !of.shape.empty()) return false;
    const auto value =
        of.name.ends_with(kLengthSuffix)
            ? static_cast<int64_t>(pictures_.ObjectsOf(record).size())
        : of.name.ends_with(kBytesSuffix)
            ? static_cast<int64_t>(pictures_.SegmentationBytes(record))
            : pictures_.ids[record];
    std::memcpy(number, &value, sizeof(value));
    return true;
  }
  Columns columns(uint64_t first) const override {
    Columns columns = Source::columns(first);
    columns.push_back({"path", [this, first](uint64_t record) {
                         return std::string(pictures_.paths[record - first]);
                       }});
    return columns;
  }

  std::string Describe(uint64_t record) const override {
    return folder_.FullPath(pictures_.paths[record]);
  }

 private:
  template <typename T>
  static void Put(const T& value, std::byte** to) {
    std::memcpy(*to, &value, sizeof(value));
    *to += sizeof(value);
  }

  // As json.dumps writes a list, but for the spaces.
  std::string Segmentation(std::span<const Object> objects) const {
    std::string text = "[";
    for (const Object& each : objects) {
      if (text.size() > 1) text += ',';
      text += pictures_.masks[each.mask];
    }
    return text + "]";
  }

  int64_t LabelOf(const Object& object) const {
    switch (spec_.labels) {
      case CocoSource::Labels::kFrom0:
        return object.category;
      case CocoSource::Labels::kFrom1:
        return int64_t{object.category} + 1;
      default:
        return pictures_.category_ids[object.category];
    }
  }

  const CocoSource spec_;
  const DataFile annotations_;
  ListedFolder folder_;
  const FieldRows fields_;
  const RawSpec raw_spec_;
  const Pictures pictures_;
  const std::string left_out_;
};

// A value as a message shows it.
std::string Found(json::value& value) {
  json::json_type type;
  if (!value.type().get(type)) {
    if (type == json::json_type::array) return "a list";
    if (type == json::json_type::object) return "an object";
  }
  std::string_view token = value.raw_json_token();
  token = token.substr(0, token.find_last_not_of(" \t\r\n") + 1);
  return ShortValue(token);
}

// DataLoss: it is none.
Status TakeWhole(json::value& value, int64_t* to) {
  if (!value.get_int64().get(*to)) return OkStatus();
  double real = 0;
  if (value.get_double().get(real) || real != std::trunc(real) ||
      std::abs(real) > static_cast<double>(kExactMax)) {
    return DataLossError("wanted a whole number, found {}", Found(value));
  }
  *to = static_cast<int64_t>(real);
  return OkStatus();
}

Status TakeNumber(json::value& value, double min, double max, double* to) {
  if (value.get_double().get(*to) || !(*to >= min && *to <= max)) {
    return DataLossError("wanted a number from {} to {}, found {}", min, max,
                         Found(value));
  }
  return OkStatus();
}

Status TakeText(json::value& value, std::string_view* to) {
  if (!value.get_string().get(*to)) return OkStatus();
  return DataLossError("wanted text, found {}", Found(value));
}

// true and false are 1 and 0.
Status TakeTruth(json::value& value, bool* to) {
  int64_t number = 0;
  if (!value.get_bool().get(*to)) return OkStatus();
  if (!value.get_int64().get(number) && (number == 0 || number == 1)) {
    *to = number == 1;
    return OkStatus();
  }
  return DataLossError("wanted 0 or 1, found {}", Found(value));
}

// Reads the annotations and checks that the pictures are there.
class CocoReader {
 public:
  CocoReader(const CocoSource& spec, const DataFile& file,
             const ListedFolder& folder, OpenProgress* progress)
      : spec_(spec), file_(file), folder_(folder), progress_(progress) {}

  Status Run() {
    PENSTOCK_RETURN_IF_ERROR(ReadText());
    Status status = Parse();
    text_ = {};
    if (status.ok()) status = Join();
    return status.Prepend(file_.path());
  }

  Pictures& pictures() { return pictures_; }
  uint64_t max_length() const { return max_length_; }
  uint64_t segmentation_bytes() const { return segmentation_bytes_; }
  const std::string& left_out() const { return left_out_; }

 private:
  // An id, and the place of what has it in its list.
  struct Listed {
    int64_t id;
    uint64_t place;
    auto operator<=>(const Listed&) const = default;
  };
  struct Annotation {
    int64_t picture;
    int64_t category;
    Object object;
  };

  Status ReadText() {
    if (file_.bytes() > kAnnotationBytesMax) {
      return InvalidArgumentError("{}: {} bytes; annotations have at most {}",
                                  file_.path(), file_.bytes(),
                                  kAnnotationBytesMax);
    }
    // The text, the paths and the masks from it.
    PENSTOCK_RETURN_IF_ERROR(
        progress_->reserve((spec_.segmentation ? 3 : 2) * file_.bytes()));
    if (spec_.segmentation) pictures_.masks.text.reserve(file_.bytes());
    text_.resize(file_.bytes() + simdjson::SIMDJSON_PADDING);
    PENSTOCK_ASSIGN_OR_RETURN(
        text_bytes_,
        file_.Read(
            0, std::as_writable_bytes(std::span(text_).first(file_.bytes())),
            progress_));
    // simdjson notes where each bracket, comma, colon and value is.
    const auto marks = static_cast<uint64_t>(std::count_if(
        text_.begin(), text_.begin() + static_cast<ptrdiff_t>(text_bytes_),
        [](char c) {
          return c == ',' || c == ':' || c == '[' || c == '{' || c == ']' ||
                 c == '}';
        }));
    return progress_->reserve(2 * sizeof(uint32_t) * marks);
  }

  // Not JSON.
  Status Broken(simdjson::error_code error) {
    if (error == simdjson::MEMALLOC) {
      return ResourceExhaustedError("no memory to parse {} bytes", text_bytes_);
    }
    // A document that ended in an error has no place any more.
    const char* at = nullptr;
    return !document_.is_alive() || document_.current_location().get(at)
               ? DataLossError("not JSON: {}", simdjson::error_message(error))
               : DataLossError("not JSON, at byte {}: {}", at - text_.data(),
                               simdjson::error_message(error));
  }

  Status Parse() {
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t begin,
        FindText("the file",
                 std::as_bytes(std::span(text_).first(text_bytes_))));
    const size_t bytes = text_bytes_ - begin;
    if (auto error = parser_
                         .iterate(simdjson::padded_string_view(
                             text_.data() + begin, bytes,
                             bytes + simdjson::SIMDJSON_PADDING))
                         .get(document_)) {
      return Broken(error);
    }
    json::object top;
    if (auto error = document_.get_object().get(top)) {
      return error == simdjson::INCORRECT_TYPE
                 ? DataLossError(
                       "wanted an object of the lists images, annotations and "
                       "categories")
                 : Broken(error);
    }
    PENSTOCK_RETURN_IF_ERROR(
        EachField(top, [this](std::string_view key, json::value& value) {
          if (key == "images") {
            return TakeList(key, value, &has_pictures_,
                            [this](auto& object, uint64_t place) {
                              return TakePicture(object, place);
                            });
          }
          if (key == "annotations") {
            return TakeList(key, value, &has_annotations_,
                            [this](auto& object, uint64_t place) {
                              return TakeAnnotation(object, place);
                            });
          }
          if (key == "categories") {
            return TakeList(key, value, &has_categories_,
                            [this](auto& object, uint64_t place) {
                              return TakeCategory(object, place);
                            });
          }
          return OkStatus();
        }));
    if (!document_.current_location().error()) {
      return DataLossError("not JSON: there is more behind the object");
    }
    for (const auto& [has, name] : {std::pair(has_pictures_, "images"),
                                    std::pair(has_annotations_, "annotations"),
                                    std::pair(has_categories_, "categories")}) {
      if (has) continue;
      return DataLossError(
          "no list '{}': give a file of instances, as COCO's "
          "instances_train2017.json is one",
          name);
    }
    return OkStatus();
  }

  // take(key, value) of each.
  template <typename Take>
  Status EachField(json::object& object, const Take& take) {
    for (auto field : object) {
      json::raw_json_string key;
      if (auto error = field.key().get(key)) return Broken(error);
      json::value value;
      if (auto error = field.value().get(value)) return Broken(error);
      std::string_view wanted;
      for (const std::string_view each : kKeys) {
        if (key.unsafe_is_equal(each.data())) wanted = each;
      }
      if (wanted.empty()) continue;
      PENSTOCK_RETURN_IF_ERROR(take(wanted, value));
    }
    return OkStatus();
  }
  // Those that are read. unsafe_is_equal takes them as C strings.
  static constexpr std::string_view kKeys[] = {
      "images",    "annotations", "categories",  "id",
      "file_name", "image_id",    "category_id", "bbox",
      "area",      "iscrowd",     "name",        "segmentation"};

  // take(object, its place) of each.
  template <typename Take>
  Status TakeList(std::string_view name, json::value& value, bool* has,
                  const Take& take) {
    if (std::exchange(*has, true)) {
      return DataLossError("two lists '{}'", name);
    }
    json::array list;
    if (value.get_array().get(list)) {
      return DataLossError("{}: wanted a list, found {}", name, Found(value));
    }
    uint64_t place = 0;
    for (auto item : list) {
      PENSTOCK_RETURN_IF_ERROR(progress_->CheckCancelled("annotations"));
      progress_->CountDone(1);
      json::value each;
      if (auto error = item.get(each)) return Broken(error);
      json::object object;
      Status status =
          each.get_object().get(object)
              ? DataLossError("wanted an object, found {}", Found(each))
              : take(object, place);
      if (!status.ok()) return status.Prepend(Format("{}[{}]", name, place));
      ++place;
    }
    return OkStatus();
  }

  // The fields of an object; take(key, value) says what is wrong with a value.
  // wanted: those that it must have.
  template <typename Take>
  Status TakeFields(json::object& object,
                    std::initializer_list<std::string_view> wanted,
                    const Take& take) {
    std::array<bool, 4> has = {};
    PENSTOCK_RETURN_IF_ERROR(
        EachField(object, [&](std::string_view key, json::value& value) {
          const auto found = std::find(wanted.begin(), wanted.end(), key);
          if (found != wanted.end()) has[found - wanted.begin()] = true;
          return take(key, value).Prepend(std::string(key));
        }));
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!has[i]) return DataLossError("has no '{}'", wanted.begin()[i]);
    }
    return OkStatus();
  }

  Status TakePicture(json::object& object, uint64_t place) {
    int64_t id = 0;
    std::string_view path;
    PENSTOCK_RETURN_IF_ERROR(
        TakeFields(object, {"id", "file_name"},
                   [&](std::string_view key, json::value& value) {
                     if (key == "id") return TakeWhole(value, &id);
                     if (key != "file_name") return OkStatus();
                     PENSTOCK_RETURN_IF_ERROR(TakeText(value, &path));
                     path = folder_.Relative(path);
                     return CheckListedPath(path, "images", false);
                   }));
    PENSTOCK_RETURN_IF_ERROR(MakeRoom(&listed_));
    PENSTOCK_RETURN_IF_ERROR(MakeRoom(&listed_paths_.ends));
    listed_.push_back({id, place});
    listed_paths_.Add(path);
    return OkStatus();
  }

  Status TakeCategory(json::object& object, uint64_t place) {
    int64_t id = 0;
    std::string_view name;
    PENSTOCK_RETURN_IF_ERROR(TakeFields(
        object, {"id", "name"}, [&](std::string_view key, json::value& value) {
          return key == "id"     ? TakeWhole(value, &id)
                 : key == "name" ? TakeText(value, &name)
                                 : OkStatus();
        }));
    constexpr uint64_t kListedBytes = 128;  // with the name's string, about
    PENSTOCK_RETURN_IF_ERROR(progress_->reserve(kListedBytes + name.size()));
    listed_categories_.push_back({id, place});
    names_.emplace_back(name);
    return OkStatus();
  }

  Status TakeAnnotation(json::object& object, uint64_t place) {
    std::optional<int64_t> id;
    Annotation taken = {};
    std::array<double, 4> box = {};
    std::optional<double> area;
    bool is_crowd = false;
    std::string_view mask = "null";
    PENSTOCK_RETURN_IF_ERROR(TakeFields(
        object, {"image_id", "category_id", "bbox"},
        [&](std::string_view key, json::value& value) {
          if (key == "id") return TakeWhole(value, &id.emplace());
          if (key == "image_id") return TakeWhole(value, &taken.picture);
          if (key == "category_id") return TakeWhole(value, &taken.category);
          if (key == "bbox") return TakeBox(value, &box);
          if (key == "iscrowd") return TakeTruth(value, &is_crowd);
          if (key == "segmentation") return TakeMask(value, &mask);
          if (key != "area") return OkStatus();
          return TakeNumber(value, 0, kPlaceMax * kPlaceMax, &area.emplace());
        }));
    if (id) {
      PENSTOCK_RETURN_IF_ERROR(MakeRoom(&annotation_ids_));
      annotation_ids_.push_back({*id, place});
    }
    if (is_crowd && spec_.crowd == CocoSource::Crowd::kDrop) return OkStatus();
    for (size_t i = 0; i < box.size(); ++i) {
      taken.object.box[i] = static_cast<float>(box[i]);
    }
    taken.object.area = static_cast<float>(area.value_or(box[2] * box[3]));
    taken.object.is_crowd = is_crowd ? 1 : 0;
    if (spec_.segmentation) {
      Masks& masks = pictures_.masks;
      PENSTOCK_RETURN_IF_ERROR(MakeRoom(&masks.ends));
      taken.object.mask = masks.ends.size();
      masks.text += mask;
      masks.ends.push_back(masks.text.size());
    }
    PENSTOCK_RETURN_IF_ERROR(MakeRoom(&annotations_));
    PENSTOCK_RETURN_IF_ERROR(MakeRoom(&places_));
    annotations_.push_back(taken);
    places_.push_back(place);
    return OkStatus();
  }

  // Passed through: what is in it is not looked at.
  Status TakeMask(json::value& value, std::string_view* mask) {
    json::array polygons;
    json::object rle;
    if (!spec_.segmentation) return OkStatus();
    if (auto error =
            !value.get_array().get(polygons) ? polygons.raw_json().get(*mask)
            : !value.get_object().get(rle)   ? rle.raw_json().get(*mask)
                                             : simdjson::INCORRECT_TYPE) {
      return error == simdjson::INCORRECT_TYPE
                 ? DataLossError("wanted polygons or an RLE, found {}",
                                 Found(value))
                 : Broken(error);
    }
    *mask = mask->substr(0, mask->find_last_of("]}") + 1);
    return OkStatus();
  }

  Status TakeBox(json::value& value, std::array<double, 4>* box) {
    constexpr char kWanted[] = "wanted a list [x, y, width, height]";
    json::array list;
    if (value.get_array().get(list)) {
      return DataLossError("{}, found {}", kWanted, Found(value));
    }
    size_t count = 0;
    for (auto item : list) {
      json::value each;
      if (auto error = item.get(each)) return Broken(error);
      if (count == box->size()) return DataLossError("{}, found more", kWanted);
      PENSTOCK_RETURN_IF_ERROR(TakeNumber(each, count < 2 ? -kPlaceMax : 0,
                                          kPlaceMax, &(*box)[count])
                                   .Prepend(Format("[{}]", count)));
      ++count;
    }
    return count == box->size()
               ? OkStatus()
               : DataLossError("{}, found one of {}", kWanted, count);
  }

  // For one more item.
  template <typename T>
  Status MakeRoom(std::vector<T>* items) {
    if (items->size() < items->capacity()) return OkStatus();
    const size_t room = std::max<size_t>(1024, 2 * items->size());
    PENSTOCK_RETURN_IF_ERROR(
        progress_->reserve((room - items->capacity()) * sizeof(T)));
    items->reserve(room);
    return OkStatus();
  }

  static Status SortIds(std::string_view list, std::vector<Listed>* ids) {
    std::sort(ids->begin(), ids->end());
    const auto twice = std::adjacent_find(
        ids->begin(), ids->end(),
        [](const Listed& a, const Listed& b) { return a.id == b.id; });
    if (twice == ids->end()) return OkStatus();
    return DataLossError("{0}[{1}] and {0}[{2}] have one id, {3}", list,
                         twice->place, twice[1].place, twice->id);
  }

  static std::optional<size_t> Find(const std::vector<int64_t>& ids,
                                    int64_t id) {
    const auto found = std::lower_bound(ids.begin(), ids.end(), id);
    if (found == ids.end() || *found != id) return std::nullopt;
    return static_cast<size_t>(found - ids.begin());
  }

  // Puts the objects to their pictures.
  Status Join() {
    if (listed_.empty()) return InvalidArgumentError("images: no picture");
    PENSTOCK_RETURN_IF_ERROR(SortIds("images", &listed_));
    PENSTOCK_RETURN_IF_ERROR(SortIds("categories", &listed_categories_));
    PENSTOCK_RETURN_IF_ERROR(SortIds("annotations", &annotation_ids_));
    annotation_ids_ = {};
    for (const Listed& each : listed_categories_) {
      pictures_.category_ids.push_back(each.id);
      pictures_.category_names.push_back(std::move(names_[each.place]));
    }
    PENSTOCK_RETURN_IF_ERROR(progress_->reserve(
        listed_.size() * (2 * sizeof(int64_t) + 2 * sizeof(uint64_t)) +
        annotations_.size() * sizeof(Object)));
    pictures_.ids.reserve(listed_.size());
    for (const Listed& each : listed_) pictures_.ids.push_back(each.id);
    pictures_.ends.assign(listed_.size(), 0);
    for (size_t i = 0; i < annotations_.size(); ++i) {
      Annotation& each = annotations_[i];
      const std::optional<size_t> picture = Find(pictures_.ids, each.picture);
      const std::optional<size_t> category =
          Find(pictures_.category_ids, each.category);
      if (!picture || !category) {
        return DataLossError("annotations[{}]: {} {} is the id of no {}",
                             places_[i], picture ? "category_id" : "image_id",
                             picture ? each.category : each.picture,
                             picture ? "category" : "picture");
      }
      each.picture = static_cast<int64_t>(*picture);
      each.object.category = static_cast<uint32_t>(*category);
      ++pictures_.ends[*picture];
    }
    PENSTOCK_RETURN_IF_ERROR(FindLength());
    std::vector<uint64_t> next(listed_.size());  // of each picture's objects
    uint64_t end = 0;
    for (size_t i = 0; i < next.size(); ++i) {
      next[i] = end;
      end += std::min(pictures_.ends[i], max_length_);
      pictures_.ends[i] = end;
    }
    pictures_.objects.resize(end);
    for (const Annotation& each : annotations_) {
      uint64_t& at = next[static_cast<size_t>(each.picture)];
      if (at < pictures_.ends[static_cast<size_t>(each.picture)]) {
        pictures_.objects[at++] = each.object;
      }
    }
    annotations_ = {};
    places_ = {};
    return DropMissing();
  }

  // pictures_.ends: how many objects each picture has.
  Status FindLength() {
    const auto most =
        std::max_element(pictures_.ends.begin(), pictures_.ends.end());
    max_length_ =
        spec_.max_length.value_or(std::clamp<uint64_t>(*most, 1, kLengthMax));
    if (*most <= max_length_ || spec_.longer == Longer::kCut) return OkStatus();
    const Listed& picture = listed_[most - pictures_.ends.begin()];
    return InvalidArgumentError(
        "images[{}] (id {}) has {} objects, the most of all, and there is room "
        "for {}: give max_length {}, or `longer: cut`",
        picture.place, picture.id, *most, max_length_, *most);
  }

  Status DropMissing() {
    PENSTOCK_ASSIGN_OR_RETURN(
        const std::vector<uint8_t> is_missing,
        FindMissing(
            listed_.size(), "annotations",
            [this](uint64_t i) -> StatusOr<bool> {
              StatusOr<bool> missing = folder_.IsMissing(
                  listed_paths_[listed_[i].place], spec_.on_missing);
              if (missing.ok()) return missing;
              return missing.status().Prepend(Format(
                  "images[{}] (id {})", listed_[i].place, listed_[i].id));
            },
            progress_));
    const auto missing = static_cast<uint64_t>(
        std::count(is_missing.begin(), is_missing.end(), 1));
    if (missing == listed_.size()) {
      return NotFoundError("none of its {} is in {}",
                           Counted(missing, "picture"), spec_.images);
    }
    Pictures all = std::exchange(pictures_, {});
    pictures_.category_ids = std::move(all.category_ids);
    pictures_.category_names = std::move(all.category_names);
    pictures_.masks = std::move(all.masks);
    const uint64_t kept = listed_.size() - missing;
    pictures_.ids.reserve(kept);
    pictures_.ends.reserve(kept);
    pictures_.paths.ends.reserve(kept);
    for (size_t i = 0; i < listed_.size(); ++i) {
      if (is_missing[i] != 0) {
        if (left_out_.empty()) {
          left_out_ =
              Format("{} missing, like {}",
                     Counted(missing, "picture that is", "pictures that are"),
                     listed_paths_[listed_[i].place]);
        }
        continue;
      }
      pictures_.ids.push_back(all.ids[i]);
      pictures_.paths.Add(listed_paths_[listed_[i].place]);
      const auto objects = all.ObjectsOf(i);
      pictures_.objects.insert(pictures_.objects.end(), objects.begin(),
                               objects.end());
      pictures_.ends.push_back(pictures_.objects.size());
    }
    pictures_.paths.text.shrink_to_fit();
    pictures_.objects.shrink_to_fit();
    pictures_.masks.text.shrink_to_fit();
    return spec_.segmentation ? FindSegmentationBytes() : OkStatus();
  }

  Status FindSegmentationBytes() {
    for (uint64_t i = 0; i < pictures_.ids.size(); ++i) {
      const uint64_t bytes = pictures_.SegmentationBytes(i);
      segmentation_bytes_ = std::max(segmentation_bytes_, bytes);
      if (bytes <= kSegmentationBytesMax) continue;
      return InvalidArgumentError(
          "the picture of id {} has masks of {} bytes; at most {}, or "
          "`segmentation: false`",
          pictures_.ids[i], bytes, kSegmentationBytesMax);
    }
    return OkStatus();
  }

  const CocoSource& spec_;
  const DataFile& file_;
  const ListedFolder& folder_;
  OpenProgress* const progress_;
  std::string text_;
  size_t text_bytes_ = 0;
  json::parser parser_;
  json::document document_;
  bool has_pictures_ = false;
  bool has_annotations_ = false;
  bool has_categories_ = false;
  std::vector<Listed> listed_;
  ListedPaths listed_paths_;
  std::vector<Listed> listed_categories_;
  std::vector<std::string> names_;
  std::vector<Listed> annotation_ids_;
  std::vector<Annotation> annotations_;
  std::vector<uint64_t> places_;  // of the annotations that are kept
  uint64_t max_length_ = 0;
  uint64_t segmentation_bytes_ = 0;
  Pictures pictures_;
  std::string left_out_;
};

}  // namespace

const Declaration<CocoSource>& CocoSource::Declared() {
  static const auto declared =
      Declaration<CocoSource>(
          "coco",
          "Pictures and the boxes of the objects in them, of a file of COCO's "
          "instances: a sample per picture, in the order of their ids.")
          .Gives(
              "image (encoded), boxes float32 [max_length, 4] (corners) with "
              "boxes.length, labels int64, area float32 and iscrowd bool "
              "[max_length], each with its .length, image_id int64; with "
              "segmentation: true also its text as uint8, and "
              "segmentation_bytes")
          .Example(
              "{annotations: instances_train2017.json, images: train2017, "
              "max_length: 100}")
          .Required("annotations", &CocoSource::annotations, PathOrAddress(),
                    "the JSON file; keypoints in it are not read")
          .Required("images", &CocoSource::images, PathOrAddress(),
                    "the folder of its file_name")
          .Optional("labels", &CocoSource::labels,
                    Words<Labels>({{"from_0", Labels::kFrom0},
                                   {"from_1", Labels::kFrom1},
                                   {"ids", Labels::kIds}}),
                    "the categories numbered in the order of their ids, from 1 "
                    "where 0 is the background, or the ids themselves")
          .Optional(
              "crowd", &CocoSource::crowd,
              Words<Crowd>({{"keep", Crowd::kKeep}, {"drop", Crowd::kDrop}}),
              "the boxes around many objects (iscrowd)")
          .Optional("segmentation", &CocoSource::segmentation,
                    LeftOutAt(false, Bool()),
                    "also the masks: the JSON list of each object's polygons "
                    "or RLE, as the file has them; no step changes it")
          .Optional("max_length", &CocoSource::max_length,
                    Maybe(WholeNumber<uint64_t>(1, kLengthMax)),
                    "room for the boxes of a picture; by default the most that "
                    "one has")
          .Optional("longer", &CocoSource::longer, LongerType(),
                    "a picture of more boxes is an error when the dataset is "
                    "opened, or keeps the first ones")
          .Optional("on_missing", &CocoSource::on_missing, OnMissingType(),
                    "a picture that is not there is an error when the dataset "
                    "is opened, or is left out of it")
          .Optional("io", &CocoSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource CocoSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(DataFile file,
                            DataFile::Open(annotations, *progress));
  PENSTOCK_ASSIGN_OR_RETURN(ListedFolder folder,
                            ListedFolder::Open(images, progress));
  CocoReader reader(*this, file, folder, progress);
  PENSTOCK_RETURN_IF_ERROR(reader.Run());
  auto source = std::make_unique<Coco>(
      *this, std::move(file), std::move(folder), std::move(reader.pictures()),
      reader.max_length(), reader.segmentation_bytes(), reader.left_out());
  PENSTOCK_RETURN_IF_ERROR(source->AskFileSystem(io));
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace penstock
