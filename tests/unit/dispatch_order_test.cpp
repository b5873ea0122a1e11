// SPDX-License-Identifier: Apache-2.0
//
// The dispatch without data: nothing conflicts, whatever the shape; each of its waits is missed where it is
// left out; and whichever operation fails, all ranks end with that cause and nothing leaks. What it costs in
// host round trips and host exchanges.
#include "support/dispatch_case.hpp"

#include <plateau/close_step.hpp>
#include <plateau/drain.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case;

namespace {

using backend_type = pl::dry_run<pl::host_backend>;
using rank_type = support::dispatch_rank<float, backend_type, pl::dry_communicator>;

struct shape_class {
  std::string name;
  dispatch_case of;
  bool parts = false, under = false; // parted_rank

  int ranks() const { return of.ranks(); }
};

int mixed(int rank, index_t t, index_t j, int experts) {
  return static_cast<int>(
      (dispatch_case::noise(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(t),
                            static_cast<std::uint64_t>(j), 9) +
       1) *
      0.5 * experts);
}
// Three ranks with six experts, most rows for those of the last one, so that pieces move; several rounds.
dispatch_case busy(std::vector<index_t> tokens = {20, 9, 14}) {
  dispatch_case c;
  c.tokens = std::move(tokens);
  c.shape.experts = 2 * c.ranks();
  c.shape.top_k = 2;
  c.shape.widths = {12};
  c.shape.send_cap_rows = c.shape.receive_cap_rows = 10;
  c.shape.placement.least_piece_rows = 1;
  const int experts = static_cast<int>(c.shape.experts);
  c.expert_of = [experts](int rank, index_t t, index_t j) {
    return t % 4 != 0 ? static_cast<int>(experts - 1 - (t + j) % 2) : mixed(rank, t, j, experts);
  };
  return c;
}

std::vector<shape_class> shape_classes() {
  std::vector<shape_class> all;
  for (const int slots : {1, 2, 3})
    for (const bool foreign : {true, false}) {
      dispatch_case c = busy();
      c.shape.slots = slots;
      if (!foreign) c.shape.placement.policy = pl::placement_policy::native;
      const char* const names[] = {"1 slot",          "1 slot, native", "2 slots",
                                   "2 slots, native", "3 slots",        "3 slots, native"};
      all.push_back({names[2 * slots - (foreign ? 2 : 1)], c});
    }
  all.push_back({"one round", busy()});
  all.back().of.shape.send_cap_rows = all.back().of.shape.receive_cap_rows = 1000;
  all.push_back({"ordered", busy()});
  all.back().of.shape.ordered = true;
  all.push_back({"strided", busy()});
  all.back().of.shape.order = pl::row_order::strided;
  all.push_back({"without gates", busy()});
  all.back().of.no_gates = true;
  all.push_back({"at most two rounds", busy()});
  all.back().of.shape.most_rounds = 2;
  all.push_back({"stalls measured", busy()});
  all.back().of.shape.measure_stalls = true;
  all.push_back({"a rank without tokens", busy({20, 0, 9, 1})});
  all.push_back({"a rank that gets no rows", busy()});
  all.back().of.shape.placement.policy = pl::placement_policy::native;
  all.back().of.expert_of = [](int, index_t t, index_t j) { return static_cast<int>(2 + (t + j) % 4); };
  all.push_back({"all to one", busy()});
  all.back().of.expert_of = [](int, index_t, index_t) { return 0; };
  all.push_back({"one rank", busy({17})});
  all.push_back({"routes that go nowhere", busy()});
  all.back().of.expert_of = [](int rank, index_t t, index_t j) {
    return (t + j) % 3 == 0 ? -1 : mixed(rank, t, j, 6);
  };
  all.push_back({"rounds of more than 32 blocks", busy({60, 50})});
  all.back().of.shape.experts = 80;
  all.back().of.shape.send_cap_rows = all.back().of.shape.receive_cap_rows = 90;
  all.back().of.expert_of = [](int rank, index_t t, index_t j) {
    return static_cast<int>((t * 2 + j + rank) % 80);
  };
  for (const auto policy : {pl::round_policy::diagonal, pl::round_policy::smooth}) {
    all.push_back({policy == pl::round_policy::smooth ? "smooth rounds" : "diagonal rounds", busy()});
    all.back().of.shape.rounds = policy;
  }
  all.push_back({"two parts, and results of another width", busy(), true});
  for (const int slots : {1, 2, 3}) {
    all.push_back({"work under the first rows, slots: " + std::to_string(slots), busy(), true, true});
    all.back().of.shape.slots = slots;
  }
  return all;
}

// Rows of two parts, and results narrower than they are; and, where the class says so, work of the caller's
// that runs while the first rows travel, on what the call reads and adds to.
class parted_rank {
  template <class T> using buffer = pl::device_buffer<T, backend_type>;

