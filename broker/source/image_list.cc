#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "broker/declare/declaration.h"
#include "broker/index/fingerprint.h"
#include "broker/source/csv_rows.h"
#include "broker/source/kinds.h"
#include "broker/source/listed_files.h"
#include "broker/source/text_scan.h"

namespace penstock {
namespace {

constexpr uint64_t kListBytesMax = uint64_t{4} << 30;

// The rows of a list. Of each row: the paths of its pictures in the order of
// their fields, and the bytes of its other fields.
struct Rows {
  uint64_t count = 0;
  ListedPaths paths;
  std::vector<std::byte> fields;
  // While the list is opened: the line where each begins, from 1.
  std::vector<uint64_t> lines;

  uint64_t MemoryBytes() const {
    return paths.MemoryBytes() + fields.capacity();
  }
};

// The names of the classes of one field.
struct Classes {
  size_t field = 0;
  bool is_given = false;
  std::vector<std::string> names;
  std::unordered_map<std::string, int64_t> numbers;
};

class ImageList final : public Source {
 public:
  ImageList(const ImageListSource& spec, DataFile list, ListedFolder folder,
            FieldRows fields, Rows rows, std::vector<std::string> class_names,
            std::string left_out)
      : list_(std::move(list)),
        folder_(std::move(folder)),
        fields_(std::move(fields)),
        rows_(std::move(rows)),
        class_names_(std::move(class_names)),
        left_out_(std::move(left_out)) {
    folder_.Place(rows_.paths);
    for (size_t i = 0; i < spec.columns.size(); ++i) {
      if (spec.columns[i].second.encoded) ++pictures_;
    }
  }

  Status AskFileSystem(Io io) { return folder_.Ask(rows_.paths[0], io); }

  uint64_t record_count() const override { return rows_.count; }
  const RawSpec& raw_spec() const override { return fields_.raw_spec(); }
  uint64_t memory_bytes() const override {
    return rows_.MemoryBytes() + folder_.memory_bytes();
  }
  bool Changed() const override { return list_.Changed() || folder_.Changed(); }
  std::string io() const override { return IoText(folder_.align()); }
  std::vector<std::string> class_names() const override { return class_names_; }
  std::string left_out() const override { return left_out_; }

  std::string fingerprint() const override {
    Fingerprint fingerprint("image_list");
    rows_.paths.AddTo(&fingerprint);
    fingerprint.Add(rows_.fields);
    for (const std::string& name : class_names_) fingerprint.Add(name);
    return fingerprint.Hex();
  }
  void ListFiles(const FileVisit& visit) const override {
    rows_.paths.List(visit);
  }
  // Adds the list's alone of a folder of this machine: a picture that was
  // written anew does not show.
  void AddTimes(Fingerprint* to) const override {
    list_.AddTime(to);
    folder_.AddTime(to);
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    for (size_t i = 0; i < pictures_; ++i) {
      ReadPart* const part = i == 0 ? request : &request->more.emplace_back();
      folder_.Locate(rows_.paths, record * pictures_ + i, part);
    }
  }

  Status Unpack(uint64_t record, const ReadBytes& read, std::vector<std::byte>*,
                RawRecord* raw) const override {
    fields_.Point(std::span(rows_.fields)
                      .subspan(record * fields_.bytes(), fields_.bytes()),
                  raw);
    size_t picture = 0;
    for (size_t i = 0; i < raw->size(); ++i) {
      if (!fields_.raw_spec()[i].encoded) continue;
      (*raw)[i] = pictures_ == 1 ? read.bytes : read.Part(picture);
      if ((*raw)[i].empty()) {
        return DataLossError("{}: is empty", PathOf(record, picture));
      }
      ++picture;
    }
    return OkStatus();
  }

