// SPDX-License-Identifier: Apache-2.0
//
// Text as tokens. Any file is a corpus: two bytes, little-endian, are one token, so there are 65,536 of them
// and no tokenizer is needed; a larger vocabulary adds ids that never occur, to see what it costs. Files of
// llm.c (a header of 256 32-bit numbers, then 16-bit or 32-bit tokens) are recognised by their first number.
// Without a file the corpus is the text of the licences that every Debian and Ubuntu system holds: some
// hundred kilobytes that do not change from day to day; the digest says which edition it was.
#pragma once

#include "input_error.hpp"
#include "input_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace moe {

inline constexpr std::int64_t byte_pair_vocabulary = 65'536;
inline constexpr std::int64_t vocabulary_limit = std::int64_t{1} << 24;
inline constexpr std::uint64_t corpus_limit_bytes = std::uint64_t{1}
                                                    << 32; // tokens are kept in memory, 4 B each
inline constexpr const char* default_corpus_folder = "/usr/share/common-licenses";

struct corpus {
  std::string name;                 // the file, or the folder of the licences
  std::vector<std::int32_t> tokens; // each in [0, vocabulary)
  std::int64_t vocabulary = 0;
  std::uint64_t bytes = 0;  // of all files read, headers included
  std::uint64_t digest = 0; // 64-bit FNV-1a of those bytes
  double entropy = 0;       // of the distribution of single tokens over the whole corpus, in nats
  std::string note;         // something to tell the user, or empty
};

// 64-bit FNV-1a, byte by byte.
inline std::uint64_t fnv1a(std::span<const std::byte> bytes, std::uint64_t digest = 0xcbf29ce484222325u) {
  for (const std::byte b : bytes) digest = (digest ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
  return digest;
}

// -sum p ln p of the tokens' own frequencies: the loss of the best model that ignores all context, in nats.
inline double unigram_entropy(std::span<const std::int32_t> tokens) {
  if (tokens.empty()) return 0;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(*std::max_element(tokens.begin(), tokens.end())) +
                                   1);
  for (const std::int32_t token : tokens) ++counts[static_cast<std::size_t>(token)];
  const auto total = static_cast<double>(tokens.size());
  double entropy = 0;
  for (const std::int64_t count : counts) {
    const double p = static_cast<double>(count) / total;
    if (count > 0) entropy -= p * std::log(p);
  }
  return entropy;
}

namespace detail {

inline constexpr std::int32_t llmc_magic_16_bit = 20240520, llmc_magic_32_bit = 20240801;
inline constexpr std::size_t llmc_header_numbers = 256;

// Reads `file` from `offset` to its end in pieces, adds them to the corpus' digest and gives each to `take`.
template <class Take>
void read_pieces(const input_file& file, std::uint64_t offset, corpus& text, Take take) {
  std::vector<std::byte> piece(std::size_t{1} << 20);
  while (offset < file.size()) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), file.size() - offset));
    const std::span<std::byte> bytes{piece.data(), size};
    file.read_at(offset, bytes);
    text.digest = fnv1a(bytes, text.digest);
    take(std::span<const std::byte>{bytes});
    offset += size;
  }
}

// Little-endian numbers of sizeof(Number) bytes, cut anywhere into pieces.
template <class Number> class token_cutter {
 public:
  template <class Sink> void append(std::span<const std::byte> bytes, Sink sink) {
    for (const std::byte b : bytes) {
      pending_[held_++] = b;
      if (held_ < sizeof(Number)) continue;
      Number number;
      std::memcpy(&number, pending_.data(), sizeof(Number));
      held_ = 0;
      sink(static_cast<std::int64_t>(number));
    }
  }
  std::size_t bytes_left() const { return held_; }

 private:
  std::array<std::byte, sizeof(Number)> pending_{};
  std::size_t held_ = 0;
};

inline void check_size(const input_file& file, std::uint64_t bytes) {
  if (bytes > corpus_limit_bytes)
    throw input_error{fmt::format("{}: {} bytes; expected at most {} (tokens are kept in memory)",
                                  shown(file.path()), bytes, corpus_limit_bytes)};
}

template <class Number> void read_llmc_tokens(const input_file& file, corpus& text) {
  token_cutter<Number> cutter;
  read_pieces(file, llmc_header_numbers * 4, text, [&](std::span<const std::byte> piece) {
    cutter.append(piece, [&](std::int64_t token) {
      if (token >= text.vocabulary)
        throw input_error{
            fmt::format("{}: token {} at position {}; expected tokens below the vocabulary of {}",
                        shown(file.path()), token, text.tokens.size(), text.vocabulary)};
      text.tokens.push_back(static_cast<std::int32_t>(token));
    });
  });
}

