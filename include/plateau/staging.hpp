// SPDX-License-Identifier: Apache-2.0
//
// State in host memory, updated on the device bucket by bucket: the pipeline, AdamW on it, its state dealt to
// ranks, the same update on the processor, and gradients that leave the device while backward runs.
#pragma once

#include <plateau/staging/bucket_plan.hpp>
#include <plateau/staging/gradient_accumulators.hpp>
#include <plateau/staging/host_adamw.hpp>
#include <plateau/staging/sharded_adamw.hpp>
#include <plateau/staging/staging_fields.hpp>
#include <plateau/staging/staging_pipeline.hpp>
#include <plateau/staging/staging_shape.hpp>
#include <plateau/staging/streamed_adamw.hpp>
