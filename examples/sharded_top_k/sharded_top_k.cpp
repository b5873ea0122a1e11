// SPDX-License-Identifier: Apache-2.0
//
// Four ranks have a quarter of the columns of a matrix each, and want the five largest of every row; many
// values are equal. All of the rule is in sharded_top_k.hpp. Prints whether it is what sorting whole rows
// gives, and the bytes that each rank sent.
#include "sharded_top_k.hpp"

#include <plateau/plateau.hpp>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <vector>

namespace pl = plateau;
using pl::index_t;

constexpr int group = 4, k = 5;
constexpr index_t rows = 512, columns = 4096, hop_rows = 64;

int main() {
  const auto at = [](index_t n) { return static_cast<std::size_t>(n); };
  std::vector<float> z(at(rows * columns));
  for (std::size_t i = 0; i < z.size(); ++i) z[i] = static_cast<float>(i * 7919 % 401); // each often

  std::vector<std::vector<float>> values(group, std::vector<float>(at(rows * k)));
  std::vector<std::vector<std::int64_t>> found(group, std::vector<std::int64_t>(at(rows * k)));
  std::vector<std::uint64_t> sent(group);
  pl::run_ranks(group, [&](pl::thread_communicator& comm) {
    pl::host_backend backend;
    const std::size_t me = at(comm.rank());
    const index_t mine = columns / group, first = mine * comm.rank(); // columns of a rank
    example::sharded_top_k<k>(backend, comm, pl::tile<const float>{z.data() + first, rows, mine, columns},
                              first, pl::view<float>{values[me].data(), rows * k},
                              pl::view<std::int64_t>{found[me].data(), rows * k}, hop_rows);
    sent[me] = comm.counters().sent_bytes;
  });

  index_t wrong = 0;
  for (index_t r = 0; r < rows; ++r) {
    const float* row = z.data() + r * columns;
    std::vector<std::int64_t> order(at(columns));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return row[a] > row[b]; });
    for (std::size_t rank = 0; rank < group; ++rank)
      for (index_t i = 0; i < k; ++i)
        wrong +=
            found[rank][at(r * k + i)] != order[at(i)] || values[rank][at(r * k + i)] != row[order[at(i)]];
  }
  std::cout << wrong << " of " << group * rows * k << " differ from sorting whole rows\n"
            << "a rank sent " << *std::max_element(sent.begin(), sent.end()) << " bytes; its columns are "
            << rows * columns / group * 4 << '\n';
  return wrong == 0 ? 0 : 1;
}
