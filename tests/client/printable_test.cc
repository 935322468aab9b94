#include "client/cli/printable.h"

#include <gtest/gtest.h>

#include <sstream>

#include "client/cli/console.h"

namespace flashbob::cli {
namespace {

TEST(PrintableTest, TextStaysAsItIs) {
  for (const char* text : {"", "tensor q has 3 axes", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "a \"b\" \\ c"}) {
    EXPECT_EQ(Printable(text), text);
  }
  EXPECT_EQ(Printable("two\nlines\n", true), "two\nlines\n");
}

TEST(PrintableTest, ControlCharactersAndBytesThatAreNoUtf8AreSpelledOut) {
  EXPECT_EQ(Printable("\x1b[2J\x07"), "\\x1b[2J\\x07");
  EXPECT_EQ(Printable("two\nlines\r"), "two\\x0alines\\x0d");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("\x7f"), "\\x7f");
  EXPECT_EQ(Printable("\xc2\x9b\x32J"), "\\xc2\\x9b2J") << "CSI in one character";
  EXPECT_EQ(Printable("\x9b"), "\\x9b");
  EXPECT_EQ(Printable("\xe2\x82"), "\\xe2\\x82") << "cut short";
  EXPECT_EQ(Printable("\xc0\x9b \xe0\x80\x9b \xf0\x80\x80\x9b"), "\\xc0\\x9b \\xe0\\x80\\x9b \\xf0\\x80\\x80\\x9b")
      << "overlong";
  EXPECT_EQ(Printable("\xed\xa0\x80 \xf4\x90\x80\x80 \xff"), "\\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80 \\xff");
}

// A tensor may be called anything, and so may a server's device.
TEST(PrintableTest, NamesFromFilesAndServersDriveNoTerminal) {
  std::ostringstream out;
  std::ostringstream err;
  Console console(out, err, false);
  console.Fail(2, absl::InvalidArgumentError("tensor \x1b]0;owned\x07 has 3 axes\nflashbob: all is well"));
  console.Print({}, "device \x1b[31m\nand another line\n");
  EXPECT_EQ(err.str(), "flashbob: INVALID_ARGUMENT: tensor \\x1b]0;owned\\x07 has 3 axes\\x0aflashbob: all is well\n");
  EXPECT_EQ(out.str(), "device \\x1b[31m\nand another line\n");
}

}  // namespace
}  // namespace flashbob::cli
