// SPDX-License-Identifier: Apache-2.0
//
// Sums of float and of integers are in the communicators' contract suite; here: narrow types, host memory,
// scratch, what does not fit, and communicators with collectives of their own.
#include <plateau/collectives.hpp>

#include <doctest/doctest.h>

#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pl = plateau;

namespace {
pl::scratch_view all_of(std::vector<unsigned char>& bytes) {
  return {bytes.data(), static_cast<pl::index_t>(bytes.size())};
}
void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}
} // namespace

TEST_CASE("collectives: scratch does not grow with the data; a rank's own part needs none") {
  CHECK(pl::reduce_scratch_bytes<float>(4) == 3u << 18);
  CHECK(pl::reduce_scratch_bytes<float>(3, {100}) == 66 * 4);
  CHECK(pl::reduce_scratch_bytes<std::int64_t>(8, {1}) == 56);
  CHECK(pl::reduce_scratch_bytes<pl::bfloat16>(1) == 0);
}

TEST_CASE("collectives: what does not fit is refused before anything is enqueued, on the rank by name") {
  const auto outcomes = pl::run_ranks_collecting(2, [](auto& comm) {
    pl::host_backend backend;
    auto s = backend.make_stream("s");
    std::vector<float> a(10), b(5);
    std::vector<unsigned char> bytes(4096);
    const pl::view<float> x{a.data(), 10}, y{b.data(), 5};
    const pl::scratch_view small{bytes.data(), 19}, enough{bytes.data(), 20};
    const pl::collective_options options{10};
    const std::vector<pl::index_t> fives{5, 5}, nine{5, 4}, three{5, 4, 1};
    const auto refused = [](auto f) {
      try {
        f();
      } catch (const pl::config_error& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    const auto of_rank = "rank " + std::to_string(comm.rank());
    require(refused([&] { pl::all_reduce(backend, comm, s, inout(x), small, options); }) != "", "scratch");
    require(refused([&] { pl::reduce_scatter(backend, comm, s, in(x), out(y), fives, small, options); }) !=
                "",
            "scratch");
    for (const auto& counts : {nine, three})
      require(refused([&] {
                pl::reduce_scatter(backend, comm, s, in(x), out(y), counts, enough, options);
              }).find(of_rank) != std::string::npos,
              "counts");
    require(refused([&] { pl::all_gather(backend, comm, s, in(y), out(x.sub(0, 9)), fives); }) != "", "all");
    require(comm.counters().exchanges == 0, "nothing was issued");
    pl::reduce_scatter(backend, comm, s, in(x), out(y), fives, enough, options);
    backend.wait(backend.record(s));
  });
  for (const auto& o : outcomes) {
    if (o) MESSAGE(o->text);
    CHECK_FALSE(o.has_value());
  }
}

TEST_CASE(
    "collectives: bytes sent are those of a reduce-scatter and an all-gather, nothing goes to oneself") {
  pl::run_ranks(4, [](auto& comm) {
    pl::host_backend backend;
    std::vector<float> a(1000, 1.0F);
    std::vector<unsigned char> scratch(pl::reduce_scratch_bytes<float>(4, {1000}));
    auto s = backend.make_stream("s");
    const pl::view<float> x{a.data(), 1000};
    pl::all_reduce(backend, comm, s, inout(x), all_of(scratch), {1000});
    require(comm.counters().sent_bytes == 2 * 3 * 250 * 4, "bytes");
    require(comm.counters().exchanges == 2, "one piece: two exchanges");
    pl::all_reduce(backend, comm, s, inout(x), all_of(scratch), {400});
    require(comm.counters().exchanges == 2 + 4,
            "three pieces: sums of one travel with the parts of the next");
    backend.wait(backend.record(s));
    require(a[999] == 16.0F, "twice summed");
  });
}

// Narrow floats: added in fp32, rounded after the first two or three ranks and after each further two,
// whichever rank adds: any size of pieces gives the same bits.
template <class T> void narrow_sums() {
  const auto value = [](int r, pl::index_t i) {
    return static_cast<T>(static_cast<float>((i * 7919 + r * 104'729) % 1009 - 500) / 3.0F);
  };
  for (const int ranks : {2, 3, 4, 5, 6})
    for (const pl::index_t piece : {7, 64, 100'000})
      pl::run_ranks(ranks, [=](auto& comm) {
        pl::host_backend backend;
        const auto expected = [&](pl::index_t i) {
          const auto x = [&](int r) { return pl::widen(value(r, i)); };
          int r = ranks % 2 == 0 ? 2 : 3;
          T sum = pl::narrow<T>(r == 2 ? x(0) + x(1) : x(0) + x(1) + x(2));
          for (; r < ranks; r += 2) sum = pl::narrow<T>(pl::widen(sum) + x(r) + x(r + 1));
          return sum.bits;
        };
        const pl::index_t n = 101;
        std::vector<T> a(101);
        for (pl::index_t i = 0; i < n; ++i) a[std::size_t(i)] = value(comm.rank(), i);
        std::vector<unsigned char> scratch(pl::reduce_scratch_bytes<T>(ranks, {piece}));
        auto s = backend.make_stream("s");
        pl::all_reduce(backend, comm, s, inout(pl::view<T>{a.data(), n}), all_of(scratch), {piece});
        backend.wait(backend.record(s));
        for (pl::index_t i = 0; i < n; ++i) require(a[std::size_t(i)].bits == expected(i), "a narrow sum");
      });
}
TEST_CASE("collectives: bfloat16 and half") {
  narrow_sums<pl::bfloat16>();
  narrow_sums<pl::half>();
}

TEST_CASE("collectives: any memory that the backend reaches, small integers too") {
  pl::run_ranks(3, [](auto& comm) {
    pl::host_backend backend;
    std::vector<std::int8_t> a(9, static_cast<std::int8_t>(comm.rank() + 1)), part(3), all(9);
    std::vector<unsigned char> scratch(pl::reduce_scratch_bytes<std::int8_t>(3));
    const std::vector<pl::index_t> counts{3, 3, 3};
    const pl::view<std::int8_t, pl::host_space> x{a.data(), 9}, y{part.data(), 3}, z{all.data(), 9};
    auto s = backend.make_stream("s");
    pl::reduce_scatter(backend, comm, s, in(x), out(y), counts, all_of(scratch));
    pl::all_gather(backend, comm, s, in(y), out(z), counts);
    pl::all_reduce(backend, comm, s, inout(x), all_of(scratch));
    backend.wait(backend.record(s));
    for (std::size_t i = 0; i < 9; ++i) require(a[i] == 6 && all[i] == 6, "a sum");
  });
}

namespace {
// Has collectives of its own, of float on the device, which only count.
class native_communicator : public pl::thread_communicator {
 public:
  explicit native_communicator(pl::thread_communicator c) : pl::thread_communicator(std::move(c)) {}
  native_communicator split(int color, int key) {
    return native_communicator(pl::thread_communicator::split(color, key));
  }
  void all_reduce(pl::on<pl::host_backend::stream>, pl::arg<pl::view<float>, pl::access_mode::update>,
                  const char*) {
    ++reduced;
  }
  void reduce_scatter(pl::on<pl::host_backend::stream>, pl::arg<pl::view<const float>, pl::access_mode::read>,
                      pl::arg<pl::view<float>, pl::access_mode::write>, std::span<const pl::index_t>,
                      const char*) {
    ++scattered;
  }
  void all_gather(pl::on<pl::host_backend::stream>, pl::arg<pl::view<const float>, pl::access_mode::read>,
                  pl::arg<pl::view<float>, pl::access_mode::write>, std::span<const pl::index_t>,
                  const char*) {
    ++gathered;
  }
  int reduced = 0, scattered = 0, gathered = 0;
};
using threads = pl::thread_communicator;
static_assert(pl::communicator<native_communicator, pl::host_backend>);
static_assert(pl::native_all_reduce<native_communicator, pl::host_backend, float> &&
              pl::native_reduce_scatter<native_communicator, pl::host_backend, float> &&
              pl::native_all_gather<native_communicator, pl::host_backend, float>);
static_assert(!pl::native_all_reduce<native_communicator, pl::host_backend, double> &&
              !pl::native_all_reduce<native_communicator, pl::host_backend, float, pl::host_space> &&
              !pl::native_all_reduce<threads, pl::host_backend, float> &&
              !pl::native_reduce_scatter<threads, pl::host_backend, float> &&
              !pl::native_all_gather<threads, pl::host_backend, float>);
} // namespace

TEST_CASE("collectives: a communicator's own are called, unless rank order is asked for") {
  pl::run_ranks(2, [](auto& threads_comm) {
    native_communicator comm(threads_comm.split(0, 0));
    pl::host_backend backend;
    std::vector<float> a(8, 1.0F), b(4);
    std::vector<double> wide(8, 1.0);
    std::vector<unsigned char> scratch(pl::reduce_scratch_bytes<double>(2));
    const std::vector<pl::index_t> counts{4, 4};
    const pl::view<float> x{a.data(), 8}, y{b.data(), 4};
    const pl::view<double> w{wide.data(), 8};
    auto s = backend.make_stream("s");
    pl::all_reduce(backend, comm, s, inout(x), all_of(scratch));
    pl::reduce_scatter(backend, comm, s, in(x), out(y), counts, all_of(scratch));
    pl::all_gather(backend, comm, s, in(y), out(x), counts);
    require(comm.reduced == 1 && comm.scattered == 1 && comm.gathered == 1, "its own are called");
    require(comm.counters().exchanges == 0, "and nothing else");
    pl::collective_options in_order;
    in_order.rank_order = true;
    pl::all_reduce(backend, comm, s, inout(x), all_of(scratch), in_order);
    pl::reduce_scatter(backend, comm, s, in(x), out(y), counts, all_of(scratch), in_order);
    pl::all_reduce(backend, comm, s, inout(w), all_of(scratch)); // it has none for this type
    backend.wait(backend.record(s));
    require(comm.reduced == 1 && comm.scattered == 1, "not called again");
    require(a[7] == 2.0F && b[0] == 4.0F && wide[7] == 2.0, "sums in rank order");
  });
}
