// SPDX-License-Identifier: Apache-2.0
//
// Plans of rounds against a check that knows nothing of how they are made: caps kept, every row moved once
// and in the order of its queue, exactly as many rounds as the fullest rank needs.
#include "../support/counted_new.hpp"

#include <plateau/all_to_all/round_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using plateau::config_error;
using plateau::index_t;
using plateau::round_block;
using plateau::round_plan;
using plateau::round_policy;

namespace {

// Without optimisation, as under sanitizers, a quarter of the random instances, so that nobody waits for a
// minute.
#if defined(__OPTIMIZE__)
constexpr int instances = 400'000;
#else
constexpr int instances = 100'000;
#endif

constexpr index_t most = std::numeric_limits<index_t>::max();
constexpr round_policy policies[] = {round_policy::expert_first, round_policy::diagonal,
                                     round_policy::smooth};

// The same numbers everywhere.
struct dice {
  std::uint64_t state;

  std::uint64_t next() {
    std::uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
  }
  // In [from, to].
  index_t in(index_t from, index_t to) {
    return from + static_cast<index_t>(next() % (static_cast<std::uint64_t>(to - from) + 1));
  }
  int rank(int ranks) { return static_cast<int>(in(0, ranks - 1)); }
  bool chance(int one_in) { return in(1, one_in) == 1; }
};

struct instance {
  int ranks = 1;
  std::vector<int> rank_of_segment{};
  std::vector<index_t> rows{}; // (segments x ranks)
  std::vector<index_t> send{}, receive{};

