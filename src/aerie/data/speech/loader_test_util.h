// Loaders for tests: quiet ones that must open.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/data/speech/speech_assembler.h"

namespace aerie::data {

inline std::shared_ptr<const AudioDataset> open(const config::DatasetConfig& config,
                                                const config::SpeechAerieConfig& aerie) {
  AudioDataset::Options options;
  options.quiet = true;
  auto dataset = AudioDataset::open(config, aerie, options);
  EXPECT_TRUE(dataset.ok()) << dataset.status().to_string();
  return *dataset;
}

inline SpeechLoaderOptions quiet(uint64_t seed = 7) {
  SpeechLoaderOptions options;
  options.seed = seed;
  options.quiet = true;
  return options;
}

inline std::unique_ptr<Loader> make(const config::DatasetConfig& config,
                                    const config::SpeechAerieConfig& aerie,
                                    const SpeechLoaderOptions& options = quiet()) {
  auto loader = make_speech_loader(open(config, aerie), config, aerie, options);
  EXPECT_TRUE(loader.ok()) << loader.status().to_string();
  return std::move(loader).value();
}

// Hashes of the next `count` batches, epochs following each other.
inline std::vector<uint64_t> hashes(Loader& loader, size_t count) {
  std::vector<uint64_t> out;
  while (out.size() < count) {
    Result<const Batch*> batch = loader.next();
    EXPECT_TRUE(batch.ok()) << batch.status().to_string();
    if (!batch.ok()) return out;
    if (*batch == nullptr) {
      const Cursor cursor = loader.cursor();
      EXPECT_TRUE(loader.start_epoch(cursor.epoch + 1).ok());
      continue;
    }
    out.push_back((*batch)->content_hash());
    loader.release(*batch);
  }
  return out;
}

}  // namespace aerie::data
