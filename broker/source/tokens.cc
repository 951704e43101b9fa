// Where a sequence is follows from its number: nothing is kept in memory.
// Documents are found by the token between them, when the files are opened.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "broker/declare/declaration.h"
#include "broker/index/fingerprint.h"
#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/indexed_source.h"
#include "broker/source/kinds.h"
#include "broker/source/npy_header.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

using Stored = TokensSource::Stored;
constexpr uint64_t kOutputBytesMax = sizeof(int64_t);
// With a target after the last token.
constexpr uint64_t kSequenceLengthMax = kRecordBytesMax / kOutputBytesMax - 1;

struct Kind {
  std::string_view name;
  uint64_t bytes;
};
constexpr Kind kKinds[] = {
    {"uint16", 2}, {"uint32", 4}, {"int32", 4}, {"int64", 8}};  // as in Stored

const Kind& Of(Stored stored) { return kKinds[static_cast<size_t>(stored)]; }

ValueType<Stored> StoredType() {
  std::vector<std::pair<std::string_view, Stored>> words;
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    words.push_back({kKinds[i].name, static_cast<Stored>(i)});
  }
  return Words(std::move(words));
}

// Returns the index of the first token that To cannot hold, else tokens.
template <typename From, typename To>
size_t ConvertEach(const std::byte* from, size_t tokens, std::byte* to) {
  for (size_t i = 0; i < tokens; ++i) {
    const auto token = ValueAt<From>(from + i * sizeof(From));
    const To converted = static_cast<To>(token);
    if (static_cast<From>(converted) != token ||
        (std::is_unsigned_v<From> && converted < 0)) {
      return i;
    }
    std::memcpy(to + i * sizeof(To), &converted, sizeof(To));
  }
  return tokens;
}

template <typename To>
size_t ConvertTo(Stored stored, const std::byte* from, size_t tokens,
                 std::byte* to) {
  switch (stored) {
    case Stored::kUint16:
      return ConvertEach<uint16_t, To>(from, tokens, to);
    case Stored::kUint32:
      return ConvertEach<uint32_t, To>(from, tokens, to);
    case Stored::kInt32:
      return ConvertEach<int32_t, To>(from, tokens, to);
    case Stored::kInt64:
      return ConvertEach<int64_t, To>(from, tokens, to);
  }
  return 0;
}

// of: what has the tokens, for the message.
Status Convert(Stored stored, std::span<const std::byte> from, DType dtype,
               std::string_view of, std::byte* to) {
  const uint64_t tokens = from.size() / Of(stored).bytes;
  const size_t converted =
      (dtype == DType::kInt32
           ? ConvertTo<int32_t>
           : ConvertTo<int64_t>)(stored, from.data(), tokens, to);
  if (converted == tokens) return OkStatus();
  return DataLossError(
      "token {} of the {} does not fit into int32; use `output_dtype: int64`",
      converted, of);
}

// The header of a file of llm.c and modded-nanogpt: 256 numbers of 32 bits:
// magic, version, how many tokens follow.
struct LlmcKind {
  uint32_t magic;
  uint32_t version;
  Stored stored;
};
constexpr LlmcKind kLlmcKinds[] = {{20240520, 1, Stored::kUint16},
                                   {20240801, 7, Stored::kUint32}};
constexpr uint64_t kLlmcHeaderBytes = 256 * sizeof(uint32_t);
constexpr uint64_t kLlmcFields = 3;

// What a file has.
struct FileTokens {
  Stored stored;
  uint64_t data_at;
  uint64_t tokens;
};

// nullopt: it has no such header.
StatusOr<std::optional<FileTokens>> FindLlmcTokens(
    const TokensSource& spec, const DataFile& file,
    std::span<const std::byte> head) {
  const auto field = [&](size_t i) {
    return ValueAt<uint32_t>(&head[i * sizeof(uint32_t)]);
  };
  if (spec.header_bytes > 0 || file.bytes() < kLlmcHeaderBytes) {
    return std::optional<FileTokens>();
  }
  for (const LlmcKind& kind : kLlmcKinds) {
    if (field(0) != kind.magic || field(1) != kind.version) continue;
    if (spec.dtype && *spec.dtype != kind.stored) {
      return InvalidArgumentError(
          "{}: `dtype: {}`, but its header (magic {}) says {}", file.path(),
          Of(*spec.dtype).name, kind.magic, Of(kind.stored).name);
    }
    const uint64_t data = file.bytes() - kLlmcHeaderBytes;
    if (data != field(2) * Of(kind.stored).bytes) {
      return DataLossError(
          "{}: {} tokens ({}) by its header (magic {}), but {} bytes follow; "
          "it was cut off: copy it again",
          file.path(), field(2), Of(kind.stored).name, kind.magic, data);
    }
    return std::optional(FileTokens{kind.stored, kLlmcHeaderBytes, field(2)});
  }
  return std::optional<FileTokens>();
}

