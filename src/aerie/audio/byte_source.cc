#include "aerie/audio/byte_source.h"

#include <algorithm>
#include <cstring>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace aerie::audio {
namespace {

// Large enough that a typical utterance's FLAC file takes two reads, small enough to stay in L2.
constexpr int64_t kBufferBytes = 128 * 1024;
// The first look at a file: a header. Samples of WAV files then go straight to their place.
constexpr int64_t kHeadBytes = 4096;
constexpr int kMaxInterrupted = 100;  // calls in a row

}  // namespace

ByteSource::~ByteSource() {
  close();
}

void ByteSource::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  file_.reset();
  in_memory_ = false;
  memory_ = {};
  size_ = position_ = bytes_read_ = buffer_begin_ = 0;
  buffer_.clear();
  error_ = ok_status();
}

Status ByteSource::open_file(Env& env, const std::string& path) {
  close();
  if (&env != &Env::real()) {
    AERIE_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, env.open_random_access(path));
    open_file(std::move(file));
    return ok_status();
  }
  // O_NONBLOCK: a FIFO in a manifest must not hang the loader; it is refused below.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    const bool too_many = errno == EMFILE || errno == ENFILE;
    return errno_error("cannot open", errno)
        .with_hint(too_many ? "raise `ulimit -n`, or lower num_workers" : "");
  }
  struct stat info {};
  if (::fstat(fd_, &info) != 0) {
    const int error = errno;
    close();
    return errno_error("cannot stat", error);
  }
  if (!S_ISREG(info.st_mode)) {
    close();
    return data_error("not a regular file");
  }
  size_ = info.st_size;
  return ok_status();
}

void ByteSource::open_file(std::unique_ptr<RandomAccessFile> file) {
  close();
  file_ = std::move(file);
  size_ = static_cast<int64_t>(file_->size());
}

void ByteSource::open_memory(std::span<const uint8_t> bytes) {
  close();
  in_memory_ = true;
  memory_ = bytes;
  size_ = static_cast<int64_t>(bytes.size());
}

int64_t ByteSource::pread_some(int64_t offset, void* out, int64_t n) {
  if (file_ != nullptr) {
    Result<size_t> got = file_->read_at(static_cast<uint64_t>(offset), out, static_cast<size_t>(n));
    if (!got.ok()) {
      error_ = got.status();
      return 0;
    }
    bytes_read_ += static_cast<int64_t>(*got);
    return static_cast<int64_t>(*got);
  }
  int64_t done = 0;
  int interrupted = 0;
  while (done < n) {
    const ssize_t got = ::pread(fd_, static_cast<uint8_t*>(out) + done,
                                static_cast<size_t>(n - done), offset + done);
    if (got < 0) {
      if (errno == EINTR && ++interrupted < kMaxInterrupted) continue;
      error_ = errno_error("cannot read", errno);
      break;
    }
    if (got == 0) break;
    done += got;
  }
  bytes_read_ += done;
  return done;
}

std::span<const uint8_t> ByteSource::view(int64_t offset, int64_t n) {
  if (offset < 0 || offset >= size_ || n <= 0) return {};
  n = std::min(n, size_ - offset);
  if (in_memory_) return memory_.subspan(static_cast<size_t>(offset), static_cast<size_t>(n));
  if (offset < buffer_begin_ || offset + n > buffer_begin_ + buffer_.size()) {
    const bool first_look = buffer_.size() == 0 && offset == 0;
    const int64_t want =
        std::min(std::max(n, first_look ? kHeadBytes : kBufferBytes), size_ - offset);
    buffer_.clear();
    if (Status status = buffer_.resize(want); !status.ok()) {
      error_ = status;
      return {};
    }
    const int64_t got = pread_some(offset, buffer_.data(), want);
    (void)buffer_.resize(got);
    buffer_begin_ = offset;
    n = std::min(n, got);
  }
  return {buffer_.data() + (offset - buffer_begin_), static_cast<size_t>(n)};
}

int64_t ByteSource::read(void* out, int64_t n) {
  int64_t done = 0;
  while (done < n) {
    int64_t want = n - done;
    if (!in_memory_) {
      // Take what the buffer still has before it is filled again from behind its end.
      const int64_t buffer_end = buffer_begin_ + buffer_.size();
      if (position_ >= buffer_begin_ && position_ < buffer_end)
        want = std::min(want, buffer_end - position_);
      else
        want = std::min(want, kBufferBytes);
    }
    const std::span<const uint8_t> piece = view(position_, want);
    if (piece.empty()) break;
    std::memcpy(static_cast<uint8_t*>(out) + done, piece.data(), piece.size());
    done += static_cast<int64_t>(piece.size());
    position_ += static_cast<int64_t>(piece.size());
  }
  if (in_memory_) bytes_read_ += done;
  return done;
}

Status ByteSource::read_exact(int64_t offset, void* out, int64_t n) {
  if (n <= 0) return ok_status();
  if (offset < 0 || offset + n > size_)
    return data_error(
        str_cat("range [", offset, ", ", offset + n, ") is outside the file of ", size_, " bytes"));
  if (in_memory_) {
    std::memcpy(out, memory_.data() + offset, static_cast<size_t>(n));
    bytes_read_ += n;
    return ok_status();
  }
  uint8_t* bytes = static_cast<uint8_t*>(out);
  // The front may already be in the buffer (small files were read whole with their header).
  const int64_t buffer_end = buffer_begin_ + buffer_.size();
  if (offset >= buffer_begin_ && offset < buffer_end) {
    const int64_t head = std::min(n, buffer_end - offset);
    std::memcpy(bytes, buffer_.data() + (offset - buffer_begin_), static_cast<size_t>(head));
    bytes += head;
    offset += head;
    n -= head;
  }
  if (n == 0) return ok_status();
  const int64_t got = pread_some(offset, bytes, n);
  if (got == n) return ok_status();
  if (!error_.ok()) return error_;
  return data_error("the file became shorter while it was read");
}

}  // namespace aerie::audio
