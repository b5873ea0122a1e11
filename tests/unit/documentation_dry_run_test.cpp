// SPDX-License-Identifier: Apache-2.0
//
// The programs of docs/dry_run.md, which shows pieces of this file: an operator of one's own on the dry run
// and on the three test backends.
#include <plateau/collectives.hpp>
#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/dry_run/scenario.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/host/thread_communicator.hpp>
#include <plateau/host/wide_team.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/testing/audited_backend.hpp>
#include <plateau/testing/run_seeded.hpp>
#include <plateau/trace/chrome_trace.hpp>
#include <plateau/trace/memory_svg.hpp>
#include <plateau/trace/recorder.hpp>
#include <plateau/trace/traced_backend.hpp>
#include <plateau/trace/traced_communicator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace pl = plateau;

namespace {

// x[i] += more[i]
struct add_to {
  PLATEAU_HD void operator()(pl::index_t i, pl::view<const float> more, pl::view<float> x) const {
    x[i] += more[i];
  }
};

// Adds the left neighbour's values to everybody's.
template <class Backend, class Communicator> class neighbour_sum {
 public:
  neighbour_sum(Backend& backend, Communicator& comm, pl::index_t n)
      : backend_(backend), comm_(comm), received_(backend.device(), n, pl::tag::workspace),
        transfers_(backend.make_stream("transfers")) {}

  // x (n) is ready in the order of `stream`, and is ready in it again.
  void add(typename Backend::stream& stream, pl::view<float> x) {
    const int ranks = comm_.size(), right = (comm_.rank() + 1) % ranks,
              left = (comm_.rank() + ranks - 1) % ranks;
    backend_.wait(transfers_, backend_.record(stream));
    comm_.exchange(transfers_, {pl::send_to(right, x)}, {pl::receive_from(left, received_.all())},
                   "neighbours");
    backend_.wait(stream, backend_.record(transfers_));
    backend_.launch(stream, pl::elements{x.n}, add_to{}, pl::in(received_.all()), pl::inout(x));
  }

 private:
  Backend& backend_;
  Communicator& comm_;
  pl::device_buffer<float, Backend> received_;
  typename Backend::stream transfers_; // after what it uses
};

// What a rank does, on any backend and communicator: begins with 1 + rank, and adds the neighbour's twice.
template <class Backend, class Communicator>
std::vector<float> add_twice(Backend& backend, Communicator& comm, pl::index_t n) {
  pl::device_buffer<float, Backend> x(backend.device(), n, pl::tag::activations);
  pl::pinned_buffer<float, Backend> result(backend.pinned(), n, pl::tag::other);
  neighbour_sum<Backend, Communicator> neighbours(backend, comm, n);
  auto stream = backend.make_stream("compute"); // after all that it uses
  const float mine = 1 + static_cast<float>(comm.rank());
  backend.launch(stream, pl::elements{n}, pl::fill<float>{mine}, pl::out(x.all()));
  neighbours.add(stream, x.all());
  neighbours.add(stream, x.all());
  backend.copy(stream, pl::in(x.all()), pl::out(result.all()));
  std::vector<float> values(static_cast<std::size_t>(n));
  backend.fetch(backend.record(stream), pl::in(result.all()), values, "sums", 0.0F);
  return values;
}

// Of rank `rank` of `ranks`: own + 2 left + the left one's left.
float expected(int rank, int ranks) {
  const auto of = [&](int r) { return 1 + static_cast<float>((r + 2 * ranks) % ranks); };
  return of(rank) + 2 * of(rank - 1) + of(rank - 2);
}
bool all_are(const std::vector<float>& values, float value) {
  return std::all_of(values.begin(), values.end(), [&](float v) { return v == value; });
}
bool has(const std::string& text, const std::string& piece) {
  if (text.find(piece) != std::string::npos) return true;
  MESSAGE("'" << text << "' does not say '" << piece << "'");
  return false;
}

constexpr pl::index_t n = 1000;

} // namespace

