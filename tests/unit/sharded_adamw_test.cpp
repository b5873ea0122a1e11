// SPDX-License-Identifier: Apache-2.0
//
// AdamW with its state dealt to the ranks, against the one that has everything: the same bits for any number
// of ranks, whoever holds which list, any bucket, on either side; with clipping, and a step that one rank's
// gradient stops. What it takes, and its order.
#include "support/sharded_adamw_case.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

using namespace support::sharded;

TEST_CASE("O7: any ranks, lists, buckets and sides give the bits of one AdamW that has everything") {
  struct variant {
    int ranks, group;
    index_t bucket;
    int slots;
    pl::adamw_state_of state;
    pl::update_on where;
  };
  using of = pl::adamw_state_of;
  using on = pl::update_on;
  const std::vector<variant> variants{
      {1, 1, 100000, 3, of::own_shard, on::device}, {2, 1, 777, 2, of::own_shard, on::device},
      {2, 2, 40000, 1, of::all, on::device},        {3, 1, 9000, 3, of::own_shard, on::host},
      {4, 2, 5000, 3, of::own_shard, on::device},   {4, 4, 16384, 4, of::own_shard, on::device},
      {4, 2, 30000, 2, of::all, on::host},          {5, 1, 20000, 2, of::own_shard, on::device}};
  int i = 0;
  for (const variant& v : variants) {
    CAPTURE(v.ranks);
    CAPTURE(v.group);
    CAPTURE(v.bucket);
    adamw_case c;
    c.ranks = v.ranks;
    c.group = v.group;
    c.shape.update.bucket_elements = v.bucket;
    c.shape.update.slots = v.slots;
    c.shape.update.where = v.where;
    c.shape.state = v.state;
    c.clip = i % 3 == 0 ? 0 : 0.5;
    if (v.ranks > 1 && i % 2 == 0) c.stopped = 1;
    c.idle_expert = i % 4 >= 2;
    if (i % 2 == 0)
      check_case<pl::bfloat16>(c, run_case<pl::bfloat16>(c, support::on_threads<>{}));
    else
      check_case<float>(c, run_case<float>(c, support::on_threads<>{}));
    ++i;
  }
}

TEST_CASE("bytes: what the working set says, whatever the parameters; exchanged are sums once and parameters "
          "once") {
  adamw_case c;
  c.idle_expert = true;
  c.steps = 1;
  const auto all = run_case<pl::bfloat16>(c, support::on_threads<>{});
  const auto shared = static_cast<std::uint64_t>(elements_of(c.shared)),
             expert = static_cast<std::uint64_t>(elements_of(c.expert)),
             active = static_cast<std::uint64_t>(c.expert[0].elements);
  std::uint64_t sent = 0;
  for (const rank_state& r : all) {
    sent += r.sent_bytes;
    CHECK(r.work.host_round_trips == 0);
    CHECK(r.host_exchanges == 0);
  }
  // fp32 sums to their owners, bf16 parameters to the other holders: of 4 ranks, and of 2 twice; the norm.
  CHECK(sent == 3 * shared * (4 + 2) + 2 * (active * 4 + expert * 2) +
                    4 * 3 * 8 * static_cast<std::uint64_t>(pl::exact_sum::words));

  using adamw_type = pl::sharded_adamw<pl::host_backend, pl::thread_communicator, pl::bfloat16>;
  const auto bytes = [&](index_t elements) {
    const std::array<pl::sharded_list, 1> lists{{{4, elements, 3}}};
    return adamw_type::working_set_of(c.shape, lists, 4).device_bytes();
  };
  c.shape.update.bucket_elements = 1 << 20;
  CHECK(bytes(index_t{1} << 30) == bytes(index_t{1} << 40));
  // Slots, the block of the norm, the counts: the formula of the documentation.
  const std::size_t slots = 3 * 16 * std::size_t{1 << 20};
  CHECK(bytes(index_t{1} << 30) == slots + 8 * 4096 + pl::aligned_bytes(4 * 8 * 25) + 256 + 256);
}

