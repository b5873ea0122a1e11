// SPDX-License-Identifier: Apache-2.0
//
// The text of trace files: numbers are the same everywhere, and any name gives well-formed JSON and XML.
#include <plateau/trace/text.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace {

namespace detail = plateau::detail;
using namespace std::string_literals;

std::string decimal(double value, int decimals) {
  std::string text = "=";
  detail::append_decimal(text, value, decimals);
  return text;
}
std::string json(std::string_view text) {
  std::string to;
  detail::append_json(to, text);
  return to;
}
std::string xml(std::string_view text) {
  std::string to;
  detail::append_xml(to, text);
  return to;
}

} // namespace

TEST_CASE("numbers") {
  std::string text;
  detail::append_number(text, std::numeric_limits<std::int64_t>::min());
  detail::append_number(text += ' ', std::numeric_limits<std::uint64_t>::max());
  CHECK(text == "-9223372036854775808 18446744073709551615");
  CHECK(decimal(1.5, 3) == "=1.5");
  CHECK(decimal(100, 0) == "=100"); // no zeros are lost before the point
  CHECK(decimal(100, 2) == "=100");
  CHECK(decimal(0.0626, 2) == "=0.06");
  CHECK(decimal(-0.001, 2) == "=0");
  CHECK(decimal(-2.25, 1) == "=-2.2");
  CHECK(decimal(1e300, 1).size() == 302);
  CHECK(decimal(std::numeric_limits<double>::infinity(), 1) == "=0");
  CHECK(decimal(std::numeric_limits<double>::quiet_NaN(), 1) == "=0");
}

TEST_CASE("what is a character of UTF-8") {
  CHECK(detail::utf8_length("a") == 1);
  CHECK(detail::utf8_length("\xc2\xb5s") == 2);
  CHECK(detail::utf8_length("\xe2\x82\xac") == 3);
  CHECK(detail::utf8_length("\xf0\x9f\x98\x80") == 4);
  for (const char* wrong :
       {"\x80", "\xbf", "\xff", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xe2\x82", "\xe2\x82z", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf0\x9f\x98", "\xf5\x80\x80\x80"})
    CHECK(detail::utf8_length(wrong) == 0);
}

TEST_CASE("JSON strings") {
  CHECK(json("plain \xc2\xb5s") == "plain \xc2\xb5s");
  CHECK(json("a \"b\" \\ c") == "a \\\"b\\\" \\\\ c");
  CHECK(json("\n\t\x01\x7f"s + '\0') == "\\u000a\\u0009\\u0001\\u007f\\u0000");
  CHECK(json("a\xff"
             "b\xe2\x82") == "a\xef\xbf\xbd"
                             "b\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("XML text") {
  CHECK(xml("operator<, a & \"b\">") == "operator&lt;, a &amp; &quot;b&quot;&gt;");
  CHECK(xml("a\tb\nc") == "a b c");
  CHECK(xml("\x01\x7f\xff\xef\xbf\xbe") == "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}