StatusOr<FileTokens> FindTokens(const TokensSource& spec, const DataFile& file,
                                OpenProgress* progress) {
  const std::string& path = file.path();
  std::byte head[kLlmcFields * sizeof(uint32_t)];
  static_assert(sizeof(head) >= kNpyMagicBytes);
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t found, file.Read(0, head, progress));
  const bool is_npy = IsNpy(std::span(head).first(found));
  // OLMo's files are named so, too, but raw: their dtype is given.
  if (is_npy || (path.ends_with(".npy") && !spec.dtype)) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const NpyHeader header,
        ReadNpyHeader(path, file, 0, file.bytes(), progress));
    const auto kind = std::find_if(
        std::begin(kKinds), std::end(kKinds),
        [&](const Kind& each) { return each.name == header.DTypeText(); });
    if (kind == std::end(kKinds) || header.shape.size() != 1) {
      return InvalidArgumentError("{}: wanted {}, of one dimension, found {}",
                                  path, StoredType().wanted, header.ToString());
    }
    const auto stored = static_cast<Stored>(kind - std::begin(kKinds));
    if (spec.dtype && stored != *spec.dtype) {
      return InvalidArgumentError("{}: `dtype: {}`, but it says {}", path,
                                  Of(*spec.dtype).name, kind->name);
    }
    return FileTokens{stored, header.bytes, header.shape[0]};
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<FileTokens> llmc,
                            FindLlmcTokens(spec, file, head));
  if (llmc) return *llmc;
  const Stored stored = spec.dtype.value_or(Stored::kUint16);
  const uint64_t data =
      file.bytes() - std::min(file.bytes(), spec.header_bytes);
  if (data % Of(stored).bytes != 0) {
    return DataLossError(
        "{} has {} bytes, of which {} are left over: a token ({}) has {}: is "
        "the file cut off, is `dtype` another, or has it a head "
        "(`header_bytes`)?",
        path, file.bytes(), data % Of(stored).bytes, Of(stored).name,
        Of(stored).bytes);
  }
  return FileTokens{stored, spec.header_bytes, data / Of(stored).bytes};
}

class Tokens final : public EvenSource {
 public:
  Tokens(const TokensSource& spec, DataFiles files, Stored stored,
         Layout layout)
      : EvenSource(std::move(files), std::move(layout), RawSpecFor(spec)),
        stored_(stored),
        output_dtype_(spec.output_dtype),
        as_stored_(Of(stored).name == DTypeName(output_dtype_)),
        length_(spec.sequence_length),
        tokens_read_(TokensRead(spec)) {}

