#include "aerie/archive/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "aerie/archive/text.h"
#include "aerie/archive/zip_reader.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

constexpr std::string_view kNpyMagic{"\x93NUMPY", 6};
constexpr size_t kMaxHeader = 65536;

// The header is a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class Literal {
 public:
  explicit Literal(std::string_view text) : rest_(text) {}
  bool accept(std::string_view token) {
    blanks();
    if (!starts_with(rest_, token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  std::optional<std::string_view> string() {
    blanks();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const size_t end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }
  std::optional<int64_t> integer() {
    blanks();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }
  bool at_end() {
    blanks();
    return rest_.empty();
  }

 private:
  void blanks() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n' || rest_[0] == '\t'))
      rest_.remove_prefix(1);
  }
  std::string_view rest_;
};

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<int64_t>> shape;
};

std::optional<std::vector<int64_t>> parse_shape(Literal& in) {
  std::vector<int64_t> shape;
  if (!in.accept("(")) return std::nullopt;
  while (!in.accept(")")) {
    const auto dim = in.integer();
    if (!dim || shape.size() >= 64) return std::nullopt;
    (void)in.accept("L");  // Python 2 long
    shape.push_back(*dim);
    if (in.accept(")")) break;
    if (!in.accept(",")) return std::nullopt;
  }
  return shape;
}

bool parse_header(std::string_view text, Header& header) {
  Literal in(text);
  if (!in.accept("{")) return false;
  while (!in.accept("}")) {
    const auto key = in.string();
    if (!key || !in.accept(":")) return false;
    if (*key == "descr" && !header.descr) {
      const auto descr = in.string();
      if (!descr) return false;
      header.descr = std::string(*descr);
    } else if (*key == "fortran_order" && !header.fortran) {
      if (in.accept("True")) {
        header.fortran = true;
      } else if (in.accept("False")) {
        header.fortran = false;
      } else {
        return false;
      }
    } else if (*key == "shape" && !header.shape) {
      header.shape = parse_shape(in);
      if (!header.shape) return false;
    } else {
      return false;
    }
    if (in.accept("}")) break;
    if (!in.accept(",")) return false;
  }
  return in.at_end() && header.descr && header.fortran && header.shape;
}

// The array's description; `offset` of the result is where its data begins in `source`.
Result<TensorInfo> describe(const ByteSource& source, std::string name) {
  const auto bad = [&](std::string_view why) {
    return data_error(str_cat("not a readable .npy file: ", why)).with_context(source.name());
  };
  char start[12] = {};
  if (source.size() < 10) return bad("too short");
  AERIE_RETURN_IF_ERROR(source.read(0, start, std::min<uint64_t>(source.size(), sizeof start)));
  if (std::string_view(start, 6) != kNpyMagic) return bad("it does not begin as one");
  const int version = start[6];
  if (version < 1 || version > 3) return bad(str_cat("format version ", version));
  uint64_t header_begin = 10, header_size = 0;
  if (version == 1) {
    uint16_t size = 0;
    std::memcpy(&size, start + 8, sizeof size);
    header_size = size;
  } else {
    uint32_t size = 0;
    std::memcpy(&size, start + 8, sizeof size);
    header_size = size;
    header_begin = 12;
  }
  if (header_size > kMaxHeader || source.size() < header_begin ||
      header_size > source.size() - header_begin)
    return bad("its header does not fit");
  std::string text(static_cast<size_t>(header_size), '\0');
  AERIE_RETURN_IF_ERROR(source.read(header_begin, text.data(), text.size()));
  Header header;
  if (!parse_header(text, header)) return bad("its header cannot be understood");
  const auto dtype = dtype_from_numpy(*header.descr);
  if (!dtype) return bad(str_cat("elements of type ", quoted(*header.descr), " are not read"));
  TensorInfo info;
  info.name = std::move(name);
  info.dtype = *dtype;
  info.shape = std::move(*header.shape);
  auto numel = checked_numel(info.shape);
  if (!numel.ok()) return bad(numel.status().message());
  info.offset = header_begin + header_size;
  if (source.size() - info.offset != info.nbytes())
    return bad(str_cat(dtype_name(info.dtype), " ", shape_text(info.shape), " takes ",
                       info.nbytes(), " bytes, there are ", source.size() - info.offset));
  if (*header.fortran && *numel > 0) {
    int64_t stride = 1;
    for (const int64_t dim : info.shape) {
      info.strides.push_back(stride);
      stride *= dim;
    }
    if (info.contiguous()) info.strides.clear();
  }
  return info;
}

}  // namespace

