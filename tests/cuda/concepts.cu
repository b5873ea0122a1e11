// SPDX-License-Identifier: Apache-2.0
//
// The concepts, their sentences and the code that is generic over backends, under nvcc: the same archetypes
// as tests/contract/archetype_test.cpp, compiled only.
#include <contract/archetype_backend.hpp>
#include <contract/archetype_communicator.hpp>
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>
#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/concepts.hpp>
#include <plateau/drain.hpp>
#include <plateau/vote.hpp>
#include <plateau/workspace.hpp>

namespace pl = plateau;
using archetypes::archetype_backend;
using archetypes::archetype_communicator;

static_assert(pl::backend<archetype_backend> && pl::check_backend<archetype_backend>());
static_assert(pl::communicator<archetype_communicator, archetype_backend>);
static_assert(pl::check_communicator<archetype_communicator, archetype_backend>());
static_assert(!pl::backend<near_misses::no_record> && !pl::probe::records<near_misses::no_record>);
static_assert(!pl::backend<near_misses::copies_within_one_space> &&
              !pl::probe::copies<near_misses::copies_within_one_space>);
static_assert(!pl::backend<near_misses::multiplies_one_type_only> &&
              pl::probe::multiplies_batches<near_misses::multiplies_one_type_only>);

template class pl::workspace<archetype_backend>;
template class pl::drain<archetype_backend>;

void generic_over_backends(archetype_backend& backend, archetype_communicator& comm,
                           archetypes::stream& stream, pl::view<float> x, pl::scratch_view scratch,
                           std::span<const pl::index_t> counts) {
  pl::column_sum(backend, stream, pl::in(pl::as_matrix(x, 1, x.n)), pl::inout(x), scratch);
  pl::all_gather(backend, comm, stream, pl::in(x), pl::out(x), counts);
  pl::reduce_scatter(backend, comm, stream, pl::in(x), pl::out(x), counts, scratch);
  pl::all_reduce(backend, comm, stream, pl::inout(x), scratch);
  pl::all_reduce(backend, comm, stream, pl::inout(pl::view<pl::bfloat16>{}), scratch);
  comm.exchange(stream, {pl::send_to(0, x)}, {pl::receive_from(2, x)});
  pl::vote(comm, 7, nullptr, "archetype");
  pl::close_step(backend, comm, stream);
}
