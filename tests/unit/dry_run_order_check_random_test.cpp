// SPDX-License-Identifier: Apache-2.0
//
// Random programs against brute force: the order of operations by reachability over the edges that waits and
// program order make, the bytes one by one.
#include <plateau/dry_run/order_check.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bitset>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dry = plateau::dry;
using dry::access_range;
using dry::finding_kind;
using dry::touch;
using plateau::index_t;

namespace {
constexpr std::size_t most_block_bytes = 1024;
enum class shapes { contiguous, few_rows, many_rows }; // many are remembered as they are, few row by row
using pair_set = std::set<std::pair<std::uint64_t, std::uint64_t>>;

// What the check should say, as slowly as it takes.
class oracle {
 public:
  // A point of a stream or of the host: after the host's last, and after the stream's.
  int add(int stream) {
    const int n = static_cast<int>(edges_.size());
    edges_.emplace_back();
    if (stream != 0) link(last(stream), n);
    link(last(0), n);
    for (const int e : pending(stream)) link(e, n);
    pending(stream).clear();
    last(stream) = n;
    return n;
  }
  // What the stream does from here on comes after point n.
  void wait(int stream, int n) {
    pending(stream).push_back(n);
    if (stream == 0) add(0); // the host has waited before it goes on
  }

  struct done {
    int point;
    int block;
    std::uint64_t number;
    touch mode;
    std::bitset<most_block_bytes> bytes;
  };
  void operation(std::uint64_t number, int stream, const std::vector<std::pair<int, access_range>>& accesses,
                 const std::vector<bool>& live) {
    const int point = add(stream);
    for (const auto& access : accesses) {
      const int b = access.first;
      const access_range& r = access.second;
      if (!live[static_cast<std::size_t>(b)]) {
        used_after_free.insert(number);
        continue;
      }
      bool held = true;
      each_byte(r, [&](std::size_t i) { held = held && written(b)[i]; });
      if (dry::needs_values(r.mode) && !held) read_before_write.insert(number);
    }
    for (const auto& access : accesses) {
      const int b = access.first;
      const access_range& r = access.second;
      if (!live[static_cast<std::size_t>(b)]) continue;
      done d{point, b, number, r.mode, {}};
      each_byte(r, [&](std::size_t i) { d.bytes.set(i); });
      log.push_back(d);
      if (r.mode == touch::read) continue;
      each_byte(r, [&](std::size_t i) { written(b)[i] = r.mode != touch::scratch; });
    }
  }
  void forget(int b, std::size_t first, std::size_t last_byte) {
    for (auto i = first; i < last_byte; ++i) written(b)[i] = false;
  }
  bool reaches(int from, int to) {
    if (reached_.size() != edges_.size()) reached_.assign(edges_.size(), {});
    auto& seen = reached_[static_cast<std::size_t>(from)];
    if (!seen.empty()) return seen[static_cast<std::size_t>(to)];
    seen.resize(edges_.size());
    std::vector<int> stack{from};
    while (!stack.empty()) {
      const int n = stack.back();
      stack.pop_back();
      if (seen[static_cast<std::size_t>(n)]) continue;
      seen[static_cast<std::size_t>(n)] = true;
      for (const int m : edges_[static_cast<std::size_t>(n)]) stack.push_back(m);
    }
    return seen[static_cast<std::size_t>(to)];
  }
  // (later, earlier) of all that conflict in some byte and are not ordered.
  pair_set races() {
    pair_set found;
    for (std::size_t i = 0; i < log.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const auto &y = log[i], &x = log[j];
        if (x.number == y.number || x.block != y.block || !dry::conflict(x.mode, y.mode)) continue;
        if ((x.bytes & y.bytes).any() && !reaches(x.point, y.point)) found.insert({y.number, x.number});
      }
    return found;
  }

  std::vector<done> log;
  std::set<std::uint64_t> read_before_write, used_after_free;

 private:
  template <class F> static void each_byte(const access_range& r, F f) {
    for (index_t i = 0; i < r.count; ++i)
      for (index_t j = 0; j < r.rows; ++j)
        for (std::size_t k = 0; k < r.width; ++k)
          f(r.address % 4096 + static_cast<std::size_t>(i) * r.stride +
            static_cast<std::size_t>(j) * r.pitch + k);
  }
  void link(int from, int to) {
    if (from >= 0) edges_[static_cast<std::size_t>(from)].push_back(to);
  }
  int& last(int stream) { return grown(last_, stream, -1); }
  std::vector<int>& pending(int stream) { return grown(pending_, stream, {}); }
  std::vector<bool>& written(int b) { return grown(written_, b, std::vector<bool>(most_block_bytes)); }
  template <class T> static T& grown(std::vector<T>& v, int i, const T& fill) {
    while (v.size() <= static_cast<std::size_t>(i)) v.push_back(fill);
    return v[static_cast<std::size_t>(i)];
  }

