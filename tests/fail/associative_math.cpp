// SPDX-License-Identifier: Apache-2.0
// expect: plateau: -fassociative-math (part of -funsafe-math-optimizations) makes exp wrong; compile without it
// flags: -funsafe-math-optimizations
// control: without the flag
// only: g++
#include <plateau/config.hpp>
