// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: the version of CUB whose interface this is.
#pragma once

#define CUB_VERSION 300001
#define CUB_MAJOR_VERSION (CUB_VERSION / 100000)
#define CUB_MINOR_VERSION (CUB_VERSION / 100 % 1000)
#define CUB_SUBMINOR_VERSION (CUB_VERSION % 100)
