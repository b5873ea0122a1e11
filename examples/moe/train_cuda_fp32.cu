// SPDX-License-Identifier: Apache-2.0
#include "cuda_ranks.hpp"

#include <plateau/cuda/device.hpp>
#include <plateau/error.hpp>

#include <string>
#include <string_view>

std::optional<moe::run_result> moe::train_cuda_fp32(const training_job& job) {
  return run_on_cuda<float>(job);
}

void moe::check_cuda() {
  try {
    plateau::cudart::open_device("", 0);
  } catch (const plateau::backend_error& error) {
    std::string why = error.what();
    if (why.rfind("plateau: ", 0) == 0) why.erase(0, 9);
    constexpr std::string_view library = "use host_backend", program = "use --backend host";
    if (const auto at = why.find(library); at != std::string::npos) why.replace(at, library.size(), program);
    throw plateau::backend_error("--backend cuda: " + why);
  }
}
