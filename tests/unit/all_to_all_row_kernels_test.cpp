// SPDX-License-Identifier: Apache-2.0
//
// Rows of the dispatch: copies bit for bit at every width and alignment, sums over slots against float64
// however routes are cut into rounds, and the same bits for all cuts where there are two terms at most.

#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <plateau/all_to_all/row_kernels.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#if defined(__linux__) && !defined(__CUDACC__)
#include <sys/mman.h>
#include <unistd.h>
#endif

using plateau::bfloat16, plateau::index_t; // CUDA has a half of its own
using namespace support;
namespace dispatch = plateau::detail::dispatch;

namespace {

// Elements that are no numbers, of a size and an alignment that fit no word.
struct label {
  unsigned char byte[3];
};
struct record {
  std::uint32_t id;
  unsigned char byte[8];
};

template <class T> matrix<T> any_bits(index_t rows, index_t cols, std::uint64_t seed) {
  matrix<T> out(rows, cols);
  std::mt19937_64 engine(seed);
  for (index_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < static_cast<std::size_t>(cols) * sizeof(T); ++i)
      reinterpret_cast<unsigned char*>(out.out().row(r))[i] = static_cast<unsigned char>(engine());
  return out;
}
template <class T> bool same_row(const T* a, const T* b, index_t n) {
  return n == 0 || std::memcmp(a, b, static_cast<std::size_t>(n) * sizeof(T)) == 0;
}

template <class T> void check_copies(index_t tokens, index_t width, int top_k) {
  CAPTURE(width);
  const matrix<T> x = any_bits<T>(tokens, width, 1);
  const index_t routes = tokens * top_k;
  std::vector<std::int32_t> sent; // every second route, the last one first
  for (index_t r = routes - 1; r >= 0; r -= 2) sent.push_back(static_cast<std::int32_t>(r));
  const auto n = static_cast<index_t>(sent.size());
  for (const auto level : cpu_levels()) {
    matrix<T> slot(n, width), kept(routes, width);
    const matrix<T> untouched(1, width);
    run_rows(level, n, dispatch::gather_rows{top_k}, all(std::as_const(sent)), x.in(), slot.out());
    run_rows(level, n, dispatch::keep_rows{}, all(std::as_const(sent)), std::as_const(slot).in(), kept.out());
    CHECK(slot.spare_untouched());
    CHECK(kept.spare_untouched());
    for (index_t i = 0; i < n; ++i)
      REQUIRE(same_row(slot.in().row(i), x.in().row(sent[static_cast<std::size_t>(i)] / top_k), width));
    for (index_t r = 0; r < routes; ++r) {
      const bool here = std::find(sent.begin(), sent.end(), r) != sent.end();
      REQUIRE(same_row(kept.in().row(r), here ? x.in().row(r / top_k) : untouched.in().row(0), width));
    }
  }
}

// What returns for the routes of some tokens, and an order in which they travel.
template <class T> struct returning {
  index_t tokens, width;
  int top_k;
  std::vector<std::int32_t> ids;
  std::vector<float> gate;
  std::vector<T> value; // (routes, width)
  std::vector<std::int32_t> travel;

  returning(index_t n, index_t cols, int k, std::uint64_t seed)
      : tokens(n), width(cols), top_k(k), gate(random_values<float>(n * k, seed + 1)),
        value(random_values<T>(n * k * cols, seed + 2)) {
    std::mt19937_64 engine(seed);
    for (index_t r = 0; r < tokens * top_k; ++r) {
      // Few experts, so that some come twice in a token; one token has no route, another one all.
      const index_t token = r / top_k;
      ids.push_back(token == 0 ? -1 : token == 1 ? 0 : static_cast<std::int32_t>(engine() % 4) - 1);
      if (ids.back() >= 0) travel.push_back(static_cast<std::int32_t>(r));
    }
    shuffle(seed + 3);
  }
  void shuffle(std::uint64_t seed) {
    std::mt19937_64 engine(seed);
    for (std::size_t i = travel.size(); i > 1; --i) std::swap(travel[i - 1], travel[engine() % i]);
  }
  double value_at(index_t route, index_t c) const {
    return static_cast<double>(static_cast<float>(value[static_cast<std::size_t>(route * width + c)]));
  }
  reference::vec sums(bool gated, const reference::vec& begin) const {
    reference::vec out = begin;
    for (index_t r = 0; r < tokens * top_k; ++r)
      if (ids[static_cast<std::size_t>(r)] >= 0)
        for (index_t c = 0; c < width; ++c)
          out[static_cast<std::size_t>(r / top_k * width + c)] +=
              (gated ? static_cast<double>(gate[static_cast<std::size_t>(r)]) : 1.0) * value_at(r, c);
    return out;
  }

  // The sums after rounds of at most `most` rows, of random sizes. Later rounds have their positions already
  // when a round comes back, as far ahead as there are slots; or else, for every second seed, none has.
  std::vector<float> scatter(plateau::cpu_level level, index_t most, bool gated, std::uint64_t seed) const {
    std::mt19937_64 engine(seed);
    const matrix<float> gates(tokens, top_k, gate);
    const plateau::tile<const float> weights = gated ? gates.in() : plateau::tile<const float>{};
    matrix<float> to(tokens, width, std::vector<float>(static_cast<std::size_t>(tokens * width), 0.0f));
    std::vector<std::int32_t> position(ids.size(), -1);
    const auto routes = static_cast<index_t>(travel.size());
    if (seed % 2 == 0)
      for (index_t i = 0; i < routes; ++i)
        position[static_cast<std::size_t>(travel[static_cast<std::size_t>(i)])] =
            static_cast<std::int32_t>(i);
    for (index_t base = 0; base < routes;) {
      const index_t rows =
          std::min(routes - base, 1 + static_cast<index_t>(engine() % static_cast<std::uint64_t>(most)));
      const std::vector<std::int32_t> slot_route(travel.begin() + base, travel.begin() + base + rows);
      matrix<T> slot(rows, width);
      for (index_t i = 0; i < rows; ++i) {
        const std::int32_t route = slot_route[static_cast<std::size_t>(i)];
        position[static_cast<std::size_t>(route)] = static_cast<std::int32_t>(base + i);
        for (index_t c = 0; c < width; ++c)
          slot.at(i, c) = value[static_cast<std::size_t>(route * width + c)];
      }
      run_rows(level, rows, dispatch::scatter_add{top_k, base, rows}, all(slot_route),
               all(std::as_const(position)), weights, std::as_const(slot).in(), to.out());
      base += rows;
    }
    CHECK(to.spare_untouched());
    return to.values();
  }
};

} // namespace

