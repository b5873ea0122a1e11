// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: the functions of the CUDA runtime that are in use, with the real names and signatures. What it
// shows and what it cannot is said in cuda_stand_in/process.hpp.
#pragma once

#include <cuda_stand_in/leaks.hpp>
#include <cuda_stand_in/runtime_devices.hpp>
#include <cuda_stand_in/runtime_errors.hpp>
#include <cuda_stand_in/runtime_events.hpp>
#include <cuda_stand_in/runtime_memory.hpp>
#include <cuda_stand_in/runtime_streams.hpp>
#include <cuda_stand_in/runtime_work.hpp>

#include <driver_types.h>

#define CUDART_VERSION 13000