TEST_CASE("an operator on the host") {
  pl::run_ranks(3, [](auto& comm) {
    pl::host_backend backend;
    CHECK(all_are(add_twice(backend, comm, n), expected(comm.rank(), 3)));
  });
}

TEST_CASE("an operator on the dry run: findings, peaks, time, a trace") {
  std::ostringstream report, json, picture; // std::cout and files, in a program
  const pl::dry_ranks ran = pl::run_dry(64, [&](pl::dry_communicator& comm) {
    pl::dry_run<pl::host_backend> backend(comm); // with the scratch that host_backend needs
    add_twice(backend, comm, pl::index_t{1} << 20);
  });
  if (ran.cause) ran.cause->raise(); // a rank has thrown
  pl::write_peaks(report, ran);      // for each rank: what was held at the peak, tag by tag
  for (const std::string& finding : ran.findings()) report << finding << '\n';

  pl::hardware machine = pl::h200();
  machine.network_bytes_per_second /= 2; // what if?
  const pl::dry::timeline times = pl::predict(ran, machine, {.events = true});
  if (!times.complete) report << times.trouble << '\n';
  for (const pl::dry::rank_times& rank : times.ranks)
    report << "rank " << rank.rank << ": " << rank.seconds << " s, of which exposed transfers "
           << rank.exposed_transfer << " s\n";
  pl::write_chrome_trace(json, times.events);
  pl::write_memory_svg(picture, times.events, {.limit_bytes = machine.device_bytes});

  CHECK(ran.peaks(63).total.bytes == std::size_t{8} << 20); // x and what is received, 4 MiB each
  CHECK(has(report.str(), ", 62, 63, device: 8388608 bytes at the peak\n"));
  CHECK(has(report.str(), "  activations          4194304 then          4194304 at most\n"));
  CHECK(has(report.str(), ", 62, 63, pinned: 4194304 bytes at the peak\n"));
  CHECK(has(report.str(), "at most\nrank 0: ")); // nothing found, no trouble
  CHECK(has(report.str(), "rank 63: "));
  REQUIRE(times.complete);
  CHECK(times.ranks.front().sent_bytes == std::uint64_t{8} << 20); // in two hops
  CHECK(times.seconds > pl::predict(ran, pl::h200()).seconds);
  CHECK(has(json.str(), "neighbours"));
  CHECK(has(picture.str(), "<svg"));
}

TEST_CASE("an operator on the dry run: every wait is needed, and every failure is survived") {
  const auto rank = [](pl::dry_communicator& comm) {
    pl::dry_run<pl::host_backend> backend(comm);
    try {
      add_twice(backend, comm, 100);
    } catch (...) {
      CHECK(backend.device().meter().current() == 0);
      CHECK(backend.pinned().meter().current() == 0);
      throw;
    }
  };
  const pl::dry_ranks whole = pl::run_dry(2, rank);
  CHECK(whole.findings().empty());

  pl::dry_options options;
  options.only_rank = 0;
  for (std::uint64_t k = 0; k < whole.recorders[0]->waits(); ++k) {
    options.drop_wait = k;
    const pl::dry_ranks ran = pl::run_dry(2, rank, options);
    CHECK_MESSAGE(!ran.findings().empty(), "not needed: the wait" << ran.recorders[0]->dropped()->text());
  }
  options.drop_wait = pl::dry_options::never;
  for (std::uint64_t k = 0; k < whole.recorders[0]->operations(); ++k) {
    options.throw_at = k;
    const pl::dry_ranks ran = pl::run_dry(2, rank, options);
    CHECK(ran.cause.has_value());  // every rank has ended,
    CHECK(ran.findings().empty()); // and nobody has freed what was in use
  }
}

