// SPDX-License-Identifier: Apache-2.0
//
// What every backend must do, beyond the signatures that the concept asks for. A backend is held to it by a
// few lines:
//
//   TEST_CASE("my_backend") {
//     backend_contract::everything<my_backend>({[] { return std::make_unique<my_backend>(); }});
//   }
//
// One that has no data is held to without_data alone.
#pragma once

#include "backend_grouping.hpp"
#include "backend_memory.hpp"
#include "backend_moves.hpp"
#include "backend_order.hpp"
#include "backend_products.hpp"
#include "backend_rig.hpp"

#include <plateau/checks.hpp>

namespace backend_contract {

template <class Backend> void everything(const subject<Backend>& under_test) {
  static_assert(pl::check_backend<Backend>());
  SUBCASE("sizes of 0 do nothing") { nothing_is_done(under_test); }
  SUBCASE("launches visit every index once, in stream order") { launches(under_test); }
  SUBCASE("row kernels reduce and meet at barriers") { row_kernels(under_test); }
  SUBCASE("copies reach what they name and no more") { copies(under_test); }
  SUBCASE("moves that do not fit are refused") { refusals_of_moves(under_test); }
  SUBCASE("products") { products(under_test); }
  SUBCASE("products in batches") { batched_products(under_test); }
  SUBCASE("products in groups") { grouped_products(under_test); }
  SUBCASE("products that do not fit are refused") { refusals_of_products(under_test); }
  SUBCASE("bits of products") { bits_of_products(under_test); }
  SUBCASE("grouping by key") { grouping(under_test); }
  SUBCASE("groupings that do not fit are refused") { refusals_of_grouping(under_test); }
  SUBCASE("scans") { scans(under_test); }
  SUBCASE("scans that do not fit are refused") { refusals_of_scans(under_test); }
  SUBCASE("column sums") { column_sums(under_test); }
  SUBCASE("streams, events and host tasks") { stream_order(under_test); }
  SUBCASE("fetch waits and is counted") { fetching(under_test); }
  SUBCASE("failures surface where one waits for what they spoiled") { failures(under_test); }
  SUBCASE("failures of kernels") { failing_kernels(under_test); }
  SUBCASE("identical runs give identical bits") { identical_runs(under_test); }
  SUBCASE("memory is metered") { resources(under_test); }
  SUBCASE("repeated shapes allocate nothing") { steady_state(under_test); }
}

// The parts in which no value is looked at. The rest is about what kernels, copies, products, tasks and
// fetches do to data, and when.
template <class Backend> void without_data(const subject<Backend>& under_test) {
  static_assert(pl::check_backend<Backend>());
  SUBCASE("sizes of 0 are not counted") { nothing_is_counted(under_test); }
  SUBCASE("moves that do not fit are refused") { refusals_of_moves(under_test); }
  SUBCASE("products that do not fit are refused") { refusals_of_products(under_test); }
  SUBCASE("groupings that do not fit are refused") { refusals_of_grouping(under_test); }
  SUBCASE("scans that do not fit are refused") { refusals_of_scans(under_test); }
  SUBCASE("memory is metered") { resources(under_test); }
  SUBCASE("repeated shapes allocate nothing") { steady_state(under_test); }
}

} // namespace backend_contract
