#include "aerie/archive/torch_file.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "aerie/archive/test_support.h"
#include "aerie/archive/zip_reader.h"
#include "aerie/archive/zip_writer.h"
#include "aerie/base/strings.h"

namespace aerie::archive::torch_file_test {
namespace {

using testing::floats;
using testing::Pickle;
using testing::torch_zip;

Result<TorchFile> read(std::string bytes, const PickleOptions& options = {}) {
  return read_torch_file(memory_source(std::move(bytes), "x.pt"), options);
}

// Reads a pickle that refers to no storage and returns its root printed by `show`.
std::string show(const NodeTree& tree, NodeId id, int depth = 0) {
  if (depth > 6) return "...";
  std::string out;
  switch (tree.kind(id)) {
    case NodeKind::kNone:
      return "None";
    case NodeKind::kBool:
      return *tree.as_bool(id) ? "True" : "False";
    case NodeKind::kInt:
      return str_cat(*tree.as_int(id));
    case NodeKind::kFloat:
      return str_cat(*tree.as_number(id));
    case NodeKind::kBigInt:
      return str_cat("big", tree.text(id).size());
    case NodeKind::kString:
      return str_cat("'", tree.text(id), "'");
    case NodeKind::kBytes:
      return str_cat("b'", tree.text(id), "'");
    case NodeKind::kGlobal:
      return str_cat("<", tree.text(id), ">");
    case NodeKind::kTensor:
      return str_cat("t", tree.tensor(id));
    case NodeKind::kStorage:
      return "storage";
    case NodeKind::kObject:
      out = str_cat(tree.object_class(id), show(tree, tree.object_args(id), depth + 1));
      if (tree.object_state(id) != kNoNode)
        out += str_cat("+", show(tree, tree.object_state(id), depth + 1));
      if (tree.object_items(id) != kNoNode)
        out += str_cat("*", show(tree, tree.object_items(id), depth + 1));
      return out;
    default:
      break;
  }
  for (const NodeId item : tree.items(id))
    out += str_cat(out.empty() ? "" : " ", show(tree, item, depth + 1));
  return str_cat(node_kind_name(tree.kind(id)), "(", out, ")");
}

std::string value_of(const std::string& pickle, const PickleOptions& options = {}) {
  const auto file = read(torch_zip(pickle), options);
  return file.ok() ? show(file->tree, file->root) : file.status().to_string();
}

TEST(UnpickleTest, UnderstandsEveryPlainValue) {
  EXPECT_EQ(value_of(Pickle().op('N').stop()), "None");
  EXPECT_EQ(value_of(Pickle().op('\x88').stop()), "True");
  EXPECT_EQ(value_of(Pickle().raw("K\xff").stop()), "255");
  EXPECT_EQ(value_of(Pickle().raw("M\xff\xff").stop()), "65535");
  EXPECT_EQ(value_of(Pickle().raw("J\xfe\xff\xff\xff").stop()), "-2");
  EXPECT_EQ(value_of(Pickle().raw(std::string("\x8a\x00", 2)).stop()), "0");
  EXPECT_EQ(value_of(Pickle().raw("\x8a\x01\xff").stop()), "-1");
  EXPECT_EQ(value_of(Pickle().raw(std::string("\x8a\x05\x00\x00\x00\x80\x00", 7)).stop()),
            "2147483648");
  EXPECT_EQ(value_of(Pickle().num(std::numeric_limits<int64_t>::min()).stop()),
            "-9223372036854775808");
  EXPECT_EQ(value_of(Pickle().raw(std::string("\x8a\x09") + std::string(9, '\x01')).stop()),
            "big9");
  EXPECT_EQ(value_of(Pickle().raw(std::string("G\x3f\xe0\0\0\0\0\0\0", 9)).stop()), "0.5");
  EXPECT_EQ(value_of(Pickle().str("h\xc3\xa9").stop()), "'h\xc3\xa9'");
  EXPECT_EQ(value_of(Pickle().raw("\x8c\x02hi").stop()), "'hi'");
  EXPECT_EQ(value_of(Pickle().raw("U\x02hi").stop()), "'hi'");
  EXPECT_EQ(value_of(Pickle().raw("C\x02\xff\xfe").stop()), "b'\xff\xfe'");
  EXPECT_EQ(value_of(Pickle().raw("](K\1K\2eK\3a").stop()), "list(1 2 3)");
  EXPECT_EQ(value_of(Pickle().raw("}(K\1K\2uNK\3s").stop()), "dict(1 2 None 3)");
  EXPECT_EQ(value_of(Pickle().raw("(K\1K\2t\x85").stop()), "tuple(tuple(1 2))");
  EXPECT_EQ(value_of(Pickle().raw("\x8f(K\1K\2\x90").stop()), "set(1 2)");
  EXPECT_EQ(value_of(Pickle().raw("(K\1K\2l").stop()), "list(1 2)");
  EXPECT_EQ(value_of(Pickle().raw("(K\1K\2d").stop()), "dict(1 2)");
}

TEST(UnpickleTest, SharesMemoizedValues) {
  EXPECT_EQ(
      value_of(Pickle().raw("(\x8c\x01").op('a').raw("\x94").raw(std::string("h\0t", 3)).stop()),
      "tuple('a' 'a')");
  EXPECT_EQ(
      value_of(Pickle().raw("(K\7").raw(std::string("r\x01\x01\0\0j\x01\x01\0\0t", 11)).stop()),
      "tuple(7 7)");
  EXPECT_EQ(value_of(Pickle().raw("]q\x05(h\x05K\1e").stop()),
            "list(list(list(list(list(list(list(... ...) 1) 1) 1) 1) 1) 1)")
      << "a list may contain itself";
}

TEST(UnpickleTest, KnowsTheCallsTorchMakes) {
  EXPECT_EQ(
      value_of(
          Pickle().global("collections", "OrderedDict").raw(")R(").str("a").raw("K\1u").stop()),
      "dict('a' 1)");
  EXPECT_EQ(value_of(Pickle()
                         .global("collections", "OrderedDict")
                         .raw("]]")
                         .str("a")
                         .raw("a")
                         .raw("K\1aa\x85R")
                         .stop()),
            "dict('a' 1)");
  EXPECT_EQ(value_of(Pickle()
                         .global("collections", "defaultdict")
                         .global("builtins", "list")
                         .raw("\x85R")
                         .stop()),
            "dict()");
  EXPECT_EQ(value_of(Pickle().global("collections", "Counter").raw("}K\3K\1s\x85R").stop()),
            "dict(3 1)");
  EXPECT_EQ(value_of(Pickle().global("torch", "Size").raw("](K\2K\3e\x85R").stop()), "tuple(2 3)");
  EXPECT_EQ(value_of(Pickle().global("torch", "device").str("cuda").raw("K\1\x86R").stop()),
            "'cuda:1'");
  EXPECT_EQ(value_of(Pickle().global("__builtin__", "set").raw("](K\2e\x85R").stop()), "set(2)");
  EXPECT_EQ(value_of(Pickle().global("torch", "bfloat16").stop()), "<torch.bfloat16>");
  EXPECT_EQ(
      value_of(
          Pickle().global("_codecs", "encode").str("a\xc3\xbf").str("latin1").raw("\x86R").stop()),
      "b'a\xff'");
}

TEST(UnpickleTest, DecodesNumpyScalars) {
  // What protocol 2 makes of numpy.float64(0.5): dtype('f8') with its state, and the bytes as text.
  Pickle pickle;
  pickle.global("numpy._core.multiarray", "scalar").global("numpy", "dtype").str("f8");
  pickle.raw("\x89\x88\x87R")
      .raw("(K\3")
      .str("<")
      .raw("NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff")
      .raw("K")
      .raw(std::string(1, '\0'))
      .raw("tb");
  pickle.global("_codecs", "encode").str(std::string(6, '\0') + "\xc3\xa0?").str("latin1");
  EXPECT_EQ(value_of(pickle.raw("\x86R\x86R").stop()), "0.5");
}

TEST(UnpickleTest, KeepsForeignObjectsOpaque) {
  Pickle pickle;
  pickle.global("omegaconf.dictconfig", "DictConfig").raw(")\x81}").str("_val").raw("K\1sb");
  EXPECT_EQ(value_of(pickle.stop()), "omegaconf.dictconfig.DictConfigtuple()+dict('_val' 1)");
  Pickle derived;  // a class derived from dict
  derived.global("lightning.fabric.utilities.data", "AttributeDict")
      .raw(")\x81(")
      .str("lr")
      .raw("K\1u");
  EXPECT_EQ(value_of(derived.stop()),
            "lightning.fabric.utilities.data.AttributeDicttuple()*dict('lr' 1)");
  PickleOptions strict;
  strict.foreign = ForeignObjects::kRefuse;
  EXPECT_EQ(value_of(pickle.stop(), strict),
            "x.pt: archive/data.pkl: byte 2: holds an object of 'omegaconf.dictconfig.DictConfig'; "
            "only tensors belong here");
}

TEST(UnpickleTest, NeverAcceptsNamesThatRunCode) {
  for (const auto& [module, name] :
       std::vector<std::pair<const char*, const char*>>{{"os", "system"},
                                                        {"posix", "system"},
                                                        {"builtins", "eval"},
                                                        {"__builtin__", "exec"},
                                                        {"subprocess", "Popen"},
                                                        {"builtins", "__import__"},
                                                        {"os.path", "join"}}) {
    const std::string message =
        value_of(Pickle().global(module, name).str("touch /tmp/x").raw("\x85R").stop());
    EXPECT_NE(message.find("would run code"), std::string::npos) << message;
  }
}

TEST(TorchFileTest, ReadsViewsAndTiedTensors) {
  Pickle pickle;
  pickle.raw("}(").str("a").tensor("0", 6, 0, {2, 3}, {3, 1}).raw("q\x07");
  pickle.str("b").raw("h\x07").str("c").tensor("0", 6, 1, {2}, {3}).op('u');
  const auto file = read(torch_zip(pickle.stop(), {{"0", floats(6)}}));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->tensors.tensors().size(), 2u);
  const auto weights = weights_of(*file);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  ASSERT_EQ(weights->tensors().size(), 3u);
  EXPECT_EQ(weights->read_as<float>(*weights->find("b")).value(),
            (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(weights->read_as<float>(*weights->find("c")).value(), (std::vector<float>{1, 4}));
}

TEST(TorchFileTest, FindsTheStateDict) {
  const auto names = [](const std::string& pickle) -> std::string {
    const auto file = read(torch_zip(pickle, {{"0", floats(6)}}));
    if (!file.ok()) return file.status().to_string();
    const auto weights = weights_of(*file);
    if (!weights.ok()) return weights.status().to_string();
    std::string out;
    for (const TensorInfo& info : weights->tensors()) out += info.name + " ";
    return out;
  };
  const auto tensor = [](Pickle& p) -> Pickle& { return p.tensor("0", 6, 0, {6}, {1}); };
  Pickle plain, nested, scalars, mixed;
  tensor(plain.raw("}").str("w")).op('s');
  EXPECT_EQ(names(plain.stop()), "w ");
  tensor(nested.raw("}").str("state_dict").raw("}").str("w")).raw("ss");
  EXPECT_EQ(names(nested.stop()), "w ");
  EXPECT_EQ(names(scalars.raw("}").str("lr").raw("K\1s").stop()),
            "x.pt: holds no state_dict (`aerie inspect` shows what it holds)");
  tensor(mixed.raw("}").str("w")).op('s').str("x._extra_state").raw("Ns").str("y").raw("K\1s");
  EXPECT_EQ(names(mixed.stop()), "x.pt: state_dict entry 'y' is not a tensor but a int");
}

// OpenMMLab publishes weights in this form.
TEST(TorchFileTest, ReadsTheFormatFromBeforeTorch16) {
  Pickle pickle;
  pickle.raw("}").str("meta").global("mmcv.utils", "Config").raw(")R").op('s');
  pickle.str("state_dict").raw("}");
  pickle.str("b").tensor("77", 2, 0, {2}, {1}).op('s');
  pickle.str("w").tensor("5", 6, 0, {3, 2}, {1, 3}).op('s').op('s');
  const std::string w = floats(6), b = floats(2);
  // Storages come in an order of their own.
  const auto file = read(testing::legacy_torch(pickle.stop(), {{"5", w}, {"77", b}}, 4));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const auto weights = weights_of(*file);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  ASSERT_EQ(weights->tensors().size(), 2u);
  EXPECT_EQ(weights->read_as<float>(*weights->find("b")).value(), (std::vector<float>{0, 1}));
  EXPECT_EQ(weights->read_as<float>(*weights->find("w")).value(),
            (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

TEST(TorchFileTest, SaysWhyAFileIsNotRead) {
  const auto why = [](std::string bytes) { return read(std::move(bytes)).status().to_string(); };
  EXPECT_NE(why("\x80\x04K\1.").find("a bare pickle"), std::string::npos);
  EXPECT_NE(why(testing::small_nemo()).find(".nemo"), std::string::npos);
  testing::RawZip script{{{.name = "m/data.pkl", .data = Pickle().op('N').stop()},
                          {.name = "m/constants.pkl", .data = "x"}}};
  EXPECT_NE(why(script.make()).find("TorchScript"), std::string::npos);
  testing::RawZip big{{{.name = "m/data.pkl", .data = Pickle().op('N').stop()},
                       {.name = "m/byteorder", .data = "big"}}};
  EXPECT_NE(why(big.make()).find("byte order 'big'"), std::string::npos);
}

TEST(TorchWriterTest, WritesNestedValuesThatReadBack) {
  const float values[] = {1, 2, 3};
  const uint16_t shorts[] = {7, 8};
  OutTensor a, b;
  a.name = b.name = std::string("t");
  a.shape = {3};
  a.data = values;
  b.dtype = Dtype::kU16;  // has no typed storage: takes the other way through torch
  b.shape = {2};
  b.data = shorts;
  NodeTree tree;
  const NodeId root = tree.add_dict();
  tree.set(root, "none", tree.add_none());
  tree.set(root, "flags", tree.add_bool(true));
  const NodeId list = tree.add_list();
  for (const int64_t value : {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{65536}, int64_t{-1},
                              int64_t{1} << 40, std::numeric_limits<int64_t>::min()})
    tree.append(list, tree.add_int(value));
  tree.set(root, "ints", list);
  tree.set(root, "float", tree.add_float(-0.1));
  tree.set(root, "bytes", tree.add_bytes("a\xff"));
  tree.set(root, "again", list);
  const NodeId inner = tree.add_dict(true);
  tree.set(inner, tree.add_int(3), tree.add_tensor(0));
  tree.set(inner, tree.add_int(4), tree.add_tensor(1));
  tree.set(root, "state", inner);
  const auto writer = TorchWriter::make(tree, root, {a, b});
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  std::string out;
  ASSERT_TRUE(writer
                  ->write([&](std::string_view bytes) {
                    out += bytes;
                    return ok_status();
                  })
                  .ok());
  EXPECT_EQ(out.size(), writer->size());
  const auto file = read(out);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(show(file->tree, file->root),
            "dict('none' None 'flags' True 'ints' list(0 255 256 65536 -1 1099511627776 "
            "-9223372036854775808) 'float' -0.1 'bytes' b'a\xff' 'again' list(0 255 256 65536 -1 "
            "1099511627776 -9223372036854775808) 'state' dict(3 t0 4 t1))");
  EXPECT_EQ(file->tensors.tensors()[0].name, "state.3");
  EXPECT_EQ(file->tensors.tensors()[1].dtype, Dtype::kU16);
  EXPECT_EQ(file->tensors.read_as<float>(file->tensors.tensors()[0]).value(),
            (std::vector<float>{1, 2, 3}));
}

TEST(TorchWriterTest, RefusesCyclesAndForeignObjects) {
  NodeTree tree;
  const NodeId tuple = tree.add_container(NodeKind::kTuple);
  tree.append(tuple, tuple);
  EXPECT_FALSE(TorchWriter::make(tree, tuple, {}).ok());
  const NodeId object = tree.add_object(tree.add_global("a.b", "C"), tree.add_list());
  EXPECT_EQ(TorchWriter::make(tree, object, {}).status().message(),
            "cannot write a object of 'a.b.C'");
}

TEST(TorchFileTest, IsReadByManyThreadsAtOnce) {
  Pickle pickle;
  pickle.raw("}(");
  std::map<std::string, std::string> storages;
  for (int i = 0; i < 8; ++i) {
    const std::string key = std::to_string(i);
    pickle.str(key).tensor(key, 1000, 0, {500, 2}, {1, 500});
    storages[key] = floats(1000);
  }
  const auto file = read(torch_zip(pickle.op('u').stop(), storages));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (const TensorInfo& info : file->tensors.tensors()) {
        const auto values = file->tensors.read_as<float>(info);
        if (values.ok() && (*values)[0] == 0 && (*values)[1] == 500 && (*values)[2] == 1) ++right;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 32);
}

TEST(ZipTest, AlignsDataAndForeseesItsSize) {
  std::vector<ZipPlan> plan;
  std::string out;
  ZipWriter writer([&](std::string_view bytes) {
    out += bytes;
    return ok_status();
  });
  for (int i = 0; i < 200; ++i) {
    const std::string name = "m/data/" + std::string(static_cast<size_t>(i % 70), 'x') + str_cat(i);
    const std::string data(static_cast<size_t>(i * 3), static_cast<char>(i));
    plan.push_back({name, data.size()});
    ASSERT_TRUE(writer.add(name, data).ok());
  }
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_EQ(out.size(), zip_size(plan));
  auto zip = ZipReader::open(memory_source(out, "x"));
  ASSERT_TRUE(zip.ok()) << zip.status().to_string();
  for (size_t i = 0; i < plan.size(); ++i) {
    const ZipEntry& entry = zip->entries()[i];
    EXPECT_EQ(entry.data_offset % 64, 0u);
    EXPECT_EQ(zip->read(entry, 1000).value(), std::string(i * 3, static_cast<char>(i)));
  }
}

TEST(ZipTest, TextIsNoDamagedArchive) {
  const auto zip = ZipReader::open(memory_source("optimizer = dict(type='AdamW', lr=2e-4)", "x"));
  EXPECT_NE(zip.status().message().find("is no zip archive"), std::string::npos)
      << zip.status().to_string();
}

// Bytes at a few positions, zeros everywhere else: a file of many gigabytes for a test.
class SparseSource final : public ByteSource {
 public:
  SparseSource(uint64_t size, std::map<uint64_t, std::string> pieces)
      : ByteSource("sparse", size), pieces_(std::move(pieces)) {}

 private:
  Status read_checked(uint64_t offset, void* out, size_t n) const override {
    auto* to = static_cast<char*>(out);
    for (size_t i = 0; i < n; ++i) {
      const auto after = pieces_.upper_bound(offset + i);
      to[i] = 0;
      if (after == pieces_.begin()) continue;
      const auto& [begin, bytes] = *std::prev(after);
      if (offset + i - begin < bytes.size()) to[i] = bytes[offset + i - begin];
    }
    return ok_status();
  }
  std::map<uint64_t, std::string> pieces_;
};

TEST(ZipTest, ReadsBeyondFourGigabytes) {
  using testing::le;
  const uint64_t large = (uint64_t{5} << 30) + 3;
  const std::string name_a = "m/a", name_b = "m/b", data_b = "hello";
  // The first entry is larger than 32 bits can say, the second one lies behind it.
  const std::string head_a = le(0x04034b50, 4) + le(45, 2) + le(0, 8) + le(7, 4) +
                             le(0xffffffff, 4) + le(0xffffffff, 4) + le(3, 2) + le(20, 2) + name_a +
                             le(1, 2) + le(16, 2) + le(large, 8) + le(large, 8);
  const uint64_t at_b = head_a.size() + large;
  const uint64_t crc_b = 0x3610a686;
  const std::string entry_b = le(0x04034b50, 4) + le(20, 2) + le(0, 8) + le(crc_b, 4) + le(5, 4) +
                              le(5, 4) + le(3, 2) + le(0, 2) + name_b + data_b;
  const uint64_t directory_at = at_b + entry_b.size();
  const std::string directory =
      le(0x02014b50, 4) + le(45, 2) + le(45, 2) + le(0, 8) + le(7, 4) + le(0xffffffff, 4) +
      le(0xffffffff, 4) + le(3, 2) + le(20, 2) + le(0, 10) + le(0, 4) + name_a + le(1, 2) +
      le(16, 2) + le(large, 8) + le(large, 8) + le(0x02014b50, 4) + le(45, 2) + le(45, 2) +
      le(0, 8) + le(crc_b, 4) + le(5, 4) + le(5, 4) + le(3, 2) + le(12, 2) + le(0, 10) +
      le(0xffffffff, 4) + name_b + le(1, 2) + le(8, 2) + le(at_b, 8);
  const uint64_t end_at = directory_at + directory.size();
  const std::string end = le(0x06064b50, 4) + le(44, 8) + le(45, 2) + le(45, 2) + le(0, 8) +
                          le(2, 8) + le(2, 8) + le(directory.size(), 8) + le(directory_at, 8) +
                          le(0x07064b50, 4) + le(0, 4) + le(end_at, 8) + le(1, 4) +
                          le(0x06054b50, 4) + le(0, 4) + le(0xffff, 2) + le(0xffff, 2) +
                          le(0xffffffff, 4) + le(0xffffffff, 4) + le(0, 2);
  const auto source = std::make_shared<SparseSource>(
      end_at + end.size(), std::map<uint64_t, std::string>{
                               {0, head_a}, {at_b, entry_b}, {directory_at, directory + end}});
  const auto zip = ZipReader::open(source);
  ASSERT_TRUE(zip.ok()) << zip.status().to_string();
  ASSERT_EQ(zip->entries().size(), 2u);
  EXPECT_EQ(zip->find("m/a")->size, large);
  EXPECT_EQ(zip->read(*zip->find("m/b"), 100).value(), "hello");
  EXPECT_FALSE(zip->read(*zip->find("m/a"), 100).ok());
}

TEST(ZipTest, AcceptsArchivesWrittenWithoutChecksums) {
  // torch.serialization.set_crc32_options(False) leaves all of them zero.
  testing::RawZip none{{{.name = "m/data.pkl", .data = Pickle().op('N').stop(), .crc = 0},
                        {.name = "m/version", .data = "3", .crc = 0}}};
  EXPECT_TRUE(read(none.make()).ok());
  none.entries[1].crc = -1;
  EXPECT_NE(read(none.make()).status().to_string().find("CRC-32"), std::string::npos);
}

TEST(ZipTest, ChecksEachEntryBeforeItsFirstByteIsUsed) {
  std::string bytes = testing::small_torch_file();
  const size_t at = bytes.find(floats(6).substr(4));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 3] = static_cast<char>(bytes[at + 3] ^ 1);
  const auto file = read(bytes);
  ASSERT_TRUE(file.ok()) << "storages are checked when they are read";
  EXPECT_NE(file->tensors.read(file->tensors.tensors()[0])
                .status()
                .to_string()
                .find("x.pt: archive/data/0: checksum (CRC-32) does not match"),
            std::string::npos);
}

}  // namespace
}  // namespace aerie::archive::torch_file_test