 public:
  using op = pl::capped_all_to_all<backend_type, pl::dry_communicator, float, std::int32_t>;
  static constexpr index_t width = 12, more_width = 3, result_width = 7;

  parted_rank(const shape_class& s, backend_type& backend, pl::dry_communicator& comm)
      : backend_(&backend), under_(s.under), n_(s.of.tokens[static_cast<std::size_t>(comm.rank())]),
        k_(s.of.shape.top_k), local_(pl::expert_homes{s.of.shape.experts, comm.size()}.count(comm.rank())),
        expert_(&backend, width), space_(backend, op::reserve_for(shape_of(s.of), comm.size(), expert_)),
        ids_(make<std::int32_t>(n_ * k_)), more_(make<std::int32_t>(n_ * more_width)),
        rows_(make<float>(n_ * width)), out_(make<float>(n_ * result_width)),
        upstream_(make<float>(n_ * result_width)), drows_(make<float>(n_ * width)),
        gates_(make<float>(n_ * k_)), dgates_(make<float>(n_ * k_)), weights_(make<float>(local_ * width)),
        gradients_(make<float>(local_ * width)), own_(make<float>(n_ * width)),
        stream_(backend.make_stream("main")), exchange_(backend, comm, shape_of(s.of), space_, expert_) {
    for (const auto* b : {&ids_, &more_}) write(*b);
    for (const auto* b : {&rows_, &out_, &upstream_, &gates_, &weights_, &gradients_, &own_}) write(*b);
    for (index_t e = 0; e < local_; ++e) {
      weight_tiles_.push_back(pl::as_matrix(weights_.all().sub(e * width, width), 1, width));
      gradient_tiles_.push_back(pl::as_matrix(gradients_.all().sub(e * width, width), 1, width));
    }
  }
  backend_type::stream& stream() { return stream_; }
  pl::workspace<backend_type>& space() { return space_; }

  void plan(pl::dispatch_plan& p) { exchange_.plan(stream_, ids_.all(), p); }
  void forward(const pl::dispatch_plan& p) {
    const auto call = [&](auto... under) {
      exchange_.run(stream_, p, ids_.all(), {rows_.matrix(n_, width), more_.matrix(n_, more_width)},
                    gates_.matrix(n_, k_), out_.matrix(n_, result_width), expert_, weight_tiles_, under...);
    };
    if (!under_) return call();
    call([&](auto& s) {
      backend_->launch(s, pl::elements{n_ * width}, take{}, pl::in(rows_.all()), pl::inout(own_.all()));
      backend_->launch(s, pl::elements{n_ * result_width}, take{}, pl::in(own_.all()), pl::inout(out_.all()));
    });
  }
  void backward(const pl::dispatch_plan& p) {
    const auto call = [&](auto... under) {
      exchange_.run_backward(stream_, p, ids_.all(), {rows_.matrix(n_, width), more_.matrix(n_, more_width)},
                             gates_.matrix(n_, k_), upstream_.matrix(n_, result_width),
                             drows_.matrix(n_, width), dgates_.matrix(n_, k_), expert_, weight_tiles_,
                             gradient_tiles_, under...);
    };
    if (!under_) return call();
    call([&](auto& s) {
      backend_->launch(s, pl::elements{n_ * result_width}, take{}, pl::in(upstream_.all()),
                       pl::inout(own_.all()));
      backend_->launch(s, pl::elements{local_ * width}, take{}, pl::in(weights_.all()),
                       pl::inout(gradients_.all()));
    });
  }
  void results() {
    for (const auto* b : {&out_, &drows_, &dgates_, &gradients_})
      support::from_device(*backend_, stream_, b->all());
  }