  // Where the sequences are. InvalidArgument: a file has fewer tokens than one.
  static StatusOr<Layout> LayOut(const TokensSource& spec,
                                 const DataFiles& files,
                                 const std::vector<FileTokens>& tokens) {
    const uint64_t wanted = TokensRead(spec);
    const uint64_t bytes = Of(tokens.front().stored).bytes;
    const uint64_t stride = spec.stride.value_or(spec.sequence_length);
    Layout layout = {.record_bytes = wanted * bytes,
                     .step_bytes = stride * bytes};
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].tokens < wanted) {
        return InvalidArgumentError(
            "{} has {} tokens, fewer than a sequence ({}{}); leave it out, or "
            "join short files",
            files[i].path(), tokens[i].tokens, wanted,
            HasTargets(spec) ? ", the last target included" : "");
      }
      PENSTOCK_RETURN_IF_ERROR(
          layout.records.Append((tokens[i].tokens - wanted) / stride + 1));
      layout.data_at.push_back(tokens[i].data_at);
    }
    return layout;
  }

  std::string fingerprint() const override {
    Fingerprint fingerprint("tokens");
    fingerprint.Add(static_cast<uint64_t>(stored_));
    fingerprint.Add(tokens_read_);
    fingerprint.Add(layout().step_bytes / Of(stored_).bytes);
    fingerprint.Add(std::as_bytes(std::span(layout().data_at)));
    fingerprint.Add(files());
    return fingerprint.Hex();
  }
  std::optional<size_t> plain_feature() const override {
    if (!as_stored_ || raw_spec().size() != 1) return std::nullopt;
    return 0;
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    std::span<const std::byte> tokens = read.bytes;
    const uint64_t token_bytes = DTypeBytes(output_dtype_);
    if (!as_stored_) {
      scratch->resize(tokens_read_ * token_bytes);
      const Status status =
          Convert(stored_, tokens, output_dtype_, "sequence", scratch->data());
      if (!status.ok()) return status.Prepend(Describe(record));
      tokens = *scratch;
    }
    const uint64_t bytes = length_ * token_bytes;
    raw->assign({tokens.first(bytes)});
    if (raw_spec().size() == 2) raw->push_back(tokens.subspan(token_bytes));
    return OkStatus();
  }

 private:
  static bool HasTargets(const TokensSource& spec) {
    return spec.targets == TokensSource::Targets::kShifted;
  }
  // Those of a sequence, with the last target.
  static uint64_t TokensRead(const TokensSource& spec) {
    return spec.sequence_length + (HasTargets(spec) ? 1 : 0);
  }
  static RawSpec RawSpecFor(const TokensSource& spec) {
    const Feature input = {"input",
                           spec.output_dtype,
                           {static_cast<int64_t>(spec.sequence_length)}};
    Feature target = input;
    target.name = "target";
    return RawSpecOf(HasTargets(spec) ? ElementSpec{input, target}
                                      : ElementSpec{input});
  }

  const Stored stored_;
  const DType output_dtype_;
  const bool as_stored_;
  const uint64_t length_;
  const uint64_t tokens_read_;  // of a sequence
};

// ---- documents

template <typename T>
Status ScanDocuments(ScannedFile* file, const FileTokens& tokens,
                     const TokenDocuments& documents, RecordSink* sink) {
  constexpr uint64_t kBlockBytes = uint64_t{1} << 20;
  const bool ends = documents.end.has_value();
  const T border = static_cast<T>(ends ? *documents.end : *documents.begin);
  const uint64_t end = tokens.data_at + tokens.tokens * sizeof(T);
  uint64_t document = tokens.data_at;
  for (uint64_t at = document; at < end;) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::span<const std::byte> block,
                              file->At(at, std::min(kBlockBytes, end - at)));
    for (size_t i = 0; i < block.size(); i += sizeof(T)) {
      if (ValueAt<T>(&block[i]) != border) continue;
      const uint64_t next = at + i + (ends ? sizeof(T) : 0);
      if (next == document) continue;  // the first one begins there
      PENSTOCK_RETURN_IF_ERROR(sink->Add(document, next - document));
      document = next;
    }
    at += block.size();
  }
  return document < end ? sink->Add(document, end - document) : OkStatus();
}

Status FindDocuments(ScannedFile* file, const FileTokens& tokens,
                     const TokenDocuments& documents, RecordSink* sink) {
  switch (tokens.stored) {
    case Stored::kUint16:
      return ScanDocuments<uint16_t>(file, tokens, documents, sink);
    case Stored::kUint32:
      return ScanDocuments<uint32_t>(file, tokens, documents, sink);
    case Stored::kInt32:
      return ScanDocuments<int32_t>(file, tokens, documents, sink);
    case Stored::kInt64:
      return ScanDocuments<int64_t>(file, tokens, documents, sink);
  }
  return OkStatus();
}

class DocumentsOfTokens final : public IndexedSource {
 public:
  DocumentsOfTokens(Index index, Stored stored, DType output_dtype,
                    uint64_t longest, std::string warning)
      : IndexedSource(
            std::move(index),
            RawSpecOf(ElementSpec{
                {"tokens", output_dtype, {static_cast<int64_t>(longest)}},
                {"tokens.length", DType::kInt64, {}}})),
        stored_(stored),
        room_(raw_spec()[0].feature.RowBytes()),
        warning_(std::move(warning)) {}

  std::string warning() const override { return warning_; }

