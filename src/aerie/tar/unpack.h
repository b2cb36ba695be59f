// The decompressors behind ByteStream. Internal to the folder.
#pragma once

#include <memory>
#include <vector>

#include "aerie/tar/byte_stream.h"

namespace aerie::tar {

// From `from` (an access point) or the beginning; `points` receives access points on the way.
Result<std::unique_ptr<ByteStream>> new_gzip_stream(std::unique_ptr<RawInput> input,
                                                    const TarOptions& options,
                                                    const GzipPoint* from,
                                                    std::vector<GzipPoint>* points);
// Refused with kUnsupported where the library was missing when aerie was built.
Result<std::unique_ptr<ByteStream>> new_bzip2_stream(std::unique_ptr<RawInput> input,
                                                     const TarOptions& options);
Result<std::unique_ptr<ByteStream>> new_xz_stream(std::unique_ptr<RawInput> input,
                                                  const TarOptions& options);

// Uncompressed bytes an archive of `compressed` bytes may have under the options.
uint64_t max_unpacked_bytes(uint64_t compressed, const TarOptions& options);
Status unpacks_to_too_much(uint64_t limit);

}  // namespace aerie::tar