  std::size_t segments() const { return rank_of_segment.size(); }
  index_t& at(std::size_t segment, int source) {
    return rows[segment * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(source)];
  }
  void begin(round_plan& plan, round_policy policy) const {
    plan.begin(rank_of_segment, rows, send, receive, policy);
  }
  std::vector<index_t> sent() const {
    std::vector<index_t> sums(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < rows.size(); ++i) sums[i % sums.size()] += rows[i];
    return sums;
  }
  std::vector<index_t> received() const {
    std::vector<index_t> sums(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < rows.size(); ++i)
      sums[static_cast<std::size_t>(rank_of_segment[i / sums.size()])] += rows[i];
    return sums;
  }
  std::string text() const {
    const auto list = [](const auto& numbers) {
      std::string s;
      for (const auto n : numbers) s += " " + std::to_string(n);
      return s;
    };
    return "ranks " + std::to_string(ranks) + ", of segments" + list(rank_of_segment) + ", rows" +
           list(rows) + ", send" + list(send) + ", receive" + list(receive);
  }
};

// `per_rank` segments on each rank, no rows, caps of `cap`.
instance even(int ranks, int per_rank, index_t cap) {
  instance made{ranks};
  for (int rank = 0; rank < ranks; ++rank)
    for (int i = 0; i < per_rank; ++i) made.rank_of_segment.push_back(rank);
  made.rows.resize(made.segments() * static_cast<std::size_t>(ranks));
  made.send.assign(static_cast<std::size_t>(ranks), cap);
  made.receive = made.send;
  return made;
}

// The fewest rounds, from the definition.
index_t fewest(const instance& of) {
  index_t rounds = 0;
  const auto count = [&](const std::vector<index_t>& sums, const std::vector<index_t>& caps) {
    for (std::size_t r = 0; r < sums.size(); ++r)
      if (sums[r] > 0) rounds = std::max(rounds, (sums[r] - 1) / caps[r] + 1);
  };
  count(of.sent(), of.send);
  count(of.received(), of.receive);
  return rounds;
}

// What is wrong with a plan that has just begun, or nothing. The rounds are added to `all`, if there is one.
std::string fault(const instance& of, round_plan& plan, std::vector<round_block>* all = nullptr) {
  const auto ranks = static_cast<std::size_t>(of.ranks);
  std::vector<index_t> left = of.rows, sent(ranks), received(ranks);
  if (plan.rounds() != fewest(of))
    return std::to_string(plan.rounds()) + " rounds, not " + std::to_string(fewest(of));
  if (plan.done() != 0 || !plan.blocks().empty()) return "begun with a round";
  for (index_t round = 0; round < plan.rounds(); ++round) {
    const std::string in = "round " + std::to_string(round) + ": ";
    if (!plan.next() || plan.done() != round + 1) return in + "missing";
    if (plan.blocks().empty()) return in + "empty";
    std::fill(sent.begin(), sent.end(), 0);
    std::fill(received.begin(), received.end(), 0);
    const round_block* before = nullptr;
    for (const round_block& b : plan.blocks()) {
      if (b.segment < 0 || b.segment >= static_cast<index_t>(of.segments()) || b.source < 0 ||
          b.source >= of.ranks)
        return in + "a block of nobody";
      if (before != nullptr &&
          (before->segment > b.segment || (before->segment == b.segment && before->source >= b.source)))
        return in + "not sorted";
      before = &b;
      const auto g = static_cast<std::size_t>(b.segment), s = static_cast<std::size_t>(b.source);
      if (b.rows <= 0) return in + "a block without rows";
      if ((left[g * ranks + s] -= b.rows) < 0) return in + "more rows than there are";
      for (std::size_t first = g; first > 0 && of.rank_of_segment[first - 1] == of.rank_of_segment[g];
           --first)
        if (left[(first - 1) * ranks + s] != 0) return in + "a segment overtaken in its queue";
      const auto d = static_cast<std::size_t>(of.rank_of_segment[g]);
      if (b.rows > of.send[s] - sent[s]) return in + "over the cap of a source";
      if (b.rows > of.receive[d] - received[d]) return in + "over the cap of a destination";
      sent[s] += b.rows;
      received[d] += b.rows;
      if (all != nullptr) all->push_back(b);
    }
  }
  if (plan.next() || !plan.blocks().empty() || plan.done() != plan.rounds()) return "does not end";
  for (const index_t rest : left)
    if (rest != 0) return "rows are left";
  return "";
}
std::string fault(const instance& of, round_policy policy) {
  round_plan plan(of.ranks, static_cast<index_t>(of.segments()));
  of.begin(plan, policy);
  return fault(of, plan);
}

void deal_segments(instance& to, dice& d, int most_a_rank) {
  for (int rank = 0; rank < to.ranks; ++rank)
    for (index_t n = d.in(0, most_a_rank); n > 0; --n) to.rank_of_segment.push_back(rank);
  to.rows.assign(to.segments() * static_cast<std::size_t>(to.ranks), 0);
}

// `rows` of a pair, dealt to the destination's segments, of which it has some.
void deal_rows(instance& to, dice& d, int source, int destination, index_t rows) {
  const auto& ranks = to.rank_of_segment;
  const auto first = std::lower_bound(ranks.begin(), ranks.end(), destination) - ranks.begin();
  const auto end = std::upper_bound(ranks.begin(), ranks.end(), destination) - ranks.begin();
  for (; rows > 0;) {
    const index_t n = d.in(1, rows);
    to.at(static_cast<std::size_t>(d.in(first, end - 1)), source) += n;
    rows -= n;
  }
}

// Every rank sends and receives `weight` rows in each of `rounds` rounds and has caps for no more: a sum of
// permutations. With `slack` there are rows fewer here and there.
instance tight(dice& d, int ranks, int rounds, index_t weight, bool slack) {
  instance made{ranks};
  for (int rank = 0; rank < ranks; ++rank)
    for (index_t n = d.in(1, 3); n > 0; --n) made.rank_of_segment.push_back(rank);
  made.rows.assign(made.segments() * static_cast<std::size_t>(ranks), 0);
  std::vector<int> to(static_cast<std::size_t>(ranks));
  for (int i = 0; i < ranks; ++i) to[static_cast<std::size_t>(i)] = i;
  for (int round = 0; round < rounds; ++round)
    for (index_t rest = weight; rest > 0;) {
      const index_t part = d.in(1, rest);
      for (std::size_t i = to.size(); i > 1; --i)
        std::swap(to[i - 1], to[static_cast<std::size_t>(d.in(0, static_cast<index_t>(i) - 1))]);
      for (int source = 0; source < ranks; ++source)
        if (!slack || !d.chance(5)) deal_rows(made, d, source, to[static_cast<std::size_t>(source)], part);
      rest -= part;
    }
  made.send.assign(static_cast<std::size_t>(ranks), weight);
  made.receive = made.send;
  return made;
}

instance any(dice& d, int ranks) {
  if (d.chance(4)) return tight(d, ranks, static_cast<int>(d.in(1, 6)), d.in(1, 5), d.chance(2));
  instance made{ranks};
  deal_segments(made, d, 3);
  // How large a number of rows is, and how many are 0; who has none, or all.
  const index_t largest = d.chance(3) ? d.in(1, 3) : d.in(1, 40);
  const int one_in = d.chance(2) ? 1 : static_cast<int>(d.in(2, 6));
  const int only_source = d.chance(8) ? d.rank(ranks) : -1, no_source = d.chance(6) ? d.rank(ranks) : -1;
  const int only_home = d.chance(8) ? d.rank(ranks) : -1, no_home = d.chance(6) ? d.rank(ranks) : -1;
  const int hot = d.chance(4) ? d.rank(ranks) : -1;
  const bool zero = d.chance(50);
  for (std::size_t g = 0; g < made.segments(); ++g)
    for (int source = 0; source < ranks; ++source) {
      const int home = made.rank_of_segment[g];
      if (zero || source == no_source || home == no_home || (only_source >= 0 && source != only_source) ||
          (only_home >= 0 && home != only_home) || !d.chance(one_in))
        continue;
      made.at(g, source) = d.in(0, largest) * (home == hot ? 5 : 1);
    }
  // Caps: of all alike, of each side alike, or of every rank its own; sometimes so that a rank fits exactly.
  const std::vector<index_t> sent = made.sent(), received = made.received();
  const index_t rounds = d.in(1, 8), common = d.in(1, 60);
  const int kind = static_cast<int>(d.in(0, 3));
  const index_t side = d.in(1, 60);
  for (std::size_t r = 0; r < sent.size(); ++r) {
    const auto cap = [&](index_t sum, index_t alike) {
      return kind == 3 ? std::max<index_t>(1, (sum + rounds - 1) / rounds) : kind == 2 ? d.in(1, 60) : alike;
    };
    made.send.push_back(cap(sent[r], common));
    made.receive.push_back(cap(received[r], kind == 0 ? common : side));
    if (sent[r] == 0 && d.chance(10)) made.send[r] = -d.in(0, 1); // no rows need no cap
    if (received[r] == 0 && d.chance(10)) made.receive[r] = -d.in(0, 1);
  }
  return made;
}

template <class F> std::string error_of(F&& f) {
  try {
    f();
  } catch (const config_error& e) {
    return e.what();
  }
  return "";
}

std::vector<round_block> rounds_of(const instance& of, round_plan& plan, round_policy policy) {
  std::vector<round_block> all;
  of.begin(plan, policy);
  REQUIRE(fault(of, plan, &all) == "");
  return all;
}
bool same(const std::vector<round_block>& a, const std::vector<round_block>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const round_block& x, const round_block& y) {
    return x.segment == y.segment && x.source == y.source && x.rows == y.rows;
  });
}

} // namespace