  bool KnownNumber(uint64_t record, size_t feature,
                   std::byte* number) const override {
    if (fields_.raw_spec()[feature].encoded) return false;
    RawRecord raw;
    fields_.Point(std::span(rows_.fields)
                      .subspan(record * fields_.bytes(), fields_.bytes()),
                  &raw);
    std::memcpy(number, raw[feature].data(), raw[feature].size());
    return true;
  }
  Columns columns(uint64_t first) const override {
    Columns columns = Source::columns(first);
    columns.push_back({"path", [this, first](uint64_t record) {
                         return std::string(
                             rows_.paths[(record - first) * pictures_]);
                       }});
    return columns;
  }

  std::string Describe(uint64_t record) const override {
    return PathOf(record, 0);
  }

 private:
  std::string PathOf(uint64_t record, size_t picture) const {
    return folder_.FullPath(rows_.paths[record * pictures_ + picture]);
  }

  const DataFile list_;
  ListedFolder folder_;
  const FieldRows fields_;
  const Rows rows_;
  const std::vector<std::string> class_names_;
  const std::string left_out_;
  size_t pictures_ = 0;  // of a row
};

// Reads a list and checks that what it names is there.
class ListReader {
 public:
  ListReader(const ImageListSource& spec, const DataFile& list,
             const ListedFolder& folder, const FieldRows& fields,
             OpenProgress* progress)
      : spec_(spec),
        list_(list),
        folder_(folder),
        fields_(fields),
        progress_(progress) {
    for (size_t i = 0; i < fields_.count(); ++i) {
      if (fields_[i].encoded) pictures_.push_back(i);
      if (!fields_[i].classes) continue;
      Classes& classes = classes_.emplace_back();
      classes.field = i;
      classes.names = *fields_[i].classes;
      classes.is_given = !classes.names.empty();
      for (const std::string& name : classes.names) {
        classes.numbers.emplace(name, classes.numbers.size());
      }
    }
  }

  Status Run() {
    PENSTOCK_RETURN_IF_ERROR(ReadText());
    PENSTOCK_RETURN_IF_ERROR(TakeRows());
    text_ = {};
    if (rows_.count == 0) {
      return InvalidArgumentError("{}: no row in it{}", list_.path(),
                                  spec_.header ? " below its header" : "");
    }
    for (Classes& classes : classes_) SortNames(&classes);
    return CheckFiles();
  }

  Rows& rows() { return rows_; }
  const std::string& left_out() const { return left_out_; }
  // The classes of the field `label`, or of the first that has some.
  std::vector<std::string> ClassNames() const {
    const Classes* found = classes_.empty() ? nullptr : &classes_[0];
    for (const Classes& each : classes_) {
      if (fields_.name(each.field) == "label") found = &each;
    }
    return found == nullptr ? std::vector<std::string>() : found->names;
  }

 private:
  Status ReadText() {
    if (list_.bytes() > kListBytesMax) {
      return InvalidArgumentError("{}: {} bytes; a list has at most {}",
                                  list_.path(), list_.bytes(), kListBytesMax);
    }
    // The text, and the paths from it.
    PENSTOCK_RETURN_IF_ERROR(progress_->reserve(2 * list_.bytes()));
    text_.resize(list_.bytes());
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t found,
        list_.Read(0, std::as_writable_bytes(std::span(text_)), progress_));
    text_.resize(found);
    return OkStatus();
  }

  Status TakeRows() {
    PENSTOCK_ASSIGN_OR_RETURN(
        const std::vector<std::string> first,
        ReadFirstCsvRow(list_, spec_.delimiter, progress_));
    if (first.empty()) {
      return InvalidArgumentError("{}: no row in it", list_.path());
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        columns_,
        FindCsvColumns(spec_.columns, spec_.header, list_.path(), first));
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t begin,
        FindText(list_.path(), std::as_bytes(std::span(text_))));
    bool is_header = spec_.header;  // the next row
    CsvRowEnds find_end(spec_.delimiter);
    uint64_t line = 1;
    const char* const end = text_.data() + text_.size();
    for (const char* next = text_.data() + begin; next < end;) {
      const char* row_end = find_end(next, end);
      if (row_end == nullptr) row_end = end;
      const std::string_view row(next, static_cast<size_t>(row_end - next));
      if (find_end.in_quotes() || row.size() > kParsedLineBytesMax) {
        return DataLossError(
            "{}, line {}: the row {}; is a quote not closed?", list_.path(),
            line,
            find_end.in_quotes()
                ? "ends with the file, within quotes"
                : Format("has more than {} bytes", kParsedLineBytesMax));
      }
      if (!row.empty() && row != "\r" && !std::exchange(is_header, false)) {
        if (Status status = TakeRow(row, line); !status.ok()) {
          return status.Prepend(Format("{}, line {}", list_.path(), line));
        }
      }
      line += 1 + static_cast<uint64_t>(std::count(next, row_end, '\n'));
      next = row_end + 1;
    }
    return OkStatus();
  }

