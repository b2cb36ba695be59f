// Encoded audio as the decoders see it: a file read through a buffer of its own, or bytes in
// memory. Internal to the folder. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "aerie/audio/grow_buffer.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::audio {

class ByteSource {
 public:
  ByteSource() = default;
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // With the real file system the descriptor is held here, which saves the allocation of a file
  // object per recording.
  Status open_file(Env& env, const std::string& path);
  void open_file(std::unique_ptr<RandomAccessFile> file);
  void open_memory(std::span<const uint8_t> bytes);
  void close();

  int64_t size() const { return size_; }
  int64_t position() const { return position_; }
  void seek(int64_t position) { position_ = position; }
  int64_t bytes_read() const { return bytes_read_; }
  const Status& error() const { return error_; }  // of the last read that failed

  // Up to `n` bytes from the position, which moves; less only at the end or after an error.
  int64_t read(void* out, int64_t n);
  // A view of up to `n` bytes at `offset` without moving; shorter at the end. Valid until the next
  // call. From memory nothing is copied.
  std::span<const uint8_t> view(int64_t offset, int64_t n);
  // Exactly [offset, offset + n), bypassing the buffer for large reads from files.
  Status read_exact(int64_t offset, void* out, int64_t n);

 private:
  int64_t pread_some(int64_t offset, void* out, int64_t n);

  int fd_ = -1;
  std::unique_ptr<RandomAccessFile> file_;
  std::span<const uint8_t> memory_;
  bool in_memory_ = false;
  int64_t size_ = 0;
  int64_t position_ = 0;
  int64_t bytes_read_ = 0;
  Status error_;
  // Window [buffer_begin_, buffer_begin_ + buffer_.size()) of the file.
  GrowBuffer<uint8_t> buffer_;
  int64_t buffer_begin_ = 0;
};

}  // namespace aerie::audio