TEST_CASE(
    "Plans of random counts, caps and sizes move every row once, in the fewest rounds, within the caps") {
  dice d{1};
  index_t rounds = 0;
  int right = 0;
  for (int i = 0; i < instances; ++i) {
    const int ranks = d.chance(50) ? static_cast<int>(d.in(7, 16)) : static_cast<int>(d.in(1, 6));
    const instance made = any(d, ranks);
    const round_policy policy = policies[i % 3];
    round_plan plan(made.ranks, static_cast<index_t>(made.segments()) + d.in(0, 1));
    made.begin(plan, policy);
    rounds += plan.rounds();
    const std::string wrong = fault(made, plan);
    if (wrong != "") FAIL_CHECK("instance ", i, ", policy ", i % 3, ": ", wrong, ": ", made.text());
    right += wrong == "";
    if (i - right > 5) break; // that will do
  }
  CHECK(right == instances);
  CHECK(rounds > 4 * instances); // they are not all trivial
}

TEST_CASE("Plans of 64 ranks and of more than a word of them are as right") {
  dice d{2};
  for (const int ranks : {64, 65, 100, 128, 129})
    for (int i = 0; i < 6; ++i) {
      const instance made = i == 0   ? tight(d, ranks, 5, 7, false)
                            : i == 1 ? tight(d, ranks, 3, 20, true)
                                     : any(d, ranks);
      for (const round_policy policy : policies) {
        CAPTURE(ranks);
        CAPTURE(i);
        CHECK(fault(made, policy) == "");
      }
    }
}

