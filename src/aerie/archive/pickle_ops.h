// Opcodes of the pickle protocols that the reader accepts and the writer emits. Values as defined
// by Python's pickletools.
#pragma once

#include <cstdint>

namespace aerie::archive {

enum PickleOp : uint8_t {
  kOpMark = '(',
  kOpStop = '.',
  kOpPop = '0',
  kOpPopMark = '1',
  kOpNone = 'N',
  kOpBinInt = 'J',
  kOpBinInt1 = 'K',
  kOpBinInt2 = 'M',
  kOpBinFloat = 'G',
  kOpBinUnicode = 'X',
  kOpBinString = 'T',
  kOpShortBinString = 'U',
  kOpBinBytes = 'B',
  kOpShortBinBytes = 'C',
  kOpEmptyList = ']',
  kOpList = 'l',
  kOpAppend = 'a',
  kOpAppends = 'e',
  kOpEmptyTuple = ')',
  kOpTuple = 't',
  kOpEmptyDict = '}',
  kOpDict = 'd',
  kOpSetItem = 's',
  kOpSetItems = 'u',
  kOpGlobal = 'c',
  kOpReduce = 'R',
  kOpBuild = 'b',
  kOpBinPersId = 'Q',
  kOpBinGet = 'h',
  kOpLongBinGet = 'j',
  kOpBinPut = 'q',
  kOpLongBinPut = 'r',
  // protocol 2
  kOpProto = 0x80,
  kOpNewObj = 0x81,
  kOpTuple1 = 0x85,
  kOpTuple2 = 0x86,
  kOpTuple3 = 0x87,
  kOpNewTrue = 0x88,
  kOpNewFalse = 0x89,
  kOpLong1 = 0x8a,
  kOpLong4 = 0x8b,
  // protocol 4
  kOpShortBinUnicode = 0x8c,
  kOpBinUnicode8 = 0x8d,
  kOpBinBytes8 = 0x8e,
  kOpEmptySet = 0x8f,
  kOpAddItems = 0x90,
  kOpFrozenSet = 0x91,
  kOpNewObjEx = 0x92,
  kOpStackGlobal = 0x93,
  kOpMemoize = 0x94,
  kOpFrame = 0x95,
  // protocol 5
  kOpByteArray8 = 0x96,
};

}  // namespace aerie::archive
