// Archives built to do harm. Each must give one clear error that names the file, and the process
// may not grow by more than 64 MB on the way.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <functional>
#include <malloc.h>

#include <gtest/gtest.h>
#include <zlib.h>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/npy.h"
#include "aerie/archive/safetensors.h"
#include "aerie/archive/test_support.h"
#include "aerie/archive/text.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"

namespace aerie::archive {
namespace {

using namespace std::string_literals;

using testing::floats;
using testing::gzip;
using testing::le;
using testing::Pickle;
using testing::RawEntry;
using testing::RawZip;
using testing::small_nemo;
using testing::small_torch_file;
using testing::tar_end;
using testing::tar_member;
using testing::torch_zip;

struct Case {
  std::string name;
  std::string extension;
  std::function<std::string()> make;
  std::string says;  // part of the message
};

// Peak resident memory in KiB since reset_peak().
uint64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word)
    if (word == "VmHWM:") {
      uint64_t kib = 0;
      status >> kib;
      return kib;
    }
  return 0;
}
void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

// Everything a user could do with the file: open it and read all of it.
Status use(const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const AnyArchive archive, open_any(Env::real(), path));
  for (const TensorInfo& info : archive.tensors.tensors())
    AERIE_RETURN_IF_ERROR(archive.tensors.read(info).status());
  if (archive.lightning) {
    const TensorArchive& all = archive.lightning->file.tensors;
    for (const TensorInfo& info : all.tensors()) AERIE_RETURN_IF_ERROR(all.read(info).status());
  }
  return ok_status();
}

// {"state_dict": {"w": <value>}} as a weight file with storage "0" of six floats.
std::string weights(const std::function<void(Pickle&)>& value) {
  Pickle pickle;
  pickle.raw("}").str("state_dict").raw("}").str("w");
  value(pickle);
  return torch_zip(pickle.raw("ss").stop(), {{"0", floats(6)}});
}
std::string view(std::vector<int64_t> shape, std::vector<int64_t> strides, int64_t offset = 0,
                 int64_t numel = 6, const char* storage = "FloatStorage") {
  return weights([&](Pickle& p) { p.tensor("0", numel, offset, shape, strides, storage); });
}
std::string pickled(std::string_view opcodes) {
  return torch_zip("\x80\x02" + std::string(opcodes));
}
std::string repeat(std::string_view text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}
RawZip raw_torch() {
  RawZip zip;
  Pickle pickle;
  pickle.raw("}").str("w").tensor("0", 6, 0, {6}, {1}).op('s');
  zip.entries = {{.name = "a/data.pkl", .data = pickle.stop()},
                 {.name = "a/data/0", .data = floats(6)},
                 {.name = "a/version", .data = "3\n"}};
  return zip;
}
std::string nemo(const std::string& extra) {
  return extra + tar_member("./model_config.yaml", "a: 1\n") +
         tar_member("./model_weights.ckpt", small_torch_file()) + tar_end();
}
std::string safetensors(std::string_view header, std::string_view data) {
  return le(header.size(), 8) + std::string(header) + std::string(data);
}
std::string npy(std::string_view header, std::string_view data) {
  return std::string("\x93NUMPY\x01\x00", 8) + le(header.size(), 2) + std::string(header) +
         std::string(data);
}

