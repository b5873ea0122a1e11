// SPDX-License-Identifier: Apache-2.0
//
// Peaks as plain data: taken from a meter, compared, and told to people.
#include <plateau/dry_run/memory_peaks.hpp>

#include <doctest/doctest.h>

#include <sstream>

namespace pl = plateau;

TEST_CASE("peaks of a meter: what was held at the highest point, and the most of each tag") {
  pl::meter m("device");
  m.phase("construction");
  m.charge(pl::tag::parameters, 100);
  m.phase("loss");
  m.charge(pl::tag::vocabulary, 50);
  m.release(pl::tag::vocabulary, 50);
  m.phase("update");
  m.charge(pl::tag::optimizer, 20);
  const pl::memory_peaks p = pl::memory_peaks::of(m);
  m.charge(pl::tag::other, 1000); // the copy stays as it is
  CHECK(p.total.bytes == 150);
  CHECK(p == p);
  CHECK_FALSE(p == pl::memory_peaks::of(m));

  std::ostringstream out;
  pl::write_peaks(out, "rank 3, device", p);
  CHECK(out.str() == "rank 3, device: 150 bytes at the peak, in loss\n"
                     "  parameters               100 then              100 at most, in construction\n"
                     "  vocabulary                50 then               50 at most, in loss\n"
                     "  optimizer                  0 then               20 at most, in update\n");
}

TEST_CASE("peaks of a meter that never held a byte") {
  std::ostringstream out;
  pl::write_peaks(out, "rank 0, pinned", pl::memory_peaks::of(pl::meter("host")));
  CHECK(out.str() == "rank 0, pinned: 0 bytes at the peak\n");
}