TEST_CASE("Every number of ranks from 1 to 64, where each cap is used up in each round") {
  dice d{3};
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const instance made = tight(d, ranks, 4, 3, false);
    for (const round_policy policy : policies) {
      round_plan plan(ranks, static_cast<index_t>(made.segments()));
      made.begin(plan, policy);
      CAPTURE(ranks);
      CHECK(plan.rounds() == 4);
      CHECK(fault(made, plan) == "");
    }
  }
}

TEST_CASE("D1: a rank with few rows takes part in as many rounds as the group needs") {
  instance made = even(3, 1, 10);
  made.at(0, 0) = 1;  // rank 0: one row
  made.at(1, 1) = 45; // rank 1: five rounds
  for (const round_policy policy : policies) {
    round_plan plan(3, 3);
    made.begin(plan, policy);
    CHECK(plan.rounds() == 5);
    CHECK(fault(made, plan) == "");
  }
}

TEST_CASE("D2, D5: a rank that sends nothing, one that receives nothing, and nothing at all") {
  instance made = even(4, 2, 5);
  for (std::size_t g = 0; g < 6; ++g)                                  // rank 3 receives nothing
    for (int source = 1; source < 4; ++source) made.at(g, source) = 3; // rank 0 sends nothing
  for (const round_policy policy : policies) CHECK(fault(made, policy) == "");
  const instance empty = even(4, 2, 5);
  for (const round_policy policy : policies) {
    round_plan plan(4, 8);
    empty.begin(plan, policy);
    CHECK(plan.rounds() == 0);
    CHECK_FALSE(plan.next());
    CHECK(fault(empty, plan) == "");
  }
}

TEST_CASE("D3: no segments, and a plan for none; null is legal where nothing is") {
  round_plan plan(2, 0);
  const std::vector<index_t> caps{0, 0};
  plan.begin({}, {}, caps, caps, round_policy::expert_first);
  CHECK(plan.rounds() == 0);
  CHECK_FALSE(plan.next());
  CHECK(plan.blocks().empty());
}

TEST_CASE("D4: rank 0 has no tokens, ranks 1 to 3 send 4 x 6 rows: 72 rows arrive") {
  instance made = even(4, 1, 8);
  for (std::size_t g = 0; g < 4; ++g)
    for (int source = 1; source < 4; ++source) made.at(g, source) = 6;
  for (const round_policy policy : policies) {
    round_plan plan(4, 4);
    index_t rows = 0;
    for (const round_block& b : rounds_of(made, plan, policy)) rows += b.rows;
    CHECK(rows == 72);
    CHECK(plan.rounds() == 3); // 18 to each, 24 from each, 8 a round
  }
}

TEST_CASE("D7: 2,304 tokens on each of 16 ranks, all but a few for one of them: what is announced moves") {
  instance made = even(16, 4, 600);
  dice d{7};
  std::vector<index_t> announced(made.segments());
  for (int source = 0; source < 16; ++source)
    for (int token = 0; token < 2304; ++token)
      ++made.at(static_cast<std::size_t>(d.chance(4) ? d.in(0, 63) : d.in(20, 23)), source);
  for (std::size_t i = 0; i < made.rows.size(); ++i) announced[i / 16] += made.rows[i];
  for (const round_policy policy : policies) {
    std::vector<index_t> moved(made.segments());
    round_plan plan(16, 64);
    for (const round_block& b : rounds_of(made, plan, policy))
      moved[static_cast<std::size_t>(b.segment)] += b.rows;
    CHECK(moved == announced);
  }
}