TEST_CASE_TEMPLATE("gathered and kept rows are copies, bit for bit, at any alignment", T, bfloat16, label,
                   record) {
  for (const index_t width : {0, 1, 2, 5, 7, 31, 32, 61, 64, 125, 509}) check_copies<T>(5, width, 3);
}

// Both rows at every place within two words, as tiles of any pitch have them.
TEST_CASE("a row is copied whole whatever the alignment of its ends") {
  std::vector<unsigned char> from(256), to(256);
  std::mt19937_64 engine(1);
  for (auto& byte : from) byte = static_cast<unsigned char>(engine());
  const std::vector<std::int32_t> one{0};
  for (const auto level : cpu_levels())
    for (index_t n : {1, 3, 15, 16, 17, 40, 100, 200})
      for (index_t a : {0, 1, 4, 8, 15, 16, 30})
        for (index_t b : {0, 1, 6, 8, 16, 17}) {
          if ((n + a + b) % 4 != 0 && n < 100) continue; // enough of them
          std::fill(to.begin(), to.end(), static_cast<unsigned char>(0x5a));
          run_rows(level, 1, dispatch::gather_rows{1}, all(one),
                   plateau::tile<const unsigned char>{from.data() + a, 1, n, n},
                   plateau::tile<unsigned char>{to.data() + b, 1, n, n});
          bool right = true;
          for (index_t i = 0; i < 256; ++i)
            right = right && to[static_cast<std::size_t>(i)] ==
                                 (i >= b && i < b + n ? from[static_cast<std::size_t>(i - b + a)] : 0x5a);
          CAPTURE(n);
          CAPTURE(a);
          CAPTURE(b);
          REQUIRE(right);
        }
}

TEST_CASE("gates go out and their gradients come back") {
  const std::vector<std::int32_t> sent{5, 0, 3};
  const std::vector<float> gates{1, 2, 3, 4, 5, 6}, returned{10, 20, 30};
  for (const auto level : cpu_levels()) {
    std::vector<float> to(3, -1.0f), dgates(6, 0.0f);
    run_elements(level, 3, dispatch::gather_gates{}, all(sent), all(gates), all(to));
    run_elements(level, 3, dispatch::scatter_gate_gradients{}, all(sent), all(returned), all(dgates));
    CHECK(to == std::vector<float>{6, 1, 4});
    CHECK(dgates == std::vector<float>{20, 0, 0, 30, 0, 10});
  }
}