TEST_CASE("an operator on the dry run: what the check of order says") {
  pl::dry_options options;
  options.only_rank = 0;
  options.drop_wait = 1;
  const pl::dry_ranks ran = pl::run_dry(
      2,
      [](pl::dry_communicator& comm) {
        pl::dry_run<pl::host_backend> backend(comm);
        add_twice(backend, comm, 100);
      },
      options);
  REQUIRE(!ran.findings().empty());
  CHECK(has(ran.findings()[0], "reads what 'neighbours' (operation 1) on stream 'transfers' at "));
  CHECK(has(ran.findings()[0], "writes, and no event orders them: bytes [0, 400) of device allocation 2"));
}

TEST_CASE("a timeline that cannot be says why") {
  const pl::dry_ranks ran = pl::run_dry(2, [](pl::dry_communicator& comm) {
    using backend_t = pl::dry_run<pl::host_backend>;
    backend_t backend(comm);
    pl::device_buffer<float, backend_t> x(backend.device(), 60, pl::tag::other),
        y(backend.device(), 60, pl::tag::other);
    auto stream = backend.make_stream("main");
    backend.launch(stream, pl::elements{60}, pl::fill<float>{1}, pl::out(x.all()));
    const pl::index_t sent = comm.rank() == 0 ? 60 : 50;
    const int other = 1 - comm.rank();
    comm.exchange(stream, {pl::send_to(other, x.first(sent))}, {pl::receive_from(other, y.all())}, "rows");
  });
  CHECK(ran.findings().empty());
  const pl::dry::timeline times = pl::predict(ran, pl::h200());
  CHECK_FALSE(times.complete);
  CHECK(has(times.trouble,
            "plateau: dry run: exchange 0 of the outermost communicator: send 0 of rank 1 to rank 0 has 200 "
            "bytes, the receive of rank 0 that it meets expects 240; rank 1: 'rows' at "));
}

TEST_CASE("a real run is recorded") {
  std::ostringstream json;
  const auto begun = pl::trace_recorder::clock::now();
  pl::trace_recorder rank_0(0, begun), rank_1(1, begun); // one origin for all
  pl::run_ranks(2, [&](pl::thread_communicator& comm) {
    pl::traced_backend<pl::host_backend> backend(comm.rank() == 0 ? rank_0 : rank_1);
    pl::traced_communicator traced(comm, backend);
    add_twice(backend, traced, n);
  });
  pl::write_chrome_trace(json, pl::trace_recorder::merge("measured, 2 ranks", {&rank_0, &rank_1}));
  CHECK(has(json.str(), "neighbours"));
  CHECK(has(json.str(), "measured, 2 ranks"));
}

TEST_CASE("a fetch of a dry run is answered, or says what is missing") {
  const auto rank = [](pl::dry_communicator& comm) {
    using backend_t = pl::dry_run<pl::host_backend>;
    backend_t backend(comm);
    pl::pinned_buffer<std::int64_t, backend_t> counted(backend.pinned(), 1, pl::tag::dispatch);
    auto stream = backend.make_stream("compute");
    backend.host_task(
        stream, [](pl::view<std::int64_t, pl::host_space> v) { v[0] = 1; }, pl::out(counted.all()));
    std::int64_t rows = 0;
    backend.fetch(backend.record(stream), pl::in(counted.all()), {&rows, 1}, "rows to send");
    CHECK(rows == 1000 + comm.rank());
  };
  pl::dry_options options;
  options.scenario = [](const pl::dry_fetch& fetch) {
    if (std::string_view(fetch.label) != "rows to send") return false; // then the fetch's own dry answer
    const std::int64_t rows = 1000 + fetch.rank;
    std::memcpy(fetch.into.data(), &rows, sizeof rows);
    return true;
  };
  const pl::dry_ranks ran = pl::run_dry(2, rank, options);
  CHECK_FALSE(ran.cause.has_value());

  const pl::dry_ranks silent = pl::run_dry(2, rank);
  REQUIRE(silent.cause.has_value());
  CHECK(has(silent.cause->text, "fetch of 'rows to send' at "));
  CHECK(has(silent.cause->text, "a dry run has no data for this value"));
}