std::vector<Case> pickle_cases() {
  const auto call = [](const char* module, const char* name) {
    return [=] {
      return weights([&](Pickle& p) { p.global(module, name).str("true").raw("\x85R"); });
    };
  };
  return {
      {"os.system", ".ckpt", call("os", "system"), "'os.system', which would run code"},
      {"posix.system", ".ckpt", call("posix", "system"), "would run code"},
      {"builtins.eval", ".ckpt", call("builtins", "eval"), "would run code"},
      {"builtins.exec of Python 2", ".ckpt", call("__builtin__", "execfile"), "would run code"},
      {"subprocess.Popen", ".ckpt", call("subprocess", "Popen"), "would run code"},
      {"code by STACK_GLOBAL", ".pt",
       [] { return pickled("\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R."); }, "would run code"},
      {"code among hyper-parameters", ".ckpt",
       [] {
         Pickle p;
         p.raw("}(").str("state_dict").raw("}").str("hyper_parameters");
         return torch_zip(p.global("os", "system").str("true").raw("\x85Ru").stop());
       },
       "would run code"},
      {"object among weights", ".ckpt", call("my.module", "Thing"),
       "not a tensor but an object of 'my.module.Thing'"},
      {"object in a .nemo", ".nemo", [=] { return small_nemo(call("my.module", "Thing")()); },
       "only tensors belong here"},
      {"code in a .nemo", ".nemo", [=] { return small_nemo(call("os", "system")()); },
       "would run code"},
      {"call of an opaque object", ".ckpt",
       [] {
         return weights([](Pickle& p) {
           p.global("builtins", "getattr").global("a.b", "C").str("x").raw("\x86R)R");
         });
       },
       "not a tensor"},

      {"shape far past the storage", ".pt", [] { return view({int64_t{1} << 40}, {1}); },
       "reaches past its storage"},
      {"shape that overflows", ".pt",
       [] {
         return view({int64_t{1} << 32, int64_t{1} << 32}, {int64_t{1} << 32, 1});
       },
       "impossibly large"},
      {"empty tensor of impossible shape", ".pt",
       [] {
         return view({0, INT64_MAX, INT64_MAX}, {0, 0, 0});
       },
       "impossibly large"},
      {"negative dimension", ".pt", [] { return view({-6}, {1}); }, "negative dimension"},
      {"negative stride", ".pt", [] { return view({6}, {-1}, 5); }, "negative stride"},
      {"stride past the storage", ".pt", [] { return view({2}, {6}); }, "reaches past"},
      {"strides that overflow", ".pt",
       [] {
         return view({3, 3}, {INT64_MAX, INT64_MAX});
       },
       "reaches past"},
      {"offset past the storage", ".pt", [] { return view({1}, {1}, 7); }, "begins at element 7"},
      {"offset that overflows", ".pt", [] { return view({1}, {1}, INT64_MAX); }, "begins at"},
      {"negative offset", ".pt", [] { return view({1}, {1}, -1); }, "negative or missing offset"},
      {"one element a terabyte wide", ".pt", [] { return view({int64_t{1} << 38}, {0}); },
       "would take more than"},
      {"overlapping views that add up", ".pt",
       [] {
         Pickle p;
         p.raw("}(");
         for (int i = 0; i < 5000; ++i)
           p.str(std::to_string(i)).tensor("0", 6, 0, {1024, 1024}, {0, 0});
         return torch_zip(p.op('u').stop(), {{"0", floats(6)}});
       },
       "would take more than"},
      {"hundred dimensions", ".pt",
       [] { return view(std::vector<int64_t>(100, 1), std::vector<int64_t>(100, 1)); },
       "100 dimensions"},
      {"fewer strides than dimensions", ".pt",
       [] {
         return view({2, 3}, {1});
       },
       "strides"},
      {"storage larger than its entry", ".pt", [] { return view({6}, {1}, 0, int64_t{1} << 60); },
       "the file holds 24 bytes"},
      {"storage smaller than its entry", ".pt", [] { return view({2}, {1}, 0, 2); },
       "the file holds 24"},
      {"storage of negative size", ".pt", [] { return view({6}, {1}, 0, -6); }, "has no size"},
      {"storage with a path for a key", ".pt",
       [] { return weights([](Pickle& p) { p.tensor("../../../etc/passwd", 6, 0, {6}, {1}); }); },
       "is missing"},
      {"storage of an unknown type", ".pt", [] { return view({6}, {1}, 0, 6, "QUInt8Storage"); },
       "for its type"},
      {"the same name twice", ".pt",
       [] {
         Pickle p;
         p.raw("}(").str("w").tensor("0", 6, 0, {6}, {1}).str("w").tensor("0", 6, 0, {6}, {1});
         return torch_zip(p.op('u').stop(), {{"0", floats(6)}});
       },
       "appears twice"},
      {"tensor on a number", ".pt",
       [] {
         return weights([](Pickle& p) {
           p.global("torch._utils", "_rebuild_tensor_v2").raw("(K\1K\1)").raw(")\x89Nt").op('R');
         });
       },
       "instead of a storage"},

      {"string of 4 GB", ".pt",
       [] {
         return pickled(
             "X\xff\xff\xff\xff"
             "a.");
       },
       "wants 4294967295"},
      {"string of 8 EB", ".pt", [] { return pickled("\x8d" + le(INT64_MAX, 8) + "a."); }, "wants"},
      {"bytes of 16 EB", ".pt", [] { return pickled("\x8e" + le(UINT64_MAX, 8) + "a."); }, "wants"},
      {"integer of 2 GB", ".pt",
       [] {
         return pickled(
             "\x8b\xff\xff\xff\x7f"
             "1.");
       },
       "wants"},
      {"integer of negative length", ".pt",
       [] {
         return pickled(
             "\x8b\xff\xff\xff\xff"
             "1.");
       },
       "negative length"},
      {"frame past the end", ".pt", [] { return pickled("\x95" + le(1u << 30, 8) + "N."); },
       "wants"},
      {"string that is not UTF-8", ".pt", [] { return pickled("X\1\0\0\0\xff."s); }, "not UTF-8"},
      {"memo index of 4 billion", ".pt", [] { return pickled("Nr\xff\xff\xff\xff."); },
       "memo index 4294967295"},
      {"memo never set", ".pt", [] { return pickled("h\7."); }, "never set"},
      {"lists nested 200000 deep", ".pt",
       [] { return pickled(repeat("]", 200000) + repeat("a", 199999) + "."); }, "nested deeper"},
      {"tuples nested 200000 deep", ".pt",
       [] { return pickled("N" + repeat("\x85", 200000) + "."); }, "nested deeper"},
      {"objects nested 100000 deep", ".pt",
       [] {
         Pickle p;
         p.global("a.b", "C").raw("q\1").raw(repeat("h\1", 100000)).raw("N");
         return torch_zip(p.raw(repeat("\x85R", 100001)).stop());
       },
       "nested deeper"},
      {"two million marks", ".pt", [] { return pickled(repeat("(", 2000000)); }, "values at once"},
      {"a million values", ".pt", [] { return pickled("(" + repeat("]", 900000) + "t."); },
       "more than 500000 values"},
      {"a string copied without end", ".pt",
       [] {
         Pickle p;
         p.raw("(").str(std::string(100000, 'x')).raw("q\1").global("_codecs", "encode").raw("q\2");
         return torch_zip(p.raw(repeat("h\2h\1\x85R0", 100000)).raw("t").stop());
       },
       "unfolds to far more"},
      {"a list copied without end", ".pt",
       [] {
         Pickle p;
         p.raw("(](").raw(repeat("N", 100000)).raw("eq\1").global("torch", "Size").raw("q\2");
         return torch_zip(p.raw(repeat("h\2h\1\x85R0", 100000)).raw("t").stop());
       },
       "unfolds to far more"},
      {"a shape repeated without end", ".pt",
       [] {
         Pickle p;
         p.raw("(").global("torch._utils", "_rebuild_tensor_v2").raw("q\1(");
         p.persistent("0", 6, "FloatStorage").raw(std::string("K\0", 2));
         p.tuple(std::vector<int64_t>(60, 1)).tuple(std::vector<int64_t>(60, 1));
         p.raw("\x89Ntq\2").raw(repeat("h\1h\2R", 150000));
         return torch_zip(p.raw("t").stop(), {{"0", floats(6)}});
       },
       "unfolds to far more"},
      {"doubling lists", ".ckpt",
       [] {
         Pickle p;
         p.raw("}").str("state_dict").raw("N\x85");
         for (int i = 1; i < 60; ++i)
           p.raw("q").op(static_cast<char>(i)).raw("h").op(static_cast<char>(i)).raw("\x86");
         return torch_zip(p.op('s').stop());
       },
       "state_dict"},
      {"weights that contain themselves", ".ckpt",
       [] {
         Pickle p;
         return torch_zip(p.raw("}q\1").str("state_dict").raw("h\1s").stop());
       },
       "is not a tensor but a dict"},
      {"no stop", ".pt", [] { return pickled("N"); }, "cut short"},
      {"stop without a value", ".pt", [] { return pickled("."); }, "0 values instead of one"},
      {"bytes behind the stop", ".pt", [] { return pickled("N.N"); }, "bytes behind its end"},
      {"unknown opcode", ".pt", [] { return pickled("\xff."); }, "opcode 0xff"},
      {"extension registry", ".pt", [] { return pickled("\x82\1."); }, "opcode 0x82"},
      {"instance of protocol 0", ".pt", [] { return pickled("(ios\nsystem\n."); }, "opcode 0x69"},
      {"pop from nothing", ".pt", [] { return pickled("0."); }, "where there is none"},
      {"call without arguments", ".pt", [] { return pickled("NNR."); }, "argument tuple"},
      {"key without value", ".pt", [] { return pickled("}(Nu."); }, "key without a value"},
      {"keys of a list", ".pt", [] { return pickled("]NNs."); }, "sets a key of a list"},
      {"attributes of a class", ".pt", [] { return pickled("ca\nb\n}b."); }, "sets attributes"},
      {"storage reference that is no tuple", ".pt", [] { return pickled("NQ."); }, "not a tuple"},
      {"name without end", ".pt", [] { return pickled("c" + std::string(5000000, 'x')); },
       "a name is cut short or longer"},
      {"pickle of 20 MB", ".pt", [] { return pickled(std::string(20000000, 'N')); },
       "at most 16777216 are accepted"},
  };
}

