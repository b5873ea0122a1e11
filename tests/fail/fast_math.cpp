// SPDX-License-Identifier: Apache-2.0
// expect: plateau: -ffast-math and -ffinite-math-only make constants of isnan and isfinite; compile without
// flags: -ffast-math
// control: without the flag
#include <plateau/config.hpp>
