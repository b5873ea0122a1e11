// SPDX-License-Identifier: Apache-2.0
//
// What the meters count, what a dry run foretells, and what the driver says is gone, of training steps on a
// GPU. The first two are equal to the byte, on any number of ranks. The driver may round each allocation up,
// and takes nothing else.
#include "moe/dry_run_peaks.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>
#include <plateau/meter.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include <cuda_runtime.h>

namespace pl = plateau;

namespace {

std::size_t free_bytes() {
  std::size_t bytes = 0, all = 0;
  REQUIRE(cudaMemGetInfo(&bytes, &all) == cudaSuccess);
  return bytes;
}

// Asks the driver at each change what is gone since `before` bytes were free.
class driver_bytes final : public pl::meter_observer {
 public:
  explicit driver_bytes(std::size_t before) : before_(before) {}
  void held(pl::tag t, std::size_t bytes) noexcept override {
    held_[static_cast<std::size_t>(t)] = bytes;
    counted = std::max(counted, std::accumulate(held_.begin(), held_.end(), std::size_t{0}));
    std::size_t now = 0, all = 0;
    if (cudaMemGetInfo(&now, &all) == cudaSuccess && now <= before_) taken = std::max(taken, before_ - now);
  }
  void phase(const char*) noexcept override {}

  std::size_t counted = 0, taken = 0; // the highest of each

 private:
  std::size_t before_;
  std::array<std::size_t, pl::tag_count> held_{};
};

test::training_case large_case() {
  test::training_case c;
  c.config.layers = 2;
  c.config.hidden = 64;
  c.config.heads = 4;
  c.config.kv_heads = 2;
  c.config.experts = 8;
  c.config.top_k = 2;
  c.config.intermediate = 128;
  c.config.vocabulary = 4096;
  c.settings.context = 64;
  c.settings.batch = 4;
  c.settings.steps = 10;
  return c;
}

} // namespace

TEST_CASE("fp32: peaks, allocations and counters of the GPU's ranks are those of the dry run") {
  test::check_grid<float, pl::cuda_backend, pl::cuda_thread_communicator>(3, 1);
}
TEST_CASE("bf16: peaks, allocations and counters of the GPU's ranks are those of the dry run") {
  test::check_grid<pl::bfloat16, pl::cuda_backend, pl::cuda_thread_communicator>(2, 2);
}

TEST_CASE("the driver takes what the meter counts, each allocation rounded up") {
  const test::training_case c = large_case();
  const moe::corpus text = test::random_text(c.config.vocabulary, 4000, 1);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  pl::run_ranks<pl::cuda_thread_communicator>(1, [&](pl::cuda_thread_communicator& world) {
    pl::cuda_backend backend;
    const auto steps = [&] {
      moe::trainer<pl::cuda_backend, pl::cuda_thread_communicator, float> train(backend, world, c.config,
                                                                                c.grid, c.settings);
      train.initialise(1);
      for (int step = 0; step < 2; ++step) train.run_step(sampler, step);
    };
    steps(); // kernels and libraries take their own memory when they are used first
    const std::uint64_t allocations = backend.device().meter().allocations();
    const std::size_t before = free_bytes();
    driver_bytes driver(before);
    backend.device().meter().observe(&driver);
    steps();
    backend.device().meter().observe(nullptr);
    const std::uint64_t made = backend.device().meter().allocations() - allocations;
    MESSAGE("driver: ", driver.taken, " bytes taken, ", driver.counted, " counted, in ", made,
            " allocations");
    CHECK(driver.counted == backend.device().meter().peak().bytes);
    // The driver hands out memory by blocks of 2 MiB; small requests may fit into one that is there already.
    constexpr std::size_t block = std::size_t{2} << 20;
    CHECK(driver.taken + 2 * block >= driver.counted);
    CHECK(driver.taken <= driver.counted + made * block);
    CHECK(free_bytes() >= before);
  });
}