 private:
  // What a shared expert would do.
  struct take {
    template <class S>
    PLATEAU_HD void operator()(index_t i, pl::view<const float, S> from, pl::view<float, S> to) const {
      to[i] += from[i];
    }
  };
  static op::shape shape_of(const dispatch_case& c) {
    const pl::dispatch_shape<1> from = c.limits();
    op::shape s;
    s.tokens = from.tokens, s.experts = from.experts, s.top_k = from.top_k;
    s.widths = {width, more_width}, s.result_width = result_width;
    s.send_cap_rows = from.send_cap_rows, s.receive_cap_rows = from.receive_cap_rows;
    s.slots = from.slots, s.placement = from.placement;
    return s;
  }
  template <class T> buffer<T> make(index_t n) const { return {backend_->device(), n, pl::tag::other}; }
  template <class T> void write(const buffer<T>& b) {
    backend_->launch(stream_, pl::elements{b.size()}, pl::fill<T>{}, pl::out(b.all()));
  }

  backend_type* backend_;
  bool under_;
  index_t n_, k_, local_;
  support::toy_expert<backend_type, float> expert_;
  pl::workspace<backend_type> space_;
  buffer<std::int32_t> ids_, more_;
  buffer<float> rows_, out_, upstream_, drows_, gates_, dgates_, weights_, gradients_, own_;
  std::vector<pl::tile<const float>> weight_tiles_;
  std::vector<pl::tile<float>> gradient_tiles_;
  backend_type::stream stream_;
  op exchange_;
};

// What each rank does with its dispatch.
using program = std::function<void(rank_type&, pl::dry_communicator&, backend_type&)>;

struct outcome {
  pl::dry_ranks ran;
  std::vector<std::size_t> left; // bytes that each rank held when all was gone
};
// The k-th plan, and the last one from there on, gets what the k-th case would count. `each` makes the rank.
using whole_rank = std::function<void(pl::dry_communicator&, backend_type&)>;
outcome run_ranks(const std::vector<const dispatch_case*>& steps, pl::dry_options faults,
                  const whole_rank& each) {
  faults.scenario = [&](const pl::dry_fetch& fetch) {
    return support::answer_fetch(*steps[std::min<std::size_t>(fetch.number, steps.size() - 1)], fetch);
  };
  const dispatch_case& c = *steps.front();
  outcome out;
  out.left.resize(c.tokens.size());
  const support::without_data<> on{faults, &out.ran};
  on.run(c.ranks(), [&](pl::dry_communicator& comm, backend_type& backend) {
    const auto note = [&] {
      out.left[static_cast<std::size_t>(comm.rank())] =
          backend.device().meter().current() + backend.pinned().meter().current();
    };
    try {
      each(comm, backend);
    } catch (...) {
      note();
      throw;
    }
    note();
  });
  return out;
}
outcome run(const std::vector<const dispatch_case*>& steps, const pl::dry_options& faults,
            const program& each) {
  return run_ranks(steps, faults, [&](pl::dry_communicator& comm, backend_type& backend) {
    rank_type rank(*steps.front(), backend, comm);
    each(rank, comm, backend);
  });
}
// `each` is for ranks of both kinds.
template <class Program>
outcome run(const shape_class& s, const pl::dry_options& faults, const Program& each) {
  if (!s.parts) return run(std::vector{&s.of}, faults, program(each));
  return run_ranks({&s.of}, faults, [&](pl::dry_communicator& comm, backend_type& backend) {
    parted_rank rank(s, backend, comm);
    each(rank, comm, backend);
  });
}
outcome run(const dispatch_case& c, const pl::dry_options& faults, const program& each) {
  return run(std::vector{&c}, faults, each);
}
// Another operator in the same workspace, on the caller's stream, which writes all of it.
template <class Rank> void neighbour(Rank& rank, backend_type& backend) {
  pl::working_set all(pl::tag::other);
  const auto bytes = static_cast<index_t>(rank.space().device_bytes());
  all.device<unsigned char>("all", bytes);
  auto open = rank.space().open(all);
  pl::phase_source<backend_type> source(open);
  backend.launch(rank.stream(), pl::elements{bytes}, pl::fill<unsigned char>{1},
                 pl::out(source.device<unsigned char>("all", bytes)));
}
constexpr auto one_layer_and_results = [](auto& rank, pl::dry_communicator& comm, backend_type& backend) {
  pl::dispatch_plan p;
  neighbour(rank, backend);
  rank.plan(p);
  neighbour(rank, backend);
  rank.forward(p);
  neighbour(rank, backend);
  rank.backward(p);
  neighbour(rank, backend);
  rank.results();
  pl::close_step(backend, comm, rank.stream());
};

struct missing_wait {
  bool of_dispatch = false; // and not of the test, which waits for its own copies and at its end
  std::string place, file, sentence;
};
// Of a case or of a class.
template <class Of> missing_wait without_wait(const Of& c, int rank, std::uint64_t k) {
  pl::dry_options options;
  options.drop_wait = k;
  options.only_rank = rank;
  const outcome with = run(c, options, one_layer_and_results);
  REQUIRE_FALSE(with.ran.cause.has_value());
  const auto& of = *with.ran.recorders[static_cast<std::size_t>(rank)];
  REQUIRE(of.dropped().has_value());
  missing_wait found;
  found.place = of.dropped()->text();
  found.file = found.place.substr(found.place.rfind('/') + 1);
  found.file = found.file.substr(0, found.file.rfind(':'));
  found.of_dispatch = found.file == "dispatch_call.hpp" || found.file == "plan_exchange.hpp";
  if (of.found() > 0) found.sentence = of.text_of(of.findings().front());
  return found;
}

// All ranks have ended with the failure of operation k, in order and with empty hands.
void check_failure(const outcome& with, int failed, std::uint64_t k) {
  const std::string text = "operation " + std::to_string(k) + " fails, as the dry run was told";
  REQUIRE(with.ran.cause.has_value());
  for (std::size_t rank = 0; rank < with.left.size(); ++rank) {
    CAPTURE(rank);
    const auto& end = with.ran.left_with[rank];
    REQUIRE(end.has_value());
    CAPTURE(end->text);
    CHECK(end->text.find(text) != std::string::npos);
    if (rank != static_cast<std::size_t>(failed)) CHECK(end->failed_rank == failed);
    CHECK(with.left[rank] == 0);
  }
  for (const std::string& each : with.ran.findings()) FAIL_CHECK(each);
}

} // namespace

