// SPDX-License-Identifier: Apache-2.0
//
// The safetensors reader and writer: round trips, every kind of wrong header by name, and damaged files by
// the thousand. The header checks are written out against hand-made files, so that they do not lean on the
// writer.

#include "safetensors.hpp"
#include "safetensors_writer.hpp"
#include "scratch_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sys/stat.h>
#include <thread>

using namespace moe;
using moe_test::has;
using moe_test::message_of;
using moe_test::read_file;
using moe_test::scratch_folder;
using moe_test::write_file;

namespace {

std::string file_of(const std::string& json, const std::string& data) {
  const std::uint64_t size = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  return bytes + json + data;
}

std::string refusal(const scratch_folder& folder, const std::string& bytes) {
  const auto path = folder.file("bad.safetensors");
  write_file(path, bytes);
  const auto message = message_of<input_error>([&] { safetensors_reader{path}; });
  if (!message.empty()) {
    CHECK(has(message, path));
    CHECK_FALSE(has(message, "\n"));
  }
  return message;
}

template <class T> std::span<const T> const_span(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

void save_sample(const std::string& path) {
  std::vector<float> a(60), c(7);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i) - 3;
  const std::vector<std::uint16_t> b{0x3f80, 0xc000, 0x7f80};
  const std::vector<std::int64_t> ids{0, 65535, -1};
  save_safetensors(path,
                   {source_of("b", storage_type::bf16, {3}, const_span(b)),
                    source_of("model.layers.0.a", storage_type::f32, {3, 4, 5}, const_span(a)),
                    source_of("empty", storage_type::f32, {0, 5}, std::span<const float>{}),
                    source_of("ids", storage_type::i64, {3, 1}, const_span(ids)),
                    source_of("c", storage_type::f32, {7}, const_span(c))},
                   {{"step", "10"}, {"format", "pt"}}, 64);
}

} // namespace

TEST_CASE("what was written is read back, bit for bit, in whole and in parts") {
  const scratch_folder folder;
  const auto path = folder.file("a.safetensors");
  save_sample(path);
  CHECK(folder.entries() == 1); // the temporary file is gone
  const safetensors_reader reader{path};
  CHECK(reader.tensors().size() == 5);
  CHECK(reader.metadata().at("step") == "10");
  CHECK(reader.contains("empty"));
  CHECK_FALSE(reader.contains("emptyx"));

  std::vector<float> a(60);
  reader.read("model.layers.0.a", {3, 4, 5}, std::span{a});
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == std::sin(static_cast<float>(i)));
  std::vector<float> part(17);
  reader.read_part("model.layers.0.a", {3, 4, 5}, 20, std::span{part});
  for (std::size_t i = 0; i < part.size(); ++i) CHECK(part[i] == a[20 + i]);
  std::vector<float> b(3);
  reader.read("b", {3}, std::span{b});
  CHECK(b == std::vector<float>{1.0f, -2.0f, std::numeric_limits<float>::infinity()});
  std::vector<std::int64_t> ids(3);
  reader.read("ids", {3, 1}, std::span{ids});
  CHECK(ids == std::vector<std::int64_t>{0, 65535, -1});
  std::vector<float> none;
  reader.read("empty", {0, 5}, std::span{none});
  std::vector<std::uint16_t> bits(2);
  reader.read_bytes("b", storage_type::bf16, {3}, 1, std::as_writable_bytes(std::span{bits}));
  CHECK(bits == std::vector<std::uint16_t>{0xc000, 0x7f80});
}

TEST_CASE("equal contents give equal files, and the data is aligned to its types") {
  const scratch_folder folder;
  save_sample(folder.file("a"));
  save_sample(folder.file("b"));
  CHECK(read_file(folder.file("a")) == read_file(folder.file("b")));
  std::uint64_t header = 0;
  std::memcpy(&header, read_file(folder.file("a")).data(), 8);
  CHECK(header % 8 == 0);
  const safetensors_reader reader{folder.file("a")};
  for (const auto& tensor : reader.tensors()) CHECK(tensor.begin % bytes_of(tensor.type) == 0);
}

TEST_CASE("ranks write their own parts at the same time") {
  const scratch_folder folder;
  const auto path = folder.file("parts");
  constexpr std::int64_t ranks = 4, each = 10'000;
  safetensors_writer writer{path, {{"w", storage_type::f32, {ranks, each}}}};
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const std::vector<float> mine(each, static_cast<float>(rank));
      for (std::int64_t first = 0; first < each; first += each / 10)
        writer.write(
            "w", rank * each + first,
            const_span(mine).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(each / 10)));
    });
  for (auto& thread : threads) thread.join();
  CHECK_FALSE(std::filesystem::exists(path)); // nothing is visible before the commit
  writer.commit();
  std::vector<float> all(ranks * each);
  safetensors_reader{path}.read("w", {ranks, each}, std::span{all});
  for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(all[i] == static_cast<float>(i / each));
}

