// The samples of a data set as loaders see them: how many, how long, in which groups, and what to
// call them. Reading one is the business of its family's BatchAssembler. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aerie/data/epoch_plan.h"
#include "aerie/data/storage.h"

namespace aerie::data {

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual const std::shared_ptr<const SampleSet>& samples() const = 0;
  uint64_t size() const { return samples()->size(); }
  // Of the list of samples: a cursor of other data is refused by it.
  virtual uint64_t fingerprint() const = 0;
  // Where a person finds sample i: "train.json:17 (clips/a.wav)".
  virtual std::string describe(uint64_t i) const = 0;
  // The number that reports show for it.
  virtual uint32_t sample_id(uint64_t i) const { return static_cast<uint32_t>(i); }

  // Entries of its lists that are no samples because they cannot be used (damaged, without a
  // recording), as opposed to those that the configuration leaves out.
  virtual uint64_t left_out() const { return 0; }

  // A folder or file that is read, for judging the disk; empty: none.
  virtual std::string example_path() const { return {}; }
  // What to do about a slow disk, at the end of a sentence.
  virtual std::string storage_advice(const StorageInfo& /*storage*/) const {
    return "copy the data to a local disk";
  }
  // The part of a configuration that describes it, for hints.
  virtual std::string config_node() const { return "the data set"; }
  // What differs where fingerprints do: "the data has changed ...: other files".
  virtual std::string what_may_differ() const { return "other files"; }
};

}  // namespace aerie::data