TEST_CASE("no shape has accesses that nothing orders") {
  for (const shape_class& s : shape_classes()) {
    CAPTURE(s.name);
    const outcome o = run(s, {}, one_layer_and_results);
    REQUIRE_FALSE(o.ran.cause.has_value());
    for (const std::string& each : o.ran.findings()) FAIL_CHECK(each);
    for (const std::size_t bytes : o.left) CHECK(bytes == 0);
  }
}

TEST_CASE("every wait of the dispatch is missed where it is left out") {
  for (const shape_class& s : shape_classes()) {
    CAPTURE(s.name);
    const outcome whole = run(s, {}, one_layer_and_results);
    for (int rank = 0; rank < s.ranks(); ++rank) {
      const std::uint64_t waits = whole.ran.recorders[static_cast<std::size_t>(rank)]->waits();
      for (std::uint64_t k = 0; k < waits; ++k) {
        CAPTURE(rank);
        CAPTURE(k);
        const auto found = without_wait(s, rank, k);
        if (!found.of_dispatch) continue;
        CAPTURE(found.place);
        CHECK_FALSE(found.sentence.empty());
      }
    }
  }
}
TEST_CASE("waits are for nothing only on a rank that neither sends nor gets rows in a whole call") {
  dispatch_case c = busy({20, 0, 9});
  c.shape.placement.policy = pl::placement_policy::native;
  c.expert_of = [](int, index_t t, index_t j) { return static_cast<int>((t + j) % 2); }; // of rank 0
  const std::uint64_t waits = run(c, {}, one_layer_and_results).ran.recorders[1]->waits();
  std::map<std::string, int> missed, spared;
  for (std::uint64_t k = 0; k < waits; ++k) {
    const auto found = without_wait(c, 1, k);
    if (found.of_dispatch) ++(found.sentence.empty() ? spared : missed)[found.file];
  }
  // The transfer stream waits for the caller's and the other way round, forward and backward.
  CHECK(spared == std::map<std::string, int>{{"dispatch_call.hpp", 4}});
  CHECK(missed == std::map<std::string, int>{{"plan_exchange.hpp", 1}});
}

