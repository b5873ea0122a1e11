// SPDX-License-Identifier: Apache-2.0
//
// The concepts and their probes: the archetypes satisfy them, whatever lacks one thing fails the one probe
// that asks for it and no other, and the library's own backends are no less than the archetype.
#include <contract/archetype_backend.hpp>
#include <contract/archetype_communicator.hpp>
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>
#include <plateau/concepts.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/host/thread_communicator.hpp>
#include <plateau/tensor_traits.hpp>

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <vector>

namespace pl = plateau;
namespace nm = near_misses;

namespace {

// The names of the probes that B fails.
template <class B> std::string failed_probes() {
  namespace p = pl::probe;
  std::string failed;
  const auto probe = [&](bool holds, const char* name) { failed += holds ? "" : std::string(name) + " "; };
  probe(p::types<B>, "types");
  probe(p::resources<B>, "resources");
  probe(p::streams<B>, "streams");
  probe(p::records<B>, "records");
  probe(p::waits<B>, "waits");
  probe(p::copies<B>, "copies");
  probe(p::launches_elements<B>, "launches_elements");
  probe(p::launches_rows<B>, "launches_rows");
  probe(p::multiplies<B>, "multiplies");
  probe(p::multiplies_batches<B>, "multiplies_batches");
  probe(p::multiplies_groups<B>, "multiplies_groups");
  probe(p::groups_by_key<B>, "groups_by_key");
  probe(p::scans<B>, "scans");
  probe(p::runs_host_tasks<B>, "runs_host_tasks");
  probe(p::fetches<B>, "fetches");
  probe(p::counts<B>, "counts");
  CHECK(pl::backend<B> == failed.empty());
  return failed;
}
template <class C> std::string failed_communicator_probes() {
  namespace p = pl::probe;
  using B = archetypes::archetype_backend;
  std::string failed;
  const auto probe = [&](bool holds, const char* name) { failed += holds ? "" : std::string(name) + " "; };
  probe(p::ranks<C>, "ranks");
  probe(p::splits<C>, "splits");
  probe(p::exchanges<C, B>, "exchanges");
  probe(p::exchanges_integers<C>, "exchanges_integers");
  probe(p::closes_steps<C>, "closes_steps");
  probe(p::latches<C>, "latches");
  probe(p::counts<C>, "counts");
  CHECK(pl::communicator<C, B> == failed.empty());
  return failed;
}

} // namespace

TEST_CASE("the archetypes and the library's own are models") {
  static_assert(pl::backend<archetypes::archetype_backend> &&
                pl::check_backend<archetypes::archetype_backend>());
  static_assert(pl::communicator<archetypes::archetype_communicator, archetypes::archetype_backend>);
  static_assert(pl::check_communicator<archetypes::archetype_communicator, archetypes::archetype_backend>());
  static_assert(pl::backend<pl::host_backend> && pl::check_backend<pl::host_backend>());
  static_assert(pl::check_communicator<pl::thread_communicator, pl::host_backend>());
  static_assert(!pl::backend<int> && !pl::communicator<int, pl::host_backend>);
  // Streams of one backend are not those of another.
  static_assert(!pl::communicator<pl::thread_communicator, archetypes::archetype_backend>);
  CHECK(failed_probes<archetypes::archetype_backend>() == "");
  CHECK(failed_communicator_probes<archetypes::archetype_communicator>() == "");
}

TEST_CASE("a backend that lacks one thing fails one probe") {
  CHECK(failed_probes<nm::immovable_streams>() == "types ");
  CHECK(failed_probes<nm::no_default_event>() == "types ");
  CHECK(failed_probes<nm::unaccounted_device>() == "resources ");
  CHECK(failed_probes<nm::unaccounted_host>() == "resources ");
  CHECK(failed_probes<nm::foreign_device_space>() == "resources ");
  CHECK(failed_probes<nm::no_adopt>() == "resources ");
  CHECK(failed_probes<nm::device_by_value>() == "resources ");
  CHECK(failed_probes<nm::anonymous_streams>() == "streams ");
  CHECK(failed_probes<nm::no_record>() == "records ");
  CHECK(failed_probes<nm::host_waits_only>() == "waits ");
  CHECK(failed_probes<nm::stream_waits_only>() == "waits ");
  CHECK(failed_probes<nm::copies_no_tiles>() == "copies ");
  CHECK(failed_probes<nm::copies_within_one_space>() == "copies ");
  CHECK(failed_probes<nm::launches_no_elements>() == "launches_elements ");
  CHECK(failed_probes<nm::launches_no_rows>() == "launches_rows ");
  CHECK(failed_probes<nm::multiplies_batches_only>() == "multiplies ");
  CHECK(failed_probes<nm::multiplies_one_type_only>() == "multiplies ");
  CHECK(failed_probes<nm::multiplies_narrow_into_wide_only>() == "multiplies ");
  CHECK(failed_probes<nm::batches_of_one_type>() == "multiplies_batches ");
  CHECK(failed_probes<nm::batches_into_wide>() == "multiplies_batches ");
  CHECK(failed_probes<nm::groups_of_one_type>() == "multiplies_groups ");
  CHECK(failed_probes<nm::groups_into_wide>() == "multiplies_groups ");
  CHECK(failed_probes<nm::never_accumulates>() == "multiplies ");
  CHECK(failed_probes<nm::unknown_gemm_scratch>() == "multiplies ");
  CHECK(failed_probes<nm::unknown_row_invariance>() == "multiplies ");
  CHECK(failed_probes<nm::multiplies_tiles_only>() == "multiplies_batches ");
  CHECK(failed_probes<nm::no_grouped_gemm>() == "multiplies_groups ");
  CHECK(failed_probes<nm::groups_wide_keys_only>() == "groups_by_key ");
  CHECK(failed_probes<nm::unknown_grouping_scratch>() == "groups_by_key ");
  CHECK(failed_probes<nm::scans_without_scratch>() == "scans ");
  CHECK(failed_probes<nm::unknown_scan_scratch>() == "scans ");
  CHECK(failed_probes<nm::no_host_task>() == "runs_host_tasks ");
  CHECK(failed_probes<nm::fetches_without_dry_answer>() == "fetches ");
  CHECK(failed_probes<nm::fetches_always_with_dry_answer>() == "fetches ");
  CHECK(failed_probes<nm::no_counters>() == "counts ");
  CHECK(failed_probes<nm::counters_of_non_const>() == "counts ");
}

