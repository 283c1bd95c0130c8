"""Statistics, limits, pools, streams, recordings and errors on the simulated device."""

import gc
import os
import pickle
import tempfile
import threading
import unittest

os.environ.setdefault("HEADWATER_DEVICE", "sim")

import headwater
from headwater import cuda
from support import run_python


class Figures(unittest.TestCase):
    def test_the_names_are_those_of_torch(self):
        stats = cuda.memory_stats()
        for name in ("allocation.all.current", "reserved_bytes.small_pool.peak", "num_alloc_retries", "oversize_segments.freed"):
            self.assertIn(name, stats)
        self.assertIn("reserved", cuda.memory_summary())

    def test_peaks_and_totals_start_again(self):
        with headwater.empty(5 << 20):
            held = cuda.memory_allocated()
        self.assertGreaterEqual(cuda.max_memory_allocated(), held)
        cuda.reset_peak_memory_stats()
        self.assertEqual(cuda.max_memory_allocated(), cuda.memory_allocated())
        cuda.reset_accumulated_stats()
        self.assertEqual(cuda.memory_stats()["allocation.all.allocated"], 0)

    def test_an_emptied_cache_goes_back(self):
        headwater.empty(64 << 20).free()
        reserved = cuda.memory_reserved()
        released = cuda.empty_cache()
        self.assertGreaterEqual(released, 64 << 20)
        self.assertEqual(cuda.memory_reserved(), reserved - released)

    def test_a_snapshot_adds_up(self):
        held = headwater.empty(10 << 20)
        segments = cuda.memory_snapshot()
        self.assertEqual(sum(segment["total_size"] for segment in segments), cuda.memory_reserved())
        mine = [block for segment in segments for block in segment["blocks"] if block["address"] == held.ptr]
        self.assertEqual([block["state"] for block in mine], ["active_allocated"])
        for segment in segments:
            self.assertEqual(sum(block["size"] for block in segment["blocks"]), segment["total_size"])


class Limits(unittest.TestCase):
    def test_out_of_memory_carries_the_numbers(self):
        cuda.empty_cache()
        with headwater.limit(cuda.memory_reserved() + (8 << 20)):
            with self.assertRaises(headwater.OutOfMemoryError) as caught:
                headwater.empty(100 << 20)
        error = caught.exception
        self.assertIsInstance(error, MemoryError)
        self.assertEqual(error.requested_bytes, 100 << 20)
        self.assertTrue(error.over_limit)
        self.assertGreater(error.limit_bytes, 0)
        self.assertIn("104857600", str(error))
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.requested_bytes, str(again)), (error.requested_bytes, str(error)))

    def test_the_former_limit_comes_back(self):
        with headwater.limit(1 << 30):
            with headwater.limit(1 << 20):
                pass
            with self.assertRaises(headwater.OutOfMemoryError):
                headwater.empty(2 << 30)
        headwater.empty(2 << 30).free()

    def test_a_fraction_is_a_limit(self):
        cuda.set_per_process_memory_fraction(0.0001)
        try:
            with self.assertRaises(headwater.OutOfMemoryError):
                headwater.empty(1 << 30)
        finally:
            cuda.set_per_process_memory_fraction(1.0)
        with self.assertRaisesRegex(ValueError, "1.5"):
            cuda.set_per_process_memory_fraction(1.5)

    def test_a_limit_holds_for_pools_as_well(self):
        cuda.empty_cache()
        with headwater.limit(cuda.memory_reserved() + (4 << 20)), cuda.Pool() as pool, cuda.use_pool(pool):
            with self.assertRaises(headwater.OutOfMemoryError):
                headwater.empty(64 << 20)