// torch's format from before 1.6.
std::vector<Case> legacy_cases() {
  using testing::legacy_torch;
  const std::string six(24, '\1');
  const auto tensor = [] { return Pickle().tensor("0", 6, 0, {2, 3}, {3, 1}).stop(); };
  const auto changed = [=](const std::function<void(std::string&)>& change) {
    return [=] {
      std::string file = legacy_torch(tensor(), {{"0", six}}, 4);
      change(file);
      return file;
    };
  };
  return {
      {"legacy file that ends behind its magic number", ".pt",
       changed([](std::string& file) { file.resize(15); }), "protocol"},
      {"legacy file without storages", ".pt", [=] { return legacy_torch(tensor(), {}, 4); },
       "storage '0' is missing"},
      {"legacy file cut short", ".pt", changed([](std::string& file) { file.pop_back(); }),
       "cut short"},
      {"legacy file cut in a count", ".pt",
       changed([](std::string& file) { file.resize(file.size() - 28); }), "before its storages do"},
      {"legacy file with more behind it", ".pt", changed([](std::string& file) { file += 'x'; }),
       "behind its end"},
      {"legacy storage that belongs to nothing", ".pt",
       [=] {
         return legacy_torch(tensor(), {{"0", six}, {"1", six}}, 4);
       },
       "belongs to nothing"},
      {"legacy storage there twice", ".pt",
       [=] {
         return legacy_torch(tensor(), {{"0", six}, {"0", six}}, 4);
       },
       "there twice"},
      {"legacy storage of another size", ".pt",
       [=] {
         return legacy_torch(tensor(), {{"0", std::string(28, '\1')}}, 4);
       },
       "holds 7 elements"},
      {"legacy storage larger than the file", ".pt",
       [] {
         return legacy_torch(Pickle().tensor("0", 1 << 20, 0, {2}, {1}).stop(),
                             {{"0", std::string(8, '\1')}}, 4);
       },
       "larger than the file"},
      {"legacy tensor outside its storage", ".pt",
       [=] {
         return legacy_torch(Pickle().tensor("0", 6, 4, {2, 3}, {3, 1}).stop(), {{"0", six}}, 4);
       },
       ""},
      {"legacy file that calls", ".pt",
       [=] {
         return legacy_torch(Pickle().global("os", "system").str("x").raw("\x85R").stop(), {}, 4);
       },
       "os.system"},
      {"legacy file of another protocol", ".pt", changed([](std::string& file) { file[19] = 2; }),
       "unknown protocol"},
      {"legacy file of a big-endian machine", ".pt",
       changed([](std::string& file) { file[file.find('\x88')] = '\x89'; }), "big-endian"},
  };
}