  std::vector<std::vector<int>> edges_;
  std::vector<std::vector<bool>> reached_; // by point, as far as asked for since the last point was added
  std::vector<int> last_;
  std::vector<std::vector<int>> pending_;
  std::vector<std::vector<bool>> written_;
};

struct tally {
  std::uint64_t programs = 0, operations = 0, racy = 0, pairs = 0, reported = 0, early_reads = 0,
                after_free = 0, in_flight = 0, frees = 0;
  int wrong_set = 0, wrong_pair = 0, unexplained = 0, wrong_reads = 0, wrong_frees = 0, wrong_in_flight = 0;
};

void run_program(std::uint32_t seed, bool frees, shapes of, tally& t) {
  const bool strided = of != shapes::contiguous, many = of == shapes::many_rows;
  const std::size_t block_bytes = many ? most_block_bytes : 96;
  const int whole = static_cast<int>(block_bytes);
  std::mt19937 random(seed);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<std::uint32_t>(hi - lo + 1));
  };
  const int streams = pick(2, 4), blocks = frees ? 3 : 2, waits = pick(0, 3);
  const int careful = std::vector{0, 50, 90, 99}[static_cast<std::size_t>(pick(0, 3))]; // per cent
  dry::order_check check(dry::keep_findings::all);
  oracle truth;
  std::vector<bool> live(static_cast<std::size_t>(blocks), true);
  std::vector<std::pair<dry::clock_ref, int>> events{{nullptr, -1}};
  const auto address_of = [](int b) { return static_cast<std::uintptr_t>(4096 * (b + 1)); };
  for (int b = 0; b < blocks; ++b) check.allocated(address_of(b), block_bytes, "device", plateau::tag::other);
  for (int s = 1; s <= streams; ++s) {
    check.opened(s);
    truth.add(s);
  }
  const int steps = pick(10, 60);
  for (int step = 0; step < steps; ++step) {
    const int what = pick(0, 19);
    if (what < 10) {
      const int s = pick(0, 9) == 0 ? 0 : pick(1, streams);
      std::vector<std::pair<int, access_range>> accesses;
      std::vector<access_range> plain;
      for (int n = pick(1, 3); n > 0; --n) {
        access_range r;
        const int b = pick(0, blocks - 1);
        if (strided && pick(0, 1) == 0) {
          const std::size_t pitches[] = {8, 12, 16, 16, 16, 24, 32, 32};
          r.pitch = pitches[pick(0, many ? 7 : 4)];
          r.width = static_cast<std::size_t>(pick(1, many ? 3 : 2) * 4);
          r.rows = many && pick(0, 3) != 0 ? pick(17, 60) : pick(2, 5);
          if (pick(0, 4) == 0) {
            r.count = many ? pick(2, 4) : 2;
            r.stride = static_cast<std::size_t>(pick(1, many ? 100 : 10) * 4);
          }
          while (r.extent() > block_bytes) --(r.rows > 1 ? r.rows : r.count);
        } else {
          r.width = static_cast<std::size_t>(pick(0, 2) == 0 ? 2 * whole / 3 : pick(0, whole / 4));
        }
        const auto room = static_cast<int>(block_bytes - r.extent());
        r.address = address_of(b) + static_cast<std::size_t>(strided ? pick(0, room / 4) * 4 : pick(0, room));
        const touch modes[] = {touch::read,   touch::read,    touch::read,       touch::write,  touch::write,
                               touch::update, touch::partial, touch::accumulate, touch::scratch};
        r.mode = modes[pick(0, 8)];
        if (r.empty()) {
          plain.push_back(r);
          continue;
        }
        accesses.emplace_back(b, r);
        plain.push_back(r);
      }
      for (int other = 1; other <= streams; ++other) {
        if (other == s || pick(0, 99) >= careful) continue;
        const auto clock = check.record(other);
        const int point = truth.add(other);
        check.wait(s, clock);
        truth.wait(s, point);
      }
      check.operation({t.operations, static_cast<std::uint32_t>(step), static_cast<std::uint16_t>(s)}, plain);
      truth.operation(t.operations++, s, accesses, live);
    } else if (what < 13) {
      const int s = pick(0, streams);
      const int point = truth.add(s);
      events.emplace_back(check.record(s), point);
    } else if (what < 16 + waits) {
      const auto& [clock, point] =
          events[static_cast<std::size_t>(pick(0, static_cast<int>(events.size()) - 1))];
      const int s = pick(0, 4) == 0 ? 0 : pick(1, streams);
      check.wait(s, clock);
      if (point >= 0) truth.wait(s, point);
    } else if (what == 19 && pick(0, 1) == 0) {
      const int s = pick(1, streams);
      check.closed(s);
      truth.wait(0, truth.add(s));
      check.opened(s);
      truth.add(s);
    } else if (frees && pick(0, 2) == 0) {
      const int b = pick(0, blocks - 1);
      const int point = truth.add(0);
      std::set<std::uint64_t> early;
      if (live[static_cast<std::size_t>(b)])
        for (const auto& d : truth.log)
          if (d.block == b && !truth.reaches(d.point, point)) early.insert(d.number);
      const auto before = check.findings().size();
      check.freed(address_of(b));
      live[static_cast<std::size_t>(b)] = false;
      std::set<std::uint64_t> said;
      for (auto i = before; i < check.findings().size(); ++i)
        said.insert(check.findings()[i].earlier->number);
      t.wrong_in_flight += early.empty() != said.empty() ||
                           !std::includes(early.begin(), early.end(), said.begin(), said.end());
      t.in_flight += !said.empty();
      ++t.frees;
    } else {
      const int b = pick(0, blocks - 1), first = pick(0, whole - 6), last = pick(first, whole);
      check.retired(address_of(b) + static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
      truth.forget(b, static_cast<std::size_t>(first), static_cast<std::size_t>(last));
    }
  }
  const auto races = truth.races();
  std::set<std::uint64_t> racing, said, reads, uses;
  for (const auto& [y, x] : races) racing.insert(y);
  pair_set pairs;
  for (const auto& f : check.findings()) {
    if (f.kind == finding_kind::unordered) {
      said.insert(f.operation.number);
      pairs.insert({f.operation.number, f.earlier->number});
      t.wrong_pair += races.count({f.operation.number, f.earlier->number}) == 0;
    }
    if (f.kind == finding_kind::read_before_write) reads.insert(f.operation.number);
    if (f.kind == finding_kind::use_after_free) uses.insert(f.operation.number);
  }
  t.wrong_set += said != racing;
  t.wrong_reads += reads != truth.read_before_write;
  t.wrong_frees += uses != truth.used_after_free;
  // What was forgotten was forgotten for one that comes after it and races as well.
  const auto point_of = [&](std::uint64_t number) {
    for (const auto& d : truth.log)
      if (d.number == number) return d.point;
    return -1;
  };
  for (const auto& [y, x] : races) {
    bool explained = pairs.count({y, x}) != 0;
    for (const auto& [a, z] : pairs)
      explained = explained || (a == y && truth.reaches(point_of(x), point_of(z)));
    t.unexplained += !explained;
  }
  ++t.programs;
  t.racy += !racing.empty();
  t.pairs += races.size();
  t.reported += pairs.size();
  t.early_reads += reads.size();
  t.after_free += uses.size();
}