TEST_CASE("a scenario: rows to each expert") {
  const pl::routing_scenario scenario(pl::routing::hot{950'000, 4}, pl::routing::ragged{},
                                      {.experts = 64, .top_k = 8});
  const pl::share_range mine = scenario.share(3, 8, 256); // sequences of rank 3 of 8, of 256
  pl::token_range tokens;
  tokens.rank = 3;
  tokens.first = mine.first * 4096;
  tokens.tokens = mine.size() * 4096;
  std::vector<std::int64_t> rows(64);
  scenario.counts(0, tokens, rows); // of layer 0

  std::int64_t sum = 0, hot = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    sum += rows[e];
    if (e < 4) hot += rows[e];
  }
  CHECK(sum == 8 * tokens.tokens);
  CHECK(static_cast<double>(hot) / static_cast<double>(sum) == doctest::Approx(0.95).epsilon(1e-4));
}

TEST_CASE("an operator under every order that it allows") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed); // the same seed takes the same course again
    pl::run_seeded(3, seed, [](auto& comm) {
      pl::seeded_backend backend{comm};
      if (!all_are(add_twice(backend, comm, n), expected(comm.rank(), 3)))
        throw pl::config_error("other sums");
    });
  }
}

TEST_CASE("a seed is a course: what happened, step by step") {
  std::vector<pl::testing::step> order, again;
  const auto rank = [](auto& comm) {
    pl::seeded_backend backend{comm};
    add_twice(backend, comm, 10);
  };
  pl::run_seeded(2, {.seed = 17, .order = &order}, rank);
  pl::run_seeded(2, {.seed = 17, .order = &again}, rank);
  CHECK(order == again);
  CHECK(order.size() > 10);
}

TEST_CASE("an operator whose tags are taken at their word") {
  pl::run_seeded(2, 1, [](auto& comm) {
    pl::audited_backend backend{comm};
    add_twice(backend, comm, 100);
  });
}

TEST_CASE("an operator whose tag is a lie") {
  const auto outcomes = pl::run_seeded_collecting(1, {.seed = 1}, [](auto& comm) {
    pl::audited_backend backend{comm};
    pl::device_buffer<float, pl::audited_backend> x(backend.device(), 100, pl::tag::other),
        more(backend.device(), 100, pl::tag::other);
    auto stream = backend.make_stream("main");
    backend.launch(stream, pl::elements{100}, pl::fill<float>{1}, pl::out(x.all()));
    backend.launch(stream, pl::elements{100}, pl::fill<float>{1}, pl::out(more.all()));
    backend.launch(stream, pl::elements{100}, add_to{}, pl::in(more.all()), pl::out(x.all()));
    backend.wait(backend.record(stream));
  });
  REQUIRE(outcomes[0].has_value());
  CHECK(has(outcomes[0]->text, "argument 1, out(v), is read, though only writing was promised"));
}

namespace {

// A row kernel without a mistake: the largest value of each row, and every value less that.
struct subtract_largest {
  template <class Team> PLATEAU_HD void operator()(Team& team, pl::index_t row, pl::tile<float> x) const {
    float* values = x.row(row);
    const float largest =
        team.reduce(x.cols, values[0], pl::maximum{}, [=](pl::index_t i) { return values[i]; });
    team.for_each(x.cols, [=](pl::index_t i) { values[i] -= largest; });
  }
};

} // namespace

TEST_CASE("a row kernel on eight real threads") {
  using wide_backend = pl::basic_host_backend<pl::block_gemm, pl::host::wide_runner>;
  wide_backend backend;
  pl::device_buffer<float, wide_backend> x(backend.device(), 6 * 100, pl::tag::other);
  auto stream = backend.make_stream("main");
  backend.launch(stream, pl::elements{600}, pl::fill<float>{3}, pl::out(x.all()));
  backend.launch(stream, pl::rows{6}, subtract_largest{}, pl::inout(x.matrix(6, 100)));
  backend.wait(backend.record(stream));
  for (pl::index_t i = 0; i < 600; ++i) CHECK(x.data()[i] == 0);
}
