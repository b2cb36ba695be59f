#include "aerie/archive/byte_source.h"

#include <algorithm>
#include <cstring>

#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

class FileSource final : public ByteSource {
 public:
  explicit FileSource(std::unique_ptr<RandomAccessFile> file)
      : ByteSource(file->path(), file->size()), file_(std::move(file)) {}

 private:
  Status read_checked(uint64_t offset, void* out, size_t n) const override {
    return file_->read_exact_at(offset, out, n);
  }
  std::unique_ptr<RandomAccessFile> file_;
};

class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string bytes, std::string name)
      : ByteSource(std::move(name), bytes.size()), bytes_(std::move(bytes)) {}

 private:
  Status read_checked(uint64_t offset, void* out, size_t n) const override {
    std::memcpy(out, bytes_.data() + offset, n);
    return ok_status();
  }
  std::string bytes_;
};

class BorrowedSource final : public ByteSource {
 public:
  BorrowedSource(const void* bytes, size_t size, std::string name)
      : ByteSource(std::move(name), size), bytes_(static_cast<const char*>(bytes)) {}

 private:
  Status read_checked(uint64_t offset, void* out, size_t n) const override {
    std::memcpy(out, bytes_ + offset, n);
    return ok_status();
  }
  const char* bytes_;
};

class ChunkedSource final : public ByteSource {
 public:
  ChunkedSource(std::vector<std::string> chunks, size_t chunk_bytes, std::string name,
                uint64_t size)
      : ByteSource(std::move(name), size), chunks_(std::move(chunks)), chunk_bytes_(chunk_bytes) {}

 private:
  Status read_checked(uint64_t offset, void* out, size_t n) const override {
    auto* to = static_cast<char*>(out);
    while (n > 0) {
      const std::string& chunk = chunks_[offset / chunk_bytes_];
      const size_t begin = offset % chunk_bytes_;
      const size_t take = std::min(n, chunk.size() - begin);
      std::memcpy(to, chunk.data() + begin, take);
      to += take;
      offset += take;
      n -= take;
    }
    return ok_status();
  }
  std::vector<std::string> chunks_;
  size_t chunk_bytes_;
};

class SliceSource final : public ByteSource {
 public:
  SliceSource(SourcePtr parent, uint64_t offset, uint64_t size, std::string name)
      : ByteSource(std::move(name), size), parent_(std::move(parent)), offset_(offset) {}

 private:
  Status read_checked(uint64_t offset, void* out, size_t n) const override {
    return parent_->read(offset_ + offset, out, n);
  }
  SourcePtr parent_;
  uint64_t offset_;
};

}  // namespace

Status ByteSource::read(uint64_t offset, void* out, uint64_t n) const {
  if (offset > size_ || n > size_ - offset) {
    return data_error(str_cat("cut short: bytes ", offset, "..", offset, "+", n,
                              " are wanted, the end is at ", size_))
        .with_context(name_);
  }
  if (n == 0) return ok_status();
  return read_checked(offset, out, static_cast<size_t>(n));
}

Result<SourcePtr> file_source(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(auto file, env.open_random_access(path));
  return SourcePtr(std::make_shared<FileSource>(std::move(file)));
}

SourcePtr memory_source(std::string bytes, std::string name) {
  return std::make_shared<MemorySource>(std::move(bytes), std::move(name));
}

SourcePtr borrowed_source(const void* bytes, size_t size, std::string name) {
  return std::make_shared<BorrowedSource>(bytes, size, std::move(name));
}

SourcePtr chunked_source(std::vector<std::string> chunks, size_t chunk_bytes, std::string name) {
  uint64_t size = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    AERIE_CHECK(chunks[i].size() == chunk_bytes ||
                    (i + 1 == chunks.size() && chunks[i].size() < chunk_bytes),
                "uneven chunks");
    size += chunks[i].size();
  }
  return std::make_shared<ChunkedSource>(std::move(chunks), chunk_bytes, std::move(name), size);
}

Result<SourcePtr> slice_source(SourcePtr parent, uint64_t offset, uint64_t size, std::string name) {
  if (offset > parent->size() || size > parent->size() - offset) {
    return data_error(str_cat("cut short: ", size, " bytes at ", offset,
                              " are wanted, the end is at ", parent->size()))
        .with_context(name);
  }
  return SourcePtr(std::make_shared<SliceSource>(std::move(parent), offset, size, std::move(name)));
}

Result<std::string> read_all(const ByteSource& source, uint64_t max_bytes) {
  if (source.size() > max_bytes) {
    return data_error(
               str_cat("holds ", source.size(), " bytes, at most ", max_bytes, " are accepted"))
        .with_context(source.name());
  }
  std::string bytes(static_cast<size_t>(source.size()), '\0');
  AERIE_RETURN_IF_ERROR(source.read(0, bytes.data(), bytes.size()));
  return bytes;
}

}  // namespace aerie::archive
