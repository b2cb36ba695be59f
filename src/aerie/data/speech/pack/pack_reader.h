// Audio out of a pack.
#pragma once

#include <memory>
#include <vector>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/status.h"
#include "aerie/data/pack/pack_store.h"

namespace aerie::data {

// One per thread: keeps a decoder and buffers.
class PackReader {
 public:
  struct Options {
    bool verify = true;        // check each sample's hash
    bool prefer_int16 = true;  // else always floats
  };
  PackReader(std::shared_ptr<const PackSet> set, const Options& options);
  ~PackReader();

  // The view lives until the next call; of PCM shards it points into the mapping itself.
  Result<audio::AudioView> read(PackLocation at);

 private:
  std::shared_ptr<const PackSet> set_;
  const Options options_;
  audio::AudioReader flac_;
  std::vector<float> floats_;
};

}  // namespace aerie::data