Result<TensorArchive> read_npy(SourcePtr source, std::string name) {
  AERIE_ASSIGN_OR_RETURN(TensorInfo info, describe(*source, std::move(name)));
  const std::string from = source->name();
  return TensorArchive::make(from, {std::move(source)}, {std::move(info)});
}

Result<TensorArchive> read_npy(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(SourcePtr source, file_source(env, path));
  return read_npy(std::move(source));
}

Result<TensorArchive> read_npz(SourcePtr source) {
  AERIE_ASSIGN_OR_RETURN(const ZipReader zip, ZipReader::open(source));
  std::vector<SourcePtr> storages;
  std::vector<TensorInfo> tensors;
  uint64_t inflated = 0;
  for (const ZipEntry& entry : zip.entries()) {
    if (!ends_with(entry.name, ".npy"))
      return data_error(str_cat("holds ", quoted(entry.name), ", which is no .npy file"))
          .with_context(source->name());
    SourcePtr member;
    if (entry.deflated) {
      // Inflated members stay in memory, so together they are held to what the file justifies.
      inflated += std::min(entry.size, UINT64_MAX - inflated);
      if (inflated > inflate_limit(source->size()))
        return data_error("would inflate to more than is plausible").with_context(source->name());
      AERIE_ASSIGN_OR_RETURN(std::string bytes, zip.read(entry, UINT64_MAX));
      member =
          memory_source(std::move(bytes), str_cat(source->name(), ": ", printable(entry.name)));
    } else {
      AERIE_ASSIGN_OR_RETURN(member, zip.open_entry(entry));
    }
    AERIE_ASSIGN_OR_RETURN(TensorInfo info,
                           describe(*member, entry.name.substr(0, entry.name.size() - 4)));
    info.storage = static_cast<uint32_t>(storages.size());
    storages.push_back(std::move(member));
    tensors.push_back(std::move(info));
  }
  return TensorArchive::make(source->name(), std::move(storages), std::move(tensors));
}

Result<TensorArchive> read_npz(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(SourcePtr source, file_source(env, path));
  return read_npz(std::move(source));
}

Status write_npy(const Sink& sink, const OutTensor& tensor) {
  AERIE_ASSIGN_OR_RETURN([[maybe_unused]] const uint64_t numel, checked_numel(tensor.shape));
  const char* descr = dtype_numpy(tensor.dtype);
  if (descr == nullptr) return unsupported(str_cat("numpy has no type ", dtype_name(tensor.dtype)));
  std::string shape = "(";
  for (size_t d = 0; d < tensor.shape.size(); ++d)
    shape += str_cat(d == 0 ? "" : " ", tensor.shape[d], ",");
  // "(3,)" keeps its comma, "(3, 4)" does not.
  if (tensor.shape.size() > 1) shape.pop_back();
  shape += ")";
  std::string header =
      str_cat("{'descr': '", descr, "', 'fortran_order': False, 'shape': ", shape, ", }");
  // Data begins at a multiple of 64, the header ends with a newline: as numpy writes it.
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
  header.push_back('\n');
  const auto size = static_cast<uint16_t>(header.size());
  std::string start(kNpyMagic);
  start.append({'\1', '\0'});
  start.append(reinterpret_cast<const char*>(&size), sizeof size);
  AERIE_RETURN_IF_ERROR(sink(start + header));
  return tensor.emit(sink);
}

Status write_npy(Env& env, const std::string& path, const OutTensor& tensor) {
  return write_atomically(env, path, [&](const Sink& sink) { return write_npy(sink, tensor); });
}

}  // namespace aerie::archive