  Status TakeRow(std::string_view text, uint64_t line) {
    // Relaxed: only displayed; a later row sees it.
    if (progress_->cancel.load(std::memory_order_relaxed)) {
      return CancelledError("opening was cancelled");
    }
    progress_->CountDone(1);
    if (unquoted_.size() < text.size()) unquoted_.resize(text.size());
    PENSTOCK_RETURN_IF_ERROR(TakeCsvValues(text, spec_.delimiter, columns_,
                                           unquoted_.data(), &found_));
    PENSTOCK_RETURN_IF_ERROR(MakeRoom());
    values_.resize(fields_.count());
    for (size_t i = 0; i < found_.size(); ++i) {
      values_[columns_.wanted[i].field] = found_[i];
    }
    for (const size_t field : pictures_) {
      const std::string_view path = folder_.Relative(values_[field]);
      PENSTOCK_RETURN_IF_ERROR(OfColumn(
          field, CheckListedPath(path, "folder", spec_.folder.empty())));
      rows_.paths.Add(path);
    }
    const size_t at = rows_.fields.size();
    rows_.fields.resize(at + fields_.bytes());
    std::byte* const row = rows_.fields.data() + at;
    auto classes = classes_.begin();
    for (size_t i = 0; i < fields_.count(); ++i) {
      if (fields_[i].encoded) continue;
      PENSTOCK_RETURN_IF_ERROR(OfColumn(
          i, fields_[i].classes ? StoreClass(values_[i], &*classes++, row)
                                : StoreValue(values_[i], i, row)));
    }
    rows_.lines.push_back(line);
    ++rows_.count;
    return OkStatus();
  }

  Status OfColumn(size_t field, Status status) const {
    if (status.ok()) return status;
    const std::string& from = fields_[field].from;
    return status.Prepend(Format(
        "column {}", ShortValue(from.empty() ? fields_.name(field) : from)));
  }

  static Status CheckText(std::string_view value) {
    const std::optional<size_t> bad = FindNotUtf8(value);
    return bad ? InvalidArgumentError("byte {} of it is not UTF-8", *bad)
               : OkStatus();
  }

