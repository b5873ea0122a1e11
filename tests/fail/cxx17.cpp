// SPDX-License-Identifier: Apache-2.0
// expect: plateau: needs C++20 (g++ >= 12, clang >= 14, nvcc >= 12.4)
// flags: -std=c++17
// control: with C++20
#include <plateau/config.hpp>
