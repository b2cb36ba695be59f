// Opening a TarStream over an input of one's own, with access points of gzip archives collected on
// the way. Internal to the folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/tar/byte_stream.h"
#include "aerie/tar/tar_stream.h"

namespace aerie::tar {

Result<std::unique_ptr<TarStream>> open_tar_stream(std::unique_ptr<RawInput> input,
                                                   std::string name, const TarOptions& options,
                                                   std::vector<GzipPoint>* points);

}  // namespace aerie::tar