TEST_CASE("a save that does not finish leaves the old file and no other") {
  const scratch_folder folder;
  const auto path = folder.file("model");
  write_file(path, "old");
  SUBCASE("never committed") {
    safetensors_writer writer{path, {{"w", storage_type::f32, {4}}}};
    CHECK(folder.entries() == 2);
  }
  SUBCASE("incomplete") {
    safetensors_writer writer{path, {{"w", storage_type::f32, {4}}}};
    writer.write("w", 1, const_span(std::vector<float>{1, 2, 3}));
    CHECK_THROWS_AS(writer.commit(), std::logic_error);
  }
  SUBCASE("the source throws half way") {
    int calls = 0;
    const tensor_source source{{"w", storage_type::f32, {4}}, [&](std::int64_t, std::span<std::byte>) {
                                 if (++calls == 2) throw std::runtime_error{"lost"};
                               }};
    CHECK_THROWS_AS(save_safetensors(path, {source}, {}, 8), std::runtime_error);
  }
  CHECK(read_file(path) == "old");
  CHECK(folder.entries() == 1);
}

TEST_CASE("targets that cannot be written are named before anything is") {
  const scratch_folder folder;
  CHECK(has(message_of<input_error>([&] { check_writable(folder.file("no/such/folder/x")); }),
            "no/such/folder/x"));
  CHECK(has(message_of<input_error>([&] { check_writable(folder.file("")); }), "not a regular file"));
  CHECK(has(message_of<input_error>([&] { check_writable("/dev/null"); }), "/dev/null: not a regular file"));
  check_writable(folder.file("x"));
  CHECK(folder.entries() == 0);
  // A symbolic link is written through, not replaced.
  write_file(folder.file("real"), "old");
  std::filesystem::create_symlink("real", folder.file("link"));
  atomic_file file{folder.file("link")};
  file.write_at(0, "new");
  file.commit();
  CHECK(std::filesystem::is_symlink(folder.file("link")));
  CHECK(read_file(folder.file("real")) == "new");
}

TEST_CASE("a layout that is none is refused by the writer") {
  const scratch_folder folder;
  const auto with = [&](std::vector<tensor_layout> layout) {
    safetensors_writer{folder.file("x"), std::move(layout)};
  };
  CHECK_THROWS_AS(with({{"a", storage_type::f32, {1}}, {"a", storage_type::f32, {1}}}),
                  std::invalid_argument);
  CHECK_THROWS_AS(with({{"__metadata__", storage_type::f32, {1}}}), std::invalid_argument);
  CHECK_THROWS_AS(with({{"a", storage_type::f32, {-1}}}), std::invalid_argument);
  CHECK_THROWS_AS(with({{"a", storage_type::f32, {1ll << 40, 1ll << 40}}}), std::invalid_argument);
  safetensors_writer writer{folder.file("y"), {{"a", storage_type::f32, {2}}}};
  CHECK_THROWS_AS(writer.write("b", 0, const_span(std::vector<float>{1})), std::invalid_argument);
  CHECK_THROWS_AS(writer.write("a", 1, const_span(std::vector<float>{1, 2})), std::out_of_range);
  CHECK_THROWS_AS(writer.write("a", -1, const_span(std::vector<float>{1})), std::out_of_range);
  CHECK(folder.entries() == 1); // the open writer's own
}

TEST_CASE("a read says what it expected and what it found") {
  const scratch_folder folder;
  save_sample(folder.file("m"));
  const safetensors_reader reader{folder.file("m")};
  std::vector<float> out(60);
  std::vector<std::int64_t> ids(3);
  const auto shape = message_of<input_error>([&] {
    reader.read("model.layers.0.a", {4, 3, 5}, std::span{out});
  });
  CHECK(has(shape, folder.file("m")));
  CHECK(has(shape, "'model.layers.0.a' has shape (3, 4, 5); expected (4, 3, 5)"));
  CHECK(has(message_of<input_error>([&] { reader.read("nope", {1}, std::span{out}); }), "no tensor 'nope'"));
  CHECK(has(message_of<input_error>([&] { reader.read("ids", {3, 1}, std::span{out}.first(3)); }), "is I64"));
  CHECK(has(message_of<input_error>([&] { reader.read("b", {3}, std::span{ids}); }), "is BF16"));
  CHECK(has(message_of<input_error>([&] {
              reader.read_bytes("b", storage_type::f32, {3}, 0,
                                std::as_writable_bytes(std::span{ids}).first(12));
            }),
            "is BF16; expected F32"));
  CHECK_THROWS_AS(reader.read("c", {7}, std::span{out}.first(6)), std::out_of_range);
  CHECK_THROWS_AS(reader.read_part("c", {7}, 6, std::span{out}.first(2)), std::out_of_range);
}