  Columns columns(uint64_t first) const override {
    Columns columns = IndexedSource::columns(first);
    for (Column& each : Source::columns(first)) {
      columns.push_back(std::move(each));
    }
    return columns;
  }
  bool KnownNumber(uint64_t record, size_t feature,
                   std::byte* number) const override {
    if (feature != 1) return false;
    const uint64_t length = index().At(record).bytes[0] / Of(stored_).bytes;
    std::memcpy(number, &length, sizeof(length));
    return true;
  }
  void Locate(uint64_t record, ReadRequest* request) const override {
    const Index::Record document = index().At(record);
    document.file->Locate(document.offsets[0], document.bytes[0], request);
  }
  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const DType dtype = raw_spec()[0].feature.dtype;
    const uint64_t length = read.bytes.size() / Of(stored_).bytes;
    const uint64_t used = length * DTypeBytes(dtype);
    scratch->resize(room_ + sizeof(length));
    const Status status =
        Convert(stored_, read.bytes, dtype, "document", scratch->data());
    if (!status.ok()) return status.Prepend(Describe(record));
    std::memset(scratch->data() + used, 0, room_ - used);
    std::memcpy(scratch->data() + room_, &length, sizeof(length));
    const std::span<const std::byte> all = *scratch;
    raw->assign({all.first(room_), all.subspan(room_)});
    return OkStatus();
  }
  std::string Describe(uint64_t record) const override {
    const Index::Record document = index().At(record);
    return Format("{}, document {} (offset {})", document.file->path(),
                  document.number, document.offsets[0]);
  }

 private:
  const Stored stored_;
  const uint64_t room_;
  const std::string warning_;
};

OpenedSource OpenDocuments(const TokensSource& spec, DataFiles opened,
                           const std::vector<FileTokens>& found,
                           OpenProgress* progress) {
  const TokenDocuments& documents = *spec.documents;
  const Stored stored = found.front().stored;
  const int64_t border =
      documents.end ? *documents.end : documents.begin.value_or(0);
  const std::string word =
      Format("documents: {{{}: {}}}", documents.end ? "end" : "begin", border);
  const bool is_signed = stored == Stored::kInt32 || stored == Stored::kInt64;
  const uint64_t bits = 8 * Of(stored).bytes - (is_signed ? 1 : 0);
  if (static_cast<uint64_t>(border) > UINT64_MAX >> (64 - bits)) {
    return InvalidArgumentError("`{}` is no token of {}, as {} has", word,
                                Of(stored).name, opened[0].path());
  }
  std::map<std::string, FileTokens> of_file;
  for (size_t i = 0; i < found.size(); ++i) {
    of_file.insert({opened[i].path(), found[i]});
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      Index index,
      Index::Open(std::move(opened),
                  {.kind = "tokens",
                   .options = Format("{} {} {}", word, Of(stored).name,
                                     spec.header_bytes),
                   .scan =
                       [&](ScannedFile* file, RecordSink* sink) {
                         return FindDocuments(file, of_file.at(file->path()),
                                              documents, sink);
                       }},
                  progress));
  const uint64_t most = documents.max_length.value_or(kSequenceLengthMax);
  uint64_t longest = documents.max_length.value_or(0);
  for (uint64_t i = 0; i < index.records(); ++i) {
    const Index::Record document = index.At(i);
    const uint64_t length = document.bytes[0] / Of(stored).bytes;
    longest = std::max(longest, length);
    if (length <= most) continue;
    return InvalidArgumentError(
        "{}, document {} has {} tokens; at most {}{}: is it the token of `{}` "
        "that is between documents?",
        document.file->path(), document.number, length, most,
        documents.max_length ? " by max_length" : "", word);
  }
  PENSTOCK_RETURN_IF_ERROR(index.ChooseIo(spec.io));
  std::string warning;
  if (index.records() == found.size()) {
    warning = Format(
        "each of {} is one document, the longest of {}: `{}` occurs nowhere "
        "inside of it; is it the token that is between documents, and `dtype` "
        "that of the file?",
        Counted(found.size(), "file", "files"), Counted(longest, "token"),
        word);
  }
  return std::unique_ptr<Source>(
      new DocumentsOfTokens(std::move(index), stored, spec.output_dtype,
                            longest, std::move(warning)));
}

ValueType<TokenDocuments> TokenDocumentsType() {
  const ValueType<int64_t> token = WholeNumber<int64_t>(0, UINT32_MAX);
  const ValueType<uint64_t> length =
      WholeNumber<uint64_t>(1, kSequenceLengthMax);
  return {
      "{end: the token that each ends with}, or {begin: the first of each}; "
      "max_length",
      [token, length](const YamlValue& value, std::string_view wanted,
                      TokenDocuments* out) {
        PENSTOCK_RETURN_IF_ERROR(
            value.CheckMapping({"end", "begin", "max_length"}, wanted));
        if (const YamlValue most = value.Optional("max_length");
            most.present()) {
          PENSTOCK_RETURN_IF_ERROR(
              length.Read(most, &out->max_length.emplace()));
        }
        PENSTOCK_ASSIGN_OR_RETURN(const std::string_view key,
                                  value.OneOf({"end", "begin"}));
        return token.Read(value.Required(key),
                          &(key == "end" ? out->end : out->begin).emplace());
      },
      [](const TokenDocuments& documents, auto* out) {
        const char* const key = documents.end ? "end" : "begin";
        *out = {{key, documents.end ? *documents.end : *documents.begin}};
        if (documents.max_length) {
          (*out)["max_length"] = *documents.max_length;
        }
      }};
}

