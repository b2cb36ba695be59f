#include "aerie/image/jpeg.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "aerie/image/jpeg_error.h"
#include "aerie/image/test_pictures.h"

namespace aerie::image {
namespace {

std::vector<uint8_t> encoded(const Image& picture, const JpegWriteOptions& options = {}) {
  return write_jpeg(picture.view(), options).value();
}

Image decoded(JpegReader& reader, std::span<const uint8_t> bytes, int first, int end,
              int denominator) {
  Image out;
  EXPECT_TRUE(reader.open(bytes).ok());
  const Status status = reader.read_rows(first, end, denominator, out);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return out;
}

// What write_jpeg() does not offer: `change` sets up the compressor.
std::vector<uint8_t> encoded_by(const Image& picture, J_COLOR_SPACE space,
                                const std::function<void(jpeg_compress_struct&)>& change) {
  jpeg_compress_struct cinfo{};
  JpegErrors errors;
  cinfo.err = &errors.manager;
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  if (setjmp(errors.jump) != 0) {  // NOLINT(cert-err52-cpp)
    ADD_FAILURE() << errors.text;
    std::abort();
  }
  jpeg_create_compress(&cinfo);
  jpeg_mem_dest(&cinfo, &buffer, &size);
  cinfo.image_width = static_cast<unsigned>(picture.width());
  cinfo.image_height = static_cast<unsigned>(picture.height());
  cinfo.input_components = picture.channels();
  cinfo.in_color_space = space;
  jpeg_set_defaults(&cinfo);
  change(cinfo);
  jpeg_start_compress(&cinfo, TRUE);
  while (cinfo.next_scanline < cinfo.image_height) {
    auto* row = const_cast<uint8_t*>(picture.row(static_cast<int>(cinfo.next_scanline)));
    jpeg_write_scanlines(&cinfo, &row, 1);
  }
  jpeg_finish_compress(&cinfo);
  std::vector<uint8_t> bytes(buffer, buffer + size);
  jpeg_destroy_compress(&cinfo);
  std::free(buffer);
  return bytes;
}

// A progressive picture of as many scans as the rules allow: every coefficient of every component
// by itself, bit by bit.
std::vector<uint8_t> many_scans() {
  std::vector<jpeg_scan_info> scans;
  const auto add = [&](int component, int coefficient, int high, int low) {
    jpeg_scan_info scan{};
    scan.comps_in_scan = 1;
    scan.component_index[0] = component;
    scan.Ss = scan.Se = coefficient;
    scan.Ah = high;
    scan.Al = low;
    scans.push_back(scan);
  };
  for (int component = 0; component < 3; ++component)
    for (int coefficient = 0; coefficient < 64; ++coefficient)
      for (int bit = 6; bit >= 0; --bit) add(component, coefficient, bit == 6 ? 0 : bit + 1, bit);
  return encoded_by(test_picture(64, 64, 5), JCS_RGB, [&](jpeg_compress_struct& cinfo) {
    cinfo.scan_info = scans.data();
    cinfo.num_scans = static_cast<int>(scans.size());
  });
}

// The place of the frame header (SOF0 or SOF2) behind its marker.
size_t frame_header(const std::vector<uint8_t>& bytes) {
  for (size_t i = 2; i + 10 < bytes.size();) {
    if (bytes[i + 1] == 0xC0 || bytes[i + 1] == 0xC2) return i + 4;
    i += 2 + bytes[i + 2] * 256 + bytes[i + 3];
  }
  ADD_FAILURE() << "no frame";
  return 0;
}

struct Refusal {
  StatusCode code = StatusCode::kOk;
  std::string text;
};
Refusal refusal(std::span<const uint8_t> bytes, const JpegLimits& limits = {}) {
  JpegReader reader(limits);
  const auto info = reader.open(bytes);
  Status status = info.status();
  Image out;
  if (info.ok()) status = reader.read_rows(0, info->height, 1, out);
  return {status.code(), status.to_string()};
}

TEST(JpegTest, PartsEqualTheWhole) {
  RandomStream draws(1, Purpose::kTest, 0, 0);
  JpegReader reader;
  for (int k = 0; k < 160; ++k) {
    const int width = static_cast<int>(draws.randint(1, 90));
    const int height = static_cast<int>(draws.randint(1, 150));
    const int channels = k % 7 == 6 ? 1 : 3;
    JpegWriteOptions options;
    options.quality = static_cast<int>(draws.randint(20, 100));
    options.subsampling = static_cast<ChromaSubsampling>(k % 3);
    options.progressive = k % 5 == 4;
    options.restart_rows = static_cast<int>(draws.below(3));
    const auto bytes = encoded(test_picture(width, height, k, channels), options);
    for (const int denominator : {1, 2, 4, 8}) {
      ASSERT_TRUE(reader.open(bytes).ok());
      const int rows = reader.scaled_height(denominator);
      const Image whole = decoded(reader, bytes, 0, rows, denominator);
      for (int trial = 0; trial < (denominator == 1 ? 12 : 3); ++trial) {
        const int first = static_cast<int>(draws.below(rows));
        const int end = trial % 2 == 0 ? rows : static_cast<int>(draws.randint(first + 1, rows));
        const Image part = decoded(reader, bytes, first, end, denominator);
        ASSERT_EQ(part.width(), whole.width());
        ASSERT_EQ(std::memcmp(part.row(0), whole.row(first), part.bytes()), 0)
            << width << " x " << height << " case " << k << " at 1/" << denominator << ", rows "
            << first << " to " << end;
      }
    }
  }
}

TEST(JpegTest, EveryFirstRowOfAPictureIsRight) {
  JpegReader reader;
  for (const auto subsampling :
       {ChromaSubsampling::k420, ChromaSubsampling::k422, ChromaSubsampling::k444}) {
    JpegWriteOptions options;
    options.subsampling = subsampling;
    const auto bytes = encoded(test_picture(37, 83, 3), options);
    const Image whole = decoded(reader, bytes, 0, 83, 1);
    for (int first = 0; first < 83; ++first)
      for (const int end : {first + 1, 83}) {
        const Image part = decoded(reader, bytes, first, end, 1);
        ASSERT_EQ(std::memcmp(part.row(0), whole.row(first), part.bytes()), 0)
            << "rows " << first << " to " << end;
      }
  }
}

// Colour at odd fractions of the size, CMYK and YCCK, arithmetic coding: rare, but libjpeg reads
// them, so they have to be right.
TEST(JpegTest, PartsEqualTheWholeForRareKinds) {
  JpegReader reader;
  const int factors[][6] = {{1, 2, 1, 1, 1, 1}, {4, 1, 1, 1, 1, 1}, {4, 2, 1, 1, 1, 1},
                            {2, 4, 1, 1, 1, 1}, {3, 1, 1, 1, 1, 1}, {1, 3, 1, 1, 1, 1},
                            {2, 2, 2, 1, 1, 2}, {1, 1, 2, 2, 1, 1}, {2, 2, 1, 2, 1, 1},
                            {1, 4, 1, 1, 1, 2}, {2, 2, 2, 2, 1, 1}};
  std::vector<std::vector<uint8_t>> files;
  const Image picture = test_picture(53, 99, 8);
  for (const auto& f : factors)
    files.push_back(encoded_by(picture, JCS_RGB, [&](jpeg_compress_struct& cinfo) {
      for (int c = 0; c < 3; ++c) {
        cinfo.comp_info[c].h_samp_factor = f[2 * c];
        cinfo.comp_info[c].v_samp_factor = f[2 * c + 1];
      }
    }));
  const Image four = test_picture(53, 99, 9, 4);
  files.push_back(encoded_by(four, JCS_CMYK, [](jpeg_compress_struct&) {}));
  files.push_back(encoded_by(
      four, JCS_CMYK, [](jpeg_compress_struct& cinfo) { jpeg_set_colorspace(&cinfo, JCS_YCCK); }));
  files.push_back(
      encoded_by(picture, JCS_RGB, [](jpeg_compress_struct& cinfo) { cinfo.arith_code = TRUE; }));
  for (size_t k = 0; k < files.size(); ++k)
    for (const int denominator : {1, 2, 4, 8}) {
      ASSERT_TRUE(reader.open(files[k]).ok());
      const int rows = reader.scaled_height(denominator);
      const Image whole = decoded(reader, files[k], 0, rows, denominator);
      for (int first = 0; first < rows; ++first)
        for (const int end : {first + 1, rows}) {
          const Image part = decoded(reader, files[k], first, end, denominator);
          ASSERT_EQ(std::memcmp(part.row(0), whole.row(first), part.bytes()), 0)
              << "file " << k << " at 1/" << denominator << ", rows " << first << " to " << end;
        }
    }
}

TEST(JpegTest, ArithmeticCodingGivesTheSamePixels) {
  const Image picture = test_picture(53, 99, 8);
  const auto by = [&](boolean arithmetic) {
    return encoded_by(picture, JCS_RGB,
                      [&](jpeg_compress_struct& cinfo) { cinfo.arith_code = arithmetic; });
  };
  JpegReader reader;
  const Image huffman = decoded(reader, by(FALSE), 0, 99, 1);
  const Image arithmetic = decoded(reader, by(TRUE), 0, 99, 1);
  EXPECT_EQ(std::memcmp(huffman.row(0), arithmetic.row(0), huffman.bytes()), 0);
}

TEST(JpegTest, GreyBecomesThreeEqualChannels) {
  const auto bytes = encoded(test_picture(20, 10, 2, 1));
  JpegReader reader;
  EXPECT_EQ(reader.open(bytes)->components, 1);
  const Image out = decoded(reader, bytes, 0, 10, 1);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(out.row(0)[3 * i], out.row(0)[3 * i + 1]);
    EXPECT_EQ(out.row(0)[3 * i], out.row(0)[3 * i + 2]);
  }
}

TEST(JpegTest, WritesWhatItReads) {
  const Image picture = test_picture(64, 48, 9);
  JpegWriteOptions options;
  options.quality = 100;
  options.subsampling = ChromaSubsampling::k444;
  JpegReader reader;
  const Image out = decoded(reader, encoded(picture, options), 0, 48, 1);
  int worst = 0;
  for (size_t i = 0; i < out.bytes(); ++i)
    worst = std::max(worst, std::abs(int{out.row(0)[i]} - int{picture.row(0)[i]}));
  EXPECT_LE(worst, 4);
  EXPECT_FALSE(write_jpeg({nullptr, 0, 4, 3, 0}).ok());
  EXPECT_FALSE(write_jpeg({nullptr, 70000, 4, 3, 0}).ok());
  EXPECT_FALSE(write_jpeg(Image(4, 4, 4).view()).ok());
  options.quality = 0;
  EXPECT_FALSE(write_jpeg(picture.view(), options).ok());
}

TEST(JpegTest, TruncatedFilesAreRefusedAtEveryLength) {
  for (const bool progressive : {false, true}) {
    JpegWriteOptions options;
    options.progressive = progressive;
    const auto bytes = encoded(test_picture(40, 30, 4), options);
    for (size_t length = 0; length < bytes.size(); ++length) {
      const Refusal what = refusal({bytes.data(), length});
      ASSERT_EQ(what.code, StatusCode::kDataError) << length << " of " << bytes.size();
    }
    EXPECT_NE(refusal({bytes.data(), bytes.size() / 2}).text.find("truncated"), std::string::npos);
    auto more = bytes;  // what follows the end is nobody's business
    more.resize(more.size() + 100);
    EXPECT_EQ(refusal(more).code, StatusCode::kOk);
  }
}

// libjpeg keeps tables from one picture to the next, for streams that leave them out.
TEST(JpegTest, NothingOfThePictureBeforeHelps) {
  for (const bool progressive : {false, true}) {
    JpegWriteOptions options;
    options.progressive = progressive;
    const auto bytes = encoded(test_picture(64, 48, 3, 3), options);
    for (const uint8_t marker : {uint8_t{0xDB}, uint8_t{0xC4}}) {  // quantization, Huffman
      std::vector<uint8_t> without(bytes.begin(), bytes.begin() + 2);
      for (size_t i = 2; i + 3 < bytes.size();) {
        if (bytes[i] == 0xFF && bytes[i + 1] == 0xDA) {
          without.insert(without.end(), bytes.begin() + static_cast<ptrdiff_t>(i), bytes.end());
          break;
        }
        const size_t length = 2 + static_cast<size_t>(bytes[i + 2] * 256 + bytes[i + 3]);
        const auto begin = bytes.begin() + static_cast<ptrdiff_t>(i);
        if (bytes[i + 1] != marker)
          without.insert(without.end(), begin, begin + static_cast<ptrdiff_t>(length));
        i += length;
      }
      // What a reader says does not depend on what it has read.
      const Refusal fresh = refusal(without);
      JpegReader reader;
      (void)decoded(reader, bytes, 0, 48, 1);
      const auto info = reader.open(without);
      Image out;
      const Status again = info.ok() ? reader.read_rows(0, 48, 1, out) : info.status();
      EXPECT_EQ(again.code(), fresh.code) << progressive << " " << int{marker};
      if (marker == 0xDB) {
        EXPECT_EQ(again.code(), StatusCode::kDataError);
      }
    }
  }
}

// Scans of a progressive picture may be missing as long as the end marker is there. libjpeg would
// guess at what they hold from neighbours, which it does not always have.
TEST(JpegTest, PartsEqualTheWholeWhereScansAreMissing) {
  JpegReader reader;
  for (int k = 0; k < 12; ++k) {
    JpegWriteOptions options;
    options.progressive = true;
    options.quality = 30 + 5 * k;
    options.subsampling = static_cast<ChromaSubsampling>(k % 3);
    const auto bytes = encoded(test_picture(45 + k, 52 + 3 * k, k, 3), options);
    std::vector<size_t> tables;  // where each scan with its tables begins, the first excepted
    bool in_scan = false;
    for (size_t i = 2; i + 1 < bytes.size(); ++i) {
      if (bytes[i] != 0xFF || bytes[i + 1] == 0 || bytes[i + 1] == 0xFF) continue;
      if (in_scan) tables.push_back(i);
      if (bytes[i + 1] == 0xD9) break;  // the end, which has no length
      in_scan = bytes[i + 1] == 0xDA;
      i += 1 + static_cast<size_t>(bytes[i + 2] * 256 + bytes[i + 3]);
    }
    ASSERT_GT(tables.size(), 4u);
    for (const size_t kept : {size_t{0}, size_t{1}, size_t{3}}) {
      std::vector<uint8_t> fewer(bytes.begin(),
                                 bytes.begin() + static_cast<ptrdiff_t>(tables[kept]));
      fewer.insert(fewer.end(), {0xFF, 0xD9});
      ASSERT_TRUE(reader.open(fewer).ok());
      const int rows = reader.scaled_height(1);
      const Image whole = decoded(reader, fewer, 0, rows, 1);
      for (int first = 0; first < rows; ++first) {
        const Image part = decoded(reader, fewer, first, rows, 1);
        ASSERT_EQ(std::memcmp(part.row(0), whole.row(first), part.bytes()), 0)
            << "case " << k << ", " << kept + 1 << " scans, from row " << first;
      }
    }
  }
}

TEST(JpegTest, OtherFilesAreRefusedByName) {
  const std::string zip("PK\x03\x04 something else in a file called picture.jpg");
  EXPECT_NE(refusal({reinterpret_cast<const uint8_t*>(zip.data()), zip.size()})
                .text.find("not a JPEG file"),
            std::string::npos);
  EXPECT_NE(refusal({}).text.find("empty"), std::string::npos);
}

TEST(JpegTest, HeadersThatClaimTooMuchAreRefusedBeforeAnythingIsAllocated) {
  auto bytes = encoded(test_picture(40, 30, 4));
  const size_t frame = frame_header(bytes);
  const auto claims = [&](uint8_t high_byte, const char* answer) {
    std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(frame) + 1, 4, high_byte);
    const Refusal what = refusal(bytes);
    EXPECT_EQ(what.code, StatusCode::kDataError);
    EXPECT_NE(what.text.find(answer), std::string::npos) << what.text;
  };
  claims(0xff, "65500");  // 65535 x 65535: libjpeg itself knows better
  claims(0xf0, "a picture of 61680 x 61680 pixels; at most 67108864 are read");
  JpegLimits limits;
  limits.max_pixels = 100;
  EXPECT_NE(refusal(encoded(test_picture(11, 10, 1)), limits).text.find("at most 100"),
            std::string::npos);
  EXPECT_EQ(refusal(encoded(test_picture(10, 10, 1)), limits).code, StatusCode::kOk);
}

