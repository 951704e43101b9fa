// All kinds of source, in the order in which people are told of them. A new one
// is a pair of files with a struct, its Declared and its Open, and a line of
// each list here.
#ifndef BROKER_SOURCE_KINDS_H_
#define BROKER_SOURCE_KINDS_H_

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "broker/plan/select.h"
#include "broker/source/csv.h"
#include "broker/source/fixed_length_records.h"
#include "broker/source/idx.h"
#include "broker/source/image_folder.h"
#include "broker/source/image_list.h"
#include "broker/source/json_lines.h"
#include "broker/source/npy.h"
#include "broker/source/npz.h"
#include "broker/source/parts.h"
#include "broker/source/python_dataset.h"
#include "broker/source/range.h"
#include "broker/source/stream.h"
#include "broker/source/synthetic.h"
#include "broker/source/tensors.h"
#include "broker/source/text_lines.h"
#include "broker/source/tfrecord.h"
#include "broker/source/tokens.h"
#include "broker/source/webdataset.h"
#include "broker/source/zip.h"

namespace penstock {

using SourceSpec = std::variant<  //
    ImageFolderSource,            //
    ImageListSource,              //
    IdxSource,                    //
    FixedLengthRecordsSource,     //
    TextLinesSource,              //
    JsonLinesSource,              //
    CsvSource,                    //
    TokensSource,                 //
    NpySource,                    //
    NpzSource,                    //
    TfrecordSource,               //
    WebdatasetSource,             //
    PythonDatasetSource,          //
    RangeSource,                  //
    TensorsSource,                //
    SyntheticSource,              //
    StreamSource,                 //
    ConcatSource,                 //
    MixSource,                    //
    ZipSource>;

// A source within another.
struct PartSpec {
  SourceSpec source;
  std::vector<SelectSpec> select;
  double weight = 1;                  // of a mix
  std::optional<std::string> prefix;  // of a zip: of the names of features
  bool operator==(const PartSpec&) const = default;
};

// Whether this source, or one within it, is such.
bool AnySource(const SourceSpec& source,
               const std::function<bool(const SourceSpec&)>& is_such);

// Opens the source of a spec, whose values its declaration has checked: scans
// folders, reads headers, checks sizes.
// Errors name the file and a remedy: NotFound, PermissionDenied (with the
// broker's user, and `penstock run` as a remedy), DataLoss, InvalidArgument (an
// empty folder, files that do not belong together), Cancelled.
// functions: the code that it may run.
StatusOr<std::unique_ptr<Source>> OpenSource(
    const SourceSpec& spec, OpenProgress* progress,
    const FunctionOptions& functions = {});

}  // namespace penstock
#endif  // BROKER_SOURCE_KINDS_H_
