// Any bytes as a zip archive, a torch file and an .npz; every entry that opens is read.
#include <cstdint>

#include "aerie/archive/npy.h"
#include "aerie/archive/torch_file.h"
#include "aerie/archive/zip_reader.h"

using namespace aerie;
using namespace aerie::archive;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const SourcePtr source = borrowed_source(data, size, "fuzz");
  const auto zip = ZipReader::open(source);
  if (zip.ok()) {
    for (const ZipEntry& entry : zip->entries()) {
      (void)zip->read(entry, uint64_t{1} << 20);
      const auto opened = zip->open_entry(entry);
      char byte = 0;
      if (opened.ok() && (*opened)->size() > 1) (void)(*opened)->read(1, &byte, 1);
    }
  }
  const auto read_all_of = [](const TensorArchive& archive) {
    for (const TensorInfo& info : archive.tensors()) (void)archive.read(info);
  };
  if (const auto file = read_torch_file(source); file.ok()) read_all_of(file->tensors);
  if (const auto npz = read_npz(source); npz.ok()) read_all_of(*npz);
  if (const auto npy = read_npy(source); npy.ok()) read_all_of(*npy);
  return 0;
}
