#include "aerie/tar/tar_stream.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <xxhash.h>

#include "aerie/tar/byte_stream.h"
#include "aerie/tar/tar_header.h"
#include "aerie/tar/tar_stream_points.h"

namespace aerie::tar {
namespace {

// Extended headers hold a few short records; more is a member in disguise.
constexpr uint64_t kMaxExtendedHeader = uint64_t{1} << 20;
// Members may have this many extended headers in a row before their own.
constexpr int kMaxHeaderChain = 16;
constexpr uint64_t kNoSize = UINT64_MAX;

struct NameHash {
  uint64_t low;
  uint64_t high;
  bool operator==(const NameHash&) const = default;
};
struct NameHashHash {
  size_t operator()(const NameHash& hash) const { return hash.low; }
};

std::string describe_type(char type) {
  switch (type) {
    case '1':
      return "is a hard link";
    case '2':
      return "is a symbolic link";
    case '3':
    case '4':
      return "is a device";
    case '6':
      return "is a FIFO";
    case 'S':
      return "is a sparse file";
    case 'M':
      return "continues another volume";
    default:
      return str_cat("has type ", static_cast<int>(static_cast<unsigned char>(type)));
  }
}

}  // namespace

struct TarStream::Impl {
  std::unique_ptr<ByteStream> stream;
  std::string source_name;
  TarOptions options;
  Compression compression = Compression::kNone;
  // What is left of the current member, and its padding behind that.
  uint64_t data_left = 0;
  uint64_t padding_left = 0;
  uint64_t member_size = 0;
  std::string member_name;
  bool finished = false;
  std::unordered_set<NameHash, NameHashHash> seen;

  Status fail(Status status) {
    finished = true;
    return std::move(status).with_context(source_name);
  }