TEST_CASE("O5: nothing is unordered, with state in shards or not, on either side") {
  for (int i = 0; i < 4; ++i) {
    adamw_case c;
    c.steps = 2;
    c.shape.state = i % 2 == 0 ? pl::adamw_state_of::own_shard : pl::adamw_state_of::all;
    c.shape.update.where = i < 2 ? pl::update_on::device : pl::update_on::host;
    c.idle_expert = true;
    pl::dry_ranks ran;
    run_case<pl::bfloat16>(c, support::without_data<>{{}, &ran});
    REQUIRE_FALSE(ran.cause.has_value());
    for (const std::string& each : ran.findings()) FAIL_CHECK(each);
    // What fails ends all ranks, and nothing leaks.
    const std::uint64_t operations = ran.recorders[1]->operations();
    for (std::uint64_t k = 5; k < operations; k += 29) {
      CAPTURE(k);
      pl::dry_options options;
      options.throw_at = k;
      options.only_rank = 1;
      pl::dry_ranks with;
      const auto all = run_case<pl::bfloat16>(c, support::without_data<>{options, &with});
      REQUIRE(with.cause.has_value());
      for (const rank_state& r : all) CHECK(r.left == 0);
      for (const std::string& each : with.findings()) FAIL_CHECK(each);
    }
  }
}

TEST_CASE("what cannot be is an error on all ranks that names it, before anything changes") {
  const auto fails = [](adamw_case c, const char* text) {
    CHECK_THROWS_WITH(run_case<float>(c, support::on_threads<>{}), doctest::Contains(text));
  };
  adamw_case c;
  c.ranks = 2;
  c.group = 1;
  c.clip = -1;
  fails(c, "clip is -1");
  c.clip = 1;
  c.shape.update.slots = 0;
  fails(c, "slots must be 1, 2, 3 or 4, got 0");
  c.shape.update.slots = 2;
  c.shared[0].group = 2;
  fails(c, "tensor 0 is of group 2");
  c.shared[0].group = 0;
  c.shared[1].elements = -7;
  fails(c, "a tensor cannot have -7 elements");
}

TEST_CASE("a list that is not the same on its ranks fails all ranks, when it is made") {
  using adamw_type = pl::sharded_adamw<pl::host_backend, pl::thread_communicator, float>;
  const std::vector<pl::adamw_tensor> usual{{20000, 0, true}, {5, 0, false}};
  const std::vector<std::vector<pl::adamw_tensor>> others{
      {{20000, 0, true}, {6, 0, false}}, {{20000, 0, true}, {5, 1, false}}, {{20000, 0, true}, {5, 0, true}}};
  for (const auto& other : others) {
    std::array<std::string, 4> texts;
    support::on_threads<>{}.run(4, [&](pl::thread_communicator& world, pl::host_backend& backend) {
      // Rank 3 differs from rank 1; ranks 0 and 2 agree.
      pl::thread_communicator pair = world.split(world.rank() % 2, world.rank());
      const std::array<adamw_type::list, 1> lists{{{&pair, world.rank() == 3 ? other : usual}}};
      pl::sharded_adamw_shape shape;
      shape.update.bucket_elements = 5000;
      pl::workspace<pl::host_backend> space(
          backend, adamw_type::working_set_of(shape, std::array<pl::sharded_list, 1>{lists[0].sizes()}, 4));
      try {
        const adamw_type adamw(backend, world, lists, shape, space);
      } catch (const pl::collective_error& e) {
        texts[static_cast<std::size_t>(world.rank())] = e.what();
      }
    });
    for (const std::string& text : texts) {
      CAPTURE(text);
      CHECK(text.find("rank 3 against rank 1") != std::string::npos);
      CHECK(text.find("2 tensors of 20005 elements") != std::string::npos);
    }
  }
}

TEST_CASE("the steps of a tensor are those that were made") {
  adamw_case c;
  c.ranks = 2;
  c.group = 1;
  c.steps = 4;
  c.stopped = 1;
  for (const rank_state& r : run_case<float>(c, support::on_threads<>{}))
    for (const list_state& l : r.lists) {
      CHECK((l.shard.elements == 0) == l.steps.empty());
      for (const std::int64_t n : l.steps) CHECK(n == 3);
    }
}
