# SPDX-License-Identifier: Apache-2.0
"""Writes values.bin beside this file: what PyTorch's AdamW makes of tensors of several sizes in twenty steps.

Run once, by hand; the result is committed (README.md says with which version). Inputs are not stored: they are exact
in float32 and follow from a hash of the element's number, which the test computes too. Of large tensors a sample is
stored, and always the last elements, where a vector loop ends.

Layout, little-endian float32: for each gradient type (float32, then bfloat16), for each shape, for each of master,
first and second moment: the root mean square of all elements, then the sampled ones.
"""
import pathlib

import numpy
import torch

SHAPES = [(1,), (17,), (33, 65), (257, 129), (513,), (1025,), (278011,)]
RATES = [1e-3 * (1 + step % 5) for step in range(20)]
BETAS, EPSILON, WEIGHT_DECAY = (0.9, 0.999), 1e-8, 0.01
MASK = numpy.uint64(0xFFFFFFFF)


def hashed(seed, n):
    """32 well mixed bits for each of n elements."""
    x = (numpy.arange(n, dtype=numpy.uint64) * numpy.uint64(2654435761) + numpy.uint64(seed * 40503)) & MASK
    for multiplier in (0x7FEB352D, 0x846CA68B):
        x ^= x >> numpy.uint64(16)
        x = (x * numpy.uint64(multiplier)) & MASK
    return x ^ (x >> numpy.uint64(15))


def values(seed, n):
    """In [-1, 1), multiples of 2^-23: exact in float32."""
    return ((hashed(seed, n) >> numpy.uint64(8)).astype(numpy.float64) - 2**23) * 2.0**-23


def gradient(step, n):
    """Of sizes from 1/16 down to 2^-11; none at all for one element of 64."""
    kind = hashed(7, n)
    size = 2.0 ** -(4.0 + (kind & numpy.uint64(7)).astype(numpy.float64))
    return numpy.where((kind >> numpy.uint64(8)) % numpy.uint64(64) == 0, 0.0, values(100 + step, n) * size)


def sample(n):
    """All of a small tensor; of a large one every 97th, and the last 64."""
    if n <= 2200:
        return numpy.arange(n)
    return numpy.union1d(numpy.arange(0, n, 97), numpy.arange(n - 64, n))


def run(shape, gradient_type):
    n = int(numpy.prod(shape))
    parameter = torch.nn.Parameter(torch.from_numpy(values(1, n).astype(numpy.float32)).reshape(shape))
    optimizer = torch.optim.AdamW([parameter], betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY)
    for step, rate in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = rate
        g = torch.from_numpy(gradient(step, n).astype(numpy.float32)).reshape(shape)
        parameter.grad = g.to(gradient_type).float()
        optimizer.step()
    state = optimizer.state[parameter]
    return [t.detach().reshape(-1).numpy() for t in (parameter, state["exp_avg"], state["exp_avg_sq"])]


def main():
    out = []
    for gradient_type in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            for tensor in run(shape, gradient_type):
                rms = numpy.sqrt(numpy.mean(tensor.astype(numpy.float64) ** 2))
                out += [numpy.array([rms]), tensor[sample(tensor.size)]]
    path = pathlib.Path(__file__).resolve().parent / "values.bin"
    numpy.concatenate(out).astype("<f4").tofile(path)
    print(path, path.stat().st_size, "bytes, PyTorch", torch.__version__)


main()