  Status StoreValue(std::string_view value, size_t field, std::byte* row) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(value));
    return StoreCsvValue(value, fields_, field, row);
  }

  Status StoreClass(std::string_view name, Classes* classes, std::byte* row) {
    if (name.empty()) return InvalidArgumentError("a class without a name");
    PENSTOCK_RETURN_IF_ERROR(CheckText(name));
    const auto [place, is_new] =
        classes->numbers.try_emplace(std::string(name), classes->names.size());
    if (is_new) {
      if (classes->is_given) {
        return InvalidArgumentError("{} is none of the {} classes of the spec",
                                    ShortValue(name), classes->names.size());
      }
      constexpr uint64_t kMapBytes = 128;  // of an entry and the name, about
      PENSTOCK_RETURN_IF_ERROR(progress_->reserve(kMapBytes + 2 * name.size()));
      classes->names.emplace_back(name);
    }
    std::memcpy(fields_.NumbersIn(row, classes->field), &place->second,
                sizeof(int64_t));
    return OkStatus();
  }

  // Numbers the names by their byte order.
  void SortNames(Classes* classes) {
    classes->numbers = {};
    if (classes->is_given) return;
    std::vector<size_t> order(classes->names.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [classes](size_t a, size_t b) {
      return classes->names[a] < classes->names[b];
    });
    std::vector<int64_t> number(order.size());
    std::vector<std::string> names;
    for (size_t i = 0; i < order.size(); ++i) {
      number[order[i]] = static_cast<int64_t>(i);
      names.push_back(std::move(classes->names[order[i]]));
    }
    classes->names = std::move(names);
    for (uint64_t row = 0; row < rows_.count; ++row) {
      std::byte* const at = fields_.NumbersIn(
          rows_.fields.data() + row * fields_.bytes(), classes->field);
      int64_t value;
      std::memcpy(&value, at, sizeof(value));
      std::memcpy(at, &number[static_cast<size_t>(value)], sizeof(value));
    }
  }

  // For one more row.
  Status MakeRoom() {
    if (rows_.count < rows_.lines.capacity()) return OkStatus();
    const uint64_t room = std::max<uint64_t>(1024, 2 * rows_.count);
    const uint64_t row_bytes =
        sizeof(uint64_t) * (1 + pictures_.size()) + fields_.bytes();
    if (row_bytes > std::numeric_limits<uint64_t>::max() / room) {
      return InvalidArgumentError("rows of {} bytes", row_bytes);
    }
    PENSTOCK_RETURN_IF_ERROR(
        progress_->reserve((room - rows_.lines.capacity()) * row_bytes));
    rows_.lines.reserve(room);
    rows_.paths.ends.reserve(room * pictures_.size());
    rows_.fields.reserve(room * fields_.bytes());
    return OkStatus();
  }

  Status CheckFiles() {
    PENSTOCK_ASSIGN_OR_RETURN(
        const std::vector<uint8_t> is_missing,
        FindMissing(
            rows_.count, list_.path(),
            [this](uint64_t row) { return CheckRow(row); }, progress_));
    return DropMissing(is_missing);
  }

  // Whether a picture of the row is missing.
  StatusOr<bool> CheckRow(uint64_t row) const {
    for (size_t i = 0; i < pictures_.size(); ++i) {
      StatusOr<bool> is_missing = folder_.IsMissing(
          rows_.paths[row * pictures_.size() + i], spec_.on_missing);
      if (!is_missing.ok()) {
        return OfColumn(pictures_[i], is_missing.status())
            .Prepend(Format("{}, line {}", list_.path(), rows_.lines[row]));
      }
      if (*is_missing) return true;
    }
    return false;
  }

  Status DropMissing(const std::vector<uint8_t>& is_missing) {
    const auto missing = static_cast<uint64_t>(
        std::count(is_missing.begin(), is_missing.end(), 1));
    if (missing > 0) {
      const auto first = static_cast<uint64_t>(
          std::find(is_missing.begin(), is_missing.end(), 1) -
          is_missing.begin());
      left_out_ = Format("{} row{} whose picture is missing, like line {}",
                         missing, missing == 1 ? "" : "s", rows_.lines[first]);
      if (missing == rows_.count) {
        return NotFoundError("{}: none of the pictures in its {} rows is there",
                             list_.path(), missing);
      }
    }
    // Also gives the memory back that is not needed.
    const uint64_t kept = rows_.count - missing;
    const size_t pictures = pictures_.size();
    Rows all = std::exchange(rows_, {});
    rows_.paths.ends.reserve(kept * pictures);
    rows_.fields.reserve(kept * fields_.bytes());
    for (uint64_t row = 0; row < all.count; ++row) {
      if (is_missing[row] != 0) continue;
      for (size_t i = 0; i < pictures; ++i) {
        rows_.paths.Add(all.paths[row * pictures + i]);
      }
      const auto from =
          all.fields.begin() + static_cast<ptrdiff_t>(row * fields_.bytes());
      rows_.fields.insert(rows_.fields.end(), from,
                          from + static_cast<ptrdiff_t>(fields_.bytes()));
    }
    rows_.paths.text.shrink_to_fit();
    rows_.count = kept;
    return OkStatus();
  }

  const ImageListSource& spec_;
  const DataFile& list_;
  const ListedFolder& folder_;
  const FieldRows& fields_;
  OpenProgress* const progress_;
  std::vector<size_t> pictures_;  // the fields that are
  std::vector<Classes> classes_;
  CsvColumns columns_;
  std::string text_;
  Rows rows_;
  std::string left_out_;
  // Fields of the row that is taken.
  std::vector<std::byte> unquoted_;
  std::vector<std::string_view> found_;   // by column
  std::vector<std::string_view> values_;  // by field
};

