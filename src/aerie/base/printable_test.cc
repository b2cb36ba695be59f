#include "aerie/base/printable.h"

#include <gtest/gtest.h>

namespace aerie {
namespace {

TEST(PrintableTest, LeavesOrdinaryTextAlone) {
  for (const char* text : {"", "a/b c.wav", "tab\there", "Größe 声 🦅", "\u00a0"})
    EXPECT_EQ(printable_lines(text), text);
}

TEST(PrintableTest, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable_lines("a\x1b[31mred"), "a\\x1b[31mred");
  EXPECT_EQ(printable_lines("\a\b\r\x7f"), "\\x07\\x08\\x0d\\x7f");
  EXPECT_EQ(printable_lines(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable_lines("\xc2\x9b"
                            "31m"),
            "\\xc2\\x9b31m")
      << "CSI of the second block";
  EXPECT_EQ(printable_lines("\x9b"), "\\x9b") << "not UTF-8";
  EXPECT_EQ(printable_lines("\xc3"), "\\xc3") << "cut short";
  EXPECT_EQ(printable_lines("\xe0\x80\x80"), "\\xe0\\x80\\x80") << "overlong";
  EXPECT_EQ(printable_lines("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "surrogate";
}

TEST(PrintableTest, NoNameMakesALineOfItsOwn) {
  EXPECT_EQ(printable_lines("x\n[train] finished"), "x\n  [train] finished");
  EXPECT_EQ(printable_lines("ends\n"), "ends\n");
}

TEST(PrintableTest, SingleNamesStayOnTheirLine) {
  EXPECT_EQ(printable("a/b c.wav Größe"), "a/b c.wav Größe");
  EXPECT_EQ(printable("a\n\t\r\x1b"
                      "c\x7f\xc2\x9b\xff"),
            "a\\x0a\\x09\\x0d\\x1bc\\x7f\\xc2\\x9b\\xff");
}

TEST(PrintableTest, JsonMeansWhatItMeant) {
  const std::string plain = "{\n\t\"a\": \"\\u001b Größe 声\"\n}";
  EXPECT_EQ(printable_json(plain), plain);
  EXPECT_EQ(printable_json("\"\x7f\xc2\x9b\xc2\xa0\""), "\"\\u007f\\u009b\xc2\xa0\"");
}

}  // namespace
}  // namespace aerie
