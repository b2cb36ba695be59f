#include "aerie/tar/tar_archive.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <mutex>

#include "aerie/tar/byte_stream.h"

namespace aerie::tar {
namespace {

// Streams kept open behind the last read, so that reading on costs nothing extra.
constexpr size_t kMaxCursors = 8;

class ArchiveMember final : public RandomAccessFile {
 public:
  ArchiveMember(std::shared_ptr<const TarArchive> archive, size_t i)
      : RandomAccessFile(str_cat(archive->path(), "#", archive->index().name(i))),
        archive_(std::move(archive)),
        member_(i) {}
  uint64_t size() const override { return archive_->index().entry(member_).size; }

 protected:
  Result<size_t> read_some(uint64_t offset, void* out, size_t n) const override {
    if (offset >= size()) return size_t{0};
    const uint64_t count = std::min<uint64_t>(n, size() - offset);
    AERIE_RETURN_IF_ERROR(archive_->read_range(member_, offset, count, static_cast<uint8_t*>(out)));
    return static_cast<size_t>(count);
  }

 private:
  std::shared_ptr<const TarArchive> archive_;
  size_t member_;
};

}  // namespace

struct TarArchive::Impl {
  std::string path;
  TarOptions options;
  std::shared_ptr<const TarIndex> index;
  std::unique_ptr<RandomAccessFile> file;  // plain archives
  std::mutex mutex;
  std::list<std::unique_ptr<ByteStream>> cursors;  // compressed ones; least recently used first

  // The access point to start from for `offset`, or null for the beginning.
  const GzipPoint* point_before(uint64_t offset) const {
    const std::vector<GzipPoint>& points = index->gzip_points();
    auto it = std::upper_bound(
        points.begin(), points.end(), offset,
        [](uint64_t wanted, const GzipPoint& point) { return wanted < point.out_offset; });
    return it == points.begin() ? nullptr : &*std::prev(it);
  }

  // A stream that stands at or before `offset`, nearer than any fresh start would be if possible.
  Result<std::unique_ptr<ByteStream>> take_cursor(uint64_t offset) {
    const GzipPoint* point = point_before(offset);
    const uint64_t fresh = point != nullptr ? point->out_offset : 0;
    {
      const std::lock_guard lock(mutex);
      auto best = cursors.end();
      for (auto it = cursors.begin(); it != cursors.end(); ++it)
        if ((*it)->position() <= offset && (*it)->position() >= fresh &&
            (best == cursors.end() || (*it)->position() > (*best)->position()))
          best = it;
      if (best != cursors.end()) {
        std::unique_ptr<ByteStream> cursor = std::move(*best);
        cursors.erase(best);
        return cursor;
      }
    }
    AERIE_ASSIGN_OR_RETURN(std::unique_ptr<RawInput> input, RawInput::open(path, options.env));
    if (point != nullptr) return open_gzip_at(std::move(input), options, *point);
    Compression compression = Compression::kNone;
    return open_byte_stream(std::move(input), options, &compression);
  }
  void give_back(std::unique_ptr<ByteStream> cursor) {
    const std::lock_guard lock(mutex);
    cursors.push_back(std::move(cursor));
    if (cursors.size() > kMaxCursors) cursors.pop_front();
  }

  Status read_compressed(uint64_t offset, uint64_t size, uint8_t* out) {
    AERIE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> cursor, take_cursor(offset));
    const uint64_t gap = offset - cursor->position();
    AERIE_ASSIGN_OR_RETURN(const uint64_t skipped, cursor->skip(gap));
    if (skipped < gap) return changed();
    AERIE_ASSIGN_OR_RETURN(const size_t got, cursor->read(out, static_cast<size_t>(size)));
    if (got < size) return changed();
    give_back(std::move(cursor));
    return ok_status();
  }
  Status changed() const {
    return data_error("the archive is shorter than its index says")
        .with_hint("it changed while in use; start again");
  }
};

TarArchive::TarArchive(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TarArchive::~TarArchive() = default;

Result<std::shared_ptr<TarArchive>> TarArchive::open(const std::string& path,
                                                     const std::string& cache_dir,
                                                     const TarOptions& options) {
  AERIE_ASSIGN_OR_RETURN(TarIndex index, TarIndex::open(path, cache_dir, options));
  AERIE_ASSIGN_OR_RETURN(std::shared_ptr<TarArchive> archive,
                         open(path, std::make_shared<const TarIndex>(std::move(index)), options));
  return archive;
}

Result<std::shared_ptr<TarArchive>> TarArchive::open(const std::string& path,
                                                     std::shared_ptr<const TarIndex> index,
                                                     const TarOptions& options) {
  AERIE_CHECK(index != nullptr, "no index");
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->options = options;
  impl->index = std::move(index);
  Env& env = options.env != nullptr ? *options.env : Env::real();
  Result<std::unique_ptr<RandomAccessFile>> file = env.open_random_access(path);
  if (!file.ok()) return file.status().with_context(path);
  if ((*file)->size() != impl->index->stamp().size)
    return data_error("the archive has changed since it was indexed").with_context(path);
  if (impl->index->compression() == Compression::kNone) impl->file = std::move(file).value();
  return std::shared_ptr<TarArchive>(new TarArchive(std::move(impl)));
}

const TarIndex& TarArchive::index() const {
  return *impl_->index;
}

const std::string& TarArchive::path() const {
  return impl_->path;
}

Status TarArchive::read_range(size_t i, uint64_t offset, uint64_t size, uint8_t* out) const {
  const TarIndex& index = *impl_->index;
  AERIE_CHECK(i < index.size(), "member ", i, " of ", index.size());
  const TarIndex::Entry& entry = index.entry(i);
  AERIE_CHECK(offset <= entry.size && size <= entry.size - offset, "range outside the member");
  if (size == 0) return ok_status();
  Status status;
  if (impl_->file != nullptr) {
    status = impl_->file->read_exact_at(entry.offset + offset, out, static_cast<size_t>(size));
  } else {
    status = impl_->read_compressed(entry.offset + offset, size, out);
  }
  if (status.ok()) return status;
  return std::move(status).with_context(str_cat(impl_->path, " member ", index.name(i)));
}

Status TarArchive::read(size_t i, std::vector<uint8_t>* out) const {
  AERIE_CHECK(i < impl_->index->size(), "member ", i, " of ", impl_->index->size());
  // The index was built by walking the archive, so the size is what is really there.
  out->resize(impl_->index->entry(i).size);
  return read_range(i, 0, out->size(), out->data());
}

std::unique_ptr<RandomAccessFile> TarArchive::open_member(std::shared_ptr<const TarArchive> archive,
                                                          size_t i) {
  AERIE_CHECK(i < archive->index().size(), "member ", i, " of ", archive->index().size());
  return std::make_unique<ArchiveMember>(std::move(archive), i);
}

}  // namespace aerie::tar
