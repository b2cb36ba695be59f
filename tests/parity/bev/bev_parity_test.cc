// The parity program notices what it is for: a value that differs, a file that is broken.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "parity.h"

namespace aerie::bev::parity {
namespace {

std::string file_text(const std::string& name) {
  return Env::real().read_file(test_data("/bev/" + name)).value();
}

// Where the tensor's bytes begin in the file.
size_t bytes_of(const std::string& file, const std::string& tensor) {
  size_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<uint8_t>(file[i]);
  const size_t entry = file.find("\"" + tensor + "\":{");
  const size_t offsets = file.find("\"data_offsets\"", entry);
  EXPECT_LT(offsets, header + 8);
  return 8 + header + std::stoul(file.substr(file.find('[', offsets) + 1));
}

class BevParityTest : public ::testing::Test {
 protected:
  bool run(const std::string& text) {
    const std::string path = folder_.path() + "/altered.safetensors";
    EXPECT_TRUE(Env::real().write_file(path, text).ok());
    return run_file(path, {});
  }
  // The first value of the tensor, which is of 4 or 8 bytes, with one bit turned over.
  bool run_altered(const std::string& name, const std::string& tensor, size_t byte = 3) {
    std::string text = file_text(name);
    const size_t at = bytes_of(text, tensor) + byte;
    text[at] = static_cast<char>(text[at] ^ 0x40);
    return run(text);
  }
  TempDir folder_;
};

TEST_F(BevParityTest, AnAlteredValueFails) {
  EXPECT_TRUE(run(file_text("splat.safetensors")));
  EXPECT_FALSE(run_altered("splat.safetensors", "two_levels/pooled"));
  EXPECT_FALSE(run_altered("splat.safetensors", "basic/d_context"));
  EXPECT_FALSE(run_altered("geometry.safetensors", "lss/cell_floor", 0));
  EXPECT_FALSE(run_altered("geometry.safetensors", "rim/cell_trunc", 0));
  EXPECT_FALSE(run_altered("metrics.safetensors", "tp_fp_fn", 0));
  EXPECT_FALSE(run_altered("matrices.safetensors", "hash_uniform", 0));
}

TEST_F(BevParityTest, ABrokenFileFails) {
  EXPECT_FALSE(run(""));
  const std::string text = file_text("splat.safetensors");
  EXPECT_FALSE(run(text.substr(0, text.size() - 1)));
  EXPECT_FALSE(run_file(folder_.path() + "/missing.safetensors", {}));
}

}  // namespace
}  // namespace aerie::bev::parity
