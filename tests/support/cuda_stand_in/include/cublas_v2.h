// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: cuBLAS, as far as it is in use: products of matrices, in batches and in groups. Arguments are
// checked as its documentation says.
#pragma once

#include <cublas_api.h>
#include <cuda_runtime_api.h>
#include <cuda_stand_in/blas_gemm.hpp>
#include <cuda_stand_in/blas_grouped.hpp>
#include <cuda_stand_in/blas_handle.hpp>

#define cublasCreate cublasCreate_v2
#define cublasDestroy cublasDestroy_v2
#define cublasGetVersion cublasGetVersion_v2
#define cublasSetStream cublasSetStream_v2
#define cublasSetWorkspace cublasSetWorkspace_v2
