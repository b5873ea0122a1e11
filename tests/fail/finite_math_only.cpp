// SPDX-License-Identifier: Apache-2.0
// expect: plateau: -ffast-math and -ffinite-math-only make isnan and isfinite constant; compile without them
// flags: -ffinite-math-only
// control: without the flag
#include <plateau/config.hpp>
