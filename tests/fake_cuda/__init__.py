# SPDX-License-Identifier: Apache-2.0
"""A CUDA device for fake tensors: the code paths of a GPU, followed without one.

    python -m tests.fake_cuda [arguments for pytest]

`device.cpp` gives a PyTorch without CUDA one CUDA device that computes nothing. Fake tensors have
shapes, types and that device, but no data; so the programs take every branch that they take on a
GPU, with the real sizes, and what they ask of the device can be counted and judged.
"""