TEST_CASE("a communicator that lacks one thing fails one probe") {
  CHECK(failed_communicator_probes<nm::rank_is_long>() == "ranks ");
  CHECK(failed_communicator_probes<nm::size_of_non_const>() == "ranks ");
  CHECK(failed_communicator_probes<nm::splits_into_nothing>() == "splits ");
  CHECK(failed_communicator_probes<nm::nameless_exchange>() == "exchanges ");
  CHECK(failed_communicator_probes<nm::nameless_host_exchange>() == "exchanges_integers ");
  CHECK(failed_communicator_probes<nm::never_closes>() == "closes_steps ");
  CHECK(failed_communicator_probes<nm::aborts_without_cause>() == "closes_steps ");
  CHECK(failed_communicator_probes<nm::exchanges_spans_only>() == "exchanges ");
  CHECK(failed_communicator_probes<nm::latches_texts>() == "latches ");
  CHECK(failed_communicator_probes<nm::counts_nothing>() == "counts ");
}

// --- resources ---

namespace {
struct plain_resource {
  using space = pl::device_space;
  void* allocate(std::size_t, std::size_t, pl::tag);
  void deallocate(void*, std::size_t, std::size_t, pl::tag) noexcept;
};
struct typed_allocation : plain_resource {
  float* allocate(std::size_t, std::size_t, pl::tag);
};
struct no_allocation : plain_resource {
  void allocate();
};
struct meter_by_value : archetypes::memory<pl::device_space> {
  int meter();
};
struct retires_or_throws : archetypes::memory<pl::device_space> {
  void retire(void*, std::size_t);
};
} // namespace

TEST_CASE("resources: the archetypes and what lacks one thing") {
  static_assert(pl::memory_resource<plain_resource> && !pl::metered_resource<plain_resource>);
  static_assert(pl::metered_resource<pl::metered<pl::ram_resource<pl::host_space>>>);
  static_assert(pl::metered_resource<archetypes::memory<pl::host_space>>);
  static_assert(!pl::memory_resource<typed_allocation> && !pl::memory_resource<no_allocation>);
  static_assert(!pl::metered_resource<meter_by_value> && !pl::metered_resource<retires_or_throws>);
}

// --- tensors ---

namespace {
struct archetype_tensor {
  archetype_tensor() = delete;
  archetype_tensor(const archetype_tensor&) = delete;
  explicit archetype_tensor(float* p) : data(p) {}
  float* data;
};
struct traits_of_archetype {
  using element_type = float;
  using space = pl::host_space;
  static constexpr int rank = 2;
  static float* data(const archetype_tensor& t) { return t.data; }
  static pl::index_t extent(const archetype_tensor&, int d) { return d == 0 ? 2 : 3; }
  static pl::index_t stride(const archetype_tensor&, int d) { return d == 0 ? 4 : 1; }
};
template <int> struct lacking {};
} // namespace

template <> struct plateau::tensor_traits<archetype_tensor> : traits_of_archetype {};
template <> struct plateau::tensor_traits<lacking<0>> : traits_of_archetype { // the element type is another
  using element_type = double;
  static float* data(const lacking<0>&);
  static pl::index_t extent(const lacking<0>&, int);
  static pl::index_t stride(const lacking<0>&, int);
};
template <> struct plateau::tensor_traits<lacking<1>> { // no space
  using element_type = float;
  [[maybe_unused]] static constexpr int rank = 1;
  static float* data(const lacking<1>&);
  static pl::index_t extent(const lacking<1>&, int);
  static pl::index_t stride(const lacking<1>&, int);
};
template <> struct plateau::tensor_traits<lacking<2>> : traits_of_archetype { // no stride
  static float* data(const lacking<2>&);
  static pl::index_t extent(const lacking<2>&, int);
};
template <> struct plateau::tensor_traits<lacking<3>> : traits_of_archetype { // extent of what is not const
  static float* data(const lacking<3>&);
  static pl::index_t extent(lacking<3>&, int);
  static pl::index_t stride(const lacking<3>&, int);
};
template <>
struct plateau::tensor_traits<lacking<4>> : traits_of_archetype { // complete: the others are near misses
  static float* data(const lacking<4>&);
  static pl::index_t extent(const lacking<4>&, int);
  static pl::index_t stride(const lacking<4>&, int);
};

TEST_CASE("tensors: the archetype is read through its traits alone, and what lacks one is none") {
  static_assert(pl::tensor<archetype_tensor> && pl::tensor<lacking<4>> && pl::tensor<std::vector<float>>);
  static_assert(!pl::tensor<lacking<0>> && !pl::tensor<lacking<1>> && !pl::tensor<lacking<2>> &&
                !pl::tensor<lacking<3>> && !pl::tensor<int>);
  float storage[8] = {};
  const archetype_tensor t(storage);
  const auto m = pl::as_tile(t);
  static_assert(std::is_same_v<decltype(m), const pl::tile<float, pl::host_space>>);
  CHECK((m.p == storage && m.rows == 2 && m.cols == 3 && m.ld == 4));
}