std::vector<Case> zip_cases() {
  const auto changed = [](const std::function<void(RawZip&)>& change) {
    return [change] {
      RawZip zip = raw_torch();
      change(zip);
      return zip.make();
    };
  };
  const auto cut = [](size_t keep) {
    return [keep] { return small_torch_file().substr(0, keep); };
  };
  return {
      {"entries that overlap", ".pt", changed([](RawZip& z) {
         z.entries[1].stored_size = z.entries[1].size =
             static_cast<int64_t>(z.entries[1].data.size()) + 20;
       }),
       "share bytes"},
      {"entry inside another", ".pt", changed([](RawZip& z) {
         const RawEntry inner{.name = "a/data/1", .data = floats(2)};
         const std::string whole = RawZip{{inner}}.make();
         z.entries[1].data = whole.substr(0, whole.find("PK\1\2"));
         const size_t offset = 30 + z.entries[0].name.size() + z.entries[0].data.size() + 30 +
                               z.entries[1].name.size();
         z.entries.push_back(inner);
         z.entries.back().header_offset = static_cast<int64_t>(offset);
       }),
       "share bytes"},
      {"entry twice", ".pt", changed([](RawZip& z) { z.entries.push_back(z.entries[1]); }),
       "appears twice"},
      {"wrong CRC of the pickle", ".pt", changed([](RawZip& z) { z.entries[0].crc = 1; }),
       "CRC-32"},
      {"wrong CRC of a storage", ".pt", changed([](RawZip& z) { z.entries[1].crc = 1; }), "CRC-32"},
      {"CRC of one entry wiped", ".pt", changed([](RawZip& z) { z.entries[1].crc = 0; }), "CRC-32"},
      {"local header with another name", ".pt",
       changed([](RawZip& z) { z.entries[1].local_name = "a/data/9"; }), "another name"},
      {"local header with another size", ".pt",
       changed([](RawZip& z) { z.entries[1].local_size = 5; }), "contradicts the directory"},
      {"stored entry with two sizes", ".pt",
       changed([](RawZip& z) { z.entries[1].size = 1 << 30; }), "claims two sizes"},
      {"entry longer than the file", ".pt",
       changed([](RawZip& z) { z.entries[1].size = z.entries[1].stored_size = 0x7fffffff; }),
       "do not fit into the file"},
      {"entry outside the file", ".pt",
       changed([](RawZip& z) { z.entries[1].header_offset = 0x7fffffff; }), "outside the file"},
      {"directory outside the file", ".pt",
       changed([](RawZip& z) { z.directory_offset = 0x7fffffff; }), "outside the file"},
      {"directory larger than the file", ".pt",
       changed([](RawZip& z) { z.directory_size = 0x7fffffff; }), "outside the file"},
      {"more entries than the directory holds", ".pt", changed([](RawZip& z) { z.count = 60000; }),
       "cannot hold"},
      {"fewer entries than the directory holds", ".pt", changed([](RawZip& z) { z.count = 2; }),
       "more than the entries it claims"},
      {"entry named ../x", ".pt", changed([](RawZip& z) { z.entries[1].name = "a/../../x"; }),
       "leads out"},
      {"entry with an absolute name", ".pt",
       changed([](RawZip& z) { z.entries[1].name = "/etc/passwd"; }), "is absolute"},
      {"entry with a NUL in its name", ".pt",
       changed([](RawZip& z) { z.entries[1].name = "a/data/0\0x"s; }), "NUL"},
      {"entry that is a link", ".pt",
       changed([](RawZip& z) { z.entries[1].attributes = 0120777u << 16; }), "is a link"},
      {"encrypted entry", ".pt", changed([](RawZip& z) { z.entries[1].flags = 1; }), "encrypted"},
      {"unknown compression", ".pt", changed([](RawZip& z) { z.entries[1].method = 12; }),
       "compression method 12"},
      {"compressed storage", ".pt", changed([](RawZip& z) {
         z.entries[1].size = static_cast<int64_t>(z.entries[1].data.size());
         z.entries[1].data = testing::deflate_raw(z.entries[1].data);
         z.entries[1].method = 8;
       }),
       "must be stored"},
      {"two pickles", ".pt",
       changed([](RawZip& z) { z.entries.push_back({.name = "b/data.pkl", .data = "\x80\2N."}); }),
       "two data.pkl"},
      {"no pickle", ".pt", changed([](RawZip& z) { z.entries.erase(z.entries.begin()); }),
       "without data.pkl"},
      {"ZIP64 end record outside the file", ".pt",
       [] {
         std::string bytes = raw_torch().make();
         const size_t end = bytes.size() - 22;
         return bytes.substr(0, end) + std::string(60, '\0') + le(0x07064b50, 4) + le(0, 4) +
                le(UINT64_MAX - 8, 8) + le(1, 4) + bytes.substr(end);
       },
       "lies outside the file"},
      {"deflate bomb of 256 MB", ".npz",
       [] {
         RawZip zip;
         zip.entries = {{.name = "x.npy", .data = testing::deflate_bomb(uint64_t{1} << 28)}};
         zip.entries[0].method = 8;
         zip.entries[0].size = int64_t{1} << 28;
         return zip.make();
       },
       "more than is plausible"},
      {"deflate bomb that lies about its size", ".npz",
       [] {
         RawZip zip;
         zip.entries = {{.name = "x.npy", .data = testing::deflate_bomb(uint64_t{1} << 28)}};
         zip.entries[0].method = 8;
         zip.entries[0].size = 1000;
         return zip.make();
       },
       "more than it claims"},
      {"many modest bombs", ".npz",
       [] {
         const std::string array =
             npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4000000,)}",
                 std::string(4000000, '\0'));
         RawEntry entry{.name = "", .data = testing::deflate_raw(array), .method = 8};
         entry.crc = crc32_z(0, reinterpret_cast<const Bytef*>(array.data()), array.size());
         entry.size = static_cast<int64_t>(array.size());
         RawZip zip;
         for (int i = 0; i < 80; ++i) {
           zip.entries.push_back(entry);
           zip.entries.back().name = str_cat(i, ".npy");
         }
         return zip.make();
       },
       "more than is plausible"},
      {"damaged deflate data", ".npz",
       [] {
         RawZip zip;
         zip.entries = {{.name = "x.npy", .data = "\xff\xff\xff\xff"}};
         zip.entries[0].method = 8;
         zip.entries[0].size = 100;
         return zip.make();
       },
       "damaged"},
      {"cut in the pickle", ".pt", cut(100), "was probably cut short"},
      {"cut in the directory", ".pt", cut(small_torch_file().size() - 40), "cut short"},
      {"cut by one byte", ".pt", cut(small_torch_file().size() - 1), "cut short"},
  };
}

