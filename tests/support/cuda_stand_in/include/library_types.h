// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: the element types that cuBLAS is told of.
#pragma once

typedef enum cudaDataType_t {
  CUDA_R_32F = 0,
  CUDA_R_64F = 1,
  CUDA_R_16F = 2,
  CUDA_R_8I = 3,
  CUDA_R_32I = 10,
  CUDA_R_16BF = 14,
} cudaDataType;
typedef cudaDataType cudaDataType_t;