TEST_CASE_TEMPLATE("D12: sums of returned rows agree with float64, cut into any rounds", T, float, bfloat16) {
  const index_t tokens = 6;
  for (const auto level : cpu_levels())
    for (int top_k = 1; top_k <= 9; ++top_k) {
      const index_t width = top_k % 2 == 0 ? 33 : 101;
      const std::string name = plateau::cpu_level_name(level);
      CAPTURE(name);
      CAPTURE(top_k);
      returning<T> rows(tokens, width, top_k, static_cast<std::uint64_t>(top_k));
      const reference::vec zero = reference::zeros(tokens * width);
      for (const bool gated : {true, false}) {
        const auto expected = rows.sums(gated, zero);
        std::vector<std::vector<float>> found;
        for (const index_t most : {1000, 1, 7, 8}) {
          found.push_back(rows.scatter(level, most, gated, static_cast<std::uint64_t>(most)));
          check_accurate(found.back(), expected, 2);
          rows.shuffle(static_cast<std::uint64_t>(most));
        }
        // Two terms at most: the same bits in all rounds and at all levels.
        if (top_k <= 2) {
          found.push_back(rows.scatter(plateau::cpu_level::baseline, 4, gated, 1));
          for (const auto& other : found) CHECK(same_bits(other, found[0]));
        }
      }
    }
}

TEST_CASE_TEMPLATE("D10: kept rows are combined in slot order, and those of no route never read", T, float,
                   bfloat16) {
  const index_t tokens = 6;
  for (const auto level : cpu_levels())
    for (int top_k = 1; top_k <= 9; ++top_k) {
      const index_t width = top_k % 2 == 0 ? 33 : 101;
      CAPTURE(top_k);
      const returning<T> rows(tokens, width, top_k, static_cast<std::uint64_t>(top_k + 50));
      const auto begin = random_values<T>(tokens * width, 9);
      std::vector<T> value = rows.value;
      for (index_t r = 0; r < tokens * top_k; ++r)
        if (rows.ids[static_cast<std::size_t>(r)] < 0)
          for (index_t c = 0; c < width; ++c)
            value[static_cast<std::size_t>(r * width + c)] =
                static_cast<T>(std::numeric_limits<float>::quiet_NaN());
      const matrix<T> kept(tokens * top_k, width, value);
      const matrix<float> gates(tokens, top_k, rows.gate);
      for (const bool gated : {true, false}) {
        const auto weights = gated ? gates.in() : plateau::tile<const float>{};
        matrix<T> out(tokens, width, begin);
        run_rows(level, tokens, dispatch::combine_kept{top_k}, all(rows.ids), weights, kept.in(), out.out());
        check_accurate(out.values(), rows.sums(gated, widened(begin)), std::is_same_v<T, float> ? 2 : 1);
        // Into sums, which are rounded afterwards.
        matrix<float> sums(tokens, width, std::vector<float>(begin.size(), 0.0f));
        run_rows(level, tokens, dispatch::combine_kept{top_k}, all(rows.ids), weights, kept.in(), sums.out());
        check_accurate(sums.values(), rows.sums(gated, reference::zeros(tokens * width)), 2);
        matrix<T> later(tokens, width, begin);
        run_rows(level, tokens, dispatch::add_sums{}, std::as_const(sums).in(), later.out());
        CHECK(same_bits(later.values(), out.values()));
        CHECK(out.spare_untouched());
        CHECK(sums.spare_untouched());
        CHECK(later.spare_untouched());
      }
    }
}

TEST_CASE_TEMPLATE("sums are rounded once", T, float, bfloat16) {
  for (const index_t width : {1, 33, 64, 101}) {
    const auto sum = random_values<float>(3 * width, 1);
    const auto begin = random_values<T>(3 * width, 2);
    std::vector<T> added, written;
    std::vector<float> both;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      added.push_back(static_cast<T>(static_cast<float>(begin[i]) + sum[i]));
      written.push_back(static_cast<T>(sum[i]));
      both.push_back(sum[i] + sum[sum.size() - 1 - i]);
    }
    const matrix<float> sums(3, width, sum);
    const matrix<float> turned(3, width, std::vector<float>(sum.rbegin(), sum.rend()));
    for (const auto level : cpu_levels()) {
      matrix<T> out(3, width, begin), fresh(3, width);
      matrix<float> home(3, width, sum);
      run_rows(level, 3, dispatch::add_sums{}, sums.in(), out.out());
      run_rows(level, 3, dispatch::write_sums{}, sums.in(), fresh.out());
      run_rows(level, 3, dispatch::add_matrix{}, turned.in(), home.out());
      CHECK(same_bits(out.values(), added));
      CHECK(same_bits(fresh.values(), written));
      CHECK(same_bits(home.values(), both));
      CHECK(out.spare_untouched());
      CHECK(fresh.spare_untouched());
      CHECK(home.spare_untouched());
    }
  }
}