TEST_CASE("D8: all rows for one rank: its cap holds in every round, and every round fills it") {
  instance made = even(8, 2, 100);
  for (int source = 0; source < 8; ++source) made.at(6, source) = 333;
  for (const round_policy policy : policies) {
    round_plan plan(8, 16);
    made.begin(plan, policy);
    CHECK(plan.rounds() == 27); // 2,664 / 100
    CHECK(fault(made, plan) == "");
  }
}

TEST_CASE("D9: rows beyond 32 bits, and sums at the end of 64") {
  dice d{9};
  for (const round_policy policy : policies) {
    for (int i = 0; i < 200; ++i) {
      instance made = even(4, 2, 0);
      for (index_t& n : made.rows) n = d.chance(3) ? 0 : d.in(0, index_t{1} << (i % 2 == 0 ? 33 : 59));
      for (std::vector<index_t>* caps : {&made.send, &made.receive})
        for (index_t& cap : *caps)
          cap = d.in(index_t{1} << (i % 2 == 0 ? 31 : 58), index_t{1} << (i % 2 == 0 ? 34 : 62));
      CHECK(fault(made, policy) == "");
    }
    instance whole = even(2, 1, most); // as much as there can be
    whole.at(0, 0) = most - 7;
    whole.at(1, 0) = 7;
    whole.at(1, 1) = most - 7;
    CHECK(fault(whole, policy) == "");
    whole.send = {most / 3, most - 1};
    CHECK(fault(whole, policy) == "");
  }
  SUBCASE("also as many rounds as rows") {
    instance made = even(3, 1, 1);
    made.at(2, 2) = most - 1;
    made.at(1, 2) = 1;
    for (const round_policy policy : policies) {
      round_plan plan(3, 3);
      made.begin(plan, policy);
      CHECK(plan.rounds() == most);
      for (int i = 0; i < 100; ++i) {
        REQUIRE(plan.next());
        REQUIRE(plan.blocks().size() == 1);
        CHECK(plan.blocks()[0].rows == 1);
      }
    }
  }
  SUBCASE("also the number of rounds") {
    instance made = even(3, 2, 1); // a row a round
    made.at(0, 1) = index_t{1} << 61;
    made.at(5, 1) = index_t{1} << 61;
    made.at(4, 2) = 77;
    made.receive[0] = most; // its full rounds are more than 64 bits can say
    made.send[2] = most;
    for (const round_policy policy : policies) {
      round_plan plan(3, 6);
      made.begin(plan, policy);
      CHECK(plan.rounds() == index_t{1} << 62);
      for (int i = 0; i < 100; ++i) {
        REQUIRE(plan.next());
        index_t sent = 0;
        for (const round_block& b : plan.blocks()) sent += b.source == 1 ? b.rows : 0;
        CHECK(sent == 1); // or the rounds would not be enough
      }
    }
  }
}

TEST_CASE("Two plans of the same counts are the same, whatever a plan was used for before") {
  dice d{11};
  for (int i = 0; i < 300; ++i) {
    const int ranks = static_cast<int>(d.in(1, 12));
    const instance made = any(d, ranks), other = any(d, ranks);
    const index_t segments = static_cast<index_t>(std::max(made.segments(), other.segments()));
    round_plan fresh(ranks, static_cast<index_t>(made.segments())), used(ranks, segments);
    const round_policy policy = policies[i % 3];
    other.begin(used, policies[d.in(0, 2)]);
    for (index_t rounds = d.in(0, 3); rounds > 0; --rounds) used.next(); // and left half done
    CHECK(same(rounds_of(made, fresh, policy), rounds_of(made, used, policy)));
  }
}

TEST_CASE("begin() and next() allocate nothing, and no plan needs more than was reserved") {
  dice d{13};
  for (const int ranks : {1, 5, 70}) {
    const instance first = tight(d, ranks, 4, 6, true), second = any(d, ranks);
    round_plan plan(ranks, static_cast<index_t>(std::max(first.segments(), second.segments())));
    for (const round_policy policy : policies)
      for (const instance* each : {&first, &second}) {
        index_t rows = 0;
        const std::uint64_t before = counted_new::calls.load();
        each->begin(plan, policy);
        while (plan.next())
          for (const round_block& b : plan.blocks()) rows += b.rows;
        CHECK(counted_new::calls.load() == before);
        index_t expected = 0;
        for (const index_t n : each->rows) expected += n;
        CHECK(rows == expected);
      }
  }
}