void expect_agreement(const tally& t) {
  MESSAGE(t.programs << " programs, " << t.racy << " of them racy, " << t.operations << " operations, "
                     << t.pairs << " unordered pairs (" << t.reported << " reported), " << t.early_reads
                     << " reads before a write, " << t.after_free << " uses after free, " << t.frees
                     << " frees, " << t.in_flight << " of them in flight");
  CHECK(t.wrong_set == 0);
  CHECK(t.wrong_pair == 0);
  CHECK(t.unexplained == 0);
  CHECK(t.wrong_reads == 0);
  CHECK(t.wrong_frees == 0);
  CHECK(t.wrong_in_flight == 0);
  CHECK(t.racy > t.programs / 4);
  CHECK(t.racy < t.programs);
}
} // namespace

TEST_CASE("O5: order check: random programs over contiguous and strided ranges against brute force") {
  tally t;
  for (std::uint32_t seed = 0; seed < 12000; ++seed) run_program(seed, false, shapes::contiguous, t);
  for (std::uint32_t seed = 0; seed < 12000; ++seed) run_program(1000000 + seed, false, shapes::few_rows, t);
  for (std::uint32_t seed = 0; seed < 4000; ++seed) run_program(3000000 + seed, false, shapes::many_rows, t);
  expect_agreement(t);
}

TEST_CASE("F2: F3: order check: random programs that free while others run, against brute force") {
  tally t;
  for (std::uint32_t seed = 0; seed < 8000; ++seed)
    run_program(2000000 + seed, true, static_cast<shapes>(seed % 3), t);
  expect_agreement(t);
  CHECK(t.in_flight > 100);
  CHECK(t.after_free > 100);
}
