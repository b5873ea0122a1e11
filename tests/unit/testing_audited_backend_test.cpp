// SPDX-License-Identifier: Apache-2.0
//
// What the audited backend says of operations that do not keep the word of their tags, and that it says
// nothing of those that do. What is stopped by the address sanitizer is tried in a process of its own.
#include "support/pipeline.hpp"

#include <plateau/access.hpp>
#include <plateau/resource.hpp>
#include <plateau/testing/audited_backend.hpp>
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using pl::view;
using backend_t = pl::audited_backend;
template <class T> using device = pl::device_buffer<T, backend_t>;
template <class T> using pinned = pl::pinned_buffer<T, backend_t>;

namespace {

struct forgets_the_last {
  void operator()(index_t i, view<const float> from, view<float> to) const {
    if (i + 1 < to.n) to[i] = from[i];
  }
};
struct forgets_a_byte {
  void operator()(index_t i, view<std::uint32_t> to) const {
    if (i != 3)
      to[i] = 7;
    else
      reinterpret_cast<std::uint16_t*>(to.p + i)[0] = 7;
  }
};
struct adds {
  void operator()(index_t i, view<const float> from, view<float> to) const { to[i] += from[i]; }
};
struct sets {
  void operator()(index_t i, view<float> to) const { to[i] = 1; }
};
struct doubles {
  void operator()(index_t i, view<const float> from, view<float> to) const { to[i] = 2 * from[i]; }
};
struct counts_up {
  void operator()(index_t, view<std::int64_t> n) const { n[0] += 1; }
};
struct every_other {
  void operator()(index_t i, view<float> to) const {
    if (i % 2 == 0) to[i] = 5;
  }
};
struct writes_at {
  index_t place;
  void operator()(index_t, view<float> v) const { v[place] = 1; }
};

// What f, which issues operations on a stream "main", is told at the end; "" if nothing.
template <class F> std::string told(F f) {
  backend_t backend(std::uint64_t{3});
  auto main = backend.make_stream("main");
  device<float> a(backend.device(), 40, pl::tag::other), b(backend.device(), 40, pl::tag::other);
  backend.launch(main, pl::elements{40}, sets{}, out(a.all()));
  backend.launch(main, pl::elements{40}, sets{}, out(b.all()));
  f(backend, main, a, b);
  try {
    backend.wait(backend.record(main));
  } catch (const pl::error& e) {
    return e.what();
  }
  return "";
}
bool has(const std::string& text, const std::string& piece) {
  if (text.find(piece) != std::string::npos) return true;
  MESSAGE("'" << text << "' does not say '" << piece << "'");
  return false;
}

} // namespace

TEST_CASE("audited_backend: a byte of out(v) that is not written is named") {
  std::string text = told([](backend_t& be, auto& s, auto& a, auto& b) {
    be.launch(s, pl::elements{40}, forgets_the_last{}, in(a.all()), out(b.all()));
  });
  CHECK(has(text, "forgets_the_last: byte 156 of argument 1, out(v), is not written"));
  CHECK(has(text, "(on stream 'main' at "));
  CHECK(has(text, "testing_audited_backend_test.cpp:"));

  text = told([](backend_t& be, auto& s, auto&, auto&) {
    device<std::uint32_t> c(be.device(), 9, pl::tag::other);
    be.launch(s, pl::elements{9}, forgets_a_byte{}, out(c.all()));
    try {
      be.wait(be.record(s));
    } catch (const pl::error&) { // told again by the last wait
    }
  });
  CHECK(has(text, "forgets_a_byte: byte 14 of argument 0, out(v), is not written"));

  // Of a tile the bytes of its rows count, not those between them.
  text = told([](backend_t& be, auto& s, auto& a, auto& b) {
    be.copy(s, in(pl::tile<float>{a.data(), 4, 5, 10}), out(pl::tile<float>{b.data(), 4, 5, 10}));
    be.launch(s, pl::elements{3}, sets{}, out(view<float>{b.data() + 30, 4}));
  });
  CHECK(has(text, "sets: byte 12 of argument 0, out(v), is not written"));
}

TEST_CASE("audited_backend: out(v) that is read is named") {
  const std::string text = told([](backend_t& be, auto& s, auto& a, auto& b) {
    be.launch(s, pl::elements{40}, adds{}, in(a.all()), out(b.all()));
  });
  CHECK(
      has(text, "adds: argument 1, out(v), is read, though only writing was promised: byte 0 of argument 1"));
}

TEST_CASE("audited_backend: a host task that does not write its out(v) is named, and runs once") {
  int runs = 0;
  const std::string text = told([&](backend_t& be, auto& s, auto&, auto&) {
    pinned<float> h(be.pinned(), 12, pl::tag::other);
    be.host_task(
        s,
        [&runs](view<float, pl::host_space> v) {
          ++runs;
          for (index_t i = 0; i < 6; ++i) v[i] = 1;
        },
        out(h.all()));
    try {
      be.wait(be.record(s));
    } catch (const pl::error&) {
    }
  });
  CHECK(runs == 1);
  CHECK(has(text, "host task: byte 24 of argument 0, out(v), and the seven after it are not written"));
}