inline void read_llmc(const input_file& file, std::optional<std::int64_t> vocabulary, corpus& text) {
  const std::string path = shown(file.path());
  std::array<std::int32_t, llmc_header_numbers> header{};
  const auto bytes = std::as_writable_bytes(std::span{header});
  if (file.size() < bytes.size())
    throw input_error{
        fmt::format("{}: {} bytes; expected an llm.c token file, which has a header of {} bytes", path,
                    file.size(), bytes.size())};
  file.read_at(0, bytes);
  text.digest = fnv1a(bytes, text.digest);
  const bool wide = header[0] == llmc_magic_32_bit;
  const std::int32_t version = wide ? 7 : 1;
  if (header[1] != version)
    throw input_error{fmt::format("{}: magic {} with version {}; expected an llm.c token file of version {}",
                                  path, header[0], header[1], version)};
  if (header[2] < 0)
    throw input_error{
        fmt::format("{}: its header announces {} tokens; expected a count from 0", path, header[2])};
  const std::uint64_t token_bytes = wide ? 4 : 2, data_bytes = file.size() - bytes.size();
  if (static_cast<std::uint64_t>(header[2]) * token_bytes != data_bytes)
    throw input_error{fmt::format(
        "{}: its header announces {} tokens of {} bytes; expected {} bytes of tokens after "
        "the header, found {}",
        path, header[2], token_bytes, std::int64_t{header[2]} * std::int64_t(token_bytes), data_bytes)};
  if (wide && !vocabulary)
    throw input_error{
        fmt::format("{}: tokens of 32 bits; expected --vocabulary to say how many there are", path)};
  text.vocabulary = vocabulary.value_or(byte_pair_vocabulary);
  text.tokens.reserve(static_cast<std::size_t>(header[2]));
  if (wide)
    read_llmc_tokens<std::uint32_t>(file, text);
  else
    read_llmc_tokens<std::uint16_t>(file, text);
}

inline void finish(corpus& text) {
  if (text.tokens.empty())
    throw input_error{fmt::format("{}: {}; expected a text of at least two sequences of --context + 1 tokens",
                                  shown(text.name), text.bytes == 0 ? "empty" : "holds not one token")};
  text.entropy = unigram_entropy(text.tokens);
}

} // namespace detail

// `vocabulary`: what the user asked for, if anything. A file of plain bytes has 65,536 tokens; with a smaller
// vocabulary it must be an llm.c token file. Throws input_error: unreadable, empty, truncated, wrong magic or
// version, a token beyond the vocabulary.
inline corpus load_corpus(const std::string& path, std::optional<std::int64_t> vocabulary = std::nullopt) {
  const input_file file{path, "a text or a file of llm.c tokens"};
  detail::check_size(file, file.size());
  corpus text;
  text.name = path;
  text.bytes = file.size();
  text.digest = fnv1a({});
  std::int32_t magic = 0;
  if (file.size() >= sizeof(magic)) file.read_at(0, std::as_writable_bytes(std::span{&magic, 1}));
  if (magic == detail::llmc_magic_16_bit || magic == detail::llmc_magic_32_bit) {
    detail::read_llmc(file, vocabulary, text);
  } else {
    text.vocabulary = vocabulary.value_or(byte_pair_vocabulary);
    if (text.vocabulary < byte_pair_vocabulary)
      throw input_error{
          fmt::format("{}: starts with the number {}; expected a file of llm.c tokens (magic {} or {}), "
                      "since --vocabulary {} is less than the {} of plain bytes",
                      shown(path), magic, detail::llmc_magic_16_bit, detail::llmc_magic_32_bit,
                      text.vocabulary, byte_pair_vocabulary)};
    text.tokens.reserve(static_cast<std::size_t>(file.size() / 2));
    detail::token_cutter<std::uint16_t> cutter;
    detail::read_pieces(file, 0, text, [&](std::span<const std::byte> piece) {
      cutter.append(piece,
                    [&](std::int64_t token) { text.tokens.push_back(static_cast<std::int32_t>(token)); });
    });
    if (cutter.bytes_left() != 0) text.note = fmt::format("{}: the odd last byte is left out", shown(path));
  }
  detail::finish(text);
  return text;
}

// The text that is always at hand: each distinct regular file of the folder once (links resolved), by name.
inline corpus default_corpus(std::optional<std::int64_t> vocabulary = std::nullopt,
                             const std::string& folder = default_corpus_folder) {
  const auto missing = [&](const std::string& reason) {
    return input_error{
        fmt::format("{}: {}; expected the licence texts of a Debian or Ubuntu system; pass --data FILE "
                    "to train on any other file",
                    shown(folder), reason)};
  };
  if (vocabulary.value_or(byte_pair_vocabulary) < byte_pair_vocabulary)
    throw input_error{
        fmt::format("--vocabulary {}: expected at least {} for plain bytes, or --data with a file of "
                    "llm.c tokens",
                    *vocabulary, byte_pair_vocabulary)};
  std::set<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry{folder, error}, end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unresolved; // a dangling link is no file
    auto file = std::filesystem::canonical(entry->path(), unresolved);
    if (!unresolved && std::filesystem::is_regular_file(file, unresolved)) files.insert(std::move(file));
  }
  if (error) throw missing(fmt::format("cannot be read ({})", error.message()));
  if (files.empty()) throw missing("holds no files");
  corpus text;
  text.name = folder;
  text.vocabulary = vocabulary.value_or(byte_pair_vocabulary);
  text.digest = fnv1a({});
  detail::token_cutter<std::uint16_t> cutter;
  for (const auto& name : files) {
    const input_file file{name.string(), "a licence text"};
    detail::check_size(file, text.bytes += file.size());
    detail::read_pieces(file, 0, text, [&](std::span<const std::byte> piece) {
      cutter.append(piece,
                    [&](std::int64_t token) { text.tokens.push_back(static_cast<std::int32_t>(token)); });
    });
  }
  detail::finish(text);
  return text;
}

} // namespace moe
