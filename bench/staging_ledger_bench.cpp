// SPDX-License-Identifier: Apache-2.0
//
// The worked case of staging_ledger.hpp. Nothing here is measured: the same program gives the same figures on
// any machine.
#include "staging_ledger.hpp"

#include <plateau/dry_run/presets.hpp>

int main(int, char** argv) {
  bench::table table(argv);
  bench::staging_ledger(plateau::h200()).print(table);
}