TEST(JpegTest, ProgressivePicturesHaveBounds) {
  JpegWriteOptions options;
  options.progressive = true;
  const auto usual = encoded(test_picture(400, 300, 4), options);
  EXPECT_EQ(refusal(usual).code, StatusCode::kOk);
  JpegLimits limits;
  limits.max_working_bytes = 100'000;
  EXPECT_NE(refusal(usual, limits).text.find("memory"), std::string::npos);
  limits = {};
  limits.max_scans = 3;
  EXPECT_NE(refusal(usual, limits).text.find("more than 3 scans"), std::string::npos);
  const auto bomb = many_scans();
  EXPECT_NE(refusal(bomb).text.find("more than 100 scans"), std::string::npos)
      << refusal(bomb).text;
  limits.max_scans = 2000;
  EXPECT_EQ(refusal(bomb, limits).code, StatusCode::kOk);
}

TEST(JpegTest, DeeperSamplesAndOtherProcessesAreRefused) {
  auto bytes = encoded(test_picture(40, 30, 4));
  const size_t frame = frame_header(bytes);
  auto twelve = bytes;
  twelve[frame] = 12;
  EXPECT_EQ(refusal(twelve).code, StatusCode::kUnsupported) << refusal(twelve).text;
  auto lossless = bytes;
  lossless[frame - 3] = 0xC3;
  EXPECT_EQ(refusal(lossless).code, StatusCode::kUnsupported) << refusal(lossless).text;
}

TEST(JpegTest, DamagedDataIsAnErrorAndTheReaderGoesOn) {
  const auto good = encoded(test_picture(80, 60, 4));
  JpegReader reader;
  const Image want = decoded(reader, good, 0, 60, 1);
  RandomStream draws(3, Purpose::kTest, 0, 0);
  int refused = 0;
  for (int k = 0; k < 300; ++k) {
    auto bytes = good;
    for (int n = 0; n < 8; ++n)
      bytes[draws.below(bytes.size())] = static_cast<uint8_t>(draws.next_u32());
    Image out;
    const auto info = reader.open(bytes);
    if (!info.ok() || !reader.read_rows(0, info->height, 1, out).ok()) ++refused;
    if (k % 50 == 0) {
      const Image again = decoded(reader, good, 0, 60, 1);
      ASSERT_EQ(std::memcmp(again.row(0), want.row(0), want.bytes()), 0);
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace aerie::image