std::vector<Case> tar_cases() {
  const auto with = [](const std::string& extra) { return [extra] { return nemo(extra); }; };
  return {
      {"member ../x", ".nemo", with(tar_member("../x", "y")), "outside the archive"},
      {"member a/../../x", ".nemo", with(tar_member("a/../../x", "y")), "outside the archive"},
      {"member with an absolute name", ".nemo", with(tar_member("/etc/passwd", "y")), "absolute"},
      {"symbolic link", ".nemo", with(tar_member("x", "", '2', "/etc/passwd")), "link"},
      {"hard link", ".nemo", with(tar_member("x", "", '1', "model_config.yaml")), "link"},
      {"device", ".nemo", with(tar_member("x", "", '3')), "device"},
      {"FIFO", ".nemo", with(tar_member("x", "", '6')), "FIFO"},
      {"weights that are a link", ".nemo",
       [] {
         return tar_member("model_config.yaml", "a: 1\n") +
                tar_member("model_weights.ckpt", "", '2', "/dev/zero") + tar_end();
       },
       "link"},
      {"config twice", ".nemo", with(tar_member("model_config.yaml", "b: 2\n")),
       "model_config.yaml"},
      {"config twice under two spellings", ".nemo",
       with(tar_member("././model_config.yaml", "b: 2\n")), "model_config.yaml"},
      {"member larger than the archive", ".nemo",
       with(tar_member("x", "y", '0', "", int64_t{1} << 32)), ""},
      {"header with a wrong checksum", ".nemo",
       [] {
         std::string bytes = nemo("");
         bytes[0] = 'X';
         return bytes;
       },
       "checksum"},
      {"cut in the weights", ".nemo", [] { return nemo("").substr(0, 2000); }, ""},
      {"no end", ".nemo", [] { return nemo("").substr(0, nemo("").size() - 1024); }, "end"},
      {"gzip bomb as the config", ".nemo",
       [] {
         const std::string header =
             tar_member("model_config.yaml", "", '0', "", int64_t{1} << 30).substr(0, 512);
         return testing::gzip_bomb(header, uint64_t{1} << 28);
       },
       ""},
      {"gzip bomb as another member", ".nemo",
       [] {
         const std::string header = tar_member("x", "", '0', "", int64_t{1} << 30).substr(0, 512);
         return testing::gzip_bomb(header, uint64_t{1} << 28);
       },
       ""},
      {"gzip cut short", ".nemo",
       [] {
         const std::string bytes = gzip(nemo(""));
         return bytes.substr(0, bytes.size() / 2);
       },
       ""},
      {"gzip with a wrong checksum", ".nemo",
       [] {
         std::string bytes = gzip(nemo(""));
         bytes[bytes.size() - 6] = static_cast<char>(bytes[bytes.size() - 6] ^ 1);
         return bytes;
       },
       ""},
      {"config of 17 MB", ".nemo",
       [] {
         return tar_member("model_config.yaml", std::string(17 << 20, ' ')) +
                tar_member("model_weights.ckpt", small_torch_file()) + tar_end();
       },
       "at most 16777216 are accepted"},
      {"not an archive at all", ".nemo", [] { return std::string(2000, 'x'); }, ""},
  };
}

