// SPDX-License-Identifier: Apache-2.0
//
// Corpora: plain bytes, llm.c token files, the default text; what each refuses; and damaged files by the
// thousand.

#include "corpus.hpp"
#include "scratch_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

using namespace moe;
using moe_test::has;
using moe_test::message_of;
using moe_test::scratch_folder;
using moe_test::write_file;

namespace {

template <class Number>
std::string llmc_file(std::int32_t magic, std::int32_t version, const std::vector<Number>& tokens,
                      std::optional<std::int32_t> announced = {}) {
  std::array<std::int32_t, 256> header{};
  header[0] = magic;
  header[1] = version;
  header[2] = announced.value_or(static_cast<std::int32_t>(tokens.size()));
  std::string bytes(sizeof(header) + tokens.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), header.data(), sizeof(header));
  if (!tokens.empty())
    std::memcpy(bytes.data() + sizeof(header), tokens.data(), tokens.size() * sizeof(Number));
  return bytes;
}

using tokens = std::vector<std::int32_t>;

} // namespace

TEST_CASE("any file is a corpus: two bytes, little-endian, are one token") {
  const scratch_folder folder;
  write_file(folder.file("a"), std::string{"\x01\x02\xff\xff\0\0", 6});
  const corpus text = load_corpus(folder.file("a"));
  CHECK(text.tokens == tokens{0x0201, 0xffff, 0});
  CHECK(text.vocabulary == 65536);
  CHECK(text.bytes == 6);
  CHECK(text.note.empty());
  write_file(folder.file("odd"), "abc");
  const corpus odd = load_corpus(folder.file("odd"), 65536);
  CHECK(odd.tokens == tokens{'a' + 256 * 'b'});
  CHECK(has(odd.note, "odd last byte"));
  const corpus wider = load_corpus(folder.file("a"), 131'072); // ids that never occur
  CHECK(wider.tokens == text.tokens);
  CHECK(wider.vocabulary == 131'072);
  CHECK(odd.digest == 0xe71fa2190541574bu); // the published FNV-1a of "abc"
}

TEST_CASE("llm.c token files of 16 and 32 bits") {
  const scratch_folder folder;
  write_file(folder.file("16"), llmc_file<std::uint16_t>(20240520, 1, {5, 65535, 0}));
  const corpus narrow = load_corpus(folder.file("16"));
  CHECK(narrow.tokens == tokens{5, 65535, 0});
  CHECK(narrow.vocabulary == 65536);
  write_file(folder.file("32"), llmc_file<std::uint32_t>(20240801, 7, {5, 128255, 0}));
  const corpus wide = load_corpus(folder.file("32"), 128256);
  CHECK(wide.tokens == tokens{5, 128255, 0});
  CHECK(wide.vocabulary == 128256);
}

TEST_CASE("a text longer than one piece keeps every token") {
  const scratch_folder folder;
  std::string bytes(3'000'001, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  write_file(folder.file("long"), bytes);
  const corpus text = load_corpus(folder.file("long"));
  REQUIRE(text.tokens.size() == 1'500'000);
  for (std::size_t i = 0; i < text.tokens.size(); ++i) {
    std::uint16_t expected;
    std::memcpy(&expected, bytes.data() + 2 * i, 2);
    REQUIRE(text.tokens[i] == expected);
  }
  CHECK(text.digest == fnv1a(std::as_bytes(std::span{bytes.data(), bytes.size()})));
}

TEST_CASE("wrong files are one line that names them") {
  const scratch_folder folder;
  const auto refusal = [&](const std::string& bytes, std::optional<std::int64_t> vocabulary = {}) {
    write_file(folder.file("bad"), bytes);
    const auto message = message_of<input_error>([&] { load_corpus(folder.file("bad"), vocabulary); });
    CHECK(has(message, folder.file("bad") + ": "));
    CHECK_FALSE(has(message, "\n"));
    return message;
  };
  const std::vector<std::uint16_t> narrow{1, 2, 900};
  const std::vector<std::uint32_t> wide{1, 2, 70'000, 0x80000001u};
  CHECK(has(refusal(""), "empty"));
  CHECK(has(refusal("x"), "not one token"));
  CHECK(has(refusal("plain text", 50'257), "expected a file of llm.c tokens (magic 20240520 or 20240801)"));
  CHECK(has(refusal(llmc_file(20240521, 1, narrow), 50'257), "starts with the number 20240521"));
  CHECK(has(refusal(llmc_file(20240520, 7, narrow)), "magic 20240520 with version 7; expected"));
  CHECK(has(refusal(llmc_file(20240801, 1, wide), 90'000), "magic 20240801 with version 1; expected"));
  CHECK(has(refusal(llmc_file(20240520, 1, narrow).substr(0, 1000)),
            "1000 bytes; expected an llm.c token file"));
  CHECK(has(refusal(llmc_file(20240520, 1, narrow).substr(0, 1029)),
            "expected 6 bytes of tokens after the header, "
            "found 5"));
  CHECK(has(refusal(llmc_file(20240520, 1, narrow) + "x"), "found 7"));
  CHECK(has(refusal(llmc_file(20240520, 1, narrow, 0x7fffffff)), "announces 2147483647 tokens"));
  CHECK(has(refusal(llmc_file<std::uint16_t>(20240520, 1, {})), "not one token"));
  CHECK(has(refusal(llmc_file(20240520, 1, narrow, -5)), "expected a count from 0"));
  CHECK(has(refusal(llmc_file(20240520, 1, narrow), 900),
            "token 900 at position 2; expected tokens below the "
            "vocabulary of 900"));
  CHECK(has(refusal(llmc_file(20240801, 7, wide)), "expected --vocabulary"));
  CHECK(has(refusal(llmc_file(20240801, 7, wide), 80'000), "token 2147483649 at position 3"));
  CHECK(has(message_of<input_error>([&] { load_corpus(folder.file("none")); }), "No such file"));
  CHECK(has(message_of<input_error>([&] { load_corpus(folder.file("")); }), "not a regular file"));
}

TEST_CASE("a file too large for memory is refused before it is read") {
  const scratch_folder folder;
  write_file(folder.file("huge"), "x");
  std::filesystem::resize_file(folder.file("huge"), corpus_limit_bytes + 1); // sparse
  CHECK(
      has(message_of<input_error>([&] { load_corpus(folder.file("huge")); }), "expected at most 4294967296"));
}

TEST_CASE("the default text: every distinct file once, by name, and a clear word when it is missing") {
  const scratch_folder folder;
  write_file(folder.file("B"), "cd");
  write_file(folder.file("A"), "abx");
  write_file(folder.file("C"), "yef");
  std::filesystem::create_symlink("B", folder.file("0"));
  std::filesystem::create_symlink("nowhere", folder.file("D"));
  std::filesystem::create_directory(folder.file("E"));
  const corpus text = default_corpus({}, folder.file(""));
  write_file(folder.file("joined"), "abxcdyef");
  const corpus joined = load_corpus(folder.file("joined"));
  CHECK(text.tokens == joined.tokens);
  CHECK(text.digest == joined.digest);
  CHECK(text.bytes == 8);
  CHECK(default_corpus(131'072, folder.file("")).vocabulary == 131'072);
  CHECK(has(message_of<input_error>([&] { default_corpus(50'257, folder.file("")); }),
            "--vocabulary 50257: expected"));
  CHECK(has(message_of<input_error>([&] { default_corpus({}, folder.file("no")); }), "pass --data FILE"));
  CHECK(has(message_of<input_error>([&] { default_corpus({}, folder.file("E")); }), "holds no files"));
}

TEST_CASE("unigram entropy") {
  CHECK(unigram_entropy(tokens{7, 7, 7}) == 0);
  CHECK(unigram_entropy(tokens{0, 1, 2, 3}) == doctest::Approx(std::log(4.0)));
  CHECK(unigram_entropy(tokens{0, 0, 0, 9}) ==
        doctest::Approx(-0.75 * std::log(0.75) - 0.25 * std::log(0.25)));
}

TEST_CASE("damaged token files are refused or read consistently") {
  const scratch_folder folder;
  std::mt19937_64 random{20240801};
  std::vector<std::uint16_t> narrow(300);
  std::vector<std::uint32_t> wide(300);
  for (auto& token : narrow) token = static_cast<std::uint16_t>(random() % 50'000);
  for (auto& token : wide) token = static_cast<std::uint32_t>(random() % 100'000);
  const std::string good[] = {llmc_file(20240520, 1, narrow), llmc_file(20240801, 7, wide)};
  int refused = 0, read = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string bytes = good[trial % 2];
    if (trial % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    const std::size_t reach = trial % 5 < 3 ? bytes.size() : std::min<std::size_t>(bytes.size(), 12);
    for (std::uint64_t flips = random() % 4; flips > 0 && !bytes.empty(); --flips)
      bytes[random() % reach] ^= static_cast<char>(1u << (random() % 8));
    write_file(folder.file("damaged"), bytes);
    const std::optional<std::int64_t> vocabulary{trial % 4 < 2 ? 131'072 : 65'536};
    try {
      const corpus text = load_corpus(folder.file("damaged"), vocabulary);
      REQUIRE(text.tokens.size() <= bytes.size() / 2);
      for (const std::int32_t token : text.tokens) REQUIRE((token >= 0 && token < text.vocabulary));
      ++read;
    } catch (const input_error& error) {
      REQUIRE_FALSE(has(error.what(), "\n"));
      ++refused;
    }
  }
  CHECK(refused > 1000);
  CHECK(read > 500);
}