class Streams(unittest.TestCase):
    def test_the_innermost_stream_is_current(self):
        self.assertEqual(cuda.current_stream().ptr, 0)
        one, two = cuda.Stream(), cuda.Stream(priority=-1)
        with cuda.stream(one):
            with two:
                self.assertEqual(headwater.empty(1).stream, two)
            self.assertEqual(cuda.current_stream(), one)
            seen = []
            thread = threading.Thread(target=lambda: seen.append(cuda.current_stream().ptr))
            thread.start()
            thread.join()
            self.assertEqual(seen, [0], "a scope belongs to its thread")
        self.assertEqual(cuda.current_stream().ptr, 0)

    def test_a_recorded_stream_keeps_memory_from_being_used_again(self):
        main, side = cuda.Stream(), cuda.Stream()
        with main:
            buffer = headwater.zeros(64 << 20)
        side.wait_stream(main)
        other = headwater.empty(64 << 20, stream=side).copy_from(buffer, stream=side)
        ptr = buffer.ptr
        buffer.record_stream(side)
        del buffer
        with main:
            self.assertNotEqual(headwater.empty(64 << 20).ptr, ptr)
        side.synchronize()
        self.assertTrue(side.query())
        self.assertEqual(other.tobytes(), bytes(64 << 20))

    def test_streams_of_others(self):
        class Theirs:
            def __cuda_stream__(self):
                return (0, 0)

        self.assertEqual(cuda.as_stream(Theirs()).ptr, 0)
        with self.assertRaises(TypeError):
            cuda.as_stream("stream")


class Pools(unittest.TestCase):
    def test_a_pool_serves_its_thread_alone(self):
        pool = cuda.Pool()
        with cuda.use_pool(pool):
            mine = headwater.zeros(3 << 20)
            reserved = pool.reserved_bytes
            self.assertGreaterEqual(reserved, 3 << 20)
            thread = threading.Thread(target=lambda: headwater.zeros(50 << 20).free())
            thread.start()
            thread.join()
            self.assertEqual(pool.reserved_bytes, reserved)
        headwater.zeros(20 << 20).free()
        self.assertEqual(pool.reserved_bytes, reserved)
        pool.close()
        self.assertEqual(mine.tobytes(), bytes(3 << 20), "blocks outlive their pool")
        del mine
        with self.assertRaises(ValueError):
            with cuda.use_pool(pool):
                pass
        cuda.verify()


class Recordings(unittest.TestCase):
    def test_a_recording_is_a_trace_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.hwt")
            with headwater.recording(path, "program") as trace:
                headwater.empty(1000).free()
                with self.assertRaisesRegex(ValueError, "under way"):
                    with headwater.recording(path):
                        pass
            self.assertEqual(trace.events, 2)
            self.assertGreater(os.path.getsize(path), 0)
            with self.assertRaises(OSError):
                with headwater.recording(os.path.join(folder, "no", "such", "folder")):
                    pass


class Threads(unittest.TestCase):
    def test_many_threads_at_once(self):
        wrong = []

        def work(number):
            for step in range(100):
                buffer = headwater.empty(1000 + 100 * step).fill(number)
                if set(buffer.tobytes()) != {number}:
                    wrong.append((number, step))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        gc.collect()
        cuda.verify()


class Opening(unittest.TestCase):
    def test_what_is_chosen_is_said(self):
        said = run_python("import headwater; headwater.open('sim'); print(headwater.info())", HEADWATER_DEVICE="")
        self.assertIn("'backend': 'sim'", said)

    def test_settings(self):
        said = run_python(
            """
            import headwater
            headwater.open("sim", "backing:classic,memory_limit:1G")
            print(headwater.info()["settings"])
            buffer = headwater.zeros(10)
            print(buffer.numpy().sum())
            try:
                headwater.open("sim", "backing:paged")
            except headwater.DeviceError as error:
                print("late:", error)
            """
        )
        self.assertIn("backing:classic", said)
        self.assertIn("late:", said)

    def test_bad_settings_and_devices_are_named(self):
        said = run_python(
            """
            import headwater
            for device, settings in (("sim", "colour:blue"), ("tpu", None), ("cuda", None)):
                try:
                    headwater.open(device, settings)
                except (ValueError, headwater.DeviceError) as error:
                    print(type(error).__name__, error)
            """,
            HEADWATER_LIBCUDA="/nowhere/libcuda.so",
        )
        lines = said.splitlines()
        self.assertRegex(lines[0], "ValueError .*colour")
        self.assertRegex(lines[1], "ValueError .*tpu")
        self.assertRegex(lines[2], "DeviceError .*/nowhere/libcuda.so")


if __name__ == "__main__":
    unittest.main()