TEST_CASE("Expert first: where a round has room for one segment, a destination gets the rows of one") {
  // Each rank has 4 segments with 10 rows from each rank.
  const auto groups = [](int ranks, index_t cap, round_policy policy) {
    instance made = even(ranks, 4, cap);
    std::fill(made.rows.begin(), made.rows.end(), 10);
    round_plan plan(ranks, static_cast<index_t>(made.segments()));
    made.begin(plan, policy);
    int count = 0;
    while (plan.next()) {
      index_t before = -1;
      for (const round_block& b : plan.blocks()) {
        count += b.segment != before;
        before = b.segment;
      }
    }
    return count;
  };
  CHECK(groups(8, 80, round_policy::expert_first) == 32); // every segment once
  CHECK(groups(8, 80, round_policy::diagonal) == 128);    // every segment in every round
  // 160 rows a segment, so 3 groups each at the least: destinations do not take one another's sources away.
  CHECK(groups(16, 64, round_policy::expert_first) == 3 * 64);
}

TEST_CASE("Diagonal: a pair moves what it can in one piece") {
  instance made = even(4, 1, 60);
  std::fill(made.rows.begin(), made.rows.end(), 30);
  round_plan plan(4, 4);
  made.begin(plan, round_policy::diagonal);
  CHECK(plan.rounds() == 2);
  int blocks = 0;
  while (plan.next())
    for (const round_block& b : plan.blocks()) {
      CHECK(b.rows == 30);
      // (i, i) and (i, i + 1) in the first round
      CHECK(((b.segment - b.source + 4) % 4 < 2) == (plan.done() == 1));
      ++blocks;
    }
  CHECK(blocks == 16);
}

TEST_CASE("Smooth: every round moves the same share of each pair, to a row, also where one rank gets most") {
  dice d{17};
  const int ranks = 8;
  instance made = even(ranks, 1, 100);
  for (std::size_t g = 0; g < 8; ++g)
    for (int source = 0; source < ranks; ++source) made.at(g, source) = d.in(0, 200) * (g == 2 ? 4 : 1);
  round_plan plan(ranks, 8);
  made.begin(plan, round_policy::smooth);
  const index_t rounds = plan.rounds();
  REQUIRE(rounds > 20);
  std::vector<index_t> moved(made.rows.size());
  while (plan.next()) {
    std::fill(moved.begin(), moved.end(), 0);
    for (const round_block& b : plan.blocks())
      moved[static_cast<std::size_t>(b.segment * ranks + b.source)] = b.rows;
    for (std::size_t i = 0; i < moved.size(); ++i) {
      CHECK(moved[i] >= made.rows[i] / rounds);
      CHECK(moved[i] <= made.rows[i] / rounds + 1);
    }
  }
}

TEST_CASE("Smooth: sources that send a row a round do not all send it to the same rank") {
  const int ranks = 8;
  instance made = even(ranks, 1, 100);
  std::fill(made.rows.begin(), made.rows.end(), 1);
  made.send[0] = 1; // eight rounds, for this one's sake
  round_plan plan(ranks, 8);
  made.begin(plan, round_policy::smooth);
  CHECK(plan.rounds() == 8);
  while (plan.next()) {
    CHECK(plan.blocks().size() == 8); // one of each source
    std::vector<index_t> received(ranks);
    for (const round_block& b : plan.blocks()) received[static_cast<std::size_t>(b.segment)] += b.rows;
    CHECK(*std::max_element(received.begin(), received.end()) <= (plan.done() == 1 ? 1 : 4));
  }
}

TEST_CASE("Twice the cap for sending, which makes groups larger, is as right") {
  dice d{19};
  for (int i = 0; i < 200; ++i) {
    instance made = any(d, static_cast<int>(d.in(2, 8)));
    for (index_t& cap : made.send) cap *= 2;
    for (const round_policy policy : policies) CHECK(fault(made, policy) == "");
  }
}