Status CheckTokens(const YamlValue& value, TokensSource* tokens) {
  PENSTOCK_RETURN_IF_ERROR(
      value.OneOf({"sequence_length", "documents"}).status());
  for (const auto& [key, differs] :
       {std::pair("stride", tokens->stride.has_value()),
        std::pair("targets",
                  tokens->targets != TokensSource::Targets::kShifted)}) {
    if (!tokens->documents || !differs) continue;
    return value.Required(key).Error(
        "is of sequences: give their `sequence_length` instead of `documents`");
  }
  return OkStatus();
}

}  // namespace

const Declaration<TokensSource>& TokensSource::Declared() {
  static const auto declared =
      Declaration<TokensSource>(
          "tokens",
          "Sequences of tokens from one or several files, raw (little-endian), "
          ".npy of one dimension, or with the header of llm.c and "
          "modded-nanogpt. A sequence never crosses from a file to "
          "the next; tokens after the last whole sequence of a file are left "
          "out.")
          .Gives(
              "input [sequence_length]; unless targets: none, target "
              "[sequence_length]: the token after each; or documents")
          .Example("{files: [train_0.bin, train_1.bin], sequence_length: 1024}")
          .Required("files", &TokensSource::files, Files(), kFilesText)
          .Optional("dtype", &TokensSource::dtype, Maybe(StoredType()),
                    "of the tokens in the files; .npy and llm.c's files say it "
                    "themselves, of others it is uint16 by default; given, "
                    "a .npy file without NumPy's header is raw, as OLMo's")
          .Optional("header_bytes", &TokensSource::header_bytes,
                    WholeNumber<uint64_t>(0, kRowBytesMax),
                    "left out at the start of each file that is not .npy")
          .Optional("sequence_length", &TokensSource::sequence_length,
                    LeftOutAt(uint64_t{0},
                              WholeNumber<uint64_t>(1, kSequenceLengthMax)),
                    "tokens of a row")
          .Optional("documents", &TokensSource::documents,
                    Maybe(TokenDocumentsType()),
                    "instead: rows are documents, for batch.pack")
          .Optional("stride", &TokensSource::stride,
                    Maybe(WholeNumber<uint64_t>(1, kRowBytesMax)),
                    "tokens from the start of a sequence to that of the next; "
                    "by default sequence_length")
          .Optional("targets", &TokensSource::targets,
                    Words<Targets>({{"shifted", Targets::kShifted},
                                    {"none", Targets::kNone}}),
                    "shifted by one token, or none")
          .Optional("output_dtype", &TokensSource::output_dtype,
                    DTypes({DType::kInt64, DType::kInt32}), "of the rows")
          .Optional("io", &TokensSource::io, IoType(), kIoText)
          .Check(CheckTokens);
  return declared;
}

OpenedSource TokensSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(
      DataFiles opened, DataFiles::Open(files, *progress, InflateBy::kName));
  std::vector<FileTokens> found;
  for (const DataFile& file : opened) {
    PENSTOCK_ASSIGN_OR_RETURN(found.emplace_back(),
                              FindTokens(*this, file, progress));
    const Stored first = found.front().stored;
    if (found.back().stored != first) {
      return InvalidArgumentError(
          "{} has tokens of {}, but {} of {}; make a dataset of each",
          opened[0].path(), Of(first).name, file.path(),
          Of(found.back().stored).name);
    }
  }
  if (documents) {
    return OpenDocuments(*this, std::move(opened), found, progress);
  }
  PENSTOCK_ASSIGN_OR_RETURN(auto layout, Tokens::LayOut(*this, opened, found));
  PENSTOCK_RETURN_IF_ERROR(opened.ChooseIo(io, layout.record_bytes));
  return std::unique_ptr<Source>(new Tokens(
      *this, std::move(opened), found.front().stored, std::move(layout)));
}

}  // namespace penstock
