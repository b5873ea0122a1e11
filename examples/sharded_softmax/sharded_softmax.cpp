// SPDX-License-Identifier: Apache-2.0
//
// Four ranks have a quarter of the columns of a matrix each, and want the softmax of its rows: all of the
// rule is in sharded_softmax.hpp, which rotates 8 bytes a row. Prints how far it is from the same on one
// rank, and the bytes that each rank sent.
#include "sharded_softmax.hpp"

#include <plateau/plateau.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <vector>

namespace pl = plateau;
using pl::index_t;

constexpr int group = 4;
constexpr index_t rows = 512, columns = 4096, hop_rows = 64;

int main() {
  const auto at = [](index_t n) { return static_cast<std::size_t>(n); };
  std::vector<float> z(at(rows * columns)), p(z.size());
  for (std::size_t i = 0; i < z.size(); ++i) z[i] = static_cast<float>(i * 7919 % 4001) / 200.0F - 10.0F;

  std::vector<std::uint64_t> sent(group);
  pl::run_ranks(group, [&](pl::thread_communicator& comm) {
    pl::host_backend backend;
    const index_t mine = columns / group, first = mine * comm.rank(); // columns of a rank
    example::sharded_softmax(backend, comm, pl::tile<const float>{z.data() + first, rows, mine, columns},
                             pl::tile<float>{p.data() + first, rows, mine, columns}, hop_rows);
    sent[at(comm.rank())] = comm.counters().sent_bytes;
  });

  double apart = 0;
  for (index_t r = 0; r < rows; ++r) {
    const float* row = z.data() + r * columns;
    double sum = 0;
    for (index_t c = 0; c < columns; ++c) sum += std::exp(static_cast<double>(row[c]));
    for (index_t c = 0; c < columns; ++c) {
      const double expected = std::exp(static_cast<double>(row[c])) / sum;
      const double found = static_cast<double>(p[at(r * columns + c)]);
      apart = std::max(apart, std::fabs(found / expected - 1));
    }
  }
  std::cout << "probabilities are apart by " << apart << " of themselves\n"
            << "a rank sent " << *std::max_element(sent.begin(), sent.end()) << " bytes; its columns are "
            << rows * columns / group * 4 << '\n';
  return apart < 1e-5 ? 0 : 1;
}
