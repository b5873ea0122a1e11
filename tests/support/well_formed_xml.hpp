// SPDX-License-Identifier: Apache-2.0
//
// Whether a text is a well-formed XML document of elements, attributes in double quotes and text: what is
// wrong first, or nothing. Stricter than XML where our files are simple: no comments, no processing
// instructions, no entities but the five.
#pragma once

#include <plateau/trace/text.hpp>

#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace support {

class xml_reader {
 public:
  explicit xml_reader(std::string_view text) : rest_(text) {}

  std::string first_error() {
    std::vector<std::string> open;
    bool root_seen = false;
    do {
      if (!plain_text("<", open.empty())) return "bad text" + here();
      if (rest_.empty()) break;
      rest_.remove_prefix(1);
      if (take("/")) {
        const std::string name = read_name();
        if (open.empty() || open.back() != name) return "</" + name + "> closes nothing" + here();
        open.pop_back();
        if (!take(">")) return "no > after </" + name + here();
        continue;
      }
      const std::string name = read_name();
      if (name.empty()) return "an element without a name" + here();
      if (open.empty() && root_seen) return "a second root" + here();
      root_seen = true;
      std::set<std::string> attributes;
      bool ended = false;
      while (!ended) {
        const bool space = take(" ");
        if (take("/>")) break;
        if (take(">")) {
          open.push_back(name);
          ended = true;
          continue;
        }
        const std::string attribute = read_name();
        if (!space || attribute.empty()) return "bad attribute of <" + name + here();
        if (!attributes.insert(attribute).second) return "two attributes " + attribute + here();
        if (!take("=\"") || !plain_text("\"", false) || !take("\""))
          return "bad value of " + attribute + here();
      }
    } while (!rest_.empty());
    if (!root_seen) return "no root";
    return open.empty() ? "" : "<" + open.back() + "> is not closed";
  }

 private:
  bool take(std::string_view token) {
    if (rest_.substr(0, token.size()) != token) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  std::string read_name() {
    std::string name;
    while (!rest_.empty() && (std::isalnum(static_cast<unsigned char>(rest_[0])) != 0 || rest_[0] == '-' ||
                              (rest_[0] == ':' && !name.empty()))) {
      name += rest_[0];
      rest_.remove_prefix(1);
    }
    return name;
  }
  // Up to the delimiter, or the end. Outside of the root there are only line ends.
  bool plain_text(std::string_view delimiter, bool only_space) {
    while (!rest_.empty() && rest_.substr(0, 1) != delimiter) {
      if (only_space && rest_[0] != '\n') return false;
      if (rest_[0] == '<' || rest_[0] == '>') return false;
      if (rest_[0] == '&') {
        bool known = false;
        for (const std::string_view entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"})
          known = known || take(entity);
        if (!known) return false;
        continue;
      }
      const std::size_t length = plateau::detail::utf8_length(rest_);
      const auto code = static_cast<unsigned char>(rest_[0]);
      if (length == 0 || (code < 0x20 && code != '\n' && code != '\t')) return false;
      rest_.remove_prefix(length);
    }
    return true;
  }
  std::string here() const { return " before '" + std::string(rest_.substr(0, 40)) + "'"; }

  std::string_view rest_;
};

inline std::string xml_error(std::string_view text) { return xml_reader(text).first_error(); }

} // namespace support