TEST_CASE("whichever operation fails, all ranks end with that cause, and nothing leaks") {
  int at = 0;
  for (const shape_class& s : shape_classes()) {
    CAPTURE(s.name);
    const int failed = at++ % s.ranks();
    const outcome whole = run(s, {}, one_layer_and_results);
    const std::uint64_t operations = whole.ran.recorders[static_cast<std::size_t>(failed)]->operations();
    REQUIRE(operations > 40);
    const std::uint64_t step = at <= 4 ? 1 : 5;
    for (std::uint64_t k = static_cast<std::uint64_t>(at) % step; k < operations; k += step) {
      CAPTURE(k);
      pl::dry_options options;
      options.throw_at = k;
      options.only_rank = failed;
      check_failure(run(s, options, one_layer_and_results), failed, k);
    }
  }
}
TEST_CASE("a call that fails leaves nothing in flight behind the caller's stream") {
  // The weights belong to a layer, which goes before the operator and waits for its own stream only.
  const dispatch_case c = busy();
  const program layer = [](rank_type& rank, pl::dry_communicator& comm, backend_type& backend) {
    pl::dispatch_plan p;
    rank.plan(p);
    {
      const pl::device_buffer<float, backend_type> own(backend.device(), 1000, pl::tag::other);
      const pl::drain guard(backend, rank.stream());
      backend.launch(rank.stream(), pl::elements{1000}, pl::fill<float>{1}, pl::out(own.all()));
      rank.use_weights(own.all());
      rank.forward(p);
      rank.backward(p);
    }
    pl::close_step(backend, comm, rank.stream());
  };
  const outcome whole = run(c, {}, layer);
  REQUIRE_FALSE(whole.ran.cause.has_value());
  for (const std::string& each : whole.ran.findings()) FAIL_CHECK(each);
  for (int failed = 0; failed < c.ranks(); ++failed)
    for (std::uint64_t k = 40; k < whole.ran.recorders[static_cast<std::size_t>(failed)]->operations(); ++k) {
      CAPTURE(failed);
      CAPTURE(k);
      pl::dry_options options;
      options.throw_at = k;
      options.only_rank = failed;
      check_failure(run(c, options, layer), failed, k);
    }
}

TEST_CASE("one host round trip and one host exchange a plan, none in forward and backward") {
  for (const shape_class& s : shape_classes()) {
    CAPTURE(s.name);
    std::vector<std::vector<std::uint64_t>> counted(s.of.tokens.size());
    const auto each = [&](auto& rank, pl::dry_communicator& comm, backend_type& backend) {
      auto& mine = counted[static_cast<std::size_t>(comm.rank())];
      const auto note = [&] {
        mine.push_back(backend.counters().host_round_trips);
        mine.push_back(comm.counters().host_exchanges);
      };
      pl::dispatch_plan p;
      note();
      for (int layer = 0; layer < 2; ++layer) {
        rank.plan(p);
        note();
        rank.forward(p);
        note();
        rank.backward(p);
        note();
      }
    };
    REQUIRE_FALSE(run(s, {}, each).ran.cause.has_value());
    for (const auto& mine : counted) {
      REQUIRE(mine.size() == 14);
      for (const std::size_t of : {0, 1}) { // round trips, host exchanges
        const std::uint64_t before = mine[of];
        for (std::size_t call = 1; call < 7; ++call) {
          CAPTURE(call);
          CHECK(mine[2 * call + of] - before == (call <= 3 ? 1 : 2));
        }
      }
    }
  }
}

TEST_CASE("several plans in flight: F1 F2 B1 B2 and F1 F2 B2 B1, with other tokens in each") {
  const dispatch_case first = busy({20, 9, 14});
  dispatch_case second = first;
  second.tokens = {3, 9, 0};
  second.expert_of = [](int rank, index_t t, index_t j) { return mixed(rank, t, j, 6); };
  for (const bool stack : {false, true}) {
    const auto each = [&](rank_type& rank, pl::dry_communicator&, backend_type&) {
      pl::dispatch_plan p, q;
      rank.plan(p);
      rank.forward(p);
      rank.turn_to(second);
      rank.plan(q);
      rank.forward(q);
      if (stack) rank.backward(q);
      rank.turn_to(first);
      rank.backward(p);
      rank.turn_to(second);
      if (!stack) rank.backward(q);
      rank.results();
    };
    const outcome o = run({&first, &second}, {}, each);
    INFO((o.ran.cause ? o.ran.cause->text : std::string()));
    REQUIRE_FALSE(o.ran.cause.has_value());
    for (const std::string& found : o.ran.findings()) FAIL_CHECK(found);
  }
}

