// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: handles of cuBLAS, with their stream, workspace and math mode.
#pragma once

#include <cublas_api.h>
#include <cuda_stand_in/calls.hpp>
#include <cuda_stand_in/library.hpp>

#include <memory>
#include <string>

struct cublasContext {
  int device = 0;
  cudaStream_t stream = nullptr;
  // Empty: a pool of the library's own, which is on no account of the caller's.
  cuda_stand_in::span_of_bytes workspace{};
  bool own_pool = true;
};

namespace cuda_stand_in {

inline registry<cublasContext>& blas_handles() {
  static auto* const all = [] {
    here().at_exit.push_back([] {
      if (blas_handles().living() != 0)
        report("at the end there still are " + std::to_string(blas_handles().living()) +
               " handles of cuBLAS");
    });
    return new registry<cublasContext>;
  }();
  return *all;
}
inline void give_blas_handles_back() {
  blas_handles().take_all([](cublasContext&) {});
}
// How many products took their workspace from the library's own pool.
inline std::atomic<std::uint64_t>& products_in_own_pool() {
  static auto* const count = new std::atomic<std::uint64_t>{0};
  return *count;
}

// As `call` of calls.hpp, for a handle. A code that no status has becomes an internal error.
template <class F> cublasStatus_t blas_call(const char* name, cublasHandle_t handle, F f) {
  if (forbidden(name)) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (const int code = enter(name); code != 0) {
    for (const cublasStatus_t s :
         {CUBLAS_STATUS_NOT_INITIALIZED, CUBLAS_STATUS_ALLOC_FAILED, CUBLAS_STATUS_INVALID_VALUE,
          CUBLAS_STATUS_ARCH_MISMATCH, CUBLAS_STATUS_EXECUTION_FAILED, CUBLAS_STATUS_NOT_SUPPORTED})
      if (s == code) return s;
    return CUBLAS_STATUS_INTERNAL_ERROR;
  }
  if (handle == nullptr || !blas_handles().has(handle)) {
    if (handle != nullptr) report(std::string(name) + " with a handle that does not exist, or was destroyed");
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  if (usable() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  return f();
}

} // namespace cuda_stand_in

inline cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  using namespace cuda_stand_in;
  if (forbidden("cublasCreate")) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (const int code = enter("cublasCreate"); code != 0)
    return code == CUBLAS_STATUS_ALLOC_FAILED ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_NOT_INITIALIZED;
  if (usable() != cudaSuccess || device_error(current_device) != cudaSuccess)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  auto made = std::make_unique<cublasContext>();
  made->device = current_device;
  *handle = blas_handles().add(std::move(made));
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  using namespace cuda_stand_in;
  return blas_call("cublasDestroy", handle, [=] {
    blas_handles().remove(handle);
    return CUBLAS_STATUS_SUCCESS;
  });
}
inline cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int* version) {
  return cuda_stand_in::blas_call("cublasGetVersion", handle, [=] {
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
  });
}
// The workspace goes back to the library's own pool.
inline cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  using namespace cuda_stand_in;
  return blas_call("cublasSetStream", handle, [=] {
    if (stream_of(stream) == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    handle->stream = stream;
    handle->own_pool = true;
    handle->workspace = {};
    return CUBLAS_STATUS_SUCCESS;
  });
}
inline cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  using namespace cuda_stand_in;
  return blas_call("cublasSetWorkspace", handle, [=] {
    if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
    const span_of_bytes given = bytes_at(workspace, bytes);
    if (given.where.kind != memory_kind::device || !given.reachable()) {
      report("a workspace for cuBLAS of " + std::to_string(bytes) + " bytes that is not all device memory");
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    handle->workspace = given;
    handle->own_pool = false;
    return CUBLAS_STATUS_SUCCESS;
  });
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  using namespace cuda_stand_in;
  return blas_call("cublasSetMathMode", handle, [=] {
    const int kind = mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    if (kind != CUBLAS_DEFAULT_MATH && kind != CUBLAS_PEDANTIC_MATH) {
      report("a math mode of cuBLAS that rounds fp32 to less");
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
  });
}
inline const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
  case CUBLAS_STATUS_SUCCESS:
    return "CUBLAS_STATUS_SUCCESS";
  case CUBLAS_STATUS_NOT_INITIALIZED:
    return "CUBLAS_STATUS_NOT_INITIALIZED";
  case CUBLAS_STATUS_ALLOC_FAILED:
    return "CUBLAS_STATUS_ALLOC_FAILED";
  case CUBLAS_STATUS_INVALID_VALUE:
    return "CUBLAS_STATUS_INVALID_VALUE";
  case CUBLAS_STATUS_ARCH_MISMATCH:
    return "CUBLAS_STATUS_ARCH_MISMATCH";
  case CUBLAS_STATUS_MAPPING_ERROR:
    return "CUBLAS_STATUS_MAPPING_ERROR";
  case CUBLAS_STATUS_EXECUTION_FAILED:
    return "CUBLAS_STATUS_EXECUTION_FAILED";
  case CUBLAS_STATUS_INTERNAL_ERROR:
    return "CUBLAS_STATUS_INTERNAL_ERROR";
  case CUBLAS_STATUS_NOT_SUPPORTED:
    return "CUBLAS_STATUS_NOT_SUPPORTED";
  case CUBLAS_STATUS_LICENSE_ERROR:
    return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "CUBLAS_STATUS unknown";
}
inline const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
  case CUBLAS_STATUS_SUCCESS:
    return "success";
  case CUBLAS_STATUS_NOT_INITIALIZED:
    return "the library was not initialized";
  case CUBLAS_STATUS_ALLOC_FAILED:
    return "the library could not allocate what it needs";
  case CUBLAS_STATUS_INVALID_VALUE:
    return "an argument is not valid";
  case CUBLAS_STATUS_NOT_SUPPORTED:
    return "a combination of arguments is not supported";
  case CUBLAS_STATUS_EXECUTION_FAILED:
    return "the GPU failed to execute";
  default:
    return "an error of the library";
  }
}