  // Reads one block; false at a clean end of the stream.
  Result<bool> read_block(uint8_t* block) {
    AERIE_ASSIGN_OR_RETURN(const size_t got, stream->read(block, kBlock));
    if (got == 0) return false;
    if (got < kBlock) return truncated();
    return true;
  }
  Status truncated() const {
    return data_error(str_cat("archive ends early, at byte ", stream->position(),
                              member_name.empty() ? "" : " behind member ", member_name))
        .with_hint("copy or make the archive again");
  }
  Status skip_rest() {
    const uint64_t want = data_left + padding_left;
    if (want == 0) return ok_status();
    AERIE_ASSIGN_OR_RETURN(const uint64_t got, stream->skip(want));
    if (got < want) return truncated();
    data_left = padding_left = 0;
    return ok_status();
  }
  Result<std::string> read_extended(uint64_t size) {
    if (size > kMaxExtendedHeader)
      return data_error(str_cat("an extended header of ", size, " bytes"));
    std::string text(static_cast<size_t>(padded_size(size)), '\0');
    AERIE_ASSIGN_OR_RETURN(const size_t got,
                           stream->read(reinterpret_cast<uint8_t*>(text.data()), text.size()));
    if (got < text.size()) return truncated();
    text.resize(static_cast<size_t>(size));
    return text;
  }
  Result<std::optional<TarMember>> next_member();
  Status finish_archive();
  Result<TarMember> accept(std::string name, uint64_t size);
};

// The end marker has been met: the rest must be padding.
Status TarStream::Impl::finish_archive() {
  std::vector<uint8_t> rest(64 * 1024);
  while (true) {
    AERIE_ASSIGN_OR_RETURN(const size_t got, stream->read(rest.data(), rest.size()));
    if (std::any_of(rest.begin(), rest.begin() + static_cast<int64_t>(got),
                    [](uint8_t byte) { return byte != 0; }))
      return data_error("there is data behind the end of the archive")
          .with_hint("were archives joined with cat? use tar --concatenate");
    if (got < rest.size()) return ok_status();
  }
}

Result<TarMember> TarStream::Impl::accept(std::string name, uint64_t size) {
  while (starts_with(name, "./")) name.erase(0, 2);
  if (name.size() > options.max_name_bytes)
    return data_error(str_cat("a member's name has ", name.size(), " bytes"));
  AERIE_RETURN_IF_ERROR(check_member_name(name));
  if (size > options.max_member_bytes)
    return data_error(str_cat("member '", name, "' claims ", size, " bytes; the limit is ",
                              options.max_member_bytes));
  const uint64_t end = stream->length();
  if (end != UINT64_MAX && size > end - stream->position())
    return data_error(str_cat("member '", name, "' claims ", size, " bytes where ",
                              end - stream->position(), " are left"))
        .with_hint("the archive is cut short or damaged: copy or make it again");
  if (options.refuse_duplicates) {
    const XXH128_hash_t hash = XXH3_128bits(name.data(), name.size());
    if (!seen.insert({hash.low64, hash.high64}).second)
      return data_error(str_cat("member '", name, "' is there twice"));
  }
  TarMember member;
  member.offset = stream->position();
  member.size = size;
  member.name = std::move(name);
  member_name = member.name;
  member_size = data_left = size;
  padding_left = padded_size(size) - size;
  return member;
}

Result<std::optional<TarMember>> TarStream::Impl::next_member() {
  AERIE_RETURN_IF_ERROR(skip_rest());
  std::optional<std::string> long_name;
  uint64_t long_size = kNoSize;
  int chain = 0;
  uint8_t block[kBlock];
  while (true) {
    AERIE_ASSIGN_OR_RETURN(const bool more, read_block(block));
    if (!more) {
      if (chain > 0 || options.require_end_marker) return truncated();
      return std::optional<TarMember>();
    }
    if (is_zero_block(block)) {
      if (chain > 0) return data_error("an extended header without its member");
      AERIE_RETURN_IF_ERROR(finish_archive());
      return std::optional<TarMember>();
    }
    AERIE_ASSIGN_OR_RETURN(TarHeader header, parse_header(block));
    switch (header.type) {
      case 'x':
      case 'X':
      case 'g': {
        AERIE_ASSIGN_OR_RETURN(const std::string text, read_extended(header.size));
        AERIE_ASSIGN_OR_RETURN(PaxRecords records, parse_pax(text));
        if (records.sparse) return data_error("the archive has sparse files");
        if (header.type == 'g') {
          if (records.path || records.size)
            return data_error("a global header names or sizes members");
          continue;
        }
        if (records.path) long_name = std::move(records.path);
        if (records.size) long_size = *records.size;
        break;
      }
      case 'L': {
        AERIE_ASSIGN_OR_RETURN(std::string text, read_extended(header.size));
        text.resize(std::min(text.size(), text.find('\0')));
        long_name = std::move(text);
        break;
      }
      case 'K': {
        AERIE_RETURN_IF_ERROR(read_extended(header.size).status());
        break;
      }
      default: {
        std::string name = long_name ? *std::move(long_name) : std::move(header.name);
        const uint64_t size = long_size != kNoSize ? long_size : header.size;
        long_name.reset();
        long_size = kNoSize;
        chain = 0;
        const bool regular = header.type == '0' || header.type == '\0' || header.type == '7';
        const bool directory = header.type == '5' || (regular && ends_with(name, "/"));
        if (directory) {
          if (size != 0) return data_error(str_cat("directory '", name, "' with data"));
          if (!name.empty() && name != "./" && name != ".")
            AERIE_RETURN_IF_ERROR(check_member_name(name));
          continue;
        }
        if (!regular) {
          AERIE_RETURN_IF_ERROR(check_member_name(name));
          return data_error(str_cat("member '", name, "' ", describe_type(header.type),
                                    "; only regular files are read"));
        }
        AERIE_ASSIGN_OR_RETURN(TarMember member, accept(std::move(name), size));
        return std::optional<TarMember>(std::move(member));
      }
    }
    if (++chain > kMaxHeaderChain) return data_error("too many extended headers in a row");
  }
}

TarStream::TarStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TarStream::~TarStream() = default;

Result<std::unique_ptr<TarStream>> open_tar_stream(std::unique_ptr<RawInput> input,
                                                   std::string name, const TarOptions& options,
                                                   std::vector<GzipPoint>* points) {
  auto impl = std::make_unique<TarStream::Impl>();
  impl->source_name = std::move(name);
  impl->options = options;
  Result<std::unique_ptr<ByteStream>> stream =
      open_byte_stream(std::move(input), options, &impl->compression, points);
  if (!stream.ok()) return stream.status().with_context(impl->source_name);
  impl->stream = std::move(stream).value();
  return std::unique_ptr<TarStream>(new TarStream(std::move(impl)));
}

Result<std::unique_ptr<TarStream>> TarStream::open(const std::string& path,
                                                   const TarOptions& options) {
  Result<std::unique_ptr<RawInput>> input = RawInput::open(path, options.env);
  if (!input.ok()) return input.status().with_context(path);
  return open_tar_stream(std::move(input).value(), path, options, nullptr);
}

Result<std::unique_ptr<TarStream>> TarStream::open_memory(std::span<const uint8_t> bytes,
                                                          std::string name,
                                                          const TarOptions& options) {
  return open_tar_stream(std::make_unique<RawInput>(bytes), std::move(name), options, nullptr);
}

Result<std::optional<TarMember>> TarStream::next() {
  Impl& self = *impl_;
  if (self.finished) return std::optional<TarMember>();
  Result<std::optional<TarMember>> member = self.next_member();
  if (!member.ok()) return self.fail(member.status());
  if (!member->has_value()) self.finished = true;
  return member;
}

Result<size_t> TarStream::read_some(uint8_t* out, size_t size) {
  Impl& self = *impl_;
  const size_t want = static_cast<size_t>(std::min<uint64_t>(size, self.data_left));
  if (want == 0) return size_t{0};
  Result<size_t> got = self.stream->read(out, want);
  if (!got.ok()) return self.fail(got.status());
  if (*got < want) return self.fail(self.truncated());
  self.data_left -= want;
  return want;
}

Status TarStream::read(std::vector<uint8_t>* out) {
  // A compressed archive may claim any size: memory grows with what really arrives.
  constexpr uint64_t kStep = uint64_t{4} << 20;
  out->clear();
  const bool trusted = impl_->stream->length() != UINT64_MAX;
  while (impl_->data_left > 0) {
    const uint64_t step = trusted
                              ? impl_->data_left
                              : std::min(impl_->data_left, std::max<uint64_t>(kStep, out->size()));
    const size_t have = out->size();
    out->resize(have + static_cast<size_t>(step));
    AERIE_RETURN_IF_ERROR(read_some(out->data() + have, static_cast<size_t>(step)).status());
  }
  return ok_status();
}

Compression TarStream::compression() const {
  return impl_->compression;
}

uint64_t TarStream::position() const {
  return impl_->stream->position();
}

}  // namespace aerie::tar