namespace {

using dry_op = rank_type::op;

std::size_t held_by_dispatch(const pl::memory_peaks& of) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < pl::tag_count; ++i)
    if (pl::all_tags[i] == pl::tag::dispatch) bytes = of.tags[i].bytes;
  return bytes;
}

// What a pass needs, from the formula; and what ranks have held at most.
std::size_t promised(const dispatch_case& c) {
  const support::toy_expert<backend_type, float> expert(nullptr, c.width());
  return dry_op::working_set_of(c.limits(), c.ranks(), expert, pl::dispatch_pass::backward).device_bytes();
}

} // namespace

TEST_CASE(
    "D8: from a thousand to a million tokens a rank, under any skew, what is held is what was promised") {
  const auto hold = [](const dispatch_case& c) {
    std::size_t most = 0, linear = 0;
    const outcome o = run(c, {}, [](rank_type& rank, pl::dry_communicator& comm, backend_type& backend) {
      pl::dispatch_plan p;
      rank.plan(p);
      rank.forward(p);
      rank.backward(p);
      pl::close_step(backend, comm, rank.stream());
    });
    REQUIRE_FALSE(o.ran.cause.has_value());
    for (const std::string& each : o.ran.findings()) FAIL_CHECK(each);
    for (int r = 0; r < c.ranks(); ++r) most = std::max(most, held_by_dispatch(o.ran.peaks(r)));
    CHECK(most == promised(c));
    for (const std::size_t bytes : {pl::aligned_bytes(static_cast<std::size_t>(c.limits().routes()) * 4),
                                    pl::aligned_bytes(static_cast<std::size_t>(c.limits().routes()) * 4),
                                    pl::aligned_bytes(static_cast<std::size_t>(c.limits().tokens * 12) * 4)})
      linear += bytes;
    return most - linear;
  };
  std::set<std::size_t> slots;
  for (const index_t tokens : {index_t{1} << 10, index_t{1} << 15, index_t{1} << 20})
    for (const int skew : {0, 1, 2}) {
      dispatch_case c = busy({tokens, tokens, tokens / 2});
      c.shape.top_k = 1;
      c.shape.send_cap_rows = c.shape.receive_cap_rows = 1 << 10;
      if (skew == 1) c.expert_of = [](int, index_t, index_t) { return 5; };
      if (skew == 2)
        c.expert_of = [](int, index_t t, index_t) { return static_cast<int>(t % 100 < 95 ? 0 : t % 6); };
      slots.insert(hold(c));
    }
  CHECK(slots.size() == 1);
}
TEST_CASE("what a layer holds is what a thousand layers hold") {
  const dispatch_case c = busy();
  std::set<std::size_t> peaks;
  for (const int layers : {8, 1024}) {
    pl::dry_options options;
    options.record_program = false;
    const outcome o =
        run(c, options, [&](rank_type& rank, pl::dry_communicator& comm, backend_type& backend) {
          std::vector<pl::dispatch_plan> plans(static_cast<std::size_t>(layers));
          for (pl::dispatch_plan& p : plans) {
            rank.plan(p);
            rank.forward(p);
          }
          for (auto p = plans.rbegin(); p != plans.rend(); ++p) rank.backward(*p);
          pl::close_step(backend, comm, rank.stream());
        });
    REQUIRE_FALSE(o.ran.cause.has_value());
    CHECK(o.ran.findings().empty());
    peaks.insert(o.ran.peaks(0).total.bytes);
  }
  CHECK(peaks.size() == 1);
}
TEST_CASE("D9: 1.31 million rows of 7,168 columns on one rank, in one round: no access out of bounds") {
  dispatch_case c = busy(std::vector<index_t>(8, 16384));
  c.shape.top_k = 10;
  c.shape.widths = {7168};
  c.shape.slots = 1;
  c.shape.send_cap_rows = c.shape.receive_cap_rows = index_t{1} << 40;
  c.shape.placement.policy = pl::placement_policy::native;
  c.expert_of = [](int, index_t, index_t) { return 3; };
  const outcome o = run(c, {}, one_layer_and_results);
  REQUIRE_FALSE(o.ran.cause.has_value());
  for (const std::string& each : o.ran.findings()) FAIL_CHECK(each);
  CHECK(held_by_dispatch(o.ran.peaks(1)) == promised(c));
  CHECK(promised(c) > std::size_t{1310720} * 7168 * 4 * 3);
}
