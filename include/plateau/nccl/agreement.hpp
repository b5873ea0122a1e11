// SPDX-License-Identifier: Apache-2.0
//
// What ranks tell one another before a communicator of NCCL's is made: NCCL itself hangs, or says something
// about its insides, when they do not fit together. Whatever is found, all ranks get the same error, and the
// host channel stays usable.
#pragma once

#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/cuda/device.hpp>
#include <plateau/error.hpp>
#include <plateau/majority.hpp>
#include <plateau/nccl/check.hpp>
#include <plateau/nccl/host_channel.hpp>
#include <plateau/nccl/options.hpp>
#include <plateau/vote.hpp>

#include <cuda_runtime.h>
#include <nccl.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plateau::inline v0::nccl {

inline constexpr const char* making = "nccl_communicator";
inline constexpr int oldest_nccl = 21'800; // 2.18: ncclCommSplit, and calls that do not block

struct introduction {
  std::int64_t nccl = 0, driver = 0; // versions
  std::int64_t device = 0;           // its number on this rank
  std::array<std::int64_t, 2> uuid{};
  std::int64_t adopts = 0, checks_sizes = 0;

  static constexpr std::size_t words = 7;
};
static_assert(sizeof(introduction) == introduction::words * sizeof(std::int64_t));

// This rank's. `adopted`: the communicator to adopt, if there is one. Throws what is wrong on this rank
// alone.
inline introduction introduce(const channel_ranks& ranks, std::optional<ncclComm_t> adopted,
                              const nccl_options& with) {
  const std::string rank = "rank " + std::to_string(ranks.origin_rank(ranks.rank()));
  int device = 0, version = 0, driver = 0;
  if (cudaGetDevice(&device) != cudaSuccess) static_cast<void>(cudaGetLastError()); // said better by the next
  cudart::open_device(rank.c_str(), device);
  check(ncclGetVersion(&version), "ncclGetVersion");
  if (version < oldest_nccl)
    throw config_error("plateau: " + rank + ": NCCL " + version_text(version) +
                       " is loaded, nccl_communicator needs 2.18 or newer: see LD_LIBRARY_PATH");
  // NCCL lets the environment overrule what a program asks for.
  if (const char* blocking = std::getenv("NCCL_COMM_BLOCKING");
      !adopted && blocking != nullptr && *blocking != '\0' && std::string_view(blocking) != "0")
    throw config_error("plateau: " + rank + ": NCCL_COMM_BLOCKING=" + blocking +
                       " is in the environment: calls of NCCL would then block, and nothing could end one "
                       "whose peers do not come: unset it");
  cudart::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  cudaDeviceProp properties;
  cudart::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");

  introduction own;
  own.nccl = version;
  own.driver = driver;
  own.device = device;
  static_assert(sizeof properties.uuid == sizeof own.uuid);
  std::memcpy(own.uuid.data(), &properties.uuid, sizeof own.uuid);
  own.adopts = adopted ? 1 : 0;
  own.checks_sizes = with.check_sizes ? 1 : 0;
  if (!adopted) return own;
  const ncclComm_t theirs = *adopted;
  if (theirs == nullptr) throw config_error("plateau: " + rank + ": the adopted ncclComm_t is null");

  int its_rank = 0, its_size = 0, its_device = 0;
  check(ncclCommUserRank(theirs, &its_rank), "ncclCommUserRank", theirs);
  check(ncclCommCount(theirs, &its_size), "ncclCommCount", theirs);
  check(ncclCommCuDevice(theirs, &its_device), "ncclCommCuDevice", theirs);
  if (its_rank != ranks.rank() || its_size != ranks.size())
    throw config_error("plateau: " + rank + ": the adopted ncclComm_t says rank " + std::to_string(its_rank) +
                       " of " + std::to_string(its_size) + ", the host channel says rank " +
                       std::to_string(ranks.rank()) + " of " + std::to_string(ranks.size()));
  if (its_device != device)
    throw config_error("plateau: " + rank + ": the adopted ncclComm_t is of CUDA device " +
                       std::to_string(its_device) + ", but device " + std::to_string(device) +
                       " is the current one: call cudaSetDevice first");
  return own;
}

