// SPDX-License-Identifier: Apache-2.0
//
// What a kernel is called where people read: in errors, traces and reports. The name of its type as the
// compiler spells it, without the namespaces that say nothing: the library's own and unnamed ones.
#pragma once

#include <plateau/config.hpp>

#include <string_view>

namespace plateau::inline v0 {

namespace detail {
template <std::size_t Size> struct fixed_text { char c[Size]; };

// "... [with K = name]" from g++, "... [K = name]" from clang, "... [with K=name]" from nvcc.
template <class K> constexpr const char* spelled() { return __PRETTY_FUNCTION__; }
template <class K> constexpr std::string_view spelled_type() {
  std::string_view text = spelled<K>();
  text.remove_prefix(text.find('=') + 1);
  if (text.front() == ' ') text.remove_prefix(1);
  text.remove_suffix(1);
  return text;
}
constexpr bool part_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
// How many characters at the beginning are of a namespace that is left out.
constexpr std::size_t left_out(std::string_view at, bool inside_name) {
  for (const std::string_view each : {"plateau::v0::detail::", "plateau::detail::", "plateau::v0::",
                                      "plateau::", "{anonymous}::", "(anonymous namespace)::", "<unnamed>::"})
    if (at.substr(0, each.size()) == each && !(inside_name && part_of_name(each.front()))) return each.size();
  constexpr std::string_view unnamed_of_nvcc = "_GLOBAL__N_"; // and the file's name
  if (at.substr(0, unnamed_of_nvcc.size()) == unnamed_of_nvcc && at.find("::") != at.npos)
    return at.find("::") + 2;
  return 0;
}
template <class K> constexpr auto make_kernel_name() {
  constexpr std::string_view from = spelled_type<K>();
  fixed_text<from.size() + 1> to{};
  std::size_t length = 0;
  for (std::size_t i = 0; i < from.size();) {
    const std::size_t skipped = left_out(from.substr(i), i != 0 && part_of_name(from[i - 1]));
    if (skipped == 0) to.c[length++] = from[i++];
    i += skipped;
  }
  return to;
}
template <class K> inline constexpr auto kernel_name_storage = make_kernel_name<K>();
} // namespace detail

// The readable name of type K; lives for the whole program.
template <class K> const char* kernel_name() { return detail::kernel_name_storage<K>.c; }

} // namespace plateau::inline v0
