"""Buffers on the simulated device: memory, copies, and what other libraries see of it."""

import gc
import os
import unittest

os.environ.setdefault("HEADWATER_DEVICE", "sim")

import numpy

import headwater
from headwater import cuda


class Buffers(unittest.TestCase):
    def tearDown(self):
        gc.collect()
        cuda.verify()

    def test_numpy_sees_the_memory_itself(self):
        buffer = headwater.zeros((4, 5), "float32")
        array = numpy.asarray(buffer)
        self.assertEqual((array.shape, array.dtype), ((4, 5), numpy.float32))
        self.assertEqual(array.ctypes.data, buffer.ptr)
        array[2, 3] = 7.0
        self.assertEqual(numpy.frombuffer(buffer.tobytes(), "float32")[2 * 5 + 3], 7.0)
        buffer.fill(0)
        buffer.stream.synchronize()
        self.assertEqual(array[2, 3], 0.0)

    def test_a_view_keeps_the_memory(self):
        buffer = headwater.zeros(1 << 20)
        held = cuda.memory_allocated()
        array = numpy.asarray(buffer)
        del buffer
        gc.collect()
        self.assertEqual(cuda.memory_allocated(), held)
        array[:] = 3
        self.assertEqual(int(array.sum()), 3 << 20)
        del array
        gc.collect()
        self.assertEqual(cuda.memory_allocated(), held - (1 << 20))

    def test_dlpack_hands_the_memory_over(self):
        buffer = headwater.asarray(numpy.arange(12, dtype="int64").reshape(3, 4))
        self.assertEqual(buffer.__dlpack_device__(), (1, 0))
        array = numpy.from_dlpack(buffer)
        self.assertEqual(array.tolist(), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])
        self.assertEqual(array.ctypes.data, buffer.ptr)
        # A capsule that nobody takes lets go as well.
        held = cuda.memory_allocated()
        capsule = buffer.__dlpack__()
        del buffer, array
        gc.collect()
        self.assertEqual(cuda.memory_allocated(), held)
        del capsule
        gc.collect()
        self.assertLess(cuda.memory_allocated(), held)
        with self.assertRaises(BufferError):
            headwater.zeros(1).__dlpack__(copy=True)

    def test_the_simulated_device_is_no_cuda_device(self):
        self.assertFalse(hasattr(headwater.zeros(1), "__cuda_array_interface__"))

    def test_copies_from_and_to_the_host(self):
        source = numpy.random.default_rng(0).random((100, 30))
        buffer = headwater.asarray(source)
        self.assertEqual((buffer.shape, buffer.dtype, buffer.nbytes), ((100, 30), "float64", 24000))
        target = numpy.empty_like(source)
        buffer.copy_to(target)
        self.assertTrue((target == source).all())
        # Not contiguous, and not writable.
        other = headwater.empty((50, 30), "float64").copy_from(source[::2])
        self.assertTrue((other.numpy() == source[::2]).all())
        self.assertEqual(headwater.empty(5).copy_from(b"water").tobytes(), b"water")
        second = headwater.empty((100, 30), "float64").copy_from(buffer)
        self.assertTrue((second.numpy() == source).all())
        with self.assertRaisesRegex(ValueError, "24000"):
            buffer.copy_from(b"short")

    def test_shapes_and_types(self):
        for dtype in ("bool", "int8", "uint16", "float16", "complex128", numpy.int32, numpy.dtype("f8"), "<f4"):
            buffer = headwater.zeros((2, 3), dtype)
            self.assertEqual(buffer.numpy().tolist(), numpy.zeros((2, 3), buffer.dtype).tolist())
        self.assertEqual(headwater.empty(7).shape, (7,))
        self.assertEqual(headwater.empty(()).nbytes, 1)
        self.assertEqual(headwater.empty((0, 4)).nbytes, 0)
        with self.assertRaises(TypeError):
            headwater.empty(1, "quad")
        with self.assertRaises(ValueError):
            headwater.empty((2, -1))

    def test_given_back_is_given_back(self):
        buffer = headwater.empty(1000)
        before = cuda.memory_allocated()
        with buffer:
            pass
        self.assertEqual(cuda.memory_allocated(), before - 1024)
        buffer.free()
        with self.assertRaisesRegex(ValueError, "given back"):
            buffer.fill(1)
        with self.assertRaisesRegex(ValueError, "given back"):
            buffer.record_stream(cuda.Stream())

    def test_memory_is_used_again(self):
        first = headwater.empty(3 << 20)
        ptr = first.ptr
        del first
        self.assertEqual(headwater.empty(3 << 20).ptr, ptr)


if __name__ == "__main__":
    unittest.main()