TEST_CASE("D3: null pointers are legal where nothing is") {
  const plateau::view<const std::int32_t> none;
  const plateau::tile<const float> from;
  const plateau::tile<float> to;
  const auto level = plateau::cpu_level::baseline;
  run_rows(level, 0, dispatch::gather_rows{2}, none, from, to);
  run_rows(level, 0, dispatch::keep_rows{}, none, from, to);
  run_rows(level, 0, dispatch::scatter_add{2, 0, 0}, none, none, from, from, to);
  run_rows(level, 0, dispatch::combine_kept{2}, none, from, from, to);
  run_rows(level, 0, dispatch::add_sums{}, from, to);
  // Rows without columns.
  const std::vector<std::int32_t> one{0};
  run_rows(level, 1, dispatch::gather_rows{1}, all(one), plateau::tile<const float>{nullptr, 1, 0, 0},
           plateau::tile<float>{nullptr, 1, 0, 0});
}

#if defined(__linux__) && !defined(__CUDACC__)
// Addresses for 912,000 rows of 7,168 columns, 26 GB, of which only chosen rows have memory: whatever else is
// touched ends the program.
class address_range {
 public:
  static constexpr index_t rows = 912'000, cols = 7168;

  address_range() : begin_(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(begin_ != MAP_FAILED);
  }
  ~address_range() { ::munmap(begin_, bytes); }
  address_range(const address_range&) = delete;
  address_range& operator=(const address_range&) = delete;

  plateau::tile<float> tile() const { return {static_cast<float*>(begin_), rows, cols, cols}; }
  float* give_memory_to(index_t row) const {
    float* at = tile().row(row);
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<std::uintptr_t>(at) / page * page;
    const auto end = reinterpret_cast<std::uintptr_t>(at + cols);
    REQUIRE(::mprotect(reinterpret_cast<void*>(first), end - first, PROT_READ | PROT_WRITE) == 0);
    return at;
  }

 private:
  static constexpr std::size_t bytes = std::size_t{rows * cols} * sizeof(float);
  void* begin_;
};

TEST_CASE("D9: rows whose offsets are beyond 32 bits") {
  const index_t tokens = address_range::rows, width = address_range::cols;
  const address_range a, b;
  const plateau::tile<float> x = a.tile(), y = b.tile();
  const index_t last = tokens - 1, row = tokens - 3;
  float* source = a.give_memory_to(last);
  for (const index_t used : {row, last, last / 2}) b.give_memory_to(used);
  for (index_t c = 0; c < width; ++c) source[c] = static_cast<float>(c + 1);

  std::vector<std::int32_t> slot_route(static_cast<std::size_t>(tokens), 0), position(slot_route.size(), -1);
  slot_route[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(last);
  position[static_cast<std::size_t>(last)] = static_cast<std::int32_t>(row);
  const auto routes = all(std::as_const(slot_route)), places = all(std::as_const(position));
  const auto run = [&](index_t at, auto kernel, auto... args) {
    for (const auto level : cpu_levels()) plateau::host::run_rows(level, at, at + 1, kernel, args...);
  };
  const auto as_in = [](plateau::tile<float> t) { return plateau::tile<const float>(t); };
  // Out of the last token into row 911,997, and back into the last token's sums.
  run(row, dispatch::gather_rows{1}, routes, as_in(x), y);
  CHECK(same_row(y.row(row), source, width));
  for (index_t c = 0; c < width; ++c) source[c] = 0.0f;
  run(row, dispatch::scatter_add{1, 0, tokens}, routes, places, plateau::tile<const float>{}, as_in(y), x);
  const auto times = static_cast<float>(cpu_levels().size());
  const auto is_multiple = [&](const float* sums, float factor) {
    for (index_t c = 0; c < width; ++c)
      if (sums[c] != factor * static_cast<float>(c + 1)) return false;
    return true;
  };
  CHECK(is_multiple(source, times));
  // A kept row of the last route, with one and with two slots a token.
  run(row, dispatch::keep_rows{}, routes, as_in(y), x);
  CHECK(is_multiple(source, 1));
  for (index_t c = 0; c < width; ++c) y.row(last / 2)[c] = y.row(last)[c] = 0.0f;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens), -1);
  ids[static_cast<std::size_t>(last)] = 0;
  const auto experts = all(std::as_const(ids));
  run(last, dispatch::combine_kept{1}, experts, plateau::tile<const float>{}, as_in(x), y);
  run(last / 2, dispatch::combine_kept{2}, experts, plateau::tile<const float>{}, as_in(x), y);
  CHECK(is_multiple(y.row(last), times));
  CHECK(is_multiple(y.row(last / 2), times));
}
#endif
