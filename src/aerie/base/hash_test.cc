#include "aerie/base/hash.h"

#include <gtest/gtest.h>

namespace aerie {
namespace {

TEST(HashTest, XxHash64MatchesThePublishedValues) {
  EXPECT_EQ(hex64(xxhash64("")), "ef46db3751d8e999");
  EXPECT_EQ(hex64(xxhash64("abc")), "44bc2cf5ad770999");
  EXPECT_NE(xxhash64("abc", 1), xxhash64("abc"));
}

TEST(HashTest, Crc32MatchesThePublishedValue) {
  EXPECT_EQ(crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(crc32("6789", crc32("12345")), 0xcbf43926u);
  EXPECT_EQ(crc32(""), 0u);
}

TEST(HashTest, Sha256MatchesThePublishedValues) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(HashTest, PiecesGiveTheValueOfTheWhole) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  for (const size_t piece :
       {size_t{1}, size_t{3}, size_t{63}, size_t{64}, size_t{65}, size_t{999}}) {
    XxHash64 fast(5);
    Sha256 secure;
    for (size_t at = 0; at < text.size(); at += piece) {
      fast.update(text.substr(at, piece));
      secure.update(text.substr(at, piece));
    }
    EXPECT_EQ(fast.digest(), xxhash64(text, 5)) << piece;
    const auto digest = secure.digest();
    EXPECT_EQ(hex(digest.data(), digest.size()), sha256_hex(text)) << piece;
  }
}

}  // namespace
}  // namespace aerie