TEST_CASE("audited_backend: operations that keep their word are left alone, and leave what they should") {
  const std::string text = told([](backend_t& be, auto& s, auto& a, auto& b) {
    device<std::int64_t> n(be.device(), 1, pl::tag::other);
    pinned<std::int64_t> h(be.pinned(), 1, pl::tag::other);
    pinned<float> g(be.pinned(), 40, pl::tag::other);
    h.data()[0] = 10;
    be.copy(s, in(h.all()), out(n.all()));
    be.launch(s, pl::elements{5}, counts_up{}, accumulates(n.all()));
    be.launch(s, pl::elements{5}, counts_up{}, inout(n.all()));
    be.copy(s, in(n.all()), out(h.all()));
    be.launch(s, pl::elements{40}, adds{}, in(a.all()), inout(b.all()));
    be.launch(s, pl::elements{40}, every_other{}, some(b.all()));
    be.launch(s, pl::elements{40}, doubles{}, in(b.all()), out(b.all())); // in place: out(v) is also in(v)
    be.copy(s, in(b.all()), out(g.all()));
    be.wait(be.record(s));
    CHECK(h.data()[0] == 20); // each kernel counted once
    for (index_t i = 0; i < 40; ++i) CHECK(g.data()[i] == (i % 2 == 0 ? 10 : 4));
  });
  CHECK(text == "");
}

TEST_CASE("audited_backend: operations of all ranks are watched, and the rank is named") {
  const auto outcomes = pl::run_seeded_collecting(3, {1, nullptr}, [](auto& comm) {
    backend_t backend{comm};
    device<float> a(backend.device(), 8, pl::tag::other), b(backend.device(), 8, pl::tag::other);
    auto s = backend.make_stream("main");
    backend.launch(s, pl::elements{8}, sets{}, out(a.all()));
    comm.exchange(s, {send_to((comm.rank() + 1) % 3, a.all())},
                  {receive_from((comm.rank() + 2) % 3, b.all())});
    if (comm.rank() == 1)
      backend.launch(s, pl::elements{8}, adds{}, in(b.all()), out(a.all()));
    else
      backend.launch(s, pl::elements{8}, adds{}, in(b.all()), inout(a.all()));
    backend.wait(backend.record(s));
    comm.close_step();
  });
  for (const auto& o : outcomes) {
    REQUIRE(o.has_value());
    CHECK(has(o->text, "adds: argument 1, out(v), is read"));
  }
  CHECK(outcomes[0]->failed_rank == 1);
}

TEST_CASE("P2: audited_backend: a pipeline of three streams keeps its word under 100 seeds") {
  std::vector<std::uint32_t> first;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    backend_t backend(seed);
    pinned<std::uint32_t> x(backend.pinned(), 50, pl::tag::other);
    for (index_t i = 0; i < 50; ++i) x.data()[i] = static_cast<std::uint32_t>(i);
    support::pipeline<backend_t>(backend, 8).apply(x.all());
    const std::vector<std::uint32_t> now(x.data(), x.data() + 50);
    if (seed == 0) first = now;
    CHECK(now == first);
  }
}

// Beyond its argument, on the device and on the host; of another rank.
TEST_CASE("audited_backend: what is not declared is shut" *
          doctest::skip(!pl::testing::watched_memory::stops)) {
  const auto dies = [](auto f) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      if (freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
      f();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  };
  const auto write = [](index_t first, index_t n, index_t place) {
    backend_t backend;
    auto s = backend.make_stream("main");
    device<float> a(backend.device(), 40, pl::tag::other);
    backend.launch(s, pl::elements{1}, writes_at{place}, some(a.all().sub(first, n)));
    backend.wait(backend.record(s));
  };
  CHECK_FALSE(dies([&] { write(2, 10, 9); }));
  CHECK(dies([&] { write(2, 10, 10); })); // one float too far
  CHECK(dies([&] { write(2, 10, -1); }));
  CHECK(dies([&] { write(0, 9, 9); })); // in the middle of eight bytes
  CHECK(dies([&] {
    backend_t backend;
    auto s = backend.make_stream("main");
    pinned<float> h(backend.pinned(), 4, pl::tag::other);
    float* const hidden = h.data();
    backend.host_task(s, [hidden] { hidden[0] = 1; });
    backend.wait(backend.record(s));
  }));
  CHECK(dies([&] { // memory of another rank, which its own kernel does not name
    float* of_rank_0 = nullptr;
    pl::run_seeded(2, 1, [&](auto& comm) {
      backend_t backend{comm};
      device<float> a(backend.device(), 8, pl::tag::other);
      if (comm.rank() == 0) of_rank_0 = a.data();
      comm.close_step();
      auto s = backend.make_stream("main");
      if (comm.rank() == 1)
        backend.launch(s, pl::elements{1}, writes_at{of_rank_0 - a.data()}, some(a.all()));
      backend.wait(backend.record(s));
      comm.close_step();
    });
  }));
}
