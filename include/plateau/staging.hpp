// SPDX-License-Identifier: Apache-2.0
//
// State in host memory, updated on the device bucket by bucket.
#pragma once

#include <plateau/staging/bucket_plan.hpp>
#include <plateau/staging/staging_fields.hpp>
#include <plateau/staging/staging_pipeline.hpp>
#include <plateau/staging/staging_shape.hpp>