namespace detail {
// "2.28.9 on rank 0, 2, but 2.27.1 on rank 1"
template <class ValueOf, class TextOf>
void must_agree(const channel_ranks& ranks, const char* that, ValueOf value_of, TextOf text_of) {
  const int odd = first_outlier(ranks.size(), value_of);
  if (odd < 0) return;
  const auto who = [&](int like) {
    std::string list;
    for (int r = 0; r < ranks.size(); ++r)
      if (value_of(r) == value_of(like))
        list += (list.empty() ? " on rank " : ", ") + std::to_string(ranks.origin_rank(r));
    return text_of(like) + list;
  };
  throw collective_error(ranks.origin_rank(odd), making, ranks.sequence() - 1,
                         "ranks " + std::string(that) + ": " + who(majority_rank(ranks.size(), value_of)) +
                             ", but " + who(odd));
}
inline std::string uuid_text(const std::array<std::int64_t, 2>& uuid) {
  unsigned char bytes[16];
  std::memcpy(bytes, uuid.data(), sizeof bytes);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", unsigned{bytes[i]});
    text += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(two);
  }
  return text;
}
} // namespace detail

// Collective. Returns what this rank has said; throws collective_error on all ranks when one has failed, or
// when they do not fit together.
inline introduction agree(channel_ranks& ranks, std::optional<ncclComm_t> adopted, const nccl_options& with) {
  introduction own;
  std::optional<failure> mine;
  try {
    own = introduce(ranks, adopted, with);
  } catch (...) {
    mine = failure::current();
  }
  vote(ranks, 0, mine ? &*mine : nullptr, making);

  std::vector<introduction> all(static_cast<std::size_t>(ranks.size()));
  ranks.host_exchange({reinterpret_cast<const std::int64_t*>(&own), introduction::words},
                      {reinterpret_cast<std::int64_t*>(all.data()), introduction::words * all.size()},
                      making);
  const auto of = [&](int r) -> const introduction& { return all[static_cast<std::size_t>(r)]; };
  detail::must_agree(
      ranks, "use different versions of NCCL", [&](int r) { return of(r).nccl; },
      [&](int r) { return version_text(static_cast<int>(of(r).nccl)); });
  detail::must_agree(
      ranks, "have CUDA drivers of different versions", [&](int r) { return of(r).driver; },
      [&](int r) { return cudart::version_text(static_cast<int>(of(r).driver)); });
  detail::must_agree(
      ranks, "disagree on whose communicator it is", [&](int r) { return of(r).adopts; },
      [&](int r) { return std::string(of(r).adopts != 0 ? "adopted" : "to be made"); });
  detail::must_agree(
      ranks, "have different nccl_options::check_sizes", [&](int r) { return of(r).checks_sizes; },
      [&](int r) { return std::string(of(r).checks_sizes != 0 ? "true" : "false"); });
  for (int r = 1; r < ranks.size(); ++r)
    for (int q = 0; q < r; ++q)
      if (of(q).uuid == of(r).uuid)
        throw collective_error(
            ranks.origin_rank(r), making, ranks.sequence() - 1,
            "rank " + std::to_string(ranks.origin_rank(q)) + " and rank " +
                std::to_string(ranks.origin_rank(r)) + " are both on " + detail::uuid_text(of(r).uuid) +
                " (CUDA device " + std::to_string(of(q).device) + " and " + std::to_string(of(r).device) +
                " of theirs), but NCCL takes one rank for each GPU: call cudaSetDevice with a number of its "
                "own on each, or use cuda_thread_communicator for ranks that share a GPU");
  return own;
}

} // namespace plateau::inline v0::nccl
