// SPDX-License-Identifier: Apache-2.0
//
// Operations of an exchange as the messages that carry them. What lies adjacent in the receiver's memory is
// one message, up to a largest size; the sender is told where the cuts are and gathers its own pieces to fit.
// So both sides agree on the messages whatever their layouts, and contiguous memory goes in one.
#pragma once

#include <plateau/config.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace plateau::inline v0::mpi {

struct piece {
  unsigned char* p;
  std::size_t bytes;
};

// Calls message(p, bytes) for each message that receives these pieces.
template <class Message>
void each_message(std::span<const piece> pieces, std::size_t largest, Message message) {
  for (std::size_t i = 0; i < pieces.size();) {
    unsigned char* p = pieces[i].p;
    std::size_t bytes = pieces[i].bytes;
    for (++i; i < pieces.size() && pieces[i].p == p + bytes; ++i) bytes += pieces[i].bytes;
    for (; bytes > largest; bytes -= largest, p += largest) message(p, largest);
    message(p, bytes);
  }
}

// Hands out pieces in portions of given sizes, whatever their own.
class piece_reader {
 public:
  explicit piece_reader(std::span<const piece> pieces) : pieces_(pieces) {}

  // Calls block(p, bytes) for each stretch of adjacent memory among the next `bytes` bytes, or what is left.
  template <class Block> void next(std::size_t bytes, Block block) {
    piece run{nullptr, 0};
    while (bytes != 0 && !pieces_.empty()) {
      unsigned char* p = pieces_.front().p + used_;
      const std::size_t n = std::min(bytes, pieces_.front().bytes - used_);
      used_ += n;
      bytes -= n;
      if (used_ == pieces_.front().bytes) {
        pieces_ = pieces_.subspan(1);
        used_ = 0;
      }
      if (run.bytes != 0 && run.p + run.bytes == p) {
        run.bytes += n;
        continue;
      }
      if (run.bytes != 0) block(run.p, run.bytes);
      run = {p, n};
    }
    if (run.bytes != 0) block(run.p, run.bytes);
  }

 private:
  std::span<const piece> pieces_;
  std::size_t used_ = 0; // bytes of the first
};

} // namespace plateau::inline v0::mpi