std::vector<Case> other_cases() {
  const std::string entry = "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]";
  return {
      {"header of 16 EB", ".safetensors", [] { return std::string(100, '\xff'); }, "header would"},
      {"header past the file", ".safetensors", [] { return le(90'000'000, 8) + "{}"; },
       "cut short"},
      {"header nested a million deep", ".safetensors",
       [] { return safetensors("{\"a\":" + repeat("[", 1000000), ""); }, "is missing"},
      {"name of 1 MB", ".safetensors",
       [] { return safetensors("{\"" + std::string(1000000, 'x') + "\":{}}", ""); }, "64 KiB"},
      {"shape that overflows", ".safetensors",
       [] {
         return safetensors(
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296],"
             "\"data_offsets\":[0,0]}}",
             "");
       },
       "impossibly large"},
      {"tensor past the data", ".safetensors",
       [] {
         return safetensors(
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[1000000000000],\"data_offsets\":[0,"
             "4000000000000]}}",
             "");
       },
       "the file holds 0"},
      {"tensors that overlap", ".safetensors",
       [=] { return safetensors("{\"a\":{" + entry + "},\"b\":{" + entry + "}}", floats(2)); },
       "overlap"},
      {"many empty tensors", ".safetensors",
       [] {
         std::string header = "{";
         for (int i = 0; i < 100001; ++i)
           header += str_cat(i == 0 ? "" : ",", "\"", i,
                             "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
         return safetensors(header + "}", "");
       },
       "more than 100000 tensors"},
      {"array of objects", ".npy",
       [] { return npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "\x80\2N."); },
       "'|O' are not read"},
      {"array far larger than its file", ".npy",
       [] {
         return npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000)}", "");
       },
       "there are 0"},
      {"array whose size overflows", ".npy",
       [] {
         return npy("{'descr': '<f8', 'fortran_order': True, 'shape': (4611686018427387904, 4)}",
                    "");
       },
       "impossibly large"},
      {"nothing", ".ckpt", [] { return std::string(); }, "empty"},
  };
}