TEST_CASE("every kind of wrong file is one line that names it") {
  const scratch_folder folder;
  const std::string eight(8, 'x');
  const auto header = [&](const std::string& json, const std::string& data) {
    return refusal(folder, file_of(json, data));
  };
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  CHECK(header(good, eight).empty()); // the base of the cases below is right

  CHECK(has(refusal(folder, ""), "0 bytes long"));
  CHECK(has(refusal(folder, "1234567"), "7 bytes long"));
  CHECK(has(refusal(folder, std::string(8, '\xff') + "{}"),
            "announces a header of 18446744073709551615 bytes"));
  CHECK(has(refusal(folder, file_of(good, eight).substr(0, 20)), "announces a header"));
  CHECK(has(header("", ""), "does not start with '{'"));
  CHECK(has(header("[]", ""), "does not start with '{'"));
  CHECK(has(header("{", ""), "no valid JSON"));
  CHECK(has(header(good + "x", eight), "no valid JSON"));
  CHECK(has(header("{\"\xff\":1}", ""), "no valid JSON"));
  CHECK(has(header(good, eight + "x"), "byte 8 of the data belongs to no tensor"));
  CHECK(has(header(good, "1234567"), "more than the file's 7 bytes"));
  const auto entry = [&](const std::string& type, const std::string& shape, const std::string& offsets) {
    return header(
        R"({"a":{"dtype":)" + type + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", eight);
  };
  CHECK(has(entry("\"F31\"", "[2]", "[0,8]"), "tensor 'a': dtype 'F31' is not known"));
  CHECK(has(entry("32", "[2]", "[0,8]"), "a number"));
  CHECK(has(entry("\"F32\"", "[3]", "[0,8]"), "more than the file's 8 bytes"));
  CHECK(has(entry("\"F32\"", "[1]", "[0,8]"), "shape (1) of F32 needs 4 bytes, its data_offsets hold 8"));
  CHECK(has(entry("\"F32\"", "[-2]", "[0,8]"), "the negative number -2"));
  CHECK(has(entry("\"F32\"", "[2.0]", "[0,8]"), "not whole"));
  CHECK(has(entry("\"F32\"", "[[2]]", "[0,8]"), "an array"));
  CHECK(has(entry("\"F32\"", "2", "[0,8]"), "a number"));
  CHECK(
      has(entry("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "more than the file's 8 bytes")); // 2^64 = 0
  CHECK(has(entry("\"F32\"", "[4294967296,4294967296,2]", "[0,0]"), "more than the file's 8 bytes"));
  CHECK(has(entry("\"F32\"", "[4611686018427387905]", "[0,4]"),
            "more than the file's 8 bytes")); // x 4 = 2^64 + 4
  CHECK(has(entry("\"F32\"", "[18446744073709551615]", "[0,8]"), "the size 18446744073709551615"));
  CHECK(has(entry("\"F32\"", "[2]", "[8,0]"), "data_offsets 8 to 0"));
  CHECK(has(entry("\"F32\"", "[2]", "[8,16]"), "data_offsets 8 to 16"));
  CHECK(has(entry("\"F32\"", "[2]", "[18446744073709551608,0]"), "data_offsets"));
  CHECK(has(entry("\"F32\"", "[1]", "[4,8]"), "byte 0 of the data belongs to no tensor"));
  CHECK(has(entry("\"F32\"", "[2]", "[0]"), "two data_offsets"));
  CHECK(has(entry("\"F32\"", "[2]", "[0,8,8]"), "more than two numbers"));
  CHECK(has(entry("\"F32\"", "[2]", "[0,8],\"dtype\":\"F32\""), "'dtype' is there twice"));
  CHECK(has(entry("\"F32\"", "[2]", "[0,8],\"x\":1"), "field 'x' is not known"));
  CHECK(has(header(R"({"a":{"dtype":"F32","shape":[2]}})", eight),
            "expected dtype, shape and two data_offsets"));
  CHECK(has(header(R"({"a":null})", ""), "null"));
  CHECK(has(header(R"({"a":{"dtype":{}}})", ""), "an object"));
  CHECK(has(header(R"({"__metadata__":{"a":1}})", ""), "__metadata__: the header holds a number"));
  CHECK(has(header(R"({"__metadata__":{"a":"1","a":"2"}})", ""), "metadata 'a' is there twice"));
  const std::string half = R"({"dtype":"F32","shape":[1],"data_offsets":)";
  CHECK(header(R"({"a":)" + half + R"([4,8]},"b":)" + half + "[0,4]}}", eight).empty());
  CHECK(has(header(R"({"a":)" + half + R"([0,4]},"a":)" + half + "[4,8]}}", eight), "'a' is there twice"));
  CHECK(has(header(R"({"a":)" + half + R"([0,4]},"b":)" + half + "[2,6]}}", eight), "tensor 'b': overlaps"));
  CHECK(has(header(R"({"a":)" + half + R"([0,4]},"b":)" + half + "[0,4]}}", eight), "tensor 'b': overlaps"));
  CHECK(has(header(R"({"a\nb\u0000":{"dtype":1}})", eight), "tensor 'a?b?'"));
  CHECK(header("{}", "").empty());
}

TEST_CASE("files that are none") {
  const scratch_folder folder;
  const auto open = [&](const std::string& name) {
    return message_of<input_error>([&] { safetensors_reader{folder.file(name)}; });
  };
  CHECK(has(open("missing"),
            "missing: cannot be read (No such file or directory); expected a safetensors file"));
  CHECK(has(open(""), "not a regular file"));
  REQUIRE(::mkfifo(folder.file("pipe").c_str(), 0600) == 0);
  CHECK(has(open("pipe"), "not a regular file")); // and does not wait for a writer
}

TEST_CASE("a header nested without end or as large as its limit costs no more than its bytes") {
  const scratch_folder folder;
  CHECK(has(refusal(folder, file_of("{\"a\":" + std::string(1'000'000, '['), "")), "an array"));
  std::string many = "{";
  for (int i = 0; i < 1'000'000; ++i) many += "\"a\":{},";
  CHECK(has(refusal(folder, file_of(many, "")), "expected dtype, shape and two data_offsets"));
}

TEST_CASE("damaged files are refused or read consistently") {
  const scratch_folder folder;
  save_sample(folder.file("good"));
  const std::string good = read_file(folder.file("good"));
  std::mt19937_64 random{20240520};
  int refused = 0, read = 0;
  const auto path = folder.file("damaged");
  for (int trial = 0; trial < 6000; ++trial) {
    std::string bytes = good;
    if (trial % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    const std::size_t reach = trial % 2 == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 480);
    for (std::uint64_t flips = random() % 4 + (trial % 3 == 0 ? 0 : 1); flips > 0 && !bytes.empty(); --flips)
      bytes[random() % reach] ^= static_cast<char>(1u << (random() % 8));
    write_file(path, bytes);
    try {
      const safetensors_reader reader{path};
      std::uint64_t covered = 0;
      for (const auto& tensor : reader.tensors()) {
        REQUIRE(tensor.begin == covered);
        REQUIRE(tensor.end - tensor.begin ==
                static_cast<std::uint64_t>(tensor.elements) * bytes_of(tensor.type));
        REQUIRE(tensor.end <= bytes.size());
        covered = tensor.end;
        std::vector<std::byte> raw(tensor.end - tensor.begin);
        reader.read_bytes(tensor.name, tensor.type, tensor.shape, 0, raw);
        if (widen(tensor.type, {}, std::span<float>{})) {
          std::vector<float> values(static_cast<std::size_t>(tensor.elements));
          reader.read(tensor.name, tensor.shape, std::span{values});
        }
      }
      ++read;
    } catch (const input_error& error) {
      REQUIRE_FALSE(has(error.what(), "\n"));
      ++refused;
    }
  }
  CHECK(refused > 1000); // the damage reaches the header
  CHECK(read > 100);     // and the data, where any bits are values
}

TEST_CASE("a file that shrinks while it is open gives an error") {
  const scratch_folder folder;
  save_sample(folder.file("m"));
  const safetensors_reader reader{folder.file("m")};
  std::filesystem::resize_file(folder.file("m"), std::filesystem::file_size(folder.file("m")) - 300);
  std::vector<float> out(60);
  CHECK(has(message_of<input_error>([&] {
              reader.read("model.layers.0.a", {3, 4, 5}, std::span{out});
            }),
            "ends before byte"));
}

TEST_CASE("bf16 and fp16 widen exactly") {
  CHECK(widen_bf16(0x3f80) == 1.0f);
  CHECK(widen_bf16(0x8000) == 0.0f);
  CHECK(std::signbit(widen_bf16(0x8000)));
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = widen_f16(static_cast<std::uint16_t>(bits));
    const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
    const float sign = bits >> 15 != 0 ? -1.0f : 1.0f;
    if (exponent == 31)
      REQUIRE((fraction == 0 ? std::isinf(value) : std::isnan(value)));
    else if (exponent == 0)
      REQUIRE(value == sign * std::ldexp(static_cast<float>(fraction), -24));
    else
      REQUIRE(value == sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25));
    REQUIRE(std::signbit(value) == (bits >> 15 != 0));
  }
}