TEST_CASE("What cannot be planned is refused in words, and the plan before goes on") {
  const auto made_for = [](int ranks, index_t segments) {
    return error_of([&] { round_plan plan(ranks, segments); });
  };
  CHECK(made_for(0, 4) == "plateau: round_plan: made for 0 ranks, where 1 to 32768 are possible");
  CHECK(made_for(-3, 4) == "plateau: round_plan: made for -3 ranks, where 1 to 32768 are possible");
  CHECK(made_for(32769, 4) == "plateau: round_plan: made for 32769 ranks, where 1 to 32768 are possible");
  CHECK(made_for(2, -1) == "plateau: round_plan: made for -1 segments, where 0 to 2147483648 are possible");
  CHECK(made_for(2, most) ==
        "plateau: round_plan: made for 9223372036854775807 segments, where 0 to 2147483648 are possible");

  instance good = even(2, 1, 10);
  good.rows = {5, 5, 5, 15};
  round_plan plan(2, 2);
  good.begin(plan, round_policy::diagonal);
  REQUIRE(plan.next());
  const std::vector<round_block> shown(plan.blocks().begin(), plan.blocks().end());
  const auto refused = [&](instance bad) { return error_of([&] { bad.begin(plan, round_policy::smooth); }); };
  instance bad = even(2, 2, 10);
  CHECK(refused(bad) == "plateau: round_plan: given 4 segments, but made for at most 2");
  bad = good;
  bad.rows.pop_back();
  CHECK(refused(bad) ==
        "plateau: round_plan: rows has 3 numbers, where 4 are expected (2 segments x 2 ranks)");
  bad = good;
  bad.send.push_back(1);
  CHECK(refused(bad) ==
        "plateau: round_plan: send_caps has 3 numbers, where 2 are expected (one for each rank)");
  bad = good;
  bad.receive.clear();
  CHECK(refused(bad) ==
        "plateau: round_plan: receive_caps has 0 numbers, where 2 are expected (one for each rank)");
  bad = good;
  bad.rank_of_segment = {0, 2};
  CHECK(refused(bad) == "plateau: round_plan: segment 1 is on rank 2, but ranks are 0 to 1");
  bad.rank_of_segment = {-1, 0};
  CHECK(refused(bad) == "plateau: round_plan: segment 0 is on rank -1, but ranks are 0 to 1");
  bad.rank_of_segment = {1, 0};
  CHECK(refused(bad) ==
        "plateau: round_plan: segment 1 is on rank 0, the one before on rank 1: sort segments by rank");
  bad = good;
  bad.at(1, 0) = -4;
  CHECK(refused(bad) == "plateau: round_plan: rank 0 has -4 rows for segment 1, expected 0 or more");
  bad = good;
  bad.rows = {most, 0, 1, 0};
  CHECK(refused(bad) == "plateau: round_plan: rank 0 sends more than 9223372036854775807 rows, which 64 bits "
                        "do not hold");
  bad.rows = {0, 0, most - 1, 2};
  CHECK(refused(bad) == "plateau: round_plan: rank 1 receives more than 9223372036854775807 rows, which 64 "
                        "bits do not hold");
  bad = good;
  bad.send[1] = 0;
  CHECK(refused(bad) ==
        "plateau: round_plan: rank 1 sends 20 rows, but its send cap is 0: make it at least 1");
  bad = good;
  bad.receive[0] = -2;
  CHECK(refused(bad) ==
        "plateau: round_plan: rank 0 receives 10 rows, but its receive cap is -2: make it at least 1");

  CHECK(plan.rounds() == 2);
  CHECK(plan.done() == 1);
  CHECK(same(shown, {plan.blocks().begin(), plan.blocks().end()}));
  index_t rows = 0;
  for (const round_block& b : shown) rows += b.rows;
  REQUIRE(plan.next());
  for (const round_block& b : plan.blocks()) rows += b.rows;
  CHECK(rows == 30);
  CHECK_FALSE(plan.next());
}
