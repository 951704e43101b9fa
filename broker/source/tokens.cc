// Where a sequence is follows from its number: nothing is kept in memory.
#include <algorithm>
#include <bit>
#include <cstring>

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
size_t Convert(Stored stored, const std::byte* from, size_t tokens,
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
        "{} has {} bytes, of which {} are left over: a token ({}) has {}", path,
        file.bytes(), data % Of(stored).bytes, Of(stored).name,
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
      const size_t converted =
          (output_dtype_ == DType::kInt32
               ? Convert<int32_t>
               : Convert<int64_t>)(stored_, tokens.data(), tokens_read_,
                                   scratch->data());
      if (converted < tokens_read_) {
        return DataLossError(
            "{}: token {} of the sequence does not fit into int32; use "
            "`output_dtype: int64`",
            Describe(record), converted);
      }
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
              "[sequence_length]: the token after each")
          .Example("{files: [train_0.bin, train_1.bin], sequence_length: 1024}")
          .Required("files", &TokensSource::files, Files(), kFilesText)
          .Optional("dtype", &TokensSource::dtype, Maybe(StoredType()),
                    "of the tokens in the files; .npy and llm.c's files say it "
                    "themselves, of others it is uint16 by default; given, "
                    "a .npy file without NumPy's header is raw, as OLMo's")
          .Optional("header_bytes", &TokensSource::header_bytes,
                    WholeNumber<uint64_t>(0, kRowBytesMax),
                    "left out at the start of each file that is not .npy")
          .Required("sequence_length", &TokensSource::sequence_length,
                    WholeNumber<uint64_t>(1, kSequenceLengthMax),
                    "tokens of a row")
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
          .Optional("io", &TokensSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource TokensSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(DataFiles opened,
                            DataFiles::Open(files, *progress));
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
  PENSTOCK_ASSIGN_OR_RETURN(auto layout, Tokens::LayOut(*this, opened, found));
  PENSTOCK_RETURN_IF_ERROR(opened.ChooseIo(io, layout.record_bytes));
  return std::unique_ptr<Source>(new Tokens(
      *this, std::move(opened), found.front().stored, std::move(layout)));
}

}  // namespace penstock