Status CheckColumns(const YamlValue& value, ImageListSource* source) {
  const auto is_picture = [](const auto& column) {
    return column.second.encoded;
  };
  if (!std::any_of(source->columns.begin(), source->columns.end(),
                   is_picture)) {
    return value.Required("columns").Error(
        "none is a picture; give its column `encoded: true`");
  }
  return CheckCsvColumns(value, source->columns, source->header);
}

}  // namespace

const Declaration<ImageListSource>& ImageListSource::Declared() {
  static const auto declared =
      Declaration<ImageListSource>(
          "image_list",
          "Pictures that a file of comma-separated values names, with their "
          "labels: a sample per row, in the order of the rows.")
          .Gives(std::string("as given: a picture encoded, a class int64; ") +
                 kFieldsGive)
          .Example(
              "{file: train.csv, folder: pictures, columns: {image: {encoded: "
              "true, column: file}, label: {classes: true}, age: {dtype: "
              "float32}}}")
          .Required("file", &ImageListSource::file, PathOrAddress(),
                    "the list; empty lines are left out")
          .Required(
              "columns", &ImageListSource::columns,
              TextFields({.from_key = "column",
                          .from = CsvColumnType(),
                          .with_pictures = true}),
              "{NAME: {encoded: true}} of the path of a picture or sound, "
              "{NAME: "
              "{classes: true}} of a class by its name, numbered in byte order "
              "(or by their places in a list: {classes: [cat, dog]}), numbers "
              "and text; column, default: as in csv")
          .Add({"folder",
                "where relative paths begin, and absolute ones are "
                "refused; by default the folder of file",
                "a path or an address",
                false,
                false,
                {[](const YamlValue& value, void* object) {
                   return value.PathOrAddress(
                       &static_cast<ImageListSource*>(object)->folder);
                 },
                 [](const void* object, nlohmann::ordered_json* out) {
                   const std::string& folder =
                       static_cast<const ImageListSource*>(object)->folder;
                   if (!folder.empty()) WriteText(folder, out);
                 }}})
          .Optional("delimiter", &ImageListSource::delimiter, DelimiterType(),
                    "between values")
          .Optional("header", &ImageListSource::header, Bool(),
                    "the first row has the names of the columns")
          .Optional("longer", &ImageListSource::longer, LongerType(),
                    kLongerTextText)
          .Optional("on_missing", &ImageListSource::on_missing, OnMissingType(),
                    "a row whose picture is not there is an error when the "
                    "dataset is opened, or is left out of it")
          .Optional("io", &ImageListSource::io, IoType(), kIoText)
          .Check(CheckColumns);
  return declared;
}

OpenedSource ImageListSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(DataFile list, DataFile::Open(file, *progress));
  PENSTOCK_ASSIGN_OR_RETURN(
      ListedFolder base,
      ListedFolder::Open(
          folder.empty() ? file.substr(0, file.rfind('/')) : folder, progress));
  FieldRows fields(columns, longer);
  ListReader reader(*this, list, base, fields, progress);
  PENSTOCK_RETURN_IF_ERROR(reader.Run());
  auto source = std::make_unique<ImageList>(
      *this, std::move(list), std::move(base), std::move(fields),
      std::move(reader.rows()), reader.ClassNames(), reader.left_out());
  PENSTOCK_RETURN_IF_ERROR(source->AskFileSystem(io));
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace penstock