class HostileTest : public ::testing::TestWithParam<Case> {};

TEST_P(HostileTest, GivesOneClearErrorAndStaysSmall) {
  const Case& c = GetParam();
  const TempDir dir;
  const std::string path = dir.file("hostile" + c.extension);
  ASSERT_TRUE(Env::real().write_file(path, c.make()).ok());
  malloc_trim(0);  // what making the file took must not hide what reading it takes
  reset_peak();
  const uint64_t before = peak_kib();
  const Status status = use(path);
  const uint64_t grown_kib = std::max(peak_kib(), before) - before;
  ASSERT_FALSE(status.ok());
  const std::string message = status.to_string();
  EXPECT_NE(message.find(c.says), std::string::npos) << message;
  EXPECT_NE(message.find("hostile"), std::string::npos) << "the file is not named: " << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 700u) << message;
  EXPECT_TRUE(is_utf8(message));
  EXPECT_NE(status.code(), StatusCode::kInternal) << message;
#ifndef AERIE_SANITIZE_ADDRESS  // its quarantine keeps what was freed
  EXPECT_LT(grown_kib, 64u << 10) << message;
#endif
  RecordProperty("grown_kib", static_cast<int>(grown_kib));
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  std::string out = std::to_string(info.index);
  bool upper = true;
  for (const char c : info.param.name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) {
      upper = true;
      continue;
    }
    out.push_back(upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c);
    upper = false;
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Pickle, HostileTest, ::testing::ValuesIn(pickle_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Legacy, HostileTest, ::testing::ValuesIn(legacy_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Zip, HostileTest, ::testing::ValuesIn(zip_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Tar, HostileTest, ::testing::ValuesIn(tar_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Other, HostileTest, ::testing::ValuesIn(other_cases()), case_name);

// The same for bytes in memory, which is quicker for thousands of variants.
Status use_bytes(const std::string& extension, const std::string& bytes) {
  const SourcePtr source = borrowed_source(bytes.data(), bytes.size(), "x" + extension);
  TensorArchive archive;
  if (extension == ".nemo") {
    AERIE_ASSIGN_OR_RETURN(
        NemoArchive nemo_archive,
        read_nemo({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "x.nemo"));
    archive = std::move(nemo_archive.weights);
  } else if (extension == ".pt") {
    AERIE_ASSIGN_OR_RETURN(const TorchFile file, read_torch_file(source));
    AERIE_ASSIGN_OR_RETURN(archive, weights_of(file));
  } else if (extension == ".npy") {
    AERIE_ASSIGN_OR_RETURN(archive, read_npy(source));
  } else {
    AERIE_ASSIGN_OR_RETURN(archive, read_safetensors(source));
  }
  for (const TensorInfo& info : archive.tensors()) {
    AERIE_ASSIGN_OR_RETURN(const std::string data, archive.read(info));
    EXPECT_EQ(data, floats(6)) << "wrong numbers without an error";
  }
  return ok_status();
}

std::vector<std::pair<std::string, std::string>> good_files() {
  return {
      {".pt", small_torch_file()},
      {".nemo", nemo("")},
      {".nemo", gzip(nemo(""))},
      {".safetensors",
       safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}", floats(6))},
      {".npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }\n", floats(6))}};
}

TEST(HostileTruncationTest, EveryCutIsNoticed) {
  for (const auto& [extension, bytes] : good_files()) {
    ASSERT_EQ(use_bytes(extension, bytes).to_string(), "ok") << extension;
    // Of the zeros that end a tar the last 512 carry nothing.
    const bool plain_tar = extension == ".nemo" && bytes[0] != '\x1f';
    const size_t end = bytes.size() - (plain_tar ? 512 : 0);
    for (size_t size = 0; size < end; ++size) {
      const Status status = use_bytes(extension, bytes.substr(0, size));
      ASSERT_FALSE(status.ok()) << extension << " cut to " << size << " of " << bytes.size();
    }
  }
}

TEST(HostileDamageTest, NoDamagedByteGivesWrongNumbers) {
  for (const auto& [extension, good] : good_files()) {
    // Only zip and gzip carry checksums over the data.
    if (extension == ".safetensors" || extension == ".npy") continue;
    for (size_t i = 0; i < good.size(); ++i) {
      for (const char flip : {'\x01', '\x40', '\xff'}) {
        std::string bytes = good;
        bytes[i] = static_cast<char>(bytes[i] ^ flip);
        (void)use_bytes(extension, bytes);  // checks the numbers when there is no error
      }
    }
  }
}

}  // namespace
}  // namespace aerie::archive
